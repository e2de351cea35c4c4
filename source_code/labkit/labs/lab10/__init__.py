"""Lab 10: kernels of one's own, in Triton and in CUDA C++."""

from labkit.labs.lab10.claims import matrix_instructions, near_cublas, tile_matters, tiles_reuse, ways_in_cuda
from labkit.labs.lab10.exercises import EXERCISES
from labkit.labs.lab10.guesses import PREDICTIONS
from labkit.labs.lab10.products import (
    by_size,
    by_tile,
    by_type,
    by_way,
    in_cuda,
    orders,
    rates,
    sizes,
    sizes_in_cuda,
    tiles,
    types,
    ways,
    with_tiles,
)
