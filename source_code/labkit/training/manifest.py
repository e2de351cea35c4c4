"""Which code was measured? Each module of ours that a process loaded and that can change what it measures, hashed.

A record carries it, so that one can tell later whether today's code would still measure the same. An operator, a number
or a flag's default changes a hash; a comment, a docstring, where something of ours is imported from and how the command
line is checked do not. The hash is the same under every Python that the course supports. A process that is timed from
outside only names its modules, at its end; who timed it reads them.
"""

from __future__ import annotations

import ast
import atexit
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

SOURCE_CODE = Path(__file__).resolve().parents[2]
SCRIPT = getattr(sys.modules["__main__"], "__file__", None)  # asked now: Python forgets it when the script has ended
# What can change a measurement: all else that a process loads prints, checks, records or reads. Patterns of modules …
MEASURED = (
    *("benchmarks/*.py", "clinic/*.py", "examples/*.py", "speedrun/*.py"),
    *("labkit/kernels/*.py", "labkit/kernels/*.cu", "labkit/kernels/*.cuh", "labkit/speedrun/*.py"),
    *(f"labkit/training/{name}.py" for name in ("model", "clock", "text", "sizes", "number_types")),
    *("labkit/training/keras_net.py", "labkit/training/keras_step.py"),
)
# … but for those that stand in for a package, and, of these modules, some definitions alone.
STAND_INS = ("labkit/kernels/triton_or_not.py",)
PARTS = {
    "labkit/training/run.py": (
        *("Run.epochs", "Run.timed", "Run.on_device", "Run.warming_up", "Run.captured", "Run.synchronize"),
        "rehearsal",
    ),
    "labkit/training/data.py": ("MEAN", "transform", "DigitSet", "normalise"),
    "labkit/training/devices.py": ("set_fp32_precision", "reduced_precision"),
    "labkit/training/cli.py": ("parse_args", "spare_cores"),
    "labkit/training/ranges.py": ("phase", "loading"),
    "labkit/training/distributed.py": ("DistributedRun.timed", "DistributedRun.epochs", "DistributedRun.own"),
}
# What these modules define and each record of theirs holds itself: a search may end with other settings than it began.
RECORDED = {"speedrun/*.py": ("RECIPE",)}
CUDA_FILE = re.compile(r'"([\w./]+\.cuh?)"')
OWN = ("argparse", "labkit", "stepbudget")  # where from a name is imported: a module may move
NO_CODE = ("ctx", "kind", "type_comment")  # fields of a syntax tree that follow from others, or say nothing


def manifest(modules: Iterable[str] | None = None) -> dict:
    """What a record keeps of the code behind it: commit, whether the tree was clean, a hash for each module.

    ``modules``: paths from source_code/, by default of all that this process has loaded. Commit and cleanliness are
    those of source_code/: what ``LAB_COMMIT`` says (``<sha>`` or ``<sha>+dirty``, for a copy without git), else git,
    else null. No modules (null) where nobody knows them.
    """
    sha, _, dirty = (os.environ.get("LAB_COMMIT") or _git()).partition("+")
    named = _loaded_paths() if modules is None else sorted(filter(is_measured, modules))
    hashes = {path: file_hash(SOURCE_CODE / path) for path in named}
    return {"commit": sha or None, "clean": not dirty if sha else None, "modules": hashes}


def for_record() -> dict:
    """``{"manifest": …}`` for a record; nothing where whoever timed this process will add it (``watched``)."""
    return {} if os.environ.get("LAB_MANIFEST") else {"manifest": manifest()}


def _loaded_paths() -> list[str]:
    """The measured modules that this process has loaded, from source_code/; a reader's own script by its whole path."""
    named = {SCRIPT, *(getattr(module, "__file__", None) for module in list(sys.modules.values()))} - {None, ""}
    folders = set(map(os.path.dirname, named))  # 300 with PyTorch, of 2,300 modules, which take long to look at
    inside = {folder for folder in folders if Path(folder).resolve().is_relative_to(SOURCE_CODE)}
    near = (Path(name) for name in named if name == SCRIPT or os.path.dirname(name) in inside)  # noqa: PTH120
    files = {file.resolve() for file in near if file.is_absolute()}  # torch makes some names up
    files |= _cuda(file for file in files if file.suffix == ".py" and file.is_relative_to(SOURCE_CODE))
    ours = {file.relative_to(SOURCE_CODE).as_posix() for file in files if file.is_relative_to(SOURCE_CODE)}
    own = {str(file) for file in files if str(file) == SCRIPT and _is_own(file)}
    return sorted(path for path in ours | own if is_measured(path))


def _cuda(files: Iterable[Path]) -> set[Path]:
    """The CUDA C++ that these modules name in quotes (``"5_tma.cu"``), and what that includes."""
    found, left = set(), list(files)
    while left:
        file = left.pop()
        named = {(file.parent / name).resolve() for name in CUDA_FILE.findall(file.read_text(encoding="utf-8"))}
        new = {one for one in named - found if one.is_file()}
        found |= new
        left += new
    return found


def is_measured(path: str) -> bool:
    """Can this module change a measurement? Scripts at the top of source_code/ and a reader's own can."""
    return "/" not in path or path.startswith("/") or path in PARTS or _is_whole(path)


def _is_whole(path: str) -> bool:
    return path not in STAND_INS and any(fnmatchcase(path, pattern) for pattern in MEASURED)


def _is_own(script: Path) -> bool:
    """Is this a reader's own script, and neither one of ours nor an installed one, such as Jupyter's or pytest's?"""
    return script.suffix == ".py" and not script.is_relative_to(sys.prefix) and not script.is_relative_to(SOURCE_CODE)


def watched(folder: Path) -> dict[str, str]:
    """The environment variable for which a program, and each that it starts, names its modules in ``folder``."""
    return {"LAB_MANIFEST": str(folder)}


def name_modules_at_exit(folder: Path) -> None:
    """Leave the names of this process's modules in ``folder`` when it ends. Forked workers end without this."""
    atexit.register(lambda: (folder / f"modules-{os.getpid()}.json").write_text(json.dumps(_loaded_paths())))


def gathered(folder: Path) -> dict | None:
    """The manifest of all processes that named their modules in ``folder``; None where none did."""
    files = list(folder.glob("modules-*.json"))
    return manifest({path for file in files for path in json.loads(file.read_text())}) if files else None


def changed(modules: dict[str, str], folder: Path = SOURCE_CODE) -> dict[str, tuple[str, str | None]]:
    """Those modules of a manifest whose code is another today: path → (hash then, hash now; None where it is gone).

    What by now is known not to be measured is not asked.
    """
    now = {path: file_hash(folder / path, path) for path in modules if is_measured(path)}
    return {path: (modules[path], today) for path, today in now.items() if today != modules[path]}


def is_outdated(record: dict) -> bool:
    """Does today's code measure something else than what made this record, or does nobody know which code that was?"""
    kept = record.get("manifest") or {"modules": None}
    return kept["modules"] is None or bool(changed(kept["modules"]))


def file_hash(file: Path, path: str | None = None) -> str | None:
    """The hash of a module's code, or None where there is no such file; ``path``: its name in a manifest."""
    name = path or (file.relative_to(SOURCE_CODE).as_posix() if file.is_relative_to(SOURCE_CODE) else str(file))
    if not file.is_file():
        return None
    if file.suffix != ".py":  # CUDA C++: neither comments nor how it is laid out
        code = re.sub(rb"//[^\n]*|/\*.*?\*/", b"", file.read_bytes(), flags=re.DOTALL)
        return hashlib.sha256(b" ".join(code.split())).hexdigest()[:16]
    without = [own for pattern, own in RECORDED.items() if fnmatchcase(name, pattern)]
    return hash_of(file.read_bytes(), PARTS.get(name, ()), *without)


@cache
def hash_of(source: bytes, parts: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of what the source measures, or these definitions of it."""
    tree = ast.parse(source)
    tree.body = [statement for statement in tree.body if names_of(statement).isdisjoint(without)]
    if parts:
        tree = ast.Module([found for name in parts for found in _defined(tree, name)], [])
    pieces: list[str] = []
    _spell(_Measured().of(tree), pieces)
    return hashlib.sha256("".join(pieces).encode()).hexdigest()[:16]


def _defined(tree: ast.AST, name: str) -> list[ast.stmt]:
    """The statements that define ``name`` at the top of a module, or ``Class.method`` in it."""
    name, _, method = name.partition(".")
    found = [statement for statement in tree.body if name in names_of(statement)]
    return [inner for one in found for inner in _defined(one, method)] if method else found


def names_of(statement: ast.AST) -> set[str]:
    """What a statement defines."""
    if isinstance(statement, ast.Assign):
        return {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return {getattr(statement, "name", "")}


class _Measured(ast.NodeTransformer):
    """A module without what cannot change a measurement."""

    def __init__(self) -> None:
        self.dropped: list[ast.AST] = []

    def of(self, tree: ast.Module) -> ast.Module:
        """The module; of its functions none that only what was left out has called."""
        tree = self.visit(tree)
        names = _names_in(self.dropped)
        for function in [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name in names]:
            others = [one for one in tree.body if one is not function]
            if function.name not in _names_in(others):
                tree.body = others
        return tree

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Of a function that only reads the command line, its flags' defaults."""
        if node.name == "parse_args":
            self.dropped.append(node)
            calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
            empty = dict.fromkeys(node._fields)  # Python 3.15 wants each field to be named
            return ast.FunctionDef(**empty | {"name": node.name, "body": list(filter(None, map(_default, calls)))})
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, name, None), list):
                setattr(node, name, [one for statement in statements for one in self._kept(statement)])
        return node

    def _kept(self, statement: ast.stmt) -> list[ast.AST]:
        value = getattr(statement, "value", None)
        call = value if isinstance(value, ast.Call) else None
        if _is_flag(call):
            self.dropped.append(statement)
            return [found] if (found := _default(call)) else []
        parses = isinstance(statement, ast.Assign) and _called(call or value) in PARSES
        has_defaults = _called(call) == "parse_args" and bool(call.keywords)  # a step's own
        if _imports_ours(statement) or _refuses(statement) or _is_bare_text(statement) or (parses and not has_defaults):
            self.dropped.append(statement)
            return []
        return [statement]


PARSES = ("ArgumentParser", "script_parser", "add_argument", "parse_args")


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {name.id for node in nodes for name in ast.walk(node) if isinstance(name, ast.Name)}


def _imports_ours(node: ast.stmt) -> bool:
    names = [one.name for one in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
    return isinstance(node, (ast.Import, ast.ImportFrom)) and all(name.partition(".")[0] in OWN for name in names)


def _called(node: ast.AST | None) -> str:
    """The last word of what is called, or named."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "attr", getattr(node, "id", ""))


def _is_flag(call: ast.Call | None) -> bool:
    return call is not None and _called(call) in ("add", "add_argument") and _default(call, anyhow=True) is not None


def _refuses(node: ast.stmt) -> bool:
    """``if …: parser.error(…)``: a run that is refused leaves no recording."""
    errors = [_called(getattr(one, "value", None)) == "error" for one in getattr(node, "body", [])]
    return isinstance(node, ast.If) and not node.orelse and all(errors)


def _default(call: ast.Call, anyhow: bool = False) -> ast.AST | None:
    """A flag and what it is where nobody gives it; None where that is nothing, or where this adds no flag."""
    flag = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    if _called(call) not in ("add", "add_argument") or not isinstance(flag, str):
        return None
    kept = [one for one in call.keywords if one.arg == "default"]
    return ast.Call(func=ast.Constant(flag), args=[], keywords=kept) if kept or anyhow else None


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
