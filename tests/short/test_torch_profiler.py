"""PyTorch's profiler: a trace made by hand means what it says, a real one is written and read, on the CPU."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import runpy
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import nll_loss
from torch.utils.flop_counter import FlopCounterMode

from labkit import paths
from labkit.display.diffs import diff
from labkit.display.fingerprint import drawn_data
from labkit.errors import LabError
from labkit.labs import lab18
from labkit.paths import SOURCE_CODE
from labkit.subjects import torch_profiler
from labkit.training import ranges, steps
from labkit.training.model import Net
from labkit.training.sizes import flops_per_sample, training_flops_per_sample
from stepbudget import intervals, kernel_names
from stepbudget.ask import budget, copies
from stepbudget.ask.iterations import step_windows
from stepbudget.report import open_report

pytestmark = pytest.mark.filterwarnings(
    "ignore:CUDA initialization", "ignore:Detected call of .lr_scheduler", "ignore:.export_memory_timeline"
)
PID, AUTOGRAD = 4711, 4712
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def event(category: str, name: str, start: float, end: float, thread: int = PID, **arguments) -> dict:
    """One complete event; times in microseconds."""
    place = {"pid": 0, "tid": 7} if category in GPU_WORK else {"pid": PID, "tid": thread}
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, "args": arguments, **place}


def trace() -> dict:
    """Two steps of 100 µs: a wait for the loader, a pinned copy, two kernels (one of the autograd thread), a wait."""
    events = [event("overhead", "CUPTI overhead", 0, 1)]
    for number, at in enumerate((1000.0, 1100.0)):
        kernel = 10 * number
        events += [
            event("user_annotation", f"ProfilerStep#{9 + number}", at, at + 100),
            event("user_annotation", "data loading", at, at + 20),
            event("user_annotation", "forward", at + 20, at + 50),
            event("user_annotation", "Optimizer.step#Adadelta.step", at + 90, at + 95),
            event("cpu_op", "aten::conv2d", at + 25, at + 45, **{"Input Dims": [[8, 1, 28, 28]]}),
            event("cpu_op", "aten::cudnn_convolution", at + 28, at + 40),
            event("cpu_op", "aten::relu", at + 60, at + 70, AUTOGRAD),
            event("cuda_runtime", "cudaMemcpyAsync", at + 20, at + 22, correlation=kernel + 1),
            event("cuda_runtime", "cudaLaunchKernel", at + 30, at + 32, correlation=kernel + 2),
            event("cuda_runtime", "cudaLaunchKernel", at + 62, at + 64, AUTOGRAD, correlation=kernel + 3),
            event("cuda_runtime", "cudaDeviceSynchronize", at + 75, at + 90),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 22, at + 32, correlation=kernel + 1, bytes=4000),
            event("kernel", "sm90_xmma_fprop_warpgroupsize1x1x1", at + 35, at + 65, correlation=kernel + 2, stream=7),
            event("kernel", "void at::native::relu<4>(int)", at + 65, at + 80, correlation=kernel + 3, stream=7),
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at + 30, "pid": PID, "tid": PID},
        ]
    gpu = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "pci": "secret"}
    return {"traceEvents": events, "deviceProperties": [gpu], "host_name": "somebody"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "hand_made.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(torch_profiler.slim(trace())).encode()))
    return path


def test_a_slim_trace_tells_nothing_of_its_machine_and_keeps_details_of_the_first_steps_only():
    slim = torch_profiler.slim(trace(), detailed=1)
    assert "somebody" not in json.dumps(slim)
    assert "secret" not in json.dumps(slim)
    names = [event["name"] for event in slim["traceEvents"]]
    assert names.count("aten::conv2d") == names.count("[memory]") == 1
    assert names.count("cudaLaunchKernel") == 4
    assert min(event["ts"] for event in slim["traceEvents"]) == 0


def test_a_trace_is_a_report(file):
    report = open_report(file)
    window = report.window()
    assert report.name == "hand_made"
    assert report.gpu == "NVIDIA H200"
    assert window.duration_ms == pytest.approx(0.2)
    assert intervals.total(torch_profiler.busy(report, window)) == 2 * 55_000  # the copy, then two kernels in a row
    assert [window.duration_ms for window in step_windows(report, window)] == pytest.approx([0.1, 0.1])
    (row,) = copies.copies(report, window).to_dict("records")
    assert (row["direction"], row["host_memory"], row["bytes"]) == ("host to device", "pinned", 8000)
    kernels = report.kernels
    assert (kernels["api_start"] < kernels["start"]).all()
    assert {thread & 0xFFFFFF for thread in kernels["api_thread"]} == {PID, AUTOGRAD}


def test_the_step_budget_of_a_trace_adds_up(file):
    report = open_report(file)
    found = budget.budget(report, report.window())
    assert sum(found.ns.values()) == 200_000
    assert found.ms["tensor_core_kernels"] == pytest.approx(0.06)
    assert found.ms["other_kernels"] == pytest.approx(0.03)
    assert found.ms["loader"] == pytest.approx(0.04)
    assert found.ms["synchronisation"] > 0


def test_kernels_operators_and_waits(file):
    report = open_report(file)
    window = report.window()
    kernels = torch_profiler.kernels(report, window)
    assert kernels["count"].tolist() == [2, 2]
    assert kernels["gpu_us"].tolist() == pytest.approx([60, 30])
    assert kernels["tensor_cores"].tolist() == ["yes", "no"]
    assert kernels["plugin"].tolist() == ["no", "no"]  # it knows no name of Hopper's
    operators = torch_profiler.operators(report).set_index("operator")
    assert operators["gpu_us"].to_dict() == pytest.approx({"aten::cudnn_convolution": 60, "aten::relu": 30})
    assert operators["tensor_core_share"].to_dict() == {"aten::cudnn_convolution": 1, "aten::relu": 0}
    waits = torch_profiler.waits(report, window).set_index("held_in")
    assert waits.loc["data loading"].tolist() == pytest.approx([2, 0.04, 0.04])
    assert waits.loc["cudaDeviceSynchronize"].tolist() == pytest.approx([2, 0.03, 0.02])


def test_the_same_kernels_of_both_profilers_meet(file):
    report = open_report(file)
    window = report.window()
    second = torch_profiler.step_range(step_windows(report), 2, 2)
    both = torch_profiler.side_by_side((report, window), (report, second))
    assert both["torch_count"].tolist() == [2, 2]
    assert both["nsight_count"].tolist() == [1, 1]
    assert both["torch_us"].tolist() == pytest.approx((2 * both["nsight_us"]).tolist())


@pytest.mark.parametrize(
    ("by_torch", "by_nsight"),
    [
        (
            "void at::native::elementwise_kernel<128, 4, at::native::f<float>(T&)::{lambda(int)#1}>(int, T)",
            "void at::native::elementwise_kernel<(int)128, (int)4, at::native::f<float>(T1 &)::[lambda(int) "
            "(instance 1)]>(int, T3)",
        ),
        (
            "void at::native::(anonymous namespace)::pool<float, true>(int)",
            "void at::native::<unnamed>::pool<float, (bool)1>(int)",
        ),
        ("sm80_xmma_gemm_f32f32", "sm80_xmma_gemm_f32f32"),
    ],
)
def test_names_of_both_profilers_have_one_key(by_torch, by_nsight):
    assert kernel_names.key(by_torch) == kernel_names.key(by_nsight)


def test_names_that_differ_have_different_keys():
    names = ["void at::native::elementwise_kernel<4, FillFunctor<float>>(int)"]
    names += [names[0].replace("Fill", "Add"), names[0].replace("elementwise", "reduce"), "nvjet_hsh_64x8"]
    assert len({kernel_names.key(name) for name in names}) == len(names)


def test_a_mangled_name_is_read_as_far_as_its_words_go():
    """A template of cuDNN's, cut short, as PyTorch leaves it; its words find the kernel that Nsight Systems names."""
    mangled = "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel4ConvINS1_4gemm5ShapeILi64ELi64EEENS4_11MmaTensorOpEEEEEvi"
    read = kernel_names.demangled(mangled)
    assert read == "cutlass__5x_cudnn::Kernel<conv, kernel, Conv, gemm, Shape, MmaTensorOp>"
    assert kernel_names.demangled("sm80_xmma_gemm") == "sm80_xmma_gemm"
    whole = "void cutlass__5x_cudnn::Kernel<conv::kernel::Conv<gemm::Shape<(int)64, (int)64>, MmaTensorOp>>(T1)"
    names = [read, "sgemm"], [whole, "void cutlass__5x_cudnn::Kernel<conv>(T1)"]
    ours, theirs = (pd.Series({kernel_names.key(name): name for name in side}) for side in names)
    same = torch_profiler._same_words(ours, theirs)
    assert same == {kernel_names.key(read): kernel_names.key(whole)}


def test_what_memory_is_for():
    exported = [[100, 110, 120], [[0, 10e6, 0], [0, 10e6, 5e6], [0, 10e6, 0]]]
    found = torch_profiler.memory_by_category(exported, ("parameter", "activation"))
    assert found == {"us": [0, 10, 20], "mb": {"parameter": [10, 10, 10], "activation": [0, 5, 0]}}
    few = torch_profiler.memory_by_category([list(range(50)), [[0, n * 1e6] for n in range(50)]], ("parameter",), 3)
    assert few["mb"]["parameter"][-1] == 49  # the highest stays


def test_the_allocators_history_at_its_peak():
    def told(action, address, size, line):
        frames = [
            {"filename": "/x/site-packages/torch/nn/modules/conv.py", "line": 3, "name": "forward"},
            {"filename": "/course/source_code/main_opt2.py", "line": line, "name": "train"},
        ]
        return {"action": action, "addr": address, "size": size, "frames": frames}

    events = [
        told("alloc", 1, 5_000_000, 22),
        told("free_requested", 9, 1, 0),
        told("alloc", 2, 3_000_000, 24),
        told("free_completed", 1, 5_000_000, 22),
        told("alloc", 3, 1_000_000, 24),
        {"action": "alloc", "addr": 4, "size": 500_000, "frames": []},
    ]
    blocks = [{"size": 4_500_000, "state": "active_allocated"}, {"size": 2_000_000, "state": "active_allocated"}]
    found = torch_profiler.largest_at_peak({"device_traces": [events], "segments": [{"blocks": blocks}]})
    assert (found["allocations"], found["peak_mb"], found["before_mb"]) == (4, 8.0, 2.0)
    assert found["at_peak"] == [
        {"line": "main_opt2.py:22 train", "allocations": 1, "mb": 5.0},
        {"line": "main_opt2.py:24 train", "allocations": 1, "mb": 3.0},
    ]


def test_steps_that_are_not_there():
    with pytest.raises(LabError, match="no steps 3 to 9"):
        torch_profiler.step_range([], 3, 9)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a script of source_code/ in this process, on the CPU; what it prints. Nothing that it changes remains."""
    monkeypatch.syspath_prepend(SOURCE_CODE)
    monkeypatch.setattr("labkit.paths.REPORTS", tmp_path)
    for module, name in ((steps, "phase"), (steps, "Run"), (ranges, "phase"), (ranges, "_on")):
        monkeypatch.setattr(module, name, getattr(module, name))

    def one(script: str, *words: object) -> str:
        monkeypatch.setattr("sys.argv", [str(paths.script(script)), *map(str, words)])
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            runpy.run_path(str(paths.script(script)), run_name="__main__")
        return said.getvalue()

    yield one
    sys.modules.pop("main_opt2", None)


FEW = ["--workers", 0, "--device", "cpu", "--test-batch-size", 40]


def test_a_real_step_is_profiled_on_the_cpu(run, tmp_path):
    record, trace = tmp_path / "r.json", tmp_path / "r.trace.json.gz"
    flags = ["--limit", 24, "--batch-size", 2, "--overhead", 1, "--record", record, "--trace", trace]
    run("profile_torch.py", "main_opt2.py", *flags, *FEW)
    found = json.loads(record.read_text())
    assert found["schedule"] == {"wait": 4, "warmup": 5, "active": 3, "repeat": 1}
    assert [row["profiler"] for row in found["rows"]] == ["off", "plain", "shapes, memory, FLOPs", "and stacks"]
    operators = {row["name"]: row for row in found["operators"]}
    assert operators["aten::conv2d"]["calls"] == 2 * 3  # two layers, three steps
    assert operators["aten::conv2d"]["mflop"] > 0
    report = open_report(trace)
    assert len(step_windows(report)) == 3
    assert {"data loading", "forward", "backward", "optimizer step"} <= set(report.ranges["name"])
    assert found["window_ms"] == pytest.approx(report.window().duration_ms)


def test_the_other_counter_of_pytorch_counts_what_a_step_needs_with_autocast_too():
    """What lab 18 says of ``FlopCounterMode``, against the arithmetic of ``training_flops_per_sample``."""
    for autocast in (False, True):
        net, images = Net(), torch.randn(8, 1, 28, 28)
        with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            nll_loss(net(images), torch.arange(8)).backward()
        assert counter.get_total_flops() == 8 * training_flops_per_sample()


def test_a_recorded_profile_opens_and_its_tables_agree_with_its_trace():
    profile = torch_profiler.profile("profile_torch.py main_opt3.py --memory", show=lambda line: None)
    assert len(profile.steps) == profile.record["schedule"]["active"] == 50
    assert profile.window.duration_ms == pytest.approx(profile.record["window_ms"])
    kernels = torch_profiler.kernels(profile.report, profile.window)
    table = profile.operators
    by_table = table.loc[table["on_gpu"] & ~table["range"], "self_gpu_ms"].sum()
    assert 1e-3 * kernels["gpu_us"].sum() == pytest.approx(by_table, rel=0.05)  # it counts copies, too
    assert (kernels["tensor_cores"] == "yes").any()
    with pytest.raises(LabError, match="another command"):
        torch_profiler.profile("profile_torch.py main_opt3.py", show=lambda line: None)
    with pytest.raises(LabError, match="not recorded"):
        torch_profiler.profile("profile_torch.py main_opt9.py", show=lambda line: None)


def test_the_column_of_flops_misses_the_backward_convolutions_and_doubles_those_under_autocast():
    sizes = flops_per_sample()
    convolutions, products = sizes["conv1"] + sizes["conv2"], sizes["fc1"] + sizes["fc2"]
    part = {"conv2d": convolutions, "addmm": products, "mm": 2 * products}  # a product's gradients are two products
    for step, times in {"main_opt2": 1, "main_opt3": 2}.items():
        found = lab18.counted_flops(torch_profiler.profile(f"profile_torch.py {step}.py --memory", lambda _: None))
        part["conv2d"] = times * convolutions
        needed = {name: 100 * flops / training_flops_per_sample() for name, flops in part.items()}
        assert found == pytest.approx(needed | {"all": sum(needed.values())}, rel=1e-3)


def test_what_the_plugin_sees(tmp_path):
    """Of two kernels of 30 µs on Tensor Cores the older; and one of 15 µs a step that multiplies in FP32."""
    made, path = trace(), tmp_path / "hand_made.trace.json"
    first, fp32, second, again = (event for event in made["traceEvents"] if event.get("cat") == "kernel")
    assert first["name"] == second["name"] == "sm90_xmma_fprop_warpgroupsize1x1x1"
    second["name"] = "volta_h884gemm_64x64_ldg8_nn"
    fp32["name"] = again["name"] = "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize32x32x8_stage3_ffma_kernel"
    path.write_text(json.dumps(made))
    profile = torch_profiler.Profile("hand made", {}, open_report(path), path)
    assert lab18.plugin([profile]) == (50.0, 15.0)
    fp32["name"] = again["name"] = first["name"] = second["name"] = "void at::native::relu<4>(int)"
    path.write_text(json.dumps(made))
    share, wrong_us = lab18.plugin([torch_profiler.Profile("", {}, open_report(path), path)])
    assert np.isnan(share) and wrong_us == 0


def test_the_memory_chart_shows_the_records():
    memory = {"us": [0, 10, 20], "mb": {"parameter": [10, 10, 10], "activation": [0, 5, 0]}}
    other = {"us": [0, 10, 20], "mb": {"parameter": [10, 10, 10], "activation": [0, 6, 0]}}
    first, same, changed = (drawn_data(lab18.memory_timeline({"a": one})) for one in (memory, memory, other))
    assert first == same != changed


def test_the_lesson_script_is_its_step_with_a_profiler(run, tmp_path):
    assert diff("main_opt2.py", "profile_opt2.py").changed() <= 12
    said = run("profile_opt2.py", "--epochs", 1, "--limit", 160, "--batch-size", 5, *FEW)
    assert "Self CPU time total" in said
    assert "aten::" in said
    assert len(step_windows(open_report(tmp_path / "profile_opt2.json.gz"))) == 20
