"""What lab 4 claims: mixed precision hands work to the Tensor Cores, the GPU is done earlier, and others take over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from labkit.checks import Claim, Note
from labkit.display.runs import in_rounds
from labkit.display.spread import paired
from labkit.topics.ladder.accuracy import below
from stepbudget.ask import ops, tensor_cores
from stepbudget.ask.budget import CAUSES, Budget
from stepbudget.ask.compare import Comparison, compare
from stepbudget.ask.launch import launch
from stepbudget.report import Report

FP32, TF32, FP16, BF16 = "opt2: FP32", "opt3: TF32", "opt3: FP16", "opt3: BF16"  # as the lab's tables call them


def unused(before: Report) -> Iterator[Claim | str]:
    """In FP32 hardly a kernel runs on Tensor Cores."""
    ms = tensor_cores.verdicts(before).groupby("tensor_core")["gpu_ms"].sum()
    used_ms = ms.get("yes", 0.0)
    yield Claim(
        "in FP32, at most 1 % of the kernel time is on Tensor Cores", used_ms <= 0.01 * ms.sum(), ms.round(1).to_dict(),
        because="a library or an environment variable lets FP32 products use Tensor Cores after all",
        so=f"~{used_ms:.0f} of ~{ms.sum():.0f} ms have already what this lab wants to give them",
    )  # fmt: skip
    used = f"of ~{ms.sum():.0f} ms of kernels, Tensor Cores work in ~{used_ms:.0f} ms"
    yield used if ms.sum() else "here are no kernels to hand over"


def handed_over(operators: Mapping[str, Report], reports: Mapping[str, Report]) -> Iterator[Claim | str]:
    """Each format uses Tensor Cores; ``operators``: by format, with operator ranges, ``reports``: without."""
    found = {name: ops.summary(report) for name, report in operators.items()}
    own = found[FP16].instances
    yield Claim(
        "in FP16, more than half of the eligible operations use Tensor Cores",
        own["using"] > 0.5 * (sum(own.values()) - own["other"]), own,
        because="this GPU has none, or its kernels have names that no rule knows yet",
        so=_here(reports[FP32], "mixed precision gains what fewer bytes gain, and no more"),
    )  # fmt: skip
    left_ms = {name: round(own.at_stake_ms, 1) for name, own in found.items()}
    yield Claim(
        "TF32 leaves less than half of the milliseconds at stake", left_ms[TF32] < left_ms[FP32] / 2, left_ms,
        because="GPUs older than Ampere have no TF32, and not every library has kernels for it",
        so=_here(reports[FP32], f"in TF32 there are still ~{left_ms[TF32]:.0f} ms to gain"),
    )  # fmt: skip
    yield Claim(
        "in BF16, kernels run on Tensor Cores", (tensor_cores.verdicts(reports[BF16])["tensor_core"] == "yes").any(),
        because="GPUs older than Ampere emulate BF16 with FP32 arithmetic",
        so=_here(reports[FP32], "expect nothing of the rows of BF16 below; train in FP16 with a scaler"),
    )  # fmt: skip


def work_within_bound(before: Report, after: Report, busy: Mapping[str, float]) -> Iterator[Claim | str]:
    """Both epochs are comparable, and FP16 saves no more of the GPU's work, ``busy`` by format (ms), than predicted."""
    made = compare(before, after)
    yield Claim(
        "same GPU, same steps, same bytes copied to it", made.comparable, made.obstacles,
        because="one of the two was made without a GPU, or with other digits",
        so="do not subtract these two epochs: profile both again, one right after the other",
    )  # fmt: skip
    bound, saved_ms = made.bounds["mixed_precision"], busy[FP32] - busy[FP16]
    share = saved_ms / bound.at_most_ms if bound.at_most_ms else 0.0
    yield Note(f"At most ~{bound.at_most_ms:.0f} ms; the GPU works ~{saved_ms:.0f} ms less, ~{100 * share:.0f} %.")
    yield Claim(
        "the GPU's work became shorter by no more than the bound", saved_ms <= bound.at_most_ms, saved_ms,
        because="the GPU ran at another clock rate in one of the two profiles",
        so="profile both again, one right after the other",
    )  # fmt: skip
    yield f"The epoch is shorter by ~{made.gained_ms:.0f} ms."
    if made.gained_ms > bound.at_most_ms:
        yield "that is more than the bound: something else changed too, and the table below names it"


def rows_add_up(*budgets: Budget) -> Iterator[Claim | str]:
    """No moment of an epoch is without a cause, none has two."""
    off_ms = [abs(sum(own.ms.values()) - own.window.duration_ms) for own in budgets]
    yield Claim("the rows of each budget add up to its epoch", max(off_ms) < 1e-3, off_ms)


def less_work(before: Report, busy: Mapping[str, float]) -> Iterator[Claim | str]:
    """FP16 and BF16 shorten the GPU's work, ``busy`` by format (ms), and about as much."""
    saved_ms = busy[FP32] - busy[FP16]
    yield Claim(
        "in FP16 the GPU needs at least 20 % less time for an epoch", saved_ms > 0.2 * busy[FP32], busy,
        because="kernels that move bytes gain at most half, and the GPU may have no Tensor Cores",
        so=_here(before, f"the kernels save ~{max(0, saved_ms):.0f} ms an epoch; no run can gain more"),
    )  # fmt: skip
    yield Claim(
        "BF16 needs about as long, within 15 %", abs(busy[BF16] - busy[FP16]) < 0.15 * busy[FP16], busy,
        because="GPUs older than Ampere emulate BF16; and a laptop changes its clock",
        so=_here(before, "train in the faster of the two"),
    )  # fmt: skip


def what_grew(before: Report, after: Report, busy: Mapping[str, float]) -> Iterator[Claim | str]:
    """What took the place of the kernels that became shorter, and whether the epoch waited for them."""
    made, saved_ms = compare(before, after), busy[FP32] - busy[FP16]
    after_ms, before_ms = made.after.ms, made.before.ms
    grew = {CAUSES[cause]: after_ms[cause] - before_ms[cause] for cause in made.before.idle_causes}
    most = [name for name in sorted(grew, key=grew.get, reverse=True)[:3] if grew[name] > 0.5]
    launched = [launch(report).launches for report in (before, after)]
    yield f"Kernels launched: ~{launched[0]:,} before, ~{launched[1]:,} after."
    epoch = f"the epoch is ~{abs(made.gained_ms):.0f} ms {'shorter' if made.gained_ms > 0 else 'longer'}"
    yield _here(before, f"the GPU works ~{saved_ms:.0f} ms less; {epoch}")
    yield ", ".join(f"{name} grew by ~{grew[name]:.0f} ms" for name in most) or "nothing grew"
    if saved_ms <= 0:
        yield _here(before, "mixed precision does not make this GPU's work shorter")
    elif made.gained_ms > 1.1 * saved_ms:
        fell = min(grew, key=grew.get)
        yield f"the kernels did not give all of that: {fell} fell by ~{-grew[fell]:.0f} ms"
    elif made.gained_ms < saved_ms / 2:
        yield "waiting took most of what the kernels gave: the epoch did not wait for them"
    else:
        yield "most of what the kernels gave came out at the end: the epoch waited for them"


def loop_within_bound(slow: Sequence[dict], fast: Sequence[dict], made: Comparison) -> Iterator[Claim | str]:
    """Without the profiler, too, no more is saved than the bound of as many epochs; ``slow``, ``fast``: runs."""
    saved_s = [one["training_s"] - other["training_s"] for one, other in zip(slow, fast, strict=False)]
    epochs = len(slow[0]["epochs"])
    bound_s = epochs * made.bounds["mixed_precision"].at_most_ms / 1e3
    yield f"In a round, the training loop saves ~{min(saved_s):.2f} to ~{max(saved_s):.2f} s"
    yield f"The bound of ~{epochs} epochs is ~{bound_s:.1f} s."
    yield Claim(
        "at least one round saves no more than the bound", min(saved_s) <= bound_s, saved_s,
        because="the machine was busier while the runs in FP32 were made",
        so="repeat both, in turn, on a machine that does nothing else (LAB_REPEATS=5)",
    )  # fmt: skip


def round_by_round(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """What each format's training loop gains over FP32's, where the runs of a round were made soon after each other."""
    for name in (TF32, FP16, BF16):
        ratio = paired(runs[FP32], runs[name], "training_s")
        minutes = _apart_min(runs[FP32], runs[name])
        if minutes < 10:
            yield f"{name}: the training loop is {in_rounds(ratio)}"
        else:
            yield f"{name}: ~{ratio.median:.2f} times as fast, ~{minutes:.0f} minutes apart:"
            yield "that may be the hour's doing and not the format's"


def still_learns(baseline: Sequence[float], *formats: Sequence[float]) -> Iterator[Claim | str]:
    """No format loses accuracy that ten seeds would show; each argument: the test accuracy (%) with each seed."""
    lowest_p = min(below(baseline, own) for own in formats)
    yield Claim(
        "with no format is the accuracy significantly below the baseline's", lowest_p >= 0.05, lowest_p,
        because="ten seeds decide, and small losses show in some sets of ten and not in others",
        so="train in the format with the highest mean in the table, with more seeds",
    )  # fmt: skip


def _here(before: Report, what: str) -> str:
    """What follows on a machine whose GPU worked at all."""
    nothing = tensor_cores.verdicts(before).empty
    return "no GPU worked: read this lab with LAB_MODE=recorded" if nothing else what


def _apart_min(slow: Sequence[dict], fast: Sequence[dict]) -> float:
    """By how many minutes the two runs of a round began apart, at most."""
    starts = [[datetime.fromisoformat(run["run_at"]) for run in runs] for runs in (slow, fast)]
    return max(abs(one - other).total_seconds() for one, other in zip(*starts, strict=False)) / 60
