"""Kernels of our own against FP64: in Triton's interpreter, as CUDA C++ on the CPU, and on a GPU, where one is.

Compiled for GPUs that are not here.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripts import script

import cuda_on_cpu
import forked
from labkit import paths
from labkit.kernels import attention, chains, matmul, nvrtc, shared_out, softmax, transpose
from labkit.paths import SOURCE_CODE

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization", "ignore:TRITON_DEFAULT_FP_FUSION")
GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not GPU, reason="no GPU: Triton's kernels are only interpreted here")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton comes with PyTorch's CUDA builds for Linux only"
)
needs_nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("cuda.bindings") is None if importlib.util.find_spec("cuda") else True,
    reason="NVRTC comes with PyTorch's CUDA builds only",
)
GENERATIONS = [(7, 5), (8, 0), (9, 0)]
MOST_SHARED = {
    (7, 5): 64 << 10,
    (8, 0): 163 << 10,
    (9, 0): 227 << 10,
}  # CUDA C++ Programming Guide, "Technical Specifications"

ROWS = [(3, 1), (5, 33), (2, 256), (2, 5000)]  # softmax: rows, columns; the last in two pieces
PLACES = [(1, 1, 1, 16), (2, 1, 33, 32), (1, 1, 70, 64)]  # attention: batch, heads, length, width
PRODUCTS = [(1, 1, 1), (33, 70, 20)]  # rows, inner, columns
PROGRAMS = [None, 1, 4, 7, 100]


def share(found: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> float:
    """The largest error in units of the bound; NaN keeps none."""
    error = ((found.double() - exact).abs() / bound).max()
    return float(error) if torch.isfinite(found).all() else float("inf")


def errors(device: str, types: tuple, rows: list, places: list, products: list) -> dict[str, list[float]]:
    """Each kernel's errors, in units of the bounds that they state."""
    torch.manual_seed(0)
    found: dict[str, list[float]] = {"softmax": [], "attention": [], "shared out": []}
    for dtype in types:
        for size in rows:
            for scale in (1, 30):
                x = (scale * torch.randn(size, device=device)).to(dtype)
                exact, bound = torch.softmax(x.double(), dim=-1), softmax.error_bound(x)
                found["softmax"] += [share(softmax.softmax(x, pieces), exact, bound) for pieces in (False, True)]
        for shape in places:
            for causal in (False, True):
                q, k, v = (2 * torch.randn(3, *shape, device=device)).to(dtype)
                exact = attention.attention_reference(q.double(), k.double(), v.double(), causal)
                result = attention.attention(q, k, v, causal)
                found["attention"].append(share(result, exact, attention.error_bound(q, k, v, causal)))
        for m, k, n in products:
            a, b = torch.randn(m, k, device=device).to(dtype), torch.randn(k, n, device=device).to(dtype)
            exact, bound = a.double() @ b.double(), matmul.error_bound(a, b)
            found["shared out"] += [share(shared_out.shared_out(a, b, count), exact, bound) for count in PROGRAMS]
    return found


@needs_triton
def test_the_kernels_keep_their_bounds_in_tritons_interpreter():
    """In a process of its own: Triton reads TRITON_INTERPRET when it is imported."""
    program = (
        "import json, torch, test_own_kernels as t\n"
        "from labkit.kernels.triton_or_not import INTERPRETED\nassert INTERPRETED\n"
        "types = torch.float16, torch.float32\n"
        "print(json.dumps(t.errors('cpu', types, t.ROWS, t.PLACES, t.PRODUCTS)))"
    )
    tests = Path(__file__).parents[1]
    here = f"{SOURCE_CODE}:{Path(__file__).parent}:{tests}:{tests / 'support'}"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": here}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: len(own) for name, own in found.items()} == {
        "softmax": 2 * 2 * 2 * len(ROWS),
        "attention": 2 * 2 * len(PLACES),
        "shared out": 2 * len(PROGRAMS) * len(PRODUCTS),
    }
    assert all(max(own) <= 1 for own in found.values()), found


@needs_gpu
def test_on_a_gpu_they_keep_them_too():
    types = (torch.bfloat16, torch.float16)
    rows = [*ROWS, (7, 32768), (3, 32769), (2, 100_000)]
    places = [*PLACES, (1, 2, 1000, 64), (2, 2, 513, 128)]
    found = errors("cuda", types, rows, places, [*PRODUCTS, (300, 5000, 200), (128, 128, 16384)])
    assert all(max(own) <= 1 for own in found.values()), found
    q, k, v = torch.randn(3, 1, 2, 300, 64, device="cuda").to(types[0])
    exact = attention.attention_reference(q.double(), k.double(), v.double(), True)
    for choice in attention.SPACE:
        assert share(attention.attention(q, k, v, True, choice), exact, attention.error_bound(q, k, v, True)) <= 1


def test_on_the_cpu_they_are_the_references():
    x, (q, k, v) = torch.randn(5, 33).bfloat16(), torch.randn(3, 1, 2, 9, 16).bfloat16()
    assert torch.equal(softmax.softmax(x), softmax.softmax_reference(x))
    for causal in (False, True):
        assert torch.equal(attention.attention(q, k, v, causal), attention.attention_reference(q, k, v, causal))
    exact = attention.attention_reference(q.float(), k.float(), v.float(), causal=True)
    torch.testing.assert_close(exact, F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True))
    assert torch.equal(shared_out.shared_out(x, x.t().contiguous(), 3), x @ x.t())


@settings(max_examples=30)
@given(st.integers(1, 200), st.integers(0, 2**31))
def test_the_bounds_notice_a_wrong_element(length, seed):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(3, length, generator=random).bfloat16()
    exact = torch.softmax(x.double(), dim=-1)
    assert share(exact * 1.02, exact, softmax.error_bound(x)) > 1
    q, k, v = torch.randn(3, 1, 1, length, 16, generator=random).bfloat16()
    exact = attention.attention_reference(*(one.double() for one in (q, k, v)), causal=True)
    assert share(exact.abs() * 1.05, exact.abs(), attention.error_bound(q, k, v, True)) > 1
    seen_too_much = attention.attention_reference(*(one.double() for one in (q, k, v)), causal=False)
    assert length == 1 or share(seen_too_much, exact, attention.error_bound(q, k, v, True)) > 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: softmax.softmax(torch.ones(3)), "contiguous"),
        (lambda: softmax.softmax(torch.ones(3, 4).t()), "contiguous"),
        (lambda: softmax.softmax(torch.ones(3, 0)), "contiguous"),
        (lambda: softmax.softmax(torch.empty(2**16, 2**15, device="meta")), "too many"),
        (lambda: attention.attention(*torch.ones(3, 1, 1, 4, 24)), "width one of"),
        (lambda: attention.attention(*torch.ones(3, 1, 1, 4, 16).long()), "of one type"),
        (lambda: shared_out.shared_out(torch.ones(2, 3), torch.ones(2, 3)), "cannot multiply"),
        (lambda: shared_out.shared_out(torch.ones(2, 3), torch.ones(3, 2).half()), "are wanted"),
        (lambda: shared_out.shared_out(torch.ones(2, 3), torch.ones(3, 2), 0), "at least one"),
        (lambda: transpose.transpose(torch.ones(2, 3)), "on a GPU"),
        (attention.chosen, "nothing was tuned"),
    ],
)
def test_what_they_cannot_take_is_refused(call, words):
    with pytest.raises((ValueError, LookupError), match=words):
        call()


@settings(max_examples=200)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(1, 300))
def test_every_iteration_is_made_once_and_added_up_from_where_it_lies(down, across, each, programs):
    """``_add_up`` looks for a tile's pieces where ``_stretches`` leaves them: by the same formulas as the kernel."""
    tile = (1, 1, 1)
    iterations = down * across * each
    programs = min(programs, iterations)
    made = shared_out.stretches(down, across, each, programs, tile)
    lengths = [sum(last - first for _, first, last, _ in own) for own in made]
    assert sum(lengths) == iterations and max(lengths) - min(lengths) <= 1
    left = {}  # (program, place) → tile, iterations
    for program, own in enumerate(made):
        for number, first, last, whole in own:
            if not whole:
                place = (program, 1 if first == 0 else 0)
                assert place not in left, "two pieces of a program in one place"
                left[place] = number, last - first
    for number in range(down * across):
        begin = number * each
        first = ((begin + 1) * programs - 1) // iterations
        last = ((begin + each) * programs - 1) // iterations
        if first < last:
            places = [(first, 1), *((program, 0) for program in range(first + 1, last + 1))]
            pieces = [left.pop(place) for place in places]
            assert {own for own, _ in pieces} == {number} and sum(count for _, count in pieces) == each
    assert not left


# --- compiled for GPUs that are not here --------------------------------------------------------------------


def compiled_for(kernel, capability: tuple[int, int], types: dict, constants: dict, warps: int, stages: int = 3):
    """A Triton kernel compiled for a generation of GPUs: registers and bytes on the stack of a thread, shared bytes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    divisible = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): divisible for name, kind in types.items() if kind != "fp32"},
    )
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    made = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(made.asm["cubin"])
        words = [str(tool), "--dump-resource-usage", file.name]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    usage = dict(part.split(":") for part in said.split() if part.startswith(("REG:", "STACK:")))
    return int(usage["REG"]), int(usage["STACK"]), made.metadata.shared, made.asm["ptx"]


@needs_triton
@pytest.mark.parametrize("capability", GENERATIONS, ids=str)
def test_each_generation_has_room_for_them(capability):
    kind = "*fp16" if capability < (8, 0) else "*bf16"
    numbers = {"x": kind, "y": kind, "columns": "i32"}
    registers, stack, shared, _ = compiled_for(
        softmax._whole_row, capability, numbers, {"BLOCK": softmax.WIDEST}, softmax.warps(softmax.WIDEST)
    )
    assert registers <= 64, "1,024 threads have 64 registers each"
    assert stack == 0 and shared <= 1024

    rows, places, warps, stages = attention.SMALL
    heads = {"q": kind, "k": kind, "v": kind, "out": kind, "length": "i32", "scale": "fp32"}
    sizes = {"CAUSAL": True, "BLOCK_M": rows, "BLOCK_N": places, "WIDTH": 64}
    _, stack, shared, ptx = compiled_for(attention._attention, capability, heads, sizes, warps, stages)
    assert shared <= MOST_SHARED[capability]
    on_tensor_cores = capability >= (8, 0)  # Triton 3 multiplies on a Turing's ordinary cores
    assert ("mma" in " ".join(matmul.MULTIPLIES.findall(ptx))) == on_tensor_cores
    assert ("wgmma" in ptx) == (capability == (9, 0)), "as lab 26 says"
    assert not on_tensor_cores or stack == 0, "spilled registers"

    tile = shared_out.TILE if on_tensor_cores else shared_out.SMALL_TILE
    product = {"a": kind, "b": kind, "c": kind, "pieces": "*fp32", "rows": "i32", "columns": "i32", "inner": "i32"}
    sizes = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=False))
    _, stack, shared, _ = compiled_for(shared_out._stretches, capability, product, sizes, *tile[3:])
    assert shared <= MOST_SHARED[capability]
    assert not on_tensor_cores or (stack == 0 and 2 * shared > MOST_SHARED[capability]), "one program fills an SM"


@needs_nvrtc
@pytest.mark.parametrize("capability", GENERATIONS, ids=str)
def test_nvrtc_compiles_the_cuda_kernels(capability):
    for form in transpose.FORMS:
        made = nvrtc.code(transpose.SOURCE, capability, transpose.flags(form))
        assert made.cubin[1:4] == b"ELF" and f".target sm_{capability[0]}{capability[1]}" in made.ptx
    for count in chains.CHAINS:
        made = nvrtc.code(chains.SOURCE, capability, chains.flags(count))
        assert made.cubin[1:4] == b"ELF" and f'"{chains.FILE}"' in made.ptx, "a profiler finds the source by its name"


@needs_nvrtc
def test_nvrtc_says_what_is_wrong():
    with pytest.raises(nvrtc.CompileError, match='identifier "nobody" is undefined'):
        nvrtc.code('extern "C" __global__ void f(float *x) { x[0] = nobody; }', (9, 0))


@needs_nvrtc
def test_a_flag_may_name_another_architecture():
    source = 'extern "C" __global__ void f(float *x) { x[0] = 1; }'
    assert ".target sm_90a" in nvrtc.code(source, (9, 0), ("--gpu-architecture=sm_90a",)).ptx


class Driver:
    """What a launch asks of CUDA's driver, noted; a block has 227 KB of shared memory."""

    def __init__(self, monkeypatch):
        from cuda.bindings import driver

        self.asked = []
        there = {"cuModuleLoadData": "module", "cuModuleGetFunction": "function", "cuFuncGetAttribute": 1024}
        there |= {"cuDeviceGetAttribute": 227 << 10, "cuFuncSetAttribute": None, "cuLaunchKernel": None}
        for name, answer in there.items():
            monkeypatch.setattr(driver, name, self.answering(name, answer))
        stream = types.SimpleNamespace(cuda_stream=7, synchronize=lambda: None)
        for name, answer in {"current_device": 0, "get_device_capability": (9, 0), "current_stream": stream}.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
        nvrtc._loaded.cache_clear()

    def answering(self, name: str, answer: object):
        def call(*words: object) -> tuple:
            self.asked.append((name, *words))
            return (0,) if answer is None else (0, answer)

        return call


@needs_nvrtc
def test_a_block_may_ask_for_more_shared_memory_and_not_for_too_much(monkeypatch):
    driver = Driver(monkeypatch)
    source = 'extern "C" __global__ void f(float *x, int n, float y) { extern __shared__ float s[]; s[n] = x[n] * y; }'
    few = nvrtc.compiled(source, "f", (), 47 << 10)
    assert "cuFuncSetAttribute" not in [name for name, *_ in driver.asked], "up to 48 KB there is nothing to ask"
    nvrtc.compiled(source, "f", (), 200 << 10)
    (asked,) = (words for words in driver.asked if words[0] == "cuFuncSetAttribute")
    assert asked[-1] == 200 << 10 and few.more_bytes == 47 << 10
    with pytest.raises(nvrtc.TooLarge, match="f: 232,449 bytes of shared memory, and a block has 232,448"):
        nvrtc.compiled(source, "f", (), (226 << 10) + 1)
    few((3, 2), (32, 4), torch.zeros(2), 5, 0.5)
    name, _, *shape, shared, stream, (values, kinds), _ = driver.asked[-1]
    assert (name, shape, shared, stream) == ("cuLaunchKernel", [3, 2, 1, 32, 4, 1], 47 << 10, 7)
    assert values[1:] == (5, 0.5) and kinds == (ctypes.c_void_p, ctypes.c_int, ctypes.c_float)
    nvrtc._loaded.cache_clear()


@needs_nvrtc
def test_each_gpu_of_a_process_gets_code_for_its_own_compute_capability_once(monkeypatch):
    driver = Driver(monkeypatch)
    for device, capability in ((0, (9, 0)), (1, (8, 0)), (0, (9, 0)), (1, (8, 0))):
        monkeypatch.setattr(torch.cuda, "current_device", lambda device=device: device)
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda asked, own=(device, capability): dict([own])[asked]
        )
        nvrtc.compiled(chains.SOURCE, "chains", chains.flags(1))
    loaded = [words[0] for name, *words in driver.asked if name == "cuModuleLoadData"]
    assert loaded == [nvrtc.code(chains.SOURCE, one, chains.flags(1)).cubin for one in ((9, 0), (8, 0))]
    assert loaded[0] != loaded[1]
    nvrtc._loaded.cache_clear()


@needs_nvrtc
@needs_triton
def test_the_machine_code_of_few_chains_reads_more_registers(tmp_path):
    """What lab 27 says of Hopper's code: one chain keeps no operand, of two one in two does, of more nearly all do."""
    import triton

    disassembler = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    kept = {}
    for count in chains.CHAINS:
        file = tmp_path / f"{count}.cubin"
        file.write_bytes(nvrtc.code(chains.SOURCE, (9, 0), chains.flags(count)).cubin)
        told = subprocess.run([disassembler, "-c", file], capture_output=True, text=True, check=True).stdout
        steps = [line for line in told.splitlines() if "FFMA" in line]
        assert len(steps) >= chains.STEPS
        kept[count] = sum("R4.reuse, R5.reuse" in line for line in steps) / len(steps)
        registers = [[int(name) for name in re.findall(r"R(\d+)", line)[1:]] for line in steps]
        assert all(sorted(number % 2 for number in own) == [0, 0, 1] for own in registers), "two of three in one bank"
    assert kept[1] == 0 and 0.5 <= kept[2] < 0.6 and min(kept[4], kept[8]) > 0.9, kept


# --- CUDA C++ on the CPU ------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="no g++ here")


@needs_compiler
@pytest.mark.parametrize("form", transpose.FORMS)
def test_each_transpose_is_one(form, tmp_path):
    side = transpose.SIDE
    for rows, columns in ((64, 32), (70, 45), (1, 33)):
        x = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
        out = torch.full((rows, columns) if form == "copy" else (columns, rows), torch.nan)
        grid, block = (-(-columns // side), -(-rows // side)), (side, transpose.ROWS_AT_ONCE)
        cuda_on_cpu.run(
            transpose.SOURCE, "transpose", transpose.flags(form), grid, block, (x, out, rows, columns), tmp_path
        )
        assert torch.equal(out, x if form == "copy" else x.t()), (rows, columns)


@needs_compiler
@pytest.mark.parametrize("count", chains.CHAINS)
def test_chains_make_their_steps(count, tmp_path):
    out, clocks = torch.zeros(2, 32), torch.zeros(2, dtype=torch.int64)
    arguments = (out, clocks, 1.0, 1.0, 3)
    cuda_on_cpu.run(chains.SOURCE, "chains", chains.flags(count), (2, 1), (32, 1), arguments, tmp_path)
    assert torch.equal(out, chains.chains_reference(32, count, 3).expand(2, 32))
    assert chains.chains_reference(2, 2, 1).tolist() == [65.0, 67.0]  # 0 and 1, then 1 and 2, 32 steps each


# --- the benchmarks -----------------------------------------------------------------------------------------


@pytest.mark.skipif(GPU, reason="with a GPU the benchmarks run")
def test_without_a_gpu_the_benchmark_ends_in_one_sentence(tmp_path):
    file = tmp_path / "record.json"
    done = forked.run([paths.script("bench_kernels.py"), "--record", file])
    assert done.returncode == 2
    assert done.stderr.startswith("error: no GPU") and len(done.stderr.strip().splitlines()) == 1
    assert not file.exists()


def test_a_tiny_benchmark_leaves_a_whole_record(tmp_path):
    file = tmp_path / "record.json"
    done = forked.run([paths.script("bench_kernels.py"), "--tiny", "--record", file])
    assert done.returncode == 0, done.stderr
    record = json.loads(file.read_text())
    assert record["status"] == "complete" and record["dtype"] in ("bf16", "fp16")
    assert {"softmax", "attention", "few", "waves"} <= {row["what"] for row in record["rows"]}
    assert all(row["low_us"] <= row["us"] <= row["high_us"] for row in record["rows"] if "us" in row)


# --- where next: the same tile in other languages -----------------------------------------------------------


def test_each_piece_of_code_on_the_page_stands_in_its_file():
    page = (paths.ROOT / "labs" / "where_next.md").read_text()
    pieces = re.findall(r"\(`(source_code/\S+)`\):\n\n```\w+\n(.*?)```", page, re.DOTALL)
    assert len(pieces) == 4
    for file, piece in pieces:
        lines = (paths.ROOT / file).read_text().splitlines()
        at = [lines.index(line) for line in piece.splitlines() if "…" not in line]
        assert at == sorted(at), f"{file}: in another order than on the page"


@needs_triton
def test_gluons_tile_is_compiled_to_one_instruction_of_the_tensor_cores():
    gluon = pytest.importorskip("triton.experimental.gluon._runtime", reason="this Triton has no Gluon")
    import triton
    from triton.backends.compiler import GPUTarget

    kernel = script("examples/tile_gluon.py").tile
    names = kernel.arg_names
    types = {"a": "*bf16", "b": "*bf16", "c": "*bf16", "columns": "i32", "inner": "i32"}
    sizes = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
    source = gluon.GluonASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in sizes.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in types},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    assert made.metadata.shared == 2 * (128 * 64 + 64 * 128)
    assert set(matmul.MULTIPLIES.findall(made.asm["ptx"])) == {"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"}
    assert "ld.global.v4" in made.asm["ptx"], "16 bytes at a time"


def test_cutes_tile_compiles():
    pytest.importorskip("cutlass.cute", reason="nvidia-cutlass-dsl is in an environment of its own")
    assert script("examples/tile_cute.py").compiled_for_hopper() is not None


@pytest.mark.skipif(not GPU or torch.cuda.get_device_capability()[0] != 9, reason="wgmma is Hopper's")
def test_gluons_tile_is_right_on_a_hopper():
    done = subprocess.run([sys.executable, str(SOURCE_CODE / "examples" / "tile_gluon.py")], timeout=300)
    assert done.returncode == 0


@needs_nvrtc
def test_compiled_code_is_kept_for_the_next_process_until_something_changes(tmp_path, monkeypatch):
    from cuda.bindings import nvrtc as library

    header = tmp_path / "more.cuh"
    header.write_text("#define FACTOR 2\n")
    text, flags = (
        '#include "more.cuh"\nextern "C" __global__ void f(float *x) { *x *= FACTOR; }',
        (f"--include-path={tmp_path}",),
    )
    made = []
    compile_one = library.nvrtcCompileProgram
    monkeypatch.setattr(library, "nvrtcCompileProgram", lambda *words: made.append(1) or compile_one(*words))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    compiled = nvrtc.code.__wrapped__  # as another process would
    first = compiled(text, (9, 0), flags)
    assert compiled(text, (9, 0), flags) == first and len(made) == 1
    header.write_text("#define FACTOR 3\n")
    assert compiled(text, (9, 0), flags).cubin != first.cubin
    assert compiled(text, (8, 0), flags).cubin != first.cubin
    assert compiled(text, (9, 0), (*flags, "-DONE=1")) and len(made) == 4
    for file in (tmp_path / "cache").rglob("*"):
        file.is_file() and file.unlink()
    (tmp_path / "cache/nvrtc").rmdir()
    (tmp_path / "cache/nvrtc").write_text("no folder")
    assert compiled(text, (9, 0), flags) and len(made) == 5
