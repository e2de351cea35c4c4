"""Lab 26: a kernel that reads and writes memory once comes near its roof, and attention gains more from one.

Bounds follow from shapes and from the roofs that ``bench_peaks.py`` measured: bytes through the memory, operations on
the Tensor Cores, and exponentials, of which a multiprocessor makes 16 a clock (CUDA C++ Programming Guide, "Arithmetic
Instructions", compute capability 7.5 to 9.0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from labkit.checks import Claim
from labkit.display import style
from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, NotWanted, Number, each_of
from labkit.numbers import Quantity, number
from labkit.predictions import Guess
from labkit.subjects import kernels, kernels_charts
from labkit.subjects.kernels_charts import SMALL, WAYS
from labkit.subjects.roofline import BYTES, Peaks
from stepbudget.show.table import Table, table

if TYPE_CHECKING:
    import torch

    from labkit.pretend.triton import Work

EXPONENTIALS_A_CLOCK = 16  # of a multiprocessor
RIVALS = {"flash": "FlashAttention-2", "cudnn": "cuDNN", "flash 3": "FlashAttention-3"}
LENGTH = 4096  # of the attention that the reader predicts, in tokens
COLUMNS = 4096  # of the softmax that the reader predicts


# --- softmax ------------------------------------------------------------------------------------------------


def softmax_floor_us(numbers: int, peaks: Peaks, dtype: str) -> float:
    """µs in which so many numbers can pass through memory twice: read once and written once."""
    return 2 * numbers * BYTES[dtype] / peaks.tb_per_s / 1e6


def softmax_shares(records: Sequence[dict], peaks: Peaks) -> pd.DataFrame:
    """By columns, of each way: the share of the memory's roof, 1 for one reading and one writing at full speed."""
    found = kernels.rows(records, "softmax")
    floor = softmax_floor_us(int(found["rows"][0] * found["columns"][0]), peaks, records[0]["dtype"])
    return floor / kernels.timed(records, "softmax", ["columns"])


def softmax_table(records: Sequence[dict], peaks: Peaks) -> Table:
    """By columns: each way's share of the memory's roof, in per cent."""
    shares = 100 * softmax_shares(records, peaks)[["operators", "torch", "compiled", "triton", "pieces"]]
    names = [WAYS[way][0] for way in shares]
    frame = shares.set_axis(names, axis=1).rename_axis("columns").reset_index()
    caption = "Softmax: per cent of the memory's roof, medians of rounds"
    return table(frame, caption, {"columns": "{:,}"} | dict.fromkeys(names, "{:.0f}"))


def softmax_chart(records: Sequence[dict], peaks: Peaks) -> Figure:
    """TB/s of what a softmax has to move, by the length of a row, a line a way, under the memory's roof."""
    shares = softmax_shares(records, peaks) * peaks.tb_per_s
    with style.chart(3.8) as (fig, ax):
        kernels_charts.lines(ax, shares)
        ax.axhline(peaks.tb_per_s, color=style.INK, lw=1.4)
        kernels_charts.word(ax, f"the memory's roof: {peaks.tb_per_s:.2f} TB/s", 0, peaks.tb_per_s)
        kernels_charts.by_twos(ax, shares.index)
        ax.set(ylim=(0, 1.2 * max(peaks.tb_per_s, np.nanmax(shares))), xlabel="columns: numbers in a row")
        ax.set(ylabel="TB/s, one reading and one writing")
        first = kernels.rows(records, "softmax").iloc[0]
        ax.set_title(f"Softmax of the same {first['rows'] * first['columns']:,} numbers, by the length of a row")
        fig.legend(loc="outside right center", fontsize=SMALL)
    return fig


# --- attention ----------------------------------------------------------------------------------------------


def attention_flops(batch: int, heads: int, length: int, width: int, causal: bool) -> float:
    """Operations of both products; causal: of the scores that count."""
    scores = length * (length + 1) / 2 if causal else length**2
    return 4.0 * batch * heads * scores * width


def attention_bytes(batch: int, heads: int, length: int, width: int, dtype: str, naive: bool = False) -> float:
    """Bytes through the memory: three inputs and the result; naive: also the scores, four times.

    Written by the first product, read and written by the softmax, read by the second product.
    """
    numbers = 4.0 * length * width + (4.0 * length**2 if naive else 0.0)
    return batch * heads * numbers * BYTES[dtype]


def clock_mhz(records: Sequence[dict]) -> float:
    """The multiprocessors' clock while chains of multiply-adds ran, of the longest kernel; NaN where none ran."""
    found = kernels.one_block(records)
    if found.empty:
        return math.nan
    longest = found.loc[found["us"].idxmax()]
    return float(longest["clocks"] / longest["us"])


def attention_floors(records: Sequence[dict], peaks: Peaks) -> pd.DataFrame:
    """By length and direction, µs at each roof: ``arithmetic``, ``memory``, ``exponentials``, ``naive memory``."""
    dtype, found = records[0]["dtype"], []
    rate = EXPONENTIALS_A_CLOCK * (records[0]["multiprocessors"] or math.nan) * clock_mhz(records)  # a µs
    shapes = kernels.rows(records, "attention")[["batch", "heads", "length", "width", "causal"]].drop_duplicates()
    for batch, heads, length, width, causal in shapes.itertuples(index=False):
        flops = attention_flops(batch, heads, length, width, causal)
        found.append(
            {
                "length": length,
                "causal": causal,
                "arithmetic": flops / peaks.rate(dtype) / 1e6,
                "memory": attention_bytes(batch, heads, length, width, dtype) / peaks.tb_per_s / 1e6,
                "exponentials": flops / (4 * width) / rate,
                "naive memory": attention_bytes(batch, heads, length, width, dtype, naive=True) / peaks.tb_per_s / 1e6,
            }
        )
    return pd.DataFrame(found).set_index(["length", "causal"])


def floors_table(records: Sequence[dict], peaks: Peaks) -> Table:
    """By length, what each roof asks for: µs of arithmetic, of memory, of exponentials; and of the naive form."""
    found = attention_floors(records, peaks).xs(False, level="causal")
    names = {
        "arithmetic": "arithmetic µs",
        "memory": "memory µs, fused",
        "naive memory": "memory µs, naive",
        "exponentials": "exponentials µs",
    }
    frame = found[[*names]].rename(columns=names).rename_axis("length").reset_index()
    shapes = kernels.rows(records, "attention").drop_duplicates("length").sort_values("length")
    (few, most), first = shapes["length"].iloc[[0, -1]], shapes.iloc[0]
    caption = f"Unmasked attention at each roof of one {peaks.gpu}: {first['heads']} heads of {first['width']}, "
    caption += f"batch × length from {first['batch']} × {few:,} to {shapes['batch'].iloc[-1]} × {most:,} tokens"
    return table(frame, caption, {"length": "{:,}"})


def attention_times(records: Sequence[dict]) -> pd.DataFrame:
    """By length and direction, µs of ``naive``, of the RIVALS, of ``triton``; NaN where one was refused."""
    return kernels.timed(records, "attention", ["length", "causal"]).reindex(columns=["naive", *RIVALS, "triton"])


def attention_table(records: Sequence[dict], peaks: Peaks) -> Table:
    """By direction and length: µs of each way, shares, and the memory beside inputs."""
    times, floors = attention_times(records), attention_floors(records, peaks)
    least = floors[["arithmetic", "memory"]].max(axis=1)
    extra = kernels.rows(records, "attention").pivot(index=["length", "causal"], columns="way", values="extra_bytes")
    ways = {"naive": "naive µs"} | {way: f"{name} µs" for way, name in RIVALS.items()} | {"triton": "ours µs"}
    frame = times.rename(columns=ways).assign(
        **{
            "ours, % of the bound": 100 * least.reindex(times.index) / times["triton"],
            "naive, extra GB": extra["naive"].reindex(times.index) / 1e9,
        }
    )
    frame = frame.reset_index().sort_values(["causal", "length"])
    frame["causal"] = frame["causal"].map({True: "yes", False: "no"})
    formats = {"length": "{:,}"} | dict.fromkeys(ways.values(), "{:,.0f}")
    formats |= {"ours, % of the bound": "{:.0f}", "naive, extra GB": "{:.2f}"}
    caption = f"Attention in {records[0]['dtype'].upper()}, forward: medians of rounds, GPU time, as a CUDA graph"
    return table(frame, caption, formats)


def attention_chart(records: Sequence[dict], peaks: Peaks) -> Figure:
    """Milliseconds of attention by length, full and causal, each way, and the bounds of both forms."""
    times, floors = attention_times(records), attention_floors(records, peaks)
    with style.chart(4.2, 1, 2, sharey=True) as (fig, axes):
        for ax, causal in zip(axes, (False, True), strict=True):
            own = times.xs(causal, level="causal").dropna(axis=1, how="all") / 1e3
            floor = floors.xs(causal, level="causal") / 1e3
            kernels_charts.lines(ax, own, labelled=not causal)
            least = floor[["arithmetic", "memory"]].max(axis=1)
            labels = ("bound, fused", "bound, naive") if not causal else (None, None)
            ax.plot(least.index, least, color=style.INK, lw=1.3, ls=":", label=labels[0])
            ax.plot(floor.index, floor["naive memory"], color=style.VERMILION, lw=1.3, ls=":", label=labels[1])
            kernels_charts.by_twos(ax, own.index)
            ax.set(yscale="log", xlabel="sequence length, tokens")
            ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.yaxis.set_minor_formatter(NullFormatter())
            ax.grid(axis="y", lw=0.6)
            ax.set_title("causal: each token sees those before it" if causal else "each token sees every other")
        axes[0].set_ylabel("ms, logarithmic")
        style.suptitle(fig, "Attention, forward: the same tokens in all at each length")
        fig.legend(loc="outside lower center", ncols=3, fontsize=SMALL)
    return fig


def tuning_cost(records: Sequence[dict]) -> dict[str, float]:
    """What tuning took and gained: ``choices``, ``compile_s``, ``try_s``, µs of the ``first``, ``chosen``, ``best`` and
    ``worst`` choice, and ``pays_after``: calls until the gain of what the tuner chose over the first has paid for it
    (infinite where there is none). The tuner times by itself, so it may miss the best by a little."""
    tried, auto = kernels.rows(records, "tuning"), kernels.rows(records, "autotune")
    timed_here = tried.dropna(subset=["us"])
    us, compile_s = timed_here["us"], float(tried["compile_s"].sum())
    try_s = float(auto["try_s"].iloc[0]) if len(auto) else math.nan
    first, best = float(us.iloc[0]), float(us.min())
    taken = [choice == auto["choice"].iloc[0] for choice in timed_here["choice"]] if len(auto) else []
    chosen = float(us[taken].iloc[0]) if any(taken) else best
    spent_us = 1e6 * (compile_s - float(tried["compile_s"].iloc[0]) + try_s)
    return {
        "choices": len(tried),
        "compile_s": compile_s,
        "try_s": try_s,
        "first": first,
        "chosen": chosen,
        "best": best,
        "worst": float(us.max()),
        "pays_after": spent_us / (first - chosen) if first > chosen else math.inf,
    }


def tuning(records: Sequence[dict]) -> Table:
    """Each choice of attention's space: what it takes of a multiprocessor, how long it compiled, how fast it is."""
    found = kernels.rows(records, "tuning").sort_values("us", na_position="last")
    choices = pd.DataFrame(found["choice"].tolist(), columns=["rows", "places", "warps", "stages"])
    frame = choices.assign(
        **{
            "registers": found["registers"].to_numpy(),
            "shared kB": found["shared_bytes"].to_numpy() / 1e3,
            "compiled s": found["compile_s"].to_numpy(),
            "µs": found["us"].to_numpy(),
        }
    )
    formats = {"shared kB": "{:.0f}", "compiled s": "{:.1f}", "µs": "{:,.0f}"}
    length = int(found["length"].iloc[0])
    return table(frame, f"Causal attention of {length:,} tokens, by choice, the fastest first", formats)


# --- what it claims ------------------------------------------------------------------------------------------


def floor(timed: Sequence[dict], peaks: Peaks) -> Iterator[Claim | str]:
    """The µs below which no softmax of the benchmark can come, by its bytes; ``timed``: of ``bench_kernels.py``."""
    first, dtype = kernels.rows(timed, "softmax").iloc[0], timed[0]["dtype"]
    numbers = int(first["rows"] * first["columns"])
    yield (
        f"{numbers:,} numbers in {dtype.upper()}, read once and written once at {peaks.tb_per_s:.2f} TB/s: "
        f"{softmax_floor_us(numbers, peaks, dtype):.0f} µs."
    )


def one_trip(x: torch.Tensor, y: torch.Tensor, work: Work) -> Iterator[Claim | str]:
    """A softmax of the rows of ``x`` into ``y`` touches memory once each way; ``work``: of the pretend GPU."""
    yield f"{x.numel():,} numbers: {work.loaded:,} read, {work.stored:,} written."
    yield Claim("each is read once and written once", work.loaded == work.stored == x.numel())
    yield Claim("the result is PyTorch's", y.allclose(x.softmax(dim=1)))


def one_kernel(shares: pd.DataFrame, timed: Sequence[dict]) -> Iterator[Claim | str]:
    """One kernel against one for each operator and against the others; how far off each is by its bound.

    ``shares``: of the memory's roof, by columns, a column for each way; ``timed``: of ``bench_kernels.py``.
    """
    gain = (shares["triton"] / shares["operators"])[COLUMNS]
    yield Claim("no softmax beats the memory's roof by more than a tenth", shares.max().max() < 1.1)
    yield Claim(
        f"one kernel is over twice as fast as one for each operator, at {COLUMNS:,} columns", gain > 2, gain,
        because="a cache that holds all the numbers makes passes over them cheap",
        so=f"fusing gains a factor of {gain:.1f} here",
    )  # fmt: skip
    ours, best = shares["triton"], shares.drop(columns=["triton", "pieces"]).max(axis=1)
    low, high, against = 100 * ours.min(), 100 * ours.max(), ours / best
    yield (
        f"Ours reaches {low:.0f} to {high:.0f} % of the roof, least at {ours.idxmin():,} columns. It is "
        f"{against.min():.2f} to {against.max():.2f} times as fast as the best of the others."
    )
    errors = _errors(timed, "softmax")
    yield (
        f"Against FP64, ours errs by at most {errors['triton']:.2f} of its error bound; the operators, by "
        f"{errors['operators']:.1f} times it."
    )


def programs_start(timed: Sequence[dict]) -> Iterator[Claim | str]:
    """How many programs, one a row, the GPU gets through in a microsecond; ``timed`` as before."""
    found = kernels.rows(timed, "softmax").query("way == 'triton'").set_index("columns")
    rate = found["rows"] / found["us"]
    said = [f"{rate[columns]:,.0f} with {columns:,} columns" for columns in rate.index[:3]]
    yield f"Programs that the GPU gets through in a microsecond: {', '.join(said)}."


def more_instructions(found: Mapping[str, Mapping[str, float]]) -> Iterator[Claim | str]:
    """PyTorch's softmax has many more instructions; ``found``: column → kernel → value, by ``counted.kernels``."""
    at = f"softmax {COLUMNS}"
    more = found["instructions"][f"torch's {at}"] / found["instructions"][at]
    yield f"At {COLUMNS:,} columns, PyTorch's kernel takes {more:.1f} times as many instructions as ours."


def _errors(timed: Sequence[dict], what: str) -> pd.Series:
    """By way, the largest error against FP64, as a share of the bound that ours keeps."""
    return kernels.rows(timed, what).groupby("way")["error_of_bound"].max()


def one_pass(row: Sequence[float], largest: float, total: float) -> Iterator[Claim | str]:
    """The online softmax found the largest of a row, and the sum of exponentials relative to it."""
    exact = sum(math.exp(number - max(row)) for number in row)
    same = largest == max(row) and math.isclose(total, exact)
    yield Claim("one pass finds the largest and the sum", same)


def in_pieces(shares: pd.DataFrame) -> Iterator[Claim | str]:
    """What a row in pieces costs; ``shares`` as for ``one_kernel``."""
    slower = shares["triton"] / shares["pieces"]
    yield (
        f"In pieces a row takes {slower.min():.2f} to {slower.max():.2f} times as long as "
        f"whole, most at {slower.idxmax():,} columns."
    )


def bound_by(floors: pd.DataFrame) -> Iterator[Claim | str]:
    """What binds attention at the greatest length; ``floors``: µs at each roof, by length and direction."""
    longest, at, roof = _longest(floors)
    yield (
        f"At length {longest:,}, of arithmetic and memory, {roof} binds the fused kernel. For its bytes alone, the "
        f"naive form needs {at['naive memory'] / at[roof]:.1f} times as long."
    )


def _longest(floors: pd.DataFrame) -> tuple[int, pd.Series, str]:
    """The greatest length, the floors of the attention that is not causal there, and the roof that binds one kernel."""
    longest = floors.index.get_level_values("length").max()
    at = floors.loc[(longest, False)]
    return longest, at, at[["arithmetic", "memory"]].idxmax()


def attention_gains(times: pd.DataFrame, floors: pd.DataFrame) -> Iterator[Claim | str]:
    """One kernel against three, how near its bound it comes, and what it gains where half of the scores are skipped.

    ``times``: µs of each way, by length and direction; ``floors``: µs at each roof.
    """
    gain = _gain(times)
    yield Claim(
        f"at length {LENGTH:,} one kernel is over twice as fast as the naive form", gain > 2, gain,
        because="Triton multiplies on the ordinary cores of a GPU of this generation",
        so=f"one kernel gains a factor of {gain:.1f} here",
    )  # fmt: skip
    longest, at, roof = _longest(floors)
    own = times["triton"]
    turns = at["arithmetic"] + at["exponentials"]
    half = own.loc[(longest, False)] / own.loc[(longest, True)]
    yield (
        f"At length {longest:,} ours reaches {100 * at[roof] / own[(longest, False)]:.0f} % "
        f"of its bound. Causal, it is {half:.2f} times as fast, of the 2 that the skipped half would allow."
    )
    took = {"ours": own} | {name: times[way] for way, name in RIVALS.items()}
    said = [f"{name} {us[(longest, False)]:,.0f}" for name, us in took.items() if us.notna()[(longest, False)]]
    yield f"Products and then exponentials would take {turns:,.0f} µs; {', '.join(said)}."


def tensor_cores(found: Mapping[str, Mapping[str, float]]) -> Iterator[Claim | str]:
    """How busy our kernel keeps the Tensor Cores; ``found`` as for ``more_instructions``."""
    active = found["tensor_pct"]["attention"]
    yield f"In ours, Nsight Compute finds the Tensor Cores active for {active:.0f} % of the time."


def _gain(times: pd.DataFrame) -> float:
    return float((times["naive"] / times["triton"])[(LENGTH, False)])


def rivals(times: pd.DataFrame) -> Iterator[Claim | str]:
    """The libraries' kernels against ours, forward; ``times`` as before."""
    for way, name in RIVALS.items():
        slower = (times[way] / times["triton"]).dropna()
        if slower.empty:
            yield f"{name} does not run here."
        else:
            yield f"{name} takes {slower.min():.2f} to {slower.max():.2f} times as long as ours."


def tuning_pays(timed: Sequence[dict]) -> Iterator[Claim | str]:
    """What tuning took and what it gained; ``timed``: of ``bench_kernels.py``."""
    cost = tuning_cost(timed)
    spread, missed = cost["worst"] / cost["best"], 100 * (cost["chosen"] / cost["best"] - 1)
    yield (
        f"{cost['choices']} choices took {cost['compile_s']:.1f} s to compile, and the tuner "
        f"{cost['try_s']:.1f} s to try. The slowest takes {spread:.1f} times as long as the "
        f"fastest; what the tuner chose, {missed:.0f} % longer."
    )
    saved = cost["first"] - cost["chosen"]
    if saved <= 0:
        yield "The tuner's choice is no faster than the first of SPACE: tuning never pays off here."
        return
    yield (
        f"Compared with SPACE's first choice, the tuner's saves {saved:.0f} µs a call and pays off after "
        f"{cost['pays_after']:,.0f} calls."
    )


# --- predictions ---------------------------------------------------------------------------------------------

PREDICTIONS = {
    "one_kernel": Guess(
        "one kernel against one for each operator", " times",
        lambda shares: float((shares["triton"] / shares["operators"])[COLUMNS]),
        wrong={
            "That's eight passes against two. But the operators' kernels don't reach the roof.": lambda _: 4.0,
            "That counts kernels. What takes time here is bytes.": lambda _: 5.0,
        },
    ),
    "attention": Guess(
        "attention in one kernel against the naive form", " times", lambda times, floors: _gain(times),
        wrong={
            "That compares only bytes. The fused kernel is bound by arithmetic.": (
                lambda times, floors: _at(floors, "naive memory") / _at(floors, "memory")
            ),
            "That's the ratio of the two bounds. Neither form reaches its own.": (
                lambda times, floors: _at(floors, "naive memory") / _at(floors, "arithmetic")
            ),
        },
    ),
}  # fmt: skip


def _at(floors: pd.DataFrame, roof: str) -> float:
    return float(floors.loc[(LENGTH, False), roof])


# --- exercises -----------------------------------------------------------------------------------------------

PIECES = [  # two pieces of a row
    ([0.5, -1.0, 2.0], [1.0, 1.5]),
    ([3.0], [-2.0, 7.0, 0.0]),
    ([1000.0, 998.0], [1001.5]),
    ([-900.0], [-901.0, -905.0]),
    ([2.0, 1.0], [2.0, 0.5]),
]


def known(piece: Sequence[float]) -> tuple[float, float]:
    """What is kept of a piece: its largest number, and the sum of powers relative to it."""
    return max(piece), sum(math.exp(one - max(piece)) for one in piece)


TOO_LARGE = "with numbers around 1,000 it overflows: take powers of differences only, none of which is positive"


def _try_merge(merge: Callable) -> str | None:
    for one, other in PIECES:
        right, whole = known([*one, *other])
        try:
            parts = each_of(merge(known(one), known(other)), "two numbers, the largest and the total, are")
        except OverflowError:
            return TOO_LARGE
        if len(parts) != 2:
            raise NotWanted(f"two numbers are wanted, the largest and the total, not {len(parts)}")
        if any(bool(part != part) for part in parts):  # inf / inf: NumPy and PyTorch raise nothing
            return TOO_LARGE
        largest, total = (number(part) for part in parts)
        if largest != right and total == right:
            return "first the largest, then the total"
        if largest != right:
            return "the largest of both pieces is the larger of their largest"
        if math.isclose(total, sum(known(part)[1] for part in (one, other))) and not math.isclose(total, whole):
            return "the totals are added as they are: each is relative to its own piece's largest number"
        if total > (1 + 1e-6) * sum(known(part)[1] for part in (one, other)):
            return "a total grows: its factor is exp(its own largest - the larger one), which is 1 at most"
        if not math.isclose(total, whole, rel_tol=1e-6):
            return "one of the two totals is not right: both get a factor, and that of one of them is 1"
    return None


def _merged(first: Callable[[float], float], second: Callable[[float], float], largest: Callable = max) -> Callable:
    """A merge that corrects each total in its own way, given its own largest number less the larger one."""

    def merge(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
        top = largest(one[0], other[0])
        return top, one[1] * first(one[0] - top) + other[1] * second(other[0] - top)

    return merge


def _never(depth: float) -> float:
    return 1.0


def _large_powers(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    top = max(one[0], other[0])
    return top, (one[1] * math.exp(one[0]) + other[1] * math.exp(other[0])) / math.exp(top)


MERGE = Code(
    "The larger of both is the new largest; each total is multiplied by exp(its own largest - the new one).",
    _try_merge,
    wrong={
        "the totals are added as they are": _merged(_never, _never),
        "the larger of their largest": _merged(math.exp, math.exp, largest=min),
        "a total grows": _merged(lambda depth: math.exp(-depth), lambda depth: math.exp(-depth)),
        "one of the two totals is not right": _merged(lambda depth: math.exp(2 * depth), math.exp),
        "it overflows": _large_powers,
    },
)


def _longest_us(way: str, causal: bool) -> Quantity:
    """How long a way takes at the longest length; NaN where it was not measured."""
    return Quantity(lambda records: float(attention_times(records).unstack("causal").iloc[-1][way, causal]))


NAIVE, NAIVE_CAUSAL = (_longest_us("naive", causal) for causal in (False, True))
OURS, OURS_CAUSAL = (_longest_us("triton", causal) for causal in (False, True))


@Quantity
def longer_causal(records: Sequence[dict]) -> float:
    """How many times as long the naive form takes causal as not."""
    found = (NAIVE_CAUSAL / NAIVE)(records)
    if math.isnan(found):
        raise NothingToAnswer("one of the two was not measured here")
    return found


FORMS = Number(
    READ,
    "The highest solid line, at the right end: its value in ms in the right picture, over that in the left one.",
    right=longer_causal,
    wrong={
        "that is turned over, or a kernel's which skips half: the naive form, causal over not?": 1 / longer_causal,
        "that is the naive form over ours, not causal": NAIVE / OURS,
        "that is the naive form over ours, causal": NAIVE_CAUSAL / OURS_CAUSAL,
        "that is by how much longer, in per cent: how many times as long?": 100 * (longer_causal - 1),
    },
    within=0.1,  # read off a logarithmic picture
)
_LONG = {"batch": 1, "heads": 16, "length": 16_384, "width": 64, "dtype": "bf16"}


def _gb(naive: bool = True, **other: object) -> float:
    return attention_bytes(**(_LONG | other), naive=naive) / 1e9


BYTES_OF_SCORES = Number(
    BOUND,
    "Of a head: q, k, v and the result are 16,384 × 64 numbers each, the scores 16,384 × 16,384, and these go four "
    "times: written, read, written, read.",
    right=_gb,
    wrong={
        "that is the scores alone: q, k, v and the result move, too": lambda: _gb() - _gb(naive=False),
        "that is without the scores: the form of one kernel": lambda: _gb(naive=False),
        "that is one head: there are 16": lambda: _gb(heads=1),
        "those are numbers, in thousands of millions: two bytes each": lambda: _gb() / 2,
        "that is in FP32: two bytes a number": lambda: 2 * _gb(),
        "that is with the scores written and read once: the softmax reads and writes them, too": lambda: (
            (_gb() + _gb(naive=False)) / 2
        ),
        "that is with the scores moved once only": lambda: _gb(naive=False) + (_gb() - _gb(naive=False)) / 4,
    },
    within=0.002,  # the inputs and the result are four thousandths
)
EXERCISES = {"26.1": MERGE, "26.2": FORMS, "26.3": BYTES_OF_SCORES}
