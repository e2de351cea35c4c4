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
    tf32_rounds,
    underflow,
)
from labkit.labs.lab14.cubic import by_variant, fits, fits_chart, overflow, products, rounding, tail, text, work
from labkit.labs.lab14.exercises import EXERCISES
