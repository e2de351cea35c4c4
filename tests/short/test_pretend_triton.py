"""The model of Triton: the course's own kernels give what they give in Triton; what a GPU forbids is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from labkit.kernels.matmul import GROUP, _matmul, error_bound
from labkit.paths import SOURCE_CODE
from labkit.pretend.triton import PretendError, launch, tl

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")
BLOCK = 16


def multiply(a: torch.Tensor, b: torch.Tensor, block: int = BLOCK, group: int = GROUP):
    (rows, inner), columns = a.shape, b.shape[1]
    c = torch.full((rows, columns), torch.nan, dtype=a.dtype)
    grid = (-(-rows // block) * -(-columns // block),)
    sizes = {"BLOCK_M": block, "BLOCK_N": block, "BLOCK_K": block, "GROUP": group}
    return c, launch(_matmul, grid, a, b, c, rows, columns, inner, *a.stride(), *b.stride(), **sizes)


@pytest.mark.parametrize("shape", [(16, 16, 16), (1, 1, 1), (33, 17, 40), (200, 5, 20)])
@pytest.mark.parametrize("turned", [False, True])
def test_the_matrix_product_is_right_and_writes_each_element_once(shape, turned):
    rows, inner, columns = shape
    torch.manual_seed(0)
    a = torch.randn(rows, inner).bfloat16()
    b = torch.randn(columns, inner).bfloat16().t() if turned else torch.randn(inner, columns).bfloat16()
    c, work = multiply(a, b)
    assert ((c.double() - a.double() @ b.double()).abs() <= error_bound(a, b)).all()
    written = torch.cat([at for _, at in work.places]).sort().values
    assert written.tolist() == list(range(rows * columns)) and work.stored == rows * columns


def test_work_by_hand():
    """4 x 2 tiles of 16; each walks three blocks along the inner dimension, 40 long."""
    _, work = multiply(torch.randn(64, 40), torch.randn(40, 32))
    assert (work.programs, work.multiplications) == (8, 8 * 3 * 16**3)
    assert work.loaded == 8 * 2 * 16 * 40, "what a mask leaves out is not read"


REAL = """
import json, os, sys, torch
from labkit.kernels.matmul import matmul
torch.manual_seed(0)
a, b = torch.randn(70, 45).half(), torch.randn(45, 33).half()
print(json.dumps(matmul(a, b).tolist()))
"""


def test_triton_itself_finds_the_same():
    pytest.importorskip("triton", reason="Triton comes with PyTorch's CUDA builds for Linux only")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(SOURCE_CODE)}
    done = subprocess.run([sys.executable, "-c", REAL], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    torch.manual_seed(0)
    a, b = torch.randn(70, 45).half(), torch.randn(45, 33).half()
    found, _ = multiply(a, b, block=32)
    assert (found.float() - torch.tensor(json.loads(done.stdout))).abs().max() <= 2 * error_bound(a, b).max()


def copied(x, y, count, MASKED, SIZE):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = at < count if MASKED else None
    tl.store(y + at, tl.load(x + at, mask=mask) + 1, mask=mask)


def test_programs_share_the_work_and_a_mask_keeps_them_inside():
    x, y = torch.arange(100.0), torch.full((100,), torch.nan)
    work = launch(copied, (7,), x, y, 100, MASKED=True, SIZE=16)
    assert y.tolist() == (x + 1).tolist()
    assert (work.programs, work.loaded, work.stored) == (7, 100, 100)


@pytest.mark.parametrize(
    ("masked", "size", "count", "words"),
    [
        (False, 16, 100, "program 6 reads element 100 of x, which has 100: a mask is missing"),
        (True, 16, 101, "program 6 reads element 100 of x"),
        (True, 20, 100, "power of two of elements, not 20"),
    ],
)
def test_what_a_gpu_would_not_survive_is_named(masked, size, count, words):
    with pytest.raises(PretendError, match=words):
        launch(copied, (7,), torch.zeros(100), torch.zeros(100), count, MASKED=masked, SIZE=size)


def test_what_a_mask_leaves_out_is_no_zero():
    def summed(x, y):
        at = tl.arange(0, 4)
        tl.store(y, tl.sum(tl.load(x + at, mask=at < 3)))

    y = torch.zeros(1)
    launch(summed, (1,), torch.ones(3), y)
    assert y.isnan().all()


def test_a_tensor_core_takes_no_small_blocks():
    def product(x, y):
        block = tl.load(x + tl.arange(0, 8)[:, None] * 8 + tl.arange(0, 8)[None, :])
        tl.store(y, tl.sum(tl.dot(block, block)))

    with pytest.raises(PretendError, match="blocks of 16 and more, not 8 x 8 x 8"):
        launch(product, (1,), torch.ones(64), torch.ones(1))


def test_rows_of_a_larger_tensor_end_where_they_end():
    """A view reaches from its first element to its last, not to the end of what it is a view of."""
    x, y = torch.arange(200.0)[50:150], torch.zeros(100)
    launch(copied, (7,), x, y, 100, MASKED=True, SIZE=16)
    assert y[0] == 51
    with pytest.raises(PretendError, match="of x, which has 100"):
        launch(copied, (7,), x, torch.zeros(200), 101, MASKED=True, SIZE=16)


def test_a_grid_of_two_dimensions():
    def numbered(y, WIDE):
        tl.store(y + tl.program_id(1) * WIDE + tl.program_id(0), tl.program_id(1) * 10 + tl.program_id(0))

    y = torch.zeros(2, 3)
    launch(numbered, (3, 2), y, WIDE=3)
    assert y.tolist() == [[0, 1, 2], [10, 11, 12]]
