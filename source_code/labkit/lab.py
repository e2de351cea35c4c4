"""The face that the notebooks see: short names for what the labs do, each a thin layer over the rooms of labkit.

from labkit import lab
lab.start()
report = lab.profile("nsys profile … python3 source_code/main_baseline_nvtx.py --profile --epochs 2")
lab.phases(report)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from scipy import stats

from labkit import exercises, source
from labkit.checks import begin, compare_prediction, conclude, differences, expect, finish, invariant
from labkit.display import charts
from labkit.display import table as tables
from labkit.display import tables as report_tables
from labkit.display.charts import budget_bars, budget_share_bars, explore, pick, queue_depth, step_chart, timeline
from labkit.display.diffs import diff
from labkit.display.listing import listing
from labkit.display.show import show
from labkit.display.spread import MEASURED, Spread, paired, speedup, spread
from labkit.display.tables import (
    advice,
    bounds_table,
    budget_table,
    comparison_table,
    copies,
    eligible_table,
    idle_by_phase_table,
    kernels,
    launch_table,
    partition_table,
    phases,
    sampled_table,
    steps_table,
    tensor_active_table,
)
from labkit.source import command, quick, recorded
from labkit.topics.break_even.charts import break_even_lines
from labkit.topics.break_even.costs import break_even, cost
from labkit.topics.ladder.charts import floor_shares_table, ledger_table, lines_table, process_parts, startup_table
from labkit.topics.ladder.charts import ladder as ladder_with_floor
from labkit.topics.profilers import charts as profilers
from labkit.topics.profilers import nvml, torch_profiler
from labkit.topics.roofline import readings as roofline
from labkit.topics.roofline.charts import roofline as roofline_chart
from labkit.topics.roofline.tables import (
    bytes_table,
    distances_table,
    floor_table,
    limits_table,
    peaks_table,
    points_table,
)
from labkit.training import machine
from stepbudget import ask as nsight
from stepbudget.ask.budget import budget
from stepbudget.ask.compare import compare
from stepbudget.ask.iterations import step_windows
from stepbudget.ncu.counters import Counted
from stepbudget.report import Report, open_report

__all__ = [
    "Spread",
    "accuracy_gate",
    "advice",
    "benchmark",
    "bounds_table",
    "break_even",
    "break_even_lines",
    "budget",
    "budget_bars",
    "budget_share_bars",
    "budget_table",
    "bytes_table",
    "charts",
    "cold_run",
    "command",
    "compare",
    "compare_prediction",
    "comparison_table",
    "conclude",
    "copies",
    "cost",
    "count",
    "diff",
    "differences",
    "distances_table",
    "eligible_table",
    "epoch_ms",
    "exercise",
    "expect",
    "explore",
    "facts",
    "finish",
    "floor_shares_table",
    "floor_table",
    "gate_table",
    "idle",
    "idle_by_phase",
    "idle_by_phase_table",
    "idle_table",
    "invariant",
    "kernels",
    "ladder_with_floor",
    "launch_table",
    "ledger_table",
    "limits_table",
    "lines_table",
    "listing",
    "nsight",
    "nvml",
    "open_report",
    "paired", "partition_table",
    "peaks_table",
    "phases",
    "pick",
    "points_table",
    "process_parts",
    "profile",
    "profilers",
    "provenance_table",
    "queue_depth",
    "recorded_runs",
    "roofline",
    "roofline_chart",
    "rows",
    "runs",
    "sampled_table",
    "show",
    "speedup",
    "spread",
    "start",
    "startup_table",
    "step_chart",
    "step_windows",
    "steps_table",
    "table",
    "tensor_active_table",
    "this_machine",
    "timeline",
    "torch_profile",
    "torch_profiler",
    "wall_clock",
]  # fmt: skip

ACCURACY_FLOOR_PCT = 98.70  # mean test accuracy that a step has to keep
SIGNIFICANCE = 0.05  # of the one-sided Welch test against the baseline


table = tables.table
torch_profile = torch_profiler.profile
idle = nsight.idle.idle
idle_by_phase = nsight.idle.idle_by_phase


def start() -> None:
    """Say in one line where the numbers of this notebook come from."""
    begin()
    print(source.current().greeting)


def facts() -> source.Machine:
    """The machine that this notebook's results are from: GPU, capability, cores, profilers, and what it may read."""
    return source.current().facts


def runs(commands: Sequence[str], repeats: int | None = None, when_quick: int = quick.ROUNDS) -> dict[str, list[dict]]:
    """Whole-process runs of each command (a script of source_code/ with its flags), in turn; their records.

    Live, so often: ``repeats``, else 3, in quick mode ``when_quick`` (1 does for the points of a sweep).
    """
    return source.current().runs(commands, repeats, when_quick=when_quick)


def cold_run(command: str) -> dict:
    """The record of one whole-process run whose compilers find nothing that they made before."""
    return source.current().cold_run(command)


def benchmark(command: str) -> list[dict]:
    """The records of a benchmark script (``bench_….py`` with its flags)."""
    return source.current().benchmark(command)


def profile(command: str, show: Callable[[str], None] = print) -> Report:
    """The report of an ``nsys profile`` command, which is shown with ``show``."""
    return source.current().profile(command, show)


def count(command: str, brief: bool = False) -> Counted:
    """What an ``ncu`` command counted; ``brief``: without showing the command."""
    return source.current().count(command, brief=brief)


def this_machine() -> tables.Table:
    """What this machine has: GPU, driver, Nsight Systems, cores, and the mode that follows."""
    found = source.this_machine()
    lines = {
        "GPU": f"{found.gpu}, driver {found.driver}" if found.gpu else _no_gpu(found),
        "Nsight Systems": found.nsys or "not found",
        "CPU cores": str(found.cores),
        "labs run": source.current().name,
    }
    return table(pd.DataFrame(lines.items(), columns=["", "this machine"]))


def _no_gpu(found: source.Machine) -> str:
    """That there is none; where there is a driver, the reader wants to know what is wrong with the GPU."""
    problem = machine.gpu_problem() if found.driver else None
    return f"none that CUDA can use: {problem}" if problem else "none"


def provenance_table() -> tables.Table:
    """Where the recorded runs come from, in short; ``provenance.json`` holds the rest."""
    source = recorded.provenance()
    versions = source["versions"]
    lines = {
        "GPU": f"{source['gpu']}, driver {source['driver']}",
        "CPU": f"{source['cpu_cores']} cores, {source['cpu']}",
        "software": f"Python {versions['python']}, torch {versions['torch']}, Nsight Systems {source['nsys']}",
        "digits": ", ".join(source["data_source"]),
        "measured": f"{source['recorded'][:10]}, {source['repetitions']} runs of each step, in turn",
        "commits": ", ".join(sorted({commit[:12] for commits in source["commits"].values() for commit in commits})),
        "made by": source["made_by"],
    }
    where = recorded.shown(recorded.folder() / "provenance.json")
    return table(pd.DataFrame(lines.items(), columns=["", where]))


def rows(found: Sequence[dict]) -> pd.DataFrame:
    """A benchmark's rows as a DataFrame."""
    return pd.DataFrame(found)


def recorded_runs(step: str, kind: str = "runs") -> list[dict]:
    """The shipped whole-process runs of a step, in live mode too; ``reference``: those beside PyTorch's own example."""
    return recorded.records(kind, step)


def exercise(number: str, answer: object, *context: object) -> None:
    """Check the answer to an exercise and print what is wrong with it, if anything; ``None`` is no answer yet."""
    exercises.exercise(number, answer, *context)


def idle_table(reports: Mapping[str, Report], runs: Mapping[str, Sequence[dict]] | None = None) -> tables.Table:
    """How one training epoch divides into GPU work and none, a report per row.

    With ``runs`` (a step's name → its timed runs), an epoch without the profiler stands beside it.
    """
    return report_tables.idle_table(reports, runs and {name: epoch_ms(runs[name]) for name in reports})


def epoch_ms(found: Sequence[dict]) -> float:
    """Milliseconds of a training epoch without the profiler: the median over all runs, first epochs left out."""
    return statistics.median(1e3 * epoch["training_s"] for record in found for epoch in record["epochs"][1:])


def wall_clock(found: Mapping[str, Sequence[dict]], in_turn: bool = True) -> tables.Table:
    """The wall-clock table: whole process and training loop, median and range, speedups, test accuracy.

    ``found`` maps a step's name to its records; the first is the baseline. ``in_turn=False`` is for alternatives, which
    do not build on one another: no speedup over the row before is shown.
    """
    names = list(found)
    process = {name: spread(found[name]) for name in names}
    epochs = {len(record["epochs"]) for records in found.values() for record in records}
    least, most = min(epochs), max(epochs)
    after = "" if least == quick.FULL_EPOCHS else f" after {least} epochs"  # never beside a claim on ten epochs
    rows = []
    for i, name in enumerate(names):
        whole, before, first = process[name], process[names[max(0, i - 1)]], process[names[0]]
        mnist = all(record["data_source"] == "MNIST" for record in found[name])
        accuracy = statistics.median(record["test_accuracy_pct"] for record in found[name])
        digits = "" if mnist else " (bundled digits, not MNIST)"
        rows.append(
            {
                "step": name,
                "n": whole.n,
                "process s": whole.median,
                "range s": f"{MEASURED}{whole.low:.1f}–{whole.high:.1f}",
                "training s": spread(found[name], "training_s").median,
                "test s": spread(found[name], "test_s").median,
                "× before": before.median / whole.median if i else None,
                "× baseline": first.median / whole.median if i else None,
                f"accuracy %{after}{digits}": accuracy,
            }
        )
    frame = pd.DataFrame(rows)
    if len(names) == 1 or not in_turn:
        frame = frame.drop(columns="× before")
    if len(names) == 1:
        frame = frame.drop(columns="× baseline")
    accuracy = frame.columns[-1]
    formats = dict.fromkeys(["process s", "training s", "test s"], "{:.1f}")
    formats |= {"× before": "{:.2f}", "× baseline": "{:.2f}", accuracy: "{:.2f}"}
    many = _in_words(most) if least == most else f"{_in_words(least)} to {most}"
    caption = f"{many} epochs: whole process (median and range of n runs), of which training loop and test (medians)"
    measured = [column for column in formats if column in frame]
    return table(frame, caption, {column: formats[column] for column in measured}, measured)


def _in_words(epochs: int) -> str:
    return {quick.EPOCHS: "Three", quick.FULL_EPOCHS: "Ten"}.get(epochs, str(epochs))


def accuracy_gate(baseline: str, step: str) -> tuple[float, float]:
    """Mean test accuracy (per cent) of a step over its recorded seeds, and the p-value of being below the baseline.

    The test is Welch's, one-sided: ``p < 0.05`` would mean significantly below.
    """
    first, second = ([r["test_accuracy_pct"] for r in recorded.accuracy(name)] for name in (baseline, step))
    p = stats.ttest_ind(second, first, equal_var=False, alternative="less").pvalue
    return statistics.mean(second), float(p)


def largest_loss(baseline: str, step: str) -> float:
    """How many points of accuracy the step loses at most, with 95 % confidence (Welch's one-sided bound)."""
    first, second = ([r["test_accuracy_pct"] for r in recorded.accuracy(name)] for name in (baseline, step))
    test = stats.ttest_ind(first, second, equal_var=False, alternative="less")
    return float(test.confidence_interval(0.95).high)


def gate_table(baseline: str, steps: Sequence[str]) -> tables.Table:
    """The accuracy gate: ten or more seeds a step, mean and range, and Welch's test against the baseline."""
    rows = []
    for step in steps:
        values = [record["test_accuracy_pct"] for record in recorded.accuracy(step)]
        mean, p = accuracy_gate(baseline, step)
        passed = mean >= ACCURACY_FLOOR_PCT and (step == baseline or p >= SIGNIFICANCE)
        compared = (None, None) if step == baseline else (p, largest_loss(baseline, step))
        rows.append((step, len(values), mean, min(values), max(values), *compared, "passed" if passed else "FAILED"))
    columns = ["step", "seeds", "mean %", "lowest %", "highest %", "p (below baseline)", "loses at most", "gate"]
    formats = dict.fromkeys(columns[2:7], "{:.2f}")
    caption = f"Test accuracy after ten epochs on MNIST ({recorded.origin()})"
    return table(pd.DataFrame(rows, columns=columns), caption, formats)
