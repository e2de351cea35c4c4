"""What lab 17 claims: what a policy gains, over which FP32, and whether FP16 reached the Tensor Cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.display.runs import epoch_ms
from labkit.display.spread import paired
from labkit.labs.lab17 import epochs
from labkit.labs.lab17.reports import Counted
from labkit.subjects.keras import Tried
from stepbudget.ask.budget import CAUSES, IDLE, budget
from stepbudget.ask.tensor_cores import verdicts
from stepbudget.report import Report

FP32_ERROR = 1e-5  # a larger error of a product is TF32's
WHOLE = "the program's events reach the test that follows"
BROKEN = "the program's events break off before the test, so a table that is empty is no zero"
OVERRIDE = "TF32 on, NVIDIA_TF32_OVERRIDE=0"  # a setting, as bench_keras.py calls it

Runs = Mapping[str, Sequence[dict]]  # records by FP32, TF32, FP16 and BF16


def faster_than_fp32(runs: Runs) -> Iterator[Claim | str]:
    """What FP16 gains over FP32 and over TF32 in a later epoch."""
    faster, later = epochs.faster(runs, "FP32")["FP16"], epochs.later_epochs(runs)
    yield Claim(
        "in every round, a later epoch in FP16 is at least 1.2 times as fast as one in FP32",
        faster.low > 1.2,
        faster.text("×", 2),
        because="the CPU sets the pace of both, or FP16 has no Tensor Cores here to run on",
        so="mixed precision buys less here than the text says: find what an epoch waits for first",
    )
    apart = [name for name, own in later.items() if max(own) < min(later["FP32"])]
    yield f"faster than FP32 in every later epoch: {', '.join(apart) or 'none of the three'}"
    gains = max(later["FP16"]) < min(later["TF32"])
    against = "FP16 gains over TF32 in every epoch" if gains else "no gain of FP16 over TF32 shows"
    over_tf32 = epoch_ms(runs["TF32"]) / epoch_ms(runs["FP16"])
    yield f"{against}: {over_tf32:.2f} times as fast, by the medians"


def shorter_process(runs: Runs) -> Iterator[Claim | str]:
    """What FP16 gains in a whole process, and in which of its parts."""
    process = paired(runs["FP32"], runs["FP16"])
    yield Claim(
        "in every round the process in FP16 is shorter than the one in FP32", process.low > 1, process.text("×", 2),
        because="most of a short process is start and compilation, which vary from run to run",
        so="FP16 does not pay in a run as short as this one: go by the later epochs",
    )  # fmt: skip
    parts = {name: epochs.parts(runs[name]) for name in ("FP32", "FP16")}
    saved = (parts["FP32"] - parts["FP16"]).map("{:.1f} s".format)
    yield f"FP32 less FP16: {', '.join(f'{part} {s}' for part, s in saved.items())}"
    first, later = parts["FP16"][["first epoch", "later epochs"]]
    yield f"FP16: {100 * first / (first + later):.0f} % of the training's seconds are in the first epoch"


def beside_pytorch(bf16: Sequence[dict], beside: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """An epoch of Keras in BF16 against PyTorch's; ``beside``: runs of an eager script, then of a compiled one."""
    for script, records in beside.items():
        yield f"{script} (PyTorch, BF16): an epoch takes {epoch_ms(records) / 1e3:.2f} s."
    eager, compiled = (epoch_ms(bf16) / epoch_ms(records) for records in beside.values())
    yield (
        f"Keras on JAX in BF16 takes {eager:.1f} times as long an epoch as the eager step, "
        f"and {compiled:.1f} times as long as the compiled one"
    )


def on_tensor_cores(report: Report) -> Iterator[Claim | str]:
    """Kernels of FP16 on PyTorch ran on Tensor Cores, by their names; nothing is said where there are no kernels."""
    by_name = verdicts(report).groupby("tensor_core")["gpu_ms"].sum()
    if by_name.empty:
        return
    used = by_name.get("yes", 0.0)
    yield Claim(
        "in FP16 on PyTorch, kernels run on Tensor Cores", used > 0,
        ", ".join(f"{verdict}: {ms:.0f} ms" for verdict, ms in by_name.items()),
        because="this GPU has none, or its kernels' names are newer than the rules for them",
        so="go by the counter further down, not by the names",
    )  # fmt: skip
    yield f"on Tensor Cores: {100 * used / by_name.sum():.0f} % of the kernel time"


def whole_reports(reports: Mapping[str, Report]) -> Iterator[Claim | str]:
    """Which reports reach the test."""
    for name, report in reports.items():
        yield f"{name}: {WHOLE if report.windows('test') else BROKEN}"


def counters_tell(counted: Mapping[str, Counted], runs: Runs) -> Iterator[Claim | str]:
    """Tensor Active is high in FP16 alone, FP16 pauses more, the kernels lie between the bounds; where sampled."""
    for name in ("FP32", "FP16"):
        own = counted[f"{name} on JAX"]
        if own.least is not None:
            bar_ms, alone_ms = own.steps.duration_ms, epoch_ms(runs[name])
            yield f"{name}: the bar is {bar_ms:.0f} ms long, an epoch without the profiler {alone_ms:.0f} ms."
    if not _sampled(counted):
        return
    highest = {name: one.tensor.max_pct for name, one in counted.items()}
    peaks = ", ".join(f"{name} {pct:.0f} %" for name, pct in highest.items())
    yield Claim(
        "in FP16 Tensor Active reads 10 % and more, on JAX and on PyTorch",
        min(highest["FP16 on JAX"], highest["FP16 on PyTorch"]) >= 10,
        peaks,
        because="this GPU has no Tensor Cores for FP16, or the library chose other kernels",
        so="FP16 does not reach the Tensor Cores here: it saves bytes, no arithmetic",
    )
    yield Claim(
        "in FP32 it never does", highest["FP32 on JAX"] < 10, peaks,
        because="FP32 is emulated on Tensor Cores, or another program used them",
        so="a low reading is no evidence on this GPU",
    )  # fmt: skip
    own = [one for one in counted.values() if one.by_kernels is not None]
    yield Claim(
        "what the kernels say lies between the counter's bounds, to one point",
        all(one.least - 0.01 <= one.by_kernels <= one.most + 0.01 for one in own),
        ", ".join(f"{one.by_kernels:.3f} in {one.least:.3f}–{one.most:.3f}" for one in own),
        because="the counter sees every program on the GPU, and a report may have lost kernels",
        so="the bounds are no better than the report: do not build on them here",
    )
    bounds = ", ".join(f"{name} {100 * one.least:.0f} to {100 * one.most:.0f} %" for name, one in counted.items())
    yield Claim(
        "on JAX, the least that FP16 pauses is more than the most that FP32 can pause",
        counted["FP16 on JAX"].least > counted["FP32 on JAX"].most,
        bounds,
        because="a slower GPU is busy in FP16 too, and a slower CPU leaves it waiting in FP32 too",
        so="where FP16 hardly pauses, faster arithmetic still pays",
    )


def idles_for(reports: Mapping[str, Report], counted: Mapping[str, Counted]) -> Iterator[Claim | str]:
    """What the GPU idles for, where a report tells, and how much of a budget is unexplained."""
    for name, report in reports.items():
        own, is_whole = budget(report), bool(report.windows("test"))
        if is_whole and len(report.kernels):
            yield f"{name}: the GPU idles mostly for this: {CAUSES[max(IDLE, key=own.ms.get)]}"
        if _sampled(counted):
            yield f"{name}: {100 * own.fractions['unexplained']:.0f} % of the budget is unexplained"
        elif not is_whole:
            yield f"{name}: breaks off, and no counter saw the work that is lost: no budget"


def _sampled(counted: Mapping[str, Counted]) -> bool:
    """Were the counters read in all three profiles?"""
    on_jax = (counted["FP32 on JAX"].least, counted["FP16 on JAX"].least)
    return all(one.tensor for one in counted.values()) and None not in on_jax


def float32_is(tried: Tried) -> Iterator[Claim | str]:
    """In what each backend computes a product of float32, as it comes and under two variables of the environment."""
    errors = _errors(tried)
    free = {backend: found.loc["as it comes", "product_error"] for backend, found in errors.items()}
    told = ", ".join(f"{backend} {error:.0e}" for backend, error in free.items())
    yield Claim(
        "PyTorch computes float32 products in FP32 as it comes", free["torch"] < FP32_ERROR, told,
        because="another version has another default, or a variable of the environment sets it",
        so="your FP32 baselines in PyTorch are TF32, unless you say otherwise",
    )  # fmt: skip
    if errors["torch"].loc["TF32 on", "product_error"] > FP32_ERROR:
        yield Claim(
            "JAX computes them in TF32 as it comes", free["jax"] > FP32_ERROR, told,
            because="JAX runs on the CPU here, or another version has another default",
            so="float32 is FP32 here: the speedups over it are honest",
        )  # fmt: skip
    else:
        yield "this GPU has no TF32 (Ampere and later do): the rows cannot differ"
    of_torch, of_jax = (errors[backend].loc[OVERRIDE] for backend in ("torch", "jax"))
    yield Claim(
        "NVIDIA_TF32_OVERRIDE=0 makes PyTorch's product FP32 again, and JAX's convolution",
        max(of_torch["product_error"], of_jax["convolution_error"]) < FP32_ERROR,
        f"{of_torch['product_error']:.0e}, {of_jax['convolution_error']:.0e}",
        because="a kernel ran that is none of NVIDIA's libraries', and need not ask the variable",
        so="use the framework's own switch, and measure the error",
    )
    error = of_jax["product_error"]
    obeys = "is FP32" if error < FP32_ERROR else "stays TF32"
    yield f"on JAX, with the variable, the product {obeys} (error {error:.0e})"
    for backend, found in errors.items():
        (disabled,) = found.index[found.index.str.contains("TENSOR_OP_MATH")]
        change = found.loc[disabled, "product_error"] / found.loc["TF32 on", "product_error"]
        does = "nothing" if 0.5 < change < 2 else f"this: an error {change:.2g} times as large"
        yield f"TF_DISABLE_TENSOR_OP_MATH=1 does to a product on {backend}: {does}"


def _errors(tried: Tried) -> dict[str, pd.DataFrame]:
    """Errors of a product and a convolution by backend, a row a setting."""
    return {backend: told["precision"].set_index("setting") for backend, told in tried.items()}


def without_compilation(compiled: Sequence[dict], no_jit: Sequence[dict]) -> Iterator[Claim | str]:
    """How much longer an epoch in FP16 takes without ``jit_compile``."""
    longest = max(epoch["training_s"] for record in compiled for epoch in record["epochs"][1:])
    off = min(epoch["training_s"] for epoch in no_jit[0]["epochs"][1:])
    yield Claim(
        "without compilation every later epoch takes at least ten times as long as any with it", off > 10 * longest,
        f"{off / longest:.1f} times",
        because="where each operation takes long (a slow GPU, a CPU), its start costs next to nothing",
        so="compilation gains less here: decide by the two rows above",
    )  # fmt: skip
    times = off / (epoch_ms(compiled) / 1e3)
    yield f"without compilation an epoch is {times:.0f} times as long"
