"""Lab 15: who needs a loss scaler, and what it costs."""

from labkit.labs.lab15.claims import (
    ends_near_fp32,
    fused_waits_for_nothing,
    gradients_lost,
    guesses_unscaled,
    learns_when_scaled,
    scaler_costs,
    scales_held,
    skips_seen,
    warned_though_scaled,
)
from labkit.labs.lab15.exercises import EXERCISES
from labkit.labs.lab15.trainings import (
    WORDS,
    ends,
    ends_table,
    exponents,
    layers,
    loss_bands,
    lost,
    optimizers,
    pictures,
    text,
)
