"""Every notebook, live on every machine that is recorded or pretended: no cell raises."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import cache

import pytest

import in_one_process
from labkit import course
from labkit.paths import ROOT
from labkit.pretend import machines

NOTEBOOKS = ["start_here", *(lab.name for lab in course.LABS)]
FILES = [ROOT / f"{name}.ipynb" if name == "start_here" else ROOT / "labs" / f"{name}.ipynb" for name in NOTEBOOKS]

on_each = pytest.mark.parametrize("machine", machines.names())
each = pytest.mark.parametrize("notebook", NOTEBOOKS)


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """What became of each notebook on a machine, by its name; all machines that are asked for share one process."""
    settings = {"initializer": in_one_process.begin, "initargs": (str(tmp_path_factory.mktemp("machines")),)}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), **settings) as process:
        yield cache(lambda machine: process.submit(in_one_process.run, machine, FILES).result())


@each
@on_each
def test_no_cell_raises(ran, machine, notebook):
    result = ran(machine)[notebook]
    last = result["cells"][-1]
    assert result["status"] == "whole", f"cell {last['cell']}: {last['error']}\n{last['trace']}"


@each
def test_on_the_recorded_machine_nothing_differs(ran, notebook):
    assert ran("h200")[notebook]["differs"] == []
