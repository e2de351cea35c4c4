"""Which ranges does a trace mark? The program's own (``record_function``), and those that PyTorch makes itself.

PyTorch marks each step that its profiler records (``ProfilerStep#12``), each wait for a batch of its DataLoader, and
the optimizer's calls. Where other ranges say the same, these are left out: steps that others fill, and a wait that
fills the program's range in which it lies. From the first recorded step to the last goes one range more,
``training``, unless the program has one: what a report of a whole training is asked about.

A loader that is not PyTorch's is in no range, and so is a wait of PyTorch's that ends before its range begins (a thread
that fetches ahead). Such a wait is a gap: the thread that trains records nothing at all, neither operator nor call,
until it copies the next batch. Gaps of a millisecond or more are ranges, whose name says what they are.

Sources: PyTorch, torch/profiler/profiler.py, torch/utils/data/dataloader.py, torch/optim/optimizer.py.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from stepbudget import nesting
from stepbudget.export.names import CALLS, RANGES
from stepbudget.export.tables import Tables

TRAINING = "training"
STEP = re.compile(r"ProfilerStep#?\d+")
BY_PYTORCH = re.compile(rf"{STEP.pattern}|enumerate\(DataLoader\)#.*|Optimizer\.\w+#.*", re.DOTALL)
FILLED = 0.8  # of a range: what lies in it says the same
GAP = "data loading: nothing recorded until the batch is copied"
GAP_NS = 1_000_000
COPIES = re.compile(r"aten::(to|_to_copy|copy_)\b.*|cu(da)?Memcpy.*", re.DOTALL)


class Annotation(NamedTuple):
    """A range: from where to where (ns), on which thread, called what."""

    start: int
    end: int
    thread: int
    name: str


def kept(found: Sequence[Annotation]) -> Iterator[Annotation]:
    """The ranges of a trace, without those that say what others say, and the one around its steps."""
    made = [one for one in found if BY_PYTORCH.fullmatch(one.name)]
    own = [one for one in found if not BY_PYTORCH.fullmatch(one.name)]
    yield from own
    same = _fill(own, [one for one in made if not STEP.fullmatch(one.name)])
    steps = [one for one in made if STEP.fullmatch(one.name)]
    inside = [one for one in found if not STEP.fullmatch(one.name) and one.name != TRAINING]
    filled = _covered(inside, steps) >= FILLED * sum(one.end - one.start for one in steps)
    yield from (one for one in made if one.name not in same and not (filled and STEP.fullmatch(one.name)))
    if steps and not any(one.name == TRAINING for one in own):
        yield Annotation(min(steps).start, max(one.end for one in steps), _main(steps), TRAINING)


def waits(tables: Tables, found: Sequence[Annotation]) -> Iterator[Annotation]:
    """The gaps within recorded steps in which the thread that trains waited for a batch."""
    steps = sorted(one for one in found if STEP.fullmatch(one.name))
    if not steps or not tables.has(RANGES):
        return
    main, first, last = _main(steps), steps[0].start, max(one.end for one in steps)
    names = dict(tables.rows("SELECT id, value FROM StringIds"))
    around = {number for number, name in names.items() if name == TRAINING or STEP.fullmatch(name)}
    until = first
    for start, end, name in tables.rows(_events(tables, main, first, last)):
        if name in around:
            continue
        if start - until >= GAP_NS and COPIES.fullmatch(names.get(name, "")):
            edges = [until, *(step.start for step in steps if until < step.start < start), start]
            yield from (Annotation(*part, main, GAP) for part in pairwise(edges))  # as ranges nest: a step a piece
        until = max(until, end)


def _events(tables: Tables, thread: int, first: int, last: int) -> str:
    where = f'WHERE globalTid = {thread} AND start BETWEEN {first} AND {last} AND "end" IS NOT NULL'
    parts = [f'SELECT start, "end", {name} FROM {table} {where}'
             for table, name in ((RANGES, "textId"), (CALLS, "nameId")) if tables.has(table)]  # fmt: skip
    return " UNION ALL ".join(parts) + " ORDER BY 1, 2 DESC"


def _main(steps: Sequence[Annotation]) -> int:
    return Counter(one.thread for one in steps).most_common(1)[0][0]


def _fill(own: Iterable[Annotation], made: Iterable[Annotation]) -> set[str]:
    """The names of those made that fill the program's own ranges in which they lie."""
    filled: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    made = sorted(made)
    for one, holder in zip(made, _holders(own, made), strict=True):
        sums = filled[one.name]
        sums[0] += one.end - one.start
        sums[1] += holder.end - holder.start if holder else 0
    return {name for name, (inner, outer) in filled.items() if outer and FILLED * outer <= inner <= outer}


def _covered(ranges: Iterable[Annotation], steps: Iterable[Annotation]) -> int:
    """How much (ns) of the steps the ranges of their thread cover."""
    covered = 0
    for step in steps:
        until = step.start
        for one in sorted(one for one in ranges if one.thread == step.thread and one.start < step.end):
            covered += max(0, min(one.end, step.end) - max(one.start, until))
            until = max(until, one.end)
    return covered


def _holders(ranges: Iterable[Annotation], asked: Iterable[Annotation]) -> list[Annotation | None]:
    """For each of ``asked`` the innermost of the ranges that runs as it starts, on its thread."""
    asked = list(asked)
    by_thread: dict[int, list[Annotation]] = defaultdict(list)
    for one in ranges:
        by_thread[one.thread].append(one)
    found: dict[Annotation, Annotation | None] = {}
    for thread in {one.thread for one in asked}:
        own = sorted(one for one in asked if one.thread == thread)
        around = sorted(by_thread[thread], key=lambda one: (one.start, -one.end))
        found |= zip(own, nesting.innermost(around, [one.start for one in own]), strict=True)
    return [found[one] for one in asked]
