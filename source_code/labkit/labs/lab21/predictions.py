"""What lab 21 asks its reader to predict: what two GPUs gain, and for how long gradients travel."""

from __future__ import annotations

from labkit.labs.lab21 import measured
from labkit.predictions import Guess
from stepbudget.ask.ranks import Ranks

LAUNCHES_STAY = "That halves all of the step. The kernels halve; the launches, made by each rank's CPU, don't."


def _of_window(what: str):
    """Per cent of the window in which rank 0's collectives did this."""

    def share(pair: Ranks) -> float:
        first = pair.ranks[0]
        return 100 * first.communication[what] / first.window.duration_ms

    return share


PREDICTIONS = {
    "digits": Guess(
        "two GPUs, digits on the GPU",
        "×",
        lambda gains: gains["ddp_on_gpu"].median,
        wrong={
            LAUNCHES_STAY: lambda gains: 2.0,
            "That's no change. What do two CPUs cost that meet at every step?": lambda gains: 1.0,
        },
    ),
    "loader": Guess(
        "two GPUs, digits with a loader",
        "×",
        lambda gains: gains["ddp"].median,
        wrong={"That halves all of the step. The loaders share it; each rank's launches stay.": lambda gains: 2.0},
    ),
    "text": Guess(
        "two GPUs, transformer",
        "×",
        lambda gains: gains["text_ddp"].median,
        wrong={"Each rank runs the whole optimizer, and all-reduces slow the kernels beside them.": lambda gains: 2.0},
    ),
    "travel": Guess(
        "time in which gradients travel",
        " %",
        _of_window("transfer_ms"),
        wrong={
            "That's all of rank 0's time in all-reduces. Most of it is waiting for rank 1.": _of_window("total_ms"),
            "That's rank 0's exposed time. Most of it is waiting for rank 1.": _of_window("exposed_ms"),
        },
    ),
    "graph": Guess(
        "two GPUs, an epoch in one launch",
        "×",
        lambda graphs: measured.graph(graphs).median,
        wrong={
            "That halves the optimizer's step, too. Each rank runs the whole of it.": lambda graphs: 2.0,
            "That's the step launched kernel by kernel. Here no CPU stands between the kernels.": lambda graphs: (
                measured.graph(graphs, "ddp_on_gpu").median
            ),
        },
    ),
    "weak": Guess(
        "two GPUs with a full batch each, transformer",
        "×",
        lambda found: measured.weak(found).median,
        wrong={
            "That's two GPUs that don't disturb each other. Kernels run slower beside an all-reduce.": lambda found: (
                2.0
            ),
            "That's the batch shared out. A full batch each halves the optimizer's weight.": lambda found: (
                measured.gains(found)["text_ddp"].median
            ),
        },
    ),
}
