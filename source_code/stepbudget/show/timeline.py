"""What ran when? The rows of a report over a window, as one picture to look around in, the same wherever it is shown.

From top to bottom as a reader meets them: what the time went to, what the program says it does (NVTX ranges), the CUDA
calls it makes, what the GPU runs because of them, and how busy the GPU's parts were meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property

import numpy as np
import pandas as pd

from stepbudget import kernel_names
from stepbudget.ask import launch
from stepbudget.ask.budget import Budget, budget
from stepbudget.ask.phases import launched_in, phase_ranges
from stepbudget.ask.threads import main_thread
from stepbudget.errors import ReportError, printable
from stepbudget.report import Report
from stepbudget.show import palette, style, svg
from stepbudget.show import rows as kinds
from stepbudget.show.svg import DRY, Row
from stepbudget.window import Window

STREAMS, THREADS, LEVELS = 5, 3, 3  # rows: the busiest streams, launching threads, ranges within ranges
COUNTERS = {"SMs Active": style.BUSY, "Tensor Active": style.TENSOR}  # those drawn, and how
TOPS = (5, 10, 25, 50, 100)  # per cent that the height of a counter's row may stand for
IN_KEY = 12  # names of ranges in the key, those that last longest
CELLS = 2_000  # points of a curve
EVENT = ["start", "end", "look", "label", "name", "detail"]  # label: what stands in a bar; name, detail: what it is


@dataclass(frozen=True)
class Timeline:
    """A report's rows over a window; a notebook shows it when it is a cell's last value.

    ``svg`` is all of it as one document that stands alone, ``html`` the same for a page: a picture, which a script
    brings to life where scripts run (drag: zoom; Shift and drag: move; Ctrl and wheel; double click: all).
    """

    title: str
    window: Window
    rows: list[Row]
    span_ns: int  # what fills the width: the window, or a longer one that it is compared with

    def __str__(self) -> str:
        """What it shows, in words."""
        lines = [f"  {row.name}: {row.said}" for row in self.rows]
        return "\n".join([f"Timeline of {self.title or self.window.name}", *lines])

    __repr__ = __str__

    @cached_property
    def svg(self) -> str:
        return svg.document(self.title, self.window, self.rows, self.span_ns, self.alternative)

    @property
    def alternative(self) -> str:
        """What it shows, for who cannot see it."""
        return "; ".join(line.strip() for line in str(self).splitlines())

    @property
    def picture(self) -> str:
        """The image alone, which needs ``svg.SCRIPT`` beside it to come to life."""
        return svg.image(self.svg, self.alternative)

    @property
    def html(self) -> str:
        return f'<div class="stepbudget-timeline">{self.picture}<script>{svg.SCRIPT}</script></div>'

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": str(self)}


def timeline(
    report: Report,
    window: Window | tuple[float, float] | None = None,
    rows: Sequence[str] | None = None,
    title: str | None = None,
    marked_by: str = "NVTX",
) -> Timeline:
    """The report's rows over a window (default: the training range), in milliseconds since its start.

    ``window`` may be a pair: from and to, in ms since the training range's start. ``rows`` are names of ROWS (default:
    all but the queue). ``title``: "" for none; ``marked_by``: what marked the phases, for their row's name.

    ReportError where a row is unknown, where nothing lies between two times, or where ``report`` is none.

    >>> import stepbudget
    >>> report = stepbudget.open_report("main_baseline_nvtx.sqlite.xz")
    >>> print(stepbudget.timeline(report, (1857, 1863), rows=["phases", "copies"]))
    Timeline of main_baseline_nvtx: training from 1857 ms (6.0 ms)
      phases (NVTX): 7 ranges
      GPU copies: 2 copies
    """
    if not isinstance(report, Report):
        given = "nothing" if report is None else f"a {type(report).__name__}"
        raise ReportError(f'timeline() asks a report, as open_report("FILE") gives one, and was given {given}.')
    window = _between(report, *window) if isinstance(window, tuple | list) else window or report.window()
    found = budget(report)
    if not found.window.start <= window.start < window.end <= found.window.end:
        found = budget(report, window)
    name = f"{report.name}: {window.name} ({window.duration_ms:,.1f} ms)" if title is None else title
    return of_budget(report, found, window, [*ROWS][:-1] if rows is None else rows, name, marked_by)


def of_budget(
    report: Report,
    found: Budget,
    window: Window,
    rows: Sequence[str] | None = None,
    title: str = "",
    marked_by: str = "NVTX",
    span_ms: float = 0.0,
) -> Timeline:
    """The same for a part of a budget's window; ``span_ms``: what fills the width, where it is longer than the window.

    Without ``rows``: those that the report has anything for.
    """
    for unknown in sorted({*(rows or ())} - {*ROWS}):
        close = get_close_matches(unknown, ROWS, n=3)
        there = f"Near it: {', '.join(close)}." if close else f"There are: {', '.join(ROWS)}."
        raise ReportError(f"no such row: {unknown}. {there}")
    asked = Asked(report, found, window, marked_by)
    drawn = [row for name in ([*ROWS][:-1] if rows is None else rows) for row in ROWS[name](asked)]
    drawn = [row for row in drawn if rows is not None or not row.is_empty]
    span_ns = max(window.end - window.start, round(1e6 * span_ms), 1)
    return Timeline(printable(" ".join(title.split())), window, drawn, span_ns)


def _between(report: Report, ms_from: float, ms_to: float) -> Window:
    """The stretch of the training range between two times, in milliseconds since its start."""
    training = report.window()
    start, end = (min(training.start + round(1e6 * ms), training.end) for ms in (ms_from, ms_to))
    if not training.start <= start < end:
        raise ReportError(f"{training.name} lasts {training.duration_ms:.0f} ms: nothing from {ms_from} to {ms_to} ms.")
    return replace(training, start=start, end=end, name=f"{training.name} from {ms_from:g} ms")


# --- the rows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What the rows are made from."""

    report: Report
    found: Budget
    window: Window
    marked_by: str

    @cached_property
    def kinds(self) -> list[kinds.Row]:
        return list(kinds.rows(self.report, self.found, self.window))

    @cached_property
    def main(self) -> int | None:
        return main_thread(self.report, self.found.window)

    def meaning(self, look: str) -> str:
        """What a look stands for, in words."""
        return svg.WORDS.get(look) or self.found.label(look)

    def phases(self, calls: pd.DataFrame) -> np.ndarray:
        """The phase in which each call was made: of ``process``, ``api_thread``, ``api_start``; "" where not known."""
        phases = np.full(len(calls), "", dtype=object)
        known = calls["api_start"].notna().to_numpy()
        if known.any():
            window = self.found.window
            phases[known] = launched_in(self.report, window, phase_ranges(self.report, window), calls[known])
        return phases


def _causes(asked: Asked) -> Iterator[Row]:
    """The budget: at each moment the one cause that the time is laid to."""
    for own in (row.events for row in asked.kinds if row.kind == kinds.CAUSES):
        yield _row(asked, "where time goes", "", own.assign(label=own["name"], detail=""), high=34, what="stretches")


def _phases(asked: Asked) -> Iterator[Row]:
    """The main thread's ranges, the outermost in the first row; no operators where there are other ranges."""
    events = next((row.events for row in asked.kinds if row.kind == kinds.RANGES and row.number == asked.main), None)
    if events is not None:
        window = asked.window
        events = events[(events["start"] > window.start) | (events["end"] < window.end)]
        events = events if events["operator"].all() else events[~events["operator"]]
    if events is None or events.empty:
        where = "stretch" if len(asked.report.ranges) else "report"
        yield Row("phases", f"({asked.marked_by})", 26, nothing=f"no NVTX ranges in this {where}")
        return
    looks = looks_of_ranges(asked.report.ranges["name"].unique())
    events = events.assign(look=events["name"].map(looks), label=events["name"], detail="")
    depth = kinds.depths(events)
    for level in range(min(LEVELS, int(depth.max(initial=-1)) + 1)):
        names = ("within them", "") if level else ("phases", f"({asked.marked_by})")
        yield _row(asked, *names, events[depth == level], what="ranges", is_named=True)


def looks_of_ranges(names: Sequence[str]) -> dict[str, str]:
    """A class for each name: the palette's own phases have theirs, the others share those that are left, in turn."""
    looks = dict(zip(palette.PHASES, style.RANGES, strict=True))
    left = [look for phase, look in looks.items() if phase not in set(names)] or style.RANGES
    others = [name for name in names if name not in looks]
    return looks | {name: left[number % len(left)] for number, name in enumerate(others)}


def _calls(asked: Asked) -> Iterator[Row]:
    """CUDA calls of the main thread and of the others that launch, by what they are for."""
    launched = asked.report.kernels[asked.report.kernels["process"] == asked.found.process]
    drivers = {asked.main, *launched["api_thread"].dropna().unique()}
    calls = [row for row in asked.kinds if row.kind == kinds.CALLS and row.number in drivers]
    for row in sorted(calls, key=lambda row: (row.number != asked.main, -len(row.events)))[:THREADS]:
        whose = "main thread" if row.number == asked.main else f"thread {row.number & 0xFFFFFF}"
        phases = asked.phases(row.events.assign(api_start=row.events["start"], api_thread=row.events["thread"]))
        labels = row.events["name"].str.removeprefix("cuda")
        yield _row(asked, "CUDA calls", whose, row.events.assign(label=labels, detail=_in(phases)), what="calls")
    if not calls:
        yield Row("CUDA calls", "", 26, nothing="no CUDA calls in this stretch")


def _kernels(asked: Asked) -> Iterator[Row]:
    """Kernels, whole graphs and fills of the GPU, a row a stream, the busiest first."""
    streams = [(row.number, own) for row in _work(asked) if len(own := row.events[row.events["look"] != "copies"])]
    streams.sort(key=lambda stream: -int((stream[1]["end"] - stream[1]["start"]).sum()))
    shown = [(f"stream {number}", own) for number, own in streams[:STREAMS]]
    if rest := [own for _, own in streams[STREAMS:]]:
        shown.append((f"{len(rest)} other streams", pd.concat(rest).sort_values(["start", "end"], kind="stable")))
    for name, own in shown:
        labels = own["name"].map({name: kernel_names.nickname(name) for name in own["name"].unique()})
        row = _row(asked, "GPU kernels", name, own.assign(label=labels, detail=_in(asked.phases(own))), 28, "kernels")
        fills, graphs = int((own["name"] == kinds.A_FILL).sum()), int((own["name"] == kinds.A_GRAPH).sum())
        counts = {"kernels": len(own) - fills - graphs, "CUDA graphs": graphs, "memory fills": fills}
        yield replace(row, said=", ".join(_counted(n, what) for what, n in counts.items() if n))
    if not shown:
        yield Row("GPU kernels", "", 28, nothing="no kernels in this stretch")


def _copies(asked: Asked) -> Iterator[Row]:
    """Copies to, from and on the GPU, by direction and by the kind of host memory."""
    copied = [own for row in _work(asked) if len(own := row.events[row.events["look"] == "copies"])]
    if not copied:
        yield Row("GPU copies", "", 22, nothing="no copies in this stretch")
        return
    events = pd.concat(copied).sort_values(["start", "end"], kind="stable")
    looks = {name: svg.look_of_copy(name) for name in events["name"].unique()}
    sizes = events["bytes"].map(lambda size: f"{size / 1e6:.1f} MB" if size >= 5e4 else f"{size:,.0f} bytes")
    details = sizes + ", " + _in(asked.phases(events))
    own = events.assign(look=events["name"].map(looks), label=sizes, detail=details.str.removesuffix(", "))
    yield _row(asked, "GPU copies", "", own, what="copies")


def _work(asked: Asked) -> list[kinds.Row]:
    return [row for row in asked.kinds if row.kind == kinds.WORK and row.owner == asked.found.device]


def _counters(asked: Asked) -> Iterator[Row]:
    """The sampled counters; of several GPUs, where the report tells which is which."""
    device, window = asked.report.sampled_gpu(), asked.window
    for name, look in COUNTERS.items():
        samples = asked.report.counter(name, window)
        samples = samples if device is None else samples[samples["device"] == device]
        if len(samples) and samples["device"].nunique() == 1:
            time, value = samples["time"].to_numpy(dtype=np.int64), samples["value"].to_numpy(dtype=float)
            top = next((top for top in TOPS if value.max() <= top), TOPS[-1])
            said = f"{value.mean():.1f} % on average"
            yield Row(name, f"to {top} %", 28, look=look, curve=_means(time, value, window), top=top, said=said)
        elif look == style.TENSOR:
            yield Row(name, "", 28, nothing=f"{name} was not sampled")


def _means(time: np.ndarray, value: np.ndarray, window: Window) -> np.ndarray:
    """The mean of each cell's samples, else the last one before. A cell is no shorter than a period."""
    length = max(1, window.end - window.start)
    period = int(np.median(np.diff(time))) if len(time) > 1 else length
    cells = int(np.clip(length // max(period, 1), 1, CELLS))
    first = np.searchsorted(time, window.start + length * np.arange(cells + 1) // cells)
    counts, sums = np.diff(first), np.append(0.0, np.cumsum(value))
    held = np.append(0.0, value)[first[:-1]]
    return np.where(counts > 0, np.diff(sums[first]) / np.maximum(counts, 1), held)


def _queue(asked: Asked) -> Iterator[Row]:
    """Works launched and not yet finished, and below it where there are none."""
    window, found = asked.window, launch.launch(asked.report, asked.window)
    queue = launch.queue_depth(asked.report, window)
    time, depth = queue["time"].to_numpy(dtype=np.int64), queue["depth"].to_numpy(dtype=np.int64)
    edges = window.start + (window.end - window.start) * np.arange(CELLS) // CELLS
    highest = depth[np.maximum(np.searchsorted(time, edges, side="right") - 1, 0)]  # at each cell's start
    np.maximum.at(highest, np.maximum(np.searchsorted(edges, time, side="right") - 1, 0), depth)
    said = f"{found.verdict}: {found.evidence}"
    if found.verdict != launch.NOT_LOOKED_AT:
        said = (
            f"on average {found.queue_mean:.1f} queued; nothing queued {100 * found.queue_0_share:.0f} % of the time; "
            f"a kernel {found.kernel_us:.1f} µs, a launch {found.launch_us:.1f} µs (medians)"
        )
    top = max(1, int(depth.max()))
    yield Row("queued work", f"to {top:,}", 90, look=svg.QUEUE, curve=highest, top=top, said=said, unit="", note=said)
    dry = pd.DataFrame({"start": time, "end": np.append(time[1:], window.end), "look": DRY, "label": "", "detail": ""})
    dry = dry[depth == 0].assign(name=svg.WORDS[DRY])
    yield _row(asked, "nothing queued", "", dry, 12, "stretches")


ROWS = {
    "causes": _causes,
    "phases": _phases,
    "calls": _calls,
    "kernels": _kernels,
    "copies": _copies,
    "counters": _counters,
    "queue": _queue,
}


def _row(
    asked: Asked,
    title: str,
    note: str,
    events: pd.DataFrame,
    high: int = 26,
    what: str = "events",
    is_named: bool = False,
) -> Row:
    """A row of bars; ``is_named``: its colours stand for names, else for what the looks mean."""
    window = asked.window
    own = events[EVENT].assign(**{edge: _since(events[edge], window) for edge in ("start", "end")})
    for column in ("label", "name", "detail"):
        own[column] = own[column].map({text: printable(str(text)) for text in own[column].unique()})
    if is_named:
        lasted = (own["end"] - own["start"]).groupby(own["name"]).sum().sort_values(ascending=False, kind="stable")
        first = own.drop_duplicates("name")
        key = [(str(look), str(name)) for look, name in zip(first["look"], first["name"], strict=True)]
        key = [pair for pair in key if pair[1] in {*lasted.index[:IN_KEY]}]
        key += [("", f"and {len(lasted) - IN_KEY} other names")] if len(lasted) > IN_KEY else []
    else:
        key = [(str(look), asked.meaning(str(look))) for look in own["look"].unique()]
    return Row(title, note, high, events=own, said=_counted(len(own), what), key=key, what=what)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what if count != 1 else svg.one(what)}"


def _since(times: pd.Series, window: Window) -> np.ndarray:
    return times.to_numpy(dtype=np.int64).clip(window.start, window.end) - window.start


def _in(phases: np.ndarray) -> np.ndarray:
    """In words: from which phase something was called."""
    return np.array([phase and f"launched in phase: {phase}" for phase in phases], dtype=object)
