"""What do the experiments on formats say? Trainings, FP8, attention, recurrent networks: as data frames."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

import pandas as pd
from scipy import stats

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
SHEET_TFLOPS = {"bf16": 989.0, "fp8": 1979.0}  # dense, of an H200 or H100 SXM, by NVIDIA's data sheets
NAN = float("nan")  # not measured here
BYTES = ("weight_bytes", "gradient_bytes", "state_bytes")


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


def vanished(record: dict) -> pd.DataFrame:
    """Per format and iteration: % of the weights with a gradient that a step left as they were, mean over seeds."""
    rows = [
        {"variant": row["variant"], "iteration": one["iteration"], "unchanged_pct": 100 * one["share"]}
        for row in record["rows"]
        for one in row["unchanged"]
    ]
    return pd.DataFrame(rows).groupby(["variant", "iteration"], sort=False, as_index=False)["unchanged_pct"].mean()


# --- FP8 ----------------------------------------------------------------------------------------------------


def products(record: dict) -> pd.DataFrame:
    """Square products of ``bench_fp8.py``: ``size``, ``how``, ``us``, ``tflops``, ``refused``; one size's ``error``."""
    found = pd.DataFrame([row for row in record["rows"] if row["what"] == "product"])
    found = found.reindex(columns=["size", "how", "us", "low_us", "high_us", "error", "refused"])
    return found.assign(tflops=2 * found["size"] ** 3 / found["us"] / 1e6)


def layers(record: dict) -> pd.DataFrame:
    """Four linear layers forward and back, a row a ``width``: ``us`` by how they ran, as columns; NaN: refused."""
    found = pd.DataFrame([row for row in record["rows"] if row["what"] == "layers"])
    found = found.reindex(columns=["width", "how", "us"])
    return found.pivot(index="width", columns="how", values="us").astype(float)


def layer_bounds(record: dict, width: int) -> dict[str, float]:
    """Bounds on how many times as fast FP8 makes the layers of one ``width``: keys in the order of what they know.

    ``data sheet``: twice the rate. ``products``: the measured rates of the square product of that size.
    ``products and casts``: the eight-bit copies too, of three matrices a layer, each made once, in compiled code.
    NaN where a size was not measured.
    """
    rates = products(record).set_index(["size", "how"])["us"]
    casts = {(row["size"], row["how"]): row.get("us") for row in record["rows"] if row["what"] == "cast"}
    cast_us = casts.get((width, "compiled")) or NAN
    forward, back, plain = (float(rates.get((width, how), NAN)) for how in ("fp8", "fp8 exact sums", "bf16"))
    return {
        "data sheet": SHEET_TFLOPS["fp8"] / SHEET_TFLOPS["bf16"],
        "products": 3 * plain / (forward + 2 * back),
        "products and casts": 3 * plain / (forward + 2 * back + 3 * cast_us),
    }


def has_fp8(record: dict) -> bool:
    """Was any product in FP8 measured? Older GPUs than Ada and Hopper have none."""
    found = products(record)
    return bool(found.loc[found["how"] == "fp8", "us"].notna().any())


def speedup(record: dict, width: int, how: str = "compiled") -> float:
    """How many times as fast the layers of a width are in FP8, both ``how``; NaN where one was refused."""
    found, ending = layers(record).loc[width], f" {how}" if how else ""
    return float(found.get(f"bf16{ending}", NAN) / found.get(f"fp8{ending}", NAN))


# --- attention and recurrent networks -----------------------------------------------------------------------


def attention(record: dict) -> pd.DataFrame:
    """The rows of ``bench_attention.py``; without a time where the kernel does not take the type."""
    columns = ["length", "dtype", "kernel", "us", "low_us", "high_us", "tflops", "error", "extra_bytes", "refused"]
    return pd.DataFrame(record["rows"]).reindex(columns=columns)


def recurrent(record: dict) -> pd.DataFrame:
    """The rows of ``bench_lstm.py``, with ``size``, the one that was varied, and the time beside the usual size's.

    ``relative``: µs over those of the usual size in the same type; ``a_symbol``: ns a symbol.
    """
    found = pd.DataFrame(record["rows"])
    usual = found[found["varied"] == ""].set_index("dtype")
    found["size"] = [row[row["varied"]] if row["varied"] else None for _, row in found.iterrows()]
    for part in ("us", "lstm_us"):
        found[f"relative_{part}"] = found[part] / found["dtype"].map(usual[part])
    found["ns_a_symbol"] = 1e3 * found["us"] / (found["batch"] * found["length"])
    return found


def around(found: pd.DataFrame, varied: str, dtype: str) -> pd.DataFrame:
    """The rows of ``recurrent`` with one thing varied, and the usual ones among them, by size."""
    own = found[(found["dtype"] == dtype) & found["varied"].isin([varied, ""])]
    return own.assign(size=own[varied]).sort_values("size")


def narrow(found: Sequence[str]) -> str:
    """Of the types that were measured the one to show: BF16, else FP16."""
    return "bf16" if "bf16" in set(found) else "fp16"
