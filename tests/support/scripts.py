"""A script of source_code/ as a module: its functions, without a run."""

import importlib.util
from types import ModuleType

from labkit import paths


def script(name: str) -> ModuleType:
    """``main_opt3.py``, ``bench_gan.py`` or ``clinic/text.py``"""
    file = paths.script(name)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
