"""What lab 9 claims: where the roofs and the floor are, how far each step is above it, and what limits each kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim, Note
from labkit.display.spread import spread
from labkit.subjects import floors, roofline
from labkit.subjects.roofline import Machine, Peaks, Point
from labkit.subjects.steps import step_point
from stepbudget.ask.idle import idle
from stepbudget.ncu.counters import Counted
from stepbudget.report import Report
from stepbudget.show.table import Table

FACTORS = ["waiting ×", "slow kernels ×", "bytes and type ×"]  # of a distance to the floor
SECONDS = ("training_s", "process_s")  # of a record
KNOWN = ("main_opt6", "main_opt7")  # steps whose kernels somebody had looked at when their bytes were counted by hand


def hardly_idle(last: Report) -> Iterator[Claim | str]:
    """The GPU works nearly all the time: the compiled step."""
    busy, epoch_ms = 1 - idle(last).idle_share, last.window().duration_ms
    yield Note(
        f"main_opt6: the GPU is busy for {100 * busy:.0f} % of the epoch's {epoch_ms:.0f} ms. "
        f"Ten such epochs take {10 * epoch_ms:.0f} ms."
    )
    yield Claim(
        "the GPU is busy for more than nine tenths of the epoch", busy > 0.9, busy,
        because="short kernels, traced one by one: tracing itself leaves gaps",
        so=f"{100 * (1 - busy):.0f} % of this profile are gaps; what follows is about the rest",
    )  # fmt: skip


def measured_roofs(peaks: Peaks, zeros: pd.DataFrame) -> Iterator[Claim | str]:
    """What this GPU multiplies fast, 16-bit numbers and ``zeros`` (rows of ``steps.zeros``)."""
    dtype, times = peaks.narrow, peaks.rate(peaks.narrow) / peaks.rate("fp32")
    yield Claim(
        "Tensor Cores multiply 16-bit numbers faster than the ordinary cores multiply FP32, by a third or more",
        times > 4 / 3, times,
        because="the GPU has no Tensor Cores, or none for 16-bit numbers that PyTorch can use",
        so=f"16 bits halve your bytes, and multiply only {times:.1f} times as fast",
    )  # fmt: skip
    yield Claim(
        "this GPU is fast in BF16, in which the last steps multiply", dtype == "bf16", dtype,
        because="GPUs before Ampere have no BF16",
        so="opt4 to opt6 take FP16 here, and opt7 is left out: its kernels need BF16",
    )  # fmt: skip
    none, all_zeros = zeros["tflops"].iloc[0], zeros["tflops"].iloc[-1]
    yield Claim(
        "a product of nothing but zeros is over 5 % faster than one without", all_zeros / none > 1.05, all_zeros / none,
        because="its limit of power does not lower this GPU's clock",
        so="what numbers your kernels multiply does not change their time here",
    )  # fmt: skip
    drawn = [f"{one.tflops:,.0f} TFLOP/s at {one.mhz:,.0f} MHz and {one.watts:.0f} W" for one in zeros.itertuples()]
    yield f"A product in 16 bits, for a second: {drawn[0]} without zeros, {drawn[-1]} with nothing else."


def floor(peaks: Peaks) -> Iterator[Claim | str]:
    """Traffic outweighs the arithmetic unless kernels are fused, and what is left at the least."""
    ms = floors.floor(peaks).set_index("what")["ms"]
    unfused, least_ms = ms["traffic, unfused"] / ms["arithmetic"], 1e3 * floors.training_floor_s(peaks)
    yield Claim(
        "one kernel an operator: traffic alone takes over three times as long as the arithmetic",
        unfused > 3, unfused,
        because="arithmetic is slow against the memory here: no Tensor Cores, or a small GPU",
        so=f"it takes {unfused:.1f} times as long here, so fusing gains less",
    )  # fmt: skip
    yield (
        f"At the roofs of the {peaks.gpu} ten epochs take {ms['arithmetic']:.0f} ms of "
        f"arithmetic and {ms['traffic, ideally fused']:.0f} ms of traffic, ideally fused: "
        f"the floor is {least_ms:.0f} ms."
    )


def shapes_are_right(counted: Mapping[str, pd.DataFrame]) -> Iterator[Claim | str]:
    """Bytes from shapes, held against those that were ``counted``: a step's kernels, by its rung."""
    moved = {rung: step_point(rung, 1.0).moved for rung in counted}
    ratio = pd.Series({rung: kernels["bytes"].sum() / moved[rung] for rung, kernels in counted.items()})
    known = ratio[[rung for rung in counted if rung in KNOWN]]
    differs = {
        "because": "the L2 cache is larger or smaller, or a library chose kernels that need more space",
        "so": f"by shapes alone you would be off by {max(ratio.max(), 1 / ratio.min()):.1f} times at most: count",
    }
    yield Claim(
        "for the two steps whose kernels we know, shapes are right to a fifth",
        bool(known.between(0.8, 1.2).all()), known.round(2).to_dict(), **differs,
    )  # fmt: skip
    yield Claim(
        "for no step are they wrong by more than a factor of two",
        bool(ratio.between(0.5, 2).all()), ratio.round(2).to_dict(), **differs,
    )  # fmt: skip


def under_the_roof(machine: Machine, found: Counted, points: Sequence[Point], peaks: Peaks) -> Iterator[Claim | str]:
    """Whose counters are these? And no step passes its roof, but for what roofs are good to."""
    yield Claim(
        "the counters are those of the GPU that ran the ladder", machine.here, found.origin,
        because="counters need a permission, and not every recording has them",
        so="your points below take their bytes from shapes; what was counted, from the factors down "
        f"to the plan of attack, is of one {machine.gpu}: its counts, roofs and runs",
    )  # fmt: skip
    highest = max(point.share(peaks) for point in points)
    yield Claim("no step is over a tenth faster than its roof allows", highest < 1.1, highest)


def factors(distances: Table, gpu: str) -> Iterator[Claim | str]:
    """Most of the baseline's distance to the floor was waiting, and what is left of opt6's; ``gpu``: whose they are."""
    frame = distances.frame.set_index("step")
    first, late = frame["waiting ×"]["main_baseline"], frame["waiting ×"]["main_opt5":].max()
    yield Claim(
        "the baseline's step takes over 5 times as long as its kernels", first > 5, first,
        because="a slow GPU needs long for each batch, so one loader worker feeds it better",
        so=f"only a factor of {first:.1f} was waiting: kernels matter sooner here",
    )  # fmt: skip
    yield Claim(
        "with one launch for an epoch (opt5 and later), a step waits for next to nothing", late < 1.3, late,
        because="the clock was higher, or the caches warmer, under Nsight Compute",
        so="take this factor for no better than it is: two tools, two runs",
    )  # fmt: skip
    own = frame.loc["main_opt6"]
    left = own[FACTORS].astype(float)
    largest = left.idxmax().removesuffix(" ×")
    yield Claim(
        "at opt6 the largest factor left is slow kernels", largest == "slow kernels", largest,
        because="the libraries' kernels fit this GPU better, or its memory is the narrower side",
        so=f"look at '{largest}' first here, and at the kernels below after that",
    )  # fmt: skip
    yield (
        f"On the {gpu} opt6 takes {own['in all ×']:.1f} times its floor; "
        f"the largest part of it, {left.max():.1f} times: {largest}."
    )


def what_limits(limits: pd.DataFrame, products: pd.DataFrame) -> Iterator[Claim | str]:
    """What limits the kernels of a step, and conv2's ``products`` among them: waiting, few blocks, work in vain."""
    by_limit = limits.groupby("limit")["us"].sum().sort_values(ascending=False) / limits["us"].sum()
    yield "Of a step's time: " + ", ".join(f"{limit} {100 * share:.0f} %" for limit, share in by_limit.items()) + "."
    small = len(limits[limits["limit"] == roofline.TOO_SMALL]) / len(limits)
    waits = limits[limits["limit"] == roofline.WAITING]["us"].sum() / limits["us"].sum()
    shares = limits[limits["kernel"].isin(products["kernel"])][["memory", "arithmetic"]].max(axis=1)
    by_word = products.set_index("word")
    fills, done = by_word["waves"].get("wgrad", 1.0), by_word["done_gflop"] / by_word["needed_gflop"]
    differs = {
        "because": "another GPU, cuDNN or compiler has other kernels, or counts fewer units",
        "so": "the tables hold for you, the sentences below for the recorded machine",
    }
    yield Claim(
        "more than a third of all kinds of kernels are too small for this GPU", small > 1 / 3, small, **differs
    )  # fmt: skip
    yield Claim("over a third of the time goes to kernels that wait", waits > 1 / 3, waits, **differs)
    yield Claim(
        "no convolution reaches 60 % of any roof", len(shares) > 0 and shares.max() < 0.6, shares.max(), **differs
    )  # fmt: skip
    yield Claim("wgrad fills less than half of the GPU", fills < 0.5, fills, **differs)
    yield Claim(
        "the data gradient does more than 1.5 times what is needed",
        done.get("dgrad", 0.0) > 1.5, done.get("dgrad"), **differs,
    )  # fmt: skip


def first_to_attack(limits: pd.DataFrame, distances: Table) -> Iterator[Claim | str]:
    """How much of what can be saved one kernel holds, and how short a step could become."""
    step_us, roofs_us = limits["us"].sum(), limits["floor_us"].sum()
    own = distances.frame.set_index("step").loc["main_opt6"]
    over_us = limits["us"] - limits["floor_us"]
    part = over_us.max() / over_us.sum()
    yield Claim(
        "one kernel alone holds over a quarter of what can be saved", part > 1 / 4, part,
        because="another cuDNN has a better kernel for the weight gradient",
        so=f"what can be saved is spread more evenly: your first kernel holds {100 * part:.0f} %",
    )  # fmt: skip
    yield (
        f"All kernels at their roofs: {step_us:.0f} → {roofs_us:.0f} µs a step; "
        f"if they overlapped as well: {own['at its roof µs']:.0f} µs."
    )
    yield f"And with the bytes of an ideal cut: {own['the floor µs']:.0f} µs, the floor."


def little_had_to_be(runs: Mapping[str, Sequence[dict]], peaks: Peaks, last: Report) -> Iterator[Claim | str]:
    """What share of each rung's loop its floor is; ``runs``: by their scripts, ``last``: whether a GPU worked."""
    floor_s = floors.training_floor_s(peaks, runs)
    loop_s, process_s = ({script: spread(own, key).median for script, own in runs.items()} for key in SECONDS)
    first = floor_s / loop_s["main_baseline.py"]
    yield Claim(
        "the floor is less than 1 % of the baseline's loop", first < 0.01, first,
        because="a slow GPU's floor is high, and the loader's waiting weighs less beside it",
        so=f"the floor is {100 * first:.1f} % of its loop on this GPU",
    )  # fmt: skip
    if len(last.kernels):
        for script in list(runs)[-2:]:
            yield (
                f"{script}: the loop takes {loop_s[script] / floor_s:.1f} times its floor, "
                f"the process {process_s[script] / floor_s:.0f} times."
            )


def stranger(report: Report) -> Iterator[Claim | str]:
    """How long another program's epoch is, and how little of it its GPU works."""
    found = idle(report)
    yield Note(f"An epoch of {report.window().duration_ms:,.0f} ms, of which the GPU works for {found.busy_ms:.0f} ms.")
