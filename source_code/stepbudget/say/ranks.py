"""What several ranks say together, as one object that can be written as JSON, and as lines for people."""

from __future__ import annotations

import textwrap

from stepbudget.ask import collectives, ranks
from stepbudget.ask.budget import CAUSES
from stepbudget.ask.compare import gpu_name
from stepbudget.ask.ranks import BY, Late, Ranks
from stepbudget.errors import printable

WIDTH = 100
NAME = 28  # letters of a report's name in a table
COLUMNS = 6  # ranks in the table of budgets; of more, the late one and the spread
NO_PEAK = "the links' peak: no report tells it; hold the bus bandwidth against what the machine's links can do"
NO_MATCHES = "bus bandwidth: no collective whose size is known is there on all its ranks"


def summary(found: Ranks) -> dict:
    """What the ranks say; times in milliseconds or microseconds as the keys say, fractions between 0 and 1.

    A value that the reports do not hold is None; ``not_looked_at`` says why.
    """
    last, table, bandwidth = ranks.late(found), ranks.table_of(found), found.bandwidth()
    rows = table.drop(columns=["rank", "report", "gpu", "process"]).to_dict("records")
    return {
        "world_size": found.world,
        "missing_ranks": found.missing,
        "numbered_by": found.numbered_by,
        "matched_by": found.matched_by,
        "clock": {
            "reference": found.ranks[0].label,
            "residual_us": found.residual_us,
            "residual_95_us": max(rank.clock.residual_95_us for rank in found.ranks),
            "waiting_told": found.told_apart,
        },
        "ranks": [
            {
                "rank": rank.number,
                "report": rank.label,
                "gpu": gpu_name(rank.report, rank.budget),
                "gpu_number": rank.window.gpu,
                "process": rank.window.process & 0xFFFFFF,
                "range": rank.window.name,
                "start_ns": rank.window.start + rank.report.origin,
                "end_ns": rank.window.end + rank.report.origin,
                "duration_ms": rank.window.duration_ms,
                "clock": {
                    "offset_us": rank.clock.offset_ns / 1e3,
                    "drift_ppm": rank.clock.drift * 1e6,
                    "residual_us": rank.clock.residual_us,
                    "residual_95_us": rank.clock.residual_95_us,
                    "collectives": rank.clock.collectives,
                },
                "budget": rank.budget.fractions,
                "causes": {cause: rank.budget.label(cause) for cause in CAUSES},
                "communication": row,
            }
            for rank, row in zip(found.ranks, rows, strict=True)
        ],
        "late_rank": last and _late(last),
        "bounds": _bounds(rows, last),
        "bandwidth": bandwidth.to_dict("records"),
        "remarks": _remarks(found),
        "not_looked_at": _not_looked_at(found, len(bandwidth)),
    }


def _late(last: Late) -> dict:
    return {
        "rank": last.number,
        "report": last.rank.label,
        "last": last.last,
        "matched": last.matched,
        "alone_ms": last.alone_ms,
        "exposed_ms": last.exposed_ms,
        "at_rest_ms": last.at_rest_ms,
        "reason": last.reason,
        "reason_ms": last.reason_ms,
        "more_ms": last.more_ms,
    }


def _bounds(rows: list[dict], last: Late | None) -> dict:
    """What can be gained at most: each rank's own work has to be done, however little it has to wait for others.

    ``late_rank_ms``: were the late rank no later than the others (``ranks.Late``). ``hidden_ms``: were all
    communication hidden.
    """
    return {"late_rank_ms": last and last.at_most_ms, "hidden_ms": min(row["exposed_ms"] for row in rows)}


def _remarks(found: Ranks) -> list[str]:
    count = len(found.ranks)
    remarks = list(found.remarks)
    if found.world is None:
        remarks.append("how many ranks the run had is not in the reports: others may be missing")
    elif found.world > count:
        if found.missing is None:
            which = f"{found.world - count} of {found.world} ranks are missing; which ones, their numbers do not tell"
        else:
            listed = ", ".join(map(str, found.missing[:20])) + (", …" if len(found.missing) > 20 else "")
            which = f"of {found.world} ranks, {len(found.missing)} are missing: {listed}"
        remarks.append(f"{which}; what seems to be transfer may be waiting for them")
    return remarks


def _not_looked_at(found: Ranks, rows: int) -> list[str]:
    if rows:
        return [NO_PEAK]
    return [NO_MATCHES if found.table["bytes"].notna().any() else collectives.NO_SIZES]


def lines(said: dict) -> list[str]:
    """The lines for what ``summary`` says, at most WIDTH characters wide."""
    of = f" of {said['world_size']}" if said["world_size"] else ""
    count = len(said["ranks"])
    head = f"{count} rank{'s' * (count > 1)}{of}, numbered by {BY[said['numbered_by']]}"
    found = textwrap.wrap(f"{head}; collectives matched by {said['matched_by']}", WIDTH)
    found += [line for text in said["remarks"] for line in textwrap.wrap(text, WIDTH)]
    found += ["", *_clock_table(said), "", *_budget_table(said), "", *_split_table(said)]
    found += _late_lines(said)
    found.append(f"Were all communication hidden: at most {said['bounds']['hidden_ms']:,.1f} ms to gain")
    if said["bandwidth"]:
        found += ["", *_bandwidth_table(said)]
    if said["not_looked_at"]:
        found += ["", "Not looked at, since the reports do not hold it"]
        found += [line for text in said["not_looked_at"] for line in _wrapped(text)]
    return [printable(line) for line in found]


def _clock_table(said: dict) -> list[str]:
    rows = []
    for rank in said["ranks"]:
        own = rank["clock"]
        told = [f"{own['offset_us']:,.1f}", f"{own['drift_ppm']:,.2f}", f"{own['residual_us']:,.1f}"]
        told = [*told, f"{own['collectives']:,}"] if own["collectives"] else ["reference", "", "", ""]
        rows.append((str(rank["rank"]), _cut(rank["report"], NAME), str(rank["gpu_number"]), *told))
    columns = ["rank", "report", "GPU", "clock + µs", "drift ppm", "residual µs", "collectives"]
    return [
        "Clocks, and what is added to each, by the ends of collectives",
        *_table(columns, rows, left=(1,)),
    ]


def _budget_table(said: dict) -> list[str]:
    """Milliseconds of each cause on each rank; of many ranks on the late one, and the least, median and most."""
    labels = {cause: label for rank in said["ranks"] for cause, label in rank["causes"].items()}
    ms = {
        cause: [rank["budget"][cause] * rank["duration_ms"] for rank in said["ranks"]]
        for cause in CAUSES
        if any(rank["budget"][cause] for rank in said["ranks"])
    }
    whole = [rank["duration_ms"] for rank in said["ranks"]]
    if len(said["ranks"]) <= COLUMNS:
        columns, pick = [f"rank {rank['rank']}" for rank in said["ranks"]], lambda values: values
    else:
        number = said["late_rank"] and said["late_rank"]["rank"]
        at = [at for at, rank in enumerate(said["ranks"]) if rank["rank"] == number]
        columns = [*(f"rank {number}" for _ in at), "least", "median", "most"]

        def pick(values: list[float]) -> list[float]:
            ordered = sorted(values)
            middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
            return [*(values[one] for one in at), ordered[0], middle, ordered[-1]]

    rows = [(labels[cause], *(f"{one:,.1f}" for one in pick(values))) for cause, values in ms.items()]
    rows.append(("all", *(f"{one:,.1f}" for one in pick(whole))))
    return ["Where the time goes, ms", *_table(["cause", *columns], rows, left=(0,))]


def _split_table(said: dict) -> list[str]:
    names = ["kernels", "total", "hidden", "exposed", "waiting", "transfer", "unmatched", "last", "alone"]
    rows = []
    for rank in said["ranks"]:
        own = rank["communication"]
        ms = [_ms(own[f"{name}_ms"]) for name in names[1:7]]
        rows.append((str(rank["rank"]), f"{own['kernels']:,}", *ms, f"{own['last']:,}", _ms(own["alone_ms"])))
    return ["Communication, ms", *_table(["rank", *names], rows)]


def _late_lines(said: dict) -> list[str]:
    last = said["late_rank"]
    if last is None:
        told = "no rank kept the others waiting for longer than the clocks may be off, and for 1 % of the time"
        return ["", told if said["clock"]["waiting_told"] else "who kept the others waiting is not told"]
    text = (
        f"rank {last['rank']} came last to {last['last']:,} of {last['matched']:,} collectives; the others waited "
        f"{last['alone_ms']:,.1f} ms for it alone, {last['exposed_ms']:,.1f} of them with nothing else to run. "
    )
    if last["reason"] is None:
        text += "No cause took it so much longer than the others before it came"
    else:
        text += f"Before it came, {last['reason']} took it {last['reason_ms']:,.1f} ms longer than the others"
    if last["at_rest_ms"] < last["exposed_ms"]:
        text += f"; but the others' CPU was idle for only {last['at_rest_ms']:,.1f} ms, and launches no earlier"
    text += f"; were it no later than they, at most {said['bounds']['late_rank_ms']:,.1f} ms are to be gained."
    waited_ms = max(rank["communication"]["waiting_ms"] for rank in said["ranks"])
    if waited_ms > 2 * last["alone_ms"]:
        text += f" In all a rank waited for up to {waited_ms:,.1f} ms: several came late together."
    return ["", *textwrap.wrap(text, WIDTH)]


def _bandwidth_table(said: dict) -> list[str]:
    rows = [
        (
            row["function"], str(row["ranks"]), f"{row['count']:,}", f"{row['bytes'] / 1e6:,.2f}",
            f"{row['transfer_ms']:,.2f}", f"{row['algorithm_gb_per_s']:,.1f}", f"{row['bus_gb_per_s']:,.1f}",
            f"{row['largest_bytes'] / 1e6:,.2f}", f"{row['largest_bus_gb_per_s']:,.1f}",
        )
        for row in said["bandwidth"]
    ]  # fmt: skip
    columns = ["collective", "ranks", "count", "MB", "transfer ms", "GB/s", "bus GB/s", "largest MB", "bus GB/s"]
    return ["Bandwidth while all ranks take part", *_table(columns, rows, left=(0,))]


def _table(columns: list[str], rows: list[tuple], left: tuple[int, ...] = ()) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    aligned = [
        [cell.ljust(width) if at in left else cell.rjust(width) for at, (cell, width) in enumerate(pairs)]
        for pairs in (zip(row, widths, strict=True) for row in [tuple(columns), *rows])
    ]
    return [f"  {'  '.join(cells)}".rstrip() for cells in aligned]


def _ms(ms: float) -> str:
    return f"{ms:,.2f}" if ms < 1000 else f"{ms:,.0f}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  - ", subsequent_indent="    ")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
