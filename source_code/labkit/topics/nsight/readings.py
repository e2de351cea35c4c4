"""The report that ships, what ``nsys stats`` says beside this course's reader, and the budget's rules, tried out."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from labkit import course
from labkit.paths import RECORDED
from labkit.recording import plan
from labkit.source import originals
from stepbudget import ask, intervals
from stepbudget.ask import copies, threads
from stepbudget.ask.compare import Comparison
from stepbudget.export import stats
from stepbudget.report import Report, open_report

OF = RECORDED / course.DEFAULT_MACHINE  # what lies here is read on whatever machine
SHIPPED = OF / plan.NSIGHT
CHECKED = plan.CHECKED[0]  # the report that is held against nsys stats


def made_by() -> dict:
    """How the shipped report was recorded: ``command``, ``nsys``, ``gpu``, ``driver``, ``run_at`` and more."""
    return originals.read(SHIPPED.with_suffix(".json"))


# --- nsys stats ---------------------------------------------------------------------------------------------


def checked() -> Report:
    """The recorded report whose tables by ``nsys stats`` were kept."""
    return open_report(originals.original(OF / "profiles" / f"{CHECKED}.sqlite.xz"))


def told_by_nsys() -> dict[str, pd.DataFrame]:
    """What ``nsys stats`` printed of it, when it was recorded: question (``stats.TABLES``) → its table, as it is."""
    tables = originals.read(OF / "nsys_stats" / f"{CHECKED}.json")["tables"]
    return {question: stats.table(text) for question, text in tables.items()}


def beside(report: Report, theirs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The same sums from both: ``what``, ``table`` of nsys stats, ``count``, ``our_count``, ``ns``, ``our_ns``.

    Of the whole capture, as nsys stats has it: each phase, all kernels, copies to the GPU, all CUDA calls.
    """
    ranges = theirs["ranges"].assign(name=theirs["ranges"]["Range"].str.removeprefix(":"))
    copied = theirs["copies by time"]
    copied = copied[copied["Operation"].str.contains(r"HtoD|Host-to-Device")]
    rows = [
        (name, "ranges", own["Instances"].sum(), own["Total Time (ns)"].sum(), _lasting(report.ranges, name))
        for name, own in ranges.groupby("name", sort=False)
    ]
    ours = copies.labelled(report, report.extent)
    to_the_gpu = ours.loc[ours["direction"] == "host to device", "gpu_ns"]
    for what, table, count, of_ours in (
        ("all kernels", "kernels", "Instances", _lasting(report.kernels)),
        ("all CUDA calls", "calls", "Num Calls", _lasting(report.api)),
    ):
        rows.append((what, table, theirs[table][count].sum(), theirs[table]["Total Time (ns)"].sum(), of_ours))
    rows.append(
        ("copies to the GPU", "copies by time", copied["Count"].sum(), copied["Total Time (ns)"].sum(), to_the_gpu)
    )
    return pd.DataFrame(
        [(what, stats.TABLES[table][0], int(n), len(own), int(ns), int(own.sum())) for what, table, n, ns, own in rows],
        columns=["what", "table", "count", "our_count", "ns", "our_ns"],
    )


def _lasting(table: pd.DataFrame, name: str | None = None) -> pd.Series:
    """How long each row lasted (ns); of those with a name, where one is given."""
    own = table if name is None else table[table["name"] == name]
    return own["end"] - own["start"]


# --- the budget's rules ------------------------------------------------------------------------------------

RULE = re.compile(r"^(\d+)\. (.+?)(?=^\d+\. |\n\n)", re.MULTILINE | re.DOTALL)
CONSTANT = re.compile(r"\b(?:copies\.)?([A-Z]+(?:_[A-Z]+)+)\b")
UNITS = {"US": "µs", "MS": "ms", "BYTES": "bytes"}


def rules() -> pd.DataFrame:
    """The rules by which an idle stretch gets its cause, first to last: ``rule``, ``cause``, ``when``.

    Out of the documentation of stepbudget.ask.budget: causes as the budget's rows are called, constants as what they
    stand for, and without what stands in parentheses.
    """
    rows = []
    for number, text in RULE.findall(f"{ask.budget.__doc__}\n\n"):
        words, _, when = " ".join(text.split()).partition(": ")
        causes = ", ".join(_label(word) for word in re.findall(r"\*([^*]+)\*", words))
        while (shorter := re.sub(r" ?\([^()]*\)", "", when)) != when:
            when = shorter
        rows.append((int(number), causes, CONSTANT.sub(_value, when).rstrip(";.")))
    return pd.DataFrame(rows, columns=["rule", "cause", "when"])


def _label(word: str) -> str:
    """The budget's row that a rule's word stands for: the one that holds the word."""
    [label] = [
        ask.budget.CAUSES[cause] for cause in ask.budget.IDLE if word.casefold() in ask.budget.CAUSES[cause].casefold()
    ]
    return label


def _value(named: re.Match) -> str:
    name = named[1]
    value = getattr(copies if named[0].startswith("copies.") else ask.budget, name)
    return f"{value:g} {UNITS[name.rpartition('_')[2]]}"


def as_if(report: Report, names: Mapping[str, str] | None = None, without: tuple[str, ...] = ()) -> Report:
    """The report as it would be, had the ranges other ``names`` (old → new), or ``without`` some of its tables."""
    other = open_report(report.path)
    ranges = report.ranges
    other.ranges = ranges.assign(name=ranges["name"].replace(dict(names or {})))
    for table in without:
        setattr(other, table, getattr(report, table).iloc[:0])
    return other


# --- the sleep ----------------------------------------------------------------------------------------------


LONG_MS = 1.0  # what is shorter waits for a lock
SHOWN_MS = 0.1  # of a row that is shown


def asleep(report: Report, phase: str = "optimizer step") -> np.ndarray:
    """When the main thread slept for long in the operating system, in a phase of the training range (ns, (n, 2))."""
    window = report.window()
    main = threads.main_thread(report, window)
    if main is None:
        return intervals.EMPTY
    ranges = report.ranges[(report.ranges["name"] == phase) & (report.ranges["thread"] == main)]
    found = intervals.intersect(threads.waiting(report, main, window), intervals.union(ranges))
    return found[found[:, 1] - found[:, 0] > 1e6 * LONG_MS]


WORDS = {"loader": "loader", "optimizer": "optimizer", "python": "Python", "os_wait": "blocked"}  # of the rules


def grown(made: Comparison) -> tuple[str, float]:
    """Which idle row of the budget grew most, in its rule's word, and by how many milliseconds."""
    cause = max(ask.budget.IDLE, key=lambda one: made.causes[one].ms)
    return WORDS.get(cause, ask.budget.CAUSES[cause]), made.causes[cause].ms


def meanwhile(report: Report, when: np.ndarray) -> pd.Series:
    """Milliseconds of these stretches by the row of the training range's budget that they stand in."""
    budget = ask.budget.budget(report)
    found = {
        budget.label(cause): intervals.total(intervals.intersect(own, when)) / 1e6
        for cause, own in budget.spans.items()
    }
    return pd.Series({cause: ms for cause, ms in found.items() if ms > 0}, dtype=float)


def blamed(reports: Mapping[str, Report], when: np.ndarray) -> pd.DataFrame:
    """Of these stretches the idle milliseconds, by the budget's row (index) that each report (columns) lays them to."""
    idle = [ask.budget.CAUSES[cause] for cause in ask.budget.IDLE]
    found = pd.DataFrame(
        {name: meanwhile(report, when).reindex(idle, fill_value=0.0) for name, report in reports.items()}
    )
    return found[(found >= SHOWN_MS).any(axis=1)] if (found >= SHOWN_MS).any(axis=None) else found


def steps(report: Report) -> int:
    """Training steps of a report of the ladder: each has one range *forward* (the loader is asked once more)."""
    found = ask.phases.phases(report).set_index("phase")["count"]
    return int(found.get("forward", 0))


def own_ms(report: Report) -> float:
    """Milliseconds of the training epoch that the program spent in its phases, but for waiting for data."""
    found = ask.phases.phases(report)
    return float(found.loc[~found["phase"].isin(["data loading", ask.phases.OUTSIDE]), "cpu_ms"].sum())
