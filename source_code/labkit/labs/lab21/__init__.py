"""Lab 21: what do more GPUs gain, which rank is late and why, and how far does a model foretell it?"""

from labkit.labs.lab21 import stragglers
from labkit.labs.lab21.claims import (
    accuracy_kept,
    dealt_out,
    full_batches_pay,
    graph_pays,
    late_for_its_cpu,
    second_gpu,
    two_as_predicted,
)
from labkit.labs.lab21.exercises import EXERCISES
from labkit.labs.lab21.measured import accuracy, buckets, communication, gains, seeds
from labkit.labs.lab21.predictions import PREDICTIONS
