"""Lab 25: two scripts that somebody brings, what each fix promised, and what it brought."""

from labkit.labs.lab25.claims import loader_starves, whole_process, within_bounds, workers_beat_the_bound
from labkit.labs.lab25.exercises import EXERCISES
from labkit.labs.lab25.guesses import PREDICTIONS
from labkit.labs.lab25.mends import report
from labkit.labs.lab25.scored import ledger, scores, steps, whole, whole_table
from labkit.labs.lab25.scripts import fixes, pasted
