"""What do Nsight Systems and PyTorch's profiler say of the same programs? The table of the reader's page on inputs."""

from __future__ import annotations

import json
from pathlib import Path

from labkit.cases import PREFIX
from labkit.paths import RECORDED
from stepbudget.ask.budget import CAUSES, IDLE, WORK

COLUMNS = "program", "window, ms", "GPU works, %", "largest cause of idling, %", "largest difference, points"


def table(recordings: Path = RECORDED) -> str:
    """A row a program that ``--only both`` recorded: Nsight Systems' answer, then that of PyTorch's profiler."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---|---|---|"]
    told = set()
    for file in sorted(recordings.glob("*/both/*.json"), key=lambda file: file.name):
        record = json.loads(file.read_text(encoding="utf-8"))
        lines.append(_row(file.stem.removeprefix(PREFIX), record))
        gpu, cores = record["gpu"], record["cpu_cores"]
        gpus = f"two {gpu}s" if "--nproc-per-node 2" in record["command"] else f"one {gpu}"
        told.add(f"{gpus}, {cores} CPU cores, with Nsight Systems {record['nsys']} and PyTorch {record['torch']}")
    return "\n".join([*lines, "", f"Measured on {'; '.join(sorted(told))}."]) + "\n"


def _row(name: str, record: dict) -> str:
    budgets = record["nsys_budget"], record["torch_budget"]
    shares = [{cause: 100 * ms / one["duration_ms"] for cause, ms in one["ms"].items()} for one in budgets]
    works = [sum(own.get(cause, 0.0) for cause in WORK) for own in shares]
    first = [max(IDLE, key=lambda cause, own=own: own.get(cause, 0.0)) for own in shares]
    gaps = {cause: shares[1].get(cause, 0.0) - shares[0].get(cause, 0.0) for cause in (*WORK, *IDLE)}
    gap = max(gaps, key=lambda cause: abs(gaps[cause]))
    causes = [f"{CAUSES[cause]} {own.get(cause, 0.0):.0f}" for cause, own in zip(first, shares, strict=True)]
    causes = [causes[0], causes[1].rpartition(" ")[2] if first[0] == first[1] else causes[1]]
    cells = [
        " / ".join(f"{one['duration_ms']:,.0f}" for one in budgets),
        " / ".join(f"{share:.0f}" for share in works),
        " / ".join(causes),
        f"{CAUSES[gap]} {gaps[gap]:+.0f}",
    ]
    return f"| {name} | {' | '.join(cells)} |"
