"""What does a Nsight Systems report say? Rooms that read reports; none of them knows about training."""

from labkit.nsight import advice, budget, compare, copies, idle, iterations, launch, ops, phases, predict, tensor_cores

__all__ = [
    "advice", "budget", "compare", "copies", "idle", "iterations", "launch", "ops", "phases", "predict", "tensor_cores",
]  # fmt: skip
