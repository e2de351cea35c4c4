"""PyTorch, imported by the first use of a name of it: who only reads recorded labs needs none, and waits for none."""

from __future__ import annotations

import importlib


class _Lazily:
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # Python's own question, such as what kind of function this is: inspect asks it
            raise AttributeError(name)
        return getattr(importlib.import_module("torch"), name)


torch = _Lazily()
