"""Lab 11: kernels of one's own move fewer bytes, keep the accuracy, and gain more in the loop than in the process."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from labkit import source
from labkit.checks import Claim
from labkit.display.runs import epoch_ms
from labkit.display.spread import Spread, paired, spread
from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number, quietly
from labkit.lazily import torch
from labkit.numbers import Quantity, shown
from labkit.predictions import Guess
from labkit.source import kinds
from labkit.source.counting import count_command
from labkit.subjects import accuracy, floors, ladder, ledger, roofline, roofline_charts
from labkit.subjects.floors import BATCH, Roofs, training_floor_s
from labkit.subjects.kernels import warps_that_fit
from labkit.subjects.roofline import Machine, Peaks
from labkit.subjects.steps import count_in_depth, scripts
from labkit.training import sizes
from stepbudget.ask.tensor_cores import verdicts
from stepbudget.kernel_names import short as short_kernel
from stepbudget.ncu.counters import Counted
from stepbudget.report import Report
from stepbudget.show.table import Table, table

# --- a step as counted, and the least that it takes ---------------------------------------------------------

BESIDE = ["main_opt6.py", "main_opt6_block.py", "main_opt7.py", "main_opt8.py"]
GATED = ["main_baseline.py", *(f"main_opt{number}.py" for number in range(4, 8)), "main_opt6_block.py", "main_opt8.py"]
CONV2 = ["_conv2_pool", "_conv2_weight_gradient", "_conv1_gradient"]  # the kernels of main_opt7 that conv2 is in
WORDS = {"fprop": "conv2 (fprop)", "dgrad": "conv2's data gradient (dgrad)", "wgrad": "conv2's weight gradient (wgrad)"}


def counted(rung: str, own: Peaks, found: Counted | None = None) -> tuple[pd.DataFrame, Machine]:
    """Each kernel of one step (``in_depth``), and the machine that counted; ``found``: its bytes, if known already."""
    if found is None:
        command = count_command(f"{rung}_bytes", f"{rung}.py --profile --epochs 2 --limit {BATCH}")
        found = source.current().get(kinds.counts(command, brief=True))
    return roofline.in_depth(found, count_in_depth(rung)), roofline.counted_on(found, own, {})


def named(kernels: Sequence[str]) -> dict[str, str]:
    """What the kernels that matter here do, by name: conv2's in a library, and those of one's own."""
    found = {name: name for name in kernels if name.startswith("_")}
    for word, what in WORDS.items():
        found |= {name: what for name in [name for name in kernels if word in name][:1]}
    return found


def under_the_roofs(kernels: pd.DataFrame, peaks: Peaks, step: str) -> Figure:
    """The kernels that matter in a step and use Tensor Cores, under their roofs; the longest where none is known."""
    words = named(kernels["kernel"].tolist())
    found = roofline.counted_points(kernels)
    points = [one for one in found if one.name in words and one.dtype != "fp32" and one.name != "_head"]
    if not points:
        words = {name: short_kernel(name, 28) for name in kernels["kernel"].head(4)}
        points = [one for one in found if one.name in words]
    return roofline_charts.roofline(peaks, points, words, f"Kernels of {step} under their roofs")


def _maker(kernel: str) -> str:
    if kernel.startswith("triton_"):
        return "others, by the compiler"
    libraries = ("nvjet", "cublas", "cutlass", "xmma")
    return "others, by libraries" if any(word in kernel for word in libraries) else "others, by PyTorch"


def kernels_table(limits: pd.DataFrame) -> Table:
    """``limits()`` in short: the kernels that matter, a row each, and the others by who wrote them."""
    words = named(limits["kernel"].tolist())
    what = limits["kernel"].map(lambda name: words.get(name) or _maker(name))
    rows = []
    for label, own in limits.groupby(what, sort=False):
        one = own.iloc[0] if label in words.values() else None
        times = (own["us"].sum(), own["mb"].sum(), 100 * own["floor_us"].sum() / own["us"].sum())
        limit, warps = (None, None) if one is None else (one["limit"], one["warps_pct"])
        rows.append((label, own["count"].sum(), *times, limit, warps))
    columns = ["kernel", "launches", "µs", "MB", "% of roof", "limited by", "occupancy %"]
    frame = pd.DataFrame(rows, columns=columns)
    ordered = pd.concat([frame[frame["limited by"].notna()], frame[frame["limited by"].isna()]])
    caption = f"The kernels of a step: {limits['us'].sum():,.0f} µs in all"
    return table(ordered, caption, dict.fromkeys(["launches", *columns[2:5], "occupancy %"], "{:.0f}"))


def sums(steps: Mapping[str, pd.DataFrame]) -> Table:
    """One training step each, as counted (``in_depth``): kernels, time, bytes, operations of the Tensor Cores."""
    parts = {"kernels": ("count", 1), "µs": ("time_us", 1), "MB": ("bytes", 1e-6)}
    parts["GFLOP on Tensor Cores"] = ("tensor_flops", 1e-9)
    rows = [[factor * own[column].sum() for column, factor in parts.values()] for own in steps.values()]
    frame = pd.DataFrame(rows, columns=list(parts))
    frame.insert(0, "step", list(steps))
    return table(frame, "One training step, as counted", dict.fromkeys(parts, "{:,.0f}"))


def opt7_flops() -> dict[str, int]:
    """Operations of each kernel of ``main_opt7`` in a step, by the name of the kernel.

    The gradient of conv1 needs that of its output, which is conv2's data gradient, in the same kernel.
    """
    layers = sizes.flops_per_sample()
    each = {
        "_conv1_relu": layers["conv1"],
        "_conv2_pool": layers["conv2"],
        "_conv2_weight_gradient": layers["conv2"],
        "_conv1_gradient": layers["conv2"] + layers["conv1"],
        "_head": 3 * layers["fc2"],
    }
    return {name: BATCH * count for name, count in each.items()}


def done_and_needed(kernels: pd.DataFrame) -> Table:
    """Operations of ``main_opt7``'s kernels for conv2 (of ``in_depth``): needed by the shapes, and done."""
    kernels = kernels[kernels["kernel"].isin(CONV2)]
    needed, done = kernels["kernel"].map(opt7_flops()) / 1e9, kernels["tensor_flops"] / 1e9
    columns = ["kernel", "GFLOP needed", "GFLOP done", "done / needed"]
    frame = pd.concat([kernels["kernel"], needed, done, done / needed], axis=1).set_axis(columns, axis=1)
    return table(frame, "Operations of a step, in the kernels for conv2", dict.fromkeys(columns[1:3], "{:.1f}"))


def hopper_kernels() -> Table:
    """What ``main_opt8``'s two kernels do in a step, as counted: operations, and how busy the units were.

    Needed are conv1 and conv2 forward, and backward conv2's two gradients and conv1's for its weights; done is what the
    Tensor Cores did, conv1 once more in the backward kernel included.
    """
    layers = sizes.flops_per_sample()
    forward = BATCH * (layers["conv1"] + layers["conv2"])
    needed = {"conv_forward": forward, "conv_backward": forward + BATCH * layers["conv2"]}
    step = count_in_depth("main_opt8").step
    own = step[step["kernel"].isin(needed)].set_index("kernel")
    frame = pd.DataFrame({"µs": own["time_us"], "GFLOP needed": own.index.map(needed) / 1e9})
    frame["GFLOP done"] = own["tensor_flops"] / 1e9
    frame["done / needed"] = frame["GFLOP done"] / frame["GFLOP needed"]
    frame["tensor pipe active %"], frame["L1, shared memory busy %"] = own["tensor_pct"], own["l1_pct"]
    digits = ("{:.0f}", "{:.1f}", "{:.1f}", "{:.2f}", "{:.0f}", "{:.0f}")
    return table(frame.reset_index(), "One step of main_opt8, as counted", dict(zip(frame, digits, strict=True)))


def roofs_of(records: Sequence[dict]) -> dict[str, Roofs]:
    """The roofs of ``bench_roofs.py`` for factors of which ¾ are zeros: at the power limit, and of short products."""
    return {
        "at the power limit": floors.roofs(records, 0.75),
        "of short products": floors.roofs(records, 0.75, brief=True),
    }


def steps_us(runs: Mapping[str, Sequence[dict]]) -> dict[str, float]:
    """µs of a step of ``main_opt7`` and ``main_opt8``, without the first epoch."""
    return {step.removesuffix(".py"): 1e6 * roofline.step_seconds(runs[step]) for step in BESIDE[2:]}


def floors_table(roofs: Mapping[str, Roofs], steps_us: Mapping[str, float]) -> Table:
    """What a step takes at least, in three ways to reckon, at these roofs; and how many times that steps take.

    ``roofs`` by the words for them; the multiples are those of the last.
    """
    found = pd.DataFrame({f"µs, {words}": floors.floors(own) for words, own in roofs.items()})
    last = found.iloc[:, -1]
    for step, us in steps_us.items():
        found[f"{step} ×"] = us / last
    numbers = list(found.columns)
    formats = dict.fromkeys(numbers[: len(roofs)], "{:.0f}") | dict.fromkeys(numbers[len(roofs) :], "{:.2f}")
    gpu = next(iter(roofs.values())).gpu
    caption = f"What a step's dense products and bytes need, on one {gpu} (×: against the last µs)"
    return table(found.rename_axis("the floor").reset_index(), caption, formats)


STAGED = ["shipped", "num_stages", "num_warps", "BLOCK", "us", "registers", "shared_bytes", "refused"]


def stages(records: Sequence[dict]) -> pd.DataFrame:
    """What ``bench_stages.py`` found: a row a kernel of ``main_opt7`` and number of stages, with whole tiles.

    Columns: ``kernel``, ``stages``, ``shared_bytes`` of a program, which a refusal tells, too; ``programs`` that are on
    a multiprocessor at once, of 4 warps, by registers and shared memory; µs with 4 and with 8 warps (``us_4``,
    ``us_8``), all three NaN where refused; ``shipped_us``, as ``main_opt7`` starts the kernel. A multiprocessor has the
    shared memory that one program may have at most, and the 1,024 bytes that each takes for itself besides.
    """
    tried = pd.DataFrame(records[0]["rows"]).reindex(columns=["kernel", *STAGED])
    shipped = tried[tried["shipped"].eq(True)].set_index("kernel")["us"]
    told = tried["refused"].astype("string").str.extract(r"Required: (\d+), Hardware limit: (\d+)").astype(float)
    tried["shared_bytes"] = tried["shared_bytes"].fillna(told[0])
    whole = tried[tried["num_stages"].notna() & tried["BLOCK"].isna()].set_index(["kernel", "num_stages"])
    four, eight = (whole[whole["num_warps"] == warps] for warps in (4, 8))
    fit = (told[1].max() + 1024) // (four["shared_bytes"] + 1024)  # NaN where nothing was refused
    by_registers = four["registers"].map(lambda count: warps_that_fit(int(count), 4) // 4, na_action="ignore")
    found = four[["shared_bytes"]].assign(programs=pd.concat([fit, by_registers], axis=1).min(axis=1))
    found["programs"] = found["programs"].where(four["us"].notna())
    found["us_4"], found["us_8"] = four["us"], eight["us"]
    found = found.rename_axis(["kernel", "stages"]).reset_index()
    return found.assign(stages=found["stages"].astype(int), shipped_us=found["kernel"].map(shipped))


def stages_table(records: Sequence[dict]) -> Table:
    """The three large kernels of ``main_opt7``, with so many stages of loads and 4 or 8 warps a block."""
    found = stages(records)
    names = {"kernel": "kernel", "stages": "stages", "shared_bytes": "shared memory kB"}
    names["programs"] = "blocks, of 4 warps, per multiprocessor"
    names |= {"us_4": "4 warps: µs", "us_8": "8 warps: µs"}
    frame = found.assign(shared_bytes=found["shared_bytes"] / 1e3)[list(names)].rename(columns=names)
    numbers = list(names.values())[2:]
    caption = "By stages of loads and warps a block, on one {gpu} (–: refused)".format(**records[0])
    return table(frame, caption, dict.fromkeys(numbers, "{:.0f}"))


def three(runs: Mapping[str, Sequence[dict]]) -> dict[str, Sequence[dict]]:
    """The baseline's runs, the compiler's, and the last rung's."""
    return {step: runs[step] for step in dict.fromkeys(["main_baseline.py", "main_opt6.py", list(runs)[-1]])}


def beside(runs: Mapping[str, Sequence[dict]]) -> Table:
    """The two steps beside the ladder and those that they change: process, loop, later epochs, lines of code."""
    rows = []
    for step, own in runs.items():
        cost = ledger.lines(step)
        seconds = (_seconds(runs, step, "process_s"), _seconds(runs, step, "training_s"))
        rows.append((step, *seconds, epoch_ms(own), cost.script + cost.beside))
    columns = ["step", "process s", "loop s", "ms an epoch, but for the first", "lines of code"]
    formats = ["{:.1f}", "{:.3f}", "{:.1f}", "{:,.0f}"]
    return table(
        pd.DataFrame(rows, columns=columns), "Medians over the runs", dict(zip(columns[1:], formats, strict=True))
    )


# --- what it claims ------------------------------------------------------------------------------------------

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
    yield f"opt6 moves {mb:,.0f} MB a step, and its kernels take {us:.0f} µs."


def what_they_save(before: pd.DataFrame, after: pd.DataFrame) -> Iterator[Claim]:
    """What our kernels save, a step ``before`` and ``after`` as counted; and do those for conv2 use Tensor Cores?"""
    mb, kernels = (after[part].sum() / before[part].sum() for part in ("bytes", "count"))
    differs = {
        "because": "the caches are smaller, or opt6 was compiled into fewer kernels here",
        "so": f"opt7 moves {mb:.2f} of opt6's bytes in {kernels:.2f} of its kernels",
    }
    yield Claim("a step moves less than half the bytes", mb < 0.5, mb, **differs)
    yield Claim("in a third of the kernels, or fewer", kernels <= 1 / 3, kernels, **differs)
    used = after[after["kernel"].isin(CONV2)]["tensor_cores"].tolist()
    yield Claim(
        "the three for conv2 used Tensor Cores", used == [True] * 3, used,
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


def faster_than_opt6(runs: Mapping[str, Sequence[dict]], peaks: Peaks) -> Iterator[Claim]:
    """Does the ladder reach our kernels on this GPU, and what do they gain in the training loop, in rounds?"""
    yield Claim(
        "opt7 runs here: its kernels multiply in BF16", "main_opt7.py" in scripts(peaks), peaks.narrow,
        because="GPUs before Ampere have no BF16",
        so="your ladder ends with opt6; what is said of opt7 is the recorded machine's",
    )  # fmt: skip
    if "main_opt7.py" not in runs:
        return
    faster = paired(runs["main_opt6.py"], runs["main_opt7.py"], "training_s")
    yield Claim(
        "the training loop is at least 1.2 times as fast as opt6's, in every round",
        faster.low > 1.2, faster.low,
        because="its tiles were chosen on an H200, or the compiler does better for opt6 here",
        so=f"kernels by hand gain a factor of {faster.low:.2f} to {faster.high:.2f} here, by round",
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


def two_ladders(runs: Mapping[str, Sequence[dict]], peaks: Peaks) -> Iterator[Claim | str]:
    """What the whole ladder gains in the loop, and how much less in the process; the floor at these ``peaks``."""
    (loop, process), last = _whole_ladder(runs), list(runs)[-1]
    yield Claim(
        "the loop is over 20 times as fast as the baseline's, in every round", loop.low > 20, loop.low,
        because="on a slow GPU the loader never was the whole story, and kernels weigh more",
        so=f"the whole ladder is worth a factor of {loop.median:.0f} in the loop",
    )  # fmt: skip
    yield Claim(
        "the whole process gains less than half of what the loop does",
        process.median < loop.median / 2, process.median,
        because="the baseline takes so long here that start-up and compiling hardly count",
        so=f"your process gains a factor of {process.median:.0f}, of the loop's {loop.median:.0f}",
    )  # fmt: skip
    times = {part: _seconds(runs, "main_opt4.py", part) / _seconds(runs, "main_opt6.py", part) for part in PARTS}
    pays = "the compiler pays early" if times["process_s"] > 1 else "the compiler does not pay"
    yield Claim(
        "from opt4 to opt6 the process gains less than half of what the loop does",
        times["process_s"] < times["training_s"] / 2, times["process_s"],
        because="opt4's epochs are long here, so that even ten pay the compiler back",
        so=f"of a factor of {times['training_s']:.1f} in the loop, your process keeps "
        f"{times['process_s']:.1f}: {pays} here",
    )  # fmt: skip
    reached = training_floor_s(peaks, runs) / _seconds(runs, last, "training_s")
    yield Claim(
        "the loop is within a factor of six of the floor", reached > 1 / 6, reached,
        because="few epochs with a longer first one, or tiles that were chosen on another GPU",
        so=f"from the last rung to the floor of one {peaks.gpu} it is a factor of {1 / reached:.1f}",
    )  # fmt: skip
    trained = ladder.epochs_words(len(runs[last][0]["epochs"]))
    gained = {part: _seconds(runs, "main_baseline.py", part) / _seconds(runs, last, part) for part in PARTS}
    warm_up_s = statistics.median(run["extras"].get("warm_up_s", 0.0) for run in runs[last])
    with_warm_up = _seconds(runs, "main_baseline.py", "training_s") / (_seconds(runs, last, "training_s") + warm_up_s)
    yield (
        f"From the baseline to {last}, over {trained}, the process is {gained['process_s']:.1f} times as fast, "
        f"the loop {gained['training_s']:.0f} times, with its warm-up {with_warm_up:.0f}; "
        f"the floor is {100 * reached:.0f} % of that loop."
    )
    four_s, six_s = (_seconds(runs, step, "process_s") for step in ("main_opt4.py", "main_opt6.py"))
    yield (
        f"From opt4 to opt6 the loop becomes {times['training_s']:.1f} times as fast, and "
        f"the process {'loses' if four_s < six_s else 'gains'}: {four_s:.1f} s → {six_s:.1f} s."
    )
    longer_ms = {step: 1e3 * ladder.first_epoch_longer_s(runs[step]) for step in list(runs)[4:]}
    own = ", ".join(f"{step.removesuffix('.py')} by {ms:.0f} ms" for step, ms in longer_ms.items() if ms >= 1)
    if own:
        yield f"The first epoch is still longer than the others: {own}."


def _whole_ladder(runs: Mapping[str, Sequence[dict]]) -> list[Spread]:
    """How many times as fast the last rung is as the baseline, in rounds: the loop, and the process."""
    return [paired(runs["main_baseline.py"], runs[list(runs)[-1]], part) for part in PARTS]


def _seconds(runs: Mapping[str, Sequence[dict]], step: str, part: str) -> float:
    """The median over a step's runs."""
    return spread(runs[step], part).median


def convolve_in_a_step(opt7: Report, opt8: Report) -> Iterator[Claim | str]:
    """How long the kernels that convolve take in either step, where both have such and ran on one kind of GPU."""
    seven_us, eight_us = (_convolving_us(report) for report in (opt7, opt8))
    if seven_us and opt7.gpu == opt8.gpu:
        yield f"All that convolves in a step: opt7 {seven_us:.0f} µs, opt8 {eight_us:.0f} µs."


def _convolving_us(report: Report) -> float:
    """The mean µs of each kernel that convolves, added."""
    found = verdicts(report)
    return 1e3 * (found["gpu_ms"] / found["count"])[found["kernel"].str.match(CONVOLVES)].sum()


def beside_the_ladder(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """The two steps beside the ladder against those that they change: epochs, but for the first."""
    ms = {step.removesuffix(".py"): epoch_ms(own) for step, own in runs.items()}
    gains = ms["main_opt6"] / ms["main_opt6_block"], ms["main_opt7"] / ms["main_opt8"]
    yield "Later epochs: opt6_block is {:.2f} times as fast as opt6, opt8 {:.2f} times as fast as opt7.".format(*gains)
    yield Claim(
        "the later epochs of each are at least 1.5 times as fast as those of the step that it changes",
        min(gains) > 1.5, "{:.2f} and {:.2f}".format(*gains),
        because="their kernels were chosen on an H200, or this GPU can't run them",
        so="keep the one that gains something here, if either does",
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
    yield f"Of what kernels need one after another, the convolutions need {convs:.0f} µs."


# --- what the reader predicts --------------------------------------------------------------------------------


def _gained(part: str) -> Callable[..., float]:
    """How many times as fast opt7 is as opt6 in this part of a process; not measured where it doesn't run."""
    return lambda runs, *_: (
        paired(runs["main_opt6.py"], runs["main_opt7.py"], part).median if "main_opt7.py" in runs else float("nan")
    )


PREDICTIONS = {
    "times": Guess(
        "the loop with kernels of our own",
        " times",
        _gained("training_s"),
        wrong={
            "That's the whole process, which has a compiler's start-up and warm-up less, too.": _gained("process_s"),
            "That's every kernel at the roof it has today. Ours don't reach their roofs either.": (
                lambda _, limits, __: limits["us"].sum() / limits["floor_us"].sum()
            ),
            "That's the floor of lab 9, where nothing ever waits.": lambda runs, _, peaks: (
                _seconds(runs, "main_opt6.py", "training_s") / training_floor_s(peaks, runs)
            ),
        },
    ),
}


# --- exercises -----------------------------------------------------------------------------------------------


def _first_times(entries: pd.DataFrame) -> set[str]:
    """The rung of the shortest first process, and those whose own runs reach as low: nothing tells these apart."""
    cold = entries["cold_s"].astype(float)
    best = cold.fillna(entries["process_s"]).idxmin()
    reaches = cold.fillna(entries["process_high_s"])[best]
    return {entries.loc[best, "step"], *entries.loc[cold.fillna(entries["process_low_s"]) <= reaches, "step"]}


FIRST_TIME = Choice(
    READ,
    "Take the cold process where there is one, else the usual one, and compare the seconds.",
    right=_first_times,
    wrong={
        "main_opt7.py": "its kernels are compiled in the first process: look at its cold seconds",
        "main_opt6.py": "it is compiled in the first process: look at its cold seconds",
        "main_baseline.py": "nothing is compiled, and it takes the longest all the same: compare the seconds",
        "main_opt3.py": "nothing is compiled, but the loader is still there: a later rung has none",
    },
)


def _last(part: str) -> Quantity:
    return Quantity(lambda entries, floor_s: float(entries.iloc[-1][part]))


PROCESS_S, LOOP_S, FLOOR_S = _last("process_s"), _last("training_s"), Quantity(lambda entries, floor_s: floor_s)
LEFT_S = PROCESS_S - (LOOP_S - FLOOR_S)  # of the last rung's process, with its loop at the floor

AT_THE_FLOOR = Number(
    BOUND,
    "The process less what the loop saves; the rest stays as it is.",
    right=PROCESS_S / LEFT_S,
    wrong={
        "that is how many times as fast the loop becomes: the process holds more than the loop": LOOP_S / FLOOR_S,
        "that is the process without any training: the floor stays": PROCESS_S / (PROCESS_S - LOOP_S),
        "that is as if the whole process came down to the floor": PROCESS_S / FLOOR_S,
        "that is turned over: the share of the process that is left": LEFT_S / PROCESS_S,
    },
    within=0.005,
)


@quietly
def _try_spread(spread: Callable) -> str | None:
    generator = torch.Generator().manual_seed(0)
    for count, high, wide, channels in ((2, 3, 4, 5), (3, 2, 2, 8), (1, 1, 1, 1)):
        output = torch.randn(count, 2 * high, 2 * wide, channels, generator=generator).requires_grad_()
        gradient = torch.randn(count, high, wide, channels, generator=generator)
        windows = output.detach().view(count, high, 2, wide, 2, channels).permute(0, 1, 3, 5, 2, 4).flatten(4)
        best, place = windows.max(dim=4)
        winner = torch.where(best > 0, place, 4).to(torch.uint8)
        pooled = torch.nn.functional.max_pool2d(output.permute(0, 3, 1, 2), 2).relu().permute(0, 2, 3, 1)
        [right] = torch.autograd.grad(pooled, output, gradient)
        found = spread(gradient.clone(), winner.clone())
        if not isinstance(found, torch.Tensor) or found.shape != right.shape:
            size = tuple(found.shape) if isinstance(found, torch.Tensor) else shown(found)
            return f"it returns {size}: the convolution's output is {tuple(right.shape)}"
        if torch.equal(found, right):
            continue
        if torch.equal(found.flatten().sort()[0], right.flatten().sort()[0]):
            swapped = torch.equal(found, _laid_out(_by_place(gradient, winner, (0, 2, 1, 3))))
            upper = "0 and 1 are the window's upper two outputs, 2 and 3 its lower two"
            return f"1 and 2 are swapped: {upper}" if swapped else "the right numbers, at the wrong places"
        if torch.equal(found, _to_all_four(gradient)):
            return "all four get the gradient: only the winner was passed on, so only the winner gets it"
        if torch.equal(found, _to_all_four(gradient) / 4):
            return "each gets a quarter, as of a mean: of a maximum, the winner gets all"
        if found[_to_all_four(winner == 4)].any():
            return "where the winner is 4, ReLU put all four out: nothing flows back"
        return "some gradients are not those of autograd"
    return None


def _by_place(gradient, winner, places=(0, 1, 2, 3)):
    """The gradient of each of a window's four outputs: ``(N, H, W, C, 4)``."""
    return torch.where(winner[..., None] == torch.tensor(places), gradient[..., None], 0.0)


def _to_all_four(pooled):
    """``(N, H, W, C)`` → ``(N, 2 H, 2 W, C)``: what a window has, at each of its four outputs."""
    return pooled.repeat_interleave(2, 1).repeat_interleave(2, 2)


def _laid_out(windows):
    """``(N, H, W, C, 4)`` → ``(N, 2 H, 2 W, C)``: the four of each window side by side."""
    count, high, wide, channels, _ = windows.shape
    rows = windows.unflatten(4, (2, 2)).permute(0, 1, 4, 2, 5, 3)
    return rows.reshape(count, 2 * high, 2 * wide, channels)


SPREAD = Code(
    "For each place 0 to 3: gradient * (winner == place) goes to every other row and every other column.",
    _try_spread,
    wrong={
        "only the winner gets it": lambda gradient, _: _to_all_four(gradient),
        "of a maximum, the winner gets all": lambda gradient, _: _to_all_four(gradient) / 4,
        "nothing flows back": lambda gradient, winner: _laid_out(_by_place(gradient, winner.clamp(max=3))),
        "1 and 2 are swapped": lambda gradient, winner: _laid_out(_by_place(gradient, winner, (0, 2, 1, 3))),
        "the convolution's output is": _by_place,
        "at the wrong places": lambda gradient, winner: _by_place(gradient, winner).reshape(
            len(gradient), 2 * gradient.shape[1], 2 * gradient.shape[2], -1
        ),
        "not those of autograd": lambda gradient, winner: -_laid_out(_by_place(gradient, winner)),
    },
)
EXERCISES = {"11.1": FIRST_TIME, "11.2": AT_THE_FLOOR, "11.3": SPREAD}
