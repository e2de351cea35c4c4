"""Has a machine what Tensor Cores need, and what follows where it has not? GPU, driver, CUDA, cuDNN, counters."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator

import pandas as pd

from labkit import source
from labkit.source.facts import torch_version
from labkit.training import machine
from labkit.versions import OLDEST_DRIVER
from stepbudget.ask.tensor_cores import WITHOUT_TENSOR_CORES
from stepbudget.show.table import Table, table

# From NVIDIA's architecture whitepapers, as in lab 4: the first compute capability of each generation, and the short
# number types that its Tensor Cores multiply.
GENERATIONS = {
    (7, 0): ("Volta", "FP16"),
    (7, 5): ("Turing", "FP16"),
    (8, 0): ("Ampere", "FP16, BF16, TF32"),
    (8, 9): ("Ada", "FP16, BF16, TF32, FP8"),
    (9, 0): ("Hopper", "FP16, BF16, TF32, FP8"),
    (10, 0): ("Blackwell", "FP16, BF16, TF32, FP8, FP4"),
}
# For each major version of CUDA, the oldest compute capability that it still compiles for (its release notes: 13 has
# left Volta and what came before).
OLDEST_GPU = {11: (3, 5), 12: (5, 0), 13: (7, 5)}
HOW_TO_GET = "https://pytorch.org/get-started/locally/"


def here_table() -> Table:
    """This machine's prerequisites, a row each: what was found, and what follows."""
    found = source.this_machine()
    lines = rows(found, torch_version("cuda"), cudnn_version(), machine.gpu_problem() if found.driver else None)
    frame = pd.DataFrame([*lines, ("labs run", source.current().name, "")], columns=["", "this machine", "so"])
    return table(frame, "What this machine has")


def rows(
    found: source.Machine, cuda: str | None, cudnn: str | None, problem: str | None = None
) -> Iterator[tuple[str, str, str]]:
    """What is looked at, what was found, what follows. ``cuda``: PyTorch's; ``problem``: what CUDA says of the GPU."""
    yield ("GPU", *_gpu(found, problem))
    yield ("driver", found.driver or "none", _driver(found, cuda))
    yield ("CUDA of PyTorch", cuda or "none", _cuda(found, cuda))
    yield ("cuDNN", cudnn or "not told", "its convolutions; PyTorch brings it" if cudnn else "")
    instead = "PyTorch's profiler makes the profiles" if found.traces else "no profiles of your own"
    yield ("Nsight Systems", found.nsys or "not found", "" if found.nsys else instead)
    if found.gpu:
        may = ("may be read", "") if found.counters else ("may not be read", "no Tensor Active: names alone tell")
        yield ("GPU counters", *may)
    few = "hardly a loader worker to spare" if found.cores <= 2 else ""
    yield ("CPU cores", str(found.cores), few)


def _gpu(found: source.Machine, problem: str | None) -> tuple[str, str]:
    if found.gpu is None:
        said = f"none that CUDA can use: {problem}" if problem else "none"
        return said, "the labs show what was recorded"
    if found.capability is None:
        return found.gpu, ""
    several = f"{found.gpus} × " if found.gpus > 1 else ""
    since = [one for one in GENERATIONS if one <= found.capability]
    name, types = GENERATIONS[since[-1]] if since else ("before Volta", "")
    if not types or WITHOUT_TENSOR_CORES.search(found.gpu):
        so = "no Tensor Cores: short numbers save bytes only"
    else:
        so = f"Tensor Cores for {types}" + ("; TF32 and BF16 gain nothing" if found.capability < (8, 0) else "")
    return f"{several}{found.gpu}, {name}, {'.'.join(map(str, found.capability))}", so


def _driver(found: source.Machine, cuda: str | None) -> str:
    """Does the driver run PyTorch's CUDA?"""
    major = _major(cuda)
    if found.driver is None:
        return "" if found.gpu is None else "not told"
    if major not in OLDEST_DRIVER:
        return ""
    needs = OLDEST_DRIVER[major]
    have = int(found.driver.partition(".")[0])
    if have >= needs:
        return f"new enough for CUDA {major} ({needs})"
    mend = "; rm .venv/.installed, then make lab, installs an older PyTorch" if have >= OLDEST_DRIVER[12] else ""
    return f"too old for CUDA {major}: it takes {needs}{mend}"


def _cuda(found: source.Machine, cuda: str | None) -> str:
    """Does PyTorch's CUDA still know the GPU?"""
    major = _major(cuda)
    if major is None:
        return "" if found.gpu is None else f"a PyTorch for CPUs: install one for CUDA, {HOW_TO_GET}"
    if found.capability and found.capability < OLDEST_GPU.get(major, (0, 0)):
        return f"does not know this GPU any more: take a PyTorch for CUDA {major - 1}"
    return "knows this GPU" if found.capability else ""


def _major(cuda: str | None) -> int | None:
    return int(cuda.partition(".")[0]) if cuda else None


def cudnn_version() -> str | None:
    """The version of the cuDNN package that came with PyTorch; None where PyTorch has its own inside, or none."""
    for one in importlib.metadata.distributions():
        if re.fullmatch(r"nvidia-cudnn-cu\d+", one.metadata["Name"] or ""):
            return one.version
    return None
