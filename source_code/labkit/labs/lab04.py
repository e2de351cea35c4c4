"""What lab 4 claims: mixed precision hands work to the Tensor Cores, the GPU is done earlier, and others take over.

Its exercises: the smallest FP16 number, a step in mixed precision, the score of a bound, a report with nothing to gain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from labkit import course
from labkit.checks import Claim, Note
from labkit.display.runs import in_rounds
from labkit.display.spread import paired, spread
from labkit.exercises.kinds import BOUND, READ, Choice, Code, NothingToAnswer, Number
from labkit.lazily import torch
from labkit.numbers import Quantity
from labkit.paths import RECORDED
from labkit.predictions import Guess
from labkit.source import recorded
from labkit.subjects import accuracy, windows
from labkit.subjects.unnamed import unnamed
from stepbudget.ask import idle, ops, tensor_cores
from stepbudget.ask.budget import CAUSES
from stepbudget.ask.compare import compare
from stepbudget.ask.launch import launch
from stepbudget.report import Report
from stepbudget.show.answers import Answer
from stepbudget.show.table import Table, table

FORMATS = ("--amp-dtype float32 --tf32", "", "--amp-dtype bfloat16")  # of main_opt3.py: TF32, FP16, BF16
RESNET = "examples/train_resnet.py --workers 14 --pinned"
IN_BF16 = "--amp --channels-last"
SAMPLED_US = 300.0  # a kernel as long has a sample of Tensor Active that is surely its own


# --- what the page shows --------------------------------------------------------------------------------------


step = windows.printing_step


def layers(eligible: Answer) -> Table:
    """The operations that ``sb.eligible`` finds, their sizes in words."""
    frame = eligible.frame[["operation", "sizes", "Tensor Cores", "reason", "ops", "GPU ms"]]
    sizes = [_sizes(*of) for of in zip(frame["operation"], frame["sizes"], strict=True)]
    return table(frame.assign(sizes=sizes), "Operations that could use Tensor Cores", {"GPU ms": "{:,.1f}"}, most=8)


def _sizes(operation: str, sizes: str | None) -> str:
    """``32 → 64 channels, 3 × 3`` for a convolution, ``9,216 → 128`` for a layer, else the tensors' sizes."""
    shapes = [shape for shape in json.loads(sizes or "[]") if shape]
    name = operation.rpartition("::")[2]
    if "conv" in name and len(shapes) >= 2:
        out, into, *kernel = shapes[2 if "backward" in name else 1]
        return f"{into} → {out} channels, {_times(kernel)}"
    if name == "linear" and len(shapes) >= 2:
        return f"{shapes[1][1]:,} → {shapes[1][0]:,}"
    return " by ".join(map(_times, shapes))


def _times(shape: Sequence[int]) -> str:
    return " × ".join(f"{size:,}" for size in shape)


def seeds() -> dict[str, list[float]]:
    """Test accuracy (per cent) with each seed, of the baseline first, then of each format."""
    commands = ["main_baseline.py", *(f"main_opt3.py {flags}".strip() for flags in FORMATS)]
    return {command: accuracy.seeds(command) for command in commands}


def resnet() -> tuple[Report, Report]:
    """A ResNet-50 that waits for nothing, without mixed precision and with it: the default machine's reports."""
    return unnamed("train_resnet_pinned", "resnet"), unnamed("train_resnet_amp", "resnet_amp")


def resnet_runs() -> tuple[list[dict], list[dict]]:
    """Its runs without a profiler, one a round, without mixed precision and with it."""
    where = RECORDED / course.DEFAULT_MACHINE
    return recorded.records("runs", RESNET, where), recorded.records("runs", f"{RESNET} {IN_BF16}", where)


def stranger() -> Report:
    """A report that tells nothing of itself, in which mixed precision has nothing to gain."""
    return unnamed("clinic_images_good", "stranger")


# --- what it claims -------------------------------------------------------------------------------------------


def unused(before: Report) -> Iterator[Claim | str]:
    """In FP32 hardly a kernel runs on Tensor Cores."""
    ms = tensor_cores.verdicts(before).groupby("tensor_core")["gpu_ms"].sum()
    used_ms = ms.get("yes", 0.0)
    yield Claim(
        "in FP32, at most 1 % of the kernel time is on Tensor Cores", used_ms <= 0.01 * ms.sum(), ms.round(1).to_dict(),
        because="a library or an environment variable lets FP32 products use Tensor Cores after all",
        so=f"{used_ms:.0f} of {ms.sum():.0f} ms are already on Tensor Cores",
    )  # fmt: skip
    used = f"kernels use Tensor Cores for {used_ms:.0f} of {ms.sum():.0f} ms"
    yield used if ms.sum() else "no kernels ran here"
    in_pooling = [pct for kernel, pct in tensor_cores.sampled(before)["sampled_pct"].items() if "pool" in kernel]
    if in_pooling:
        yield Note(f"In pooling, which can't use Tensor Cores, the counter reads {max(in_pooling):.1f} %.")


def whole_run(runs: Mapping[str, Sequence[dict]], accuracies: Mapping[str, Sequence[float]]) -> Iterator[Claim | str]:
    """What a whole run gains, and that it still learns; ``accuracies``: with each seed, the baseline's first."""
    ratio = paired(runs["main_opt2.py"], runs["main_opt3.py"], "training_s")
    yield f"FP16 against FP32: the training loop is {in_rounds(ratio)}"
    baseline, *formats = accuracies.values()
    lowest_p = min(accuracy.below(baseline, own) for own in formats)
    yield Note(f"Accuracy over {len(baseline)} seeds each: {accuracy.origin([*accuracies])}.")
    yield Claim(
        "no format's accuracy is significantly below the baseline's", lowest_p >= accuracy.SIGNIFICANCE,
        lowest_p,
        because="a small loss shows in some sets of ten seeds and not in others",
        so="train in the format with the highest mean in lab 5's table, with more seeds",
    )  # fmt: skip


def kernels_gained(before: Report, after: Report) -> Iterator[Claim | str]:
    """FP16 shortens the GPU's work, by no more than predicted; what took its place, and did the epoch wait for it?"""
    made, saved_ms = compare(before, after), _saved_ms(before, after)
    bound_ms = made.bounds["mixed_precision"].at_most_ms
    yield Claim(
        "same GPU, same steps, same bytes copied to it", made.comparable, made.obstacles,
        because="one of the two ran without a GPU, or on other digits",
        so="do not compare these two epochs: profile both again, one right after the other",
    )  # fmt: skip
    yield Claim(
        "in FP16 the GPU needs at least 20 % less time for an epoch", saved_ms > 0.2 * _busy_ms(before), saved_ms,
        because="kernels that move bytes gain at most half, and the GPU may have no Tensor Cores",
        so=_here(before, f"the kernels save {max(0, saved_ms):.0f} ms an epoch; no run can gain more"),
    )  # fmt: skip
    yield Claim(
        "it gains no more than the bound", saved_ms <= bound_ms, saved_ms,
        because="the GPU ran at another clock rate in one of the two profiles",
        so="profile both again, one right after the other",
    )  # fmt: skip
    yield Note(f"The GPU works {saved_ms:.0f} ms less; the bound was {bound_ms:.0f}.")
    launched = [launch(report).launches for report in (before, after)]
    yield Note(f"Kernels launched: {launched[0]:,} before, {launched[1]:,} after.")
    after_ms, before_ms = made.after.ms, made.before.ms
    grew = {_spoken(CAUSES[cause]): after_ms[cause] - before_ms[cause] for cause in made.before.idle_causes}
    most = [name for name in sorted(grew, key=grew.get, reverse=True)[:3] if grew[name] > 0.5]
    most_ms = ", ".join(f"{name} by {grew[name]:.0f} ms" for name in most)
    yield f"what grew: {most_ms}" if most else "nothing grew"
    epoch = f"the epoch is {abs(made.gained_ms):.0f} ms {'shorter' if made.gained_ms > 0 else 'longer'}"
    if saved_ms <= 0:
        yield _here(before, "mixed precision does not make this GPU's work shorter")
    elif made.gained_ms > 1.1 * saved_ms:
        fell = min(grew, key=grew.get)
        yield f"{epoch}, more than the kernels saved: {fell} fell by {-grew[fell]:.0f} ms"
    elif made.gained_ms < saved_ms / 2:
        yield f"{epoch}: the kernels' saving went into waiting, so they did not set the pace"
    elif _busy_ms(before) < made.before.window.duration_ms / 2:
        yield f"{epoch}, about what the kernels saved; but the GPU mostly idled, so other rows may have done it"
    else:
        yield f"{epoch}: it kept most of what the kernels saved, so they set the pace"


def formats(fp32: Report, tf32: Report, fp16: Report, bf16: Report) -> Iterator[Claim | str]:
    """Each format uses Tensor Cores, TF32 leaves little, and in FP16 the counter sees none of their kernels."""
    left_ms = [ops.summary(report).at_stake_ms for report in (fp32, tf32)]
    yield Claim(
        "TF32 leaves less than half of the milliseconds at stake", left_ms[1] < left_ms[0] / 2, left_ms,
        because="GPUs older than Ampere have no TF32, and not every library has kernels for it",
        so=_here(fp32, f"in TF32 there are still {left_ms[1]:.0f} ms to gain"),
    )  # fmt: skip
    own = ops.summary(fp16).instances
    yield Claim(
        "in FP16, more than half of the kernels in convolutions and matrix products use Tensor Cores",
        own["using"] > 0.5 * (sum(own.values()) - own["other"]), own,
        because="this GPU has none, or its kernels' names match no rule yet",
        so=_here(fp32, "mixed precision gains only what fewer bytes gain"),
    )  # fmt: skip
    yield Claim(
        "in BF16, kernels run on Tensor Cores", (tensor_cores.verdicts(bf16)["tensor_core"] == "yes").any(),
        because="GPUs older than Ampere emulate BF16 with FP32 arithmetic",
        so=_here(fp32, "ignore the BF16 rows; train in FP16 with a scaler"),
    )  # fmt: skip
    used = tensor_cores.verdicts(fp16).query("tensor_core == 'yes'")
    if used.empty:
        return
    longest_us = (1e3 * used["gpu_ms"] / used["count"]).max()
    yield Claim(
        f"in FP16 no kernel on Tensor Cores takes, on average, the {SAMPLED_US:.0f} µs that a sample needs",
        longest_us < SAMPLED_US, longest_us,
        because="a slower GPU takes longer for the same product",
        so=_here(fp32, "sb.sampled shows what the counter reads inside those kernels"),
    )  # fmt: skip


def pays(slow: Sequence[dict], fast: Sequence[dict]) -> Iterator[Claim | str]:
    """What a step of the ResNet takes without a profiler, without mixed precision and with it, a run a round."""
    ratio = paired(slow, fast, "step_ms")
    before, after = (spread(runs, "step_ms").text("ms") for runs in (slow, fast))
    yield Note(f"A step without the profiler: {before} before, {after} after, {in_rounds(ratio)}.")
    yield Claim("in each round a step is over 1.5 times as fast", ratio.low > 1.5, ratio.low)


def _spoken(row: str) -> str:
    """``CPU code (Python, libraries)``: a row's name, without its colon."""
    name, colon, what = row.partition(": ")
    return f"{name} ({what})" if colon else name


def _here(before: Report, what: str) -> str:
    """What follows on a machine whose GPU worked at all."""
    nothing = tensor_cores.verdicts(before).empty
    return "no GPU worked: read this lab with LAB_MODE=recorded" if nothing else what


@Quantity
def _busy_ms(report: Report, *_: Report) -> float:
    return idle.idle(report).busy_ms


def _saved_ms(before: Report, after: Report) -> float:
    return _busy_ms(before) - _busy_ms(after)


# --- what it asks to predict ----------------------------------------------------------------------------------


def _at_most_ms(before: Report, *_: Report) -> float:
    return compare(before, before).bounds["mixed_precision"].at_most_ms


@Quantity
def _kernels_ms(before: Report, *_: Report) -> float:
    return float(tensor_cores.verdicts(before)["gpu_ms"].sum())


PREDICTIONS = {
    "at_most": Guess(
        "what mixed precision gains at most in an epoch",
        " ms",
        lambda fp32, fp32_ops: _at_most_ms(fp32) or float("nan"),
        wrong={
            "That halves everything. Products may shrink to nothing.": _kernels_ms / 2,
            "Those are the eligible operations alone. Other kernels may halve, too.": lambda _, fp32_ops: (
                ops.summary(fp32_ops).at_stake_ms
            ),
            "That is all kernels. Those that only move numbers halve at best.": _kernels_ms,
        },
    ),
    "saved": Guess(
        "GPU work that FP16 saves in an epoch",
        " ms",
        lambda before, after: _saved_ms(before, after) or float("nan"),
        wrong={
            "That is the bound, where products take no time at all.": _at_most_ms,
            "That halves everything. Pooling takes as long as before, and conversions come on top.": _busy_ms / 2,
        },
    ),
}


# --- exercises ------------------------------------------------------------------------------------------------


SMALLEST_HALF = Number(
    READ,
    "The smallest exponent is -14, and subnormal numbers use ten more bits below it.",
    right=lambda: 2.0**-24,
    wrong={
        "that is the smallest normal number: subnormal ones go lower": lambda: 2.0**-14,
        "that is half of the smallest number: it rounds to zero": lambda: 2.0**-25,
        "that is the distance from 1 to the next number: near zero, steps are finer": lambda: 2.0**-10,
        "that is BF16's smallest normal number: it has FP32's exponents, FP16 has fewer": lambda: 2.0**-126,
        "that is the exponent alone: the number is a power of two": lambda: -24.0,
    },
)

SCALE = 1024.0
STALE = 1e5  # each gradient of the step before: far more than this step's, even scaled


class StepTrial:
    """One call of the reader's step on a small network, and what its scaler saw."""

    def __init__(self, amp_step: Callable, max_norm: float) -> None:
        torch.manual_seed(0)
        self.max_norm, self.types = max_norm, []
        self.model, own = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
        own.load_state_dict(self.model.state_dict())
        data, target = torch.randn(4, 8), torch.full((4, 1), 10.0)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, STALE)
        self.stale, self.before = self._flat(self.model), self._weights()
        self.model.register_forward_hook(lambda _, __, out: self.types.append(out.dtype))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.scaler = self._spy(torch.amp.GradScaler("cpu", init_scale=SCALE))
        self.error: Exception | None = None
        try:
            amp_step(self.model, torch.nn.MSELoss(), data, target, optimizer, self.scaler, max_norm)
        except (AssertionError, RuntimeError) as error:  # a scaler that is used in another order
            if isinstance(error, NotImplementedError):
                raise
            self.error = error
        self.moved = self.before - self._weights()
        with torch.autocast("cpu", torch.float16):
            loss = torch.nn.functional.mse_loss(own(data), target)
        loss.backward()
        self.gradient = self._flat(own)

    def _spy(self, scaler):
        """The scaler, noting what it was asked, and the gradients as they were then."""
        self.asked: dict = {}

        def noting(name: str, own: Callable) -> Callable:
            def noted(*arguments, **named):
                self.asked.setdefault(name, self._flat(self.model))
                return own(*arguments, **named)

            return noted

        for name in ("scale", "unscale_", "step", "update"):
            setattr(scaler, name, noting(name, getattr(scaler, name)))
        return scaler

    @staticmethod
    def _flat(model):
        gradients = [parameter.grad for parameter in model.parameters()]
        if any(one is None for one in gradients):
            return None
        return torch.cat([one.detach().flatten() for one in gradients]).clone()

    def _weights(self):
        return torch.nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()

    def said(self) -> str | None:
        """What is wrong with the step, or None."""
        if self.error and not self.types:
            raise self.error
        if torch.float32 in self.types or not self.types:
            return "the forward pass runs in FP32: it belongs in torch.autocast, for the data's device"
        if torch.bfloat16 in self.types:
            return "autocast computes in BF16, which needs no scaler: pass torch.float16"
        if "scale" not in self.asked:
            return "scaler.scale(loss), of the scaler that was given, is never called"
        asked = list(self.asked)
        if "update" in asked and "step" not in asked[: asked.index("update")]:
            if "step" in asked or not self.moved.any():
                return "scaler.update() comes before scaler.step(optimizer)"
            return "scaler.step(optimizer) is missing: it skips steps that overflow"
        cleared = "there are no gradients at the step: is zero_grad() called after backward()?"
        if self.error:
            if self.asked.keys() & {"unscale_", "step"} and list(self.asked.values())[-1] is None:
                return cleared
            raise self.error
        for name, why in (
            ("step", "scaler.step(optimizer) is missing: it skips steps that overflow"),
            ("update", "scaler.update() is missing"),
        ):
            if name not in self.asked:
                return why
        order = list(self.asked)
        unscaled_first = "unscale_" in order and order.index("unscale_") < order.index("step")
        scaled = self.asked["unscale_" if unscaled_first else "step"]  # as backward, or a clip, left them
        if self._same(scaled, SCALE * self.gradient + self.stale):
            return "the gradients of the step before are still there: optimizer.zero_grad() is missing"
        if scaled is None or not scaled.any():
            return cleared
        if self._same(scaled, self.gradient):
            return "backward() starts from the unscaled loss"
        if not self._same(scaled, SCALE * self.gradient):
            return "the gradients are clipped while they are still scaled: call scaler.unscale_(optimizer) first"
        if not unscaled_first:
            return "the gradients are not clipped, or only after the step"
        return self._clipped(self.asked["step"])

    def _clipped(self, gradient) -> str | None:
        norm, own, most = gradient.norm(), self.gradient.norm(), self.max_norm
        if torch.nn.functional.cosine_similarity(gradient, self.gradient, dim=0) < 0.999:
            return "the clip changes the gradients' direction: clip their norm, not each number"
        wanted = min(float(own), most)
        if norm > 1.01 * wanted:
            return f"the gradients' norm is {norm:.3g} at the step: clip them to max_norm, {most:g} here"
        if norm < 0.99 * wanted:
            return f"the gradients' norm fell from {own:.3g} to {norm:.3g}: clip only to max_norm, {most:g}"
        if not self._same(self.moved, gradient):
            return "the weights do not move by one step: did the optimizer step twice or before the clip?"
        return None

    @staticmethod
    def _same(found, wanted) -> bool:
        return found is not None and torch.allclose(found, wanted, rtol=0.02, atol=1e-3 * float(wanted.norm()))


def _try_amp_step(amp_step: Callable) -> str | None:
    for max_norm in (1.0, 0.25, 1e4):  # clipped, more so, and not at all
        if said := StepTrial(amp_step, max_norm).said():
            return said
    return None


def _amp_step(
    kind: str = "float16",
    zero: str = "first",
    scaled: bool = True,
    unscale: str = "before the clip",
    clip: Callable | None = None,
    step: Callable | None = None,
    update: bool = True,
) -> Callable:
    """A step with all that belongs to it, but for what is said otherwise."""

    def amp_step(model, loss_fn, data, target, optimizer, scaler, max_norm):
        if zero == "first":
            optimizer.zero_grad()
        with torch.autocast("cpu", getattr(torch, kind), enabled=kind != "float32"):
            loss = loss_fn(model(data), target)
        (scaler.scale(loss) if scaled is True else loss).backward()
        if scaled == "and thrown away":
            scaler.scale(loss)
        if zero == "after backward":
            optimizer.zero_grad()
        if unscale == "before the clip":
            scaler.unscale_(optimizer)
        (clip or torch.nn.utils.clip_grad_norm_)(model.parameters(), max_norm)
        if unscale == "after the clip":
            scaler.unscale_(optimizer)
        (step or (lambda scaler, optimizer: scaler.step(optimizer)))(scaler, optimizer)
        if update:
            scaler.update()

    return amp_step


def _always_to_max_norm(parameters, max_norm):
    own = list(parameters)
    norm = sum(float(one.grad.norm()) ** 2 for one in own) ** 0.5
    for one in own:
        one.grad *= max_norm / norm


AMP_STEP = Code(
    "zero_grad, autocast for the forward pass, scale and backward, unscale_, clip_grad_norm_, step, update.",
    _try_amp_step,
    wrong={
        "the forward pass runs in FP32": _amp_step(kind="float32"),
        "autocast computes in BF16": _amp_step(kind="bfloat16"),
        "of the scaler that was given, is never called": _amp_step(scaled=False),
        "backward() starts from the unscaled loss": _amp_step(scaled="and thrown away"),
        "optimizer.zero_grad() is missing": _amp_step(zero="never"),
        "is zero_grad() called after backward()?": _amp_step(zero="after backward"),
        "clipped while they are still scaled": _amp_step(unscale="after the clip"),
        "clipped while they are still scaled: call": _amp_step(unscale="never"),
        "clip their norm, not each number": _amp_step(clip=lambda *own: torch.nn.utils.clip_grad_value_(*own)),
        "to 0.01: clip only to max_norm, 1": _amp_step(clip=lambda own, _: torch.nn.utils.clip_grad_norm_(own, 0.01)),
        "clip them to max_norm, 0.25 here": _amp_step(clip=lambda own, _: torch.nn.utils.clip_grad_norm_(own, 1.0)),
        "clip them to max_norm, 1 here": _amp_step(clip=lambda *_: None),
        "clip them to max_norm, 10000 here": _amp_step(clip=_always_to_max_norm),
        "are not clipped, or only after the step": _amp_step(clip=lambda *_: None, unscale="never"),
        "scaler.step(optimizer) is missing": _amp_step(step=lambda scaler, optimizer: optimizer.step()),
        "scaler.update() is missing": _amp_step(update=False),
        "did the optimizer step twice": _amp_step(step=lambda scaler, own: (scaler.step(own), own.step())),
    },
)


@Quantity
def _bound_ms(before: Report, after: Report) -> float:
    bound_ms = compare(before, after).bounds["mixed_precision"].at_most_ms
    if not bound_ms:
        raise NothingToAnswer("mixed precision has nothing to gain in this report")
    return bound_ms


REMOVED_MS = Quantity(lambda before, after: compare(before, after).removed_ms("mixed_precision"))
GAINED_MS = Quantity(lambda before, after: compare(before, after).gained_ms)
ONE_ROW_MS = Quantity(lambda before, after: compare(before, after).shrank_ms["other_kernels"])
EPOCH_MS = Quantity(lambda before, after: before.window().duration_ms)
PER_CENT = 100 / _bound_ms

SHARE_OF_BOUND = Number(
    BOUND,
    "Divide the time gone from the rows that mixed precision treats by the bound in the first report.",
    right=PER_CENT * REMOVED_MS,
    wrong={
        "that is a share of 1: in per cent it is a hundred times as much": REMOVED_MS / _bound_ms,
        "those are the milliseconds gained: what share of the bound are they?": REMOVED_MS,
        "that is the bound itself, in milliseconds": _bound_ms,
        "that is what the whole epoch gained: mixed precision does not treat all of its rows": PER_CENT * GAINED_MS,
        "that is one row: kernels marked unknown are treated, too": PER_CENT * ONE_ROW_MS,
        "that is the gain as a share of the whole epoch, not of its bound": 100 * REMOVED_MS / EPOCH_MS,
        "that is the bound over the gain: the other way round": 100 * _bound_ms / REMOVED_MS,
    },
)

NOTHING_TO_GAIN = Choice(
    READ,
    "Is the GPU busy, and what do the names of its products say about their numbers?",
    right=lambda report: "16 bits",
    wrong={
        "idle": "the GPU is busy nearly all the time, so its kernels do set the pace",
        "no products": "some kernels say yes under Tensor Cores: those are its convolutions",
        "memory": "they do wait for memory, but only shorter numbers would help: how short are they already?",
    },
)

EXERCISES = {"4.1": SMALLEST_HALF, "4.2": AMP_STEP, "4.3": SHARE_OF_BOUND, "4.4": NOTHING_TO_GAIN}
