"""Which line of the program synchronised, copied from pageable memory, or launched? From a cause of idle time to code.

A line is the innermost frame of the user's own code in the backtrace of a call: no installed library, no module of
Python's, not PyTorch's source (``export.frames`` has the rule). A backtrace belongs to a call by its chain's id;
Python's, which are marks on the clock, to the call for which they were taken, of the same thread; samples to the call
that they lie in. Where there is none, the innermost NVTX range of the user around the call stands for it, with the
outermost and the innermost operator in it (emit_nvtx, nsys's ``--pytorch``). Autograd's thread runs no Python and has
no ranges of the user: it is named by its operators, or by the main thread's range.

Idle time goes to lines as the budget has it: what it laid to a cause, from the start of one call of that cause to the
start of the next, is the first call's. CPU code makes no calls: its idle time is shared among the lines at which
samples met the main thread in it, by their number, if they are LEAST_SAMPLES at least.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from stepbudget import backtraces, intervals
from stepbudget.ask import copies, threads
from stepbudget.ask.budget import LAUNCHING_CALLS, PYTHON, Budget, asks_for, budget
from stepbudget.ask.phases import LONGEST_NAME, NUMBERED, named
from stepbudget.coded import coded, together
from stepbudget.export.frames import Frame
from stepbudget.export.sqlite import CALLS, OS_CALLS
from stepbudget.report import Report, remembered, rows_where
from stepbudget.window import Window

CPU_CODE = ("python", "optimizer")  # of the budget's causes, those of code between calls
WITHIN, UNKNOWN, SAMPLED = "range", "not known", "(CPU code)"
LEAST_SAMPLES = 5
COLUMNS = ["cause", "where", "how", "file", "line", "function", "call", "count", "cpu_ms", "idle_ms"]
OPTIONS = "--python-backtrace=cuda --cudabacktrace=all:0 --sample=process-tree"


@remembered
def lines(report: Report, window: Window) -> pd.DataFrame:
    """One row a cause and line of a window (default: training), the longest idle time first; empty: nothing is known.

    Columns: ``cause`` (of CPU_CODE, or of calls: ``synchronisation``, ``pageable_copy``, ``launch_overhead``,
    ``loader``, ``os_wait``), ``where`` ("train.py:41 in train", "within range 'test › aten::item'", "not known"),
    ``how`` it is known (``"Python backtraces"``, ``"backtraces"``, ``"Python samples"``, ``"samples"``, ``"range"``,
    ``""``), ``file`` (without its folder), ``line``, ``function`` (None unless a backtrace tells), ``call`` (the one
    made most, SAMPLED for CPU code), ``count`` of calls begun in the window (a copy and the wait that follows it at
    once are one; for launch overhead: of launches; for CPU code: of samples), ``cpu_ms`` within these calls (for CPU
    code: as long as that many samples take), ``idle_ms`` of the GPU that the budget lays to them.
    """
    found = budget(report, window)
    marks = backtraces.python(report, *_own_clock(report, found.window))
    rows = list(_of_cpu_code(report, found, marks[marks["is_sample"].astype(bool)]))
    calls = _placed(report, found.window, _calls(report, found), marks)
    calls["idle_ms"] = _idle_ms(found, calls)
    calls["cpu_ms"] = calls["held"] / 1e6
    calls["key"] = calls["frame"].where(calls["frame"].notna(), calls["range"])
    place, first = together(*(coded(calls[column])[0] for column in ("cause", "key", "how")))
    sums = [np.bincount(place, calls[one], minlength=len(first)) for one in ("counts", "cpu_ms", "idle_ms")]
    asked = calls["counts"].to_numpy(dtype=bool) | (sums[0] == 0)[place]
    made = _made_most(place[asked], calls["name"].to_numpy()[asked])
    at = calls[["cause", "key", "how"]].iloc[first].itertuples(index=False, name=None)
    for (cause, key, how), call, count, *ms in zip(at, made, sums[0].astype(int).tolist(), *sums[1:], strict=True):
        frame = key if isinstance(key, Frame) else None
        where = str(frame) if frame else f"within range '{key}'" if key else UNKNOWN
        rows.append((cause, where, how, *_place(frame), call, count, *ms))
    if all(row[COLUMNS.index("where")] == UNKNOWN for row in rows):
        return pd.DataFrame(columns=COLUMNS)
    table = pd.DataFrame(rows, columns=COLUMNS)
    for column in ("file", "line", "function"):
        table[column] = pd.Series([row[COLUMNS.index(column)] for row in rows], dtype=object)  # None stays None
    return table.sort_values(["idle_ms", "cpu_ms"], ascending=False, kind="stable", ignore_index=True)


def _made_most(place: np.ndarray, names: np.ndarray) -> list[str]:
    """For each place, from 0 on, the name that comes most often there, of equals the first; each place has a name."""
    codes, different = coded(names)
    pair, first = together(place, codes)
    order = np.lexsort([-np.bincount(pair), place[first]])
    best = order[np.diff(place[first][order], prepend=-1) > 0]
    return [different[code] for code in codes[first][best].tolist()]


def _place(frame: Frame | None) -> tuple[str | None, int | None, str | None]:
    return (frame.name, frame.line, frame.function) if frame else (None, None, None)


def costliest(report: Report, window: Window, cause: str) -> str:
    """The line that a cause costs most at, in words; empty where no backtrace tells, or no line of the most costly."""
    if not backtraces.are_in(report):
        return ""
    found = lines(report, window)
    own = found[found["cause"] == cause]
    if own.empty or own["file"].isna().iloc[0]:
        return ""
    first = own.iloc[0]
    times = "once" if first["count"] == 1 else f"{first['count']:,} times"
    return f"{first['where']}: {first['call']}, {times}"


def not_looked_at(report: Report, window: Window) -> list[str]:
    """What would name the lines, where the report holds CUDA calls and nothing that does; empty otherwise."""
    found = budget(report, window)
    known = set(lines(report, window).query("file.notna()")["how"])
    if report.api.empty or found.device is None or known & {backtraces.CALLED_BY, "backtraces"}:
        return []
    if not known and (marks := backtraces.marks(report)):
        option = "nsys export --include-blobs=true, where nsys knows it"
        return [f"{marks:,} backtraces of Python: this export leaves out what they say ({option})"]
    is_python = not found.program or PYTHON.search(found.program)
    options = OPTIONS if is_python else OPTIONS.partition(" ")[2]
    what = "which line of it waited, copied and launched"
    what += "; samples stand for them, and miss what is brief" if known else ""
    return [f"backtraces ({options}; they slow the program): {what}"]


def _own_clock(report: Report, window: Window) -> tuple[int, int]:
    """The window's edges on the export's own clock."""
    return window.start + report.origin, window.end + report.origin


def _of_cpu_code(report: Report, found: Budget, samples: pd.DataFrame) -> Iterator[tuple]:
    """The rows of CPU_CODE: its idle time, shared among the lines at which samples of Python met the main thread."""
    window = found.window
    own = samples[(samples["thread"] == threads.main_thread(report, window)) & samples["frame"].notna()]
    times = own["time"].to_numpy(dtype=np.int64) - report.origin
    period_ms = np.median(np.diff(times)) / 1e6 if len(times) > 1 else 0.0
    for cause in CPU_CODE:
        met = intervals.covered(found.spans[cause], times, times + 1) > 0
        for frame, count in own["frame"][met].value_counts().items() if met.sum() >= LEAST_SAMPLES else ():
            sums = count, count * period_ms, count / met.sum() * found.ms[cause]
            yield cause, str(frame), backtraces.SAMPLED_BY, *_place(frame), SAMPLED, *sums


def _calls(report: Report, found: Budget) -> pd.DataFrame:
    """The calls of each cause that begin in the window: start, end, thread, name, cause, table, counts, held, also.

    ``held``: ns for which they held their thread, with the wait that follows a copy at once, which began at ``also``
    (else at ``start``) and is no row of its own.
    """
    window = found.window
    api = rows_where(report.api, threads.begins_in(report.api, window))
    kernels, graphs, moved = (
        table[(table["process"] == window.process) & table["api_start"].notna()]
        for table in (report.kernels, report.graphs, report.copies)
    )
    moved = copies.with_memory(report, moved)
    moved = moved[moved["host_memory"] == "pageable"]
    results = copies.waits(report, moved)
    after = copies.wait_after(report, moved)
    copied, fetched = asks_for(api, moved[~results]), asks_for(api, moved[results])
    launched = asks_for(api, kernels) | asks_for(api, graphs)
    follows = api.index.isin(after["call"])
    waits = (named(api["name"], threads.WAITING_CALLS.search) | fetched) & ~copied & ~follows
    queues = (named(api["name"], re.compile(LAUNCHING_CALLS).search) | launched) & ~copied & ~waits & ~follows
    kinds = {
        "pageable_copy": (copied, copied),
        "synchronisation": (waits, waits),
        "launch_overhead": (queues, launched),
    }
    api = api.assign(table=CALLS, call=api.index)
    parts = [api[own].assign(cause=cause, counts=counts[own]) for cause, (own, counts) in kinds.items()]
    parts += list(_sleeps(report, found))
    parts = [part for part in parts if len(part)]
    if not parts:
        return pd.DataFrame(columns=["start", "end", "thread", "name", "cause", "table", "counts", "held", "also"])
    calls = pd.concat(parts, ignore_index=True).astype({"counts": bool})
    wait = after.set_axis(moved["call"]).dropna()
    wait = wait[~wait.index.duplicated(keep="last")].reindex(calls["call"]).set_axis(calls.index)
    held = calls["end"] - calls["start"] + (wait["end"] - wait["start"]).fillna(0).astype("int64")
    return calls.assign(held=held, also=wait["start"].fillna(calls["start"]).astype("int64"))


def _sleeps(report: Report, found: Budget) -> Iterator[pd.DataFrame]:
    """The main thread's calls into the operating system during which the budget says that it waited, and for what."""
    main = threads.main_thread(report, found.window)
    own = threads.within(report.os_calls[report.os_calls["thread"] == main], found.window)
    own = own[threads.may_sleep(own)]
    for cause in ("loader", "os_wait"):
        ns = intervals.covered(found.spans[cause], own["start"].to_numpy(), own["end"].to_numpy())
        yield own[ns > 0].assign(cause=cause, table=OS_CALLS, counts=True, call=-1)


def _idle_ms(found: Budget, calls: pd.DataFrame) -> pd.Series:
    """What of the budget's idle time of its cause each call is laid."""
    idle_ms = pd.Series(0.0, index=calls.index)
    for cause, own in calls.groupby("cause", sort=False):
        own = own.sort_values("start", kind="stable")
        starts = np.maximum(own["start"].to_numpy(dtype=np.int64), found.window.start)
        until = np.append(starts[1:], max(found.window.end, int(starts[-1])))
        idle_ms[own.index] = intervals.covered(found.spans[cause], starts, until) / 1e6
    return idle_ms


# --- where a call was made --------------------------------------------------------------------------------------


def _placed(report: Report, window: Window, calls: pd.DataFrame, marks: pd.DataFrame) -> pd.DataFrame:
    """The calls with ``frame`` (None where no backtrace tells), ``range`` ("" where none runs) and ``how``."""
    frames, how = np.full(len(calls), None, dtype=object), np.full(len(calls), "", dtype=object)
    samples = marks["is_sample"].astype(bool)
    sources = [
        (backtraces.CALLED_BY, lambda: _marked(report, report.api, marks[~samples])),
        ("backtraces", lambda: _chains(report, calls)),
        (backtraces.SAMPLED_BY, lambda: _met(report, marks[samples])),
        (backtraces.ON_SAMPLES, lambda: _met(report, _sampled(report, *_own_clock(report, window)))),
    ]
    for name, source in sources:
        found = source()
        rows = np.flatnonzero(frames == None) if found else []  # noqa: E711 (element by element)
        keys = calls.iloc[rows][["thread", "start", "also"]].itertuples(index=False, name=None)
        for row, (thread, start, also) in zip(rows, keys, strict=True):
            if frame := found.get((thread, start)) or found.get((thread, also)):
                frames[row], how[row] = frame, name
    calls = calls.assign(frame=frames, range="")
    open_ = calls["frame"].isna()
    calls.loc[open_, "range"] = _ranges(report, window, calls[open_])
    how[(open_ & (calls["range"] != "")).to_numpy()] = WITHIN
    return calls.assign(how=how)


def _chains(report: Report, calls: pd.DataFrame) -> dict[tuple[int, int], Frame]:
    """(thread, start) → the user's frame, by the chains of the calls."""
    parts = [backtraces.chained(report, table) for table in calls["table"].unique()]
    return {
        (thread, start - report.origin): frame
        for part in parts
        for start, thread, frame in part.itertuples(index=False, name=None)
    }


def _sampled(report: Report, first: int, last: int) -> pd.DataFrame:
    return backtraces.sampled(report, first, last).rename(columns={"start": "time"})


def _met(report: Report, samples: pd.DataFrame) -> dict[tuple[int, int], Frame]:
    """(thread, start) → the user's frame, for the calls that samples lie in: CUDA's, and the system's inside them."""
    return _marked(report, report.os_calls, samples) | _marked(report, report.api, samples)


def _marked(report: Report, calls: pd.DataFrame, marks: pd.DataFrame) -> dict[tuple[int, int], Frame]:
    """(thread, start) of calls → the user's frame of the first mark in each; of several around a mark, the last begun.

    A mark that lies in none is left out.
    """
    found: dict[tuple[int, int], Frame] = {}
    marks = marks[marks["frame"].notna()]
    for thread, own in marks.groupby("thread", sort=False):
        rows = calls[calls["thread"] == thread].sort_values("start", kind="stable")
        if rows.empty:
            continue
        start, end = (rows[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
        times = own["time"].to_numpy(dtype=np.int64) - report.origin
        at = np.searchsorted(start, times, side="right") - 1
        for row, is_in, frame in zip(at, (at >= 0) & (times <= end[at]), own["frame"], strict=True):
            if is_in:
                found.setdefault((int(thread), int(start[row])), frame)
    return found


def _ranges(report: Report, window: Window, calls: pd.DataFrame) -> np.ndarray:
    """For each call the innermost range around it, in words; "" where none runs.

    Of its own thread, else (autograd's has operators alone, others may have none) the main thread's.
    """
    texts = np.full(len(calls), "", dtype=object)
    ranges = report.ranges
    itself = (ranges["start"] == window.start) & (ranges["end"] == window.end)
    chosen = threads.of(ranges, window) & ~itself & threads.overlaps(ranges, window)
    main = threads.main_thread(report, window)
    for thread in calls["thread"].unique():
        rows = np.flatnonzero((calls["thread"] == thread).to_numpy())
        for at in dict.fromkeys((thread, main)):
            empty = rows[texts[rows] == ""]
            own = ranges.loc[chosen & (ranges["thread"] == at), ["start", "end", "operator", "name"]]
            texts[empty] = _paths_at(own, calls["start"].to_numpy(dtype=np.int64)[empty])
    return texts


def _paths_at(ranges: pd.DataFrame, times: np.ndarray) -> np.ndarray:
    """At each time the user's innermost range with the outermost and the innermost operator in it; "" for none."""
    if ranges.empty or not len(times):
        return np.full(len(times), "", dtype=object)
    which, path = _nested_at(ranges, times)
    codes, different = coded(ranges["name"])
    numbers: dict[str, int] = {}
    same = [numbers.setdefault(_place_named(name), len(numbers)) for name in different]
    names = [*numbers, ""]
    number = np.append(np.array(same)[codes], len(numbers))
    which_kind, first = together(*(number[places] for places in path))
    path = [number[places[first]] for places in path]
    kinds = zip(*(column.tolist() for column in path), strict=True)
    texts = [" › ".join(dict.fromkeys(filter(None, (names[one] for one in kind)))) for kind in kinds]
    return np.array(texts, dtype=object)[which_kind[which]]


def _nested_at(ranges: pd.DataFrame, times: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """For each time the number of its path, and of each path the places of its three ranges (-1: there is none)."""
    starts, ends = (ranges[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
    is_operator = np.append(ranges["operator"].to_numpy(dtype=bool), False)  # at -1: where none runs
    places, outer = intervals.nested_at(starts, ends, times)
    # The outermost operator of each, by steps that double in length; a range of the user stands for itself.
    top = np.where(is_operator[:-1] & is_operator[outer], outer, np.arange(len(outer)))
    while (top[top] != top).any():
        top = top[top]
    which, found = pd.factorize(places)
    top, is_operator = np.append(top, -1)[found], is_operator[found]
    return which, [np.where(is_operator, np.append(outer, -1)[top], top), np.where(is_operator, top, -1), found]


def _place_named(name: str) -> str:
    """A range's name as a place: numbered steps are one, "step 12" is "step #"."""
    return re.sub(r"\d+", "#", name) if NUMBERED.fullmatch(name[:LONGEST_NAME]) else name
