"""The Triton matrix product against FP64, within the bound it states: in Triton's interpreter, on the CPU, on a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import forked
from labkit import paths
from labkit.kernels.matmul import (
    GROUP,
    MULTIPLIES,
    TILES,
    UNTUNED,
    _matmul,
    chosen_tile,
    error_bound,
    matmul,
    matmul_reference,
    multiplying_instructions,
)
from labkit.labs.lab10 import products
from labkit.paths import SOURCE_CODE
from labkit.pretend.triton import launch
from labkit.subjects.roofline import Peaks

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: Triton's kernel is only interpreted here")

# (M, K, N): one tile, its edges, one more, no inner dimension at all, more rows of tiles than go down together.
TILE, _, INNER = UNTUNED
SHAPES = [
    (TILE, INNER, TILE),
    (1, 1, 1),
    (TILE + 1, 2 * INNER - 1, TILE - 1),
    (3, 0, 5),
    (GROUP * TILE + 5, 7, 3 * TILE),
    (70, 45, 33),
]


def share_of_bound(a: torch.Tensor, b: torch.Tensor, result: torch.Tensor) -> float:
    """The largest error against FP64, in units of the stated bound."""
    error = (result.double() - a.double() @ b.double()).abs()
    return float((error / error_bound(a, b)).max()) if error.numel() else 0.0


# In a process of its own: Triton reads TRITON_INTERPRET when it is imported.
INTERPRETED = """
import json, sys, torch
from labkit.kernels.matmul import error_bound, matmul
torch.manual_seed(0)
found = []
for rows, inner, columns in json.loads(sys.argv[1]):
    for dtype in (torch.float16, torch.float32):
        for turned in (False, True):
            a = torch.randn(rows, inner).to(dtype)
            b = torch.randn(columns, inner).to(dtype).t() if turned else torch.randn(inner, columns).to(dtype)
            c = matmul(a, b)
            assert c.dtype == dtype and c.shape == (rows, columns)
            error = (c.double() - a.double() @ b.double()).abs()
            found.append(float((error / error_bound(a, b)).max()))
print(json.dumps(found))
"""


def said(program: str, *words: str, **environment: str) -> str:
    """What a Python program prints in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_CODE)} | environment
    words = [sys.executable, "-c", program, *words]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_kernel_itself_is_right_in_tritons_interpreter():
    pytest.importorskip("triton", reason="Triton comes with PyTorch's CUDA builds for Linux only")
    found = json.loads(said(INTERPRETED, json.dumps(SHAPES), TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES=""))
    assert len(found) == 4 * len(SHAPES)
    assert max(found) <= 1


def test_without_triton_the_module_is_there_and_multiplies_all_the_same():
    said(
        "import sys; sys.modules['triton'] = None\n"
        "import torch\nfrom labkit.kernels import matmul\n"
        "a, b = torch.randn(3, 4), torch.randn(4, 5)\n"
        "assert torch.equal(matmul.matmul(a, b), a @ b) and matmul.chosen_tile(3, 5, 4) == '–'\n"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_on_the_cpu_it_is_the_reference(shape, dtype):
    rows, inner, columns = shape
    a, b = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    assert torch.equal(matmul(a, b), matmul_reference(a, b))
    assert share_of_bound(a, b, matmul(a, b)) <= 1


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**31), st.floats(1e-3, 1e3))
def test_the_bound_holds_for_any_size_and_scale_and_notices_a_wrong_element(rows, inner, columns, seed, scale):
    random = torch.Generator().manual_seed(seed)
    a = (scale * torch.randn(rows, inner, generator=random)).bfloat16()
    b = torch.randn(inner, columns, generator=random).bfloat16()
    result = matmul(a, b)
    assert share_of_bound(a, b, result) <= 1
    largest = (a.double() @ b.double()).abs().argmax()
    wrong = result.clone()
    wrong.view(-1)[largest] *= 1.25
    assert share_of_bound(a, b, wrong) > 1 or inner > 1  # of one product the bound is a rounding; sums may cancel


def test_the_bound_by_hand():
    """1 x 2 by 2 x 1 of BF16: 3 * 2^-22 of the magnitudes for the sum, then half of 2^-7 of the result."""
    a, b = torch.tensor([[1.0, -2.0]]).bfloat16(), torch.tensor([[3.0], [1.0]]).bfloat16()
    summing = 3 * 2.0**-22 * 5
    expected = summing + 2.0**-8 * (1 + summing)
    assert error_bound(a, b).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (torch.ones(2, 3), torch.ones(2, 3), "cannot multiply"),
        (torch.ones(2, 3, 1), torch.ones(3, 2), "cannot multiply"),
        (torch.ones(2, 3), torch.ones(3, 2).half(), "of one device are wanted"),
        (torch.ones(2, 3).long(), torch.ones(3, 2).long(), "BF16, FP16 or FP32"),
        (torch.empty(2**16, 1, device="meta"), torch.empty(1, 2**15, device="meta"), "too large"),
    ],
)
def test_what_it_cannot_multiply_is_refused(a, b, words):
    with pytest.raises(ValueError, match=words):
        matmul(a, b)


def test_no_tile_is_named_where_none_was_tried():
    assert chosen_tile(1, 2, 3) == "–"


PTX = """
    wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%f1}, %rd1, %rd2;
    wgmma.wait_group.sync.aligned 0;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f1};
    fma.rn.f32 	%f3, %f1, %f2, %f3;
    fma.rn.f64 	%fd3, %fd1, %fd2, %fd3;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1};
"""


def test_the_instructions_that_multiply_are_found():
    assert MULTIPLIES.findall(PTX) == [
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32",
        "fma.rn.f32",
    ]


@pytest.mark.parametrize(
    ("kept", "whole"),
    [
        ("mma.sync.aligned.row.row.m16n16k16.f32.f32", "wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32"),
        ("wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32", "wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
    ],
)
def test_the_name_of_a_wmma_instruction_is_read_whole(kept, whole):
    records = [{"rows": [{"what": "way", "instructions": {kept: 5}}, {"what": "size"}]}]
    assert products.instructions(records) == [whole]


def test_the_trial_runs_the_kernel_in_triton_or_says_that_it_is_not_there():
    program = (
        "import os\nfrom labkit.labs.lab10.trial import trial\nprint(trial())\n"
        "assert 'TRITON_INTERPRET' not in os.environ"
    )
    where = "in Triton's interpreter" if importlib.util.find_spec("triton") else "not installed here"
    assert where in said(program, CUDA_VISIBLE_DEVICES="")


RECORD = {
    "size": 4096,
    "rows": [
        {"what": "size", "rows": 64, "columns": 64, "inner": 64, "dtype": "bf16", "tile": "64 x 32 x 128"}
        | {
            "triton_us": 2.0,
            "cublas_us": 4.0,
            "triton_tflops": 20.0,
            "cublas_tflops": 10.0,
            "triton_error_of_bound": 0.5,
        },
        {"what": "tile", "tile": "128 x 256 x 64", "warps": 8, "stages": 3, "group": 8, "triton_us": 5.0}
        | {"triton_tflops": 30.0},
        {
            "what": "type",
            "dtype": "fp32",
            "instructions": {"fma.rn.f32": 2048},
            "triton_tflops": 3.0,
            "cublas_tflops": 4.0,
        },
    ],
}


def test_the_pictures_of_a_benchmark():
    slower = json.loads(json.dumps(RECORD))
    slower["rows"][0] |= {"triton_tflops": 40.0, "tile": "64 x 64 x 64"}
    sizes = products.sizes([RECORD, slower])
    assert sizes.frame["Triton TFLOP/s"].tolist() == [30], "the median of the runs"
    assert sizes.frame["Triton / cuBLAS"].tolist() == [3]
    assert sizes.frame["tile"].tolist() == ["64×32×128 or 64×64×64"]
    assert products.tiles([RECORD]).frame["multiplications for each number read"].tolist() == [128 * 256 / 384]
    assert "2048 fma.rn.f32" in str(products.types([RECORD]))
    fig = products.rates([RECORD], Peaks("a GPU", {"bf16": 800.0}, 4.0, {}))
    assert {"20", "10", "BF16 roof: 800 TFLOP/s"} == {text.get_text() for text in fig.axes[0].texts}
    slower["rows"][0]["dtype"] = "fp16"  # as on a GPU without BF16
    assert all("FP16" in str(show([slower])) for show in (products.sizes, products.tiles))
    fig = products.rates([slower], Peaks("a GPU", {"fp32": 8.0, "fp16": 50.0}, 4.0, {}))
    assert "FP16 roof: 50 TFLOP/s" in {text.get_text() for text in fig.axes[0].texts}


@pytest.mark.parametrize(("down", "across", "group"), [(8, 8, 1), (8, 8, 4), (7, 3, 4), (1, 5, 8)])
def test_the_order_of_tiles_is_the_kernels(down, across, group):
    a = torch.zeros(16 * down, 16)
    c = torch.zeros(16 * down, 16 * across)
    sizes = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP": group}
    arguments = (a, torch.zeros(16, 16 * across), c, *c.shape, 16, *a.stride(), 16 * across, 1)
    work = launch(_matmul, (down * across,), *arguments, **sizes)
    made = [divmod(int(at.min()), 16 * across) for _, at in work.places]
    assert [(row // 16, column // 16) for row, column in made] == [
        products.tile_of(program, down, across, group) for program in range(down * across)
    ]


def test_the_drawing_has_each_tile_where_its_program_makes_it():
    drawn = ElementTree.parse(paths.ROOT / "images" / "order_of_tiles.svg").iter("{http://www.w3.org/2000/svg}text")
    numbers = [int(text.text) for text in drawn if text.text.isdigit()]
    for group, programs in ((1, numbers[:64]), (4, numbers[64:])):
        assert programs == sorted(range(64), key=lambda program: products.tile_of(program, 8, 8, group))


def test_the_order_of_tiles_matters_for_large_matrices_only():
    """132 programs are eight rows of 16 tiles in either order; where a row holds 64, they are two rows and a bit."""
    assert products.lines_read(512, 4, 8, (128, 128)) == 4 * 128 + 2 * 128
    found = products.orders([4096, 8192, 16384]).frame.set_index("size")
    fewer = found["8 rows together"] / found["row by row"]
    assert abs(fewer[4096] - 1) < 0.1 and fewer[16384] < 0.5 and fewer.is_monotonic_decreasing


@pytest.mark.parametrize("script", ["bench_matmul.py", "bench_peaks.py", "bench_wmma.py"])
def test_without_a_gpu_the_benchmarks_end_in_one_sentence(script, tmp_path):
    file = tmp_path / "record.json"
    done = forked.run([paths.script(script), "--record", file], {**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2
    assert done.stderr.startswith("error: no GPU") and len(done.stderr.strip().splitlines()) == 1
    assert not file.exists()


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [*SHAPES, (1024, 1024, 1024), (1021, 4093, 2039), (1024, 9216, 128)])
def test_on_a_gpu_it_keeps_its_bound_and_writes_every_element(shape, dtype):
    rows, inner, columns = shape
    a, b = torch.randn(rows, inner, device="cuda").to(dtype), torch.randn(inner, columns, device="cuda").to(dtype)
    for right in (b, b.t().contiguous().t()):
        result = matmul(a, right)
        assert torch.isfinite(result).all()
        assert share_of_bound(a, right, result) <= 1


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_on_a_gpu_any_tile_is_right_and_16_bits_use_tensor_cores(dtype):
    a, b = (torch.randn(300, 300, device="cuda").to(dtype) for _ in range(2))
    tile = (64, 64, 64, 4, 4)
    for chosen in (tile, *(TILES if dtype == torch.bfloat16 else ())):
        assert share_of_bound(a, b, matmul(a, b, chosen, group=1)) <= 1
    told = " ".join(multiplying_instructions(a, b, tile))
    assert ("mma" in told, "fma" in told) == ((True, False) if dtype == torch.bfloat16 else (False, True))
