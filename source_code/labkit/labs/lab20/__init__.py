"""Lab 20: what ails ten programs? Reports under a number, scripts, and the words for a diagnosis."""

from labkit.labs.lab20.claims import advice_is_right, healthy_is_busy, norms_are_fetched, pinned_is_faster
from labkit.labs.lab20.exercises import EXERCISES
from labkit.labs.lab20.guesses import PREDICTIONS
from labkit.labs.lab20.patients import in_backward, numbers, report, rounds, script, ward, words
