"""Sphinx's configuration of the site: which pages, how they are read, how they look. Nothing is executed or fetched."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx

from labkit.site import contents, listings, prepare

project = "GPU performance lab"
html_title = project
author = ""
html_show_copyright = False
html_context = {"default_mode": "auto"}  # light or dark as the system is, until the reader chooses
language = "en"

root_doc = "start_here"
include_patterns = contents.files()
extensions = ["myst_nb"]
highlight_language = "none"  # of a block that names no language
nb_execution_mode = "off"
nb_merge_streams = True

html_theme = "sphinx_book_theme"
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {
    "extra_footer": "Text and images: CC BY 4.0. Code: Apache License 2.0.",
    "home_page_in_toc": True,
    "pygments_dark_style": "github-dark",  # the theme's usual one has comments brighter than code
    "search_bar_text": "Search the labs",
    "show_toc_level": 2,
    "use_download_button": False,  # a notebook alone does not run: it needs its checkout
    "use_fullscreen_button": False,
}
html_copy_source = False
html_use_index = False

myst_heading_anchors = 4
myst_heading_slug_func = "labkit.site.prepare.anchor"


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """Sphinx hands over what it has read of a file, and parses what we leave."""
    is_notebook = app.env.doc2path(name).suffix == ".ipynb"
    source[0] = prepare.notebook(source[0], name == root_doc) if is_notebook else prepare.text(source[0])


def name_anchors(app: Sphinx, document: nodes.document) -> None:
    """Links may call a heading as a forge does, too: MyST before version 5 knows JupyterLab's names alone."""
    known = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for anchor in document.ids:
        known.setdefault(anchor, (0, anchor, ""))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", read)
    app.connect("doctree-read", name_anchors)
    app.connect("html-collect-pages", listings.pages)
    app.add_transform(listings.Links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
