"""What several ranks say together, as one object that can be written as JSON, and as blocks that show it."""

from __future__ import annotations

import pandas as pd

from stepbudget.ask import collectives, ranks
from stepbudget.ask.budget import CAUSES
from stepbudget.ask.compare import gpu_name
from stepbudget.ask.ranks import BY, Late, Ranks
from stepbudget.show import summary as answers
from stepbudget.show.blocks import Block, Items, Words
from stepbudget.show.sections import ONE, TWO, WHOLE, cut, listed
from stepbudget.show.table import Table, table

NAME = 28  # letters of a report's name in a table
COLUMNS = 6  # ranks in the table of budgets; of more, the late one and the spread
NO_PEAK = "the links' peak: no report tells it; hold the bus bandwidth against what the machine's links can do"
NO_MATCHES = "bus bandwidth: no collective whose size is known is there on all its ranks"


def summary(found: Ranks) -> dict:
    """What the ranks say; times in milliseconds or microseconds as the keys say, fractions between 0 and 1.

    A value that the reports do not hold is None; ``not_looked_at`` says why.
    """
    last, table, bandwidth = found.late, ranks.table_of(found), found.bandwidth()
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
                "budget": answers.of_budget(rank.budget)["budget"],
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
    names = ("last", "matched", "alone_ms", "exposed_ms", "at_rest_ms", "reason", "reason_ms", "more_ms")
    return {"rank": last.number, "report": last.rank.label, **{name: getattr(last, name) for name in names}}


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


def blocks(said: dict) -> list[Block]:
    """What ``summary`` says, to be shown."""
    of = f" of {said['world_size']}" if said["world_size"] else ""
    count = len(said["ranks"])
    head = f"{count} rank{'s' * (count > 1)}{of}, numbered by {BY[said['numbered_by']]}"
    found: list[Block] = [Words(f"{head}; collectives matched by {said['matched_by']}"), *map(Words, said["remarks"])]
    found += [*_clocks(said), _budgets(said), *_split(said), _late_words(said)]
    found.append(Words(f"Were all communication hidden: at most {said['bounds']['hidden_ms']:,.1f} ms to gain"))
    found += _bandwidth(said)
    if said["not_looked_at"]:
        found += [Words("Not looked at, since the reports do not hold it:"), Items(said["not_looked_at"])]
    return found


def _clocks(said: dict) -> list[Block]:
    fits = [rank["clock"] if rank["clock"]["collectives"] else dict.fromkeys(rank["clock"]) for rank in said["ranks"]]
    columns = {
        "rank": "rank", "report": ("report", lambda name: cut(name, NAME)), "gpu_number": "GPU",
        "offset_us": ("clock + µs", ONE), "drift_ppm": ("drift ppm", TWO), "residual_us": ("residual µs", ONE),
        "collectives": ("collectives", WHOLE),
    }  # fmt: skip
    caption = "Clocks, and what is added to each, by the ends of collectives; the reference has none"
    return listed([rank | own for rank, own in zip(said["ranks"], fits, strict=True)], caption, columns)


def _budgets(said: dict) -> Table:
    """Milliseconds of each cause on each rank; of many ranks on the late one, and the least, median and most."""
    labels = {cause: label for rank in said["ranks"] for cause, label in rank["causes"].items()}
    frame = pd.DataFrame(
        {cause: [(rank["budget"][cause] or 0.0) * rank["duration_ms"] for rank in said["ranks"]] for cause in CAUSES},
        index=[f"rank {rank['rank']}" for rank in said["ranks"]],
    )
    frame = frame.loc[:, frame.any()].assign(all=[rank["duration_ms"] for rank in said["ranks"]])
    if len(frame) > COLUMNS:
        late = [f"rank {said['late_rank']['rank']}"] if said["late_rank"] else []
        spread = frame.quantile([0, 0.5, 1]).set_axis(["least", "median", "most"])
        frame = pd.concat([frame.loc[late], spread])
    shown = frame.T.reset_index(names="cause")
    looks = [*shown["cause"][:-1], None]
    shown["cause"] = shown["cause"].map({**labels, "all": "all"})
    formats = dict.fromkeys(shown.columns[1:], "{:,.1f}")
    return table(shown, "Where the time goes, ms", formats, totals=[-1], looks=looks)


def _split(said: dict) -> list[Block]:
    names = ("total", "hidden", "exposed", "waiting", "transfer", "unmatched")
    columns = {"rank": "rank", "kernels": "kernels"} | {f"{name}_ms": (name, _ms) for name in names}
    columns |= {"last": "last", "alone_ms": ("alone", _ms)}
    return listed(
        [rank["communication"] | {"rank": rank["rank"]} for rank in said["ranks"]], "Communication, ms", columns
    )


def _late_words(said: dict) -> Words:
    last = said["late_rank"]
    if last is None:
        told = (
            "no rank kept the others waiting, with nothing else to run, for 1 % of the time and longer than the clocks "
            "may be off"
        )
        return Words(told if said["clock"]["waiting_told"] else "who kept the others waiting is not told")
    text = (
        f"rank {last['rank']} came last to {last['last']:,} of {last['matched']:,} collectives; the others waited "
        f"{last['alone_ms']:,.1f} ms for it alone, {last['exposed_ms']:,.1f} of them with nothing else to run. "
    )
    if last["reason"] is None:
        text += "No cause took it so much longer than the others before it came"
    else:
        text += f"Before it came, {last['reason']} took it {last['reason_ms']:,.1f} ms longer than the others"
    if last["at_rest_ms"] < last["exposed_ms"]:
        text += f"; but the others' CPU was idle for only {last['at_rest_ms']:,.1f} ms"
    text += f". If it weren't late, at most {said['bounds']['late_rank_ms']:,.1f} ms would be saved."
    waited_ms = max(rank["communication"]["waiting_ms"] for rank in said["ranks"])
    if waited_ms > 2 * last["alone_ms"]:
        text += f" In all a rank waited for up to {waited_ms:,.1f} ms: several came late together."
    return Words(text)


def _bandwidth(said: dict) -> list[Block]:
    columns = {
        "function": "collective", "ranks": "ranks", "count": "count", "mb": ("MB", TWO),
        "transfer_ms": ("transfer ms", TWO), "algorithm_gb_per_s": ("GB/s", ONE), "bus_gb_per_s": ("bus GB/s", ONE),
        "largest_mb": ("largest MB", TWO), "largest_bus_gb_per_s": ("largest's bus GB/s", ONE),
    }  # fmt: skip
    rows = [row | {"mb": row["bytes"] / 1e6, "largest_mb": row["largest_bytes"] / 1e6} for row in said["bandwidth"]]
    return listed(rows, "Bandwidth while all ranks take part", columns)


def _ms(ms: float) -> str:
    return f"{ms:,.2f}" if ms < 1000 else f"{ms:,.0f}"
