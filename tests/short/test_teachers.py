"""The pages for teachers: each cause has its row, each lab its paragraph, each link leads somewhere."""

from __future__ import annotations

import re

import pytest

from labkit import course
from labkit.exercises import exercises_of
from labkit.paths import ROOT
from labkit.recording import pages
from stepbudget.ask.advice import SIZES
from stepbudget.ask.budget import CAUSES
from stepbudget.ask.predict import FIXES

SHEET = ROOT / "labs" / "cheat_sheet.md"
GUIDE = ROOT / "labs" / "for_teachers.md"
BY_LAB = ROOT / "labs" / "lab_by_lab.md"
ASSESSMENT = ROOT / "labs" / "assessment.md"
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)]+)\)")


def rows() -> dict[str, list[str]]:
    """The cheat sheet: row of the budget → its other cells."""
    lines = [line.strip("| ").split(" | ") for line in SHEET.read_text().splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in lines[1:]}


def test_every_cause_of_the_budget_has_its_row_on_the_cheat_sheet_in_the_budget_s_words():
    assert list(rows()) == list(CAUSES.values())
    assert all(len(cells) == 4 and all(len(cell) > 8 for cell in cells) for cells in rows().values())


def test_the_cheat_sheet_names_the_lab_that_treats_a_cause():
    file = {lab.name: lab.file for lab in course.LABS}
    for fix, lab in course.TREATED_IN.items():
        for cause in ("tensor_core_kernels",) if fix == SIZES else FIXES[fix].causes:
            assert file[lab] in LINK.findall(rows()[CAUSES[cause]][-1]), (cause, lab)
    for labs in (cells[-1] for cells in rows().values()):
        for number, link in re.findall(r"\[(\d+)\]\(([^)]+)\)", labs):
            assert link == course.LABS[int(number) - 1].file


def test_the_cheat_sheet_is_one_page_in_print(browser):
    from nbconvert.filters import markdown2html

    # 8.5pt: it has to fit where sans-serif is the wide DejaVu, too.
    style = "body { font: 8.5pt/1.25 sans-serif } table { border-collapse: collapse } td, th { border: 1px solid #999 }"
    page = browser.new_page()
    page.set_content(f"<!doctype html><style>{style}</style>{markdown2html(SHEET.read_text())}")
    assert page.locator("td").count() == 5 * len(CAUSES)
    margin = dict.fromkeys(("top", "right", "bottom", "left"), "1cm")
    printed = page.pdf(format="A4", landscape=True, margin=margin)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1


@pytest.mark.parametrize("page", [SHEET, GUIDE, BY_LAB, ASSESSMENT], ids=lambda page: page.stem)
def test_every_link_of_the_teachers_pages_leads_somewhere(page):
    found = LINK.findall(page.read_text())
    assert found
    for link in found:
        assert (page.parent / link.partition("#")[0]).exists() or link.startswith("https://"), link
    front, guide = pages.FRONT_PAGE.read_text(), GUIDE.read_text()
    known = f"(labs/{page.name})" in front and f"(labs/{page.name})" in pages.README.read_text()
    assert known or f"({page.name})" in guide


def test_every_lab_has_its_minutes_and_its_paragraph_with_exercises_that_there_are():
    text, by_lab = GUIDE.read_text(), BY_LAB.read_text()
    assert pages.filled(text) == text, "make notebooks writes the guide's table anew"
    for lab in course.LABS:
        [own] = re.findall(rf"^## {lab.number} · .*?(?=^#|\Z)", by_lab, re.MULTILINE | re.DOTALL)
        assert own.startswith(f"## {lab.number} · [{lab.title}]({lab.file})")
        assert all(f"*{word}:*" in own for word in ("Show", "Ask first", "They stumble"))
        named = re.findall(r"\b\d+\.\d+(?:\.\d+)?(?= \()", own)
        assert named and set(named) <= set(exercises_of(lab.number)), lab.name
    assert {int(one) for one in re.findall(r"^\| \[(\d+)\]\([^)]*\) \| \d+ \|", text, re.MULTILINE)} == {
        lab.number for lab in course.LABS
    }


def test_the_guide_is_short():
    assert len(re.sub(r"\]\([^)]*\)", "]", GUIDE.read_text()).split()) <= 1_700, "with the bars of its tables"


def test_the_assessment_has_ten_questions_and_as_many_answers():
    questions, answers = ASSESSMENT.read_text().split("## Answers")
    for part in (questions, answers):
        assert [int(one) for one in re.findall(r"^(\d+)\. ", part, re.MULTILINE)] == list(range(1, 11))


def test_the_plans_take_as_long_as_they_say():
    for heading, hours in {"Two hours": 2, "A day": 7}.items():
        [plan] = re.findall(rf"^## {heading}\n(.*?)(?=^#)", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
        assert sum(int(minutes) for minutes in re.findall(r"^\| (\d+) \|", plan, re.MULTILINE)) == 60 * int(hours)
