"""Absent is not zero, a wait is not a copy, a graph is not looked into: what a report cannot tell is never told."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from answers import conforms
from stepbudget import __main__ as command
from stepbudget.ask import advice, compare, copies, idle, launch, phases, predict
from stepbudget.ask.budget import IDLE, budget
from stepbudget.errors import ReportError
from stepbudget.report import open_report
from stepbudget.show import answers, summary
from stepbudget.show import json as said
from synthetic import MAIN, SyntheticReport, changed, opened

POINTWISE = "at::native::vectorized_elementwise_kernel"
MS = 1000  # µs
HELPER = 9  # a thread that launches nothing
ZERO = re.compile(r"busy for 0\.0|\bnan\b")


def launching(made, steps=200, rows=False):
    """A program that launches in each step and waits at its end; its kernels in rows or not."""
    made.range(0, 250 * steps, "training").program("python3")
    for start in range(0, 250 * steps, 250):
        made.range(start, start + 200, "forward").os_call(start + 201, start + 202, "write")
        if rows:
            made.kernel(start + 20, start + 150, POINTWISE, call=(start + 5, start + 10))
        else:
            made.api(start + 5, start + 10, "cudaLaunchKernel_v7000")
        made.api(start + 210, start + 240, "cudaStreamSynchronize_v3020")
    return made.memset(100, 300, 1000)


# --- work that left no rows ---------------------------------------------------------------------------------


def test_launches_without_kernels_are_not_known_wherever_one_looks(made, capsys, tmp_path):
    path, page = launching(made).write(), tmp_path / "page.html"
    assert command.main([str(path), "--html", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "how busy the GPU was is not known" in lines[1] and "no row tells of 200 of 200 calls" in lines[2]
    assert "CuptiUseRawGpuTimestamps=false" in " ".join(lines[2:6]) and "virtual machine" in " ".join(lines[2:6])
    assert "How busy the GPU was is not known." in page.read_text()
    assert not ZERO.search("\n".join(lines)) and not ZERO.search(re.sub(r"<[^>]*>", " ", page.read_text()))
    for form in ("--json", "--markdown"):
        assert command.main([str(path), form]) == 0
        told = capsys.readouterr().out
        assert not ZERO.search(told) and "no row tells of 200 of 200 calls" in told
    report = open_report(path)
    found = conforms(said.versioned(summary.plain(summary.summary(report))))
    assert found["gpu_busy_fraction"] is None and found["advice"] == [] and found["lines"] == []
    assert {found["budget"][cause] for cause in ("other_kernels", "launch_overhead", "synchronisation")} == {None}
    assert {one["at_most_ms"] for one in found["bounds"]} == {None} == {*found["operations"]["gpu_ms"].values()}
    assert [(one["kernels"], one["gpu_ms"]) for one in found["phases"]] == [(None, None)]
    assert found["tensor_cores"]["no_ms"] is None and found["launches"]["verdict"] == launch.NOT_LOOKED_AT
    assert idle.idle(report).idle_share != idle.idle(report).idle_share, "NaN"
    assert "–" in str(answers.bounds(report)) and "nan" not in str(answers.idle(report))


def test_a_comparison_with_it_is_none(made, tmp_path, capsys):
    other = launching(SyntheticReport(tmp_path / "other.sqlite"), rows=True).write()
    for sides in ([other, made.path], [made.path, other]):
        launching(made).write() if not made.path.exists() else None
        before, after = map(str, sides)
        assert command.main([before, "--compare", after, "--fail-if-slower", "0.05", "--json"]) == 2
        found = json.loads(capsys.readouterr().out)["comparison"]
        assert not found["comparable"] and found["prediction"] is None
        assert any("no row tells of" in text for text in found["obstacles"])


@pytest.mark.parametrize(
    ("call", "kind"), [("cuMemcpyHtoDAsync_v2_v3020", "copies"), ("cudaGraphLaunch_v10000", "graphs"),
                       ("cuLaunchKernelEx_ptsz", "kernels")],
)  # fmt: skip
def test_each_kind_of_work_is_missed_and_what_was_recorded_stays(made, call, kind):
    made.range(0, 100 * MS, "training").os_call(0, 10, "write")
    for start in range(0, 100 * MS, 10 * MS):
        made.kernel(start + 10, start + 2 * MS, POINTWISE, call=(start, start + 5))
        made.api(start + 3 * MS, start + 3 * MS + 10, call).api(start + 8 * MS, start + 9 * MS, "cudaDeviceSynchronize")
    found = budget(opened(made))
    assert [*found.missing.kinds] == [kind] and found.busy_fraction is None
    assert found.ms["other_kernels"] == pytest.approx(19.9)
    assert found.ms["unexplained"] == pytest.approx(60, abs=0.1), "from each call to the end of the wait after it"


def test_some_that_are_missing_among_others_are_told(made):
    launching(made, steps=100, rows=True)
    for start in range(0, 50 * 250, 250):
        made.api(start + 152, start + 155, "cudaLaunchKernel_v7000")
    assert "50 of 150 calls" in str(budget(opened(made)).missing.kinds)


def test_waits_alone_say_that_something_ran(made):
    made.range(0, 50 * MS, "training").api(1 * MS, 41 * MS, "cudaStreamSynchronize_v3020")
    found = budget(opened(made))
    assert "waited for the GPU for 40.0 ms" in found.missing.said[0] and found.busy_fraction is None
    assert found.ms["unexplained"] == found.window.duration_ms


def test_what_is_captured_into_a_graph_runs_nothing(made):
    launching(made, steps=10, rows=True).api(151, 152, "cudaStreamBeginCapture_v10000")
    made.api(160, 170, "cudaLaunchKernel_v7000").api(171, 175, "cudaMemcpyAsync_v3020")
    made.api(176, 178, "cudaStreamEndCapture_v10000")
    assert budget(opened(made)).missing.kinds == {}


def test_kernels_whose_calls_are_not_known_are_no_loss(made):
    made.range(0, 10 * MS, "training")
    for start in range(0, 10 * MS, 1000):
        made.kernel(start + 10, start + 300, POINTWISE).api(start, start + 5, "cudaLaunchKernel_v7000")
    assert budget(opened(made)).missing.kinds == {}


def test_any_table_of_events_that_nobody_reads_is_listed_with_rows_and_milliseconds(made):
    launching(made, steps=2, rows=True)
    made.rows("CUPTI_ACTIVITY_KIND_OVERHEAD", *({"start": 1_000_000, "end": 4_000_000} for _ in range(3)))
    made.rows("CUPTI_ACTIVITY_KIND_OF_TOMORROW", {"id": 1})
    made.rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", {"start": 1, "end": 2})
    made.rows("EVENTS_OF_TOMORROW", {"start": 1_000_000, "end": 2_000_000}).rows("NAMES_OF_TOMORROW", {"id": 1})
    told = opened(made).unread
    assert told == [
        "CUPTI's own overhead (3 rows, 9.0 ms): recorded, and not read",
        "other records of CUPTI (1 row): recorded, and not read",
        "EVENTS_OF_TOMORROW (1 row, 1.0 ms): recorded, and not read",
    ]


# --- a wait is not a copy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cudaMemcpyBatchAsync_v12080", "cudaGraphLaunch_v10000"])
def test_a_call_holds_its_thread_once_however_many_copies_it_asks_for(made, name):
    made.range(0, 100 * MS, "training").kernel(0, 5, POINTWISE, call=(0, 1))
    for row in range(64):
        made.copy(20 * MS + 10 * row, 20 * MS + 10 * row + 9, 4096, call=(10 * MS, 20 * MS) if row == 0 else None)
        made._rows["CUPTI_ACTIVITY_KIND_MEMCPY"][-1]["correlationId"] = 2
    made._rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["nameId"] = made._string(name)
    report = opened(made)
    held_ms = copies.copies(report)["api_ms"].sum()
    assert held_ms == pytest.approx(0 if "Graph" in name else 10)
    assert budget(report).held_ms["pageable_copy"] == pytest.approx(held_ms)


def test_a_late_copy_to_the_host_is_a_synchronisation(made):
    made.range(0, 400 * MS, "training").os_call(0, 1, "write")
    for start in range(0, 400 * MS, 40 * MS):
        made.kernel(start + 110, start + 30_000, POINTWISE, call=(start + 100, start + 105))
        made.copy(start + 30_000, start + 30_090, 400_000, "device to host", call=(start + 200, start + 30_100))
    report = opened(made)
    found = budget(report)
    assert found.held_ms["synchronisation"] == pytest.approx(299) and found.held_ms["pageable_copy"] == 0
    assert found.ms["pageable_copy"] == 0 < found.ms["synchronisation"]
    assert predict.bound(report, found, "pinned_memory").at_most_ms < 1.5


def test_a_small_late_copy_to_the_device_is_one_too_and_a_large_one_is_not(made):
    for size, cause in ((8, "synchronisation"), (4_000_000, "pageable_copy")):
        made._rows.clear()
        made.range(0, 40 * MS, "training").kernel(110, 30_000, POINTWISE, call=(100, 105))
        made.copy(30_000, 30_400, size, call=(200, 210)).api(215, 30_500, "cudaStreamSynchronize_v3020")
        held = budget(opened(made)).held_ms
        assert held[cause] > 30 and sum(held[one] for one in ("synchronisation", "pageable_copy")) < 31


@pytest.mark.parametrize("asleep", [False, True])
def test_a_copy_of_a_thread_for_which_nobody_waits_is_nobodys_cause(made, asleep):
    made.range(0, 100 * MS, "training").kernel(0, 10 * MS, POINTWISE, call=(0, 1))
    made.kernel(90 * MS, 100 * MS, POINTWISE, call=(90 * MS - 9, 90 * MS - 5)).os_call(0, 5, "write")
    made.copy(80 * MS, 81 * MS, 4_000_000, call=(20 * MS, 81 * MS))
    made._rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["globalTid"] += HELPER - MAIN
    if asleep:
        made.os_call(15 * MS, 85 * MS, "pthread_cond_wait")
    found = budget(opened(made))
    assert (found.ms["pageable_copy"] > 50) == asleep == (found.held_ms["pageable_copy"] > 50)
    assert (found.ms["python"] > 50) != asleep


def test_a_copy_behind_kernels_that_the_program_waits_for_gains_nothing(made):
    made.range(0, 400 * MS, "training").os_call(0, 1, "write")
    for start in range(0, 400 * MS, 40 * MS):
        made.kernel(start + 110, start + 30 * MS, POINTWISE, call=(start + 100, start + 105))
        made.copy(start + 900, start + 10_900, 9_000_000, call=(start + 200, start + 11_000), stream=8)
        made.api(start + 12 * MS, start + 30 * MS, "cudaDeviceSynchronize")
    report = opened(made)
    found = budget(report)
    assert found.idle_ms > 99 and found.held_ms["pageable_copy"] == 0
    assert predict.bound(report, found, "pinned_memory").at_most_ms == 0


# --- graphs -------------------------------------------------------------------------------------------------


def graphs(made, nodes):
    made.range(0, 1000 * MS, "training")
    for start in range(0, 1000 * MS, 50 * MS):
        made.range(start + 2000, start + 3000, "step").os_call(start + 1, start + 2, "write")
        call = (start + 2100, start + 2200)
        if nodes:
            made.graph_nodes([(start + 2250 + 400 * n, start + 2450 + 400 * n) for n in range(100)], POINTWISE, call)
        else:
            made.graph(start + 2250, start + 42250, call=call)
    return opened(made)


def test_a_phase_has_the_time_of_the_graphs_that_it_launched_and_their_kernels_are_unknown(made):
    report = graphs(made, nodes=False)
    (row,) = phases.phases(report).to_dict("records")
    assert row["gpu_ms"] == pytest.approx(800) and row["kernels"] != row["kernels"], "NaN"
    assert "–" in str(answers.phases(report)) and summary.of_phases(report, report.window())[0]["kernels"] is None
    assert not [one for one in advice.advice(report, budget(report)) if one.upper_bound_ms > 300]


def test_phases_of_graphs_traced_by_node_count_their_kernels(made):
    (row,) = phases.phases(graphs(made, nodes=True)).to_dict("records")
    assert (row["kernels"], row["gpu_ms"]) == (2000, pytest.approx(400))


@pytest.mark.parametrize("nodes", [False, True])
def test_no_graph_is_advised_to_a_program_that_is_one(made, nodes):
    report = graphs(made, nodes)
    assert predict.bound(report, budget(report), "cuda_graph").at_most_ms < 20, "what follows the last one"
    assert not [one for one in advice.advice(report, budget(report)) if "prepared its work" in one.evidence]


def test_beside_graphs_other_launches_can_still_be_cheaper(made):
    made.range(0, 100 * MS, "training").os_call(0, 1, "write")
    for start in range(0, 100 * MS, 10 * MS):
        made.graph_nodes(
            [(start + 300, start + 900), (start + 1500, start + 2000)], POINTWISE, (start + 200, start + 250)
        )
        made.kernel(start + 8 * MS, start + 9 * MS, POINTWISE, call=(start + 8 * MS - 20, start + 8 * MS - 10))
    report = opened(made)
    found = budget(report)
    at_most_ms = predict.bound(report, found, "cuda_graph").at_most_ms
    assert at_most_ms == pytest.approx(found.idle_ms - 10 * 0.6, abs=1), "all but what lies between two nodes"


# --- off the CPU --------------------------------------------------------------------------------------------


def test_the_schedulers_events_count_beside_calls_into_the_operating_system(made):
    made.range(0, 100 * MS, "training").kernel(0, 1 * MS, POINTWISE, call=(0, 1)).os_call(2, 4, "write")
    made.kernel(90 * MS, 100 * MS, POINTWISE, call=(90 * MS - 9, 90 * MS - 5)).os_call(95 * MS, 95 * MS + 5, "write")
    made.scheduled(0, 5 * MS).scheduled(80 * MS, 100 * MS)
    found = budget(opened(made))
    assert found.ms["os_wait"] == pytest.approx(75, abs=0.1) and found.ms["python"] < 15


# --- whatever is taken away ---------------------------------------------------------------------------------

# What says that nobody knows, or knows no more: not to be had by taking something away are all the others.
HONEST = {"unexplained", "unknown_kernels", "cuda_graph", "os_wait"}
# Nothing else tells them apart: the loader's own code from other code, what the profiler did from what it interrupted.
LESS = {"NVTX_EVENTS": {"python": {"loader", "optimizer"}}, "PROFILER_OVERHEAD": {one: {"profiler"} for one in IDLE}}
TABLES = ["CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
          "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API", "PROFILER_OVERHEAD", "GPU_METRICS"]  # fmt: skip
WORTH = 0.01
FIX = {cause: fix for fix, own in predict.FIXES.items() for cause in own.causes}


@pytest.fixture(scope="module")
def rich(tmp_path_factory) -> Path:
    """A program that does a bit of everything, long enough each that it would be worth a sentence."""
    build = SyntheticReport(tmp_path_factory.mktemp("rich") / "rich.sqlite").range(0, 600 * MS, "training")
    for start in range(0, 600 * MS, 30 * MS):
        build.range(start, start + 8 * MS, "data loading").os_call(start + 100, start + 7 * MS, "poll")
        build.range(start + 8 * MS, start + 11 * MS, "copy to device")
        build.copy(start + 10 * MS, start + 10_900, 9_000_000, call=(start + 8100, start + 10_900))
        build.range(start + 11 * MS, start + 18 * MS, "forward")
        for kernel in range(10):
            began = start + 11_000 + 500 * kernel
            build.kernel(began + 12, began + 200, "ampere_sgemm_128x64_nn", call=(began + 3, began + 9))
        build.copy(start + 16_100, start + 16_102, 4, "device to host", call=(start + 16_000, start + 16_110))
        build.api(start + 16_120, start + 17_500, "cudaMalloc_v3020").os_call(start + 16_200, start + 17_400, "ioctl")
        build.range(start + 18 * MS, start + 22 * MS, "optimizer step")
        build.kernel(start + 21 * MS, start + 24 * MS, POINTWISE, call=(start + 20_950, start + 20_980))
        build.api(start + 22 * MS, start + 24_100, "cudaStreamSynchronize_v3020")
        build.range(start + 24_200, start + 29_900, "log").os_call(start + 25 * MS, start + 29 * MS, "poll")
        build.memset(start + 29_800, start + 29_990, 4096).overhead(start + 24_300, start + 24_900, "Flush")
    build.counter(10, 0.0).counter(400 * MS, 0.0).gpu("Some GPU", capability=(8, 0)).program("python3")
    return build.write()


def told(path: Path) -> tuple[dict, dict, dict]:
    """Shares of the causes, upper bounds (shares of the window) of what is advised, by fix; and the whole answer.

    Nothing of either where it is refused.
    """
    try:
        with open_report(path) as report:
            found = said.versioned(summary.plain(summary.summary(report)))
    except ReportError:
        return {}, {}, {"gpu_busy_fraction": None}
    conforms(found)
    whole_ms = found["duration_ms"]
    return (
        found["budget"],
        {FIX.get(one["cause"], one["cause"]): one["upper_bound_ms"] / whole_ms for one in found["advice"]},
        found,
    )


@pytest.fixture(scope="module")
def whole(rich) -> tuple[dict, dict, dict]:
    return told(rich)


def less(path: Path, folder: Path, *statements: str) -> Path:
    target = folder / "less.sqlite"
    shutil.copyfile(path, target)
    return changed(target, *statements)


def gains_nothing(whole: tuple, part: tuple, table: str) -> None:
    """Of what is told of a part nothing is told with more confidence than of the whole."""
    shares, advised, _ = whole
    for cause, share in part[0].items():
        if share is None or cause in HONEST:
            continue
        before = (shares[cause] or 0) + sum(shares[one] or 0 for one in LESS.get(table, {}).get(cause, ()))
        assert share <= before + WORTH, f"{cause}: {before:.3f} grew to {share:.3f}"
    for fix, bound in part[1].items():
        if fix not in HONEST:
            assert fix in advised, f"{fix}: advised only where something is missing"
            more = sum(advised.get(one, 0) for one in ("loader", "profiler")) if table in LESS else 0
            assert bound <= advised[fix] + more + WORTH, f"{fix}: {advised[fix]:.3f} grew to {bound:.3f}"


@pytest.mark.parametrize("table", TABLES)
def test_without_any_one_table_no_answer_becomes_more_confident(rich, whole, tmp_path, table):
    part = told(less(rich, tmp_path, f"DROP TABLE {table}"))
    gains_nothing(whole, part, table)
    assert part[2]["gpu_busy_fraction"] in (None, pytest.approx(whole[2]["gpu_busy_fraction"], abs=WORTH))


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API"])
def test_without_a_threads_rows_nor(rich, whole, tmp_path, table):
    without = less(rich, tmp_path, f"DELETE FROM {table} WHERE globalTid % 16777216 = {MAIN}")
    gains_nothing(whole, told(without), table)


@pytest.mark.parametrize(
    ("table", "column"),
    [("CUPTI_ACTIVITY_KIND_KERNEL", "correlationId"), ("CUPTI_ACTIVITY_KIND_MEMCPY", "correlationId"),
     ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
     ("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind"), ("OSRT_API", "nameId"), ("NVTX_EVENTS", "text"), ("NVTX_EVENTS", "end"),
     ("CUPTI_ACTIVITY_KIND_RUNTIME", "end"), ("OSRT_API", "end")],
)  # fmt: skip
def test_without_what_a_column_holds_nor(rich, whole, tmp_path, table, column):
    gains_nothing(whole, told(less(rich, tmp_path, f'UPDATE {table} SET "{column}" = NULL')), table)


def test_a_cause_that_one_side_cannot_tell_has_no_change(rich, tmp_path):
    before, after = open_report(rich), open_report(less(rich, tmp_path, "DROP TABLE OSRT_API"))
    found = compare.compare(before, after)
    said_of_it = summary.compared([before], [after], found)
    assert said_of_it["causes"]["os_wait"] is None and said_of_it["budget_ms"]["os_wait"]["after"] is None
    assert found.shrank_ms["os_wait"] == 0 and any("no change of it is known" in text for text in found.remarks)
    assert "–" in str(answers.compare(before, after))
