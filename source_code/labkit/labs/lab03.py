"""What lab 3 claims: pinned copies are fast and free the program, and a run gains no more than their bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.display.runs import compared
from labkit.display.spread import spread
from labkit.topics.ladder.ledger import epoch_noise_ms
from stepbudget.ask.budget import budget
from stepbudget.ask.compare import compare
from stepbudget.ask.copies import copies
from stepbudget.ask.phases import phases
from stepbudget.ask.predict import bound
from stepbudget.report import Report

Kind = tuple[str, bool]  # of a copy: from which memory, and whether with non_blocking


def from_which_memory(report: Report) -> Iterator[Claim | str]:
    """From which kind of memory the batches are copied, how fast, and how much of that beside kernels."""
    found = _to_the_gpu(report)
    if found.empty:
        yield "No batch is copied: there is no GPU here, and tables of copies stay empty."
    for kind in found.itertuples():
        beside = 100 * kind.overlap_ms / kind.gpu_ms
        yield (
            f"From {kind.host_memory} memory: ~{kind.gb_per_s:.1f} GB/s, ~{beside:.0f} % of the time beside kernels."
        )


def four_kinds(done_us: Mapping[Kind, float], returned_us: Mapping[Kind, float]) -> Iterator[Claim | str]:
    """Pinning makes a large copy fast, and only with ``non_blocking`` does it free the program.

    ``done_us``, ``returned_us``: when the copy is done, and when its call returns.
    """
    faster = done_us["pageable", False] / done_us["pinned", True]
    held, free = (returned_us[memory, True] / done_us[memory, True] for memory in ("pageable", "pinned"))
    yield Claim(
        "pinned copies of 256 MB are at least 1.5 times as fast as pageable ones", faster > 1.5, faster,
        because="a narrow link is slower than the extra copy, and a GPU that shares memory needs none",
        so=f"pinning makes your copies {faster:.2f} times as fast; what is left is the freed program",
    )  # fmt: skip
    yield Claim(
        "non_blocking from pageable memory: held for more than half of the copy", held > 0.5, held,
        because="the GPU can read pageable memory by itself (GH200, or Linux with HMM)",
        so="non_blocking alone helps you; the rule of both together is for other machines",
    )  # fmt: skip
    yield Claim(
        "non_blocking from pinned memory: held for less than a tenth of it", free < 0.1, free,
        because="a call takes long to reach the GPU through a virtual machine or Windows",
        so=f"the program is still held for {100 * free:.0f} % of the copy",
    )  # fmt: skip


def cost_of_pinning(large: pd.DataFrame) -> Iterator[Claim | str]:
    """What it takes to pin a new buffer; ``large``: copies of 256 MB, by memory and ``non_blocking``."""
    pin_us, slow_us = 1e3 * large["first_pin_ms"]["pinned", False], large["done_us"]["pageable", False]
    yield (
        f"To pin a new buffer of 256 MB takes ~{pin_us / slow_us:.1f} times as long as the slow copy: "
        f"~{pin_us / 1e3:.0f} ms, with copying, to ~{slow_us / 1e3:.0f} ms."
    )


def most_to_gain(before: Report, plain: Sequence[dict]) -> Iterator[Claim | str]:
    """The bound of pinned copies, for an epoch and for a whole run; ``plain``: records of runs without them."""
    of_epoch, run_s, bound_s = bound(before, budget(before), "pinned_memory"), spread(plain), _bound_s(before, plain)
    between_s = run_s.high - run_s.low
    yield f"An epoch: at most ~{of_epoch.at_most_ms:.0f} of ~{of_epoch.of_ms:.0f} ms less."
    yield f"The program spends ~{_held_ms(before):.0f} ms of an epoch in the phase 'copy to device'."
    times = run_s.median / (run_s.median - bound_s)
    yield f"The whole run: at most ~{bound_s:.1f} s less, that is ~{times:.2f} times as fast."
    yield f"Runs of the same script differ by up to ~{between_s:.1f} s."
    if run_s.n == 1:
        yield "One run tells nothing of the noise, and one more will tell nothing of the gain."
    elif bound_s > between_s:
        yield "The bound is more than that. Is the gain? The rounds will tell."
    else:
        yield "Even the bound is less than that: single runs cannot show the gain."


def copies_are_pinned(before: Report, after: Report) -> Iterator[Claim | str]:
    """Batches come from pinned memory, hardly hold the program, and are copied faster."""
    was, now = _to_the_gpu(before), _to_the_gpu(after)
    held_ms, held_now_ms = _held_ms(before), _held_ms(after)
    yield Claim("no batch is copied from pageable memory", "pageable" not in set(now["host_memory"]))
    yield Claim(
        "the program is held for less than a fifth of the time", held_now_ms < held_ms / 5,
        f"~{held_ms:.1f} ms before, ~{held_now_ms:.1f} ms after",
        because="the GPU reads pageable memory by itself (GH200), or there is none to copy to",
        so=f"the program was held for {held_ms:.0f} ms of an epoch: there was no more to free",
    )  # fmt: skip
    if was.empty or now.empty:
        yield "No copies to a GPU to compare: the CPU trains."
        return
    faster = (now["mb"].sum() / now["gpu_ms"].sum()) / (was["mb"].sum() / was["gpu_ms"].sum())
    yield Claim(
        "the copies have at least twice the bandwidth", faster > 2, faster,
        because="a narrow link is as slow as the extra copy was, and shared memory needed none",
        so=f"the copies themselves take {now['gpu_ms'].sum():.0f} of {was['gpu_ms'].sum():.0f} ms",
    )  # fmt: skip


def comparable(before: Report, after: Report) -> Iterator[Claim | str]:
    """Nothing but the copies has changed between the two reports."""
    made = compare(before, after)
    yield Claim(
        "both epochs do the same work on the same GPU", made.comparable, "; ".join(made.obstacles),
        because="a training without a GPU leaves no kernels in a report",
        so="no bound is scored here; the wall clock below is your proof",
    )  # fmt: skip


def gained(
    before: Report, after: Report, timed_before: Sequence[dict], timed_after: Sequence[dict]
) -> Iterator[Claim | str]:
    """Which causes shrank and grew, and did the epoch? ``timed_…``: runs without the profiler, for the noise."""
    made, noise_ms = compare(before, after), epoch_noise_ms(timed_before, timed_after)
    change_ms = made.table().set_index("cause")["change_ms"]
    if change_ms.max() > 0:
        yield f"What grew most: '{change_ms.idxmax()}', by ~{change_ms.max():+.1f} ms."
    gone_ms = made.removed_ms("pinned_memory")
    yield f"The causes that the fix treats: ~{-gone_ms:+.1f} ms; the epoch: ~{-made.gained_ms:+.1f} ms."
    if abs(made.gained_ms) > noise_ms:
        yield f"That is more than epochs without the profiler differ by, ~{noise_ms:.0f} ms."
    else:
        yield (
            f"Without the profiler, too, epochs differ by ~{noise_ms:.0f} ms: "
            "from two profiles nobody can tell what the epoch gained."
        )


def bound_held(
    before: Report, after: Report, timed_before: Sequence[dict], timed_after: Sequence[dict]
) -> Iterator[Claim | str]:
    """What the fix treats has shrunk, and the epoch gained no more than its bound; the arguments of ``gained``."""
    made, noise_ms = compare(before, after), epoch_noise_ms(timed_before, timed_after)
    took_ms = made.before.ms["copies"] + made.before.ms["pageable_copy"]
    gone_ms = made.removed_ms("pinned_memory")
    yield Claim(
        "the copies and the waits in them take less than half of what they took", gone_ms > took_ms / 2,
        f"~{took_ms - gone_ms:.1f} of ~{took_ms:.1f} ms are left",
        because="copies over a narrow link get hardly faster, and without a GPU there are none",
        so="what is left are the copies themselves: send less (lab 6 sends bytes, and once)",
    )  # fmt: skip
    if score := made.score("pinned_memory", noise_ms=noise_ms):
        yield Claim(
            "the epoch gains no more than was predicted, give or take the noise", score.kept,
            f"~{score.gained_ms:.0f} ms, at most ~{score.bound.at_most_ms:.0f} predicted, noise ~{noise_ms:.0f}",
            because="the loader was quicker in one of the two profiled epochs",
            so="credit the pinning with no more than its own rows of the table",
        )  # fmt: skip


def waits_are_cheap(after: Report) -> Iterator[Claim | str]:
    """The GPU hardly stands still because the program had waited for it."""
    found = budget(after)
    share = found.ms["synchronisation"] / found.window.duration_ms if found.window.duration_ms else 0.0
    yield Claim(
        "waiting for the GPU costs less than a tenth of the epoch", share < 0.1, share,
        because="a slow CPU takes long to fill the queue again after each wait",
        so="print the loss less often (--log-interval), and see lab 7 for launches that cost less",
    )  # fmt: skip


def by_the_clock(plain: Sequence[dict], pinned: Sequence[dict]) -> Iterator[Claim | str]:
    """What the rounds say of the runs without pinned copies and of those with them."""
    yield f"With pinning the training loop is {compared(plain, pinned, 'training_s')}."
    yield f"The whole run is {compared(plain, pinned)}."


def saved_within_bound(before: Report, plain: Sequence[dict], pinned: Sequence[dict]) -> Iterator[Claim | str]:
    """A whole run saves no more than the bound from the profile; the records of ``by_the_clock``."""
    before_s, after_s, bound_s = spread(plain), spread(pinned), _bound_s(before, plain)
    saved_s = before_s.median - after_s.median
    noise_s = max(before_s.high - before_s.low, after_s.high - after_s.low, 0.1 * before_s.median)
    yield Claim(
        "what is saved is within the bound, give or take the noise", saved_s < bound_s + noise_s,
        f"~{saved_s:.1f} s saved, at most ~{bound_s:.1f} predicted, noise ~{noise_s:.1f}",
        because="something slowed the machine down in the runs without pinning",
        so="run more rounds: the copies cannot save more than they took",
    )  # fmt: skip


def _to_the_gpu(report: Report) -> pd.DataFrame:
    """The copies of the epoch's batches, a row a kind of memory."""
    found = copies(report)
    return found[found["direction"] == "host to device"]


def _held_ms(report: Report) -> float:
    """How long an epoch's phase 'copy to device' holds the program."""
    return phases(report).set_index("phase")["cpu_ms"].get("copy to device", 0.0)


def _bound_s(before: Report, plain: Sequence[dict]) -> float:
    """What pinned copies save a whole run at most: in all its epochs, and of the test's digits, too."""
    run = plain[0]
    digits = (run["train_samples"] + run["test_samples"]) / run["train_samples"]
    return len(run["epochs"]) * digits * bound(before, budget(before), "pinned_memory").at_most_ms / 1e3
