"""What does the site read of a file? All of it, but for what another kind of page does itself.

The bars at a lab's ends go, as the site has its own, and so does the help for a kernel. What a notebook folds stays
folded. A picture gets its own words. An anchor written in HTML becomes one that Sphinx knows.
"""

from __future__ import annotations

import json
import re

from labkit.site import contents

BAR = "[← Previous]("
ANCHOR = re.compile(r'^<a id="([\w-]+)"></a>$', re.MULTILINE)
PROMPT = {"code_prompt_show": "Folded: predict first, then open", "code_prompt_hide": "Fold it again"}


def notebook(source: str, is_front: bool = False) -> str:
    """A notebook as the site reads it; the front page carries the table of contents."""
    content = json.loads(source)
    content["cells"] = [cell for cell in content["cells"] if not _text(cell["source"]).startswith(BAR)]
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            _shown(cell)
    if is_front:
        content["cells"].append(
            {"cell_type": "markdown", "id": "contents", "metadata": {}, "source": contents.tables()}
        )
    return json.dumps(content)


def text(source: str) -> str:
    """A page of text as the site reads it."""
    return ANCHOR.sub(r"(\1)=", source)


def anchor(heading: str) -> str:
    """The name by which links call a heading, which is JupyterLab's."""
    return heading.replace(" ", "-")


def is_folded(cell: dict) -> bool:
    """Does JupyterLab hide this cell's output until its reader opens it?"""
    return bool(cell["metadata"].get("jupyter", {}).get("outputs_hidden"))


def _shown(cell: dict) -> None:
    """Say in MyST's words how a cell's output is shown."""
    own: dict = {}
    if is_folded(cell):
        cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "hide-output"]
        own |= PROMPT
    pictures = [output["metadata"]["image/png"] for output in cell["outputs"] if "image/png" in output.get("data", {})]
    if pictures:
        own["image"] = {"alt": " ".join(picture["alt"] for picture in pictures)}
    if own:
        cell["metadata"]["mystnb"] = own


def _text(lines: str | list[str]) -> str:
    """A notebook keeps a text as a whole or as its lines."""
    return lines if isinstance(lines, str) else "".join(lines)
