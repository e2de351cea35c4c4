"""A GPU, a CUDA graph and Triton on a CPU: they teach in labs 7 and 9, and serve the tests."""
