"""What lab 27 claims: what slows a kernel is too little under way, banks that queue, or tiles that are too few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.topics.kernels import readings


def much_under_way(rate: Mapping[int, Mapping[int, float]]) -> Iterator[Claim | str]:
    """Few warps with much to do come near the best; ``rate``: multiply-adds a clock, by chains and then by warps."""
    reached = rate[8][8] / pd.DataFrame(rate).max().max()
    yield Claim(
        "eight warps with eight chains each come within a fifth of the best", reached > 0.8, reached,
        because="a result takes more clocks on this GPU",
        so=f"so much under way brings {100 * reached:.0f} % of the best here",
    )  # fmt: skip


def warps_wanted(timed: Sequence[dict]) -> Iterator[Claim | str]:
    """How many warps Little's law asks for, and how many were enough; ``timed``: of ``bench_kernels.py``."""
    latency, best = readings.latency_clocks(timed), readings.chains(timed).max().max()
    enough = readings.warps_enough(timed).map("~{:.0f}".format, na_action="ignore")
    yield f"One step of a chain takes ~{latency:.1f} clocks."
    for chains, warps in enough.fillna("none").items():
        needed = readings.warps_needed(latency, chains, best)
        yield f"with {chains} a thread ~{needed:.0f}, by Little's law; nine tenths of the best reached: {warps}."


def registers_by_model(timed: Sequence[dict]) -> Iterator[Claim | str]:
    """What the model of the registers' banks says for 32 warps, and what was measured; ``timed`` as before."""
    latency, found = readings.latency_clocks(timed), readings.chains(timed)
    for chains, measured in found.loc[32].items():
        model = found.max().max() * readings.register_share(chains, latency)
        yield (
            f"{chains} a thread: ~{model:.0f} multiply-adds a clock by the model, "
            f"~{measured:.0f} measured with 32 warps."
        )


def warps_and_time(timed: Sequence[dict]) -> Iterator[Claim | str]:
    """Are attention's choices with more warps the faster ones? ``timed`` as before."""
    room = readings.room(timed)
    rank = room["us"].corr(room["fit"], method="spearman")
    yield (
        f"Over these choices, time and warps that fit go together with ~{rank:+.2f} (rank "
        "correlation; −1: more warps are always faster, 0: no matter)."
    )


def banks_queue(us: Mapping[str, float]) -> Iterator[Claim | str]:
    """Bank conflicts slow a transpose; ``us``: by its form."""
    yield Claim("no transpose beats a copy by more than a tenth", pd.Series(us).min() > 0.9 * us["copy"])
    yield Claim(
        "without conflicts the transpose is faster", us["padded"] < us["tile"], us["tile"] / us["padded"],
        because="the memory is so slow that shared memory's queues hide behind it",
        so="bank conflicts cost you nothing in this kernel",
    )  # fmt: skip


def against_a_copy(us: Mapping[str, float]) -> Iterator[Claim | str]:
    """How many times as long as a copy each form of the transpose takes."""
    yield (
        f"Against a copy: direct ~{us['direct'] / us['copy']:.2f}, with conflicts "
        f"~{us['tile'] / us['copy']:.2f}, padded ~{us['padded'] / us['copy']:.2f}, swizzled "
        f"~{us['swizzled'] / us['copy']:.2f} times as long."
    )


def large_tile(record: dict) -> Iterator[Claim | str]:
    """The stairs below are those of the large tile; ``record``: of ``bench_kernels.py``."""
    side = readings.tile_side([record])
    yield Claim(
        "the large tile ran, one program a multiprocessor", side == record["tile"][0], side,
        because="too little shared memory lets the small tile in only, several a multiprocessor",
        so=f"tiles of {side:.0f} ran, and the stairs below are not at whole rounds",
    )  # fmt: skip


def one_row_more(times: pd.DataFrame, sms: int) -> Iterator[Claim | str]:
    """What a row of tiles beyond a full GPU costs; ``times``: µs by number of tiles, ``sms``: multiprocessors."""
    growth = 100 * (times[times.index > sms].iloc[0] / times.loc[sms] - 1)
    yield (
        f"One row of tiles beyond a full GPU: a tile each ~{growth['a tile each']:+.0f} %, "
        f"equal stretches ~{growth['stream']:+.0f} %, cuBLAS ~{growth['cublas']:+.0f} %."
    )
    slower = times.index[times["stream"] > times["a tile each"]]
    yield f"Equal stretches are slower than a tile each at {', '.join(map(str, slower)) or 'no number of'} tiles."
    short = times["a tile each"] / times["cublas"]
    yield f"cuBLAS is ~{short.min():.1f} to ~{short.max():.1f} times as fast as a tile each."


def shared_out(few: pd.DataFrame) -> Iterator[Claim | str]:
    """What sharing out the inner dimension gains; ``few``: µs by rows, columns and inner, a column for each way."""
    own = few.drop(columns="cublas")
    gain = own["a tile each"] / own.min(axis=1)
    library = few["a tile each"] / few["cublas"]
    for size in few.index:
        name = " × ".join(f"{side:,}" for side in size)
        yield (
            f"{name}: {own.loc[size].idxmin()}, ~{gain[size]:.1f} times as fast as a tile "
            f"each; cuBLAS ~{library[size]:.1f} times."
        )
    yield Claim(
        "sharing out the inner dimension gains more than half again somewhere", gain.max() > 1.5, gain.max(),
        because="a GPU with few multiprocessors has work for all of them in a few tiles",
        so=f"it gains a factor of {gain.max():.1f} at most here",
    )  # fmt: skip
