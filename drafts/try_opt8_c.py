#!/usr/bin/env python3
"""On a Hopper: PYTHONPATH=<new>/source_code python drafts/try_opt8.py <old source_code, of main> [stage …]

Stages, each in a process of its own with 60 s: metadata (what wgmma.sp takes), step (the A, B and metadata of
conv_backward in a minimal kernel), right-<batch> (FP64, the same arithmetic in FP64, the old kernel, a repeat), time.
The new source_code is this process's PYTHONPATH.
"""
import os, subprocess, sys, time
from pathlib import Path

BATCHES = (1024, 1000, 7, 1)
STAGES = ["metadata", "step", *(f"right-{n}" for n in BATCHES), "time"]

KERNEL = r'''
#include "HEADER"
// One warpgroup: D (64 x 96) = A (64 x 32, sparse) x B. A's registers and metadata come ready from the host; B lies in
// memory as [k][96] BF16 and is brought into shared memory as `hidden` lies: [row of 8 k][group of 8 n][8 pixels].
extern "C" __global__ void probe(const u32* a_words, const u32* metadata, const u16* b, float* d, int selector) {
    __shared__ __align__(128) char shared[4 * 12 * 128];
    const int thread = threadIdx.x;
    for (int i = thread; i < 32 * 96; i += 128) {
        const int k = i / 96, n = i % 96;
        ((u16*)shared)[((k / 8 * 12 + n / 8) * 128 + k % 8 * 16) / 2 + n % 8] = b[i];
    }
    fence_proxy_async();
    __syncthreads();
    u32 a[4];
    for (int i = 0; i < 4; i++) a[i] = a_words[4 * thread + i];
    float sum[48];
    for (int i = 0; i < 48; i++) sum[i] = 0;
    const u64 right = descriptor(shared_address(shared), 12 * 128, 128);
    const u32 m = metadata[thread];
    wgmma_fence();
    if (selector == 0)
        wgmma_sp_64x96_reg_a_trans_b(sum, a, m, right);
    else
        asm volatile("wgmma.mma_async.sp.sync.aligned.m64n96k32.f32.bf16.bf16 {" SUMS_48 "}, {%48, %49, %50, %51}, %52, "
            "%53, 1, 1, 1, 1, 1;" : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32) : REGISTERS(a), "l"(right), "r"(m));
    wgmma_commit();
    wgmma_wait<0>();
    const int row = thread / 32 * 16 + thread % 32 / 4, t = thread % 4;
    for (int i = 0; i < 48; i++) d[(row + i / 2 % 2 * 8) * 96 + i / 4 * 8 + 2 * t + i % 2] = sum[i];
}
'''
STEP = r'''
#include "BACKWARD"
// conv2's weight gradient of one step as conv_backward makes it: back and hidden come laid out from the host.
extern "C" __global__ void one_step(const uint4* back, const uint4* hidden, float* d, int step) {
    extern __shared__ __align__(128) char shared[];
    Half& my = *(Half*)shared;
    const int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP;
    for (int i = thread; i < sizeof(my.back) / 16; i += 128) ((uint4*)my.back)[i] = back[i];
    for (int i = thread; i < sizeof(my.hidden) / 16; i += 128) ((uint4*)my.hidden)[i] = hidden[i];
    fence_proxy_async();
    __syncthreads();
    const int window = lane % 4, below = lane / 4 % 2, plane = 2 * warp + lane / 8 % 2, row = 1 + lane / 16;
    const int corner = plane * BACK_PLANE + ROOM + row * SIDE + below * BACK_ODD + 2 * window;
    const u32 from = shared_address(my.back) + corner * CHUNK;
    const u64 right = descriptor(shared_address(my.hidden), ROW * CHUNK, LINE);
    float sums[3][48];
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 48; k++) sums[i][k] = 0;
    u32 a[CORES][4], metadata[CORES];
#pragma unroll
    for (int k = 0; k < CORES; k++) {
        const u32 even = from + (2 * step * SIDE + CORE_PIXELS * k) * CHUNK;
        compress(a[k], metadata[k], even, even + CHUNK);
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < CORES; k++)
#pragma unroll
        for (int column = 0; column < 3; column++)
            wgmma_sp_64x96_reg_a_trans_b(sums[column], a[k], metadata[k], right + step * 4 * ROW + CORE_PIXELS * k + column);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int c = 0; c < 3; c++)
#pragma unroll
        for (int i = 0; i < 48; i++)
            d[(c * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8) * 96 + i / 4 * 8 + 2 * (lane % 4) + i % 2] = sums[c][i];
}
'''


def metadata():
    """Which of several readings of the metadata's layout gives the dense product."""
    import numpy as np, torch
    from labkit.kernels import hopper, nvrtc
    kernel = nvrtc.compiled(KERNEL.replace("HEADER", str(hopper.FOLDER / "hopper.cuh")), "probe", hopper.flags(False))
    rng = np.random.default_rng(3)
    dense = np.zeros((64, 8, 4)); places = np.zeros((64, 8, 2), int)
    for r in range(64):
        for c in range(8):
            pick = rng.integers(0, 2), 2 + rng.integers(0, 2)
            places[r, c] = pick
            dense[r, c, list(pick)] = rng.integers(1, 8, 2)
    two = np.take_along_axis(dense, places, 2)
    b = rng.integers(-8, 8, (32, 96)).astype(float)
    wanted = dense.reshape(64, 32) @ b
    lanes = np.arange(128)
    row = lambda h: lanes // 32 * 16 + lanes % 32 // 4 + 8 * h
    t = lanes % 4
    chunk = {"a1, a3: rows + 8 (as dense A)": lambda i: (row(i % 2), t + 4 * (i // 2)),
             "a2, a3: rows + 8": lambda i: (row(i // 2), t + 4 * (i % 2)),
             "chunks 2t, 2t + 1": lambda i: (row(i % 2), 2 * t + i // 2)}
    nibble = places[..., 0] | places[..., 1] << 2
    swapped = places[..., 1] | places[..., 0] << 2

    def half(r, first, n, back=False):  # 16 bits of row r, chunks first … first + 3
        order = range(3, -1, -1) if back else range(4)
        return sum(n[r, first + c].astype(np.uint32) << np.uint32(4 * i) for i, c in enumerate(order))

    low, high = row(0), row(1)
    k0, k1 = 0 * t, 4 + 0 * t
    odd, second = t & 1, t >> 1
    join = lambda x, y: (x | y << np.uint32(16)).astype(np.uint32)
    meta = {
        "thread t&1 = half of K; halves of the word = rows g, g + 8 (PTX ISA; the kernel's)":
            join(half(low, 4 * odd, nibble), half(high, 4 * odd, nibble)),
        "thread t&1 = rows g, g + 8; halves of the word = halves of K":
            join(half(np.where(odd, high, low), k0, nibble), half(np.where(odd, high, low), k1, nibble)),
        "thread t>>1 = half of K; halves of the word = rows":
            join(half(low, 4 * second, nibble), half(high, 4 * second, nibble)),
        "thread t>>1 = rows; halves of the word = halves of K":
            join(half(np.where(second, high, low), k0, nibble), half(np.where(second, high, low), k1, nibble)),
        "as the kernel's, chunks in the other order": join(half(low, 4 * odd, nibble, True), half(high, 4 * odd, nibble, True)),
        "as the kernel's, larger place first": join(half(low, 4 * odd, swapped), half(high, 4 * odd, swapped)),
        "as the kernel's, rows swapped": join(half(high, 4 * odd, nibble), half(low, 4 * odd, nibble)),
    }
    device = lambda x, kind: torch.from_numpy(np.ascontiguousarray(x)).to("cuda").to(kind) if kind else torch.from_numpy(np.ascontiguousarray(x)).cuda()
    bf = device(b, torch.bfloat16).contiguous()
    found = []
    for a_name, place in chunk.items():
        a = np.stack([two[place(i)[0], place(i)[1]] for i in range(4)], 1)      # 128, 4, 2
        a = device(a, torch.bfloat16).contiguous()
        for name, words in meta.items():
            for selector in (0, 1):
                d = torch.zeros(64, 96, device="cuda")
                kernel((1, 1), (128, 1), a, device(words.astype(np.uint32).view(np.int32), None), bf, d, selector)
                torch.cuda.synchronize()
                right = int((d.cpu().numpy() == wanted).sum())
                if right == wanted.size:
                    found.append((a_name, name, selector))
                elif a_name.startswith("a1"):
                    print(f"   {right / wanted.size:6.1%} equal  selector {selector}  {name}")
    for a_name, name, selector in found:
        print(f"   RIGHT  selector {selector}  {name}  | A: {a_name}")
    ok = any(a.startswith("a1") and "(PTX ISA" in n and s == 0 for a, n, s in found)
    print("   the kernel's reading is", "right" if ok else "WRONG")
    return ok


def step():
    import numpy as np, torch
    from labkit.kernels import hopper, nvrtc
    kernel = nvrtc.compiled(STEP.replace("BACKWARD", str(hopper.FILES["conv_backward"])), "one_step", hopper.flags(False), 90_000)
    rng = np.random.default_rng(4)
    out = np.zeros((14, 24, 64)); win = rng.integers(0, 5, (7, 12, 64)); value = rng.integers(-4, 5, (7, 12, 64))
    for p in range(4):
        out[p // 2::2, p % 2::2] = value * (win == p)
    hidden = rng.integers(0, 5, (14, 26, 32)).astype(float)
    PLANE, ODD, ROOM = 427, 209, 8
    back = np.zeros((8 * PLANE, 8)); hid = np.zeros((15 * 4 * 26, 8))
    for y in range(14):
        for x in range(24):
            for plane in range(8):
                back[plane * PLANE + ROOM + (1 + y // 2) * 26 + y % 2 * ODD + x] = out[y, x, 8 * plane:8 * plane + 8]
    for y in range(14):
        for plane in range(4):
            hid[(y * 4 + plane) * 26:][:26] = hidden[y, :, 8 * plane:8 * plane + 8]
    to = lambda x: torch.from_numpy(x).cuda().bfloat16().contiguous()
    ok = True
    for s in range(3):
        d = torch.zeros(3, 64, 96, device="cuda")
        kernel((1, 1), (128, 1), to(back), to(hid), d, s)
        torch.cuda.synchronize()
        for c in range(3):
            wanted = np.concatenate([np.einsum("ijo,ijc->oc", out[4 * s:4 * s + 4], hidden[4 * s + y:4 * s + y + 4, c:c + 24]) for y in range(3)], 1)
            same = (d[c].cpu().numpy() == wanted).mean()
            ok &= same == 1
            print(f"   step {s} column {c}: {same:.1%} equal")
    return ok


ORDER = ("conv2.weight", "conv2.bias", "conv1.weight", "conv1.bias")


def batch(n, seed=5):
    """As tests/long/test_hopper.py's Case, with dropout's winners."""
    import torch
    from labkit.kernels.hopper import conv_forward
    from labkit.kernels.weights import Weights
    from labkit.training import data
    from labkit.training.model import Net
    torch.manual_seed(seed)
    try:
        digits = data.read_mnist(Path(os.environ["LAB_DATA_DIR"])) if os.environ.get("LAB_DATA_DIR") else data.read_bundled()
        images = digits.train.data.cuda()
    except Exception as no:  # no digits here: noise, most of it dark
        print("   no digits:", no)
        images = (torch.randint(0, 256, (5000, 28, 28)) * (torch.rand(5000, 28, 28) < 0.2)).to(torch.uint8).cuda()
    order = torch.randperm(len(images))[:n].cuda()
    weights = Weights(Net().cuda())
    upstream = torch.randn(n, 12, 12, 64).cuda().bfloat16()
    seeds = torch.randint(2**62, (2,)).cuda()
    _, winner = conv_forward(images, order, weights, seeds)
    return images, order, weights, upstream, winner


def old_backward(folder):
    """conv_backward of another source_code: its kernel's text and sizes, this process's call."""
    import re
    from labkit.kernels import hopper, nvrtc
    kernels = Path(folder) / "labkit/kernels"
    py = (kernels / "hopper.py").read_text()
    size = int(re.search(r"FORWARD_BYTES, BACKWARD_BYTES = [\d_]+, ([\d_]+)", py)[1])
    flags = tuple(f.replace(str(hopper.FOLDER), str(kernels)) for f in hopper.flags(False))
    kernel = nvrtc.compiled(nvrtc.source(kernels / "hopper_backward.cu"), "conv_backward", flags, size)

    def call(images, order, weights, upstream, winner, kept):
        value, copy, gradient = weights.values, weights.copies, weights.gradients
        out = [gradient[name] for name in ORDER]
        n = len(order)
        blocks = min(n, hopper._multiprocessors(images.device.index))
        kernel((blocks, 1), (512, 1), images, order, value["conv1.weight"], value["conv1.bias"], copy["conv2.weight"],
               upstream, winner, *out, n, 1 / kept)
    return call


def relative(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def right(n, folder):
    import torch
    import torch.nn.functional as F
    from labkit.kernels.conv1 import conv1_relu_reference
    from labkit.kernels.conv2 import conv1_gradient_reference, conv2_weight_gradient_reference, spread_reference
    from labkit.kernels.hopper import conv_backward
    from labkit.training import data
    images, order, weights, upstream, winner = batch(n)
    kept = 0.75
    value, copy = weights.values, weights.copies
    w1, b1 = value["conv1.weight"], value["conv1.bias"]
    w2 = copy["conv2.weight"].double()
    exact = conv1_relu_reference(images, order, w1.double(), b1.double())
    fp64 = [*conv2_weight_gradient_reference(exact, upstream.double(), winner, kept),
            *conv1_gradient_reference(images, order, exact, upstream.double(), winner, w2, kept)]
    # The same arithmetic: rounded where the kernels round (tests/long/test_hopper.py)
    scale = 1 / (255 * torch.tensor(data.STD)); shift = -torch.tensor(data.MEAN) / torch.tensor(data.STD)
    bias = b1.float() + shift.to(b1) * w1.float().sum((1, 2, 3)); upper = bias.bfloat16().float()
    both = upper.double() + (bias - upper).bfloat16().double()
    h = F.conv2d(images[order].unsqueeze(1).double(), (w1.float() * scale.to(w1)).bfloat16().double()) + both.view(1, -1, 1, 1)
    h = F.relu(h).bfloat16().double().permute(0, 2, 3, 1).contiguous()
    out = spread_reference(upstream.double(), winner, 1.0).permute(0, 3, 1, 2)
    below = F.conv_transpose2d(out, w2.permute(0, 3, 1, 2)) * (h.permute(0, 3, 1, 2) > 0)
    below = below.bfloat16().double() / kept
    pixels = data.normalise(images[order].double())
    taps = [(below * pixels[..., y:y + 26, x:x + 26]).sum((0, 2, 3)) for y in range(3) for x in range(3)]
    same = [*conv2_weight_gradient_reference(h, upstream.double(), winner, kept), torch.stack(taps, 1).view(32, 1, 3, 3), below.sum((0, 2, 3))]

    def run(call):
        weights.flat_gradients.zero_()
        call(images, order, weights, upstream, winner, kept)
        torch.cuda.synchronize()
        return [weights.gradients[name].clone() for name in ORDER]

    new, again, old = run(conv_backward), run(conv_backward), run(old_backward(folder))
    bounds = (5e-3, 1e-5, 8e-2, 8e-2)
    ok = True
    print(f"   batch {n}: relative errors   FP64 (bound)   same arithmetic (1e-4)   against old   repeat")
    for i, name in enumerate(ORDER):
        errors = [relative(new[i], other) for other in (fp64[i].view_as(new[i]), same[i].view_as(new[i]), old[i], again[i])]
        good = errors[0] < bounds[i] and errors[1] < 1e-4
        ok &= good
        print(f"   {name:13} {errors[0]:9.1e} ({bounds[i]:.0e})  {errors[1]:9.1e}   {errors[2]:9.1e}   {errors[3]:9.1e}  {'ok' if good else 'WRONG'}"
              f"   old: {relative(old[i], fp64[i].view_as(old[i])):.1e} {relative(old[i], same[i].view_as(old[i])):.1e}")
    return ok


def timed(folder):
    import statistics, torch
    from labkit.kernels.hopper import conv_backward
    old = old_backward(folder)
    print("  ", torch.cuda.get_device_name())
    for n in BATCHES[:2]:
        arguments = (*batch(n), 0.75)
        graphs = {}
        for name, call in (("old", old), ("new", conv_backward)):
            call(*arguments); torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(20):
                    call(*arguments)
            graphs[name] = graph
        found = {name: [] for name in graphs}
        for name in graphs:
            for _ in range(5): graphs[name].replay()
        for _ in range(20):                      # old and new by turns: the same clock for both
            for name, graph in graphs.items():
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record(); graph.replay(); end.record(); end.synchronize()
                found[name].append(begin.elapsed_time(end) * 1000 / 20)
        middle = {name: statistics.median(times) for name, times in found.items()}
        print(f"   batch {n}: old {middle['old']:.1f} us, new {middle['new']:.1f} us ({middle['new'] - middle['old']:+.1f});"
              f" least {min(found['old']):.1f}, {min(found['new']):.1f}")
    return True


def main():
    folder = sys.argv[1]
    if len(sys.argv) == 4 and sys.argv[2] == "--one":
        stage = sys.argv[3]
        ok = metadata() if stage == "metadata" else step() if stage == "step" else timed(folder) if stage == "time" else right(int(stage[6:]), folder)
        sys.exit(0 if ok else 3)
    results = {}
    for stage in sys.argv[2:] or STAGES:
        print(f"== {stage}", flush=True)
        begin = time.time()
        try:
            status = subprocess.run([sys.executable, __file__, folder, "--one", stage], timeout=60).returncode
        except subprocess.TimeoutExpired:
            status = "60 s are over: hangs"
        results[stage] = "ok" if status == 0 else "WRONG" if status == 3 else f"failed ({status})"
        print(f"   -> {results[stage]}, {time.time() - begin:.0f} s", flush=True)
    print("\n".join(["", "stage          result", *(f"{k:14} {v}" for k, v in results.items())]))


main()
