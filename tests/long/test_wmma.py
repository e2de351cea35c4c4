"""The matrix product in CUDA C++: compiled for each GPU, its kernels run on the CPU, and what a launch is handed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from labkit import paths
from labkit.errors import LabError
from labkit.kernels import nvrtc, wmma
from labkit.kernels.matmul import error_bound, matmul_reference
from labkit.kernels.nvrtc import headers
from labkit.kernels.wmma import TILE, TILES, Tile, blocks, compiled, wmma_matmul
from labkit.labs.lab10 import products
from labkit.source.quick import quick

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: the kernels run on the CPU only")
ON_CPU = Path(__file__).parents[1] / "support" / "cuda_on_cpu.h"
COMPILER = shutil.which("c++") or shutil.which("g++")
SMALL = Tile(32, 64, 32, 2, 2, 3)
_, ONE_TILE, TILED = re.split(r"^// ---- .* ----$", wmma.FILE.read_text(), flags=re.MULTILINE)


# Compiled by NVRTC, which needs no GPU


@pytest.mark.parametrize("tile", [None, TILE], ids=str)
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (10, 0)], ids=str)
def test_it_compiles_for_every_generation_with_tensor_cores(compiler, capability, tile):
    types = [torch.float16] if capability == (7, 5) else [torch.float16, torch.bfloat16]
    for dtype in types:
        made = compiled(capability, dtype, tile)
        assert made.cubin.startswith(b"\x7fELF")
        (multiplying,) = wmma.multiplying_instructions(capability, dtype, tile)
        assert multiplying.startswith("wmma.mma.sync.aligned.row.row.m16n16k16") and multiplying in made.ptx


def test_each_tile_that_is_tried_compiles(compiler):
    assert all(compiled((9, 0), torch.float16, tile).cubin for tile in TILES)


def test_turing_has_no_bf16_and_the_compiler_says_so(compiler):
    with pytest.raises(RuntimeError, match="incomplete type"):
        compiled((7, 5), torch.bfloat16)


def test_without_cuda_bindings_it_says_how_to_install_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(LabError, match="pip install cuda-bindings"):
        nvrtc.code.__wrapped__(nvrtc.source(wmma.FILE), (9, 0))


def test_headers_that_include_what_is_not_there_are_passed_over(monkeypatch, tmp_path):
    """As those are that pip brings with PyTorch: ``mma.h``, without the ``crt/mma.h`` that it includes."""
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "include" / "crt").mkdir(parents=True)
    (tmp_path / "include" / "mma.h").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    if Path("/usr/local/cuda/include/crt/mma.h").is_file():
        assert headers() == Path("/usr/local/cuda/include")
    else:
        with pytest.raises(LabError, match="CUDA_HOME"):
            headers()
    (tmp_path / "include" / "crt" / "mma.h").touch()
    assert headers() == tmp_path / "include"


# Run on the CPU: the same source, every read and write checked


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A function that compiles a kernel's source for the CPU; the program, made once."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    made = {}

    def build(tile: Tile | None, source: str) -> Path:
        if (tile, source) not in made:
            folder = tmp_path_factory.mktemp("kernel")
            file = folder / "kernel.cpp"
            file.write_text(f'#include "{ON_CPU}"\n{source}')
            names = {"NUMBER": "short", "KERNEL": "tiled" if tile else "one_tile"} | (tile or TILE).constants
            names |= {"__shared__": "", "SHARED_BYTES": tile.shared_bytes} if tile else {"__shared__": "static"}
            defined = [f"-D{name}={value}" for name, value in names.items()]
            flags = ["-std=c++20", "-O1", "-fsanitize=address", "-pthread", *defined]
            done = subprocess.run(
                [COMPILER, *flags, str(file), "-o", str(folder / "kernel")], capture_output=True, text=True, timeout=300
            )
            if "unrecognized" in done.stderr or "asan" in done.stderr or "No such file" in done.stderr:
                pytest.skip(f"this compiler cannot: {done.stderr.splitlines()[0]}")
            assert done.returncode == 0, done.stderr
            made[tile, source] = folder / "kernel"
        return made[tile, source]

    return build


def on_cpu(program: Path, tile: Tile | None, rows: int, columns: int, inner: int) -> bool:
    """Does the program make the product of two random matrices, every element of it, and end well?"""
    random = np.random.default_rng(rows)
    a = random.integers(-4, 5, (rows, inner)).astype(np.int16)
    b = random.integers(-4, 5, (inner, columns)).astype(np.int16)
    words = map(str, (rows, columns, inner, *blocks(rows, columns, tile), tile.threads if tile else wmma.WARP))
    done = subprocess.run([program, *words], input=a.tobytes() + b.tobytes(), capture_output=True, timeout=300)
    right = (a.astype(int) @ b).astype(np.int16).tobytes()
    return done.returncode == 0 and done.stdout == right


def test_one_tile_a_warp_is_a_product(built):
    program = built(None, ONE_TILE)
    assert on_cpu(program, None, 16, 16, 16)
    assert on_cpu(program, None, 48, 32, 80)


# One tile, one number, nothing to sum, a tile and its edges, rows of whole 16 bytes and more steps than stages, tiles.
@pytest.mark.parametrize(
    ("rows", "columns", "inner"),
    [(32, 64, 32), (1, 1, 1), (5, 7, 0), (33, 65, 17), (40, 72, 200), (70, 130, 45), (31, 8, 64)],
)
def test_tiles_make_a_product_of_any_size(built, rows, columns, inner):
    assert on_cpu(built(SMALL, TILED), SMALL, rows, columns, inner)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("__pipeline_wait_prior(STAGES - 1)", "__pipeline_wait_prior(STAGES)"),
        ("r < rows && c + j < columns ?", "c + j < columns ?"),
        ("warp % ACROSS * WIDE", "warp % ACROSS * TALL"),
    ],
    ids=["multiplies what has not arrived", "reads beyond the edge", "parts that overlap"],
)
def test_a_kernel_with_a_mistake_in_it_is_found_out(built, right, wrong):
    assert TILED.count(right) == 1
    program = built(SMALL, TILED.replace(right, wrong))
    assert not all(on_cpu(program, SMALL, *sizes) for sizes in ((33, 65, 100), (40, 72, 104)))


def test_what_the_course_ships_is_the_kernel_that_was_tried(built):
    """The default tile, on one of its blocks and its edges."""
    assert on_cpu(built(TILE, TILED), TILE, 130, 24, 40)


# What a launch is handed


@pytest.mark.parametrize("tile", [*TILES, SMALL], ids=str)
def test_a_blocks_shared_memory_holds_its_tiles_and_in_the_end_its_results(tile):
    pad = wmma.PAD
    of_a, of_b = tile.rows * (tile.inner + pad), tile.inner * (tile.columns + pad)
    assert tile.shared_bytes >= 2 * tile.stages * (of_a + of_b) and tile.shared_bytes >= 4 * 256 * tile.threads / 32
    assert tile.shared_bytes % 16 == 0 and tile.threads <= 1024
    for row in (
        tile.inner + pad,
        tile.columns + pad,
    ):  # each row 4 banks on, of 32: eight rows of 16 bytes meet nowhere
        assert len({row * number // 2 // 4 % 8 for number in range(8)}) == 8
    for bytes_before in (2 * of_a, 2 * (of_a + of_b), 2 * 16 * (tile.inner + pad), 2 * 16 * (tile.columns + pad)):
        assert bytes_before % wmma.ALIGNED == 0, "where a fragment begins"


@pytest.mark.parametrize("sizes", [(24, 64, 32, 2, 2), (32, 64, 24, 2, 2), (32, 64, 32, 3, 2), (0, 64, 32, 2, 2)])
def test_a_tile_that_is_not_made_of_fragments_is_refused(sizes):
    with pytest.raises(ValueError, match="multiples of 16"):
        Tile(*sizes)


@pytest.mark.parametrize(
    ("tile", "kernel", "grid", "threads", "shared"),
    [(TILE, "tiled", (16, 8), 256, TILE.shared_bytes), (None, "one_tile", (128, 64), 32, 0)],
    ids=str,
)
def test_a_launch_covers_the_result_and_names_every_size(monkeypatch, tile, kernel, grid, threads, shared):
    called = []
    monkeypatch.setattr(wmma, "_flags", lambda *told: told)
    monkeypatch.setattr(nvrtc, "compiled", lambda *told: called.append(told) or (lambda *rest: called.append(rest)))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    a, b, c = (_pretended(place, shape) for place, shape in ((1, (1021, 4093)), (2, (4093, 2039)), (3, (1021, 2039))))
    wmma._launch(a, b, c, tile)
    source = nvrtc.source(wmma.FILE)
    assert called == [(source, kernel, (torch.float16, tile), shared), (grid, (threads, 1), a, b, c, 1021, 2039, 4093)]


def _pretended(place, shape):
    return SimpleNamespace(place=place, shape=shape, dtype=torch.float16, device=SimpleNamespace(index=0))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (torch.ones(2, 3).half(), torch.ones(2, 3).half(), "cannot multiply"),
        (torch.ones(2, 3, 1).half(), torch.ones(3, 2).half(), "cannot multiply"),
        (torch.ones(2, 3), torch.ones(3, 2), "two FP16 or two BF16"),
        (torch.ones(2, 3).half(), torch.ones(3, 2).bfloat16(), "two FP16 or two BF16"),
        (torch.ones(2, 3).half(), torch.ones(2, 3).half().t(), "row after row"),
        (torch.empty(2**16, 1).half(), torch.empty(1, 2**15).half(), "too large"),
        (torch.empty(2**23, 1).half(), torch.empty(1, 2).half(), "tiles below each other"),
    ],
)
def test_what_it_cannot_multiply_is_refused(a, b, words):
    with pytest.raises(ValueError, match=words):
        wmma_matmul(a, b)


def test_one_tile_a_warp_wants_whole_tiles():
    with pytest.raises(ValueError, match=r"multiples of 16, not \(16, 8, 16\)"):
        wmma_matmul(torch.ones(16, 8).half(), torch.ones(8, 16).half(), None)


def test_on_the_cpu_it_is_the_reference():
    a, b = torch.randn(20, 30).half(), torch.randn(30, 40).half()
    assert torch.equal(wmma_matmul(a, b), matmul_reference(a, b))


# On a GPU


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tile", [*TILES, SMALL], ids=str)
def test_on_a_gpu_it_keeps_its_bound_and_writes_every_element(compiler, tile, dtype):
    for rows, inner, columns in ((1, 1, 1), (130, 70, 45), (3, 0, 5), (1021, 4093, 2039), (1024, 9216, 128)):
        a, b = torch.randn(rows, inner, device="cuda").to(dtype), torch.randn(inner, columns, device="cuda").to(dtype)
        try:
            made = wmma_matmul(a, b, tile)
        except nvrtc.TooLarge as error:
            pytest.skip(str(error))
        assert torch.isfinite(made).all()
        assert ((made.double() - a.double() @ b.double()).abs() / error_bound(a, b)).max() <= 1


@needs_gpu
def test_on_a_gpu_one_tile_a_warp_keeps_the_bound(compiler):
    a, b = torch.randn(160, 320, device="cuda").half(), torch.randn(320, 48, device="cuda").half()
    off = (wmma_matmul(a, b, None).double() - a.double() @ b.double()).abs()
    assert (off / error_bound(a, b)).max() <= 1


# The benchmark, and what the lab shows of it


def way(name, us, tflops, what="way"):
    return {"what": what, "way": name} | {"product_us": us, "product_tflops": tflops, "product_error_of_bound": 0.4}


RECORD = {
    "size": 4096,
    "rows": [
        way("WMMA: one tile a warp", 2000.0, 70.0),
        way("cuBLAS", 200.0, 700.0),
        way("WMMA: one tile a warp", 3000.0, 47.0, "bf16"),
        {"what": "size", "rows": 64, "columns": 32, "inner": 16, "dtype": "fp16", "wmma_error_of_bound": 0.5}
        | {f"{name}_tflops": rate for name, rate in (("wmma", 20.0), ("triton", 30.0), ("cublas", 40.0))},
    ],
}


def test_the_tables_of_the_benchmark():
    ways = products.ways([RECORD]).frame.set_index("product")
    assert ways["% of cuBLAS"].tolist() == pytest.approx([10, 100])
    sizes = products.sizes_in_cuda([RECORD, RECORD]).frame.iloc[0]
    assert (sizes["WMMA / cuBLAS"], sizes["Triton / cuBLAS"]) == (0.5, 0.75)
    assert sizes["rows × columns × inner"] == "64 × 32 × 16"


def test_a_quick_run_has_sizes_of_each_kind(monkeypatch):
    """Small, large, one that 16 does not divide, an odd one, a product with few tiles; then all others of lab 10."""
    monkeypatch.syspath_prepend(paths.BENCHMARKS)  # where it lies when it runs
    import bench_matmul
    import bench_wmma

    assert sorted(bench_wmma.SIZES) == sorted(bench_matmul.SIZES)
    assert quick("bench_wmma.py") == f"bench_wmma.py --sizes {len(bench_wmma.FIRST)}"
    assert bench_wmma.SIZES[: len(bench_wmma.FIRST)] == bench_wmma.FIRST


def test_sizes_are_shown_from_the_smallest_to_the_largest():
    (size,) = (row for row in RECORD["rows"] if row["what"] == "size")
    larger, smaller = (size | {"rows": rows} for rows in (128, 8))
    shown = products.sizes_in_cuda([{"rows": [size, larger, smaller]}]).frame
    assert [words.split()[0] for words in shown["rows × columns × inner"]] == ["8", "64", "128"]


def test_fp16_beside_bf16():
    assert products.fp16_over_bf16([RECORD]) == 1.5
    without = {"rows": [row for row in RECORD["rows"] if row["what"] != "bf16"]}
    assert np.isnan(products.fp16_over_bf16([without]))


def test_where_cuda_bindings_are_missing_a_live_lab_shows_what_was_recorded(monkeypatch):
    from labkit.source import Programs

    assert Programs().missing("os.path", "nothing_like_this.at_all", "nothing_like_this") == [
        "nothing_like_this.at_all",
        "nothing_like_this",
    ]
    asked = []
    monkeypatch.setattr(products.source, "current", lambda: SimpleNamespace(get=asked.append))
    products.in_cuda()
    (request,) = asked
    assert request.commands == ["bench_wmma.py"] and request.install == products.HOW_TO_INSTALL
    assert request.packages == ("triton", "cuda.bindings")
