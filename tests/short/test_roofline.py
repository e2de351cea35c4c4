"""Roofs, points and floors by hand; the bytes of a step counted from shapes; the figure and its fingerprint."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.display.fingerprint import drawn_data
from labkit.display.show import described
from labkit.errors import LabError
from labkit.labs import lab11
from labkit.labs.lab09 import exercises, kernels
from labkit.paths import RECORDED
from labkit.subjects import floors, roofline, steps
from labkit.subjects import roofline_charts as figure
from labkit.subjects.floors import Roofs
from labkit.subjects.roofline import COUNTED, FROM_SHAPES, Peaks, Point
from labkit.training import model, sizes
from stepbudget.ncu import counters
from stepbudget.ncu.counters import Counted

PEAKS = Peaks("a GPU", {"fp32": 50.0, "fp16": 780.0, "bf16": 800.0}, tb_per_s=4.0, launch_us={})


def record(scale: float = 1.0, **more) -> dict:
    rows = [
        {"what": "matmul", "dtype": "fp32", "size": 2048, "tflops": 49.0 * scale},
        {"what": "matmul", "dtype": "bf16", "size": 4096, "tflops": 700.0 * scale},
        {"what": "matmul", "dtype": "bf16", "size": 8192, "tflops": 800.0 * scale},
        {"what": "copy", "tb_per_s": 4.0 * scale},
        {"what": "read", "tb_per_s": 3.9 * scale},
        {"what": "write", "tb_per_s": 4.6 * scale},
        {"what": "launch", "how": "graph", "us": 1.0},
        {"what": "launch", "how": "python", "us": 5.0},
    ]
    return {"gpu": "a GPU", "rows": rows, **more}


# --- the roofs ----------------------------------------------------------------------------------------------


def test_the_roofs_are_the_best_size_and_the_median_of_the_runs():
    found = roofline.peaks([record(), record(2.0), record(1.1)])
    assert found.tflops == {"fp32": pytest.approx(53.9), "bf16": pytest.approx(880)}
    assert found.tb_per_s == pytest.approx(4.4), "a copy; writing alone does not count"
    assert found.launch_us == {"graph": 1.0, "python": 5.0}
    assert (found.gpu, found.runs) == ("a GPU", 3)


def test_records_without_roofs_are_named():
    with pytest.raises(LabError, match=r"bench_peaks\.py"):
        roofline.peaks([{"gpu": "a GPU", "rows": [{"what": "launch", "how": "graph", "us": 1.0}]}])


def test_ridge_and_roof_by_hand():
    assert PEAKS.ridge("bf16") == 200
    assert PEAKS.roof(100, "bf16") == 400
    assert PEAKS.roof(200, "bf16") == PEAKS.roof(1000, "bf16") == 800


# --- points -------------------------------------------------------------------------------------------------


def test_a_point_by_hand():
    """1 GFLOP and 10 MB in 5 µs: 100 FLOP/byte, 200 TFLOP/s; memory allows 400, so half of the roof."""
    point = Point("step", "bf16", 1e9, 10e6, 5e-6)
    assert point.intensity == 100
    assert point.tflops == pytest.approx(200)
    assert point.floor_s(PEAKS) == pytest.approx(2.5e-6)
    assert point.share(PEAKS) == pytest.approx(0.5)
    assert point.bound(PEAKS) == "memory"
    assert Point("step", "fp32", 1e9, 10e6, 5e-6).bound(PEAKS) == "arithmetic"


@given(st.floats(1e3, 1e15), st.floats(1e3, 1e12), st.floats(1e-7, 1e3), st.sampled_from(sorted(PEAKS.tflops)))
def test_share_is_the_achieved_rate_by_the_roof_above_it(flops, moved, seconds, dtype):
    point = Point("any", dtype, flops, moved, seconds)
    assert point.share(PEAKS) == pytest.approx(point.tflops / PEAKS.roof(point.intensity, dtype), rel=1e-9)
    at_roof = Point("any", dtype, flops, moved, point.floor_s(PEAKS))
    assert at_roof.share(PEAKS) == pytest.approx(1, rel=1e-9)
    assert point.bound(PEAKS) == ("memory" if flops / moved < PEAKS.ridge(dtype) else "arithmetic")


def test_a_matrix_product_by_hand():
    point = exercises.matmul_point(2, 3, 5, 1.0)
    assert (point.flops, point.moved, point.name) == (60, 2 * (10 + 15 + 6), "2 × 3 × 5")
    assert exercises.matmul_point(2, 3, 5, 1.0, "fp32").moved == 4 * 31


def test_seconds_of_a_step_are_by_samples_not_by_steps():
    epochs = [{"training_s": 99.0}, {"training_s": 2.0}, {"training_s": 4.0}, {}]  # the first is left out; one was cut
    run = {"train_samples": 1500, "epochs": epochs, "arguments": {"batch_size": 1000}}
    slower = {**run, "epochs": [{"training_s": 1.0}, {"training_s": 600.0}]}
    assert roofline.step_seconds([run]) == pytest.approx(3 / 1500 * 1000)
    assert roofline.step_seconds([run, slower, run]) == pytest.approx(4 / 1500 * 1000)


def test_a_step_takes_its_bytes_from_the_counters_where_there_are_some():
    counted = pd.DataFrame({"kernel": ["a", "b"], "bytes": [3e8, 1e8]})
    known = steps.step_point("main_opt7", 4e-4, counted)
    guessed = steps.step_point("main_opt7", 4e-4)
    assert (known.moved, known.source) == (4e8, COUNTED)
    assert (guessed.moved, guessed.source) == (floors.step_traffic("by hand (main_opt7)"), FROM_SHAPES)
    assert known.flops == guessed.flops == 1024 * sizes.training_flops_per_sample()
    assert steps.step_point("main_baseline", 1.0).dtype == "fp32"


def counted(**more) -> pd.DataFrame:
    """Kernels as by_kernel has them; PEAKS: 800 TFLOP/s in BF16, 4 TB/s, a launch 1 µs."""
    rows = [
        # name, µs, MB, GFLOP on Tensor Cores, FP32 GFLOP, issue, L1, L2 in per cent
        ("copying", 100.0, 300.0, 0.0, 0.0, 20, 20, 70),
        ("multiplying", 100.0, 20.0, 60.0, 0.0, 50, 50, 20),
        ("small", 3.0, 0.1, 0.0, 1e-6, 5, 240, 1),
        ("caching", 50.0, 40.0, 0.0, 0.1, 30, 30, 80),
        ("slow", 200.0, 100.0, 20.0, 0.0, 40, 59, 30),
    ]
    frame = pd.DataFrame(rows, columns=["kernel", "time_us", "mb", "gflop", "fp32", "issue_pct", "l1_pct", "l2_pct"])
    return pd.DataFrame(
        {
            **frame[["kernel", "time_us", "issue_pct", "l1_pct", "l2_pct"]],
            "count": 1,
            "bytes": 1e6 * frame["mb"],
            "tensor_flops": 1e9 * frame["gflop"],
            "fp32_flops": 1e9 * frame["fp32"],
            "tensor_type": ["bf16" if own else "" for own in frame["gflop"]],
            "warps_pct": 12.0,
            **more,
        }
    )


def test_what_limits_a_kernel():
    found = roofline.limits(counted(), PEAKS).set_index("kernel")
    assert found["limit"].to_dict() == {
        "copying": "memory",
        "multiplying": "arithmetic",
        "small": "too small",
        "caching": "L2 cache",
        "slow": "waiting",
    }
    assert found.loc["copying", ["memory", "arithmetic", "floor_us", "over_us"]].tolist() == pytest.approx(
        [0.75, 0, 75, 25]
    )
    assert found.loc["multiplying", "floor_us"] == pytest.approx(75)
    assert found.loc["slow", ["busiest", "busiest_pct", "warps_pct"]].tolist() == ["L1, shared memory", 59, 12]
    assert pd.isna(found.loc["small", "busiest"]), "of so few cycles, 240 per cent"


def test_what_was_not_counted_is_unknown_unless_memory_limits_it():
    units = dict.fromkeys(("tensor_flops", "fp32_flops", "issue_pct", "l1_pct", "l2_pct", "warps_pct"), float("nan"))
    found = roofline.limits(counted(**units, tensor_type=""), PEAKS)
    assert found["limit"].tolist() == ["memory"] + ["unknown"] * 4
    assert found["busiest"].isna().all()
    assert "unknown" in str(roofline.limits_table(found))


def test_counted_points_are_by_what_the_hardware_did():
    points = roofline.counted_points(counted())
    assert [(point.name, point.dtype, point.flops) for point in points] == [
        ("multiplying", "bf16", 60e9),
        ("small", "fp32", pytest.approx(1e3)),
        ("caching", "fp32", 1e8),
        ("slow", "bf16", 20e9),
    ]


def test_the_distance_to_the_floor_is_a_product_of_three():
    points = [Point("main_opt3", "fp16", 73e9, 2.8e9, 6e-3, COUNTED), Point("main_opt7", "bf16", 73e9, 3.3e8, 4e-4)]
    timed = {"main_opt3": pd.DataFrame({"time_us": [2000.0, 400.0]}), "main_opt7": pd.DataFrame({"time_us": [380.0]})}
    found = steps.distances(points, timed, PEAKS).frame.set_index("step")
    assert found.loc["main_opt3", ["waiting ×", "slow kernels ×"]].tolist() == pytest.approx([6 / 2.4, 2400 / 700])
    product = found["waiting ×"] * found["slow kernels ×"] * found["bytes and type ×"]
    assert product.tolist() == pytest.approx(found["in all ×"].tolist())
    least = 1024 * sizes.training_flops_per_sample() / 800e12
    assert found["the floor µs"].tolist() == pytest.approx([1e6 * least] * 2)
    assert found.loc["main_opt7", "in all ×"] == pytest.approx(4e-4 / least)
    assert floors.training_floor_s(PEAKS) == pytest.approx(600_000 / 1024 * least)


def test_the_tables_of_the_lab():
    points = [steps.step_point("main_opt7", 4e-4, pd.DataFrame({"kernel": ["a"], "bytes": [3.3e8]}))]
    assert steps.roofs(PEAKS).cells()[-1] == ["BF16", "800", "200"]
    assert "42.9 TFLOP" in str(steps.floor_table(PEAKS))
    found = roofline.limits(counted(), PEAKS)
    limits = roofline.limits_table(pd.concat([found] * 3)).frame
    assert limits["kernel"].tolist()[12:] == ["3 more kinds"] and limits["µs"].tolist()[12] == found["us"][2:].sum()
    plan = kernels.plan(roofline.limits(counted(), PEAKS), top=2).frame
    assert plan["kernel"].tolist() == ["slow", "caching"] and plan["step then µs"].tolist() == pytest.approx([278, 238])
    assert plan["#"].tolist() == [5, 4], "as in the table of limits"
    step = {"main_opt7": pd.DataFrame({"bytes": [3e8, 5e7], "time_us": [1.0, 2.0]})}
    assert steps.traffic(step).frame["MB counted"].tolist() == [350]
    assert "in all ×" in str(steps.distances(points, step, PEAKS))


def test_the_kernels_of_main_opt7_do_all_the_operations_of_a_step_but_fc1s():
    layers = sizes.flops_per_sample()
    assert sum(lab11.opt7_flops().values()) == 1024 * (sizes.training_flops_per_sample() - 3 * layers["fc1"])


# --- other machines -----------------------------------------------------------------------------------------

TURING = Peaks("Tesla T4", {"fp32": 8.0, "tf32": 8.0, "fp16": 50.0}, tb_per_s=0.25, launch_us={})
EMULATES = Peaks("Tesla T4", {"fp32": 8.0, "fp16": 50.0, "bf16": 3.0}, tb_per_s=0.25, launch_us={})
PASCAL = Peaks("GTX 1080", {"fp32": 8.0, "fp16": 0.1}, tb_per_s=0.3, launch_us={})


def test_the_narrow_type_is_one_that_this_gpu_is_fast_in():
    assert [own.narrow for own in (PEAKS, TURING, EMULATES, PASCAL)] == ["bf16", "fp16", "fp16", "fp32"]
    assert [steps.scripts(own)[-1] for own in (PEAKS, TURING)] == ["main_opt7.py", "main_opt6.py"]
    assert TURING.rate("bf16") == 50, "a type without a roof of its own stands under the narrow one's"
    found = floors.floor(TURING).set_index("what")
    assert found.loc["arithmetic", "rate"] == 50
    fp32 = floors.floor(PASCAL).set_index("what").loc["traffic, ideally fused", "amount"]
    assert 1.5 < fp32 / found.loc["traffic, ideally fused", "amount"] < 2, "four bytes a number"
    assert "Tesla T4, in FP16" in str(steps.floor_table(TURING))
    fig = figure.roofline(TURING, [Point("main_opt6", "bf16", 73e9, 1e9, 1e-2)])
    assert "BF16: 50 TFLOP/s" in words_of(fig)
    assert "FP16: 50 TFLOP/s" in words_of(figure.roofline(TURING, [])), "no point, and still its roof"


def test_the_floor_is_of_as_many_epochs_as_the_runs_had():
    short = {"main_opt6.py": [{"epochs": [{}] * 3, "train_samples": 30_000}]}
    assert floors.training_floor_s(PEAKS, short) == pytest.approx(0.15 * floors.training_floor_s(PEAKS))


def a_run(gpu="NVIDIA H200", amp_dtype=None, **arguments):
    arguments |= {"batch_size": 1024} | ({"amp_dtype": amp_dtype} if amp_dtype else {})
    epochs = [{"training_s": 1.0}, {"training_s": 0.6}]
    return {"gpu": gpu, "arguments": arguments, "extras": {}, "epochs": epochs, "train_samples": 60_000}


@pytest.mark.parametrize(
    ("rung", "run", "expected"),
    [
        ("main_opt5", a_run(amp_dtype="bfloat16"), "bf16"),
        ("main_opt5", a_run(amp_dtype="float16"), "fp16"),
        ("main_opt3", a_run(amp_dtype="float32", tf32=True), "tf32"),
        ("main_baseline", a_run(), "fp32"),
        ("main_opt7", a_run(), "bf16"),
    ],
)
def test_a_rungs_type_is_the_one_that_its_runs_say(rung, run, expected):
    assert steps.number_type(rung, [run]) == expected


def test_points_of_the_ladder_are_full_where_counted_and_hollow_elsewhere():
    runs = {"main_opt5.py": [a_run(amp_dtype="float16")], "main_opt6.py": [a_run()]}
    first, second = steps.ladder_points(runs, {"main_opt6": pd.DataFrame({"bytes": [1e9]})})
    assert (first.name, first.dtype, first.source, second.source) == ("main_opt5", "fp16", FROM_SHAPES, COUNTED)
    assert first.seconds == second.seconds == pytest.approx(0.6 / 60_000 * 1024)


def test_what_was_counted_elsewhere_stands_under_that_gpus_roofs(monkeypatch):
    monkeypatch.setenv("LAB_MODE", "recorded")
    monkeypatch.delenv("LAB_RECORDED", raising=False)
    h200 = roofline.peaks([{**record(), "gpu": "NVIDIA H200"}])
    there = Counted(pd.DataFrame(), "ncu …", "NVIDIA H200, 2026-11-21")
    ours = {"main_opt6.py": [a_run()]}
    own = roofline.counted_on(there, h200, ours)
    assert (own.here, own.peaks, own.runs) == (True, h200, ours)
    for peaks, runs in ((TURING, {"main_opt6.py": [a_run("Tesla T4")]}), (h200, {"main_opt6.py": [a_run("Tesla T4")]})):
        found = roofline.counted_on(there, peaks, runs)
        assert (found.here, found.gpu) == (False, "NVIDIA H200")
        assert found.runs["main_opt6.py"][0]["gpu"] == "NVIDIA H200"
    assert not roofline.counted_on(there, h200, {"main_opt6.py": [a_run(None)]}).here, "runs of a CPU alone"


def launches(*names, flops=1e9):
    columns = dict.fromkeys((*counters.BUSY, "tensor_pct", "fp32_flops", "tensor_instructions"), 50.0)
    numbers = {"time_us": 10.0, "read_bytes": 1e6, "written_bytes": 1e6, "bytes": 2e6, "blocks": 85.0, "waves": 0.2}
    frame = pd.DataFrame({"kernel": names, "phase": "", "tensor_flops": flops, "tensor_type": "bf16"})
    return Counted(frame.assign(**columns, **numbers), "ncu …", "a GPU")


def test_two_runs_of_ncu_that_differ_leave_the_units_unknown():
    said = []
    bare = launches("wgrad_a", "b", flops=float("nan"))
    same = roofline.in_depth(bare, launches("wgrad_a", "b"), said.append)
    assert same["tensor_flops"].tolist() == [1e9, 1e9] and not said
    other = roofline.in_depth(bare, launches("wgrad_a"), said.append)
    assert other["tensor_flops"].isna().all() and other["bytes"].tolist() == [2e6, 2e6]
    assert "launched different kernels (2 on a GPU, 1 on a GPU)" in said[0]


def test_conv2s_products_are_those_that_a_kernels_name_tells():
    found = kernels.conv2_products(roofline.in_depth(launches("x_wgrad_y", "b"), launches("x_wgrad_y", "b")))
    assert found[["word", "kernel", "blocks", "waves"]].to_numpy().tolist() == [["wgrad", "x_wgrad_y", 85, 0.2]]
    assert found["needed_gflop"].tolist() == pytest.approx([1024 * 21.233664e-3])
    assert kernels.conv2(found).frame["% of the blocks that fit"].tolist() == pytest.approx([20])
    none = kernels.conv2_products(roofline.in_depth(launches("b"), launches("b")))
    assert none.empty and kernels.conv2(none).frame.empty


def test_a_step_is_summed_and_what_its_kernels_do_is_held_against_what_is_needed():
    own = roofline.in_depth(launches("_conv2_pool", "b", flops=43.5e9), launches("_conv2_pool", "b", flops=43.5e9))
    assert lab11.sums({"a": own}).frame.to_numpy().tolist() == [["a", 2, 20, 4, 87]]
    pool = lab11.done_and_needed(own[own["kernel"] == "_conv2_pool"]).frame.iloc[0]
    assert pool["GFLOP needed"] == pytest.approx(1024 * 21.233664e-3) and pool["GFLOP done"] == 43.5
    assert pool["done / needed"] == pytest.approx(2.0, rel=0.001)


# --- bytes from shapes --------------------------------------------------------------------------------------


def test_the_tensors_have_the_shapes_of_the_network():
    """Against the network itself: what each layer puts out, in numbers a sample."""
    net, sizes = model.Net(), {}
    for name in ("conv1", "conv2", "dropout1"):

        def note(layer, given, out, name=name):
            sizes[name] = out[0].numel()

        net.get_submodule(name).register_forward_hook(note)
    with torch.no_grad():
        net(torch.zeros(2, 1, 28, 28))
    tensors = floors.TENSORS
    assert sizes == {"conv1": tensors["hidden"][0], "conv2": tensors["wide"][0], "dropout1": tensors["pooled"][0]}
    assert floors.parameters() == sum(parameter.numel() for parameter in net.parameters()) == 1_199_882


def test_the_traffic_of_main_opt7_by_hand():
    """conv1's output crosses memory four times, what is pooled six times, its bytes three times, images twice."""
    sample = 4 * 2 * 21_632 + 6 * 2 * 9_216 + 3 * 9_216 + 2 * 784
    assert floors.step_traffic("by hand (main_opt7)") == pytest.approx(1024 * sample + 32 * 1_199_882, rel=1e-12)


def test_each_tensor_counts_once_a_kernel_and_the_optimizer_comes_last():
    counted = floors.kernel_traffic("unfused", batch=1000, dtype="fp32").set_index("kernel")
    assert counted.loc["conv2"].tolist() == pytest.approx([4 * 21_632e-3, 4 * 36_864e-3])
    assert counted.loc["pool", "written_mb"] == pytest.approx((4 + 8) * 9_216e-3)
    assert counted.index[-1] == "optimizer"
    assert counted.loc["optimizer"].sum() == pytest.approx(4 * 27 * 1.199882)


def test_every_way_to_cut_the_step_moves_less_than_the_one_before():
    moved = [floors.step_traffic(step) for step in floors.STEPS]
    assert moved == sorted(moved, reverse=True)
    assert {step for step, _ in steps.RUNGS.values()} < set(floors.STEPS)
    for cut, _ in floors.STEPS.values():
        assert {name for _, read, written in cut for name in f"{read} {written}".split()} <= set(floors.TENSORS)


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_traffic_grows_with_the_samples_and_the_optimizers_does_not(a, b):
    for step in floors.STEPS:
        optimizer = floors.step_traffic(step, 0)
        together = floors.step_traffic(step, a + b)
        assert together + optimizer == pytest.approx(floors.step_traffic(step, a) + floors.step_traffic(step, b))


# --- the floor ----------------------------------------------------------------------------------------------


def test_the_floor_by_hand():
    """600,000 samples of 71.57 MFLOP at 800 TFLOP/s, and 590 steps of traffic at 4 TB/s (the last of 608 samples)."""
    found = floors.floor(PEAKS).set_index("what")
    assert found.loc["arithmetic", "amount"] == pytest.approx(600_000 * 71.565_312e6 / 1e12, rel=1e-6)
    assert found.loc["arithmetic", "ms"] == pytest.approx(1e3 * 42.939187 / 800, rel=1e-6)
    ideal = 10 * (60_000 * (2 * 784 + 5 * 2 * 9_216 + 2 * 9_216) + 59 * 32 * 1_199_882)
    found_ms = found.loc["traffic, ideally fused", "ms"]
    assert found_ms == pytest.approx(1e3 * ideal / 4e12, rel=1e-9)


def test_the_floor_of_the_recorded_gpu_is_that_of_the_prototypes():
    """The prototype's estimates: 54 ms of arithmetic; 237 ms of traffic unfused, 115 as compiled, 19 ideally."""
    found = floors.floor(Peaks("H200", {"bf16": 790.0}, 4.3, {})).set_index("what")["ms"]
    assert found["arithmetic"] == pytest.approx(54, abs=1)
    expected = {"unfused": 237, "as a compiler fuses": 115, "ideally fused": 19}
    for step, ms in expected.items():
        assert found[f"traffic, {step}"] == pytest.approx(ms, rel=0.16)


# --- the figure ---------------------------------------------------------------------------------------------

POINTS = [
    Point("main_baseline", "fp32", 73e9, 3.3e9, 0.1),
    Point("main_opt4", "bf16", 73e9, 2.8e9, 2.6e-3, COUNTED),
    Point("main_opt7", "bf16", 73e9, 3.3e8, 4e-4, COUNTED),
]


def words_of(fig) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts]


def test_the_figure_names_roofs_and_points_and_says_whence_the_bytes_are():
    fig = figure.roofline(PEAKS, POINTS, {"main_opt7": "Triton"})
    assert {"FP32, CUDA cores: 50 TFLOP/s", "BF16: 800 TFLOP/s", "memory: 4.00 TB/s"} < set(words_of(fig))
    assert {"main_baseline  1.5 %", "main_opt4  27 %", "Triton  23 %"} < set(words_of(fig))
    assert "FP16: 780 TFLOP/s" not in words_of(fig), "no point stands under it"
    key = [text.get_text() for legend in fig.legends for text in legend.get_texts()]
    assert {"bytes counted by Nsight Compute", "bytes counted from shapes"} < set(key)
    ax = fig.axes[0]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    drawn = {tuple(line.get_xydata()[0]) for line in ax.lines if line.get_marker() == "o"}
    assert {(point.intensity, point.tflops) for point in POINTS} < drawn
    assert (PEAKS.ridge("bf16"), 800.0) in drawn


def test_the_figures_fingerprint_is_the_same_after_drawing_and_differs_with_a_number():
    fig = figure.roofline(PEAKS, POINTS)
    before = drawn_data(fig)
    fig.canvas.draw()
    assert drawn_data(fig) == before == drawn_data(figure.roofline(PEAKS, POINTS))
    faster = [*POINTS[:2], Point("main_opt7", "bf16", 73e9, 3.3e8, 3.9e-4, COUNTED)]
    assert drawn_data(figure.roofline(PEAKS, faster)) != before
    uncounted = [*POINTS[:2], Point("main_opt7", "bf16", 73e9, 3.3e8, 4e-4)]
    assert figure.roofline(PEAKS, uncounted) is not None
    assert described(fig).startswith("How close each step comes to what the GPU can do [drawn data: ")


@pytest.mark.parametrize("seed", range(5))
def test_words_do_not_cover_each_other_or_leave_the_figure(seed):
    rng = random.Random(seed)
    points = []
    for number in range(8):
        moved, seconds = 1e9 / 10 ** rng.uniform(0.5, 3), 10 ** rng.uniform(-5, -2)
        points.append(Point(f"kernel_{number}", rng.choice(["fp32", "bf16"]), 1e9, moved, seconds))
    fig = figure.roofline(PEAKS, points)
    fig.canvas.draw()
    boxes = [text.get_window_extent() for text in fig.axes[0].texts if text.get_text().startswith("kernel")]
    assert len(boxes) == 8
    shared = sum(
        max(0, min(a.x1, b.x1) - max(a.x0, b.x0)) * max(0, min(a.y1, b.y1) - max(a.y0, b.y0))
        for i, a in enumerate(boxes)
        for b in boxes[:i]
    )
    assert shared < 0.1 * sum(box.width * box.height for box in boxes)
    assert min(min(box.x0, box.y0) for box in boxes) >= 0
    assert all(box.x1 <= fig.bbox.x1 and box.y1 <= fig.bbox.y1 for box in boxes)


# --- what the course shipped with ----------------------------------------------------------------------------


def test_the_recorded_roofs_are_a_gpus():
    files = sorted(RECORDED.glob("*/benchmarks/bench_peaks-*.json"))
    if not files:
        pytest.skip("bench_peaks.py is not recorded yet")
    found = roofline.peaks([json.loads(file.read_text()) for file in files])
    assert found.tflops["fp32"] < found.tflops["tf32"] < found.tflops["bf16"]
    assert found.tb_per_s > 0.1
    assert found.launch_us["graph"] < found.launch_us["python"]


# --- more roofs ---------------------------------------------------------------------------------------------


def product(zeros: float, factor: str = "left", **more) -> dict:
    return {"what": "product", "zeros": zeros, "factor": factor, "size": 64, "tflops": 700.0, **more}


def test_products_without_zeros_and_of_nothing_else():
    rows = [product(0.0, mhz=1500.0, watts=700.0), product(0.75), product(1.0, "both", mhz=None, watts=None)]
    found = steps.zeros([{"gpu": "a GPU", "rows": [*rows, {"what": "copy"}]}])
    assert found["zeros"].tolist() == [0.0, 1.0] and found["mhz"].isna().tolist() == [False, True]


def test_the_table_of_floors_has_multiples_of_the_last_one():
    slow = Roofs("a GPU", tflops=700.0, tb_per_s=4.0, shared_tb_per_s=30.0)
    fast = replace(slow, tflops=1400.0)
    frame = lab11.floors_table({"slow": slow, "fast": fast}, {"main_opt8": 200.0}).frame
    assert frame["the floor"].tolist() == ["all at once", "one after another", "through shared memory"]
    assert (frame["µs, slow"] > frame["µs, fast"])[:2].all()
    assert frame["main_opt8 ×"].tolist() == pytest.approx((200 / frame["µs, fast"]).tolist())
