"""Benchmark: kernels of our own beside the libraries': softmax, attention, few tiles, chains, transposes (labs 26, 27).

What is compared takes turns, but for attention's choices: a round has each way once, and a time is the median of the
rounds' medians. Each result is compared with FP64 before it is timed; ours keep the bound that their modules state.
"""

import importlib
import importlib.util
import os
import tempfile
import time
from functools import cache, partial
from unittest import mock

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from labkit.display.spread import Spread
from labkit.kernels import attention, chains, matmul, shared_out, softmax, transpose
from labkit.training import steps
from labkit.training.clock import gpu_times, stopwatch
from labkit.training.devices import reduced_precision

ROUNDS, REPEATS = 5, 7  # rounds of all ways in turn, repeats of each in a round
# Ways that round elsewhere than ours.
LIBRARIES = ("operators", "torch", "compiled", "naive", "flash", "cudnn", "flash 3", "cublas")
FULL = {
    "columns": (256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    "numbers": 2**28,  # of a softmax: in 16 bits ten times what an L2 cache holds
    "lengths": (512, 1024, 2048, 4096, 8192),
    "tokens": 16384,
    "heads": 16,
    "width": 64,
    "tuned": 4096,  # the length for which attention is tuned
    # (rows, columns, inner): a few tiles and a long way to walk; the last is fc1's product of this course's network
    "few": ((128, 128, 16384), (256, 256, 16384), (512, 512, 8192), (1024, 128, 9216)),
    "splits": (2, 4, 8, 16, 32),
    "inner": 4096,  # of the products with more and more tiles
    "waves": 2.5,  # how often their tiles fill the GPU at most
    "warps": (1, 2, 4, 8, 16, 32, 64),
    "rounds": 2000,
    "side": 8192,  # of the matrix that is transposed
}
TINY = {
    "columns": (5, 32), "numbers": 64, "lengths": (32,), "tokens": 64, "heads": 2, "width": 16, "tuned": 32,
    "few": ((32, 32, 64),), "splits": (2,), "inner": 32, "waves": 1.0, "warps": (1, 2), "rounds": 10, "side": 64,
}  # fmt: skip


def in_turn(ways, device, calls=1):
    """µs of each way: median, lowest and highest of the rounds."""
    found = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, work in ways.items():
            if device.type == "cuda":
                seconds = gpu_times(work, REPEATS, calls)
            else:
                with stopwatch() as seconds:
                    work()
            found[name].append(1e6 * Spread.of(seconds).median)
    spreads = {name: Spread.of(us) for name, us in found.items()}
    return {
        name: {"us": own.median, "low_us": own.low, "high_us": own.high, "rounds": own.n}
        for name, own in spreads.items()
    }


def checked(name, result, exact, bound):
    """The largest error as a share of the bound; AssertionError where it exceeds that and the kernel is ours."""
    error = ((result.double() - exact).abs() / bound).max().item()
    assert error <= 1 or name in LIBRARIES, f"{name} is {error} times as far off as its bound"
    return error


def takes(kernel):
    """What a compiled Triton kernel takes of a multiprocessor; nothing where it was interpreted, or not compiled."""
    if not hasattr(kernel, "n_regs"):
        return {}
    shared_bytes = kernel.metadata.shared
    return {"registers": kernel.n_regs, "spilled_bytes": kernel.n_spills, "shared_bytes": shared_bytes}


def operators(x):
    """Softmax as one writes it down: a kernel an operator."""
    power = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return power / power.sum(dim=-1, keepdim=True)


def softmaxes(sizes, device, dtype):
    """A row a width and way; the compiler's way also says how long it compiled."""
    for columns in sizes["columns"]:
        x = torch.randn(sizes["numbers"] // columns, columns, device=device).to(dtype)
        torch.compiler.reset()
        compiled = torch.compile(softmax.softmax_reference, dynamic=False, disable=device.type == "cpu")
        with stopwatch(torch.cuda.synchronize if device.type == "cuda" else lambda: None) as compile_s:
            compiled(x)
        ways = {
            "operators": partial(operators, x),
            "torch": partial(softmax.softmax_reference, x),
            "compiled": partial(compiled, x),
            "triton": partial(softmax.softmax, x),
            "pieces": partial(softmax.softmax, x, in_pieces=True),
        }
        few = x[:512]
        exact, bound = torch.softmax(few.double(), dim=-1), softmax.error_bound(few)
        own = {name: {"error_of_bound": checked(name, work()[:512], exact, bound)} for name, work in ways.items()}
        own["compiled"]["compile_s"] = compile_s[0]
        if device.type == "cuda":
            own["triton"] |= takes(softmax.launch(x, torch.empty_like(x)))
        for name, timed in in_turn(ways, device).items():
            yield {"what": "softmax", "way": name, "rows": len(x), "columns": columns} | own.get(name, {}) | timed


def attention_inputs(sizes, length, device, dtype):
    shape = (max(1, sizes["tokens"] // length), sizes["heads"], length, sizes["width"])
    return torch.randn(3, *shape, device=device).to(dtype)


def tuning(sizes, device, dtype):
    """A row for each choice of attention's space: what it took to compile, to try, and how fast it is.

    Nothing is compiled beforehand: the cache is an empty folder.
    """
    q, k, v = attention_inputs(sizes, sizes["tuned"], device, dtype)
    out = torch.empty_like(q)
    with tempfile.TemporaryDirectory() as empty, mock.patch.dict(os.environ, TRITON_CACHE_DIR=empty):
        for choice in attention.SPACE:
            row = {"what": "tuning", "length": sizes["tuned"], "choice": list(choice)}
            start = time.perf_counter()
            try:
                kernel = attention.launch(q, k, v, out, True, choice)
                torch.cuda.synchronize()
            except attention.OutOfResources as refused:
                yield row | {"refused": str(refused).splitlines()[0][:200]}
                continue
            compile_s = time.perf_counter() - start
            start = time.perf_counter()
            work = partial(attention.launch, q, k, v, out, True, choice)
            timed = in_turn({"triton": work}, device)["triton"]
            own = {"compile_s": compile_s, "try_s": time.perf_counter() - start}
            yield row | own | takes(kernel) | timed
        with stopwatch(torch.cuda.synchronize) as seconds:
            attention.attention(q, k, v, True)
    yield {"what": "autotune", "length": sizes["tuned"], "try_s": seconds[0], "choice": list(attention.chosen())}


def by_torch(backend, q, k, v, causal):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


@cache
def flash_attention_3():
    """Its function, from one of its packages: whole, or with the forward pass alone. RuntimeError without either."""
    for package in ("flash_attn_interface", "fa3_fwd_interface"):
        if importlib.util.find_spec(package):
            return importlib.import_module(package).flash_attn_func
    raise RuntimeError("FlashAttention-3 is not installed")


def by_flash_attention_3(q, k, v, causal):
    """FlashAttention-3 counts a place's heads after the places; views of the same memory will do."""
    return flash_attention_3()(*(one.transpose(1, 2) for one in (q, k, v)), causal=causal).transpose(1, 2)


def attentions(sizes, device, dtype, choice):
    """A row a length, direction and way, with the memory that it takes beside its inputs."""
    for length in sizes["lengths"]:
        q, k, v = attention_inputs(sizes, length, device, dtype)
        for causal in (False, True):
            ways = {
                "naive": partial(attention.attention_reference, q, k, v, causal),
                "flash": partial(by_torch, SDPBackend.FLASH_ATTENTION, q, k, v, causal),
                "cudnn": partial(by_torch, SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
                "flash 3": partial(by_flash_attention_3, q, k, v, causal),
                "triton": partial(attention.attention, q, k, v, causal, choice),
            }
            first = [one[:1, :1] for one in (q, k, v)]
            exact = attention.attention_reference(*(one.double() for one in first), causal)
            bound = attention.error_bound(*first, causal)
            row = {"what": "attention", "batch": q.shape[0], "heads": q.shape[1], "length": length}
            row |= {"width": q.shape[3], "causal": causal}
            own = {}
            for name, work in list(ways.items()):
                try:
                    if device.type == "cuda":
                        torch.cuda.reset_peak_memory_stats()
                        before = torch.cuda.memory_allocated()
                    result = work()
                    more = {}
                    if device.type == "cuda":
                        more["extra_bytes"] = torch.cuda.max_memory_allocated() - before
                except RuntimeError as refused:  # no such kernel here, or too little memory
                    ways.pop(name)
                    yield row | {"way": name, "refused": str(refused).strip().splitlines()[0][:200]}
                    continue
                own[name] = {"error_of_bound": checked(name, result[:1, :1], exact, bound)} | more
                del result
            for name, timed in in_turn(ways, device, calls=2).items():
                yield row | {"way": name} | own[name] | timed


def product_ways(a, b, schedules, tile):
    """Each schedule of ``shared_out``, and cuBLAS; with the error of each as a share of a bound."""
    ways = {name: partial(shared_out.shared_out, a, b, programs, tile) for name, programs in schedules.items()}
    ways["cublas"] = partial(torch.mm, a, b)
    exact, bound = a.double() @ b.double(), matmul.error_bound(a, b)
    return ways, {name: {"error_of_bound": checked(name, work(), exact, bound)} for name, work in ways.items()}


def fitting_tile(device, dtype):
    """The large tile, or the small one where a multiprocessor has too little shared memory for it."""
    if device.type == "cpu":
        return shared_out.TILE
    a, b = torch.zeros(2, 128, 128, device=device, dtype=dtype)
    try:
        shared_out.shared_out(a, b, None, shared_out.TILE)
    except attention.OutOfResources:
        return shared_out.SMALL_TILE
    return shared_out.TILE


def few_tiles(sizes, device, dtype, sms, tile):
    """A row a product and schedule: a tile a program, the inner dimension split, equal stretches, cuBLAS."""
    for m, n, k in sizes["few"]:
        a, b = torch.randn(m, k, device=device).to(dtype), torch.randn(k, n, device=device).to(dtype)
        count = shared_out.tiles(m, n, tile)
        schedules = {"a tile each": count} | {f"split in {s}": count * s for s in sizes["splits"]}
        schedules["stream"] = sms
        ways, own = product_ways(a, b, schedules, tile)
        row = {"what": "few", "rows": m, "columns": n, "inner": k, "tiles": count}
        for name, timed in in_turn(ways, device, calls=10).items():
            yield row | {"way": name, "programs": schedules.get(name)} | own[name] | timed


def waves(sizes, device, dtype, sms, tile):
    """A row a number of tiles and schedule: columns for some, rows for more and more."""
    across = max(one for one in range(1, int(sms**0.5) + 1) if sms % one == 0)  # so that some number fills the GPU
    for down in range(1, int(sizes["waves"] * sms / across) + 1):
        m, n, k = tile[0] * down, tile[1] * across, sizes["inner"]
        a, b = torch.randn(m, k, device=device).to(dtype), torch.randn(k, n, device=device).to(dtype)
        ways, own = product_ways(a, b, {"a tile each": down * across, "stream": sms}, tile)
        row = {"what": "waves", "rows": m, "columns": n, "inner": k, "tiles": down * across}
        for name, timed in in_turn(ways, device, calls=10).items():
            yield row | {"way": name} | own[name] | timed


def chain_rows(sizes, device, sms):
    """A row a number of warps and of chains: multiply-adds a clock and multiprocessor, and how long a step takes."""
    limit = torch.cuda.get_device_properties(device).max_threads_per_multi_processor // 32
    rounds = sizes["rounds"]
    for warps in (one for one in sizes["warps"] if one <= limit):
        threads = 32 * warps * sms
        out = torch.empty(threads, device=device)
        clocks = torch.zeros(sms * 2, dtype=torch.int64, device=device)
        ways = {n: partial(chains.launch, out, clocks, n, warps, rounds) for n in chains.CHAINS}
        each = 32 * warps // -(-32 * warps // chains.MOST_THREADS)
        own = {}
        for count, work in ways.items():
            kernel = work()
            exact = chains.chains_reference(each, count, rounds).repeat(threads // each)
            assert torch.equal(out.cpu(), exact), f"{count} chains of {warps} warps add up to something else"
            own[count] = {"registers": kernel.registers, "clocks": clocks[:sms].double().median().item()}
        for count, timed in in_turn(ways, device).items():
            per_clock = 32 * warps * rounds * chains.STEPS / own[count]["clocks"]
            row = {"what": "chains", "warps": warps, "chains": count, "steps": rounds * chains.STEPS // count}
            yield row | own[count] | {"per_clock": per_clock} | timed


def transposes(sizes, device):
    """A row a form: the same matrix, of which one form only makes a copy."""
    x = torch.randn(sizes["side"], sizes["side"], device=device)
    out = torch.empty_like(x)
    kernels = {form: transpose.launch(x, out, form) for form in transpose.FORMS}
    for form in transpose.FORMS:
        assert torch.equal(transpose.transpose(x, form), x if form == "copy" else x.t()), form
    odd = torch.randn(97, 1030, device=device)
    for form in transpose.FORMS:
        assert torch.equal(transpose.transpose(odd, form), odd if form == "copy" else odd.t()), f"{form}, at its edges"
    ways = {form: partial(transpose.launch, x, out, form) for form in transpose.FORMS}
    for form, timed in in_turn(ways, device).items():
        kernel = kernels[form]
        row = {"what": "transpose", "form": form, "side": len(x), "bytes": 2 * x.nbytes}
        yield row | {"registers": kernel.registers, "shared_bytes": kernel.shared_bytes} | timed


def measure(sizes, device, dtype, parts):
    """All rows, part by part; what needs a GPU is left out without one."""
    cuda = device.type == "cuda"
    sms = torch.cuda.get_device_properties(device).multi_processor_count if cuda else 4
    choice = None
    if "softmax" in parts:
        yield from softmaxes(sizes, device, dtype)
    if "attention" in parts:
        tried = list(tuning(sizes, device, dtype)) if cuda else []
        yield from tried
        if times := [row for row in tried if "us" in row]:
            choice = tuple(min(times, key=lambda row: row["us"])["choice"])
        yield from attentions(sizes, device, dtype, choice)
    if "products" in parts:
        tile = fitting_tile(device, dtype)
        yield from few_tiles(sizes, device, dtype, sms, tile)
        yield from waves(sizes, device, dtype, sms, tile)
    if "inside" in parts and cuda:
        yield from chain_rows(sizes, device, sms)
        yield from transposes(sizes, device)


PARTS = ("softmax", "attention", "products", "inside")


def told(row):
    """A row on a line."""
    return " ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
    )


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes, on a CPU too: to try it")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these (default: all)")
    args = parser.parse_args()
    device = steps.pick_device("auto") if args.tiny else steps.need_gpu()
    steps.set_fp32_precision(False)
    torch.manual_seed(1)
    dtype = getattr(torch, reduced_precision())
    sizes, rows = TINY if args.tiny else FULL, []
    begun = time.perf_counter()
    for row in measure(sizes, device, dtype, args.parts):
        rows.append(row)
        print(told(row), flush=True)
    print(f"{len(rows)} rows in {time.perf_counter() - begun:.0f} s")
    sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else None
    narrow = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    steps.write_benchmark_record(args, device, rows, dtype=narrow, multiprocessors=sms, tile=list(shared_out.TILE))


if __name__ == "__main__":
    main()
