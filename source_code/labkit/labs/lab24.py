"""Lab 24: ``nsys stats`` beside this course's reader, the budget's rules, and to which row they lay a sleep."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from labkit import course
from labkit.checks import Claim
from labkit.exercises.kinds import BOUND, READ, Choice, Code, NothingToAnswer, Number
from labkit.numbers import Quantity
from labkit.paths import RECORDED, ROOT
from labkit.predictions import Guess
from labkit.recording import anonymous, plan
from labkit.source import originals
from stepbudget import ask, intervals
from stepbudget.ask import copies, phases, threads
from stepbudget.ask.budget import CAUSES, IDLE, WORK
from stepbudget.ask.compare import Comparison, compare
from stepbudget.export import stats
from stepbudget.report import Report, open_report
from stepbudget.show.table import Table, table

OF = RECORDED / course.DEFAULT_MACHINE  # what lies here is read on whatever machine
SHIPPED = OF / plan.NSIGHT
CHECKED = plan.CHECKED[0]  # the report that is held against nsys stats


def made_by() -> dict:
    """How the shipped report was recorded: ``command``, ``nsys``, ``gpu``, ``driver``, ``run_at`` and more."""
    return originals.read(SHIPPED.with_suffix(".json"))


def print_shipped() -> None:
    """Print where the shipped report lies, and which Nsight Systems opens it."""
    made = made_by()
    size_kb = SHIPPED.stat().st_size / 1e3
    print(f"{SHIPPED.relative_to(ROOT)}: {size_kb:.0f} kB, of an {made['gpu']}, {made['run_at'][:10]}")
    print(f"written by Nsight Systems {made['nsys']}: open it with this version or a newer one")


def readable() -> tuple[list[str], list[str]]:
    """The names of environment variables, and the home folders, that stand readable in the shipped report."""
    held = SHIPPED.read_bytes()
    return anonymous.variables(held), anonymous.homes(held)


# --- nsys stats ---------------------------------------------------------------------------------------------


def checked() -> Report:
    """The recorded report whose tables by ``nsys stats`` were kept."""
    return open_report(originals.original(OF / "profiles" / f"{CHECKED}.sqlite.xz"))


def told_by_nsys() -> dict[str, pd.DataFrame]:
    """What ``nsys stats`` printed of it, when it was recorded: question (``stats.TABLES``) → its table, as it is."""
    tables = originals.read(OF / "nsys_stats" / f"{CHECKED}.json")["tables"]
    return {question: stats.table(text) for question, text in tables.items()}


def beside(report: Report, theirs: Mapping[str, pd.DataFrame]) -> Table:
    """The same sums by ``nsys stats`` and by this course's reader; by how much times (ns) and counts differ.

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
    for what, question, count, of_ours in (
        ("all kernels", "kernels", "Instances", _lasting(report.kernels)),
        ("all CUDA calls", "calls", "Num Calls", _lasting(report.api)),
    ):
        rows.append((what, question, theirs[question][count].sum(), theirs[question]["Total Time (ns)"].sum(), of_ours))
    rows.append(
        ("copies to the GPU", "copies by time", copied["Count"].sum(), copied["Total Time (ns)"].sum(), to_the_gpu)
    )
    frame = pd.DataFrame(
        [(what, stats.TABLES[question][0], int(n), int(ns), int(own.sum())) for what, question, n, ns, own in rows],
        columns=["of", "nsys stats --report", "count", "nsys stats: ns", "here: ns"],
    )
    counts = pd.Series([len(own) for *_, own in rows])
    frame["differ by: ns or counts"] = (frame["nsys stats: ns"] - frame["here: ns"]).abs() + (
        frame["count"] - counts
    ).abs()
    return table(frame, f"{CHECKED}: the whole capture, summed by both")


def _lasting(table: pd.DataFrame, name: str | None = None) -> pd.Series:
    """How long each row lasted (ns); of those with a name, where one is given."""
    own = table if name is None else table[table["name"] == name]
    return own["end"] - own["start"]


# --- the budget's rules ------------------------------------------------------------------------------------

RULE = re.compile(r"^(\d+)\. (.+?)(?=^\d+\. |\n\n)", re.MULTILINE | re.DOTALL)
CONSTANT = re.compile(r"\b(?:copies\.)?([A-Z]+(?:_[A-Z]+)+)\b")
UNITS = {"US": "µs", "MS": "ms", "BYTES": "bytes"}
WIDTH = 96  # characters of a line of text


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


def print_rules() -> None:
    """Print the rules by which an idle stretch gets its cause, in the order in which they are tried."""
    for row in rules().itertuples():
        print(textwrap.fill(f"{row.rule:2}. {row.cause}: {row.when}.", WIDTH, subsequent_indent="    "))


def _label(word: str) -> str:
    """The budget's row that a rule's word stands for: the one that holds the word."""
    [label] = [CAUSES[cause] for cause in IDLE if word.casefold() in CAUSES[cause].casefold()]
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
    for name in without:
        setattr(other, name, getattr(report, name).iloc[:0])
    return other


# --- the sleep ----------------------------------------------------------------------------------------------

LONG_MS = 1.0  # what is shorter waits for a lock
SHOWN_MS = 0.1  # of a row that is shown
WORDS = {"loader": "loader", "optimizer": "optimizer", "python": "Python", "os_wait": "blocked"}  # of the rules


def asleep(report: Report, phase: str = "optimizer step") -> np.ndarray:
    """When the main thread slept for long in the operating system, in a phase of the training range (ns, (n, 2))."""
    window = report.window()
    main = threads.main_thread(report, window)
    if main is None:
        return intervals.EMPTY
    ranges = report.ranges[(report.ranges["name"] == phase) & (report.ranges["thread"] == main)]
    found = intervals.intersect(threads.waiting(report, main, window), intervals.union(ranges))
    return found[found[:, 1] - found[:, 0] > 1e6 * LONG_MS]


def grown(made: Comparison) -> tuple[str, float]:
    """Which idle row of the budget grew most, in its rule's word, and by how many milliseconds."""
    cause = max(IDLE, key=lambda one: made.causes[one].ms)
    return WORDS.get(cause, CAUSES[cause]), made.causes[cause].ms


def meanwhile(report: Report, when: np.ndarray) -> pd.Series:
    """Milliseconds of these stretches by the row of the training range's budget that they stand in."""
    budget = ask.budget.budget(report)
    found = {
        budget.label(cause): intervals.total(intervals.intersect(own, when)) / 1e6
        for cause, own in budget.spans.items()
    }
    return pd.Series({cause: ms for cause, ms in found.items() if ms > 0}, dtype=float)


def meanwhile_table(report: Report) -> Table:
    """Where the milliseconds of the long sleeps in the optimizer's phase stand in the budget."""
    when = asleep(report)
    found = meanwhile(report, when)
    work = {CAUSES[cause] for cause in WORK}
    rows = [(cause, "works" if cause in work else "idles", ms) for cause, ms in found.items()]
    frame = pd.DataFrame([*rows, ("all sleeps", "", found.sum())], columns=["row of the budget", "the GPU", "ms"])
    return table(frame, f"{report.name}: {len(when)} sleeps, by the budget's rows", {"ms": "{:,.1f}"})


def blamed(reports: Mapping[str, Report], when: np.ndarray) -> Table:
    """Of these stretches the idle milliseconds, by the budget's row that each report, a column each, lays them to."""
    idle = [CAUSES[cause] for cause in IDLE]
    found = pd.DataFrame(
        {name: meanwhile(report, when).reindex(idle, fill_value=0.0) for name, report in reports.items()}
    )
    shown = found[(found >= SHOWN_MS).any(axis=1)] if (found >= SHOWN_MS).any(axis=None) else found
    caption = "Which row gets the sleeps' idle time, ms"
    formats = dict.fromkeys(reports, "{:,.1f}")
    return table(shown.rename_axis("row of the budget").reset_index(), caption, formats)


def steps(report: Report) -> int:
    """Training steps of a report of the ladder: each has one range *forward* (the loader is asked once more)."""
    found = phases.phases(report).set_index("phase")["count"]
    return int(found.get("forward", 0))


def own_ms(report: Report) -> float:
    """Milliseconds of the training epoch that the program spent in its phases, but for waiting for data."""
    found = phases.phases(report)
    return float(found.loc[~found["phase"].isin(["data loading", phases.OUTSIDE]), "cpu_ms"].sum())


# --- what it claims ------------------------------------------------------------------------------------------


def tells_little(variables: Sequence[str], homes: Sequence[str]) -> Iterator[Claim | str]:
    """The report that ships holds no variables and no home but those that it was given."""
    passed = {*anonymous.KEPT, *anonymous.GIVEN, *anonymous.ADDED}
    yield Claim("it holds only variables that the program was given", {*variables} <= passed)
    yield Claim("its only home folder is a made-up one", [*homes] == [anonymous.HOME])


def sums_agree(found: Table) -> Iterator[Claim | str]:
    """The sums of ``nsys stats`` beside this reader's; ``found``: of ``beside()``."""
    frame = found.frame
    same = bool((frame["nsys stats: ns"] == frame["here: ns"]).all() and (frame["differ by: ns or counts"] == 0).all())
    yield Claim("both count the same, and agree to the nanosecond", same)


def kernels_by_thread(report: Report, theirs: Mapping[str, pd.DataFrame]) -> Iterator[Claim | str]:
    """Whose kernels the backward pass's are; ``theirs``: the tables of ``nsys stats`` of the same report."""
    by_range = theirs["kernels by range"]
    backward = by_range["NVTX Range"].str.removeprefix(":") == "backward"
    by_thread = int(by_range.loc[backward, "Kern Inst"].sum())
    here = phases.phases(report, report.extent).set_index("phase").loc["backward", "kernels"]
    yield f"Kernels of backward: nsys stats {by_thread}, here {here}."
    yield Claim("by thread, hardly any kernel is backward's", by_thread < 0.1 * here)


def row_of_the_sleeps(after: Report, when: np.ndarray, row_ms: float) -> Iterator[Claim | str]:
    """The row that grew did so by the sleeps; ``when`` they were (ns), ``row_ms``: by how much the row grew."""
    slept = meanwhile(after, when)
    yield Claim("each moment of a sleep stands in one row", abs(slept.sum() - _lasting_ms(when)) < 1e-6)
    idle_ms = slept.drop([CAUSES[work] for work in WORK], errors="ignore").sum()
    yield Claim(
        "the row grew by what the GPU idled through in the sleeps, within 5 %", abs(row_ms - idle_ms) < 0.05 * idle_ms,
        row_ms / idle_ms if idle_ms else float("nan"),
        because="the two epochs differ in more than the sleeps, or the operating system was not traced",
        so="compare the table above: which other rows changed?",
    )  # fmt: skip


def cost_of_the_sleeps(before: Report, after: Report) -> Iterator[Claim | str]:
    """How much longer the epoch is for its sleeps: the wait for the loader hides the rest of them."""
    made, long_ms = compare(before, after), _lasting_ms(asleep(after))
    change_ms = made.second.duration_ms - made.first.duration_ms
    loader_ms = made.causes["loader"].ms
    changed = f"epoch {change_ms:+,.0f} ms; wait for data {loader_ms:+,.0f} ms"
    if not long_ms:
        yield f"No sleep was seen in this report; {changed}."
        return
    yield f"The sleeps last {long_ms:,.0f} ms, and change: {changed}."
    explained = (change_ms - loader_ms) / long_ms
    yield Claim(
        "the epoch's growth and what the wait lost add up to the sleeps, to a tenth", abs(explained - 1) < 0.1,
        explained,
        because="the GPU worked through more of them, or other rows changed, too: compare them above",
        so=f"the sleeps cost you {max(0, change_ms):.0f} ms an epoch",
    )  # fmt: skip


def _lasting_ms(when: np.ndarray) -> float:
    return sum(end - start for start, end in when) / 1e6


def blamed_rows(found: Table) -> Iterator[Claim | str]:
    """To which row each view of one report lays the same sleeps; ``found``: of ``blamed()``."""
    idle_ms = found.frame.set_index("row of the budget")
    taken = idle_ms.idxmax().where(idle_ms.max() > 0, "none: no sleep was seen")
    for view, row in taken.items():
        yield f"{view}: the sleep goes to '{row}'."
    rows = [CAUSES[cause] for cause in ("optimizer", "os_wait", "loader", "unexplained")]
    yield Claim(
        "the same sleep goes to four different rows, by a name and a trace", list(taken) == rows, list(taken),
        because="nothing slept there, or the operating system was not traced",
        so="the rules decide all the same: read them once more",
    )  # fmt: skip


# --- predictions ---------------------------------------------------------------------------------------------


SLEEPS_MS = Quantity(lambda made, after: _lasting_ms(asleep(after)))

PREDICTIONS = {
    "row": Guess("the row that a sleep makes grow", "", lambda made: grown(made)[0]),
    "row_ms": Guess(
        "by how much the row grows", " ms", lambda made, after: grown(made)[1],
        wrong={
            "That's the sleeps from end to end. At the beginning of each one, the GPU was still working.": SLEEPS_MS,
            "That's one sleep. Each of the steps has one.": SLEEPS_MS / (lambda made, after: len(asleep(after))),
        },
    ),
    "epoch_ms": Guess(
        "the epoch with sleeps", " ms", lambda made, after: made.second.duration_ms,
        wrong={
            "That adds the sleeps to the epoch. But the loader's workers go on while the program sleeps.": (
                SLEEPS_MS + (lambda made, after: made.first.duration_ms)
            ),
            "That's the sleeps alone. The thread has its other phases, too.": SLEEPS_MS,
        },
    ),
}  # fmt: skip


# --- exercises -----------------------------------------------------------------------------------------------


ROW = Choice(
    READ,
    "Look at the drawing, straight down from the gap: which row says in which call the thread waits?",
    right=lambda: ("OS runtime libraries", "OS runtime", "osrt"),
    wrong={
        "NVTX": "that row says in which phase the thread is, not what it does there",
        "CUDA API": "a sleep is no CUDA call: that row is empty meanwhile",
        "Kernels": "that row shows the gap itself: asked is what the CPU did in it",
        "GPU Metrics": "that row shows the gap once more, sampled in the hardware",
        "Memory": "that row shows copies, on the GPU",
    },
)


def least_ms(before: Report, sleep_ms: float, more: int = 0) -> float:
    """An epoch of ``before`` takes at least so long once each step sleeps: its one thread sleeps, and does its own."""
    found = steps(before)
    if not found:
        raise NothingToAnswer("this report holds no training steps")
    return (found + more) * sleep_ms + own_ms(before)


LEAST = Number(
    BOUND,
    "One thread does all this, one after another: the sleeps, and every phase that is no waiting for data.",
    right=least_ms,
    wrong={
        "while the program sleeps, the workers load: the wait for data may vanish": lambda before, sleep_ms: (
            before.window().duration_ms + steps(before) * sleep_ms
        ),
        "that is a bound, and a low one: the thread has its other phases, too": lambda before, sleep_ms: (
            steps(before) * sleep_ms
        ),
        "one sleep: every step has one": lambda before, sleep_ms: sleep_ms + own_ms(before),
        "the loader is asked once more than there are steps": lambda before, sleep_ms: least_ms(before, sleep_ms, 1),
    },
    within=0.005,
)
FIRST, AFTER = 10, 20  # captured are steps 10 to 19


def _try_capture(train: Callable) -> str | None:
    for batches in (30, AFTER, 19, 15, 11, FIRST, 5, 0):
        seen: list = []
        train(
            range(100, 100 + batches),
            lambda batch, seen=seen: seen.append(batch - 100),
            lambda seen=seen: seen.append("start"),
            lambda seen=seen: seen.append("stop"),
        )
        if wrong := _wrong(seen, batches):
            return wrong
    return None


def _wrong(seen: list, batches: int) -> str | None:
    """What is wrong with the order of steps, starts and stops, where there are so many batches."""
    if [one for one in seen if isinstance(one, int)] != list(range(batches)):
        return "every batch is trained on, once and in order: `step(batch)`"
    starts, stops = seen.count("start"), seen.count("stop")
    if batches <= FIRST:
        if starts:
            return f"with {batches} batches it starts a capture: nothing is to be captured"
        return f"with {batches} batches it stops a capture that never began" if stops else None
    if starts != 1:
        return (
            "nothing is captured: `start` is never called"
            if not starts
            else f"it starts {starts} times: once is wanted"
        )
    if not stops:
        short = batches < AFTER
        return (
            f"the data end after {batches} steps, and the capture is still open" if short else "the capture never ends"
        )
    if stops > 1 or seen.index("stop") < seen.index("start"):
        return "it stops more than once, or before it starts"
    captured = [one for one in seen[seen.index("start") : seen.index("stop")] if isinstance(one, int)]
    wanted = list(range(FIRST, min(batches, AFTER)))
    if captured == wanted:
        return None
    if captured[:1] == [0]:
        return "the first steps are in it: they load libraries and choose algorithms"
    told = f"steps {captured[0]} to {captured[-1]}" if captured else "no steps"
    return f"captured are {told}, of {batches}: asked are {wanted[0]} to {wanted[-1]}"


def _capturing(first: int = FIRST, last: int = AFTER - 1, again: bool = False, at_end: str = "open") -> Callable:
    """A loop that starts before step ``first`` and stops after ``last``.

    ``at_end``: it stops what is ``"open"``, or wherever the data end too ``"soon"``, or ``"never"``.
    """

    def train(batches: Iterable, step: Callable, start: Callable, stop: Callable) -> None:
        is_open = False
        for number, batch in enumerate(batches):
            if number == first or (again and number > first):
                start()
                is_open = True
            step(batch)
            if number == last:
                stop()
                is_open = False
        if (at_end == "soon" and number < last) or (at_end == "open" and is_open):
            stop()

    return train


def _skips(batches, step, start, stop):
    for number, batch in enumerate(batches):
        if number == FIRST:
            start()
        if FIRST <= number < AFTER:
            step(batch)
    stop()


def _begins_at_once_if_short(batches, step, start, stop):
    if len(batches) > FIRST:
        return _capturing()(batches, step, start, stop)
    start()
    for batch in batches:
        step(batch)


CAPTURE = Code(
    "Count the steps: start before step 10, stop after step 19, and remember whether a capture is open at the end.",
    _try_capture,
    wrong={
        "the first steps are in it": _capturing(first=0),
        "captured are steps 10 to 20": _capturing(last=AFTER),
        "captured are steps 11 to 19": _capturing(first=FIRST + 1),
        "the capture never ends": _capturing(last=-1, at_end="never"),
        "and the capture is still open": _capturing(at_end="never"),
        "it stops a capture that never began": _capturing(at_end="soon"),
        "it starts a capture: nothing is to be": _begins_at_once_if_short,
        "it starts 20 times": _capturing(again=True),
        "every batch is trained on": _skips,
        "`start` is never called": _capturing(first=-1),
    },
)
EXERCISES = {"24.1": ROW, "24.2": LEAST, "24.3": CAPTURE}
