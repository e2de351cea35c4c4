"""Lab 9: kernels and the roofline."""

from labkit.labs.lab09.claims import (
    factors,
    first_to_attack,
    floor,
    hardly_idle,
    little_had_to_be,
    measured_roofs,
    shapes_are_right,
    stranger,
    under_the_roof,
    what_limits,
)
from labkit.labs.lab09.exercises import EXERCISES
from labkit.labs.lab09.guesses import PREDICTIONS
from labkit.labs.lab09.kernels import conv2, conv2_products, longest, plan
from labkit.subjects.steps import (
    count_in_depth,
    count_ladder,
    distances,
    floor_table,
    ladder_points,
    roofs,
    scripts,
    traffic,
    zeros,
)
