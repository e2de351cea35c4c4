#!/usr/bin/env python3
"""conv_backward on a Hopper, an old version against new ones: is it right, how long does it take, and where.

    PYTHONPATH=<new>/source_code LAB_DATA_DIR=<MNIST> python3 try_back.py <old source_code> [<source_code> ...]

Without further ones the new version is the PYTHONPATH's. One folder a commit, oldest first, shows what each gains:

    for c in $(git rev-list --reverse <old>..<new>); do git archive --prefix=$c/ $c source_code | tar x -C tries; done

Stages, each in a process of its own with 60 s:
    right-<batch>  against FP64, the same arithmetic in FP64, the old kernel, and a repeat
    time           all versions by turns, in graphs of 20 launches
    phases         built with -DTIMED: which warpgroup of block 0 waits where, in clocks
    without        the newest version without one of its parts (its results are wrong): what that part really costs
Name stages behind `--only` to run but these.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCHES = (1024, 1000, 7, 1)
STAGES = [*(f"right-{n}" for n in BATCHES), "time", "phases", "without"]
ORDER = ("conv2.weight", "conv2.bias", "conv1.weight", "conv1.bias")
KEPT = 0.75
ROLES = ("conv2's weights", "hidden gradient, half 0", "hidden gradient, half 1", "makers")
ROUNDS, MARKS = 8, 10  # as in the kernel

# What is left out, and by which edits; (file, pattern, replacement), each of which must be found.
CU, CUH = "hopper_backward.cu", "hopper.cuh"
NOTHING = r"\g<0> return;"
WITHOUT = {
    "conv2's weight products": [(CUH, r"PTX void wgmma_sp_64x96_reg_a_trans_b\([^{]*\{", NOTHING)],
    "hidden gradient's products": [(CUH, r"PTX void wgmma_64x\d+_trans_a\([^{]*\{", NOTHING)],
    "both": [
        (CUH, r"PTX void wgmma_sp_64x96_reg_a_trans_b\([^{]*\{", NOTHING),
        (CUH, r"PTX void wgmma_64x\d+_trans_a\([^{]*\{", NOTHING),
    ],
    "columns side by side (every core matrix begins where its row does)": [
        (CU, r"CORE_PIXELS \* k \+ column\)", "CORE_PIXELS * k)"),
        (CU, r"row / 2 \* SIDE - column", "row / 2 * SIDE"),
    ],
    "that, and planes and rows at multiples of 128 bytes": [
        (CU, r"CORE_PIXELS \* k \+ column\)", "CORE_PIXELS * k)"),
        (CU, r"row / 2 \* SIDE - column", "row / 2 / 8 * 8"),
        (CU, r"BACK_ODD = 8 \* SIDE \+ 1;", "BACK_ODD = 8 * SIDE;"),
        (CU, r"BACK_PLANE = ROOM \+ 2 \* BACK_ODD \+ 1;", "BACK_PLANE = ROOM + 2 * BACK_ODD;"),
        (CU, r"half \* SEEN_AGAIN;", "half * 16;"),
        (
            CU,
            r"descriptor\(shared_address\(my\.hidden\), ROW \* CHUNK, LINE\)",
            "descriptor(shared_address(my.hidden), ROW * CHUNK, 24 * CHUNK)",
        ),
    ],
    "spread": [(CU, r"PTX void spread\([^{]*\{", NOTHING)],
    "conv1 made anew": [(CU, r"turn < \w+;", "turn < 0;")],
    "spread, conv1": [(CU, r"PTX void spread\([^{]*\{", NOTHING), (CU, r"turn < \w+;", "turn < 0;")],
    "ReLU's bits": [(CU, r"PTX void let_through\([^{]*\{", NOTHING)],
    "conv1's weight products, packing": [(CU, r"PTX void conv1_gradient\([^{]*\{", NOTHING)],
    "compress": [
        (
            CU,
            r"PTX void compress\([^{]*\{",
            NOTHING.replace("return;", "for (int i = 0; i < 4; i++) a[i] = 0; metadata = 0x44444444; return;"),
        )
    ],
    "adding to memory": [(CU, r"i < FOURS; i \+= THREADS", "i < 0; i += THREADS")],
}


class Version:
    """conv_backward of some source_code: its kernel's text and sizes, this process's call."""

    def __init__(self, folder, edits=(), flags=()):
        from labkit.kernels import hopper

        kernels = Path(folder) / "labkit/kernels"
        self.name, python = Path(folder), (kernels / "hopper.py").read_text()
        self.bytes = int(re.search(r"FORWARD_BYTES, BACKWARD_BYTES = [\d_]+, ([\d_]+)", python)[1])
        self.threads = int(re.search(r"FORWARD_THREADS, BACKWARD_THREADS = \d+, (\d+)", python)[1])
        if edits:
            copy = Path(tempfile.mkdtemp()) / "kernels"
            shutil.copytree(kernels, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
            for file, pattern, replacement in edits:
                text, count = re.subn(pattern, replacement, (copy / file).read_text())
                if not count:
                    raise LookupError(f"{pattern} is not in {file}")
                (copy / file).write_text(text)
            kernels = copy
        self.kernels = kernels
        self.flags = (*(f.replace(str(hopper.FOLDER), str(kernels)) for f in hopper.flags(False)), *flags)
        self.text = (kernels / CU).read_text()

    def kernel(self):
        from labkit.kernels import nvrtc

        return nvrtc.compiled(nvrtc.source(self.kernels / CU), "conv_backward", self.flags, self.bytes)

    def module(self):
        """The module, for its variables, and the kernel in it."""
        import torch
        from cuda.bindings import driver

        from labkit.kernels import nvrtc

        made = nvrtc.code(nvrtc.source(self.kernels / CU), (9, 0), self.flags)
        torch.cuda.current_stream().synchronize()
        module = nvrtc._held(driver.cuModuleLoadData(made.cubin))
        function = nvrtc._held(driver.cuModuleGetFunction(module, b"conv_backward"))
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        nvrtc._held(driver.cuFuncSetAttribute(function, most, self.bytes))
        return module, nvrtc.Kernel(function, 0, 0, self.bytes)

    def call(self, images, order, weights, upstream, winner, kernel=None):
        from labkit.kernels import hopper

        kernel = kernel or self.kernel()
        value, copy, gradient = weights.values, weights.copies, weights.gradients
        out = [gradient[name] for name in ORDER]
        blocks = min(len(order), hopper._multiprocessors(images.device.index))
        first = value["conv1.weight"], value["conv1.bias"]
        kernel((blocks, 1), (self.threads, 1), images, order, *first, copy["conv2.weight"], upstream, winner, *out,
            len(order), 1 / KEPT)  # fmt: skip


def batch(n, seed=5):
    """As tests/long/test_hopper.py's Case, with dropout's winners."""
    import torch

    from labkit.kernels.hopper import conv_forward
    from labkit.kernels.weights import Weights
    from labkit.training import data
    from labkit.training.model import Net

    torch.manual_seed(seed)
    images = data.read_mnist(Path(os.environ["LAB_DATA_DIR"])).train.data.cuda()
    order = torch.randperm(len(images))[:n].cuda()
    weights = Weights(Net().cuda())
    upstream = torch.randn(n, 12, 12, 64).cuda().bfloat16()
    seeds = torch.randint(2**62, (2,)).cuda()
    _, winner = conv_forward(images, order, weights, seeds)
    return images, order, weights, upstream, winner


def relative(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def references(images, order, weights, upstream, winner):
    """In ORDER: by FP64, and rounded where the kernels round (tests/long/test_hopper.py)."""
    import torch
    import torch.nn.functional as F

    from labkit.kernels.conv1 import conv1_relu_reference
    from labkit.kernels.conv2 import conv1_gradient_reference, conv2_weight_gradient_reference, spread_reference
    from labkit.training import data

    value, copy = weights.values, weights.copies
    w1, b1, w2 = value["conv1.weight"], value["conv1.bias"], copy["conv2.weight"].double()
    exact = conv1_relu_reference(images, order, w1.double(), b1.double())
    fp64 = [
        *conv2_weight_gradient_reference(exact, upstream.double(), winner, KEPT),
        *conv1_gradient_reference(images, order, exact, upstream.double(), winner, w2, KEPT),
    ]
    scale, shift = 1 / (255 * torch.tensor(data.STD)), -torch.tensor(data.MEAN) / torch.tensor(data.STD)
    bias = b1.float() + shift.to(b1) * w1.float().sum((1, 2, 3))
    upper = bias.bfloat16().float()
    both = upper.double() + (bias - upper).bfloat16().double()
    pixels = images[order].unsqueeze(1).double()
    hidden = F.conv2d(pixels, (w1.float() * scale.to(w1)).bfloat16().double()) + both.view(1, -1, 1, 1)
    hidden = F.relu(hidden).bfloat16().double().permute(0, 2, 3, 1).contiguous()
    out = spread_reference(upstream.double(), winner, 1.0).permute(0, 3, 1, 2)
    below = F.conv_transpose2d(out, w2.permute(0, 3, 1, 2)) * (hidden.permute(0, 3, 1, 2) > 0)
    below = below.bfloat16().double() / KEPT
    seen = data.normalise(images[order].double())
    taps = [(below * seen[..., y : y + 26, x : x + 26]).sum((0, 2, 3)) for y in range(3) for x in range(3)]
    second = conv2_weight_gradient_reference(hidden, upstream.double(), winner, KEPT)
    return fp64, [*second, torch.stack(taps, 1).view(32, 1, 3, 3), below.sum((0, 2, 3))]


def right(n, folders):
    import torch

    arguments = batch(n)
    weights = arguments[2]
    fp64, same = references(*arguments)

    def run(version):
        weights.flat_gradients.zero_()
        version.call(*arguments)
        torch.cuda.synchronize()
        return [weights.gradients[name].clone() for name in ORDER]

    bounds, good = (5e-3, 1e-5, 8e-2, 8e-2), True
    old = run(Version(folders[0]))
    print(f"   batch {n}: relative errors        FP64 (bound)  same arithmetic (1e-4)  against old     repeat")
    for folder in folders:
        version = Version(folder)
        found, again = run(version), run(version)
        print(f"   {folder}")
        for i, name in enumerate(ORDER):
            others = fp64[i].view_as(found[i]), same[i].view_as(found[i]), old[i], again[i]
            errors = [relative(found[i], other) for other in others]
            ok = errors[0] < bounds[i] and errors[1] < 1e-4
            good &= ok
            print(f"      {name:13} {errors[0]:14.1e} ({bounds[i]:.0e}) {errors[1]:14.1e} {errors[2]:16.1e} "
                  f"{errors[3]:12.1e}   {'ok' if ok else 'WRONG'}")  # fmt: skip
    return good


def by_turns(arguments, calls, rounds=20):
    """Microseconds of each call: the median of graphs of 20, all of them by turns, so that the clock is the same."""
    import torch

    graphs, found = {}, {name: [] for name in calls}
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for _ in range(20):
                call()
    for graph in graphs.values():
        for _ in range(5):
            graph.replay()
    for _ in range(rounds):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found[name].append(begin.elapsed_time(end) * 1000 / 20)
    return {name: (statistics.median(times), min(times)) for name, times in found.items()}


def calls_of(versions, arguments):
    """For `by_turns`; a kernel is compiled before its graph is captured."""
    kernels = {name: version.kernel() for name, version in versions.items()}
    return {name: lambda v=v, k=kernels[name]: v.call(*arguments, kernel=k) for name, v in versions.items()}


def timed(folders):
    import torch

    print("  ", torch.cuda.get_device_name())
    for n in BATCHES[:2]:
        arguments = batch(n)
        found = by_turns(arguments, calls_of({folder: Version(folder) for folder in folders}, arguments))
        before = found[folders[0]][0]
        for folder, (middle, least) in found.items():
            print(f"   batch {n}: {middle:7.1f} us ({middle - before:+5.1f} against the one above), least {least:6.1f}"
                  f"   {folder}")  # fmt: skip
            before = middle
    return True


def labels(text):
    """What the marks stand for, by role and of the kernel: the comments behind them."""
    parts = re.split(r"\n    if \(role == 0\) \{|\n    \} else if \(role < 3\) \{|\n    \} else \{\n", text)
    roles = [
        dict((int(i), what) for i, what in re.findall(r"stamp\(sample, half, (\d+)\); +// (.*)", p)) for p in parts[1:4]
    ]
    kernel = {int(i): what for i, what in re.findall(r"stamp_kernel\((\d+)\); +// (.*)", text)}
    return [roles[0], roles[1], roles[1], roles[2]], kernel


def phases(folders):
    import numpy as np
    import torch
    from cuda.bindings import driver

    from labkit.kernels import nvrtc

    arguments = batch(1024)
    for folder in folders:
        version = Version(folder, flags=("-DTIMED",))
        if "TIMED" not in version.text:
            print(f"   {folder}: has no marks")
            continue
        module, kernel = version.module()
        for _ in range(5):
            version.call(*arguments, kernel=kernel)
        torch.cuda.synchronize()
        status, address, size = driver.cuModuleGetGlobal(module, b"stamps")
        nvrtc._held((status,))
        stamps = np.zeros((4, ROUNDS + 1, 2, MARKS), dtype=np.int64)
        assert size == stamps.nbytes, (size, stamps.nbytes)
        nvrtc._held(driver.cuMemcpyDtoH(stamps.ctypes.data, address, size))
        names, kernel_names = labels(version.text)
        print(f"   {folder}")
        clocks, nanoseconds = stamps[0, ROUNDS]
        last = max(kernel_names)
        mhz = (clocks[last] - clocks[0]) / max(nanoseconds[last] - nanoseconds[0], 1) * 1000
        print(f"      block 0: {clocks[last] - clocks[0]:,} clocks, "
              f"{(nanoseconds[last] - nanoseconds[0]) / 1000:.1f} us, {mhz:.0f} MHz")  # fmt: skip
        for i in range(1, last + 1):
            print(f"      {clocks[i] - clocks[i - 1]:8,} clocks   {kernel_names[i]}")
        steady = range(2, ROUNDS - 1)  # neither the first samples nor the last
        for role, marks in enumerate(names):
            halves = [role - 1] if role in (1, 2) else [0, 1]
            begin = stamps[role, :ROUNDS, halves[0], 0]
            whole = np.mean([begin[r + 1] - begin[r] for r in steady])
            print(f"      {ROLES[role]}: {whole:,.0f} clocks a sample")
            for half in halves:
                for i in sorted(marks)[1:]:
                    took = [stamps[role, r, half, i] - stamps[role, r, half, i - 1] for r in steady]
                    print(f"      {np.mean(took):8,.0f} ({min(took):6,} to {max(took):6,})   half {half}: {marks[i]}")
        zero = stamps[3, :ROUNDS, 0, 0]
        print("      one sample (the fifth), clocks after the makers wait for its first EMPTY")
        line = [(stamps[role, 4, half, i] - zero[4], ROLES[role], half, marks[i])
                for role, marks in enumerate(names) for half in ([role - 1] if role in (1, 2) else [0, 1])
                for i in marks]  # fmt: skip
        for at, role, half, what in sorted(line):
            print(f"      {at:8,}   {role:24} half {half}: {what}")
    return True


def without(folders):
    folder, arguments = folders[-1], batch(1024)
    versions = {"whole": Version(folder)}
    for name, edits in WITHOUT.items():
        try:
            version = Version(folder, edits)
            version.kernel()
            versions[name] = version
        except (LookupError, RuntimeError) as no:
            print(f"   {name}: {str(no)[:200]}")
    found = by_turns(arguments, calls_of(versions, arguments), rounds=8)
    whole = found["whole"][0]
    print(f"   {whole:7.1f} us   {folder}")
    for name, (middle, _) in found.items():
        if name != "whole":
            print(f"   {middle:7.1f} us ({middle - whole:+6.1f})   without {name}")
    return True


def main():
    arguments = sys.argv[1:]
    only = arguments[arguments.index("--only") + 1 :] if "--only" in arguments else None
    one = arguments[arguments.index("--one") + 1] if "--one" in arguments else None
    folders = [a for a in arguments[: min(arguments.index(w) if w in arguments else 99 for w in ("--only", "--one"))]]
    if len(folders) == 1:
        import labkit

        folders.append(str(Path(labkit.__file__).parent.parent))
    if one:
        done = {"time": timed, "phases": phases, "without": without}
        ok = done[one](folders) if one in done else right(int(one[6:]), folders)
        sys.stdout.flush()
        sys.exit(0 if ok else 3)
    results = {}
    for stage in only or STAGES:
        print(f"== {stage}", flush=True)
        begin = time.time()
        try:
            status = subprocess.run([sys.executable, __file__, *folders, "--one", stage], timeout=60).returncode
        except subprocess.TimeoutExpired:
            status = "60 s are over"
        results[stage] = "ok" if status == 0 else "WRONG" if status == 3 else f"failed ({status})"
        print(f"   -> {results[stage]}, {time.time() - begin:.0f} s", flush=True)
    print("\n".join(["", "stage          result", *(f"{stage:14} {what}" for stage, what in results.items())]))


main()
