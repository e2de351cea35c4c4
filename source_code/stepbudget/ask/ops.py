"""Which operations could use Tensor Cores, and which do? DLProf's report, rebuilt for today's GPUs.

An *op* is one call of an operator. It is *eligible* if it is a convolution or a matrix product (attention is two). Ops
divide into those that use Tensor Cores, eligible ones that do not, eligible ones of which nobody can tell, and others.

With operator ranges in the report (``torch.autograd.profiler.emit_nvtx``), a kernel belongs to the operators that were
open in the thread that launched it at the moment of its launch call. Of nested eligible operators the outermost is the
op: ``conv2d`` › ``convolution`` › ``cudnn_convolution`` is one convolution. Where no operator is known (no such ranges,
or a CUDA graph's replay) the kernel's own name decides, and the row says so.

Sources: NVIDIA, DLProf User Guide, for the terms and the efficiency; cuBLAS documentation, "Tensor Core Usage", and
cuDNN documentation, "Tensor Core operations", for data types and shapes; PyTorch documentation, "CUDA semantics", for
the two switches of TF32. Range names as PyTorch 1.10 to 2.15 write them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask import tensor_cores
from stepbudget.ask.threads import begins_in
from stepbudget.coded import coded, each, together
from stepbudget.kernel_names import CHANGES_LAYOUT, CONVOLVES, TF32, UNKNOWN, YES, arithmetic, is_product, short
from stepbudget.report import Report, remembered, rows_where
from stepbudget.window import Window

USING, NOT_USING, CANNOT_TELL, OTHER = "using", "not using", "unknown", "other"
GROUPS = [USING, NOT_USING, CANNOT_TELL, OTHER]
BY_OPERATOR, BY_KERNEL = "operator ranges", "kernel names"

# Names of operators, without their namespace (aten::).
CONVOLUTION = re.compile(
    r"_?((slow|thnn|cudnn|miopen|mkldnn|nnpack)_)*_?conv(olution\w*|\dd\w*|_transpose\w*|_depthwise\w*|_tbc\w*"
    r"|_dilated\w*)"
)
MATRIX_PRODUCT = re.compile(
    r"_?(mm|addmm|addmm_activation|bmm|baddbmm|addbmm|matmul|matmul_backward|chain_matmul|linalg_matmul"
    r"|linalg_multi_dot|linear|linear_backward|bilinear|int_mm|grouped_mm|scaled_mm\w*|scaled_grouped_mm\w*"
    r"|weight_int[48]pack_mm\w*|mixed_dtypes_linear|cslt_sparse_mm\w*|sparse_semi_structured_\w+"
    r"|cudnn_rnn|cudnn_rnn_backward)_?"
)
ATTENTION = re.compile(
    r"_?(scaled_dot_product_\w*attention\w*|(flash|efficient|cudnn)_attention_(forward|backward)|flash_attn\w*)"
)
SIZES = re.compile(r", sizes = (\[.*?\])(?:, input_op_ids = .*)?$", re.DOTALL)

TF32_OFF = "FP32 arithmetic with TF32 off"
FP32_ONLY = "FP32 arithmetic"
FP64_ONLY = "FP64 arithmetic"
ONE_CHANNEL = "one input channel"
ONE_A_GROUP = "grouped convolution, one channel a group"
SHAPE = "shape"
LAYOUT = "layout copies"
NO_TENSOR_CORES = "a GPU without Tensor Cores"
NOT_KNOWN = "not known"

SHOWN = 80  # letters of a kernel's name, in a sentence


@dataclass(frozen=True)
class Summary:
    """Ops and their GPU time (ms) by group, and what that means. ``GROUPS`` lists the groups."""

    by: str  # "operator ranges", "kernel names", or "operator ranges and kernel names"
    instances: dict[str, int]
    gpu_ms: dict[str, float]
    efficiency: float | None  # time of Tensor Core kernels ÷ of all kernels, in eligible ops; None without such ops
    efficiency_at_most: float | None  # the same, if every unknown kernel ran on Tensor Cores
    at_stake_ms: float  # GPU time of the eligible ops that do not use Tensor Cores


@remembered
def instances(report: Report, window: Window) -> pd.DataFrame:
    """One row an op that launched kernels starting within the window (default: training), in order of those kernels.

    Columns: ``op`` (operator or kernel name), ``sizes`` (of its inputs, text; None: not in the report), ``group``,
    ``kernels``, ``gpu_ms``, ``tensor_core_ms``, ``unknown_ms``, ``layout_ms`` (layout copies inside), ``by``
    (``"operator ranges"`` or ``"kernel names"``), ``start`` (ns, of its first kernel), ``range`` (row in
    ``report.ranges``, -1 for a kernel alone), ``reason`` and ``evidence`` (texts for the group "not using", else None).
    """
    table = rows_where(report.kernels, begins_in(report.kernels, window))
    known = tensor_cores.verdicts(report, window).set_index("kernel")["tensor_core"]
    codes, different = coded(table["name"])
    names = np.array([str(name) for name in different], dtype=object)
    facts = _facts(names, known)
    work = pd.DataFrame({name: column[codes] for name, column in facts.items()})
    work["ns"] = (table["end"] - table["start"]).to_numpy(dtype=np.int64)
    work["start"] = table["start"].to_numpy(dtype=np.int64)
    work["name"] = codes
    operator, eligible = _operators(report, table)
    by_kernel = work["product"].to_numpy(dtype=bool) & ~eligible
    # An op's number: its range where there is one; a product kernel outside any eligible operator is an op by itself.
    alone = by_kernel | (operator < 0)
    work["op"] = np.where(alone, -1 - np.arange(len(work)), operator)
    work["eligible"] = eligible | by_kernel
    work["by_kernel"] = alone
    found = _grouped(work)
    ranges = report.ranges
    range_rows = found.index.to_numpy()
    raw = ranges["raw_name"].to_numpy(dtype=object)
    plain = ranges["name"].to_numpy(dtype=object)
    own = range_rows >= 0
    shown = np.where(own, plain[np.where(own, range_rows, 0)] if len(plain) else None, names[found["name"].to_numpy()])
    number, said = coded(raw[range_rows[own]])
    sizes = np.full(len(range_rows), None, dtype=object)
    sizes[own] = np.array([*map(_sizes_text, said), None], dtype=object)[number]
    result = pd.DataFrame({"op": pd.Series(shown, dtype=object), "sizes": pd.Series(sizes, dtype=object)})
    result["group"] = pd.Series(found["group"].to_numpy(), dtype=object)
    for column in ("kernels", "gpu_ms", "tensor_core_ms", "unknown_ms", "layout_ms"):
        result[column] = found[column].to_numpy()
    by = np.array([BY_OPERATOR, BY_KERNEL], dtype=object)[found["by_kernel"].to_numpy(dtype=int)]
    result["by"] = pd.Series(by, dtype=object)
    result["start"] = found["start"].to_numpy()
    result["range"] = np.where(own, range_rows, -1)
    reasons = _reasons(report, result, work, found, names)
    for column, texts in zip(("reason", "evidence"), reasons, strict=True):
        result[column] = pd.Series(texts, dtype=object)  # None stays None
    return result.sort_values(["start"], kind="stable", ignore_index=True)


def summary(report: Report, window: Window | None = None, found: pd.DataFrame | None = None) -> Summary:
    """All ops by group and DLProf's efficiency; ``found`` is a table of ``instances`` to save its work."""
    return _summary(report, window) if found is None else _summed(report, found)


@remembered
def _summary(report: Report, window: Window) -> Summary:
    return _summed(report, instances(report, window))


def _summed(report: Report, found: pd.DataFrame) -> Summary:
    by = [name for name in (BY_OPERATOR, BY_KERNEL) if (found.loc[found["group"] != OTHER, "by"] == name).any()]
    counts = found["group"].value_counts()
    times = found.groupby("group")["gpu_ms"].sum()
    eligible = found[found["group"] != OTHER]
    total = float(eligible["gpu_ms"].sum())
    used = float(eligible["tensor_core_ms"].sum())
    most = used + float(eligible["unknown_ms"].sum())
    return Summary(
        " and ".join(by) or (BY_OPERATOR if _has_operators(report) else BY_KERNEL),
        {group: int(counts.get(group, 0)) for group in GROUPS},
        {group: float(times.get(group, 0.0)) for group in GROUPS},
        used / total if total else None,
        most / total if total else None,
        float(times.get(NOT_USING, 0.0)),
    )


def eligible(report: Report, window: Window | None = None, found: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row a kind of eligible op (operator, sizes, group, reason), longest total first.

    Columns: ``op``, ``sizes``, ``group``, ``ops``, ``kernels``, ``gpu_ms``, ``tensor_core_ms``, ``layout_ms``,
    ``reason``, ``evidence`` (of the first of them), ``by``.
    """
    found = instances(report, window) if found is None else found
    found = found[found["group"] != OTHER]
    keys = ["op", "sizes", "group", "reason", "by"]
    grouped = found.groupby([coded(found[key])[0] for key in keys], sort=False)
    sums = {name: (name, "sum") for name in ("kernels", "gpu_ms", "tensor_core_ms", "layout_ms")}
    first = {name: (name, "first") for name in (*keys, "evidence")}
    result = grouped.agg(ops=("op", "size"), **sums, **first).reset_index(drop=True)
    for column in ("sizes", "reason", "evidence"):
        result[column] = result[column].astype(object).where(result[column].notna(), None)
    columns = ["op", "sizes", "group", "ops", *sums, "reason", "evidence", "by"]
    return result[columns].sort_values("gpu_ms", ascending=False, kind="stable", ignore_index=True)


def is_eligible(operator: str) -> bool:
    """Is an operator of this name (``aten::conv2d``) a convolution, a matrix product or attention?"""
    name = operator.rpartition("::")[2].partition(".")[0]
    return any(family.fullmatch(name) for family in (CONVOLUTION, MATRIX_PRODUCT, ATTENTION))


def sizes_of(raw_name: str) -> list | None:
    """The inputs' sizes in an operator range's name, ``[]`` for an input that is no tensor; None: not there."""
    text = _sizes_text(raw_name)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _sizes_text(raw_name: str) -> str | None:
    match = SIZES.search(raw_name)
    return match.group(1) if match else None


def _facts(names: Sequence[str], known: pd.Series) -> dict[str, np.ndarray]:
    """What each kernel name tells."""
    verdict = np.array([known.get(name, UNKNOWN) for name in names], dtype=object)
    return {
        "yes": verdict == YES,
        "unknown": verdict == UNKNOWN,
        "product": (verdict == YES) | np.array([is_product(name) for name in names], dtype=bool),
        "layout": np.array([bool(CHANGES_LAYOUT.search(name)) for name in names], dtype=bool),
    }


def _has_operators(report: Report) -> bool:
    return bool(_operator_rows(report).any())


def _operator_rows(report: Report) -> np.ndarray:
    """Which of the report's ranges are operators'?"""
    return report.ranges["operator"].to_numpy(dtype=bool)


def _operators(report: Report, table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """For each kernel, the row (in ``report.ranges``) of its op, -1 where there is none; and: is that op eligible?

    The outermost eligible operator around the launch call in its thread, else the innermost operator.
    """
    owner, chosen = np.full(len(table), -1, dtype=np.int64), np.zeros(len(table), dtype=bool)
    rows = np.flatnonzero(_operator_rows(report))
    launched = table["api_start"].notna().to_numpy()
    if not len(rows) or not launched.any():
        return owner, chosen
    ranges = report.ranges.iloc[rows]
    suits = each(ranges["name"], lambda name: is_eligible(str(name))).to_numpy(dtype=bool)
    starts, ends = ranges["start"].to_numpy(np.int64), ranges["end"].to_numpy(np.int64)
    thread_of = ranges["thread"].to_numpy(np.int64)
    calls = table["api_start"].where(launched, -1).to_numpy(dtype=np.int64)
    caller = table["api_thread"].where(launched, -1).to_numpy(dtype=np.int64)
    for thread in pd.unique(caller[launched]):
        kernels = np.flatnonzero(launched & (caller == thread))
        order = np.flatnonzero(thread_of == thread)  # an outer range before the ones inside it
        if not len(order):
            continue
        inner = np.append(order, -1)[intervals.place_at(starts[order], ends[order], calls[kernels])]
        outer = _outermost(order[suits[order]], starts, ends, calls[kernels])
        owner[kernels] = np.append(rows, -1)[np.where(outer >= 0, outer, inner)]
        chosen[kernels] = outer >= 0
    return owner, chosen


def _outermost(order: np.ndarray, starts: np.ndarray, ends: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The outermost of the ranges at each time; -1: none."""
    order = order[ends[order] > starts[order]]
    if not len(order):
        return np.full(len(times), -1, dtype=np.int64)
    reach = np.maximum.accumulate(ends[order])
    order = order[np.concatenate([[True], starts[order][1:] >= reach[:-1]])]
    at = np.searchsorted(starts[order], times, side="right") - 1
    found = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (times < ends[found]), found, -1)


def _grouped(work: pd.DataFrame) -> pd.DataFrame:
    """The kernels of each op together; index: the op's number."""
    work = work.assign(
        gpu_ms=work["ns"] / 1e6,
        tensor_core_ms=work["ns"].where(work["yes"], 0) / 1e6,
        unknown_ms=work["ns"].where(work["unknown"], 0) / 1e6,
        layout_ms=work["ns"].where(work["layout"], 0) / 1e6,
    )
    sums = ["gpu_ms", "tensor_core_ms", "unknown_ms", "layout_ms"]
    found = work.groupby("op", sort=False).agg(
        name=("name", "first"), start=("start", "min"), kernels=("ns", "size"), yes=("yes", "any"),
        unknown=("unknown", "any"), eligible=("eligible", "any"), by_kernel=("by_kernel", "any"),
        **{name: (name, "sum") for name in sums},
    )  # fmt: skip
    answer = np.select([~found["eligible"], found["yes"], found["unknown"]], [3, 0, 2], 1)
    found["group"] = pd.Series(np.array(GROUPS, dtype=object)[answer], index=found.index, dtype=object)
    return found


def _reasons(
    report: Report, result: pd.DataFrame, work: pd.DataFrame, found: pd.DataFrame, names: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each op that is eligible and does not use Tensor Cores: the likely reason, and the evidence for it."""
    reasons, evidence = (np.full(len(result), None, dtype=object) for _ in range(2))
    wanted = np.flatnonzero((result["group"] == NOT_USING).to_numpy())
    if not len(wanted):
        return reasons, evidence
    members, kernels_of = _members(found.index[wanted], work, len(names))
    used = [names[code] for code in np.unique(work.loc[work["yes"].astype(bool), "name"])]
    gpu = _Gpu(tensor_cores.capability(report), tensor_cores.has_tensor_cores(report), report.gpu or "the GPU", used)
    result = result.iloc[wanted]
    layout_us = (1e3 * result["layout_ms"]).round().astype(int).to_numpy()
    kind, first = together(*(coded(result[column])[0] for column in ("op", "sizes", "by")), members, layout_us)
    answers = []  # worked out once for each kind of op
    kinds = result.iloc[first][["op", "sizes", "by"]].itertuples(index=False, name=None)
    for at, (op, sizes, by) in zip(first, kinds, strict=True):
        kernels = [names[code] for code in kernels_of[members[at]]]
        answers.append(_reason(op, sizes, by == BY_OPERATOR, kernels, int(layout_us[at]), gpu))
    for texts, told in zip((reasons, evidence), zip(*answers, strict=True), strict=True):
        texts[wanted] = np.array([*told, None], dtype=object)[kind]
    return reasons, evidence


def _members(numbers: pd.Index, work: pd.DataFrame, kernels: int) -> tuple[np.ndarray, list[list[int]]]:
    """Which different kernels launched each of these ops? The number of its set of them, and these sets, in order."""
    op = pd.Series(np.arange(len(numbers)), index=numbers).reindex(work["op"]).to_numpy()
    known = ~np.isnan(op)
    pairs = np.sort(pd.unique(op[known].astype(np.int64) * kernels + work["name"].to_numpy()[known]))
    op, kernel = np.divmod(pairs, kernels)
    place = np.arange(len(op)) - np.searchsorted(op, op)  # among the op's kernels
    found, sets = np.zeros(len(numbers), dtype=np.int64), [[]]
    order = np.argsort(place, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(place[order])) + 1):  # a set is one less its last, and that
        kind, first = together(found[op[rows]], kernel[rows])
        smaller = found[op[rows][first]]
        found[op[rows]] = len(sets) + kind
        sets += [[*sets[less], last] for less, last in zip(smaller.tolist(), kernel[rows][first].tolist(), strict=True)]
    return found, sets


@dataclass(frozen=True)
class _Gpu:
    """What the report tells of the GPU, and the names of the kernels in it that use Tensor Cores."""

    capability: tuple[int, int] | None
    has_tensor_cores: bool | None
    name: str
    using: list[str]


def _reason(
    op: str, sizes_text: str | None, is_operator: bool, kernels: Sequence[str], layout_us: int, gpu: _Gpu
) -> tuple[str, str]:
    """The likely reason that an op does not use Tensor Cores, and its evidence."""
    if gpu.has_tensor_cores is False:
        major, minor = gpu.capability or (0, 0)
        return NO_TENSOR_CORES, f"{gpu.name}, compute capability {major}.{minor}"
    name = op.rpartition("::")[2] if is_operator else ""
    sizes = sizes_of(f", sizes = {sizes_text}") if sizes_text else None
    convolves = bool(CONVOLUTION.fullmatch(name)) or (not is_operator and bool(CONVOLVES.search(op)))
    notes = [f"layout copies inside it take {layout_us} µs"] if layout_us else []
    if sizes is None:
        notes.append("sizes are not in the report: shape and channels not looked at")
    kind, main = arithmetic(kernels)
    shape = _few_channels(name, sizes) if convolves else None
    if shape:
        notes = ["FP32 arithmetic as well", *notes] if kind == "FP32" else notes
        return shape[0], "; ".join([shape[1], *_kernel_note(main), *notes])
    if kind == "FP32":
        return _fp32(main, convolves, gpu, notes)
    if kind == "FP64":
        return FP64_ONLY, "; ".join([*_kernel_note(main), *notes])
    odd = _odd_dimensions(name, sizes)
    if kind == "half" and odd:
        listed = ", ".join(f"{what} = {size}" for what, size in odd)
        return SHAPE, "; ".join([f"{listed}: no multiple of 8 (FP16 and BF16)", *_kernel_note(main), *notes])
    if layout_us:
        return LAYOUT, "; ".join([f"layout copies: {layout_us} µs", *_kernel_note(main), *notes[1:]])
    return NOT_KNOWN, "; ".join([*_kernel_note(main), *notes])


def _fp32(main: str, convolves: bool, gpu: _Gpu, notes: list[str]) -> tuple[str, str]:
    """FP32 arithmetic: TF32 is off, or does not exist, or is on and was not chosen."""
    if gpu.capability is None:
        note = "the report does not tell the GPU's compute capability (TF32 needs 8.0)"
        return FP32_ONLY, "; ".join([*_kernel_note(main), note, *notes])
    level = "{}.{}".format(*gpu.capability)
    if gpu.capability < (8, 0):
        note = f"compute capability {level} has no TF32: its Tensor Cores need FP16"
        return FP32_ONLY, "; ".join([*_kernel_note(main), note, *notes])
    # PyTorch has one switch for convolutions and one for matrix products; a kernel that uses TF32 proves its own on.
    switched_on = [name for name in gpu.using if TF32.search(name) and bool(CONVOLVES.search(name)) == convolves]
    if switched_on:
        note = f"TF32 is on, since {short(switched_on[0], SHOWN)} uses it"
        return NOT_KNOWN, "; ".join([*_kernel_note(main), note, *notes])
    return TF32_OFF, "; ".join([*_kernel_note(main), f"compute capability {level} has TF32", *notes])


def _kernel_note(kernel: str) -> list[str]:
    return [f"kernel {short(kernel, SHOWN)}"] if kernel else []


def _weight(name: str, sizes: list | None) -> list | None:
    """The size of a convolution's weight: (out channels, in channels a group, …)."""
    if sizes is None:
        return None
    at = 2 if "backward" in name else 1
    found = sizes[at] if len(sizes) > at else None
    return found if _is_size(found) and len(found) >= 3 else None


def _few_channels(name: str, sizes: list | None) -> tuple[str, str] | None:
    """One input channel (or one a group): the reduction is over the filter's few pixels, too short for Tensor Cores."""
    weight = _weight(name, sizes)
    if not weight or "transpose" in name or weight[1] != 1:
        return None
    text = "weight " + " × ".join(map(str, weight))
    image = sizes[1 if "backward" in name else 0]
    if _is_size(image) and len(image) == len(weight) and image[1] > 1:
        return ONE_A_GROUP, f"{text}, {image[1]} input channels"
    return ONE_CHANNEL, text


def _odd_dimensions(name: str, sizes: list | None) -> list[tuple[str, int]]:
    """The dimensions of the product that are no multiple of 8."""
    return [(what, size) for what, size in _dimensions(name, sizes) if size % 8]


def _dimensions(name: str, sizes: list | None) -> list[tuple[str, int]]:
    """The dimensions of the product that matter to Tensor Cores, as far as the sizes of the inputs tell them."""
    if sizes is None:
        return []
    if CONVOLUTION.fullmatch(name):
        weight = _weight(name, sizes)
        return [("input channels", weight[1]), ("output channels", weight[0])] if weight else []
    tensors = [size for size in sizes if _is_size(size) and len(size) >= 2]
    if ATTENTION.fullmatch(name):
        return [("head dimension", tensors[0][-1])] if tensors else []
    if re.fullmatch(r"_?linear\w*", name):
        return [*_rows(tensors), ("N", tensors[1][-2]), ("K", tensors[1][-1])] if len(tensors) >= 2 else []
    if re.fullmatch(r"(addmm|baddbmm|addbmm|_addmm_activation)_?", name):
        products = [size for size in sizes[1:] if _is_size(size) and len(size) >= 2]
    else:
        products = tensors
    if len(products) < 2:
        return []
    return [*_rows(products), ("N", products[1][-1]), ("K", products[1][-2])]


def _rows(tensors: list) -> list[tuple[str, int]]:
    return [("M", tensors[0][-2])]


def _is_size(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(size, int) for size in value)
