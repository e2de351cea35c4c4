"""Which settings of an entry are best? Digits held out of the training set say it; the test set stays closed."""

from __future__ import annotations

import ast
import gc
import itertools
import math
import random
import time
from collections.abc import Iterable, Iterator

import torch

from labkit.errors import LabError
from labkit.speedrun import ranking, rules
from labkit.speedrun.referee import Entry, Play, summary
from labkit.training.data import DigitSet

FEWEST = 2  # seeds before one may stop
FAR_PCT = 0.15  # below the goal, of two seeds' mean: three times its standard error, with the spread that entries have
SLOWER = 1.1  # times as long: that the fastest ones reached the goal may have been luck


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
    """Every combination of the choices; each setting's are listed from the most promising to the least.

    First the combination of all first choices, then those that are one place from it, two places … For when time runs
    out, those of equally many places are in an order drawn from ``seed``.
    """
    names, values = zip(*space, strict=True) if space else ((), ())
    places = [*itertools.product(*(range(len(one)) for one in values))]
    random.Random(seed).shuffle(places)
    places.sort(key=sum)
    return [dict(zip(names, (one[at] for one, at in zip(values, place, strict=True)), strict=True)) for place in places]


def hopeless(row: dict, fastest_ms: float) -> bool:
    """Is it clear after few seeds that a search won't end with these settings?

    They are far below 99 %, or slower than the fastest ones that reach it.
    """
    return row["mean_pct"] < rules.GOAL_PCT - FAR_PCT or row["median_ms"] > SLOWER * fastest_ms


def tried(
    entry: Entry,
    settings: list[dict],
    sets: tuple[DigitSet, DigitSet],
    device: torch.device,
    seeds: range,
    until: float,
    stops: bool = False,
) -> Iterator[dict]:
    """A row for each of ``settings`` until the clock (``time.monotonic``) says ``until``: settings and ``summary``.

    ``sets``: digits to train on, and to choose by. ``stops``: settings that are ``hopeless`` get two seeds and no more.
    What breaks (a tile too large for the GPU, say) has ``failed``.
    """
    train, judged = (DigitSet(one.data.to(device), one.targets.to(device)) for one in sets)
    fastest_ms = math.inf
    for one in settings:
        if time.monotonic() > until:
            return
        row = {"settings": one}
        try:
            play, rows = Play(entry.but(**one), train, device), []
            for found in play.seeds(seeds, judged):
                rows.append(found)
                if stops and len(rows) == FEWEST and hopeless(summary(rows), fastest_ms):
                    break
            row |= {"warm_up_s": play.warm_up_s, **summary(rows)}
            if ranking.reaches(row):
                fastest_ms = min(fastest_ms, row["median_ms"])
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
