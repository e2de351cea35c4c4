"""``make test-gpu`` compares what cells claim, and nothing else that they print or show; a cell that raises fails."""

from __future__ import annotations

import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from labkit import lines
from labkit.recording.notebooks import files
from pages import PATTERNS, SANITIZER, sanitized


def test_every_entry_is_read():
    """nbval ignores a malformed entry without a word."""
    assert len(PATTERNS) == len(re.findall(r"^\[", SANITIZER.read_text(), re.MULTILINE)) == 3


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        ("recorded (NVIDIA H200, 2026-11-21), 3 runs each\n", "| run 1 of 1: time python3 a.py\nlive: 1 run each\n"),
        ("kernel  ms\n──────  ──\na        1\nb        2\n", "kernel     ms\n─────────  ──\nsomething   3"),
        ('<table style="x">\n<td>1</td>\n</table>', '<table style="x">\n</table>'),
        ("main: step 21 (62.3 ms) [drawn data: f5acf9c167a4]", "main: step 21 (9.1 ms) [drawn data: 000000000000]"),
        ("→ Everything this lab expects held here.\n", "→ [differs here] one: …\n→ [differs here] two: 3 …\n"),
        (
            "an epoch takes 12 ms\n✓ the GPU idles\n",
            "an epoch takes 9 ms, which\n    is long\n✓ the GPU idles\nand more",
        ),
        (
            "✓ the bound held: no more was gained\n",
            "[differs here] the bound held: no more was gained: found 3.2; usually because loaders are noisy: so; "
            "what that means for you: look twice\n",
        ),
        (
            "✓ a claim as long as this one\n    goes on below\n",
            "[differs here] a claim as long as this one goes on below: usually because …\n    it is long\n",
        ),
        (
            "✓ the GPU idles\n✓ it waits\n",
            "[differs here] the GPU idles: found a    1\nb    2\ndtype: int64; usually because …: …\n✓ it waits\n",
        ),
    ],
)
def test_what_may_differ_is_hidden(recorded, live):
    assert sanitized(recorded) == sanitized(live)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("✓ the GPU idles\n", ""),
        ("✓ the GPU idles\n", "✓ the GPU is busy\n"),
        ("✓ the GPU idles\n", "[differs here] the GPU is busy: usually because …; what that means for you: …\n"),
        ("✓ the GPU idles\n✓ it waits\n", "✓ it waits\n"),
        ("✓ a claim as long\n    as this one\n", "✓ a claim as long\n    as that one\n"),
        ("exercise 1.1: no answer yet\n", "✓ exercise 1.1\n"),
    ],
)
def test_what_must_not_differ_is_seen(one, other):
    assert sanitized(one) != sanitized(other)


def test_of_the_labs_the_claims_are_left_and_nothing_else():
    for path in files():
        claims = 0
        outputs = [out for cell in nbformat.read(path, as_version=4).cells for out in cell.get("outputs", [])]
        for text in (out.get("text", "") for out in outputs):
            own = [line for line in lines.joined(text).splitlines() if line.startswith("✓ ")]
            assert sanitized(text).splitlines() == own, path.name
            claims += len(own)
        shown = [value for out in outputs for kind, value in out.get("data", {}).items() if kind.startswith("text/")]
        assert not any(map(sanitized, shown)), path.name
        assert claims > 3 or path.stem == "start_here", path.name


def test_nbval_sees_a_claim_that_fails_and_a_cell_that_raises(tmp_path):
    """What a cell does live, and whether it passes where "took 12 ms" and a claim are stored."""
    stored = [new_output("stream", name="stdout", text="took 12 ms\n✓ the GPU idles\n")]
    live = {
        "print('took 9 ms\\nand more\\n✓ the GPU idles')": "PASSED",
        "print('[differs here] the GPU idles: found 3; usually because it is slow')": "PASSED",
        "print('took 12 ms\\n✓ the GPU is busy')": "FAILED",
        "print('took 12 ms')": "FAILED",
        "print('took 12 ms\\n✓ the GPU idles')\n1 / 0": "FAILED",
    }
    cells = [new_code_cell(source, outputs=stored, execution_count=1) for source in live]
    nbformat.write(new_notebook(cells=cells), tmp_path / "made.ipynb")
    words = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(SANITIZER), "-rA", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "made.ipynb"], cwd=tmp_path, capture_output=True, text=True
    )
    verdicts = re.findall(r"^(PASSED|FAILED) .*::Cell (\d+)", done.stdout, re.MULTILINE)
    assert [how for how, _ in sorted(verdicts, key=lambda one: one[1])] == list(live.values()), done.stdout
