"""Where does a link to a script lead? To a page that shows its source; a link to a folder, to a list of its scripts."""

from __future__ import annotations

import ast
import html
import os
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.osutil import relative_uri

from labkit.paths import ROOT

LANGUAGES = {".py": "python", ".sbatch": "bash"}
LISTED = "listed"  # on a link: the file or folder that it leads to, as seen from the top


class Links(SphinxTransform):
    """Links to files and folders of the checkout that are no pages lead to their listings."""

    default_priority = 400

    def apply(self, **kwargs: object) -> None:
        here = Path(self.env.doc2path(self.env.docname)).parent
        for link in [*self.document.findall(download_reference), *self.document.findall(pending_xref)]:
            target = Path(os.path.normpath(here / link["reftarget"]))
            if link.get("refdomain") == "doc":  # a text, told without its suffix, which may be no page
                target = ROOT / f"{link['reftarget']}.md"
                if link["reftarget"] in self.env.found_docs:
                    continue
            elif link.get("refdomain"):
                continue
            if not target.exists() or not target.is_relative_to(ROOT):
                continue
            listed = target.relative_to(ROOT).as_posix()
            uri = relative_uri(f"{self.env.docname}.html", f"{page_of(listed)}.html")
            link.replace_self(nodes.reference("", "", *link.children, internal=True, refuri=uri, **{LISTED: listed}))


def page_of(listed: str) -> str:
    """``source_code/main_opt1.py``, whose page is main_opt1.py.html; a folder's is its index."""
    return f"{listed}/index" if (ROOT / listed).is_dir() else listed


def pages(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    """The listings of all that is linked, as Sphinx collects pages that have no source: name, context, template."""
    linked = {
        link[LISTED]
        for name in app.env.found_docs
        for link in app.env.get_doctree(name).findall(nodes.reference)
        if LISTED in link
    }
    folders = {listed for listed in linked if (ROOT / listed).is_dir()}
    within = {file.relative_to(ROOT).as_posix() for folder in folders for file in _scripts(folder)}
    for folder in sorted(folders):
        yield page_of(folder), {"title": folder, "body": _folder(folder)}, "page.html"
    for file in sorted(linked - folders | within):
        code = app.builder.highlighter.highlight_block(
            (ROOT / file).read_text(), LANGUAGES.get(Path(file).suffix, "none")
        )
        yield page_of(file), {"title": file, "body": f"<h1>{html.escape(file)}</h1>\n{code}"}, "page.html"


def _scripts(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py")


def _folder(folder: str) -> str:
    """Each script of a folder, with its docstring's first line."""
    rows = []
    for path in _scripts(folder):
        says = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        link = f'<a href="{path.name}.html"><code>{html.escape(path.name)}</code></a>'
        rows.append(f"<tr><td>{link}</td><td>{html.escape(says)}</td></tr>")
    return f"<h1>{html.escape(folder)}</h1>\n<table class='table'><tbody>\n" + "\n".join(rows) + "\n</tbody></table>"
