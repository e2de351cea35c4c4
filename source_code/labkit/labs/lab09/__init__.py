"""Lab 9: kernels and the roofline."""

from labkit.labs.lab09.claims import (
    below_the_roof,
    counted_here,
    first_to_attack,
    floor,
    hardly_idle,
    little_had_to_be,
    shapes_are_right,
    sixteen_bits,
    slow_kernels_are_left,
    small_and_waiting,
    ten_epochs,
    too_few_blocks_too_much_work,
    waiting_is_gone,
    zeros_are_faster,
)
from labkit.labs.lab09.exercises import EXERCISES
from labkit.labs.lab09.kernels import by_limit, conv2, conv2_products, plan
from labkit.labs.lab09.steps import distances, floor_table, ladder_points, points, roofs, traffic, zeros
