"""``make test-dry`` shows what live mode does, and is no second recorded mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def said(program: str, folder: Path) -> str:
    """What a program says that runs as the notebooks do under ``make test-dry``; its runs are kept in ``folder``."""
    more = {"PYTHONPATH": str(ROOT / "tests" / "pretend_live"), "LAB_PRETEND_LIVE": str(folder)}
    environment = {**os.environ, **more, "LAB_MODE": "live", "LAB_REPEATS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_a_lab_is_live_and_gets_each_thing_once(tmp_path):
    program = """
from labkit import lab
lab.start()
print(len(lab.benchmark("bench_matmul.py")), len(lab.runs(["main_opt3.py"])["main_opt3.py"]))
print(lab.profile(lab.command.profile_command("main_opt3", "main_opt3.py --profile --epochs 2")))
"""
    words = said(program, tmp_path)
    assert "Live: the commands run on this machine (NVIDIA H200)" in words
    assert "\n1 1\n" in words and "Report(main_opt3.nsys-rep)" in words
    assert words.count("live: ") == 3 and "recorded (" not in words
    made = {path.relative_to(tmp_path).parts[1] for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {"runs", "benchmarks", "main_opt3.nsys-rep", "main_opt3.sqlite"}


def test_what_nobody_recorded_is_an_error(tmp_path):
    program = 'from labkit import lab; lab.runs(["main_opt3.py --epochs 77"])'
    assert "'main_opt3.py --epochs 77' runs live, and was never recorded" in said(program, tmp_path)
    program = 'from labkit import lab; lab.profile(lab.command.profile_command("main_opt3", "main_opt3.py --seed 7"))'
    assert "was recorded with another command" in said(program, tmp_path)
