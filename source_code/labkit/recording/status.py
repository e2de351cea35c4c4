"""Are the recordings still true? Each is held against the code of today: what made it, and what has changed since."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import SOURCE_CODE
from labkit.recording import make, pages, plan
from labkit.recording.plan import Item
from labkit.source import pace, quick, recorded
from labkit.source.recorded import key
from labkit.source.running import trace_beside
from labkit.training import manifest
from stepbudget.ncu import counters

CURRENT, OUTDATED, MISSING = "current", "outdated", "missing"
STATES = {
    CURRENT: "today's code would measure the same again",
    OUTDATED: "today's code, or the plan, would measure something else, or nobody knows which code was measured",
    MISSING: "planned, and not there",
}


@dataclass(frozen=True)
class Finding:
    """What became of an item: its state, and why."""

    item: Item
    state: str
    why: str = ""


def findings(folder: Path, items: list[Item] | None = None, source_code: Path = SOURCE_CODE) -> list[Finding]:
    """Every item of a machine's plan (or these), held against the code in ``source_code``."""
    return [judge(folder, item, source_code) for item in (planned(folder) if items is None else items)]


def judge(folder: Path, item: Item, source_code: Path = SOURCE_CODE) -> Finding:
    """Is this item there, and would the plan and the code of today measure it so again?"""
    file, record = folder / item.file, read(folder / item.record)
    there = all((folder / name).is_file() for name in item.files)
    if not there or (item.how == "torch_profile" and not trace_beside(file).is_file()):
        return Finding(item, MISSING)
    made_by = counters.made_with(file.read_text(encoding="utf-8")) if item.how == "count" else record.get("command")
    if made_by != item.command:
        return Finding(item, OUTDATED, f"made by another command: {made_by}")
    if record.get("status", "complete") != "complete":
        return Finding(item, OUTDATED, f"the run was {record['status']}")
    if item.how in ("stats", "findings") and record["of"] != make.checksum(make.stats_source(file)):
        return Finding(item, OUTDATED, "the report that it is about is another one")
    kept = record.get("manifest") or {"modules": None}
    if kept["modules"] is None:
        return Finding(item, OUTDATED, "nobody knows which code was measured")
    changes = manifest.changed(kept["modules"], source_code)
    return Finding(item, OUTDATED, f"the code of {', '.join(changes)} differs") if changes else Finding(item, CURRENT)


def is_done(finding: Finding) -> bool:
    """Is there nothing to record?"""
    return finding.state == CURRENT


def planned(folder: Path) -> list[Item]:
    """What is planned for a machine: in full, or quick where it was recorded so; several GPUs where those were.

    Only kinds of which anything is there: a machine need not be recorded for all labs.
    """
    of_ranks = plan.of_ranks(gpus_of(folder))
    if of_ranks and not (folder / "runs").is_dir():
        return of_ranks
    full, short = (folder / "runs" / f"{key(step)}-01.json" for step in (plan.STEPS[0], quick.quick(plan.STEPS[0])))
    is_quick = short.is_file() and not full.is_file()
    cores = read(folder / "provenance.json").get("cpu_cores", plan.CORES)
    rounds = quick.ROUNDS if is_quick else quick.FULL_ROUNDS
    items = [*plan.plan(rounds, plan.SEEDS, is_quick, not is_quick, cores), *of_ranks]
    there = {item.kind for item in items if (folder / item.file).is_file()}
    return [item for item in items if item.kind in there]


def gpus_of(folder: Path) -> int:
    """How many GPUs a host had whose GPUs were recorded together; 0 where none were."""
    records = [read(file) for file in folder.glob("ranks/*.json")]
    return max((max(record["ranks"], record["gpus"]) for record in records if "ranks" in record), default=0)


def unplanned(folder: Path, items: list[Item]) -> list[str]:
    """Files of a machine that belong to none of these items."""
    known = {name for item in items for name in (*item.files, item.record)}
    known |= {str(trace_beside(Path(item.file))) for item in items if item.how == "torch_profile"}
    there = {path.relative_to(folder).as_posix() for path in folder.glob("*/*") if path.is_file()}
    return sorted(there - known)


def expected_s(folders: list[Path], items: list[Item]) -> list[float | None]:
    """How long each item takes, by what was recorded of its command in the first of the folders that knows; or None."""
    known: dict[str, float] = {}
    for folder in reversed(folders):
        took: dict[str, list[float]] = {}
        for record in map(read, folder.glob("*/*.json")):
            seconds = record.get("process_s", record.get("took_s"))
            if seconds is not None:
                took.setdefault(record["command"], []).append(seconds)
        known |= {command: statistics.median(seconds) for command, seconds in took.items()}
    of_one = [known.get(item.command) or _recorded_s(item) for item in items]
    return [seconds and item.times * seconds for item, seconds in zip(items, of_one, strict=True)]


def _recorded_s(item: Item) -> float | None:
    """Of a quick form, by the long run that was recorded on the default machine."""
    try:
        return pace.recorded_s("runs", item.command) if item.kind == "runs" else None
    except LabError:
        return None


def estimate(expected: list[float | None]) -> str:
    """The estimate in a few words."""
    known = [seconds for seconds in expected if seconds is not None]
    unknown = len(expected) - len(known)
    about = f"about {pace.roughly(sum(known))} for {len(known)} of them" if known else ""
    more = f"{unknown} that nobody has timed" if unknown else ""
    return ", and ".join(part for part in (about, more) if part) or "nothing to do"


def report(folder: Path, found: list[Finding], shown_on: dict[str, list[str]]) -> str:
    """The state of a machine's recordings in lines: how many are in which state, and why those that are outdated.

    ``shown_on``: the pages that show a file, by its name from reports/recorded/.
    """
    numbers = Counter(finding.state for finding in found)
    lines = [f"{folder.name}: {len(found)} planned"]
    lines += [f"  {numbers[state]:4} {state}: {meaning}" for state, meaning in STATES.items() if numbers[state]]
    groups: dict[tuple[str, str], list[Item]] = {}
    for finding in found:
        if finding.state == OUTDATED:
            groups.setdefault((finding.item.kind, finding.why), []).append(finding.item)
    for (kind, why), items in groups.items():
        first, more = items[0].file, f" and {len(items) - 1} more" if len(items) > 1 else ""
        names = {f"{folder.name}/{name}" for item in items for name in (*item.files, item.record)}
        on = sorted({page for name in names for page in shown_on.get(name, ())})
        lines.append(f"  {OUTDATED}: {kind}: {first}{more}: {why}; shown on {', '.join(on) or 'no page'}")
    lines += [f"  not in the plan: {name}" for name in unplanned(folder, [finding.item for finding in found])]
    return "\n".join(lines)


def unsaid(folder: Path, found: list[Finding], shown_on: dict[str, list[str]]) -> dict[str, list[str]]:
    """Notebook → what it shows of a machine although it is outdated, where the notebook does not say so."""
    silent: dict[str, list[str]] = {}
    for finding in found:
        if finding.state == OUTDATED:
            names = {f"{folder.name}/{name}" for name in (*finding.item.files, finding.item.record)}
            for page in {page for name in names for page in shown_on.get(name, ())}:
                if not pages.says(page, recorded.OLDER):
                    silent.setdefault(page, []).append(finding.item.file)
    return silent


def read(file: Path) -> dict:
    """A JSON object from a file; an empty one where there is none that can be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
