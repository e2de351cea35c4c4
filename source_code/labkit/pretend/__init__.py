"""A GPU, what a profiler sees of it, a CUDA graph and Triton on a CPU: they teach in the labs, and serve the tests."""
