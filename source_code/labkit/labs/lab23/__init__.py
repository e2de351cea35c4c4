"""Lab 23: which numbers of a training may have eight bits or sixteen, and what that gains.

``blocks`` and ``first_bad`` stand on PyTorch, and are imported where they are used.
"""

from labkit.labs.lab23.claims import (
    attention_gains,
    chance_mends,
    culprit_found,
    finer_scales_keep_more,
    gate,
    moments_stay,
    nothing_added,
    nothing_lost,
    odd_size_costs,
    pays_in_large_layers,
)
from labkit.labs.lab23.exercises import EXERCISES
from labkit.labs.lab23.formats import by_chance, by_format, kept, losses, trainings
from labkit.labs.lab23.fp8 import bounds, gains, layers, products, small_and_large
from labkit.labs.lab23.guesses import PREDICTIONS
from labkit.labs.lab23.sequences import attention, cases, fastest, recurrent, recurrent_types, sizes
