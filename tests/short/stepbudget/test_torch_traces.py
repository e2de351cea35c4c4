"""A trace of PyTorch's profiler is a report: the same tables, the same answers, and a sentence for what it lacks."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest

import stepbudget as sb
from labkit.paths import RECORDED
from stepbudget.__main__ import main
from stepbudget.ask import copies, flops, iterations, lines, memory, sums
from stepbudget.ask.iterations import step_windows
from stepbudget.ask.ranks import together
from stepbudget.export.annotations import GAP
from traces import AUTOGRAD, MAIN, ORIGIN_US, PID, SyntheticTrace

TRACES = RECORDED / "h200" / "torch_profiler"
PROFILES = RECORDED / "h200" / "profiles"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def bare(path, steps: int = 3, about: dict | None = None) -> SyntheticTrace:
    """Steps of 10 ms that PyTorch alone marks: a wait of 6 ms, a copy, a kernel of 2 ms, ``.item()``."""
    trace = SyntheticTrace(path, **(about or {}))
    for number in range(steps):
        at = 10_000.0 * number
        trace.step(at, at + 10_000, number + 9).range(at + 10, at + 6010, LOADER)
        trace.operator(at + 6020, at + 6200, "aten::to").call(at + 6050, at + 6150, "cudaMemcpyAsync")
        trace.work(at + 6060, at + 6140, PAGEABLE, "gpu_memcpy", bytes=4_000_000)
        trace.operator(at + 6300, at + 6400, "aten::linear", **{"Input Dims": [[64, 512], [256, 512], [256]]})
        trace.launch(at + 6320, at + 6340, at + 8340, "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_ffma_kernel")
        trace.call(at + 6410, at + 8350, "cudaStreamSynchronize")
        trace.range(at + 9000, at + 9900, "Optimizer.step#SGD.step")
    return trace


def test_the_same_tables_as_of_a_report(tmp_path):
    with sb.open(bare(tmp_path / "bare.json.gz").write()) as report:
        assert (report.name, report.gpu, report.profiler, report.nsys_version) == (
            "bare", "NVIDIA H200", "torch.profiler", None,
        )  # fmt: skip
        kernels = report.kernels
        assert kernels["process"].unique().tolist() == [PID] and (kernels["api_start"] < kernels["start"]).all()
        (row,) = copies.copies(report).to_dict("records")
        assert (row["direction"], row["host_memory"], row["bytes"]) == ("host to device", "pageable", 12_000_000)
        assert len(step_windows(report)) == 3
        window = report.window()
        assert (window.name, window.duration_ms, window.thread) == ("training", 30.0, PID << 24 | MAIN)
        found = sb.budget(report)
        assert sum(found.ns.values()) == 30_000_000
        assert found.ms["loader"] == pytest.approx(18, abs=0.1) and found.ms["other_kernels"] == pytest.approx(6)
        assert found.ms["pageable_copy"] > 0 and found.ms["os_wait"] == 0
        assert sb.advice(report)[0].cause == "loader"
        (op,) = flops.flops(report, window).query("sizes.notna()").to_dict("records")
        assert op["op"] == "aten::linear" and op["sizes"] == "[[64, 512], [256, 512], [256]]"


@pytest.mark.parametrize("options", [[], ["--json"], ["--tables"], ["--markdown"], ["--range", "ProfilerStep#10"]])
def test_every_way_to_ask_answers(tmp_path, capsys, options):
    assert main([str(bare(tmp_path / "bare.json").write()), *options]) == 0
    assert capsys.readouterr().out


def test_a_page_and_a_trace_for_perfetto_come_of_it(tmp_path, capsys):
    page, drawn = tmp_path / "a.html", tmp_path / "p.json"
    assert main([str(bare(tmp_path / "bare.json").write()), "--html", str(page), "--trace", str(drawn)]) == 0
    assert "torch.profiler" in page.read_text() and "Nsight Systems" not in page.read_text().partition("<main")[2]
    assert main([str(drawn)]) == 2  # which holds what a question found, and is no recording
    assert "none of the events" in capsys.readouterr().err


def test_what_a_trace_never_holds_is_not_looked_at_and_its_options_are_pytorchs(tmp_path):
    with sb.open(bare(tmp_path / "bare.json").write()) as report:
        said, advice = " / ".join(sb.answer(report)["not_looked_at"]), str(sb.advice(report))
    assert "operating system calls (nsys profile --trace osrt)" in said and "GPU counters (nsys profile" in said
    assert "with_stack=True" in said and "(--" not in said
    assert "operating system calls (nsys profile --trace osrt)" in advice and "(--" not in advice


def test_where_a_trace_holds_no_work_of_a_gpu_the_cures_are_pytorchs(tmp_path, capsys):
    trace = SyntheticTrace(tmp_path / "cpu.json").step(0, 100).operator(10, 90, "aten::linear").write()
    assert main([str(trace)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "record what the GPU does (activities=[…, ProfilerActivity.CUDA]); let no other" in said
    assert "config.ini" not in said and "--trace cuda" not in said


def test_autograds_evaluate_function_in_the_same_thread_is_no_test_that_ends_a_step(tmp_path):
    trace = SyntheticTrace(tmp_path / "cpu.json")
    for number in range(4):
        start = 100 * number
        trace.step(start, start + 99, number + 1)
        trace.range(start + 1, start + 20, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
        trace.operator(start + 50, start + 90, "autograd::engine::evaluate_function: AddmmBackward0")
    with sb.open(trace.write()) as report:
        assert [*iterations.steps(report)["duration_ms"]] == pytest.approx([0.1, 0.1, 0.1, 0.098])


def test_two_traces_compare_and_a_slower_one_fails(tmp_path):
    before, slower = bare(tmp_path / "a.json").write(), bare(tmp_path / "b.json")
    for event in slower.events:
        event["ts"], event["dur"] = ORIGIN_US + 1.5 * (event["ts"] - ORIGIN_US), 1.5 * event["dur"]
    assert main([str(before), "--compare", str(before), "--fail-if-slower", "0.05"]) == 0
    assert main([str(before), "--compare", str(slower.write()), "--fail-if-slower", "0.05"]) == 3


@pytest.mark.parametrize("program", ["main_baseline_nvtx", "main_opt2", "main_opt3", "main_opt4"])
def test_both_profilers_lay_the_same_programs_idle_time_to_the_same_cause(program):
    """Their windows differ: steps 10 to 59 of an epoch, and all of it."""
    with sb.open(TRACES / f"{program}.trace.json.gz") as trace, sb.open(PROFILES / f"{program}.sqlite.xz") as nsight:
        ours, theirs = sb.budget(trace), sb.budget(nsight)
        first = [max(own.idle_causes, key=own.fractions.get) for own in (ours.data, theirs.data)]
        assert first[0] == first[1]
        assert len(step_windows(trace)) == 50 and sb.compare(nsight, trace).comparable is False


def test_the_sums_and_the_tables_read_a_trace_alike():
    file = TRACES / "main_opt3.trace.json.gz"
    found = {row["name"]: row["count"] for row in sums.objects(sums.sums(file))["kernels"]}
    with sb.open(file) as report:
        assert found == report.kernels["name"].value_counts().to_dict()


# --- ranges -------------------------------------------------------------------------------------------------


def test_pytorchs_ranges_stay_where_the_program_names_only_a_part(tmp_path):
    """With ``forward`` alone the loader's wait must not get lost."""
    trace = bare(tmp_path / "some.json")
    for at in (0.0, 10_000.0, 20_000.0):
        trace.range(at + 6300, at + 6400, "forward")
    with sb.open(trace.write()) as report:
        assert {LOADER, "forward", "ProfilerStep#9"} <= set(report.ranges["name"])
        assert sb.budget(report).ms["loader"] == pytest.approx(18, abs=0.1)


def test_the_programs_own_ranges_say_it_where_they_fill_the_step(tmp_path):
    trace = bare(tmp_path / "all.json")
    for at in (0.0, 10_000.0, 20_000.0):
        trace.range(at + 5, at + 6015, "data loading").range(at + 6016, at + 9990, "work")
    with sb.open(trace.write()) as report:
        assert set(report.ranges.query("~operator")["name"]) == {"training", "data loading", "work"}
        assert len(step_windows(report)) == 3


def test_a_range_training_of_the_programs_own_is_the_window(tmp_path):
    with sb.open(bare(tmp_path / "own.json").range(0, 20_000, "training").write()) as report:
        assert report.window().duration_ms == 20 and len(report.windows("training")) == 1


@pytest.mark.parametrize("marked", [False, True], ids=["no range", "a range of next to nothing"])
def test_a_wait_that_no_range_holds_is_found_by_its_gap(tmp_path, marked):
    """kineto#610: the loader's time is 0 where the program plainly waited."""
    trace = bare(tmp_path / "gap.json")
    waits = [event for event in trace.events if event["name"] == LOADER]
    trace.events = [event for event in trace.events if event["name"] != LOADER]
    for event in waits if marked else ():
        trace.events.append({**event, "dur": 3.0})
    with sb.open(trace.write()) as report:
        assert sb.budget(report).ms["loader"] == pytest.approx(18, abs=0.4)
        assert GAP in set(report.ranges["name"])


def test_work_of_the_cpu_before_a_kernel_is_no_wait(tmp_path):
    """A gap that ends in anything but a batch's copy may be Python at work."""
    trace = bare(tmp_path / "busy.json")
    trace.events = [event for event in trace.events if event["name"] not in (LOADER, "aten::to", "cudaMemcpyAsync")]
    with sb.open(trace.write()) as report:
        assert sb.budget(report).ms["loader"] == 0


# --- what else it holds -------------------------------------------------------------------------------------


def test_kernels_of_a_graph_are_its_nodes(tmp_path):
    trace = SyntheticTrace(tmp_path / "graph.json").step(0, 1000).call(10, 20, "cudaGraphLaunch")
    for start in (30, 200, 400):
        trace.work(start, start + 150, "sgemm")
    with sb.open(trace.write()) as report:
        assert (report.kernels["graph_node"] > 0).all()
        assert not any("graph" in text for text in sb.answer(report)["not_looked_at"])


def test_memory_is_what_the_allocator_gave(tmp_path):
    trace = bare(tmp_path / "memory.json")
    for at, size in ((100, 3000), (200, 5000), (300, -3000)):
        told = {"Device Type": 1, "Device Id": 0, "Addr": 64 if abs(size) == 3000 else 128, "Bytes": size}
        event = {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "pid": PID, "tid": MAIN, "args": told}
        trace.events.append({**event, "ts": ORIGIN_US + at})
    with sb.open(trace.write()) as report:
        found = memory.memory(report)
    assert (found.peak_bytes, found.end_bytes, found.allocations, found.frees) == (8000, 5000, 2, 1)


STACK = [  # PyTorch 2.15 on the CPU; the last was frozen at the profiler's start
    ("loop.py(9): train", {"Python id": 2, "Python parent id": 1, "CallFrom": "loop.py:15"}),
    ("torch/nn/modules/module.py(1747): _wrapped", {"Python id": 3, "Python parent id": 2, "CallFrom": "loop.py:13"}),
    ("torch/x.py(1): f", {"Python id": 4, "Python parent id": 3, "CallFrom": "torch/nn/modules/module.py:1800"}),
    ("threading.py(589): wait", {"Python id": 5, "Python parent id": 4, "CallFrom": "torch/x.py:2"}),
]


@pytest.mark.parametrize(("older", "line"), [(False, 13), (True, 9)], ids=["where it was called from", "its beginning"])
def test_a_stack_names_the_line(tmp_path, older, line):
    trace = bare(tmp_path / "stack.json")
    for depth, (name, told) in enumerate(STACK):
        told = {key: value for key, value in told.items() if not (older and key == "CallFrom")}
        trace.event("python_function", depth, 29_999 - depth, name, **told)
    with sb.open(trace.write()) as report:
        found = lines.lines(report, report.window()).query("cause == 'pageable_copy'")
        assert found[["where", "how"]].values.tolist() == [[f"loop.py:{line} in train", "Python backtraces"]]


def rank(path, number: int, by: float) -> SyntheticTrace:
    """A rank of two that comes to its three collectives so much later."""
    told = {"backend": "nccl", "rank": number, "world_size": 2}
    trace = SyntheticTrace(path, distributedInfo=told, baseTimeNanoseconds=10**18).step(0, 30_000)
    for at in (1000.0, 11_000.0, 21_000.0):
        args = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2}
        args |= {"dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Rank": number}
        trace.launch(at - 900, at - 890, at + by - 20, "sgemm")
        trace.operator(at + by - 10, at + by + 10, "record_param_comms", **args)
        trace.call(at + by, at + by + 5, "cudaLaunchKernelExC")
        trace.work(at + by + 10, at + 5000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)")
    return trace


def test_the_ranks_of_a_run_come_together(tmp_path, capsys):
    files = [rank(tmp_path / f"{word}.json", number, by).write()
             for word, number, by in (("x", 1, 3000.0), ("y", 0, 100.0))]  # fmt: skip
    with sb.open(files[0]) as first, sb.open(files[1]) as second:
        found = together([first, second])
        assert [one.number for one in found.ranks] == [0, 1] and found.world == 2 and found.missing == []
        assert (found.late.number, found.late.matched) == (1, 3)
        assert found.table["bytes"].unique().tolist() == [4096]
    assert main([*map(str, files), "--ranks"]) == 0
    assert "rank 1" in capsys.readouterr().out


# --- other makers' GPUs, tried with traces made by hand alone ------------------------------------------------


def test_a_trace_of_rocm_is_read_as_far_as_it_holds_the_same(tmp_path):
    trace = SyntheticTrace(tmp_path / "rocm.json", deviceProperties=[{"id": 0, "name": "AMD Instinct MI300X"}])
    trace.step(0, 10_000).call(100, 130, "hipMemcpyWithStream")
    trace.work(105, 125, "Memcpy HtoD (Host -> Device)", "gpu_memcpy", stream="0x0", bytes=5000)
    trace.call(200, 210, "hipLaunchKernel").work(220, 5000, "Cijk_Ailk_Bljk_SB_MT64x64x16")
    trace.call(300, 5010, "hipDeviceSynchronize")
    with sb.open(trace.write()) as report:
        assert report.gpu == "AMD Instinct MI300X"
        (row,) = copies.copies(report).to_dict("records")
        assert (row["direction"], row["host_memory"]) == ("host to device", "unknown")
        assert report.api["name"].tolist() == ["cudaMemcpy", "cudaLaunchKernel", "cudaDeviceSynchronize"]
        found = sb.answer(report)
        assert any("calls of HIP are shown under the names of CUDA's" in text for text in found["not_looked_at"])
        assert found["budget"]["synchronisation"] > 0


def test_a_trace_of_intels_gpu_is_read_as_far_as_it_holds_the_same(tmp_path):
    trace = SyntheticTrace(tmp_path / "xpu.json", deviceProperties=[{"id": 0, "name": "Intel Data Center GPU Max"}])
    trace.step(0, 10_000).call(100, 130, "urEnqueueUSMMemcpy", category="xpu_runtime")
    trace.work(105, 125, "Memcpy M2D (Memory -> Device)", "gpu_memcpy", bytes=5000)
    trace.call(200, 210, "urEnqueueKernelLaunch", category="xpu_runtime").work(220, 5000, "gemm_kernel")
    trace.call(300, 5010, "urEventWait", category="xpu_runtime")
    with sb.open(trace.write()) as report:
        assert [row["direction"] for row in copies.copies(report).to_dict("records")] == ["host to device"]
        assert report.api["name"].tolist() == ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaEventSynchronize"]
        assert any("calls of SYCL" in text for text in sb.answer(report)["not_looked_at"])


# --- damaged ------------------------------------------------------------------------------------------------


def cut(raw: bytes) -> bytes:
    return raw[: 2 * len(raw) // 3]


def quoted(raw: bytes) -> bytes:
    return raw.replace(b'"aten::linear"', b'"aten::"linear""', 1)


DAMAGES = {
    "cut off": (cut, "ends in the middle"),
    "cut off, packed": (lambda raw: gzip.compress(raw, mtime=0)[:-200], "ends in the middle"),
    "quotes": (quoted, "1 event is damaged"),
    "a time that is none": (lambda raw: raw.replace(b'"dur": 2000.0', b'"dur": "long"', 1), "1 event is damaged"),
    "no number": (lambda raw: raw.replace(b'"dur": 2000.0', b'"dur": NaN', 1), "1 event is damaged"),
    "without an end": (lambda raw: raw[: raw.rindex(b"]")], "ends in the middle"),
    "digits without end": (
        lambda raw: raw.replace(b'"dur": 2000.0', b'"dur": ' + b"9" * 5000, 1),
        "1 event is damaged",
    ),
}


@pytest.mark.parametrize(("change", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_trace_is_read_as_far_as_it_goes_and_says_so(tmp_path, capsys, change, said):
    whole = bare(tmp_path / "whole.json", steps=9)
    file = tmp_path / "damaged.json"
    file.write_bytes(change(whole.text().encode()))
    assert main([str(file)]) == 0
    out = capsys.readouterr().out
    assert said in out and "may be missing" in out and "waiting for the loader" in out


HARMLESS = {
    "letters that are no UTF-8": lambda raw: raw.replace(b"ffma_kernel", b"ffma_\xff\xfe_kernel"),
    "integers beyond 64 bits": lambda raw: raw.replace(b'"stream": 7', b'"stream": 18446744073709551617'),
    "a mark before the text": lambda raw: b"\xef\xbb\xbf" + raw,
    "no object around the list": lambda raw: raw[raw.index(b'"traceEvents": ') + 15 : raw.rindex(b',\n "traceName"')],
    "other orders of keys": lambda raw: json.dumps(json.loads(raw), sort_keys=True).encode(),
    "a lone surrogate": lambda raw: raw.replace(b"ffma_kernel", b"\\ud800_ffma_kernel"),
    "letters that steer": lambda raw: raw.replace(b"ffma_kernel", b"ffma_\x1b[2J\x01_kernel"),
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_what_takes_nothing_away_is_read_like_the_whole(tmp_path, change):
    whole = bare(tmp_path / "whole.json")
    file = tmp_path / "other.json"
    file.write_bytes(change(whole.text().encode()))
    with sb.open(whole.write()) as one, sb.open(file) as other:
        assert sb.budget(one).ns == sb.budget(other).ns and other.losses == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\x1f\x8bbroken", "is damaged: nothing in it can be unpacked"),
        (b'{"traceEvents": 3}', "holds no traceEvents"),
        (b'{"traceEvents": []}', "none of the events"),
        (b"[]", "none of the events"),
        (b'[{"ph": "M"}, 3, null, "x"', "none of the events"),
        (b'{"schema": 1}', "holds no traceEvents"),
        (gzip.compress(b"some text", mtime=0), "holds no traceEvents"),
        (b"[" * 100_000, "none of the events"),
    ],
)
def test_a_file_that_is_no_trace_is_one_sentence(tmp_path, capsys, content, said):
    file = tmp_path / "x.json"
    file.write_bytes(content)
    assert main([str(file)]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_an_event_in_two_pieces_is_one(tmp_path, monkeypatch):
    """Wherever a piece ends, in a number, a name or between two events, the whole is read."""
    whole = bare(tmp_path / "whole.json").write()
    with sb.open(whole) as report:
        expected = sb.budget(report).ns
    for size in (97, 1009, 4096):
        monkeypatch.setattr("stepbudget.export.trace_events.PIECE", size)
        with sb.open(whole) as report:
            assert sb.budget(report).ns == expected and report.losses == []


def test_calls_of_two_threads_keep_them_apart(tmp_path):
    trace = bare(tmp_path / "two.json").launch(9000, 9010, 9100, "relu", AUTOGRAD)
    with sb.open(trace.write()) as report:
        assert {thread & 0xFFFFFF for thread in report.kernels["api_thread"]} == {MAIN, AUTOGRAD}
        assert all(earlier <= later for earlier, later in pairwise(report.kernels["start"]))
