"""Benchmark: what a process does before its first training step, one thing after another (lab 8)."""

import os
import subprocess
import sys
import time

from labkit.paths import SOURCE_CODE
from labkit.training import steps

READ = """
from labkit.training import data
images = data.load_digits(os.environ.get("LAB_DATA_DIR")).train.data.to(device)
"""
KERNELS = """
x = torch.ones(8, 8, 8, 8, device=device, dtype=torch.bfloat16)
torch.nn.functional.conv2d(x, x), x[0, 0] @ x[0, 0]
"""

# What is done, on top of which program, and the lines that do it.
STAGES = {
    "Python starts and ends": (None, "import os"),
    "PyTorch is imported": ("Python starts and ends", "import torch"),
    "the device starts": ("PyTorch is imported", "torch.zeros(1, device=device)"),
    "the digits are read and sent": ("the device starts", READ),
    "first convolution and product: libraries load": ("the digits are read and sent", KERNELS),
    "an optimizer is made": ("the digits are read and sent", "torch.optim.Adadelta([torch.zeros(1)])"),
    "torch.compile is imported": ("an optimizer is made", "import torch._inductor.compile_fx"),
    "Triton is imported": ("the digits are read and sent", "import triton"),
    "torchvision is imported": ("the digits are read and sent", "import torchvision"),
}


def program(stage, device):
    """The lines of a stage with all that come before it."""
    before, lines = STAGES[stage]
    return (program(before, device) if before else f"device = {device.type!r}\n") + lines.strip() + "\n"


def seconds(lines, device):
    """Of a whole process that runs these lines, and waits for the GPU at the end."""
    if device.type == "cuda" and "device=device" in lines:
        lines += "torch.cuda.synchronize()\n"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", lines], cwd=SOURCE_CODE, env=dict(os.environ), check=True)
    return time.perf_counter() - start


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU, if any")
    parser.add_argument("--repeats", type=steps.at_least(1), default=3, help="processes of each (default: %(default)s)")
    args = parser.parse_args()
    device = steps.pick_device(args.device)
    found = {stage: [] for stage in STAGES}
    seconds(program("Triton is imported", device), device)  # files that were never read are slow the first time
    for _ in range(args.repeats):
        for stage in STAGES:
            found[stage].append(seconds(program(stage, device), device))
    rows = []
    for stage, (before, _) in STAGES.items():
        own = sorted(found[stage])
        rows.append({"stage": stage, "after": before, "process_s": own})
        print(f"{stage:46} {own[len(own) // 2]:6.2f} s ({own[0]:.2f}–{own[-1]:.2f}), the whole process")
    steps.write_benchmark_record(args, device, rows)


if __name__ == "__main__":
    main()
