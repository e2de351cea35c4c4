"""Can a check fail? Each is given what its lab gives it, and then things that differ: other reports, times, orders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import combinations, islice, product
from pathlib import Path

import pandas as pd

OTHERS = (
    "main_baseline_nvtx",
    "main_opt1",
    "main_opt3",
    "main_opt4",
    "main_opt5",
    "main_opt7",
    "train_resnet_workers",
)  # recorded reports
TRACES = ("main_opt2", "main_opt3", "main_opt4")
FACTORS = (0.1, 10.0, 100.0)
MOST = 12  # changes of either argument, where two change at once
TIMED = re.compile(r"_s$|_ms$|accuracy|loss")  # names of a record's numbers


def never_false(files: Sequence[Path]) -> list[str]:
    """Of the notebooks, ``lab check: claim`` for each claim that none of the variants makes false."""
    from labkit import labs
    from labkit.checks import Claim
    from labkit.recording.live_check import run_lab

    asked: list[tuple[int, str, tuple, dict]] = []
    usual = labs.check

    def noted(name: str, *given: object, **more: object) -> None:
        asked.append((labs._lab[0], name, given, more))
        usual(name, *given, **more)

    from labkit import lab

    os.environ |= {"LAB_MODE": "recorded", "LAB_PREDICTIONS": "off"}
    lab.check = noted
    for file in files:
        run_lab(file, stop_at=float("inf"), say=lambda line: None)
    found: dict[str, bool] = {}
    for number, name, given, more in asked:
        made = labs.checks_of(number)[name]
        claims = {key(one): one for one in made(*given, **more) if isinstance(one, Claim)}
        open_ = {text for text in claims if not found.get(f"{number} {name}: {text}")}
        for varied in variants(given):
            if not open_:
                break
            try:
                false = {key(one) for one in made(*varied, **more) if isinstance(one, Claim) and not one.holds}
            except Exception:  # what makes no sense says nothing
                continue
            open_ -= false
        found |= {
            f"{number} {name}: {text}": text not in open_ or found.get(f"{number} {name}: {text}", False)
            for text in claims
        }
    return sorted(one for one, is_broken in found.items() if not is_broken)


def key(claim: object) -> str:
    """A claim's words without its numbers."""
    return re.sub(r"[\d.,]+", "N", claim.text)


def variants(given: Sequence[object]) -> Iterator[list[object]]:
    """The arguments with one of them changed, or two exchanged."""
    for one, other in combinations(range(len(given)), 2):
        if type(given[one]) is type(given[other]):
            exchanged = list(given)
            exchanged[one], exchanged[other] = given[other], given[one]
            yield exchanged
    for place, value in enumerate(given):
        for changed in changes(value):
            yield [*given[:place], changed, *given[place + 1 :]]
    for one, other in combinations(range(len(given)), 2):
        both = [list(islice(changes(given[place]), MOST)) for place in (one, other)]
        for first, second in product(*both):
            for rest in (list(given), [scaled(value, 0.01) for value in given]):  # the latter without noise
                rest[one], rest[other] = first, second
                yield rest


def changes(value: object, depth: int = 0) -> Iterator[object]:
    """The same kind of thing, otherwise."""
    from stepbudget.ask.compare import Comparison, compare
    from stepbudget.report import Report
    from stepbudget.show.answers import Answer

    value = value.data if isinstance(value, Answer) else value
    if isinstance(value, Report) and value.profiler == "torch.profiler":
        yield from map(other_trace, TRACES)
    elif isinstance(value, Report):
        yield from map(other_report, OTHERS)
    elif isinstance(value, Comparison):
        yield from (compare(*map(other_report, pair)) for pair in combinations(OTHERS[:4], 2))
    elif isinstance(value, pd.DataFrame):
        numeric = value.select_dtypes("number").columns
        yield from (value.assign(**{name: value[name] * factor}) for name in numeric for factor in FACTORS)
        for name in value.columns.difference(numeric):
            yield from (value.assign(**{str(name): word}) for word in list(dict.fromkeys(map(str, value[name])))[:MOST])
        for order in (range(len(value))[::-1], [*range(len(value))[1::-1], *range(2, len(value))]):
            yield value.iloc[[*order]].reset_index(drop=True)
        yield value.iloc[:1]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        yield from (type(value)(value * factor) for factor in FACTORS)
        yield from (-value, float("nan"))
    elif isinstance(value, Mapping):
        if len(value) > 1:
            yield dict(zip(value, reversed(list(value.values())), strict=True))
        if depth < 4:
            for name, own in value.items():
                if depth == 0 or not isinstance(own, (int, float)) or TIMED.search(str(name)):
                    yield from ({**value, name: changed} for changed in changes(own, depth + 1))
    elif isinstance(value, (list, tuple)):
        if value and isinstance(value[0], Mapping):  # records of runs: all of them otherwise
            for name, own in value[0].items():
                if isinstance(own, (int, float)) and not isinstance(own, bool) and TIMED.search(name):
                    for factor in FACTORS:  # what failed has no times
                        yield [{**one, name: one[name] * factor} if name in one else one for one in value]
            yield from (scaled(list(value), factor) for factor in FACTORS)
        elif value and depth < 4:
            yield value[::-1]
            yield from ([changed, *value[1:]] for changed in changes(value[0], depth + 1))
            if all(isinstance(one, (int, float)) for one in value):
                yield from ([one * factor for one in value] for factor in FACTORS)
    elif is_dataclass(value) and depth < 2:
        for one in fields(value):
            own = getattr(value, one.name)
            for changed in changes(own, depth + 1):
                yield replace(value, **{one.name: changed})


@cache
def other_report(name: str) -> object:
    from labkit.paths import RECORDED
    from stepbudget.report import open_report

    return open_report(RECORDED / "h200" / "profiles" / f"{name}.sqlite.xz")


@cache
def other_trace(name: str) -> object:
    from labkit.paths import RECORDED
    from stepbudget.report import open_report

    return open_report(RECORDED / "h200" / "torch_profiler" / f"{name}.trace.json.gz")


def scaled(records: object, factor: float) -> object:
    """Records whose epochs, too, took ``factor`` times as long; all else as it is."""
    if isinstance(records, list):
        return [scaled(one, factor) for one in records]
    if isinstance(records, dict):
        timed = {name for name, own in records.items() if TIMED.search(name) and isinstance(own, (int, float))}
        return {name: own * factor if name in timed else scaled(own, factor) for name, own in records.items()}
    return records
