"""The worker sweep: which numbers of loader workers a machine's cores make worth trying."""

from __future__ import annotations

import pytest

from labkit.recording import plan
from labkit.source import sweep
from labkit.training import cli, machine


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 10, 16, 64])
def test_what_the_fix_takes_is_tried_and_one_number_beyond(cores, monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    counts = sweep.worker_counts(cores)
    assert sweep.spare(cores) == cli.spare_cores()
    assert counts[0] == 1 and sweep.spare(cores) in counts
    assert counts[-1] > sweep.spare(cores)
    assert len(counts) == len(set(counts)) <= 9, counts


def test_few_cores_try_more_workers_than_cores():
    assert sweep.worker_counts(2) == [1, 2, 4, 8]
    assert sweep.worker_counts(4) == [1, 2, 4, 8]
    assert sweep.worker_counts(8) == [1, 2, 4, 6, 8]


def test_sixteen_cores_try_what_was_recorded():
    tried = [f"main_opt1.py --epochs 3 --workers {n}" for n in (1, 2, 4, 8, 14, 16)]
    assert [item.command for item in plan.plan(rounds=1, cores=16) if "--workers" in item.command][:6] == tried


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 10, 16, 64])
def test_quick_tries_fewer_of_them_and_those_that_the_lab_compares(cores):
    few, counts = sweep.few(cores), sweep.worker_counts(cores)
    assert few == sorted(set(few)) and set(few) < set(counts)
    assert few[0] == 1 and sweep.spare(cores) in few and len(few) > 1
    assert sweep.few(16) == [1, 4, 14] and sweep.few(4) == [1, 2, 4]
