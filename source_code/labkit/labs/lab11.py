"""What lab 11 claims: kernels of one's own move fewer bytes, keep the accuracy, and cost more code than all else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.display.runs import epoch_ms
from labkit.display.spread import Spread, paired, spread
from labkit.subjects import accuracy, ladder, ledger
from labkit.subjects.ledger import Lines
from labkit.topics.roofline import floors
from labkit.topics.roofline.floors import Roofs
from labkit.topics.roofline.readings import Machine, Peaks, training_floor_s
from stepbudget.ask.tensor_cores import verdicts
from stepbudget.ncu.counters import Counted
from stepbudget.report import Report

PARTS = ("training_s", "process_s")  # the loop, and the process
CONVOLVES = "_?conv[12_]"  # how the names of the kernels that convolve begin


def counted_here(machine: Machine, found: Counted, before: pd.DataFrame) -> Iterator[Claim | str]:
    """Whose counters are these, and what do a step's kernels do ``before`` ours: bytes and time."""
    yield Claim(
        "the counters are those of the GPU whose roofs were measured", machine.here, found.origin,
        because="counters need a permission, and not every recording has them",
        so=f"what is counted in this lab is of one {machine.gpu}, and stands under its roofs",
    )  # fmt: skip
    us, mb = before["time_us"].sum(), before["bytes"].sum() / 1e6
    yield f"opt6 moves ~{mb:,.0f} MB a step, and its kernels take ~{us:.0f} µs."


def fewer_bytes_and_kernels(before: pd.DataFrame, after: pd.DataFrame) -> Iterator[Claim | str]:
    """What our kernels save, a step ``before`` and ``after`` as counted."""
    mb, kernels = (after[part].sum() / before[part].sum() for part in ("bytes", "count"))
    differs = {
        "because": "the caches are smaller, or opt6 was compiled into fewer kernels here",
        "so": f"opt7 moves {mb:.2f} of opt6's bytes in {kernels:.2f} of its kernels",
    }
    yield Claim("a step moves less than half the bytes", mb < 0.5, mb, **differs)
    yield Claim("in a third of the kernels, or fewer", kernels <= 1 / 3, kernels, **differs)


def on_tensor_cores(conv2: pd.DataFrame) -> Iterator[Claim | str]:
    """The kernels that convolve multiply on Tensor Cores; ``conv2``: the three of them, as counted."""
    used = conv2["tensor_cores"].tolist()
    yield Claim(
        "the three that convolve used Tensor Cores", used == [True] * 3, used,
        because="matrix instructions were not counted, or Triton has none for this GPU",
        so="look at the instructions instead, as lab 10's benchmark does",
    )  # fmt: skip


def stages_are_chosen(tried: pd.DataFrame) -> Iterator[Claim | str]:
    """Neither more loads under way nor more threads help; ``tried``: a row a kernel and number of stages."""
    least = tried.groupby("kernel")[["us_4", "us_8"]].min().min(axis=1)
    gained = (tried.groupby("kernel")["shipped_us"].first() / least).max()
    yield Claim(
        "no other number of stages or warps makes one of them over 3 % faster", gained < 1.03, gained,
        because="stages and warps were chosen on an H200: another GPU has other shared memory",
        so=f"here one of the three could be {gained:.2f} times as fast: choose its stages anew",
    )  # fmt: skip


def opt7_runs(scripts: Sequence[str], narrow: str) -> Iterator[Claim | str]:
    """Does the ladder reach our kernels? ``scripts``: its rungs here; ``narrow``: the GPU's 16-bit type."""
    yield Claim(
        "opt7 runs here: its kernels multiply in BF16", scripts[-1] == "main_opt7.py", narrow,
        because="GPUs before Ampere have no BF16",
        so="your ladder ends with opt6; what is said of opt7 is the recorded machine's",
    )  # fmt: skip


def faster_than_opt6(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """What our kernels gain in the training loop, in rounds."""
    faster = paired(runs["main_opt6.py"], runs["main_opt7.py"], "training_s")
    yield Claim(
        "the training loop is at least 1.2 times as fast as opt6's, in every round",
        faster.low > 1.2, faster.low,
        because="its tiles were chosen on an H200, or the compiler does better for opt6 here",
        so=f"kernels by hand gain a factor of {faster.median:.2f} here: hardly worth their lines",
    )  # fmt: skip


def accuracy_kept(gates: Mapping[str, tuple[float, float]]) -> Iterator[Claim | str]:
    """No step loses accuracy; of each, the mean over its seeds, and the p-value of being below the baseline."""
    lowest, least_p = (min(own) for own in zip(*gates.values(), strict=True))
    differs = {
        "because": "ten other seeds: one comparison in twenty falls below p = 0.05 by chance",
        "so": "train more seeds before you believe in a loss of accuracy, or in none",
    }
    yield Claim(
        "each keeps a mean accuracy of at least 98.70 %", lowest >= accuracy.FLOOR_PCT, f"{lowest:.2f} %", **differs
    )
    yield Claim(
        "none is significantly below the baseline (p ≥ 0.05)", least_p >= accuracy.SIGNIFICANCE, least_p, **differs
    )


def first_epoch_longer(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """What is left in the first epoch of that which happens once, from opt4 on."""
    longer_ms = {step: 1e3 * ladder.first_epoch_longer_s(runs[step]) for step in list(runs)[4:]}
    own = ", ".join(f"{step.removesuffix('.py')} by ~{ms:.0f} ms" for step, ms in longer_ms.items())
    yield f"The first epoch is still longer than the others: {own}."


def loop_and_process(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """What the whole ladder gains in the loop, and how much less in the process."""
    loop, process = _whole_ladder(runs)
    yield Claim(
        "the loop is over 20 times as fast as the baseline's, in every round", loop.low > 20, loop.low,
        because="on a slow GPU the loader never was the whole story, and kernels weigh more",
        so=f"the whole ladder is worth a factor of {loop.median:.0f} in the loop",
    )  # fmt: skip
    yield Claim(
        "the whole process is not: less than half of that factor",
        process.median < loop.median / 2, process.median,
        because="the baseline takes so long here that start-up and compiling hardly count",
        so=f"your process gains a factor of {process.median:.0f}: nearly all of what its loop does",
    )  # fmt: skip


def compiler_and_floor(runs: Mapping[str, Sequence[dict]], peaks: Peaks) -> Iterator[Claim | str]:
    """Ten epochs do not pay the compiler back, and the last rung's loop is near the floor at these ``peaks``."""
    times = {part: _seconds(runs, "main_opt4.py", part) / _seconds(runs, "main_opt6.py", part) for part in PARTS}
    pays = "the compiler pays early" if times["process_s"] > 1 else "the compiler does not pay"
    yield Claim(
        "from opt4 to opt6 the process gains less than half of what the loop does",
        times["process_s"] < times["training_s"] / 2, times["process_s"],
        because="opt4's epochs are long here, so that even ten pay the compiler back",
        so=f"of a factor of {times['training_s']:.1f} in the loop, your process keeps "
        f"{times['process_s']:.1f}: {pays} here",
    )  # fmt: skip
    reached = training_floor_s(peaks, runs) / _seconds(runs, list(runs)[-1], "training_s")
    yield Claim(
        "the loop is within a factor of six of the floor", reached > 1 / 6, reached,
        because="few epochs with a longer first one, or tiles that were chosen on another GPU",
        so=f"from the last rung to the floor of one {peaks.gpu} it is a factor of {1 / reached:.1f}",
    )  # fmt: skip


def two_ladders(runs: Mapping[str, Sequence[dict]], peaks: Peaks) -> Iterator[Claim | str]:
    """The ladder's two factors, of the loop and of the process; the floor at these ``peaks``."""
    (loop, process), last = _whole_ladder(runs), list(runs)[-1]
    trained = ladder.epochs_words(len(runs[last][0]["epochs"]))
    reached = training_floor_s(peaks, runs) / _seconds(runs, last, "training_s")
    yield (
        f"From the baseline to {last}, over {trained}, the process is ~{process.median:.1f} times as fast, "
        f"the loop ~{loop.median:.0f} times; its floor is ~{100 * reached:.0f} % of it."
    )
    four_s, six_s = (_seconds(runs, step, "process_s") for step in ("main_opt4.py", "main_opt6.py"))
    times = _seconds(runs, "main_opt4.py", "training_s") / _seconds(runs, "main_opt6.py", "training_s")
    yield (
        f"From opt4 to opt6 the loop becomes ~{times:.1f} times as fast, and "
        f"the process {'loses' if four_s < six_s else 'gains'}: ~{four_s:.1f} s → ~{six_s:.1f} s."
    )


def _whole_ladder(runs: Mapping[str, Sequence[dict]]) -> list[Spread]:
    """How many times as fast the last rung is as the baseline, in rounds: the loop, and the process."""
    return [paired(runs["main_baseline.py"], runs[list(runs)[-1]], part) for part in PARTS]


def _seconds(runs: Mapping[str, Sequence[dict]], step: str, part: str) -> float:
    """The median over a step's runs."""
    return spread(runs[step], part).median


def imports_take_longest(own_s: Mapping[str, float]) -> Iterator[Claim | str]:
    """A start is modules more than anything else: ``own_s``: seconds of each stage of it, by its name."""
    extra_s = own_s["an optimizer is made"] + own_s["torch.compile is imported"]
    torch_s, device_s = own_s["PyTorch is imported"], own_s["the device starts"]
    digits_s = own_s["the digits are read and sent"]
    yield Claim(
        "importing PyTorch takes longer than starting the GPU", torch_s > device_s, torch_s,
        because="the driver sleeps between processes (no persistence mode), or wakes many GPUs",
        so=f"of a start, ~{device_s:.1f} s are the GPU's: keep the driver awake (nvidia-smi -pm 1)",
    )  # fmt: skip
    yield Claim(
        "the compiler's modules take longer than reading all the digits", extra_s > digits_s, extra_s,
        because="the disk is slow, or the file system is on the network",
        so=f"your digits take ~{digits_s:.1f} s: copy them to a local disk first",
    )  # fmt: skip


def lines_of_code(cost: Mapping[str, Lines]) -> Iterator[Claim | str]:
    """What each rung costs to read: its script's lines, and those beside it."""
    whole = pd.Series({step: own.script + own.beside for step, own in cost.items()})
    yield f"opt7 needs {whole['main_opt7.py'] / whole['main_opt4.py']:.0f} times the code of opt4."
    dearer = whole["main_opt1.py":"main_opt5.py"].max() - whole["main_baseline.py"]
    yield Claim("up to opt5, a rung costs at most 60 lines more than the baseline", bool(dearer <= 60), dearer)
    others = whole["main_opt4.py":"main_opt6.py"].sum()
    yield Claim(
        "opt7 costs more code than all the others of part 2 together", bool(whole["main_opt7.py"] > others), others
    )


def convolve_in_a_step(opt7: Report, opt8: Report) -> Iterator[Claim | str]:
    """How long the kernels that convolve take in either step, where both have such and ran on one kind of GPU."""
    seven_us, eight_us = (_convolving_us(report) for report in (opt7, opt8))
    if seven_us and opt7.gpu == opt8.gpu:
        yield f"All that convolves in a step: opt7 ~{seven_us:.0f} µs, opt8 ~{eight_us:.0f} µs."


def _convolving_us(report: Report) -> float:
    """The mean µs of each kernel that convolves, added."""
    found = verdicts(report)
    return 1e3 * (found["gpu_ms"] / found["count"])[found["kernel"].str.match(CONVOLVES)].sum()


def beside_the_ladder(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """The two steps beside the ladder against those that they change: time, and lines of code."""
    ms = {step.removesuffix(".py"): epoch_ms(own) for step, own in runs.items()}
    for step, own in ms.items():
        loop_s, cost = _seconds(runs, f"{step}.py", "training_s"), ledger.lines(f"{step}.py")
        yield (
            f"{step}: loop ~{loop_s:.3f} s, an epoch but for the first ~{own:.1f} ms; "
            f"{cost.script + cost.beside:,} lines of code."
        )
    yield Claim(
        "each is at least 1.5 times as fast as the step that it changes",
        ms["main_opt6"] > 1.5 * ms["main_opt6_block"] and ms["main_opt7"] > 1.5 * ms["main_opt8"], ms,
        because="this machine has no GPU that can run them, or one that runs opt6 as well",
        so="leave your program as the compiler makes it",
    )  # fmt: skip


def one_after_another(roofs: Roofs, us: Mapping[str, float]) -> Iterator[Claim | str]:
    """How near opt8 is to what its kernels need in turn at these ``roofs``; ``us``: of a step, by name."""
    limit = floors.kernels(roofs).set_index("kernel")
    least = limit[["arithmetic", "memory"]].max(axis=1)
    yield Claim(
        "opt8's step takes less than twice what its kernels need one after another",
        us["main_opt8"] < 2 * least.sum(), us["main_opt8"] / least.sum(),
        because="it ran on another machine than the one whose roofs these are",
        so="the multiples below compare two machines",
    )  # fmt: skip
    convs = least[least.index.str.startswith("conv")].sum()
    yield f"Of what kernels need one after another, the convolutions need ~{convs:.0f} µs."
