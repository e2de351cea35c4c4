"""Run notebooks one after the other in this process, without Jupyter, and say of each where it stopped, if it did.

    python3 tests/support/in_one_process.py OUT.json labs/01_introduction.ipynb …

A cell is executed as a notebook would: its last expression is shown. Imports and opened reports are paid for once.
OUT.json holds, by notebook: ``failed`` (cell, error, the last line of our own; null where none failed), ``seconds``
and what was printed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import os
import sys
import time
import traceback
from pathlib import Path


def run(file: Path) -> dict:
    """One notebook, from top to bottom, in a namespace of its own and its own folder."""
    from IPython.display import display

    cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    namespace: dict = {"__name__": "__main__"}
    said, failed, start = io.StringIO(), None, time.monotonic()
    os.chdir(file.parent)
    with contextlib.redirect_stdout(said):
        for number, cell in enumerate(cells):
            try:
                execute("".join(cell["source"]), f"<{file.stem}, code cell {number}>", namespace, display)
            except Exception as error:
                failed = {"cell": number, "error": f"{type(error).__name__}: {error}", "at": traceback.format_exc()}
                break
    close_figures()
    return {"failed": failed, "seconds": round(time.monotonic() - start, 1), "said": said.getvalue()}


def execute(source: str, name: str, namespace: dict, display) -> None:
    """A cell's code; the value of an expression at its end is displayed."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for inspect and tracebacks
    tree = ast.parse(source)
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if last is not None and (value := eval(compile(last, name, "eval"), namespace)) is not None:
        display(value)
        if hasattr(value, "_repr_html_"):
            value._repr_html_()


def close_figures() -> None:
    import matplotlib.pyplot as plt

    plt.close("all")


def main() -> None:
    out, *files = map(Path, sys.argv[1:])
    out, files = out.resolve(), [file.resolve() for file in files]
    found = {}
    for file in files:
        found[file.name] = run(file)
        out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
