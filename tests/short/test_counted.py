"""Kernels under Nsight Compute: what a warp waited for adds up, and the page has Nsight Compute's own names."""

import pytest

from labkit.subjects import counted
from stepbudget.ncu.counters import STALLS

SLOTS = 16  # warps that a scheduler of a Hopper GPU holds at most


@pytest.fixture(scope="module")
def found():
    return counted.kernels()


def test_what_a_scheduler_holds_is_issuing_or_waits(found):
    """Little's law: clocks an instruction, times instructions a clock, are the warps a scheduler holds."""
    clocks = found[[*STALLS]].sum(axis=1)
    held = found["warps_pct"] / 100 * SLOTS
    assert (clocks * found["issue_pct"] / 100).to_numpy() == pytest.approx(held.to_numpy(), rel=0.05)


def test_a_pages_rows_bear_nsight_computes_names_and_leave_out_what_nobody_waits_for(found):
    page = counted.page(found, ["tile", "padded"], ["bank_conflicts"]).frame.set_index("counter")
    assert page.loc["l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "tile"] == found.loc["tile", "bank_conflicts"]
    waits = page.drop("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum")
    assert {*waits.index} <= {*STALLS.values()}
    assert (waits.max(axis=1) >= 5).all() and waits.max(axis=1).is_monotonic_decreasing


def test_a_table_scales_and_names_its_columns(found):
    table = counted.counters(found, ["tile"], ["bank_conflicts", "issue_pct"])
    assert list(table.frame) == ["kernel", "bank conflicts, M", "issuing %"]
    assert table.frame["bank conflicts, M"][0] == pytest.approx(found.loc["tile", "bank_conflicts"] / 1e6)
