"""PITFALLS.md names the pitfalls of reading such reports that NVIDIA documents; here is what proves them treated."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import stepbudget
from stepbudget.ask import advice, copies, phases, sums
from stepbudget.ask.budget import budget
from stepbudget.errors import ReportError
from stepbudget.report import open_report
from stepbudget.show import summary
from stepbudget.window import Window
from synthetic import AUTOGRAD, MAIN, PROCESS, SyntheticReport, changed, opened

ROOT = Path(__file__).resolve().parents[3]
LIST = Path(stepbudget.__file__).with_name("PITFALLS.md")
GEMM, POINTWISE = "ampere_s16816gemm_128x64", "at::native::vectorized_elementwise_kernel"
MS = 1000  # µs


def step(made):
    """A little of everything: a wait for data, a copy, two phases, a synchronisation."""
    made.range(0, 1000, "training").range(0, 300, "data loading").range(300, 500, "forward").range(500, 900, "backward")
    made.os_call(5, 280, "poll").copy(310, 330, 3_000_000, call=(305, 332))
    for at, thread in ((350, 1), (420, 1), (520, AUTOGRAD), (600, AUTOGRAD)):
        made.kernel(at + 10, at + 60, GEMM, call=(at, at + 5), thread=thread)
    return made.api(900, 990, "cudaDeviceSynchronize_v3020").memset(950, 955, 64).gpu("NVIDIA H200", 0, (9, 0))


# --- the list -----------------------------------------------------------------------------------------------


def listed() -> list[list[str]]:
    """The rows of the tables: number or source, pitfall, treatment, proof."""
    lines = [line for line in LIST.read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")] for line in lines]
    return [row for row in rows if row[0] not in ("#", "where")]


def test_every_test_that_the_list_names_exists_and_every_row_has_a_test_or_a_reason():
    rows = listed()
    assert len(rows) > 50
    for row in rows:
        assert len(row) == 4, row
        tests = re.findall(r"`(test_\w+)::(test_\w+)`", row[3])
        assert tests or row[3].startswith("not treated: "), row[:2]
        for file, name in tests:
            (found,) = (ROOT / "tests").glob(f"*/stepbudget/{file}.py")
            assert f"\ndef {name}(" in found.read_text(), (file, name)


def test_the_list_holds_all_thirty_two_of_nvidias_checklist():
    numbers = [int(row[0]) for row in listed() if row[0].isdecimal()]
    assert numbers == list(range(1, 33))


# --- the export ---------------------------------------------------------------------------------------------


def test_rows_may_stand_in_any_order(made, tmp_path, answer):
    before = answer(step(made).write())
    chance = random.Random(3)
    for rows in made._rows.values():
        chance.shuffle(rows)
    made.path = tmp_path / "made" / "made.sqlite"
    made.path.parent.mkdir()
    path = made.write()
    assert answer(path) == before
    assert sums.sums(path) == sums.sums(tmp_path / "made.sqlite")


def test_tables_that_are_there_and_empty_are_tables_that_are_not_there(made, tmp_path, answer):
    """What ``nsys export --lazy=false`` writes."""
    path = step(made).write()
    before = answer(path)
    other = tmp_path / "full" / "made.sqlite"
    other.parent.mkdir()
    other.write_bytes(path.read_bytes())
    ids = "start INT, end INT, globalPid INT, globalTid INT, correlationId INT, deviceId INT, streamId INT, bytes INT"
    full = {
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ids,
        "GPU_METRICS": "timestamp INT, typeId INT, metricId INT, value REAL",
        "TARGET_INFO_GPU_METRICS": "typeId INT, metricId INT, metricName TEXT",
        "GENERIC_EVENTS": "rawTimestamp INT, timestamp INT, typeId INT, data TEXT",
        "PROFILER_OVERHEAD": ids + ", nameId INT",
        "SCHED_EVENTS": "start INT, cpu INT, isSchedIn INT, globalTid INT",
        "DIAGNOSTIC_EVENT": "timestamp INT, severity INT, text TEXT",
        "COMPOSITE_EVENTS": "id INT, start INT, globalTid INT",
        "SAMPLING_CALLCHAINS": "id INT, symbol INT, module INT, stackDepth INT",
        "TARGET_INFO_CUDA_DEVICE": "gpuId INT, cudaId INT, pid INT",
        "ENUM_CUDA_MEMCPY_OPER": "id INT, name TEXT",
        "ENUM_NSYS_EVENT_TYPE": "id INT, name TEXT",
        "MPI_P2P_EVENTS": "start INT, end INT, globalTid INT, textId INT",
        "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH": ids,
    }
    changed(other, *(f"CREATE TABLE {table} ({columns})" for table, columns in full.items()))
    assert answer(other) == before
    assert sums.sums(other) == sums.sums(path)


def test_work_whose_times_could_not_be_had_is_left_out_and_said(made, answer):
    """CUPTI writes two zeros where it has no times: no kernel of no length at the clock's beginning."""
    names = {"demangledName": 1, "shortName": 1, "deviceId": 0, "streamId": 7, "correlationId": 0}
    step(made).rows("CUPTI_ACTIVITY_KIND_KERNEL", *[{"start": 0, "end": 0, "globalPid": PROCESS << 24, **names}] * 3)
    path = made.write()
    with open_report(path) as report:
        assert len(report.kernels) == 4 and report.extent.start == 5_000_000
        said = advice.not_looked_at(report, budget(report))
        assert any("3 rows of CUPTI_ACTIVITY_KIND_KERNEL have no times" in text for text in said)
        assert sum(row[1] for row in sums.sums(path)["kernels"]) == 4
    assert answer(path)["kernels"][0]["count"] == 4


# --- what is missing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Couldn't allocate CUPTI bufer 12 times. Some CUPTI events may be missing.",
        "Reached the size limit on recording trace events for this process.",
        "CUDA device side event timestamps might have been truncated.",
        "1,024 NVTX events were dropped.",
    ],
)
def test_events_that_the_profiler_lost_are_said_first(made, ask, answer, text):
    path = step(made).diagnostic(text, severity=1).diagnostic("No NVTX events collected.", severity=1).write()
    found = answer(path)
    assert found["remarks"] == [f"Nsight Systems said: {text}"], "what lies beside what was lost is still an answer"
    assert f"Nsight Systems said: {text}" in found["not_looked_at"]
    assert ask(path)[1].splitlines()[2] == f"Nsight Systems said: {text}"


def test_what_is_recorded_and_not_read_is_named_with_its_number_of_rows(made):
    step(made).rows("CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH", *[{"start": 1, "end": 2}] * 3)
    made.rows("CUPTI_ACTIVITY_KIND_OPENACC_DATA", {"start": 1, "end": 2}).rows("UCP_EVENTS", {"start": 1})
    made.rows("GPU_CONTEXT_SWITCH_EVENTS", {"timestamp": 7})
    found = summary.summary(opened(made))["not_looked_at"]
    assert "OpenACC constructs (4 rows): recorded, and not read" in found
    assert "calls of UCX (1 row): recorded, and not read" in found
    assert any(text.startswith("switches of the GPU from one program to another (1 row)") for text in found)


# --- from where to where ------------------------------------------------------------------------------------


def test_a_helper_that_sleeps_on_does_not_lengthen_the_capture(made):
    """A thread without CUDA calls and ranges, asleep in poll when the capture stopped, until its time is out."""
    made.kernel(10, 30, GEMM, call=(0, 5)).os_call(-5, -4, "read").os_call(20, 900, "poll", thread=9)
    assert opened(made).extent == Window(4_995_000, 5_030_000, "whole capture")
    made.os_call(40, 41, "write", thread=9)
    assert opened(made).extent.end == 5_040_000, "when it began, the capture was on"
    made.range(35, None, "still open")
    assert opened(made).ranges["end"].tolist() == [5_040_000]


@pytest.mark.parametrize("thread", [MAIN, PROCESS])
def test_the_last_wait_of_a_thread_that_works_or_of_a_programs_first_one_belongs_to_the_capture(made, thread):
    made.kernel(10, 30, GEMM, call=(0, 5)).os_call(20, 900, "poll", thread=thread)
    assert opened(made).extent.end == 5_900_000
    other = SyntheticReport(made.path.with_name("others.sqlite")).kernel(10, 30, GEMM, call=(0, 5))
    other.os_call(20, 900, "poll", thread=99, process=99)
    assert opened(other).extent.end == 5_030_000, "a process that never worked is a helper whole"


def test_a_report_of_nothing_but_the_systems_calls_lasts_as_long_as_they_do(made):
    assert opened(made.os_call(0, 50, "poll", thread=9)).extent.end == 5_050_000


# --- whose time ---------------------------------------------------------------------------------------------


def test_an_idle_gpu_within_a_call_of_mpi_is_communication_on_the_cpu(made):
    made.range(0, 100 * MS, "training").range(40 * MS, 90 * MS, "exchange").kernel(0, 40 * MS, GEMM, call=(0, 1))
    made.mpi(45 * MS, 80 * MS, "MPI_Allreduce").mpi(10 * MS, 20 * MS, "MPI_Isend", kind="P2P")
    made.mpi(50 * MS, 70 * MS, "MPI_Wait", kind="START_WAIT").os_call(46 * MS, 79 * MS, "poll")
    made.mpi(81 * MS, 89 * MS, "MPI_Barrier", thread=9).api(60 * MS, 61 * MS, "cudaStreamSynchronize")
    made.kernel(90 * MS, 100 * MS, GEMM, call=(90 * MS - 9, 90 * MS - 5))
    report = opened(made)
    found = budget(report)
    assert found.ms["mpi"] == pytest.approx(35 - 1) and found.held_ms["mpi"] == pytest.approx(10 + 35)
    assert found.ms["synchronisation"] == pytest.approx(1, abs=0.1) and sum(found.fractions.values()) == pytest.approx(
        1
    )
    (one,) = [one for one in advice.advice(report, found) if one.cause == "mpi"]
    assert one.upper_bound_ms == pytest.approx(34) and "NCCL" in one.evidence and "phase exchange" in one.evidence
    made._rows["MPI_P2P_EVENTS"][0]["start"] = "soon"
    with pytest.raises(ReportError, match="MPI_P2P_EVENTS"):
        budget(opened(made))


def test_the_function_that_the_cpu_was_sampled_in_is_the_evidence_of_an_idle_gpu(made):
    made.range(0, 100 * MS, "training").os_call(0, 1, "read").os_call(99 * MS, 100 * MS, "read")
    made.kernel(50 * MS, 60 * MS, POINTWISE, call=(50 * MS - 9, 50 * MS - 5))
    for at in range(1, 50):
        made.cpu_sample(at * MS, "ImagingResample" if at % 4 else "memcpy", "main", module="/opt/lib/_imaging.so")
    made.cpu_sample(55 * MS, "busy_gpu_does_not_count")
    found = budget(opened(made))
    assert "76 % of 49 CPU samples in ImagingResample (_imaging.so)" in found.evidence["python"]
    few = (
        SyntheticReport(made.path.with_name("few.sqlite")).range(0, 100, "training").kernel(50, 60, GEMM, call=(40, 41))
    )
    few.os_call(0, 1, "read").cpu_sample(10, "once").os_call(99, 100, "read")
    assert "once" not in str(budget(opened(few)).evidence)


def test_work_of_two_streams_at_once_counts_once(made):
    made.range(0, 100, "training")
    made.kernel(0, 60, GEMM, call=(0, 1)).kernel(20, 80, GEMM, call=(2, 3), stream=8)
    found = summary.summary(opened(made))
    assert found["gpu_busy_fraction"] == pytest.approx(0.8)
    assert sum(one["gpu_ms"] for one in found["kernels"]) == pytest.approx(0.12), "the sum of the kernels is more"


def test_a_wait_while_the_gpu_works_is_held_time_and_no_idle_time(made):
    made.range(0, 100, "training").kernel(5, 90, GEMM, call=(1, 2)).api(3, 95, "cudaDeviceSynchronize_v3020")
    found = budget(opened(made))
    assert found.held_ms["synchronisation"] == pytest.approx(0.092)
    assert found.ms["synchronisation"] == pytest.approx(0.005 + 0.002, abs=0.006)


def test_the_profilers_own_time_is_no_slowdown_and_the_advice_says_so(made):
    made.range(0, 100, "training").kernel(0, 10, GEMM, call=(0, 1)).overhead(10, 60, "CUPTI Buffer flush")
    made.kernel(90, 100, GEMM, call=(85, 86))
    report = opened(made)
    (one,) = [one for one in advice.advice(report, budget(report)) if one.cause == "profiler"]
    assert one.upper_bound_ms == pytest.approx(0.05) and "time the program without it" in one.evidence


def test_a_kernel_belongs_to_the_range_of_its_call_even_if_it_runs_after_it(made):
    made.range(0, 100, "training").range(0, 20, "forward").range(20, 90, "backward")
    made.kernel(30, 60, GEMM, call=(10, 12))
    table = phases.phases(opened(made)).set_index("phase")
    assert table.loc["forward", "kernels"] == 1 and table.loc["backward", "kernels"] == 0


def test_migrations_of_unified_memory_need_no_stream(made):
    made.range(0, 100, "training").kernel(50, 90, GEMM, call=(1, 2))
    made.copy(10, 40, 2_000_000, "unified memory to device", "managed", stream=None)
    table = copies.copies(opened(made))
    assert table["direction"].tolist() == ["unified memory to device"] and table["bytes"].tolist() == [2_000_000]


def test_the_kinds_numbers_are_those_of_the_reports_own_lists(made):
    made.range(0, 100, "training").copy(10, 20, 1000, call=(5, 6))
    made._rows["CUPTI_ACTIVITY_KIND_MEMCPY"][0] |= {"copyKind": 77, "srcKind": 88}
    made.rows("ENUM_CUDA_MEMCPY_OPER", {"id": 77, "name": "CUDA_MEMCPY_KIND_HTOD"})
    made.rows("ENUM_CUDA_MEM_KIND", {"id": 88, "name": "CUDA_MEMOPR_MEMORY_KIND_PINNED"})
    (row,) = copies.copies(opened(made)).to_dict("records")
    assert (row["direction"], row["host_memory"]) == ("host to device", "pinned")


def test_ids_of_hosts_and_virtual_machines_do_not_mix_processes(made):
    """A thread's id holds, above the process, the machine and the virtual machine that it ran on."""
    other = 1 << 32 | PROCESS  # the same process number on another machine
    made.range(0, 100, "training").kernel(10, 30, GEMM, call=(1, 2))
    made.kernel(40, 80, POINTWISE, call=(3, 4), process=other)
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"):
        for row in made._rows[table]:
            row["correlationId"] = 1
    report = opened(made)
    assert report.kernels["api_start"].tolist() == [5_001_000, 5_003_000]
    assert sum(one["count"] for one in summary.summary(report)["kernels"]) == 1


def test_a_counter_is_found_by_its_name_whatever_its_number(made):
    made.range(0, 100, "training").kernel(0, 90, GEMM, call=(0, 1))
    for time in range(0, 100, 10):
        made.counter(time, 40).counter(time, 70, "SMs Active [Throughput %]")
    for table in ("GPU_METRICS", "TARGET_INFO_GPU_METRICS"):
        for row in made._rows[table]:
            row["metricId"] = {1: 901, 2: 900}.get(row["metricId"], 1000 - row["metricId"])
    assert summary.summary(opened(made))["tensor_cores"]["active_mean_pct"] == pytest.approx(40)


def test_a_mark_is_no_range(made):
    made.range(0, 100, "training").range(10, None, "a mark").kernel(20, 90, GEMM, call=(15, 16))
    made._rows["NVTX_EVENTS"][1]["eventType"] = 34
    assert opened(made).ranges["name"].tolist() == ["training"]


def test_a_kernel_may_seem_to_begin_before_its_call(made):
    made.range(0, 100, "training").kernel(10, 40, GEMM, call=(10.4, 12)).kernel(50, 90, GEMM, call=(51, 52))
    report = opened(made)
    found = summary.summary(report)
    assert found["gpu_busy_fraction"] == pytest.approx(0.7) and found["launches"]["launches"] == 2
    assert (
        sum(share or 0 for share in found["budget"].values()) == pytest.approx(1)
        and found["budget"]["launch_overhead"] == 0
    )
