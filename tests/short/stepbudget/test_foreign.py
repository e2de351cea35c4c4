"""Reports of other people: each shape that was once misread, made by hand, and what is true of it.

They came from DALI, Megatron, old PyTorch, C++, Julia and DDP programs, recorded by Nsight Systems 2020.3 to 2026.2.
"""

from __future__ import annotations

import os
import re

import pytest

from stepbudget.ask import advice, compare, iterations, launch, phases, predict, sums, threads
from stepbudget.ask.budget import budget
from stepbudget.errors import ReportError
from stepbudget.export import nsys
from stepbudget.report import open_report
from stepbudget.show import summary
from synthetic import AUTOGRAD, MAIN, SyntheticReport, changed, opened

GEMM, POINTWISE, UNKNOWN = "ampere_s16816gemm_128x64", "at::native::vectorized_elementwise_kernel", "mystery_kernel"
READER = 9  # a thread that launches nothing
MS = 1000  # µs


def counts(report, **how) -> dict[str, int]:
    table = phases.phases(report, **how)
    return dict(zip(table["phase"], table["kernels"], strict=True))


def found_by_cause(report) -> dict[str, advice.Advice]:
    return {one.cause: one for one in advice.advice(report, budget(report))}


# --- whose kernels ------------------------------------------------------------------------------------------


def test_a_thread_that_launches_nothing_gets_no_kernels(made):
    made.range(0, 100, "training").range(1, 99, "[DataReader] Run", thread=READER)
    made.range(5, 20, "forward").range(25, 60, "backward")
    made.kernel(10, 20, POINTWISE, call=(8, 9)).kernel(30, 40, POINTWISE, call=(28, 29), thread=AUTOGRAD)
    made.kernel(70, 80, POINTWISE, call=(65, 66))
    report = opened(made)
    assert counts(report) == {"[DataReader] Run": 0, "forward": 1, "backward": 1, phases.OUTSIDE: 1}
    by_range = sums.sums(report.path)["kernels_by_range"]
    assert "[DataReader] Run" not in {row[0] for row in by_range}, "the plain sums say the same"


def test_ranges_of_a_thread_that_launches_count_where_the_main_thread_has_none(made):
    made.range(0, 50, "train loop", thread=READER).kernel(5, 9, POINTWISE, call=(1, 2), thread=READER)
    made.kernel(20, 30, POINTWISE, call=(12, 13), thread=AUTOGRAD).api(60, 61, "cudaFree")
    assert counts(opened(made)) == {"train loop": 2}


def test_operators_of_older_pytorch_are_no_phases(made):
    made.range(0, 100, "Forward pass").range(5, 50, "aten::conv2d").range(100, 200, "Backward pass")
    made.range(110, 190, "autograd::engine::evaluate_function: AddmmBackward0", thread=AUTOGRAD)
    made.range(120, 180, "AddmmBackward0", thread=AUTOGRAD).range(200, 300, "Optimizer.step#SGD.step")
    for at, thread in ((10, MAIN), (130, AUTOGRAD), (150, AUTOGRAD)):
        made.kernel(at + 5, at + 9, POINTWISE, call=(at, at + 1), thread=thread)
    assert counts(opened(made)) == {"Forward pass": 1, "Backward pass": 2}


def test_numbered_steps_are_one_phase(made):
    for at in (0, 10, 20):
        made.range(at, at + 9, f"step {at}").kernel(at + 5, at + 8, POINTWISE, call=(at + 1, at + 2))
    assert counts(opened(made)) == {"step #": 3}


# --- one process, one GPU -----------------------------------------------------------------------------------


def ddp(made):
    """Two ranks; the second one's kernels run longer, and its start-up copied something on the first one's card."""
    for process, device, us in ((11, 0, 10), (22, 1, 15)):
        for step in range(10):
            at = 20 * step
            made.kernel(at, at + us, POINTWISE, call=(at - 4, at - 3), device=device, process=process)
    return made.copy(0, 1, 4096, call=(-9, -8), device=0, process=22)


def test_budget_launches_phases_and_advice_are_about_the_same_process_and_gpu(made):
    report = opened(ddp(made))
    for gpu, process in ((None, 11), (0, 11), (1, 22)):
        found = budget(report, device=gpu)
        assert (found.device, found.process) == (gpu or 0, process), "the lowest card, as --gpu's help says"
        said = summary.summary(report, found=found)
        assert said["launches"]["launches"] == 10 and said["launches"]["verdict"] != launch.NOT_LOOKED_AT
        assert sum(one["count"] for one in said["kernels"]) == 10
        assert said["gpu_busy_fraction"] == pytest.approx(
            sum(k["gpu_ms"] for k in said["kernels"]) / said["duration_ms"], abs=0.01
        )
        assert f"about process {process} on GPU {gpu or 0}" in said["remarks"][0]


def test_a_card_on_which_a_process_only_copied_is_not_the_one_it_is_about(made):
    made.range(0, 100, "training").copy(0, 5, 4096, call=(0, 1))
    for at in range(10, 90, 10):
        made.kernel(at, at + 5, POINTWISE, call=(at - 5, at - 4), device=1)
    found = budget(opened(made))
    assert found.device == 1 and found.ns["other_kernels"] == 40_000
    assert launch.launch(opened(made)).launches == 8


def test_a_cards_number_picks_the_range_of_the_process_that_used_it(made, answer):
    for process, device in ((11, 0), (22, 1)):
        made.range(device, 100 + device, "training", process=process)
        made.kernel(10, 60 + 20 * device, POINTWISE, call=(2, 3), device=device, process=process)
    path = made.write()
    for gpu, busy in (("0", 50), ("1", 70)):
        assert answer(path, "--gpu", gpu)["gpu_busy_fraction"] == pytest.approx(busy / 100)


# --- steps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["aten::empty", "", "(unnamed range)", "ncclAllReduce", "AddmmBackward0"])
def test_what_a_library_repeats_is_no_step(made, name):
    for at in range(0, 100, 10):
        made.range(at, at + 5, name).kernel(at + 3, at + 8, POINTWISE, call=(at + 1, at + 2))
    assert iterations.step_windows(opened(made)) == []


def test_nor_is_what_a_reader_of_data_repeats(made):
    for at in range(0, 100, 10):
        made.range(at, at + 5, "[DALI] run batch", thread=READER).kernel(
            at + 3, at + 8, POINTWISE, call=(at + 1, at + 2)
        )
    assert iterations.step_windows(opened(made)) == []


def test_an_operator_that_comes_again_makes_no_obstacle(tmp_path):
    sides = []
    for number, calls in enumerate((5, 9)):
        build = SyntheticReport(tmp_path / f"{number}.sqlite").kernel(0, 100, GEMM, call=(0, 1))
        for at in range(calls):
            build.range(10 * at, 10 * at + 5, "aten::empty")
        sides.append(opened(build))
    assert compare.compare(*sides).obstacles == ()


# --- one story ----------------------------------------------------------------------------------------------


def test_advice_never_says_less_or_more_than_the_bound(made):
    made.range(0, 1000, "training").kernel(0, 900, UNKNOWN, call=(0, 1)).kernel(900, 1000, "sgemm_128", call=(1, 2))
    report = opened(made)
    bound = predict.bounds(report, budget(report))["mixed_precision"].at_most_ms
    found = found_by_cause(report)
    assert bound == pytest.approx(1.0) == found["unknown_kernels"].upper_bound_ms
    assert "--gpu-metrics-devices" in found["unknown_kernels"].evidence and "ncu" in found["unknown_kernels"].evidence
    assert len(found) == 1


# --- causes -------------------------------------------------------------------------------------------------


def test_a_loader_is_found_by_its_deliveries_beside_a_range_that_names_another(made):
    made.range(0, 100 * MS, "training").range(1 * MS, 2 * MS, "data loading").kernel(0, 1 * MS, POINTWISE, call=(0, 1))
    made.range(50 * MS, 100 * MS, "validation").os_call(51 * MS, 90 * MS, "poll")
    for at, name in enumerate(("connect", "recvmsg", "mmap64")):
        made.os_call(90 * MS + at, 90 * MS + at + 0.5, name)
    made.kernel(91 * MS, 100 * MS, POINTWISE, call=(91 * MS - 9, 91 * MS - 5))
    found = budget(opened(made))
    assert found.ms["loader"] == pytest.approx(1 + 39, abs=0.1) and found.ms["os_wait"] < 0.01
    assert found.held_ms["loader"] == pytest.approx(40, abs=0.1)


def test_a_wait_for_autograd_is_no_delivery_where_a_range_names_the_loader(made):
    made.range(0, 100 * MS, "training").range(1 * MS, 2 * MS, "data loading").range(3 * MS, 60 * MS, "backward")
    made.os_call(4 * MS, 50 * MS, "pthread_cond_wait").kernel(0, 1 * MS, POINTWISE, call=(0, 1))
    for at, name in enumerate(("connect", "recvmsg", "mmap64")):
        made.os_call(51 * MS + at, 51 * MS + at + 0.5, name, thread=READER)
    made.kernel(60 * MS, 100 * MS, POINTWISE, call=(60 * MS - 9, 60 * MS - 5))
    assert budget(opened(made)).ms["loader"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("memory", ["pageable", "pinned"])
def test_item_is_a_synchronisation_whatever_memory_it_copies_to(made, memory):
    made.range(0, 100 * MS, "training")
    for at in range(0, 100 * MS, 10 * MS):
        made.kernel(at + 100, at + 8 * MS, POINTWISE, call=(at + 10, at + 20))
        blocked = (at + 30, at + 9 * MS) if memory == "pageable" else (at + 30, at + 40)
        made.copy(at + 8 * MS, at + 8 * MS + 2, 4, "device to host", memory, call=blocked)
        made.api(blocked[1] + 1, at + 9 * MS + 10, "cudaStreamSynchronize")
    report = opened(made)
    found = budget(report)
    assert found.held_ms["pageable_copy"] == 0 == found.ms["pageable_copy"]
    assert found.held_ms["synchronisation"] == pytest.approx(90, abs=2)
    assert predict.bound(report, found, "pinned_memory").at_most_ms < 0.1
    assert {"synchronisation"} <= {*found_by_cause(report)}


@pytest.mark.parametrize(
    "first", ["cudaMalloc", "cudaEventCreate", "cudaSetDevice", "cuCtxCreate_v2", "cudaLaunchKernel"]
)
def test_start_up_is_no_launch_overhead_and_no_graphs_gain(made, first):
    made.range(0, 2000 * MS, "main program").program("solver")
    made.os_call(1, 2, "read").os_call(1999 * MS, 1999 * MS + 1, "read")
    if first == "cudaLaunchKernel":
        made.kernel(1500 * MS + 5, 1600 * MS, POINTWISE, call=(500 * MS, 1500 * MS))
    else:
        made.api(500 * MS, 1500 * MS, first).kernel(
            1500 * MS + 50, 1600 * MS, POINTWISE, call=(1500 * MS + 20, 1500 * MS + 25)
        )
    report = opened(made)
    found = budget(report, report.window("main program"))
    assert found.ms["cuda_setup"] == pytest.approx(1000, abs=0.1) and found.ms["launch_overhead"] < 1
    later_ms = 2000 - 1600
    assert predict.bound(report, found, "cuda_graph").at_most_ms == pytest.approx(later_ms, abs=1)
    setup = {one.cause: one for one in advice.advice(report, found)}["cuda_setup"]
    assert "once at the start" in setup.evidence and setup.lab is None
    assert launch.launch(report, found.window).verdict == launch.NOT_LOOKED_AT, "one launch of one makes no verdict"


@pytest.mark.parametrize(
    ("program", "label"),
    [
        ("solver", "CPU code"),
        ("julia", "CPU code"),
        ("python3", "CPU code: Python, libraries"),
        (None, "CPU code: Python, libraries"),
    ],
)
def test_only_pythons_time_is_called_python(made, program, label):
    made.range(0, 100, "training").os_call(0, 1, "read").os_call(99, 100, "read").kernel(
        50, 60, POINTWISE, call=(45, 46)
    )
    report = opened(made.program(program) if program else made)
    found = budget(report)
    assert label in found.table()["cause"].tolist()
    said = summary.summary(report)
    assert said["causes"]["python"] == label
    assert program != "solver" or not any("Python" in one["evidence"] for one in said["advice"])


# --- what is not there --------------------------------------------------------------------------------------


def test_without_work_of_a_gpu_nothing_is_promised_and_the_profilers_own_words_come_first(made, ask):
    made.range(0, 100, "training").os_call(10, 90, "poll").diagnostic("No CUDA events collected.\nDoes it use CUDA?")
    made.diagnostic("Profiling has started.", severity=1).diagnostic("No NVTX events collected.", severity=1)
    report = opened(made)
    found = summary.summary(report)
    assert found["advice"] == [] and {summary.plain(one["at_most_ms"]) for one in found["bounds"]} == {None}
    said = "Nsight Systems said: No CUDA events collected. Does it use CUDA?"
    assert found["not_looked_at"][0] == said == found["remarks"][0]
    assert "Profiling has started" not in str(found) and "No NVTX events" in str(found["remarks"])
    assert said in ask(report.path)[1].splitlines()[2]


def test_the_schedulers_events_say_when_a_thread_slept(made):
    made.range(0, 100 * MS, "training").kernel(0, 1 * MS, POINTWISE, call=(0, 1))
    made.kernel(90 * MS, 100 * MS, POINTWISE, call=(90 * MS - 9, 90 * MS - 5))
    made.scheduled(0, 10 * MS).scheduled(60 * MS, 100 * MS)
    found = budget(opened(made))
    assert found.ms["os_wait"] == pytest.approx(50, abs=0.1) and found.ms["python"] == pytest.approx(39, abs=0.2)
    assert not any("--trace osrt" in text for text in found.not_looked_at)
    made._rows["SCHED_EVENTS"][0]["isSchedIn"] = "yes"
    with pytest.raises(ReportError, match="SCHED_EVENTS"):
        budget(opened(made))


# --- comparisons --------------------------------------------------------------------------------------------


def pair(tmp_path, first_us, second_us, kernel=POINTWISE):
    for number, us in enumerate((first_us, second_us)):
        build = SyntheticReport(tmp_path / f"{number}.sqlite").range(0, us, "training")
        yield opened(build.kernel(0, us - 10, kernel, call=(0, 1)))


def test_a_second_that_is_slower_is_called_slower(tmp_path):
    before, after = pair(tmp_path, 100, 4000)
    verdict = compare.compare(before, after).verdict
    assert verdict.startswith("the second is slower by 3.9 ms; what grew most: ")
    assert "other kernels (+3.9 ms)" in verdict


def test_a_gain_that_no_fix_treats_is_named(tmp_path):
    before, after = pair(tmp_path, 3500, 1000, GEMM)
    made = compare.compare(before, after)
    assert made.speedup == 3.5
    assert made.verdict.startswith("no cause that a fix here treats has shrunk. The whole is 2.5 ms shorter; ")
    assert "what shrank most: Tensor Core kernels (−2.5 ms)" in made.verdict


def test_the_fix_that_was_made_is_the_one_that_is_scored(tmp_path):
    before, after = pair(tmp_path, 3500, 1000)
    made = compare.compare(before, after, fix="loader")
    assert made.likely_fix == "loader" and re.match(
        r"enough loader workers, kept alive: [\d,.]+ of at most ", made.verdict
    )
    with pytest.raises(ReportError, match=r"no fix is called 'magic'\. There are: loader"):
        compare.compare(before, after, fix="magic")
    with pytest.raises(ReportError, match=r"no fix is called 'magic'\. There are: loader"):
        made.score("magic")


# --- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["version", "start"])
def test_an_export_that_belongs_to_another_report_is_noticed(made, tmp_path, monkeypatch, sign):
    monkeypatch.setattr(nsys, "find_nsys", lambda: None)
    report = tmp_path / "made.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler\x00 2025.3.1.90-253135822126v0")
    path = made.kernel(0, 1, GEMM).write()
    if sign == "version":
        row = "('EXPORT_PRODUCT_VERSION', '2022.4.2.1')"
        changed(path, "CREATE TABLE META_DATA_EXPORT (name, value)", f"INSERT INTO META_DATA_EXPORT VALUES {row}")
    else:
        table = "TARGET_INFO_SESSION_START_TIME"
        changed(path, f"CREATE TABLE {table} (utcEpochNs)", f"INSERT INTO {table} VALUES ({10**9 * 2_000_000_000})")
    with pytest.raises(ReportError, match="another report's export"):
        open_report(report)


def test_an_export_that_may_be_its_own_is_read_and_named(made, tmp_path):
    report = tmp_path / "made.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler\x00 2022.4.2.1-df9881f")
    os.utime(report, (0, 0))
    made.range(0, 10, "training").kernel(0, 1, GEMM, call=(0, 1)).write()
    said = "read from made.sqlite, the export that lies beside it, if it is its own: nothing in that file says so"
    assert summary.summary(open_report(report))["remarks"] == [said]


# --- what is printed ----------------------------------------------------------------------------------------


def test_long_names_keep_their_numbers_in_view_and_nothing_is_nan(made, ask):
    made.range(0, 100, "training").range(5, 50, "a phase of many words " * 20).copy(60, 60, 0, call=(55, 56))
    made.kernel(20, 40, "k" * 300, call=(10, 11)).graph(70, 80, call=(65, 66))
    status, out, _ = ask(made.write())
    assert status == 0 and "nan" not in out and "inf " not in out
    (line,) = [line for line in out.splitlines() if line.strip().startswith("a phase of many words")]
    assert line.split()[-4:] == ["1", "0.0", "1", "0.0"] and max(map(len, out.splitlines())) <= 120


def test_a_launch_of_a_whole_graph_has_no_nan_microseconds(made):
    made.range(0, 100, "training")
    for at in range(0, 100, 10):
        made.graph(at + 5, at + 9, call=(at, at + 1))
    assert "nan" not in launch.launch(opened(made)).evidence


def test_plain_sums_fit_a_hundred_columns(made, ask):
    for at in range(3):
        made.copy(10**9 * at, 10**9 * (at + 0.9), 2**43, call=(1, 2)).kernel(at, at + 1, "k" * 300, call=(0, 1))
        made.range(0, 5, "r" * 300).memset(0, 10**9, 2**44)
    status, out, _ = ask(made.write(), "--tables")
    assert status == 0 and max(map(len, out.splitlines())) <= 100


def test_a_range_without_a_name_can_be_asked_for(made, ask, answer):
    path = made.range(0, 100, "training").range(10, 30, "").kernel(12, 20, GEMM, call=(11, 12)).write()
    assert answer(path, "--range", "")["duration_ms"] == pytest.approx(0.02)
    plain = SyntheticReport(path.with_name("plain.sqlite")).range(0, 9, "training").kernel(1, 2, GEMM).write()
    assert "no NVTX range called ''" in ask(plain, "--range", "")[2]


def test_escape_sequences_reach_no_terminal(made, ask, answer, tmp_path):
    evil = "\x1b[31m\nred\x1b]0;title\x07"
    path = made.range(0, 100, evil).kernel(12, 20, evil, call=(11, 12)).write()
    folder = tmp_path / "\x1b[31m"
    folder.mkdir()
    refusals = [ask(path, "--range", "\x1b[0m"), ask(folder / "x.sqlite")]
    for status, out, err in [*refusals, ask(path), ask(path, "--tables"), ask(path, "--gpu", evil)]:
        assert all(letter == "\n" or letter.isprintable() for letter in out + err) and status in (0, 2)
    assert [answer(path, *more)["kernels"][0]["name"] for more in ([], ["--tables"])] == [evil, evil]


# --- copies and layouts -------------------------------------------------------------------------------------


def copying(made, **about):
    made.range(0, 1000, "training")
    for at in range(0, 1000, 100):
        made.copy(at, at + 60, 3_000_000, call=(at, at + 2), **about).kernel(
            at + 70, at + 100, GEMM, call=(at + 3, at + 4)
        )
    return found_by_cause(opened(made))["copies"].evidence


def test_pinned_copies_at_link_speed_need_fewer_bytes(made):
    text = copying(made, memory="pinned")
    assert "30.0 MB were copied from pinned memory at 50.0 GB/s. Copy less" in text
    assert text.count("pageable memory") == 1, "none was held, and none is counted"


def test_unified_memory_is_to_be_prefetched(made):
    text = copying(made, memory="managed", direction="unified memory to device")
    assert "10 migrations of unified memory moved 30.0 MB" in text and "cudaMemPrefetchAsync" in text


def test_layout_kernels_beside_tensor_cores_say_channels_last(made):
    layout = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float>"
    made.range(0, 1000, "training").kernel(0, 800, GEMM, call=(0, 1)).kernel(800, 1000, layout, call=(1, 2))
    report = opened(made)
    found = [one for one in advice.advice(report, budget(report)) if "channels_last" in one.evidence]
    assert [round(one.upper_bound_ms, 3) for one in found] == [0.2]


def test_the_process_and_the_card_are_remembered_with_the_window(made):
    report = opened(ddp(made))
    one, other = (threads.about(report, report.extent, gpu) for gpu in (0, 1))
    assert one == other and (one.process, one.gpu, other.process, other.gpu) == (11, 0, 22, 1)
    assert phases.phases(report, one)["kernels"].sum() == 10 == phases.phases(report, other)["kernels"].sum()
