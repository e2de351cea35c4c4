"""PyTorch, imported by the first use of a name of it: who only reads recorded labs needs none, and waits for none."""

from __future__ import annotations

import importlib


class _Lazily:
    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module("torch"), name)


torch = _Lazily()
