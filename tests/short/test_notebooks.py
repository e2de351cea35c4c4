"""Form of the notebooks: what nbval lets pass is refused here. Their contents are validated by ``pytest --nbval``."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from urllib.parse import urlparse

import nbformat
import pytest

from labkit import course, labs
from labkit.errors import LabError
from labkit.recording import pages
from labkit.recording.live_check import NAME, STEM
from labkit.recording.notebooks import REVEALS, dress_again, files, fold, is_folded
from labkit.training.record import write_json

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = files()
LABS = [path for path in NOTEBOOKS if path.parent.name == "labs"]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?: \"[^\"]*\")?\)|(?:href|src)=\"([^\"]+)\"")

HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([\w-]+)">')


def cells(path: Path, kind: str) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def text_of(path: Path) -> str:
    return "\n".join(cell.source for cell in cells(path, "markdown"))


def links(text: str) -> list[str]:
    return [first or second for first, second in LINK.findall(text)]


def outputs(cell) -> str:
    texts = [out.get("text", "") or out.get("data", {}).get("text/plain", "") for out in cell.outputs]
    return "\n".join(texts)


by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
lab_by_name = pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)


def test_the_course_has_its_notebooks():
    numbered = [path.stem for path in LABS]
    assert NOTEBOOKS[0].name == "start_here.ipynb"
    assert len(numbered) >= 5
    assert [int(stem[:2]) for stem in numbered] == list(range(1, len(numbered) + 1))
    assert {path.name for path in (ROOT / "labs").glob("*.ipynb")} == {path.name for path in LABS}


@by_name
def test_every_code_cell_was_run_and_none_failed(path):
    for number, cell in enumerate(cells(path, "code"), 1):
        assert cell.source.strip(), f"cell {number} is empty"
        assert cell.execution_count == number, f"cell {number} was not run, or not in order"
        assert not [out for out in cell.outputs if out.output_type == "error"], f"cell {number} failed"
        assert not [out for out in cell.outputs if out.get("name") == "stderr"], f"cell {number} writes to stderr"


@by_name
def test_no_cell_hides_a_failure(path):
    for cell in cells(path, "code"):
        assert not re.search(r"^\s*[!%]", cell.source, re.MULTILINE), "shell escapes and magics hide failures"
        assert "except" not in cell.source, "a notebook that catches errors hides them"
        for tag in cell.metadata.get("tags", []):
            assert tag == "nbval-ignore-output", f"tag {tag}: cells are neither skipped nor expected to fail"
            reason = cell.source.splitlines()[0]
            assert reason.startswith("# output not compared: "), "an ignored output says why in its first line"
        assert "NBVAL" not in cell.source


@by_name
def test_cells_are_short(path):
    lengths = [len(cell.source.splitlines()) for cell in cells(path, "code")]
    assert max(lengths) <= 16
    assert sorted(lengths)[len(lengths) // 2] <= 6
    columns = [len(line) for cell in cells(path, "code") for line in cell.source.splitlines()]
    assert max(columns) <= 100, "longer lines run off a laptop's page"


@by_name
def test_every_picture_says_what_was_drawn(path):
    for cell in cells(path, "code"):
        for out in cell.outputs:
            if "image/png" in out.get("data", {}):
                assert re.search(r"\[drawn data: [0-9a-f]{12}\]$", out.data["text/plain"])
        assert "plt." not in cell.source, "figures come from labkit, which fingerprints them"


@by_name
def test_every_link_inside_the_checkout_leads_somewhere(path):
    for link in links(text_of(path)):
        address = urlparse(link)
        if not address.scheme:
            assert (path.parent / address.path).exists(), f"{path.name}: {link}"
        else:
            assert address.scheme == "https", link


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(f"labs/{name}.md" for name in ("running", "hangs", "recording")),
        "reports/README.md",
        "source_code/stepbudget/README.md",
    ],
)
def test_every_link_of_a_plain_page_leads_somewhere(page):
    text = (ROOT / page).read_text()
    headings = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}
    for link in links(text):
        address = urlparse(link)
        if address.scheme:
            assert address.scheme == "https", link
        elif address.path:
            assert ((ROOT / page).parent / address.path).exists(), link
        else:
            assert address.fragment in headings | set(ANCHOR.findall(text)), link


@by_name
def test_every_picture_has_alternative_text(path):
    for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text_of(path)):
        assert len(alt) > 40, f"{target}: says too little for those who cannot see it"
    assert "<img" not in text_of(path)


@by_name
def test_what_comes_out_of_the_catalogue_is_as_the_catalogue_has_it(path):
    notebook = nbformat.read(path, as_version=4)
    before = [cell.source for cell in notebook.cells]
    pages.dress(notebook, path.name)
    assert [cell.source for cell in notebook.cells] == before, "make notebooks writes bars and tables anew"
    if path in LABS:
        place = LABS.index(path)
        home = "../start_here.ipynb"
        around = LABS[place - 1].name if place else home, LABS[place + 1].name if place + 1 < len(LABS) else home
        assert links(before[0]) == [around[0], home, around[1]] and before[0] == before[-1]


def test_bars_and_tables_are_written_anew_without_running_the_page(tmp_path):
    stored = NOTEBOOKS[0].read_text()
    page = tmp_path / NOTEBOOKS[0].name
    page.write_text(stored.replace(f"[1 · {course.LABS[0].title}]", "[An older title]"))
    assert page.read_text() != stored
    dress_again(page)
    assert page.read_text() == stored


def test_the_front_page_and_readme_lead_to_every_lab_and_script():
    targets = links(text_of(NOTEBOOKS[0]))
    assert {f"labs/{lab.name}" for lab in LABS} <= set(targets)
    assert {f"source_code/{step.script}" for step in course.STEPS} <= set(targets)
    readme = pages.README.read_text()
    for text in (page.read_text() for page in pages.TEXTS):
        assert pages.filled(text) == text, "make notebooks writes the tables anew"
    assert {f"labs/{lab.name}" for lab in LABS[:5]} | {NOTEBOOKS[0].name} <= set(links(readme))


def test_a_page_says_where_the_labs_last_ran_live(tmp_path):
    assert pages.last_live(tmp_path) == "They have not been run live yet.\n"
    whole = {"status": "whole", "seconds": 90.0, "cells": [{}, {}], "differs": [{}], "run_at": "2030-02-01T10:00:00"}
    broken = whole | {"status": "failed", "cells": [{"cell": 7}], "run_at": "2030-02-02T10:00:00"}
    (tmp_path / "h200").mkdir()
    one, two = (lab.name for lab in course.LABS[:2])
    machine = {"cpu_cores": 16, "nsys": "2025.3.1"}
    write_json(tmp_path / "h200" / NAME, {"machine": machine, "labs": {"start_here": whole, one: whole, two: broken}})
    row = pages.last_live(tmp_path).splitlines()[2]
    told = f"| one H200, 16 cores | 2030-02-01 to 2030-02-02 | 2 of {len(NOTEBOOKS)} | 4 | 3 min | 2 |"
    assert row == f"{told} 2 failed in cell 7; 3 to {course.LABS[-1].number} without a result |"
    four = course.LABS[3].name
    write_json(tmp_path / "h200" / NAME, {"machine": machine, "labs": {one: whole, four: broken}})
    rest = f"the front page, 2 to 3, 5 to {course.LABS[-1].number} without a result"
    assert pages.last_live(tmp_path).endswith(f"| {rest}; 4 failed in cell 7 |\n")
    less = {"cpu_cores": 4, "nsys": None}
    write_json(tmp_path / "h200" / f"{STEM}_4cores.json", {"machine": less, "labs": {one: whole}})
    *_, first, second = pages.last_live(tmp_path).splitlines()
    assert first.startswith("| one H200, 16 cores | ") and second.startswith("| one H200, 4 cores, without nsys | ")


def test_a_table_that_the_catalogue_does_not_have_is_named():
    with pytest.raises(LabError, match="nothing in the catalogue is called 'moons'"):
        pages.filled("<!-- catalogue: moons -->\n<!-- end -->")


# What a lab does without, and why.
WITHOUT = {
    "05_summary": {"lab.diff("},  # changes nothing, compares what the labs before it changed
    "09_roofline": {"lab.diff("},  # changes nothing, says what limits the step that lab 11 changes
    # weighs one kernel against a library's, by a benchmark of its own: no step of the ladder
    "10_triton": {"nsys profile", "lab.wall_clock(", "lab.diff("},
    "12_shapes": {"lab.diff("},  # a size is a flag of main_shapes.py, of which lab 13 shows the diff
    "14_loss_scaling": {"lab.wall_clock("},  # asks which numbers do not fit: no step of the ladder
    # trains with and without a scaler by one function; its diff is lab 14's, its wait in a timeline lab 5's
    "15_scaler": {"nsys profile", "lab.wall_clock(", "lab.diff("},
    "16_keras": {"nsys profile", "lab.wall_clock("},  # what is computed, and whether it learns; lab 17 times the same
    "20_clinic": {"lab.wall_clock(", "lab.diff("},  # the reader mends functions, which are run on the CPU
    "21_more_gpus": {"lab.wall_clock("},  # times are of several GPUs: scaling.tables.scaling
    "22_sharding": {"lab.wall_clock(", "lab.diff("},  # another network than the ladder's, and times of several GPUs
    # weighs formats by benchmarks that train and time networks of their own, seed by seed: no step of the ladder
    "23_eight_bits": {"nsys profile", "lab.wall_clock(", "lab.diff("},
    "25_own_model": {"lab.wall_clock(", "lab.diff("},  # no epochs, no rungs: tables and diffs of its own (own_model)
    "24_nsight": {"lab.wall_clock(", "lab.diff("},  # changes no step: the profiler is the subject
    # single kernels beside libraries', by a benchmark of their own: no step of the ladder
    "26_attention": {"nsys profile", "lab.wall_clock(", "lab.diff("},
    "27_inside": {"nsys profile", "lab.wall_clock(", "lab.diff("},
    "29_matrix_product": {"nsys profile", "lab.wall_clock(", "lab.diff("},
    # another recipe, with a referee's clock and tables of its own: no step of the ladder
    "28_time_to_99": {"nsys profile", "lab.wall_clock(", "lab.diff("},
}


@lab_by_name
def test_the_parts_of_a_lab(path):
    """design of the labs: a promise, prediction, command, diff, proof, wall clock, exercises, what to remember."""
    without = WITHOUT.get(path.stem, set())
    text, code = text_of(path), "\n".join(cell.source for cell in cells(path, "code"))
    assert re.search(r"^(You'll|After this lab you can) ", text, re.MULTILINE)
    for heading in ("Exercises", "(Three things to|To) remember", "Resources"):
        assert re.search(rf"^## {heading}", text, re.MULTILINE), heading
    assert "= None" in code, "the reader predicts before the answer is shown"
    assert "lab.predict(" in code
    assert all((part in code) != (part in without) for part in ("nsys profile", "lab.wall_clock(", "lab.diff("))
    assert code.count("lab.check(") >= 2
    asking = sum("lab.exercise(" in cell.source for cell in cells(path, "code"))
    assert len(re.findall(r"<details><summary>Solution</summary>", text)) == asking >= 2
    remember = re.split(r"^## (?:Three things to|To) remember", text, flags=re.MULTILINE)[1].split("##")[0]
    assert len(re.findall(r"^\d\. ", remember, re.MULTILINE)) == 3


MADE = re.compile(r"^(my_\w+) = None", re.MULTILINE)
COMPARED = re.compile(r'lab\.predict\("\w+", (my_\w+)')
PREDICTED = re.compile(r'lab\.predict\("(\w+)"')
TOLD = re.compile(r"no prediction made(?: \([^)]*\))?; answer: (\S+?)( %| |×|$)", re.MULTILINE)
SHOWN = re.compile(r"(?<![\w.,])[+−-]?(\d[\d,]*(?:\.\d+)?)(?![\w.,]*\d)")


def predictions_of(path: Path) -> list[tuple[str, int, int]]:
    """Each prediction of a lab: its variable, the cell that asks for it, the cell that compares it."""
    asked, found = {}, []
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type == "code" and "lab.exercise(" not in cell.source:
            asked |= dict.fromkeys(MADE.findall(cell.source), number)
            found += [(name, asked[name], number) for name in COMPARED.findall(cell.source)]
    assert asked.keys() == {name for name, *_ in found}, "asked for and never compared"
    return found


@by_name
def test_only_what_gives_a_prediction_away_is_folded(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert cell.metadata.get("jupyter", {}).get("outputs_hidden", False) == is_folded(cell), cell.id
        assert not is_folded(cell) or cell.outputs, cell.id


@by_name
def test_the_line_that_jupyterlab_shows_of_a_fold_gives_nothing_away(path):
    cells = nbformat.read(path, as_version=4).cells
    told = [one for cell in cells if cell.cell_type == "code" for one in TOLD.findall(outputs(cell))]
    for cell in cells:
        if is_folded(cell):
            first, data = cell.outputs[0], cell.outputs[0].get("data", {})
            line = (first.get("text") or data.get("text/html") or data["text/plain"]).splitlines()[0]
            line = re.sub(r" \[drawn data: .*\]$", "", line)
            shown = [one for one in SHOWN.findall(line) if any(gives_away(one, *answer) for answer in told)]
            assert not shown, f"{cell.id}: {line}"
            assert not line.startswith("<"), f"{cell.id}: print a line before the table, else its markup is shown"


@lab_by_name
def test_a_fold_hides_what_a_prediction_asked_for(path):
    """From the question to the end of the section that answers it: a reader who reads on must not come upon it."""
    cells, found = nbformat.read(path, as_version=4).cells, predictions_of(path)
    sections = [number for number, cell in enumerate(cells) if re.search(r"^## ", cell.source, re.MULTILINE)]
    ends = {name: min(one for one in [*sections, len(cells)] if one > compared) for name, _, compared in found}
    for number, cell in enumerate(cells):
        if name := cell.metadata.get(REVEALS):
            assert any(name == own and asked < number < ends[own] for own, asked, _ in found), (number, name)
    for name, asked, compared in found:
        for told, unit in TOLD.findall(outputs(cells[compared])):
            for number in range(asked + 1, ends[name]):
                if cells[number].cell_type == "code" and not is_folded(cells[number]):
                    shown = [one for one in SHOWN.findall(outputs(cells[number])) if gives_away(one, told, unit)]
                    assert not shown, f"cell {number} gives {told}{unit} away: {shown}"


def gives_away(shown: str, told: str, unit: str) -> bool:
    """Is this the number that was told, or what a share leaves of 100 %, to the digits shown, of two or more?

    Not where it is whole or a ratio near 1, as many others are.
    """
    if "." not in told:  # or a word
        return False
    digits, value = shown.replace(",", ""), float(told.replace(",", ""))
    if 0.9 < value < 1.1 or len(digits.replace(".", "").lstrip("0")) < 2:
        return False
    unsure = sum(0.5 * 10.0 ** -len(one.partition(".")[2]) for one in (digits, told))
    values = (abs(value), 100 - value) if unit == " %" else (abs(value),)
    return any(abs(float(digits) - one) <= unsure for one in values)


@pytest.mark.parametrize(
    ("shown", "told", "unit", "away"),
    [
        ("4.31", "4.31", "", True),
        ("4.3", "4.31", "", True),
        ("4", "4.31", "", False),
        ("4.4", "4.31", "", False),
        ("96", "4.19", " %", True),
        ("96", "4.19", "", False),
        ("5,774", "5773.8", "", True),
        ("1.0", "1.01", "", False),
        ("59", "59", "", False),
    ],
)
def test_a_rounded_number_and_the_rest_of_a_share_give_it_away(shown, told, unit, away):
    assert gives_away(shown, told, unit) == away


@lab_by_name
def test_predictions_are_stored_unmade_and_kept_by_name(path):
    cells, names = nbformat.read(path, as_version=4).cells, []
    asked = labs.predictions_of(int(path.stem[:2]))
    for _, _, compared in predictions_of(path):
        assert "you predicted" not in outputs(cells[compared])
    for cell in cells:
        if cell.cell_type == "code":
            names += [asked[name].of for name in PREDICTED.findall(cell.source)]
            assert "Your predictions in this lab" not in outputs(cell)
    assert len(set(names)) == len(names) >= 1
    assert {one.of for one in asked.values()} <= set(names), "asked for by no cell"
    assert f"lab.start({int(path.stem[:2])})" in "".join(cell.source for cell in cells)


def test_a_fold_leaves_other_metadata_alone():
    cell = nbformat.v4.new_code_cell('lab.predict("of", mine)', metadata={"jupyter": {"source_hidden": True}})
    fold(cell)
    assert cell.metadata["jupyter"] == {"source_hidden": True, "outputs_hidden": True}
    cell.source = "lab.check(1)"
    fold(cell)
    assert cell.metadata == {"jupyter": {"source_hidden": True}}
    plain = nbformat.v4.new_markdown_cell("text", metadata={"jupyter": {"outputs_hidden": True}})
    fold(plain)
    assert plain.metadata == {}


@lab_by_name
def test_nothing_differs_on_the_recorded_machine(path):
    for cell in cells(path, "code"):
        assert "[differs here]" not in outputs(cell)


@by_name
def test_nothing_of_the_machine_that_ran_it(path):
    text = path.read_text()
    assert not re.search(r"/(home|root|work|tmp)/", text)
    assert set(nbformat.read(path, as_version=4).metadata) <= {"kernelspec", "language_info", pages.RECORDINGS}


@by_name
def test_an_answer_that_is_asked_for_is_shown(path):
    """Only a cell's last expression shows itself: an answer asked for before it would be lost without a word."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            for statement in ast.parse(cell.source).body[:-1]:
                lost = isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("sb.")
                assert not lost, ast.unparse(statement)
