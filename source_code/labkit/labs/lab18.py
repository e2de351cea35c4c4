"""Lab 18: PyTorch's own profiler diagnoses as Nsight Systems does; where do its numbers not hold?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isclose

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkit.checks import Claim
from labkit.display import style
from labkit.display.charts.bars import key
from labkit.display.runs import compared
from labkit.display.show import show
from labkit.display.spread import paired
from labkit.exercises.kinds import BOUND, READ, Choice, Code, NothingToAnswer, Number
from labkit.lines import say
from labkit.numbers import NotANumber, Quantity, number, shown
from labkit.predictions import Guess
from labkit.subjects import torch_profiler
from labkit.subjects.ladder import WallClock
from labkit.subjects.torch_profiler import Profile
from labkit.training.sizes import training_flops_per_sample
from stepbudget import intervals
from stepbudget.ask.budget import CAUSES, budget
from stepbudget.ask.compare import compare
from stepbudget.ask.iterations import step_windows
from stepbudget.ask.predict import Bound, bounds
from stepbudget.kernel_names import short as short_kernel
from stepbudget.report import Report
from stepbudget.show.table import Table, table
from stepbudget.window import Window

FIX = "mixed_precision"

# What memory is for, as PyTorch's profiler tells it, from the bottom of the stack.
CATEGORIES = {
    "parameter": style.INK,
    "optimizer state": style.PINK,
    "input": style.ORANGE,
    "gradient": style.GREEN,
    "activation": style.BLUE,
    "autograd": style.SKY,
    "temporary": style.YELLOW,
    "other": style.MUTED,
}


def one_step(profile: Profile) -> Window:
    """A step from the middle of the recorded ones, or the last of a few."""
    return profile.steps[:21][-1]


def own_ms(profile: Profile) -> pd.Series:
    """Each operator's own GPU time in all recorded steps, in milliseconds, longest first."""
    return _operators(profile.operators)["self_gpu_ms"]


def _operators(found: pd.DataFrame) -> pd.DataFrame:
    found = found[~found["on_gpu"] & ~found["range"]]
    return found.set_index("name").sort_values("self_gpu_ms", ascending=False, kind="stable")


def longest_operators(profile: Profile) -> Table:
    """The operators of ``key_averages()`` with most GPU time of their own, and whether it was on Tensor Cores."""
    found = _operators(profile.operators).head(10).reset_index()
    steps = len(profile.steps)
    used = torch_profiler.operators(profile.report).set_index("operator")["tensor_core_share"]
    frame = pd.DataFrame(
        {
            "operator": found["name"],
            "calls a step": found["calls"] / steps,
            "self CPU µs": 1e3 * found["self_cpu_ms"] / steps,
            "self GPU µs": 1e3 * found["self_gpu_ms"] / steps,
            "GPU with children µs": 1e3 * found["gpu_ms"] / steps,
            "Tensor Cores": [_share(used.get(name)) for name in found["name"]],
        }
    )
    measured = ["self CPU µs", "self GPU µs", "GPU with children µs"]
    formats = dict.fromkeys(measured, "{:,.0f}") | {"calls a step": "{:.1f}"}
    return table(frame, f"{profile.name}: operators by their own GPU time, a step", formats)


def _share(value: float | None) -> str:
    return "–" if value is None or np.isnan(value) else {0.0: "no", 1.0: "yes"}.get(value, "partly")


def longest_kernels(profile: Profile, rows: int = 10) -> Table:
    """The kernels with most GPU time in the recorded steps, and two opinions about Tensor Cores."""
    found = torch_profiler.kernels(profile.report, profile.window)
    steps = len(profile.steps)
    frame = pd.DataFrame(
        {
            "kernel": found["kernel"],
            "a step": found["count"] / steps,
            "GPU µs a step": found["gpu_us"] / steps,
            "Tensor Cores": found["tensor_cores"],
            "the plugin says": found["plugin"],
        }
    ).head(rows)
    formats = {"kernel": short_kernel, "a step": "{:.1f}", "GPU µs a step": "{:,.0f}"}
    return table(frame, f"{profile.name}: kernels by GPU time", formats)


def budgets(named: Mapping[str, Profile]) -> Table:
    """The recorded steps' budgets side by side: per cent for each cause, a profile a column."""
    columns = {}
    for name, one in named.items():
        found = budget(one.report, one.window).table()
        columns[name] = 100 * found.set_index("cause")["share"]
    frame = pd.DataFrame(columns)
    order = {cause: place for place, cause in enumerate(CAUSES.values())}
    frame = frame.loc[sorted(frame.index, key=order.__getitem__)].reset_index(names="cause")
    return table(frame, "Per cent of the recorded steps", dict.fromkeys(columns, "{:.1f}"))


def same_steps(profile: Profile, nsight: Report) -> dict[str, tuple[Report, Window]]:
    """The steps that PyTorch's profiler recorded, and the same ones in a report of Nsight Systems, or in its own."""
    windows, first = step_windows(nsight), profile.record["first_step"]
    last = min(first - 1 + len(profile.steps), len(windows))
    same = torch_profiler.step_range(windows, min(first, last), last)
    by = nsight.profiler if nsight.profiler != profile.report.profiler else "another run"
    return {"torch.profiler": (profile.report, profile.window), by: (nsight, same)}


def two_profilers(by: Mapping[str, tuple[Report, Window]]) -> Table:
    """What a step costs on average, by each profiler, from ``same_steps``."""
    steps = _steps(by)
    frame = pd.DataFrame({name: step_numbers(*side, steps) for name, side in by.items()}).reset_index(names="a step")
    return table(frame, f"The same {steps} steps, on average", dict.fromkeys(by, "{:,.1f}"))


def _steps(by: Mapping[str, tuple[Report, Window]]) -> int:
    return len(step_windows(by["torch.profiler"][0]))


def step_numbers(report: Report, window: Window, steps: int) -> dict[str, float]:
    """What a step costs on average: milliseconds, kernels, GPU time, copies, idle share, CUDA calls."""
    found = torch_profiler.kernels(report, window)
    copied = report.copies[report.copies["api_start"].between(window.start, window.end)]
    busy_ms = intervals.total(torch_profiler.busy(report, window)) / 1e6
    calls = report.api[report.api["start"].between(window.start, window.end)]
    return {
        "ms": window.duration_ms / steps,
        "kernels": found["count"].sum() / steps,
        "kernel time, µs": found["gpu_us"].sum() / steps,
        "copies": len(copied) / steps,
        "copy time, µs": (copied["end"] - copied["start"]).sum() / 1e3 / steps,
        "GPU idle, %": 100 * (1 - busy_ms / window.duration_ms),
        "CUDA calls recorded": len(calls) / steps,
    }


def against(by: Mapping[str, tuple[Report, Window]]) -> Table:
    """The same kernels by both profilers, from ``same_steps``: count and microseconds a step."""
    both, steps, other = torch_profiler.side_by_side(*by.values()), _steps(by), [*by][1].removesuffix(" Systems")
    frame = pd.DataFrame(
        {
            "kernel": both["kernel"],
            "torch: launches": both["torch_count"],
            f"{other}: launches": both["nsight_count"],
            "torch: µs a step": both["torch_us"] / steps,
            f"{other}: µs a step": both["nsight_us"] / steps,
            "difference %": 100 * (both["torch_us"] / both["nsight_us"] - 1),
        }
    ).head(6)
    measured = ["torch: µs a step", f"{other}: µs a step", "difference %"]
    formats = {"kernel": short_kernel} | dict.fromkeys(measured[:2], "{:,.1f}") | {"difference %": "{:+.1f}"}
    caption = "The same steps, by two profilers" if other == "Nsight" else "The same steps, twice by one profiler"
    return table(frame, caption, formats)


def counted_flops(profile: Profile) -> dict[str, float]:
    """What the profiler's FLOPs hold of those that the recorded steps need, in per cent: by operator, then ``all``.

    The steps are those from the first recorded one to the end of an epoch of 60,000 digits, 1,024 a step.
    """
    samples = 60_000 - (profile.record["first_step"] - 1) * 1024
    needed = training_flops_per_sample() * samples / 1e6
    mflop = profile.operators.set_index("name")["mflop"].dropna()
    found = {name: 100 * mflop.get(f"aten::{name}", 0.0) / needed for name in ("conv2d", "addmm", "mm")}
    return found | {"all": sum(found.values())}


def flops_told(named: Mapping[str, Profile]) -> Table:
    """``counted_flops`` of several profiles, a row each."""
    rows = [{"step": name, **counted_flops(one)} for name, one in named.items()]
    frame = pd.DataFrame(rows).rename(columns=lambda name: name if name == "step" else f"{name} %")
    formats = dict.fromkeys(frame.columns[1:], "{:.1f}")
    return table(frame, "FLOPs in the table, per cent of those that the steps need", formats)


def plugin(profiles: Sequence[Profile]) -> tuple[float, float]:
    """What PyTorch's plugin for TensorBoard, which goes by names, would make of Tensor Cores.

    The per cent that it sees of the time of kernels on Tensor Cores, NaN where there is none, and the microseconds a
    step of kernels without them that it takes for such.
    """
    tables = [torch_profiler.kernels(one.report, one.window).assign(steps=len(one.steps)) for one in profiles]
    found = pd.concat(tables)
    seen = found["plugin"] == "yes"
    used, unused = (found["tensor_cores"] == verdict for verdict in ("yes", "no"))
    all_us = found.loc[used, "gpu_us"].sum()
    wrong = found[seen & unused]
    share = 100 * found.loc[seen & used, "gpu_us"].sum() / all_us if all_us else float("nan")
    return share, float((wrong["gpu_us"] / wrong["steps"]).sum())


def show_memory(named: Mapping[str, Profile]) -> None:
    """``memory_timeline`` of the profiles that hold one; a sentence where a newer PyTorch keeps none."""
    known = {name: one.record["memory"] for name, one in named.items() if one.record.get("memory")}
    if known:
        show(memory_timeline(known))
    else:
        say("This PyTorch has no export_memory_timeline any more: read on.")


def memory_timeline(named: Mapping[str, Mapping]) -> Figure:
    """Allocated GPU memory over a few steps by what it is for, a panel a step script, both axes on the same scale.

    ``named`` maps a name to ``{"us": [...], "mb": {category: [...]}}``, as ``torch_profiler.memory_by_category`` gives.
    """
    highest = max(sum(np.array(mb) for mb in memory["mb"].values()).max() for memory in named.values())
    longest_ms = max(memory["us"][-1] for memory in named.values()) / 1e3
    with style.chart(0.9 + 1.9 * len(named), len(named), 1) as (fig, axes):
        used = {}
        for ax, (name, memory) in zip(axes, named.items(), strict=True):
            ms = np.array(memory["us"]) / 1e3
            known = [category for category in CATEGORIES if category in memory["mb"]]
            ax.stackplot(
                ms,
                *[memory["mb"][category] for category in known],
                colors=[CATEGORIES[category] for category in known],
                step="post",
                linewidth=0,
            )
            used |= {category: CATEGORIES[category] for category in CATEGORIES if category in known}
            ax.set(title=f"{name}: megabytes allocated", xlim=(0, longest_ms), ylim=(0, 1.08 * highest))
            ax.grid(axis="y")
            ax.set_axisbelow(True)
        axes[-1].set_xlabel("milliseconds")
        key(fig, used, len(CATEGORIES))
    return fig


def at_peak(profile: Profile) -> Table:
    """Whose memory was alive when most was allocated: lines of the program, from the allocator's history."""
    asked = profile.record.get("snapshot", {"at_peak": []})["at_peak"]  # of a GPU only
    frame = pd.DataFrame(asked, columns=["line", "allocations", "mb"]).head(4)
    frame = frame.rename(columns={"line": "asked for by", "mb": "MB"})
    return table(frame, f"{profile.name}: alive at the peak of three steps", {"MB": "{:,.1f}"})


def overhead(profile: Profile) -> Table:
    """What the profiler costs: the same epoch without it and with more and more of it."""
    frame = pd.DataFrame(profile.record["rows"])
    steps = profile.record["first_step"] - 1 + len(profile.steps)
    plain = frame.loc[frame["profiler"] == "off", "training_s"].median()
    lines = []
    for name, own in frame.groupby("profiler", sort=False):
        times = 1e3 * own["training_s"]
        lines.append(
            {
                "profiler": name,
                "n": len(own),
                "epoch ms": times.median(),
                "lowest": times.min(),
                "highest": times.max(),
                "× off": own["training_s"].median() / plain,
                "more, µs a step": 1e6 * (own["training_s"].median() - plain) / steps,
                "then, to stop, s": own["stop_s"].median(),
            }
        )
    measured = ["epoch ms", "lowest", "highest", "× off", "more, µs a step", "then, to stop, s"]
    formats = dict.fromkeys(measured[:3], "{:,.0f}")
    formats |= {"× off": "{:.2f}", "more, µs a step": "{:,.0f}", "then, to stop, s": "{:.1f}"}
    return table(pd.DataFrame(lines), "The same epoch, with more and more profiling", formats)


# --- what it claims -----------------------------------------------------------------------------------------


def operators(table: pd.DataFrame, profile: Profile) -> Iterator[Claim | str]:
    """Which operators launch kernels, and that none in FP32 uses Tensor Cores; ``table``: the profile's operators."""
    found, has_gpu = _operators(table), _has_gpu(profile)
    self_ms, all_ms = (found[column].get("aten::conv2d", 0.0) for column in ("self_gpu_ms", "gpu_ms"))
    if not has_gpu:
        yield "No operator launches a kernel: the CPU trains."
        return
    yield Claim("aten::conv2d itself launches nothing: what it calls does", self_ms == 0 < all_ms)
    largest = found["self_gpu_ms"].idxmax()
    yield Claim(
        "the operator with most GPU time is a convolution", "convolution" in largest, largest,
        because="libraries choose other algorithms on another GPU",
        so=f"{largest} is where a faster kernel would help most",
    )  # fmt: skip
    used = torch_profiler.operators(profile.report)
    on_tensor_cores = list(used.loc[used["tensor_core_us"] > 0, "operator"])
    yield Claim(
        "no operator of the FP32 step uses Tensor Cores, by its kernels' names", not on_tensor_cores, on_tensor_cores,
        because="newer libraries can emulate FP32 on them, and a new kernel's name can be misread",
        so="measure the rounding error before you call these operators FP32",
    )  # fmt: skip


def diagnosis(profiles: Mapping[str, Profile]) -> Iterator[Claim | str]:
    """What takes most of each program's time: its loader."""
    budgets = {name: budget(one.report, one.window) for name, one in profiles.items()}
    for name, own in budgets.items():
        cause = max(own.fractions, key=own.fractions.get)
        yield f"{name}: {100 * own.fractions[cause]:.0f} % of its time is {CAUSES[cause]}, the largest share."
    waiting = budgets["baseline"].fractions["loader"]
    bound = bounds(profiles["baseline"].report, budgets["baseline"])["loader"]
    yield Claim(
        "the baseline waits for its loader for more than half of the time", waiting > 0.5, waiting,
        because="a slower GPU computes for longer, and faster cores feed it better",
        so=f"{100 * bound.at_most_ms / bound.of_ms:.0f} % of the recorded steps is all that more workers can gain here",
    )  # fmt: skip


def kernels_alike(both: pd.DataFrame) -> Iterator[Claim | str]:
    """Both profilers saw the same kernels for as long; ``both``: side by side."""
    if not both["torch_count"].sum():
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
    yield f"Those kernels' times differ by up to {100 * apart:.1f} %."


def mixed(before: Profile, after: Profile) -> Iterator[Claim | str]:
    """Mixed precision shortens the kernels, on Tensor Cores, and not the profiled steps; profiles of steps 2 and 3."""
    if not _has_gpu(before):
        return
    left = kernel_time_left(before, after)
    uses = set(torch_profiler.kernels(after.report, after.window)["tensor_cores"])
    yield Claim(
        "mixed precision: kernels on Tensor Cores, and over a quarter of kernel time gone",
        left < 75 and "yes" in uses,
        because="the GPU has no Tensor Cores for FP16, or its kernels' names are new to our rules",
        so=f"{left:.0f} % of the kernel time is left: mixed precision saves no more here",
    )
    made = compare(before.report, after.report, before.window, after.window)
    change = f"{abs(made.gained_ms):.0f} ms {'longer' if made.gained_ms < 0 else 'shorter'}"
    yield (
        f"The causes that it treats shrank by {made.removed_ms(FIX):.0f} ms of {_bound(before).at_most_ms:.0f} at "
        f"most, and the profiled steps are {change}."
    )


def training_loop(clock: WallClock) -> Iterator[Claim | str]:
    """What runs of steps 2 and 3 without a profiler say."""
    before, after = (clock.runs[name] for name in ("main_opt2.py", "main_opt3.py"))
    yield f"Step 3: the training loop is {compared(before, after, 'training_s')}."


def columns(before: Profile, after: Profile) -> Iterator[Claim | str]:
    """The FLOPs of step 2 (FP32) lack half, step 3's (FP16) count some twice; and what the plugin sees of both."""
    plain, mixed = (counted_flops(one) for one in (before, after))
    yield Claim(
        "FP32: less than half of the work is counted", plain["all"] < 50, plain["all"],
        because="another version of PyTorch counts more operators",
        so="hold the column against FlopCounterMode once, then you know what yours is worth",
    )  # fmt: skip
    twice = mixed["conv2d"] / plain["conv2d"]
    yield Claim(
        "the same convolutions count twice under autocast", abs(twice - 2) < 0.01, twice,
        because="another version of PyTorch casts, or counts, in another place",
        so=f"here they count {twice:.2g} times as often as in FP32",
    )  # fmt: skip
    if _has_gpu(before):
        seen, wrong_us = plugin([before, after])
        yield (
            f"The plugin sees {seen:.0f} % of the time of kernels on Tensor Cores, and says yes to "
            f"{wrong_us:.0f} µs a step of kernels that use none."
        )


def memory(before: Profile, after: Profile) -> Iterator[Claim | str]:
    """The largest allocation of step 2 (FP32), and that step 3 (FP16) needs less at its peak."""
    fp32_mb, fp16_mb = (one.record.get("peak_allocated_mb", 0) for one in (before, after))
    if not _has_gpu(before) or (on_gpu := torch_profiler.allocated_mb(before.report)).empty:
        return
    of_peak = f"{100 * max(on_gpu) / fp32_mb:.0f} % of the peak"
    yield f"The largest single allocation in FP32: {max(on_gpu):,.0f} MB, {of_peak}."
    yield Claim(
        "mixed precision needs less memory", fp16_mb < fp32_mb, f"{fp32_mb:,.0f} and {fp16_mb:,.0f} MB",
        because="a library may want more workspace in FP16 than in FP32",
        so="the batch that fits is no larger in mixed precision here",
    )  # fmt: skip


def costs(by_mode: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """How many times as long an epoch takes under a profiler; ``by_mode``: from ``epochs``."""
    longer = {name: paired(own, by_mode["off"], "training_s") for name, own in by_mode.items()}
    for name in ("plain", "and stacks"):
        yield f"{name}: an epoch takes {longer[name].text('times as long', 2)}, round by round."
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


def kernel_time_left(before: Profile, after: Profile) -> float:
    """The kernel time of one profile's steps in per cent of another's; NaN without kernels."""
    fp32, fp16 = (torch_profiler.kernels(one.report, one.window)["gpu_us"].sum() for one in (before, after))
    return 100 * fp16 / fp32 if fp32 else float("nan")


def _left_without_eligible(before: Profile, _: Profile) -> float:
    """Per cent of the kernel time, if the kernels that mixed precision treats took none."""
    us = torch_profiler.kernels(before.report, before.window)["gpu_us"].sum()
    return 100 - 1e5 * _bound(before).at_most_ms / us if us else float("nan")


def epochs(profile: Profile) -> dict[str, list[dict]]:
    """Records of epochs by what was profiled in them."""
    frame = pd.DataFrame(profile.record["rows"])
    return {name: own.to_dict("records") for name, own in frame.groupby("profiler", sort=False)}


def _times(mode: str, *fields: str) -> Callable[[Profile], float]:
    """How many times as long an epoch took with that much profiling, by the median of the rounds."""

    def measured(profile: Profile) -> float:
        by_mode = epochs(profile)
        whole = [{"s": sum(record[name] for name in fields)} for record in by_mode[mode]]
        return paired(whole, [{"s": record["training_s"]} for record in by_mode["off"]], "s").median

    return measured


PREDICTIONS = {
    "left": Guess(
        "kernel time that mixed precision leaves",
        " %",
        kernel_time_left,
        wrong={
            "That's the bound, in which kernels that can use Tensor Cores take no time.": _left_without_eligible,
            "Half the bytes take half the time only where every tensor is in FP16 and nobody casts.": lambda *_: 50.0,
        },
    ),
    "times": Guess(
        "an epoch under PyTorch's profiler",
        " times",
        _times("plain", "training_s"),
        wrong={
            "Then it would be free, but it notes each operator in the training's own thread.": lambda _: 1.0,
            "That's with the time to stop the profiler, which an epoch doesn't hold.": _times(
                "plain", "training_s", "stop_s"
            ),
        },
    ),
}

# --- its exercises ------------------------------------------------------------------------------------------

# A step of 100 µs: two kernels that overlap, a copy apart from them, and what runs on the CPU.
PRETEND_TRACE = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#9", "ts": 1000.0, "dur": 100.0},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1000.0, "dur": 90.0},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1002.0, "dur": 5.0},
    {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1010.0, "dur": 20.0},
    {"ph": "X", "cat": "kernel", "name": "fill", "ts": 1020.0, "dur": 20.0},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 1060.0, "dur": 15.0},
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1030.0},
]

BUSY_SHARE = 0.45
BEFORE = ((900.0, 5.0), (995.0, 25.0), (1012.0, 2.0))  # more kernels: when they begin, how long they last
OTHERS = (("gpu_memset", 1080.5, 3.5), ("gpu_user_annotation", 1000.0, 100.0))


def _without_tensor_cores(profile: Profile) -> str:
    found = torch_profiler.operators(profile.report)
    return next(iter(found.loc[found["tensor_core_share"] == 0, "operator"]), "none of them")


WITHOUT_TENSOR_CORES = Choice(
    READ,
    "Of the operators whose Tensor Core share is 0, the one with most GPU time.",
    right=_without_tensor_cores,
    wrong={
        "aten::convolution_backward": "that one does use Tensor Cores, for part of its time: its share is not 0",
        "aten::cudnn_convolution": "that one does use Tensor Cores: its share is not 0",
        "aten::fill_": "its share is 0, and many operators with more GPU time have that share, too",
        "aten::add_": "its share is 0, and another operator has more GPU time and a share of 0, too",
    },
)


def _try_busy_share(busy_share: Callable) -> str | None:
    given = busy_share([dict(event) for event in PRETEND_TRACE])
    try:
        found = number(given)
    except NotANumber:
        return f"it returns {shown(given)}, not a number"
    said = {
        0.55: "overlapping kernels count twice: merge their times first (or is 0.55 the idle share?)",
        0.4: "overlapping kernels count twice, and the copy is missing",
        0.3: "the copy is missing: it keeps the GPU busy, too",
        0.2: "that is one kernel: all of them, and the copy, keep the GPU busy",
        0.65: "it counts from the first event to the last: between them the GPU waits",
        0.9: "it counts operators: they run on the CPU",
        45.0: "45 is the busy time, or per cent: a share lies between 0 and 1",
    }
    for wrong, why in said.items():
        if abs(found - wrong) < 1e-6:
            return why
    again = number(busy_share(list(reversed(PRETEND_TRACE))))
    if not (isclose(found, BUSY_SHARE, abs_tol=1e-6) and isclose(again, BUSY_SHARE, abs_tol=1e-6)):
        return f"a step of 100 µs whose GPU works for 45 µs: it says {found:.3g}, and {again:.3g} in another order"
    outside = [*PRETEND_TRACE, {"ph": "X", "cat": "kernel", "name": "next", "ts": 1095.0, "dur": 15.0}]
    if not isclose(cut := number(busy_share(outside)), BUSY_SHARE + 0.05, abs_tol=1e-6):
        return f"a kernel goes on after the step: only the part inside counts (0.5, and it says {cut:.3g})"
    before = [*outside, *({"ph": "X", "cat": "kernel", "name": "k", "ts": ts, "dur": dur} for ts, dur in BEFORE)]
    if not isclose(more := number(busy_share(before)), BUSY_SHARE + 0.15, abs_tol=1e-6):
        where = "one kernel ends before the step, one begins before it, one runs inside another"
        return f"{where}: 0.6, and it says {more:.3g}"
    filled = [*before, *({"ph": "X", "cat": cat, "name": "k", "ts": ts, "dur": dur} for cat, ts, dur in OTHERS)]
    if not isclose(more := number(busy_share(filled)), BUSY_SHARE + 0.185, abs_tol=1e-6):
        return f"a gpu_memset is work, too, a gpu_user_annotation is not: 0.635, and it says {more:.3g}"
    return None


GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def _summed(categories: tuple[str, ...], factor: float = 1.0) -> Callable:
    return lambda events: factor * sum(event["dur"] for event in events if event["cat"] in categories) / 100


def _merged(categories: tuple[str, ...] = GPU_WORK, factor: float = 1.0, in_order: bool = True) -> Callable:
    """The length of the union, over the step's; ``in_order``: of times that were put in order first."""

    def busy_share(events):
        spans = [(one["ts"], one["ts"] + one["dur"]) for one in events if one["cat"] in categories]
        busy, until = 0.0, 0.0
        for start, end in sorted(spans) if in_order else spans:
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return factor * busy / 100

    return busy_share


def _inside(begin: Callable, categories: tuple[str, ...] = GPU_WORK) -> Callable:
    """The union within a step, but for what is said: ``begin`` of an event's start and the step's."""

    def busy_share(events):
        step = next(one for one in events if one["name"].startswith("ProfilerStep"))
        busy, until = 0.0, 0.0
        for one in sorted((one for one in events if one["cat"] in categories), key=lambda one: one["ts"]):
            start = max(begin(one["ts"], step["ts"]), until)
            end = min(one["ts"] + one["dur"], step["ts"] + step["dur"])
            busy, until = busy + max(0.0, end - start), max(until, end)
        return busy / step["dur"]

    return busy_share


def _from_first_to_last(events):
    own = [event for event in events if event["cat"] in GPU_WORK]
    return (max(one["ts"] + one["dur"] for one in own) - min(one["ts"] for one in own)) / 100


BUSY_SHARE_OF_A_TRACE = Code(
    "Cut each event to the step, put them in order, and add only what reaches beyond those before.",
    _try_busy_share,
    wrong={
        "overlapping kernels count twice: merge": _summed(GPU_WORK),
        "twice, and the copy is missing": _summed(("kernel",)),
        "the copy is missing: it": _merged(("kernel",)),
        "they run on the CPU": _summed(("cpu_op",)),
        "a share lies between 0 and 1": _merged(factor=100),
        "it counts from the first event to the last": _from_first_to_last,
        "in another order": _merged(in_order=False),
        "only the part inside counts": _merged(),
        "one kernel ends before the step": _inside(lambda start, step: start),
        "a gpu_memset is work, too": _inside(max, ("kernel", "gpu_memcpy")),
        "that is one kernel": lambda events: next(one["dur"] for one in events if one["cat"] == "kernel") / 100,
        "it returns nan, not a number": lambda events: float("nan"),
        "it returns '40 %', not a number": lambda events: "40 %",
    },
)


def _largest(profile: Profile) -> dict:
    """The operator with most GPU time of its own, as the lab's table has it."""
    own = _operators(profile.operators).iloc[0]
    if not own["self_gpu_ms"]:
        raise NothingToAnswer("no GPU worked here")
    return own.to_dict()


STEPS_MS = Quantity(lambda profile: profile.window.duration_ms)
BUSY_MS = Quantity(lambda profile: intervals.total(torch_profiler.busy(profile.report, profile.window)) / 1e6)
LARGEST_MS, LARGEST_CPU_MS = (
    Quantity(lambda profile, column=column: _largest(profile)[column]) for column in ("self_gpu_ms", "self_cpu_ms")
)


def _without(ms: Quantity, of: Quantity = STEPS_MS) -> Quantity:
    """How many times as fast the recorded steps would be if they were so many milliseconds shorter."""
    return of / (of - ms)


OPERATOR_FOR_NOTHING = Number(
    BOUND,
    "The steps cannot get shorter by more than the operator's own GPU time: divide what they last by what is left.",
    right=_without(LARGEST_MS),
    wrong={
        "that is held against the GPU's work alone: the steps last longer than that": _without(LARGEST_MS, BUSY_MS),
        "that is its share of the steps: how many times as fast are they without it?": LARGEST_MS / STEPS_MS,
        "that is the steps over its time: what is left of them stays": STEPS_MS / LARGEST_MS,
        "that takes one step's kernels away from all the steps": _without(LARGEST_MS / (lambda one: len(one.steps))),
        "that is its time on the CPU, which it would still take": _without(LARGEST_CPU_MS),
    },
)

EXERCISES = {"18.1": WITHOUT_TENSOR_CORES, "18.2": BUSY_SHARE_OF_A_TRACE, "18.3": OPERATOR_FOR_NOTHING}
