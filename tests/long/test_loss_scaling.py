"""The benchmarks of labs 14 and 15 run for real, in small, on the CPU; they say true things; figures show these."""

from __future__ import annotations

import base64
import json
import math
import statistics
import sys
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from support.scripts import script
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.display.diffs import diff
from labkit.display.fingerprint import drawn_data
from labkit.errors import LabError
from labkit.labs import lab14, lab15
from labkit.labs.lab15 import smallest_scale
from labkit.paths import ROOT
from labkit.source import recorded
from labkit.subjects import loss_scaling
from labkit.training import steps
from stepbudget.report import open_report

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

CPU = torch.device("cpu")


SIN, GAN, DEEP = script("bench_sin_fit.py"), script("bench_gan.py"), script("bench_deep.py")


@pytest.fixture(autouse=True)
def true_fp32_again():
    yield
    steps.set_fp32_precision(tf32=False)


@pytest.fixture
def recorded_by(tmp_path, monkeypatch):
    """Runs a benchmark in this process, on the CPU, and returns its record."""

    def run(module, *flags: str) -> dict:
        file = tmp_path / "record.json"
        monkeypatch.setattr(sys, "argv", ["bench.py", "--device", "cpu", *flags, "--record", str(file)])
        module.main()
        return json.loads(file.read_text(), parse_constant=pytest.fail)  # NaN and Infinity are not JSON

    return run


# The cubic


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(SIN, "microseconds", lambda trial, device: 1.0)


def test_every_variant_of_the_fit_runs_and_its_record_tells_how(recorded_by, short):
    record = recorded_by(SIN, "--seeds", "2", "--iterations", "60")
    rows = {(row["variant"], row["seed"]): row for row in record["rows"]}
    assert len(rows) == 2 * 7, "Apex needs a GPU"
    assert record["least_squares"] == pytest.approx(8.8172, abs=1e-4)
    assert record["least_squares"] < record["rounded_best"]["float16"] < record["rounded_best"]["bfloat16"]
    for (variant, seed), row in rows.items():
        assert row["start"] == rows["fp32", seed]["start"], "all begin at the same weights"
        if variant.startswith(("fp32", "tf32", "bf16", "O1", "O2", "O3 mean")):
            assert row["losses"][0] == pytest.approx(row["start"]["loss"], rel=0.02)
            assert row["exact_loss"] < 0.9 * row["start"]["loss"]


def test_the_scaler_steps_down_until_the_gradients_fit(recorded_by, short):
    record = recorded_by(SIN, "--seeds", "1", "--iterations", "40", "--variants", "O1", "O2")
    for row in record["rows"]:
        changes = [scale for _, scale in row["scale_changes"]]
        assert changes == [2.0 ** (16 - i) for i in range(len(row["skipped"]) + 1)], "one halving a skipped step"
        assert row["skipped"] == list(range(len(row["skipped"]))), "all at the beginning"
        assert changes[-1] * row["start"]["gradient"] < 2 * SIN.FP16_MAX < 4 * changes[-1] * row["start"]["gradient"]


def test_pure_half_stands_still_since_squared_gradients_overflow(recorded_by, short):
    record = recorded_by(SIN, "--seeds", "1", "--iterations", "20", "--variants", "O3", "O3 mean")
    stuck, mended = record["rows"]
    assert stuck["start"]["gradient_squared"] > SIN.FP16_MAX > 100
    assert stuck["squares_not_finite"] > 0
    assert stuck["exact_loss"] > 0.9 * stuck["start"]["loss"]
    assert (mended["squares_not_finite"], mended["losses"][0]) == (0, pytest.approx(stuck["losses"][0], rel=0.01))
    assert mended["exact_loss"] < stuck["exact_loss"]


def test_the_losses_are_worked_out_from_weights_in_fp64():
    xx, y = SIN.points(CPU)
    best = np.polyfit(np.linspace(-np.pi, np.pi, SIN.POINTS), y.double().numpy(), deg=3)[::-1].copy()
    weight, bias = torch.tensor(best[1:]).unsqueeze(0), torch.tensor(best[:1])
    assert SIN.exact_loss(weight, bias, xx, y) == pytest.approx(SIN.least_squares(), rel=1e-4)
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.zero_(), model.bias.zero_()
    found = SIN.start(model, xx, y)
    assert found["loss"] == pytest.approx(float(y.double().square().sum()))
    assert found["gradient"] == pytest.approx(float((2 * xx[:, 2].double() * y.double()).sum()))
    assert found["gradient_squared"] == pytest.approx(found["gradient"] ** 2)


def test_master_weights_are_fp32_and_the_model_holds_their_fp16_copy():
    torch.manual_seed(1)
    xx, y = SIN.points(CPU)
    master = nn.Linear(3, 1)
    before = master.weight.detach().clone()
    trial = SIN.prepare("O2", master, xx, y)
    for _ in range(25):
        trial.step()
    assert (trial.model.weight.dtype, master.weight.dtype) == (torch.float16, torch.float32)
    assert not torch.equal(master.weight, before)
    assert torch.equal(trial.model.weight, master.weight.half())
    assert not torch.equal(trial.model.weight.float(), master.weight), "the masters hold more digits"


def test_under_the_profiler_every_variant_takes_its_steps_and_nothing_is_recorded(monkeypatch, tmp_path, capsys):
    taken = []
    prepare = SIN.prepare
    monkeypatch.setattr(SIN, "prepare", lambda variant, *own: (taken.append(variant), prepare(variant, *own))[1])
    # As the labs call it where there is no GPU.
    flags = ["--profile", "--iterations", "2", "--limit", "2048", "--epochs", "1", "--batch-size", "256"]
    monkeypatch.setattr(sys, "argv", ["bench_sin_fit.py", "--device", "cpu", *flags])
    SIN.main()
    assert taken == [name for name in SIN.VARIANTS if "apex" not in name]
    assert capsys.readouterr().out == ""


def test_another_package_called_apex_is_not_taken_for_nvidias(monkeypatch):
    monkeypatch.setitem(sys.modules, "apex", type(sys)("apex"))
    assert not SIN.apex_is_there()
    sys.modules["apex"].amp = type(sys)("amp")
    assert not SIN.apex_is_there()
    sys.modules["apex"].amp.initialize = lambda: None
    assert SIN.apex_is_there()


def test_two_functions_of_a_script_are_compared():
    found = diff("bench_sin_fit.py:plain", "bench_sin_fit.py:opt_level_1")
    assert "+        scaler.scale(loss).backward()" in found.lines
    assert not any("def opt_level_2" in line for line in found.lines)
    with pytest.raises(LabError, match="nothing called opt_level_9"):
        diff("bench_sin_fit.py:plain", "bench_sin_fit.py:opt_level_9")


# The GAN


def small(*more: str) -> list[str]:
    return ["--seeds", "1", "--batch-size", "8", "--iterations", "4", "--limit", "64", *more]


@pytest.mark.parametrize(("case", "losses"), [("gan", {"d", "g"}), ("autoencoder", {"ae"})])
def test_every_variant_trains_and_its_record_holds_what_the_lab_shows(case, losses, recorded_by):
    record = recorded_by(GAN, *small("--case", case, "--variants", "fp32", "fp16", "fp16 fixed", "fp16 dynamic"))
    fp32, *rest = record["rows"]
    for row in record["rows"]:
        assert set(row["losses"]) == set(row["monitors"]) == set(row["last_quarter"]) == losses
        assert row["losses"][min(losses)][0] == pytest.approx(fp32["losses"][min(losses)][0], rel=0.01)
        assert all(monitor["steps"] == 4 for monitor in row["monitors"].values())
    scales = {row["variant"]: row["monitors"][min(losses)]["scale_changes"][0] for row in record["rows"]}
    assert scales == {"fp32": [1, 1.0], "fp16": [1, 1.0], "fp16 fixed": [1, 1024.0], "fp16 dynamic": [1, 65536.0]}
    assert {probe["iteration"] for probe in fp32["probes"]} == {0, 3}
    assert [row["variant"] for row in rest if row["probes"]] == ["fp16"]
    assert all(sum(p["histogram"]) == pytest.approx(1, abs=0.01) for p in fp32["probes"] if p["precision"] == "fp32")
    pictures = np.frombuffer(base64.b64decode(fp32["pictures"]), np.uint8)
    assert pictures.size == 8 * 28 * 28 and pictures.std() > 1


def digits(number: int) -> torch.Tensor:
    return torch.randint(0, 256, (number, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_looking_at_the_gradients_leaves_no_trace_in_the_training(monkeypatch):
    looked = GAN.train("gan", "fp32", 1, digits(16), 3, 8, histograms=True)
    monkeypatch.setattr(GAN, "PROBED", ())
    alone = GAN.train("gan", "fp32", 1, digits(16), 3, 8, histograms=False)
    assert looked["probes"] and not alone["probes"]
    assert looked["last_quarter"] == alone["last_quarter"]


def test_gradients_are_sorted_into_what_fp16_makes_of_them():
    edge = 2.0**-25
    exact = torch.tensor([0.0, edge, edge * 1.01, 2.0**-14, -(2.0**-14) * 0.99, 1.0])
    row = GAN.about("layer", exact, histograms=True)
    assert row["gradients"] == 5, "zeros in FP32 are not lost by FP16"
    assert (row["zero_share"], row["subnormal_share"]) == (1 / 5, 2 / 5)
    assert (exact.half() == 0).tolist() == [True, True, False, False, False, False], "as PyTorch rounds"
    bins = {e: share for e, share in zip(GAN.EXPONENTS, row["histogram"], strict=True) if share}
    assert bins == {-25: 0.4, -14: 0.2, -15: 0.2, 0: 0.2}
    found = GAN.compared("layer", 1.0, exact, torch.tensor([0.0, 0, 2**-24, math.inf, 1, 1]).half(), histograms=False)
    assert (found["zero_share"], found["subnormal_share"]) == (1 / 5, 1 / 5)
    assert found["not_finite_share"] == pytest.approx(1 / 6, abs=1e-4)


def test_a_small_loss_loses_its_gradients_in_fp16_and_a_scale_brings_them_back():
    torch.manual_seed(0)
    task = GAN.Autoencoder()
    whole = task.loss
    task.loss = lambda *own: whole(*own) * 2.0**-12
    images = GAN.as_numbers(digits(8))
    rows = GAN.probe(task, images, None, histograms=False)
    zero = {(row["precision"], row["scale"], row["layer"]): row["zero_share"] for row in rows}
    for layer in {row["layer"] for row in rows} - {"d.fc"}:
        plain, scaled, foretold = zero["fp16", 1.0, layer], zero["fp16", 65536.0, layer], zero["fp32", 1.0, layer]
        assert plain > 0.5 and scaled < 0.01
        assert plain > foretold - 0.1, "what is lost near the loss is lost behind it too"
    assert zero["fp16", 1.0, "g.conv2"] == pytest.approx(zero["fp32", 1.0, "g.conv2"], abs=0.1), "nearest to the loss"


def test_layers_are_told_from_the_loss_back_to_the_input():
    task = GAN.Gan()
    images, z = GAN.as_numbers(digits(4)), torch.randn(4, GAN.LATENT)
    found = GAN.gradients(task, images, z, GAN.precision("fp32", CPU), 1.0)
    assert list(found) == ["d.fc", "d.conv2", "d.conv1", "g.conv2", "g.conv1", "g.fc"]


def test_a_fixed_scale_takes_the_same_step_as_none():
    torch.manual_seed(0)
    data = torch.randn(4, 3)
    results = []
    for scaler in (None, GAN.FixedScale(2.0**10)):
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(data).square().mean()
        (scaler.scale(loss) if scaler else loss).backward()
        (scaler or optimizer).step(*([optimizer] if scaler else []))
        results.append(model.weight.detach())
    assert torch.allclose(*results, rtol=1e-6)


def test_batches_are_whole_and_each_epoch_has_an_order_of_its_own():
    images = torch.arange(10, dtype=torch.uint8).view(10, 1, 1).expand(10, 28, 28)
    torch.manual_seed(0)
    seen = [(255 * real[:, 0, 0, 0]).round().int().tolist() for real, _ in GAN.batches(images, 4, 4)]
    assert [len(batch) for batch in seen] == [4] * 4
    first, second = seen[0] + seen[1], seen[2] + seen[3]
    assert len(set(first)) == len(set(second)) == 8, "no digit twice in an epoch"
    assert first != second


# The deep network


def test_the_deep_network_trains_in_every_variant_and_tells_its_layers(recorded_by):
    record = recorded_by(DEEP, "--seeds", "1", "--iterations", "3", "--batch-size", "32", "--limit", "64")
    rows = {row["variant"]: row for row in record["rows"]}
    assert set(rows) == set(DEEP.VARIANTS)
    assert all(len(row["layers"]) == DEEP.HIDDEN + 2 for row in rows.values())
    exact, plain, scaled = (rows[name]["layers"] for name in ("fp32", "fp16", "fp16 dynamic"))
    for whole, taken_off in zip(exact, scaled, strict=True):
        assert taken_off["largest"] == pytest.approx(whole["largest"], rel=0.05), "the scale is taken off again"
    assert exact[1]["largest"] < 2**-10 * exact[-1]["largest"], "each layer makes the gradient smaller"
    assert plain[1]["zero_share"] > exact[1]["zero_share"] + 0.3
    assert scaled[1]["zero_share"] == pytest.approx(exact[1]["zero_share"], abs=0.1)
    assert [bool(rows[name]["said"]) for name in ("fp32", "fp16", "bf16")] == [False, True, False], (
        "the limits are FP16's"
    )


# Tables


def test_how_often_a_scale_is_halved():
    assert lab14.halvings(0.99) == 0, "65,536 times it fits"
    assert lab14.halvings(1.01) == 1
    assert lab14.halvings(65504.0) == 16
    assert lab14.halvings(65504.0, scale=1.0) == 0


def gan_record() -> dict:
    layers = [("fp32", 1.0, 0.2, 0.7), ("fp16", 1.0, 0.3, 0.6), ("fp16", 1024.0, 0.0, 0.1)]
    rows = []
    ends = {"fp32": (1.0, 2.0), "fp16": (1.4, 1.7), "fp16 fixed": (2.5, None), "bf16": (3.0, 4.2)}
    for variant, losses in ends.items():
        for seed, loss in enumerate(losses, 1):
            probes = [
                {"iteration": 0, "layer": "g.fc", "precision": kind, "scale": scale, "zero_share": zero * seed / 2}
                | {"subnormal_share": small}
                for kind, scale, zero, small in layers
            ]
            lowest, ends = {"g": 0.5 * seed}, {"g": loss}
            rows.append({"variant": variant, "seed": seed, "probes": probes, "last_quarter": ends, "lowest": lowest})
    return {"rows": rows}


def test_losses_are_held_against_the_range_of_fp32s_seeds():
    found = lab15.ends(gan_record()).set_index("variant")
    assert found["inside"].to_dict() == {"fp32": True, "fp16": True, "fp16 fixed": False, "bf16": False}
    assert found.loc["fp16", ["mean", "lowest", "highest"]].tolist() == [pytest.approx(1.55), 1.4, 1.7]
    assert math.isnan(found.loc["fp16 fixed", "mean"]), "a loss that is not finite is no mean"
    assert found.loc["bf16", "p"] < found.loc["fp16", "p"]
    assert found.loc["fp16", "furthest_pct"] == pytest.approx(40.0), "1.4 for 1.0, with the same seed"
    assert found.loc["bf16", "furthest_pct"] == pytest.approx(200.0)
    assert found.loc[["fp32", "fp16 fixed"], "furthest_pct"].isna().all()


def test_the_same_seed_shows_what_the_spread_of_seeds_hides():
    """Seeds far apart, and a variant that ends 1 % worse with each of them."""
    rows = [
        {"variant": name, "seed": seed, "last_quarter": {"g": loss * worse * (1 + 1e-4 * seed * (name == "fp16"))}}
        for name, worse in (("fp32", 1.0), ("fp16", 1.01))
        for seed, loss in enumerate((0.7, 0.9, 1.3), 1)
    ]
    found = lab15.ends({"rows": rows}).set_index("variant").loc["fp16"]
    assert found["inside"] and found["p"] < 0.05 and 1.0 < found["furthest_pct"] < 1.1


def test_without_bf16_fits_its_part_of_the_text_is_left_out():
    record = recorded.records("benchmarks", "bench_sin_fit.py")[0]
    rows = [row for row in record["rows"] if row["variant"] != "bf16"]
    without = lab14.text(record | {"rows": rows}, pd.DataFrame()).frame["what we measured"]
    assert "O2 4 of 5 seeds" in without[2] and "bf16" not in without[2]


def test_the_worst_seed_s_median_of_the_last_iterations():
    rows = [
        {"variant": "fp32", "tail": [9.0, 10.0, 99.0]},
        {"variant": "fp32", "tail": [9.0, 11.0, 12.0]},
        {"variant": "O3", "tail": [None, None, None]},
    ]
    found = lab14.tails({"least_squares": 10.0, "rows": rows})
    assert found.values.tolist() == [["fp32", pytest.approx(10.0)]]


def test_what_rmsprop_stores_in_fp16_overflows_where_the_lab_says():
    largest = lab14.PREDICTIONS["largest"].measured()
    assert torch.optim.RMSprop([nn.Parameter(torch.ones(1))]).defaults["alpha"] == lab14.ALPHA
    weights = nn.Parameter(torch.zeros(3, dtype=torch.float16))
    optimizer = torch.optim.RMSprop([weights])
    weights.grad = torch.tensor([0.99 * largest, 1.01 * largest, 254.0], dtype=torch.float16)
    optimizer.step()
    assert optimizer.state[weights]["square_avg"].isfinite().tolist() == [True, False, True]
    weights.grad = torch.tensor([254.0, 254.0, 280.0], dtype=torch.float16)
    for _ in range(500):
        optimizer.step()
    assert optimizer.state[weights]["square_avg"].isfinite().tolist() == [True, False, False], "256 for those that stay"


def test_a_scaler_refuses_gradients_in_fp16():
    weights = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(weights.float().sum()).backward()
    with pytest.raises(ValueError, match="FP16 gradients"):
        scaler.step(torch.optim.RMSprop([weights]))


def cell_with(stem: str, words: str) -> str:
    """The source of a lab's only code cell with these words."""
    cells = nbformat.read(ROOT / "labs" / f"{stem}.ipynb", as_version=4).cells
    (found,) = [cell.source for cell in cells if cell.cell_type == "code" and words in cell.source]
    return found


@pytest.mark.parametrize(("scale", "lost"), [(1.0, 1 / 3), (2.0, 0.0)])
def test_the_hooks_to_take_home_count_what_fp16_makes_zero(scale, lost):
    names, shares = {}, {}
    exec(cell_with("14_loss_scaling", "def count_vanishing"), names)
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    nn.init.constant_(model[1].weight, 2.0**-10)
    names["count_vanishing"](model, shares, scale)
    slopes = torch.tensor([0.0, 2.0**-15, 2.0**-14, 2.0**-13])
    (model(torch.ones(4, 1)).squeeze() * slopes).sum().backward()
    assert shares == {"0": pytest.approx(lost), "1": 0.0}


def test_a_step_that_is_skipped_long_after_the_search_does_not_count_as_search():
    record = recorded.records("benchmarks", "bench_sin_fit.py")[0]
    before = lab14.overflow(record).frame["steps O1 skips"]
    rows = [row | {"skipped": [*row["skipped"], 4016]} for row in record["rows"]]
    assert lab14.overflow(record | {"rows": rows}).frame["steps O1 skips"].equals(before)
    assert (before == lab14.overflow(record).frame["halvings needed"]).all()


@pytest.mark.parametrize("bench", [SIN, GAN, DEEP])
def test_a_gpu_without_bf16_leaves_that_variant_out(bench, recorded_by, short, monkeypatch):
    monkeypatch.setattr(bench, "missing", lambda device: {"tf32", "bf16", "fp8"})
    words = ["--seeds", "1", "--iterations", "2", "--variants", "fp32", "bf16"]
    if bench is not SIN:
        words += ["--batch-size", "8", "--limit", "16"]
    assert [row["variant"] for row in recorded_by(bench, *words)["rows"]] == ["fp32"]


def test_gradients_lost_are_means_over_the_seeds_of_fp32s_way():
    found = lab15.lost(gan_record(), 0).frame.iloc[0]
    assert found.to_dict() == pytest.approx(
        {"layer": "g.fc", "foretold": 15.0, "subnormal": 70.0, "zero × 1": 22.5, "zero × 1,024": 0.0}
    )
    with pytest.raises(ValueError, match="iteration 7 was not looked at"):
        lab15.lost(gan_record(), 7)


def test_claims_are_worked_out_from_the_record(recorded_by, short):
    gan = lab15.text(gan_record()).frame["what we measured"]
    assert "1 of 1 mean losses" in gan[0] and "0.50" in gan[1] and "22 %" in gan[1]
    record = recorded_by(SIN, "--seeds", "1", "--iterations", "30", "--variants", "fp32", "O1", "O2", "bf16", "O3")
    products = pd.DataFrame({"variant": ["fp32", "O1"], "Tensor Cores": ["no", "no"]})
    cubic = lab14.text(record, products).frame["what we measured"]
    assert cubic.iloc[-2] == "no: in none of fp32, O1"
    assert cubic[3] == "16 to 16 by seed, as the first gradient foretells"
    assert "fp32 0, O1 0" in cubic[2] and "Apex" not in cubic[1]
    assert lab14.overflow(record).frame["halvings needed"].tolist() == [16]


def test_kernels_that_multiply_are_found_by_variant(monkeypatch):
    kernels = pd.DataFrame(
        {
            "kernel": ["gemv2T_kernel_val<float>", "reduce_kernel<512>", "sm80_xmma_gemm_f16f16_tensor16x8x16"],
            "count": [2, 5, 1],
            "gpu_ms": [1.0, 2.0, 1.0],
            "tensor_core": ["no", "no", "yes"],
            "evidence": ["name"] * 3,
        }
    )
    monkeypatch.setattr(
        lab14.tensor_cores, "verdicts", lambda report, window: kernels.iloc[: 2 if window == "O1" else 3]
    )
    ranges = ["O1", "O3"]  # what was profiled: a GPU without BF16 leaves that variant out
    report = SimpleNamespace(window=lambda name: name, name="report", windows=lambda name: [name] * (name in ranges))
    found = lab14.products(report, ["bf16", "O1", "O3"]).frame
    assert found[["variant", "Tensor Cores"]].values.tolist() == [["O1", "no"], ["O3", "no"], ["O3", "yes"]]
    assert "sm80_xmma_gemm" in found["kernel"].iloc[-1] and found["mean µs"].tolist() == [500.0, 500.0, 1000.0]
    assert lab14.products(report, ["bf16"]).frame.empty
    record = {"least_squares": 1.0, "rows": [fit("O1", 944.0), fit("O3", 491.0)]}
    work = lab14.iteration(record, report, iterations=2).frame
    assert work.values.tolist() == [["O1", 944.0, 3.5, 1500.0, 500.0], ["O3", 491.0, 4.0, 2000.0, 1000.0]]


def fit(variant: str, us: float) -> dict:
    return {"variant": variant, "exact_loss": 9.0, "skipped": [], "us_an_iteration": us}


def test_who_multiplied_on_tensor_cores_is_said_in_a_sentence():
    def said(*verdicts: str) -> str:
        names = ["fp32", "O1", "O1"][: len(verdicts)]
        return lab14._of_tensor_cores(pd.DataFrame({"variant": names, "Tensor Cores": list(verdicts)}))

    assert said("no", "no", "yes") == "in part: in O1"
    assert said("yes", "yes", "no") == "yes: in fp32, O1"
    assert said("unknown", "yes", "no") == "in part: in O1; not known of fp32"
    assert said("unknown", "no") == "not known of fp32"
    assert said("no", "no", "no") == "no: in none of fp32, O1"
    assert said() == "no GPU was profiled here"


def test_cublas_kernels_without_a_name_of_their_own_are_told_apart():
    name = "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __half>(T13)"
    assert lab14._product_name(name) == "internal::gemvx::kernel"
    assert lab14._product_name("void dot_kernel<float, (int)128>(T4)") == "dot_kernel<…>"


def test_the_recorded_profile_of_the_cubic_holds_products_of_every_variant():
    with open_report(recorded.folder() / "profiles" / "bench_sin_fit.sqlite.xz") as report:
        variants = [name for name in SIN.VARIANTS if not name.startswith("apex")]
        found = lab14.products(report, variants).frame
    assert set(found["variant"]) == set(variants)
    assert (found["count"] == 100).all(), "one of each kernel an iteration"
    assert set(found["told by"]) == {"name"}, "too short for the counter"


# Figures, and what is read from a histogram


def test_the_smallest_scale_that_keeps_99_per_cent():
    assert smallest_scale([0.005, 0.495, 0.5], first=-30) == 2.0**5, "the half per cent at -30 may go"
    assert smallest_scale([0.02, 0.48, 0.5], first=-30) == 2.0**6
    assert smallest_scale([1.0], first=-24) == smallest_scale([1.0], first=3) == 1.0


LOSSES = [
    {"variant": "fp32", "losses": {"g": [1.0, 0.9, 0.8]}},
    {"variant": "fp32", "losses": {"g": [1.1, 1.0, 0.7]}},
    {"variant": "fp16", "losses": {"g": [1.0, 1.0, None]}},
]
SCALES = {"g": [{"scale_changes": [[0, 65536.0], [3, 32768.0]], "skipped": [2]}]}
PROBES = [
    {"layer": layer, "precision": kind, "scale": scale, "histogram": [0.25, 0.75, 0.0], "zero_share": 0.1}
    for layer in ("d.fc", "g.fc")
    for kind, scale in (("fp32", 1.0), ("fp16", 1.0), ("fp16", 1024.0))
]


def changed(content, old, new):
    return json.loads(json.dumps(content).replace(json.dumps(old), json.dumps(new)))


@pytest.mark.parametrize(
    ("draw", "content", "old", "new"),
    [
        (lambda rows: lab15.loss_bands(rows, {"g": "generator"}, 5, "title"), LOSSES, 1.1, 1.3),
        (lambda rows: lab15.loss_bands(rows, {"g": "generator"}, 5, "title"), LOSSES, None, 0.9),
        (lambda lines: loss_scaling.scales(lines, [10], "title"), SCALES, 32768.0, 16384.0),
        (lambda lines: loss_scaling.scales(lines, [10], "title"), SCALES, [2], [2, 5]),
        (lambda rows: lab15.exponents(rows, -30, 1024.0, "title"), PROBES, 0.75, 0.5),
        (lambda rows: lab15.exponents(rows, -30, 1024.0, "title"), PROBES, 0.1, 0.5),
    ],
)
def test_a_figure_shows_what_it_is_given(draw, content, old, new):
    assert drawn_data(draw(content)) == drawn_data(draw(content))
    assert drawn_data(draw(content)) != drawn_data(draw(changed(content, old, new)))


def test_each_variant_is_a_line_over_the_range_of_fp32_s_seeds():
    (ax,) = lab15.loss_bands(LOSSES, {"g": "generator"}, 5, "title").axes
    band = ax.collections[0].get_paths()[0].get_extents()
    assert (band.x0, band.x1, band.y0, band.y1) == pytest.approx((0, 10, 0.7, 1.1))
    lines = {line.get_label(): line.get_ydata().tolist() for line in ax.lines}
    assert lines["FP32, mean"] == pytest.approx([1.05, 0.95, 0.75])
    assert lines["FP16, no scaling, mean"] == pytest.approx([1.0, 1.0, float("nan")], nan_ok=True)
    looks = [(line.get_color(), line.get_linestyle()) for line in ax.lines]
    assert len({*looks}) == len(looks) == 2


PRECISIONS = ("fp16", "fp32")


class _Reads(TorchDispatchMode):
    """Counts how often the host reads a number off a tensor: on a GPU, each is a wait."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_with_a_fused_optimizer_the_scaler_does_not_ask(kind):
    """Lab 15: the kernel itself leaves an overflowed step out; without ``fused`` the host reads whether to step."""
    reads, moved = {}, {}
    for fused in (False, True):
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = kind([weight], lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for gradient in (float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale((weight * gradient).sum()).backward()
            with _Reads() as counted:
                scaler.step(optimizer)
            scaler.update()
            reads[fused, gradient], moved[fused, gradient] = counted.count, not torch.equal(weight, torch.ones(4))
        assert scaler.get_scale() == 512.0
        assert (moved[fused, float("inf")], moved[fused, 1.0]) == (False, True)
    assert reads[False, float("inf")] == 1 and {reads[True, float("inf")], reads[True, 1.0]} == {0}


def test_the_trainers_optimizer_has_no_fused_version():
    with pytest.raises(TypeError, match="fused"):
        torch.optim.Adadelta([torch.nn.Parameter(torch.ones(1))], fused=True)


@pytest.mark.parametrize("overflows", [False, True])
def test_the_step_to_take_home_clips_what_is_unscaled_and_keeps_the_schedule_back(overflows):
    names = {"torch": torch}
    exec(cell_with("15_scaler", "def optimizer_step"), names)
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(weight.sum() * (math.inf if overflows else 3.0)).backward()
    names["optimizer_step"](scaler, optimizer, schedule, [weight], largest=2.0)
    moved, rate = (0.0, 1.0) if overflows else (-2.0, 0.5)
    assert (weight.item(), optimizer.param_groups[0]["lr"]) == pytest.approx((moved, rate), rel=1e-4)
    assert weight.grad is None and scaler.get_scale() == (512.0 if overflows else 1024.0)


def test_the_first_histogram_is_fp32_s_at_the_generator_s_first_layer():
    probes = [
        {"iteration": 0, "layer": "g.fc", "precision": kind, "histogram": [n]} for n, kind in enumerate(PRECISIONS)
    ]
    record = {"exponents": [-40], "rows": [{"variant": "fp16"}, {"variant": "fp32", "probes": probes}]}
    assert lab15.first_histogram(record) == ([1], -40)


# Makes of the optimizer


def test_a_scaler_reads_one_number_a_step_and_none_of_a_fused_optimizer(monkeypatch, tmp_path):
    file = tmp_path / "record.json"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["bench_optimizers.py", "--tiny", "--record", str(file)])
    script("bench_optimizers.py").main()
    record = json.loads(file.read_text())
    found = pd.DataFrame(record["rows"])
    assert set(found["network"]) == {"digits", "transformer"}
    medians = found[["call_us", "step_us"]].map(statistics.median)
    assert (medians["call_us"] <= medians["step_us"]).all()
    reads = found.set_index(["network", "optimizer", "scaler"])["reads"].unstack("scaler")
    more = (reads[True] - reads[False]).unstack("network")
    assert (more.loc["Adam, fused"] == 0).all() and (more.drop("Adam, fused") == 1).all().all()
    assert found["waits"].isna().all(), "nothing waits for a GPU that is not there"
    rows = [row | {"waits": int(row["scaler"])} for row in record["rows"]]
    shown = lab15.optimizers({"rows": rows})
    assert (shown.frame["waits, none"] == 0).all() and (shown.frame["waits, scaler"] == 1).all()
