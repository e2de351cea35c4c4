"""Who holds the clock and the test digits? The referee: it plays an entry, seed by seed.

An entry is a file with three names:

``TRACK``    one of the tracks of RULES.md
``RECIPE``   its settings, a dictionary: what ``prepare`` takes by name
``prepare``  ``(images, labels, **recipe)`` → a trainer; ``images`` uint8 ``(N, 28, 28)`` and ``labels`` int64 ``(N,)``
             lie on the device, and keep their places there

and, if it likes, ``SPACE``: settings by name, each with a list of values, that a search tries. A trainer has

``start(seed)``      fresh weights, an optimizer that has seen nothing: not timed
``train()``          the training, from bytes to final weights: timed
``predict(images)``  a digit for each of the images, int64 ``(N,)``: not timed
``parameters()``     the weights' shapes by name
"""

from __future__ import annotations

import hashlib
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import torch

from labkit.errors import LabError, near
from labkit.paths import SOURCE_CODE
from labkit.speedrun.rules import HELD_OUT
from labkit.training.clock import stopwatch
from labkit.training.data import DigitSet

REHEARSALS = 2  # trainings on noise, before the first that counts
OWN = SOURCE_CODE / "speedrun"  # the course's entries
PARTS = ("TRACK", "RECIPE", "prepare")


@dataclass(frozen=True)
class Entry:
    """An entry's file, its names, and the settings that it is played with."""

    file: Path
    track: str
    recipe: dict
    prepare: Callable
    space: dict[str, list] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """The first 16 hexadecimal digits of the file's SHA-256."""
        return hashlib.sha256(self.file.read_bytes()).hexdigest()[:16]

    def but(self, **settings: object) -> Entry:
        """The same entry with other settings. LabError where it has no setting of that name."""
        for name in settings:
            if name not in self.recipe:
                raise LabError(f"{self.file.name} has no setting '{name}'. {near(name, [*self.recipe])}")
        return replace(self, recipe=self.recipe | settings)


def read(file: str | Path) -> Entry:
    """The entry of a file, or one of the course's by its name: ``any_net``.

    LabError where there is none, or where one of the names of an entry is missing.
    """
    path = Path(file)
    if not path.is_file() and str(file) in (own := {one.stem: one for one in OWN.glob("*.py")}):
        path = own[str(file)]
    if not path.is_file():
        raise LabError(
            f"there is no entry at {path}. {near(str(file), [one.stem for one in sorted(OWN.glob('*.py'))])}"
        )
    module = _module(path)
    missing = [name for name in PARTS if not hasattr(module, name)]
    if missing:
        raise LabError(f"{path} is no entry: it does not say {missing[0]}.")
    return Entry(path, module.TRACK, dict(module.RECIPE), module.prepare, dict(getattr(module, "SPACE", {})))


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"entry_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # so that the record's manifest names it
    spec.loader.exec_module(module)
    return module


def split(digits: DigitSet, held_out: int = HELD_OUT) -> tuple[DigitSet, DigitSet]:
    """Digits to train on, and the last ``held_out`` of them to choose by. LabError where too few are left."""
    rest = len(digits) - held_out
    if rest < held_out:
        raise LabError(f"of {len(digits):,} digits, {held_out:,} cannot be held out: take more digits.")
    return (
        DigitSet(digits.data[:rest], digits.targets[:rest]),
        DigitSet(digits.data[rest:], digits.targets[rest:]),
    )


class Play:
    """An entry, prepared for one training set: seeds are played one by one.

    The trainer is prepared and rehearsed on noise, and every ``start``, which is not timed, finds noise again; only
    then are the digits copied to where it was, in another order for each seed. So no batch prepared in advance helps.
    What an entry hides from the last seed, or does in ``predict``, is not seen here: that shows in the entry's file.
    """

    def __init__(self, entry: Entry, digits: DigitSet, device: torch.device) -> None:
        """Prepare and rehearse, which is warm-up: ``warm_up_s``. LabError where the entry's training breaks."""
        self.digits = DigitSet(digits.data.to(device), digits.targets.to(device))
        self.device = device
        self.images = torch.empty(digits.data.shape, dtype=torch.uint8, device=device)
        self.labels = torch.empty(digits.targets.shape, dtype=torch.int64, device=device)
        self._noise()
        start = time.perf_counter()
        self.trainer = entry.prepare(self.images, self.labels, **entry.recipe)
        for seed in range(REHEARSALS):
            self.trainer.start(seed)
            self.trainer.train()
            self.trainer.predict(self.images[:100])
        self._synchronize()
        self.warm_up_s = time.perf_counter() - start

    def seeds(self, seeds: range, judged: DigitSet) -> Iterator[dict]:
        """A row for each seed: milliseconds of the training, how many of ``judged`` are right, before it and after."""
        judged = DigitSet(judged.data.to(self.device), judged.targets.to(self.device))
        for seed in seeds:
            self._noise()
            self.trainer.start(seed)
            untrained = self._right(self.digits)
            order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(seed)).to(self.device)
            self.images.copy_(self.digits.data[order])
            self.labels.copy_(self.digits.targets[order])
            with stopwatch(self._synchronize) as seconds:
                self.trainer.train()
            yield {
                "seed": seed,
                "training_ms": 1e3 * seconds[0],
                "untrained_pct": untrained,
                "accuracy_pct": self._right(judged),
            }

    def _noise(self) -> None:
        """Noise in place of the digits; by a generator of its own, so that no entry's draws depend on it."""
        generator = torch.Generator(self.device).manual_seed(0)
        self.images.random_(0, 256, generator=generator)
        self.labels.random_(0, 10, generator=generator)

    def _right(self, digits: DigitSet) -> float:
        """Percent of the digits that the trainer names rightly, of the first 10,000. LabError for another shape."""
        images, labels = digits.data[:HELD_OUT], digits.targets[:HELD_OUT]
        named = self.trainer.predict(images)
        if named.shape != labels.shape:
            raise LabError(f"predict names a digit for each image: {tuple(labels.shape)}, not {tuple(named.shape)}.")
        return 100.0 * int((named == labels).sum()) / len(labels)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def summary(rows: list[dict]) -> dict:
    """Mean accuracy with its standard error, and median, smallest and largest milliseconds of a list of rows."""
    accuracies = [row["accuracy_pct"] for row in rows]
    times = [row["training_ms"] for row in rows]
    spread = statistics.stdev(accuracies) if len(rows) > 1 else float("nan")
    return {
        "seeds": len(rows),
        "mean_pct": statistics.fmean(accuracies),
        "spread_pct": spread,
        "error_pct": spread / len(rows) ** 0.5,
        "median_ms": statistics.median(times),
        "range_ms": [min(times), max(times)],
    }
