"""What lab 7 claims: what launches cost, what one launch of an epoch gains, and what of that is the graph's.

Its exercises: a bound for kernels of any speed, a step that a graph can hold, what holds up a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim, Note
from labkit.display.runs import epoch_ms
from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.lazily import torch
from labkit.numbers import Quantity
from labkit.predictions import Guess
from labkit.subjects import accuracy, bounds
from labkit.subjects.ladder import epoch_times, first_epoch_longer_s
from stepbudget.ask.budget import CAUSES, IDLE, budget
from stepbudget.ask.compare import compare
from stepbudget.ask.idle import idle
from stepbudget.ask.iterations import step_windows
from stepbudget.ask.launch import launch
from stepbudget.ask.phases import phases
from stepbudget.ask.predict import bound
from stepbudget.report import Report

LOOP = ["gather", "zero grad", "forward", "loss", "backward", "optimizer step"]  # phases of a step that launch
SCRIPTS = ("main_opt4.py", "main_opt5.py")  # launched one by one, and as one graph

FULL, FEW = 1024, 16  # digits a step in bench_launches.py: ours, and next to no work for the GPU


def cpu_at_work(opt4: Report) -> Iterator[Claim | str]:
    """How long the CPU launches in an epoch, how long the GPU works, and which takes longer."""
    by_phase, gpu_ms = phases(opt4).set_index("phase")["cpu_ms"], idle(opt4).busy_ms
    cpu_ms = by_phase.reindex(LOOP).sum()
    yield Note(
        f"An epoch of {opt4.window().duration_ms:.0f} ms: the CPU prepares and launches for {cpu_ms:.0f} ms, "
        f"the GPU works for {gpu_ms:.0f} ms."
    )
    yield Claim(
        "the CPU is at work for more than a tenth of the GPU's time: launches may matter",
        cpu_ms > gpu_ms / 10,
        cpu_ms,
        because="each kernel of a slow GPU outlasts many launches",
        so="launches stay hidden behind kernels: expect little of the graph in this lab",
    )
    if not gpu_ms > 0:  # NaN: nobody knows, as without a GPU
        yield "No GPU worked: nothing was launched."
    elif gpu_ms > cpu_ms:
        yield "Under the profiler, the GPU takes longer: the CPU's part is hidden behind the kernels."
    else:
        yield "Under the profiler, the CPU takes longer: the kernels wait for their launches already."


def launches(opt4: Report, bare_us: Mapping[str, float]) -> Iterator[Claim | str]:
    """How long a launch takes against a kernel, and the barest one from ``python`` and in a ``graph``."""
    found, steps = launch(opt4), len(step_windows(opt4))
    python_us, graph_us = bare_us["python"], bare_us["graph"]
    yield f"{found.launches / steps:.0f} launches in each of {steps} steps."
    times = found.launch_us / found.kernel_us
    yield f"From one launch to the next the CPU takes {times:.1f} times as long as the usual kernel runs."
    yield (
        f"The barest launch, without the profiler: {python_us:.1f} µs from Python, {graph_us:.1f} µs in a graph. "
        f"The first is {python_us / found.kernel_us:.1f} times as long as the usual kernel."
    )
    spared_ms = found.launches * (python_us - graph_us) / 1e3
    yield Claim(
        "in a graph a small kernel takes less than half as long", graph_us < python_us / 2, graph_us / python_us,
        because="the CPU is fast, or the GPU takes long to start any kernel",
        so=f"at this rate a graph spares opt4's CPU {spared_ms:.0f} ms an epoch",
    )  # fmt: skip
    own = bound(opt4, budget(opt4), "cuda_graph")
    yield (
        f"Upper bound for a graph, under the profiler: {own.at_most_ms:.0f} of {own.of_ms:.0f} ms, "
        f"or {own.at_most_times:.2f} times as fast."
    )


def epoch_shorter(opt4: Report, runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """An epoch by the clock, and what the GPU's own work would allow; ``runs``: by their scripts."""
    before, after = (runs[script] for script in SCRIPTS)
    took_ms = [epoch_ms(own) for own in (before, after)]
    longer_ms = [1e3 * first_epoch_longer_s(own) for own in (before, after)]
    more = [f"{ms:.0f} ms more" if ms >= 1 else "hardly more" for ms in longer_ms]
    yield (
        f"A training epoch without the profiler: {took_ms[0]:.0f} ms before, {took_ms[1]:.0f} ms after. "
        f"The first, left out here, takes opt4 {more[0]}, opt5 {more[1]}."
    )
    faster = epoch_times(before, after)
    yield Claim(
        "opt5's epoch is shorter than opt4's, in every round", faster.low > 1, faster.low,
        because="a slow GPU hid the launches, and channels-last gains only with Tensor Cores",
        so=f"graph and layout make it {faster.median:.2f} times as fast: opt4 is simpler",
    )  # fmt: skip
    if idle(opt4).busy_ms:
        yield (
            f"With no idle time left, opt4 would be {without_idling(opt4, runs):.2f} times as fast. "
            f"It became {faster.median:.2f} times as fast."
        )
    peaks_mb = [own[0]["peak_gpu_memory_mb"] or 0 for own in (before, after)]
    yield f"Peak GPU memory: {peaks_mb[0]:.0f} MB before, {peaks_mb[1]:.0f} MB after."


def graph_gained(opt4: Report, opt5: Report, timed: Sequence[dict]) -> Iterator[Claim | str]:
    """What the graph was predicted to gain and did; ``timed``: runs of opt5 without the profiler."""
    made = compare(opt4, opt5)
    score = made.score("cuda_graph")
    if score is None:
        yield "there is no score: the two reports hold no work of a GPU to compare"
        return
    idle_ms, most_ms = made.before.idle_ms - made.after.idle_ms, score.bound.at_most_ms
    yield Claim(
        "the causes that the graph treats shrank to less than a quarter", score.removed_ms > 0.75 * most_ms,
        score.removed_ms,
        because="they were few milliseconds, and tracing node by node leaves gaps of its own",
        so=f"of at most {most_ms:.1f} ms the graph took {score.removed_ms:.1f}",
    )  # fmt: skip
    before, calls = launch(opt4).launches, launch(opt5).launches
    yield Claim(
        "an epoch is launched by fewer than a hundred calls, not by thousands", calls < 100 and before > 1000, calls
    )
    yield Claim(
        "the GPU idles for less than half as long", made.after.idle_ms < made.before.idle_ms / 2, made.after.idle_ms,
        because="it hardly idled before: on a slow GPU launches are hidden",
        so=f"the graph frees the CPU, and the epoch gains {idle_ms:.1f} ms of idle time by it",
    )  # fmt: skip
    slowed = opt5.window().duration_ms / epoch_ms(timed)
    yield Claim(
        "traced node by node, the graph's epoch takes at most a quarter longer", slowed < 1.25, slowed,
        because="short kernels on a fast GPU, or an older Nsight Systems, which pays more for each",
        so=f"its profiled epoch is {slowed:.2f} times too long: for times, believe the runs above",
    )  # fmt: skip


def graph_alone(ways: pd.DataFrame) -> Iterator[Claim | str]:
    """What the graph gains without the layout; ``ways``: an epoch of 1,024 and of 16 digits a step, a row each."""
    sizes = ways.set_index("digits a step")
    full, few = sizes["times as fast"].loc[[FULL, FEW]]
    slower = "CPU" if sizes["one by one"][FEW] > sizes["graph"][FULL] else "GPU"  # each with next to none of the other
    yield Claim(
        "with next to no work a step, a graph is at least twice as fast", few > 2, few,
        because="a fast CPU launches nearly as fast as the GPU runs such small kernels",
        so="a graph frees your CPU, and shortens a training only where the kernels are shorter still",
    )  # fmt: skip
    yield (
        f"Of 1,024 digits, the graph alone makes an epoch {full:.2f} times as fast: "
        f"one by one, the {slower} is the slower side."
    )


def accuracy_kept(baseline: Sequence[float], opt5: Sequence[float]) -> Iterator[Claim | str]:
    """The step passes the gate: test accuracies of both, one a seed."""
    yield accuracy.passes("opt5", baseline, opt5)


# --- its readings --------------------------------------------------------------------------------------------


def bare_us(records: Sequence[dict]) -> dict[str, float]:
    """Microseconds of a kernel with next to nothing to do, launched from ``python`` and in a ``graph``.

    ``records``: of ``bench_peaks.py``; medians over them.
    """
    rows = pd.DataFrame([row for record in records for row in record["rows"]])
    return rows[rows["what"] == "launch"].groupby("how")["us"].median().to_dict()


def without_idling(opt4: Report, runs: Mapping[str, Sequence[dict]]) -> float:
    """How many times as fast would opt4's timed epoch be, if its kernels alone were left?"""
    return epoch_ms(runs[SCRIPTS[0]]) / idle(opt4).busy_ms


# --- predictions ----------------------------------------------------------------------------------------------


def _faster(opt4: Report, runs: Mapping[str, Sequence[dict]]) -> float:
    return epoch_times(*(runs[script] for script in SCRIPTS)).median


def _launching_ms(report: Report) -> float:
    found = launch(report)
    return found.launches * found.launch_us / 1e3


PREDICTIONS = {
    "graph_times": Guess(
        "an epoch in one launch",
        " times",
        _faster,
        wrong={
            "That's the profiled epoch's bound. The profiler slows every launch; without it, the GPU waits far less.": (
                lambda opt4, runs: bounds.at_most("cuda_graph")(opt4)
            ),
            "That takes away all idle time. The layout changes too, and makes the kernels shorter.": without_idling,
        },
    ),
    "saved_ms": Guess(
        "what a graph saves another program at most",
        " ms",
        bounds.at_most_ms("cuda_graph"),
        wrong={
            "That counts every launch. Nearly all are made while the GPU still works through its queue.": _launching_ms,
            "Those are the calls alone. The Python before each call goes, too.": bounds.row_ms("launch_overhead"),
            "That's all idle time. A graph doesn't shorten the wait for the loader or for the GPU.": bounds.idle_ms,
        },
    ),
}


# --- exercises ------------------------------------------------------------------------------------------------


def _ms(how: str, batch: int) -> Quantity:
    return Quantity(lambda ways: float(ways.set_index("digits a step")[how][batch]))


LAUNCHED_MS, NO_WORK_MS = _ms("one by one", FULL), _ms("one by one", FEW)

LAUNCHES_BOUND = Number(
    BOUND,
    "The epoch, over what is left of it when the GPU has next to nothing to do and each kernel is still launched.",
    right=LAUNCHED_MS / NO_WORK_MS,
    wrong={
        "that is what the graph gains, with the kernels as they are": LAUNCHED_MS / _ms("graph", FULL),
        "that has no launches either: each kernel is still launched by itself": LAUNCHED_MS / _ms("graph", FEW),
        "that is what a graph gains where the GPU has next to nothing to do": NO_WORK_MS / _ms("graph", FEW),
        "that is the share that is left: how many times as fast is the epoch then?": NO_WORK_MS / LAUNCHED_MS,
        "those are milliseconds: how many times as fast?": NO_WORK_MS,
    },
)

LIMIT = 2.0


def _try_clipped_step(clipped_step: Callable) -> str | None:
    from labkit.pretend.graph import CaptureError, captured

    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(8, generator=generator)
    direction /= direction.norm()
    weight, gradient, rate = torch.ones(8), 10 * direction, torch.tensor(0.25)
    place = weight.data_ptr()
    try:
        launch = captured(lambda: clipped_step(weight, gradient, rate, LIMIT))
    except CaptureError:
        return "a capture refuses it: it reads a number off a tensor (item, float, or an if over a tensor)"
    if weight.data_ptr() != place:
        return "it puts another tensor in the place of the weights: a graph has to change them where they lie"
    for norm, new_rate, wrong in (
        (10.0, 0.25, "a gradient of norm 10 is not clipped to 2"),
        (5.0, 0.25, "wrong for another large gradient: its norm was fixed at the capture"),
        (0.1, 0.25, "right for a large gradient, wrong for a small one: below the limit it stays as it is"),
        (0.1, 0.5, "a new learning rate changes nothing: the number was fixed at the capture"),
    ):
        gradient.copy_(norm * direction)
        rate.fill_(new_rate)
        before = weight.clone()
        launch()
        if torch.equal(weight, before):
            return "the weights did not move: a graph has to change them in their place"
        if not torch.allclose(gradient, norm * direction):
            return "it changes the gradient itself: whoever reads it after the step finds another"
        moved, wanted = before - weight, min(norm, LIMIT) * direction
        if norm == 10 and torch.allclose(moved, wanted, atol=1e-6):
            return "the rate is missing, or clipped away"
        if torch.allclose(moved, -new_rate * wanted, atol=1e-6):
            return "the weights go the wrong way: subtract"
        if not torch.allclose(weight, before - new_rate * min(norm, LIMIT) * direction, atol=1e-6):
            return wrong
    return None


def _moved(factor: Callable) -> Callable:
    """The weights move in their place, by so much of the gradient as ``factor(its norm, rate, limit)`` says."""
    return lambda weight, gradient, rate, limit: weight.sub_(factor(gradient.norm(), rate, limit) * gradient)


def _another_weight(weight, gradient, rate, limit):
    weight = weight - rate * (limit / gradient.norm()).clamp(max=1.0) * gradient


def _another_place(weight, gradient, rate, limit):
    weight.data = weight.data - rate * (limit / gradient.norm()).clamp(max=1.0) * gradient


def _gradient_in_place(weight, gradient, rate, limit):
    gradient.mul_((limit / gradient.norm()).clamp(max=1.0))
    weight.sub_(rate * gradient)


CLIPPED_STEP = Code(
    "A factor that is 1 for small gradients: limit / norm, clamped to at most 1, and all of it stays a tensor.",
    _try_clipped_step,
    wrong={
        "a capture refuses it": _moved(lambda norm, rate, limit: rate * min(1.0, limit / norm.item())),
        "below the limit it stays as it is": _moved(lambda norm, rate, limit: rate * limit / norm),
        "is not clipped to 2": _moved(lambda norm, rate, limit: rate),
        "a new learning rate changes nothing": _moved(lambda norm, rate, limit: 0.25 * (limit / norm).clamp(max=1.0)),
        "its norm was fixed at the capture": _moved(
            lambda norm, rate, limit: rate * (limit / (norm * 0 + 10)) ** (norm > limit)
        ),
        "in their place": _another_weight,
        "where they lie": _another_place,
        "the rate is missing": _moved(lambda norm, rate, limit: (limit / norm).clamp(max=1.0)),
        "go the wrong way": _moved(lambda norm, rate, limit: -rate * (limit / norm).clamp(max=1.0)),
        "it changes the gradient itself": _gradient_in_place,
    },
)


def _longest_idle(report: Report) -> list[str]:
    """The name of the row, and the parts of it that a reader may take for one."""
    found = budget(report)
    name = CAUSES[max(IDLE, key=lambda cause: found.ms[cause])]
    return [name, *name.split(": ")]


HELD_UP = Choice(
    READ,
    "Leave out what is work, kernels and copies. Of the other parts of opt4's bar, which is the longest?",
    right=_longest_idle,
    wrong={
        CAUSES["launch_overhead"]: "that is the calls themselves: what comes before each call takes longer",
        CAUSES["other_kernels"]: "that is work: while these kernels run, the GPU does not stand still",
        CAUSES["tensor_core_kernels"]: "that is work too, the kernels that use Tensor Cores",
        CAUSES["optimizer"]: "the optimizer is one phase of several: what all of them have in common takes longer",
        CAUSES["loader"]: "there is no loader in this step: the digits lie on the GPU",
    },
)

EXERCISES = {"7.1": LAUNCHES_BOUND, "7.2": CLIPPED_STEP, "7.3": HELD_UP}
