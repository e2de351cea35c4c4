"""Which settings of an entry are best? Digits held out of the training set say it; the test set stays closed."""

from __future__ import annotations

import ast
import gc
import itertools
import random
import time
from collections.abc import Iterable, Iterator

import torch

from labkit.errors import LabError
from labkit.speedrun.referee import Entry, Play, summary
from labkit.training.data import DigitSet


def setting(text: str) -> tuple[str, object]:
    """``batch=512`` → ``("batch", 512)``; what is no Python value is text. LabError where there is no ``=``."""
    name, sign, value = text.partition("=")
    if not sign:
        raise LabError(f"'{text}' sets nothing: write NAME=VALUE.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def choices(text: str) -> tuple[str, list]:
    """``batch=512,768`` → ``("batch", [512, 768])``"""
    name, value = setting(text)
    if isinstance(value, str):  # words, or a list with one among it
        return name, [setting(f"{name}={one}")[1] for one in value.split(",")]
    several = isinstance(value, tuple) and not text.partition("=")[2].startswith("(")
    return name, [*value] if several or _all_tuples(value) else [value]


def _all_tuples(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(one, tuple) for one in value)


def combinations(space: Iterable[tuple[str, list]], seed: int = 0) -> list[dict]:
    """Every combination of the choices, in an order drawn from ``seed``: when time runs out, all were tried evenly."""
    names, values = zip(*space, strict=True) if space else ((), ())
    found = [dict(zip(names, one, strict=True)) for one in itertools.product(*values)]
    random.Random(seed).shuffle(found)
    return found


def tried(
    entry: Entry, settings: list[dict], sets: tuple[DigitSet, DigitSet], device: torch.device, seeds: int, until: float
) -> Iterator[dict]:
    """A row for each of ``settings`` until the clock (``time.monotonic``) says ``until``: settings and ``summary``.

    ``sets``: digits to train on, and to choose by. What breaks (a tile too large for the GPU, say) has ``failed``.
    """
    train, judged = (DigitSet(one.data.to(device), one.targets.to(device)) for one in sets)
    for one in settings:
        if time.monotonic() > until:
            return
        row = {"settings": one}
        try:
            play = Play(entry.but(**one), train, device)
            row |= {"warm_up_s": play.warm_up_s, **summary([*play.seeds(range(1, seeds + 1), judged)])}
        except LabError:
            raise
        except Exception as error:  # any other: the search goes on
            row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        play = None
        _tidy(device)
        yield row


def _tidy(device: torch.device) -> None:
    """Give back the memory of what was prepared."""
    gc.collect()
    if device.type == "cuda":
        torch.compiler.reset()
        torch.cuda.empty_cache()
