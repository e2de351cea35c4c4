"""The matrix product rung by rung: compiled here without a GPU, and on a Hopper held against FP64."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch

from labkit.kernels import nvrtc
from labkit.kernels.matmul import MULTIPLIES, error_bound
from labkit.kernels.rungs import FOLDER, HOPPER, RUNGS, Rung, rung_matmul
from labkit.kernels.rungs.in_triton import TILE, triton_matmul
from labkit.labs import lab29

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

HERE = torch.cuda.is_available() and torch.cuda.get_device_capability() == HOPPER
hopper_only = pytest.mark.skipif(not HERE, reason="no Hopper: the rungs are only compiled here")
MOST_SHARED = 232_448  # bytes of a block, by compute capability 9.0: CUDA C++ Programming Guide
MOST_LINES = 60  # of a rung, comments aside: it is there to be read
MULTIPLYING = {  # what the page says of each
    "naive": "fma.rn.f32",
    "shared memory": "fma.rn.f32",
    "mma.sync": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
} | dict.fromkeys(
    ("wgmma", "TMA", "warp-specialised", "cluster"), "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"
)
each_rung = pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.path.stem)


def compiled(rung: Rung, more: str = "") -> nvrtc.Code:
    return nvrtc.code(rung.source + more, HOPPER, rung.flags)


@each_rung
def test_a_rung_multiplies_by_the_instruction_of_its_name_and_brings_by_tma_where_it_has_maps(compiler, rung):
    made = compiled(rung)
    assert made.cubin[1:4] == b"ELF" and ".target sm_90a" in made.ptx
    assert [*Counter(MULTIPLIES.findall(made.ptx))] == [MULTIPLYING[rung.name]]
    assert ("cp.async.bulk.tensor" in made.ptx) == bool(rung.maps)
    assert ("setmaxnreg" in made.ptx) == rung.persistent and (".multicast::cluster" in made.ptx) == (rung.maps == 3)
    assert f'"{rung.path}"' in made.ptx, "a profiler finds the source by its name"


@each_rung
def test_a_launch_is_what_the_kernel_was_compiled_for(compiler, rung):
    """Threads, and shared memory: what a block's ``Shared`` takes, and at most some barriers more."""
    checks = f'static_assert(THREADS == {rung.threads}, "threads");'
    if rung.shared_bytes:
        checks += (
            f'static_assert(sizeof(Shared) <= {rung.shared_bytes} && sizeof(Shared) + 64 >= {rung.shared_bytes}, "");'
        )
    assert compiled(rung, checks).cubin
    with pytest.raises(nvrtc.CompileError, match="static assertion"):
        compiled(rung, f'static_assert(THREADS != {rung.threads}, "threads");')
    assert rung.shared_bytes <= MOST_SHARED


@each_rung
def test_a_rung_can_be_read_on_one_screen(rung):
    lines = [line for line in rung.path.read_text().splitlines() if not re.fullmatch(r"\s*(//.*|#include.*)?", line)]
    assert len(lines) <= MOST_LINES


def test_every_kernel_in_the_folder_is_a_rung():
    assert sorted(FOLDER.glob("*.cu")) == [rung.path for rung in RUNGS]


@each_rung
def test_on_the_cpu_it_is_pytorchs_and_other_sizes_are_refused(rung):
    m, n, k = rung.tile
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    assert torch.equal(rung_matmul(a, b, rung), a @ b.T)
    with pytest.raises(ValueError, match="multiples of"):
        rung_matmul(a[: m - 1], b, rung)
    with pytest.raises(ValueError, match=r"\(M, K\) by \(N, K\)"):
        rung_matmul(a, b[:, :8].contiguous(), rung)
    with pytest.raises(ValueError, match="BF16"):
        rung_matmul(a.float(), b, rung)
    with pytest.raises(ValueError, match="BF16"):
        rung_matmul(torch.randn(k, m).bfloat16().T, b, rung)


def test_tritons_takes_the_same_factors():
    m, n, k = TILE
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    assert torch.equal(triton_matmul(a, b), a @ b.T)
    with pytest.raises(ValueError, match="multiples of"):
        triton_matmul(a[:-1], b)


WAYS = [pytest.param(lambda a, b, rung=rung: rung_matmul(a, b, rung), id=rung.path.stem) for rung in RUNGS]
WAYS.append(pytest.param(triton_matmul, id="triton"))


@hopper_only
@pytest.mark.parametrize("multiply", WAYS)
@pytest.mark.parametrize("sizes", [(256, 256, 64), (512, 768, 640), (2560, 4352, 192), (4096, 4096, 4096)], ids=str)
def test_the_product_keeps_its_bound(multiply, sizes):
    """One step of a tile or two, an odd number of tiles, more tiles than blocks and few steps, the page's."""
    m, n, k = sizes
    torch.manual_seed(m)
    a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    error = (multiply(a, b).double() - a.double() @ b.double().T).abs()
    assert (error <= error_bound(a, b.T)).all()


def test_the_rung_with_a_reader_s_expressions_compiles(compiler, tmp_path):
    path = tmp_path / lab29.FILE
    path.write_text(lab29.filled((FOLDER / lab29.FILE).read_text(), "step / STAGES & 1", "2 - 1", "step + STAGES - 1"))
    assert compiled(Rung(path, "yours", maps=2)).cubin


@hopper_only
def test_a_reader_s_rung_is_held_against_fp64_and_ours(monkeypatch):
    said = ("step / STAGES & 1", "2 - 1", "step + STAGES - 1")
    assert lab29._on_gpu(*said) is None
    monkeypatch.setattr(lab29, "AS_FAST", 2)
    assert "that is right, but slow" in lab29._on_gpu(*said)
    monkeypatch.setattr("labkit.kernels.matmul.error_bound", lambda a, b: torch.zeros((), device=a.device))
    assert "beyond its error bound" in lab29._on_gpu(*said)
