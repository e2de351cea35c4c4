"""What does each tool say first of a report? Its words, the causes that they name, and whether they raise an alarm.

An alarm is a first finding that is worth a tenth of the time, or, where a tool gives no time, one that it grades a
warning. So long as a program is healthy, there should be none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from labkit.cases import Case
from labkit.subjects.diagnosis import words
from stepbudget.ask import ranks
from stepbudget.ask.advice import SIZES, advice
from stepbudget.ask.budget import IDLE, WORK, Budget, budget
from stepbudget.report import Report

ALARM = 0.1  # of the time
WAITS = ("cuda_api_sync", "cuda-sync-api")  # rules of nsys analyze that list the program's waits for the GPU
GRADED = ("warning", "critical", "error", "high")


@dataclass(frozen=True)
class Answer:
    """``first``: in the tool's own words, shortened; ``causes``: those that the finding names; ``late``: a rank."""

    first: str
    causes: tuple[str, ...]
    alarm: bool
    late: int | None = None

    def is_right(self, case: Case) -> bool:
        """Of a healthy program: no alarm. Else a right cause is named, and the rank that is late, where one is."""
        if case.is_healthy:
            return not self.alarm
        return bool(set(self.causes) & set(case.right)) and case.late in (None, self.late)


def of_advice(report: Report) -> Answer:
    """Ours: the first finding of the advice; where ranks wait for one another, it says which is late, and why."""
    found = budget(report)
    first = next(iter(advice(report, found)), None)
    if first is None:
        return Answer("nothing", (), False)
    share = first.upper_bound_ms / found.window.duration_ms
    cause = SIZES if first.finding == SIZES else first.cause
    return Answer(f"{first.what}, {100 * share:.0f} %", (cause,), share >= ALARM, first.gpu)


def of_budget(report: Report) -> Answer:
    """Ours: the costliest cause of an idle GPU; of one that is busy, the costliest work."""
    found = budget(report)
    share = found.idle_ms / found.window.duration_ms if found.window.duration_ms else 0.0
    cause = max(IDLE if share >= ALARM else WORK, key=found.ms.__getitem__)
    words_ = f"{found.label(cause)}, {100 * found.fractions[cause]:.0f} %"
    return Answer(words_, (cause,), share >= ALARM, _late(report, found))


def _late(report: Report, found: Budget) -> int | None:
    """The GPU but for which a tenth of the time could be gained; None where the others wait for none so long."""
    last = ranks.late_within(report, found.window)
    if last is None or last.at_most_ms < ALARM * found.window.duration_ms:
        return None
    return last.rank.window.gpu


def of_nsys_analyze(said: dict, window_ms: float) -> Answer:
    """Its rules are in no order of cost: the first is that which names a cause and found the most time.

    One wait for the GPU alone is no alarm, however long: so each of the programs ends its capture.
    """
    found = {rule: rows for rule, rows in said["rules"].items() if rows.get("rows")}
    alarm = any(
        rows["total_ms"] >= ALARM * window_ms and not (rule in WAITS and rows["rows"] == 1)
        for rule, rows in found.items()
    )
    telling = [rule for rule in found if words.RULES[rule]] or list(found)
    if not telling:
        return Answer("nothing", (), False)
    first = max(telling, key=lambda rule: found[rule]["total_ms"])
    return Answer(f"{first}, {found[first]['total_ms']:,.0f} ms", words.RULES[first], alarm)


def of_nsys_ai(said: dict, window_ms: float) -> Answer:
    """The first of its ranked findings, and the first pattern of its matcher of root causes: either may be right."""
    finding, pattern = (next(iter(said[name]), None) for name in ("findings", "patterns"))
    text = " ".join(map(_text, filter(None, (finding, pattern))))
    labels = [one[key] for one, key in ((finding, "label"), (pattern, "pattern")) if one]
    return Answer("; ".join(labels) or "nothing", words.named(text), _alarms(finding, window_ms), words.late_rank(text))


def of_tb_profiler(said: dict, window_ms: float) -> Answer:
    """The first of its recommendations; one is an alarm, whatever it would gain."""
    first = next(iter(said["recommendations"]), "")
    text = re.sub(r"<[^>]*>", "", first)
    return Answer(text or "nothing", words.named(text), bool(text), words.late_rank(text))


def _alarms(finding: dict | None, window_ms: float) -> bool:
    if finding is None:
        return False
    gain_ms = finding.get("headroom_ms")
    return finding.get("severity") in GRADED if gain_ms is None else gain_ms >= ALARM * window_ms


def _text(said: object) -> str:
    """All the words in an answer."""
    if isinstance(said, dict):
        return " ".join(map(_text, said.values()))
    if isinstance(said, list):
        return " ".join(map(_text, said))
    return said if isinstance(said, str) else ""


def answer(read: Callable[[dict, float], Answer], said: dict | None, window_ms: float) -> Answer | None:
    """What a tool said, read; a tool that failed named nothing. None where it had nothing to read."""
    if said is None:
        return None
    return Answer(f"failed: {said['error']}", (), False) if "error" in said else read(said, window_ms)


READ = {
    "nsys_analyze": of_nsys_analyze,
    "nsys_ai": of_nsys_ai,
    "tb_profiler": of_tb_profiler,
}  # tool of labkit.recording.tools → how it is read
