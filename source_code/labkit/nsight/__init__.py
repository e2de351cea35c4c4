"""What does a Nsight Systems report say? Rooms that read reports; none of them knows about training."""
