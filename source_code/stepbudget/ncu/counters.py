"""What did Nsight Compute count? Bytes, time and Tensor Core work of every kernel of one training step.

Nsight Systems says when a kernel ran; Nsight Compute (``ncu``) stops the GPU at each kernel, reads the hardware's
counters, and goes on. That is slow, so a training is best cut down to one step before it is counted:

    ncu [flags] --csv --page raw --log-file NAME.csv python3 TRAINING.py

Source: NVIDIA, "Nsight Compute CLI" and "Kernel Profiling Guide".
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from stepbudget.errors import ReportError

# Column → counter. On an H200 these fit into one pass: each kernel runs once, with the caches as it finds them.
METRICS = {
    "time_ns": "gpu__time_duration.sum",
    "read_bytes": "dram__bytes_read.sum",
    "written_bytes": "dram__bytes_write.sum",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
}
# In depth, on request: several passes on an H200. Between them a kernel's memory is put back, but its
# data stays in the cache, so a kernel's bytes are wrong: of one that fits in the cache a third of what one pass counts
# (an optimizer's), over a whole step 1 % too many. Bytes and all else are therefore counted in two runs.
#
# Matrix instructions, of Hopper and before. The tensor pipe of a Hopper also executes plain FP16 and BF16 arithmetic
# (HFMA2), such as that of an addition: neither tensor_pct nor sm__inst_executed_pipe_tensor proves a matrix product.
INSTRUCTIONS = {
    "gmma": "sm__inst_executed_pipe_tensor_op_gmma.sum",
    "hmma": "sm__inst_executed_pipe_tensor_op_hmma.sum",
    "hfma2": "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum",
}
OPERATIONS = {  # of the Tensor Cores, by type
    "tensor_flops_bf16": "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "tensor_flops_fp16": "sm__ops_path_tensor_src_fp16.sum",
    "tensor_flops_tf32": "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
}
FP32 = {  # instructions of the CUDA cores, a thread's each: an FMA is two operations
    "fp32_add": "sm__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "fp32_mul": "sm__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "fp32_fma": "sm__sass_thread_inst_executed_op_ffma_pred_on.sum",
}
BUSY = {  # how busy, in per cent of the most that is possible
    "issue_pct": "sm__inst_issued.avg.pct_of_peak_sustained_active",  # the schedulers: an instruction each cycle
    "l1_pct": "l1tex__throughput.avg.pct_of_peak_sustained_active",  # L1 cache and shared memory
    "l2_pct": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "warps_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",  # achieved occupancy
}
INSIDE = {  # what a multiprocessor did, and asked of the L2 cache
    "instructions": "smsp__inst_executed.sum",  # a warp's each
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",  # a warp's load from memory; not TMA's
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",  # of 32 bytes each
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",  # passes through shared memory
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l2_bytes": "lts__t_bytes.sum",
}
# Clocks that a warp waits for each reason before it issues an instruction, on average: Nsight Compute's section *Warp
# State Statistics*.
_WAITED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = {
    f"stall_{why}": _WAITED.format(why)
    for why in (
        "wait", "long_scoreboard", "short_scoreboard", "mio_throttle", "lg_throttle", "math_pipe_throttle",
        "dispatch_stall", "barrier", "gmma", "not_selected", "selected", "no_instruction", "sleeping", "membar",
        "branch_resolve", "drain", "tex_throttle", "imc_miss",
    )
}  # fmt: skip
LAUNCH = {  # ncu says these of every launch, unasked
    "blocks": "launch__grid_size",
    "waves": "launch__waves_per_multiprocessor",  # how often the launch fills the whole GPU with blocks
}
IN_DEPTH = METRICS | INSTRUCTIONS | OPERATIONS | FP32 | BUSY  # what count_command can ask for, with INSIDE or without
ALL = IN_DEPTH | INSIDE | STALLS | LAUNCH
ONCE_AN_EPOCH = "shuffle"  # the range whose kernels belong to an epoch, not to a step
KERNEL, RANGES, PHASE = "Kernel Name", "Push/Pop_Range", "Phase"
COMMAND, ORIGIN = "# command: ", "# counted on: "
DENIED = "ERR_NVGPUCTRPERM"
NUMBER = re.compile(r"[-+]?[\d.,'\u00a0\u202f ]*\d[\d.]*(?:[eE][-+]?\d+)?")

# Unit → factor to nanoseconds, bytes, per cent or plain counts, in the spellings of ncu since 2019.
UNITS = {
    **dict.fromkeys(("", "%", "inst", "sector", "ns", "nsecond", "byte", "B"), 1.0),
    **dict.fromkeys(("us", "usecond"), 1e3),
    **dict.fromkeys(("ms", "msecond"), 1e6),
    **dict.fromkeys(("s", "second"), 1e9),
    **{f"{prefix}{unit}": 10.0**power for prefix, power in (("K", 3), ("M", 6), ("G", 9)) for unit in ("byte", "inst")},
}


@dataclass(frozen=True)
class Counted:
    """The kernels of an epoch of one training step, one row a launch as ``parse`` makes it; where they were counted."""

    kernels: pd.DataFrame
    command: str
    origin: str

    @property
    def step(self) -> pd.DataFrame:
        """The kernels without those that an epoch launches once, to shuffle."""
        return self.kernels[self.kernels["phase"] != ONCE_AN_EPOCH].reset_index(drop=True)


def parse(text: str, name: str = "this file") -> pd.DataFrame:
    """One row a kernel launch, in order, from the output of ``ncu --csv --page raw``.

    Columns: ``kernel`` (the name as ncu prints it), ``phase`` (the NVTX range within ``training``, or ""), ``time_us``,
    ``read_bytes``, ``written_bytes``, ``bytes``, ``tensor_pct`` (of the cycles, the tensor pipe at work), ``blocks``
    and ``waves`` of the launch. Where they were counted: ``tensor_instructions`` (matrix instructions),
    ``tensor_flops`` and ``tensor_type`` (``"bf16"``, ``"fp16"``, ``"tf32"``, or ""), ``fp32_flops`` (of the CUDA
    cores), how busy other units were (BUSY), INSIDE, and STALLS. Lines that are no CSV (ncu's own ``==PROF==``, the
    program's output) are skipped, units and thousands separators are read, and a counter that is absent or not
    available is NaN.
    Raises ReportError where there is no kernel in it.
    """
    found = _counted(text, name)
    operations = found[list(OPERATIONS)]
    used = operations.fillna(0).to_numpy()
    types = [name.rpartition("_")[2] for name in OPERATIONS]
    return pd.DataFrame(
        {
            "kernel": found["kernel"],
            "phase": found["phase"],
            "time_us": found["time_ns"] / 1e3,
            "read_bytes": found["read_bytes"],
            "written_bytes": found["written_bytes"],
            "bytes": found["read_bytes"] + found["written_bytes"],
            "tensor_instructions": found["gmma"] + found["hmma"] - found["hfma2"],
            "tensor_pct": found["tensor_pct"],
            "tensor_flops": operations.sum(axis=1, min_count=1),
            "tensor_type": [types[row.argmax()] if row.any() else "" for row in used],
            "fp32_flops": found["fp32_add"] + found["fp32_mul"] + 2 * found["fp32_fma"],
            **{name: found[name] for name in (*BUSY, *INSIDE, *STALLS, *LAUNCH)},
        }
    )


def _counted(text: str, name: str) -> pd.DataFrame:
    """One row a launch: ``kernel``, ``phase``, and every counter of ALL in base units, NaN where there is none."""
    names, units, rows = None, {}, []
    for cells in _lines(text):
        if KERNEL in cells and "ID" in cells:
            names = cells  # ncu repeats its header where a program starts another
            continue
        if names is None or len(cells) != len(names):
            continue
        row = dict(zip(names, cells, strict=True))
        if row["ID"] == "" and row[KERNEL] == "":
            units = row
        elif row["ID"].isdecimal():
            counters = {key: _value(row, units, metric) for key, metric in ALL.items()}
            rows.append({"kernel": row[KERNEL], "phase": _phase(row), **counters})
    if not rows:
        problem = what_went_wrong(text) if names is None else None
        raise ReportError(problem or f"{name} holds no kernels: was it written by ncu --csv --page raw?")
    return pd.DataFrame(rows)


def what_went_wrong(said: str, status: int = 0) -> str | None:
    """One sentence on an ncu that failed, by its own words and its status; None where it did not."""
    if DENIED in said:
        return (
            "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM): run as root, add --cap-add=SYS_ADMIN to the "
            "container, or see https://developer.nvidia.com/ERR_NVGPUCTRPERM."
        )
    errors = [line.partition("==")[2].partition("==")[2].strip() for line in said.splitlines() if "==ERROR==" in line]
    if "No kernels were profiled" in said:
        return f"ncu saw no kernel: {errors[0] if errors else 'was the program given --profile, and a GPU?'}"
    if errors or status:
        lines = [line for line in said.splitlines() if line.strip() and not line.startswith('"')]
        return f"ncu failed with status {status}: {' / '.join(errors[:2]) or (lines or ['it said nothing'])[-1]}"
    return None


def _lines(text: str) -> Iterator[list[str]]:
    """The cells of each line, line by line: a quotation mark in what a program prints must not swallow the rest."""
    for line in text.replace("\0", "").splitlines():
        try:
            yield from csv.reader([line])
        except csv.Error:  # nothing that ncu wrote
            continue


def _phase(row: dict[str, str]) -> str:
    """The outermost range within ``training`` that the kernel was launched in; ranges of libraries do not count."""
    if PHASE in row:
        return row[PHASE]
    ranges = next((cell for name, cell in row.items() if RANGES in name), "")
    own = re.findall(r'"<default domain>:(.*?):[^:"]*:[^:"]*:[^:"]*:[^:"]*:[^:"]*:[^:"]*"', ranges)
    return next((name for name in own if name != "training"), "")


def _value(row: dict[str, str], units: dict[str, str], metric: str) -> float:
    """A counter's value in base units; NaN where it is absent, not available, or in a unit that nobody knows."""
    text, factor = row.get(metric, "").strip(), UNITS.get(units.get(metric, "").strip())
    if factor is None or not NUMBER.fullmatch(text):
        return float("nan")
    return factor * _number(text)


def _number(text: str) -> float:
    """``1,234.5``, ``1.234,5``, ``1'234.5``, ``1 234,5`` and ``1234.5`` alike.

    The last separator is the decimal one, unless it occurs twice or stands before exactly three digits as a comma does
    in ``1,234``: ncu writes whole numbers so. ``1.234`` is the number between one and two.
    """
    text = re.sub(r"['\u00a0\u202f ]", "", text)
    last = max(text.rfind("."), text.rfind(","))
    if last < 0:
        return float(text)
    mark = text[last]
    other = "," if mark == "." else "."
    thousands = text.count(mark) > 1 or (mark == "," and other not in text and re.search(r",\d{3}$", text))
    if thousands:
        return float(text.replace(mark, "").replace(other, "."))
    return float(text.replace(other, "").replace(mark, "."))


def joined(kernels: pd.DataFrame, in_depth: pd.DataFrame) -> pd.DataFrame:
    """The kernels of one run of ncu, with what another run of the same program counted in depth; bytes of the first.

    Both as ``parse`` makes them. Raises ReportError where the two did not launch the same kernels in the same order.
    """
    if kernels["kernel"].tolist() != in_depth["kernel"].tolist():
        raise ReportError(
            f"the two runs launched different kernels ({len(kernels)} and {len(in_depth)}): count both again."
        )
    columns = ["tensor_instructions", "tensor_flops", "tensor_type", "fp32_flops", *BUSY]
    return kernels.assign(**{column: in_depth[column].to_numpy() for column in columns})


def by_kernel(kernels: pd.DataFrame) -> pd.DataFrame:
    """One row a kernel name, longest total first.

    Columns: ``kernel``, ``count``, ``time_us``, ``share`` of all time, ``bytes`` (``read_bytes``, ``written_bytes``),
    ``tb_per_s``, ``tensor_cores`` (did they multiply for it? None: not counted), ``tensor_pct`` and the columns of BUSY
    (means over time), ``tensor_flops``, ``tensor_type`` and ``fp32_flops`` (where counted), ``blocks`` and ``waves``
    (of the largest launch).
    """
    shares = ["tensor_pct", *BUSY]
    weighted = kernels.assign(
        _work=_tensor_work(kernels), **{name: kernels[name] * kernels["time_us"] for name in shares}
    )
    found = weighted.groupby("kernel", sort=False)
    sums = ["time_us", "read_bytes", "written_bytes", "bytes", "tensor_flops", "fp32_flops", *shares, "_work"]
    result = found[sums].sum(min_count=1).reset_index()
    result.insert(1, "count", found.size().to_numpy())
    result.insert(3, "share", result["time_us"] / result["time_us"].sum())
    result["tb_per_s"] = result["bytes"] / result["time_us"] / 1e6
    result[shares] = result[shares].div(result["time_us"], axis=0)
    result["tensor_type"] = found["tensor_type"].max().to_numpy()
    result[list(LAUNCH)] = found[list(LAUNCH)].max().to_numpy()
    result["tensor_cores"] = [None if pd.isna(number) else bool(number > 0) for number in result.pop("_work")]
    return result.sort_values(["time_us", "kernel"], ascending=[False, True], ignore_index=True)


def _tensor_work(kernels: pd.DataFrame) -> pd.Series:
    """More than zero where Tensor Cores multiplied: instructions, or operations where only those were counted."""
    return kernels["tensor_instructions"].fillna(kernels["tensor_flops"])


def made_with(text: str) -> str:
    """The command that made recorded counts."""
    return noted(text, COMMAND)


def slim(text: str, command: str, origin: str) -> str:
    """ncu's CSV as it is kept: the command, GPU and date, the columns that ``parse`` reads, no host name.

    Numbers are written in base units: ``parse`` reads the same from it as from the original.
    """
    counted = _counted(text, "ncu's output")
    metrics = {key: metric for key, metric in ALL.items() if key in METRICS or counted[key].notna().any()}
    units = {**dict.fromkeys(INSTRUCTIONS | FP32, "inst"), **dict.fromkeys(("tensor_pct", *BUSY), "%"), "time_ns": "ns"}
    units |= dict.fromkeys(("read_bytes", "written_bytes", "l2_bytes"), "byte")
    out = io.StringIO()
    out.write(f"{COMMAND}{shlex.join(shlex.split(command))}\n{ORIGIN}{origin}\n")
    rows = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    rows.writerow(["ID", KERNEL, PHASE, *metrics.values()])
    rows.writerow(["", "", "", *(units.get(key, "") for key in metrics)])
    for number, row in enumerate(counted.to_dict("records")):
        rows.writerow([number, row["kernel"], row["phase"], *(_written(row[key]) for key in metrics)])
    return out.getvalue()


def _written(value: float) -> str:
    """A number as ncu writes it: no thousands separator, up to six decimals."""
    return "n/a" if pd.isna(value) else f"{value:.6f}".rstrip("0").rstrip(".")


def noted(text: str, mark: str) -> str:
    """What a comment at the head of recorded counts says after ``mark``."""
    return next((line.removeprefix(mark) for line in text.splitlines()[:5] if line.startswith(mark)), "unknown")
