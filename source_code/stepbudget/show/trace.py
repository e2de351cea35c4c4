"""How does a report look in another viewer? As a trace that Perfetto and Chrome open (Trace Event Format, JSON).

From top to bottom: the budget's causes in a row of their own, each GPU's streams with their kernels and copies, the
sampled counters, and of each process the NVTX ranges, CUDA calls and system calls of its threads. Arrows lead from a
call to the first work that it launched. Times are microseconds since the window's start, to the nanosecond; what
reaches beyond the window is cut there, and says how long all of it lasted.

Sources: Google, "Trace Event Format": X (complete), C (counter), M (metadata), s and f (flow) events; Perfetto's
importer of it (``src/trace_processor/importers/json``), versions of which give up at an event whose time comes after
a text with an escaped letter: in each event the time comes first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from stepbudget.ask.budget import Budget
from stepbudget.report import Report
from stepbudget.show import rows
from stepbudget.window import Window

# Numbers of processes that no program has: Linux's end below 2²².
BUDGET, GPUS, COUNTERS = 1 << 24, (1 << 24) + 1, 1 << 25
ORDER = {rows.CAUSES: 0, rows.WORK: 1, rows.RANGES: 3, rows.CALLS: 3, rows.OS_CALLS: 3}
TITLES = {rows.RANGES: "NVTX, ", rows.CALLS: "CUDA calls, ", rows.OS_CALLS: "system calls, "}
CATEGORY = {rows.CAUSES: "budget", rows.RANGES: "nvtx", rows.CALLS: "cuda_api", rows.OS_CALLS: "os"}
CHUNK = 4096  # events written together


def trace(report: Report, found: Budget, told: dict) -> Iterator[str]:
    """The trace of a budget's window in pieces of text; ``told``: what it is about, kept beside the events."""
    yield '{"displayTimeUnit":"ms","otherData":' + json.dumps(told) + ',"traceEvents":[\n'
    waiting, first = [], True
    for event in _events(report, found):
        waiting.append(event)
        if len(waiting) == CHUNK:
            yield ("" if first else ",\n") + ",\n".join(waiting)
            waiting, first = [], False
    yield ("" if first or not waiting else ",\n") + ",\n".join(waiting) + "\n]}\n"


def _events(report: Report, found: Budget) -> Iterator[str]:
    window, named, tracks = found.window, set(), {}
    calls: dict[int, tuple[int, int]] = {}  # thread → process and track of its CUDA calls, where one track holds them
    work = []
    for row in rows.rows(report, found):
        process = _process(row)
        if process not in named:
            named.add(process)
            yield from _name_process(process, _title(report, found, row), ORDER[row.kind])
        places = rows.nested(row.events)
        first = tracks.get(process, 0) + 1
        tracks[process] = first + int(places.max(initial=0))
        for track in range(first, tracks[process] + 1):
            name = _track(row) + (f" ({track - first + 1})" if track > first else "")
            yield _metadata("thread_name", process, track, name=name)
            yield _metadata("thread_sort_index", process, track, sort_index=track)
        yield from _slices(row, process, first + places, window)
        if row.kind == rows.CALLS and not places.any():
            calls[row.number] = process, first
        elif row.kind == rows.WORK:
            work.append((row, process, first + places))
    yield from _arrows(work, calls, window)
    yield from _counters(report, window)


def _process(row: rows.Row) -> int:
    if row.kind == rows.CAUSES:
        return BUDGET
    return GPUS + row.owner if row.kind == rows.WORK else row.owner & 0xFFFFFF


def _title(report: Report, found: Budget, row: rows.Row) -> str:
    if row.kind == rows.CAUSES:
        return f"step budget of {found.window.name}"
    if row.kind == rows.WORK:
        names = report.gpus.loc[report.gpus["gpu"] == row.owner, "name"].dropna()
        return f"GPU {row.owner}" + (f", {names.iloc[0]}" if len(names) else "")
    return report.program(row.owner) or "program"


def _track(row: rows.Row) -> str:
    if row.kind == rows.CAUSES:
        return "where the time goes"
    return f"stream {row.number}" if row.kind == rows.WORK else f"{TITLES[row.kind]}thread {row.number & 0xFFFFFF}"


def _name_process(process: int, name: str, order: int) -> Iterator[str]:
    yield _metadata("process_name", process, 0, name=name)
    yield _metadata("process_sort_index", process, 0, sort_index=order)


def _metadata(what: str, process: int, track: int, **args: object) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": process, "tid": track, "args": args})


def _slices(row: rows.Row, process: int, tracks: np.ndarray, window: Window) -> Iterator[str]:
    """The row's events as X events; of those that begin together the outer first, as Perfetto nests them."""
    within = row.events[["start", "end"]].clip(window.start, window.end)
    order = np.lexsort((-within["end"], within["start"]))
    events, tracks = row.events.iloc[order], tracks[order]
    start, end = (events[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
    from_, until = start.clip(window.start, window.end), end.clip(window.start, window.end)
    cut = ((from_ != start) | (until != end)).tolist()
    names = {name: json.dumps(name) for name in events["name"].unique()}
    looks = {look: json.dumps(CATEGORY.get(row.kind, str(look))) for look in events["look"].unique()}
    size = events["bytes"].fillna(-1).to_numpy(dtype=np.int64) if "bytes" in events else np.full(len(events), -1)
    columns = (names_of.map(texts).tolist() for names_of, texts in ((events["name"], names), (events["look"], looks)))
    numbers = (part.tolist() for part in (from_ - window.start, until - from_, tracks, end - start, size))
    for name, look, at, ns, track, whole, size_, is_cut in zip(*columns, *numbers, cut, strict=True):
        args = [f'"whole_us":{_us(whole)}'] if is_cut else []
        args += [f'"bytes":{size_}'] if size_ >= 0 else []
        more = f',"args":{{{",".join(args)}}}' if args else ""
        yield (
            f'{{"ph":"X","ts":{_us(at)},"dur":{_us(ns)},"name":{name},"cat":{look},"pid":{process},"tid":{track}{more}}}'
        )


def _arrows(
    work: list[tuple[rows.Row, int, np.ndarray]], calls: dict[int, tuple[int, int]], window: Window
) -> Iterator[str]:
    """From each call to the first work that it launched, both within the window."""
    number = 0
    for row, process, tracks in work:
        table = row.events[["start", "api_start", "api_thread"]].assign(track=tracks)
        table = table[table["api_thread"].isin([*calls]) & (table["api_start"] >= window.start)]
        table = table[(table["start"] < window.end) & (table["start"] >= table["api_start"])]
        table = table.drop_duplicates(["api_start", "api_thread"]).astype("int64")
        for start, call, thread, track in table.itertuples(index=False, name=None):
            number += 1
            caller, place = calls[thread]
            end = f'"name":"launch","cat":"launch","id":{number}'
            yield f'{{"ph":"s","ts":{_us(call - window.start)},{end},"pid":{caller},"tid":{place}}}'
            yield f'{{"ph":"f","ts":{_us(start - window.start)},"bp":"e",{end},"pid":{process},"tid":{track}}}'


def _counters(report: Report, window: Window) -> Iterator[str]:
    """The sampled counters as C events; a value that repeats the one before it is left out: it holds until the next."""
    named = set()
    for counter in report.sampled:
        samples = report.counter(counter, window)
        for device, own in samples[samples["counter"] == counter].groupby("device"):
            process = COUNTERS + int(device)
            if process not in named:
                named.add(process)
                yield from _name_process(process, f"counters of sampled GPU {device}", 2)
            value = own["value"].to_numpy(dtype=np.float64)
            changes = np.append(True, value[1:] != value[:-1])
            about = f'"name":{json.dumps(counter)},"pid":{process},"tid":0'
            times = own["time"].to_numpy(dtype=np.int64)[changes] - window.start
            for at, read in zip(times.tolist(), value[changes].tolist(), strict=True):
                yield f'{{"ph":"C","ts":{_us(at)},{about},"args":{{"value":{read!r}}}}}'


def _us(ns: int) -> str:
    """Nanoseconds, 0 or more, as microseconds with nothing lost."""
    return f"{ns // 1000}.{ns % 1000:03d}"
