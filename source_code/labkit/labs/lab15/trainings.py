"""What became of the GAN and of the deep network? Their gradients and losses, and what a scaler costs an optimizer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from scipy import stats

from labkit.display import style
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
    with style.house_style():
        fig = style.figure(4.4, w_pad=0.1)
        axes = fig.subplots(2, -(-len(layers) // 2), sharex=True, squeeze=False).ravel()
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
    caption = "Mean loss over the last quarter of the training, five seeds each"
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
    caption = "Gradients of the weights in the first step, from the layer next to the loss to the first one"
    return table(found, caption, dict.fromkeys(numbers, "{:.0f}"))


def loss_bands(rows: Sequence[dict], losses: Mapping[str, str], every: int, title: str) -> Figure:
    """A panel a loss: the range of FP32's seeds in grey, and a line a variant, the mean over its seeds.

    ``rows``: dicts with ``variant`` and ``losses``, name → one value every ``every`` iterations (None: not finite; its
    line ends there). ``losses``: which of them to draw → what it is called.
    """
    names = list(dict.fromkeys(row["variant"] for row in rows))
    with style.house_style():
        fig = style.figure(3.4, w_pad=0.1)
        axes = fig.subplots(1, len(losses), squeeze=False)[0]
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
                f"the generator's loss never falls below {lowest:.2f}, but of its gradients "
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
