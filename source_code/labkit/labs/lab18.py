"""What lab 18 claims: PyTorch's own profiler diagnoses as Nsight Systems does, and where its numbers do not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.display.runs import compared
from labkit.display.spread import paired
from labkit.topics.profilers import readings, torch_profiler
from labkit.topics.profilers.torch_profiler import Profile
from stepbudget.ask.budget import CAUSES, Budget, budget
from stepbudget.ask.compare import compare
from stepbudget.ask.predict import Bound, bounds

FIX = "mixed_precision"


def operators(table: pd.DataFrame, profile: Profile) -> Iterator[Claim | str]:
    """Which operators launch kernels, and that none in FP32 uses Tensor Cores; ``table``: operators by their names."""
    own_ms, all_ms = (table[column].get("aten::conv2d", 0.0) for column in ("self_gpu_ms", "gpu_ms"))
    has_gpu = _has_gpu(profile)
    yield Claim("aten::conv2d itself launches nothing: what it calls does", own_ms == 0 and (all_ms > 0) == has_gpu)
    if has_gpu:
        largest = table["self_gpu_ms"].idxmax()
        yield Claim(
            "the operator with most GPU time is a convolution", "convolution" in largest, largest,
            because="libraries choose other algorithms on another GPU",
            so=f"{largest} is where a faster kernel would help most",
        )  # fmt: skip
    used = torch_profiler.operators(profile.report)
    on_tensor_cores = list(used.loc[used["tensor_core_us"] > 0, "operator"])
    yield Claim(
        "no operator of the FP32 step uses Tensor Cores", not on_tensor_cores, on_tensor_cores,
        because="newer libraries can emulate FP32 on them, and a new kernel's name can be misread",
        so="measure the rounding error before you call these operators FP32",
    )  # fmt: skip


def diagnosis(budgets: Mapping[str, Budget], profiles: Mapping[str, Profile]) -> Iterator[Claim | str]:
    """What takes most of each program's time: its loader; ``budgets`` of the steps that the ``profiles`` recorded."""
    for name, own in budgets.items():
        cause = max(own.fractions, key=own.fractions.get)
        yield f"{name} – most of its time (~{100 * own.fractions[cause]:.0f} %) is {CAUSES[cause]}"
    off = max(abs(sum(own.ms.values()) / profiles[name].window.duration_ms - 1) for name, own in budgets.items())
    yield Claim("the shares add up to all of the time", off < 1e-9, off)
    waiting = budgets["baseline"].fractions["loader"]
    yield Claim(
        "the baseline waits for its loader for more than half of the time", waiting > 0.5, waiting,
        because="a slower GPU computes for longer, and faster cores feed it better",
        so=f"~{100 * waiting:.0f} % of an epoch is all that more workers can gain here",
    )  # fmt: skip


def kernels_alike(both: pd.DataFrame, profile: Profile) -> Iterator[Claim | str]:
    """Both profilers saw the same kernels for as long; ``both``: side by side, ``profile``: PyTorch's."""
    if not _has_gpu(profile):
        return
    alike = both[both["torch_count"] == both["nsight_count"]]
    share = alike["nsight_us"].sum() / both["nsight_us"].sum()
    yield Claim(
        "kernels with 95 % of the time or more were launched as often in both", share >= 0.95, share,
        because="a library chose other kernels in one of the two runs, or a profiler lost events",
        so="compare only those rows above whose launches agree",
    )  # fmt: skip
    large = alike[alike["nsight_us"] > 1000]
    apart = (large["torch_us"] / large["nsight_us"] - 1).abs().max()
    yield Claim(
        "and the larger of them take as long in both, to 10 %", apart < 0.1, apart,
        because="a GPU that warms up or saves power changes its clock between two runs",
        so="two runs cannot be compared to a few per cent here, by whatever profiler",
    )  # fmt: skip
    yield f"they differ by up to ~{100 * apart:.1f} %"


def most_to_gain(before: Profile) -> Iterator[Claim | str]:
    """What mixed precision can gain of step 2's recorded steps."""
    bound = _bound(before)
    of_all = f"of the ~{bound.of_ms:.0f} ms of step 2's recorded steps"
    yield f"{of_all}, mixed precision can gain ~{bound.at_most_ms:.0f} at most"


def less_kernel_time(before: Profile, after: Profile) -> Iterator[Claim | str]:
    """Mixed precision shortens the kernels, on Tensor Cores; profiles of steps 2 and 3."""
    if not _has_gpu(before):
        return
    fp32, fp16 = (torch_profiler.kernels(one.report, one.window) for one in (before, after))
    left = 100 * fp16["gpu_us"].sum() / fp32["gpu_us"].sum()
    yield Claim(
        "mixed precision: kernels on Tensor Cores, and a quarter of all kernel time gone",
        left < 75 and "yes" in set(fp16["tensor_cores"]),
        because="the GPU has no Tensor Cores for FP16, or its kernels' names are new to our rules",
        so=f"~{left:.0f} % of the kernel time is left: mixed precision saves no more here",
    )


def profiled_steps(before: Profile, after: Profile) -> Iterator[Claim | str]:
    """By how much the causes that mixed precision treats shrank, and whether the profiled steps became shorter."""
    if not _has_gpu(before):
        return
    made = compare(before.report, after.report, before.window, after.window)
    yield (
        f"its causes shrank by ~{made.removed_ms(FIX):.0f} ms of ~{_bound(before).at_most_ms:.0f} at most, and the "
        f"steps are ~{abs(made.gained_ms):.0f} ms {'longer' if made.gained_ms < 0 else 'shorter'}"
    )


def training_loop(before: Sequence[dict], after: Sequence[dict]) -> Iterator[Claim | str]:
    """What runs of steps 2 and 3 without a profiler say."""
    yield f"step 3: the training loop is {compared(before, after, 'training_s')}"


def seen_by_plugin(before: Profile, after: Profile) -> Iterator[Claim | str]:
    """What the plugin for TensorBoard makes of the kernels of steps 2 and 3."""
    if not _has_gpu(before):
        return
    seen, wrong_us = readings.plugin([before, after])
    yield (
        f"of the time of kernels on Tensor Cores the plugin sees ~{seen:.0f} %, and it sees some "
        f"in ~{wrong_us:.0f} µs a step of kernels that use none"
    )


def flops(before: Profile, after: Profile) -> Iterator[Claim | str]:
    """The profiler's FLOPs leave out half of the work of step 2 (FP32), and count some of step 3's (FP16) twice."""
    plain, mixed = (readings.counted_flops(one) for one in (before, after))
    yield Claim(
        "FP32: less than half of the work is counted", plain["all"] < 50, plain["all"],
        because="another version of PyTorch counts more operators",
        so="hold the column against FlopCounterMode once, then you know what yours is worth",
    )  # fmt: skip
    twice = mixed["conv2d"] / plain["conv2d"]
    yield Claim(
        "the same convolutions count twice under autocast", abs(twice - 2) < 0.01, twice,
        because="another version of PyTorch casts, or counts, in another place",
        so=f"here they count ~{twice:.2g} times as often as in FP32",
    )  # fmt: skip


def memory(before: Profile, after: Profile) -> Iterator[Claim | str]:
    """The largest allocation of step 2 (FP32), and that step 3 (FP16) needs less at its peak."""
    fp32_mb, fp16_mb = (one.record.get("peak_allocated_mb", 0) for one in (before, after))
    noted = [event["args"] for event in before.report.content["traceEvents"] if event["name"] == "[memory]"]
    on_gpu = [event["Bytes"] / 1e6 for event in noted if event["Device Type"] == 1]
    if not (_has_gpu(before) and on_gpu):
        return
    of_peak = f"~{100 * max(on_gpu) / fp32_mb:.0f} % of the peak"
    yield f"the largest single allocation in FP32: ~{max(on_gpu):,.0f} MB, {of_peak}"
    yield Claim(
        "mixed precision needs less memory", fp16_mb < fp32_mb, f"~{fp32_mb:,.0f} and ~{fp16_mb:,.0f} MB",
        because="a library may want more workspace in FP16 than in FP32",
        so="the batch that fits is no larger in mixed precision here",
    )  # fmt: skip


def costs(by_mode: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """How many times as long an epoch takes under a profiler; ``by_mode``: records of epochs, by what is profiled."""
    longer = {name: paired(own, by_mode["off"], "training_s") for name, own in by_mode.items()}
    for name in ("plain", "and stacks"):
        yield f"{name}: an epoch takes {longer[name].text('times as long', 2)}, round by round"
    least = min(one.median for one in longer.values())
    yield Claim(
        "no profiler makes an epoch shorter, to 5 %", least > 0.95, least,
        because="epochs of one program differ by more than a profiler costs",
        so="what the profiler costs is lost in the noise of this machine",
    )  # fmt: skip


def _has_gpu(profile: Profile) -> bool:
    return len(profile.report.kernels) > 0


def _bound(before: Profile) -> Bound:
    """What mixed precision can gain of the recorded steps."""
    return bounds(before.report, budget(before.report, before.window))[FIX]
