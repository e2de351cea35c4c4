"""Lab 17: how long do Keras's epochs take by policy, and do the Tensor Cores compute?"""

from labkit.labs.lab17.claims import (
    as_it_comes,
    bar_is_an_epoch,
    beside_pytorch,
    by_environment,
    counters_tell,
    faster_than_fp32,
    idles_for,
    on_tensor_cores,
    pauses,
    shorter_process,
    whole_reports,
    without_compilation,
)
from labkit.labs.lab17.epochs import epoch_bars, epoch_table, faster, runs
from labkit.labs.lab17.exercises import EXERCISES
from labkit.labs.lab17.old_texts import precision, texts
from labkit.labs.lab17.reports import broken_off, counted, counter_panels, counters, held, profile
