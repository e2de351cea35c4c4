"""Which slides does a lab make? Its texts, tables and figures, one to a slide, in a page that needs no network.

python3 -m labkit.recording.slides                     part 1, into build/slides/
python3 -m labkit.recording.slides FILE … --into DIR

(nbconvert's own slides load reveal.js from the network; its plain pages, in ``slides.html.j2``, load nothing.) Code,
exercises, checks and scores are left out; of an output, the first table is shown. A slide that is too large for the
window is made smaller as a whole. Arrow keys, space and a click turn; printed, each is a page.
"""

from __future__ import annotations

import argparse
import base64
import mimetypes
import re
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter

from labkit import course
from labkit.errors import LabError, one_sentence
from labkit.paths import ROOT
from labkit.source.command import check_writable
from stepbudget.show.files import draft

USUAL = course.part(1)
LEFT_OUT = re.compile(
    r"lab\.(exercise|start|finish)\(|<summary>Solution|^## Exercises|^\*\*(\d+\.\d+|On your own)", re.M
)
CHECK = re.compile(r"^(?:✓|Prediction:|no prediction made).*\n?", re.MULTILINE)
PICTURE = re.compile(r'(<img [^>]*src=")(?!data:)([^"]+)"')
TEMPLATE = Path(__file__).with_name("slides.html.j2")


def slides(file: Path) -> list[nbformat.NotebookNode]:
    """The cells of a lab that make its slides. LabError where the file is no notebook."""
    try:
        cells = nbformat.read(file, as_version=4).cells
    except OSError as error:
        raise LabError(f"cannot read {file}: {error.strerror}. Name a notebook, as labs/05_summary.ipynb.") from error
    except Exception as error:  # nbformat has no word of its own for all that a file may be
        raise LabError(f"{file} is no notebook ({type(error).__name__}).") from error
    found: list[nbformat.NotebookNode] = []
    for cell in cells[1:-1]:  # between the navigation bars
        if cell.cell_type == "markdown":  # a slide a section, and one a picture: an exercise may end where one begins
            parts = re.split(r"^(?=## |!\[)", cell.source, flags=re.MULTILINE)
            kept = [one for one in parts if one.strip() and not LEFT_OUT.search(one)]
            found += [nbformat.v4.new_markdown_cell(one) for one in kept]
            continue
        if LEFT_OUT.search(cell.source):
            continue
        for output in cell.outputs:
            output |= {"text": CHECK.sub("", output.text)} if output.output_type == "stream" else {}
        cell.outputs = [output for output in cell.outputs if output.get("text") or output.get("data")]
        if found and found[-1].cell_type == "code" and not any("data" in output for output in cell.outputs):
            found[-1].outputs += cell.outputs  # words stand below what they are about
        elif cell.outputs:
            found.append(cell)
    return found


def page(file: Path) -> str:
    """All slides of a lab in one page, with all that it needs in it."""
    title = next((lab.title for lab in course.LABS if lab.file == file.name), file.stem)
    exporter = HTMLExporter(template_file=str(TEMPLATE), exclude_input=True, exclude_anchor_links=True)
    notebook = nbformat.v4.new_notebook(cells=slides(file))
    made, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": title}})
    return PICTURE.sub(lambda found: f'{found[1]}{_embedded(file.parent / found[2])}"', made)


def _embedded(picture: Path) -> str:
    """A picture as an address that holds it; nbconvert's own embedding takes none from beside the notebook's folder."""
    return f"data:{mimetypes.guess_type(picture)[0]};base64,{base64.b64encode(picture.read_bytes()).decode()}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m labkit.recording.slides", description="Make slides of labs.")
    parser.add_argument("files", nargs="*", type=Path, help="notebooks; default: part 1")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "slides", help="default: build/slides")
    args = parser.parse_args()
    with one_sentence():
        check_writable(args.into)
        for file in args.files or [lab.path for lab in USUAL]:
            made = args.into / f"{file.stem}.html"
            with draft(made) as unfinished:
                unfinished.write_text(page(file), encoding="utf-8")
            print(made)


if __name__ == "__main__":
    main()
