"""What is there, for a program to look up? Labs, scripts, commands and recordings, out of the catalogue and the plan.

``make notebooks`` writes it to .github/index.json; a test says whether it is what the catalogue makes of it.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import stepbudget
from labkit import course
from labkit.paths import RECORDED, ROOT, SOURCE_CODE
from labkit.recording import plan

FILE = ROOT / ".github" / "index.json"
FOLDERS = ("benchmarks", "clinic", "examples", "speedrun")  # of scripts, beside the ladder
TARGET = re.compile(r"^([a-z-]+):.*?## (.+)$", re.MULTILINE)
SEED = re.compile(r" --(?:first-)?seed \d+")  # of a command that is recorded once a seed
ROUND = re.compile(r"-\d\d\.json$")  # of a file: its round, or its seed
GPUS = 2  # of the hosts whose GPUs are recorded together


def text() -> str:
    """The whole index, as JSON; paths are from the top of the checkout."""
    found = {
        "stepbudget": stepbudget.__version__,
        "functions": {name: f"source_code/stepbudget/API.md#{name}" for name in stepbudget.__all__},
        "labs": [_lab(lab) for lab in course.LABS],
        "routes": {route.name: route.labs for route in course.ROUTES},
        "scripts": _scripts(),
        "commands": _commands(),
        "machines": {folder: f"{_path(RECORDED)}/{folder}" for folder in (*course.MACHINES, *course.HOSTS)},
        "recordings": _recordings(),
    }
    return "{\n" + ",\n".join(f"{_json(name)}: {_lines(value)}" for name, value in found.items()) + "\n}\n"


def _lines(value: object) -> str:
    """JSON with a line for each entry of a list or an object: so changes are read, and merged, entry by entry."""
    if isinstance(value, dict):
        return "{\n " + ",\n ".join(f"{_json(name)}: {_json(one)}" for name, one in value.items()) + "\n}"
    return "[\n " + ",\n ".join(map(_json, value)) + "\n]" if isinstance(value, list) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _lab(lab: course.Lab) -> dict:
    own = {name: getattr(lab, name) for name in ("number", "title", "topic", "minutes", "part", "treats")}
    return own | {"file": _path(lab.path)}


def _scripts() -> dict[str, dict]:
    """Path → what it does; of a rung of the ladder, the lab that teaches it."""
    ladder = {f"source_code/{step.script}": {"does": step.new, "lab": step.lab} for step in course.STEPS}
    ranks = {f"source_code/{name}": {"does": what} for name, what in course.SEVERAL_GPUS.items()}
    others = (path for folder in FOLDERS for path in sorted((SOURCE_CODE / folder).glob("*.py")))
    return ladder | ranks | {_path(path): {"does": _says(path)} for path in others}


def _commands() -> dict[str, str]:
    """Command → what it does: make's, the reader's, and each module that can be run."""
    made = {f"make {name}": what for name, what in TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8"))}
    own = {"stepbudget REPORT": _says(SOURCE_CODE / "stepbudget" / "__main__.py")}
    for path in sorted((SOURCE_CODE / "labkit").rglob("*.py")):
        if '\nif __name__ == "__main__":\n' in path.read_text(encoding="utf-8"):
            module = ".".join(path.relative_to(SOURCE_CODE).with_suffix("").parts).removesuffix(".__main__")
            own[f"python3 -m {module}"] = _says(path)
    return made | own


def _recordings() -> list[dict]:
    """What is recorded, an entry a command: its kind, and the pattern of its files' names in a machine's folder."""
    files: dict[tuple[str, str], dict[str, None]] = {}
    for item in [*plan.plan(), *plan.of_ranks(GPUS)]:
        files.setdefault((item.kind, SEED.sub("", item.command)), {})[ROUND.sub("-*.json", item.file)] = None
    return [{"kind": kind, "command": command, "files": [*made]} for (kind, command), made in files.items()]


def _says(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def _path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
