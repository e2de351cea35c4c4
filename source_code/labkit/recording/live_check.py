"""Do the labs run live on this machine? Each code cell is run, timed and noted, and what differs here with it.

    python3 -m labkit.recording.live_check                     every lab, into reports/live_check.json
    python3 -m labkit.recording.live_check --labs 1 2 3        these
    python3 -m labkit.recording.live_check --time-limit 500    begin no cell after so many seconds
    python3 -m labkit.recording.live_check --pretend turing    as on a machine of labkit.pretend: nothing is measured
    python3 -m labkit.recording.live_check --merge FILE …      make one result of several, in the place of the old one

What a former call finished is kept: labs that ran whole are skipped. The result is written after each cell, so that a
lab that is killed leaves what it had done, as ``unfinished``, and which cell was ``running``. A lab stops at the cell
that fails, as a notebook does. ``--into reports/recorded/<machine>`` keeps the result beside the recordings;
labs/recording.md shows it as "last run live". Needs no Jupyter: a lab is one process.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from labkit import checks, course, source
from labkit.errors import LabError, one_sentence
from labkit.paths import REPORTS, ROOT
from labkit.pretend import machines
from labkit.source.facts import torch_version
from labkit.training import machine
from labkit.training.record import write_json
from stepbudget.export.nsys import find_nsys

STEM = "live_check"  # beside recordings, also with what is less there: live_check_4cores.json
NAME = f"{STEM}.json"
PICTURE = re.compile(r"(?<='image/png': ')[^']+")
WHOLE, FAILED, UNFINISHED = "whole", "failed", "unfinished"  # how a lab ended


def code_cells(notebook: Path) -> list[tuple[int, str]]:
    """A notebook's code cells: number among all cells, counted from 0, and source."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
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


def run_lab(
    notebook: Path,
    stop_at: float,
    say: Callable[[str], None] = print,
    keep: Callable[[dict], None] = lambda so_far: None,
) -> dict:
    """Run a notebook's cells in order, in this process, until one fails or the time is over.

    The result: ``status`` (``whole``, ``failed``, ``unfinished``), ``seconds``, ``cells`` (number, seconds, what it
    printed; of the one that failed also ``error``, with the claim that did not hold, and ``trace``) and ``differs``,
    what this machine does otherwise than the recorded one. Before each cell ``keep`` gets the result so far, with the
    cell that is ``running`` and ``since`` when.
    """
    names: dict = {"__name__": "__main__"}
    done: list[dict] = []
    status = WHOLE
    os.chdir(notebook.parent)
    for at, code in code_cells(notebook):
        if time.monotonic() > stop_at:
            status = UNFINISHED
            break
        keep(_result(UNFINISHED, done) | {"running": at, "since": _now()})
        said, start, error = io.StringIO(), time.perf_counter(), None
        with contextlib.redirect_stdout(said):
            try:
                run_cell(code, names)
            except Exception as problem:
                error = f"{type(problem).__name__}: {problem}"
                trace = traceback.format_exc()
        seconds = time.perf_counter() - start
        done.append({"cell": at, "seconds": round(seconds, 2), "said": _anywhere(said.getvalue())})
        if error:
            done[-1] |= {"error": _anywhere(error), "trace": _anywhere(trace)}
            say(f"{notebook.stem} cell {at}: {error}")
            status = FAILED
            break
    result = _result(status, done)
    keep(result)
    return result


def _result(status: str, done: list[dict]) -> dict:
    differs = [{"claim": one.claim, "found": str(one.found), "so": one.so} for one in checks.differences()]
    seconds = round(sum(cell["seconds"] for cell in done), 1)
    return {"status": status, "seconds": seconds, "cells": list(done), "differs": differs}


def _anywhere(text: str) -> str:
    """The text without where on this machine the checkout and Python lie, and without what pictures consist of."""
    return PICTURE.sub("<picture>", text).replace(sys.executable, "python3").replace(f"{ROOT}/", "")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _in_a_process(name: str, file: Path, time_limit_s: float, pretended: str | None) -> dict:
    """A lab in a process of its own, as in a notebook: it begins with nothing imported. What became of it.

    The process puts what it has done so far into ``file``, before and after each cell.
    """
    put(file, name, _result(UNFINISHED, []))
    words = [sys.executable, "-m", "labkit.recording.live_check", "--one", name, "--into", str(file.resolve())]
    words += ["--pretend", pretended] if pretended else []
    ended = subprocess.run([*words, "--time-limit", str(time_limit_s)], cwd=ROOT, check=False).returncode
    result = read(file)["labs"][name]
    if ended:
        result |= {"status": FAILED, "error": f"its process ended with status {ended}"}
        put(file, name, result)
    return result


def read(file: Path) -> dict:
    """The result in a file; one without labs where there is none that can be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"labs": {}}


def put(file: Path, name: str, result: dict) -> None:
    """Put what became of a lab into the file, which is the old one or the new one at any time, never half of one."""
    found = read(file)
    found["labs"][name] = result | {"run_at": _now()}
    write_json(file, found)


def _surroundings() -> dict:
    """Which machine this is, in what the labs depend on."""
    found = find_nsys()
    return {
        "gpu": machine.gpu_name(),
        "driver": machine.driver_version(),
        "cpu": machine.cpu_name(),
        "cpu_cores": machine.usable_cores(),
        "torch": torch_version(),
        "nsys": found and found.version_text,
    }


def check(labs: list[str], file: Path, time_limit_s: float, pretended: str | None = None) -> dict:
    """Run the labs called so that did not run whole in a former call; the result so far, kept in ``file``."""
    stop_at = time.monotonic() + time_limit_s
    file.parent.mkdir(parents=True, exist_ok=True)
    here = {"pretended": pretended} if pretended else _surroundings()
    write_json(file, read(file) | {"machine": here, "live": os.environ.get("LAB_LIVE", "quick")})
    for name in labs:
        former = read(file)["labs"].get(name, {"status": UNFINISHED, "seconds": 0.0})
        if former["status"] == WHOLE:
            continue
        left_s = stop_at - time.monotonic()
        if left_s <= 0:
            break
        result = _in_a_process(name, file, left_s, pretended)
        if former["status"] == UNFINISHED:  # what it made is used again: its time counts
            result["seconds"] = round(result["seconds"] + former["seconds"], 1)
            put(file, name, result)
        differs = len(result["differs"])
        print(f"{name}: {result['status']}, {len(result['cells'])} cells, {result['seconds']:.0f} s, {differs} differ")
    return read(file)


def merged(results: list[dict]) -> dict:
    """One result of several of one machine: of each lab the newest that ran whole, else the one that got furthest.

    LabError where they are of different machines, or were not all run in the same way.
    """
    surroundings = [{name: one.get(name) for name in ("machine", "live")} for one in results]
    if any(one != surroundings[0] for one in surroundings):
        raise LabError("these results are of different machines, or one is quick and another full: they stay apart.")
    labs: dict[str, dict] = {}
    for result in results:
        for name, lab in result["labs"].items():
            if name not in labs or _rank(lab) > _rank(labs[name]):
                labs[name] = lab
    return {"labs": {name: labs[name] for name in names() if name in labs}, **surroundings[0]}


def _rank(lab: dict) -> tuple[bool, int, str]:
    """The larger, the rather it is kept."""
    whole = lab["status"] == WHOLE
    return whole, 0 if whole else len(lab["cells"]), lab["run_at"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m labkit.recording.live_check", description=__doc__.split("\n")[0])
    parser.add_argument("--labs", type=int, nargs="*", help="numbers of labs (default: all; 0 is the front page)")
    parser.add_argument("--into", type=Path, default=REPORTS, metavar="DIR", help="where live_check.json goes")
    parser.add_argument(
        "--time-limit", type=float, default=float("inf"), metavar="S", help="begin no cell after S seconds"
    )
    parser.add_argument("--pretend", choices=machines.names(), metavar="MACHINE", help=", ".join(machines.names()))
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="merge results of this machine instead")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ["LAB_MODE"] = "live"
    if args.one:
        there = source.using(machines.live(args.pretend)) if args.pretend else contextlib.nullcontext()
        with there:
            stop_at = time.monotonic() + args.time_limit
            run_lab(_notebook(args.one), stop_at, lambda line: None, partial(put, args.into, args.one))
        return
    with one_sentence():
        if args.merge:
            write_json(args.into / NAME, merged([read(file) for file in args.merge]))
            return
        numbers = range(len(names())) if args.labs is None else args.labs
        if unknown := [number for number in numbers if number not in range(len(names()))]:
            raise LabError(f"there is no lab {unknown[0]}: there are 0 (the front page) to {len(names()) - 1}.")
        labs = [names()[number] for number in numbers]
        found = check(labs, args.into / NAME, args.time_limit, args.pretend)["labs"]
    sys.exit(0 if all(found.get(name, {}).get("status") == WHOLE for name in labs) else 1)


def names() -> list[str]:
    """The notebooks' names, each at its number: the front page, then the labs."""
    return ["start_here", *(lab.name for lab in course.LABS)]


def _notebook(name: str) -> Path:
    return ROOT / f"{name}.ipynb" if name == "start_here" else ROOT / "labs" / f"{name}.ipynb"


if __name__ == "__main__":
    main()
