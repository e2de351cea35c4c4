"""Lab 22: what does sharding leave on a rank, what does it move, and whose CPU is late?"""

from labkit.labs.lab22.claims import (
    between_passes,
    cpu_is_late,
    ddp_is_faster,
    explained,
    fits_only_shared_out,
    full_batches_scale,
    large_steps_hide_it,
    messages_are_blocks,
    model_foretells,
    states_shared_out,
)
from labkit.labs.lab22.exercises import EXERCISES
from labkit.labs.lab22.measured import (
    averaged,
    bytes_moved,
    difference,
    fullest,
    hidden,
    ledger,
    line,
    moved,
    network,
    overlap,
    peaks,
)
from labkit.labs.lab22.memory import Network, Way, deepest, depths, held_bars, kept
from labkit.labs.lab22.ways import shared_out, tried
