"""What lab 15 claims: a GAN needs no loss scaling, a deep network does; what a monitor sees, what a scaler costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.labs.lab15.trainings import WORDS
from labkit.subjects.loss_scaling import FIRST_SCALE


def gradients_lost(lost_pct: Mapping[str, Mapping[str, float]]) -> Iterator[Claim | str]:
    """What FP16 makes of the GAN's gradients late in the training: per cent of them, by kind and by layer."""
    late = pd.DataFrame(lost_pct)
    small = float((late["foretold"] + late["subnormal"]).drop("d.fc").min())
    zero = float(late.loc["g.fc", "zero × 1"])
    kept = float(late.loc[["g.fc", "g.conv1", "d.conv1"], "zero × 65,536"].max())
    other = {
        "because": "another training than the recorded one: shorter, or rounded in another order",
        "so": "the first iteration's table, above, is the same on any machine, or nearly so",
    }
    yield Claim("unscaled, more than 10 % of the generator's gradients become zero", zero > 10, zero, **other)
    yield Claim("and behind the first layer, more than 95 % are zero or subnormal", small > 95, small, **other)
    yield Claim("a scale of 65,536 leaves fewer than 1 % of them zero", kept < 1, kept, **other)


def ends_near_fp32(ends: pd.DataFrame) -> Iterator[Claim | str]:
    """The GAN's losses end as in FP32, scaled or not, where another seed moves them; a row a loss and variant."""
    apart_pct = ends.groupby("variant")["furthest_pct"].max()
    plain = ends[ends["variant"] == "fp32"]
    seeds_pct = float((100 * (plain["highest"] / plain["lowest"] - 1)).max())
    other = {
        "because": "a GAN's training is chaotic: another order of sums leads elsewhere",
        "so": f"compare with what another seed does here: up to {seeds_pct:.0f} %",
    }
    scaled, without = float(apart_pct[["fp16 fixed", "fp16 dynamic"]].max()), float(apart_pct["fp16"])
    yield Claim(
        "with the same seed, FP16 with scaling ends within 10 % of FP32's losses", scaled < 10, scaled, **other
    )  # fmt: skip
    yield Claim("and without scaling it does too", without < 10, without, **other)
    yield f"of {plain['seeds'].max()} seeds, FP32's losses differ by up to {seeds_pct:.0f} %"


def sums_arrive(weights_lost: Sequence[float]) -> Iterator[Claim | str]:
    """Without scaling, hardly any of the generator's weights gets a gradient of zero; per cent at worst, one a seed."""
    zero_pct = max(weights_lost)
    yield Claim(
        "even without scaling, less than 1 % of the generator's weights ever get a gradient of zero", zero_pct < 1,
        zero_pct,
        because="a smaller batch adds up fewer gradients, and a longer training has smaller ones",
        so=f"{zero_pct:.1f} % are zero at worst: look whether that share grows",
    )  # fmt: skip


def learns_when_scaled(ends: pd.DataFrame) -> Iterator[Claim | str]:
    """The deep network's losses: bad without scaling, good with it and in BF16; a row a variant."""
    late = ends.set_index("variant")
    best, worst = late["lowest"], late["highest"]  # losses: of the best and of the worst seed
    found = {name: f"{best[name]:.2f} to {worst[name]:.2f}" for name in late.index}
    other = {
        "because": "so few iterations on another GPU, or with other digits, end elsewhere",
        "so": "look at the curves: does a variant stay at 2.30, the loss of guessing?",
    }
    worse, better = best["fp16"] > worst["fp32"], worst["fp16 dynamic"] < best["fp16"]
    yield Claim("without scaling, every seed ends worse than FP32's worst", worse, found, **other)
    yield Claim("with dynamic scaling, every seed ends better than the best without", better, found, **other)
    if "bf16" in late.index:  # not on a GPU without it
        better = worst["bf16"] < best["fp16"]
        yield Claim("and so does every seed in BF16, which scales nothing", better, found, **other)


def guesses_unscaled(accuracy: pd.DataFrame) -> Iterator[Claim | str]:
    """The deep network's test accuracy in per cent, a row a variant: without scaling, that of guessing."""
    guess = float(accuracy.set_index("variant")["max"][WORDS["fp16"]])
    yield Claim(
        "without scaling, every seed stays below 15 %, near what guessing gives (10 %)", guess < 15, guess,
        because="other digits, or more iterations, than were recorded",
        so="here FP16 learns something without scaling; compare it with the scaled one",
    )  # fmt: skip


def skips_seen(skipped: Sequence[int], scale: float) -> Iterator[Claim | str]:
    """The monitor's skipped steps are the scaler's: its ``scale`` at the end, of a training too short to double it."""
    halved = round(math.log2(FIRST_SCALE / scale))
    yield Claim("it saw the steps that the scaler skipped", len(skipped) == halved, halved)


def warned_though_scaled(rows: Sequence[dict]) -> Iterator[Claim | str]:
    """What became of the subnormal gradients that the monitor warned of, where a scaler was at work; a run a row."""
    scaled = [row for row in rows if row["variant"] == "fp16 dynamic"]
    for row in scaled:
        if row["said"]:
            seen = row["monitors"]["net"]["windows"]
            small = [f"{100 * seen[place]['subnormal_share']:.0f} %" for place in (0, -1)]
            yield f"seed {row['seed']}: {small[0]} subnormal in the first window, {small[1]} in the last"
            right = [one["test_accuracy_pct"] for one in scaled if one is not row]
            others = f"{min(right):.0f} to {max(right):.0f}" if right else "none"
            yield f"it gets {row['test_accuracy_pct']:.0f} % right, the other seeds with a scaler {others}"


def fused_waits_for_nothing(made: pd.DataFrame) -> Iterator[Claim | str]:
    """Optimizers with a scaler, and what Adam gains by being fused; a row a network and optimizer."""
    waits = made.set_index(["network", "optimizer"])["waits, scaler"]
    fused = waits.index.get_level_values("optimizer") == "Adam, fused"
    yield Claim(
        "with a scaler the fused step waits for nothing, and every other one once",
        bool((waits[fused] == 0).all() and (waits[~fused] == 1).all()),
        waits.to_dict(),
        because="there is no GPU to wait for, or this PyTorch asks in another way",
        so="look for cudaStreamSynchronize under your optimizer's range",
    )
    plain = made.pivot(index="network", columns="optimizer", values="step ms, none")
    gain = plain["Adam, foreach"] / plain["Adam, fused"]
    said = ", ".join(f"{times:.1f} times for the {network}" for network, times in gain.items())
    yield f"Adam's step, fused against PyTorch's default: {said}"
