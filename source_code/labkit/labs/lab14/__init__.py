"""Lab 14: what FP16 loses of a gradient, and a scale that keeps it."""

from labkit.labs.lab14.claims import (
    accuracy_kept,
    apex_as_native,
    few_skipped,
    medians_near,
    mixed_is_slower,
    o3_fails,
    on_tensor_cores,
    skips_foretold,
    underflow,
)
from labkit.labs.lab14.cubic import (
    VARIANTS,
    by_variant,
    fits,
    iteration,
    losses,
    overflow,
    products,
    scales_chart,
    tails,
    text,
)
from labkit.labs.lab14.exercises import EXERCISES
from labkit.labs.lab14.network import skipped, zeros_chart, zeros_pct
from labkit.labs.lab14.predictions import PREDICTIONS
