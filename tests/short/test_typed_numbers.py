"""Numbers typed in the text: what was measured stands in an output of the same notebook; all else says why it is true.

A quantity is a number with a unit, outside code, links and formulas. Numbers in words ("a quarter", "three times") are
not found: nothing checks these.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from labkit import course
from labkit.recording.notebooks import files

NOTEBOOKS = files()
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNITS = {  # as typed → as an output may have it
    "ms": r"ms\b", "µs": r"µs\b", "ns": r"ns\b", "s": r"s\b",
    "milliseconds": r"ms\b", "microseconds": r"µs\b", "nanoseconds": r"ns\b", "seconds": r"s\b|seconds",
    "minutes": "min", "GB/s": "GB/s", "TB/s": "TB/s", "TFLOP/s": "TFLOP/s", "GFLOP/s": "GFLOP/s", "W": r"W\b",
    "kB": "kB", "MB": "MB", "GB": "GB", "%": "%", "per cent": "%", "×": "×|times|factor", "times": "×|times|factor",
}  # fmt: skip
UNIT = "|".join(map(re.escape, sorted(UNITS, key=len, reverse=True)))
QUANTITY = re.compile(rf"(?<![\w.,/⁻-])({NUMBER}(?: ?(?:to|–|and|or|,) ?{NUMBER})*) ?({UNIT})(?! ?\d)(?![\w/])")
NO_PROSE = re.compile(r"```.*?```|`[^`]*`|!?\[[^\]]*\]\([^)]*\)|<[^>]+>|\$[^$]*\$", re.DOTALL)

# Why a quantity needs no output: what it stands on, and the words with which it is typed.
NOT_MEASURED = {
    "the catalogue's minutes": [f"About {lab.minutes} minutes" for lab in course.LABS],
    "for the reader's plans; README's table says how long the last live run took": [
        f"{minutes} minutes more" for minutes in (3, 4, 5, 6)
    ],
    "a definition, or what follows from one": [
        "1 TFLOP/s: 10¹² floating-point operations a second",
        "three such intervals, 300 µs",  # Nsight's counters; three readings a kernel
        "read every 100 µs",
        "a mean over all SMs and 100 µs",
        "if the mean is 80 %, kernels ran for at least 80 % of the time, and for at most 20 % none did",
        "with 95 % confidence",
    ],
    "a data sheet says so": [
        "each H200 (141 GB)",
        "67 TFLOP/s in FP32, says its data sheet",
        "989 TFLOP/s",
        "4.8 TB/s",
    ],
    "a rule of ours, labkit.speedrun.ranking.TIE": ["of such recipes within 1 % of its time"],
    "a setting of a benchmark of ours": [
        "20 times each",
        "over 30 % of the digits",
        "copying or adding up 4 GB",
        "never pause for 4 ms",
        "its gradients are 2,000 times smaller",  # the mean of 2,000 points instead of their sum
    ],
    "the runs of main_opt8.py in reports/recorded/h100": ["takes 0.101 s for all ten"],
    "conv_backward as of commits e898bcac and the one before, in turn on an H100, batches of 1,024, November 2026": [
        "from 101 to 86 µs",
    ],
    "Docker's documentation says so (--shm-size)": ["A Docker container has 64 MB there unless"],
    "arithmetic from shapes": [
        "up to 28 batches of 3.2 MB, some 90 MB",  # 1,024 · 28 · 28 numbers in FP32, 14 workers with two each
        "47 MB fit on any",  # 60,000 · 28 · 28 bytes
        "about 75 MB in BF16 (1,024 × 24 × 24 × 64 numbers)",
        "K = 4095 is 0.02 % less work than 4096",
    ],
}


def quantities(text: str) -> list[tuple[float, float, str, str]]:
    """Each quantity of a text: number, how far from it a figure may be that was rounded to it, unit, words."""
    found = []
    for match in QUANTITY.finditer(NO_PROSE.sub(lambda code: " " * len(code[0]), text)):
        for typed in re.findall(NUMBER, match[1]):
            found.append((float(typed.replace(",", "")), rounding(typed.replace(",", "")), match[2], match[0]))
    return found


def rounding(typed: str) -> float:
    """Half of the last digit; for tens and hundreds half of the last digit that is no zero, but within 5 %."""
    whole, _, decimals = typed.partition(".")
    if decimals:
        return 0.5 * 10 ** -len(decimals)
    zeros = len(whole) - len(whole.rstrip("0"))
    return max(0.5, min(0.5 * 10**zeros, 0.05 * float(whole)))


def outputs_of(notebook: nbformat.NotebookNode) -> list[str]:
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    return [out.get("text") or out.data.get("text/plain", "") for out in outputs]


def figures(output: str, unit: str) -> list[float]:
    """The numbers of an output that have this unit: it stands in their line, or above them at the head of a column."""
    named, columns, above, found = re.compile(UNITS[unit]), [], "", []
    for line in output.splitlines():
        if line.startswith("──"):
            columns = [rule.span() for rule in re.finditer("─+", line) if named.search(above[slice(*rule.span())])]
        parts = [line] if named.search(line) else [line[slice(*column)] for column in columns]
        found += [float(figure.replace(",", "")) for part in parts for figure in re.findall(NUMBER, part)]
        above = line
    return found


def is_shown(value: float, within: float, unit: str, outputs: list[str]) -> bool:
    """Does an output hold a figure with this unit that rounds to the value?"""
    return any(abs(figure - value) <= within * 1.0001 for output in outputs for figure in figures(output, unit))


def unfounded(notebook: nbformat.NotebookNode) -> list[tuple[int, str]]:
    """Cell and words of each quantity that no output shows and no reason allows."""
    outputs = outputs_of(notebook)
    found = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            text = cell.source
            for phrases in NOT_MEASURED.values():
                for phrase in phrases:
                    text = text.replace(phrase, "")
            found += [(number, words) for *quantity, words in quantities(text) if not is_shown(*quantity, outputs)]
    return found


def test_a_reason_is_kept_as_long_as_it_is_needed():
    text = "".join(cell.source for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells)
    assert not [phrase for phrases in NOT_MEASURED.values() for phrase in phrases if phrase not in text]


@pytest.mark.parametrize("lab", course.LABS, ids=lambda lab: lab.name)
def test_a_lab_takes_the_minutes_of_the_catalogue(lab):
    assert f"*About {lab.minutes} minutes" in nbformat.read(lab.path, as_version=4).cells[1].source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_measured_and_typed_stands_in_an_output(path: Path):
    assert not unfounded(nbformat.read(path, as_version=4))


OUTPUT = """Epochs of the ladder
step   epoch ms  share %
────   ────────  ───────
opt1     446.8     9.1
→ the copies take 1,234 µs
"""


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("447 ms", True), ("about 450 ms", True), ("446.9 ms", False), ("430 ms", False),
        ("9 %", True), ("447 %", False), ("9 ms", False), ("1,234 µs", True), ("from 1,230 to 1,300 µs", False),
        ("9 times", False), ("a square of 9 × 9", True), ("`5 ms` and [5 ms](a.md)", True), ("main_opt9 s", True),
    ],
)  # fmt: skip
def test_a_figure_is_found_by_its_value_and_its_unit(typed, shown):
    assert all(is_shown(*quantity[:3], [OUTPUT]) for quantity in quantities(typed)) == shown
