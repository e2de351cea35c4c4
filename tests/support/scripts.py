"""A script of source_code/ as a module: its functions, without a run."""

import importlib.util
from types import ModuleType

from labkit import paths

# The flags for which the worked examples take seconds on a CPU.
SMALL = {
    "train_resnet": "--batch 4 --size 32 --files 8 --workers 0 --warmup 1 --steps 2",
    "train_transformer": "--batch 2 --length 16 --dim 32 --heads 2 --layers 1 --vocabulary 64 --warmup 1 --steps 2",
}


def script(name: str) -> ModuleType:
    """``main_opt3.py``, ``bench_gan.py`` or ``clinic/text.py``"""
    file = paths.script(name)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
