"""What did each rung of the ladder bring, and what does it cost? Seconds by part of the process, and lines of code.

Seconds come from whole-process runs of all rungs in turn; a part is the median over the runs. Lines are counted in the
sources: those that hold code, no blank ones, no comments, no docstrings.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pandas as pd

from labkit.display.pieces import part, text_of
from labkit.display.spread import spread
from labkit.paths import SOURCE_CODE
from labkit.subjects.ladder import epochs_words
from stepbudget.show.table import Table, table

# What a rung needs of its own, beyond PyTorch and what every script uses: file of labkit → names in it (None: all).
ROOMS = ("adadelta", "conv1", "conv2", "head", "weights", "triton_or_not")
KERNELS = [f"kernels/{room}.py" for room in ROOMS]
OF_FC1 = ("_fc1.cuh", "_fc1_head.cu", "_fc1_backward.cu")
CUDA = [f"kernels/hopper{kind}" for kind in (".cuh", "_forward.cu", "_backward.cu", *OF_FC1)]  # ptx.cuh: lab 29's, too
OTHERS = ("beside", "fp32_out", "hopper", "hopper_fc1", "nvrtc")
FOR_HOPPER = [*(f"kernels/{room}.py" for room in (*ROOMS, *OTHERS)), *CUDA]
OF_THE_BLOCK = [f"kernels/{room}.py" for room in ("block", "conv1", "conv2", "triton_or_not")]
RUN, MODEL = "training/run.py", "training/model.py"
ON_THE_GPU = {RUN: ["Run.on_device"]}
CAPTURED = {RUN: ["Run.on_device", "Run.captured", "Run.warming_up"]}
LEAN = {
    RUN: [*CAPTURED[RUN], "rehearsal"],
    MODEL: ["PoolWindows", "FirstLayer", "LeanNet"],
}
NEEDS: Mapping[str, Mapping[str, Sequence[str] | None]] = {
    "main_opt4.py": ON_THE_GPU,
    "main_opt5.py": CAPTURED | {RUN: [*CAPTURED[RUN], "rehearsal"]},
    "main_opt6.py": LEAN,
    "main_opt6_block.py": {RUN: LEAN[RUN]} | dict.fromkeys(OF_THE_BLOCK),
    "main_opt7.py": CAPTURED | dict.fromkeys(KERNELS),
    "main_opt8.py": CAPTURED | dict.fromkeys(FOR_HOPPER),
}


@dataclass(frozen=True)
class Lines:
    """Lines of code of a rung: its script, what it needs of its own beside it, and how many of those are GPU code."""

    script: int
    beside: int
    on_gpu: int


@cache
def lines(step: str) -> Lines:
    """The lines of a rung (``main_opt7.py``)."""
    beside = on_gpu = 0
    for file, names in NEEDS.get(step, {}).items():
        source = (SOURCE_CODE / "labkit" / file).read_text(encoding="utf-8")
        if file in CUDA:
            beside, on_gpu = beside + cuda_lines(source), on_gpu + cuda_lines(source)
            continue
        beside += code_lines(source) if names is None else sum(code_lines(part(source, name)) for name in names)
        on_gpu += sum(code_lines(kernel) for kernel in gpu_functions(source)) if names is None else 0
    return Lines(code_lines((SOURCE_CODE / step).read_text(encoding="utf-8")), beside, on_gpu)


def code_lines(source: str) -> int:
    """How many lines hold code: no blank ones, no comments, no docstrings."""
    tree = ast.parse(source)
    held = set()
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in nothing:
            held |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            held -= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    return len(held)


def cuda_lines(source: str) -> int:
    """The same of CUDA C++, whose comments begin with ``//``."""
    return sum(bool(line.partition("//")[0].strip()) for line in source.splitlines())


def gpu_functions(source: str) -> list[str]:
    """The functions that Triton compiles."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return [text_of(source, node) for node in found if any("jit" in ast.unparse(word) for word in node.decorator_list)]


def parts(runs: Mapping[str, Sequence[dict]], cold: Mapping[str, dict] | None = None) -> pd.DataFrame:
    """One row a rung, the first being the baseline: seconds of each part of a process, medians over its runs.

    Columns: ``step``, ``n``, ``epochs`` of each run, ``startup_s``, ``warm_up_s`` (compiling, capturing),
    ``training_s``, ``test_s``, ``rest_s`` (what none of them covers), ``process_s`` (and its range,
    ``process_low_s`` to ``process_high_s``), ``cold_s`` (a process whose compilers' caches are empty; none where
    nothing is compiled), and the speedups against the first row, ``loop_times`` and ``process_times``.
    """
    rows = []
    for step, records in runs.items():
        medians = pd.DataFrame([_parts(record) for record in records]).median()
        whole = spread(records)
        about = {"step": step, "n": len(records), "epochs": len(records[0]["epochs"])}
        about |= {"process_low_s": whole.low, "process_high_s": whole.high}
        rows.append({**about, **medians, "cold_s": (cold or {}).get(step, {}).get("process_s")})
    found = pd.DataFrame(rows).astype({"cold_s": float})
    found["loop_times"] = found["training_s"].iloc[0] / found["training_s"]
    found["process_times"] = found["process_s"].iloc[0] / found["process_s"]
    return found


def seconds(found: pd.DataFrame) -> Table:
    """What each rung takes, in the loop and in the whole process: the columns of ``parts()`` that say so."""
    names = {
        "step": "step",
        "warm_up_s": "warm-up s",
        "training_s": "training s",
        "process_s": "process s",
        "cold_s": "process s, cold",
        "loop_times": "× loop",
        "process_times": "× process",
    }
    frame = found[list(names)].rename(columns=names)
    formats = dict.fromkeys(["warm-up s", "process s", "process s, cold"], "{:.2f}") | {"training s": "{:.3f}"}
    formats |= {"× loop": "{:.1f}", "× process": "{:.1f}"}
    trained = epochs_words(found["epochs"].max()).capitalize()
    caption = f"{trained}, medians over the runs, all rungs in turn; compilers' caches are warm unless marked cold"
    return table(frame, caption, formats)


def startup(records: Sequence[dict]) -> Table:
    """What happens before the first step, a row a stage of ``bench_startup.py``: seconds, medians over all processes.

    On top of which stage it is done (none for the first), how much longer its process takes than the process of that
    one, and how long a whole process takes that ends there.
    """
    found: dict[str, list[float]] = {}
    for row in (row for record in records for row in record["rows"]):
        found.setdefault(row["stage"], []).extend(row["process_s"])
    process_s = {stage: statistics.median(seconds) for stage, seconds in found.items()}
    after = {row["stage"]: row["after"] for row in records[0]["rows"]}
    rows = [(stage, after[stage], s - process_s.get(after[stage], 0.0), s) for stage, s in process_s.items()]
    columns = ["one thing more", "on top of", "takes s", "the whole process s"]
    caption = "Before the first step: processes that do so much and no more (medians)"
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns[2:], "{:.2f}"))


def _parts(record: dict) -> dict[str, float]:
    parts = {name: record[name] for name in ("startup_s", "training_s", "test_s")}
    parts["warm_up_s"] = record["extras"].get("warm_up_s", 0.0)
    return parts | {"rest_s": record["process_s"] - sum(parts.values()), "process_s": record["process_s"]}
