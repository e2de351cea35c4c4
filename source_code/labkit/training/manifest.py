"""Which code did this process run? Each module of ours that it loaded, with a hash of what the module does.

A record carries it, so that one can tell later whether today's code would still make that record. A comment or a
docstring changes no hash; an operator or a number does. The hash is the same under every Python that the course
supports. A process that is timed from outside only names its modules, at its end; who timed it reads them.
"""

from __future__ import annotations

import ast
import atexit
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

SOURCE_CODE = Path(__file__).resolve().parents[2]
SCRIPT = getattr(sys.modules["__main__"], "__file__", None)  # asked now: Python forgets it when the script has ended
# What a process may load although it cannot change what is measured, and why it cannot: patterns of modules.
_READS = "reads finished reports; no program that is measured opens one"
UNMEASURED = {
    "labkit/training/manifest.py": "names the modules after the measurement",
    "labkit/errors.py": "words for what went wrong: a run that failed leaves no recording",
    "labkit/training/ending.py": "ends a run before its time, which leaves no recording",
    "stepbudget/__init__.py": "imports the reader's functions when they are asked for",
    "stepbudget/errors.py": "words for what went wrong: a run that failed leaves no recording",
    "labkit/course.py": "lists labs, steps and machines; what a script computes stands in the script and in its flags",
    "labkit/topics/*__init__.py": "imports a topic's modules when they are asked for",
    "labkit/source/*": "opens results and starts processes; a process that is measured imports it without using it",
    "labkit/display/*": "draws",
    **dict.fromkeys(
        ("stepbudget/export/profile.py", "stepbudget/export/processes.py"),
        "starts nsys; a program that is measured starts none",
    ),
    **dict.fromkeys(("stepbudget/report.py", "stepbudget/window.py", "stepbudget/metrics.py"), _READS),
    **dict.fromkeys(("stepbudget/nccl.py", "stepbudget/backtraces.py"), _READS),
    "stepbudget/say/*": "words and colours of answers",
    **dict.fromkeys(("stepbudget/export/sqlite.py", "stepbudget/export/nsys.py", "stepbudget/ask/*"), _READS),
}
NO_CODE = ("ctx", "kind", "type_comment")  # fields of a syntax tree that follow from others, or say nothing


def manifest(modules: Iterable[str] | None = None) -> dict:
    """What a record keeps of the code behind it: commit, whether the tree was clean, a hash for each module.

    ``modules``: paths as in ``loaded()``, whose modules are the default. Commit and cleanliness are those of
    source_code/: what ``LAB_COMMIT`` says (``<sha>`` or ``<sha>+dirty``, for a copy without git), else git, else null.
    """
    sha, _, dirty = (os.environ.get("LAB_COMMIT") or _git()).partition("+")
    hashes = loaded() if modules is None else {path: file_hash(SOURCE_CODE / path) for path in sorted(modules)}
    return {"commit": sha or None, "clean": not dirty if sha else None, "modules": hashes}


def for_record() -> dict:
    """``{"manifest": …}`` for a record; nothing where whoever timed this process will add it (``watched``)."""
    return {} if os.environ.get("LAB_MANIFEST") else {"manifest": manifest()}


def loaded() -> dict[str, str]:
    """For each module of source_code/ that this process has loaded, and for its script: path → hash of its code.

    Paths are given from source_code/; that of a reader's own script, which lies elsewhere, is absolute.
    """
    return {path: file_hash(SOURCE_CODE / path) for path in _loaded_paths()}


def _loaded_paths() -> list[str]:
    named = {SCRIPT, *(getattr(module, "__file__", None) for module in list(sys.modules.values()))} - {None, ""}
    folders = set(map(os.path.dirname, named))  # 300 with PyTorch, of 2,300 modules, which take long to look at
    inside = {folder for folder in folders if Path(folder).resolve().is_relative_to(SOURCE_CODE)}
    near = (Path(name) for name in named if name == SCRIPT or os.path.dirname(name) in inside)  # noqa: PTH120
    files = {file.resolve() for file in near if file.is_absolute()}  # torch makes some names up
    ours = {file.relative_to(SOURCE_CODE).as_posix() for file in files if file.is_relative_to(SOURCE_CODE)}
    own = {str(file) for file in files if str(file) == SCRIPT and _is_own(file)}
    return sorted(path for path in ours | own if _is_measured(path))


def _is_measured(path: str) -> bool:
    return not any(fnmatchcase(path, pattern) for pattern in UNMEASURED)


def _is_own(script: Path) -> bool:
    """Is this a reader's own script, and neither one of ours nor an installed one, such as Jupyter's or pytest's?"""
    return script.suffix == ".py" and not script.is_relative_to(sys.prefix) and not script.is_relative_to(SOURCE_CODE)


def watched(folder: Path) -> dict[str, str]:
    """The environment variable for which a program, and each that it starts, names its modules in ``folder``."""
    return {"LAB_MANIFEST": str(folder)}


def name_modules_at_exit(folder: Path) -> None:
    """Leave the names of this process's modules in ``folder`` when it ends. Forked workers end without this."""
    atexit.register(lambda: (folder / f"modules-{os.getpid()}.json").write_text(json.dumps(_loaded_paths())))


def gathered(folder: Path, more: Iterable[str] = ()) -> dict | None:
    """The manifest of all processes that named their modules in ``folder``, and of ``more``; None where none did."""
    files = list(folder.glob("modules-*.json"))
    return manifest({path for file in files for path in json.loads(file.read_text())}.union(more)) if files else None


def changed(modules: dict[str, str], folder: Path = SOURCE_CODE) -> dict[str, tuple[str, str | None]]:
    """Those modules of a manifest whose code is another today: path → (hash then, hash now; None where it is gone).

    What by now is known to be ``UNMEASURED`` is not asked.
    """
    now = {path: file_hash(folder / path) for path in modules if _is_measured(path)}
    return {path: (modules[path], today) for path, today in now.items() if today != modules[path]}


def is_current(record: dict, command: str) -> bool:
    """Would today's code make this record again? It does if the command is the same, and all code behind the record."""
    kept = record.get("manifest")
    return record.get("command") == command and kept is not None and not changed(kept["modules"])


def file_hash(file: Path) -> str | None:
    """The hash of a module's code, or None where there is no such file."""
    return hash_of(file.read_bytes()) if file.is_file() else None


@cache
def hash_of(source: bytes) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of what the source says, comments and docstrings left out."""
    pieces: list[str] = []
    _spell(ast.parse(source), pieces)
    return hashlib.sha256("".join(pieces).encode()).hexdigest()[:16]


def _spell(node: object, pieces: list[str]) -> None:
    """A syntax tree as text. ``ast.dump`` differs from one Python to the next: new fields, empty ones shown or not."""
    if isinstance(node, ast.AST):
        pieces.append(f"({type(node).__name__}")
        for name in node._fields:
            value = getattr(node, name, None)
            if value is not None and value != [] and name not in NO_CODE:
                pieces.append(f" {name}=")
                _spell(value, pieces)
        pieces.append(")")
    elif isinstance(node, list):
        pieces.append("[")
        for item in node:
            if not _is_bare_text(item):
                _spell(item, pieces)
        pieces.append("]")
    else:
        pieces.append(f"{type(node).__name__} {node!r}")


def _is_bare_text(node: object) -> bool:
    """A docstring, or any other text that stands alone as a statement: it does nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _git() -> str:
    """``<sha>`` or ``<sha>+dirty``, as far as source_code/ goes; nothing where git or its folder is missing."""
    git = shutil.which("git")
    if git is None:
        return ""
    asked = (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "."])
    said = [subprocess.run([git, *words], cwd=SOURCE_CODE, capture_output=True, text=True) for words in asked]
    if any(answer.returncode for answer in said):
        return ""
    return said[0].stdout.strip() + ("+dirty" if said[1].stdout.strip() else "")
