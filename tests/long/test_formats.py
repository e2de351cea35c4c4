"""Lab 23's benchmarks run for real, in small, on the CPU; FP8 layers, rounding and block scales do what they say."""

from __future__ import annotations

import ast
import json
import sys

import nbformat
import pytest
import torch
from support.scripts import script
from torch import nn

from labkit import course
from labkit.display.fingerprint import drawn_data
from labkit.exercises.kinds import NothingToAnswer
from labkit.kernels import bf16_adamw, float8
from labkit.labs import lab23
from labkit.labs.lab23 import blocks
from labkit.labs.lab23.exercises import smallest_width
from labkit.labs.lab23.first_bad import first_bad
from labkit.labs.lab23.formats import BYTES, fails_gate
from labkit.labs.lab23.fp8 import has_fp8
from labkit.labs.lab23.sequences import around, narrow
from labkit.training import machine, steps
from labkit.training.text import KNOWS_NOTHING

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def true_fp32_again():
    yield
    steps.set_fp32_precision(tf32=False)


@pytest.fixture
def recorded_by(tmp_path, monkeypatch):
    """Runs a benchmark in this process, on the CPU, and returns its record."""

    def run(name: str, *flags: str, **smaller: int) -> dict:
        file, bench = tmp_path / "record.json", script(name)
        for constant, value in smaller.items():
            monkeypatch.setattr(bench, constant, value)
        monkeypatch.setattr(sys, "argv", [name, *flags, "--record", str(file)])
        bench.main()
        return json.loads(file.read_text(), parse_constant=pytest.fail)  # NaN and Infinity are not JSON

    monkeypatch.setattr(steps, "pick_device", lambda wanted: CPU)
    return run


# The benchmarks


def test_every_format_trains_and_says_what_it_keeps(recorded_by):
    flags = ("--device", "cpu", "--seeds", "1", "--iterations", "40", "--batch-size", "16")
    record = recorded_by("bench_formats.py", *flags, WIDTH=32, LENGTH=16, TESTED=64, TIMED=3)
    rows = {row["variant"]: row for row in record["rows"]}
    assert len(rows) == 9
    for row in rows.values():
        assert row["losses"][0] == pytest.approx(rows["fp32"]["losses"][0], rel=0.01), "all begin at the same weights"
        assert record["least_loss"] < row["test_loss"] < KNOWS_NOTHING and 0 < row["possible_pct"] <= 100
        assert row["step_ms"] > 0 and [one["iteration"] for one in row["unchanged"]] == [4, 20, 36]
    weights = rows["fp32"]["weight_bytes"]
    for variant, share, state in (("fp32", 1, 2), ("bf16 AdamW", 0.5, 1), ("bf16 stochastic", 0.5, 1)):
        assert rows[variant]["weight_bytes"] == share * weights and rows[variant]["state_bytes"] == state * weights
    assert rows["bf16 master"]["state_bytes"] == 3 * weights, "a copy of the weights, and two moments"
    assert rows["fp8 linear"]["weight_bytes"] == weights, "only the products are in FP8"
    last = {variant: row["unchanged"][-1]["share"] for variant, row in rows.items()}
    assert min(last["bf16 nearest"], last["bf16 AdamW"]) > 0.05 > 0.001 > last["fp32"]


def test_the_least_loss_is_that_of_the_chances_which_are_whole_quarters():
    bench = script("bench_formats.py")
    chance = bench.chances()
    assert set(chance.unique().tolist()) <= {0.0, 0.25, 0.5, 0.75, 1.0}
    assert torch.equal(chance.sum(dim=1), torch.ones(len(chance), dtype=torch.float64))
    assert (chance > 0).sum(dim=1).max() == bench.SUCCESSORS


def test_types_that_a_gpu_lacks_are_left_out(monkeypatch):
    bench = script("bench_formats.py")
    monkeypatch.setattr(bench, "missing", lambda device: {"tf32", "bf16", "fp8"})
    assert [name for name in bench.VARIANTS if not bench.not_here(name, CPU)] == ["fp32", "fp16 autocast"]
    monkeypatch.setattr(bench, "missing", lambda device: {"fp8"})
    assert [name for name in bench.VARIANTS if bench.not_here(name, CPU)] == ["fp8 linear"]


def test_fp8_products_are_as_exact_as_three_digits_are(recorded_by):
    record = recorded_by("bench_fp8.py", "--tiny")
    rows = record["rows"]
    errors = {row["how"]: row["error"] for row in rows if row["what"] == "product" and "error" in row}
    assert errors["bf16"] < 2**-8 < errors["fp8"] < 2**-4 and errors["fp8 row-wise"] < 2**-4
    layers = {(row["width"], row["how"]): row for row in rows if row["what"] == "layers"}
    assert layers[16, "bf16"]["error"] == 0 < layers[16, "fp8"]["error"] < 0.2
    assert ("us" in layers[16, "torchao"]) == (record["torchao"] is not None), "else it says why not"
    assert {row["size"] for row in rows if row["what"] == "cast"} == {32, 64}


def test_attention_is_timed_by_kernel_or_says_why_not(recorded_by):
    rows = recorded_by("bench_attention.py", "--tiny")["rows"]
    assert len(rows) == 2 * 4 * 4
    done = [row for row in rows if "refused" not in row]
    assert {row["kernel"] for row in done} >= {"math"} and all(row["us"] > 0 for row in done)
    limits = {"fp32": 1e-6, "tf32": 1e-6, "fp16": 2e-3, "bf16": 1e-2}  # a CPU has no TF32
    assert all(row["error"] < limits[row["dtype"]] for row in done)
    assert all(row["refused"] for row in rows if row not in done)


def test_a_recurrent_network_is_timed_in_every_size(recorded_by):
    record = recorded_by("bench_lstm.py", "--tiny")
    rows = record["rows"]
    assert {row["dtype"] for row in rows} == {"fp32", "tf32", "fp16", "bf16"}
    assert {(row["varied"], row[row["varied"]]) for row in rows if row["varied"]} == {
        ("hidden", 15), ("vocabulary", 31), ("vocabulary", 40), ("batch", 1),
    }  # fmt: skip
    assert all(row["us"] > 0 and row["lstm_us"] > 0 and len(row["us_rounds"]) == 1 for row in rows)


def test_operations_of_the_recurrent_model_are_counted_as_pytorch_counts_them():
    from torch.utils.flop_counter import FlopCounterMode

    bench = script("bench_lstm.py")
    case = {"hidden": 16, "vocabulary": 32, "batch": 8, "dtype": "fp32"}
    whole, recurrent = bench.flops(case, 4)
    layer = nn.Linear(16, 32)
    with FlopCounterMode(display=False) as counted:
        layer(torch.randn(32, 16, requires_grad=True)).sum().backward()
    assert whole - recurrent == counted.get_total_flops()
    gates = nn.Linear(32, 64, bias=False)  # input and state together, to four gates
    with FlopCounterMode(display=False) as counted:
        gates(torch.randn(32, 32, requires_grad=True)).sum().backward()
    assert recurrent == counted.get_total_flops()


# FP8 layers


def test_numbers_are_scaled_so_that_the_largest_fits():
    x = torch.randn(32, 16) * 1e5
    for by_row, shape in ((False, ()), (True, (32, 1))):
        small, scale = float8.quantised(x, float8.E4M3, by_row)
        assert small.dtype == float8.E4M3 and scale.shape == shape
        assert small.float().abs().max() == torch.finfo(float8.E4M3).max
        again = small.float() * scale
        # Half a unit in the last of four digits, or half of the smallest number.
        assert ((again - x).abs() <= x.abs() * 2**-4 + scale * 2**-10 * 1.01).all()
    zeros, scale = float8.quantised(torch.zeros(16, 16), float8.E5M2)
    assert not zeros.float().any() and scale > 0


def test_rows_with_scales_of_their_own_lose_less_when_one_is_huge():
    x = torch.randn(32, 64)
    x[0] *= 1e6
    error = {}
    for by_row in (False, True):
        small, scale = float8.quantised(x, float8.E4M3, by_row)
        error[by_row] = float8.relative_error((small.float() * scale)[1:], x[1:])
    assert error[False] > 0.9 and error[True] < 0.05


def test_an_fp8_layer_goes_forward_and_back_nearly_as_the_exact_one():
    torch.manual_seed(1)
    exact = nn.Linear(64, 32)
    model = nn.Sequential(nn.Linear(64, 32))
    model[0].load_state_dict(exact.state_dict())
    float8.to_float8(model)
    assert type(model[0]) is float8.Float8Linear and set(model.state_dict()) == {"0.weight", "0.bias"}
    x = torch.randn(2, 8, 64, requires_grad=True)
    gradient = torch.randn(2, 8, 32)
    results = []
    for layer in (exact, model[0]):
        result = layer(x)
        results.append([result, *torch.autograd.grad(result, [x, layer.weight, layer.bias], gradient)])
    for own, expected in zip(*reversed(results), strict=True):
        assert own.shape == expected.shape and own.dtype == expected.dtype
        assert float8.relative_error(own, expected) < 0.1
    assert float8.relative_error(results[1][0], results[0][0]) > 1e-3, "it did go through FP8"
    with torch.autocast("cpu", torch.bfloat16):
        assert model[0](x).dtype == torch.bfloat16


def test_sizes_that_do_not_fit_are_left_or_refused():
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 20), nn.Linear(16, 16))
    float8.to_float8(model, but=("2",))
    assert [type(layer) for layer in model] == [float8.Float8Linear, nn.Linear, nn.Linear]
    with pytest.raises(ValueError, match="multiples of 16: 3 x 16 times 16 x 32"):
        model[0](torch.randn(3, 16))


def test_fp8_came_with_ada(monkeypatch):
    monkeypatch.setattr(machine, "capability", lambda: (8, 0))
    assert script("bench_fp8.py").missing(torch.device("cuda")) == {"fp8"}


# BF16 weights


def test_stochastic_rounding_is_right_on_average_and_goes_to_a_neighbour():
    torch.manual_seed(1)
    for value in (1 + 2**-9, -(1 + 2**-9), 3e-39, 1e30, 0.0):
        x = torch.full((40_000,), value)
        found = bf16_adamw.stochastic_bf16(x)
        assert found.dtype == torch.bfloat16 and len(found.unique()) <= 2
        assert (found.float() - x).abs().max() <= 2**-7 * abs(value) + 1e-40
        assert float(found.double().mean()) == pytest.approx(float(x[0]), rel=1e-4, abs=1e-41)
    held = torch.tensor([float("inf"), -float("inf"), 0.0, -2.0])
    assert torch.equal(bf16_adamw.stochastic_bf16(held), held.bfloat16())
    assert bf16_adamw.stochastic_bf16(torch.tensor([float("nan")])).isnan()


def updated(way: str, gradients: list[float], lr: float) -> torch.Tensor:
    """A thousand weights of 1 after AdamW's steps with these gradients."""
    torch.manual_seed(1)
    layer = nn.Linear(1000, 1, bias=False).bfloat16()
    nn.init.ones_(layer.weight)
    optimizer = bf16_adamw.BF16AdamW(layer.parameters(), way, lr, decay=0.0)
    for gradient in gradients:
        optimizer.zero_grad()
        layer.weight.grad.fill_(gradient)
        optimizer.step()
    return layer.weight.detach().float()


def test_small_updates_vanish_unless_they_are_rounded_by_chance_or_kept_beside():
    """Eleven steps of 2⁻¹⁰ down from 1, where BF16's next smaller number is 1 - 2⁻⁸."""
    gradients, lr = [1.0] * 11, 2.0**-10
    assert (updated("nearest", gradients, lr) == 1).all()
    exact = torch.ones(1000, requires_grad=True)
    usual = torch.optim.AdamW([exact], lr, weight_decay=0.0)
    for gradient in gradients:
        exact.grad = torch.full_like(exact, gradient)
        usual.step()
    assert torch.equal(updated("master", gradients, lr).flatten(), exact.detach().bfloat16().float())
    by_chance = updated("stochastic", gradients, lr)
    assert float(by_chance.mean()) == pytest.approx(float(exact.detach()[0]), abs=5e-4)
    assert len(by_chance.unique()) > 2


def test_bf16_adamw_keeps_the_model_s_own_shapes_and_refuses_fp32():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).bfloat16()
    before = [one.detach().clone() for one in model.parameters()]
    optimizer = bf16_adamw.BF16AdamW(model.parameters(), "nearest")
    assert all(torch.equal(one, old) for one, old in zip(model.parameters(), before, strict=True))
    model(torch.randn(5, 4).bfloat16()).square().sum().backward()
    assert optimizer.gradients.any() and optimizer.state_bytes() == 2 * optimizer.weights.numel() * 2
    optimizer.step()
    assert not all(torch.equal(one, old) for one, old in zip(model.parameters(), before, strict=True))
    with pytest.raises(ValueError, match="BF16"):
        bf16_adamw.BF16AdamW(nn.Linear(2, 2).parameters(), "nearest")
    with pytest.raises(ValueError, match="way"):
        bf16_adamw.BF16AdamW(nn.Linear(2, 2).bfloat16().parameters(), "upwards")


# Block scales


def test_four_bits_round_to_the_nearest_and_ties_to_even():
    x = torch.tensor([0.2, 0.25, 0.3, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 7.0, -0.3, -5.0])
    assert blocks.to_e2m1(x).tolist() == [0, 0, 0.5, 1, 1, 2, 2, 4, 4, 6, 6, -0.5, -4]


def test_a_block_shares_a_power_of_two_as_the_specification_says():
    x = torch.zeros(2, 32)
    x[0, :3] = torch.tensor([448.0, 1.0, 2.0**-9])  # in the block's scale of 1: all are E4M3 numbers
    x[1, :2] = torch.tensor([500.0, -500.0])  # the scale stays 1: clipped
    found = blocks.mxfp8(x)
    assert torch.equal(found[0], x[0]) and found[1, :2].tolist() == [448.0, -448.0] and not found[1, 2:].any()
    assert torch.equal(blocks.mxfp8(x * 2.0**-30), found * 2.0**-30), "a power of two changes nothing"
    assert blocks.mxfp4(torch.full((1, 32), 6.0 * 2**-5))[0, 0] == 6.0 * 2**-5


def test_nvfp4_s_scales_are_finer_than_powers_of_two():
    torch.manual_seed(1)
    x = torch.randn(64, 256)
    off = {name: float8.relative_error(there(x), x) for name, (_, there) in blocks.FORMATS.items()}
    assert off["BF16"] < off["FP8 E4M3, one scale"] < off["NVFP4"] < off["MXFP4"] < 0.2
    assert blocks.nvfp4(torch.zeros(1, 16)).tolist() == [[0.0] * 16]
    for there, length in ((blocks.nvfp4, 24), (blocks.mxfp8, 48)):
        with pytest.raises(ValueError, match="no multiple"):
            there(torch.ones(1, length))


def test_a_scale_a_block_keeps_what_a_scale_a_matrix_loses():
    found = blocks.errors(blocks.samples(32, 512)).frame.set_index("format")
    assert found.loc["FP8 E4M3, one scale", "many sizes: zero %"] > 2 * found.loc["MXFP8", "many sizes: zero %"] > 0
    assert found.loc["MXFP8", "normal: error %"] == pytest.approx(
        found.loc["FP8 E4M3, one scale", "normal: error %"], rel=0.1
    )
    assert (found["bits a number"] == [16, 8, 8, 8.25, 4.25, 4.5]).all()


# The first NaN


class Root(nn.Module):
    def forward(self, x):
        return x.sqrt()


def test_the_first_module_that_makes_a_bad_number_is_named_and_not_those_after_it():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), Root(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
    cases = {"1, forward": torch.tensor([[1.0, -1.0, 1.0, 1.0]]), "1, backward": torch.zeros(1, 4)}
    for place, x in cases.items():
        with first_bad(model) as found:
            model(x.requires_grad_()).sum().backward()
        assert str(found) == f"the first {'NaN' if 'forward' in place else 'inf'} was made in {place}"
    with first_bad(model) as found:
        model(torch.ones(1, 4)).sum().backward()
    assert str(found) == "every number was finite"
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(one._backward_hooks for one in model.parameters())


def test_a_weight_s_gradient_that_overflows_is_the_layer_s():
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(1e-30)
    with first_bad(model) as found:
        (1e20 * model(torch.full((1, 1), 1e25))).sum().backward()
    assert (found.module, found.way, found.made) == ("0", "backward", "inf")


def test_a_bad_input_is_nobody_s_fault_inside():
    model = nn.Sequential(nn.Linear(2, 2))
    with first_bad(model) as found:
        model(torch.tensor([[float("nan"), 1.0]]))
    assert found.module is None


def test_the_page_has_the_public_product_and_mxfp8_right():
    """Two functions of the notebook, beside the course's own."""
    code = [cell.source for cell in nbformat.read(course.LABS[22].path, as_version=4).cells if cell.cell_type == "code"]
    names = {"torch": torch, "F": torch.nn.functional}
    for one in code:
        for piece in (ast.unparse(node) for node in ast.parse(one).body if isinstance(node, ast.FunctionDef)):
            exec(piece, names)
    torch.manual_seed(1)
    x, weight = torch.randn(32, 64), torch.randn(48, 64)
    assert torch.equal(names["mxfp8"](x), blocks.mxfp8(x))
    assert torch.equal(names["mxfp8"](torch.zeros(1, 32)), torch.zeros(1, 32))
    small, scale = float8.quantised(x, float8.E4M3)
    assert torch.equal(names["eight_bits"](x)[0].float(), small.float()) and names["eight_bits"](x)[1] == scale
    if hasattr(torch.nn.functional, "scaled_mm"):  # from PyTorch 2.10 on
        (a, scale_a), (b, scale_b) = (float8.quantised(one, float8.E4M3) for one in (x, weight))
        exact = float8.product(a, b.t(), scale_a, scale_b, torch.bfloat16, fast=False)
        assert float8.relative_error(names["product"](x, weight), exact) < 0.01
    model = nn.Sequential(*(nn.Linear(64, outputs) for outputs in (64, 64, 72, 32, 64)))
    assert names["large_layers"](model, least=64) == ["1"]  # neither first nor last, of a size that FP8 takes, large


# Reading


def training(variant: str, seed: int, loss: float | None, bytes_a_weight: tuple[int, int, int]) -> dict:
    parts = dict(zip(BYTES, (100 * one for one in bytes_a_weight), strict=True))
    unchanged = [{"iteration": at, "share": 0.1 * at} for at in (1, 5)]
    return {"variant": variant, "seed": seed, "test_loss": loss, "possible_pct": 99.0, "step_ms": 2.0} | parts | {
        "unchanged": unchanged
    }  # fmt: skip


def test_the_gate_compares_seed_by_seed_and_refuses_what_is_not_finite():
    luck = [0.0, 0.1, -0.1, 0.2, -0.2, 0.05]
    rows = [training("fp32", seed, 1.5 + own, (4, 4, 8)) for seed, own in enumerate(luck)]
    for name, more in (("bf16 nearest", 0.02), ("bf16 master", 0.0)):
        noise = [0.001, -0.001, 0.002, -0.002, 0.0, 0.0]
        rows += [training(name, seed, 1.5 + own + more + noise[seed], (2, 2, 4)) for seed, own in enumerate(luck)]
    rows += [training("fp16 autocast", seed, None, (4, 4, 8)) for seed in range(6)]
    found = lab23.trainings({"rows": rows, "least_loss": 1.4})
    assert set(fails_gate(found)) == {"BF16 weights, rounded to nearest", "FP16, autocast and scaler"}
    own = found.set_index("variant")
    assert own.loc["fp32", "excess"] == pytest.approx(0.1 + sum(luck) / 6)
    assert own["bytes"].to_dict()["bf16 nearest"] == 8 and own["bytes"]["fp32"] == 16
    assert own["unchanged_pct"].tolist() == pytest.approx([50.0] * 4)
    shown = lab23.kept({"rows": rows, "least_loss": 1.4}).frame
    assert shown["step 1: unchanged %"].tolist() == pytest.approx([10] * 3)
    assert shown["bytes a weight"].tolist() == [16, 8, 8] and shown["GB for 7 billion"].tolist() == [112, 56, 56]


def fp8_record() -> dict:
    rows = [{"what": "product", "size": 64, "how": how, "us": us} for how, us in
            (("bf16", 12.0), ("fp8", 6.0), ("fp8 exact sums", 9.0))]  # fmt: skip
    rows.append({"what": "cast", "size": 64, "how": "compiled", "us": 1.0})
    for width, slow, fast in ((16, 5.0, 10.0), (64, 40.0, 30.0)):
        for ending in ("", " compiled"):
            rows.append({"what": "layers", "width": width, "how": f"bf16{ending}", "us": slow})
            rows.append({"what": "layers", "width": width, "how": f"fp8{ending}", "us": fast})
    rows.append({"what": "layers", "width": 64, "how": "torchao compiled", "refused": "not here"})
    return {"rows": rows}


def test_bounds_grow_tighter_with_what_they_know():
    record = fp8_record()
    bounds = lab23.bounds(record, 64).frame["times as fast"].tolist()
    assert bounds == pytest.approx([1979 / 989, 36 / 24, 36 / 27, 4 / 3])
    assert lab23.bounds(record, 16).frame["times as fast"].isna().tolist() == [False, True, True, False], "not measured"
    assert has_fp8(record)
    assert not has_fp8({"rows": [row | {"us": None} if "fp8" in row["how"] else row for row in record["rows"]]})
    assert "–" in lab23.layers(record).cells()[1], "what was refused has no time"
    assert smallest_width(record) == 64
    nothing = {"rows": [row | {"us": 99.0} if "fp8" in row["how"] else row for row in record["rows"]]}
    with pytest.raises(NothingToAnswer):
        smallest_width(nothing)


def test_figures_change_with_what_they_show():
    record = fp8_record()
    first = drawn_data(lab23.gains(record))
    record["rows"][-2]["us"] /= 2
    assert drawn_data(lab23.gains(record)) != first
    rows = [training(name, seed, 1.5 + seed, (4, 4, 8)) for name in ("fp32", "bf16 nearest") for seed in (1, 2)]
    drawn = drawn_data(lab23.losses({"rows": rows, "least_loss": 1.4}))
    assert drawn_data(lab23.losses({"rows": rows, "least_loss": 1.3})) != drawn


def test_error_and_memory_are_those_of_the_fastest_kernel():
    rows = [
        {"length": 8, "dtype": "tf32", "kernel": kernel, "us": us, "error": error, "extra_bytes": extra}
        for kernel, us, error, extra in (("math", 1000.0, 1e-4, 5e9), ("efficient", 2000.0, 1e-7, 1e9))
    ]
    rows.append({"length": 8, "dtype": "bf16", "kernel": "math", "refused": "not on this GPU"})
    first, second = lab23.attention({"rows": rows}, 8).cells()
    assert first == ["TF32", "1.00", "2.00", "–", "–", "5.00", "5.00", "1e-04"]
    assert set(second[1:]) == {"–"}, "a type that is refused has no numbers"


def test_a_recurrent_row_stands_beside_the_usual_one_of_its_type():
    rows = [
        {"hidden": hidden, "vocabulary": 64, "batch": 4, "length": 5, "varied": varied, "dtype": "bf16", "us": us,
         "lstm_us": us / 2, "tflops": 1.0}
        for hidden, varied, us in ((16, "", 10.0), (15, "hidden", 12.0))
    ]  # fmt: skip
    found = lab23.cases({"rows": rows})
    own = around(found, "hidden", "bf16")
    assert own["size"].tolist() == [15, 16] and own["relative_us"].tolist() == [1.2, 1.0]
    assert own["ns_a_symbol"].tolist() == [600.0, 500.0]
    assert lab23.recurrent({"rows": rows}, "hidden").cells()[0][:2] == ["15", "no"]
    assert narrow(["fp32", "fp16"]) == "fp16"
