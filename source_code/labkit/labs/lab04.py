"""What lab 4 claims: mixed precision hands work to the Tensor Cores, the GPU is done earlier, and others take over.

Its exercises: the smallest FP16 number, a step in mixed precision, and the score of a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from labkit.checks import Claim, Note
from labkit.display.runs import in_rounds
from labkit.display.spread import paired
from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, Number
from labkit.subjects.accuracy import below
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
        so=f"{used_ms:.0f} of {ms.sum():.0f} ms have already what this lab wants to give them",
    )  # fmt: skip
    used = f"of {ms.sum():.0f} ms of kernels, Tensor Cores work in {used_ms:.0f} ms"
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
        so=_here(reports[FP32], f"in TF32 there are still {left_ms[TF32]:.0f} ms to gain"),
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
    yield Note(f"At most {bound.at_most_ms:.0f} ms; the GPU works {saved_ms:.0f} ms less, {100 * share:.0f} %.")
    yield Claim(
        "the GPU's work became shorter by no more than the bound", saved_ms <= bound.at_most_ms, saved_ms,
        because="the GPU ran at another clock rate in one of the two profiles",
        so="profile both again, one right after the other",
    )  # fmt: skip
    yield f"The epoch is shorter by {made.gained_ms:.0f} ms."
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
        so=_here(before, f"the kernels save {max(0, saved_ms):.0f} ms an epoch; no run can gain more"),
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
    yield f"Kernels launched: {launched[0]:,} before, {launched[1]:,} after."
    epoch = f"the epoch is {abs(made.gained_ms):.0f} ms {'shorter' if made.gained_ms > 0 else 'longer'}"
    yield _here(before, f"the GPU works {saved_ms:.0f} ms less; {epoch}")
    yield ", ".join(f"{name} grew by {grew[name]:.0f} ms" for name in most) or "nothing grew"
    if saved_ms <= 0:
        yield _here(before, "mixed precision does not make this GPU's work shorter")
    elif made.gained_ms > 1.1 * saved_ms:
        fell = min(grew, key=grew.get)
        yield f"the kernels did not give all of that: {fell} fell by {-grew[fell]:.0f} ms"
    elif made.gained_ms < saved_ms / 2:
        yield "waiting took most of what the kernels gave: the epoch did not wait for them"
    else:
        yield "most of what the kernels gave came out at the end: the epoch waited for them"


def loop_within_bound(slow: Sequence[dict], fast: Sequence[dict], made: Comparison) -> Iterator[Claim | str]:
    """Without the profiler, too, no more is saved than the bound of as many epochs; ``slow``, ``fast``: runs."""
    saved_s = [one["training_s"] - other["training_s"] for one, other in zip(slow, fast, strict=False)]
    epochs = len(slow[0]["epochs"])
    bound_s = epochs * made.bounds["mixed_precision"].at_most_ms / 1e3
    yield f"In a round, the training loop saves {min(saved_s):.2f} to {max(saved_s):.2f} s"
    yield f"The bound of {epochs} epochs is {bound_s:.1f} s."
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
            yield f"{name}: {ratio.median:.2f} times as fast, {minutes:.0f} minutes apart:"
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


# --- exercises ------------------------------------------------------------------------------------------------


SMALLEST_HALF = Number(
    READ,
    "The smallest exponent is -14, and a subnormal number has ten more bits below it.",
    right=lambda: 2.0**-24,
    wrong={
        "that is the smallest normal number: below it are the subnormal ones": lambda: 2.0**-14,
        "that is what is rounded to zero: half of the smallest number": lambda: 2.0**-25,
        "that is the distance from 1 to the next number: near zero numbers are finer": lambda: 2.0**-10,
        "that is BF16's smallest normal number: it has FP32's exponents, FP16 has fewer": lambda: 2.0**-126,
        "that is the exponent alone: the number is a power of two": lambda: -24.0,
    },
)

SCALE = 1024.0
STALE = 1e5  # each gradient of the step before: far more than this step's, even scaled


class StepTrial:
    """One call of the reader's step on a small network, and what its scaler saw."""

    def __init__(self, amp_step: Callable, max_norm: float) -> None:
        import torch  # here and below: the recorded labs need none
        from torch import nn

        torch.manual_seed(0)
        self.max_norm, self.types = max_norm, []
        self.model, own = nn.Linear(8, 1), nn.Linear(8, 1)
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
            amp_step(self.model, nn.MSELoss(), data, target, optimizer, self.scaler, max_norm)
        except (AssertionError, RuntimeError) as error:  # a scaler that is used in another order
            if isinstance(error, NotImplementedError):
                raise
            self.error = error
        self.moved = self.before - self._weights()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(own(data), target)
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
        import torch

        gradients = [parameter.grad for parameter in model.parameters()]
        if any(one is None for one in gradients):
            return None
        return torch.cat([one.detach().flatten() for one in gradients]).clone()

    def _weights(self):
        import torch

        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()]).clone()

    def said(self) -> str | None:
        """What is wrong with the step, or None."""
        import torch

        if self.error and not self.types:
            raise self.error
        if torch.float32 in self.types or not self.types:
            return "the forward pass runs in FP32: it belongs into torch.autocast, for the data's device"
        if torch.bfloat16 in self.types:
            return "autocast computes in BF16, which needs no scaler: name torch.float16"
        if "scale" not in self.asked:
            return "the loss is never scaled"
        cleared = "there are no gradients at the step: is zero_grad() called after backward()?"
        if self.error:
            if self.asked.keys() & {"unscale_", "step"} and list(self.asked.values())[-1] is None:
                return cleared
            raise self.error
        for name, why in (
            ("step", "scaler.step(optimizer) is missing: it leaves out steps that overflow"),
            ("update", "scaler.update() is missing"),
        ):
            if name not in self.asked:
                return why
        order = list(self.asked)
        unscaled_first = "unscale_" in order and order.index("unscale_") < order.index("step")
        scaled = self.asked["unscale_" if unscaled_first else "step"]  # as backward, or a clip, left them
        if self._same(scaled, SCALE * self.gradient + self.stale):
            return "the gradients of the step before are still in it: optimizer.zero_grad() is missing"
        if scaled is None or not scaled.any():
            return cleared
        if self._same(scaled, self.gradient):
            return "backward() starts from the loss that is not scaled"
        if not self._same(scaled, SCALE * self.gradient):
            return "the gradients are clipped while they are still scaled: call scaler.unscale_(optimizer) first"
        if not unscaled_first:
            return "the gradients are not clipped before the step, or only after it"
        return self._clipped(self.asked["step"])

    def _clipped(self, gradient) -> str | None:
        import torch

        norm, own, most = gradient.norm(), self.gradient.norm(), self.max_norm
        if torch.nn.functional.cosine_similarity(gradient, self.gradient, dim=0) < 0.999:
            return "the gradients point elsewhere after the clip: clip their norm, not each number"
        wanted = min(float(own), most)
        if norm > 1.01 * wanted:
            return f"the gradients' norm is {norm:.3g} at the step: clip them to max_norm, {most:g} here"
        if norm < 0.99 * wanted:
            return f"the gradients' norm is {norm:.3g} at the step, where {own:.3g} may stay up to {most:g}"
        if not self._same(self.moved, gradient):
            return "the weights do not move by one step: is the optimizer asked twice, or before the clip?"
        return None

    @staticmethod
    def _same(found, wanted) -> bool:
        import torch

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
        import torch

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


def _clip_values(parameters, max_norm):
    import torch

    torch.nn.utils.clip_grad_value_(parameters, max_norm)


def _clip_to(norm: float) -> Callable:
    def clip(parameters, max_norm):
        import torch

        torch.nn.utils.clip_grad_norm_(parameters, norm)

    return clip


def _always_to_max_norm(parameters, max_norm):
    own = list(parameters)
    norm = sum(float(one.grad.norm()) ** 2 for one in own) ** 0.5
    for one in own:
        one.grad *= max_norm / norm


def _twice(scaler, optimizer):
    scaler.step(optimizer)
    optimizer.step()


AMP_STEP = Code(
    "zero_grad, autocast for the forward pass, scale and backward, unscale_, clip_grad_norm_, step, update.",
    _try_amp_step,
    wrong={
        "the forward pass runs in FP32": _amp_step(kind="float32"),
        "autocast computes in BF16": _amp_step(kind="bfloat16"),
        "the loss is never scaled": _amp_step(scaled=False),
        "backward() starts from the loss that is not scaled": _amp_step(scaled="and thrown away"),
        "optimizer.zero_grad() is missing": _amp_step(zero="never"),
        "is zero_grad() called after backward()?": _amp_step(zero="after backward"),
        "clipped while they are still scaled": _amp_step(unscale="after the clip"),
        "clipped while they are still scaled: call": _amp_step(unscale="never"),
        "clip their norm, not each number": _amp_step(clip=_clip_values),
        "is 0.01 at the step, where": _amp_step(clip=_clip_to(0.01)),
        "clip them to max_norm, 0.25 here": _amp_step(clip=_clip_to(1.0)),
        "clip them to max_norm, 1 here": _amp_step(clip=lambda *_: None),
        "clip them to max_norm, 10000 here": _amp_step(clip=_always_to_max_norm),
        "not clipped before the step": _amp_step(clip=lambda *_: None, unscale="never"),
        "scaler.step(optimizer) is missing": _amp_step(step=lambda scaler, optimizer: optimizer.step()),
        "scaler.update() is missing": _amp_step(update=False),
        "is the optimizer asked twice": _amp_step(step=_twice),
    },
)


def _gained_ms(before: Report, after: Report) -> float:
    return compare(before, after).gained_ms


def _bound_ms(before: Report, after: Report) -> float:
    bound_ms = compare(before, after).bounds["mixed_precision"].at_most_ms
    if not bound_ms:
        raise NothingToAnswer("mixed precision has nothing to gain in this report")
    return bound_ms


def _epoch_ms(report: Report) -> float:
    return report.window().duration_ms


SHARE_OF_BOUND = Number(
    BOUND,
    "By how much the epoch became shorter, over what the first of the two reports says is possible.",
    right=lambda before, after: 100 * _gained_ms(before, after) / _bound_ms(before, after),
    wrong={
        "that is a share of 1: in per cent it is a hundred times as much": lambda b, a: (
            _gained_ms(b, a) / _bound_ms(b, a)
        ),
        "those are the milliseconds gained: what share of the bound are they?": _gained_ms,
        "that is the bound itself, in milliseconds": _bound_ms,
        "that is the gain as a share of the whole epoch, not of its bound": lambda b, a: (
            100 * _gained_ms(b, a) / _epoch_ms(b)
        ),
        "that is the bound over the gain: the other way round": lambda b, a: 100 * _bound_ms(b, a) / _gained_ms(b, a),
        "that is held against the bound of the second report: the first one promised it": lambda b, a: (
            100 * _gained_ms(b, a) / compare(a, b).bounds["mixed_precision"].at_most_ms
        ),
    },
)

EXERCISES = {"4.1": SMALLEST_HALF, "4.2": AMP_STEP, "4.3": SHARE_OF_BOUND}
