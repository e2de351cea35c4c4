"""Which parts of the pages come out of the catalogue? Navigation bars, tables of labs, steps and times, README's list.

They are written by ``make notebooks``, and a test says whether they still are what the catalogue makes of them. In a
text they stand between two comments, ``<!-- catalogue: labs of part 1 -->`` and ``<!-- end -->``. Links to pages that
have moved (``links``) lead to where these are now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat

from labkit import course
from labkit.course import Lab
from labkit.display.spread import spread
from labkit.errors import LabError
from labkit.paths import RECORDED, ROOT, SOURCE_CODE
from labkit.recording import api, both, links, live_check
from labkit.source import quick, recorded
from labkit.source.recorded import NotRecorded

FRONT_PAGE = ROOT / "start_here.ipynb"
README = ROOT / "README.md"
TEXTS = (README, *sorted(ROOT.glob("labs/*.md")), *sorted(SOURCE_CODE.glob("stepbudget/*.md")))  # beside the notebooks
NOTEBOOKS = [FRONT_PAGE, *(lab.path for lab in course.LABS)]
RECORDINGS = "recordings"  # in a notebook's metadata: the recorded files that it opens
BLOCK = re.compile(r"(<!-- catalogue: ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def navigation(lab: Lab) -> str:
    """The bar at both ends of a lab: the one before, home, the next."""
    place = course.LABS.index(lab)
    home = f'../{FRONT_PAGE.name} "The front page"'
    before = _link(course.LABS[place - 1]) if place else home
    after = _link(course.LABS[place + 1]) if place + 1 < len(course.LABS) else home
    return f"[← Previous]({before}) | [Home]({home}) | [Next →]({after})"


def _link(lab: Lab) -> str:
    """Where a link of the bar leads, and the title that it shows under the mouse."""
    return f'{lab.file} "{lab.number} · {lab.title}"'


def labs_of_part(number: int) -> str:
    """The front page's list of one part's labs, under the part's sentence."""
    rows = [f"- [{lab.number} · {lab.title}](labs/{lab.file}): {lab.topic}" for lab in course.part(number)]
    return "\n".join([course.PARTS[number], "", *rows]) + "\n"


def ladder(recordings: Path = RECORDED) -> str:
    """Each script, what is new in it and its lab; where the default machine timed it, the seconds of ten epochs."""
    folder = recordings / course.DEFAULT_MACHINE
    rows, changed = [], []  # changed: places in STEPS
    for place, step in enumerate(course.STEPS):
        found = []
        try:
            found = recorded.records("runs", step.script, folder)
            if len(found) < quick.FULL_ROUNDS:
                raise NotRecorded(step.script)
            took = [_seconds(spread(found, what).median) for what in ("training_s", "process_s")]
        except NotRecorded:
            took = ["–", "–"]
        changed += [place] if recorded.outdated(found) else []
        script = f"[{step.script}](source_code/{step.script})"
        rows.append(f"| {script} | {step.new} | {' | '.join(took)} | [{step.lab}](labs/{_lab(step.lab).file}) |")
    head = "| script | what is new in it | loop s | process s | lab |"
    said = (
        f"Seconds for ten epochs on {course.MACHINES[course.DEFAULT_MACHINE]}: training loop, whole process; medians."
    )
    older = [" to ".join(course.STEPS[end].name.removeprefix("main_") for end in ends) for ends in _runs(changed)]
    said += f" Older than their code: {', '.join(older)}." if older else ""
    return "\n".join([head, "|---|---|--:|--:|---|", *rows, "", said]) + "\n"


def routes() -> str:
    """The table of ways through the course."""
    rows = []
    for route in course.ROUTES:
        labs = ", ".join(_run(*run) for run in _runs(route.labs))
        rows.append(f"| **{route.name}** | {labs} | {route.what} |")
    return "\n".join(["| time | labs | what you do |", "|---|---|---|", *rows]) + "\n"


def buttons() -> str:
    """The front page without an installation: in Colab, as its workflow wrote the branch ``colab``, and on Binder.

    Nothing so long as nobody has said where the course is published.
    """
    if not course.REPOSITORY:
        return ""
    colab = f"https://colab.research.google.com/github/{course.REPOSITORY}/blob/colab/{FRONT_PAGE.name}"
    binder = f"https://mybinder.org/v2/gh/{course.REPOSITORY}/HEAD?urlpath=lab/tree/{FRONT_PAGE.name}"
    return f"**[▶ Open in Colab]({colab})** · **[▶ Read on Binder]({binder})**\n"


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """(1, 2, 3, 25) → [[1, 3], [25]]"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return runs


def _run(*ends: int) -> str:
    return " to ".join(f"[{number}](labs/{_lab(number).file})" for number in ends)


def _lab(number: int) -> Lab:
    return course.LABS[number - 1]


def timing(recordings: Path = RECORDED) -> str:
    """The teachers' table: minutes to read a lab, by the catalogue, and what running it live waited for, once."""
    file = recordings / course.DEFAULT_MACHINE / live_check.NAME
    live = json.loads(file.read_text())["labs"] if file.is_file() else {}
    rows = []
    for part in course.PARTS:
        for lab in course.part(part):
            own = live.get(lab.name, {})
            waited = f"{own['seconds'] / 60:.0f}" if own.get("status") == live_check.WHOLE else "–"
            rows.append(f"| [{lab.number}]({lab.file}) | {lab.minutes} | {waited} |")
        rows.append(f"| part {part} | {sum(lab.minutes for lab in course.part(part))} | |")
    head = f"| lab | minutes | minutes live, {course.MACHINES[course.DEFAULT_MACHINE]} |"
    return "\n".join([head, "|---|--:|--:|", *rows]) + "\n"


def last_live(recordings: Path = RECORDED) -> str:
    """The table of the last live runs on each machine: what ran whole, how long that waited, and the rest."""
    rows = []
    for folder in course.MACHINES:
        for file in sorted((recordings / folder).glob(f"{live_check.STEM}*.json")):
            result = json.loads(file.read_text())
            labs = result["labs"]
            if whole := [lab for lab in labs.values() if lab["status"] == live_check.WHOLE]:
                days = sorted({lab["run_at"][:10] for lab in labs.values()})
                day = " to ".join(dict.fromkeys([days[0], days[-1]]))
                cells, differ = (sum(len(lab[what]) for lab in whole) for what in ("cells", "differs"))
                waited = f"{sum(lab['seconds'] for lab in whole) / 60:.0f} min"
                ran = f"{len(whole)} of {len(NOTEBOOKS)} | {cells} | {waited} | {differ}"
                rows.append(f"| {_where(folder, result['machine'])} | {day} | {ran} | {_not_whole(labs)} |")
    if not rows:
        return "They have not been run live yet.\n"
    columns = ["machine", "last run live", "complete notebooks", "code cells run", "run time"]
    head = f"| {' | '.join([*columns, 'claims that differ', 'incomplete'])} |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows]) + "\n"


def _where(folder: str, machine: dict) -> str:
    """``one H100, 4 cores, without nsys``: the machine of a folder, with the cores and the profiler of that run."""
    gpu = course.MACHINES[folder].partition(",")[0]
    return f"{gpu}, {machine['cpu_cores']} cores{'' if machine['nsys'] else ', without nsys'}"


def _not_whole(labs: dict[str, dict]) -> str:
    """Which notebooks did not run to their end, and why: ``3 unfinished; 13 failed in cell 58; 4 without a result``"""
    ends: dict[str, list[int]] = {}
    for number, name in enumerate(live_check.names()):
        lab = labs.get(name, {"status": "without a result"})
        if lab["status"] == live_check.WHOLE:
            continue
        where = f" in cell {lab['cells'][-1]['cell']}" if lab["status"] == live_check.FAILED and lab["cells"] else ""
        ends.setdefault(f"{lab['status']}{where}", []).append(number)
    return "; ".join(f"{_in_words(which)} {end}" for end, which in ends.items()) or "–"


def _in_words(numbers: list[int]) -> str:
    """Labs by their rising numbers, 0 for the front page, neighbours together: ``the front page, 6 to 9, 12``."""
    front = ["the front page"] if 0 in numbers else []
    return ", ".join(front + [" to ".join(map(str, ends)) for ends in _runs([number for number in numbers if number])])


WRITTEN: dict[str, Callable[[], str]] = {
    **{f"labs of part {number}": lambda number=number: labs_of_part(number) for number in course.PARTS},
    "ladder": ladder,
    "routes": routes,
    "buttons": buttons,
    "last run live": last_live,
    "timing by lab": timing,
    "functions": api.page,
    "both profilers": both.table,
}


def shown_on() -> dict[str, list[str]]:
    """Recorded file, by its name from reports/recorded/ → the notebooks that open it, by their names."""
    found: dict[str, list[str]] = {}
    for file in NOTEBOOKS:
        for name in _notebook(file)["metadata"].get(RECORDINGS, ()):
            found.setdefault(name, []).append(file.name)
    return found


def says(name: str, words: str) -> bool:
    """Do these words stand in an output of the notebook called ``name``?"""
    file = next(file for file in NOTEBOOKS if file.name == name)
    cells = [cell for cell in _notebook(file)["cells"] if cell["cell_type"] == "code"]
    return any(words in json.dumps(cell["outputs"], ensure_ascii=False) for cell in cells)


def _notebook(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def filled(text: str) -> str:
    """The text with each of its blocks and moved links written anew; LabError where it asks for a block unknown."""

    def block(found: re.Match) -> str:
        if found[2] not in WRITTEN:
            raise LabError(f"nothing in the catalogue is called '{found[2]}'. There are: {', '.join(WRITTEN)}.")
        return f"{found[1]}{WRITTEN[found[2]]()}{found[3]}"

    return links.current(BLOCK.sub(block, text))


def dress(notebook: nbformat.NotebookNode, name: str) -> None:
    """Write a notebook's navigation bars and tables; ``name`` is its file's name."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = filled(cell.source)
    lab = next((one for one in course.LABS if one.file == name), None)
    if lab is not None:
        notebook.cells[0].source = notebook.cells[-1].source = navigation(lab)
