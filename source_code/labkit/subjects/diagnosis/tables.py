"""The table of diagnoses: for each case that was recorded, what each tool said first, and whether it is right."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from labkit.cases import CASES, Case
from labkit.recording.tools import TOOLS
from labkit.source import originals
from labkit.subjects.diagnosis import answers
from labkit.subjects.diagnosis.answers import Answer
from stepbudget.errors import printable
from stepbudget.report import open_report

OURS = {"stepbudget: advice": answers.of_advice, "stepbudget: budget": answers.of_budget}
WIDEST = 44  # letters of an answer
HEALTHY = "nothing: healthy"


@dataclass(frozen=True)
class Score:
    """Of one tool: planted cases that it was asked, and named right, among them with no other cause beside; alarms."""

    planted: int
    right: int
    alone: int
    healthy: int
    alarms: int


@dataclass(frozen=True)
class Diagnoses:
    """``found``: case that was recorded → tool → answer; a tool that was not asked about a case has none.

    ``versions``: tool → case → its version. One was asked anew with what this machine had where a case was recorded
    again.
    """

    found: dict[str, dict[str, Answer]]
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def tools(self) -> list[str]:
        return list(dict.fromkeys(tool for row in self.found.values() for tool in row))

    def title(self, tool: str) -> str:
        """The tool with its version, and cases that a further version was asked about."""
        of = self.versions.get(tool, {})
        usual, *others = (version for version, _ in Counter(of.values()).most_common()) if of else ("",)
        told = [f"{', '.join(case for case, version in of.items() if version == other)}: {other}" for other in others]
        return f"{tool} {usual}".strip() + (f" ({'; '.join(told)})" if told else "")

    @property
    def missing(self) -> list[str]:
        """Cases of which no report is there."""
        return [case.name for case in CASES if case.name not in self.found]

    def score(self, tool: str) -> Score:
        asked = [(case, self.found[case.name][tool]) for case in CASES if tool in self.found.get(case.name, {})]
        planted = [(case, answer) for case, answer in asked if not case.is_healthy]
        right = [answer for case, answer in planted if answer.is_right(case)]
        alone = [answer for answer in right if len(answer.causes) == 1]
        alarms = [answer for case, answer in asked if case.is_healthy and not answer.is_right(case)]
        return Score(len(planted), len(right), len(alone), len(asked) - len(planted), len(alarms))


def diagnose(folder: Path) -> Diagnoses:
    """Ask every tool about every case of which a machine's folder holds the report, or another tool's findings."""
    found, versions = {}, {}
    for case in CASES:
        file = folder / "profiles" / f"{case.report}.sqlite.xz"
        if not file.is_file():
            continue
        with open_report(originals.original(file)) as report:
            row = {tool: ask(report) for tool, ask in OURS.items()}
            window_ms = report.window().duration_ms
        for tool, read in answers.READ.items():
            said = folder / "findings" / f"{tool}--{case.name}.json"
            if said.is_file():
                record = originals.read(said)
                if answer := answers.answer(read, record["said"], window_ms):
                    row[TOOLS[tool].name] = answer
                    versions.setdefault(TOOLS[tool].name, {})[case.name] = record["version"]
        found[case.name] = row
    return Diagnoses(found, versions)


def recorded_on(folder: Path) -> str:
    """On which GPU, with what, and when the cases in a machine's folder were recorded."""
    reports = [originals.read(folder / "profiles" / f"{case.report}.json") for case in CASES]
    days = sorted({record["run_at"][:10] for record in reports})
    systems = sorted({f"Nsight Systems {record['nsys']}, driver {record['driver']}" for record in reports})
    gpus = sorted({record["gpu"] for record in reports})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"Recorded on: {', '.join(gpus)} ({'; '.join(systems)}; {when})."


def planted(case: Case) -> str:
    """What a case was made for."""
    return case.planted or HEALTHY


def cell(case: Case, answer: Answer | None) -> str:
    """An answer with its mark: right, wrong; ``1 of 4`` where it names more causes than one."""
    if answer is None:
        return "not asked"
    mark = "right" if answer.is_right(case) else ("alarm" if case.is_healthy else "wrong")
    several = f" (1 of {len(answer.causes)} named)" if len(answer.causes) > 1 and not case.is_healthy else ""
    return f"{mark}: {printable(answer.first)[:WIDEST]}{several}"


def markdown(diagnoses: Diagnoses) -> str:
    """The whole table, the scores, and what is missing, as Markdown."""
    tools = diagnoses.tools
    lines = []
    if diagnoses.found:
        cases = [case for case in CASES if case.name in diagnoses.found]
        rows = [
            [case.name, planted(case), *(cell(case, diagnoses.found[case.name].get(tool)) for tool in tools)]
            for case in cases
        ]
        lines += [*_table(["case", "planted", *map(diagnoses.title, tools)], rows), ""]
        rows = [
            [
                diagnoses.title(tool),
                f"{one.right} of {one.planted}",
                f"{one.alone} of {one.planted}",
                f"{one.alarms} of {one.healthy}",
            ]
            for tool, one in ((tool, diagnoses.score(tool)) for tool in tools)
        ]
        lines += [*_table(["tool", "right", "alone", "alarms at healthy programs"], rows), ""]
    if diagnoses.missing:
        lines += [f"Not recorded, so not scored: {', '.join(diagnoses.missing)}.", ""]
    return "\n".join(lines)


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    cells = [[text.replace("|", "\\|") for text in row] for row in (columns, ["---"] * len(columns), *rows)]
    return [f"| {' | '.join(row)} |" for row in cells]
