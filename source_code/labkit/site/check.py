"""Does every link of the built site lead somewhere? Files and anchors are looked up; addresses outside are only read.

No page may load anything from elsewhere, and what a notebook folds must be folded on its page.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from labkit.site import prepare

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}  # tag → the attribute that loads
SHEETS = {"stylesheet", "icon", "preload"}  # kinds of <link> that load


@dataclass
class Page(HTMLParser):
    """A page's anchors, its links with what they are, and how many outputs are folded in it."""

    anchors: set[str] = field(default_factory=set)
    links: list[tuple[str, bool]] = field(default_factory=list)  # address, whether it is loaded with the page
    folded: int = 0

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.anchors |= {has[name] for name in ("id", "name") if has.get(name)}
        self.folded += tag == "details" and "hide" in has.get("class", "").split() and "open" not in has
        if LOADED.get(tag) in has:
            self.links.append((has[LOADED[tag]], True))
        if tag in ("a", "link") and "href" in has:
            self.links.append((has["href"], bool(SHEETS & {*has.get("rel", "").split()}) and tag == "link"))

    handle_startendtag = handle_starttag


@dataclass(frozen=True)
class Checked:
    """How much was looked at, by kind, and a line for each thing that is wrong."""

    counted: Counter
    wrong: list[str]


def checked(site: Path) -> Checked:
    """Look at every page of a built site."""
    pages = {file: _page(file) for file in sorted(site.rglob("*.html"))}
    counted, wrong = Counter({"pages": len(pages)}), []
    for file, page in pages.items():
        for address, is_loaded in page.links:
            kind, problem = _look(address, is_loaded, file, site, pages)
            counted[kind] += 1
            if problem:
                wrong.append(f"{file.relative_to(site)}: {address}: {problem}")
    return Checked(counted, wrong)


def unfolded(site: Path, notebooks: list[Path], root: Path) -> list[str]:
    """A line for each notebook that folds more outputs than its page does."""
    found = []
    for notebook in notebooks:
        cells = json.loads(notebook.read_text())["cells"]
        folds = sum(cell["cell_type"] == "code" and prepare.is_folded(cell) and bool(cell["outputs"]) for cell in cells)
        name = notebook.relative_to(root).with_suffix(".html")
        if _page(site / name).folded != folds:
            found.append(f"{name}: {_page(site / name).folded} outputs are folded, and {folds} in its notebook")
    return found


def _page(file: Path) -> Page:
    page = Page()
    page.feed(file.read_text())
    return page


def _look(address: str, is_loaded: bool, file: Path, site: Path, pages: dict[Path, Page]) -> tuple[str, str]:
    """What kind of link this is, and what is wrong with it (empty: nothing)."""
    try:
        parts = urlsplit(address)
    except ValueError as error:
        return "links outside", str(error)
    if parts.scheme == "data":
        return "links inside", ""
    if parts.scheme or parts.netloc:
        return "links outside", _outside(parts.scheme, parts.netloc, address, is_loaded)
    target = Path(os.path.normpath(file.parent / unquote(parts.path))) if parts.path else file
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site) or not target.is_file():
        return "links inside", "there is no such file"
    if not parts.fragment:
        return "links inside", ""
    is_there = target not in pages or unquote(parts.fragment) in pages[target].anchors
    return "anchors", "" if is_there else "there is no such anchor"


def _outside(scheme: str, host: str, address: str, is_loaded: bool) -> str:
    if is_loaded:
        return "the page loads it from elsewhere"
    if scheme == "mailto":
        return "" if "@" in address else "no address"
    well_formed = scheme in ("http", "https") and "." in host.strip(".") and not {*address} & set(' "<>\\')
    return "" if well_formed else "not the address of a page"
