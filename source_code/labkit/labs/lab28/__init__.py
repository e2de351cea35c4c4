"""Lab 28: 99 % on MNIST, as fast as possible."""

from labkit.labs.lab28.charts import seeds_chart, tries
from labkit.labs.lab28.claims import (
    compiler_takes_longest,
    honest,
    reaches_the_goal,
    shorter_steps,
)
from labkit.labs.lab28.entries import hidden, knew, mflop, seeds, standing, steps
from labkit.labs.lab28.exercises import EXERCISES
from labkit.labs.lab28.guesses import PREDICTIONS
from labkit.labs.lab28.searches import cost, rounds, second_round
