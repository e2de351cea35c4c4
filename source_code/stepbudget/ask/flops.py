"""How fast do the matrix products and convolutions compute? Achieved FLOP/s, by operator and shape.

Where operator ranges carry the sizes of their inputs (``torch.autograd.profiler.emit_nvtx(record_shapes=True)``), the
arithmetic of an op is known: a product of m × k by k × n takes 2·m·n·k FLOPs, a convolution twice the size of its
output times the weight's for one output channel. It is divided by the time of all kernels of that op (``ask.ops`` says
which they are): those that add a bias or change a layout count too, so this is what the program gets, not one kernel.

Strides and padding are not recorded, so the size of a convolution's output is taken from an operator that uses it, by
its ``input_op_ids``; its backward pass has the size itself, and as many products as gradients that something uses.
Where that is not to be had the arithmetic is unknown, and so it is for attention and recurrent networks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from math import prod

import numpy as np
import pandas as pd

from stepbudget.ask import ops
from stepbudget.ask.budget import PYTHON, budget
from stepbudget.coded import coded, together
from stepbudget.report import Report, remembered
from stepbudget.window import Window

COLUMNS = ["op", "sizes", "ops", "gflop", "gpu_ms", "tflops", "group", "unknown"]
NO_SIZES = "sizes are not in the report"
NO_OUTPUT = "the size of its output is not in the report"
NO_GRADIENT = "which gradients it made is not in the report"
NO_FORMULA = "no formula for this operator and these sizes"
OPTIONS = "torch.autograd.profiler.emit_nvtx(record_shapes=True), or nsys --pytorch=autograd-shapes-nvtx"
MOST = 1e24  # FLOPs of one op: more than a year of any GPU

OP_ID = re.compile(r", op_id = (\d{1,18})")
INPUTS = re.compile(r"input_op_ids = \[(.*)\]$", re.DOTALL)
OP = re.compile(r"\((\d+)")
PAIR = re.compile(r"\((\d{1,18}),\s*(-?\d{1,9})\)")

Uses = dict[tuple[int, int, int], list[list]]  # process, op's id, number of its output → sizes that users of it saw


@remembered
def flops(report: Report, window: Window) -> pd.DataFrame:
    """One row a kind of eligible op within the window (default: training), longest total first.

    Columns: ``op``, ``sizes`` (of its inputs; None: not in the report), number of ``ops``, ``gflop`` (10⁹ FLOPs) of one
    of them, ``gpu_ms`` of all, ``tflops`` achieved (10¹² FLOP/s), ``group`` (whether they use Tensor Cores, as
    ``ops.instances`` has it), and where the arithmetic is ``unknown`` the reason, with NaN in the numbers.
    """
    found = ops.instances(report, window)
    found = found[found["group"] != ops.OTHER]
    (op_of, names), (sizes_of, sizes) = coded(found["op"]), coded(found["sizes"])
    keys = _keys(report, found["range"].to_numpy(), np.array([*map(_convolves, names), False])[op_of])
    uses = _uses(report, set(keys.values()))
    own = np.full(len(found), -1)
    own[[*keys]] = np.arange(len(keys))
    kind, first = together(op_of, sizes_of, own)  # worked out once for each kind of product
    answers = []
    for op, text, at in zip(op_of[first].tolist(), sizes_of[first].tolist(), first.tolist(), strict=True):
        read = ops.sizes_of(f", sizes = {sizes[text]}") if isinstance(sizes[text], str) else None
        answers.append(_flop(names[op].rpartition("::")[2], read, keys.get(at), uses))
    flop = np.array([one if isinstance(one, float) else np.nan for one in answers], dtype=float)
    unknown = np.array([one if isinstance(one, str) else None for one in answers], dtype=object)
    answer, _ = together(coded(unknown)[0], flop)
    number, first = together(op_of, sizes_of, coded(found["group"])[0], answer[kind])
    table = found.iloc[first][["op", "sizes", "group"]].reset_index(drop=True)
    table["unknown"] = pd.Series(unknown[kind[first]], dtype=object)
    table["flop"] = flop[kind[first]]
    table["ops"] = np.bincount(number, minlength=len(first))
    table["gpu_ms"] = found["gpu_ms"].groupby(number).sum()
    table["gflop"] = table["flop"] / 1e9
    table["tflops"] = table["flop"] * table["ops"] / (1e9 * table["gpu_ms"]).where(table["gpu_ms"] > 0)
    for column in ("sizes", "unknown"):
        table[column] = pd.Series([*map(_or_none, table[column])], dtype=object)  # None stays None
    table = table[COLUMNS]
    return table.sort_values("gpu_ms", ascending=False, kind="stable", ignore_index=True)


def _keys(report: Report, rows: np.ndarray, convolves: np.ndarray) -> dict[int, tuple[int, int]]:
    """Place → process and number of those ops that are convolutions; ``rows``: in ``report.ranges``, -1 for none."""
    names, processes = (report.ranges[column].to_numpy() for column in ("raw_name", "process"))
    keys: dict[int, tuple[int, int]] = {}
    for at in np.flatnonzero(convolves & (rows >= 0)).tolist():
        if number := OP_ID.search(names[rows[at]]):
            keys[at] = int(processes[rows[at]]), int(number[1])
    return keys


def not_looked_at(report: Report, window: Window) -> list[str]:
    """What would give the FLOP/s of a PyTorch program whose report holds no sizes; empty otherwise."""
    found = flops(report, window)
    program = budget(report, window).program
    if found.empty or (found["unknown"] != NO_SIZES).any() or (program and not PYTHON.search(program)):
        return []
    return [f"sizes of operators ({OPTIONS}): the FLOP/s achieved"]


def _flop(name: str, sizes: list | None, key: tuple[int, int] | None, uses: Uses) -> float | str:
    """The FLOPs of one op, or why they are unknown; ``key``: its process and number."""
    if sizes is None:
        return NO_SIZES
    if not all(isinstance(size, list) for size in sizes):
        return NO_FORMULA
    if not _convolves(name):
        found = _product(name, sizes)
    elif name == "convolution_backward":
        found = _backward(sizes, key, uses)
    elif "backward" in name:
        found = None
    else:
        found = _forward(name, sizes, key, uses)
    if found is None or isinstance(found, str):
        return found or NO_FORMULA
    return float(found) if 0 <= found < MOST else NO_FORMULA


def _product(name: str, sizes: list[list]) -> int | None:
    """FLOPs of a matrix product; None: not one whose shapes are known."""
    name = name.strip("_").partition(".")[0]
    if name in ("addmm", "addmm_activation", "baddbmm", "addbmm"):
        sizes = sizes[1:]
    elif name not in ("mm", "bmm", "matmul", "linear", "int_mm", "scaled_mm"):
        return None
    if len(sizes) < 2 or not all(map(_is_size, sizes[:2])):
        return None
    left, right = sizes[:2]
    if name == "linear":
        return 2 * prod(left) * prod(right[:-1]) if left[-1] == right[-1] else None
    left, right = ([1, *left] if len(left) == 1 else left), ([*right, 1] if len(right) == 1 else right)
    if left[-1] != right[-2]:
        return None
    return 2 * _broadcast(left[:-2], right[:-2]) * left[-2] * left[-1] * right[-1]


def _broadcast(left: list[int], right: list[int]) -> int:
    """How many products two batches of matrices make."""
    length = max(len(left), len(right))
    return prod(max(pair) for pair in zip(*([1] * (length - len(side)) + side for side in (left, right)), strict=True))


def _forward(name: str, sizes: list[list], key: tuple[int, int] | None, uses: Uses) -> int | str | None:
    """FLOPs of a convolution."""
    if len(sizes) < 2 or not all(map(_is_size, sizes[:2])):
        return None
    image, weight = sizes[:2]
    batched = len(image) == len(weight)
    if len(weight) < 3 or not (batched or len(image) == len(weight) - 1):
        return None
    channels = image[1 if batched else 0]
    if "transpose" in name:
        return 2 * prod(image) * prod(weight[1:]) if channels == weight[0] else None
    if not weight[1] or channels % weight[1]:
        return None
    begin = [*image[:1], weight[0]] if batched else [weight[0]]
    for output in uses.get((*key, 0), ()) if key else ():
        if len(output) == len(image) and output[: len(begin)] == begin:
            return 2 * prod(output) * prod(weight[1:])
    return NO_OUTPUT


def _backward(sizes: list[list], key: tuple[int, int] | None, uses: Uses) -> int | str | None:
    """FLOPs of a convolution's backward pass: one product for the gradient of its input, one for its weight's."""
    if len(sizes) < 3 or not all(map(_is_size, sizes[:3])):
        return None
    output, image, weight = sizes[:3]
    if len(weight) < 3 or len(output) != len(weight) or len(image) != len(weight) or output[1] != weight[0]:
        return None
    made = sum(size in uses.get((*key, number), ()) for number, size in enumerate((image, weight))) if key else 0
    return 2 * prod(output) * prod(weight[1:]) * made if made else NO_GRADIENT


def _uses(report: Report, asked: set[tuple[int, int]]) -> Uses:
    """What sizes the users of the outputs of these ops saw; operators name what their inputs came from."""
    found: Uses = defaultdict(list)
    numbers = {str(number) for _, number in asked}
    ranges = report.ranges
    for process, name in zip(ranges["process"].tolist(), ranges["raw_name"].tolist(), strict=True) if asked else ():
        if numbers.isdisjoint(OP.findall(name.rpartition("input_op_ids = ")[2])):  # most of them: a quick look
            continue
        inputs = INPUTS.search(name)
        made_by = [(int(op), int(number)) for op, number in PAIR.findall(inputs[1])] if inputs else []
        for size, (op, number) in zip(ops.sizes_of(name) or (), made_by, strict=False):
            if (process, op) in asked and _is_size(size):
                found[process, op, number].append(size)
    return found


@lru_cache(maxsize=4096)
def _convolves(name: str) -> bool:
    """Is an operator of this name a convolution?"""
    return bool(ops.CONVOLUTION.fullmatch(name.rpartition("::")[2].partition(".")[0]))


def _is_size(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(size) is int and size >= 0 for size in value)


def _or_none(value: object) -> object:
    return value if isinstance(value, str) else None
