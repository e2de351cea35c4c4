"""Every notebook, live on every machine that is recorded or pretended: no cell raises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from labkit import course
from labkit.paths import ROOT
from labkit.pretend import machines

NOTEBOOKS = ["start_here", *(lab.name for lab in course.LABS)]
IN_ONE_PROCESS = Path(__file__).parent / "support" / "in_one_process.py"
# Triton is imported once for all labs, to interpret, as lab 9 imports it by itself where there is no GPU.
AS_IF = {"LAB_MODE": "live", "LAB_LIVE": "quick", "MPLBACKEND": "Agg", "TRITON_INTERPRET": "1"}


@cache
def ran(machine: str) -> dict:
    """What became of each notebook on a machine, by its name."""
    files = [ROOT / f"{name}.ipynb" if name == "start_here" else ROOT / "labs" / f"{name}.ipynb" for name in NOTEBOOKS]
    with TemporaryDirectory() as scratch:
        out = Path(scratch) / "ran.json"
        environment = {**os.environ, **AS_IF, "LAB_PRETEND": machine, "TMPDIR": scratch}
        for name in ("LAB_REPEATS", "LAB_RECORDED"):
            environment.pop(name, None)
        subprocess.run([sys.executable, IN_ONE_PROCESS, out, *files], env=environment, check=True)
        return json.loads(out.read_text())


@pytest.mark.parametrize("notebook", NOTEBOOKS)
@pytest.mark.parametrize("machine", machines.names())
def test_no_cell_raises(machine, notebook):
    result = ran(machine)[notebook]
    last = result["cells"][-1]
    assert result["status"] == "whole", f"cell {last['cell']}: {last['error']}\n{last['trace']}"


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_on_the_recorded_machine_nothing_differs(notebook):
    assert ran("h200")[notebook]["differs"] == []
