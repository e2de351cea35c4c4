"""Where are the roofs and the floor, and how far from them is each step of the ladder?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit import course
from labkit.subjects import floors
from labkit.subjects.floors import BATCH, step_floor_s, step_traffic
from labkit.subjects.roofline import COUNTED, DTYPE_WORDS, FROM_SHAPES, Peaks, Point, step_seconds
from labkit.training import sizes
from stepbudget.show.table import Table, table

# Each rung: how its step is cut, and the type in which it multiplies.
RUNGS = {step.name: (step.traffic, step.arithmetic) for step in course.STEPS}
NUMBER_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}  # as PyTorch calls them


def roofs(peaks: Peaks) -> Table:
    """The roofs as measured, and the arithmetic intensity at which each type's roof meets that of the memory."""
    rows = [(DTYPE_WORDS[dtype], tflops, peaks.ridge(dtype)) for dtype, tflops in peaks.tflops.items()]
    measured = "the best of several matrix products"
    caption = f"The roofs of one {peaks.gpu} as measured: {measured}; memory moves {peaks.tb_per_s:.2f} TB/s"
    columns = ["arithmetic in", "TFLOP/s", "FLOP/byte where the roofs meet"]
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns[1:], "{:.0f}"))


def zeros(records: Sequence[dict]) -> Table:
    """The same product of numbers of which some are zero, as ``bench_roofs.py`` measured it: its rate, clock, power."""
    rows = [row for row in records[0]["rows"] if row["what"] == "product"]
    where = {"left": "one factor", "both": "both factors"}
    words = [f"{100 * row['zeros']:.0f} % of {where[row['factor']]}" if row["zeros"] else "none" for row in rows]
    frame = pd.DataFrame(
        {
            "zeros": words,
            "TFLOP/s": [row["tflops"] for row in rows],
            "MHz": pd.Series([row["mhz"] for row in rows], dtype=float),
            "W": pd.Series([row["watts"] for row in rows], dtype=float),
        }
    )
    side = rows[0]["size"]
    caption = f"{side:,} × {side:,} × {side:,} in 16 bits, for a second, on one {records[0]['gpu']}"
    return table(frame, caption, dict.fromkeys(frame.columns[1:], "{:,.0f}"))


def floor_table(peaks: Peaks) -> Table:
    """The recipe's ten epochs at the roofs: arithmetic, and traffic by how the step is cut into kernels."""
    frame = floors.floor(peaks)
    frame["amount"] = [f"{amount:.3g} {unit}" for amount, unit in zip(frame["amount"], frame.pop("unit"), strict=True)]
    caption = f"Ten epochs at the roofs of one {peaks.gpu}, in {DTYPE_WORDS[peaks.narrow]}"
    return table(frame, caption, {"rate": "{:,.4g}", "ms": "{:.0f}"})


def traffic(steps: Sequence[str], counted: dict[str, pd.DataFrame]) -> Table:
    """Megabytes of a training step, as Nsight Compute counted them and as the tensors' shapes say."""
    rows = []
    for step in steps:
        cut, dtype = RUNGS[step]
        mb, shapes_mb = counted[step]["bytes"].sum() / 1e6, step_traffic(cut, dtype=dtype) / 1e6
        rows.append((step, cut, dtype, len(counted[step]), mb, shapes_mb, mb / shapes_mb))
    columns = ["step", "cut into kernels", "in", "kernels", "MB counted", "MB from shapes", "ratio"]
    formats = {"MB counted": "{:,.0f}", "MB from shapes": "{:,.0f}", "ratio": "{:.2f}"}
    caption = "Memory traffic of one training step"
    return table(pd.DataFrame(rows, columns=columns), caption, formats)


def number_type(name: str, records: Sequence[dict]) -> str:
    """In which type a rung's runs multiplied: as their records say, else the rung's own. A GPU may lack BF16."""
    record = records[0]
    said = record["extras"].get("amp_dtype", record["arguments"].get("amp_dtype"))
    if said == "float32" and record["arguments"].get("tf32"):
        return "tf32"
    return NUMBER_TYPES.get(said, RUNGS[name][1])


def step_point(
    name: str, seconds: float, counted: pd.DataFrame | None = None, batch: int = BATCH, dtype: str | None = None
) -> Point:
    """A training step of a rung (``main_opt7`` …) as a point; ``seconds`` as timed, without a profiler.

    ``counted``: the kernels of one step as ``stepbudget.ncu.counters`` has them; without it the bytes are those of
    ``step_traffic``.
    """
    step, own_dtype = RUNGS[name]
    dtype = dtype or own_dtype
    moved = step_traffic(step, batch, dtype) if counted is None else float(counted["bytes"].sum())
    return Point(
        name,
        dtype,
        batch * sizes.training_flops_per_sample(),
        moved,
        seconds,
        FROM_SHAPES if counted is None else COUNTED,
    )


def ladder_points(runs: Mapping[str, Sequence[dict]], counted: Mapping[str, pd.DataFrame]) -> list[Point]:
    """A step of every rung as a point: seconds from its ``runs``, bytes as ``counted``, of the others from shapes.

    ``runs``: a script's name (``main_opt7.py``) → its records; ``counted``: a rung (``main_opt7``) → its kernels.
    """
    return [
        step_point(rung, step_seconds(records), counted.get(rung), dtype=number_type(rung, records))
        for rung, records in ((step.removesuffix(".py"), records) for step, records in runs.items())
    ]


def points(points: Sequence[Point], peaks: Peaks) -> Table:
    """Each point: what it does and moves, how fast, which roof is above it, and its share of that roof."""
    rows = [
        {
            "step": point.name,
            "in": point.dtype,
            "µs": 1e6 * point.seconds,
            "GFLOP": point.flops / 1e9,
            "MB": point.moved / 1e6,
            "FLOP/byte": point.intensity,
            "TFLOP/s": point.tflops,
            "roof above": point.bound(peaks),
            "% of it": 100 * point.share(peaks),
            "µs at the roof": 1e6 * point.floor_s(peaks),
            "bytes from": point.source,
        }
        for point in points
    ]
    formats = {"GFLOP": "{:.1f}", "MB": "{:,.0f}", "µs": "{:,.0f}", "FLOP/byte": "{:.1f}", "TFLOP/s": "{:.1f}"}
    formats |= {"% of it": "{:.1f}", "µs at the roof": "{:,.0f}"}
    return table(pd.DataFrame(rows), f"One training step of {BATCH:,} digits under its roof", formats)


def distances(points: Sequence[Point], counted: Mapping[str, pd.DataFrame], peaks: Peaks) -> Table:
    """Why does a step take so many times as long as it must? Three factors; their product is the whole distance.

    ``points``: whole steps, as timed; ``counted``: their kernels, by the points' names. Each step's µs as timed, of all
    its kernels one after another, at the roof of its own bytes and type, and at the least. *Waiting* is the first over
    the second, *slow kernels* the second over the third, *bytes and type* (more, or slower, than needed) the third over
    the fourth.
    """
    rows = []
    for point in points:
        us, kernels_us = 1e6 * point.seconds, float(counted[point.name]["time_us"].sum())
        roof_us, floor_us = 1e6 * point.floor_s(peaks), 1e6 * step_floor_s(peaks)
        times = (us, kernels_us, roof_us, floor_us)
        rows.append((point.name, *times, us / kernels_us, kernels_us / roof_us, roof_us / floor_us, us / floor_us))
    in_us = ["step µs", "its kernels µs", "at its roof µs", "the floor µs"]
    factors = ["waiting ×", "slow kernels ×", "bytes and type ×", "in all ×"]
    formats = dict.fromkeys(in_us, "{:,.0f}") | dict.fromkeys(factors, "{:.1f}")
    caption = "From each step down to the floor: the three factors multiply"
    return table(pd.DataFrame(rows, columns=["step", *formats]), caption, formats)
