"""Is the loss scale healthy? A watch over scale, skipped steps and gradients, for any training loop, in three lines.

    monitor = LossScaleMonitor(model, scaler)       # or without a scaler
    …
        scaler.scale(loss).backward()
        monitor.look()                              # before the step: gradients are still scaled, as FP16 had them
        scaler.step(optimizer); scaler.update()
    …
    print(monitor.summary())

It looks at the gradients of the weights. Under autocast these are FP32 copies of what the backward pass worked out in
FP16, so what FP16 lost arrives as zero. Gradients between the layers are smaller still, and not seen here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import torch

SMALLEST_NORMAL = 2.0**-14  # below, FP16 has fewer digits the smaller the number
LARGEST = 65504.0

# When a window is worth a warning.
MANY_SKIPPED = 0.1  # of the window's steps; GradScaler's own search for the limit skips one in 2,000
MANY_SMALL = 0.5  # of the gradients that are not zero: subnormal. Where so many are, others have become zero
SMALL_SCALE = 1.0  # below, gradients are made smaller than they are


@dataclass(frozen=True)
class Window:
    """What was seen in ``every`` steps. Gradients are those of the window's last step, scaled as they were.

    A window that the training's end cut short has those of its first step.
    """

    step: int  # the last step, counted from 1
    steps: int
    scale: float  # 1.0 without a scaler
    skipped: int  # steps in which some gradient was not finite: GradScaler leaves them out
    not_finite: int  # numbers that were inf or NaN, in that step
    zero_share: float  # of all numbers
    subnormal_share: float  # not zero, and smaller in size than 2**-14
    largest: float  # absolute value of the finite ones

    @property
    def small_share(self) -> float:
        """Of the numbers that are not zero, those that are subnormal; 1 where all are zero.

        Zeros alone prove nothing: weights of pixels that are always black have no gradient in any format.
        """
        return self.subnormal_share / (1 - self.zero_share) if self.zero_share < 1 else 1.0

    @property
    def headroom(self) -> float:
        """By how many powers of two the scale could grow before the largest gradient overflows FP16."""
        return math.log2(LARGEST / self.largest) if self.largest else math.inf


class LossScaleMonitor:
    """Records the loss scale, skipped steps and the gradients' share of zeros, subnormals and non-finite numbers.

    ``watched``: a module, or (name, parameter) pairs. ``scaler``: a ``torch.amp.GradScaler``, or anything with its
    ``scale(tensor)``; None where the loss is not scaled. ``every``: steps a window; the device is waited for once a
    window, and gradients are counted one by one only in its first and last step. ``say`` gets each warning, one line;
    a warning is repeated only after a window without it.
    """

    def __init__(
        self,
        watched: torch.nn.Module | Iterable[tuple[str, torch.nn.Parameter]],
        scaler: torch.amp.GradScaler | None = None,
        every: int = 100,
        say: Callable[[str], None] = print,
    ) -> None:
        if every < 1:
            raise ValueError(f"every={every} is not a number of steps")
        named = watched.named_parameters() if isinstance(watched, torch.nn.Module) else watched
        self._named = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        if not self._named:
            raise ValueError("nothing to watch: no parameter requires a gradient")
        self._scaler, self._every, self._say = scaler, every, say
        device = self._named[0][1].device
        self._one = torch.ones((), device=device)
        self._scales = torch.ones(every, device=device)  # of the window, step by step
        self._bad = torch.zeros(every, len(self._named), dtype=torch.bool, device=device)  # step × parameter
        self._counted = torch.zeros(5, dtype=torch.float64, device=device)  # of the step counted last
        self._warned: set[str] = set()
        self.steps = 0
        self.windows: list[Window] = []
        self.scales: list[float] = []  # one a step, as far as windows are complete
        self.skipped: list[int] = []  # numbers of the steps, counted from 1
        self.bad_steps = {name: 0 for name, _ in self._named}  # steps in which this gradient was not finite

    @torch.no_grad()
    def look(self) -> None:
        """Look at the gradients as they are: call it after ``backward()`` and before ``step()`` or ``unscale_()``."""
        place = self.steps - len(self.scales)  # in the window that is open
        self.steps += 1
        if self._scaler is not None:
            self._scales[place] = self._scaler.scale(self._one)  # the scale itself, and no wait for the device
        largest = [self._largest(parameter.grad) for _, parameter in self._named]
        self._bad[place] = ~torch.stack(largest).isfinite()
        if place in (0, self._every - 1):
            self._counted = self._counts()  # now: after the step they may be unscaled
        if place == self._every - 1:
            self.flush()

    @torch.no_grad()
    def flush(self) -> None:
        """Close the window that is open, if any: at the end of a training."""
        steps = self.steps - len(self.scales)
        if not steps:
            return
        counts = self._counted.tolist()  # waits for the device
        scales, bad = self._scales[:steps].tolist(), self._bad[:steps].cpu()
        first = len(self.scales) + 1
        skipped = [first + i for i, row in enumerate(bad.any(dim=1).tolist()) if row]
        for (name, _), times in zip(self._named, bad.sum(dim=0).tolist(), strict=True):
            self.bad_steps[name] += times
        self.scales += scales
        self.skipped += skipped
        total, not_finite, zero, subnormal, largest = counts
        shares = (zero / total, subnormal / total) if total else (0.0, 0.0)
        window = Window(self.steps, steps, scales[-1], len(skipped), int(not_finite), *shares, largest)
        self.windows.append(window)
        self._warn(window)

    def summary(self) -> str:
        """One line: steps, scale now and its range, skipped steps, the last window's gradients."""
        self.flush()
        if not self.windows:
            return "no step seen"
        last = self.windows[-1]
        scale = f"scale {last.scale:g} ({min(self.scales):g}–{max(self.scales):g}), " if self._scaler else "no scale, "
        return (
            f"{self.steps} steps, {scale}{len(self.skipped)} with gradients not finite; last gradients: "
            f"{last.zero_share:.1%} zero, {last.subnormal_share:.1%} subnormal, {last.headroom:.0f} doublings of room"
        )

    def record(self) -> dict:
        """Everything seen, as plain numbers for a JSON record."""
        self.flush()
        changes = [
            (step, scale)
            for step, scale, before in zip(range(1, self.steps + 1), self.scales, [None, *self.scales], strict=False)
            if scale != before
        ]
        return {
            "steps": self.steps,
            "scale_changes": changes,
            "skipped": self.skipped,
            "bad_steps": {name: times for name, times in self.bad_steps.items() if times},
            "windows": [asdict(window) for window in self.windows],
        }

    def _largest(self, gradient: torch.Tensor | None) -> torch.Tensor:
        """Its largest absolute value, float32; inf or NaN if some number is; 0 where there is no gradient."""
        if gradient is None or not gradient.numel():
            return torch.zeros_like(self._one)
        return torch.linalg.vector_norm(gradient.detach(), ord=math.inf).float()

    def _counts(self) -> torch.Tensor:
        """Of the gradients as they are: how many, not finite, zero, subnormal; and the largest finite one."""
        found = torch.zeros(5, dtype=torch.float64, device=self._one.device)
        for _, parameter in self._named:
            if parameter.grad is None:
                continue
            size = parameter.grad.detach().abs()
            finite = size.isfinite()
            zero = size == 0
            subnormal = (size < SMALLEST_NORMAL) & ~zero
            found[0] += size.numel()
            found[1:4] += torch.stack([kind.sum() for kind in (~finite, zero, subnormal)])
            found[4] = torch.maximum(found[4], size.where(finite, 0).amax().double())
        return found

    def _warn(self, window: Window) -> None:
        small = f"{window.zero_share:.0%} of the gradients are zero and {window.subnormal_share:.0%} subnormal"
        # Its way down from 65,536 is normal, where it has arrived by the first window's end.
        search = len(self.windows) == 1 and window.step not in self.skipped
        worst = max(self.bad_steps, key=self.bad_steps.__getitem__)
        scaled = self._scaler is not None
        raise_it = f"the scale has {window.headroom:.0f} doublings of room" if scaled else "scale the loss"
        found = {
            "skipped": (
                window.skipped > MANY_SKIPPED * window.steps and not search,
                f"{window.skipped} of {window.steps} steps had gradients that are not finite, most often in {worst}",
            ),
            "small scale": (
                scaled and window.scale < SMALL_SCALE,
                f"the scale is {window.scale:g}: gradients overflow as they are. Is a loss summed, not averaged?",
            ),
            "small": (window.small_share > MANY_SMALL and not window.skipped, f"{small}: {raise_it}"),
        }
        now = {kind for kind, (holds, _) in found.items() if holds}
        for kind in now - self._warned:
            self._say(f"loss scale, step {window.step}: {found[kind][1]}")
        self._warned = now
