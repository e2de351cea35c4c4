"""How does a reader look around in a report? The timeline's rows, to pan and zoom with the mouse in JupyterLab.

The output holds three forms of one picture: plotly's JSON, which JupyterLab draws out of the stored notebook (no kernel
and no network needed); the static timeline as PNG, which every other viewer shows, and JupyterLab too until the mouse
is over it; and a line of text with the fingerprint of all that is drawn, which is what a test compares.

The picture carries the house's light background, as all figures do: it reads the same on a light and on a dark page,
and nothing jumps when the PNG becomes the plot.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from labkit.display import style
from labkit.display.charts import timelines
from labkit.display.fingerprint import FINGERPRINT_MARK, HEX_DIGITS, drawn_data
from labkit.display.given import on_reports
from labkit.display.show import packed_png
from labkit.display.show import title as title_of
from labkit.display.spread import MEASURED
from labkit.display.table import short_kernel
from stepbudget import kernel_names
from stepbudget.ask.copies import labelled
from stepbudget.ask.phases import OUTSIDE, named, phase_at, phase_ranges
from stepbudget.errors import visible
from stepbudget.report import Report
from stepbudget.show.palette import ink_on, tint
from stepbudget.window import Window

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

PLOTLY_MIME = "application/vnd.plotly.v1+json"

# What an explored window may cost: bytes in the notebook, the static picture among them; and bars a row, all of which
# a browser draws anew each time that the reader zooms or moves.
MOST_BYTES = 290_000
MOST_BARS = {"phases": 1_500, "api": 2_000, "kernels": 3_500, "copies": 1_000}
MOST_SAMPLES = 4_000  # points of a counter's curve
MOST_TEXTS = 150  # different hover texts in a row; rarer ones are written out at each bar
LEAST_SHARE = 0.01  # of MOST_BARS; by then it is not the bars that take the room
RESOLUTIONS_NS = [0, *(digit * 10**power for power in range(3, 12) for digit in (1, 2, 5))]
WITH_LABELS = 400  # a row of more bars carries no words in them: the browser would measure each

PX = 100  # CSS pixels an inch, of the plot and of the static picture: 900 wide, for which the narrowest page has room
GAP_PX, KEY_PX = 6, timelines.KEY_LINE_IN * PX  # between two rows; a line of the key
FONT = "DejaVu Sans, Verdana, Arial, sans-serif"
THICK = 0.76  # a bar's share of its row
NEARLY_OPAQUE = 0.99  # plotly widens an opaque bar to a whole pixel; a crowded row has to show the share of time


@dataclass(frozen=True)
class Strip:
    """Bars of one look in one row. ``words`` is their hover text, one for all or one for each.

    ``spans`` are ns since the window's start. Of a bar that stands for several events ``counts`` says how many and
    ``busy`` for how many ns any of them ran; both are None where each bar is one event.
    """

    legend: str
    colour: str
    hatch: str | None
    words: str | list[str]
    label: str
    shade: str  # the colour in a crowded row: every second strip a little paler, so that neighbours part
    spans: np.ndarray
    counts: np.ndarray | None = None
    busy: np.ndarray | None = None


@dataclass(frozen=True)
class Curve:
    """A sampled counter: the mean of each ``step_ns``, from the window's start on; NaN where nothing was sampled."""

    per_cent: np.ndarray
    step_ns: float


class Still:
    """The static timeline, drawn and written once, however often the rest is made anew."""

    def __init__(self, picture: Figure) -> None:
        self.title = title_of(picture)
        self._picture = picture

    @cached_property
    def drawn_data(self) -> str:
        """The fingerprint."""
        return drawn_data(self._picture)

    @cached_property
    def png(self) -> str:
        """The picture in base64."""
        return packed_png(self._picture, PX)


class Exploration:
    """A timeline to look around in; a notebook shows it when it is a cell's last value. Made by ``explore()``."""

    def __init__(self, still: Still, rows: dict[str, Row], window: Window, measured: bool) -> None:
        self.still = still
        self.rows = rows
        self.window = window
        self.measured = measured

    def __repr__(self) -> str:
        mark = MEASURED if self.measured else ""
        return f"{visible(self.still.title)}, to pan and zoom {FINGERPRINT_MARK}{mark}{self.drawn_data()}]"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        return {PLOTLY_MIME: self.json, "image/png": self.still.png, "text/plain": repr(self)}

    def drawn_data(self) -> str:
        """The fingerprint: both pictures, every bar to the nanosecond, every word that can be read or hovered over."""
        lines = [self.still.drawn_data, str(self.window.end - self.window.start)]
        for name, row in self.rows.items():
            lines += [name, row.nothing, *row.lines()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:HEX_DIGITS]

    @property
    def bars(self) -> int:
        return sum(len(strip.spans) for row in self.rows.values() for strip in row.strips)

    @property
    def bytes(self) -> int:
        """How much longer the output makes a notebook."""
        return len(json.dumps(self._repr_mimebundle_(), indent=1))

    @cached_property
    def plot(self) -> Plot:
        """The interactive picture as a plotly figure."""
        from plotly.graph_objects import Figure as Plot  # takes half a second: only who explores pays for it

        traces = [trace for number, row in enumerate(self.rows.values(), 1) for trace in row.traces(number)]
        return Plot(traces, _layout(self), skip_invalid=False)

    @cached_property
    def json(self) -> dict[str, object]:
        """What JupyterLab's plotly extension draws."""
        found = json.loads(self.plot.to_json())
        for trace in found["data"]:
            if "base" in trace:  # the one array that plotly.py (7.1) writes as a list: a line an item in a notebook
                trace["base"] = {"dtype": "f8", "bdata": base64.b64encode(np.array(trace["base"], "<f8")).decode()}
        return found | {"config": CONFIG}


CONFIG = {
    "scrollZoom": False,  # the wheel turns the page, over the picture, too
    "displaylogo": False,
    "displayModeBar": True,
    "modeBarButtons": [["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
    "responsive": True,
}


@on_reports
def explore(
    report: Report,
    window: Window | None = None,
    rows: Sequence[str] = ("phases", "api", "kernels", "copies", "tensor_active"),
    title: str | None = None,
    measured: bool = True,
) -> Exploration:
    """The timeline of a window (default: the training range) to zoom by marking a stretch, and to move with Shift held.

    Hovering over a bar tells what it is, when it began (ms since the window's start), how long it took, and from which
    phase it was launched. Rows as in ``timeline``.

    Where a row holds more than a notebook should carry, events shorter than a resolution are drawn together with their
    neighbours of the same kind and phase: one bar that says how many they are and for how long they ran. A row's
    resolution is the finest of 0, 1, 2, 5, 10 … µs that leaves it no more bars than ``MOST_BARS``, and the whole output
    no more than ``MOST_BYTES``; it stands at the row. To see each event, explore a shorter window, such as one of
    ``step_windows(report)``.
    """
    window = window or report.window()
    still = Still(timelines.timeline(report, window, rows, title))  # raises where a row is unknown
    events = {name: READERS[name](report, window) for name in rows}
    share, made = 1.0, {}
    while True:
        made = {name: _row(name, table, window, share, made.get(name)) for name, table in events.items()}
        found = Exploration(still, made, window, measured)
        if found.bytes <= MOST_BYTES or share < LEAST_SHARE:
            return found
        share *= 0.7


# --- what stands in a row -----------------------------------------------------------------------------------

EVENT = ["start", "end", "legend", "what", "label", "details"]  # what holds it, in words; details: lines of hover text


def _phases(report: Report, window: Window) -> pd.DataFrame:
    """NVTX ranges; of nested ones the innermost."""
    found = timelines.innermost_ranges(report, window)
    return found.rename(columns={"kind": "legend"}).assign(what=found["name"], label=found["name"], details="")[EVENT]


def _api(report: Report, window: Window) -> pd.DataFrame:
    """CUDA API calls of all threads, by what they are for."""
    calls = _inside(report.api, window)
    names = calls["name"]
    legend = np.select([named(names, timelines.WAITS), named(names, timelines.COPIES)], [WAIT, COPY], LAUNCH)
    details = _each(_phase_of(report, calls["process"], calls["start"]), "in phase: {}".format)
    labels = _each(names, lambda name: name.removeprefix("cuda"))
    return calls[["start", "end"]].assign(legend=legend, what=names, label=labels, details=details)


def _kernels(report: Report, window: Window) -> pd.DataFrame:
    """Kernels on the GPU, Tensor Core kernels apart, as far as their names say; and CUDA graphs traced as a whole."""
    graphs, kernels = _inside(report.graphs, window), _inside(report.kernels, window)
    known = {str(name): None for name in kernels["name"]}
    legend = {name: KERNEL_LEGENDS[kernel_names.by_name(name)] for name in known}
    names = kernels["name"].astype(str)
    found = kernels[["start", "end"]].assign(
        legend=names.map(legend),
        what=names.map({name: short_kernel(name) for name in known}),
        label=names.map({name: timelines.nickname(name) for name in known}),
        details=_launched_in(report, kernels) + _where(kernels),
    )
    if graphs.empty:
        return found
    whole = {"legend": GRAPH, "what": "a CUDA graph, traced as a whole", "label": "CUDA graph"}
    whole |= {"details": _launched_in(report, graphs) + _where(graphs)}
    return pd.concat([found, graphs[["start", "end"]].assign(**whole)], ignore_index=True)


def _copies(report: Report, window: Window) -> pd.DataFrame:
    """Copies between host and GPU, by the kind of host memory."""
    copies = labelled(report, window)
    words = [timelines.COPY_WORDS.get(way, way).format(memory=memory) for way, memory in _pairs(copies)]
    sizes = [f"{size / 1e6:.1f} MB" if size >= 5e4 else f"{size:,} bytes" for size in copies["bytes"]]
    what = [f"copy of {size} {legend}" for size, legend in zip(sizes, words, strict=True)]
    details = _launched_in(report, copies) + _where(copies)
    return copies[["start", "end"]].assign(legend=words, what=what, label=sizes, details=details)


def _pairs(copies: pd.DataFrame) -> Iterator[tuple[str, str]]:
    return zip(copies["direction"], copies["host_memory"], strict=True)


def _tensor_active(report: Report, window: Window) -> pd.DataFrame:
    """Samples of the counter: time and per cent."""
    samples = report.counter("Tensor Active")
    return samples[(samples["time"] >= window.start) & (samples["time"] < window.end)]


def _launched_in(report: Report, work: pd.DataFrame) -> pd.Series:
    """From which phase GPU work was launched, whichever thread did it."""
    known = work["api_start"].notna()
    words = pd.Series("launched outside this report", index=work.index)
    if known.any():
        phases = _phase_of(report, work.loc[known, "process"], work.loc[known, "api_start"].astype("int64"))
        words[known] = _each(phases, "launched in phase: {}".format)
    return words


def _each(column: pd.Series, change: Callable[[str], str]) -> pd.Series:
    """The column with a change made to each text, worked out once for each different text."""
    return column.map({text: change(text) for text in column.unique()})


def _phase_of(report: Report, processes: pd.Series, times: pd.Series) -> pd.Series:
    """The innermost phase of the process at each time; the training range counts as none."""
    found = pd.Series(OUTSIDE, index=times.index, dtype=object)
    ranges = phase_ranges(report, report.extent)
    for process, own in ranges[ranges["name"] != report.window().name].groupby("process"):
        here = (processes == process).to_numpy()
        found[here] = phase_at(own, times[here].to_numpy(dtype=np.int64))
    return found


def _where(work: pd.DataFrame) -> pd.Series | str:
    """GPU and stream, where there is more than one."""
    if len(work[["device", "stream"]].drop_duplicates()) < 2:
        return ""
    return "\nGPU " + work["device"].astype(str) + ", stream " + work["stream"].astype(str)


def _inside(table: pd.DataFrame, window: Window) -> pd.DataFrame:
    return table[(table["end"] > window.start) & (table["start"] < window.end)]


LAUNCH, COPY, WAIT = "launch and the like", "copy", "wait for the GPU"
GRAPH = "CUDA graph"
KERNEL_LEGENDS = {verdict: words for verdict, (_, words, _) in timelines.KERNEL_KINDS.items()}
READERS: dict[str, Callable[[Report, Window], pd.DataFrame]] = {
    "phases": _phases,
    "api": _api,
    "kernels": _kernels,
    "copies": _copies,
    "tensor_active": _tensor_active,
}
NOTHING = {
    "phases": "no NVTX ranges in this stretch",
    "api": "no CUDA calls in this stretch",
    "kernels": "no kernels in this stretch",
    "copies": "no copies in this stretch",
    "tensor_active": "Tensor Active was not sampled",
}


def _look(row: str, legend: str) -> tuple[str, str | None]:
    """Colour and hatch, as in the static timeline."""
    if row == "phases":
        return timelines.phase_colour(legend), None
    if row == "api":
        return {LAUNCH: style.COLOURS["api"], COPY: style.COLOURS["copy"], WAIT: style.VERMILION}[legend], None
    if legend == GRAPH:
        return tint(style.COLOURS["kernel"], 0.6), "x"
    if row == "kernels":
        return next((colour, hatch) for colour, words, hatch in timelines.KERNEL_KINDS.values() if words == legend)
    to_gpu, from_gpu = (timelines.COPY_WORDS[way].partition("{")[0] for way in ("host to device", "device to host"))
    way = "host to device" if legend.startswith(to_gpu) else "device to host" if legend.startswith(from_gpu) else legend
    return timelines.COPY_COLOURS.get(way, style.MUTED), None


def _order(row: str, legend: str) -> tuple:
    """Where a kind stands in the key, and how far below the others it is drawn: as in the static timeline."""
    if row == "copies":  # to the GPU, from it, on it
        return (next(i for i, start in enumerate(("from ", "to ", "")) if legend.startswith(start)), legend)
    known = {"phases": [*style.COLOURS], "api": [LAUNCH, COPY, WAIT], "kernels": [*KERNEL_LEGENDS.values(), GRAPH]}[row]
    return (known.index(legend) if legend in known else len(known), legend)


# --- fewer bars ---------------------------------------------------------------------------------------------


def _resolution(events: pd.DataFrame, most: float) -> int:
    """The finest resolution (ns) at which the row has no more than so many bars; the coarsest if none is."""
    kinds = events.groupby(["legend", "details"], sort=False).ngroup().to_numpy()
    start, end = (events[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
    order = np.lexsort((start, kinds))  # so that those of one bar follow each other
    kinds, start, lasts = kinds[order], start[order], (end - start)[order]
    for resolution in RESOLUTIONS_NS:
        short = lasts < resolution
        count = len(short) - short.sum()
        if short.any() and count <= most:
            cells = start[short] // resolution
            count += 1 + ((np.diff(kinds[short]) != 0) | (np.diff(cells) != 0)).sum()
        if count <= most:
            return resolution
    return RESOLUTIONS_NS[-1]


def _group_numbers(events: pd.DataFrame, resolution: int) -> pd.Series:
    """Which events are drawn as one bar: those shorter than the resolution, of the same kind and phase, that begin in
    the same cell of a grid as wide as the resolution."""
    alone = pd.Series(np.arange(len(events)), index=events.index)
    if not resolution:
        return alone
    short = (events["end"] - events["start"]) < resolution
    cells = events["start"] // resolution
    together = events.groupby(["legend", "details", cells], sort=False).ngroup() + len(events)
    return alone.where(~short, together)


def _merged(events: pd.DataFrame, resolution: int) -> pd.DataFrame:
    """The bars: ``start``, ``end``, how many events (``count``) and the ns for which any of them ran (``busy``)."""
    events = events.sort_values(["start", "end"], kind="stable")
    groups = _group_numbers(events, resolution).rename("group")
    ends = events["end"].groupby(groups)
    reach = ends.cummax().groupby(groups).shift().fillna(0).astype("int64")  # the latest end before, within the bar
    busy = (events["end"] - np.maximum(events["start"], reach)).clip(lower=0)
    table = events.assign(busy=busy, count=1).groupby(groups, sort=False)
    firsts = dict.fromkeys(["legend", "what", "label", "details"], "first")
    return table.agg({"start": "min", "end": "max", "busy": "sum", "count": "sum", **firsts})


@dataclass(frozen=True)
class Row:
    """A row of the plot."""

    name: str  # key of timelines.ROWS
    strips: list[Strip]
    curve: Curve | None = None
    resolution_ns: int = 0  # events shorter than this are drawn together with their neighbours

    @property
    def nothing(self) -> str:
        """What an empty row says."""
        return "" if self.strips or self.curve else NOTHING[self.name]

    @property
    def crowded(self) -> bool:
        """More bars than pixels: their shade shows the share of time, as the static timeline's curve does."""
        return self.name in ("api", "kernels") and sum(len(strip.spans) for strip in self.strips) > timelines.PIXELS

    def lines(self) -> Iterator[str]:
        """All that the row shows, as text."""
        for strip in self.strips:
            numbers = [array.tolist() for array in (strip.spans, strip.counts, strip.busy) if array is not None]
            yield f"{strip.legend} {strip.colour} {strip.shade} {strip.hatch} {strip.words} {strip.label} {numbers}"
        if self.curve:
            shown = " ".join(f"{value:.3e}" for value in self.curve.per_cent)
            yield f"curve {self.curve.step_ns:.6e} {shown}"

    def kinds(self) -> dict[str, tuple[str, str | None]]:
        """The key: what the row's colours mean."""
        return {strip.legend: (strip.colour, strip.hatch) for strip in self.strips}

    def traces(self, number: int) -> list[dict]:
        """plotly's traces, on the y axis of that number."""
        if self.curve:
            return [_curve_trace(self.curve, number)]
        labels = sum(len(strip.spans) for strip in self.strips) <= WITH_LABELS
        drawn = reversed(self.strips) if self.name == "kernels" else self.strips  # Tensor Core kernels over the others
        outlined = self.name in ("api", "kernels")
        return [_bar_trace(strip, number, labels, outlined, self.crowded) for strip in drawn]


def _row(name: str, events: pd.DataFrame, window: Window, share: float, before: Row | None) -> Row:
    """A row with no more than that share of MOST_BARS, or of MOST_SAMPLES; the one before if that would not differ."""
    if name == "tensor_active":
        return Row(name, [], _curve(events, window, round(share * MOST_SAMPLES)))
    if events.empty:
        return Row(name, [])
    resolution = _resolution(events, share * MOST_BARS[name])
    if before and before.resolution_ns == resolution:
        return before
    table = _merged(events, resolution)
    several = table["count"] > 1
    table.loc[several, "what"] = ""
    table.loc[several, "label"] = ""
    looks = sorted(table["legend"].unique(), key=lambda legend: _order(name, legend))
    texts = table.groupby(["legend", "what", "label", "details"], sort=False)
    common = set(texts.size().sort_values(ascending=False, kind="stable").index[:MOST_TEXTS])
    strips = []
    for legend in looks:
        rest = []
        for key, own in texts:
            if key[0] == legend:
                strips += [_strip(name, own, window, len(strips) % 2)] if key in common else []
                rest += [] if key in common else [own]
        if rest:
            strips.append(_strip(name, pd.concat(rest), window, len(strips) % 2))
    return Row(name, strips, resolution_ns=resolution)


def _strip(row: str, bars: pd.DataFrame, window: Window, paler: int) -> Strip:
    first = bars.iloc[0]
    colour, hatch = _look(row, first["legend"])
    spans = np.clip(bars[["start", "end"]].to_numpy(dtype=np.int64), window.start, window.end) - window.start
    several = bool((bars["count"] > 1).any())
    words = [_words(row, *bar) for bar in zip(bars["what"], bars["legend"], bars["details"], strict=True)]
    label = first["label"] if bars["label"].nunique() == 1 else ""
    counts = bars[["count", "busy"]].to_numpy(dtype=np.int64)
    return Strip(
        first["legend"],
        colour,
        hatch,
        words[0] if len(set(words)) == 1 else words,
        label,
        tint(colour, 0.8) if paler else colour,
        spans,
        counts[:, 0] if several else None,
        counts[:, 1] if several else None,
    )


def _words(row: str, what: str, legend: str, details: str) -> str:
    """The lines of a bar's hover text that hold no time."""
    lines = [legend, *details.split("\n")] if row in ("api", "kernels") else details.split("\n")
    return "<br>".join(filter(None, [f"<b>{_plain(what)}</b>" if what else "", *map(_plain, lines)]))


def _plain(words: str) -> str:
    """Text that plotly shows as it is: no markup, no place to fill in."""
    return html.escape(visible(words), quote=False).replace("%{", "% {")


def _curve(samples: pd.DataFrame, window: Window, most: int) -> Curve | None:
    """The mean of the samples in each of at most so many cells; a cell is no shorter than the sampling's period."""
    if samples.empty:
        return None
    length = window.end - window.start
    times = samples["time"].to_numpy(dtype=np.int64) - window.start
    period = np.median(np.diff(times)) if len(times) > 1 else length
    cells = int(np.clip(length // max(period, 1), 1, most))
    place = np.minimum((times / length * cells).astype(int), cells - 1)
    counts = np.bincount(place, minlength=cells)
    sums = np.bincount(place, samples["value"].to_numpy(dtype=float), minlength=cells)
    means = np.divide(sums, counts, out=np.full(cells, np.nan), where=counts > 0)
    return Curve(means, length / cells)


# --- plotly -------------------------------------------------------------------------------------------------


def _bar_trace(strip: Strip, number: int, labels: bool, outlined: bool, crowded: bool) -> dict:
    starts, ends = strip.spans.T / 1e6
    lasts = ends - starts
    unit, factor = ("ms", 1) if lasts.max() >= 1 else ("µs", 1e3)
    decimals = 3 if factor == 1 else 1
    took = f"%{{customdata[0]:,.{decimals}f}} {unit}"
    columns = [lasts * factor]
    if strip.counts is None:
        times = f"at %{{base:,.3f}} ms, for {took}"
    else:
        columns += [strip.counts, strip.busy / 1e6 * factor]
        busy = f"busy %{{customdata[2]:,.{decimals}f}} {unit}"
        times = f"at %{{base:,.3f}} ms: <b>%{{customdata[1]:,d}}</b> within {took}, {busy}"
    alike = isinstance(strip.words, str)
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": _plain(strip.legend),
        "base": starts,
        "x": lasts.astype("float32"),
        "y": np.zeros(len(lasts), dtype="int8"),
        "yaxis": _axis("y", number),
        "width": THICK,
        "customdata": np.column_stack(columns).astype("float32"),
        "hovertemplate": f"{strip.words if alike else '%{hovertext}'}<br>{times}<extra></extra>",
        "marker": _marker(strip, outlined, crowded),
    }
    if not alike:
        trace["hovertext"] = strip.words
    if labels and strip.label:
        trace |= {
            "texttemplate": _plain(strip.label),
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "insidetextfont": {"color": ink_on(strip.colour)},
        }
    return trace


def _marker(strip: Strip, outlined: bool, crowded: bool) -> dict:
    """How its bars look: outlined where neighbours are alike; in a crowded row by how much of a pixel they cover."""
    marker: dict = {"color": strip.colour, "line": {"width": 0.7 if outlined else 0, "color": _darker(strip.colour)}}
    if crowded:
        red, green, blue = (round(255 * part) for part in to_rgb(strip.shade))
        marker = {"color": f"rgba({red},{green},{blue},{NEARLY_OPAQUE})", "line": {"width": 0}}
    if strip.hatch:
        marker["pattern"] = {"shape": strip.hatch[0], "fgcolor": style.PAPER, "size": 5, "solidity": 0.25}
    return marker


def _darker(colour: str) -> str:
    return to_hex([0.72 * part for part in to_rgb(colour)])


def _curve_trace(curve: Curve, number: int) -> dict:
    colour = style.COLOURS["tensor core kernel"]
    period = f"{curve.step_ns / 1e3:,.0f} µs"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Tensor Active",
        "x0": curve.step_ns / 2e6,
        "dx": curve.step_ns / 1e6,
        "y": curve.per_cent.astype("float32"),
        "yaxis": _axis("y", number),
        "line": {"color": colour, "width": 1, "shape": "hvh"},
        "fill": "tozeroy",
        "fillcolor": tint(colour, 0.6),
        "hovertemplate": f"<b>Tensor Active %{{y:.1f}} %</b><br>at %{{x:,.3f}} ms, mean of {period}<extra></extra>",
    }


def _axis(letter: str, number: int) -> str:
    return letter if number == 1 else f"{letter}{number}"


def _layout(shown: Exploration) -> dict:
    """Rows as high as in the static picture, the title above them, the time axis and the keys below."""
    highs = [timelines.ROWS[name].high for name in shown.rows]
    rows_px = sum(highs) * PX
    heights = [(rows_px - GAP_PX * (len(highs) - 1)) * high / sum(highs) for high in highs]
    keys = {name: row.kinds() for name, row in shown.rows.items() if row.strips}
    top, axis = timelines.TOP_IN * PX, timelines.AXIS_IN * PX
    below = axis + KEY_PX * (len(keys) + 0.5)
    left, right = style.WIDTH_IN * PX * timelines.LEFT, style.WIDTH_IN * PX * (1 - timelines.RIGHT)
    layout: dict = {
        "template": "none",
        "height": round(top + rows_px + below),
        "margin": {"l": left, "r": right, "t": top, "b": below, "pad": 0},
        "paper_bgcolor": style.PAPER,
        "plot_bgcolor": style.PAPER,
        "font": {"family": FONT, "size": 12, "color": style.INK},
        "title": {
            "text": f"<b>{_plain(shown.still.title)}</b>",
            "font": {"size": 15},
            **{"xref": "paper", "x": 0, "xanchor": "left", "yref": "container", "y": 1, "yanchor": "top"},
            "pad": {"t": 14},
        },
        "showlegend": False,
        "barmode": "overlay",
        "bargap": 0.01,  # with no gap at all, plotly rounds bars to whole pixels
        "dragmode": "zoom",
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": style.PAPER,
            "bordercolor": style.MUTED,
            "font": {"family": FONT, "size": 12, "color": style.INK},
            "align": "left",
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": style.MUTED, "activecolor": style.INK},
        "uniformtext": {"mode": "hide", "minsize": 10},
        "xaxis": {
            "range": [0, shown.window.duration_ms],
            "minallowed": 0,
            "maxallowed": shown.window.duration_ms,
            "title": {"text": "milliseconds", "standoff": 4, "font": {"size": 12.5}},
            "anchor": "free",
            "position": 0,
            "showgrid": False,
            "zeroline": False,
            "ticks": "outside",
            "tickcolor": style.MUTED,
            "linecolor": style.MUTED,
            "showline": True,
            "separatethousands": True,
            **{"showspikes": True, "spikemode": "across", "spikesnap": "cursor", "spikedash": "solid"},
            **{"spikethickness": 1, "spikecolor": style.MUTED},
        },
        "shapes": [],
        "annotations": [],
    }
    at = 0.0
    for number, (name, row) in enumerate(shown.rows.items(), 1):
        bottom, top_edge = max(0.0, 1 - (at + heights[number - 1]) / rows_px), 1 - at / rows_px
        middle = {"xref": "paper", "yref": "paper", "y": (bottom + top_edge) / 2}
        axis_look = {
            "domain": [bottom, top_edge],
            "range": [0, 100] if row.curve else [-0.5, 0.5],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
            "showticklabels": bool(row.curve),
        }
        if row.curve:
            axis_look |= {"side": "right", "tickvals": [100], "ticktext": [" 100 %"]}
        layout[f"yaxis{number if number > 1 else ''}"] = axis_look
        ground = {"type": "rect", "layer": "below", "fillcolor": tint(style.IDLE, 0.4), "line": {"width": 0}}
        edges = {"xref": "paper", "yref": "paper", "x0": 0, "x1": 1, "y0": bottom, "y1": top_edge}
        layout["shapes"].append(ground | edges)
        words = timelines.ROWS[name].name.replace("\n", "<br>")
        if row.resolution_ns:
            note = f"&lt; {_time(row.resolution_ns)}: merged"
            words += f'<br><span style="font-size:10px;color:{style.MUTED}">{note}</span>'
        layout["annotations"].append(_note(words, x=0, xanchor="right", xshift=-10, **middle, align="right"))
        if row.nothing:
            muted = {"font": {"color": style.MUTED, "size": 11}}
            layout["annotations"].append(_note(row.nothing, x=0.5, xanchor="center", **middle, **muted))
        at += heights[number - 1] + GAP_PX
    how = "drag: zoom · Shift and drag: move · double-click: all"
    corner = {"x": 1, "xanchor": "right", "y": 0, "yshift": -axis + 20, "xref": "paper", "yref": "paper"}
    layout["annotations"].append(_note(how, **corner, font={"color": style.MUTED, "size": 11}))
    for line, (name, kinds) in enumerate(keys.items()):
        down = {"y": 0, "yshift": -(axis + KEY_PX * (line + 0.3)), "xref": "paper", "yref": "paper"}
        muted = {"font": {"size": 11, "color": style.MUTED}}
        words = timelines.ROWS[name].name.partition("\n")[0]
        layout["annotations"].append(_note(words, x=0, xanchor="right", xshift=-10, **down, **muted))
        parts = [
            f'<span style="color:{colour}">{"▨" if hatch else "■"}</span> {_plain(legend)}'
            for legend, (colour, hatch) in kinds.items()
        ]
        words = "    ".join(parts)
        layout["annotations"].append(_note(words, x=0, xanchor="left", **down, font={"size": 11}))
    return layout


def _time(ns: int) -> str:
    return f"{ns / 1e3:g} µs" if ns < 1e6 else f"{ns / 1e6:g} ms"


def _note(text: str, **look: object) -> dict:
    return {"text": text, "showarrow": False, "yanchor": "middle"} | look
