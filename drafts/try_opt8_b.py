"""Is a new conv_forward right, and how fast? On a Hopper, in a few minutes:

    python wt-b-try.py OLD NEW [NEW …] [--timed 1024 1000] [--batches …] [--only-time]

Each is a folder that holds labkit (source_code of a checkout). For each commit a folder:

    for c in main opt8-b~3 opt8-b~2 opt8-b~1 opt8-b; do mkdir -p try/$c; git archive $c source_code | tar -x -C try/$c; done
    python wt-b-try.py try/main/source_code try/opt8-b~3/source_code … try/opt8-b/source_code

(opt8-b~4 is where the branch begins; OLD is main's.) Every stage is a process of its own with
60 s; what fails or hangs is named in the table, and the others go on.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCHES = (1024, 1000, 132, 131, 7, 1)
MODES = ("test", "train")
LIMIT_S = 60
REPEATS = 30  # of the same call: a race shows as another result
PER_GRAPH, GRAPHS = 20, 20
DEVICE = os.environ.get("TRY_DEVICE", "cuda")  # cpu: a rehearsal of this program


# ---- in a child process: one version of labkit, named by sys.path ----


def made(count):
    """Digit-like images (mostly zero, so that windows tie), an order, weights, seeds: the same in every process."""
    import torch

    from labkit.kernels.weights import Weights
    from labkit.training.model import Net

    g = torch.Generator().manual_seed(7)
    images = torch.randint(0, 256, (4000, 28, 28), dtype=torch.uint8, generator=g)
    images *= torch.rand(4000, 28, 28, generator=g) < 0.3
    images[:, :5] = 0
    order = torch.randperm(4000, generator=g)[:count].to(DEVICE)
    order[-1] = 3999  # the last image's last rows: a read beyond would leave the tensor
    torch.manual_seed(5)
    weights = Weights(Net().to(DEVICE))
    seeds = torch.tensor([11, 2**61 + 12345], device=DEVICE)
    return images.to(DEVICE), order, weights, seeds


def synchronize():
    import torch

    if DEVICE == "cuda":
        torch.cuda.synchronize()


def poison(count):
    """What torch.empty finds next is no earlier result."""
    import torch

    a = torch.full((count, 12, 12, 64), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    b = torch.full((count, 12, 12, 64), 255, dtype=torch.uint8, device=DEVICE)
    del a, b


def call(case, mode):
    from labkit.kernels.hopper import conv_forward

    images, order, weights, seeds = case
    return conv_forward(images, order, weights, seeds if mode == "train" else None, 1)


def stage_compile():
    from cuda.bindings import nvrtc as n

    from labkit.kernels import hopper, nvrtc

    for dropout in (False, True):
        program = n.nvrtcCreateProgram(nvrtc.source(hopper.FILES["conv_forward"]).encode(), b"k.cu", 0, [], [])[1]
        words = ["--std=c++17", "--ptxas-options=-v", *hopper.flags(dropout)]
        status = n.nvrtcCompileProgram(program, len(words), [w.encode() for w in words])[0]
        log = bytearray(n.nvrtcGetProgramLogSize(program)[1])
        n.nvrtcGetProgramLog(program, log)
        text = log.decode(errors="replace").strip("\0\n ")
        lines = [x.strip() for x in text.splitlines() if any(w in x for w in ("spill", "Used", "Perf", "error"))]
        print(f"    {'train' if dropout else 'test '} {status.name}: " + "; ".join(lines), flush=True)


def stage_run(folder, cases):
    """Every case leaves two files, or none where it fails: the parent goes on behind it."""
    import torch

    for name in cases.split(","):
        count, mode = name.split("-")
        count, out = int(count), f"{folder}/{name}"
        case = made(count)
        poison(count)
        pooled, winner = call(case, mode)
        synchronize()
        same = 0
        for _ in range(REPEATS):
            poison(count)
            again = call(case, mode)
            same += int(torch.equal(again[0], pooled) and torch.equal(again[1], winner))
        torch.save((pooled.cpu(), winner.cpu()), out)
        Path(f"{out}.json").write_text(json.dumps({"same": same}))


def stage_reference(folder, cases):
    import torch

    from labkit.kernels.conv1 import conv1_relu_reference
    from labkit.kernels.conv2 import conv2_pool_reference

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name in cases.split(","):
        images, order, weights, _ = made(int(name))
        value, copy = weights.values, weights.copies
        with torch.no_grad():
            hidden = conv1_relu_reference(images, order, value["conv1.weight"].float(), value["conv1.bias"].float())
            pooled, winner = conv2_pool_reference(hidden, copy["conv2.weight"].float(), value["conv2.bias"].float())
        torch.save((pooled.cpu(), winner.cpu()), f"{folder}/{name}")
        Path(f"{folder}/{name}.json").write_text("{}")


def stage_time(folder, cases):
    import torch

    for name in cases.split(","):
        count, mode = name.split("-")
        case = made(int(count))
        for _ in range(3):
            call(case, mode)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(PER_GRAPH):
                call(case, mode)
        for _ in range(20):
            graph.replay()
        found = []
        for _ in range(GRAPHS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1000 / PER_GRAPH)
        found.sort()
        median = found[len(found) // 2]
        Path(f"{folder}/{name}.json").write_text(json.dumps({"us": median, "least": found[0], "most": found[-1]}))


def child(stage, *rest):
    {"compile": stage_compile, "run": stage_run, "reference": stage_reference, "time": stage_time}[stage](*rest)


# ---- the parent ----


def start(source, stage, *rest):
    """What is wrong with a stage, in a few words; empty where nothing is."""
    words = [sys.executable, os.path.abspath(__file__), "--child", stage, *map(str, rest)]
    process = subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": str(source)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        told, wrong = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            pass
        return f"HANGS (> {LIMIT_S} s)"
    if told.strip():
        print(told.rstrip())
    return "" if process.returncode == 0 else "FAILS: " + (wrong.strip().splitlines() or ["?"])[-1][:110]


def all_cases(source, stage, folder, cases, most_faults=2):
    """Run a stage over all cases; behind one that fails or hangs a new process goes on. {case: what is wrong}"""
    folder.mkdir(parents=True)
    wrong, left = {}, list(cases)
    while left:
        fault = start(source, stage, folder, ",".join(left))
        left = [case for case in left if not (folder / f"{case}.json").exists()]
        if fault and left:
            wrong[left.pop(0)] = fault
        if len(wrong) >= most_faults or (left and not fault):
            wrong |= {case: "not tried, after " + (fault or "an end too early") for case in left}
            break
    return wrong


def compared(now, before, whole, reference, mode, same):
    """One line on (pooled, winner) of the new version; `before` is the old one's, `whole` its own without dropout."""
    import torch

    pooled, winner = now
    words = [f"{REPEATS} repeats {'equal' if same == REPEATS else f'DIFFER ({REPEATS - same})'}"]
    if mode == "test":
        if reference:
            error = float((pooled.double() - reference[0].double()).norm() / reference[0].double().norm())
            agree = float((winner == reference[1]).double().mean())
            words.append(f"FP32: error {error:.1e}, winners {agree:.4f} {'ok' if error < 4e-3 and agree > 0.99 else 'WRONG'}")
        if before:
            equal = torch.equal(pooled.view(torch.int16), before[0].view(torch.int16)), torch.equal(winner, before[1])
            words.append(f"bits of old: pooled {equal[0]}, winners {equal[1]}")
        return "; ".join(words)
    kept = winner < 4
    if whole:
        alive = whole[1] < 4
        dropped, of = int((alive & ~kept).sum()), int(alive.sum())
        sigma = (dropped / of - 0.25) / math.sqrt(0.25 * 0.75 / of)
        channel = []
        for c in range(64):
            n = int(alive[..., c].sum())
            if n > 50:
                channel.append(abs(float((alive & ~kept)[..., c].sum()) / n - 0.25) / math.sqrt(0.25 * 0.75 / n))
        right = bool((winner[kept] == whole[1][kept]).all()) and not bool(pooled[~kept].any()) and bool((kept <= alive).all())
        words.append(
            f"winners of test mode where kept, else 0: {right}; dropped {dropped / of:.4f} ({sigma:+.1f} sigma, a channel at most {max(channel, default=0):.1f})"
        )
    if before:
        both = kept & (before[1] < 4)
        equal = bool((pooled[both] == before[0][both]).all()) and bool((winner[both] == before[1][both]).all())
        mask = bool((kept == (before[1] < 4)).all())
        words.append(f"bits of old where both keep: {equal}; same mask {mask} (False is meant, but for the old one)")
    return "; ".join(words)


def load(path):
    import torch

    try:
        return torch.load(path)
    except Exception:
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path, help="folders with labkit, the old one first")
    parser.add_argument("--timed", nargs="+", type=int, default=[1024, 1000])
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--only-time", action="store_true")
    args = parser.parse_args()
    sources = [source.resolve() for source in args.sources]
    began = time.time()
    for query in ("nvidia-smi --query-gpu=name,clocks.sm,clocks.max.sm,driver_version --format=csv,noheader",):
        subprocess.run(query, shell=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for n, source in enumerate(sources):
            print(f"[{n}] {source}")
            print("   ", start(source, "compile") or "compiled", flush=True)

        # Times first: they are what the device is lent for. Old, new, …, and all of it once more.
        cases = [f"{count}-{mode}" for count in args.timed for mode in MODES]
        print("\nus a call, median of 20 graphs of 20 calls (least to most)")
        hopeless = set()  # versions that failed in the first turn
        for turn in (1, 2):
            for n, source in enumerate(sources):
                at = folder / f"time{turn}-{n}"
                if n in hopeless:
                    continue
                wrong = all_cases(source, "time", at, cases, most_faults=1)
                hopeless |= {n} if wrong else set()
                for case in cases:
                    told = wrong.get(case)
                    if not told:
                        found = json.loads((at / f"{case}.json").read_text())
                        told = f"{found['us']:7.2f} ({found['least']:.2f} to {found['most']:.2f})"
                    print(f"  turn {turn} [{n}] {case:10} {told}", flush=True)
        if args.only_time:
            return

        cases = [f"{count}-{mode}" for count in args.batches for mode in MODES]
        told = all_cases(sources[0], "reference", folder / "reference", [str(count) for count in args.batches])
        print("\nresults", *(f"\n  reference of {case}: {why}" for case, why in told.items()))
        for n, source in enumerate(sources):
            wrong = all_cases(source, "run", folder / f"run{n}", cases)
            for case in cases:
                count, mode = case.split("-")
                words = [wrong[case]] if case in wrong else []
                now = load(folder / f"run{n}" / case)
                if now and case not in wrong:
                    whole = load(folder / f"run{n}" / f"{count}-test")
                    before = load(folder / "run0" / case) if n else None
                    same = json.loads((folder / f"run{n}" / f"{case}.json").read_text())["same"]
                    try:
                        words.append(compared(now, before, whole, load(folder / "reference" / count), mode, same))
                    except Exception as error:
                        words.append(f"not compared: {error!r}")
                print(f"  [{n}] {case:10} {'; '.join(words)}", flush=True)
    print(f"\n{time.time() - began:.0f} s in all")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
