"""What lab 12 claims: a size does not decide whether Tensor Cores multiply, but how fast, and the rule is 16 bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.display.runs import difference, epoch_ms
from labkit.display.spread import Spread, paired
from labkit.topics.shapes.charts import WORDS
from labkit.topics.shapes.readings import half_type
from stepbudget.ask.budget import Budget
from stepbudget.ask.ops import summary
from stepbudget.report import Report

SHORT = ("tf32", "fp16", "bf16")  # shorter than FP32, and on Tensor Cores in every size that was tried


def still_on_tensor_cores(reports: Mapping[str, Report]) -> Iterator[Claim | str]:
    """A bad size takes nothing off the Tensor Cores; ``reports``: with 127 units, with 128, with padded classes."""
    bad, good, padded = (summary(report) for report in reports.values())
    same = bad.instances == good.instances == padded.instances and good.instances["using"] > 0
    yield Claim(
        "no operation stops using Tensor Cores because of its size", same and bad.at_stake_ms == 0,
        f"~{bad.at_stake_ms:.1f} ms without",
        because="another GPU or library has other kernels, or none were profiled (no GPU)",
        so="compare the first table's rows with 127 by their times, and by their reasons",
    )  # fmt: skip
    if bad.efficiency and good.efficiency:
        said = f"~{100 * bad.efficiency:.1f} % with 127 units, ~{100 * good.efficiency:.1f} % with 128"
        looks = "better" if bad.efficiency > good.efficiency else "no better"
        yield f"efficiency: {said}: the odd size looks {looks}"


def slower_layers(each: Mapping[str, pd.DataFrame]) -> Iterator[Claim | str]:
    """The linear layers take longer with 127 units; ``each``: ``linear_ops`` of each network, 127 units first."""
    us = _us_of_layers(each)
    worse = us / us.iloc[1]  # no numbers where no GPU was profiled
    measured = any(len(own) for own in each.values())
    said = f"~{worse.iloc[0]:.1f} times with 127 units, ~{worse.iloc[2]:.2f} times with 16 classes"
    yield f"The linear layers together take {said if measured else 'no time that was measured here'}."
    yield Claim(
        "with 127 units the linear layers take at least 1.5 times as long", worse.iloc[0] > 1.5,
        said if measured else "nothing",
        because="the library here has a fast kernel for odd sizes, or no GPU was profiled",
        so="the single products below show which sizes cost something here, if any",
    )  # fmt: skip


def _us_of_layers(each: Mapping[str, pd.DataFrame]) -> pd.Series:
    """Microseconds of a step's linear layers, by network."""
    return pd.Series({name: own["us"].sum() for name, own in each.items()}, dtype=float)


def odd_m_is_free(products: pd.DataFrame) -> Iterator[Claim | str]:
    """One of three dimensions may be odd, and no size of ``products`` is off the Tensor Cores in a short type."""
    us, half = _us(products), half_type(products)
    times = {name.upper(): us(half, **{name: 4095}) / us(half) for name in "mnk"}
    yield Claim(
        "M = 4095 costs less than 10 %, and less than N or K = 4095", times["M"] < min(1.1, times["N"], times["K"]),
        {name: f"~{ratio:.2f}" for name, ratio in times.items()},
        because="another GPU or cuBLAS has other kernels",
        so="of M, N and K, take the cheapest for what cannot be a multiple",
    )  # fmt: skip
    short = _short(products)
    without = short[short["tensor_cores"] == "no"]
    yield Claim(
        "in TF32, FP16 and BF16 none of these sizes ran on the ordinary cores", without.empty,
        f"{len(without)} of {len(short)}",
        because="the GPU has no Tensor Cores, or its cuBLAS has none of their kernels for odd sizes",
        so=f"of N, these cost you the Tensor Cores: {sorted(set(without['n']))}",
    )  # fmt: skip


def odd_n_or_k(products: pd.DataFrame) -> Iterator[Claim | str]:
    """What an odd N or K costs in each short type."""
    us, short = _us(products), _short(products)
    yield f"{len(short)} products, M from {short['m'].min()} on, N from {short['n'].min()} on."
    odd_ones = {}
    for dtype in SHORT:
        slower = [us(dtype, **{name: size}) / us(dtype) for name in "nk" for size in (4095, 4097)]
        if us(dtype) > 0:
            odd_ones[WORDS[dtype]] = f"~{min(slower):.1f} to ~{max(slower):.1f} times"
    yield "one of N and K odd takes, in " + ", in ".join(map(" ".join, odd_ones.items()))


def _short(products: pd.DataFrame) -> pd.DataFrame:
    """The products in a short type that were not refused."""
    return products[products["dtype"].isin(SHORT) & products["refused"].isna()]


def _us(products: pd.DataFrame) -> Callable[..., float]:
    """Microseconds by type, and by M, N and K where they are not 4096; no number where that was not measured."""
    one = products[products["part"] == "one"].set_index(["dtype", "m", "n", "k"])["us"]
    return lambda dtype, m=4096, n=4096, k=4096: one.get((dtype, m, n, k), float("nan"))


def trust(products: pd.DataFrame) -> Iterator[Claim | str]:
    """How far measurements of the same product lie apart."""
    apart = 100 * (products["high_us"] - products["low_us"]) / products["us"]
    worst = WORDS[products.loc[apart.idxmax(), "dtype"]]
    yield f"Range in % of the median: ~{apart.median():.1f}; ~{apart.max():.0f} at most, in {worst}."
    cubes = products[(products[["m", "n", "k"]] == 4096).all(axis=1) & (products["dtype"] == half_type(products))]
    again = cubes[(cubes["layout"] == "nn") & (cubes["stride"] == "tight")]["us"]
    places = " ".join(map("~{:.1f}".format, again))
    yield f"4096 × 4096 × 4096 at several places of the benchmark: {places} µs."


def good_in_tf32(products: pd.DataFrame) -> Iterator[Claim | str]:
    """Four numbers of TF32 are 16 bytes, so a multiple of 4 will do; and what the kernels' names tell of blocks."""
    us = _us(products)
    ratio = us("tf32", n=4092) / us("tf32")
    yield Claim(
        "4092 is no bad size in TF32", ratio < 1.15, ratio if ratio > 0 else "no TF32",
        because="the GPU has no TF32 (it came with Ampere), or another cuBLAS took another kernel",
        so="read the rule for your GPU off the first figure",
    )  # fmt: skip
    near = _n_varied(products, "tf32").set_index("n")["kernel"]
    blocks = near.str.extract(r"tilesize(\d+x\d+)")[0].dropna()
    for n in blocks.index.intersection([4096, 4104]):
        yield f"TF32, N = {n}: the kernel's name states blocks of ~{blocks[n]}."


def fp8_refuses(products: pd.DataFrame) -> Iterator[Claim | str]:
    """Sixteen numbers of FP8 are 16 bytes, and it takes nothing else."""
    fp8 = products[products["dtype"] == "fp8"]
    odd = fp8[(fp8["n"] % 16 != 0) | (fp8["k"] % 16 != 0)]
    yield Claim(
        "FP8 takes no N or K that is not a multiple of 16",
        fp8["us"].notna().any() and odd["refused"].notna().all(),
        f"{odd['refused'].isna().sum()} of {len(odd)} taken",
        because="the GPU has no FP8 (it came with Ada and Hopper), or a newer PyTorch takes more sizes",
        so="what is taken stands in the first figure, with its speed",
    )
    near = _n_varied(products, "fp8")
    said = near.loc[near["n"] == 4104, "refused"].dropna()
    yield f"FP8 of N = 4104 says: {' '.join(said) or 'nothing'}."


def _n_varied(products: pd.DataFrame, dtype: str) -> pd.DataFrame:
    """The products of a type that have 4096 for M and K."""
    own = products[(products["part"] == "one") & products["varied"].isin(["", "n"])]
    return own[own["dtype"] == dtype]


def size_and_place(tight: pd.DataFrame, moved: pd.DataFrame) -> Iterator[Claim | str]:
    """Neither longer lines nor a good size alone help; ``tight``: the usual lines, ``moved``: other ones, one type."""
    usual = tight[(tight[["m", "n", "k"]] == 4096).all(axis=1)]["us"]
    fast = moved[moved["us"] <= 1.1 * (usual.iloc[0] if len(usual) else float("nan"))]
    names = [f"{row.n} × {row.k} {row.stride}" for row in fast.itertuples()]
    yield Claim(
        "slow: an odd size in even lines, and a good size in odd lines", fast.empty, f"fast: {', '.join(names)}",
        because="another cuBLAS has kernels that fetch such lines fast",
        so="where the padded ones are fast here, longer lines are a remedy on your machine",
    )  # fmt: skip


def thin_ones(few: pd.DataFrame) -> Iterator[Claim | str]:
    """Which products of few rows or columns are off the Tensor Cores."""
    off = few[few["tensor_cores"] == "no"]
    yield Claim(
        "in 16 bits only the product of two vectors stays off the Tensor Cores",
        bool((off.loc[off["dtype"] != "tf32", ["m", "n"]].max(axis=1) == 1).all()),
        sorted({f"{row.m} × {row.n} in {row.dtype}" for row in off.itertuples()}),
        because="the GPU has none, or its cuBLAS has other kernels for so few rows",
        so="a product this thin is as fast as its matrix can be read: look at its bytes",
    )
    most = off[off[["m", "n"]].max(axis=1) > 1].groupby("dtype")[["m", "n"]].min().min(axis=1)
    said = [f"in {WORDS[dtype]} M or N = {least}" for dtype, least in most.items()]
    yield f"of the others, off the Tensor Cores: {', '.join(said) or 'none'}"


def any_batch(us: Mapping[str, Mapping[int, float]]) -> Iterator[Claim | str]:
    """The network's step does not notice an odd batch; ``us``: of each product of a layer and of the step, by batch."""
    of_batch = pd.DataFrame(us)
    more = 100 * (of_batch.div(of_batch.index, axis=0) / (of_batch.loc[1024] / 1024) - 1)
    yield Claim(
        "no batch from 1,000 to 1,032 makes a sample of the network's step 3 % dearer", more["step"].max() < 3,
        more["step"].max(),
        because="the GPU is small: one more row of blocks is a larger part of its work",
        so=f"batch {more['step'].idxmax()} is the dearest here",
    )  # fmt: skip
    part, batch = more.drop(columns="step").stack().idxmax()[::-1]
    yield f"the layer's dearest: {part} at {batch}, ~{more.loc[batch, part]:+.0f} % a sample"


def layouts(products: pd.DataFrame) -> Iterator[Claim | str]:
    """In 16 bits the four layouts are as fast; in FP8 there is less of a choice."""
    found = products[(products["part"] == "layout") & (products["m"] == 4096)]
    both = found[found["dtype"].isin(["fp16", "bf16"])].groupby("dtype")["us"]
    ratio = float((both.max() / both.min()).max())
    yield Claim(
        "at 4096, in FP16 and BF16, no layout is more than 10 % slower than the best", ratio < 1.1, ratio,
        because="another GPU or cuBLAS has no equally good kernel for every layout",
        so=f"here the layout is worth up to ~{ratio:.2f} times: take the best column of your rows",
    )  # fmt: skip
    fp8 = found[found["dtype"] == "fp8"]
    taken, refused = fp8[fp8["refused"].isna()]["layout"], fp8["refused"].dropna()
    said = f"; else it says: {refused.iloc[0]}" if len(refused) else ""
    yield f"FP8 takes {', '.join(taken) or 'none'} of the four layouts{said}"


def types(cube: pd.DataFrame) -> Iterator[Claim | str]:
    """What each type takes and gives; ``cube``: the same product in each, the longest type first."""
    by_type = cube.set_index("dtype")
    error, rate = by_type["error"].dropna(), by_type["tflops"].dropna().to_dict()
    in_order = list(error.sort_values().index) == list(error.index)
    yield Claim("each shorter type errs more", in_order, dict(error))
    yield Claim(
        "TF32 is faster than FP32", rate.get("tf32", 0) > rate["fp32"],
        {WORDS[name]: f"~{own / rate['fp32']:.1f}" for name, own in rate.items()},
        because="the GPU has no TF32: it came with Ampere, in 2020",
        so="a switch for TF32 changes nothing here; of the short types, FP16 is yours",
    )  # fmt: skip


def whole_network(runs: Mapping[str, Sequence[dict]], each: Mapping[str, pd.DataFrame]) -> Iterator[Claim | str]:
    """What 127 units and 16 classes do to an epoch; ``runs``: of each network, ``each`` as for ``slower_layers``."""
    plain = runs["128 units"]
    for name in ("127 units", "16 classes"):
        pairs = zip(runs[name], plain, strict=False)
        ratio = Spread.of([epoch_ms([own]) / epoch_ms([base]) for own, base in pairs])
        yield f"{name}, an epoch: {difference(ratio)}"
    yield f"127 units, the whole process: {difference(paired(runs['127 units'], plain))}"
    us, steps = _us_of_layers(each), each["128 units, 10 classes"]["ops"]  # of each product; none without a GPU
    if len(steps):
        more = (us - us["128 units, 10 classes"]) * steps.max() / 1e3
        said = f"~{more.iloc[0]:+.1f} ms with 127 units, ~{more.iloc[2]:+.2f} ms with 16 classes"
        yield f"By the linear layers' kernels, an epoch takes {said}."


def longer_kernels(budgets: Mapping[str, Budget]) -> Iterator[Claim | str]:
    """The loss stands in the Tensor Core kernels."""
    green = {name: own.ms["tensor_core_kernels"] for name, own in budgets.items()}
    yield Claim(
        "127 units lengthen the Tensor Core kernels", green["127 units"] > 1.05 * green["128 units"],
        {name: f"~{ms:.1f} ms" for name, ms in green.items()},
        because="the kernels for odd sizes are others, or as fast, or there is no GPU",
        so="what 127 units cost here, if anything, stands in the epochs' table",
    )  # fmt: skip
