"""Every notebook in recorded mode, all in one process: each cell says and draws what is stored, as ``--nbval`` asks.

And each exercise, where the page asks it: its solution passes, its usual wrong answers do not.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import nbformat
import pytest

import in_one_process
import pages
import solutions
from labkit.recording.pages import RECORDINGS


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    settings = {"initializer": in_one_process.begin, "initargs": (str(tmp_path_factory.mktemp("pages")),)}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), **settings) as process:
        return process.submit(in_one_process.run_recorded, pages.FILES).result()


@pytest.mark.parametrize("file", pages.FILES, ids=lambda file: file.stem)
def test_a_page_says_what_is_stored(ran, file):
    result, notebook = ran[file.stem], nbformat.read(file, as_version=4)
    stored = notebook.cells
    last = result["cells"][-1]
    assert result["status"] == "whole", f"cell {last['cell']}: {last['error']}\n{last['trace']}"
    found = {cell["cell"]: cell["said"].strip() for cell in result["cells"]}
    assert list(found) == [at for at, cell in enumerate(stored) if cell.cell_type == "code"]
    compared = [at for at in found if "tags" not in stored[at].metadata]
    assert {at: found[at] for at in compared} == {at: pages.text_of(stored[at]).strip() for at in compared}
    listed = notebook.metadata[RECORDINGS]  # all of them; in one process, what two pages read is read once
    assert set(result["opened"]) <= set(listed) and listed


@pytest.mark.parametrize("file", pages.FILES[1:], ids=lambda file: file.stem)
def test_the_solutions_pass_their_checks_and_wrong_answers_do_not(ran, file):
    tried = ran[file.stem]["tried"]
    assert not tried["wrong"], "\n".join(tried["wrong"])
    cells = nbformat.read(file, as_version=4).cells
    asked = [number for cell in cells if cell.cell_type == "code" for number in solutions.CALL.findall(cell.source)]
    assert asked and list(tried["counts"]) == asked
    for number, count in tried["counts"].items():
        assert f"✓ exercise {number}\n" in tried["told"]
        # On the recorded machine, all but those that happen to be right there.
        most = len(solutions.EVERY[number].wrong)
        assert count >= (most if number.startswith("10.") else max(3, most - 1)), number
