"""How is a number or a sentence written, for any reader?"""

from __future__ import annotations

import html
import re

from stepbudget.errors import printable

LONG_WORD = re.compile(r"\S{32,}")  # names of kernels, files and metrics
JOINTS = re.compile(r"(::|[_/,.])(?=\w)")  # where such a name may go on in the next line
NO_BREAK = "\u00a0"  # a space that keeps a number and its unit together
NO_TENSORS = re.compile(r"(, \[\])+(?=\]$)")  # what follows the tensors among the sizes of an operator's inputs


def escaped(text: object) -> str:
    """A text for a page: harmless, whatever a program put into its names."""
    return html.escape(NO_BREAK.join(map(printable, str(text).split(NO_BREAK))))


def breakable(text: str) -> str:
    """The text as HTML; a long name in it may go on in the next line after its joints, and nowhere else."""
    return LONG_WORD.sub(lambda word: JOINTS.sub(r"\1<wbr>", word[0]), html.escape(text))


def three(value: float) -> str:
    """Three significant digits below 1,000, whole numbers above: 3.91, 45.2, 498, 3,912."""
    decimals = next((d for d, limit in enumerate((100, 10, 1)) if value >= limit), 2)
    return f"{value:,.{decimals}f}"


def duration(ns: float) -> str:
    """A time for people: ``4.95 s``, ``12.3 ms``, ``845 µs``, ``620 ns``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{three(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def percent(share: float) -> str:
    return f"{100 * share:.1f}{NO_BREAK}%"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def shaped(one: dict) -> str:
    """An operator of the answer's ``flops`` with the sizes of its tensors: ``aten::mm [[8, 16], [16, 4]]``"""
    return f"{one['op']} {NO_TENSORS.sub('', one['sizes'])}"


def held(memory: dict) -> str:
    """The answer's ``memory`` in a sentence."""
    text = (
        f"GPU memory: at most {memory['peak_bytes'] / 1e6:,.1f} MB held at once, {memory['end_bytes'] / 1e6:,.1f} MB "
        f"at the end, of what was allocated since the capture began ({memory['allocations']:,} allocations here"
    )
    largest = memory["largest_bytes"]
    text += f", the largest {largest[0] / 1e6:,.1f} MB); " if largest else "); "
    return text + "this is the driver's count: PyTorch's cache reserves more than its tensors need"
