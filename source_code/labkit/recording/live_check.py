"""Do the labs run live on this machine? Each code cell is run, timed and noted, and what differs here with it.

    python3 -m labkit.recording.live_check                     every lab, into reports/live_check.json
    python3 -m labkit.recording.live_check --labs 1 2 3        these
    python3 -m labkit.recording.live_check --time-limit 500    begin no cell after so many seconds
    python3 -m labkit.recording.live_check --pretend turing    as on a machine of labkit.pretend: nothing is measured

What a former call finished is kept: labs that ran whole are skipped. ``--into reports/recorded/<machine>`` keeps the
result beside the recordings; README.md shows it as "last run live". Needs no Jupyter: a lab is one process.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.metadata
import io
import json
import os
import subprocess
import sys
import time
import traceback
from datetime import datetime, timezone
from pathlib import Path

from labkit import checks, course, source
from labkit.errors import LabError, one_sentence
from labkit.paths import REPORTS, ROOT
from labkit.pretend import machines
from labkit.training import machine
from labkit.training.record import write_json
from stepbudget.export.nsys import find_nsys

NAME = "live_check.json"


def code_cells(notebook: Path) -> list[tuple[int, str]]:
    """A notebook's code cells: number among all cells, counted from 0, and source."""
    cells = json.loads(notebook.read_text())["cells"]
    return [(at, "".join(cell["source"])) for at, cell in enumerate(cells) if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict) -> None:
    """Run a cell as a notebook does: its last expression is shown, in text and in HTML."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";") else None
    exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
    if last is not None:
        shown = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
        if shown is not None:
            print(repr(shown))
            for form in ("_repr_mimebundle_", "_repr_html_", "_repr_png_"):
                getattr(shown, form, lambda: None)()


def run_lab(notebook: Path, stop_at: float, say=print) -> dict:
    """Run a notebook's cells in order, in this process, until one fails or the time is over.

    The result: ``status`` (``whole``, ``failed``, ``unfinished``), ``seconds``, ``cells`` (number, seconds, what it
    printed) and ``differs``, what this machine does otherwise than the recorded one.
    """
    names: dict = {"__name__": "__main__"}
    done: list[dict] = []
    status = "whole"
    os.chdir(notebook.parent)
    for at, code in code_cells(notebook):
        if time.monotonic() > stop_at:
            status = "unfinished"
            break
        said, start, error = io.StringIO(), time.perf_counter(), None
        with contextlib.redirect_stdout(said):
            try:
                run_cell(code, names)
            except Exception as problem:
                error = f"{type(problem).__name__}: {problem}"
                trace = traceback.format_exc()
        seconds = time.perf_counter() - start
        done.append({"cell": at, "seconds": round(seconds, 2), "said": said.getvalue()})
        if error:
            done[-1] |= {"error": error, "trace": trace}
            say(f"{notebook.stem} cell {at}: {error}")
            status = "failed"
            break
    differs = [{"claim": one.claim, "found": str(one.found), "so": one.so} for one in checks.differences()]
    seconds = round(sum(cell["seconds"] for cell in done), 1)
    return {"status": status, "seconds": seconds, "cells": done, "differs": differs}


def _in_a_process(name: str, file: Path, time_limit_s: float, pretended: str | None) -> dict:
    """A lab in a process of its own, as in a notebook: it begins with nothing imported."""
    words = [sys.executable, "-m", "labkit.recording.live_check", "--one", name, "--into", str(file)]
    words += ["--pretend", pretended] if pretended else []
    subprocess.run([*words, "--time-limit", str(time_limit_s)], cwd=ROOT, check=False)
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return {"status": "failed", "seconds": 0.0, "cells": [], "differs": [], "error": "its process died"}


def _surroundings() -> dict:
    """Which machine this is, in what the labs depend on."""
    found = find_nsys()
    return {
        "gpu": machine.gpu_name(),
        "driver": machine.driver_version(),
        "cpu": machine.cpu_name(),
        "cpu_cores": machine.usable_cores(),
        "torch": importlib.metadata.version("torch"),
        "nsys": found and found.version_text,
    }


def check(labs: list[str], file: Path, time_limit_s: float, pretended: str | None = None) -> dict:
    """Run the labs called so that did not run whole in a former call; the result so far, kept in ``file``."""
    stop_at = time.monotonic() + time_limit_s
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        found = {"labs": {}}
    here = {"pretended": pretended} if pretended else _surroundings()
    found |= {"machine": here, "live": os.environ.get("LAB_LIVE", "quick")}
    for name in labs:
        if found["labs"].get(name, {}).get("status") == "whole":
            continue
        left_s = stop_at - time.monotonic()
        if left_s <= 0:
            break
        scratch = file.with_name(f"live_check-{name}.json")
        result = _in_a_process(name, scratch, left_s, pretended)
        scratch.unlink(missing_ok=True)
        found["labs"][name] = result | {"run_at": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        write_json(file, found)
        differs = len(result["differs"])
        print(f"{name}: {result['status']}, {len(result['cells'])} cells, {result['seconds']:.0f} s, {differs} differ")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m labkit.recording.live_check", description=__doc__.split("\n")[0])
    parser.add_argument("--labs", type=int, nargs="*", help="numbers of labs (default: all; 0 is the front page)")
    parser.add_argument("--into", type=Path, default=REPORTS, metavar="DIR", help="where live_check.json goes")
    parser.add_argument(
        "--time-limit", type=float, default=float("inf"), metavar="S", help="begin no cell after S seconds"
    )
    parser.add_argument("--pretend", choices=machines.names(), metavar="MACHINE", help=", ".join(machines.names()))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ["LAB_MODE"] = "live"
    if args.one:
        there = source.using(machines.live(args.pretend)) if args.pretend else contextlib.nullcontext()
        with there:
            write_json(args.into, run_lab(_notebook(args.one), time.monotonic() + args.time_limit, lambda line: None))
        return
    with one_sentence():
        every = {0: "start_here", **{lab.number: lab.name for lab in course.LABS}}
        numbers = list(every) if args.labs is None else args.labs
        if unknown := [number for number in numbers if number not in every]:
            raise LabError(f"there is no lab {unknown[0]}: there are 0 (the front page) to {max(every)}.")
        found = check([every[number] for number in numbers], args.into / NAME, args.time_limit, args.pretend)
    asked = [found["labs"].get(every[number], {}).get("status") for number in numbers]
    sys.exit(0 if all(status == "whole" for status in asked) else 1)


def _notebook(name: str) -> Path:
    return ROOT / f"{name}.ipynb" if name == "start_here" else ROOT / "labs" / f"{name}.ipynb"


if __name__ == "__main__":
    main()
