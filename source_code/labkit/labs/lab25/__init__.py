"""Lab 25: two scripts that somebody brings, what each mend promised, and what it brought."""

from labkit.labs.lab25.claims import (
    loader_starves,
    longer_start_pays,
    outcomes,
    promise_kept,
    same_work,
    starved_steps,
    steps_by_report,
    whole_process,
    within_bounds,
    workers_beat_the_bound,
)
from labkit.labs.lab25.exercises import EXERCISES
from labkit.labs.lab25.mends import budgets, report, report_file
from labkit.labs.lab25.scored import gains, ledger, scores, steps, whole, whole_table
from labkit.labs.lab25.scripts import mended, pasted, script
