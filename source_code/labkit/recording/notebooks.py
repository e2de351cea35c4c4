"""How do the notebooks get their outputs? Each is run from top to bottom, in recorded mode, and stored.

make notebooks                       all of them
python3 -m labkit.recording.notebooks FILE …   these

Bars and tables out of the catalogue are written anew in all pages, whichever are run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from labkit import course
from labkit.errors import LabError, one_sentence
from labkit.paths import ROOT
from labkit.recording import index, pages

CELL_TIMEOUT_S = 600
REVEALS = "reveals"  # in a cell's metadata: the prediction, by its variable, whose answer the output gives away
COMPARES = re.compile(r"^\s*lab\.predict\(", re.MULTILINE)
OPENED = "import json; from labkit.source import originals; print(json.dumps(originals.opened()))"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def files() -> list[Path]:
    """The notebooks of the course, in reading order."""
    return [pages.FRONT_PAGE, *(lab.path for lab in course.LABS)]


def execute(file: Path) -> nbformat.NotebookNode:
    """Run a notebook in its own folder, with a new kernel of this Python; the result, with its outputs."""
    notebook = nbformat.read(file, as_version=4)
    pages.dress(notebook, file.name)
    notebook.cells.append(nbformat.v4.new_code_cell(OPENED))
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        coalesce_streams=True,  # else what was printed is cut in pieces, elsewhere each time
        resources={"metadata": {"path": str(file.parent)}},
    ).execute()
    notebook.metadata[pages.RECORDINGS] = json.loads(notebook.cells.pop().outputs[0].text)
    return notebook


def is_folded(cell: nbformat.NotebookNode) -> bool:
    """Does the cell's output give away what a prediction above it asked for?"""
    return REVEALS in cell.metadata or (cell.cell_type == "code" and bool(COMPARES.search(cell.source)))


def fold(cell: nbformat.NotebookNode) -> None:
    """Hide the output of such a cell, and of no other, until the reader opens it or runs the cell.

    JupyterLab and Notebook 7 read this; nbconvert does not, and shows all.
    """
    jupyter = dict(cell.metadata.pop("jupyter", {}))
    jupyter.pop("outputs_hidden", None)
    jupyter |= {"outputs_hidden": True} if is_folded(cell) else {}
    if jupyter:
        cell.metadata["jupyter"] = jupyter


def store(notebook: nbformat.NotebookNode, file: Path) -> None:
    """Write the notebook without what would change from run to run: times, versions of this machine."""
    kept = {pages.RECORDINGS: notebook.metadata[pages.RECORDINGS]}
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}} | kept
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
        cell.metadata.pop("execution", None)
        fold(cell)
    replace(file, nbformat.writes(notebook) + "\n")


def replace(file: Path, text: str) -> None:
    """Write a file whole, or leave it as it was: LabError then."""
    draft = file.with_suffix(".tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise LabError(f"{file} cannot be written ({error.strerror}): it is as it was.") from error


def dress_again(file: Path) -> None:
    """Write what comes out of the catalogue anew in a stored notebook; its outputs, and a file that is right, stay."""
    notebook = nbformat.read(file, as_version=4)
    pages.dress(notebook, file.name)
    text = nbformat.writes(notebook) + "\n"
    if text != file.read_text(encoding="utf-8"):
        replace(file, text)


def run(file: Path) -> None:
    """Run a notebook and store it; LabError where the disk is full, exit status 1 where one of its cells fails."""
    try:
        store(execute(file.resolve()), file.resolve())
    except CellExecutionError as error:
        sys.exit(f"{file}: {error}")
    except OSError as error:  # a kernel writes before it starts, too
        raise LabError(f"{file} cannot be run ({error.strerror}): it is as it was.") from error
    print(f"{file.resolve().relative_to(ROOT)}: run and stored")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python3 -m labkit.recording.notebooks", description="Run notebooks and store their outputs."
    )
    parser.add_argument("files", nargs="*", type=Path, help="default: the whole course")
    args = parser.parse_args()
    os.environ.setdefault("LAB_MODE", "recorded")
    os.environ["LAB_PREDICTIONS"] = "off"
    os.environ.setdefault("PYTHONWARNINGS", "ignore:CUDA initialization")  # a driver too old is said to its owner only
    with one_sentence():
        for page in pages.TEXTS:
            replace(page, pages.filled(page.read_text(encoding="utf-8")))
        replace(index.FILE, index.text())
        for file in files():
            dress_again(file)
        for file in args.files or files():
            run(file)


if __name__ == "__main__":
    main()
