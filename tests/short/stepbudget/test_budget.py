"""The step budget: every nanosecond has one cause, the shares add up to one, and each cause is told for a reason."""

from __future__ import annotations

import pytest

from labkit.source import recorded
from stepbudget.ask import budget as rooms
from stepbudget.report import open_report
from stepbudget.window import Window
from synthetic import AUTOGRAD, SyntheticReport, changed

GEMM, POINTWISE, UNKNOWN = "ampere_s16816gemm_128x64", "at::native::vectorized_elementwise_kernel", "mystery_kernel"
LOST = "after the last work that was traced"


def budget_of(made, **options):
    return rooms.budget(open_report(made.write()), **options)


def us(found) -> dict[str, float]:
    """The causes that occur, in microseconds."""
    return {cause: pytest.approx(ns / 1000) for cause, ns in found.ns.items() if ns}


def drained(made, gap_start=100, gap_end=200, call=None):
    """A GPU that works up to ``gap_start`` and again from ``gap_end``, the second kernel launched by ``call``."""
    call = call or (gap_end - 5, gap_end - 3)
    made.range(0, gap_end + 100, "training")
    made.kernel(10, gap_start, POINTWISE, call=(2, 4))
    return made.kernel(gap_end, gap_end + 100, POINTWISE, call=call)


# --- the GPU at work ----------------------------------------------------------------------------------------


def test_work_is_told_by_kind_and_what_overlaps_counts_once(made):
    made.range(0, 100, "training")
    made.kernel(0, 40, GEMM, call=(0, 1)).kernel(30, 60, POINTWISE, call=(1, 2), stream=8)
    made.kernel(50, 70, UNKNOWN, call=(2, 3)).copy(65, 90, 1000, memory="pinned", call=(3, 4)).memset(85, 100, 10)
    assert us(budget_of(made)) == {
        "tensor_core_kernels": 40,
        "other_kernels": 20,
        "unknown_kernels": 10,
        "copies": 30,
    }


def test_a_graph_traced_as_a_whole_is_work_that_was_not_looked_into(made):
    made.range(0, 100, "training").graph(0, 100, call=(0, 2))
    found = budget_of(made)
    assert us(found) == {"cuda_graph": 100}
    assert any("--cuda-graph-trace=node" in text for text in found.not_looked_at)


def test_the_kernels_of_a_graph_traced_by_node_share_its_call(made):
    made.range(0, 100, "training").graph_nodes([(20, 50), (52, 90)], POINTWISE, call=(5, 9))
    found = us(budget_of(made))
    assert found["other_kernels"] == 68
    assert found["launch_overhead"] == 15 + 2, "from the call to the first node, and from node to node"


def test_another_gpu_is_not_looked_at_unless_asked_for(made):
    made.range(0, 100, "training").kernel(0, 100, GEMM, call=(0, 1), device=1).kernel(0, 30, GEMM, call=(1, 2))
    report = open_report(made.write())
    assert rooms.budget(report).ns["tensor_core_kernels"] == 30_000
    assert rooms.budget(report, device=1).ns["tensor_core_kernels"] == 100_000


# --- idle, and why ------------------------------------------------------------------------------------------


def test_waiting_in_the_loaders_range_is_the_loaders(made):
    made.range(105, 190, "data loading")
    assert us(budget_of(drained(made)))["loader"] == 85


def test_the_loader_is_told_without_a_range_by_the_shared_memory_that_ends_the_wait(made):
    drained(made).os_call(105, 180, "poll")
    made.os_call(181, 182, "connect").os_call(182, 184, "recvmsg").os_call(185, 186, "mmap64")
    found = budget_of(made)
    assert us(found)["loader"] == 75
    assert "no range names the loader" in found.evidence["loader"]


@pytest.mark.parametrize("other", [[], ["recvmsg", "mmap64"]], ids=["alone", "messages of a window system"])
def test_a_wait_that_nothing_was_delivered_to_is_blamed_on_nobody(made, other):
    drained(made).os_call(105, 180, "poll")
    for name in other:
        made.os_call(181, 181.5, name)
    found = budget_of(made)
    assert found.ns["os_wait"] == pytest.approx(75_000, abs=1000)
    assert "poll" in found.evidence["os_wait"]


def test_from_its_call_to_its_start_a_kernel_is_launched(made):
    found = us(budget_of(drained(made, call=(170, 175))))
    assert found["launch_overhead"] == 30 + 2 + 6, "the gap's end, and the window's first kernel"


def test_work_that_does_not_start_long_after_its_call_is_not_launch_overhead(made):
    drained(made, gap_end=250, call=(110, 112))
    found = us(budget_of(made))
    assert found["launch_overhead"] == 2 + rooms.LAUNCH_LIMIT_US + 2 + 6
    assert found["python"] == 10 + 2 + 250 - 112 - rooms.LAUNCH_LIMIT_US, "between two traces that are close together"
    assert "unexplained" not in found


def test_inside_a_pageable_copys_call_and_the_wait_after_it(made):
    made.range(0, 300, "training").kernel(0, 100, POINTWISE, call=(0, 1))
    made.copy(150, 160, 1000, call=(110, 155)).api(156, 170, "cudaStreamSynchronize_v3020")
    made.kernel(200, 300, POINTWISE, call=(180, 185))
    found = us(budget_of(made))
    inside, after = (150 - 110) + (170 - 160), 160 - 150
    assert found["pageable_copy"] == inside + after, "until it runs; in the wait; and for as long as it had run"
    assert found["copies"] == 10


def test_a_pinned_copy_is_launched_like_a_kernel(made):
    made.range(0, 300, "training").kernel(0, 100, POINTWISE, call=(0, 1))
    made.copy(150, 300, 1000, memory="pinned", call=(130, 140))
    found = us(budget_of(made))
    assert found["launch_overhead"] == 20
    assert "pageable_copy" not in found


def test_a_synchronisation_is_blamed_for_as_long_as_it_had_held_the_thread(made):
    drained(made, gap_start=100, gap_end=200, call=(190, 192)).api(80, 104, "cudaStreamSynchronize_v3020")
    found = us(budget_of(made))
    assert found["synchronisation"] == 4 + 20, (
        "4 µs inside it after the GPU had drained, then the 20 it had cost before"
    )
    assert found["python"] == 190 - 124 + 2, "what follows, and what lies between the range's start and its first call"
    assert "unexplained" not in found


def test_allocation_is_cuda_set_up(made):
    drained(made).api(110, 160, "cudaMalloc_v3020")
    assert us(budget_of(made))["cuda_setup"] == 50


def test_the_optimizers_range_is_the_optimizers(made):
    made.range(105, 190, "optimizer step")
    assert us(budget_of(drained(made)))["optimizer"] == 85


def test_python_runs_where_the_thread_neither_sleeps_nor_calls_cuda(made):
    drained(made).os_call(0, 1, "write").os_call(299, 300, "write")
    found = us(budget_of(made))
    assert found["python"] == 100 - 5 + 2
    assert "unexplained" not in found


def test_without_a_trace_of_the_operating_system_a_long_stretch_is_unexplained(made):
    drained(made, gap_start=100, gap_end=5100, call=(5090, 5092)).api(101, 102, "cudaEventRecord")
    made.range(0, 5150, "again")
    report = open_report(made.write())
    found = rooms.budget(report, Window(report.extent.start, report.extent.end, "all"))
    assert found.ns["unexplained"] > 4_900_000, "inside a range, too, it may sleep as well as work"
    made._rows["NVTX_EVENTS"].clear()
    del made._rows["NVTX_EVENTS"]
    found = budget_of(made)
    assert found.ns["unexplained"] > 4_900_000
    assert any("--trace osrt" in text for text in found.not_looked_at)


def test_the_profilers_own_time_is_the_profilers(made):
    drained(made).overhead(110, 150, "CUPTI Buffer flush")
    assert us(budget_of(made))["profiler"] == 40


def test_while_autograds_thread_works_the_sleeping_main_thread_is_no_wait(made):
    drained(made).os_call(100, 200, "pthread_cond_wait")
    made.kernel(300, 310, POINTWISE, call=(290, 291), thread=AUTOGRAD)
    made.os_call(90, 130, "pthread_cond_wait", thread=AUTOGRAD)
    found = us(budget_of(made))
    assert found["os_wait"] == 30
    assert found["python"] == 2 + 195 - 130


def test_what_another_process_does_explains_nothing(made):
    made.range(105, 190, "data loading", process=99).os_call(105, 190, "poll", process=99)
    made.copy(400, 410, 1000, call=(105, 190), device=1, process=99)
    found = us(budget_of(drained(made)))
    assert "loader" not in found and "os_wait" not in found and "pageable_copy" not in found


@pytest.mark.parametrize(("value", "unexplained"), [(0, 0), (60, 30_000)])
def test_where_only_the_counters_go_on_nothing_is_explained(made, value, unexplained):
    """The trace of a program ends at 10 ms and its last range stays open; the GPU is sampled up to 40 ms."""
    made.range(0, 40_000, "training").kernel(10, 10_000, POINTWISE, call=(2, 4)).os_call(0, 5, "read")
    for moment in range(0, 40_000, 100):
        made.counter(moment, 90 if moment < 10_000 else value, "SMs Active [Throughput %]")
    found = budget_of(made)
    assert found.ns["unexplained"] / 1000 == unexplained
    assert any("30 ms of work" in text and LOST in text for text in found.not_looked_at) == (value > 0)


def test_without_calls_the_idle_time_is_unexplained_and_said_to_be(made):
    made.kernel(0, 100, POINTWISE).kernel(200, 300, POINTWISE)
    found = budget_of(made)
    assert us(found) == {"other_kernels": 200, "unexplained": 100}
    assert any("--trace cuda" in text for text in found.not_looked_at)


# --- sums, and parts of the window --------------------------------------------------------------------------


# --- the recorded reports -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def budgets():
    """Of some; those of all add up, and leave little unexplained, in tests/long/stepbudget/test_schema.py."""
    found = {}
    for step in ("main_baseline", "main_baseline_nvtx", "main_opt1", "main_opt2", "main_opt3", "keras_mnist_jax"):
        with open_report(recorded.folder() / "profiles" / f"{step}.sqlite.xz") as report:
            found[step] = rooms.budget(report)
    return found


def test_what_was_found_is_kept_for_its_window_and_gpu():
    with open_report(recorded.folder() / "profiles" / "main_opt7.sqlite.xz") as report:
        first = rooms.budget(report)
        assert rooms.budget(report, report.window()) is first
        assert rooms.budget(report, report.extent).window == report.extent
        assert rooms.budget(report, device=first.device) is first


def test_recorded_budgets_add_up(budgets):
    for found in budgets.values():
        assert sum(found.fractions.values()) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("step", ["main_baseline", "main_baseline_nvtx"])
def test_the_baselines_idle_time_is_the_loaders(budgets, step):
    found = budgets[step]
    assert found.ms["loader"] >= 0.8 * found.idle_ms


def test_pinned_copies_hold_nobody_up(budgets):
    assert budgets["main_opt1"].ms["pageable_copy"] > 1
    assert budgets["main_opt2"].ms["pageable_copy"] == 0


def test_plain_fp32_uses_no_tensor_cores_and_fp16_does(budgets):
    assert budgets["main_opt2"].ms["tensor_core_kernels"] == 0
    assert budgets["main_opt3"].ms["tensor_core_kernels"] > 10


def test_little_of_a_recorded_epoch_is_unexplained(budgets):
    for name, found in budgets.items():
        is_broken, unexplained = name == "keras_mnist_jax", found.fractions["unexplained"]
        assert any(LOST in text for text in found.not_looked_at) == is_broken
        assert unexplained == pytest.approx(1) if is_broken else unexplained < 0.01, name


def test_graphs_that_left_no_rows_are_said_to_be_missing(made):
    drained(made).api(50, 52, "cudaGraphLaunch_v10000")
    assert any("busier than it seems" in text for text in budget_of(made).not_looked_at)


def test_a_copys_call_that_was_still_open_when_the_capture_stopped_ends_with_it(tmp_path):
    made = SyntheticReport(tmp_path / "open.sqlite").range(0, 100, "training")
    made.copy(10, 20, 900_000, call=(5, 12)).copy(50, 60, 900_000, call=(40, 45))
    path = changed(made.write(), 'UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET "end" = NULL WHERE rowid = 2')
    with open_report(path) as report:
        assert report.copies["api_end"].tolist() == [report.api["end"].iloc[0], report.extent.end]
        assert sum(rooms.budget(report).fractions.values()) == pytest.approx(1)
