"""Lab 17: how long do Keras's epochs take by policy, and do the Tensor Cores compute?"""

from labkit.labs.lab17.claims import (
    beside_pytorch,
    counters_tell,
    faster_than_fp32,
    float32_is,
    idles_for,
    on_tensor_cores,
    shorter_process,
    whole_reports,
    without_compilation,
)
from labkit.labs.lab17.epochs import epoch_bars, epoch_table, runs
from labkit.labs.lab17.exercises import EXERCISES
from labkit.labs.lab17.old_texts import precision, texts
from labkit.labs.lab17.predictions import PREDICTIONS
from labkit.labs.lab17.reports import broken_off, counted, counter_panels, counters, held, profile
