"""The glossary: each word once, in order, and each link leads to the section of a lab that speaks of it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import nbformat
import pytest

from labkit.paths import ROOT

GLOSSARY = ROOT / "labs" / "glossary.md"
ROW = re.compile(
    r"^\| (?P<word>.+?) \| (?P<meaning>.+?) \| \[(?P<lab>\d+) · (?P<title>.+?)\]\((?P<link>\S+)\) \|$", re.MULTILINE
)
ROWS = [found.groupdict() for found in ROW.finditer(GLOSSARY.read_text())]
HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
NAMED_LATER = {"loss scaling"}  # lab 4 says what GradScaler does, and calls it so in the sections after that


def plain(text: str) -> str:
    """Words without Markdown's marks, in small letters."""
    return re.sub(r"[*`]", "", text).lower()


@cache
def sections(notebook: Path) -> list[tuple[str, str]]:
    """A lab's headings, each with the text up to the next."""
    cells = [cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "markdown"]
    _, *parts = HEADING.split("\n\n".join(cells))
    return list(zip(parts[::2], parts[1::2], strict=True))


def test_words_are_in_order_and_each_stands_once():
    words = [row["word"].lower() for row in ROWS]
    assert len(words) >= 40 and words == sorted(set(words))
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + len(words), "a line that is no row of word, meaning and link"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["word"])
def test_a_link_leads_to_the_section_that_speaks_of_the_word(row):
    file, _, anchor = row["link"].partition("#")
    assert file.startswith(f"{int(row['lab']):02}_")
    lab = sections(GLOSSARY.parent / file)
    found = [(title, text) for title, text in lab if plain(title) == plain(row["title"])]
    assert len(found) == 1, "a heading that stands once in that lab"
    title, text = found[0]
    assert anchor == title.replace("`", "").replace(" ", "-"), "as JupyterLab names its headings"
    said = "\n".join(text for _, text in lab) if row["word"] in NAMED_LATER else f"{title}\n{text}"
    assert plain(row["word"]) in plain(said)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["word"])
def test_a_meaning_is_a_sentence_or_two(row):
    assert 1 <= len(re.findall(r"[.](?= |$)", row["meaning"])) <= 2 and row["meaning"].endswith(".")
    assert len(row["meaning"].split()) <= 35


def test_the_front_page_and_the_cheat_sheet_lead_to_it():
    assert "(labs/glossary.md)" in (ROOT / "start_here.ipynb").read_text()
    assert "(glossary.md)" in (ROOT / "labs" / "cheat_sheet.md").read_text()
