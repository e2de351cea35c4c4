"""The benchmarks of labs 12 and 13 run for real, in small; their rows are read as measured; padding changes nothing."""

from __future__ import annotations

import itertools
import json
import re
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from support.scripts import script

from labkit import paths
from labkit.display.fingerprint import drawn_data
from labkit.display.runs import difference
from labkit.display.spread import Spread
from labkit.errors import LabError
from labkit.labs import lab12, lab13
from labkit.source import recorded
from labkit.subjects import shapes
from labkit.training import machine, steps
from labkit.training.model import Net
from labkit.training.number_types import missing
from stepbudget import kernel_names
from stepbudget.ask import tensor_cores
from stepbudget.report import open_report

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

SIMT, TENSOR = "cutlass_80_simt_sgemm_128x64_8x5_nn_align1", "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
LAYOUT = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(T1 *)"


@pytest.fixture
def recorded_by(tmp_path, monkeypatch):
    """Runs a benchmark in this process, on the CPU, and returns its record."""

    def run(name: str, flag: str) -> dict:
        file = tmp_path / "record.json"
        monkeypatch.setattr(sys, "argv", [name, flag, "--record", str(file)])
        script(name).main()
        return json.loads(file.read_text())

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(steps, "pick_device", lambda wanted: torch.device("cpu"))
    yield run
    steps.set_fp32_precision(tf32=False)


# The benchmarks


def test_the_benchmark_multiplies_what_it_says_and_as_exactly_as_each_type_can(recorded_by):
    record = recorded_by("bench_shapes.py", "--tiny")
    products, convolutions = shapes.products([record]), shapes.convolutions([record])
    assert {"one", "all", "stride", "layout"} < set(products["part"])
    assert (products[products["part"] == "one"]["varied"].value_counts() > 0).reindex(["", "m", "n", "k"]).all()
    for frame, types in ((products, shapes.TYPES), (convolutions, shapes.TYPES[:4])):
        done = frame[frame["refused"].isna()]
        assert (done["us"] > 0).all() and (done["low_us"] <= done["us"]).all() and (done["us"] <= done["high_us"]).all()
        assert set(frame["dtype"]) == set(types)
        # Half a unit in the last place is the largest rounding of one input: 24, 24 (a CPU has no TF32), 11, 8, 4 bits.
        for dtype, bits in zip(types, (24, 24, 11, 8, 4), strict=False):
            errors = done.loc[done["dtype"] == dtype, "error"]
            assert len(errors) == 0 or errors.between(2.0**-bits / 8, 2.0**-bits * 8).all(), dtype
    assert not convolutions["refused"].any()
    assert not products.loc[products["dtype"] != "fp8", "refused"].any()


def test_thin_products_and_odd_batches_are_rows_like_the_others(recorded_by, monkeypatch):
    monkeypatch.syspath_prepend(paths.BENCHMARKS)  # where it lies when it runs
    record = recorded_by("bench_thin.py", "--tiny")
    products = shapes.products([record])
    few = products[products["part"] == "thin"]
    assert {(1, 32), (32, 1), (1, 1), (2, 32), (32, 2)} == {*zip(few["m"], few["n"], strict=True)}
    batches = products[products["part"].str.startswith("batch")]
    assert set(batches.loc[batches["varied"] == "k", "part"]) == {"batch weight gradient"}
    assert (
        (products["us"] > 0).all() and not products["refused"].any() and set(products["dtype"]) == set(shapes.TYPES[:4])
    )
    for dtype in shapes.TYPES[:4]:
        wide = lab12.by_batch(record, dtype)
        assert list(wide) == ["forward", "input gradient", "weight gradient", "step"]
        assert list(wide.index) == [3, 4] and (wide["step"] > 0).all()
    wide = lab12.by_batch(record, "bf16")
    of_weights = batches.query("part == 'batch weight gradient' and k == 3 and dtype == 'bf16'")
    assert wide.loc[3, "weight gradient"] == of_weights["us"].item()


def test_matrices_lie_in_memory_as_the_row_says():
    bench = script("bench_shapes.py")
    values = torch.randn(3, 5)
    assert bench.stored(values, "n").stride() == (5, 1)
    assert bench.stored(values, "t").stride() == (1, 3)
    assert bench.stored(values, "n", "padded").stride() == (64, 1)
    assert bench.stored(values, "n", "odd").stride() == bench.stored(torch.randn(3, 6), "n", "odd").stride() == (7, 1)
    assert bench.stored(values, "t", "padded").stride() == (1, 64)
    for layout, stride in itertools.product("nt", ("tight", "padded", "odd")):
        assert torch.equal(bench.stored(values, layout, stride), values)
    case = {"layout": "nt", "stride": "tight", "part": "all"}
    call = bench.product_of(case, "bf16", values, torch.randn(5, 2))
    a, b = call.args
    assert (a.stride(), b.stride(), a.dtype) == ((5, 1), (1, 5), torch.bfloat16)
    call()
    assert torch.equal(call.keywords["out"], a @ b)


def test_a_convolution_goes_back_as_autograd_does():
    bench = script("bench_shapes.py")
    case = {"what": "conv", "layer": "wide", "padding": 1}
    x, weight = torch.randn(2, 3, 6, 6, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    result = F.conv2d(x, weight, padding=1)
    gradient = torch.randn_like(result)
    result.backward(gradient)
    for layout in ("NCHW", "channels_last"):
        own = [one.detach() for one in (x, weight, gradient)]
        found = bench.convolution_of(case, torch.float32, layout, "backward", *own)()
        assert torch.allclose(found[0], x.grad, atol=1e-4) and torch.allclose(found[1], weight.grad, atol=1e-4)
    first = bench.convolution_of(case | {"layer": "first"}, torch.float32, "NCHW", "backward", *own)()
    assert first[0] is None, "the first layer's input needs no gradient"


def test_operations_are_counted_from_the_sizes():
    conv2 = {"what": "conv", "layer": "conv2", "images": 1, "c_in": 32, "c_out": 64, "size": 26, "padding": 0}
    assert shapes.flops(conv2 | {"direction": "forward"}) == 2 * 24 * 24 * 64 * 32 * 9
    assert shapes.flops(conv2 | {"direction": "backward"}) == 4 * 24 * 24 * 64 * 32 * 9
    first = conv2 | {"layer": "first", "c_in": 1, "size": 28, "direction": "backward"}
    assert shapes.flops(first) == 2 * 26 * 26 * 64 * 9
    assert shapes.flops({"what": "matmul", "m": 3, "n": 5, "k": 7}) == 210


def test_only_operators_tell_their_kernels():
    """As torch 2.11 has it: a runtime call with an operator's number, and the kernels of another operator."""
    bench = script("bench_shapes.py")

    def event(name, kernels=(), inner=()):
        kernels = [SimpleNamespace(name=kernel, duration=us) for kernel, us in kernels]
        return SimpleNamespace(name=name, kernels=kernels, cpu_children=list(inner))

    launch = event("cudaLaunchKernel", [(TENSOR, 5.0), (SIMT, 9.0)])
    product = event("aten::mm", [(TENSOR, 5.0), ("Memset (Device)", 1.0)], [launch])
    found = bench._kernels(event("case 1", [("case 1", 7.0)], [event("aten::linear", inner=[product])]))
    assert list(found) == [(TENSOR, 5.0)]


# Reading the rows

MANGLED = (
    "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS_4gemm9GemmShapeILi64ELi128ELi16EEE"
    "NS5_4warp11MmaTensorOpIS7_fLb1EEEEEEEvNT_6ParamsE"
)


def test_a_mangled_name_is_read_by_its_words():
    assert kernel_names.demangled(TENSOR) == TENSOR
    words = re.findall(r"\w+", kernel_names.demangled(MANGLED))
    assert words[:4] == ["cutlass__5x_cudnn", "Kernel", "conv", "kernel"]
    assert {"ImplicitGemmConvolution", "GemmShape", "MmaTensorOp", "Params"} <= set(words)
    assert shapes.verdict([MANGLED]) == "yes"
    assert shapes.verdict([SIMT, "void flip_filter<float, float>(float*)"]) == "no", "a helper does not make it unknown"
    assert shapes.verdict([]) is None


def row(dtype: str, us: float, kernels=(0,), kernel_us=(1.0,), **more) -> dict:
    case = {"what": "matmul", "part": "one", "base": 64, "varied": "", "layout": "nn", "stride": "tight"}
    measured = {"error": 1e-3, "calls": 1, "us": us, "low_us": us - 1, "high_us": us + 2}
    kernels = {"kernels": list(kernels), "kernel_us": list(kernel_us)}
    return {**case, "m": 64, "n": 64, "k": 64, "dtype": dtype, **measured, **kernels, **more}


def record(*rows) -> dict:
    return {"rows": list(rows), "kernels": [TENSOR, SIMT, LAYOUT]}


def test_rounds_become_one_row_with_their_median_and_range():
    found = shapes.products([record(row("bf16", us)) for us in (9.0, 5.0, 6.0)])
    assert len(found) == 1
    one = found.iloc[0]
    assert (one["us"], one["low_us"], one["high_us"]) == (6.0, 4.0, 11.0)
    assert one["tflops"] == pytest.approx(2 * 64**3 / 6e-6 / 1e12)
    assert (one["tensor_cores"], one["kernel"], one["refused"]) == ("yes", TENSOR, None)


def test_rounds_of_different_cases_are_not_mixed():
    with pytest.raises(LabError, match="different cases"):
        shapes.products([record(row("bf16", 1.0)), record(row("fp16", 1.0))])


def test_a_layer_by_its_channels_is_forward_and_backward_together():
    case = {"what": "conv", "layer": "wide", "images": 1, "size": 4, "padding": 1}
    rows = [
        row("bf16", us) | case | {"c_in": width, "c_out": width, "layout": layout, "direction": direction}
        for width, layout, direction, us in (
            (8, "NCHW", "forward", 1.0),
            (8, "NCHW", "backward", 3.0),
            (8, "channels_last", "forward", 1.0),
            (8, "channels_last", "backward", 1.0),
            (16, "NCHW", "forward", 5.0),
            (16, "channels_last", "forward", 6.0),
        )
    ]
    found = lab13.by_channels(shapes.convolutions([record(*rows)])).frame.set_index("channels")
    assert found["NCHW µs"].to_dict() == {8: 4.0, 16: 5.0}
    assert found["channels_last µs"].to_dict() == {8: 2.0, 16: 6.0}
    assert found.loc[8, "NCHW TFLOP/s"] == pytest.approx(3 * 2 * 4 * 4 * 8 * 8 * 9 / 4.0 / 1e6)  # backward: twice


def test_the_kernel_that_multiplies_is_named_and_layout_copies_are_counted():
    found = shapes.products([record(row("fp16", 4.0, (2, 0), (3.0, 1.0)), row("fp32", 4.0, (1,)))])
    assert list(found["kernel"]) == [TENSOR, SIMT]
    assert list(found["tensor_cores"]) == ["yes", "no"]
    assert list(found["layout_share"]) == [0.75, 0.0]


def test_what_was_refused_has_no_time():
    refused = {name: value for name, value in row("fp8", 1.0, (), ()).items() if "us" not in name and name != "error"}
    found = shapes.products([record(row("bf16", 1.0), refused | {"kernel_us": [], "refused": "by 16"})])
    assert found["refused"].tolist() == [None, "by 16"]
    assert found["us"].isna().tolist() == [False, True]
    assert found["tensor_cores"].tolist() == ["yes", None]


# Figures


def test_figures_change_with_what_they_show():
    rows = [
        row(dtype, us, varied=varied, **({varied: size} if varied else {}), part=part)
        for part in ("one", "all")
        for varied in ("", "m", "n", "k")
        for size in ((64,) if not varied else (63, 72))
        for dtype, us in (("bf16", 5.0), ("fp32", 20.0))
    ]
    frame = shapes.products([record(*rows)])
    first = lab12.by_dimension(frame)
    assert [ax.get_title(loc="left") for ax in first.axes] == ["M varied", "N varied", "K varied"]
    assert drawn_data(lab12.by_dimension(frame)) == drawn_data(first)
    other = frame.assign(tflops=frame["tflops"].where(frame["varied"] != "k", frame["tflops"] * 0.5))
    assert drawn_data(lab12.by_dimension(other)) != drawn_data(first)
    without = frame.assign(tensor_cores="no")
    assert drawn_data(lab12.by_dimension(without)) != drawn_data(first)
    assert len(lab12.together(frame[frame["varied"].isin(["", "n"])]).axes) == 1


def test_bars_of_layouts_are_as_long_as_forward_and_backward():
    case = {"what": "conv", "layer": "wide", "images": 1, "c_in": 8, "c_out": 8, "size": 4, "padding": 1}
    rows = []
    for layout, us in (("NCHW", 30.0), ("channels_last", 10.0)):
        for direction in ("forward", "backward"):
            rows.append(row("bf16", us, (0, 2), (3.0, 1.0)) | case | {"layout": layout, "direction": direction})
    fig = lab13.layout_bars(shapes.convolutions([record(*rows)]), {"wide": 8})
    assert sorted(patch.get_width() for patch in fig.axes[0].patches) == [5.0, 15.0, 20.0, 60.0]


def test_a_layout_that_was_refused_is_a_dash_in_its_type_s_row():
    rows = [row("bf16", us, part="layout", layout=layout) for layout, us in (("nn", 5.0), ("nt", 4.0))]
    fp8 = row("fp8", 2.0, part="layout", layout="nt")
    found = lab12.by_layout(shapes.products([record(*rows, fp8)]))
    assert list(found.frame) == ["type", "m = n = k", "nn µs", "nt µs"]
    assert found.cells() == [["BF16", "64", "5.0", "4.0"], ["FP8", "64", "–", "2.0"]]


def test_channels_are_shown_with_the_largest_power_of_two_in_them():
    rows = [
        {"layer": "wide", "c_in": width, "dtype": "bf16", "layout": layout, "us": us, "tflops": rate}
        for width in (255, 264, 320)
        for layout, us, rate in (("NCHW", 30.0, 100.0), ("channels_last", 10.0, 300.0))
    ]
    found = lab13.by_channels(pd.DataFrame(rows))
    assert found.frame["a multiple of"].tolist() == [1, 8, 64]
    assert found.cells()[0] == ["255", "1", "30", "10", "100", "300"]


def test_epochs_are_compared_run_by_run():
    times = {"a.py": [100.0, 110.0, 120.0], "b.py": [105.0, 110.0, 132.0]}
    runs = {name: [{"epochs": [{}, {"training_s": ms / 1e3}]} for ms in own] for name, own in times.items()}
    found = shapes.epochs(runs, {"a.py": "plain", "b.py": "other"})
    assert found.cells() == [
        ["plain", "110.0", "100.0–120.0", "0.0"],
        ["other", "110.0", "105.0–132.0", "+5.0"],
    ]


def test_with_channels_last_other_copies_come_instead():
    folder = recorded.folder() / "profiles"
    reports = {name: open_report(folder / f"{name}.sqlite.xz") for name in ("main_shapes", "main_shapes_last")}
    found = lab13.moves(reports).frame.set_index("kernels").set_axis(["plain", "last"], axis="columns")
    own = tensor_cores.kernels(reports["main_shapes"])
    layout_ms = own.loc[own["kernel"].str.contains("nchwToNhwc|nhwcToNchw"), "gpu_ms"].sum()
    for report in reports.values():
        report.close()
    assert found.loc["layout copies", "plain"] == pytest.approx(layout_ms)
    assert found.loc["layout copies", "last"] < layout_ms / 2
    assert found.loc["other copies", "last"] > 2 * found.loc["other copies", "plain"]


def probe(environment: str, statements: str, matmul: str | None, conv: str | None, refused: dict | None = None) -> dict:
    errors = {"matmul_error": 3e-4 if matmul else None, "conv_error": 3e-4 if conv else None}
    return (
        {"environment": environment, "statements": statements, "matmul": matmul, "conv": conv}
        | errors
        | {"refused": refused or {}}
    )


def test_the_table_of_switches_says_what_was_refused_and_what_came_from_outside():
    rows = [
        probe("", "", "TF32", "TF32"),
        probe("", lab13.IEEE, None, "FP32", {"matmul": "no"}),
        probe("NVIDIA_TF32_OVERRIDE=0", lab13.OLD_ON, "FP32", "FP32"),
        probe("", "another = 1", "FP32", "FP32"),
    ]
    found = lab13.switches({"rows": rows, "versions": {"torch": "2.11.0+cu130"}})
    assert found.caption.endswith("PyTorch 2.11.0's switches")
    first, second, third = found.cells()
    assert first == ["nothing", "TF32", "3.0e-04", "TF32", "3.0e-04", "–"]
    assert second == ["fp32_precision = 'ieee'", "refused", "–", "FP32", "3.0e-04", "no product"]
    assert third[0] == "NVIDIA_TF32_OVERRIDE=0: cuda.matmul.allow_tf32 = True; cudnn.allow_tf32 = True"


def test_the_settings_of_the_table_are_probes_of_the_benchmark():
    bench = script("bench_tf32.py")
    assert (bench.OLD_ON, bench.OLD_OFF, bench.NEW_OFF) == (lab13.OLD_ON, lab13.OLD_OFF, lab13.IEEE)
    everywhere = {(name, one) for name in bench.ENVIRONMENTS for one in bench.IN_EVERY_ENVIRONMENT}
    assert set(lab13.SETTINGS) <= everywhere | {("", one) for one in bench.ALONE}


# A GPU without some of the types


@pytest.mark.parametrize(
    ("capability", "lacks"),
    [((7, 5), {"tf32", "bf16", "fp8"}), ((8, 0), {"fp8"}), ((8, 9), set()), ((9, 0), set()), ((12, 0), set())],
)
def test_types_came_with_generations(monkeypatch, capability, lacks):
    monkeypatch.setattr(machine, "capability", lambda: capability)
    assert missing(torch.device("cuda")) == lacks
    assert missing(torch.device("cpu")) == set(), "a CPU imitates them all"


def test_a_type_that_the_gpu_lacks_has_rows_without_times(monkeypatch):
    bench = script("bench_shapes.py")
    monkeypatch.setattr(bench, "missing", lambda device: {"tf32", "bf16", "fp8"})
    device = torch.device("cpu")
    cases = [case for case in bench.products(bench.TINY) if case["part"] == "layout"][:1]
    rows = list(bench.measure(cases, bench.prepare_products, device))
    assert {row["dtype"]: row.get("refused") for row in rows} == {
        "fp32": None, "fp16": None, "tf32": bench.NOT_HERE, "bf16": bench.NOT_HERE, "fp8": bench.NOT_HERE,
    }  # fmt: skip
    assert len(bench.ask_kernels(cases, bench.prepare_products, device)) == len(rows), "a list a row, empty ones too"


def without_new_types(record: dict) -> dict:
    """A record of ``bench_shapes.py`` as a Turing GPU would have made it."""
    rows = []
    for one in record["rows"]:
        if one["dtype"] in ("tf32", "bf16", "fp8"):
            one = {name: value for name, value in one.items() if name not in shapes.MEASURED_FIELDS}
            one |= {"refused": "not on this GPU", "kernels": [], "kernel_us": []}
        rows.append(one)
    return record | {"rows": rows}


def test_fp16_stands_in_where_there_is_no_bf16():
    records = recorded.records("benchmarks", "bench_shapes.py")
    products = shapes.products(records)
    assert shapes.half_type(products) == "bf16"
    turing = [without_new_types(one) for one in records]
    old, convolutions = shapes.products(turing), shapes.convolutions(turing)
    assert shapes.half_type(old) == "fp16"
    assert len(lab12.by_dimension(old).axes) == 3 and drawn_data(lab12.by_dimension(old))
    bars = lab13.layout_bars(convolutions, {"conv2": 32})
    assert [text.get_text() for text in bars.axes[0].get_yticklabels()] == ["FP32", "FP16"]


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ([1.043, 1.042, 1.037], "longer in each of 3 rounds, by +3.7 % to +4.3 %"),
        ([0.907, 0.917, 0.906], "shorter in each of 3 rounds, by −9.4 % to −8.3 %"),
        ([1.010, 0.998, 1.002], "no difference shows: −0.2 % to +1.0 % in 3 rounds"),
        (
            [0.989, 0.994, 0.998],
            "no difference shows: −1.1 % to −0.2 % in 3 rounds",
        ),  # nearer to 1 than to each other
        ([1.043, 1.042], "longer in each of 2 rounds, by +4.2 % to +4.3 %"),
        ([0.980, 0.986], "no difference shows: −2.0 % to −1.4 % in 2 rounds"),  # two may agree by chance
        ([1.04], "+4.0 % in a single round, in which a few per cent mean nothing"),
    ],
)
def test_rounds_in_pairs_say_whether_two_times_differ(rounds, said):
    assert difference(Spread.of(rounds)) == said


# The step script


def test_padded_classes_never_win_and_change_no_gradient():
    main = script("main_shapes.py")
    torch.manual_seed(1)
    padded, plain = main.shaped(127, 16), main.shaped(127, 10)
    same = dict(padded.state_dict(), **{name: padded.state_dict()[name][:10] for name in ("fc2.weight", "fc2.bias")})
    plain.load_state_dict(same)
    images, target = torch.randn(32, 1, 28, 28), torch.arange(32) % 10
    outputs, gradients = [], []
    for model in (padded, plain):
        model.eval()
        output = model(images)
        F.nll_loss(output, target).backward()
        outputs.append(output)
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert torch.allclose(outputs[0][:, :10], outputs[1], atol=1e-6)
    assert outputs[0].argmax(1).max() < 10 and outputs[0][:, 10:].max() < -1e3
    for own, expected in zip(*gradients, strict=True):
        assert torch.allclose(own[: len(expected)], expected, atol=1e-7)
        assert not own[len(expected) :].any(), "what is padding gets no gradient, and so stays"


def test_padding_stays_padding_through_training():
    main = script("main_shapes.py")
    torch.manual_seed(1)
    model = main.shaped(16, 16)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.nll_loss(model(torch.randn(8, 1, 28, 28)), torch.arange(8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model.fc2.weight.grad[:10].any()
    assert not model.fc2.weight[10:].any() and (model.fc2.bias[10:] == -1e4).all()


def test_the_usual_sizes_are_the_course_s_network_number_for_number():
    main = script("main_shapes.py")
    torch.manual_seed(1)
    found = main.shaped(128, 10).state_dict()
    torch.manual_seed(1)
    expected = Net().state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("words", [["--hidden", "0"], ["--classes", "9"], ["--hidden", "many"], ["--channels"]])
def test_wrong_sizes_are_refused_with_status_2(monkeypatch, capsys, words):
    main = script("main_shapes.py")
    monkeypatch.setattr(sys, "argv", ["main_shapes.py", *words])
    with pytest.raises(SystemExit) as end:
        main.parse_args()
    assert end.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_its_own_flags_are_recorded_beside_the_common_ones(monkeypatch):
    main = script("main_shapes.py")
    monkeypatch.setattr(sys, "argv", ["main_shapes.py", "--hidden", "127", "--seed", "3", "--channels-last"])
    args = main.parse_args()
    assert (args.hidden, args.classes, args.channels_last, args.seed, args.epochs) == (127, 10, True, 3, 10)


def test_the_linear_layers_of_a_report_are_told_by_their_sizes():
    """On the recorded reports: six products, in all steps but the last, short one; slower in the odd size."""
    us = {}
    for name in ("main_shapes_127_ops", "main_shapes_ops"):
        with open_report(recorded.folder() / "profiles" / f"{name}.sqlite.xz") as report:
            found = lab12.linear_ops(report)
        parts = ("forward", "input gradient", "weight gradient")
        assert list(found["product"]) == [f"{layer} {part}" for layer in ("fc1", "fc2") for part in parts]
        assert set(found["ops"]) == {58} and set(found["tensor_cores"]) == {"using"}
        us[name] = found["us"]
    assert (us["main_shapes_127_ops"] > us["main_shapes_ops"]).all()
