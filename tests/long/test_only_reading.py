"""Who only reads needs no PyTorch and no Linux: every notebook, in recorded mode, without them."""

from __future__ import annotations

import ast
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

import only_reading
import pages
from labkit import lazily
from labkit.without_torch import SENTENCE, WithoutTorch


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What became of each notebook, by its name; all share one process."""
    settings = {"initializer": only_reading.begin, "initargs": (str(tmp_path_factory.mktemp("reading")),)}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), **settings) as process:
        return process.submit(only_reading.run, pages.FILES).result()


@pytest.mark.parametrize("file", pages.FILES, ids=lambda file: file.stem)
def test_a_page_runs_to_its_end_and_shows_nearly_all(ran, file):
    result = ran[file.stem]
    assert result["error"] is None
    assert len(result["left_out"]) <= result["cells"] / 6


def test_what_python_itself_asks_of_the_name_needs_no_pytorch():
    """``inspect`` asks each name of a lab's module what kind of function it is, from Python 3.13 on."""
    torch = pytest.importorskip("torch")
    assert lazily.torch.float16 is torch.float16
    assert hasattr(torch, "__version__") and not hasattr(lazily.torch, "__version__")


@pytest.fixture
def without(monkeypatch):
    """A notebook where PyTorch is not installed: what is left of a cell."""
    monkeypatch.setattr("labkit.without_torch._fails", lambda module: module.partition(".")[0] == "torch")
    leaving_out = WithoutTorch({})
    return lambda code: ast.unparse(leaving_out.visit(ast.parse(code)))


def is_left_out(code: str) -> bool:
    return SENTENCE in code


def test_what_needs_it_is_left_out_and_all_that_follows_from_it(without):
    assert not is_left_out(without("rows = 3"))
    assert is_left_out(without("import torch\nimport math\nx = torch.ones(rows)"))
    assert is_left_out(without("total = x.sum()"))
    assert is_left_out(without("def shown():\n    return total"))
    assert is_left_out(without("print([shown() for _ in range(2)])"))
    assert is_left_out(without("count = 0\ncount += total"))
    assert not is_left_out(without("print(rows, math.pi)")), "other imports of such a cell stay"


def test_a_name_that_is_bound_again_is_there_again(without):
    assert is_left_out(without("from torch import nn as step, optim\nbatch = step()"))
    assert not is_left_out(without("for step in range(3):\n    print(step)"))
    assert not is_left_out(without("batch = 2\nprint(batch)"))
    assert not is_left_out(without("def own(optim):\n    return optim")), "an argument is a name of its own"
    assert is_left_out(without("def own():\n    return optim"))
