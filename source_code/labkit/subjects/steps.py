"""Where are the roofs and the floor, and how far from them is each step of the ladder?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit import course, source
from labkit.source import kinds
from labkit.source.counting import count_command
from labkit.subjects import floors
from labkit.subjects.floors import BATCH, step_floor_s, step_traffic
from labkit.subjects.roofline import COUNTED, DTYPE_WORDS, FROM_SHAPES, Peaks, Point, step_seconds
from labkit.training import sizes
from stepbudget.ncu.counters import Counted
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


def zeros(records: Sequence[dict]) -> pd.DataFrame:
    """The same product of numbers without zeros and of nothing else (``bench_roofs.py``): its rate, clock, power."""
    rows = pd.DataFrame([row for row in records[0]["rows"] if row["what"] == "product"])
    return rows[["zeros", "tflops", "mhz", "watts"]].iloc[[0, -1]].astype(float)


def floor_table(peaks: Peaks) -> Table:
    """The recipe's ten epochs at the roofs: arithmetic, and traffic by how the step is cut into kernels."""
    frame = floors.floor(peaks)
    frame["amount"] = [f"{amount:.3g} {unit}" for amount, unit in zip(frame["amount"], frame.pop("unit"), strict=True)]
    caption = f"Ten epochs at the roofs of one {peaks.gpu}, in {DTYPE_WORDS[peaks.narrow]}"
    return table(frame, caption, {"rate": "{:,.4g}", "ms": "{:.0f}"})


def scripts(peaks: Peaks) -> list[str]:
    """The rungs that labs 9 and 11 look at; ``main_opt7``'s kernels multiply in BF16, which not every GPU has."""
    last = 7 if peaks.narrow == "bf16" else 6
    return ["main_baseline.py", *(f"main_opt{number}.py" for number in range(1, last + 1))]


def count_ladder(found: Counted, runs: Mapping[str, Sequence[dict]]) -> dict[str, pd.DataFrame]:
    """The kernels of one step of each rung of the ``runs``, as ``main_opt6``'s were counted (``found``)."""
    counts = {"main_opt6": found}
    for rung in (script.removesuffix(".py") for script in runs):
        loads = rung < "main_opt4"  # from then on there is no loader
        program = f"{rung}.py --profile --epochs 2 --limit {BATCH}{' --workers 0' if loads else ''}"
        same = counts["main_baseline"] if rung in ("main_opt1", "main_opt2") else None  # only their loader is another
        if rung not in counts:
            asked = kinds.counts(count_command(f"{rung}_bytes", program), brief=True, same_kernels=same)
            counts[rung] = source.current().get(asked)
    return {script.removesuffix(".py"): counts[script.removesuffix(".py")].step for script in runs}


def count_in_depth(rung: str = "main_opt6") -> Counted:
    """One step once more, with all that its units did."""
    program = f"{rung}.py --profile --epochs 2 --limit {BATCH}"
    return source.current().get(kinds.counts(count_command(f"{rung}_units", program, in_depth=True)))


def traffic(counted: Mapping[str, pd.DataFrame]) -> Table:
    """Megabytes of a training step, as Nsight Compute counted them and as the tensors' shapes say."""
    rows = []
    for step, kernels in counted.items():
        cut, dtype = RUNGS[step]
        mb, shapes_mb = kernels["bytes"].sum() / 1e6, step_traffic(cut, dtype=dtype) / 1e6
        rows.append((step, cut, dtype, len(kernels), mb, shapes_mb, mb / shapes_mb))
    columns = ["step", "cut into kernels", "type", "kernels", "MB counted", "MB from shapes", "ratio"]
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


def step_point(name: str, seconds: float, counted: pd.DataFrame | None = None, dtype: str | None = None) -> Point:
    """A training step of a rung (``main_opt7`` …) as a point; ``seconds`` as timed, without a profiler.

    ``counted``: the kernels of one step as ``stepbudget.ncu.counters`` has them; without it the bytes are those of
    ``step_traffic``.
    """
    step, own_dtype = RUNGS[name]
    dtype = dtype or own_dtype
    moved = step_traffic(step, dtype=dtype) if counted is None else float(counted["bytes"].sum())
    source = FROM_SHAPES if counted is None else COUNTED
    return Point(name, dtype, BATCH * sizes.training_flops_per_sample(), moved, seconds, source)


def ladder_points(runs: Mapping[str, Sequence[dict]], counted: Mapping[str, pd.DataFrame]) -> list[Point]:
    """A step of every rung as a point: seconds from its ``runs``, bytes as ``counted``, of the others from shapes.

    ``runs``: a script's name (``main_opt7.py``) → its records; ``counted``: a rung (``main_opt7``) → its kernels.
    """
    return [
        step_point(rung, step_seconds(records), counted.get(rung), dtype=number_type(rung, records))
        for rung, records in ((step.removesuffix(".py"), records) for step, records in runs.items())
    ]


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
