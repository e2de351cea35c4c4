"""Lab 27: what slows a kernel is too little under way, banks that queue, or tiles that are too few."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkit.checks import Claim
from labkit.display import style
from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, NotWanted, Number
from labkit.numbers import number
from labkit.predictions import Guess
from labkit.subjects import kernels, kernels_charts
from labkit.subjects.kernels import REGISTERS, warps_that_fit
from labkit.subjects.kernels_charts import SMALL
from labkit.subjects.roofline import Peaks
from stepbudget.show.table import Table, table

BLOCK_WARPS = 32  # of the largest block, which the reader predicts
BANKS = 32  # of shared memory, each a word of 4 bytes a clock
FIT = "warps that fit, by registers"  # a column
CHAIN_COLOURS = (style.VERMILION, style.ORANGE, style.GREEN, style.BLUE)


# --- how much is under way -----------------------------------------------------------------------------------


def chains(records: Sequence[dict]) -> pd.DataFrame:
    """Multiply-adds a clock and multiprocessor, by warps, a column for each number of chains a thread."""
    return kernels.one_block(records).pivot(index="warps", columns="chains", values="per_clock")


def chains_chart(records: Sequence[dict]) -> Figure:
    """Multiply-adds a clock of a multiprocessor by its warps, a line for each number of chains a thread."""
    found = chains(records)
    best = float(np.nanmax(found))
    with style.chart(3.6) as (fig, ax):
        for place, ((count, values), colour) in enumerate(zip(found.items(), CHAIN_COLOURS, strict=False)):
            label = f"{count} chain{'s' * (count > 1)} a thread"
            wide = 1.8 + 1.2 * (found.shape[1] - 1 - place)  # of lines that coincide, all are seen
            ax.plot(found.index, values, color=colour, marker="o", ms=4 + wide, lw=wide, label=label)
        ax.axhline(best, color=style.INK, lw=1.2, ls=":")
        kernels_charts.word(ax, f"the most that was reached: {best:.0f}", 0, best)
        kernels_charts.by_twos(ax, found.index)
        ax.set(ylim=(0, 1.2 * best), xlabel="warps on an SM", ylabel="multiply-adds a clock")
        ax.set_title("More warps, or more independent chains in each")
        fig.legend(loc="outside right center", fontsize=SMALL)
    return fig


def register_share(chains: int, latency: float) -> float:
    """What share of its best a scheduler can reach if two of a step's three registers lie in one bank: a model.

    Each bank gives one register a clock, so such a step takes two clocks. A warp that goes on at once with its next
    chain keeps the two registers that all its chains read, and takes one clock; where another warp had its turn
    meanwhile, they are read again. With as many chains as a result takes clocks (``latency``), one warp can go on for
    good; with fewer, each goes through its chains once and waits: two clocks for the first, one for each other.
    """
    return 1.0 if chains >= round(latency) else chains / (chains + 1)


def warps_enough(records: Sequence[dict]) -> pd.Series:
    """By chains a thread, the fewest warps measured that come to 90 % of the best; NaN where none does."""
    found = chains(records)
    good = found >= 0.9 * float(found.max().max())
    return good.idxmax().where(good.any()).astype(float)


def latency_clocks(records: Sequence[dict]) -> float:
    """Clocks from one step of a chain to the next: of one warp with one chain, which waits for nothing else."""
    found = kernels.rows(records, "chains").set_index(["warps", "chains"])
    alone = found.loc[(found.index.get_level_values("warps").min(), 1)]
    return float(alone["clocks"] / alone["steps"])


def warps_needed(latency: float, chains: int, per_clock: float) -> float:
    """Warps of 32 threads that keep a multiprocessor busy: what is under way is latency times throughput.

    (Little 1961, "A Proof for the Queuing Formula L = λW".) ``per_clock``: multiply-adds a clock at most.
    """
    return latency * per_clock / 32 / chains


def little(records: Sequence[dict]) -> Table:
    """By chains a thread: the warps that Little's law asks for, and the fewest that came near the best."""
    latency, best = latency_clocks(records), chains(records).max().max()
    enough = warps_enough(records).map("{:.0f}".format, na_action="ignore").fillna("none")
    frame = pd.DataFrame(
        {
            "chains a thread": enough.index,
            "warps, by Little's law": [warps_needed(latency, count, best) for count in enough.index],
            "warps that reached 90 %": enough.to_numpy(),
        }
    )
    caption = f"How many warps keep an SM busy, if a step of a chain takes {latency:.1f} clocks?"
    return table(frame, caption, {"warps, by Little's law": "{:.0f}"})


def banks_model(records: Sequence[dict]) -> Table:
    """By chains a thread: multiply-adds a clock by the model of the registers' banks, and as measured."""
    latency, found = latency_clocks(records), chains(records)
    measured = found.loc[BLOCK_WARPS]
    frame = pd.DataFrame(
        {
            "chains a thread": measured.index,
            "by the model": [found.max().max() * register_share(count, latency) for count in measured.index],
            "measured": measured.to_numpy(),
        }
    )
    caption = f"Multiply-adds a clock of an SM with {BLOCK_WARPS} warps"
    return table(frame, caption, dict.fromkeys(("by the model", "measured"), "{:.0f}"))


def registers(records: Sequence[dict]) -> Table:
    """Attention's choices that run here, the fastest first, and how many warps their registers let in at once."""
    tried = kernels.rows(records, "tuning").dropna(subset=["us"]).sort_values("us")
    frame = pd.DataFrame(tried["choice"].tolist(), columns=["rows", "keys a piece", "warps a program", "stages"])
    frame["registers"] = tried["registers"].astype(int).tolist()
    fit = [warps_that_fit(*own) for own in zip(frame["registers"], frame["warps a program"], strict=True)]
    frame = frame.assign(**{FIT: fit, "µs": tried["us"].tolist()})
    return table(frame, "Attention by choice, the fastest first", {"µs": "{:,.0f}"})


# --- banks of shared memory ----------------------------------------------------------------------------------


def passes(words: Iterable[int]) -> int:
    """How often shared memory has to answer 32 threads, each of which asks for a word, counted from its beginning.

    A bank answers one word at a time; threads that ask for the same word share the answer.
    """
    asked: dict[int, set[int]] = {}
    for word in words:
        asked.setdefault(word % BANKS, set()).add(word)
    return max((len(own) for own in asked.values()), default=0)


def column_passes(place: Callable[[int, int], int], width: int, side: int = BANKS) -> int:
    """The most passes in which a warp reads a column of a tile; ``place(row, column)``: where in its row it lies."""
    return max(passes(row * width + place(row, column) for row in range(side)) for column in range(side))


def row_passes(place: Callable[[int, int], int], width: int, side: int = BANKS) -> int:
    """The same for writing a row."""
    return max(passes(row * width + place(row, column) for column in range(side)) for row in range(side))


PLACES: dict[str, tuple[Callable[[int, int], int], int]] = {  # form of the transpose → place, words of a row
    "tile": (lambda row, column: column, 32),
    "padded": (lambda row, column: column, 33),
    "swizzled": (lambda row, column: column ^ row, 32),
}


def transpose_us(records: Sequence[dict]) -> dict[str, float]:
    """µs of each form of the transpose."""
    return kernels.rows(records, "transpose").set_index("form")["us"].to_dict()


def transposes(records: Sequence[dict], peaks: Peaks) -> Table:
    """The same matrix transposed in each form: µs, and the passes that a column takes in shared memory."""
    found = kernels.rows(records, "transpose")
    asked = {form: column_passes(*there) for form, there in PLACES.items()}
    copy = transpose_us(records)["copy"]
    frame = pd.DataFrame(
        {
            "form": found["form"],
            "words a row": [PLACES.get(form, (None, None))[1] for form in found["form"]],
            "passes for a column": [asked.get(form) for form in found["form"]],
            "µs": found["us"],
            "times a copy": found["us"] / copy,
            "TB/s": found["bytes"] / found["us"] / 1e6,
        }
    )
    side = int(found["side"][0])
    caption = f"{side:,} × {side:,} numbers in FP32; the memory's roof is {peaks.tb_per_s:.2f} TB/s"
    formats = {"µs": "{:.0f}", "times a copy": "{:.2f}", "TB/s": "{:.2f}"}
    return table(frame, caption, formats)


# --- products with few tiles ----------------------------------------------------------------------------------


def wave_times(records: Sequence[dict]) -> pd.DataFrame:
    """µs by number of tiles: ``a tile each``, ``stream``, ``cublas``."""
    return kernels.timed(records, "waves", ["tiles"])


def tile_side(records: Sequence[dict]) -> float:
    """Rows (and columns) of a tile of the products with more and more tiles: the large tile, or the small one."""
    found = kernels.rows(records, "waves").iloc[0]
    return math.sqrt(found["rows"] * found["columns"] / found["tiles"])


def waves(records: Sequence[dict]) -> Figure:
    """µs of a product by its number of tiles: a tile a program, equal stretches, cuBLAS; where a wave is full."""
    found, sms = wave_times(records), records[0]["multiprocessors"]
    with style.chart(3.9) as (fig, ax):
        for round_ in range(1, int(found.index.max() / sms) + 1):
            ax.axvline(round_ * sms, color=style.GRID, lw=1.5, zorder=0)
            where = {"xytext": (3, 3), "textcoords": "offset points", "va": "bottom", "size": SMALL}
            place = {"xycoords": ("data", "axes fraction"), "color": style.MUTED}
            ax.annotate(
                f"{round_ * sms} tiles:\n{round_} full wave{'s' * (round_ > 1)}", (round_ * sms, 0), **place, **where
            )
        kernels_charts.lines(ax, found)
        ax.set(ylim=(0, 1.1 * np.nanmax(found)), xlim=(0, None), xlabel="tiles of the result", ylabel="µs")
        ax.set_title("The same inner dimension, more and more tiles")
        fig.legend(loc="outside right center", fontsize=SMALL)
    return fig


def few_times(records: Sequence[dict]) -> pd.DataFrame:
    """µs by rows, columns, inner; a column for each way to share the product out."""
    return kernels.timed(records, "few", ["rows", "columns", "inner"])


def few(records: Sequence[dict]) -> Table:
    """Products of a few tiles, shared out in each way, in µs."""
    found = few_times(records)
    tiles = kernels.rows(records, "few").groupby(["rows", "columns", "inner"], sort=False)["tiles"].first()
    sizes = [" × ".join(f"{side:,}" for side in size) for size in found.index]
    ways = list(found.columns)
    frame = pd.DataFrame({"rows × columns × inner": sizes, "tiles": tiles.reindex(found.index).to_numpy()})
    frame = pd.concat([frame, found.reset_index(drop=True)], axis=1)
    caption = f"Products of a few tiles in µs, on {records[0]['multiprocessors']} SMs"
    return table(frame, caption, dict.fromkeys(ways, "{:.1f}"))


# --- what it claims ------------------------------------------------------------------------------------------

Counts = Mapping[str, Mapping[str, float]]  # column → kernel → value


def much_under_way(rate: Mapping[int, Mapping[int, float]]) -> Iterator[Claim | str]:
    """Few warps with much to do come near the best; ``rate``: multiply-adds a clock, by chains and then by warps."""
    reached = rate[8][8] / pd.DataFrame(rate).max().max()
    yield Claim(
        "eight warps with eight chains each come within a fifth of the best", reached > 0.8, reached,
        because="a result takes more clocks on this GPU",
        so=f"so much in flight brings {100 * reached:.0f} % of the best here",
    )  # fmt: skip


def warps_and_time(timed: Sequence[dict]) -> Iterator[Claim | str]:
    """Are attention's choices with more warps the faster ones? ``timed`` as before."""
    tried = registers(timed).frame
    rank = tried["µs"].corr(tried[FIT], method="spearman")
    yield (
        f"Over these choices, the rank correlation of time with warps that fit is {rank:+.2f} "
        "(−1: more warps are always faster, 0: no relation)."
    )


def held_back(found: Counts) -> Iterator[Claim | str]:
    """Are ready warps held back, as the model of the registers' banks wants it? ``found``: by ``counted.kernels``."""
    held = found["stall_dispatch_stall"]
    yield Claim(
        "a ready warp is held back for over a clock with one chain and with two, and not with four",
        min(held["chains 1"], held["chains 2"]) > 1 > 10 * held["chains 4"],
        ", ".join(f"{held[f'chains {n}']:.1f}" for n in (1, 2, 4)),
        because="this GPU's registers lie in other banks",
        so=f"with one chain, a ready warp is held back for {held['chains 1']:.1f} clocks here",
    )  # fmt: skip


def conflicts(found: Counts) -> Iterator[Claim | str]:
    """What share of the passes through shared memory are conflicts; ``found`` as before."""
    share = {form: found["bank_conflicts"][form] / found["shared_wavefronts"][form] for form in PLACES}
    yield Claim("in tile, over four fifths of the passes are conflicts", share["tile"] > 0.8, share["tile"])
    rest = max(share["padded"], share["swizzled"])
    yield Claim("padded or swizzled, less than a twentieth are", rest < 0.05, rest)
    yield (
        f"Copy and direct count {found['shared_wavefronts']['copy']:,.0f} and "
        f"{found['shared_wavefronts']['direct']:,.0f} passes without using shared memory; "
        "what these are, we don't know."
    )


def banks_queue(us: Mapping[str, float]) -> Iterator[Claim | str]:
    """Bank conflicts slow a transpose; ``us``: by its form."""
    yield Claim("no transpose is faster than a copy by more than a tenth", pd.Series(us).min() > 0.9 * us["copy"])
    yield Claim(
        "without conflicts the transpose is faster", us["padded"] < us["tile"], us["tile"] / us["padded"],
        because="the memory is so slow that shared memory's queues hide behind it",
        so="bank conflicts cost you nothing in this kernel",
    )  # fmt: skip


def large_tile(record: dict) -> Iterator[Claim | str]:
    """The staircase is that of the large tile; ``record``: of ``bench_kernels.py``."""
    side = tile_side([record])
    yield Claim(
        "the large tile ran, one program on each SM", side == record["tile"][0], side,
        because="with little shared memory only the small tile fits, several on an SM",
        so=f"tiles of {side:.0f} ran, and the steps of the staircase are not at whole waves",
    )  # fmt: skip


def _growth(times: pd.DataFrame, sms: int) -> pd.Series:
    """Per cent by which a row of tiles beyond a full GPU makes each way longer."""
    return 100 * (times[times.index > sms].iloc[0] / times.loc[sms] - 1)


def one_row_more(times: pd.DataFrame, sms: int) -> Iterator[Claim | str]:
    """What a row of tiles beyond a full GPU costs; ``times``: µs by number of tiles, ``sms``: multiprocessors."""
    growth = _growth(times, sms)
    yield (
        f"One row of tiles beyond a full GPU: a tile each {growth['a tile each']:+.0f} %, "
        f"equal stretches {growth['stream']:+.0f} %, cuBLAS {growth['cublas']:+.0f} %."
    )
    slower = times.index[times["stream"] > times["a tile each"]]
    yield f"Equal stretches are slower than a tile each at {', '.join(map(str, slower)) or 'no number of'} tiles."
    short = times["a tile each"] / times["cublas"]
    yield f"cuBLAS is {short.min():.1f} to {short.max():.1f} times as fast as a tile each."


def a_wave_more(found: Counts) -> Iterator[Claim | str]:
    """A little more than a wave leaves the tensor pipe idle; ``found`` as before."""
    active = found["tensor_pct"]
    share = active["tiles 143"] / active["tiles 132"]
    yield Claim(
        f"with {found['waves']['tiles 143']:.2f} waves, the tensor pipe is active for less than 0.6 times the share",
        share < 0.6, share,
        because="this GPU has another number of multiprocessors",
        so=f"its share is {share:.2f} times as large here",
    )  # fmt: skip


def shared_out(few: pd.DataFrame) -> Iterator[Claim | str]:
    """What sharing out the inner dimension gains; ``few``: µs by rows, columns and inner, a column for each way."""
    own = few.drop(columns="cublas")
    gain = own["a tile each"] / own.min(axis=1)
    library = few["a tile each"] / few["cublas"]
    for size in few.index:
        name = " × ".join(f"{side:,}" for side in size)
        yield (
            f"{name}: {own.loc[size].idxmin()}, {gain[size]:.1f} times as fast as a tile "
            f"each; cuBLAS {library[size]:.1f} times."
        )
    yield Claim(
        "sharing out the inner dimension gains more than half again somewhere", gain.max() > 1.5, gain.max(),
        because="a GPU with few multiprocessors has work for all of them in a few tiles",
        so=f"it gains a factor of {gain.max():.1f} at most here",
    )  # fmt: skip


# --- predictions ---------------------------------------------------------------------------------------------

PREDICTIONS = {
    "share": Guess(
        "one chain in each of 32 warps", " %", lambda found: 100 * float(found.loc[BLOCK_WARPS, 1] / found.max().max()),
        wrong={
            "By Little's law, so many warps are enough. Something else is full.": lambda _: 100.0,
            "That's one warp for each scheduler. Here each has eight.": (
                lambda found: 100 * float(found.loc[4, 1] / found.max().max())
            ),
        },
    ),
    "queue": Guess(
        "bank conflicts in a transpose", " times", lambda us: us["tile"] / us["padded"],
        wrong={
            "That's the column read alone. Other warps' memory traffic goes on meanwhile.": lambda _: float(BANKS),
            "That takes the four steps for equally long, and one after the other.": lambda _: (BANKS + 3) / 4,
        },
    ),
    "growth": Guess(
        "one row of tiles more", " %", lambda times, sms: float(_growth(times, sms)["a tile each"]),
        wrong={
            "That's how much more work there is. But the new tiles need a whole wave.": (
                lambda times, sms: 100 * (float(times.index[times.index > sms][0]) / sms - 1)
            ),
            "One row is many tiles, not one. And even one tile needs a whole wave.": lambda times, sms: 100 / sms,
        },
    ),
}  # fmt: skip


# --- exercises -----------------------------------------------------------------------------------------------


def _one_row_more(records: Sequence[dict], way: str = "a tile each", full: int = 2) -> float:
    """How many times as long the next number of tiles takes as the one that fills the GPU just so often."""
    found, tiles = wave_times(records)[way], full * records[0]["multiprocessors"]
    more = found.index[found.index > tiles]
    if tiles not in found.index or not len(more):
        raise NothingToAnswer("no number of tiles fills this GPU just twice")
    return float(found[more[0]] / found[tiles])


def _tiles_more(records: Sequence[dict]) -> float:
    found, tiles = wave_times(records), 2 * records[0]["multiprocessors"]
    return float(found.index[found.index > tiles][0] / tiles)


ROUND_MORE = Number(
    READ,
    "The orange line: its value right behind the second grey line, over that on it.",
    right=_one_row_more,
    wrong={
        "that is turned over": lambda records: 1 / _one_row_more(records),
        "that is the line of equal stretches: a tile a program?": lambda records: _one_row_more(records, "stream"),
        "that is cuBLAS: a tile a program?": lambda records: _one_row_more(records, "cublas"),
        "that is at the first grey line": lambda records: _one_row_more(records, full=1),
        "that is how many more tiles there are": _tiles_more,
        "that is by how much longer, in per cent: how many times as long?": lambda records: (
            100 * (_one_row_more(records) - 1)
        ),
    },
    within=0.05,  # read off a picture
)


def _pct(warps: float) -> float:
    return 100 * warps / 64


OCCUPANCY = Number(
    BOUND,
    "A thread gets 88 registers, in units of 8; a block of 256 threads 22,528. How many such blocks do 65,536 hold?",
    right=lambda: _pct(warps_that_fit(82, 8)),
    wrong={
        "that is without the units: 82 registers become 88": lambda: _pct(REGISTERS // (82 * 256) * 8),
        "that is with a part of a block: only whole blocks run": lambda: _pct(REGISTERS / (88 * 32)),
        "that is one block: how many fit?": lambda: _pct(8),
        "those are warps: per cent of 64?": lambda: 16.0,
        "that is as if registers did not matter": lambda: 100.0,
        "those are blocks: how many warps, and what share of 64?": lambda: 2.0,
        "that is with one warp a block: a block has 8": lambda: _pct(2),
    },
)


def _try_place(place: Callable) -> str | None:
    def checked(row: int, column: int) -> int:
        found = number(place(row, column))
        if found != int(found):
            raise NotWanted(f"a whole number is wanted, not {found:g}: the place in the row")
        return int(found)

    for row in range(BANKS):
        places = [checked(row, column) for column in range(BANKS)]
        if min(places) < 0 or max(places) >= BANKS:
            return f"row {row} has a word outside of it: places are 0 to {BANKS - 1}"
        if len(set(places)) < BANKS:
            return f"in row {row} two words have the same place: one of them is lost"
    if (count := row_passes(checked, BANKS)) > 1:
        return f"a row takes {count} passes to write"
    if (count := column_passes(checked, BANKS)) > 1:
        return f"a column takes {count} passes to read: its words should lie in {BANKS} banks"
    if all(checked(row, column) == checked(row, 0) ^ column for row in range(BANKS) for column in range(BANKS)):
        return "that is the XOR of the listing, or one like it: is there another way?"
    return None


PLACE = Code(
    "Within a row all 32 places are taken, in another order in each row: the row's number has to come into it.",
    _try_place,
    wrong={
        "a column takes 32 passes to read": lambda row, column: column,
        "a column takes 2 passes to read": lambda row, column: column ^ (row // 2),
        "has a word outside of it": lambda row, column: column + row,
        "two words have the same place": lambda row, column: (column * row) % BANKS,
        "a column takes 16 passes to read": lambda row, column: (column + 16 * row) % BANKS,
        "that is the XOR of the listing": lambda row, column: row ^ column,
        "a whole number is wanted": lambda row, column: (column + row / 2) % BANKS,
    },
)
EXERCISES = {"27.1": ROUND_MORE, "27.2": OCCUPANCY, "27.3": PLACE}
