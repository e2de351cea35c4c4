"""What do the plain sums say? Counts and times by name, as ``nsys stats`` gives them, one SQL query a question.

This room needs SQLite and nothing else, so that it answers before pandas would be loaded. The queries stand in it to be
read, and most of them run as they are in ``sqlite3 report.sqlite``: what is in braces is a column or table that not
every version of Nsight Systems writes, ``:last`` is the last moment of the capture. All times are nanoseconds, all
sizes bytes, and everything is about the whole capture, all processes and GPUs.

Where the answers differ from those of ``nsys stats``: a kernel belongs to the innermost range alone, not to those
around it as well; ranges of the same name are one row, in whatever thread or domain; a range that is still open when
the capture stops lasts until the last event of any kind, not the last of NVTX; calls lose their ``_v7000`` and
ranges what PyTorch's emit_nvtx adds to a name; a call whose backtrace was taken counts once, not twice; median and
standard deviation are not worked out.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from pathlib import Path

from stepbudget import nesting
from stepbudget.errors import printable
from stepbudget.export.kinds import DIRECTIONS, MEMORY
from stepbudget.export.sqlite import CALLS, COPIES, FILLS, KERNEL_NAME, KERNELS, LAUNCHED_BY, RANGES, Export

OUTSIDE = "(outside any range)"

# The columns of each answer, in order; the longest in total come first.
_TIMES = ("count", "total_ns", "mean_ns", "min_ns", "max_ns")
COLUMNS = {
    "ranges": ("name", *_TIMES),
    "kernels_by_range": ("range", "kernel", *_TIMES),
    "kernels": ("name", *_TIMES),
    "copies": ("direction", "memory", *_TIMES, "bytes", "min_bytes", "max_bytes"),
    "calls": ("name", *_TIMES),
}

# --- the questions ------------------------------------------------------------------------------------------

# How long did the ranges of each name last? A name stands in the event itself or, where the program registered it, in
# the list of strings. max() of two values makes an instant of what ends before it begins.
RANGE_SUMS = """
WITH ranges AS (
    SELECT
        coalesce({text}, registered.value, '(unnamed range)') AS label,
        max(coalesce(event."end", :last), event.start) - event.start AS ns
    FROM NVTX_EVENTS AS event
    LEFT JOIN StringIds AS registered ON registered.id = {textId}
    WHERE event.eventType IN ({types})
)
SELECT
    {own_name} AS name,
    count(*), sum(ns) AS total, avg(ns), min(ns), max(ns)
FROM ranges GROUP BY name ORDER BY total DESC, name
"""

# What PyTorch's emit_nvtx adds to an operator's name, as in "aten::add, seq = 7, op_id = 9, sizes = [[64]]", is cut
# off: min() finds the first of the three; where none is there, each is found behind the name, where it was just put.
OWN_NAME = """substr(label, 1, -1 + min(
        instr(label || ', seq = ', ', seq = '),
        instr(label || ', op_id = ', ', op_id = '),
        instr(label || ', sizes = ', ', sizes = ')
    ))"""

# How long did the kernels of each name run? Summed by the number of the name first: numbers are sooner compared.
KERNEL_SUMS = """
WITH by_number AS (
    SELECT
        {nameId} AS number, count(*) AS count, sum("end" - start) AS total,
        min("end" - start) AS shortest, max("end" - start) AS longest
    FROM CUPTI_ACTIVITY_KIND_KERNEL
    WHERE "end" >= start AND ("end" <> 0 OR start <> 0)
    GROUP BY number
),
named AS (
    SELECT CASE typeof(value) WHEN 'text' THEN value ELSE '(unnamed kernel)' END AS name, by_number.*
    FROM by_number LEFT JOIN StringIds ON StringIds.id = number
)
SELECT name, sum(count), sum(total) AS ns, 1.0 * sum(total) / sum(count), min(shortest), max(longest)
FROM named GROUP BY name ORDER BY ns DESC, name
"""

# Which thread launched each kernel, and when? (export/sqlite.py has the join.)
BY_THREAD = f"""
WITH {{launches}}
SELECT launches.thread, launches.start AS moment, {{nameId}}, work."end" - work.start
FROM CUPTI_ACTIVITY_KIND_KERNEL AS work {LAUNCHED_BY}
WHERE work."end" >= work.start AND (work."end" <> 0 OR work.start <> 0)
ORDER BY launches.thread, moment
"""
# The ranges of each thread, outer ones before inner ones.
NESTED = """
WITH ranges AS (
    SELECT
        event.globalTid AS thread, event.start, coalesce(event."end", :last) AS until,
        coalesce({text}, registered.value, '(unnamed range)') AS label
    FROM NVTX_EVENTS AS event
    LEFT JOIN StringIds AS registered ON registered.id = {textId}
    WHERE event.eventType IN ({types})
)
SELECT
    {own_name} AS name,
    thread, start, until
FROM ranges ORDER BY thread, start, until DESC
"""

# What was copied, from where to where and from or to which kind of host memory? And what was filled (memset)? The
# host's side is a copy's source, or its target on the way back; between devices the source's kind stands there.
COPY_SUMS = """
WITH directions(number, word) AS ({directions}),
memory(number, word) AS ({memory}),
copies AS (
    SELECT
        coalesce(directions.word, 'other') AS direction,
        CASE directions.word WHEN 'device to host' THEN {dstKind} ELSE {srcKind} END AS kind,
        "end" - start AS ns, bytes
    FROM {copies} LEFT JOIN directions ON directions.number = {copyKind}
    WHERE "end" >= start AND ("end" <> 0 OR start <> 0)
    UNION ALL
    SELECT 'memset', {memKind}, "end" - start, bytes
    FROM {fills}
    WHERE "end" >= start AND ("end" <> 0 OR start <> 0)
)
SELECT
    direction, coalesce(memory.word, 'unknown') AS place,
    count(*), sum(ns) AS total, avg(ns), min(ns), max(ns), sum(bytes), min(bytes), max(bytes)
FROM copies LEFT JOIN memory ON memory.number = kind
GROUP BY direction, place ORDER BY total DESC, direction, place
"""
NO_WORK = '(SELECT 0 AS start, -1 AS "end", 0 AS bytes)'  # in place of a table that is not there

# How long did the CUDA API's calls last? No function of CUDA has a _ within its name: what follows one is a version or
# the default stream's kind, cudaStreamSynchronize_ptsz_v7000 has both.
CALL_SUMS = """
WITH by_number AS (
    SELECT nameId AS number, max(coalesce("end", :last), start) - start AS ns
    FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE {calls}
),
numbers AS (
    SELECT number, count(*) AS count, sum(ns) AS total, min(ns) AS shortest, max(ns) AS longest
    FROM by_number GROUP BY number
),
names AS (
    SELECT
        number, CASE typeof(value) WHEN 'text' THEN value ELSE '(unnamed call)' END AS whole,
        ltrim(value, '_') AS bare
    FROM numbers LEFT JOIN StringIds ON StringIds.id = number
),
functions AS (
    SELECT
        number,
        CASE WHEN bare GLOB 'cu*_?*'
            THEN substr(whole, 1, length(whole) - length(bare) + instr(bare, '_') - 1) ELSE whole END AS name
    FROM names
)
SELECT name, sum(count), sum(total) AS ns, 1.0 * sum(total) / sum(count), min(shortest), max(longest)
FROM numbers JOIN functions ON functions.number IS numbers.number
GROUP BY name ORDER BY ns DESC, name
"""


def sums(path: str | Path) -> dict[str, list[tuple]]:
    """The answers to all questions, question → rows; COLUMNS names what stands in them.

    What was not recorded has no rows. ReportError, in one sentence, where the report cannot be read, is damaged, or
    holds no events at all.
    """
    with Export(path) as export:
        _, last = export.reach  # what is summed has been checked
        return {
            "ranges": _ranges(export, RANGE_SUMS, last),
            "kernels_by_range": _kernels_by_range(export, last),
            "kernels": export.rows(KERNEL_SUMS.format(nameId=_kernel_name(export))) if export.has(KERNELS) else [],
            "copies": _copies(export),
            "calls": export.rows(CALL_SUMS.format(calls=export.calls), {"last": last}) if export.has(CALLS) else [],
        }


def _ranges(export: Export, query: str, last: int) -> list[tuple]:
    """The rows of a query about ranges, each of which begins with a name."""
    if not export.has(RANGES):
        return []
    columns = {name: export.column(RANGES, name) for name in ("text", "textId")}
    rows = export.rows(query.format(**columns, types=export.range_types, own_name=OWN_NAME), {"last": last})
    if not all(isinstance(row[0], str) for row in rows):
        raise export.damaged(RANGES, "a name that is no text")
    return rows


def _kernels_by_range(export: Export, last: int) -> list[tuple]:
    """The innermost range is found by one walk over time, thread by thread: a join would try all pairs."""
    if not export.has(KERNELS):
        return []
    launched = export.rows(BY_THREAD.format(launches=export.launches, nameId=_kernel_name(export)))
    ranges: dict[int, list[tuple]] = {}
    for name, thread, start, until in _ranges(export, NESTED, last):
        ranges.setdefault(thread, []).append((start, until, name))
    around: list[tuple | None] = []
    for thread, own in groupby(launched, key=itemgetter(0)):  # None: the launch is not known
        around += nesting.innermost(ranges.get(thread, ()), [moment for _, moment, *_ in own])
    numbers = {number for _, _, number, _ in launched}
    names = {number: name for number, name in export.rows("SELECT id, value FROM StringIds") if number in numbers}
    spans: dict[tuple[str, str], list[int]] = {}
    for held, (_, _, number, ns) in zip(around, launched, strict=True):
        name = names.get(number)
        kernel = name if isinstance(name, str) else "(unnamed kernel)"
        spans.setdefault((held[2] if held else OUTSIDE, kernel), []).append(ns)
    rows = [(*key, len(ns), sum(ns), sum(ns) / len(ns), min(ns), max(ns)) for key, ns in spans.items()]
    return sorted(rows, key=lambda row: (-row[3], row[:2]))


def _copies(export: Export) -> list[tuple]:
    if not (export.has(COPIES) or export.has(FILLS)):
        return []
    query = COPY_SUMS.format(
        directions=_values(export.words("ENUM_CUDA_MEMCPY_OPER", DIRECTIONS)),
        memory=_values(export.words("ENUM_CUDA_MEM_KIND", MEMORY)),
        copies=COPIES if export.has(COPIES) else NO_WORK,
        fills=FILLS if export.has(FILLS) else NO_WORK,
        memKind=export.column(FILLS, "memKind"),
        **{kind: export.column(COPIES, kind) for kind in ("copyKind", "srcKind", "dstKind")},
    )
    return export.rows(query)


def _kernel_name(export: Export) -> str:
    """SQL for the number of a kernel's name: demangled where the export has that."""
    return export.column(KERNELS, *KERNEL_NAME)


def _values(words: dict[int, str]) -> str:
    """SQL for the rows (number, word)."""
    rows = [f"({number}, '{word}')" for number, word in words.items()]
    return f"VALUES {', '.join(rows) or '(NULL, NULL)'}"


# --- as text ------------------------------------------------------------------------------------------------

SHOWN = 20  # rows of a table; the JSON holds all
WIDTH = 100
LEAST_ROOM = 14  # letters of a name: "host to device"
TITLES = {
    "ranges": "NVTX ranges",
    "kernels_by_range": "Kernels by the innermost range of the thread that launched them",
    "kernels": "Kernels",
    "copies": "Copies and fills of memory",
    "calls": "CUDA API calls",
}


def lines(found: dict[str, list[tuple]]) -> list[str]:
    """The answers as aligned tables: times in ns, sizes in bytes, the longest SHOWN rows of each."""
    made = []
    for question, rows in found.items():
        made += ["", TITLES[question]] if made else [TITLES[question]]
        made += _table(COLUMNS[question], rows[:SHOWN]) if rows else ["  none recorded"]
        if len(rows) > SHOWN:
            total = sum(row[COLUMNS[question].index("total_ns")] for row in rows[SHOWN:])
            made.append(f"  and {len(rows) - SHOWN} more, {total:,} ns in all (--json lists them)")
    return made


def objects(found: dict[str, list[tuple]]) -> dict[str, list[dict]]:
    """The answers for JSON: each row with the names of its columns."""
    return {name: [dict(zip(COLUMNS[name], row, strict=True)) for row in rows] for name, rows in found.items()}


def _table(columns: tuple[str, ...], rows: list[tuple]) -> list[str]:
    """Texts to the left, in what room the numbers leave them; as many numbers to the right as fit (JSON has all)."""
    texts = sum(isinstance(value, str) for value in rows[0])
    numbers = [columns[texts:], *([_number(value) for value in row[texts:]] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*numbers, strict=True)]
    while (room := (WIDTH - sum(width + 2 for width in widths)) // texts - 2) < LEAST_ROOM:
        widths.pop()
    numbers = [row[: len(widths)] for row in numbers]
    names = [columns[:texts], *([_name(value, room) for value in row[:texts]] for row in rows)]
    name_widths = [max(map(len, column)) for column in zip(*names, strict=True)]
    made = []
    for name, number in zip(names, numbers, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(name, name_widths, strict=True)]
        cells += [cell.rjust(width) for cell, width in zip(number, widths, strict=True)]
        made.append(f"  {'  '.join(cells)}")
    return made


def _number(value: float) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _name(text: str, width: int) -> str:
    """The text, cut to the width, without what would steer a terminal."""
    return printable(text if len(text) <= width else f"{text[: width - 1]}…")
