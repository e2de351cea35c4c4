"""Slides hold a lab's texts and figures and no answers, need no network, and fit the window."""

from __future__ import annotations

import re
import sys

import nbformat
import pytest

from folders import read_only
from labkit import course, images
from labkit.recording import slides as recording
from labkit.recording.slides import USUAL, page, slides

LOADS = re.compile(r"""(?:src|srcset)=["'](?!data:)|<link|@import|url\((?!data:|%23)|<script [^>]*src""")
by_lab = pytest.mark.parametrize("lab", USUAL, ids=lambda lab: lab.name)
PLACED = """() => {
  const [on] = document.querySelectorAll("section.on > div");
  const {left, top, right, bottom} = on.getBoundingClientRect();
  const broken = [...on.querySelectorAll("img")].filter(one => !one.naturalWidth).length;
  return {left, top, right, bottom, broken, scale: new DOMMatrix(getComputedStyle(on).transform).a};
}"""


def figures(cell: nbformat.NotebookNode) -> list[str]:
    """The images of a cell, those of timelines among them, as their pages hold them."""
    found = [output.get("data", {}) for output in cell.get("outputs", [])]
    drawn = [re.findall(r'<img [^>]*src="data:([^"]+)"', data.get("text/html", "")) for data in found]
    return [data["image/png"] for data in found if "image/png" in data] + [one for own in drawn for one in own]


@by_lab
def test_slides_hold_every_heading_and_figure_and_no_exercise(lab):
    whole = page(lab.path)
    cells = nbformat.read(lab.path, as_version=4).cells
    shown = [figure for cell in cells for figure in figures(cell)]
    assert shown and all(figure.strip() in whole or "".join(figure.split()) in whole for figure in shown)
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    for heading in set(re.findall(r"^## (.*)$", "\n".join(texts), re.MULTILINE)) - {"Exercises", "Before you go"}:
        assert f">{heading}</h2>" in whole
    assert not re.search(r"\bexercise \d[\d.]*: |lab\.exercise|Solution|✓|prediction made", whole)


@pytest.mark.parametrize("lab", course.LABS, ids=lambda lab: lab.name)
def test_every_lab_makes_slides_that_load_nothing(lab):
    assert len(slides(lab.path)) > 5
    assert LOADS.findall(page(lab.path)) == []


@pytest.mark.parametrize("make", ["slides", "images"])
def test_a_folder_that_cannot_be_written_is_one_sentence(make, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setattr(sys, "argv", ["slides", "--into", str(folder)])
    with read_only(folder), pytest.raises(SystemExit) as end:
        recording.main() if make == "slides" else images.main(["--out", str(folder)])
    said = capsys.readouterr()
    assert end.value.code == 2 and said.out == ""
    assert said.err.strip() == (
        f"error: cannot write into {folder}: Read-only file system. It takes a writable folder there."
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.ipynb", None, "No such file or directory. Name a notebook"),
        ("text.ipynb", "no JSON", "is no notebook (NotJSONError)."),
        ("other.ipynb", "[1, 2]", "is no notebook ("),
        ("page.html", b"\xff\xfe", "is no notebook (UnicodeDecodeError)."),
    ],
)
def test_what_is_no_notebook_is_one_sentence_and_leaves_nothing(name, content, said, tmp_path, monkeypatch, capsys):
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.setattr(sys, "argv", ["slides", str(tmp_path / name), "--into", str(tmp_path / "into")])
    with pytest.raises(SystemExit) as end:
        recording.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and name in line and said in line
    assert not list((tmp_path / "into").iterdir())


@by_lab
def test_each_slide_fits_a_small_window_and_can_be_read_there(lab, browser, tmp_path):
    file = tmp_path / "slides.html"
    file.write_text(page(lab.path))
    context = browser.new_context(viewport={"width": 1366, "height": 768}, offline=True)
    tab, asked, errors = context.new_page(), [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("pageerror", lambda error: errors.append(error))
    tab.goto(file.as_uri())
    for number in range(1, len(slides(lab.path)) + 1):
        tab.wait_for_url(f"**#{number}")
        found = tab.evaluate(PLACED)
        assert found["left"] >= 0 and found["top"] >= 0, number
        assert found["right"] <= 1366 and found["bottom"] <= 768, number
        assert found["scale"] > 0.6 and not found["broken"], number
        tab.keyboard.press("ArrowRight")
    context.close()
    assert errors == [] and [one for one in asked if one.startswith("http")] == []
