"""How long do Keras's epochs and processes take, by policy? Runs, ratios, a table and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import pandas as pd
from matplotlib.figure import Figure

from labkit import source
from labkit.display import style
from labkit.display.charts.bars import SMALL, bar, bar_axes, reach
from labkit.display.runs import epoch_ms
from labkit.display.spread import Spread, paired, spread
from labkit.source import kinds
from labkit.subjects.keras import KIND, with_keras
from stepbudget.show.palette import tint
from stepbudget.show.table import Table, table


def runs(commands: Mapping[str, str], repeats: int | None = None) -> dict[str, list[dict]]:
    """Whole-process runs of each command by its name, as ``lab.runs``; in quick live mode one of each.

    A command stands as in a terminal: ``python3 source_code/benchmarks/keras_mnist.py --backend jax``.
    """
    plain = {name: command.removeprefix("python3 source_code/benchmarks/") for name, command in commands.items()}
    found = source.current().get(with_keras(kinds.runs(list(plain.values()), repeats, KIND, when_quick=1)))
    return {name: found[command] for name, command in plain.items()}


def later_epochs(runs: Mapping[str, Sequence[dict]]) -> dict[str, list[float]]:
    """Training seconds of each epoch but a process's first, by the name of what ran."""
    return {name: [epoch["training_s"] for run in own for epoch in run["epochs"][1:]] for name, own in runs.items()}


def faster(runs: Mapping[str, Sequence[dict]], base: str) -> dict[str, Spread]:
    """How many times as fast a later epoch is as one of ``base``, round by round, by each process's median."""
    later = {name: [{"ms": epoch_ms([record])} for record in own] for name, own in runs.items()}
    return {name: paired(later[base], own, "ms") for name, own in later.items()}


def parts(records: Sequence[dict]) -> pd.Series:
    """Seconds of a whole process and of its parts, by their medians."""
    first = spread([record["epochs"][0] for record in records], "training_s").median
    training, tests, whole = (spread(records, field).median for field in ("training_s", "test_s", "process_s"))
    return pd.Series({"process": whole, "first epoch": first, "later epochs": training - first, "tests": tests})


def epoch_table(runs: Mapping[str, Sequence[dict]], backend: str) -> Table:
    """Training seconds of the first epoch, and median and range of the later ones, a row a command."""
    rows = []
    for name, records in runs.items():
        first = spread([record["epochs"][0] for record in records], "training_s")
        later = spread([epoch for record in records for epoch in record["epochs"][1:]], "training_s")
        rows.append((name, len(records), first.median, later.median, f"{later.low:.2f}–{later.high:.2f}"))
    columns = ["step", "processes", "first epoch s", "later epochs s", "their range s"]
    formats = {"first epoch s": "{:.1f}", "later epochs s": "{:.2f}"}
    caption = f"Training time of an epoch: the first, and the median of the later ones (Keras on {backend})"
    return table(pd.DataFrame(rows, columns=columns), caption, formats)


def epoch_bars(runs: Mapping[str, Sequence[dict]], backend: str) -> Figure:
    """Training seconds of an epoch: the later ones as dots and as their median, the first one in words.

    ``runs`` maps a step's name to its records. The label says how many times as fast it is as the first step's.
    """
    later = later_epochs(runs)
    base = median(next(iter(later.values())))
    with style.house_style():
        title = f"Training time of an epoch but the first: each a dot, and their median (Keras on {backend})"
        fig, ax = bar_axes(list(runs), title, "seconds")
        reach(ax, max(map(max, later.values())), words_in=2.2)
        for y, (name, found) in enumerate(runs.items()):
            middle = median(later[name])
            bar(ax, y, 0, middle, tint(style.COLOURS["kernel"], 0.7))
            ax.plot(later[name], [y] * len(later[name]), "o", ms=4, mfc=style.PAPER, mec=style.INK, mew=0.9)
            times = f"   {base / middle:.1f}×" if y else ""
            words = f"{middle:.2f} s{times}   first: {median(run['epochs'][0]['training_s'] for run in found):.1f} s"
            ax.annotate(words, (max(later[name]), y), (8, 0), textcoords="offset points", va="center", size=SMALL + 0.5)
    return fig
