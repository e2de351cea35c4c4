"""Lab 29: a matrix product in CUDA C++, rung by rung, and the counter that explains each rung."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from labkit.checks import Claim
from labkit.display import style
from labkit.exercises.kinds import BOUND, READ, Code, NotWanted, Number, each_of, quietly
from labkit.predictions import Guess
from labkit.pretend import ring
from labkit.training import machine
from stepbudget.show.table import Table, table

NAIVE, SHARED, MMA, WGMMA, TMA, SPECIALISED, CLUSTER = RUNGS = (
    "naive", "shared memory", "mma.sync", "wgmma", "TMA", "warp-specialised", "cluster"
)  # fmt: skip
CUBLAS = "cuBLAS"
SIZE = 4096
OPERATIONS = 2 * SIZE**3
TENSOR_OPERATIONS = 4096  # dense BF16, a clock and SM, of wgmma: the data sheet over 132 SMs and 1.83 GHz
DATA_SHEET = 989  # TFLOP/s of an H100 or H200 (SXM) in BF16: NVIDIA's data sheets, without sparsity
CUDA_CORES = 67  # the same in FP32


# --- how fast ------------------------------------------------------------------------------------------------


def rates(records: Sequence[dict]) -> pd.DataFrame:
    """TFLOP/s, its share of cuBLAS and its error as a share of the bound, by way: records of ``bench_rungs.py``."""
    return pd.DataFrame(records[0]["rows"]).set_index("way")


def ladder(records: Sequence[dict]) -> Figure:
    """TFLOP/s of every way as bars, the slowest rung on top; cuBLAS and the data sheet as lines."""
    found = rates(records)["tflops"]
    colours = {CUBLAS: style.GREEN, "Triton": style.SKY}
    with style.chart(3.6) as (fig, ax):
        names = [f"{RUNGS.index(way) + 1}  {way}" if way in RUNGS else way for way in found.index]
        ax.barh(names, found, color=[colours.get(way, style.BLUE) for way in found.index])
        ax.axvline(found[CUBLAS], color=style.GREEN, lw=1.2, ls="--", zorder=0)
        ax.axvline(DATA_SHEET, color=style.INK, lw=1.2, ls=":")
        ax.annotate(f"data sheet: {DATA_SHEET}", (DATA_SHEET, 0), (-4, 0), textcoords="offset points", ha="right")
        for place, value in enumerate(found):
            ax.annotate(f"{value:,.3g}", (value, place), (4, 0), textcoords="offset points", va="center")
        ax.invert_yaxis()
        ax.set(xlim=(0, 1.06 * DATA_SHEET), xlabel="TFLOP/s")
        ax.set_title(f"The same product, {SIZE:,} × {SIZE:,} × {SIZE:,} in BF16")
    return fig


def speeds(records: Sequence[dict]) -> Table:
    """By way: TFLOP/s, the share of cuBLAS in the same rounds with its range, times the rung above."""
    found = rates(records)
    ranges = [f"{100 * low:.3g} to {100 * high:.3g}" for low, high in found["of_cublas_range"]]
    rungs = found["tflops"].where(found.index.isin(RUNGS))
    frame = pd.DataFrame(
        {
            "product": found.index,
            "TFLOP/s": found["tflops"],
            "% of cuBLAS": 100 * found["of_cublas"],
            "range": ranges,
            "times the rung above": rungs / rungs.shift(),
            "error / bound": found["error_of_bound"],
        }
    )
    formats = {
        "TFLOP/s": "{:,.3g}",
        "% of cuBLAS": "{:.3g}",
        "times the rung above": "{:.2f}",
        "error / bound": "{:.2f}",
    }
    return table(frame, f"{records[0]['gpu']}: medians of {len(found['tflops_rounds'].iloc[0])} rounds", formats)


# --- why -----------------------------------------------------------------------------------------------------


def tile_bytes(rows: int, columns: int, size: int = SIZE) -> float:
    """Bytes that tiles of ``rows`` x ``columns`` results read of BF16 factors, and write: each tile its own."""
    tiles = (size / rows) * (size / columns)
    return 2 * (tiles * (rows + columns) * size + size**2)


# --- what it claims ------------------------------------------------------------------------------------------

Counts = Mapping[str, Mapping[str, float]]  # column → way → value, as ``rates`` and ``counted`` have them


def all_right(speed: pd.DataFrame) -> Iterator[Claim | str]:
    """Every product is right; ``speed``: by ``rates``."""
    worst = float(speed["error_of_bound"].max())
    yield Claim("every product keeps its error bound", worst <= 1, worst)


def near_cublas(found: Counts) -> Iterator[Claim | str]:
    """Each of the first rungs is much faster than the one before, the last near cuBLAS; ``found``: rates."""
    rate, share = found["tflops"], found["of_cublas"]
    least = min(rate[after] / rate[before] for before, after in pairwise(RUNGS[:5]))
    yield Claim(
        "up to TMA, each rung is at least 1.3 times as fast as the one before", least > 1.3, least,
        because="another clock or another memory moves the limits",
        so=f"the smallest of these gains is {least:.2f} times here",
    )  # fmt: skip
    yield Claim(
        "the last rung has over 90 % of cuBLAS's speed", share[CLUSTER] > 0.9, share[CLUSTER],
        because="another cuBLAS chooses another kernel",
        so=f"it has {100 * share[CLUSTER]:.0f} % here",
    )  # fmt: skip


def lines_queue(found: Counts) -> Iterator[Claim | str]:
    """Why the first rung is so slow: its loads touch many lines, and L1 gets through one a clock."""
    loads, sectors = found["load_requests"][NAIVE], found["load_sectors"][NAIVE]
    yield Claim("a load of the first rung touches more than eight sectors", sectors > 8 * loads, sectors / loads)
    busy = found["l1_pct"][NAIVE]
    yield Claim(
        "L1 is busy over 95 % of the time, and the schedulers issue in less than a tenth",
        busy > 95 and found["issue_pct"][NAIVE] < 10, f"{busy:.0f} and {found['issue_pct'][NAIVE]:.0f} %",
        because="another L1 gets through more lines at once",
        so=f"L1 is busy {busy:.0f} % of the time here",
    )  # fmt: skip
    sms = found["blocks"][SPECIALISED]  # it has a block for each
    yield f"Lines that each SM's L1 gets through: {sectors / sms / found['time_us'][NAIVE]:,.0f} a microsecond."


def shared_saves(found: Counts) -> Iterator[Claim | str]:
    """Tiles in shared memory save loads, and then the schedulers are busy."""
    fewer = found["load_requests"][NAIVE] / max(found["load_requests"][SHARED], 1)
    yield Claim("with tiles there are over 500 times fewer loads from memory", fewer > 500, fewer)
    multiplying = found["fp32_flops"][SHARED] / 64 / found["instructions"][SHARED]  # 32 threads, 2 operations
    yield f"Of the instructions, {100 * multiplying:.0f} % are multiply-adds; the schedulers issue in " + (
        f"{found['issue_pct'][SHARED]:.0f} % of the clocks."
    )


def warps_multiply(found: Counts) -> Iterator[Claim | str]:
    """A matrix instruction of a warp replaces many multiply-adds."""
    fewer = found["instructions"][SHARED] / found["instructions"][MMA]
    yield Claim("mma.sync takes less than a tenth of the instructions", fewer > 10, fewer)


def same_share(found: Counts) -> Iterator[Claim | str]:
    """With wgmma the tensor pipe is active for as large a share of the time, and done sooner."""
    apart = abs(found["tensor_pct"][MMA] - found["tensor_pct"][WGMMA])
    yield Claim(
        "the tensor pipe's shares differ by less than 5 points", apart < 5, apart,
        because="the copies take another part of the time",
        so=f"they differ by {apart:.0f} points here",
    )  # fmt: skip
    longer = found["tensor_us"][MMA] / max(found["tensor_us"][way] for way in RUNGS[3:])
    yield Claim(
        "mma.sync keeps the tensor pipe active at least 1.2 times as long as any later rung", longer > 1.2, longer,
        because="before Hopper, mma.sync has the whole speed of the Tensor Cores",
        so=f"its operations keep the pipe {longer:.2f} times as long here",
    )  # fmt: skip
    never_waiting = OPERATIONS / found["tensor_us"][MMA] / 1e6
    yield f"With a pipe that never waits, mma.sync would reach {never_waiting:.0f} TFLOP/s."


def nobody_computes_addresses(found: Counts) -> Iterator[Claim | str]:
    """TMA saves instructions, and the tensor pipe works more of the time."""
    fewer = found["instructions"][WGMMA] / found["instructions"][TMA]
    yield Claim("TMA takes less than a third of the instructions", fewer > 3, fewer)
    more = found["tensor_pct"][TMA] / found["tensor_pct"][WGMMA]
    yield Claim(
        "the tensor pipe is active at least 1.4 times as large a share of the time", more > 1.4, more,
        because="the matrices come more slowly from this memory",
        so=f"its share grows {more:.2f} times here",
    )  # fmt: skip


def last_gains(found: Counts) -> Iterator[Claim | str]:
    """The last rung reads less from L2, and its tensor pipe hardly waits."""
    less = 1 - found["l2_bytes"][CLUSTER] / found["l2_bytes"][SPECIALISED]
    yield Claim(
        "with B shared by two blocks, L2 moves at least 3 % less", less > 0.03, less,
        because="the L2 answers two blocks at once anyway",
        so=f"it moves {1 - less:.2f} times as much here",
    )  # fmt: skip
    active = found["tensor_pct"][CLUSTER]
    yield Claim(
        "the last rung's tensor pipe is active over 80 % of the time", active > 80, active,
        because="the power limit, or the memory, is another one",
        so=f"it is active {active:.0f} % of the time here",
    )  # fmt: skip
    a_clock = TENSOR_OPERATIONS * found["blocks"][SPECIALISED]  # it has a block for each SM
    ghz = {way: OPERATIONS / a_clock / found["tensor_us"][way] / 1e3 for way in (WGMMA, CLUSTER)}
    yield f"If wgmma's operations take the pipe's full speed, its clock was {ghz[WGMMA]:.2f} GHz in rung 4, " + (
        f"{ghz[CLUSTER]:.2f} in rung 7."
    )


# --- predictions ---------------------------------------------------------------------------------------------

PREDICTIONS = {
    "naive": Guess(
        "the first rung's share of cuBLAS", " %", lambda found: 100 * float(found.loc[NAIVE, "of_cublas"]),
        wrong={
            "That's the CUDA cores' peak over cuBLAS. It would have to keep them busy.": (
                lambda found: 100 * CUDA_CORES / float(found.loc[CUBLAS, "tflops"])
            ),
            "That's the next rung, with tiles in shared memory.": (
                lambda found: 100 * float(found.loc[SHARED, "of_cublas"])
            ),
        },
    ),
    "instructions": Guess(
        "instructions of wgmma with cp.async, over those with TMA", " times",
        lambda found: float(found.loc[WGMMA, "instructions"] / found.loc[TMA, "instructions"]),
        wrong={
            "That's how much faster it gets. Instructions aren't what takes the time.": (
                lambda found: float(found.loc[WGMMA, "time_us"] / found.loc[TMA, "time_us"])
            ),
            "That's the threads of a block. The copies are only a part of the instructions.": lambda _: 256.0,
        },
    ),
}  # fmt: skip


# --- exercises -----------------------------------------------------------------------------------------------


def _passes(found: pd.DataFrame, before: str = SHARED, after: str = MMA, of: str = "shared_wavefronts") -> float:
    return float(found.loc[before, of] / found.loc[after, of])


PASSES = Number(
    READ,
    "Two rows of the table, column shared-memory passes: the upper one over the lower one.",
    right=_passes,
    wrong={
        "that is turned over": lambda found: 1 / _passes(found),
        "that is wgmma against mma.sync": lambda found: _passes(found, MMA, WGMMA),
        "that is shared memory against wgmma": lambda found: _passes(found, SHARED, WGMMA),
        "those are the instructions": lambda found: _passes(found, of="instructions"),
        "that is the time": lambda found: _passes(found, of="time_us"),
    },
    within=0.05,
)


def _gigabytes(rows: int = 128, columns: int = 256, factor: float = 1.0) -> float:
    return factor * tile_bytes(rows, columns) / 1e9


TRAFFIC = Number(
    BOUND,
    "512 tiles; each reads 128 rows of A and 256 of B, of 4,096 numbers of 2 bytes; and C is written once.",
    right=_gigabytes,
    wrong={
        "that is without writing C": lambda: _gigabytes() - 2 * SIZE**2 / 1e9,
        "that is as if each number were read once": lambda: 3 * 2 * SIZE**2 / 1e9,
        "that is with tiles of 128 × 128": lambda: _gigabytes(128, 128),
        "that is with tiles of 256 × 256": lambda: _gigabytes(256, 256),
        "that is with numbers of four bytes": lambda: _gigabytes(factor=2),
        "those are numbers: two bytes each": lambda: _gigabytes(factor=0.5),
    },
)

FILE = "5_tma.cu"
HOLES = {"PHASE": "step / STAGES % 2", "PENDING": "1", "NEXT": "step - 1 + STAGES"}  # what stands in the file
IN_FILE = {"PHASE": "{}", "PENDING": "wgmma_wait<{}>", "NEXT": "{}"}
WANTED = "three texts, PHASE, PENDING and NEXT, are"
AS_FAST = 0.9  # of our own rung, at least


def filled(text: str, phase: str, pending: str, following: str) -> str:
    """The fifth rung, with these expressions in its three holes."""
    for (name, own), said in zip(HOLES.items(), (phase, pending, following), strict=True):
        form = IN_FILE[name]
        text = text.replace(form.format(own), form.format(f"({said})" if name == "NEXT" else said))
    return text


@quietly
def _try_ring(write: Callable) -> str | None:
    said = each_of(write(), WANTED)
    if len(said) != 3 or not all(isinstance(one, str) for one in said):
        raise NotWanted(f"{WANTED} wanted")
    try:
        wrong = ring.trouble(*said)
    except ValueError as error:
        raise NotWanted(str(error)) from None
    if wrong:
        return wrong
    if "step" in said[1]:
        return "PENDING is a template's argument, known when it is compiled: it can't depend on step"
    if ring.trouble(said[0], "1", said[2], stages=5, steps=30):
        return "that holds for four stages only: with STAGES 5 it doesn't"
    if ring.value(said[1], {"step": 1, "STAGES": 4}) == 0:
        return "that is right, but slow: with PENDING 0 the Tensor Cores wait between two steps"
    return _on_gpu(*said) if "H100" in (gpu := machine.gpu_name() or "") or "H200" in gpu else None


def _on_gpu(*said: str) -> str | None:
    """The reader's rung on this Hopper: within its bound at two sizes, and as fast as ours?"""
    import torch

    from labkit.kernels.matmul import error_bound
    from labkit.kernels.rungs import FOLDER, RUNGS, Rung, rung_matmul
    from labkit.training.clock import gpu_times

    (ours,) = (rung for rung in RUNGS if rung.path.name == FILE)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / FILE
        path.write_text(filled((FOLDER / FILE).read_text(encoding="utf-8"), *said), encoding="utf-8")
        yours = Rung(path, "yours", ours.maps, ours.persistent)
        for m, n, k in ((512, 768, 640), (SIZE,) * 3):
            a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
            error = (rung_matmul(a, b, yours).double() - a.double() @ b.double().T).abs()
            if bool((error > error_bound(a, b.T)).any()):
                return f"at {m} × {n} × {k} the result is beyond its error bound"
        took = [min(gpu_times(lambda rung=rung: rung_matmul(a, b, rung), 5, 12)) for rung in (ours, yours)]
    share = took[0] / took[1]
    return None if share > AS_FAST else f"that is right, but slow: {100 * share:.0f} % of our rung's speed"


RING = Code(
    "How often has step's place been filled before? PHASE is whether that's odd. Then: whose place is free now?",
    _try_ring,
    wrong={
        "step 1 does not wait": lambda: ("step % 2", "1", "step - 1 + STAGES"),
        "step 0 does not wait": lambda: ("step / STAGES % 2 ^ 1", "1", "step - 1 + STAGES"),
        "step 4 does not wait": lambda: ("0", "1", "step - 1 + STAGES"),
        "step 4 waits for ever": lambda: ("step / STAGES % 2", "0", "step + STAGES"),
        "at step 0 PHASE is -1": lambda: ("step / STAGES - 1", "1", "step - 1 + STAGES"),
        "new tiles land where this step's products still read": lambda: ("step / STAGES % 2", "1", "step + STAGES"),
        "are fetched a second time": lambda: ("step / STAGES % 2", "1", "step + 1"),
        "that is right, but slow": lambda: ("step / STAGES % 2", "0", "step - 1 + STAGES"),
    },
)
EXERCISES = {"29.1": PASSES, "29.2": TRAFFIC, "29.3": RING}
