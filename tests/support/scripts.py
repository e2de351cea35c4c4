"""A script of source_code/ as a module: its functions, without a run."""

import importlib.util
import sys
from types import ModuleType

from labkit import paths

# The flags for which the worked examples take seconds on a CPU.
SMALL = {
    "train_resnet": "--batch 4 --size 32 --files 8 --workers 0 --warmup 1 --steps 2",
    "train_transformer": "--batch 2 --length 16 --dim 32 --heads 2 --layers 1 --vocabulary 64 --warmup 1 --steps 2",
}


def script(name: str) -> ModuleType:
    """``main_opt3.py``, ``bench_gan.py`` or ``clinic/text.py``

    By its own name among the modules, where a loader's worker finds it, too: from Python 3.14 on it's no fork.
    """
    file = paths.script(name)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    if (folder := str(file.parent)) not in sys.path:
        sys.path.append(folder)
    spec.loader.exec_module(module)
    return module
