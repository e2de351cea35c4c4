"""Which pages of others have moved, and where are they now? ``make notebooks`` writes the new address into every page.

A weekly job follows every link (.github/workflows/weekly.yml); a redirect that is there to stay becomes a row here.
"""

from __future__ import annotations

_TORCH = "https://docs.pytorch.org/docs/stable/"
_COMPILER = f"{_TORCH}user_guide/torch_compiler/"
_AICLOUD = "https://github.com/aau-claaudia/aicloud-docs/tree/"

MOVED = {  # how an address began → how it begins now; a page that moved twice has its rows in that order
    "https://pytorch.org/docs/": "https://docs.pytorch.org/docs/",
    "https://pytorch.org/tutorials/": "https://docs.pytorch.org/tutorials/",
    f"{_TORCH}torch.compiler.html": f"{_COMPILER}torch.compiler.html",
    f"{_TORCH}compile/": f"{_COMPILER}compile/",
    f"{_AICLOUD}master/": f"{_AICLOUD}ccc8625363889a37dbda750031c8a5b534621a6c/",  # the last commit that has the text
}


def current(text: str) -> str:
    """The text with each address that has moved as it is now."""
    for old, new in MOVED.items():
        text = text.replace(old, new)
    return text
