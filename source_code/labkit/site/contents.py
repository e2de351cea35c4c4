"""Which pages does the site have, and in which order? The catalogue's labs by part, and what lies beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from labkit import course
from labkit.paths import ROOT

SITE = ROOT / "build" / "site"  # where it is built
FRONT = "start_here.ipynb"
READER = "source_code/stepbudget"


@dataclass(frozen=True)
class Page:
    """A file of the checkout, and how the table of contents calls it (empty: by its own heading)."""

    file: str
    title: str = ""

    @property
    def name(self) -> str:
        """``labs/01_introduction``, as Sphinx calls the page."""
        return self.file.rpartition(".")[0]


def chapters() -> dict[str, list[Page]]:
    """Caption → its pages, in reading order; the front page stands above them all."""
    first = [Page("README.md", "Install and run")]
    parts = {_caption(part): [_lab(lab) for lab in course.part(part)] for part in course.PARTS}
    return {"Start": first, **parts, "To look things up": _texts("labs"), "The reader of reports": _texts(READER)}


def files() -> list[str]:
    """Every file that becomes a page."""
    return [FRONT, *(page.file for pages in chapters().values() for page in pages)]


def tables() -> str:
    """The table of contents in the words of MyST, for the end of the front page."""
    return "\n\n".join(
        "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", *map(_entry, pages), "```"])
        for caption, pages in chapters().items()
    )


def _entry(page: Page) -> str:
    return f"{page.title} <{page.name}>" if page.title else page.name


def _caption(part: int) -> str:
    """``Part 1, the course proper``, of the catalogue's sentence on it."""
    return re.match(r"\*\*(.+?)\.\*\*", course.PARTS[part])[1]


def _lab(lab: course.Lab) -> Page:
    return Page(f"labs/{lab.file}", f"{lab.number} · {lab.title}")


def _texts(folder: str) -> list[Page]:
    """The texts of a folder: README first, then by name."""
    found = sorted((ROOT / folder).glob("*.md"), key=lambda path: (path.name != "README.md", path.name))
    return [Page(path.relative_to(ROOT).as_posix()) for path in found]
