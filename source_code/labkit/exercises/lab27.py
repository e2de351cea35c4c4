"""Exercises of lab 27: a round too many, the warps that registers allow, a tile without bank conflicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, NotWanted, Number
from labkit.numbers import number
from labkit.topics.kernels.readings import BANKS, REGISTERS, column_passes, row_passes, warps_that_fit, wave_times


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
    if all(checked(row, column) == row ^ column for row in range(BANKS) for column in range(BANKS)):
        return "that is the XOR of the listing: is there another way?"
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
