"""The diagrams of images/, edited as SVG: one look, the palette's colours, room for each word, a page that shows it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from labkit import screens
from labkit.images import IMAGES
from labkit.paths import ROOT
from labkit.recording.pages import NOTEBOOKS
from stepbudget.show import palette

PICTURES = sorted((ROOT / "images").iterdir())
DIAGRAMS = [path for path in PICTURES if path.stem not in {*IMAGES, *screens.SCREENS}]
TAG = "{http://www.w3.org/2000/svg}"
COLOUR = re.compile(r"#\w+")
COLOURS = {value for name, value in vars(palette).items() if name.isupper() and isinstance(value, str)}
FROM_ELSEWHERE = {"none", "currentColor", "url(#cuts)"}  # what an attribute may say of a colour
by_name = pytest.mark.parametrize("path", DIAGRAMS, ids=lambda path: path.stem)

# Words that stick out of the picture, or stand on other words.
CROWDED = """() => {
  const whole = document.documentElement.getBoundingClientRect();
  const found = [...document.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()])
    .filter(([, box]) => box.width);
  const out = ([, box]) => Math.min(box.left, box.top, whole.width - box.right, whole.height - box.bottom) < 4;
  const meet = ([, a], [, b]) => Math.min(a.right, b.right) > Math.max(a.left, b.left)
    && Math.min(a.bottom, b.bottom) > Math.max(a.top, b.top) + 3;
  return found.filter((one, at) => out(one) || found.slice(at + 1).some(other => meet(one, other))).map(one => one[0]);
}"""


@by_name
def test_a_diagram_says_what_it_is_and_is_small_enough_to_be_edited_by_hand(path: Path):
    svg = ElementTree.parse(path).getroot()
    words = [svg.find(f"{TAG}{tag}").text for tag in ("title", "desc")]
    assert all(len(text) > 20 for text in words)
    assert path.stat().st_size < 40_000
    width, height = svg.attrib["width"], svg.attrib["height"]
    assert width == "864" and svg.attrib["viewBox"] == f"0 0 {width} {height}"
    ground = svg.find(f"{TAG}rect").attrib
    assert ground == {"class": "paper", "width": width, "height": height, "rx": "10"}, "light, on dark pages too"


@by_name
def test_colours_are_the_palettes_and_are_named_in_one_place(path: Path):
    svg = ElementTree.parse(path).getroot()
    said = svg.find(f"{TAG}style").text
    assert said == ElementTree.parse(DIAGRAMS[0]).getroot().find(f"{TAG}style").text, "one look for all"
    assert set(COLOUR.findall(said)) <= COLOURS | {palette.LIGHT["quiet"], "#head"}
    attributes = {element.attrib.get(name) for element in svg.iter() for name in ("fill", "stroke", "style")}
    assert attributes - {None} <= FROM_ELSEWHERE
    classes = {name for element in svg.iter() for name in element.attrib.get("class", "").split()}
    assert classes <= set(re.findall(r"\.([a-z]+)", said))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_shown_with_words_for_who_cannot_see_it(path: Path):
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *NOTEBOOKS))
    told = re.findall(rf"!\[([^\]]*)\]\((?:\.\./)?images/{re.escape(path.name)}\)", pages)
    assert told and all(len(words) > 40 for words in told)


def test_words_neither_stick_out_nor_stand_on_others(browser):
    tab = browser.new_page()
    crowded = {}
    for path in DIAGRAMS:
        tab.goto(path.as_uri())
        crowded[path.stem] = tab.evaluate(CROWDED)
    assert not any(crowded.values()), crowded
    tab.evaluate("document.querySelectorAll('text').forEach(text => text.setAttribute('x', 780))")
    assert tab.evaluate(CROWDED), "words moved to the right edge are seen"


def test_screens_show_what_is_shown_now(tmp_path):
    assert screens.stale(ROOT / "images") == []
    assert len(screens.stale(tmp_path)) == len(screens.SCREENS)
    file = tmp_path / "screen_budget.png"
    file.write_bytes((ROOT / "images" / "screen_timeline.png").read_bytes())
    assert any(said.startswith(f"{file}: what it shows looks different") for said in screens.stale(tmp_path))


def test_the_formats_numbers_are_pytorchs():
    rows = ElementTree.parse(ROOT / "images" / "number_formats.svg").iter(f"{TAG}g")
    told = [[text.text for text in row.findall(f"{TAG}text")] for row in rows if row.get("class") == "large end"]
    names = (torch.float32, None, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
    for dtype, numbers in zip(names, told, strict=True):
        if dtype:  # PyTorch has no TF32
            known = torch.finfo(dtype)
            assert numbers[:3] == [written(value) for value in (known.max, known.smallest_normal, known.eps)]


def written(value: float) -> str:
    """To two digits, as people write it: 65,504 and 0.125, but 3.4×10³⁸."""
    if 0.01 <= value < 1e6:
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}×10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
