"""What lab 14 claims: which gradients FP16 loses, whether it shows, and why a cubic overflows and gains no time."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.labs.lab14 import cubic
from labkit.subjects import accuracy
from stepbudget.report import Report

AT_REST = ("fp32", "tf32", "O1", "O2", "O3 mean")  # variants of the cubic whose seeds all come to lie near the best


def underflow(zero_pct: Mapping[float, float]) -> Iterator[Claim | str]:
    """Most of conv1's gradients vanish without a scale; ``zero_pct``: per cent that are zero, by scale."""
    plain, scaled = zero_pct[1], zero_pct[65536]
    yield Claim(
        "without scaling, FP16 makes more than half of conv1's gradients zero", plain > 50, plain,
        because="a network that has learned less has larger gradients (fewer epochs, fewer digits)",
        so=f"{plain:.0f} % are lost here; a longer training may lose more, a larger batch will",
    )  # fmt: skip
    yield Claim(
        "a scale of 65,536 saves at least three quarters of those", scaled < plain / 4,
        [round(plain, 1), round(scaled, 1)],
        because="some gradients are smaller still, or larger ones overflow at that scale",
        so="look at the other scales in the picture; GradScaler looks for the right one by itself",
    )  # fmt: skip


def accuracy_kept(baseline: Sequence[float], unscaled: Sequence[float]) -> Iterator[Claim | str]:
    """FP16 without a scaler passes the gate: test accuracies of both, one a seed."""
    p = accuracy.below(baseline, unscaled)
    yield Claim(
        "even without loss scaling, the accuracy is not significantly below the baseline's", p >= 0.05, p,
        because="ten seeds decide, and small losses show in some sets of ten and not in others",
        so=f"the mean is {statistics.mean(unscaled):.2f} %: keep the scaler",
    )  # fmt: skip


def few_skipped(runs: pd.DataFrame) -> Iterator[Claim | str]:
    """The scaler hardly ever skips a step; a run a row, with its ``steps`` and ``skipped steps``."""
    steps, most = int(runs["steps"].max()), int(runs["skipped steps"].max())
    yield Claim(
        "one step was skipped, or at most 1 % of them", most <= max(1, 0.01 * steps), most,
        because="the scale is found in the first steps, and a short run has few others",
        so=f"{most} of {steps} steps trained nothing: if that goes on, find what overflows",
    )  # fmt: skip


def skips_foretold(overflow: pd.DataFrame) -> Iterator[Claim | str]:
    """The size of the first gradient tells how many steps the scaler skips; a row a seed."""
    foretold = overflow["halvings needed"] == overflow["steps O1 skips"]
    yield Claim(
        "O1 skips as many steps as the first gradient foretells, with every seed", bool(foretold.all()),
        f"with {foretold.sum()} of {len(foretold)} seeds",
        because="a kernel that keeps its sums in FP16 overflows a little earlier",
        so="the search takes another step or two; only where it never ends is something wrong",
    )  # fmt: skip


def o3_fails(stored: Sequence[float], ends: pd.DataFrame) -> Iterator[Claim | str]:
    """Pure FP16 cannot hold RMSprop's state; ``stored``: of the largest first gradient, one a seed; ``ends``: fits."""
    yield Claim("what RMSprop stores overflows FP16, with every seed", min(stored) > cubic.FP16_MAX)
    failed = ~(ends[ends["variant"] == "O3"]["above_pct"] < 100)
    yield Claim("O3 fails with every seed", bool(failed.sum() == len(stored)), list(failed))


def medians_near(tails: pd.DataFrame) -> Iterator[Claim | str]:
    """Over the last iterations, all but BF16 and O3 lie near least squares; a row a variant."""
    worst = tails.set_index("variant")["worst_pct"]
    fine = worst[worst.index.isin(AT_REST)]
    yield Claim(
        "over the last 100 iterations, every seed's median is within 2 %, but for BF16 and O3", fine.max() < 2,
        {name: f"{own:.2f} %" for name, own in fine.items()},
        because="another kernel adds up in another order, and RMSprop jumps at other moments",
        so=f"the worst seed lies {fine.max():.1f} % above least squares: compare with the table",
    )  # fmt: skip
    if "bf16" in worst.index:  # not on a GPU without it
        yield f"in BF16 the worst seed's median is {worst['bf16']:.2f} % above least squares"


def apex_as_native(losses: Mapping[tuple[str, int], Sequence[float]]) -> Iterator[Claim | str]:
    """Apex and PyTorch train alike; ``losses`` of each fit, by variant and seed. Live: only where Apex has its amp."""
    seeds = sorted({seed for _, seed in losses})
    if ("apex O1", 1) in losses:
        same = [seed for seed in seeds if losses["apex O1", seed] == losses["O1", seed]]
        yield Claim(
            "Apex's O1 and PyTorch's own take the same steps, loss by loss", same == seeds,
            f"with {len(same)} of {len(seeds)} seeds",
            because="today's PyTorch casts elsewhere than Apex does",
            so="trust the native one, which is maintained",
        )  # fmt: skip


def on_tensor_cores(report: Report, losses: Mapping[tuple[str, int], Sequence[float]]) -> Iterator[Claim | str]:
    """Which of the cubic's variants multiply on Tensor Cores, by their kernels and, for TF32, by their losses."""
    products = cubic.products(report, cubic.VARIANTS).frame
    yield f"on Tensor Cores: {cubic.on_tensor_cores(products)}"
    plain = set(products.loc[products["variant"] == "fp32", "Tensor Cores"])
    yield Claim(
        "FP32's products, at least, run on no Tensor Core", plain == {"no"}, sorted(plain) or "no products",
        because="there was no GPU to profile, or cuBLAS imitates FP32 by several short products",
        so="tell the arithmetic by the losses, not by the kernels' names",
    )  # fmt: skip
    same = all(losses["tf32", seed] == losses["fp32", seed] for seed in {seed for _, seed in losses})
    found = "every recorded loss is the same as in FP32: nothing was rounded to ten bits"
    other = "some losses differ from FP32's: another kernel took part, which may round to ten bits"
    yield f"with the switch for TF32, {found if same else other}"


def mixed_is_slower(iteration: Mapping[str, Sequence]) -> Iterator[Claim | str]:
    """Mixed precision makes the cubic slower: µs and kernels of an iteration; each column's values, by its name."""
    us, kernels = (
        dict(zip(iteration["variant"], iteration[name], strict=True)) for name in ("µs an iteration", "kernels")
    )
    times = us["O1"] / us["fp32"]
    yield f"An iteration takes {us['fp32']:.0f} µs in FP32; in O1 {times:.2f} times as long."
    yield Claim(
        "mixed precision makes this fit slower, not faster", times > 1, float(times),
        because="on a slow GPU the kernels themselves take the time, or the runs differ by more",
        so="a gain here would be of the kernels: compare their µs",
    )  # fmt: skip
    more = not sum(kernels.values()) or kernels["O1"] > kernels["fp32"]
    yield Claim("and it launches more kernels, where it launches any", more, kernels)
