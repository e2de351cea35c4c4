"""What does code look like in a notebook? In the colours of JupyterLab's theme, and line by line wherever it is shown.

The colours are classes, which JupyterLab styles in light and in dark as it does its editor. Where a page strips classes
and styles, as GitHub does, each line still ends with a line break inside ``<pre>``. A line that is too long goes on in
the next at a blank, not in mid-word.
"""

from __future__ import annotations

import html

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

PRE_STYLE = "line-height: 1.35; margin: 0; white-space: pre-wrap; word-break: normal; overflow-wrap: break-word"


def coloured(source: str, language: str = "python") -> list[str]:
    """The lines of code as HTML, each whole by itself: what spans several lines is marked in each."""
    lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    marked = highlight(source, lexer, HtmlFormatter(nowrap=True))
    return marked.removesuffix("\n").split("\n")


def block(title: str, lines: list[str]) -> str:
    """Such lines below a title (plain text), as HTML. A line may end with its own line break."""
    body = "".join(line if line.endswith("\n</span>") else f"{line}\n" for line in lines)
    return f'<div class="highlight"><pre style="{PRE_STYLE}"><b>{html.escape(title)}</b>\n{body}</pre></div>'


def tinted(line: str, tint: str | None) -> str:
    """A line over the whole width of the page, on a ground of its own; the line break is inside."""
    ground = f"; background: {tint}" if tint else ""
    return f'<span style="display: block{ground}">{line}\n</span>'
