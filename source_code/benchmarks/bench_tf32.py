"""Benchmark: which switch decides whether FP32 means TF32: PyTorch's, old and new, or an environment variable (lab 13).

Each probe is a process of its own: it starts with the given environment, runs the given statements as they stand, then
multiplies and convolves FP32 numbers. The error against FP64 tells the precision, whatever the switches say about it.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product

from labkit.training import flags, machine

# What an environment is called → the variables it sets. None of them is set otherwise.
ENVIRONMENTS = {
    "": {},
    "NVIDIA_TF32_OVERRIDE=0": {"NVIDIA_TF32_OVERRIDE": "0"},
    "NVIDIA_TF32_OVERRIDE=1": {"NVIDIA_TF32_OVERRIDE": "1"},
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"},
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=0": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0"},
    "both: TORCH_…=1, NVIDIA_…=0": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "NVIDIA_TF32_OVERRIDE": "0"},
}
# The statements of a probe; two after another ask which wins.
OLD_ON = "torch.backends.cuda.matmul.allow_tf32 = True; torch.backends.cudnn.allow_tf32 = True"
OLD_OFF = "torch.backends.cuda.matmul.allow_tf32 = False; torch.backends.cudnn.allow_tf32 = False"
NEW_ON = "torch.backends.fp32_precision = 'tf32'"
NEW_OFF = "torch.backends.fp32_precision = 'ieee'"
IN_EVERY_ENVIRONMENT = ["", OLD_ON, OLD_OFF, NEW_ON, NEW_OFF]
ALONE = [
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cudnn.allow_tf32 = False",
    "torch.set_float32_matmul_precision('high')",
    "torch.set_float32_matmul_precision('medium')",
    "torch.set_float32_matmul_precision('highest')",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "torch.backends.cudnn.fp32_precision = 'ieee'",
    # one general, one particular
    "torch.backends.fp32_precision = 'ieee'; torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'; torch.backends.fp32_precision = 'ieee'",
    # two of the old ones
    "torch.set_float32_matmul_precision('high'); torch.backends.cuda.matmul.allow_tf32 = False",
    "torch.backends.cuda.matmul.allow_tf32 = False; torch.set_float32_matmul_precision('high')",
    # old and new
    "torch.backends.cuda.matmul.allow_tf32 = True; torch.backends.cuda.matmul.fp32_precision = 'ieee'",
    "torch.backends.cuda.matmul.fp32_precision = 'ieee'; torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'; print(torch.backends.cuda.matmul.allow_tf32)",
    "torch.backends.cudnn.allow_tf32 = True; torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "torch.backends.fp32_precision = 'ieee'; torch.backends.cudnn.allow_tf32 = True",
]
CALLS = ("matmul", "conv")
SIZE = 512
# Relative errors in the Frobenius norm: FP32 about 1e-7 to 1e-6, TF32 (10 bits) about 3e-4, BF16 (7 bits) about 2e-3.
TF32_FROM, BF16_FROM = 1e-5, 1e-3


def precision(error):
    """What such an error means."""
    return "FP32" if error < TF32_FROM else "TF32" if error < BF16_FROM else "BF16"


@contextmanager
def noted(refused, what):
    """Keep what PyTorch says against mixing its switches, and go on."""
    try:
        yield
    except (RuntimeError, AttributeError) as error:  # the latter: before torch 2.9
        refused[what] = str(error).strip().splitlines()[0]


def probe(statements):
    """In a fresh process: run the statements, then the relative errors of a product and of a convolution in FP32.

    Second result: what was refused (``"set"``, ``"matmul"``, ``"conv"``) and in which words; it then has no error.
    """
    import torch  # only now: the variables of the environment are read when the libraries are

    refused = {}
    with noted(refused, "set"):
        exec(statements, {"torch": torch})  # as the table shows them
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    a, b = torch.randn(2, SIZE, SIZE)
    x, weight = torch.randn(4, 64, 32, 32), torch.randn(64, 64, 3, 3)
    found = {}
    for name, call, inputs in (("matmul", torch.mm, (a, b)), ("conv", torch.conv2d, (x, weight))):
        exact = call(*(one.double() for one in inputs))
        with noted(refused, name):
            result = call(*(one.to(device) for one in inputs)).double().cpu()
            found[name] = float((result - exact).norm() / exact.norm())
    return found, refused


def ask(named, statements):
    """A row: the environment, the statements, and what a process of its own found."""
    ours = {name for variables in ENVIRONMENTS.values() for name in variables}
    environment = {name: value for name, value in os.environ.items() if name not in ours} | ENVIRONMENTS[named]
    words = [sys.executable, __file__, "--probe", statements]
    done = subprocess.run(words, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the probe '{statements}' failed: {done.stderr.strip().splitlines()[-1:]}")
    found, refused = json.loads(done.stdout.strip().splitlines()[-1])
    row = {"environment": named, "statements": statements, "refused": refused}
    for name in CALLS:
        error = found.get(name)
        row |= {f"{name}_error": error, name: None if error is None else precision(error)}
    return row


def main():
    parser = flags.script_parser(__doc__)
    parser.add_argument("--few", action="store_true", help="four probes only, on a CPU too: to try it")
    parser.add_argument("--probe", metavar="STATEMENTS", help="only run these, and print the errors as JSON")
    args = parser.parse_args()
    if args.probe is not None:
        print(json.dumps(probe(args.probe)))
        return
    from labkit.training import steps  # here: a probe needs none of it

    device = steps.pick_device("auto") if args.few else steps.need_gpu()
    wanted = [*product(ENVIRONMENTS, IN_EVERY_ENVIRONMENT), *(("", statements) for statements in ALONE)]
    wanted = wanted[1:3] + wanted[-4:-2] if args.few else wanted
    with ThreadPoolExecutor(max(1, machine.usable_cores() - 2)) as pool:
        rows = list(pool.map(lambda one: ask(*one), wanted))
    for row in rows:
        print(f"[{row['environment']}] {row['statements'] or 'nothing set'}")
        errors = [f"{name}: {row[name]} ({row[f'{name}_error']})" for name in CALLS]
        print("   ", *errors, *(f"refused ({what}): {said}" for what, said in row["refused"].items()))
    del args.probe, args.few
    steps.write_benchmark_record(args, device, rows)


if __name__ == "__main__":
    main()
