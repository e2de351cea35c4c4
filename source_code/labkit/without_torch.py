"""Which cells can run where PyTorch is not installed? All but those that compute with it, and those that need these.

Who only reads installs no PyTorch (``make read``): what was recorded is shown all the same. In the place of a cell that
needs it one line says so, and the notebook goes on.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import symtable
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType

PACKAGES = ("torch", "torchvision", "triton")  # what `make lab` installs and `make read` does not
SENTENCE = "left out: this cell computes with PyTorch, which is not installed here; `make lab` installs it."


def is_needed() -> bool:
    """Is this a place without PyTorch?"""
    return importlib.util.find_spec("torch") is None


def begin() -> None:
    """From the next cell on, in this notebook: leave out what needs PyTorch, if it is not installed."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not is_needed():
        return
    if not any(isinstance(one, WithoutTorch) for one in shell.ast_transformers):
        shell.ast_transformers.append(WithoutTorch(shell.user_ns))


class WithoutTorch(ast.NodeTransformer):
    """Leaves out the cells that need PyTorch, but for their other imports; remembers the names that nobody bound."""

    def __init__(self, names: Mapping[str, object]) -> None:
        self.names = names  # the notebook's, as they are when a cell is about to run
        self.missing: set[str] = set()

    def visit_Module(self, cell: ast.Module) -> ast.Module:
        nodes = list(ast.walk(cell))
        imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
        without = [node for node in imports if any(map(_fails, _modules(node).values()))]
        bound, read = _names(cell)
        if not (without or read & self.missing or any(map(_fails, self._rooms(nodes)))):
            self.missing -= bound
            return cell
        kept = [node for node in cell.body if node in imports and node not in without]
        self.missing |= bound - {name for node in kept for name in _modules(node)}
        said = ast.parse(f"print({SENTENCE!r})").body
        return ast.fix_missing_locations(ast.Module(kept + said, []))

    def _rooms(self, nodes: list[ast.AST]) -> set[str]:
        """The modules that a cell may reach through their package, as ``formats.blocks``."""
        found = set()
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                package = self.names.get(node.value.id)
                if isinstance(package, ModuleType) and hasattr(package, "__path__"):
                    found.add(f"{package.__name__}.{node.attr}")
        return found


def _names(cell: ast.Module) -> tuple[set[str], set[str]]:
    """Which names of the notebook does a cell bind, and which does it read before it has bound them itself?"""
    bound: set[str] = set()
    read: set[str] = set()
    for statement in cell.body:
        table = symtable.symtable(ast.unparse(statement), "<cell>", "exec")
        own = {name.get_name() for name in table.get_symbols() if name.is_assigned() or name.is_imported()}
        nodes = list(ast.walk(statement))
        targets = [node.target for node in nodes if isinstance(node, ast.For)]
        running = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        changed = {
            node.target.id for node in nodes if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
        }
        read |= (set(_read(table)) | changed) - bound - running
        bound |= own
    return bound, read


def _read(table: symtable.SymbolTable) -> Iterator[str]:
    """The names of the notebook that a statement reads, in the functions that it defines, too."""
    outermost = table.get_type() == "module"
    for name in table.get_symbols():
        if name.is_referenced() and (outermost or name.is_global()):
            yield name.get_name()
    for inner in table.get_children():
        yield from _read(inner)


def _modules(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """What an import binds: name → module, or what may be one; and the module that it takes them from, by itself."""
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
    names = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {node.module: node.module, **names}


def _fails(module: str) -> bool:
    """Does its import stop at PyTorch? Another reason is another matter, and is shown when the cell runs."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as problem:
        return (problem.name or "").partition(".")[0] in PACKAGES
    except ImportError:
        pass
    return False
