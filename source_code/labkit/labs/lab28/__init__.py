"""Lab 28: 99 % on MNIST, as fast as possible."""

from labkit.labs.lab28.charts import seeds_chart, tries
from labkit.labs.lab28.claims import (
    as_searched,
    compiler_takes_longest,
    held_out_and_test,
    knew_nothing,
    no_rule_broken,
    reaches_the_goal,
    same_recipe,
    search_cost,
    shorter_steps,
    within_the_goals,
)
from labkit.labs.lab28.entries import goals, hidden, mflop, seeds, standing, steps, trainings
from labkit.labs.lab28.exercises import EXERCISES
from labkit.labs.lab28.searches import cost, recipes, rounds
