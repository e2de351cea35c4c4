"""What lab 26 claims: a kernel that goes to memory once comes near its roof, and attention gains more from one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from labkit.checks import Claim
from labkit.topics.kernels import readings

if TYPE_CHECKING:
    import torch

    from labkit.pretend.triton import Work

PLACES = 4096  # of the attention that the reader predicts


def one_trip(x: torch.Tensor, y: torch.Tensor, work: Work) -> Iterator[Claim | str]:
    """A softmax of the rows of ``x`` into ``y`` touches memory once each way; ``work``: of the pretend GPU."""
    yield f"{x.numel():,} numbers: {work.loaded:,} read, {work.stored:,} written."
    yield Claim("each is read once and written once", work.loaded == work.stored == x.numel())
    yield Claim("the result is PyTorch's", y.allclose(x.softmax(dim=1)))


def one_kernel(shares: pd.DataFrame) -> Iterator[Claim | str]:
    """One kernel against one an operator; ``shares``: of the memory's roof, by columns, a column for each way."""
    gain = (shares["triton"] / shares["operators"])[4096]
    yield Claim("no way passes the memory's roof, give or take a tenth", shares.max().max() < 1.1)
    yield Claim(
        "one kernel is over twice as fast as one an operator, at 4,096", gain > 2, gain,
        because="a cache that holds all the numbers makes trips cheap",
        so=f"fusing gains a factor of {gain:.1f} here",
    )  # fmt: skip


def near_the_roof(shares: pd.DataFrame, version: str) -> Iterator[Claim | str]:
    """How near the roof our softmax comes, and how it stands against the others, by this version of PyTorch."""
    ours, best = shares["triton"], shares.drop(columns=["triton", "pieces"]).max(axis=1)
    low, high = 100 * ours.min(), 100 * ours.max()
    yield (
        f"Ours reaches ~{low:.0f} to ~{high:.0f} % of the roof, worst at {ours.idxmin():,} "
        "columns. Against the best of the others it is "
        f"~{(ours / best).min():.2f} to ~{(ours / best).max():.2f} times as fast, by PyTorch {version}."
    )


def one_pass(row: Sequence[float], largest: float, total: float) -> Iterator[Claim | str]:
    """The online softmax found the largest of a row, and the sum of powers relative to it."""
    exact = sum(math.exp(number - max(row)) for number in row)
    same = largest == max(row) and math.isclose(total, exact)
    yield Claim("one pass gives the largest and the sum", same)


def in_pieces(shares: pd.DataFrame) -> Iterator[Claim | str]:
    """What a row in pieces costs; ``shares`` as for ``one_kernel``."""
    slower = shares["triton"] / shares["pieces"]
    yield (
        f"In pieces a row takes ~{slower.min():.2f} to ~{slower.max():.2f} times as long as "
        f"whole, most at {slower.idxmax():,} columns."
    )


def bound_by(floors: pd.DataFrame) -> Iterator[Claim | str]:
    """What binds attention at the most places; ``floors``: µs at each roof, by length and direction."""
    longest, at, roof = _longest(floors)
    yield (
        f"At {longest:,} places one kernel is bound by {roof}; the naive form needs "
        f"~{at['naive memory'] / at[roof]:.1f} times as long, for its bytes alone."
    )


def _longest(floors: pd.DataFrame) -> tuple[int, pd.Series, str]:
    """The most places, the floors of the attention that is not causal there, and the roof that binds one kernel."""
    longest = floors.index.get_level_values("length").max()
    at = floors.loc[(longest, False)]
    return longest, at, at[["arithmetic", "memory"]].idxmax()


def attention_gains(times: pd.DataFrame) -> Iterator[Claim | str]:
    """Attention in one kernel against three; ``times``: µs of each way, by length and direction."""
    gain = (times["naive"] / times["triton"])[(PLACES, False)]
    yield Claim(
        "at 4,096 places one kernel is over twice as fast as the naive form", gain > 2, gain,
        because="Triton multiplies on the ordinary cores of a GPU of this generation",
        so=f"one kernel gains a factor of {gain:.1f} here",
    )  # fmt: skip


def near_its_bound(times: pd.DataFrame, floors: pd.DataFrame) -> Iterator[Claim | str]:
    """How near its bound our attention comes, what skipping a half gains it, and how PyTorch's stands against it."""
    longest, at, roof = _longest(floors)
    own, flash = times["triton"], times["flash"]
    turns = at["arithmetic"] + at["exponentials"]
    half = own.loc[(longest, False)] / own.loc[(longest, True)]
    yield (
        f"At {longest:,} places ours reaches ~{100 * at[roof] / own[(longest, False)]:.0f} % "
        f"of its bound; causal, it is ~{half:.2f} times as fast, of 2 that the skipped half would allow."
    )
    yield f"Products and then exponentials would take ~{turns:,.0f} µs; ours takes ~{own[(longest, False)]:,.0f} µs."
    yield (
        f"PyTorch's flash kernel takes ~{(flash / own).min():.2f} to ~{(flash / own).max():.2f} times as long as ours."
    )


def cudnn_or_flash(both: Sequence[dict]) -> Iterator[Claim | str]:
    """cuDNN's attention against PyTorch's flash kernel, forward and back; ``both``: of ``bench_attention.py``."""
    gain = readings.cudnn_gain(both, PLACES)
    if math.isnan(gain):
        yield "One of the two kernels does not run here."
    else:
        yield (
            f"At 4,096 places, forward and back, cuDNN's kernel is ~{gain:.2f} times as fast "
            "as PyTorch's flash kernel."
        )  # fmt: skip


def tuning_pays(timed: Sequence[dict]) -> Iterator[Claim | str]:
    """What tuning took and what it gained; ``timed``: of ``bench_kernels.py``."""
    cost = readings.tuning_cost(timed)
    spread, missed = cost["worst"] / cost["best"], 100 * (cost["chosen"] / cost["best"] - 1)
    yield (
        f"{cost['choices']} choices took ~{cost['compile_s']:.1f} s to compile, and the tuner "
        f"~{cost['try_s']:.1f} s to try. The slowest takes ~{spread:.1f} times as long as the "
        f"fastest; what the tuner chose, ~{missed:.0f} % longer."
    )
    saved = cost["first"] - cost["chosen"]
    yield (
        f"Over the first of the list it saves ~{saved:.0f} µs a call, and has paid after "
        f"~{cost['pays_after']:,.0f} calls."
    )
