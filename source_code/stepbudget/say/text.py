"""How is an answer printed? The summary of a report as lines for people, at most 120 characters wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from statistics import median

from stepbudget.ask.budget import CAUSES
from stepbudget.ask.compare import Change, Comparison
from stepbudget.errors import printable
from stepbudget.say.words import held, shaped
from stepbudget.signs import signed

WIDTH = 120
BAR = 40  # characters for the whole window
NAME = 60  # letters of a name in a table, so that its numbers stay in view
LEAST_CHANGE_MS = 0.05  # of a kernel, to be shown
KERNELS = 10  # the longest; the others are counted
FIRST = 5  # shapes of operators, and places in the program where no backtrace names its lines
LINES = 10  # places where one does


def answer(found: dict) -> list[str]:
    """The lines for a summary (stepbudget.say.summary)."""
    gpu = found["gpu"] or "GPU not named"
    number = "" if found["gpu_number"] is None or len(found["gpus_used"]) < 2 else f" (number {found['gpu_number']})"
    steps = f", {found['steps']} step{'s' * (found['steps'] > 1)}" if found["steps"] else ""
    lines = [
        f"{_cut(found['report'], NAME)}: {gpu}{number}, Nsight Systems {found['nsys_version'] or 'of unknown version'}",
        f"range '{_cut(found['range'], NAME)}': {found['duration_ms']:,.1f} ms{steps}; "
        f"the GPU was busy for {100 * found['gpu_busy_fraction']:.1f} % of it",
    ]
    lines += [line for text in found["remarks"] for line in textwrap.wrap(text, WIDTH)]
    lines += (
        _step_budget(found) + _steps(found) + _phases(found) + _copies(found) + _communication(found) + _kernels(found)
    )
    lines += _flops(found) + _memory(found) + _lines(found)
    return _printable([_cut(line) for line in lines] + _advice(found))


def comparison(made: Comparison, said: dict) -> list[str]:
    """The lines for a comparison."""
    lines = [f"before {said['before']}, after {said['after']}"]
    lines += [f"  not comparable: {text}" for text in said["obstacles"]]
    lines += _wrapped([f"note: {text}" for text in said["remarks"]])
    several = len(made.change.before_ms) + len(made.change.after_ms) > 2
    named = {CAUSES[cause]: found for cause, found in made.causes.items()}
    rows = [_changed(row.cause, row.before_ms, row.after_ms, named[row.cause]) for row in made.table().itertuples()]
    if made.each is None:
        rows.append(_changed("all", said["before_ms"], said["after_ms"], made.change))
    else:
        medians = (median(made.change.before_ms), median(made.change.after_ms))
        rows.append(_changed(f"each '{_cut(made.each, 40)}'", *medians, made.change))
    columns = ["cause", "before ms", "after ms", "change", *(["of the profiles"] if several else [])]
    lines += _table(columns, [row[: len(columns)] for row in rows])
    if several:
        how = "pairs' changes, and their median" if made.change.paired else "all of one side less all of the other"
        lines += _wrapped([f"of the profiles: {how}; * where they agree on the direction beyond the noise"])
    kernels = made.kernels[made.kernels["change_ms"].abs() >= LEAST_CHANGE_MS].head(KERNELS)
    if len(kernels):
        rows = [
            (_cut(row.kernel, NAME), f"{row.before:,.0f}", f"{row.after:,.0f}", f"{row.before_ms:,.2f}",
             f"{row.after_ms:,.2f}", signed(f"{row.change_ms:+,.2f}"))
            for row in kernels.itertuples()
        ]  # fmt: skip
        lines += [
            "",
            *_table(["kernels, changed most", "before", "after", "before ms", "after ms", "change"], rows),
            "",
        ]
    if made.comparable:
        lines.append(f"{made.speedup:.2f} times as fast")
        lines += _wrapped([made.verdict])
    if said["slower_than_allowed"] is not None:
        is_slower = "slower than allowed" if said["slower_than_allowed"] else "not slower than allowed"
        low, high = (signed(f"{ms:+,.1f}") for ms in (made.change.low_ms, made.change.high_ms))
        lines.append(f"{is_slower}: the change lies between {low} and {high} ms")
    return _printable(lines)


def _changed(what: str, before_ms: float, after_ms: float, found: Change) -> tuple[str, ...]:
    """A row: before and after, their difference, and between what it lies with several profiles."""
    between = f"{found.ms:+,.1f} ({found.low_ms:+,.1f} to {found.high_ms:+,.1f}){'*' if found.beyond_noise else ' '}"
    change = f"{after_ms - before_ms:+,.1f}"
    return what, f"{before_ms:,.1f}", f"{after_ms:,.1f}", signed(change), signed(between)


def _step_budget(found: dict) -> list[str]:
    whole_ms = found["duration_ms"]
    rows = [
        (found["causes"][cause], f"{share * whole_ms:,.1f}", f"{100 * share:.1f}", "█" * round(BAR * share))
        for cause, share in found["budget"].items()
        if share
    ]
    return ["", "Where the time goes", *_table(["cause", "ms", "%", ""], rows)]


def _steps(found: dict) -> list[str]:
    steps = found["per_step"]
    if not steps:
        return []
    std = "" if steps["std_ms"] != steps["std_ms"] else f", standard deviation {steps['std_ms']:,.2f}"
    line = (
        f"a step takes {steps['mean_ms']:,.2f} ms on average (median {steps['median_ms']:,.2f}{std}, "
        f"{steps['shortest_ms']:,.2f} to {steps['longest_ms']:,.2f})"
    )
    period = steps["loader_period_steps"]
    return ["", line, *([f"every {period} steps the loader keeps it waiting"] if period else [])]


def _phases(found: dict) -> list[str]:
    if not found["phases"]:
        return []
    rows = [
        (
            _cut(phase["name"], NAME),
            f"{phase['count']:,}",
            "" if phase["cpu_ms"] != phase["cpu_ms"] else f"{phase['cpu_ms']:,.1f}",
            f"{phase['kernels']:,}",
            f"{phase['gpu_ms']:,.1f}",
        )
        for phase in found["phases"][:20]
    ]
    more = len(found["phases"]) - len(rows)
    lines = ["", "Phases", *_table(["phase", "ranges", "CPU ms", "kernels", "GPU ms"], rows)]
    return lines + ([f"  and {more} more"] if more else [])


def _copies(found: dict) -> list[str]:
    if not found["copies"]:
        return []
    rows = [
        (
            f"{copy['direction']}, {copy['host_memory']}",
            f"{copy['count']:,}",
            f"{copy['bytes'] / 1e6:,.2f}",
            f"{copy['gpu_ms']:,.2f}",
            f"{copy['overlap_ms']:,.2f}",
            f"{copy['api_ms']:,.2f}",
            "" if copy["gb_per_s"] != copy["gb_per_s"] else f"{copy['gb_per_s']:,.1f}",
        )
        for copy in found["copies"]
    ]
    columns = ["copies", "count", "MB", "GPU ms", "beside kernels", "held ms", "GB/s"]
    return ["", *_table(columns, rows)]


def _communication(found: dict) -> list[str]:
    if not found["communication"]:
        return []
    columns = ["kernels", "total", "hidden", "exposed", "waiting", "transfer", "unmatched"]
    rows = [
        (f"GPU {row['gpu']}, process {row['process'] & 0xFFFFFF}", f"{row['kernels']:,}",
         *(f"{row[f'{column}_ms']:,.2f}" for column in columns[1:]))
        for row in found["communication"]
    ]  # fmt: skip
    lines = ["", *_table(["communication, ms", *columns], rows)]
    moved = [
        f"{row['function']} of {row['ranks']} ranks: {row['count']:,}, {row['bytes'] / 1e6:,.2f} MB, bus bandwidth "
        f"{row['bus_gb_per_s']:,.1f} GB/s ({row['largest_bus_gb_per_s']:,.1f} of the largest)"
        for row in found["bandwidth"]
    ]
    return lines + [line for text in [*found["late_rank"], *moved] for line in textwrap.wrap(text, WIDTH)]


def _kernels(found: dict) -> list[str]:
    kernels = found["kernels"]
    if not kernels:
        return []
    rows = [
        (
            _cut(one["name"], NAME),
            f"{one['count']:,}",
            f"{one['gpu_ms']:,.2f}",
            f"{one['tensor_core']} ({one['evidence']})",
        )
        for one in kernels[:KERNELS]
    ]
    lines = ["", *_table(["kernels, longest first", "count", "GPU ms", "Tensor Cores"], rows)]
    if len(kernels) > KERNELS:
        rest_ms = sum(one["gpu_ms"] for one in kernels[KERNELS:])
        lines.append(f"  and {len(kernels) - KERNELS} more, {rest_ms:,.2f} ms")
    used = found["tensor_cores"]
    line = f"Tensor Cores: yes {used['yes_ms']:,.1f} ms, no {used['no_ms']:,.1f}, unknown {used['unknown_ms']:,.1f}"
    if used["samples"]:
        line += f"; Tensor Active {used['active_mean_pct']:.1f} % on average ({used['samples']:,} samples)"
    lines += ["", line]
    ops = found["operations"]
    if ops["efficiency"] is not None:
        lines += textwrap.wrap(
            f"convolutions and matrix products (by {ops['by']}): {100 * ops['efficiency']:.1f} % of their kernel time "
            f"on Tensor Cores, {ops['at_stake_ms']:,.1f} ms at stake",
            WIDTH,
        )
    return lines


def _flops(found: dict) -> list[str]:
    rows = []
    for one in found["flops"]:
        if one["unknown"] is None:
            numbers = f"{one['ops']:,}", f"{one['gflop']:,.2f}", f"{one['gpu_ms']:,.2f}", f"{one['tflops']:,.1f}"
            rows.append((_cut(shaped(one), NAME), *numbers, one["group"]))
    columns = ["arithmetic, longest first", "count", "GFLOP each", "GPU ms", "TFLOP/s", "Tensor Cores"]
    return ["", *_table(columns, rows[:FIRST])] if rows else []


def _memory(found: dict) -> list[str]:
    return ["", *textwrap.wrap(held(found["memory"]), WIDTH)] if found["memory"] else []


def _lines(found: dict) -> list[str]:
    rows = []
    for one in found["lines"][: LINES if any(one["file"] for one in found["lines"]) else FIRST]:
        where = _cut(f"{found['causes'][one['cause']]}: {one['where']}", NAME + 10)
        numbers = f"{one['count']:,}", f"{one['cpu_ms']:,.1f}", f"{one['idle_ms']:,.1f}"
        rows.append((where, *numbers, _cut(one["call"], 20)))
    if not rows:
        return []
    more = len(found["lines"]) - len(rows)
    columns = ["where the program waits and launches", "count", "CPU ms", "GPU idle ms", "call"]
    return ["", *_table(columns, rows), *([f"  and {more} more"] if more else [])]


def _advice(found: dict) -> list[str]:
    lines = ["", "What to do next"]
    lines += _wrapped(
        f"{one['what']}: {one['evidence']}. At most {one['upper_bound_ms']:,.1f} ms to gain"
        + (f"; see lab {one['lab']}." if one["lab"] else ".")
        for one in found["advice"]
    ) or ["  nothing stands out"]
    if found["not_looked_at"]:
        lines += ["", "Not looked at"]
        lines += _wrapped(found["not_looked_at"])
    return lines


def _table(columns: list[str], rows: list[tuple]) -> list[str]:
    """Columns of text: the first to the left, numbers to the right, the last as it is."""
    widths = [max(len(column), *(len(row[i]) for row in rows), 0) for i, column in enumerate(columns)]
    lines = []
    for row in [tuple(columns), *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        if columns[-1] in ("", "Tensor Cores", "call"):
            cells[-1] = row[-1]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


def _wrapped(sentences: Iterable[str]) -> list[str]:
    lines = []
    for sentence in sentences:
        lines += textwrap.wrap(sentence, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return lines


def _printable(lines: list[str]) -> list[str]:
    """The lines without what would steer a terminal: a program may put anything into its names."""
    return [printable(line) for line in lines]


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
