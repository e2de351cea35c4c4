"""Lab 15: who needs a loss scaler, and what it costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from scipy import stats

from labkit.checks import Claim
from labkit.display import style
from labkit.exercises.kinds import BOUND, READ, Code, Number, quietly, say
from labkit.lazily import torch
from labkit.numbers import shown
from labkit.predictions import Guess
from labkit.subjects.loss_scaling import FIRST_SCALE
from stepbudget.show.table import Table, table

if TYPE_CHECKING:  # it needs PyTorch, and the recorded labs do not
    from labkit.subjects.loss_scale_monitor import LossScaleMonitor

SMALL = 8.5  # points
COLOURS = {  # what is scaled, and how
    "fp32": style.INK,
    "fp16": style.VERMILION,
    "fp16 fixed": style.ORANGE,
    "fp16 dynamic": style.BLUE,
    "bf16": style.GREEN,
}
WORDS = {
    "fp32": "FP32",
    "fp16": "FP16, no scaling",
    "fp16 fixed": "FP16, fixed scale",
    "fp16 dynamic": "FP16, dynamic scale",
    "bf16": "BF16",
}
DASHES = {"fp32": "-", "fp16": "--", "fp16 fixed": ":", "fp16 dynamic": "-", "bf16": "-."}  # lines without their hues
ZERO, NORMAL, TOP = -25, -14, 16  # exponents: below 2**-25 FP16 rounds to zero, below 2**-14 it is subnormal; its end


def lost(record: dict, iteration: int) -> Table:
    """Per layer of the GAN, from the loss back, on FP32's way: per cent of the gradients, mean over the seeds.

    ``foretold``: so small in FP32 that FP16 rounds them to zero; ``subnormal``: below FP16's normal numbers;
    ``zero × s``: zero in FP16, of a loss times s, though FP32's are not.
    """
    probes = [p for row in record["rows"] if row["variant"] == "fp32" for p in row["probes"]]
    frame = pd.DataFrame([p for p in probes if p["iteration"] == iteration])
    if frame.empty:
        raise ValueError(f"iteration {iteration} was not looked at")
    mean = 100 * frame.groupby(["precision", "scale", "layer"], sort=False)[["zero_share", "subnormal_share"]].mean()
    exact = mean.loc["fp32", 1.0]
    found = pd.DataFrame({"foretold": exact["zero_share"], "subnormal": exact["subnormal_share"]})
    for scale in sorted(frame.loc[frame["precision"] == "fp16", "scale"].unique()):
        found[f"zero × {scale:,.0f}"] = mean.loc["fp16", scale]["zero_share"]
    caption = f"GAN, the generator's loss, iteration {iteration}: per cent of the gradients at each layer's output"
    return table(found.rename_axis("layer").reset_index(), caption, dict.fromkeys(found, "{:.1f}"))


def last(record: dict) -> int:
    """The last iteration at which the GAN's gradients were looked at."""
    return max(probe["iteration"] for probe in record["rows"][0]["probes"])


def lost_at_last(record: dict) -> dict[str, dict[str, float]]:
    """What ``lost`` says of that iteration: column → layer → per cent."""
    return lost(record, last(record)).frame.set_index("layer").to_dict()


def histograms(record: dict) -> Figure:
    """The GAN's gradients by size in that iteration, of one seed."""
    at = last(record)
    probes = [probe for probe in record["rows"][0]["probes"] if probe["iteration"] == at]
    return exponents(
        probes, record["exponents"][0], FIRST_SCALE, f"The GAN's gradients by size, iteration {at}, seed 1"
    )


def first_histogram(record: dict) -> tuple[list[float], int]:
    """FP32's gradients at the generator's first layer, first iteration: shares a power of two, and the first power."""
    own = next(row for row in record["rows"] if row["variant"] == "fp32")
    wanted = (0, "g.fc", "fp32")
    probe = next(p for p in own["probes"] if (p["iteration"], p["layer"], p["precision"]) == wanted)
    return probe["histogram"], record["exponents"][0]


def exponents(rows: Sequence[dict], first: int, scale: float, title: str) -> Figure:
    """Histograms of log2 of the gradients, a panel a layer, from the loss back to the input; FP16's gaps shaded.

    ``rows``: a probe's rows of one state, with ``histogram``: shares a power of two from ``first`` on. Grey: FP32;
    lines: the same gradients in FP16, without scaling and of a loss times ``scale``.
    """
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    found = {(row["layer"], row["precision"], row["scale"]): row for row in rows}
    at = first + np.arange(len(rows[0]["histogram"]))
    drawn = [(0, ("fp32", 1.0)), (1, ("fp16", 1.0)), (2, ("fp16", scale))]
    used = [at[np.nonzero(found[(layer, *kind)]["histogram"])] for layer in layers for _, kind in drawn]
    low, high = min(own.min() for own in used if len(own)) - 1, max(TOP, max(own.max() for own in used if len(own)))
    with style.chart(4.4, 2, -(-len(layers) // 2), sharex=True, w_pad=0.1) as (fig, axes):
        for ax, layer in zip(axes, layers, strict=False):
            ax.axvspan(low, ZERO, color=style.VERMILION, alpha=0.22, lw=0)
            ax.axvspan(ZERO, NORMAL, color=style.YELLOW, alpha=0.28, lw=0)
            ax.axvspan(TOP, high + 1.5, color=style.INK, alpha=0.15, lw=0)
            for kind, key in drawn:
                share = 100 * np.array(found[(layer, *key)]["histogram"])
                share = share * (1 - found[(layer, *key)]["zero_share"]) if kind else share
                if kind == 0:
                    ax.bar(at + 0.5, share, 1.0, color=style.MUTED, alpha=0.75, lw=0)
                else:
                    ax.step(at + 0.5, share, where="mid", color=(style.VERMILION, style.BLUE)[kind - 1], lw=1.6)
            lost = 100 * found[(layer, "fp32", 1.0)]["zero_share"]
            ax.annotate(f"{lost:.0f} % zero", (0.02, 0.95), xycoords="axes fraction", va="top", size=SMALL)
            ax.set_title(layer)
            ax.set(xlim=(low, high + 1.5), ylim=(0, None))
            ax.set_xticks([-40, -25, -14, 0, 16] if low < -36 else [-25, -14, 0, 16])
        for ax in axes[len(layers) :]:
            ax.set_visible(False)
        for ax in axes[-(-len(layers) // 2) :]:
            ax.set_xlabel("log2 |gradient|")
        axes[0].set_ylabel("% of the gradients")
        axes[-(-len(layers) // 2)].set_ylabel("% of the gradients")
        style.suptitle(fig, title)
        handles = [
            Patch(facecolor=style.MUTED, alpha=0.75, label="FP32"),
            Patch(facecolor=style.PAPER, edgecolor=style.VERMILION, lw=1.6, label="FP16, no scaling"),
            Patch(facecolor=style.PAPER, edgecolor=style.BLUE, lw=1.6, label=f"FP16, loss × {scale:,.0f}"),
            Patch(facecolor=style.VERMILION, alpha=0.22, label="FP16: rounds to zero"),
            Patch(facecolor=style.YELLOW, alpha=0.28, label="FP16: subnormal"),
            Patch(facecolor=style.INK, alpha=0.15, label="FP16: overflows"),
        ]
        fig.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=SMALL - 0.5, columnspacing=1.2)
    return fig


def ends(record: dict) -> pd.DataFrame:
    """Per loss and variant: the mean loss over the last quarter, mean and range over seeds, against FP32's seeds.

    ``inside``: is the mean within the range of FP32's seeds? ``furthest_pct``: how far, at most, a seed ends from FP32
    with the same seed (the same first weights and batches). ``p``: the paired t test of that, two-sided.
    """
    rows = []
    names = list(dict.fromkeys(row["variant"] for row in record["rows"]))
    for loss in record["rows"][0]["last_quarter"]:
        values = {n: [r["last_quarter"][loss] for r in record["rows"] if r["variant"] == n] for n in names}
        base = values["fp32"]
        for name, own in values.items():
            finite = all(value is not None for value in own)
            mean = statistics.mean(own) if finite else None
            other = finite and name != "fp32" and len(own) == len(base)
            rows.append(
                {
                    "loss": loss,
                    "variant": name,
                    "seeds": len(own),
                    "mean": mean,
                    "lowest": min(own) if finite else None,
                    "highest": max(own) if finite else None,
                    "inside": finite and min(base) <= mean <= max(base),
                    "furthest_pct": 100 * max(abs(one / b - 1) for one, b in zip(own, base, strict=True))
                    if other
                    else None,
                    "p": float(stats.ttest_rel(own, base).pvalue) if other and len(own) > 1 else None,
                }
            )
    return pd.DataFrame(rows)


def ends_table(record: dict) -> Table:
    """``ends`` of the GAN in words."""
    found = ends(record)
    found["loss"] = found["loss"].map({"d": "discriminator", "g": "generator"})
    found["variant"] = found["variant"].map(WORDS)
    found = found.rename(columns={"furthest_pct": "same seed: at most % from FP32", "p": "p (paired)"})
    formats = dict.fromkeys(["mean", "lowest", "highest"], "{:.4f}")
    formats |= {"same seed: at most % from FP32": "{:.1f}", "p (paired)": "{:.2f}"}
    caption = f"Mean loss over the last quarter of the training, {found['seeds'].max()} seeds each"
    return table(found[["loss", "variant", *formats]], caption, formats)


def accuracy(record: dict) -> Table:
    """The deep network's test accuracy, a row a variant."""
    frame = pd.DataFrame(record["rows"])
    frame["variant"] = frame["variant"].map(WORDS)
    right = frame.groupby("variant", sort=False)["test_accuracy_pct"].agg(["count", "median", "min", "max"])
    found = right.reset_index().rename(columns={"count": "seeds"})
    return table(found, "Test accuracy in %", dict.fromkeys(["median", "min", "max"], "{:.1f}"))


def deep_chart(record: dict) -> Figure:
    """The deep network's losses."""
    return loss_bands(record["rows"], {"net": "loss"}, 5, "A deep network: each variant over the range of FP32's seeds")


def layers(record: dict, every: int = 4) -> Table:
    """The deep network's first step, a layer a row from the loss back: its largest gradient, and the zeros by variant.

    Medians over the seeds; ``every``: each so-manieth layer, counted from the last.
    """
    frame = pd.DataFrame([{"variant": r["variant"], **layer} for r in record["rows"] for layer in r["layers"]])
    middle = frame.groupby(["layer", "variant"])[["largest", "zero_share"]].median().unstack("variant")
    found = pd.DataFrame({"largest in FP32, log2": middle["largest"]["fp32"].map(math.log2)})
    for name in dict.fromkeys(row["variant"] for row in record["rows"]):
        found[f"zero %: {WORDS[name]}"] = 100 * middle["zero_share"][name]
    found = found.iloc[::-1].iloc[::every].reset_index()
    numbers = list(found.columns[1:])
    caption = "Gradients of the weights in the first step: every fourth layer, from the one next to the loss back"
    return table(found, caption, dict.fromkeys(numbers, "{:.0f}"))


def loss_bands(rows: Sequence[dict], losses: Mapping[str, str], every: int, title: str) -> Figure:
    """A panel a loss: the range of FP32's seeds in grey, and a line a variant, the mean over its seeds.

    ``rows``: dicts with ``variant`` and ``losses``, name → one value every ``every`` iterations (None: not finite; its
    line ends there). ``losses``: which of them to draw → what it is called.
    """
    names = list(dict.fromkeys(row["variant"] for row in rows))
    with style.chart(3.4, 1, len(losses), w_pad=0.1) as (fig, axes):
        for ax, (loss, words) in zip(axes, losses.items(), strict=True):
            base = _curves(rows, "fp32", loss)
            at = every * np.arange(base.shape[1])
            label = f"FP32, range of {len(base)} seeds"
            ax.fill_between(at, base.min(axis=0), base.max(axis=0), color=style.GRID, lw=0, label=label)
            for name in names:
                look = {"color": COLOURS[name], "linestyle": DASHES[name], "linewidth": 1.4}
                ax.plot(at, _curves(rows, name, loss).mean(axis=0), label=f"{WORDS[name]}, mean", **look)
            ax.set(xlabel="iteration", ylabel=words)
        style.suptitle(fig, title)
        fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=SMALL + 0.5)
    return fig


def _curves(rows: Iterable[dict], variant: str, loss: str) -> np.ndarray:
    """``(seeds, points)``; NaN where a loss was not finite."""
    return np.array([row["losses"][loss] for row in rows if row["variant"] == variant], dtype=float)


def said(record: dict) -> Table:
    """The monitor's first warning of each of the deep network's runs in FP16."""
    rows = [
        (WORDS[row["variant"]], row["seed"], (row["said"] or ["nothing"])[0])
        for row in record["rows"]
        if row["variant"].startswith("fp16")
    ]
    return table(pd.DataFrame(rows, columns=["variant", "seed", "first warning"]), "The monitor on the deep network")


def logs(gan: dict, deep: dict, monitor: LossScaleMonitor) -> dict[str, list[dict]]:
    """Three monitors' windows: the scaled GAN, the deep network without scaling, the first two of the cubic."""
    scaled = next(row for row in gan["rows"] if row["variant"] == "fp16 dynamic")
    plain = next(row for row in deep["rows"] if row["variant"] == "fp16")
    a, b = scaled["monitors"]["g"]["windows"], plain["monitors"]["net"]["windows"]
    return {"A": a, "B": b, "C": monitor.record()["windows"][:2]}


def logs_table(logs: Mapping[str, Sequence[dict]]) -> Table:
    """Their last three windows."""
    columns = ["scale", "skipped", "zero_share", "subnormal_share"]
    frames = [pd.DataFrame(own[-3:])[columns].assign(log=name) for name, own in logs.items()]
    formats = {"scale": "{:g}"} | dict.fromkeys(columns[2:], "{:.2f}")
    return table(pd.concat(frames)[["log", *columns]], "Windows of 20, 20 and 10 steps", formats)


def weights_lost(record: dict) -> list[float]:
    """The GAN without scaling: per cent of the generator's weights whose gradient is zero, at worst; one a seed."""
    monitors = [row["monitors"]["g"] for row in record["rows"] if row["variant"] == "fp16"]
    return [100 * max(window["zero_share"] for window in own["windows"]) for own in monitors]


def optimizers(record: dict) -> Table:
    """A row a network and make of the optimizer, its step without a loss scaler and with one (``bench_optimizers.py``).

    ``step ms``: until the GPU has done it, the median; of one step the ``kernels``, and as ``waits`` its calls that
    wait for the GPU, both None without a GPU.
    """
    found = pd.DataFrame(record["rows"])
    found["step_ms"] = found["step_us"].map(statistics.median) / 1e3
    wide = found.pivot(index=["network", "optimizer"], columns="scaler", values=["step_ms", "kernels", "waits"])
    wide = wide.reindex(found[["network", "optimizer"]].drop_duplicates().itertuples(index=False, name=None))
    wide.columns = [f"{what.replace('_', ' ')}, {'scaler' if scaler else 'none'}" for what, scaler in wide.columns]
    measured = list(wide)
    formats = {name: "{:.2f}" if name.startswith("step") else "{:.0f}" for name in measured}
    return table(wide.reset_index(), "A step of the optimizer, without a scaler and with one", formats)


def text(record: dict) -> Table:
    """The second text's statements, in our words, beside the recorded trainings."""
    first = lost(record, 0).frame.set_index("layer")["zero × 1"]
    late = lost(record, last(record)).frame.set_index("layer")["zero × 1"]
    losses = ends(record)
    plain = losses[losses["variant"] == "fp16"]
    lowest = min(row["lowest"]["g"] for row in record["rows"] if row["variant"] == "fp16")
    inside = f"{plain['inside'].sum()} of {len(plain)} mean losses within the range of FP32's seeds"
    frame = pd.DataFrame(
        [
            ("loss scaling should not make a big difference in the GAN", f"without it: {inside}"),
            (
                "… since the loss never gets near the range that is cut off",
                f"the generator's loss never falls below {lowest:.2f}, but of its first layer's gradients "
                f"{first['g.fc']:.0f} % are zero in the first iteration, {late['g.fc']:.0f} % in "
                "the last",
            ),
            (
                "4 epochs of 14 iterations",
                "too short for a scaler that doubles after 2,000 good steps; ours doubled after 50",
            ),
            (
                "neither nvidia-smi nor Nsight Systems shows Tensor Core use",
                "no run needed: Nsight Systems samples it (lab 4), nvidia-smi reads it from Hopper on (lab 19)",
            ),
        ],
        columns=["the text", "what we measured"],
    )
    return table(frame, "The text on the GAN")


# --- what it claims -----------------------------------------------------------------------------------------


def gradients_lost(lost_pct: Mapping[str, Mapping[str, float]]) -> Iterator[Claim | str]:
    """What FP16 makes of the GAN's gradients late in the training: per cent of them, by kind and by layer."""
    late = pd.DataFrame(lost_pct)
    small = float((late["foretold"] + late["subnormal"]).drop("d.fc").min())
    zero = float(late.loc["g.fc", "zero × 1"])
    kept = late["zero × 65,536"]
    most, wanted = float(kept.max()), float(kept[["g.fc", "g.conv1", "d.conv1"]].max())
    other = {
        "because": "another training than the recorded one: shorter, or rounded in another order",
        "so": "the first iteration's table, above, is the same on any machine, or nearly so",
    }
    yield Claim(
        "unscaled, more than 10 % of the gradients of the generator's first layer become zero", zero > 10, zero, **other
    )
    behind = "in every layer but the one next to the loss, more than 95 % are zero or subnormal"
    yield Claim(behind, small > 95, small, **other)
    fewer = "a scale of 65,536 leaves fewer than 2 % zero in any layer, and fewer than 1 % in g.fc, g.conv1 and d.conv1"
    yield Claim(fewer, most < 2 and wanted < 1, f"{most:.1f} and {wanted:.1f} %", **other)


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
        "even without scaling, under 1 % of the generator's weights have a zero gradient, in each step looked at",
        zero_pct < 1, zero_pct,
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
    plain, scaled = (
        made.pivot(index="network", columns="optimizer", values=f"step ms, {how}") for how in ("none", "scaler")
    )
    gain, with_one = (ms["Adam, foreach"] / ms["Adam, fused"] for ms in (plain, scaled))
    said = [
        f"for the {name} {gain[name]:.1f} times as fast ({with_one[name]:.1f} with a scaler)" for name in gain.index
    ]
    yield f"Adam's fused step, against PyTorch's default: {', '.join(said)}"


# --- its exercises ------------------------------------------------------------------------------------------


INTERVAL = 3  # good steps in a row after which the scale doubles, in the trial
OVERFLOWS = "0000000000110010001000000001101"  # a digit a step, 1: some gradient is not finite


def _as_grad_scaler(overflows: str, interval: int, scale: float) -> list[float]:
    """The scale after each step, by PyTorch's own scaler on the CPU, whose gradients are set as ``overflows`` says."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    found = []
    for overflow in overflows:
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        weight.grad.fill_(math.inf if overflow == "1" else 1.0)
        scaler.step(optimizer)
        scaler.update()
        found.append(scaler.get_scale())
    return found


@quietly
def _try_next_scale(next_scale: Callable) -> str | None:
    for first in (8.0, 0.5, 2.0**16):
        wanted = _as_grad_scaler(OVERFLOWS, INTERVAL, first)
        scale, good = first, 0
        for step, (overflow, right) in enumerate(zip(OVERFLOWS, wanted, strict=True)):
            before = scale
            answer = next_scale(scale, good, overflow == "1", INTERVAL)
            if not isinstance(answer, tuple | list) or len(answer) != 2:
                return "return both, the new scale and the number of good steps in a row so far"
            scale, good = answer
            if scale != right:
                last = OVERFLOWS[: step + 1][-2 * INTERVAL - 1 :]
                told = ", ".join("overflow" if one == "1" else "good" for one in last)
                return _why(before, scale, right, OVERFLOWS[: step + 1]) + f" (the last steps: {told})"
    return None


def _why(before: float, scale: float, right: float, steps: str) -> str:
    """What went wrong where the scale should have gone from ``before`` to ``right``."""
    if steps[-1] == "1":
        if scale == before:
            return "a step that overflows must halve the scale" + (", below 1 too" if before <= 1 else "")
        return f"the scale went from {before:g} to {scale:g} at an overflow: halve it"
    if right > before:
        if scale == before:
            return f"after {INTERVAL} good steps in a row the scale must double"
        return f"the scale went from {before:g} to {scale:g} after {INTERVAL} good steps: double it"
    if "1" in steps[-INTERVAL:]:
        return "the good steps are to be counted anew after an overflow: they must be in a row"
    if len(steps) > INTERVAL and scale == 2 * before:
        return "the good steps are to be counted anew after the scale was doubled"
    return f"the scale went from {before:g} to {scale:g} at a good step: it must stay as it is"


def _rule(
    halved: Callable = lambda scale: scale / 2,
    doubled: Callable = lambda scale: 2 * scale,
    after_overflow: Callable = lambda good: 0,
    after_doubling: Callable = lambda good: 0,
    early: int = 0,
    at_good: Callable = lambda scale: scale,
) -> Callable:
    """The rule with all that belongs to it, but for what is said otherwise."""

    def next_scale(scale, good_steps, overflow, interval):
        if overflow:
            return halved(scale), after_overflow(good_steps)
        good_steps += 1
        if good_steps >= interval - early:
            return doubled(scale), after_doubling(good_steps)
        return at_good(scale), good_steps

    return next_scale


NEXT_SCALE = Code(
    "An overflow halves and counts from zero; a good step counts, and at the interval doubles and counts from zero.",
    _try_next_scale,
    wrong={
        "return both, the new scale and the number of good steps": lambda scale, *others: scale / 2,
        "a step that overflows must halve the scale (": _rule(halved=lambda scale: scale),
        "a step that overflows must halve the scale, below 1 too": _rule(halved=lambda scale: max(1.0, scale / 2)),
        "at an overflow: halve it": _rule(halved=lambda scale: 1.0),
        "good steps in a row the scale must double": _rule(doubled=lambda scale: scale),
        "good steps: double it": _rule(doubled=lambda scale: scale + 1),
        "counted anew after an overflow": _rule(after_overflow=lambda good: good),
        "counted anew after the scale was doubled": _rule(after_doubling=lambda good: good),
        "at a good step: it must stay as it is": _rule(early=1),
        "good step: it must stay": _rule(at_good=lambda scale: scale * 1.01),
    },
)


def smallest_scale(histogram: Sequence[float], first: int, keep: float = 0.99) -> float:
    """The smallest power of two at which at least the share ``keep`` of the gradients is no smaller than 2**-24.

    ``histogram``: shares of the gradients in [2**e, 2**(e+1)), e from ``first`` on. 1.0 where no scale is needed.
    """
    return 2.0 ** max(0, -24 - _exponent(histogram, first, keep))


def _exponent(histogram: Sequence[float], first: int, keep: float) -> int:
    """The largest exponent at or above which the share ``keep`` of the gradients lies."""
    total, kept = sum(histogram), 0.0
    for place in reversed(range(len(histogram))):
        kept += histogram[place]
        if kept >= keep * total - 1e-12:
            return first + place
    return first


SMALLEST_SCALE = Number(
    BOUND,
    "Add the shares from the largest exponent downwards until 0.99 of their sum; move that exponent to -24.",
    right=smallest_scale,
    wrong={
        "that is the exponent: the scale is two to that power": lambda h, first: math.log2(smallest_scale(h, first)),
        "that is the exponent, below zero: the scale is a factor": lambda h, first: (
            -math.log2(smallest_scale(h, first))
        ),
        "that is GradScaler's first one: less would do": lambda h, first: 65536.0,
        "that moves them to -14, into the normal numbers: the subnormal ones reach down to -24": lambda h, first: (
            1024 * smallest_scale(h, first)
        ),
        "that saves half of the gradients: 99 % are asked for": lambda h, first: smallest_scale(h, first, 0.5),
    },
)
MANY_SKIPPED = 5  # steps in one window of 10 or 20
MANY_SMALL = 0.5  # of the gradients that are not zero


def diagnosis(windows: Sequence[dict]) -> str:
    """``"overflow"``, ``"underflow"`` or ``"healthy"``: what a monitor's windows say."""
    if any(window["skipped"] >= MANY_SKIPPED for window in windows):
        return "overflow"
    last = windows[-1]
    return "underflow" if last["subnormal_share"] > MANY_SMALL * (1 - last["zero_share"]) else "healthy"


@dataclass(frozen=True)
class Diagnoses:
    """Asks for a list of words, a diagnosis for each log in turn; a wrong one is told by what to look for."""

    hint: str
    wrong: dict[str, str]  # the diagnosis that it should have been → what was overlooked
    kind: str = field(default=READ, init=False)

    def check(self, exercise: str, given: object, *logs: Sequence[dict]) -> bool:
        if given is None:
            return say(exercise, None)
        if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != len(logs):
            return say(exercise, f"name {len(logs)} diagnoses in a list, one for each log")
        for name, word, windows in zip("ABC", given, logs, strict=False):
            right, said = diagnosis(windows), str(word).strip().casefold()
            if said not in self.wrong:
                return say(exercise, f"{shown(word)} is none of the diagnoses: {', '.join(self.wrong)}")
            if said != right:
                return say(exercise, f"look at log {name} again: {self.wrong[right]}")
        return say(exercise, "")

    def usual(self, *logs: Sequence[dict]) -> dict[str, object]:
        """What is said → a list in which one diagnosis is wrong, and answers of another kind."""
        right, found = [diagnosis(windows) for windows in logs], {}
        for place, own in enumerate(right):
            other = next(word for word in self.wrong if word != own)
            found[f"log {'ABC'[place]} again: {self.wrong[own]}"] = [*right[:place], other, *right[place + 1 :]]
        found[f"name {len(logs)} diagnoses in a list"] = right[0]
        return found | {"is none of the diagnoses": ["ill", *right[1:]]}


THREE_LOGS = Diagnoses(
    "Skipped steps tell of overflow; gradients that are zero or subnormal, with nothing skipped, of underflow.",
    wrong={
        "healthy": "is anything lost in large numbers, or skipped again and again?",
        "overflow": "what makes a scale fall again and again?",
        "underflow": "nothing is skipped, and where are the gradients?",
    },
)
EXERCISES = {"15.1": NEXT_SCALE, "15.2": SMALLEST_SCALE, "15.3": THREE_LOGS}


# --- what it asks before it shows ---------------------------------------------------------------------------


def _right(deep: dict, variant: str) -> float:
    return float(accuracy(deep).frame.set_index("variant")["median"][WORDS[variant]])


def _zero(gan: dict, layer: str, scale: int = 1) -> float:
    return float(lost(gan, 0).frame.set_index("layer").loc[layer, f"zero × {scale:,}"])


PREDICTIONS = {
    "right": Guess(
        "what the deep network gets right in FP16 without scaling", " %", lambda deep: _right(deep, "fp16"),
        wrong={
            "That's what it gets right in FP32. Too few gradients reach its first layers for that.": (
                lambda deep: _right(deep, "fp32")
            ),
            "Even a network that learns nothing is right about one digit in ten.": lambda deep: 0,
        },
    ),
    "lost": Guess(
        "gradients of the generator's first layer that FP16 loses", " %", lambda gan: _zero(gan, "g.fc"),
        wrong={
            "That's next to the loss. The loss is large enough; its gradients shrink on their way back.": (
                lambda gan: _zero(gan, "d.fc")
            ),
            "That's still near the loss. Each layer on the way back makes gradients smaller.": (
                lambda gan: _zero(gan, "d.conv2")
            ),
            "That's what it loses with the loss multiplied by 1,024.": lambda gan: _zero(gan, "g.fc", 1024),
        },
    ),
}  # fmt: skip
