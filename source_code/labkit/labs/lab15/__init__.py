"""Lab 15: who needs a loss scaler, and what it costs."""

from labkit.labs.lab15.claims import (
    ends_near_fp32,
    fused_waits_for_nothing,
    gradients_lost,
    guesses_unscaled,
    learns_when_scaled,
    skips_seen,
    sums_arrive,
    warned_though_scaled,
)
from labkit.labs.lab15.exercises import EXERCISES
from labkit.labs.lab15.predictions import PREDICTIONS
from labkit.labs.lab15.trainings import (
    accuracy,
    deep_chart,
    ends,
    ends_table,
    exponents,
    first_histogram,
    histograms,
    layers,
    logs,
    logs_table,
    loss_bands,
    lost,
    lost_at_last,
    optimizers,
    said,
    text,
    weights_lost,
)
