"""What do the runs on several GPUs of one host say? The records of ``bench_ranks.py``, and the reports of the ranks.

Strong scaling: the batch of all GPUs together stays what it is on one. Weak scaling: each GPU keeps the batch of one.
What has to be beaten is the faster of two: the program itself on one GPU, and the step of the ladder that it is made
from. All ratios are of one round, in which the numbers of GPUs alternate.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

import stepbudget
from labkit import source
from labkit.display.spread import Spread
from labkit.errors import LabError, NotRecorded
from labkit.paths import RECORDED
from labkit.recording.plan import SCALING, SIZES
from labkit.source import kinds, originals, recorded
from labkit.subjects.scaling import beside
from stepbudget.ask import collectives, phases, ranks
from stepbudget.ask.ranks import Ranks

MACHINE_FOLDER = RECORDED / "h200-x2"  # the host whose recordings the text is written from
Records = Mapping[tuple[int, int], dict]  # by number of GPUs and round
KERNELS = ("tensor_core_kernels", "other_kernels", "unknown_kernels")  # causes that are the GPU's own work
ON_CPU = ("launch_overhead", "optimizer", "python")  # causes of an idle GPU that waits for its rank's own code
COLUMNS = [
    "program", "scaling", "ranks", "round", "batch", "step_ms", "epoch_ms", "samples_per_s", "peak_memory_mb",
    "accuracy_pct",
]  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A way of sharing a network out: the words that its command holds, the ladder's step that it comes from."""

    network: str
    sharing: str
    words: tuple[str, ...]
    alone: str | None = None
    report: str | None = None  # what its ranks' reports are called, less the number of GPUs
    apart: bool = (
        False  # recorded by ``GRAPHS``, on another host of the same make, and not round by round with the rest
    )

    @property
    def label(self) -> str:
        """``digits by DDP, loader``"""
        return f"{self.network} by {self.sharing}"

    def is_run_by(self, command: str) -> bool:
        return set(self.words) <= set(command.split())


PROGRAMS = {
    "ddp_on_gpu": Program("digits", "DDP, data on the GPU", ("main_ddp_on_gpu.py",), "main_opt4.py", "main_ddp_on_gpu"),
    "ddp": Program("digits", "DDP, loader", ("main_ddp.py",), "main_opt3.py", "main_ddp"),
    "ddp_graph": Program("digits", "DDP, one CUDA graph", ("main_ddp_graph.py",), "main_opt5.py", apart=True),
    "text_ddp": Program("transformer", "DDP", ("main_fsdp.py", "ddp")),
    "text_fsdp": Program("transformer", "FSDP", ("main_fsdp.py", "fsdp"), report="main_fsdp"),
}
DDP = ("ddp_on_gpu", "ddp", "text_ddp")  # each rank keeps all weights, and launches kernel by kernel
LAUNCHES = ("ddp_on_gpu", "ddp_graph")  # kernel by kernel, and an epoch at once
ALONE = "alone"  # the scaling of a ladder's step, which runs on one GPU only
FEW = "few"  # that of a program's run with few samples, likewise


def records(where: Path | None = None) -> Records:
    """The records of a machine's folder, by number of GPUs and round. NotRecorded where there are none."""
    return recorded.on_gpus(where or MACHINE_FOLDER)


def graphs(where: Path | None = None) -> Records:
    """The records of ``bench_rank_graphs.py``, which holds its rounds, taken apart as ``records`` are.

    NotRecorded where there is none.
    """
    where = where or MACHINE_FOLDER
    files = sorted((where / recorded.RANKS).glob("graphs-x*.json"))
    if not files:
        raise NotRecorded(f"no graphs on several GPUs were recorded on {where.name}.")
    whole, found = originals.read(files[-1]), {}
    for row in whole["rows"]:
        found.setdefault((row["on"], row["round"]), whole | {"ranks": row["on"], "rows": []})["rows"].append(row)
    return found


def measured(command: str = "", show: Callable[[str], None] = print) -> Records:
    """The same from where the labs' results come: live on two GPUs or more, else recorded; its commands are shown.

    ``command``: the largest of them, as a notebook shows it; LabError where another program stands in it.
    """
    if command and SCALING not in command:
        raise LabError(f"{SCALING} is what measures the ranks: torchrun … source_code/benchmarks/{SCALING}")
    sizes = [size for size in SIZES if size <= max(2, source.current().facts.gpus)]
    return source.current().get(kinds.on_gpus(SCALING, sizes), show)


def read(command: str, show: Callable[[str], None] = print) -> Ranks:
    """The ranks of a ``torchrun … --no-python nsys profile`` command, brought together from their reports."""
    return ranks.together(source.current().get(kinds.rank_profiles(command), show))


def frame(found: Records) -> pd.DataFrame:
    """One row a program, scaling, number of GPUs and round.

    ``batch`` is that of all GPUs. A step takes as long as on the slowest rank: the median of the transformer's steps,
    and of the digits' epochs without the first, over their number of steps. Memory is that of the fullest GPU.
    ``scaling``: strong, weak, few samples on one GPU, or alone for a step of the ladder, whose ``program`` is the one
    it is compared with.
    """
    rows = []
    for (size, number), record in found.items():
        for row in record["rows"]:
            name, _ = _named(row["program"])
            if name is not None:
                kinds = row["scaling"] or [ALONE]
                rows += [
                    {"program": name, "scaling": kind, "ranks": size, "round": number} | _run(row) for kind in kinds
                ]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(["program", "scaling", "ranks", "round"], ignore_index=True)


def _named(command: str) -> tuple[str | None, bool]:
    """The program that a command runs, and whether it is the ladder's step that it comes from."""
    for name, program in PROGRAMS.items():
        if program.is_run_by(command):
            return name, False
        if program.alone in command.split():
            return name, True
    return None, False


def program_of(row: dict) -> str | None:
    """The program that a record's row is of; None for a ladder's step, and for one that is not known here."""
    name, alone = _named(row["program"])
    return None if alone else name


def _run(row: dict) -> dict:
    batch = row["arguments"]["batch_size"]
    if "rows" in row:  # the transformer's: a row a rank
        step_s = max(statistics.median(rank["step_s"]) for rank in row["rows"])
        memory = [rank["peak_memory_mb"] for rank in row["rows"]]
        epoch_ms, samples_per_s, accuracy = None, batch / step_s, None
    else:
        each = row.get("of_each_rank") or [{"training_s": [epoch["training_s"] for epoch in row["epochs"]]}]
        epoch_s = max(statistics.median(rank["training_s"][1:]) for rank in each)
        step_s = epoch_s / steps(row["train_samples"], batch)
        memory = [rank.get("peak_memory_mb", row["peak_gpu_memory_mb"]) for rank in each]
        accuracy = row["epochs"][-1]["test_accuracy_pct"]
        epoch_ms, samples_per_s = 1e3 * epoch_s, row["train_samples"] / epoch_s
    peak = max((one for one in memory if one is not None), default=None)
    return {
        "batch": batch, "step_ms": 1e3 * step_s, "epoch_ms": epoch_ms, "samples_per_s": samples_per_s,
        "peak_memory_mb": peak, "accuracy_pct": accuracy,
    }  # fmt: skip


def steps(samples: int, batch: int) -> int:
    """Steps of an epoch; the last one's batch may be smaller."""
    return -(-samples // batch)


def baseline(runs: pd.DataFrame, program: str) -> pd.DataFrame:
    """The runs on one GPU that have to be beaten: the program's own or the ladder's, whichever median is less."""
    one = runs[(runs["program"] == program) & (runs["ranks"] == 1) & (runs["scaling"] != FEW)]
    by_scaling = [own for _, own in one.groupby("scaling") if len(own)]
    if not by_scaling:
        raise NotRecorded(f"{program} was not recorded on one GPU.")
    return min(by_scaling, key=lambda own: own["step_ms"].median())


def gained(runs: pd.DataFrame, program: str, scaling: str, size: int) -> Spread | None:
    """How many times as many samples a second as on one GPU, round by round; None where no round has both."""
    own = runs[(runs["program"] == program) & (runs["scaling"] == scaling) & (runs["ranks"] == size)]
    both = own.merge(baseline(runs, program), on="round", suffixes=("", "_of_one")).sort_values("round")
    ratios = both["samples_per_s"] / both["samples_per_s_of_one"]
    return Spread.of(ratios.tolist()) if len(ratios) else None


def buckets(found: Records) -> dict[str, list[int]]:
    """Bytes of the gradients that DDP averages at once, in the order in which they are ready, by program."""
    rows = {program_of(row): row for record in found.values() for row in record["rows"] if "buckets" in row}
    return {
        name: [int(size) for size in rows[name]["buckets"]["rebuilt_bucket_sizes"].split(", ")]
        for name in PROGRAMS
        if name in rows
    }


@dataclass(frozen=True)
class Profiled:
    """What the reports of a program's ranks say of a step: milliseconds and counts, of each rank or their mean."""

    program: str
    ranks: int
    steps: int
    step_ms: float  # as profiled, which slows the CPU's code
    works_ms: tuple[float, ...]  # of each rank's GPU: kernels other than collectives
    optimizer_ms: float  # of the GPU, in the phase "optimizer step"
    hidden_ms: tuple[float, ...]  # of each rank: collectives that ran beside its kernels
    slowed: float  # of ``beside.Beside``
    spread: float
    messages: pd.DataFrame  # of ``messages``

    @property
    def work_ms(self) -> float:
        return statistics.fmean(self.works_ms)

    @property
    def alone_ms(self) -> float:
        """The work of a rank's GPU, had no collective run beside it."""
        return self.work_ms - self.slowed * statistics.fmean(self.hidden_ms)


@cache
def profiled(program: str, size: int, where: Path | None = None) -> Profiled:
    """The reports of a program's ranks on ``size`` GPUs, read together. NotRecorded where one is not there."""
    folder = (where or MACHINE_FOLDER) / "profiles"
    files = [folder / f"{PROGRAMS[program].report}_x{size}_rank{rank}.sqlite.xz" for rank in range(size)]
    if gone := [file.name for file in files if not file.is_file()]:
        raise NotRecorded(f"the report {gone[0]} was not recorded on {folder.parent.name}.")
    found = ranks.together([stepbudget.open_report(originals.original(file)) for file in files])
    tables = [phases.phases(rank.report, rank.window).set_index("phase") for rank in found.ranks]
    count = int(tables[0].loc["forward", "count"])
    budgets = [rank.budget.ms for rank in found.ranks]
    near = beside.measured(found, count)
    return Profiled(
        program=program,
        ranks=size,
        steps=count,
        step_ms=statistics.fmean(rank.window.duration_ms for rank in found.ranks) / count,
        works_ms=tuple(sum(own[cause] for cause in KERNELS) / count for own in budgets),
        optimizer_ms=statistics.fmean(own.loc["optimizer step", "gpu_ms"] for own in tables) / count,
        hidden_ms=tuple(rank.communication["hidden_ms"] / count for rank in found.ranks),
        slowed=near.slowed,
        spread=near.spread,
        messages=messages(found.table),
    )


def messages(table: pd.DataFrame) -> pd.DataFrame:
    """How long did collectives take, by what they do and how large they are? From ``ranks.together``'s table.

    Columns: ``function``, ``ranks``, ``bytes`` (all that is gathered or reduced, over all ranks, not a rank's part),
    ``count``, ``us``: from the last rank's arrival to its end, the median.
    """
    known = table[(table["collective"] >= 0) & table["bytes"].notna() & table["function"].isin(collectives.BUS)]
    each = known.groupby("collective").agg(
        function=("function", "first"), ranks=("group", "first"), bytes=("bytes", "max"),
        start=("last_start", "max"), end=("last_end", "max"),
    )  # fmt: skip
    parts = [collectives.BUS[function][0](n) for function, n in zip(each["function"], each["ranks"], strict=True)]
    each = each.assign(bytes=each["bytes"] * parts, us=(each["end"] - each["start"]) / 1e3)
    by = each.groupby(["function", "ranks", "bytes"])["us"]
    return by.agg(count="size", us="median").reset_index()
