"""What ran when, on one page? The timeline of a report's window and of one of its steps, and a column a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from stepbudget import kernel_names
from stepbudget.ask import iterations
from stepbudget.ask.budget import CAUSES, Budget
from stepbudget.ask.threads import main_thread
from stepbudget.report import Report
from stepbudget.show import palette, picture, rows, style
from stepbudget.show.words import duration, escaped, three
from stepbudget.window import Window

STREAMS, THREADS, LEVELS = 5, 3, 3  # rows: the busiest streams, launching threads, ranges within ranges
IN_A_BAR = 30  # letters of a kernel's name; all of it is told when pointed at
STEPS = 1000  # columns of the picture of the steps
COUNTERS = {"SMs Active": style.BUSY, "Tensor Active": style.TENSOR}  # those drawn, and how
TOPS = (5, 10, 25, 50, 100)  # per cent that the height of a counter's row may stand for


@dataclass(frozen=True)
class Pictures:
    """What of a page is drawn from a report: pieces of HTML."""

    name: str  # of the report
    timeline: str
    keys: dict[str, str]  # what its colours mean: class → words
    steps: str = ""
    one_step: str = ""


@dataclass(frozen=True)
class Strip:
    """A row of the picture; ``write``: from an event's name to what stands in its bar, if anything."""

    kind: str
    name: str
    events: pd.DataFrame
    write: Callable[[str], str] | None = str


def draw(report: Report, found: Budget, longest_ms: float = 0.0) -> Pictures:
    """The pictures of a budget's window; ``longest_ms``: what fills the width, where another's window is longer."""
    whole_ms = max(found.window.duration_ms, longest_ms) or 1.0
    steps = iterations.step_windows(report, found.window)
    drawn = _timeline(report, found, found.window, found.window.duration_ms / whole_ms)
    return Pictures(report.path.name, *drawn, _columns(found, steps), _one_step(report, found, steps))


def _timeline(report: Report, found: Budget, window: Window, part: float = 1.0) -> tuple[str, dict[str, str]]:
    """The rows, ``part`` of their place wide; and what their colours mean."""
    drawn, keys = [], {}
    for strip in _strips(report, found, window):
        label = f"{strip.name}: {len(strip.events):,} within {duration(window.end - window.start)}"
        order = [*CAUSES, style.CALL, style.FILL]
        drawn.append((strip.kind, strip.name, picture.strip(strip.events, window, label, order, strip.write)))
        if strip.kind != rows.RANGES:
            keys |= {look: _meaning(found, look) for look in strip.events["look"].unique()}
    drawn += [("counter", *counter) for counter in _counters(report, window)]
    drawn.append(("time", "", picture.axis(window)))
    lines = "".join(
        f"<div class='lane {kind}'><span>{escaped(name)}</span><div>{own}</div></div>" for kind, name, own in drawn
    )
    return f"<div class='timeline' style='--part:{part:.4f}'>{lines}</div>", keys


def _strips(report: Report, found: Budget, window: Window) -> Iterator[Strip]:
    """The rows that a picture has room for."""
    main = main_thread(report, found.window)
    launched = report.kernels[report.kernels["process"] == found.process]
    drivers = {main, *launched["api_thread"].dropna().unique()}
    work, calls = [], []
    for row in rows.rows(report, found, window):
        if row.kind == rows.CAUSES:
            yield Strip(row.kind, "where the time goes", row.events)
        elif row.kind == rows.WORK and row.owner == found.device:
            work.append(row)
        elif row.kind == rows.RANGES and row.number == main:
            yield from _levels(row.events, window, looks_of_ranges(report.ranges["name"].unique()))
        elif row.kind == rows.CALLS and row.number in drivers:
            calls.append(row)
    for row in sorted(calls, key=lambda row: (row.number != main, -len(row.events)))[:THREADS]:
        whose = "main thread" if row.number == main else f"thread {row.number & 0xFFFFFF}"
        yield Strip(rows.CALLS, f"CUDA calls, {whose}", row.events, lambda name: name.removeprefix("cuda"))
    copies = {row.number: row.events["look"] == "copies" for row in work}
    streams = [(row.number, own) for row in work if len(own := row.events[~copies[row.number]])]
    streams.sort(key=lambda stream: -(stream[1]["end"] - stream[1]["start"]).sum())
    for number, events in streams[:STREAMS]:
        yield Strip(rows.WORK, f"stream {number}", events, lambda name: kernel_names.short(name, IN_A_BAR))
    if others := [events for _, events in streams[STREAMS:]]:
        yield Strip(rows.WORK, f"{len(others)} other streams", pd.concat(others), None)
    if copied := [own for row in work if len(own := row.events[copies[row.number]])]:
        yield Strip(rows.WORK, "copies", pd.concat(copied))


def _levels(events: pd.DataFrame, window: Window, looks: dict[str, str]) -> Iterator[Strip]:
    """A thread's ranges, the outermost in the first row; no operators where there are other ranges."""
    events = events[(events["start"] > window.start) | (events["end"] < window.end)]
    events = events if events["operator"].all() else events[~events["operator"]]
    events = events.assign(look=events["name"].map(looks))
    depth = rows.depths(events)
    for level in range(min(LEVELS, int(depth.max(initial=-1)) + 1)):
        yield Strip(rows.RANGES, "within them" if level else "NVTX ranges", events[depth == level])


def looks_of_ranges(names: Sequence[str]) -> dict[str, str]:
    """A class for each name: the palette's own phases have theirs, the others share those that are left, in turn."""
    looks = dict(zip(palette.PHASES, style.RANGES, strict=True))
    left = [look for phase, look in looks.items() if phase not in set(names)] or style.RANGES
    others = [name for name in names if name not in looks]
    return looks | {name: left[number % len(left)] for number, name in enumerate(others)}


def _counters(report: Report, window: Window) -> Iterator[tuple[str, str]]:
    """Name and picture of the counters that are drawn; of several GPUs, where the report tells which is which."""
    device = report.sampled_gpu()
    for name, look in COUNTERS.items():
        samples = report.counter(name, window)
        samples = samples if device is None else samples[samples["device"] == device]
        if len(samples) and samples["device"].nunique() == 1:
            time, value = samples["time"].to_numpy(), samples["value"].to_numpy(dtype=float)
            top = next((top for top in TOPS if value.max() <= top), TOPS[-1])
            label = f"{name}, {value.mean():.1f} % on average"
            yield f"{name}, to {top} %", picture.curve(time, value, window, top, look, label)


def _columns(found: Budget, steps: Sequence[Window]) -> str:
    """A column a step, by cause."""
    if len(steps) < 2:
        return ""
    table = found.over(list(steps[:STEPS]))
    highest = float(table.sum(axis=1).max()) or 1.0
    shown = f"{len(steps):,} steps" if len(steps) <= STEPS else f"The first {STEPS:,} of {len(steps):,} steps"
    caption = f"{shown} in their order, each as high as it lasted (the longest {three(highest)} ms), by cause"
    drawn = picture.columns({cause: table[cause].to_numpy() for cause in table}, highest, caption)
    return f"<figure>{drawn}<figcaption>{caption}; colours as above.</figcaption></figure>"


def _one_step(report: Report, found: Budget, steps: Sequence[Window]) -> str:
    """The timeline of the step of median length."""
    if len(steps) < 2:
        return ""
    step = sorted(steps, key=lambda own: own.duration_ms)[(len(steps) - 1) // 2]
    caption = f"Step {steps.index(step) + 1}, of median length: {three(step.duration_ms)} ms"
    return f"<figure><figcaption><b>{caption}</b></figcaption>{_timeline(report, found, step)[0]}</figure>"


def _meaning(found: Budget, look: str) -> str:
    if look == style.CALL:
        return "calls that launch, and the like"
    return "memory fills" if look == style.FILL else found.label(look)
