"""What a notebook is elsewhere: on paper, where nothing of it is cut off."""

from __future__ import annotations

import nbformat
import pytest

from labkit import course
from labkit.display.printed import STYLE
from labkit.recording.pages import NOTEBOOKS

PAPER = {"width": 718, "height": 1047}  # an upright A4 page within margins of 10 mm, in pixels
CUT = """() => [...document.querySelectorAll('pre, table, img, svg, .jp-OutputArea-output')]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1 || (e.clientWidth && e.scrollWidth > e.clientWidth + 2))
  .map(e => `${e.tagName}: ${(e.innerText || e.alt || '').slice(0, 60)}`)"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_notebook_brings_its_rules_for_paper_once(path):
    cells = nbformat.read(path, as_version=4).cells
    pages = [output.get("data", {}).get("text/html") for cell in cells for output in cell.get("outputs", [])]
    assert pages.count(STYLE) == 1


@pytest.fixture(scope="module")
def paper(browser):
    sheet = browser.new_page(viewport=PAPER)
    sheet.emulate_media(media="print")
    return sheet


@pytest.mark.parametrize("number", [4, 9, 20])
def test_nothing_of_a_lab_is_cut_off_on_paper(number, paper, tmp_path):
    from nbconvert import HTMLExporter

    lab = course.LABS[number - 1]
    html, _ = HTMLExporter().from_notebook_node(nbformat.read(lab.path, as_version=4))
    page = tmp_path / "lab.html"
    page.write_text(html.replace("../images/", (lab.path.parent.parent / "images").as_uri() + "/"))
    paper.goto(page.as_uri())
    assert paper.evaluate(CUT) == []
    page.write_text(html.replace(STYLE, ""))
    paper.goto(page.as_uri())
    assert paper.evaluate(CUT), "without the rules much is cut off: so the test sees it"
