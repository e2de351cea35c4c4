"""What does an idea of the course look like? The explanatory diagrams of the text, drawn by code.

All coordinates are tenths of an inch from the lower left corner, so every diagram is 90 wide and a size in
one diagram is the same size in the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import cos, log10, radians, sin

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Rectangle

from labkit.display import style
from stepbudget.show.palette import ink_on, tint

WIDE = 10 * style.WIDTH_IN
SMALL, BODY, HEADING = 9, 10, 12  # points; nothing is smaller than SMALL
POINT = 10 / 72  # one point in the diagrams' coordinates
LINE_PITCH = 1.35  # distance of two lines of text, in font sizes
MONO = "DejaVu Sans Mono"  # for code; ships with matplotlib too


# --- the shared vocabulary ----------------------------------------------------------------------------------


def canvas(height: float) -> tuple[Figure, Axes]:
    """An empty drawing, `height` tenths of an inch high; nothing but what is put there is drawn."""
    fig = plt.figure(figsize=(style.WIDTH_IN, height / 10))
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, WIDE), ylim=(0, height))
    ax.axis("off")
    return fig, ax


def write(ax: Axes, x: float, y: float, words: str, size: float = BODY, va: str = "center", **look: object) -> None:
    """Text, left-aligned; its block of lines stands centred on y, below it (va="top") or on it (va="bottom").

    Each line is put on its own baseline: matplotlib centres the ink instead, so that "no" and "gap" side by
    side would not stand on one line.
    """
    lines = words.split("\n")
    em = size * POINT
    span = LINE_PITCH * em * (len(lines) - 1)
    first = {"center": y + span / 2 - 0.36 * em, "top": y - 0.75 * em, "bottom": y + span}[va]
    for number, line in enumerate(lines):
        place = (x, first - number * LINE_PITCH * em)
        ax.text(*place, line, size=size, va="baseline", **{"ha": "left", **look})


def heading(ax: Axes, y: float, words: str, x: float = 2) -> None:
    """The title of a diagram or of one of its parts."""
    write(ax, x, y, words, HEADING, weight="bold")


def aside(ax: Axes, x: float, y: float, words: str, **look: object) -> None:
    """A remark in small, quiet text; darker than MUTED, since it may stand on a grey ground."""
    write(ax, x, y, words, SMALL, **{"color": tint(style.INK, 0.72), **look})


def box(ax: Axes, x: float, y: float, w: float, h: float, words: str = "", colour: str = style.MUTED, **look) -> None:
    """A thing: a rounded box with a thin fill of its colour and its name in the middle."""
    corner = f"round,pad=0,rounding_size={min(w, h) * 0.12}"
    ax.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=corner, fc=tint(colour), ec=colour, lw=1.2))
    write(ax, x + w / 2, y + h / 2, words, **{"ha": "center", **look})


def area(ax: Axes, x: float, y: float, w: float, h: float, words: str = "", **look: object) -> None:
    """A place that things stand in: a pale ground, named in its upper left corner unless there is no room."""
    corner = "round,pad=0,rounding_size=0.8"
    ax.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=corner, fc=tint(style.IDLE, 0.4), ec="none", zorder=0))
    aside(ax, x + 1, y + h - 1.4, words, **look)


def bar(ax: Axes, start: float, end: float, y: float, colour: str, words: str = "", h: float = 2.4, **look) -> None:
    """Something that lasts: a bar from start to end on the row centred at y."""
    ax.add_patch(Rectangle((start, y - h / 2), end - start, h, fc=colour, ec=style.PAPER, lw=1))
    write(ax, (start + end) / 2, y, words, SMALL, **{"ha": "center", "color": ink_on(colour), **look})


def planned(ax: Axes, start: float, end: float, y: float, colour: str, words: str, h: float = 2.4) -> None:
    """Something that would last this long if one asked for it: a dashed outline of its bar."""
    ax.add_patch(Rectangle((start, y - h / 2), end - start, h, fc=tint(colour), ec=colour, lw=1.2, ls="--"))
    write(ax, (start + end) / 2, y, words, SMALL, ha="center")


def arrow(
    ax: Axes, start, end, colour: str = style.INK, bend: float = 0, shrink: float = 2, width: float = 1.5
) -> None:
    """An arrow from start to end; `bend` curves it, `shrink` (points) keeps it off what it connects."""
    ax.annotate(
        "",
        xy=end,
        xytext=start,
        arrowprops={
            "arrowstyle": "-|>,head_width=0.25,head_length=0.5",
            "connectionstyle": f"arc3,rad={bend}",
            "color": colour,
            "lw": width,
            "shrinkA": shrink,
            "shrinkB": shrink,
        },
    )


def rule(ax: Axes, xs: tuple[float, float], ys: tuple[float, float], **look: object) -> None:
    """A thin helper line."""
    ax.plot(xs, ys, **{"color": style.MUTED, "lw": 1, **look})


def row_name(ax: Axes, y: float, words: str, x: float = 2) -> None:
    """The name of a timeline's row, at its left."""
    write(ax, x, y, words, SMALL)


def time_axis(ax: Axes, start: float, end: float, y: float) -> None:
    """The arrow of time under a set of rows."""
    arrow(ax, (start, y), (end, y), style.MUTED, shrink=0, width=1)
    aside(ax, end + 0.8, y, "time")


# --- 1: copies to the GPU -----------------------------------------------------------------------------------


def pageable_and_pinned() -> Figure:
    """Two ways of a batch to the GPU, where the bytes go and what the calling thread does meanwhile."""
    fig, ax = canvas(67)
    api, copy, kernel, wait = (style.COLOURS[name] for name in ("api", "copy", "kernel", "data loading"))

    heading(ax, 64.5, "Pageable memory: two copies, and the calling thread is held")
    area(ax, 2, 51, 56, 11, "CPU memory")
    area(ax, 71, 51, 17, 11, "GPU memory")
    box(ax, 4, 52.2, 15, 6.6, "batch in\npageable memory", style.MUTED, size=SMALL)
    box(ax, 37, 52.2, 19, 6.6, "the driver's pinned\nstaging buffer", style.MUTED, size=SMALL)
    box(ax, 73, 52.2, 13, 6.6, "batch", style.MUTED, size=SMALL)
    arrow(ax, (19, 55.5), (37, 55.5), api, width=2.5)
    write(ax, 28, 57.2, "the CPU copies", SMALL, ha="center")
    arrow(ax, (56, 55.5), (73, 55.5), copy, width=2.5)
    write(ax, 64.5, 57.2, "DMA", SMALL, ha="center")

    for y, name in [(47.5, "calling thread"), (44.5, "copy engine"), (41.5, "GPU kernels")]:
        row_name(ax, y, name)
    for piece in range(3):
        bar(ax, 17 + 7 * piece, 24 + 7 * piece, 47.5, api, f"piece {piece + 1}")
        bar(ax, 24 + 7 * piece, 31 + 7 * piece, 44.5, copy, f"piece {piece + 1}")
    bar(ax, 38, 45, 47.5, wait, "waits")
    bar(ax, 45, 54, 47.5, api, "launches")
    bar(ax, 48, 69, 41.5, kernel, "kernels of this batch")
    time_axis(ax, 17, 83, 39)
    aside(
        ax,
        17,
        36.4,
        "Held until the last piece has left pageable memory; plain .to(device) then waits for the DMA too.",
    )

    heading(ax, 31.5, "Pinned memory and non_blocking=True: one copy, and the thread goes on at once")
    area(ax, 2, 18, 56, 11, "CPU memory")
    area(ax, 71, 18, 17, 11, "GPU memory")
    box(ax, 37, 19.2, 19, 6.6, "batch in pinned\n(page-locked) memory", style.MUTED, size=SMALL)
    box(ax, 73, 19.2, 13, 6.6, "batch", style.MUTED, size=SMALL)
    arrow(ax, (56, 22.5), (73, 22.5), copy, width=2.5)
    write(ax, 64.5, 24.2, "DMA", SMALL, ha="center")
    aside(ax, 4, 22.5, "DataLoader(pin_memory=True) fills it\nin a thread of its own, ahead of time")

    aside(ax, 17, 15.9, "the copy is queued, the call returns")
    for y, name in [(13.5, "calling thread"), (10.5, "copy engine"), (7.5, "GPU kernels")]:
        row_name(ax, y, name)
    bar(ax, 17, 19, 13.5, api)
    bar(ax, 19, 28, 13.5, api, "launches")
    bar(ax, 28, 57, 13.5, api, "goes on with Python: the next batch …")
    bar(ax, 19, 38, 10.5, copy, "the whole batch")
    planned(ax, 41, 60, 10.5, copy, "next batch, 2nd stream")
    bar(ax, 39, 60, 7.5, kernel, "kernels of this batch")
    time_axis(ax, 17, 83, 5)
    aside(
        ax,
        17,
        2.4,
        "In one stream the kernels still come after the copy. To overlap them, copy in a stream of its own.",
    )
    return fig


# --- 2: the data loader -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """One batch: who loaded it, and from when to when it was loaded and computed on."""

    worker: int
    load: tuple[float, float]
    compute: tuple[float, float]


def loader_schedule(workers: int, until: float, load: float, compute: float, prefetch: int = 2) -> list[Batch]:
    """What a DataLoader with this many workers does in `until` units of time, batches handed out in turn.

    A worker takes a new batch only while fewer than prefetch × workers batches wait or are on their way, as
    PyTorch's does (prefetch_factor=2).
    """
    worker_free, gpu_free, batches = [0.0] * workers, 0.0, []
    while gpu_free < 2 * until:  # a worker may begin now what the GPU gets to much later
        number = len(batches)
        worker = number % workers
        allowed = batches[number - prefetch * workers].compute[0] if number >= prefetch * workers else 0.0
        begin = max(worker_free[worker], allowed)
        worker_free[worker] = begin + load
        start = max(gpu_free, worker_free[worker])
        gpu_free = start + compute
        batches.append(Batch(worker, (begin, begin + load), (start, gpu_free)))
    return batches


def starved_and_fed() -> Figure:
    """The same work for the GPU, fed by one loader worker and by four."""
    fig, ax = canvas(48)
    until, load, compute = 18.0, 3.6, 1.0
    left, unit = 15.0, 4.0

    def panel(workers: int, top: float, words: str) -> None:
        batches = loader_schedule(workers, until, load, compute)
        heading(ax, top, words)
        gpu_row = top - 3.6 - 3 * workers
        row_name(ax, gpu_row, "GPU")
        bar(ax, left, left + until * unit, gpu_row, style.COLOURS["idle"])
        for worker in range(workers):
            row_name(ax, top - 3.6 - 3 * worker, f"loader worker {worker + 1}")
        for number, batch in enumerate(batches, start=1):
            for (begin, end), y, colour in [
                (batch.load, top - 3.6 - 3 * batch.worker, style.COLOURS["data loading"]),
                (batch.compute, gpu_row, style.COLOURS["kernel"]),
            ]:
                if begin < until:
                    cut = min(end, until)
                    name = str(number) if cut - begin > compute / 2 else ""
                    bar(ax, left + begin * unit, left + cut * unit, y, colour, name)
        starts = [min(batch.compute[0], until) for batch in batches]
        for idle_from, idle_to in zip([0.0, *(batch.compute[1] for batch in batches)], starts, strict=False):
            if idle_to - idle_from > compute:
                write(ax, left + (idle_from + idle_to) / 2 * unit, gpu_row, "waits", SMALL, ha="center")
        done = [batch for batch in batches if batch.compute[1] <= until]
        write(ax, 88, top, f"{len(done)} batches done", BODY, ha="right", color=style.INK)

    panel(1, 45.5, "One worker: the GPU waits for every batch")
    panel(4, 31, "Four workers: after the first batches the GPU is never without work")
    time_axis(ax, left, left + until * unit - 4, 12.2)

    for x, colour, words in [
        (15, style.COLOURS["data loading"], "a worker loads a batch"),
        (41, style.COLOURS["kernel"], "the GPU computes on it"),
        (67, style.COLOURS["idle"], "the GPU is idle"),
    ]:
        bar(ax, x, x + 3, 7.6, colour, h=2)
        write(ax, x + 4, 7.6, words, SMALL)
    aside(
        ax,
        15,
        3.2,
        f"Drawn for batches that take {load} times as long to load as to compute; a CPU core per worker.",
    )
    return fig


# --- 3: number formats --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumberFormat:
    """A binary floating-point format: one sign bit, then exponent and fraction."""

    name: str
    where: str
    exponent_bits: int
    fraction_bits: int
    ieee: bool = True  # the top exponent is kept for infinities and NaN
    stored_bits: int = 0  # bits it takes in memory, where that is more than it uses

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent's bits."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def largest(self) -> float:
        """Largest finite value. E4M3 gives up only one fraction pattern of the top exponent, for NaN."""
        if self.ieee:
            return (2 - self.epsilon) * 2.0**self.bias
        return (2 - 2 * self.epsilon) * 2.0 ** (self.bias + 1)

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value with full precision."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """Smallest positive value of all: the lowest bit of a subnormal number."""
        return self.smallest_normal * self.epsilon

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return 2.0**-self.fraction_bits

    @property
    def decimal_digits(self) -> float:
        """The fraction and its implied leading one, in decimal digits."""
        return (self.fraction_bits + 1) * log10(2)


FORMATS = [
    NumberFormat("FP32", "on CUDA cores", 8, 23),
    NumberFormat("TF32", "since Ampere", 8, 10, stored_bits=32),
    NumberFormat("FP16", "since Volta", 5, 10),
    NumberFormat("BF16", "since Ampere", 8, 7),
    NumberFormat("FP8 E4M3", "since Hopper", 4, 3, ieee=False),
    NumberFormat("FP8 E5M2", "since Hopper", 5, 2),
]
SIGN, EXPONENT, FRACTION = style.MUTED, style.ORANGE, style.SKY  # told apart here only; a key says which


def scientific(value: float) -> str:
    """A number to two digits, as people write it: 65,504 and 0.016, but 3.4 × 10³⁸."""
    if 0.01 <= value < 1e6:
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}×10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def bits(ax: Axes, x: float, y: float, count: int, colour: str, size: float, **look: object) -> float:
    """A run of bits as small boxes; returns where it ends."""
    for place in range(count):
        cell = Rectangle((x + place * size, y), size, 2.2, **{"fc": tint(colour, 0.55), "ec": style.PAPER, **look})
        ax.add_patch(cell)
    return x + count * size


def number_formats() -> Figure:
    """Six floating-point formats bit by bit, with their range and precision worked out from the bits."""
    fig, ax = canvas(54)
    left, size, pitch = 14.0, 1.1, 6.2
    columns = {
        "largest\nfinite": 60.0,
        "smallest\nnormal": 70.5,
        "step\nafter 1": 80.5,
        "decimal\ndigits": 88.0,
    }

    heading(ax, 51.5, "The exponent's bits buy range, the fraction's bits buy precision")
    for name, x in columns.items():
        write(ax, x, 46.4, name, SMALL, ha="right", weight="bold")
    for x, colour, name in [(14, SIGN, "sign"), (21, EXPONENT, "exponent"), (32, FRACTION, "fraction")]:
        end = bits(ax, x, 44.7, 1, colour, size)
        write(ax, end + 0.6, 45.8, name, SMALL)

    for row, kind in enumerate(FORMATS):
        y = 39 - row * pitch
        rule(ax, (2, 88), (y + 3.9, y + 3.9), color=style.GRID)
        write(ax, 2, y + 1.9, kind.name, BODY, weight="bold")
        aside(ax, 2, y - 0.3, kind.where)
        x = bits(ax, left, y + 0.5, 1, SIGN, size)
        x = bits(ax, x, y + 0.5, kind.exponent_bits, EXPONENT, size)
        x = bits(ax, x, y + 0.5, kind.fraction_bits, FRACTION, size)
        used = 1 + kind.exponent_bits + kind.fraction_bits
        unused = max(kind.stored_bits - used, 0)
        bits(ax, x, y + 0.5, unused, style.PAPER, size, ec=style.IDLE)
        counts = f"1 + {kind.exponent_bits} + {kind.fraction_bits} = {used} bits"
        aside(ax, left, y - 0.9, counts + (f", kept in {kind.stored_bits}" if unused else ""))
        numbers = [scientific(kind.largest), scientific(kind.smallest_normal), scientific(kind.epsilon)]
        for place, words in zip(columns.values(), [*numbers, f"{kind.decimal_digits:.1f}"], strict=True):
            write(ax, place, y + 1.6, words, BODY, ha="right")

    half = next(kind for kind in FORMATS if kind.name == "FP16")
    rule(ax, (2, 88), (5.7, 5.7), color=style.GRID)
    aside(
        ax,
        2,
        3.0,
        "Since: the first architecture whose Tensor Cores take the format. "
        "FP8 as OCP defines it: E4M3 has no infinities.\n"
        "Below the smallest normal number, steps stay equal and precision fades: "
        f"in FP16 down to {scientific(half.smallest)}.",
    )
    return fig


# --- 4: Tensor Cores ----------------------------------------------------------------------------------------

SUBSCRIPT = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def matrix(ax: Axes, x: float, y: float, name: str, kind: str, colour: str, marked: set[tuple[int, int]]) -> None:
    """A 4×4 matrix with its name and number format above; marked cells are filled and show their indices."""
    cell = 3.6
    write(ax, x + 2 * cell, y + 4 * cell + 3.6, name, HEADING, ha="center", weight="bold")
    aside(ax, x + 2 * cell, y + 4 * cell + 1.4, kind, ha="center")
    for row in range(4):
        for column in range(4):
            corner = (x + column * cell, y + (3 - row) * cell)
            on = (row, column) in marked
            fill = colour if on else tint(colour, 0.14)
            ax.add_patch(Rectangle(corner, cell, cell, fc=fill, ec=style.PAPER, lw=1.5))
            if on:
                words = f"{name.lower()}{row + 1}{column + 1}".translate(SUBSCRIPT)
                write(
                    ax,
                    corner[0] + cell / 2,
                    corner[1] + cell / 2,
                    words,
                    BODY,
                    ha="center",
                    color=ink_on(colour),
                )


def tensor_core_mma() -> Figure:
    """D = A × B + C on a 4×4 tile: one result cell, what goes into it, and in which precision."""
    fig, ax = canvas(51)
    row, column = 1, 2
    half, single = style.COLOURS["tensor core kernel"], style.BLUE

    heading(ax, 48.5, "A Tensor Core multiplies and adds whole tiles: D = A × B + C")
    place = {(row, column)}
    matrix(ax, 5, 26, "D", "FP32", single, place)
    matrix(ax, 27, 26, "A", "FP16", half, {(row, k) for k in range(4)})
    matrix(ax, 49, 26, "B", "FP16", half, {(k, column) for k in range(4)})
    matrix(ax, 71, 26, "C", "FP32", single, place)
    for x, sign in [(23.2, "="), (45.2, "×"), (67.2, "+")]:
        write(ax, x, 33.2, sign, 18, ha="center")

    products = " + ".join(f"a{row + 1}{k + 1}·b{k + 1}{column + 1}" for k in range(4))
    cell = f"{row + 1}{column + 1}"
    write(ax, 45, 21.8, f"d{cell} = {products} + c{cell}".translate(SUBSCRIPT), 13, ha="center")

    steps = [
        (5, half, "multiply FP16 by FP16:\nthe product is exact in FP32"),
        (33.5, single, "add the four products\nand C up in FP32"),
        (62, single, "D in FP32,\nrounded to FP16 if asked for"),
    ]
    for x, colour, words in steps:
        box(ax, x, 11.8, 23.5, 6.4, words, colour, size=SMALL)
    for x in (28.5, 57):
        arrow(ax, (x, 15.0), (x + 5, 15.0))

    write(
        ax,
        5,
        5.2,
        "Volta's Tensor Core does all 16 cells of this tile, 64 multiply-adds, in one clock cycle.\n"
        "A program asks for more at once: "
        "one instruction, issued by a whole warp (32 threads), does a larger tile.\n"
        "On Ampere, mma.sync of shape m16n8k16 multiplies 16×16 by 16×8: 2,048 multiply-adds.",
        SMALL,
    )
    return fig


# --- 5: automatic mixed precision ---------------------------------------------------------------------------


def badge(ax: Axes, x: float, y: float, words: str) -> None:
    """The number format of a step, stuck on the upper right corner of its box."""
    dark = words == "FP32"
    corner = "round,pad=0,rounding_size=0.5"
    fill, text = (style.INK, "white") if dark else ("white", style.INK)
    ax.add_patch(FancyBboxPatch((x - 4.8, y - 1.1), 4.8, 2.2, boxstyle=corner, fc=fill, ec=style.INK, lw=1, zorder=3))
    write(ax, x - 2.4, y - 0.05, words, SMALL, ha="center", color=text, weight="bold", zorder=4)


def amp_flow() -> Figure:
    """One training step with autocast and GradScaler, and what happens to the scale."""
    fig, ax = canvas(62)
    forward, loss, backward, update = (
        style.COLOURS[name] for name in ("forward", "loss", "backward", "optimizer step")
    )
    xs, w, h = (3.0, 25.5, 48.0, 70.5), 16.5, 9.0
    top, middle, low = 38.5, 19.5, 2.5
    code = {"family": MONO, "color": style.INK}

    def step(column: int, y: float, words: str, colour: str, kind: str = "", high: float = h) -> None:
        box(ax, xs[column], y, w, high, words, colour, size=SMALL)
        if kind:
            badge(ax, xs[column] + w - 1, y + high, kind)

    heading(ax, 59.5, "One training step in automatic mixed precision (FP16)")
    area(ax, 23.5, top - 1.5, 43, 17.5, 'with torch.autocast("cuda", torch.float16):', **code)
    area(ax, 68.5, middle - 1.5, 20.5, top + 17.5 - middle, "scaler.scale(loss)", **code)
    aside(ax, 69.5, top + 12.9, "      .backward()", **code)
    area(ax, 1, middle - 1.5, 65.5, 15)
    aside(ax, 25.5, middle + 12.1, "scaler.step(optimizer)", **code)
    area(ax, 1, low - 1.5, 65.5, 13.5)
    aside(ax, 48, low + 10, "scaler.update()", **code)

    step(0, top, "weights:\nthe master copy", style.MUTED, "FP32")
    step(1, top, "convolutions and\nmatrix products on\nweights cast to FP16", forward, "FP16")
    step(2, top, "log_softmax\nand the loss", loss, "FP32")
    step(3, top, "loss × scale\n(at first 65,536)", loss, "FP32")
    step(3, middle, "backward pass, in the\nformats of forward", backward, "FP16")
    step(2, middle, "gradients of the\nweights ÷ scale", update, "FP32")
    step(1, middle, "any inf or NaN\namong them?", style.VERMILION)
    step(0, middle, "optimizer step\non the weights", update, "FP32")
    step(0, low, "2,000 such steps\nin a row: scale × 2", style.MUTED, high=6.5)
    step(1, low, "scale × ½", style.VERMILION, high=6.5)

    for left, right in pairwise(xs):
        arrow(ax, (left + w, top + h / 2), (right, top + h / 2))
        arrow(ax, (right, middle + h / 2), (left + w, middle + h / 2))
    centres = [x + w / 2 for x in xs]
    arrow(ax, (centres[3], top), (centres[3], middle + h))
    arrow(ax, (centres[0], middle + h), (centres[0], top))
    for column in (0, 1):
        arrow(ax, (centres[column], middle), (centres[column], low + 6.5))
    write(ax, 22.5, middle + h / 2 + 1.6, "no", SMALL, ha="center", weight="bold")
    write(ax, centres[1] + 1.2, low + 9.6, "yes: skip\nthe step", SMALL, weight="bold")
    aside(ax, 48, low + 3.25, "always a power of two,\nso scaling rounds nothing")
    aside(ax, 69.5, low + 3.25, "BF16 has FP32's range:\nno scale, no scaler")
    return fig


# --- 6: the course's loop -----------------------------------------------------------------------------------


def optimisation_loop() -> Figure:
    """The five stations of every lab, as a ring."""
    fig, ax = canvas(41)
    centre, radius, node = (45.0, 19.5), 14.5, 3.0
    stations = [
        ("measure", "time it, more than once"),
        ("read the profile", "where does the time go?"),
        ("predict", "what should the fix gain?"),
        ("fix", "change a few lines, one cause"),
        ("prove", "same profile, same clock:\ndid it do what you said?"),
    ]
    places = [
        (centre[0] + radius * cos(radians(90 - 72 * k)), centre[1] + radius * sin(radians(90 - 72 * k)))
        for k in range(len(stations))
    ]
    for here, there in zip(places, places[1:] + places[:1], strict=True):
        arrow(ax, here, there, style.MUTED, bend=-0.17, shrink=7.2 * node + 4, width=2)
    for number, ((x, y), (name, words)) in enumerate(zip(places, stations, strict=True), start=1):
        ax.add_patch(Circle((x, y), node, fc=style.INK, ec="none"))
        write(ax, x, y - 0.1, str(number), HEADING, ha="center", color="white", weight="bold")
        side = -1 if x < centre[0] - 1 else 1
        align = "right" if side < 0 else "left"
        y += 1.2 if number == 1 else 0  # the topmost arrow leaves just under its station's words
        write(ax, x + side * (node + 1.5), y + 0.5, name, HEADING, ha=align, va="bottom", weight="bold")
        aside(ax, x + side * (node + 1.5), y - 0.3, words, ha=align, va="top")
    write(ax, *centre, "one bottleneck\nat a time", BODY, ha="center")
    return fig


# --- 7: Nsight Systems' timeline ----------------------------------------------------------------------------


def callout(ax: Axes, x: float, y: float, number: int) -> None:
    """A numbered dot: the note with this number is about this place."""
    ax.add_patch(Circle((x, y), 1.1, fc=style.YELLOW, ec=style.INK, lw=1, zorder=5))
    write(ax, x, y, str(number), SMALL, ha="center", weight="bold", zorder=6)


def timeline_rows() -> Figure:
    """The rows of Nsight Systems' timeline for one training step, in the order of its window."""
    fig, ax = canvas(60)
    api, copy, kernel, tensor = (style.COLOURS[name] for name in ("api", "copy", "kernel", "tensor core kernel"))
    active, kernels, memory, nvtx, calls = 46.6, 38.2, 34.4, 25.4, 21.2  # the rows, from top to bottom

    def at(time: float) -> float:
        return 16 + 1.3 * time

    heading(ax, 57.5, "How to read the timeline: the CPU asks, the GPU works, later")
    for bottom, high, name in [
        (45.6, 9, "GPU Metrics"),
        (32.4, 11.2, "CUDA HW"),
        (19.2, 11.2, "Threads: python"),
    ]:
        area(ax, 1, bottom, 88, high, name, weight="bold", color=style.INK)
    names = {
        "Tensor Active": active + 1.2,
        "Kernels": kernels,
        "Memory": memory,
        "NVTX": nvtx,
        "CUDA API": calls,
    }
    for name, y in names.items():
        row_name(ax, y, name)

    # Of each kernel: start, end, how far it keeps the Tensor Cores busy, and when the CPU launched it.
    work = [
        (11, 16, 0.5, 6), (16, 19, 0, 9), (19, 22.5, 0.35, 12), (22.5, 25, 0, 16.5), (25, 29, 0.4, 21.5),
        (29, 33, 0, 24.5), (33, 43, 0.7, 27.5), (43, 51, 0, 35.5),
    ]  # fmt: skip
    full = 5.0  # height of 100 %
    for start, end, busy, launch in work:
        bar(ax, at(start), at(end), kernels, tensor if busy else kernel)
        bar(ax, at(launch), at(launch + 1), calls, api)
        if busy:
            level = Rectangle((at(start), active), at(end) - at(start), busy * full, fc=tint(tensor, 0.6), ec=tensor)
            ax.add_patch(level)
    rule(ax, (at(0), at(52)), (active, active), color=tensor)
    rule(ax, (at(0), at(52)), (active + full, active + full), ls=":")
    aside(ax, 84.6, active + full, "100%", ha="left")
    bar(ax, at(2.2), at(10.8), memory, copy, "batch copied")
    bar(ax, at(1.5), at(2.5), calls, api)
    bar(ax, at(38), at(51.3), calls, style.VERMILION, "cudaDeviceSynchronize")
    phases = [
        (1, 5, "copy to device"),
        (5, 15, "forward"),
        (15, 20, "loss"),
        (20, 32, "backward"),
        (32, 38, "optimizer step"),
    ]
    for start, end, name in phases:
        bar(ax, at(start), at(end), nvtx, tint(style.COLOURS[name], 0.5), name.split(" ")[0])
    for x, colour, words in [
        (45, tensor, "uses Tensor Cores"),
        (64.5, kernel, "other kernel"),
        (78.5, copy, "copy"),
    ]:
        bar(ax, x, x + 2, 42.2, colour, h=1.6)
        write(ax, x + 2.6, 42.2, words, SMALL)

    arrow(ax, (at(28), calls + 1.2), (at(33) + 0.4, kernels - 1.3), bend=0.12)
    time_axis(ax, at(0), at(52), 16.6)
    notes = [
        (55.2, 31.4, "A launch call only queues its kernel; the kernel runs when the GPU gets to it."),
        (at(6.5), nvtx, "An NVTX range is the CPU's part of a phase; the GPU may work on it long after."),
        (at(52.6), calls, "A synchronising call returns when the GPU is done: its bar is waiting, not work."),
        (at(9), active + 3, "A sampled counter: for what share of the time the Tensor Cores had work."),
    ]
    for number, (x, y, words) in enumerate(notes, start=1):
        line = 13.1 - 3.3 * (number - 1)
        callout(ax, x, y, number)
        callout(ax, 3.2, line, number)
        write(ax, 5.6, line, words, SMALL)
    return fig


# --- 8: launches --------------------------------------------------------------------------------------------


def launch_schedule(kernels: list[float], launch: float, delay: float) -> list[tuple[float, float]]:
    """When each kernel runs, if its launch takes the CPU `launch` and reaches the GPU `delay` after it began."""
    runs, free = [], 0.0
    for number, lasts in enumerate(kernels):
        start = max(number * launch + delay, free)
        free = start + lasts
        runs.append((start, free))
    return runs


def one_launch() -> Figure:
    """The same kernels, launched one by one and as one graph."""
    fig, ax = canvas(43)
    kernels = [1.6, 0.5, 0.5, 0.9, 0.4, 0.5, 1.4, 0.4, 0.5, 0.6]
    launch, delay, left, unit = 1.3, 0.9, 17.0, 4.6
    api, busy, idle = (style.COLOURS[name] for name in ("api", "kernel", "idle"))

    def panel(top: float, words: str, calls: list[tuple[float, float, str]], runs: list[tuple[float, float]]) -> None:
        heading(ax, top, words)
        row_name(ax, top - 4, "CPU: launches")
        row_name(ax, top - 7.4, "GPU: kernels")
        for start, end, name in calls:
            bar(ax, left + start * unit, left + end * unit, top - 4, api, name)
        bar(ax, left, left + runs[-1][1] * unit, top - 7.4, idle)
        for number, (start, end) in enumerate(runs, start=1):
            name = str(number) if end - start > 0.35 else ""
            bar(ax, left + start * unit, left + end * unit, top - 7.4, busy, name)
        rule(ax, (left + runs[-1][1] * unit,) * 2, (top - 9.2, top - 2.4))

    singly = launch_schedule(kernels, launch, delay)
    numbered = [(n * launch, (n + 1) * launch, str(n + 1)) for n in range(len(kernels))]
    panel(40.5, "One launch a kernel: short kernels wait for the CPU", numbered, singly)
    as_graph = launch_schedule(kernels, 0, delay)
    panel(26, "One launch for all: the GPU goes from kernel to kernel by itself", [(0, 2.2, "graph")], as_graph)
    aside(ax, left + 2.2 * unit + 1.2, 22, "the CPU is free")
    time_axis(ax, left, left + singly[-1][1] * unit - 4, 13.6)

    legend = [(17, api, "a call that launches"), (41, busy, "a kernel runs"), (61, idle, "the GPU is idle")]
    for x, colour, words in legend:
        bar(ax, x, x + 3, 8.6, colour, h=2)
        write(ax, x + 4, 8.6, words, SMALL)
    longer = sum(launch > lasts for lasts in kernels)
    aside(ax, 17, 4, f"Drawn for a launch that takes longer than {longer} of the {len(kernels)} kernels.")
    return fig


DIAGRAMS = {
    "pageable_and_pinned": (
        pageable_and_pinned,
        "Copying a batch to the GPU. From pageable memory the CPU first copies it piece by piece into the "
        "driver's pinned buffer and the calling thread is held; from pinned memory with non_blocking=True "
        "there is one DMA and the thread goes on at once.",
    ),
    "starved_and_fed": (
        starved_and_fed,
        "Two timelines of data loading. With one loader worker the GPU is idle most of the time; with "
        "four workers in parallel its row is full after the first batches.",
    ),
    "number_formats": (
        number_formats,
        "The bits of FP32, TF32, FP16, BF16, FP8 E4M3 and FP8 E5M2, split into sign, exponent and "
        "fraction, with the largest finite value, the smallest normal value, the step after 1 and the "
        "decimal digits of each.",
    ),
    "tensor_core_mma": (
        tensor_core_mma,
        "A Tensor Core's D = A × B + C on 4×4 matrices: a row of A and a column of B, both FP16, give one "
        "cell of D, summed in FP32 together with the same cell of C.",
    ),
    "amp_flow": (
        amp_flow,
        "One training step in automatic mixed precision: FP32 weights, FP16 matrix work under autocast, "
        "loss in FP32 times a scale, backward, gradients unscaled in FP32 and checked. With inf or NaN "
        "the step is skipped and the scale halved; else the optimizer steps, and after 2000 good steps in "
        "a row the scale doubles.",
    ),
    "optimisation_loop": (
        optimisation_loop,
        "A ring of five stations that every lab follows: measure, read the profile, predict, fix, prove, "
        "and back to measure.",
    ),
    "timeline_rows": (
        timeline_rows,
        "A schematic of Nsight Systems' timeline: rows for GPU metrics, kernels, memory copies, NVTX "
        "ranges and CUDA API calls. An arrow leads from a launch call to its kernel, which runs later; a "
        "synchronise call lasts until the GPU is done.",
    ),
    "one_launch": (
        one_launch,
        "Two timelines of the same ten kernels. Launched one by one, each launch takes the CPU longer than most "
        "kernels take the GPU, and the GPU's row has gaps. Launched once as a graph, the kernels follow each other "
        "without gaps, and the CPU is free after one call.",
    ),
}
