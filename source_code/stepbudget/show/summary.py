"""Everything at once: what a report says about one window, as one object that can be written as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from stepbudget.ask import (
    advice,
    collectives,
    copies,
    flops,
    iterations,
    launch,
    lines,
    memory,
    occurrences,
    ops,
    phases,
    tensor_cores,
    threads,
)
from stepbudget.ask.budget import Budget, budget, told
from stepbudget.ask.compare import Change, Comparison, gpu_name
from stepbudget.ask.missing import missing
from stepbudget.ask.predict import FIXES, bounds
from stepbudget.export.nsys import noted
from stepbudget.report import Report
from stepbudget.show import json, options
from stepbudget.window import Window


def summary(report: Report, window: Window | None = None, found: Budget | None = None) -> dict:
    """What the report says about a window (default: the training range, else the whole capture).

    Times are in milliseconds or microseconds as the keys say, bytes in bytes, fractions between 0 and 1. A value that
    the report does not hold is None; ``not_looked_at`` says why.
    """
    asked = window or report.window()
    found = found or budget(report, asked)
    window = found.window  # the same stretch, with the one process and the one card that all of this is about
    steps = iterations.step_windows(report, window)
    communication = collectives.communication(report, window)
    return {
        "report": report.path.name,
        "gpu": gpu_name(report, found),
        "gpu_number": found.device,
        "gpus_used": threads.gpus_used(report),
        "profiler": report.profiler,
        "nsys_version": report.nsys_version,
        "range": window.name,
        "start_ns": window.start + report.origin,
        "end_ns": window.end + report.origin,
        "occurrences": _told(occurrences.occurrences(report, asked)),
        "steps": len(steps) or None,
        "gpu_busy_fraction": found.busy_fraction,
        "remarks": options.of(report.profiler, _remarks(report, asked, found)),
        **of_budget(found),
        "budget_evidence": told(report, found),
        "per_step": per_step(report, window),
        "phases": of_phases(report, window),
        "copies": of_copies(report, window),
        "communication": communication.to_dict("records"),
        "bandwidth": collectives.bandwidth(collectives.collectives(report, window)).to_dict("records"),
        "late_rank": advice.late_rank(communication),
        "kernels": of_kernels(report, window),
        "tensor_cores": of_tensor_cores(report, window),
        "operations": _operations(report, window),
        "launches": _launches(report, window),
        "lines": lines.lines(report, window).to_dict("records") if found.busy_fraction is not None else [],
        "flops": flops.flops(report, window).dropna(subset="sizes").to_dict("records"),
        "memory": _told(memory.memory(report, window)),
        "bounds": [
            {"fix": bound.fix, "what": FIXES[bound.fix].label, "at_most_ms": bound.at_most_ms}
            for bound in bounds(report, found).values()
        ],
        "advice": options.of_advice(report.profiler, advice.advice(report, found)),
        "not_looked_at": options.of(
            report.profiler,
            advice.not_looked_at(report, found)
            + lines.not_looked_at(report, window)
            + memory.not_looked_at(report)
            + flops.not_looked_at(report, window),
        ),
    }


def of_budget(found: Budget) -> dict:
    """The part of the answer that a budget tells by itself."""
    return {
        "duration_ms": found.window.duration_ms,
        "budget": {cause: None if cause in found.untold else share for cause, share in found.fractions.items()},
        "causes": {cause: found.label(cause) for cause in found.fractions},
        "budget_evidence": {cause: text for cause, text in found.evidence.items() if text},
    }


def answer(report: Report, window: Window | None = None, gpu: int | None = None) -> dict:
    """All that ``--json`` prints about a window (default: the training range, else the whole capture).

    ``gpu`` is the number of the card (default: the one with the program's work, the lowest of several). Its keys and
    their units are those of ``stepbudget --schema``; ``json.dumps`` takes it as it is. ReportError where the report is
    damaged.

    >>> import stepbudget
    >>> report = stepbudget.open_report("main_baseline_nvtx.sqlite.xz")
    >>> found = stepbudget.answer(report)
    >>> found["schema"], found["range"], found["steps"]
    (2, 'training', 59)
    >>> [(phase["name"], phase["kernels"]) for phase in found["phases"] if phase["kernels"] > 600]
    [('forward', 885), ('backward', 1592), ('optimizer step', 649)]
    """
    window = window or report.window(gpu=gpu)
    return json.versioned(plain(summary(report, window, budget(report, window, gpu))))


def _remarks(report: Report, window: Window, found: Budget) -> list[str]:
    """What the profiler itself said where work of a GPU is missing; of which file and which GPU the answer is."""
    said = report.losses if threads.gpus_used(report) else report.diagnostics
    remarks = [f"{report.said_by}{text}" for text in said] + (found.missing.said if found.missing else [])
    if report.sqlite_path != report.path and report.sqlite_path.parent == report.path.parent:
        unsure = "" if noted(report.sqlite_path) else ", if it is its own: nothing in that file says so"
        remarks.append(f"read from {report.sqlite_path.name}, the export that lies beside it{unsure}")
    if alike := occurrences.occurrences(report, window):
        remarks.append(f"of the ranges of this name {alike}")
    work = [threads.within(table, window) for table in (report.kernels, report.copies, report.memsets, report.graphs)]
    gpus, processes = (
        sorted({int(number) for table in work for number in table[column].unique()}) for column in ("gpu", "process")
    )
    if len(gpus) > 1 or len(processes) > 1:
        whole = f"{len(processes)} processes worked on " if len(processes) > 1 else "the program worked on "
        whole += f"GPUs {', '.join(map(str, gpus))}" if len(gpus) > 1 else f"GPU {gpus[0]}"
        process = f"process {found.process & 0xFFFFFF} on " if len(processes) > 1 and found.process else ""
        remarks.append(f"{whole}; all that follows is about {process}GPU {found.device} (--gpu chooses another)")
    return remarks


def compared(
    before: Sequence[Report], after: Sequence[Report], comparison: Comparison, allowed: float | None = None
) -> dict:
    """What a comparison says, for the same purpose; ``allowed``: by what share the second may be slower."""
    score, sides = comparison.score(), (comparison.first, comparison.second)
    return {
        "before": ", ".join(report.path.name for report in before),
        "after": ", ".join(report.path.name for report in after),
        "comparable": comparison.comparable,
        "obstacles": list(comparison.obstacles),
        "remarks": list(comparison.remarks),
        "before_ms": comparison.first.duration_ms,
        "after_ms": comparison.second.duration_ms,
        "gained_ms": comparison.gained_ms,
        "budget_ms": {
            cause: dict(zip(("before", "after"), (side.known_ms(cause) for side in sides), strict=True))
            for cause in comparison.first.ms
        },
        "compared": comparison.each or comparison.before.window.name,
        "change": _change(comparison.change),
        "causes": {
            cause: None if any(side.known_ms(cause) is None for side in sides) else _change(found)
            for cause, found in comparison.causes.items()
        },
        "kernels": comparison.kernels.to_dict("records"),
        "slower_than_allowed": None
        if allowed is None
        else comparison.comparable and comparison.change.exceeds(allowed),
        "verdict": comparison.verdict or None,
        "prediction": score
        and {
            "fix": score.bound.fix,
            "at_most_ms": score.bound.at_most_ms,
            "gained_ms": score.gained_ms,
            "share_of_bound": score.share,
            "kept": score.kept,
        },
    }


def _change(found: Change) -> dict:
    return {**asdict(found), "beyond_noise": found.beyond_noise}


def plain(value: object) -> object:
    """The same with numbers of Python's own, and None for what is not a number, as JSON has it."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _told(found: object) -> dict | None:
    return found and asdict(found)


def per_step(report: Report, window: Window) -> dict | None:
    table = iterations.steps(report, window)
    if table.empty:
        return None
    spread = iterations.summary(table).set_index("measure").loc["duration"]
    period = iterations.loader_period(table["loader_wait_ms"]) if table["loader_wait_ms"].notna().all() else None
    names = ("mean_ms", "median_ms", "std_ms", "shortest_ms", "longest_ms")
    return {**{name: spread[name] for name in names}, "loader_period_steps": period.steps if period else None}


def of_phases(report: Report, window: Window) -> list[dict]:
    table = phases.phases(report, window)
    table = table[table["phase"] != phases.OUTSIDE] if table["count"].sum() == 0 else table
    rows = table.rename(columns={"phase": "name"})[["name", "count", "cpu_ms", "kernels", "gpu_ms"]].to_dict("records")
    return [row | {"kernels": None if math.isnan(row["kernels"]) else int(row["kernels"])} for row in rows]


def of_copies(report: Report, window: Window) -> list[dict]:
    columns = ["direction", "host_memory", "count", "bytes", "gpu_ms", "overlap_ms", "api_ms"]
    columns += ["longest_gpu_us", "longest_api_us", "gb_per_s"]
    return copies.copies(report, window)[columns].to_dict("records")


def of_kernels(report: Report, window: Window) -> list[dict]:
    table = tensor_cores.verdicts(report, window)
    columns = ["name", "count", "gpu_ms", "tensor_core", "evidence"]
    return table.rename(columns={"kernel": "name"})[columns].to_dict("records")


def _launches(report: Report, window: Window) -> dict:
    found = asdict(launch.launch(report, window))
    del found["window"]
    return found


def _unseen(report: Report, window: Window) -> bool:
    """Did kernels leave no rows?"""
    return bool(missing(report, threads.about(report, window)).kinds.keys() & {"kernels", "graphs"})


def _operations(report: Report, window: Window) -> dict:
    found = asdict(ops.summary(report, window))
    if _unseen(report, window):
        found |= {"gpu_ms": dict.fromkeys(found["gpu_ms"]), "efficiency": None, "efficiency_at_most": None}
        found |= {"instances": dict.fromkeys(found["instances"]), "at_stake_ms": None}
    return found


def of_tensor_cores(report: Report, window: Window) -> dict:
    table = tensor_cores.verdicts(report, window)
    sampled = tensor_cores.tensor_active(report, window)
    unseen = _unseen(report, window)
    ms = {
        f"{verdict}_ms": None if unseen else float(table.loc[table["tensor_core"] == verdict, "gpu_ms"].sum())
        for verdict in ("yes", "no", "unknown")
    }
    return ms | {
        "active_mean_pct": sampled.mean_pct if sampled else None,
        "active_max_pct": sampled.max_pct if sampled else None,
        "samples": sampled.samples if sampled else 0,
    }
