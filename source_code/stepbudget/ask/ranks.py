"""Which rank did the others wait for, and why? Reports of one run, brought together: their ranks on one clock.

A rank is a process on a GPU; a report may hold one or several. Ranks are *numbered* by the first of these that tells
them all apart: the number that NCCL wrote as the communicator with most ranks was made; the environment of the profiled
command (``RANK``, or what MPI and Slurm call it); the reports' names, where they hold ``rank`` and a number, or differ
in one number only, from 0 on; the GPUs; the order in which the reports were given. Only the first two, and a name that
says ``rank``, are the program's own numbers: only then is a missing rank named, and only where the report says how many
there were.

The clocks are those of stepbudget.ask.clocks, the split that of stepbudget.ask.collectives. Each rank is asked about
its own window and has its own budget. Where the clocks agree less well than a transfer takes, waiting and transfer are
not told apart: all is unmatched.

The *late* rank is the one for which the others waited alone the longest with nothing else to run, if each time, on
average, for longer than the clocks may be off, and in all for a hundredth of the time. A wait that other kernels hide
costs nothing, and what passed before the late rank's window or its first call began is the capture's doing, not its
own. Were it on time, no more could be gained than what each of the others has of exposed communication (a transfer
that came late may have come out of hiding), nor than the time for which its CPU had nothing to do: its own launches
come no earlier.

Why: its budget is held against the other ranks', from the arrival at one collective to the arrival at the next, for
those at which it came last. All of them take the same time in sum; who comes last waits least, and what it did instead
is the cause that took it longer than the others (their median).

Sources: PyTorch, "torchrun", Environment Variables; Open MPI, PMIx, MPICH and Slurm for theirs; Nsight Systems User
Guide, ``--output`` (``%q{RANK}``), table META_DATA_CAPTURE.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask import clocks, collectives, threads
from stepbudget.ask.budget import CAUSES, Budget, at_rest, budget
from stepbudget.ask.clocks import Clock
from stepbudget.errors import ReportError
from stepbudget.export.nsys import BEGAN
from stepbudget.export.sqlite import GRAPHS
from stepbudget.report import Report, remembered
from stepbudget.window import Window

# A rank's number, and how many there are, in the environment: whoever started the processes.
VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
NAMED = re.compile(r"(?<![A-Za-z])rank[\W_]*(\d{1,7})(?!\d)", re.IGNORECASE)
NUMBER = re.compile(r"\d+")

BY = {
    "nccl": "the numbers that NCCL wrote",
    "environment": "the environment of the profiled command",
    "name": "the reports' names",
    "differing": "the one number in which the reports' names differ",
    "gpu": "their GPUs",
    "order": "the order in which they were given",
}
PROGRAMS_OWN = ("nccl", "environment", "name")

# What the late rank may have done instead of waiting: a word for the causes that stand for the same.
REASONS = {
    "computation on the GPU": ("tensor_core_kernels", "other_kernels", "unknown_kernels", "cuda_graph"),
    "copies": ("copies", "pageable_copy"),
    "CPU code": ("python", "optimizer"),
}
MOST_RANKS = 2**20  # no run has had as many; a larger number is none of ranks
MOST_APART_S = 60  # of wall clocks: further apart, two captures are hardly of one run
WORTH = 0.01  # of a window: a rank that the others wait for less is not late
LEAST_REASON = 0.25  # of the time that the others waited: less does not explain it


@dataclass(frozen=True)
class Rank:
    """One rank: its report, the window that is asked about (one process, one GPU), its clock, its budget."""

    number: int
    report: Report
    window: Window
    clock: Clock
    label: str  # its report's name; with the folder where another's is the same
    table: pd.DataFrame = field(repr=False, compare=False)  # of collectives.matched, in the window, on the own clock

    @property
    def budget(self) -> Budget:
        return budget(self.report, self.window)

    @property
    def communication(self) -> dict[str, float]:
        """``collectives.split`` of its window."""
        return collectives.split(self.report, self.window.gpu, self.table, self.window)


@dataclass(frozen=True)
class Late:
    """The rank that the others waited for, and what it did instead."""

    rank: Rank = field(repr=False)
    last: int  # collectives to which it came last, of
    matched: int
    alone_ms: float  # for which the others waited for it alone
    exposed_ms: float  # of it, how long each of their GPUs at least had nothing else to run
    at_rest_ms: float  # how long each of their CPUs at least had nothing to do, in the whole window
    at_most_ms: float  # to gain, were it no later than the others
    most_ms: float  # of that, at one collective
    more_ms: dict[str, float]  # by how much more than on the other ranks (their median), cause by cause
    reason: str | None  # the causes, in a word, that explain most of it; None: none explains a quarter
    reason_ms: float
    cause: str | None  # of the reason's causes the one that took it longest (of CAUSES)

    @property
    def number(self) -> int:
        return self.rank.number


@dataclass(frozen=True)
class Ranks:
    """Several ranks of one run, in the order of their numbers."""

    ranks: tuple[Rank, ...]
    numbered_by: str  # of BY
    matched_by: str
    world: int | None  # how many ranks the run had; None: not in the reports
    told_apart: bool  # do the clocks agree well enough to tell waiting from transfer?
    table: pd.DataFrame = field(repr=False, compare=False)  # of all ranks, on the clock of reference
    remarks: tuple[str, ...] = ()

    @property
    def missing(self) -> list[int] | None:
        """The numbers of the ranks that are not here; None where the reports do not tell."""
        if self.world is None or self.numbered_by not in PROGRAMS_OWN:
            return [] if self.world == len(self.ranks) else None
        return sorted(set(range(self.world)) - {rank.number for rank in self.ranks})

    @property
    def residual_us(self) -> float:
        """Of the clock that fits worst."""
        return max(rank.clock.residual_us for rank in self.ranks)

    @cached_property
    def late(self) -> Late | None:
        """The rank that kept the others from running longest, and why; None where none did, by what the clocks tell."""
        waits = {rank.number: _waits(self, rank.number) for rank in self.ranks}
        number = max(waits, key=lambda rank: min((own.sum() for own in waits[rank].values()), default=0))
        own = next(rank for rank in self.ranks if rank.number == number)
        last = self.table[(self.table["alone_ns"] > 0) & (self.table["rank"] == number)]
        alone_ns = float(last["alone_ns"].sum())
        if not waits[number] or alone_ns / len(last) <= 1e3 * self.residual_us:
            return None
        others = [rank for rank in self.ranks if rank.number in waits[number]]
        exposed = min(waits[number].values(), key=np.sum)
        at_rest_ms = min(intervals.total(at_rest(rank.report, rank.window)) for rank in others) / 1e6
        at_most_ms = min(alone_ns / 1e6, at_rest_ms, *(rank.communication["exposed_ms"] for rank in others))
        if min(float(exposed.sum()) / 1e6, at_most_ms) < WORTH * own.window.duration_ms:
            return None
        more_ms = _more(self, number)
        grouped = {cause: (cause,) for cause in CAUSES if not any(cause in causes for causes in REASONS.values())}
        grouped = {**REASONS, **grouped}
        sums = {word: sum(more_ms[cause] for cause in causes) for word, causes in grouped.items()}
        sums.pop("communication")
        word = max(sums, key=sums.__getitem__)
        reason = word if sums[word] * 1e6 >= LEAST_REASON * exposed.sum() else None
        return Late(
            rank=own,
            last=len(last),
            matched=int((self.table["collective"][self.table["rank"] == number] >= 0).sum()),
            alone_ms=alone_ns / 1e6,
            exposed_ms=float(exposed.sum()) / 1e6,
            at_rest_ms=at_rest_ms,
            at_most_ms=at_most_ms,
            most_ms=float(exposed.max()) / 1e6,
            more_ms=more_ms,
            reason=reason and CAUSES.get(word, word),
            reason_ms=sums[word],
            cause=reason and max(grouped[word], key=more_ms.__getitem__),
        )

    def bandwidth(self) -> pd.DataFrame:
        """``collectives.bandwidth`` of the collectives that run within the windows of all their ranks."""
        return collectives.bandwidth(self.table)


def together(reports: Sequence[Report], name: str | None = None, occurrence: int = 1) -> Ranks:
    """The ranks of one or several reports of one run; of each the range called ``name`` (default: as Report.window).

    ReportError where a report is given twice, holds no collectives, or none that another has too.
    """
    labels = _labels(reports)
    tables = [collectives.kernels(report) for report in reports]
    for at, (label, table) in enumerate(zip(labels, tables, strict=True)):
        if table.empty:
            what = "holds no kernels of collectives (NCCL's and the like), by which ranks are brought together"
            graphs = "; those inside CUDA graphs are recorded by --cuda-graph-trace=node" * reports[at].has(GRAPHS)
            raise ReportError(f"{label} {what}{graphs}.")
    places = [
        (at, *place)
        for at, table in enumerate(tables)
        for place in sorted({*zip(table["gpu"].astype(int), table["process"].astype(int), strict=True)})
    ]
    numbers, by, world = _numbered(reports, places)
    order = np.argsort(numbers, kind="stable")
    number_of = {places[at]: numbers[at] for at in order}
    for at, table in enumerate(tables):
        own = [number_of[at, int(gpu), int(process)] for gpu, process in table[["gpu", "process"]].to_numpy()]
        tables[at] = table.assign(rank=own)
    found = _clocks(reports, labels, tables, first=places[order[0]][0])
    table = pd.concat([_aligned(table, clock) for table, clock in zip(tables, found, strict=True)])
    table = table.sort_values(["start", "end"], kind="stable", ignore_index=True)
    far = _far(reports, labels, found)
    table = collectives.matched(table, round(1e3 * max(clock.residual_95_us for clock in found)))
    told_apart, remarks = _trusted(labels, table, found)
    if not told_apart:
        table = table.assign(collective=-1, group=0, last_start=np.nan, last_end=np.nan, alone_ns=0)
    matched_by = "name and order"
    if collectives.by_communicator(table):
        matched_by = f"communicator and {'number' if table['sequence'].notna().any() else 'order'}"
    ranks, inside = [], []
    for (at, gpu, process), number in number_of.items():
        window = threads.narrowed(reports[at].window(name, occurrence, gpu), process, gpu)
        own = _own(table[table["rank"] == number], found[at])
        own = own[(own["start"] < window.end) & (own["end"] > window.start)]
        ranks.append(Rank(number, reports[at], window, found[at], labels[at], own))
        inside.append(table.loc[own.index])
    return Ranks(tuple(ranks), by, matched_by, world, told_apart, pd.concat(inside).sort_index(), (*far, *remarks))


def within(report: Report, window: Window) -> Ranks | None:
    """The ranks of one report, in the ranges of each that are called as the window is and lie beside it, or in that.

    None where fewer than two have collectives that belong together there. As ``together`` has it, but for one window
    (of a name that may come again), and in the order of their GPUs.
    """
    table = collectives.collectives(report, window)
    if table["rank"].nunique() < 2 or not (table["collective"] >= 0).any():
        return None
    ranks = []
    for (gpu, process, number), own in table.groupby(["gpu", "process", "rank"]):
        beside = [one for one in report.windows(window.name) if one.process == process and _shared(one, window) > 0]
        place = max(beside, key=lambda one: _shared(one, window), default=window)
        place = threads.narrowed(place, int(process), int(gpu))
        own = own[(own["start"] < place.end) & (own["end"] > place.start)]
        ranks.append(Rank(int(number), report, place, Clock(), report.path.name, own))
    return Ranks(tuple(ranks), "gpu", "", None, True, table)


@remembered
def late_within(report: Report, window: Window) -> Late | None:
    """The late rank among those of one report, in a window (default: training); None where none is."""
    found = within(report, window)
    return found and found.late


def _shared(one: Window, other: Window) -> int:
    return min(one.end, other.end) - max(one.start, other.start)


def _waits(found: Ranks, number: int) -> dict[int, np.ndarray]:
    """Of each rank that waited for this one alone: for how long (ns) it had nothing else to run, at each collective."""
    begin = max(_at_work(rank) for rank in found.ranks)
    last = found.table[(found.table["rank"] == number) & (found.table["alone_ns"] > 0)].set_index("collective")
    waits = {}
    for rank in found.ranks:
        own = found.table[(found.table["rank"] == rank.number) & found.table["collective"].isin(last.index)]
        if rank.number == number or own.empty:
            continue
        at = last.loc[own["collective"]]
        end = at["start"].to_numpy(dtype=np.int64)
        start = np.minimum(np.maximum(end - at["alone_ns"].to_numpy(dtype=np.int64), begin), end)
        busy = collectives.others(rank.report, rank.window.gpu)
        start, end = rank.clock.back(start), rank.clock.back(end)
        waits[rank.number] = (end - start) - intervals.covered(busy, start, end)
    return waits


def _at_work(rank: Rank) -> int:
    """When a rank's window had begun, and its process made its first call or range in it; on the clock of reference."""
    tables = (rank.report.api, rank.report.ranges)
    own = [threads.within(table[table["process"] == rank.window.process], rank.window) for table in tables]
    first = min((int(table["start"].min()) for table in own if len(table)), default=rank.window.start)
    return int(rank.clock.there([max(first, rank.window.start)])[0])


def _more(found: Ranks, number: int) -> dict[str, float]:
    """By how much longer each cause took the late rank than another, up to its late arrivals (ms): the others' median.

    A stretch goes from one collective that both took part in to the next, by each rank's own arrivals; the first goes
    from where all ranks' windows have begun.
    """
    known = found.table[found.table["collective"] >= 0]
    arrivals = known.pivot_table(index="collective", columns="rank", values="start", aggfunc="first")
    late_at = known.loc[(known["rank"] == number) & (known["alone_ns"] > 0), "collective"]
    begin = max(int(rank.clock.there([rank.window.start])[0]) for rank in found.ranks)
    by_number = {rank.number: rank for rank in found.ranks}
    more = []
    for other in arrivals.columns.drop(number):
        both = arrivals[[number, other]].dropna().sort_values(number)
        chosen = both.index.isin(late_at)
        if chosen.any():
            stretches = [
                (both[rank].shift(1, fill_value=begin)[chosen], both[rank][chosen]) for rank in (number, other)
            ]
            own, others = (_spent(by_number[at], *ends) for at, ends in zip((number, other), stretches, strict=True))
            more.append(own - others)
    return pd.concat(more, axis=1).median(axis=1).astype(float).to_dict()


def _spent(rank: Rank, starts: pd.Series, ends: pd.Series) -> pd.Series:
    """Milliseconds of each cause on a rank, in stretches on the clock of reference."""
    edges = zip(rank.clock.back(starts), rank.clock.back(ends), strict=True)
    return rank.budget.over([Window(int(start), max(int(start), int(end)), "") for start, end in edges]).sum()


def _trusted(labels: list[str], table: pd.DataFrame, found: list[Clock]) -> tuple[bool, list[str]]:
    """Do the clocks agree to less than a collective's transfer takes? And what is to be said of them."""
    remarks = []
    each = table[table["collective"] >= 0].drop_duplicates("collective")
    worst = max(range(len(found)), key=lambda at: found[at].residual_us)
    name, residual_us = labels[worst], found[worst].residual_us
    told_apart = True
    if len(each):
        transfer_us = float((each["last_end"] - each["last_start"]).median()) / 1e3
        told_apart = residual_us <= max(transfer_us, 0.0)
        off = (
            f"the clock of {name} fits to {residual_us:,.1f} µs only, and a collective transfers for {transfer_us:,.1f}"
        )
        if not told_apart:
            remarks.append(f"{off}: waiting and transfer are not told apart")
        elif found[worst].residual_95_us > transfer_us:
            worse = f"{found[worst].residual_95_us:,.1f} µs at one in twenty"
            remarks.append(f"{off} ({worse}): who waited for whom is told in sum, not for each")
    for label, clock in zip(labels, found, strict=True):
        if clock.is_ambiguous:
            remarks.append(
                f"the captures of {label} and the first are not of one length, and one step is like the "
                "other: by which step they begin apart is not told, and the clocks may be off by whole steps"
            )
        if 0 < clock.collectives < 3:
            count = "one collective" if clock.collectives == 1 else "two collectives"
            remarks.append(f"the clock of {label} rests on {count}: how well it fits is not told")
    return told_apart, remarks


def _clocks(reports: Sequence[Report], labels: list[str], tables: list[pd.DataFrame], first: int) -> list[Clock]:
    """Each report's clock, on that of the first; by way of others where it has no collective in common with that.

    ReportError where a report has none in common with any.
    """
    found: dict[int, Clock] = {first: Clock()}
    began = [_began(report) for report in reports]
    reached = [first]
    for base in reached:  # grows as others are reached
        for at in [at for at in range(len(reports)) if at not in found]:
            near = None if None in (began[base], began[at]) else began[at] - began[base]
            clock = clocks.between(tables[base], tables[at], near)
            if clock is not None:
                found[at] = clock.after(found[base])
                reached.append(at)
    for at, label in enumerate(labels):
        if at not in found:
            what = "have no collective in common that ran at the same time: are they of one run?"
            raise ReportError(f"{labels[first]} and {label} {what}")
    return [found[at] for at in range(len(reports))]


def _labels(reports: Sequence[Report]) -> list[str]:
    """What the reports are called: their names, their paths where two have one name; ReportError for a file twice."""
    files, names = [report.path.resolve() for report in reports], [report.path.name for report in reports]
    for file, name in zip(files, names, strict=True):
        if files.count(file) > 1:
            raise ReportError(f"{name} is given twice: name the report of each rank once.")
    return names if len(set(names)) == len(names) else [str(report.path) for report in reports]


def _far(reports: Sequence[Report], labels: list[str], found: list[Clock]) -> list[str]:
    """What is to be said of wall clocks that lie far from what the collectives tell."""
    began = [_began(report) for report in reports]
    first = next(at for at, clock in enumerate(found) if clock == Clock())
    far = []
    for label, clock, wall in zip(labels, found, began, strict=True):
        if wall is not None and began[first] is not None:
            apart_s = abs(wall - began[first] - clock.offset_ns) / 1e9
            if apart_s > MOST_APART_S:
                text = (
                    f"by their wall clocks {labels[first]} and {label} lie {apart_s:,.0f} s apart: are they of one run?"
                )
                far.append(text)
    return far


def _began(report: Report) -> int | None:
    """The wall clock (UTC, ns) at 0 of the report's times; None where the report does not tell."""
    if "utcEpochNs" not in report.columns("TARGET_INFO_SESSION_START_TIME"):
        return None
    rows = report.rows(BEGAN)
    return rows[0][0] + report.origin if rows and isinstance(rows[0][0], int) else None


def _aligned(table: pd.DataFrame, clock: Clock) -> pd.DataFrame:
    """The kernels on the clock of reference; ``own_start`` and ``own_end`` stay on the report's."""
    start, end = table["start"], table["end"]
    return table.assign(own_start=start, own_end=end, start=clock.there(start), end=clock.there(end))


def _own(table: pd.DataFrame, clock: Clock) -> pd.DataFrame:
    """The rows of ``collectives.matched`` back on the report's clock."""
    others = {edge: clock.back(table[edge]) for edge in ("last_start", "last_end")}
    return table.assign(start=table["own_start"], end=table["own_end"], **others)


# --- which rank is which ------------------------------------------------------------------------------------


def _numbered(reports: Sequence[Report], places: list[tuple[int, int, int]]) -> tuple[list[int], str, int | None]:
    """The number of each rank (places: report, GPU, process), what tells it (of BY), and how many the run had."""
    written = [_by_nccl(reports[at], process) for at, _, process in places]
    alone = [at for at, _, _ in places] == [*range(len(reports))]  # one rank a report
    environment = [_by_environment(report) for report in reports] if alone else []
    paths = [str(report.path) for report in reports]
    in_name = [int(own[-1]) if (own := NAMED.findall(path)) else None for path in paths]
    numbers, others = [NUMBER.findall(path) for path in paths], {tuple(NUMBER.split(path)) for path in paths}
    differ = [own for own in zip(*numbers, strict=False) if len(set(own)) > 1]
    differing = [int(text[:9]) for text in differ[0]] if len(differ) == 1 and len(others) == 1 else []
    tried = {
        "nccl": [number for number, _ in written],
        "environment": [number for number, _ in environment],
        "name": in_name if alone else [],
        "differing": differing if alone and min(differing, default=1) == 0 else [],
        "gpu": [gpu for _, gpu, _ in places],
    }
    by = next(
        (by for by, own in tried.items() if len(own) == len(places) and None not in own and len({*own}) == len(own)),
        "order",
    )
    worlds = [world for _, world in [*written, *(environment if by == "environment" else [])] if world]
    world = max(worlds, default=0)
    return tried.get(by, [*range(len(places))]), by, world if len(places) <= world <= MOST_RANKS else None


def _by_nccl(report: Report, process: int) -> tuple[int | None, int | None]:
    """The rank's number and how many there are, in the communicator with most ranks that the process made."""
    calls = report.nccl_calls
    made = calls[(calls["process"] == process) & calls["rank"].notna() & calls["ranks"].notna()]
    if made.empty:
        return None, None
    largest = made.loc[made["ranks"].astype("int64").idxmax()]
    return int(largest["rank"]), int(largest["ranks"])


def _by_environment(report: Report) -> tuple[int | None, int | None]:
    """The same by the environment of the profiled command, as whoever started the ranks set it."""
    if not {"name", "value"} <= report.columns("META_DATA_CAPTURE"):
        return None, None
    rows = report.rows("SELECT value FROM META_DATA_CAPTURE WHERE name LIKE 'PROCESS_%:ENVIRONMENT_VARIABLE'")
    wanted = {name for pair in VARIABLES for name in pair}
    pairs = (value.split("=", 1) for (value,) in rows if isinstance(value, str) and "=" in value)
    found = {name: text.strip('"') for name, text in pairs if name in wanted}
    for rank, world in VARIABLES:
        if found.get(rank, "").isdecimal():
            ranks = found.get(world, "")
            return int(found[rank][:9]), int(ranks[:9]) if ranks.isdecimal() else None
    return None, None


def table_of(found: Ranks) -> pd.DataFrame:
    """One row a rank: ``rank``, ``report``, ``gpu``, ``process``, and the columns of ``collectives.split``."""
    rows = [
        {"rank": rank.number, "report": rank.report.path.name, "gpu": rank.window.gpu, "process": rank.window.process}
        | rank.communication
        for rank in found.ranks
    ]
    return pd.DataFrame(rows)
