"""What colour is a thing? One palette for every picture of a report: pages of this package, figures of the course.

The hues are Okabe and Ito's, which readers with any common colour blindness can tell apart (Okabe & Ito 2008, "Color
Universal Design"). What shares a hue differs in lightness or is hatched, so that no reader needs the hues.
"""

from __future__ import annotations

from typing import NamedTuple

PAPER = "#FBFAF7"  # background
INK = "#22262B"  # text and main lines
MUTED = "#7A828C"  # secondary text, axes
GRID = "#E3E1DA"  # grid lines, empty bars
IDLE = "#DAD7CE"  # the GPU doing nothing

BLUE = "#0072B2"  # forward, kernels in general
SKY = "#56B4E9"  # the CPU: Python, CUDA API calls
GREEN = "#009E73"  # Tensor Core kernels; what the NVIDIA reader expects to be green
ORANGE = "#E69F00"  # copies
VERMILION = "#D55E00"  # waiting, trouble, the thing to look at
PINK = "#CC79A7"  # optimizer
YELLOW = "#F0E442"  # highlights only: too pale for text

# Phases of a training step, by the names that NVTX ranges usually carry.
PHASES = {
    "data loading": VERMILION,
    "copy to device": ORANGE,
    "zero grad": MUTED,
    "forward": BLUE,
    "loss": SKY,
    "backward": GREEN,
    "optimizer step": PINK,
    "test": YELLOW,
}


# What else a page is made of: its ground, words and lines, on light and on dark ground.
LIGHT = {
    "paper": PAPER,
    "ink": INK,
    "quiet": "#5A626C",  # secondary text: 5.8 to 1 on paper
    "line": GRID,
    "ground": "#F1EFE9",  # an empty row
    "call": "#9AA4AF",  # CUDA calls that neither copy nor wait
    "strokes": "rgba(34,38,43,.3)",  # hatching
    "good": "#00734F",
    "bad": "#B04A00",
}
DARK = {
    "paper": "#15181C",
    "ink": "#E8E6E1",
    "quiet": "#A3ABB5",  # 7.7 to 1
    "line": "#2E343B",
    "ground": "#1F242A",
    "call": "#737D88",
    "strokes": "rgba(12,14,17,.45)",
    "good": "#3CC79B",
    "bad": "#F08A4B",
}


def rgb(colour: str) -> tuple[float, float, float]:
    """Red, green and blue of ``#RRGGBB``, each from 0 to 1."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def tint(colour: str, strength: float = 0.22, paper: str = PAPER) -> str:
    """The colour thinned with paper: a fill on which dark text stays readable."""
    pairs = zip(rgb(colour), rgb(paper), strict=True)
    return "#" + "".join(
        f"{round(255 * (strength * pigment + (1 - strength) * ground)):02x}" for pigment, ground in pairs
    )


def ink_on(colour: str) -> str:
    """Dark or light text, whichever can be read on this colour."""
    red, green, blue = rgb(colour)
    return INK if 0.3 * red + 0.6 * green + 0.1 * blue > 0.52 else "white"


def contrast(first: str, second: str) -> float:
    """From 1, the same, to 21, black on white (W3C, WCAG 2.2, "contrast ratio"); small text asks for 4.5."""
    dark, light = sorted(map(_luminance, (first, second)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


class Look(NamedTuple):
    """How a cause is drawn: its colour on light and on dark ground, and the strokes across it, if any."""

    light: str
    dark: str
    hatch: str = ""  # "/", "\\", "x" or "."


# GPU work in greens and blues, what the GPU waited for in warm and neutral colours, what nobody could explain in grey.
CAUSES: dict[str, Look] = {
    "tensor_core_kernels": Look(GREEN, "#00A87B"),
    "other_kernels": Look(BLUE, "#2A8FD0"),
    "unknown_kernels": Look(tint(GREEN, 0.45), "#2F7F69", "/"),
    "cuda_graph": Look(tint(BLUE, 0.5), "#3A6E93", "x"),
    "communication": Look("#005F73", "#2E95A8"),
    "copies": Look(SKY, SKY),
    "loader": Look(tint(VERMILION, 0.85), "#E2702A"),
    "pageable_copy": Look(ORANGE, ORANGE, "x"),
    "synchronisation": Look("#8C3B00", "#B4561A"),
    "launch_overhead": Look(tint(ORANGE, 0.4), "#A98436", "\\"),
    "optimizer": Look(PINK, PINK),
    "python": Look(YELLOW, "#DDD246"),
    "cuda_setup": Look(tint(PINK, 0.35), "#8F6480", "."),
    "mpi": Look("#6A4C93", "#9B7FC4"),
    "os_wait": Look(MUTED, "#8D96A1"),
    "profiler": Look(INK, "#D5D9DF"),
    "unexplained": Look(IDLE, "#545B64", "/"),
}
