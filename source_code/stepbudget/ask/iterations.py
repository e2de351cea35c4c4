"""What does each training step cost, and is there a rhythm?

A step goes from one fetch of a batch to the next, or from one numbered range (``ProfilerStep#12``) to the next. Where
the program says nothing about its steps (no NVTX, or no range that comes again), there are none: nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask.phases import LONGEST_NAME, NUMBERED, STEP, named, ranges_inside
from stepbudget.ask.threads import main_thread, narrowed
from stepbudget.ask.work import device_of, work_of
from stepbudget.coded import coded, each
from stepbudget.kernel_names import is_collective, is_product
from stepbudget.report import Report, remembered
from stepbudget.window import Window

# How ranges are called in which a program waits for its next batch: "data loading", PyTorch's own
# "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "next batch", "fetch", "input pipeline", "data_time".
# The last word is the thing: "get_input_embeddings" gets embeddings, and "get_batch_size" a size.
_BATCH = (
    r"(?:batch(?:es)?|data|inputs?|samples?)(?=$|[\W_]*(?:\d|$)|[\W_]+(?:from|for|of|in|to|on|by|with|and)(?![a-z]))"
)
LOADER = re.compile(
    r"data[\W_]?(?:load|fetch|wait|time)|loader"
    rf"|(?<![a-z])(?:load|get|next|fetch|read|wait)[a-z]*[\W_]+(?:[a-z]+[\W_]+){{0,2}}{_BATCH}"
    r"|(?<![a-z])(?:batch|input|sample)[a-z]*[\W_]+(?:load|fetch|wait|pipeline)"
    r"|(?<![a-z])fetch(?:ing)?[\W_]*(?:next|one|\d+)?[\W_]*$|^(?:train\w*[\W_]+)?(?:data|input)$",
    re.IGNORECASE,
)
OTHERS = re.compile(r"state_dict|(?:model|weights?|modules?|checkpoint|param\w*)[\W_]*load", re.IGNORECASE)  # no data
UNNUMBERED = re.compile(  # a step that does not say which; of a function, one that trains
    rf"(?:train(?:ing)?[\W_]?)?{STEP}|.*[\].:](?:run_)?train(?:ing)?_{STEP}", re.IGNORECASE
)
# Ranges that hold steps, and those of them whose steps are not training.
EVALUATION = re.compile(r"(?<![a-z])(?:test|eval|valid|val(?![a-z])|inference)", re.IGNORECASE)
CONTAINER = re.compile(
    rf"{EVALUATION.pattern}|epoch|(?<![a-z])(?:train(?:ing)?|fit|main|run|loop|profil\w*)(?:[\W_]+(?:loop|one|epoch))?"
    r"[\W_]*\d*$",
    re.IGNORECASE,
)

MEASURES = ("duration_ms", "gpu_busy_ms", "gpu_idle_ms", "loader_wait_ms")


# --- steps --------------------------------------------------------------------------------------------------


def is_loader(name: str) -> bool:
    """Does the name hint at a range in which the program waits for its next batch? ``loaders`` says whether it does."""
    return bool(LOADER.search(name[:LONGEST_NAME])) and not OTHERS.search(name[:LONGEST_NAME])


def loaders(report: Report, ranges: pd.DataFrame) -> pd.Series:
    """In which of these NVTX ranges does the program wait for its next batch?

    The name hints at it, and what is done inside does not speak against it: no library opened the range for its own
    purposes, and ranges of this name do not launch what only a model needs, products of matrices and collectives.
    """
    found = named(ranges["name"], is_loader)
    if found.any():
        hints = set(ranges.loc[found, "name"])
        key = (loaders, frozenset(hints))
        if key not in report.answers:
            report.answers[key] = {name for name in hints if _feeds(report, name)}
        found &= ranges["name"].isin(report.answers[key])
    return found


def _feeds(report: Report, name: str) -> bool:
    """Do ranges of this name do what a loader may do?"""
    own, kernels = report.ranges[report.ranges["name"] == name], report.kernels
    if own["raw_name"].isin(report.names_of_libraries).all():
        return False
    kernels = kernels[kernels["api_thread"].isin(own["thread"])]
    kernels = kernels[named(kernels["name"], lambda kernel: is_product(kernel) or is_collective(kernel))]
    computing = 0
    for thread, ranges in own.groupby("thread"):
        times = np.sort(kernels.loc[kernels["api_thread"] == thread, "api_start"].to_numpy())
        computing += (np.searchsorted(times, ranges["end"]) > np.searchsorted(times, ranges["start"])).sum()
    return computing <= len(own) / 2


@remembered
def step_windows(report: Report, window: Window) -> list[Window]:
    """The single training steps within the window (default: the training range), ``step 1`` first.

    They are looked for on the thread whose range the window is, else on a process's main thread. A step goes from one
    start to the next: of the loader's range (such as ``data loading``); else of ranges that are called
    steps, iterations or batches; else of the program's first top-level range that comes again (no operator's, no
    library's, none without a name; of threads that launch nothing, only a main one's). What follows the last start is a
    step only if it holds what the others hold: the last fetch of an epoch finds no batch. A test in between belongs
    to no step. Without such ranges, an empty list.
    """
    ranges = ranges_inside(report, window)
    for thread in _threads(report, ranges, window):
        own = ranges[ranges["thread"] == thread]
        if spans := _spans(own, loaders(report, own), window):
            return [Window(start, end, f"step {number}", thread) for number, (start, end) in enumerate(spans, start=1)]
    return []


def steps(report: Report, window: Window | None = None) -> pd.DataFrame:
    """One row a training step within the window (default: the training range).

    Columns: ``step``, ``start_ms`` since the window's start, ``duration_ms``, ``gpu_busy_ms`` and ``gpu_idle_ms`` (they
    add up to the duration; of several GPUs the one with the work), ``loader_wait_ms`` (within the
    loader's ranges; NaN where the program has none), ``kernels`` (by their launch call where it is known, else by their
    start). The columns on the GPU are NaN where the report holds no GPU work at all.
    """
    window = window or report.window()
    found = step_windows(report, window)
    starts, ends = (np.array([getattr(step, edge) for step in found], dtype=np.int64) for edge in ("start", "end"))
    thread = found[0].thread if found else None
    table = pd.DataFrame(
        {
            "step": np.arange(1, len(found) + 1),
            "start_ms": (starts - window.start) / 1e6,
            "duration_ms": (ends - starts) / 1e6,
            "gpu_busy_ms": np.nan,
            "gpu_idle_ms": np.nan,
            "loader_wait_ms": np.nan,
            "kernels": np.nan,
        }
    )
    work = (report.kernels, report.copies, report.memsets, report.graphs)
    if any(map(len, work)) and len(found):
        process = thread >> 24
        device = device_of(report, found[0])
        busy = intervals.covered(intervals.union(*(work_of(table, device) for table in work)), starts, ends)
        table["gpu_busy_ms"] = busy / 1e6
        table["gpu_idle_ms"] = (ends - starts - busy) / 1e6
        own = report.kernels[report.kernels["process"] == process]
        times = np.sort(own["api_start"].fillna(own["start"]).to_numpy(dtype=np.int64))
        table["kernels"] = np.searchsorted(times, ends, side="left") - np.searchsorted(times, starts, side="left")
    waits = loader_ranges(report, thread=thread)
    if len(waits) and len(found):
        table["loader_wait_ms"] = intervals.covered(intervals.union(waits), starts, ends) / 1e6
    return table


def summary(table: pd.DataFrame, skip_first: bool = False) -> pd.DataFrame:
    """What a step costs, from the table of ``steps``: one row each for its duration and what that is made of.

    Columns: ``measure``, ``steps``, and in milliseconds ``mean_ms``, ``median_ms``, ``std_ms`` (of the sample),
    ``shortest_ms``, ``longest_ms``. ``skip_first`` leaves out the first step, which holds the start of the workers.
    """
    table = table.iloc[1:] if skip_first else table
    rows = []
    for measure in MEASURES:
        ms = table[measure].dropna()
        spread = (ms.mean(), ms.median(), ms.std(), ms.min(), ms.max())
        rows.append((measure.removesuffix("_ms").replace("_", " "), len(ms), *spread))
    columns = ["measure", "steps", "mean_ms", "median_ms", "std_ms", "shortest_ms", "longest_ms"]
    return pd.DataFrame(rows, columns=columns)


def loader_ranges(report: Report, thread: int | None = None) -> pd.DataFrame:
    """The NVTX ranges in which the program waits for its next batch; all, or those of a thread."""
    ranges = report.ranges
    if thread is not None:
        ranges = ranges[ranges["thread"] == thread]
    return ranges[loaders(report, ranges)]


# --- rhythm -------------------------------------------------------------------------------------------------

SHUFFLES = 999
SIGNIFICANCE = 0.01  # how often waits in random order may be taken for a rhythm
LEAST_STRENGTH = 0.4  # a weaker rhythm explains too little to be worth telling
LEAST_AGAIN = 0.4  # of that strength, two periods apart: waits that rise and fall by chance do not come back
LEAST_WAITS = 12
MOST_WAITS, MOST_STEPS = 2000, 256  # a longer series says no more, and no loader has more workers


@dataclass(frozen=True)
class Period:
    """The rhythm of a loader that delivers in bursts."""

    steps: int  # from one long wait to the next
    p: float  # how often the same waits in random order look as regular as this
    waits: int  # waits looked at


def loader_period(waits: Sequence[float] | pd.Series, skip_first: bool = True) -> Period | None:
    """The period of the waits, one a step in any unit; None where none can be told from chance.

    A loader with W workers that start together delivers W batches together: every W-th wait is long. The period is the
    distance at which the waits' autocorrelation is highest, over that at half the distance (so that a slow drift is no
    rhythm). It counts if the same waits in 999 random orders do as well in at most 1 % of cases, whatever the distance:
    a permutation test (Good 2005, "Permutation, Parametric and Bootstrap Tests of Hypotheses"). It is done twice, exact
    and with one step of tolerance, and p doubled for it. At least three rounds have to be seen.
    The first wait holds the start of the workers and is left out, unless told otherwise.
    """
    ms = np.asarray(waits, dtype=float)[1 if skip_first else 0 :]
    ms = ms[np.isfinite(ms)][:MOST_WAITS]
    if len(ms) < LEAST_WAITS or ms.std() < 0.1 * ms.mean() or not ms.mean() > 0:
        return None
    # One wait of a second must not outweigh all others, and the smallest differ by nothing that matters.
    level = np.log(ms + ms.mean() / 10)
    longest = min(len(ms) // 3, MOST_STEPS)
    orders = np.random.default_rng(0).permuted(np.tile(level, (SHUFFLES, 1)), axis=1)
    seen, by_chance = _autocorrelation(level, 2 * longest + 2), _autocorrelation(orders, longest + 1)
    best = None
    for tolerance in (0, 1):
        distances, score = _rhythm(seen, longest, tolerance)
        if not len(distances):
            continue
        chance = _rhythm(by_chance, longest, tolerance)[1].max(axis=1)
        p = 2 * (1 + int((chance >= score.max()).sum())) / (SHUFFLES + 1)
        period = _shortest(distances, score, tolerance)
        if best is None or p < best[0]:
            # Pairs that far apart are fewer than the waits: weigh each as much as those side by side.
            found = _near(seen, tolerance) * len(ms) / (len(ms) - np.arange(len(_near(seen, tolerance))))
            best = p, period, float(min(found[period], 1)), float(found[2 * period - 1 : 2 * period + 2].max())
    if best is None:
        return None
    p, period, strength, again = best
    if p > SIGNIFICANCE or strength < LEAST_STRENGTH or again < LEAST_AGAIN * strength:
        return None
    return Period(period, p, len(ms))


def _autocorrelation(values: np.ndarray, longest: int) -> np.ndarray:
    """At distances 0 to ``longest``, along the last axis; divided by the whole length, so that far ones weigh less."""
    centred = values - values.mean(axis=-1, keepdims=True)
    size = 1 << (2 * values.shape[-1] - 1).bit_length()  # padded, so that the end does not meet the start
    spectrum = np.fft.rfft(centred, size, axis=-1)
    products = np.fft.irfft(np.abs(spectrum) ** 2, size, axis=-1)[..., : longest + 1]
    return products / np.maximum(products[..., :1], np.finfo(float).tiny)


def _rhythm(correlation: np.ndarray, longest: int, tolerance: int) -> tuple[np.ndarray, np.ndarray]:
    """The distances that can be a period, and for each the autocorrelation over that at half of it."""
    correlation = _near(correlation, tolerance)
    distances = np.arange(6 if tolerance else 2, longest + 1)
    half = (correlation[..., distances // 2] + correlation[..., (distances + 1) // 2]) / 2
    return distances, correlation[..., distances] - np.maximum(half, 0)


def _shortest(distances: np.ndarray, score: np.ndarray, tolerance: int) -> int:
    """The distance with the highest score; or the shortest of which it is a multiple, if that does almost as well."""
    best = score.argmax()
    times = np.round(distances[best] / distances)
    off = np.abs(distances[best] - times * distances)
    higher = score >= np.maximum(np.append(score[1:], 0), np.append(0, score[:-1]))  # than its neighbours
    parts = (times > 1) & (off <= tolerance) & higher & (score >= 0.7 * score[best])
    return int(distances[parts.argmax() if parts.any() else best])


def _near(correlation: np.ndarray, tolerance: int) -> np.ndarray:
    """With tolerance, neighbours count half: a burst that comes a step early or late still counts."""
    if not tolerance:
        return correlation
    near = 0.5 * correlation[..., :-2] + correlation[..., 1:-1] + 0.5 * correlation[..., 2:]
    return np.concatenate([correlation[..., :1], near], axis=-1)


# --- finding the steps --------------------------------------------------------------------------------------


def _threads(report: Report, ranges: pd.DataFrame, window: Window) -> list[int]:
    """Threads with ranges in the window, the likeliest to hold the training loop first.

    The program's own thread of the process with most kernels, then those of the others; then the other threads that
    launch. One that launches nothing (a reader of data, a logger) is asked only where it is the program's own.
    """
    if window.thread is not None:
        own = main_thread(report, window)
        return [own] if (ranges["thread"] == own).any() else []
    kernels = report.kernels["process"].value_counts()
    launching = {int(thread) for thread in report.kernels["api_thread"].dropna().unique()}
    processes = ranges["process"].unique().tolist()
    own = {main_thread(report, narrowed(window, process, window.gpu)) for process in processes}
    order = []
    for place, thread in enumerate(ranges["thread"].unique().tolist()):
        if launching and thread not in own and thread not in launching:
            continue  # what comes again there is no step
        order.append((-int(kernels.get(thread >> 24, 0)), thread not in own, place, thread))
    return [thread for *_, thread in sorted(order)]


def _spans(ranges: pd.DataFrame, loading: pd.Series, window: Window) -> list[tuple[int, int]]:
    """From where to where each step of one thread goes; ``ranges`` are that thread's, within the window."""
    tree = _Tree(ranges)
    feeding = set(ranges.loc[loading, "name"].astype(str).str[:LONGEST_NAME])
    if candidates := _loaders(tree, feeding.__contains__):
        return _between(tree, candidates, window, None)
    if candidates := _called_steps(tree):
        return _between(tree, candidates, window, lambda number: int(tree.ends[number]))
    tree = _Tree(ranges[~ranges["operator"] & ~ranges["library"]])
    return _between(tree, candidates, window, None) if (candidates := _repeated(tree)) else []


class _Tree:
    """The ranges of one thread, in the report's order, and how they nest; a range's number is its place by start."""

    def __init__(self, ranges: pd.DataFrame) -> None:
        self.starts, self.ends = (ranges[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
        # Which name does each carry, of the different ones? A name that comes a thousand times is looked at once.
        self.codes, self.names = coded(each(ranges["name"], lambda name: str(name)[:LONGEST_NAME]))
        self.operators = ranges["operator"].to_numpy(dtype=bool)  # autograd's evaluate_function is no evaluation
        # Start/end ranges may overlap without one holding the other: the parent is the one that holds all of this.
        self.parents = intervals.parents(self.starts, self.ends, np.maximum(self.starts, self.ends - 1))  # -1: none

    def above(self, number: int) -> Iterable[int]:
        """The ranges that hold this one, innermost first."""
        while (number := int(self.parents[number])) >= 0:
            yield number

    def name(self, number: int) -> str:
        return self.names[self.codes[number]]

    def ask(self, question: Callable[[str], object]) -> np.ndarray:
        """What a question says of the name of each range."""
        return np.array([bool(question(name)) for name in self.names], dtype=bool)[self.codes]

    def where(self, question: Callable[[str], object]) -> list[int]:
        """The ranges whose name answers yes, outermost ones only; those under a test only if there are no others."""
        answers, tests = self.ask(question), self.ask(EVALUATION.search)
        above = {number: [*self.above(number)] for number in np.flatnonzero(answers).tolist()}
        found = [number for number, around in above.items() if not answers[around].any()]
        training = [number for number in found if not tests[above[number]].any()]
        return training or found


def _most_frequent(tree: _Tree, numbers: list[int]) -> list[int]:
    """Those of the name that comes most often, whatever numbers it carries."""
    names = [re.sub(r"\d+", "#", tree.name(number)) for number in numbers]
    counts = pd.Series(names, dtype=object).value_counts()  # of equal counts, the first to come
    return [number for number, name in zip(numbers, names, strict=True) if name == counts.index[0]]


def _loaders(tree: _Tree, is_loaders: Callable[[str], bool]) -> list[int]:
    """The loader's ranges, if they come again; not where each numbered step fetches several batches."""
    found = tree.where(is_loaders)
    found = _most_frequent(tree, found) if found else []
    if len(found) < 2:
        return []
    holders = [next((other for other in tree.above(number) if _is_step(tree.name(other))), None) for number in found]
    inside = pd.Series(holders, dtype=object).dropna()
    return [] if len(inside) > 1.5 * inside.nunique() else found


def _called_steps(tree: _Tree) -> list[int]:
    """Ranges that are called a step, an iteration or a batch; without a number only if they come again."""
    found = tree.where(_is_step)
    found = _most_frequent(tree, found) if found else []
    return found if len(found) > 1 or (found and NUMBERED.fullmatch(tree.name(found[0]))) else []


def _is_step(name: str) -> bool:
    return bool(NUMBERED.fullmatch(name) or UNNUMBERED.fullmatch(name))


def _repeated(tree: _Tree) -> list[int]:
    """The first top-level range that comes again; an epoch or a training range is looked into."""
    level = np.flatnonzero(tree.parents < 0)
    is_holder, is_test = tree.ask(CONTAINER.search), tree.ask(EVALUATION.search)
    while len(level):
        holders, others = level[is_holder[level]], level[~is_holder[level]]
        names = pd.Series(tree.codes[others])
        again = names[names.duplicated(keep=False)]
        if len(again):
            return others[(names == again.iloc[0]).to_numpy()].tolist()
        training = holders[~is_test[holders]]
        inside = pd.Index(training if len(training) else holders).get_indexer(tree.parents)
        level = np.argsort(inside, kind="stable")[np.count_nonzero(inside < 0) :]  # by holder, then in order
    return []


def _between(
    tree: _Tree, candidates: list[int], window: Window, find_end: Callable[[int], int] | None
) -> list[tuple[int, int]]:
    """From each candidate's start to the next one's, within the range that holds them all.

    ``find_end``: where a last one ends, if that is known; else it ends with what holds it, and is a step only if it is
    whole.
    """
    held = pd.Series([other for number in candidates for other in tree.above(number)], dtype=object).value_counts()
    groups: dict[int | None, list[int]] = {}
    for number in candidates:  # an epoch holds many steps; a range around a single one is part of that step
        holder = next((other for other in tree.above(number) if held[other] > 1), None)
        groups.setdefault(holder, []).append(number)
    above = {other for number in candidates for other in tree.above(number)}
    is_test = tree.ask(EVALUATION.search)
    tests = [number for number in np.flatnonzero(is_test & ~tree.operators).tolist() if number not in above]
    test_starts = tree.starts[tests]
    spans, cut = [], []
    for holder, numbers in groups.items():
        starts = tree.starts[numbers].tolist()
        limit = window.end if holder is None else int(tree.ends[holder])
        last = limit if find_end is None else find_end(numbers[-1])
        for number, (start, end) in zip(numbers, pairwise([*starts, last]), strict=True):
            after = np.searchsorted(test_starts, start)
            test = int(test_starts[after]) if after < len(tests) and test_starts[after] < end else None
            spans.append((start, end if test is None else test))
            cut.append((number == numbers[-1] or test is not None) and find_end is None)
    if any(cut):
        spans = _whole(tree, spans, cut, above)
    return sorted(span for span in spans if span[1] > span[0])


def _whole(tree: _Tree, spans: list[tuple[int, int]], cut: list[bool], around: set[int]) -> list[tuple[int, int]]:
    """The spans without those cut ones that lack a phase which more than half of the others have.

    Operators count where no range that the program itself names says what a step holds. A range around a single
    candidate (``around``) began before it, and is no such phase.
    """
    codes = coded([re.sub(r"\d+", "#", name) for name in tree.names])[0][tree.codes]
    edges = np.searchsorted(tree.starts, np.array(spans, dtype=np.int64))
    phases = [set(codes[first:last].tolist()) for first, last in edges]
    counts = pd.Series([code for own, is_cut in zip(phases, cut, strict=True) if not is_cut for code in own])
    usual = set(counts.value_counts().loc[lambda n: n > (len(cut) - sum(cut)) / 2].index)
    usual -= set(codes[[*around]].tolist())
    usual = usual & {*codes[~tree.operators].tolist()} - {*codes[edges[:, 0]].tolist()} or usual
    return [span for span, own, is_cut in zip(spans, phases, cut, strict=True) if not is_cut or usual <= own]
