"""Lab 22: what does sharding leave on a rank, what does it move, and whose CPU is late?"""

from labkit.labs.lab22.claims import (
    cpu_is_late,
    ddp_is_faster,
    explained,
    fits_only_shared_out,
    full_batches_scale,
    large_steps_hide_it,
    messages_are_blocks,
)
from labkit.labs.lab22.exercises import EXERCISES
from labkit.labs.lab22.measured import (
    averaged,
    bytes_moved,
    difference,
    fullest,
    hidden,
    late,
    ledger,
    line,
    moved,
    network,
    overlap,
    peaks,
)
from labkit.labs.lab22.memory import Network, Way, states_bars
from labkit.labs.lab22.predictions import PREDICTIONS
from labkit.labs.lab22.ways import of_width, shared_out, tried
