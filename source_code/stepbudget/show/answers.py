"""What is a report asked, and how does the answer show itself? The verbs of ``import stepbudget as sb``.

    import stepbudget as sb

    report = sb.open("run.nsys-rep")
    sb.budget(report)

Each answer is what the question of the same name in ``stepbudget.ask`` finds, with all its attributes, and shows
itself: as HTML in a notebook, as text elsewhere, as Markdown by ``markdown()``. Where several reports are asked, they
come as a mapping, name → report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import TypeVar

import pandas as pd

from stepbudget.ask import advice as advising
from stepbudget.ask import budget as budgeting
from stepbudget.ask import compare as comparing
from stepbudget.ask import copies as copying
from stepbudget.ask import idle as idling
from stepbudget.ask import iterations, occurrences, ops, predict
from stepbudget.ask import launch as launching
from stepbudget.ask import phases as phasing
from stepbudget.ask import ranks as ranking
from stepbudget.ask import tensor_cores as verdicts
from stepbudget.ask.budget import Budget
from stepbudget.ask.predict import FIXES
from stepbudget.errors import ReportError
from stepbudget.report import Report
from stepbudget.show import options, sections, summary
from stepbudget.show import ranks as ranks_shown
from stepbudget.show.blocks import Block, Words
from stepbudget.show.sections import cut, kernel
from stepbudget.show.table import table
from stepbudget.window import Window

Question = TypeVar("Question", bound=Callable)
ONE, SEVERAL = "a report, as sb.open(FILE) gives one", 'reports by name, as {"before": report}'
_taught: dict[str, str] = {}  # fix → the name of the lab that treats it, which advice names


class Answer:
    """What a report says: ``data``, whose attributes and rows it has, and the blocks that show it."""

    def __init__(self, data: object, blocks: Sequence[Block]) -> None:
        self.data, self.blocks = data, tuple(blocks)

    @property
    def frame(self) -> pd.DataFrame:
        """The rows of the first table that is shown, with full precision; of an answer without one, what it holds."""
        frames = [block.frame for block in self.blocks if hasattr(block, "frame")]
        return frames[0] if frames else pd.DataFrame(self.data)

    def __str__(self) -> str:
        return "\n".join(line for block in self.blocks for line in block.text())

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        html = "\n".join(block.html() for block in self.blocks)
        return {"text/html": f"<div>{html}</div>", "text/plain": str(self)}

    def markdown(self) -> str:
        """The answer for a pull request."""
        return "\n".join(line for block in self.blocks if (own := block.markdown()) for line in (*own, "")).rstrip()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or name == "data":
            raise AttributeError(name)
        return getattr(self.data, name)

    def __iter__(self) -> Iterator:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __bool__(self) -> bool:
        """Is there anything in it? Of what has no length, there is."""
        return len(self) > 0 if hasattr(self.data, "__len__") else True

    def __getitem__(self, key: object) -> object:
        return self.data[key]


def asked(question: Question) -> Question:
    """The same question; ReportError where its first argument is not as annotated: one report, or several."""
    (first, *_) = signature(question).parameters.values()
    several = "Mapping" in str(first.annotation)

    @wraps(question)
    def answered(*given: object, **more: object) -> object:
        found = given[0] if given else more.get(first.name)
        among = list(found.values()) if several and isinstance(found, Mapping) else [found]
        where = " among them" * (several and isinstance(found, Mapping))
        _refuse(question.__name__, f"{ONE}, or {SEVERAL}" if several else ONE, among, where)
        return question(*given, **more)

    return answered


def _refuse(question: str, wanted: str, found: Iterable, where: str = "") -> None:
    """ReportError, in one sentence, where one of what was found is no report."""
    for one in found:
        if not isinstance(one, Report):
            what = "nothing" if one is None else f"a {type(one).__name__}"
            raise ReportError(f"{question}() asks {wanted}, and was given {what}{where}.")


def teach(labs: Mapping[str, str]) -> None:
    """From now on advice names these labs: fix → the name of the lab that treats it."""
    _taught.clear()
    _taught.update(labs)


# --- one report ---------------------------------------------------------------------------------------------


@asked
def budget(report: Report, window: Window | None = None, device: int | None = None) -> Answer:
    """The step budget of a window (default: the training range, else the whole capture), for one GPU.

    The answer has what ``ask.budget.Budget`` has: ``ms`` and ``fractions`` by cause, ``window``, ``over`` for parts of
    the window, ``table()``. ``device``: number of the card. ReportError where the report is damaged.

    >>> import stepbudget as sb
    >>> report = sb.open("main_baseline_nvtx.sqlite.xz")
    >>> found = sb.budget(report)
    >>> found.window.name, round(found.window.duration_ms)
    ('training', 5799)
    >>> max(found.fractions, key=found.fractions.get), round(found.fractions["loader"], 2)
    ('loader', 0.93)
    """
    found = budgeting.budget(report, window, device)
    caption = f"{_named(report)}: where the {found.window.duration_ms:,.1f} ms of '{found.window.name}' go"
    alike = occurrences.occurrences(report, window or report.window(gpu=device))
    beside = [Words(f"Of the ranges of this name {alike}.", quiet=True)] if alike else []
    return Answer(found, [*sections.budget(summary.of_budget(found), caption), *beside])


@asked
def bounds(report: Report, budget: Budget | None = None) -> Answer:
    """What each fix can gain at most in the budget's window, as this one report predicts it.

    The answer is a mapping, fix → ``predict.Bound`` (``at_most_ms``, ``best_ms``, ``at_most_times``). ReportError where
    the report is damaged.

    >>> import stepbudget as sb
    >>> report = sb.open("main_baseline_nvtx.sqlite.xz")
    >>> found = sb.bounds(report)
    >>> round(found["loader"].at_most_ms), round(found["loader"].at_most_times, 1)
    (5466, 17.5)
    """
    own = budget or budgeting.budget(report)
    found = predict.bounds(report, own)
    rows = [(FIXES[fix].label, one.at_most_ms, one.best_ms, one.at_most_times) for fix, one in found.items()]
    columns = ["fix", "gains at most ms", "at best ms", "times as fast at most"]
    formats = dict(zip(columns[1:], ("{:,.1f}", "{:,.1f}", "{:.2f}"), strict=True))
    whole = own.window
    caption = f"{_named(report)}: upper bounds, from {whole.duration_ms:,.1f} ms of '{whole.name}'"
    return Answer(found, [table(pd.DataFrame(rows, columns=columns), caption, formats)])


@asked
def advice(report: Report, budget: Budget | None = None) -> Answer:
    """What to do next, the costliest cause first: what shows it, and what removing it can gain at most.

    The answer is a list of ``ask.advice.Advice``; empty where nothing is worth a sentence, or no GPU did anything.
    ReportError where the report is damaged.

    >>> import stepbudget as sb
    >>> report = sb.open("main_baseline_nvtx.sqlite.xz")
    >>> first, *others = sb.advice(report)
    >>> first.cause, round(first.upper_bound_ms), [one.cause for one in others]
    ('loader', 5466, ['other_kernels', 'python', 'copies'])
    """
    own = budget or budgeting.budget(report)
    found = advising.advice(report, own, _taught)
    unseen = options.of(report.profiler, advising.not_looked_at(report, own))
    missing = [Words(f"Not looked at: {text}", quiet=True) for text in unseen]
    said = {"advice": options.of_advice(report.profiler, found), "duration_ms": own.window.duration_ms}
    return Answer(found, [*sections.advice(said), *missing])


@asked
def phases(report: Report, window: Window | None = None, by: str = "process") -> Answer:
    """NVTX phases of a window (default: the training range): CPU time, kernels launched from inside, their GPU time.

    ``by="thread"`` counts only what the thread that opened a range launched. ``frame`` has the rows. ReportError for
    another ``by``, and where the report is damaged.

    >>> import stepbudget as sb
    >>> report = sb.open("main_baseline_nvtx.sqlite.xz")
    >>> frame = sb.phases(report).frame
    >>> frame[["phase", "kernels"]][frame["kernels"] > 600].values.tolist()
    [['forward', 885], ['backward', 1592], ['optimizer step', 649]]
    """
    window = window or report.window()
    found = phasing.phases(report, window, by)
    caption = f"{_named(report)}: phases of '{window.name}'"
    rows = [row | {"name": row["phase"]} for row in found.to_dict("records")]
    return Answer(found, sections.phases(rows, caption))


@asked
def copies(report: Report, window: Window | None = None) -> Answer:
    """Copies of a window (default: the training range) by direction and kind of host memory. ``frame`` has the rows.

    ReportError where the report is damaged.

    >>> import stepbudget as sb
    >>> report = sb.open("main_opt1.sqlite.xz")
    >>> sb.copies(report).frame["host memory"].tolist()
    ['pinned', 'pageable']
    """
    window = window or report.window()
    found = copying.copies(report, window)
    return Answer(found, sections.copies(found.to_dict("records"), f"{_named(report)}: copies of '{window.name}'"))


@asked
def kernels(report: Report, top: int = 8, window: Window | None = None) -> Answer:
    """The kernels that take most of a window's GPU time, whether they used Tensor Cores, and what says so.

    ``frame`` has all kernels, of which ``top`` are shown. ReportError where the report is damaged.

    >>> import stepbudget as sb
    >>> report = sb.open("main_opt3.sqlite.xz")
    >>> sorted(set(sb.kernels(report).frame["Tensor Cores"]))
    ['no', 'unknown', 'yes']
    """
    window = window or report.window()
    found = summary.of_kernels(report, window)
    caption = f"{_named(report)}: the longest kernels of '{window.name}'"
    return Answer(verdicts.verdicts(report, window), sections.kernels(found, caption, top))


@asked
def eligible(report: Report, top: int = 8, window: Window | None = None) -> Answer:
    """The operations that could use Tensor Cores, longest first: whether they do, and the likely reason if not.

    ``frame`` has all of them, of which ``top`` are shown. ReportError where the report is damaged.

    >>> import stepbudget as sb
    >>> report = sb.open("main_opt3_ops.sqlite.xz")
    >>> found = sb.eligible(report)
    >>> {*found.frame["Tensor Cores"]} <= {"using", "not using", "unknown"}, found.frame["operation"][0][:6]
    (True, 'aten::')
    """
    found = ops.eligible(report, window)
    columns = {"op": "operation", "group": "Tensor Cores", "reason": "reason", "ops": "ops", "gpu_ms": "GPU ms"}
    columns |= {"sizes": "sizes"}
    frame = found[[*columns]].rename(columns=columns)
    caption = f"{_named(report)}: operations that could use Tensor Cores"
    formats = {"GPU ms": "{:,.1f}", "sizes": lambda text: cut(text or ""), "operation": cut}
    return Answer(found, [table(frame, caption, formats, most=top)])


# --- several reports ----------------------------------------------------------------------------------------


@asked
def idle(reports: Report | Mapping[str, Report], without_ms: Mapping[str, float] | None = None) -> Answer:
    """How the training range divides into GPU work and none, a report a row.

    ``without_ms``: name → ms of the same range without the profiler, to stand beside it. The answer is a mapping, name
    → ``ask.idle.Idle``. ReportError where a report is damaged.

    >>> import stepbudget as sb
    >>> report = sb.open("main_baseline_nvtx.sqlite.xz")
    >>> round(sb.idle({"baseline": report})["baseline"].idle_share, 2)
    0.96
    """
    found = {name: idling.idle(report) for name, report in _several(reports).items()}
    rows = [
        (name, one.window.duration_ms, one.busy_ms, one.idle_ms, 100 * one.idle_share,
         *([without_ms[name]] if without_ms else []))
        for name, one in found.items()
    ]  # fmt: skip
    columns = ["report", "range ms", "GPU busy ms", "GPU idle ms", "idle %"]
    columns += ["without profiler ms"] if without_ms else []
    formats = dict.fromkeys(columns[1:], "{:,.0f}") | {"idle %": "{:.1f}"}
    return Answer(found, [table(pd.DataFrame(rows, columns=columns), "The training range, as profiled", formats)])


@asked
def steps(reports: Report | Mapping[str, Report]) -> Answer:
    """What a training step costs, a report a row; the first step, which starts the loader's workers, left out.

    The answer is a mapping, name → the frame of ``ask.iterations.steps``, a row a step. ReportError where a report is
    damaged.

    >>> import stepbudget as sb
    >>> report = sb.open("main_baseline_nvtx.sqlite.xz")
    >>> frame = sb.steps(report).frame
    >>> frame["steps"].tolist(), frame["mean ms"].round().tolist()
    ([58], [97.0])
    """
    rows, found = [], {}
    for name, report in _several(reports).items():
        own = found[name] = iterations.steps(report)
        ms, waits = own["duration_ms"].iloc[1:], own["loader_wait_ms"]
        period = iterations.loader_period(waits)
        every = f"every {period.steps} steps" if period else "no rhythm found"
        rows.append((name, len(ms), ms.mean(), ms.median(), ms.std(), ms.max(), waits.iloc[1:].sum(), every))
    columns = ["report", "steps", "mean ms", "median ms", "std ms", "longest ms", "waits for data ms", "long waits"]
    formats = dict.fromkeys(columns[2:7], "{:,.1f}")
    caption = "Training steps, without the first, which starts the loader"
    return Answer(found, [table(pd.DataFrame(rows, columns=columns), caption, formats)])


@asked
def launches(reports: Report | Mapping[str, Report]) -> Answer:
    """Does the GPU wait for launches? A report a row; the answer is a mapping, name → ``ask.launch.Launch``.

    ReportError where a report is damaged.

    >>> import stepbudget as sb
    >>> report = sb.open("main_opt4.sqlite.xz")
    >>> found = sb.launches({"opt4": report})
    >>> found["opt4"].verdict == found.frame["verdict"][0]
    True
    """
    found = {name: launching.launch(report) for name, report in _several(reports).items()}
    rows = [
        (name, one.verdict, one.launches, one.kernel_us, one.launch_us, 100 * one.starved_share, one.starved_ms,
         one.queue_mean)
        for name, one in found.items()
    ]  # fmt: skip
    measured = ["kernel µs", "launch µs", "found the GPU empty %", "empty before ms", "mean queue"]
    columns = ["report", "verdict", "launches", *measured]
    caption = "Launches of the training range (medians; waits for data and for the GPU left out)"
    return Answer(found, [table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(measured, "{:.1f}"))])


@asked
def tensor_cores(reports: Report | Mapping[str, Report]) -> Answer:
    """Kernel time by Tensor Core verdict, and what the counter Tensor Active read; a report a row.

    The answer is a mapping, name → what ``--json`` says of it under ``tensor_cores``. ReportError where a report is
    damaged.

    >>> import stepbudget as sb
    >>> found = sb.tensor_cores({name: sb.open(f"main_{name}.sqlite.xz") for name in ("opt2", "opt3")})
    >>> found["opt2"]["yes_ms"] < found["opt3"]["yes_ms"]
    True
    """
    found = {name: summary.of_tensor_cores(report, report.window()) for name, report in _several(reports).items()}
    times = ["Tensor Core kernels ms", "other kernels ms", "unknown ms"]
    columns = ["report", *times, "Tensor Active mean %", "max %", "samples"]
    frame = pd.DataFrame([(name, *own.values()) for name, own in found.items()], columns=columns)
    formats = dict.fromkeys(times, "{:,.1f}") | {"Tensor Active mean %": "{:.2f}", "max %": "{:.0f}"}
    return Answer(found, [table(frame, "Kernels of the training range, as profiled", formats)])


@asked
def operations(reports: Report | Mapping[str, Report]) -> Answer:
    """Operations by whether they can use Tensor Cores and do, a report a row; DLProf's partition.

    The answer is a mapping, name → ``ask.ops.Summary``. ReportError where a report is damaged.

    >>> import stepbudget as sb
    >>> found = sb.operations(sb.open("main_opt3_ops.sqlite.xz"))
    >>> found["main_opt3_ops"].instances["using"] > 0
    True
    """
    found = {name: ops.summary(report) for name, report in _several(reports).items()}
    rows = []
    for name, one in found.items():
        efficiency = None if one.efficiency is None else 100 * one.efficiency
        rows.append({"report": name, **one.instances, "efficiency %": efficiency, "at stake ms": one.at_stake_ms})
    caption = "Operations of the training range, and the kernel time of those that could use Tensor Cores and do not"
    formats = dict.fromkeys(("efficiency %", "at stake ms"), "{:,.1f}")
    return Answer(found, [table(pd.DataFrame(rows), caption, formats)])


@asked
def sampled(reports: Report | Mapping[str, Report]) -> Answer:
    """What the counter Tensor Active read inside kernels long enough to be sampled, a kernel name a row.

    ReportError where a report is damaged.

    >>> import stepbudget as sb
    >>> found = sb.sampled(sb.open("main_baseline_nvtx.sqlite.xz"))
    >>> min(found.frame["samples"].tolist()) > 0, len(found.frame) > 1
    (True, True)
    """
    rows = []
    for name, report in _several(reports).items():
        found = verdicts.verdicts(report, report.window())
        for row in found[found["samples"] > 0].itertuples():
            mean_us = 1e3 * row.gpu_ms / row.count
            rows.append((name, row.kernel, row.tensor_core, row.sampled_pct, mean_us, row.samples, row.evidence))
    columns = ["report", "kernel", "Tensor Cores", "Tensor Active %", "mean µs", "samples", "told by"]
    formats = {"kernel": kernel, "mean µs": "{:.0f}", "samples": "{:,.0f}", "Tensor Active %": "{:.1f}"}
    frame = pd.DataFrame(rows, columns=columns)
    return Answer(frame, [table(frame, "Kernels that the counter was sampled inside", formats, names=["kernel"])])


def compare(
    before: Report | Sequence[Report],
    after: Report | Sequence[Report],
    window: Window | Sequence[Window] | None = None,
    other: Window | Sequence[Window] | None = None,
    device: int | None = None,
    each: str | None = None,
    fix: str | None = None,
) -> Answer:
    """Two reports of the same work, before and after a fix, cause by cause.

    ``window`` of the one and ``other`` of the other (default: training); ``device``: number of the card; ``each``: name
    of a range that comes again; ``fix``: what was changed (default: whose causes shrank most). A side may be several
    profiles: then each takes as many windows.

    The answer has what ``ask.compare.Comparison`` has: ``obstacles``, ``speedup``, ``gained_ms``, ``score(fix)``.
    ReportError where a report is damaged.

    >>> import stepbudget as sb
    >>> found = sb.compare(sb.open("main_baseline_nvtx.sqlite.xz"), sb.open("main_opt1.sqlite.xz"))
    >>> found.comparable, found.speedup > 5
    (True, True)
    >>> found.score("loader").kept
    True
    """
    sides = [list(own) if isinstance(own, list | tuple) else [own] for own in (before, after)]
    _refuse("compare", f"{ONE}, or a list of them, for each side", [report for side in sides for report in side])
    found = comparing.compare(*sides, window, other, device, each, fix)
    words = {cause: found.before.label(cause) for cause in budgeting.CAUSES}
    return Answer(found, sections.compared({"causes": words}, summary.plain(summary.compared(*sides, found))))


def ranks(reports: Sequence[Report], name: str | None = None, occurrence: int = 1) -> Answer:
    """The ranks of one run together: clocks aligned, who waited for whom, and why.

    The answer has what ``ask.ranks.Ranks`` has. ReportError where a report is damaged, or they are not of one run.

    >>> import stepbudget as sb
    >>> names = [f"../../h200-x2/profiles/main_ddp_on_gpu_x2_rank{rank}.sqlite.xz" for rank in (0, 1)]
    >>> found = sb.ranks([sb.open(name) for name in names])
    >>> [rank.number for rank in found.ranks]
    [0, 1]
    """
    _refuse("ranks", "a list of reports, one a rank", reports if isinstance(reports, list | tuple) else [reports])
    found = ranking.together(list(reports), name, occurrence)
    return Answer(found, ranks_shown.blocks(ranks_shown.summary(found)))


def _named(report: Report) -> str:
    """A report's name in a caption: its file's, without what follows the first dot."""
    return cut(report.path.name.partition(".")[0])


def _several(reports: Report | Mapping[str, Report]) -> Mapping[str, Report]:
    return {_named(reports): reports} if isinstance(reports, Report) else reports
