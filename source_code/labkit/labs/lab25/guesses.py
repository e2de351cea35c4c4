"""What lab 25 asks its reader to predict, and what the usual wrong guesses leave out."""

from __future__ import annotations

from labkit.labs.lab25.scored import most
from labkit.predictions import Guess

A_STEP = "That's a step. A process also starts up and warms up, which no fix made shorter."

PREDICTIONS = {
    "whole": Guess(
        "ResNet, the whole process",
        "×",
        lambda whole: whole.process.median,
        wrong={A_STEP: lambda whole: whole.step.median},
    ),
    "workers": Guess(
        "ResNet, a step with 14 workers",
        "×",
        lambda scored: scored[0].ratio.median,
        wrong={
            "That's the bound of these ten steps. Are they like all others?": lambda scored: scored[0].at_most_times,
            "Seven times as many workers only shorten the time that the GPU waits for them.": lambda scored: 14 / 2,
        },
    ),
    "best": Guess("ResNet, the fix that saves most", "", most),
    "times": Guess(
        "transformer, the whole process",
        "×",
        lambda whole, scored: whole.process.median,
        wrong={
            A_STEP: lambda whole, scored: whole.step.median,
            "That's the bound of BF16 alone, and of a step: at best, not as a rule.": lambda whole, scored: (
                scored[0].at_most_times
            ),
        },
    ),
    "most": Guess("transformer, the fix that saves most", "", most),
}
