"""Signs of numbers as they are printed: a true minus, and none before a zero; in all that the notebooks store, too."""

from __future__ import annotations

import nbformat
import pandas as pd
import pytest

from labkit.checks import conclude, invariant
from labkit.recording.notebooks import files
from stepbudget.show.table import table
from stepbudget.signs import signed


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        ("by -3,370 ms, +0.0 %", "by −3,370 ms, 0.0 %"),
        ("-0.7 to +0.31", "−0.7 to +0.31"),
        ("(-2.5 ms) -0 -0.00 +0", "(−2.5 ms) 0 0.00 0"),
        ("| -0.9 | +0.0 |", "| −0.9 | 0.0 |"),
        ("-3.2, -5.", "−3.2, −5."),
        ("+0.04 -10", "+0.04 −10"),
        ("2026-11-22, a-1, 3-4, -1e-4, --epochs, -x, e-05", "2026-11-22, a-1, 3-4, -1e-4, --epochs, -x, e-05"),
    ],
)
def test_signs_as_they_are_printed(typed, printed):
    assert signed(typed) == printed
    assert signed(printed) == printed


def test_tables_and_sentences_print_them_so(capsys):
    changes = pd.DataFrame({"cause": ["a -1", "b"], "ms": [-3370.4, -0.04], "%": [-1.0, 0.0]})
    shown = table(changes, formats={"ms": "{:+,.1f}", "%": "{:+.0f}"})
    assert shown.cells() == [["a -1", "−3,370.4", "−1"], ["b", "0.0", "0"]]
    conclude(f"the epoch: {-3.2:+.1f} ms, {-0.0:+.1f} %")
    invariant(f"{-2} is less", True)
    assert capsys.readouterr().out == "→ the epoch: −3.2 ms, 0.0 %\n✓ −2 is less\n"


def words_of(output: nbformat.NotebookNode) -> str:
    """What an output says, but for the source code that it shows."""
    if output.output_type == "stream":
        lines = output.text.splitlines()
        return "" if any(line.startswith(("def ", "import ", "from ")) for line in lines) else output.text
    data = output.get("data", {})
    return "" if data.get("text/html", "").startswith('<div class="highlight"') else data.get("text/plain", "")


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_all_that_is_stored_is_printed_so(path):
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    lines = [line for output in outputs for line in words_of(output).splitlines()]
    assert [line for line in lines if signed(line) != line] == []
