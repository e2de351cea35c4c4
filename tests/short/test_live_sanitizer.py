"""The sanitizer of ``make test-gpu``: it hides what a live run may show differently, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbval.plugin import get_sanitize_patterns

from labkit.recording.notebooks import files

PATTERNS = get_sanitize_patterns((Path(__file__).parents[1] / "live_sanitizer.cfg").read_text())


def sanitized(text: str) -> str:
    for pattern, replacement in PATTERNS:
        text = re.sub(pattern, replacement, text)
    return text


def test_every_entry_is_read():
    """nbval ignores a malformed entry without a word."""
    text = (Path(__file__).parents[1] / "live_sanitizer.cfg").read_text()
    assert len(PATTERNS) == len(re.findall(r"^\[", text, re.MULTILINE)) == 16


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        (
            "$ time python3 a.py\nrecorded (NVIDIA H200, 2026-11-21), 3 runs each: reports/recorded/h200/runs\n",
            "$ time python3 a.py\n| run 1 of 1: time python3 a.py\n| done\nlive: 1 run each: reports/runs\n",
        ),
        ("One switch: PyTorch 2.11.0\n", "One switch: PyTorch 2.15.0+cu130\n"),
        ("Recorded mode: what you see was measured on …\n", "Live: the commands run on this machine (NVIDIA L4).\n"),
        (
            "caption\nkernel  ms\n──────  ──\na       ~1\nb       ~2\n",
            "caption\nkernel    ms\n────────  ──\nsomething  ~3\n",
        ),
        ('<table class="measured" style="x">\n<td>1</td>\n</table>', '<table class="measured" style="x">\n</table>'),
        (
            '<table class="exact">\n<caption class="measured" style="x">of 7 ms</caption>\n<tr><th>what</th></tr>\n'
            '<tr><td>a</td><td class="measured" style="x">after 60 epochs</td></tr>\n</table>',
            '<table class="exact">\n<caption class="measured" style="x">of 9 ms</caption>\n<tr><th>what</th></tr>\n'
            '<tr><td>b</td><td class="measured" style="x">after 7 epochs</td></tr>\n'
            '<tr><td>c</td><td class="measured" style="x">after 8 epochs</td></tr>\n</table>',
        ),
        ("epoch: at most ~12 times faster\n", "epoch: at most ~3.4 times faster\n"),
        (
            "[ok] the bound held: no more was gained\n",
            "[differs here] the bound held: no more was gained: found ~3.2; usually because loaders are noisy: so; "
            "what that means for you: look twice\n",
        ),
        (
            "[ok] a claim as long as this one\n    goes on below\n",
            "[differs here] a claim as long as this one goes on below: usually because …\n    it is long\n",
        ),
        ("an epoch takes ~12 ms, which\n    is long\n", "an epoch takes ~9 ms, which is long\n"),
        (
            "[ok] the GPU idles\n",
            "[differs here] the GPU idles: usually because the GPU is slow; what that means for you: lab 4\n",
        ),
        (
            "[ok] the GPU idles\n",
            "[differs here] the GPU idles: found a    1\nb    2\ndtype: int64; usually because …; what that means: …\n",
        ),
        ("→ What this lab expects of a machine held here.\n", "→ [differs here] one: …\n→ [differs here] two: ~3 …\n"),
        (
            "Ten epochs: whole process\nstep  accuracy %\n────  ─────\nbase  ~98.7\n",
            "Three epochs: whole process\nstep  accuracy % after 3 epochs\n────  ─────────\nbase  ~97.1\n",
        ),
        (
            "recorded (NVIDIA H200, 2026-11-21), 3 runs each: reports/recorded/h200/runs\n",
            "| about 3 min (recorded machine: 2 min 10 s; this one has been 1.4 times as slow so far)\n"
            "| run 1 of 2: time python3 a.py\n| run 2 of 2: time python3 a.py (45 s so far)\n"
            "live: 2 runs each: reports/runs\n",
        ),
        ("FP16 with GradScaler, 590 steps, a run a row\n", "FP16 with GradScaler, 177 steps, a run a row\n"),
        ("Ten epochs, medians over the runs\n", "3 epochs, medians over the runs\n"),
        (
            "Timeline of main: step 21 (62.3 ms)\n  phases (NVTX): 8 ranges\n  GPU copies: 3 copies\n",
            "Timeline of main: step 21 (9.1 ms)\n  GPU copies: no copies in this stretch\n",
        ),
        (
            '<div class="stepbudget-timeline"><img src="data:image/svg+xml,one"><script>a</script></div>',
            '<div class="stepbudget-timeline"><img src="data:image/svg+xml,two"><script>a</script></div>',
        ),
        ("main: step 21 (62.3 ms) [drawn data: ~f5acf9c167a4]", "main: step 21 (9.1 ms) [drawn data: ~000000000000]"),
    ],
)
def test_what_may_differ_is_hidden(recorded, live):
    assert sanitized(recorded) == sanitized(live)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[ok] the GPU idles\n", ""),
        ("[ok] the GPU idles\n", "[ok] the GPU is busy\n"),
        (
            "[ok] the GPU idles\n",
            "[differs here] the GPU is busy: usually because …; what that means for you: …\n",
        ),
        ("[ok] the GPU idles\n[ok] it waits\n", "[ok] it waits\n"),
        ("$ nsys profile --trace cuda\n", "$ nsys profile --trace nvtx\n"),
        ("<tr><td>TF32</td></tr>\n", "<tr><td>FP32</td></tr>\n"),
        (
            '<tr><td>TF32</td></tr>\n<tr><td class="measured">1</td></tr>\n',
            '<tr><td>FP32</td></tr>\n<tr><td class="measured">2</td></tr>\n',
        ),
        ("exercise 1.1: no answer yet\n", "[ok] exercise 1.1\n"),
    ],
)
def test_what_must_not_differ_is_seen(one, other):
    assert sanitized(one) != sanitized(other)


def test_every_ok_line_of_the_labs_survives_it():
    for path in files():
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                text = output.get("text", "")
                assert sanitized(text).count("CLAIM ") == text.count("[ok] "), path.name


def test_in_the_labs_what_is_marked_in_text_is_masked_in_html_and_the_other_way_round():
    """A table of no measured column is compared cell by cell: a row that only one of the two masks would be lost."""
    for path in files():
        for cell in nbformat.read(path, as_version=4).cells:
            for data in (output.get("data", {}) for output in cell.get("outputs", [])):
                if "<table class=" in data.get("text/html", ""):
                    rows = [line for line in data["text/html"].splitlines() if line.startswith("<tr><td")]
                    plain = [line for line in data["text/plain"].splitlines() if line.strip("─ ")]  # without rules
                    lines = plain[-len(rows) :] if rows else []
                    classed = ['<td class="measured"' in row for row in rows]
                    assert classed == ["~" in line for line in lines], f"{path.name}: {cell.id}"
