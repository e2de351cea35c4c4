"""Lab 13: channels_last pays on Tensor Cores, most with good widths, and which TF32 switch counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.checks import Claim
from labkit.display import style
from labkit.display.runs import difference, epoch_ms
from labkit.display.spread import Spread, paired
from labkit.exercises.kinds import BOUND, READ, Choice, Code, NothingToAnswer, Number
from labkit.numbers import shown
from labkit.subjects import accuracy
from labkit.subjects.roofline_charts import ROOFS
from labkit.subjects.shapes import TYPES, WORDS, half_type
from stepbudget.ask import ops, tensor_cores
from stepbudget.ask.compare import Comparison
from stepbudget.ask.ops import Summary
from stepbudget.ask.tensor_cores import TensorActive, kernels
from stepbudget.kernel_names import CHANGES_LAYOUT, NO
from stepbudget.report import Report
from stepbudget.show.palette import tint
from stepbudget.show.table import Table, table

# --- claims --------------------------------------------------------------------------------------------------

NETWORKS = ("as it was", "channels_last")
LAYERS = {"conv2": 32, "wide": 256}  # and their input's channels
FP32_FROM_OUTSIDE = ("NVIDIA_TF32_OVERRIDE=0", "both: TORCH_…=1, NVIDIA_…=0")
NONE = float("nan")  # no number: not measured here


def layout_copies(ops: Report) -> Iterator[Claim | str]:
    """Kernel time of what only changes the layout; ``ops``: a report with the operators' ranges."""
    yield f"Layout copies: {_copies_ms(ops):.1f} ms of an epoch's kernels."


def _copies_ms(report: Report) -> float:
    return float(ops.eligible(report)["layout_ms"].sum())


def pays_in_16_bits(convolutions: pd.DataFrame) -> Iterator[Claim | str]:
    """What channels_last gains a layer: in 16 bits a lot, in FP32 nothing."""
    half = half_type(convolutions)
    groups = convolutions.groupby(["layer", "c_in", "dtype", "layout"])["us"]
    sums = groups.sum(min_count=1).unstack()  # a type that the GPU lacks has no sum
    ratio = sums["NCHW"] / sums["channels_last"]
    for dtype in (half, "fp32"):
        said = [f"{layer} {ratio.get((layer, width, dtype), NONE):.2f}" for layer, width in LAYERS.items()]
        yield f"{WORDS[dtype]}, channels_last, times as fast: {', '.join(said)}"
    least = min(ratio.get((layer, width, half), NONE) for layer, width in LAYERS.items())
    yield Claim(
        "channels_last is faster for conv2 and the wide layer in 16 bits", least > 1.1, least,
        because="the GPU has no Tensor Cores, or another cuDNN converts the layout for less",
        so="keep NCHW here, unless the network as a whole gains below",
    )  # fmt: skip
    widths = ratio.loc["wide"].xs("fp32", level="dtype").items()
    said = ", ".join(f"{fast:.2f} with {width}" for width, fast in widths)
    yield f"The wide layer in FP32, by its channels: {said}."


def multiples_of_64(by_channels: pd.DataFrame) -> Iterator[Claim | str]:
    """Which widths are fast with channels_last; ``by_channels``: of the wide layer."""
    speed = _rates(by_channels)
    left_pct = 100 * speed / speed.get(256, NONE)
    kept = ", ".join(f"{left_pct.get(width, NONE):.0f} % with {width}" for width in (257, 264, 248))
    yield f"of the rate with 256 channels there is left: {kept}"
    by_64, others = speed[speed.index % 64 == 0], speed[speed.index % 64 != 0]
    yield Claim(
        "multiples of 64 are faster than the others, on average, and 257 is slower than 256",
        by_64.mean() > others.mean() and left_pct.get(257, NONE) < 90,
        {width: f"{rate:.0f}" for width, rate in speed.items()},
        because="another GPU or cuDNN has other kernels for such widths",
        so="the table's last column is your rule",
    )


def how_far_apart(by_channels: pd.DataFrame, convolutions: pd.DataFrame) -> Iterator[Claim | str]:
    """Do measurements differ as much as the widths do?"""
    speed = _rates(by_channels)
    by_64, others = speed[speed.index % 64 == 0], speed[speed.index % 64 != 0]
    good, bad = (f"{own.min():.0f} to {own.max():.0f}" for own in (by_64, others))
    yield f"Multiples of 64 {good}, the others {bad}."
    own = convolutions[(convolutions["layer"] == "wide") & (convolutions["dtype"] == half_type(convolutions))]
    apart = (100 * (own["high_us"] - own["low_us"]) / own["us"]).max()
    yield f"Slowest minus fastest measurement, at any width: at most {apart:.0f} % of the median."
    ends = own.groupby(["c_in", "layout"])[["low_us", "high_us"]].sum()
    for (width, layout), (low, high) in ends.loc[[255, 257]].iterrows():
        yield f"{width} channels, {layout}, fastest to slowest: {low:.0f} to {high:.0f} µs."


def _rates(by_channels: pd.DataFrame) -> pd.Series:
    """TFLOP/s with channels_last, by the number of channels."""
    return by_channels.set_index("channels")["channels_last TFLOP/s"]


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
    layout_ms = _copies_ms(ops)
    plain_ms, last_ms = (Spread.of([epoch_ms([run]) for run in runs[name]]).median for name in NETWORKS)
    yield (
        f"Estimate {layout_ms:.1f} ms; gained without the profiler {plain_ms - last_ms:.1f} ms, "
        f"with it {made.gained_ms:.1f} ms."
    )
    ratio = _epochs_ratio(runs)
    yield Claim(
        "channels_last makes the epoch shorter, in every round", ratio.high < 1, ratio.high,
        because="FP32 or a GPU without Tensor Cores wants NCHW, or the runs differ by more",
        so="do not switch the layout here for its speed",
    )  # fmt: skip
    if layout_ms:
        yield f"that is {100 * (plain_ms - last_ms) / layout_ms:.0f} % of the estimate"


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


# --- tables --------------------------------------------------------------------------------------------------


def by_channels(convolutions: pd.DataFrame) -> Table:
    """Forward and backward of the wide layer in 16 bits by its channels, of which the largest power of two is shown."""
    half = half_type(convolutions)
    own = convolutions[(convolutions["layer"] == "wide") & (convolutions["dtype"] == half)].copy()
    own["operations"] = own["us"] * own["tflops"]
    sums = own.groupby(["c_in", "layout"])[["us", "operations"]].sum()
    wide = sums.assign(tflops=sums["operations"] / sums["us"]).unstack()
    units = {"us": "µs", "tflops": "TFLOP/s"}
    measured = {f"{layout} {unit}": wide[what, layout] for what, unit in units.items() for layout in LAYOUTS}
    widths = {"channels": wide.index, "a multiple of": wide.index & -wide.index}
    caption = f"64 images of 28 × 28, as many channels in as out, forward and backward, {WORDS[half]}"
    return table(pd.DataFrame(widths | measured), caption, dict.fromkeys(measured, "{:,.0f}"))


MOVES = {"layout copies": CHANGES_LAYOUT.pattern, "pooling": "max_pool", "other copies": "direct_copy"}


def moves(reports: Mapping[str, Report]) -> Table:
    """Kernel time of what moves images or reads each of their numbers once, a column a report."""
    frame = pd.DataFrame({"kernels": list(MOVES)})
    for name, report in reports.items():
        own = kernels(report)
        found = [own["kernel"].astype(str).str.contains(pattern) for pattern in MOVES.values()]
        frame[name] = [own.loc[hit, "gpu_ms"].sum() for hit in found]
    return table(frame, "Kernel time of an epoch, ms", dict.fromkeys(reports, "{:.1f}"))


def switches(rows: Sequence[Mapping], caption: str) -> Table:
    """What each set of switches makes of an FP32 product and convolution.

    ``rows``: of ``bench_tf32.py``. The errors are relative to FP64's result.
    """
    lines = []
    for row in rows:
        line = {"statements": row["statements"] or "nothing"}
        for name, words in (("matmul", "product"), ("conv", "convolution")):
            line |= {words: row[name] or "refused", f"{words}'s error": row[f"{name}_error"]}
        lines.append(line | {"complaint": ", ".join(row["refused"]) or "–"})
    errors = ["product's error", "convolution's error"]
    formats = dict.fromkeys(errors, "{:.1e}") | {"statements": lambda text: text.replace("torch.backends.", "")}
    return table(pd.DataFrame(lines), caption, formats)


def environment(rows: Sequence[Mapping], caption: str) -> Table:
    """The same probes in each environment, a row an environment: of what type products are, and convolutions."""
    lines = {}
    for row in rows:
        head = re.sub(r"torch\.backends\.|cuda\.matmul\.|cudnn\.", "", row["statements"] or "nothing")
        one, *more = head.split("; ")
        head = f"both {one}" if more else one
        both = f"{row['matmul'] or 'refused'}, {row['conv'] or 'refused'}"
        lines.setdefault(row["environment"] or "none", {})[head] = both
    return table(pd.DataFrame(lines).T.rename_axis("environment").reset_index(), caption)


def claims(
    products: pd.DataFrame, convolutions: pd.DataFrame, bad: Summary, good: Summary, active: TensorActive | None
) -> Table:
    """Both texts' statements, in our words, beside what was measured.

    ``bad``, ``good``: the operations of an epoch with 127 and with 128 units; ``active``: the counter, where it was
    sampled.
    """
    half = half_type(products)
    word = WORDS[half]
    one = products[products["part"] == "one"].set_index(["dtype", "m", "n", "k"])["us"]
    base = {dtype: one.get((dtype, 4096, 4096, 4096), float("nan")) for dtype in TYPES}
    m, n = (one[(half, *size)] / base[half] for size in ((4095, 4096, 4096), (4096, 4095, 4096)))
    tf32 = one.get(("tf32", 4096, 4092, 4096), float("nan")) / base["tf32"]
    short = products[products["dtype"].isin(["tf32", "fp16", "bf16"]) & products["refused"].isna()]
    rows = products[(products["part"] == "layout") & (products["m"] == 4096)]
    layouts = rows.pivot_table(index="dtype", columns="layout", values="us")
    gain = layouts["nn"] / layouts.min(axis=1)  # both matrices row by row, against the best layout
    taken = rows.loc[(rows["dtype"] == "fp8") & rows["refused"].isna(), "layout"]
    wide = _rates(by_channels(convolutions).frame)
    shares = [f"{100 * own.efficiency:.0f} %" if own.efficiency else "unknown" for own in (bad, good)]
    found = f"on average {active.mean_pct:.1f} %, at most {active.max_pct:.0f} %" if active else ""
    claims = [
        (
            "A",
            "fastest in multiples of 8 or 16, depending on the architecture",
            f"N = 4095 takes {_times(n)} as long in {word}, M = 4095 {_times(m)}; in TF32, N = 4092 {_times(tf32)}",
        ),
        (
            "B",
            "without multiples of 8, no Tensor Cores",
            f"of {len(short)} products in TF32, FP16 and BF16, {(short['tensor_cores'] == NO).sum()} ran without",
        ),
        ("B", "the batch size, too, in multiples of 8", f"forward, the batch is M: M = 4095 takes {_times(m)} as long"),
        ("B", "also an LSTM's units", "lab 23 measures an LSTM, in good sizes and bad ones"),
        (
            "B",
            "bad layer sizes show in DLProf's report",
            f"efficiency {shares[0]} with 127 units, {shares[1]} with 128",
        ),
        (
            "A",
            "column-major can be much faster",
            f"row by row takes {_times(gain.get(half))} as long as the best of four in {word}, "
            f"{_times(gain.get('tf32'))} in TF32; FP8 takes {len(taken)} of four",
        ),
        (
            "A",
            "FP32 gains little from Tensor Cores",
            f"as TF32 {_times(base['fp32'] / base['tf32'])} FP32's rate, in {word} {_times(base['fp32'] / base[half])}",
        ),
        (
            "B",
            "filters in multiples of 8",
            "TFLOP/s by channels: " + ", ".join(f"{width}: {wide[width]:.0f}" for width in (256, 257, 264, 320)),
        ),
        ("B", "nvidia-smi cannot show Tensor Core use", "its dmon --gpm-metrics can, from Hopper on (lab 19)"),
        ("B", "nor can Nsight Systems", f"it can: Tensor Active, {found or 'which was not sampled here'}"),
    ]
    return table(pd.DataFrame(claims, columns=["text", "says", "measured"]))


def _times(ratio: float | None) -> str:
    return "(not here)" if ratio is None or pd.isna(ratio) else f"{ratio:.2f} times"


# --- charts --------------------------------------------------------------------------------------------------

SMALL = 8.5  # points
THICK = 0.36  # of a bar, in rows
LAYOUTS = {"NCHW": 0.35, "channels_last": 0.9}  # how strong the colour is


def layout_bars(convolutions: pd.DataFrame, channels: Mapping[str, int]) -> Figure:
    """Microseconds of a convolution by type and memory layout, a panel a layer; the hatched part changes the layout.

    ``convolutions``: ``shapes.convolutions``; ``channels``: which ``c_in`` of each layer is
    shown.
    """
    convolutions = convolutions[convolutions["refused"].isna()]
    dtypes = [dtype for dtype in TYPES if (convolutions["dtype"] == dtype).any()]
    with style.house_style():
        fig = style.figure(3.7, w_pad=0.1)
        for ax, (layer, c_in) in zip(fig.subplots(1, len(channels), squeeze=False)[0], channels.items(), strict=True):
            own = convolutions[(convolutions["layer"] == layer) & (convolutions["c_in"] == c_in)]
            _layout_panel(ax, own, dtypes)
            ax.set_title(f"{layer}: {c_in} → {own['c_out'].iloc[0]} channels")
            ax.set_xlabel("µs")
        handles = [Patch(facecolor=tint(style.BLUE, strength), label=name) for name, strength in LAYOUTS.items()]
        hatched = {"facecolor": style.PAPER, "hatch": "////", "edgecolor": style.INK, "linewidth": 0}
        handles.append(Patch(label="of it: changing the layout", **hatched))
        fig.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=SMALL)
        style.suptitle(fig, "A convolution, forward and backward, by layout (medians)")
    return fig


def _layout_panel(ax: Axes, frame: pd.DataFrame, dtypes: Sequence[str]) -> None:
    longest = 0.0
    for row, dtype in enumerate(dtypes):
        for side, (layout, strength) in zip((-1, 1), LAYOUTS.items(), strict=True):
            both = frame[(frame["dtype"] == dtype) & (frame["layout"] == layout)]
            whole, moving = both["us"].sum(), (both["us"] * both["layout_share"]).sum()
            y = row + side * THICK / 2
            ax.barh(y, whole, THICK, color=tint(ROOFS[dtype], strength), linewidth=0)
            ax.barh(y, moving, THICK, color="none", hatch="////", edgecolor=style.INK, linewidth=0)
            ax.annotate(f"{whole:,.0f}", (whole, y), (4, 0), textcoords="offset points", va="center", size=SMALL)
            longest = max(longest, whole)
    ax.set(xlim=(0, 1.22 * longest), ylim=(len(dtypes) - 0.45, -0.55))
    ax.set_yticks(range(len(dtypes)), [WORDS[dtype] for dtype in dtypes])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


# --- exercises -----------------------------------------------------------------------------------------------


def _idle_reason(report: Report) -> str:
    idle = ops.eligible(report)
    idle = idle[idle["group"] == ops.NOT_USING]
    return "none" if idle.empty else idle.groupby("reason")["gpu_ms"].sum().idxmax()


IDLE_OPERATION = Choice(
    READ,
    "Of the rows that are 'not using', take the reason that costs most milliseconds; 'none' where no row is.",
    right=_idle_reason,
    wrong={
        "shape": "that is no reason that stands there: copy the text of the column",
        "none": "there are rows that are 'not using': look at the column 'Tensor Cores' again",
        "aten::convolution_backward": "that is the operation: which reason stands beside it?",
        "not using": "that is the verdict: which reason stands beside it?",
    },
)


def _kernels_ms(report: Report) -> float:
    found = float(tensor_cores.kernels(report)["gpu_ms"].sum())
    if not found:
        raise NothingToAnswer("no kernel was profiled here")
    return found


def _without(report: Report, ms: float) -> float:
    """How many times as fast all kernels together are with so many milliseconds less."""
    return _kernels_ms(report) / (_kernels_ms(report) - ms)


def _largest_copies_ms(report: Report) -> float:
    return float(ops.eligible(report)["layout_ms"].max())


def _copying_ms(report: Report) -> float:
    """Of the operations that copy, all that they do."""
    found = ops.eligible(report)
    return float(found.loc[found["layout_ms"] > 0, "gpu_ms"].sum())


def _without_in_eligible(report: Report) -> float:
    own = float(ops.eligible(report)["gpu_ms"].sum())
    return own / (own - _copies_ms(report))


LAYOUT_BOUND = Number(
    BOUND,
    "Milliseconds of all kernels, over those that are left when the sum of layout_ms is gone.",
    right=lambda report: _without(report, _copies_ms(report)),
    wrong={
        "that is the share that is left: how many times as fast?": lambda r: 1 / _without(r, _copies_ms(r)),
        "that is the share of the copies: how many times as fast is what is left?": lambda r: (
            _copies_ms(r) / _kernels_ms(r)
        ),
        "that is one operation's copies: take the sum of all": lambda r: _without(r, _largest_copies_ms(r)),
        "those operations also compute: only their layout_ms would go": lambda r: _without(r, _copying_ms(r)),
        "that is of the eligible operations: the epoch has other kernels too": _without_in_eligible,
    },
    within=0.005,
)
CHANNELS, ROWS, COLUMNS = 8, 4, 5  # of the images of the trial
WHOLE_PASSES = ("cat", "clone", "copy_", "_to_copy", "contiguous")  # operators that read a tensor and write all of it


def with_places(x):
    """``x`` and two channels more, the row and the column of each pixel from -1 to 1; it leaves ``channels_last``."""
    import torch

    return torch.cat([x, *_places(x)], 1)


def _places(x) -> list:
    import torch  # here and below: the recorded labs need none

    rows, columns = (torch.linspace(-1, 1, size) for size in x.shape[2:])
    return [own.expand(len(x), 1, *x.shape[2:]) for own in (rows.view(-1, 1), columns)]


def _passes(call: Callable, x) -> tuple[object, int]:
    """What a call returns, and how many times it wrote as many numbers as ``x`` has, or more."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        passes = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            self.passes += func.overloadpacket.__name__ in WHOLE_PASSES and found.numel() >= x.numel()
            return found

    with Counting() as counting:
        return call(x), counting.passes


def _try_with_places(mended: Callable) -> str | None:
    import torch

    torch.manual_seed(0)
    last = torch.channels_last
    x = torch.randn(2, CHANNELS, ROWS, COLUMNS).to(memory_format=last)
    found, passes = _passes(mended, x)
    if not isinstance(found, torch.Tensor):
        return f"it returns {shown(found)}, not a tensor"
    wanted = with_places(x)
    if found.shape != wanted.shape:
        return f"its result has the sizes {list(found.shape)}, not {list(wanted.shape)}"
    if not torch.allclose(found, wanted):
        return "it hands on other numbers: the channels of x first, then each pixel's row, then its column"
    if not found.is_contiguous(memory_format=last):
        return "it still hands on NCHW: of which of the joined tensors are the channels of a pixel not side by side?"
    if passes > 1:
        return f"the layout is right, but all of the image is written {passes} times: convert only what is new"
    return None


def _new_alone(x):
    import torch

    return torch.cat(_places(x), 1).to(memory_format=torch.channels_last)


def _converted_at_the_end(x):
    import torch

    return with_places(x).contiguous(memory_format=torch.channels_last)


def _joined(parts: Callable) -> Callable:
    def call(x):
        import torch

        return torch.cat(parts(x), 1)

    return call


KEEPS_LAYOUT = Code(
    "Join the two new channels first, convert those, and join the result with x.",
    _try_with_places,
    wrong={
        "it still hands on NCHW": with_places,
        "it still hands on NCHW: of which": _joined(lambda x: [x.contiguous(), _new_alone(x)]),
        "all of the image is written 2 times": _converted_at_the_end,
        "it hands on other numbers": _joined(lambda x: [_new_alone(x), x]),
        "it hands on other numbers: the channels of x first": _joined(lambda x: [x, _new_alone(x).flip(1)]),
        "its result has the sizes [2, 2, 4, 5]": _new_alone,
        "something of type NoneType, not a tensor": lambda x: None,
    },
)
EXERCISES = {"13.1": IDLE_OPERATION, "13.2": LAYOUT_BOUND, "13.3": KEEPS_LAYOUT}
