"""What lab 13 claims: channels_last pays on Tensor Cores, most with good widths, and which TF32 switch counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.display.runs import difference, epoch_ms
from labkit.display.spread import Spread, paired
from labkit.subjects import accuracy
from labkit.topics.shapes.charts import WORDS
from labkit.topics.shapes.readings import half_type
from stepbudget.ask.compare import Comparison
from stepbudget.ask.ops import eligible
from stepbudget.report import Report

NETWORKS = ("as it was", "channels_last")
LAYERS = {"conv2": 32, "wide": 256}  # and their input's channels
FP32_FROM_OUTSIDE = ("NVIDIA_TF32_OVERRIDE=0", "both: TORCH_…=1, NVIDIA_…=0")
NONE = float("nan")  # no number: not measured here


def layout_copies(ops: Report) -> Iterator[Claim | str]:
    """Kernel time of what only changes the layout; ``ops``: a report with the operators' ranges."""
    yield f"Layout copies: ~{_layout_ms(ops):.1f} ms of an epoch's kernels."


def _layout_ms(ops: Report) -> float:
    return eligible(ops)["layout_ms"].sum()


def pays_in_16_bits(convolutions: pd.DataFrame) -> Iterator[Claim | str]:
    """What channels_last gains a layer: in 16 bits a lot, in FP32 nothing."""
    half = half_type(convolutions)
    groups = convolutions.groupby(["layer", "c_in", "dtype", "layout"])["us"]
    sums = groups.sum(min_count=1).unstack()  # a type that the GPU lacks has no sum
    ratio = sums["NCHW"] / sums["channels_last"]
    for dtype in (half, "fp32"):
        said = [f"{layer} ~{ratio.get((layer, width, dtype), NONE):.2f}" for layer, width in LAYERS.items()]
        yield f"{WORDS[dtype]}, channels_last, times as fast: {', '.join(said)}"
    least = min(ratio.get((layer, width, half), NONE) for layer, width in LAYERS.items())
    yield Claim(
        "channels_last is faster for conv2 and the wide layer in 16 bits", least > 1.1, least,
        because="the GPU has no Tensor Cores, or another cuDNN converts the layout for less",
        so="keep NCHW here, unless the network as a whole gains below",
    )  # fmt: skip
    widths = ratio.loc["wide"].xs("fp32", level="dtype").items()
    said = ", ".join(f"~{fast:.2f} with {width}" for width, fast in widths)
    yield f"The wide layer in FP32, by its channels: {said}."


def multiples_of_64(by_channels: pd.DataFrame) -> Iterator[Claim | str]:
    """Which widths are fast with channels_last; ``by_channels``: of the wide layer."""
    speed = _rates(by_channels)
    left_pct = 100 * speed / speed.get(256, NONE)
    kept = ", ".join(f"~{left_pct.get(width, NONE):.0f} % with {width}" for width in (257, 264, 248))
    yield f"of the rate with 256 channels there is left: {kept}"
    by_64, others = speed[speed.index % 64 == 0], speed[speed.index % 64 != 0]
    yield Claim(
        "multiples of 64 are faster than the others, on average, and 257 is slower than 256",
        by_64.mean() > others.mean() and left_pct.get(257, NONE) < 90,
        {width: f"~{rate:.0f}" for width, rate in speed.items()},
        because="another GPU or cuDNN has other kernels for such widths",
        so="the table's last column is your rule",
    )


def how_far_apart(by_channels: pd.DataFrame, convolutions: pd.DataFrame) -> Iterator[Claim | str]:
    """Do measurements differ as much as the widths do?"""
    speed = _rates(by_channels)
    by_64, others = speed[speed.index % 64 == 0], speed[speed.index % 64 != 0]
    good, bad = (f"~{own.min():.0f} to ~{own.max():.0f}" for own in (by_64, others))
    yield f"Multiples of 64 {good}, the others {bad}."
    own = convolutions[(convolutions["layer"] == "wide") & (convolutions["dtype"] == half_type(convolutions))]
    apart = (100 * (own["high_us"] - own["low_us"]) / own["us"]).max()
    yield f"Slowest minus fastest measurement, at any width: at most ~{apart:.0f} % of the median."
    ends = own.groupby(["c_in", "layout"])[["low_us", "high_us"]].sum()
    for (width, layout), (low, high) in ends.loc[[255, 257]].iterrows():
        yield f"{width} channels, {layout}, fastest to slowest: ~{low:.0f} to ~{high:.0f} µs."


def _rates(by_channels: pd.DataFrame) -> pd.Series:
    """TFLOP/s with channels_last, by the number of channels."""
    return by_channels.set_index("channels")["channels_last_tflops"]


def shorter_epochs(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """What channels_last does to the network's epoch and to the whole process."""
    plain, last = (runs[name] for name in NETWORKS)
    yield f"channels_last, an epoch: {difference(_epochs_ratio(runs))}"
    yield f"channels_last, the whole process: {difference(paired(last, plain))}"


def _epochs_ratio(runs: Mapping[str, Sequence[dict]]) -> Spread:
    """An epoch with channels_last over one without, round by round."""
    plain, last = (runs[name] for name in NETWORKS)
    return Spread.of([epoch_ms([own]) / epoch_ms([base]) for own, base in zip(last, plain, strict=False)])


def comparable(made: Comparison) -> Iterator[Claim | str]:
    """The layout is all that differs between the two profiles."""
    yield Claim(
        "same GPU, same steps, same bytes copied to it", made.comparable, "; ".join(made.obstacles),
        because="there was no GPU to profile, or not the same one twice",
        so="do not lay the differences in the table below to the layout",
    )  # fmt: skip


def of_the_estimate(ops: Report, made: Comparison, runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """How much of the layout copies' time was gained; ``ops`` as for ``layout_copies``, ``made``: of the profiles."""
    layout_ms = _layout_ms(ops)
    plain_ms, last_ms = (Spread.of([epoch_ms([run]) for run in runs[name]]).median for name in NETWORKS)
    yield (
        f"Estimate ~{layout_ms:.1f} ms; gained without the profiler ~{plain_ms - last_ms:.1f} ms, "
        f"with it ~{made.gained_ms:.1f} ms."
    )
    ratio = _epochs_ratio(runs)
    yield Claim(
        "channels_last makes the epoch shorter, in every round", ratio.high < 1, ratio.high,
        because="FP32 or a GPU without Tensor Cores wants NCHW, or the runs differ by more",
        so="do not switch the layout here for its speed",
    )  # fmt: skip
    if layout_ms:
        yield f"that is ~{100 * (plain_ms - last_ms) / layout_ms:.0f} % of the estimate"


def accuracy_kept(baseline: Sequence[float], last: Sequence[float]) -> Iterator[Claim | str]:
    """The layout loses nothing: test accuracies of both, one a seed."""
    chance = accuracy.below(baseline, last)
    yield Claim(
        "not significantly below the baseline (p ≥ 0.05)", chance >= 0.05, chance,
        because="one in twenty such tests fails by chance",
        so="look at the mean and at how many points it loses at most, and train more seeds",
    )  # fmt: skip


def types_by_switch(probes: Sequence[Mapping]) -> Iterator[Claim | str]:
    """What FP32 means by default, and after the switch that looks like the one for all; rows of ``bench_tf32.py``."""
    says = {row["statements"].replace("torch.backends.", ""): row for row in probes if not row["environment"]}
    for what, statement in (("by default", ""), ("fp32_precision = 'ieee'", "fp32_precision = 'ieee'")):
        row = says[statement]
        yield f"{what}: products in {row['matmul']}, convolutions in {row['conv']}"
    if not any("TF32" in (row["matmul"], row["conv"]) for row in probes):
        yield "no switch makes TF32 here: this GPU has none, and all that follows is of others"


def from_outside(types: pd.DataFrame) -> Iterator[Claim | str]:
    """What the environment forces; ``types``: of products, then of convolutions, a row an environment."""
    rows = types.set_index("environment")
    cells = {name: [cell.split(", ") for cell in row.dropna()] for name, row in rows.iterrows()}
    off = {kind for name in FP32_FROM_OUTSIDE for cell in cells.get(name, []) for kind in cell}
    yield Claim(
        "NVIDIA_TF32_OVERRIDE=0 makes all of these FP32, whatever the statements say",
        off - {"refused"} == {"FP32"},
        off,
    )
    on = {product for product, _ in cells.get("NVIDIA_TF32_OVERRIDE=1", [])}
    yield Claim(
        "NVIDIA_TF32_OVERRIDE=1 makes all products TF32", on == {"TF32"}, on,
        because="the GPU has no TF32: it came with Ampere",
        so="nothing can make your FP32 products less exact from outside",
    )  # fmt: skip
