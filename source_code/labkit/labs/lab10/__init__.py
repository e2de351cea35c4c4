"""Lab 10: kernels of one's own, in Triton and in CUDA C++."""

from labkit.labs.lab10.claims import (
    matrix_instructions,
    multiplies_in_cuda,
    narrow_is_faster,
    near_cublas,
    tile_matters,
    tiles_reuse,
    ways_in_cuda,
    worst_and_best,
)
from labkit.labs.lab10.exercises import EXERCISES
from labkit.labs.lab10.products import (
    in_cuda,
    median_rows,
    narrow_type,
    orders,
    rates,
    sizes,
    sizes_in_cuda,
    tiles,
    types,
    ways,
)
