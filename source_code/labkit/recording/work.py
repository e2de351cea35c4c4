"""What work does a step do? Its operators, shapes and types, and what it asks of loader, optimizer and scheduler.

    python3 -m labkit.recording.work main_opt2.py

Two training steps and tests on the CPU, on few digits. The code of two versions may differ although both
do the same work: then this says so. It is evidence for who reviews a change, and no proof: what only a GPU is asked
(pinned memory, CUDA graphs, kernels in Triton) is not in it. It is compared only under the same PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import SOURCE_CODE, script
from labkit.training import manifest

FLAGS = ["--device", "cpu", "--epochs", "2", "--limit", "96"]  # a step an epoch: FP16 is slow on a CPU
PARTS = ("operators", "calls", "loaders", "optimizers", "schedulers", "fp32")  # in a description, beside its torch


def describe(command: str, source_code: Path = SOURCE_CODE) -> dict:
    """A step's work, with the modules that it loaded; ``source_code``: that of another version of the course.

    Raises LabError with the step's last words where it fails.
    """
    name, *flags = shlex.split(command)
    file = source_code / script(name).relative_to(SOURCE_CODE)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "work.json"
        variables = {"PYTHONPATH": str(source_code), "CUDA_VISIBLE_DEVICES": "", **manifest.watched(Path(scratch))}
        words = [sys.executable, str(Path(__file__).resolve()), str(out), str(file), *flags, *FLAGS]
        done = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True)
        if done.returncode != 0:
            last = (done.stderr or done.stdout).strip().splitlines()
            raise LabError(f"the work of '{command}' cannot be told: {last[-1] if last else 'it said nothing'}")
        return {"command": command, "work": json.loads(out.read_text()), "manifest": manifest.gathered(Path(scratch))}


def differences(then: dict, now: dict) -> list[str] | None:
    """The parts in which two descriptions of work differ; None where they were made under different PyTorch."""
    if then["torch"] != now["torch"]:
        return None
    return [part for part in PARTS if then[part] != now[part]]


def watch(program: Path, flags: list[str]) -> dict:
    """Run a step script in this process and describe what it does."""
    import torch
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.data import DataLoader

    found: dict[str, list] = {"operators": [], "calls": [], "loaders": [], "optimizers": [], "schedulers": []}

    def told(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, (list, tuple)):
            return [told(one) for one in value]
        if isinstance(value, dict):
            return {str(name): told(one) for name, one in value.items()}
        if isinstance(value, (torch.dtype, torch.memory_format)):
            return str(value)
        return value if isinstance(value, (int, float, str, type(None))) else type(value).__name__

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            found["operators"].append([str(function), told(args), told(kwargs or {}), told(result)])
            return result

    class Copies(TorchFunctionMode):
        """A copy that does not wait is the same operator on the CPU as one that does."""

        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function in (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.copy_, torch.Tensor.pin_memory):
                found["calls"].append([function.__name__, told(kwargs or {})])
            return function(*args, **(kwargs or {}))

    def noting(kind: type, part: str, note) -> None:
        usual = kind.__init__

        def init(self, *args, **kwargs):
            usual(self, *args, **kwargs)
            found[part].append({"class": type(self).__name__, **note(self)})

        kind.__init__ = init

    def asked_of(loader: DataLoader) -> dict:
        names = ("batch_size", "drop_last", "pin_memory", "persistent_workers", "prefetch_factor")
        sampler = type(loader.sampler).__name__
        return {name: getattr(loader, name) for name in names} | {"workers": loader.num_workers > 0, "order": sampler}

    noting(DataLoader, "loaders", asked_of)
    noting(Optimizer, "optimizers", lambda one: {name: told(value) for name, value in one.defaults.items()})
    noting(LRScheduler, "schedulers", lambda one: {name: getattr(one, name, None) for name in ("step_size", "gamma")})

    sys.argv = [str(program), *flags]
    sys.path.insert(0, str(program.parent))
    with Operators(), Copies():
        runpy.run_path(str(program), run_name="__main__")
    operators = json.dumps(found["operators"]).encode()
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    has_new = hasattr(cudnn, "conv") and hasattr(cudnn.conv, "fp32_precision")
    fp32 = [cudnn.conv.fp32_precision, matmul.fp32_precision] if has_new else [cudnn.allow_tf32, matmul.allow_tf32]
    summary = {"operators": hashlib.sha256(operators).hexdigest()[:16], "of_them": len(found["operators"])}
    calls = sorted({json.dumps(call) for call in found["calls"]})
    return {"torch": ".".join(torch.__version__.split(".")[:2]), **found, **summary, "calls": calls, "fp32": fp32}


if __name__ == "__main__":
    if sys.argv[1].endswith(".json"):
        target, program, *flags = sys.argv[1:]
        Path(target).write_text(json.dumps(watch(Path(program), flags)))
    else:
        print(json.dumps(describe(shlex.join(sys.argv[1:]))["work"], indent=1))
