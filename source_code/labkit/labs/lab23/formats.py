"""What do formats do to a training? Loss beside FP32's, memory, and the weights that a step leaves as they were."""

from __future__ import annotations

from statistics import mean, median

import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from labkit.display import style
from stepbudget.show.table import Table, table

WORDS = {
    "fp32": "FP32",
    "tf32": "TF32",
    "fp16 autocast": "FP16, autocast and scaler",
    "bf16 autocast": "BF16, autocast",
    "fp8 linear": "FP8 in linear layers",
    "bf16 AdamW": "BF16 weights, PyTorch's AdamW",
    "bf16 nearest": "BF16 weights, rounded to nearest",
    "bf16 stochastic": "BF16 weights, rounded by chance",
    "bf16 master": "BF16 weights, FP32 copy",
}
CONFIDENCE = 0.99  # of one of eight comparisons with FP32
MARGIN_PCT = 5.0  # of FP32's distance to the least loss: by how much a format may be worse and still pass
BYTES = ("weight_bytes", "gradient_bytes", "state_bytes")
KEPT = ("fp32", "bf16 AdamW", "bf16 nearest", "bf16 stochastic", "bf16 master")  # of which the weights are watched


def trainings(record: dict) -> pd.DataFrame:
    """A row a format of ``bench_formats.py``: what its seeds came to, beside FP32's with the same seeds.

    ``excess``: mean test loss above the least that is possible, nats a symbol; ``more_pct``: how much more that is than
    FP32's; ``at_most_pct``: how much more at most, with 99 % confidence; ``p``: how often
    chance alone would show as much, were the format no worse. The last two
    are of the paired t test, one-sided; no ``p`` where no seed differs. ``bytes``: of weight, gradient and state for
    each weight.
    """
    rows, least = [], record["least_loss"]
    by_name = {name: sorted_by_seed(record, name) for name in WORDS}
    base = [row["test_loss"] for row in by_name["fp32"]]
    weights = by_name["fp32"][0]["weight_bytes"] / 4
    for name, own in by_name.items():
        if not own:
            continue
        losses = [row["test_loss"] for row in own]
        finite = all(loss is not None for loss in losses)
        paired = finite and name != "fp32" and len(own) > 1
        more, most, p = beside(losses, base) if paired else (None, None, None)
        distance = mean(base) - least
        rows.append(
            {
                "variant": name,
                "format": WORDS[name],
                "seeds": len(own),
                "excess": mean(losses) - least if finite else None,
                "more_pct": 100 * more / distance if paired else None,
                "at_most_pct": 100 * most / distance if paired else None,
                "p": p,
                "possible_pct": mean(row["possible_pct"] for row in own),
                "unchanged_pct": 100 * mean(row["unchanged"][-1]["share"] for row in own),
                "step_ms": median(row["step_ms"] for row in own),
                "bytes": sum(own[0][part] for part in BYTES) / weights,
            }
        )
    return pd.DataFrame(rows)


def beside(losses: list[float], base: list[float]) -> tuple[float, float, float | None]:
    """Of losses beside FP32's, seed by seed: how much more in the mean, at most, and the p-value of that."""
    if losses == base:
        return 0.0, 0.0, None
    most = stats.ttest_rel(losses, base, alternative="less").confidence_interval(CONFIDENCE).high
    p = stats.ttest_rel(losses, base, alternative="greater").pvalue
    return mean(losses) - mean(base), float(most), float(p)


def sorted_by_seed(record: dict, variant: str) -> list[dict]:
    return sorted((row for row in record["rows"] if row["variant"] == variant), key=lambda row: row["seed"])


def fails_gate(found: pd.DataFrame) -> list[str]:
    """The formats that may be worse than FP32 by more than the margin, or are not finite; of ``trainings``."""
    worse = (found["variant"] != "fp32") & ~(found["at_most_pct"] <= MARGIN_PCT)
    return list(found.loc[worse, "format"])


def by_format(record: dict) -> Table:
    """A row a format: loss, accuracy, time."""
    found = trainings(record)
    names = {
        "format": "format",
        "excess": "nats above the least",
        "more_pct": "more than FP32 %",
        "at_most_pct": "at most %",
        "p": "p",
        "possible_pct": "possible guesses %",
        "step_ms": "ms a step",
    }
    formats = {names["excess"]: "{:.4f}", "p": _p, names["possible_pct"]: "{:.2f}", "ms a step": "{:.1f}"}
    formats |= dict.fromkeys([names["more_pct"], names["at_most_pct"]], "{:+.1f}")
    caption = "Test loss, mean over seeds (at most: with 99 % confidence; p: how often chance alone does this)"
    return table(found[list(names)].rename(columns=names), caption, formats)


def _p(value: float) -> str:
    return "<0.0001" if value < 1e-4 else f"{value:.4f}" if value < 0.01 else f"{value:.2f}"


def by_chance(found: pd.DataFrame) -> dict[str, float]:
    """BF16 weights rounded by chance beside FP32, of ``trainings``: distance and memory; nothing without BF16."""
    own = found.set_index("variant")
    if "bf16 stochastic" not in own.index:
        return {}
    chance, fp32 = own.loc["bf16 stochastic"], own.loc["fp32"]
    more_pct = 100 * (chance["excess"] / fp32["excess"] - 1)
    return {"more_pct": float(more_pct), "share of bytes": float(chance["bytes"] / fp32["bytes"])}


def kept(record: dict, weights: float = 7e9) -> Table:
    """Which % of the weights with a gradient a step left as they were, mean over seeds, by iteration; and the memory.

    That is what a weight, its gradient and its state take, and those of a model of so many weights.
    """
    found = trainings(record).set_index("variant")
    names = [name for name in KEPT if name in found.index]
    rows = [
        {"variant": row["variant"], "iteration": one["iteration"], "share": 100 * one["share"]}
        for row in record["rows"]
        for one in row["unchanged"]
    ]
    shares = pd.DataFrame(rows).pivot_table(index="variant", columns="iteration", values="share").loc[names]
    shares.columns = [f"step {at}: unchanged %" for at in shares.columns]
    total, held = f"GB for {weights / 1e9:g} billion", found.loc[names, "bytes"]
    frame = shares.assign(**{"bytes a weight": held.round(2), total: held * weights / 1e9})
    frame.insert(0, "format", [WORDS[name] for name in names])
    formats = dict.fromkeys(shares, "{:.1f}") | {"bytes a weight": "{:.0f}", total: "{:.0f}"}
    return table(
        frame.reset_index(drop=True), "Weights that a step left unchanged; memory with gradients and state", formats
    )


def losses(record: dict) -> Figure:
    """Test loss above the least possible one: a row a format, a dot a seed, a line at the mean."""
    names = [name for name in WORDS if any(row["variant"] == name for row in record["rows"])]
    seeds = len({row["seed"] for row in record["rows"]})
    with style.chart(1.2 + 0.32 * len(names), w_pad=0.1) as (fig, ax):
        for y, name in enumerate(names):
            own = [row["test_loss"] for row in record["rows"] if row["variant"] == name]
            own = [loss - record["least_loss"] for loss in own if loss is not None]
            colour = style.VERMILION if name in ("bf16 AdamW", "bf16 nearest") else style.BLUE
            ax.plot(own, [y] * len(own), "o", mfc="none", mec=colour, ms=5)
            if own:
                ax.plot([sum(own) / len(own)] * 2, [y - 0.3, y + 0.3], color=colour, lw=2)
        ax.set_yticks(range(len(names)), [WORDS[name] for name in names])
        ax.invert_yaxis()
        ax.set_xlim(left=0)
        ax.grid(axis="x")
        ax.set_xlabel("nats a symbol above the least possible loss")
        style.suptitle(fig, f"Test loss by format: a dot a seed ({seeds} seeds), a line at their mean")
    return fig
