"""Are the recordings still true? Each is held against the code of today: what made it, and what has changed since."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import SOURCE_CODE
from labkit.recording import make, plan, work
from labkit.recording.plan import Item
from labkit.source import pace, quick
from labkit.source.recorded import key
from labkit.source.running import trace_beside
from labkit.training import manifest
from labkit.training.record import write_json
from stepbudget.ncu import counters

CURRENT, REVIEWED, BEFORE, STALE, MISSING = "current", "reviewed", "before manifests", "stale", "missing"
STATES = {
    CURRENT: "today's code would make it again",
    REVIEWED: "the code differs, and somebody has seen that it makes no difference",
    BEFORE: "made before recordings said which code made them; to be recorded again",
    STALE: "today's code, or the plan, would make another",
    MISSING: "planned, and not there",
}
DESCRIBED = ("run", "warm", "cold")  # ways of items whose work is described, where a step is what runs
_NOT_WORK = re.compile(r" --(epochs|seed|workers) \S+")  # flags that change how much is done, or when, and not what


@dataclass(frozen=True)
class Reviewed:
    """``reviewed.json`` of a machine: what is kept although the code behind it differs or is not known, and why.

    ``exceptions``: (module, its hash then) → {its hash after a change that somebody has looked at: the reason}.
    ``before``: kind → why recordings without a manifest are still there.
    """

    exceptions: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Reviewed:
        content = read(folder / "reviewed.json")
        exceptions: dict[tuple[str, str], dict[str, str]] = {}
        for line in content.get("exceptions", []):
            exceptions.setdefault((line["module"], line["from"]), {})[line["to"]] = line["reason"]
        return cls(exceptions, content.get("before_manifests", {}))

    def reasons(self, module: str, then: str, now: str | None) -> list[str] | None:
        """Why this module's change makes no difference, one reason a step of it; None where nobody says so."""
        for after, reason in self.exceptions.get((module, then), {}).items():
            if after == now:
                return [reason]
            if (more := self.reasons(module, after, now)) is not None:
                return [reason, *more]
        return None

    def last(self, module: str, then: str) -> str:
        """The hash that the module had after the last change that somebody has looked at."""
        after = self.exceptions.get((module, then))
        return self.last(module, list(after)[-1]) if after else then


def review(folder: Path, module: str, reason: str) -> int:
    """Keep, for a reason, what is stale since this module's code changed: written into ``reviewed.json``; how many."""
    content = {"before_manifests": {}, "exceptions": [], **read(folder / "reviewed.json")}
    concerned = [finding for finding in findings(folder) if module in finding.modules]
    hashes = {read(folder / one.item.record)["manifest"]["modules"][module] for one in concerned}
    then = sorted({Reviewed.of(folder).last(module, hash_) for hash_ in hashes})
    now = manifest.file_hash(SOURCE_CODE / module)
    content["exceptions"] += [{"module": module, "from": hash_, "to": now, "reason": reason} for hash_ in then]
    write_json(folder / "reviewed.json", content)
    return len(concerned)


@dataclass(frozen=True)
class Finding:
    """What became of an item: its state, why, and the modules whose code differs and nobody has reviewed."""

    item: Item
    state: str
    why: str = ""
    modules: tuple[str, ...] = ()


def findings(folder: Path, items: list[Item] | None = None, source_code: Path = SOURCE_CODE) -> list[Finding]:
    """Every item of a machine's plan (or these), held against the code in ``source_code``."""
    reviewed = Reviewed.of(folder)
    return [judge(folder, item, reviewed, source_code) for item in (planned(folder) if items is None else items)]


def judge(folder: Path, item: Item, reviewed: Reviewed, source_code: Path = SOURCE_CODE) -> Finding:
    """Is this item there, and would the plan and the code of today make it again?"""
    file, record = folder / item.file, read(folder / item.record)
    there = all((folder / name).is_file() for name in item.files)
    if not there or (item.how == "torch_profile" and not trace_beside(file).is_file()):
        return Finding(item, MISSING)
    made_by = command_of(folder, item, record)
    if made_by != item.command:
        return Finding(item, STALE, f"made by another command: {made_by}")
    if record.get("status", "complete") != "complete":
        return Finding(item, STALE, f"the run was {record['status']}")
    if item.how == "reference":
        return Finding(item, CURRENT, "none of our code")
    kept = record.get("manifest")
    if kept is None:
        why = reviewed.before.get(item.kind)
        return Finding(item, BEFORE if why else STALE, why or "nobody knows which code made it")
    if item.how in ("stats", "findings") and record["of"] != make.checksum(make.stats_source(file)):
        return Finding(item, STALE, "the report that it is about is another one")
    changes = manifest.changed(kept["modules"], source_code)
    reasons = {path: reviewed.reasons(path, *hashes) for path, hashes in changes.items()}
    unreviewed = tuple(path for path, found in reasons.items() if found is None)
    if unreviewed:
        return Finding(item, STALE, f"the code of {', '.join(unreviewed)} differs", unreviewed)
    if changes:
        return Finding(item, REVIEWED, "; ".join(f"{path}: {' '.join(found)}" for path, found in reasons.items()))
    return Finding(item, CURRENT)


def is_done(finding: Finding) -> bool:
    """Is there nothing to record? What was made before manifests is to be recorded again."""
    return finding.state in (CURRENT, REVIEWED)


def planned(folder: Path) -> list[Item]:
    """What is planned for a machine: in full, or quick where it was recorded so; several GPUs where those were."""
    of_ranks = plan.of_ranks(gpus_of(folder))
    if of_ranks and not (folder / "runs").is_dir():
        return of_ranks
    full, short = (folder / "runs" / f"{key(step)}-01.json" for step in (plan.STEPS[0], quick.quick(plan.STEPS[0])))
    is_quick = short.is_file() and not full.is_file()
    cores = read(folder / "provenance.json").get("cpu_cores", plan.CORES)
    rounds = quick.ROUNDS if is_quick else quick.FULL_ROUNDS
    return [*plan.plan(rounds, plan.SEEDS, is_quick, not is_quick, cores), *of_ranks]


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


def command_of(folder: Path, item: Item, record: dict) -> str | None:
    """The command that made an item's file, as the file or the record beside it says, or, of old, the provenance."""
    if item.how == "count":
        return counters.made_with((folder / item.file).read_text(encoding="utf-8"))
    before = read(folder / "provenance.json").get("before_manifests", {}).get("profiles", {})
    return record.get("command") or before.get(item.label)


def same_work(folder: Path, finding: Finding) -> str | None:
    """In a few words: do the code that made a stale recording and today's do the same work? None where no step runs."""
    step = _NOT_WORK.sub("", finding.item.command)
    if finding.item.how not in DESCRIBED or not finding.modules or step not in plan.WORK:
        return None
    then = read(folder / "work" / f"{key(step)}.json")
    made_by = read(folder / finding.item.record)["manifest"]["modules"]
    if not then or any(then["manifest"]["modules"].get(path, hash_) != hash_ for path, hash_ in made_by.items()):
        return "the work of the code that made it was not described"
    now = _work_today(step)
    differ = work.differences(then["work"], now)
    if differ is None:
        return f"the work is not compared: PyTorch {then['work']['torch']} then, {now['torch']} here"
    return f"the work differs: {', '.join(differ)}" if differ else "the work is the same"


@cache
def _work_today(step: str) -> dict:
    return work.describe(step)["work"]


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
    return [known.get(item.command) or _recorded_s(item) for item in items]


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


def report(folder: Path, found: list[Finding], with_work: bool = False) -> str:
    """The state of a machine's recordings in lines: how many are in which state, and why those that are not current."""
    numbers = Counter(finding.state for finding in found)
    lines = [f"{folder.name}: {len(found)} planned"]
    lines += [f"  {numbers[state]:4} {state}: {meaning}" for state, meaning in STATES.items() if numbers[state]]
    groups: dict[tuple[str, str, str], list[str]] = {}
    for finding in found:
        if finding.state in (REVIEWED, BEFORE, STALE):
            about = same_work(folder, finding) if with_work and finding.state == STALE else None
            why = f"{finding.why}; {about}" if about else finding.why
            groups.setdefault((finding.state, finding.item.kind, why), []).append(finding.item.file)
    for (state, kind, why), files in groups.items():
        shown = f"{files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''}"
        lines.append(f"  {state}: {kind}: {shown}: {why}")
    lines += [f"  not in the plan: {name}" for name in unplanned(folder, [finding.item for finding in found])]
    return "\n".join(lines)


def read(file: Path) -> dict:
    """A JSON object from a file; an empty one where there is none that can be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
