"""What does the record of ``bench_kernels.py`` say, and what could be had at best?

Bounds follow from shapes and from the roofs that ``bench_peaks.py`` measured: bytes through the memory, operations on
the Tensor Cores, and exponentials, of which a multiprocessor makes 16 a clock (CUDA C++ Programming Guide, "Arithmetic
Instructions", compute capability 7.5 to 9.0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from labkit.topics.roofline.readings import BYTES, Peaks

EXPONENTIALS_A_CLOCK = 16  # of a multiprocessor
WARPS_A_BLOCK = 32  # at most
BANKS = 32  # of shared memory, each a word of 4 bytes a clock
REGISTERS = 65_536  # of a multiprocessor, 4 bytes each


def rows(records: Sequence[dict], what: str) -> pd.DataFrame:
    """The rows of one kind, of the first record: its rounds are inside. Empty where there are none."""
    return pd.DataFrame([row for row in records[0]["rows"] if row["what"] == what])


def timed(records: Sequence[dict], what: str, keys: Sequence[str]) -> pd.DataFrame:
    """µs by ``keys``, a column for each way; NaN where it was refused."""
    found = rows(records, what)
    return found.pivot(index=list(keys), columns="way", values="us").reindex(columns=found["way"].unique())


# --- softmax ------------------------------------------------------------------------------------------------


def softmax_floor_us(numbers: int, peaks: Peaks, dtype: str, trips: int = 2) -> float:
    """µs in which so many numbers can go through the memory so often: read once, written once are two trips."""
    return trips * numbers * BYTES[dtype] / peaks.tb_per_s / 1e6


def softmax_shares(records: Sequence[dict], peaks: Peaks) -> pd.DataFrame:
    """By columns, of each way: the share of the memory's roof, 1 for one reading and one writing at full speed."""
    found = rows(records, "softmax")
    floor = softmax_floor_us(int(found["rows"][0] * found["columns"][0]), peaks, records[0]["dtype"])
    return floor / timed(records, "softmax", ["columns"])


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
    found = _one_block(records)
    if found.empty:
        return math.nan
    longest = found.loc[found["us"].idxmax()]
    return float(longest["clocks"] / longest["us"])


def attention_floors(records: Sequence[dict], peaks: Peaks) -> pd.DataFrame:
    """By length and direction, µs at each roof: ``arithmetic``, ``memory``, ``exponentials``, ``naive memory``."""
    dtype, found = records[0]["dtype"], []
    rate = EXPONENTIALS_A_CLOCK * (records[0]["multiprocessors"] or math.nan) * clock_mhz(records)  # a µs
    shapes = rows(records, "attention")[["batch", "heads", "length", "width", "causal"]].drop_duplicates()
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


def attention_times(records: Sequence[dict]) -> pd.DataFrame:
    """By length and direction, µs of ``naive``, ``flash``, ``triton``; NaN where one was refused."""
    return timed(records, "attention", ["length", "causal"]).reindex(columns=["naive", "flash", "triton"])


def cudnn_gain(records: Sequence[dict], length: int) -> float:
    """How many times as fast cuDNN's attention is as PyTorch's flash kernel, forward and back; NaN if one is refused.

    ``records``: of ``bench_attention.py``; in BF16, else in FP16.
    """
    found = pd.DataFrame(records[0]["rows"]).reindex(columns=["length", "dtype", "kernel", "us"])
    us = found[found["length"] == length].pivot(index="dtype", columns="kernel", values="us")
    gains = (us["flash"] / us["cudnn"]).reindex(["bf16", "fp16"]).dropna()
    return float(gains.iloc[0]) if len(gains) else math.nan


def tuning_cost(records: Sequence[dict]) -> dict[str, float]:
    """What tuning took and gained: ``choices``, ``compile_s``, ``try_s``, µs of the ``first``, ``chosen``, ``best`` and
    ``worst`` choice, and ``pays_after``: calls until the gain of what the tuner chose over the first has paid for it
    (infinite where there is none). The tuner times by itself, so it may miss the best by a little."""
    tried, auto = rows(records, "tuning"), rows(records, "autotune")
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


# --- inside a multiprocessor --------------------------------------------------------------------------------


def _one_block(records: Sequence[dict]) -> pd.DataFrame:
    """The chains of one block a multiprocessor: of two, each counts its own clocks while the other may run or wait."""
    found = rows(records, "chains")
    return found[found["warps"] <= WARPS_A_BLOCK] if len(found) else found


def chains(records: Sequence[dict]) -> pd.DataFrame:
    """Multiply-adds a clock and multiprocessor, by warps, a column for each number of chains a thread."""
    return _one_block(records).pivot(index="warps", columns="chains", values="per_clock")


def register_share(chains: int, latency: float) -> float:
    """What share of its best a scheduler can reach if two of a step's three registers lie in one bank: a model.

    Each bank gives one register a clock, so such a step takes two clocks. A warp that goes on at once with its next
    chain keeps the two registers that all its chains read, and takes one clock; where another warp had its turn
    meanwhile, they are read again. With as many chains as a result takes clocks (``latency``), one warp can go on for
    good; with fewer, each goes through its chains once and waits: two clocks for the first, one for each other.
    """
    return 1.0 if chains >= round(latency) else chains / (chains + 1)


def warps_enough(records: Sequence[dict], share: float = 0.9) -> pd.Series:
    """By chains a thread, the fewest warps measured that come to this share of the best; NaN where none does."""
    found = chains(records)
    good = found >= share * float(found.max().max())
    return good.idxmax().where(good.any()).astype(float)


def latency_clocks(records: Sequence[dict]) -> float:
    """Clocks from one step of a chain to the next: of one warp with one chain, which waits for nothing else."""
    found = rows(records, "chains").set_index(["warps", "chains"])
    alone = found.loc[(found.index.get_level_values("warps").min(), 1)]
    return float(alone["clocks"] / alone["steps"])


def warps_needed(latency: float, chains: int, per_clock: float) -> float:
    """Warps of 32 threads that keep a multiprocessor busy: what is under way is latency times throughput.

    (Little 1961, "A Proof for the Queuing Formula L = λW".) ``per_clock``: multiply-adds a clock at most.
    """
    return latency * per_clock / 32 / chains


def warps_that_fit(registers: int, warps_a_block: int, most: int = 64) -> int:
    """Warps of a multiprocessor whose registers suffice: whole blocks of threads with so many registers each.

    A warp gets registers in units of 256, that is 8 a thread (Nsight Compute's occupancy calculator).
    """
    each = -(-registers // 8) * 8 * 32 * warps_a_block
    return min(most // warps_a_block, REGISTERS // each) * warps_a_block


def room(records: Sequence[dict]) -> pd.DataFrame:
    """Attention's choices that run here, the fastest first, with ``fit``: the warps that their registers allow."""
    tried = rows(records, "tuning").dropna(subset=["us"]).sort_values("us")
    choices = pd.DataFrame(tried["choice"].tolist(), columns=["rows", "places", "warps", "stages"])
    registers = tried["registers"].astype(int).tolist()
    fit = [warps_that_fit(own, warps) for own, warps in zip(registers, choices["warps"], strict=True)]
    return choices.assign(registers=registers, fit=fit, us=tried["us"].tolist())


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


# --- products with few tiles --------------------------------------------------------------------------------


def busy_share(tiles: int, multiprocessors: int) -> float:
    """Of all multiprocessors, all the time: what has work, if each tile is made by one of them, in whole rounds."""
    return tiles / (multiprocessors * math.ceil(tiles / multiprocessors))


def wave_times(records: Sequence[dict]) -> pd.DataFrame:
    """µs by number of tiles: ``a tile each``, ``stream``, ``cublas``."""
    return timed(records, "waves", ["tiles"])


def tile_side(records: Sequence[dict]) -> float:
    """Rows (and columns) of a tile of the products with more and more tiles: the large tile, or the small one."""
    found = rows(records, "waves").iloc[0]
    return math.sqrt(found["rows"] * found["columns"] / found["tiles"])


def few_times(records: Sequence[dict]) -> pd.DataFrame:
    """µs by rows, columns, inner; a column for each way to share the product out."""
    return timed(records, "few", ["rows", "columns", "inner"])


# --- more loads under way, or more threads ------------------------------------------------------------------


def stages(records: Sequence[dict]) -> pd.DataFrame:
    """What ``bench_stages.py`` found: a row a kernel of ``main_opt7`` and number of stages, with whole tiles.

    Columns: ``kernel``, ``stages``, ``shared_bytes`` of a program, which a refusal tells, too; ``programs`` that are on
    a multiprocessor at once, of 4 warps, by registers and shared memory; µs with 4 and with 8 warps (``us_4``,
    ``us_8``), all three NaN where refused; ``shipped_us``, as ``main_opt7`` starts the kernel. A multiprocessor has the
    shared memory that one program may have at most, and the 1,024 bytes that each takes for itself besides.
    """
    tried = pd.DataFrame(records[0]["rows"]).reindex(columns=["kernel", *_STAGES])
    shipped = tried[tried["shipped"].eq(True)].set_index("kernel")["us"]
    told = tried["refused"].astype("string").str.extract(r"Required: (\d+), Hardware limit: (\d+)").astype(float)
    tried["shared_bytes"] = tried["shared_bytes"].fillna(told[0])
    whole = tried[tried["num_stages"].notna() & tried["BLOCK"].isna()].set_index(["kernel", "num_stages"])
    four, eight = (whole[whole["num_warps"] == warps] for warps in (4, 8))
    fit = (told[1].max() + 1024) // (four["shared_bytes"] + 1024)  # NaN where nothing was refused
    by_registers = four["registers"].map(lambda count: warps_that_fit(int(count), 4) // 4, na_action="ignore")
    found = four[["shared_bytes"]].assign(programs=pd.concat([fit, by_registers], axis=1).min(axis=1))
    found["programs"] = found["programs"].where(four["us"].notna())
    found["us_4"], found["us_8"] = four["us"], eight["us"]
    found = found.rename_axis(["kernel", "stages"]).reset_index()
    return found.assign(stages=found["stages"].astype(int), shipped_us=found["kernel"].map(shipped))


_STAGES = ["shipped", "num_stages", "num_warps", "BLOCK", "us", "registers", "shared_bytes", "refused"]
