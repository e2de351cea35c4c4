"""What does Nsight Systems' window hold, and which of the course's tables answers the same question? Drawn by code."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Polygon, Rectangle

from labkit.display import style
from labkit.display.diagrams.drawn import MONO, SMALL, area, aside, bar, callout, canvas, heading, rule, write
from stepbudget.show.palette import tint

LEFT, RIGHT = 39.0, 68.0  # where the rows' bars begin and end
TABLES = 71.0  # where the name of a row's table begins
GAP = (0.0, 11.0)  # when the GPU has nothing to do, in a step of 30
PHASES = (("data loading", 0, 10), ("forward", 10, 16), ("backward", 16, 24), ("optimizer step", 24, 28))
# When a kernel runs, and when its launch began; the first starts as soon as it is launched.
KERNELS = ((11, 12.5, 10.5), (13, 15.5, 12), (16, 18, 14.5), (18.2, 21, 17), (21.3, 24.5, 19.5), (25.2, 28.5, 24.4))
BUSY = (0.1, 0.35, 0.8, 0.6, 0.9, 0.2)  # how far each keeps the GPU's units busy


@dataclass(frozen=True)
class Row:
    """A row of the timeline: what it is called, how far it is indented, where it stands, what answers it here."""

    name: str
    indent: int
    y: float
    table: str = ""


ROWS = {
    row.name: row
    for row in (
        Row("GPU", 0, 58.6),
        Row("GPU Metrics", 1, 55.2, "tables.tensor_active"),
        Row("Processes", 0, 51.2),
        Row("CUDA HW", 1, 48.2),
        Row("Kernels", 2, 45.2, "tables.kernels"),
        Row("Memory", 2, 42.2, "tables.copies"),
        Row("NVTX, on the GPU", 2, 39.2, 'phases(by="thread")'),
        Row("Threads", 1, 36.2),
        Row("OS runtime libraries", 2, 33.2, "tables.advice"),
        Row("CUDA API", 2, 30.2, "tables.launch, budget"),
        Row("NVTX", 2, 27.2, "tables.phases"),
    )
}
BELOW = 24.4  # where the lower pane begins

NOTES = (
    "What is shown: the timeline, or “Analysis Summary”: how, when and on what it was recorded.",
    "Drag over a stretch, right-click: “Zoom into Selection”. “Filter and Zoom in” hides the rest, too; “Undo Zoom”.",
    "A gap on the GPU. Read straight down from it: what did the CPU do meanwhile?",
    "Right-click a row: “Show in Events View” lists its events below; a double click there finds one again above.",
    "The CPU's ranges, and above them where their kernels ran. The tool goes by thread: backward may seem empty.",
    "What is listed: events, or “Stats System View”: the sums that nsys stats prints.",
)


def _at(time: float) -> float:
    return LEFT + time * (RIGHT - LEFT) / 30


def _menu(ax: Axes, x: float, y: float, w: float, words: str) -> None:
    """A list to choose from, closed: its choice and a small triangle."""
    ax.add_patch(
        FancyBboxPatch((x, y - 1.2), w, 2.4, boxstyle="round,pad=0,rounding_size=0.4", fc="white", ec=style.MUTED)
    )
    write(ax, x + 0.8, y, words, SMALL)
    tip = x + w - 1.4
    ax.add_patch(Polygon([(tip - 0.6, y + 0.4), (tip + 0.6, y + 0.4), (tip, y - 0.5)], fc=style.INK))


def _names(ax: Axes) -> None:
    """The rows' names, those of rows that unfold with a small triangle, and their tables."""
    unfolded = {"GPU", "Processes", "CUDA HW", "Threads"}
    for row in ROWS.values():
        x = 18.5 + 1.4 * row.indent
        if row.name in unfolded:
            tip = row.y - 0.5
            ax.add_patch(Polygon([(x - 0.9, tip + 0.9), (x + 0.3, tip + 0.9), (x - 0.3, tip)], fc=style.MUTED))
        write(ax, x + 0.8, row.y, row.name, SMALL, weight="bold" if row.name in unfolded else "normal")
        if row.table:
            aside(ax, TABLES, row.y, row.table)
            rule(ax, (17.5, 88), (row.y - 1.5,) * 2, color=style.GRID, lw=0.8, zorder=0)


def _bars(ax: Axes) -> None:
    """One training step that waits for its batch."""
    api, copy, kernel, idle = (style.COLOURS[name] for name in ("api", "copy", "kernel", "idle"))
    y = {name: row.y for name, row in ROWS.items()}
    ground = y["GPU Metrics"] - 1.2
    rule(ax, (LEFT, RIGHT), (ground, ground), color=style.GREEN)
    for (start, end, call), busy in zip(KERNELS, BUSY, strict=True):
        bar(ax, _at(start), _at(end), y["Kernels"], kernel, h=2.0)
        bar(ax, _at(call), _at(call + 0.7), y["CUDA API"], api, h=2.0)
        height = 2.6 * busy
        ax.add_patch(
            Rectangle((_at(start), ground), _at(end) - _at(start), height, fc=tint(style.GREEN, 0.6), ec="none")
        )
    bar(ax, _at(10), _at(11), y["Memory"], copy, h=2.0)
    bar(ax, _at(9.8), _at(10.4), y["CUDA API"], api, h=2.0)
    bar(ax, _at(0.3), _at(9.6), y["OS runtime libraries"], idle, "poll", h=2.0, color=style.INK)
    for name, start, end in PHASES:
        colour = tint(style.COLOURS[name], 0.5)
        bar(ax, _at(start), _at(end), y["NVTX"], colour, name.split(" ")[0] if end - start > 4 else "", h=2.0)
    for name, first, last in (("forward", 0, 2), ("optimizer step", 5, 5)):
        colour = tint(style.COLOURS[name], 0.5)
        words = name.split(" ")[0] if name == "forward" else ""
        bar(ax, _at(KERNELS[first][0]), _at(KERNELS[last][1]), y["NVTX, on the GPU"], colour, words, h=2.0)
    low, high = y["NVTX"] - 1.5, y["GPU Metrics"] + 1.8
    ax.add_patch(
        Rectangle(
            (_at(GAP[0]), low), _at(GAP[1]) - _at(GAP[0]), high - low, fc=tint(style.YELLOW, 0.25), ec="none", zorder=0
        )
    )


def _events(ax: Axes) -> None:
    """The lower pane: a row's events, one a line."""
    area(ax, 17.5, 17.2, 70.5, BELOW - 17.4)
    _menu(ax, 18.5, BELOW - 1.8, 14.5, "Events View")
    for x, words in ((38, "name"), (58, "start"), (66, "duration"), (77, "thread …")):
        write(ax, x, BELOW - 1.8, words, SMALL, weight="bold")
    for line, (name, start) in enumerate((("cudaLaunchKernel", "…"), ("cudaMemcpyAsync", "…"))):
        write(ax, 38, BELOW - 4.0 - 2.0 * line, name, SMALL, family=MONO)
        for x in (58, 66, 77):
            write(ax, x, BELOW - 4.0 - 2.0 * line, start, SMALL)


def nsight_window() -> Figure:
    """Nsight Systems' window with a report: the parts, the rows in their order, the gestures, and our tables beside."""
    fig, ax = canvas(69)
    heading(ax, 67, "Nsight Systems' window, and the table of this course that answers the same question")
    ax.add_patch(Rectangle((1, 16.4), 88, 48.6, fc="none", ec=style.MUTED, lw=1.2))
    area(ax, 1.6, 17.2, 15, 47.2, "Project Explorer", weight="bold", color=style.INK)
    write(ax, 3, 60.4, "Project 1", SMALL)
    write(ax, 4.2, 57.9, "main_baseline\n_nvtx.nsys-rep", SMALL, va="top", weight="bold")
    aside(ax, 3, 53, "Reports, open\nor lying beside:\na click shows one.", va="top")
    _menu(ax, 18.5, 62.6, 14.5, "Timeline View")
    for tick in range(0, 31, 10):
        write(ax, _at(tick), 62.6, f"{tick}" + " ms" * (tick == 0), SMALL, ha="center", color=style.MUTED)
        rule(ax, (_at(tick),) * 2, (ROWS["NVTX"].y - 1.5, 61.4), color=style.GRID, lw=0.8, zorder=0)
    write(ax, 88, 62.6, "in this course:", SMALL, ha="right", weight="bold")
    _names(ax)
    _bars(ax)
    _events(ax)
    places = (
        (34.8, 62.6), (_at(27), 60.2), (_at(5), ROWS["Kernels"].y), (37.0, ROWS["CUDA API"].y),
        (37.0, ROWS["NVTX, on the GPU"].y), (34.8, BELOW - 1.8),
    )  # fmt: skip
    for number, (place, words) in enumerate(zip(places, NOTES, strict=True), start=1):
        line = 14.2 - 2.5 * (number - 1)
        callout(ax, *place, number)
        callout(ax, 3.0, line, number)
        write(ax, 5.2, line, words, SMALL)
    return fig


DIAGRAMS = {
    "nsight_window": (
        nsight_window,
        "A drawing of Nsight Systems' window: at the left the project explorer, above the timeline with rows for GPU "
        "metrics, CUDA HW (kernels, memory, NVTX on the GPU) and threads (OS runtime libraries, CUDA API, NVTX), below "
        "the events view. Beside each row stands the course's table that answers the same question; six notes explain "
        "the lists to choose from, zooming, reading down from a gap, showing a row's events, and NVTX by thread.",
    ),
}
