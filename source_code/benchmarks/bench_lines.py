"""Benchmark: at which line of their source kernels of our own wait, and for what, by Nsight Compute (lab 27)."""

import inspect
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from labkit.errors import LabError, NotHere
from labkit.kernels import attention, softmax, transpose
from labkit.source import counting
from labkit.source.running import NOT_HERE
from labkit.training import steps
from labkit.training.devices import reduced_precision
from stepbudget.errors import ReportError
from stepbudget.ncu import lines
from stepbudget.ncu.counters import DENIED, what_went_wrong

SIDE, ROWS, COLUMNS = 8192, 16384, 4096
SHAPE = (4, 16, 4096, 64)  # of attention: batch, heads, length, width
NUMBERED = {"kernel.cu": transpose.SOURCE} | {
    f"{module.__name__.rpartition('.')[2]}.py": inspect.getsource(module) for module in (attention, softmax)
}


def works(device):
    """What can be looked at: name → a call that starts one kernel of ours."""
    dtype = getattr(torch, reduced_precision())
    x = torch.randn(SIDE, SIDE, device=device)
    numbers = torch.randn(ROWS, COLUMNS, device=device).to(dtype)
    q, k, v = torch.randn(3, *SHAPE, device=device).to(dtype)
    found = {form: partial(transpose.launch, x, torch.empty_like(x), form) for form in ("tile", "padded", "swizzled")}
    found["softmax"] = partial(softmax.launch, numbers, torch.empty_like(numbers))
    found["attention"] = partial(attention.launch, q, k, v, torch.empty_like(q), False, attention.SMALL)
    return found


NAMES = ("tile", "padded", "swizzled", "softmax", "attention")


def run_once(name, device):
    """Start the kernel once to compile it, and once between the profiler's marks."""
    work = works(device)[name]
    work()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    work()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def looked_at(name, ncu, module, folder):
    """The rows of a kernel: itself, and each line of its source at which a warp was seen."""
    report = Path(folder) / f"{name}.ncu-rep"
    words = [ncu, *lines.flags(str(report)), sys.executable, __file__, "--once", name]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if problem := what_went_wrong(done.stdout, done.returncode):
        raise (NotHere if DENIED in problem else LabError)(problem)
    if not report.is_file():
        raise LabError(f"ncu wrote no report: {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else '-'}")
    (kernel,) = lines.kernels(report, module)
    total = sum(line.waited for line in kernel.lines)
    yield {"what": "kernel", "case": name, "kernel": kernel.name, "waited": total} | kernel.facts
    for line in kernel.lines:
        text = NUMBERED.get(line.file, "").splitlines()[line.number - 1 : line.number]
        row = {"what": "line", "case": name, "file": line.file, "line": line.number, "executed": line.executed}
        yield row | {"text": text[0].strip() if text else "", "waited": line.waited, "samples": line.samples}


def all_rows(ncu, folder):
    """The rows of all kernels; NotHere where ncu may not count, or its Python module is missing."""
    try:
        module = lines.reader(ncu)
    except ReportError as missing:
        raise NotHere(str(missing)) from missing
    for name in NAMES:
        yield from looked_at(name, ncu, module, folder)


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--once", choices=NAMES, metavar="NAME", help="start this kernel, as it is looked at, and end")
    args = parser.parse_args()
    device = steps.need_gpu()
    torch.manual_seed(1)
    if args.once:
        run_once(args.once, device)
        return
    rows = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            ncu = counting.find_ncu()
            if ncu is None:
                raise NotHere(counting.NOT_FOUND)
            for row in all_rows(ncu, folder):
                rows.append(row)
                print(" ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    except NotHere as missing:
        print(f"error: {missing}", file=sys.stderr)
        sys.exit(NOT_HERE)
    steps.write_benchmark_record(args, device, rows, ncu=counting.version())


if __name__ == "__main__":
    main()
