"""How does a notebook look on paper? With nothing cut off: code lines and table cells find room on an upright A4 page.

JupyterLab prints the page that nbconvert makes, which cuts what is wider. The rules are for paper alone, and come with
the first output of a lab, as pandas brings those of its tables: whoever shows a notebook otherwise leaves them out.
"""

from __future__ import annotations

from IPython import get_ipython
from IPython.display import display

RULES = """
pre, .jp-Cell pre, .CodeMirror pre {font-size: 7pt !important; \
white-space: pre-wrap !important; overflow-wrap: anywhere}
table, th, td {font-size: 7.5pt !important; max-width: none !important}
th, td {white-space: normal !important; overflow-wrap: break-word; padding: 0.15em 0.4em !important}
td, th {word-break: normal; hyphens: none}
img, svg {max-width: 100% !important; height: auto !important}
tr, img, svg {break-inside: avoid}
.jp-OutputArea-output, .jp-OutputArea-child, .jp-RenderedHTMLCommon, .highlight {overflow: visible !important}
.jp-InputPrompt, .jp-OutputPrompt {display: none !important}
"""
STYLE = f"<style>@media print {{{RULES}}}</style>"


def bring_rules() -> None:
    """Give the notebook that runs its rules for paper; elsewhere, nothing."""
    if get_ipython() is not None:
        display({"text/html": STYLE, "text/plain": ""}, raw=True)
