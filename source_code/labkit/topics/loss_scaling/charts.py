"""What does loss scaling look like? Losses with their seeds, scales over time, gradients' exponents, pictures made."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.display import style
from labkit.topics.loss_scaling.readings import LIMIT_PCT

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
FAIL = 1e3  # per cent above least squares from which on a fit has failed, and is drawn at the edge
DIGIT = 28  # pixels, the side of a digit


# --- the cubic ----------------------------------------------------------------------------------------------


def fits(rows: Sequence[dict], least_squares: float) -> Figure:
    """Per cent above the least-squares loss: a row a variant, a dot a seed; hollow: as the run itself reports it.

    ``rows``: dicts with ``variant``, ``loss`` and ``exact_loss`` (None: not finite). What is not finite, or beyond
    1,000 %, is a cross at the right edge.
    """
    names = list(dict.fromkeys(row["variant"] for row in rows))
    with style.house_style():
        fig = style.figure(1.3 + 0.3 * len(names), w_pad=0.1)
        ax = fig.subplots()
        for y, name in enumerate(names):
            own = [row for row in rows if row["variant"] == name]
            for kind, look in (("loss", {"mfc": style.PAPER, "ms": 7}), ("exact_loss", {"mfc": style.BLUE, "ms": 4.5})):
                values = [_above(row[kind], least_squares) for row in own]
                fine = [value for value in values if value is not None]
                ax.plot(fine, [y] * len(fine), "o", mec=style.BLUE, mew=1, **look)
            failed = sum(_above(row["exact_loss"], least_squares) is None for row in own)
            if failed:
                ax.plot([FAIL], [y], "x", color=style.VERMILION, ms=8, mew=2)
                ax.annotate(f"{failed} of {len(own)} fail", (FAIL, y), (-10, 0), **BESIDE | {"ha": "right"})
        ax.axvline(LIMIT_PCT, color=style.MUTED, ls=":", lw=1.4)
        ax.annotate(f"{LIMIT_PCT:g} %", (LIMIT_PCT, -0.6), (4, 0), **BESIDE)
        ax.set(xscale="log", xlim=(0.02, 1.4 * FAIL), ylim=(len(names) - 0.5, -0.9))
        ax.set_xticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
        ax.set_yticks(range(len(names)), names)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("per cent above the least-squares loss; full: by the final weights, hollow: as the run says")
        ax.set_title(f"A cubic fitted to sin(x): a dot a seed ({_seeds(rows)} seeds a variant)")
    return fig


def _above(loss: float | None, least_squares: float) -> float | None:
    """Per cent above the least-squares loss; None where the fit failed."""
    if loss is None or not math.isfinite(loss):
        return None
    above = 100 * (loss / least_squares - 1)
    return max(above, 0.02) if above < FAIL else None


def _seeds(rows: Sequence[dict]) -> int:
    return len({row["seed"] for row in rows})


# --- scales -------------------------------------------------------------------------------------------------


def scales(lines: Mapping[str, Sequence[dict]], reach: Sequence[int], title: str) -> Figure:
    """The loss scale over the iterations, as powers of two: a line a seed; a tick below where a step was skipped.

    ``lines``: a panel's name → dicts with ``scale_changes``, (iteration, new scale) pairs, and ``skipped``, iterations;
    ``reach``: up to which iteration each panel goes.
    """
    every = [change[1] for seeds in lines.values() for own in seeds for change in own["scale_changes"]]
    low, high = math.log2(min(every)), math.log2(max(every))
    below = 0.04 * (high - low) + 0.3  # between the lowest scale and the first seed's ticks, and from seed to seed
    with style.house_style():
        fig = style.figure(3.2, w_pad=0.1)
        axes = fig.subplots(1, len(lines), sharey=True, squeeze=False)[0]
        for ax, (name, seeds), end in zip(axes, lines.items(), reach, strict=True):
            for number, own in enumerate(seeds):
                at = [change[0] for change in own["scale_changes"]]
                size = [math.log2(change[1]) for change in own["scale_changes"]]
                colour = SEED_COLOURS[number % len(SEED_COLOURS)]
                ax.step([*at, max(end, at[-1])], [*size, size[-1]], where="post", color=colour, lw=1.3)
                ax.plot(own["skipped"], [low - below * (number + 1)] * len(own["skipped"]), "|", color=colour, ms=6)
            ax.set(title=name, xlabel="iteration", xlim=(-0.02 * end, 1.02 * end))
            ax.grid(axis="y")
        axes[0].set_ylim(low - below * (1 + max(map(len, lines.values()))), high + below)
        apart = 4 if high - low > 10 else 1
        ticks = range(apart * math.floor(low / apart), math.ceil(high) + 1, apart)
        axes[0].set_yticks(list(ticks), [f"$2^{{{tick}}}$" for tick in ticks])
        axes[0].set_ylabel("loss scale")
        style.suptitle(fig, title)
        fig.supxlabel("a colour a seed; the ticks below: skipped steps", size=SMALL + 0.5, color=style.MUTED)
    return fig


SEED_COLOURS = [style.BLUE, style.VERMILION, style.GREEN, style.ORANGE, style.PINK]


# --- losses -------------------------------------------------------------------------------------------------


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


# --- exponents ----------------------------------------------------------------------------------------------


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


# --- pictures -----------------------------------------------------------------------------------------------


def pictures(rows: Sequence[dict], title: str) -> Figure:
    """A row of digits a variant, as the network of one seed drew them: ``pictures``, bytes in base64."""
    shown = [(WORDS[row["variant"]], row["pictures"]) for row in rows if row.get("pictures")]
    with style.house_style():
        fig = style.figure(0.5 + 0.7 * len(shown), w_pad=0.1)
        axes = fig.subplots(len(shown), 1, squeeze=False)[:, 0]
        for ax, (name, text) in zip(axes, shown, strict=True):
            digits = np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(-1, DIGIT, DIGIT)
            ax.imshow(np.hstack(digits), cmap="gray_r", vmin=0, vmax=255, aspect="equal")
            ax.set_xticks([])
            ax.set_yticks([DIGIT / 2], [name])
            ax.tick_params(axis="y", length=0)
        style.suptitle(fig, title)
    return fig


BESIDE = {"textcoords": "offset points", "va": "center", "size": SMALL}
