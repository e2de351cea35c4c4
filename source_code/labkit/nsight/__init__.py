"""What does a Nsight Systems report say? Rooms that read reports; none of them knows about training."""

from labkit.nsight import copies, idle, phases, tensor_cores

__all__ = ["copies", "idle", "phases", "tensor_cores"]
