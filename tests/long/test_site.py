"""The web pages: what they hold, what is read of a notebook, and what the check of the built site refuses.

The site itself is built, with warnings as errors, by ``make site`` in .ci/run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from labkit import course
from labkit.paths import ROOT
from labkit.recording import pages
from labkit.site import check, contents, prepare

NOTEBOOKS = [ROOT / file for file in contents.files() if file.endswith(".ipynb")]


def cells(source: str) -> list[dict]:
    return json.loads(source)["cells"]


def read(notebook: Path) -> list[dict]:
    return cells(prepare.notebook(notebook.read_text()))


def test_it_has_every_lab_in_the_catalogues_order_and_every_text_of_labs_once():
    files = contents.files()
    on_disk = {path.relative_to(ROOT).as_posix() for path in (ROOT / "labs").iterdir() if path.is_file()}
    assert [file for file in files if file.endswith(".ipynb")] == [
        "start_here.ipynb",
        *(f"labs/{lab.file}" for lab in course.LABS),
    ]
    assert {file for file in files if file.startswith("labs/")} == on_disk
    assert len(files) == len({*files}) and all((ROOT / file).is_file() for file in files)


def test_its_table_of_contents_names_each_page_under_its_part():
    captions = re.findall(r":caption: (.+)", contents.tables())
    assert captions[1 : len(course.PARTS) + 1] == [
        re.match(r"\*\*(.+?)\.\*\*", one)[1] for one in course.PARTS.values()
    ]
    for lab in course.LABS:
        assert f"\n{lab.number} · {lab.title} <labs/{lab.name}>\n" in contents.tables()
    front = cells(prepare.notebook((ROOT / contents.FRONT).read_text(), is_front=True))
    assert front[-1]["source"] == contents.tables()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_folds_stays_folded(notebook: Path):
    for cell in read(notebook):
        if cell["cell_type"] == "code":
            hidden = cell["metadata"].get("jupyter", {}).get("outputs_hidden", False)
            assert ("hide-output" in cell["metadata"].get("tags", [])) == hidden


@pytest.mark.parametrize("lab", course.LABS, ids=lambda lab: lab.name)
def test_the_sites_own_bars_take_the_place_of_a_labs(lab: course.Lab):
    assert pages.navigation(lab).startswith(prepare.BAR)
    first, *between, last = ("".join(cell["source"]) for cell in cells(lab.path.read_text()))
    assert first.startswith(prepare.BAR) and last.startswith(prepare.BAR)
    shown = ["".join(cell["source"]) for cell in read(lab.path)]
    assert shown == between


def test_a_picture_has_words():
    outputs = [
        cell
        for notebook in NOTEBOOKS
        for cell in read(notebook)
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(outputs) > len(course.LABS)
    for cell in outputs:
        words = cell["metadata"]["mystnb"]["image"]["alt"]
        assert words.strip() and "drawn data" not in words


def test_an_anchor_in_html_becomes_one_that_sphinx_knows():
    assert "(gpu-metrics)=\n" in prepare.text((ROOT / "labs" / "running.md").read_text())


GOOD = """<html><body id="top"><script src="_static/x.js"></script><link rel="stylesheet" href="_static/x.css">
<h2 id="Two-roofs,-one-floor">…</h2><a href="labs/a.html#Two%20roofs">a</a><a href="#Two-roofs,-one-floor">b</a>
<a href="https://docs.nvidia.com/nsight-systems/#x">c</a><a href="labs/">d</a>
<img src="data:image/png;base64,AA=="></body></html>"""
BAD = {
    '<a href="labs/none.html">': "there is no such file",
    '<a href="../../outside.html">': "there is no such file",
    '<img src="images/none.svg">': "there is no such file",
    '<a href="labs/a.html#none">': "there is no such anchor",
    '<a href="#none">': "there is no such anchor",
    '<script src="https://cdn.example.org/x.js">': "the page loads it from elsewhere",
    '<link rel="stylesheet" href="//fonts.example.org/x.css">': "the page loads it from elsewhere",
    '<a href="https://docs nvidia.com/">': "not the address of a page",
    '<a href="https:/docs.nvidia.com/">': "not the address of a page",
    '<a href="file:///home/me/x.html">': "not the address of a page",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "labs").mkdir()
    (tmp_path / "_static").mkdir()
    for name in ("x.js", "x.css"):
        (tmp_path / "_static" / name).touch()
    (tmp_path / "labs" / "a.html").write_text('<h2 id="Two roofs">…</h2>')
    (tmp_path / "labs" / "index.html").write_text('<a href="../index.html#top">up</a>')
    (tmp_path / "index.html").write_text(GOOD)
    return tmp_path


def test_links_that_lead_somewhere_pass_and_are_counted(site: Path):
    found = check.checked(site)
    assert not found.wrong
    assert found.counted == {"pages": 3, "links inside": 4, "anchors": 3, "links outside": 1}


@pytest.mark.parametrize(("markup", "problem"), BAD.items())
def test_a_link_that_leads_nowhere_is_named(site: Path, markup: str, problem: str):
    (site / "labs" / "b.html").write_text(markup.replace('"labs/', '"'))
    wrong = check.checked(site).wrong
    assert len(wrong) == 1 and wrong[0].startswith("labs/b.html: ") and wrong[0].endswith(problem)


def test_an_answer_that_its_page_shows_is_found(tmp_path: Path):
    cell = {"cell_type": "code", "metadata": {"jupyter": {"outputs_hidden": True}}, "outputs": [{}], "source": ""}
    (tmp_path / "lab.ipynb").write_text(json.dumps({"cells": [cell]}))
    page = tmp_path / "lab.html"
    for markup, wrong in [('<details class="admonition hide">', 0), ('<details class="hide" open>', 1), ("", 1)]:
        page.write_text(markup)
        assert len(check.unfolded(tmp_path, [tmp_path / "lab.ipynb"], tmp_path)) == wrong


def test_the_forge_builds_and_publishes_what_make_builds():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "site.yml").read_text())["jobs"]
    commands = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {word for command in commands for word in re.findall(r"\bmake ([a-z-]+)", command)} == {"site"} <= targets
    uploaded = next(step["with"]["path"] for step in jobs["build"]["steps"] if "upload-pages" in step.get("uses", ""))
    assert ROOT / uploaded == contents.SITE
    assert "\nmake site\n" in (ROOT / ".ci" / "run").read_text()
