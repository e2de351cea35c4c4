"""What lab 22 asks its reader to predict, and what usual wrong guesses leave out."""

from __future__ import annotations

from labkit.labs.lab22 import measured
from labkit.labs.lab22.memory import FP32, NUMBERS
from labkit.predictions import Guess
from labkit.subjects.scaling.readings import gained

SEQUENCES = 32  # a rank's, of the runs that are compared
STATES = FP32 * sum(NUMBERS.values())  # bytes a weight


def _parts(network, peaks) -> dict[str, float]:
    return measured.difference(network, peaks, SEQUENCES)


PREDICTIONS = {
    "less": Guess(
        "memory that sharding on two saves", " GB", lambda network, peaks: _parts(network, peaks)["measured"] / 1e9,
        wrong={
            "That's half of the states. But FSDP's gradients aren't there yet, and activations differ, too.": (
                lambda network, peaks: STATES / 2 * network.weights / 1e9
            ),
            "That leaves the activations out: FSDP's policy has all of them in BF16, autocast only some.": (
                lambda network, peaks: sum(list(_parts(network, peaks).values())[:3]) / 1e9
            ),
        },
    ),
    "wide": Guess(
        "the wide network, on each of two GPUs", " GB", lambda wide: float(wide["peak"].max()) / 1e9,
        wrong={
            "That's all the states, as without sharding.": lambda wide: STATES * float(wide["weights"].max()) / 1e9,
            "That's the states alone: gathered blocks and gradients that are still whole come on top.": (
                lambda wide: STATES / 2 * float(wide["weights"].max()) / 1e9
            ),
        },
    ),
    "bytes": Guess(
        "bytes of FSDP, against DDP's", "×",
        lambda pair, network, found: (
            float(measured.moved(pair, network.weights)["total"].sum()) / (2 * measured.averaged(found))
        ),
        wrong={
            "That counts numbers. The two all-gathers carry two bytes each, not four.": lambda *_: 1.5,
            "That's all three passes in BF16. Gradients are added up in FP32.": lambda *_: 0.75,
        },
    ),
    "strong": Guess(
        "FSDP on two GPUs, batch shared out", "×", lambda runs: gained(runs, "text_fsdp", "strong", 2).median,
        wrong={
            "That's what DDP gains. FSDP moves as many bytes, but its CPU has more to do.": (
                lambda runs: gained(runs, "text_ddp", "strong", 2).median
            ),
            "That's the ideal: nothing waits and nothing is moved.": lambda _: 2.0,
        },
    ),
}  # fmt: skip
