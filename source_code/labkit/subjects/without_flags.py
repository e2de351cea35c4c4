"""What does a training script look like as its owner would have it? One of ours with its flags put in, nothing else.

A program of source_code/clinic/ carries all its faults behind flags. Here the flags of one case are put in: each
``args.…`` becomes its value, conditions on these are decided, what they rule out is gone, and so are docstrings. What
is left is the program that was profiled, written by ``ast.unparse``.
"""

from __future__ import annotations

import argparse
import ast
import operator
import shlex
from types import SimpleNamespace
from typing import Protocol

from labkit.paths import SOURCE_CODE

NAMED = "named"  # opens an NVTX range, or none
COMPARED = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
COUNTED = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow}


class Program(Protocol):
    """A script of source_code/ whose flags are known."""

    script: str
    flags: str


def source(case: Program, names: tuple[str, ...], ranges: bool = True) -> str:
    """Functions of a case's program, its flags put in; what is not called any more is left out.

    ``ranges=False``: without the names that it gives its phases.
    """
    tree = ast.parse((SOURCE_CODE / case.script).read_text(encoding="utf-8"))
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    values = vars(_parsed(tree, defined["parse_args"], case))
    values |= {} if ranges else {"no_ranges": True}
    pieces = {name: _swept(_Filled(values).visit(defined[name]), values) for name in names}
    called = {name for piece in pieces.values() for name in _read(piece)}
    kept = [piece for name, piece in pieces.items() if name in called or name == names[-1]]
    return "\n\n\n".join(ast.unparse(ast.fix_missing_locations(Plain().visit(piece))) for piece in kept)


def _parsed(tree: ast.Module, parse_args: ast.FunctionDef, case: Program) -> argparse.Namespace:
    """What the program's own ``parse_args`` makes of the case's flags on a machine with a GPU, without torch."""
    faults = [node for node in tree.body if _assigned(node) == "FAULTS"]
    gpu = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    names = {"argparse": argparse, "torch": gpu, "__doc__": ""}
    exec(compile(ast.Module([*faults, parse_args], []), case.script, "exec"), names)
    return names["parse_args"](shlex.split(case.flags))


class _Filled(ast.NodeTransformer):
    """Puts values in the place of ``args.…`` and decides what these decide."""

    def __init__(self, values: dict[str, object]) -> None:
        self.values = values

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "args":
            return ast.Constant(self.values[node.attr])
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        node = self.generic_visit(node)
        compare = COMPARED.get(type(node.ops[0]))
        if compare and isinstance(node.left, ast.Constant) and isinstance(node.comparators[0], ast.Constant):
            return ast.Constant(compare(node.left.value, node.comparators[0].value))
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        node = self.generic_visit(node)
        decides = isinstance(node.op, ast.Or)  # a true part decides an "or", a false one an "and"
        rest = [part for part in node.values if not (_is_bool(part) and part.value is not decides)]
        if decided := [part for part in rest if _is_bool(part)]:
            return decided[0]
        if len(rest) < 2:
            return rest[0] if rest else ast.Constant(not decides)
        return ast.BoolOp(node.op, rest)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        node = self.generic_visit(node)
        count = COUNTED.get(type(node.op))
        both = [side.value for side in (node.left, node.right) if isinstance(side, ast.Constant)]
        if count and len(both) == 2 and all(isinstance(value, int) for value in both):
            return ast.Constant(count(*both))
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        node = self.generic_visit(node)
        return (node.body if node.test.value else node.orelse) if isinstance(node.test, ast.Constant) else node

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        node = self.generic_visit(node)
        return (node.body if node.test.value else node.orelse) if isinstance(node.test, ast.Constant) else node

    def visit_For(self, node: ast.For) -> ast.stmt | None:
        node = self.generic_visit(node)
        return None if isinstance(node.iter, ast.Tuple) and not node.iter.elts else node

    def visit_With(self, node: ast.With) -> ast.stmt | list[ast.stmt]:
        node = self.generic_visit(node)
        items = [item for item in node.items if not self._is_nothing(item.context_expr)]
        for item in items:
            if _called(item.context_expr) == NAMED:
                item.context_expr.func = ast.parse("torch.cuda.nvtx.range", mode="eval").body
        return ast.With(items, node.body) if items else node.body

    def _is_nothing(self, expression: ast.expr) -> bool:
        if _called(expression) == NAMED:
            return bool(self.values.get("no_ranges"))
        if _is_off(expression):
            return True
        return _called(expression) == "operators_named" and self.values["fault"] != "nvtx"

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node = self.generic_visit(node)
        node.args = [one for one in node.args if not (isinstance(one, ast.Name) and one.id == "args")]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        node = self.generic_visit(node)
        node.args.args = [one for one in node.args.args if one.arg != "args"]
        return _without_docstring(node)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | None:
        """Without calls that switch something off, which is off anyway."""
        node = self.generic_visit(node)
        off = isinstance(node.value, ast.Call) and [ast.dump(one) for one in node.value.args] == [OFF]
        return None if off else node


OFF = ast.dump(ast.Constant(False))


class Plain(ast.NodeTransformer):
    """Writes ``a, b = c, d``, ``return a, b`` and ``for a, b in`` without brackets, as people do; Pythons differ there.

    What is written already stands as a name: ``ast.unparse`` leaves names as they are.
    """

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        node.targets, node.value = [_bare(target) for target in node.targets], _bare(node.value)
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        node.target = _bare(node.target)
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        node.value = _bare(node.value)
        return node


def _bare(node: ast.expr | None) -> ast.expr | None:
    several = isinstance(node, ast.Tuple) and len(node.elts) > 1
    return ast.Name(", ".join(map(ast.unparse, node.elts)), ast.Load()) if several else node


def _without_docstring(node: ast.FunctionDef) -> ast.stmt:
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        node.body = node.body[1:]
    return node


def _called(expression: ast.expr) -> str | None:
    """The name of the plain function that an expression calls."""
    called = isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name)
    return expression.func.id if called else None


def _is_off(expression: ast.expr) -> bool:
    """A context that says ``enabled=False``."""
    keywords = expression.keywords if isinstance(expression, ast.Call) else []
    return any(one.arg == "enabled" and _is_bool(one.value) and not one.value.value for one in keywords)


def _is_bool(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant) and isinstance(expression.value, bool)


def _swept(piece: ast.stmt, values: dict[str, object]) -> ast.stmt:
    """Without what a fault that is not there left behind: names that nobody reads, or that are true or false once."""
    while True:
        before = ast.dump(piece)
        known = {_assigned(node): node.value for node in ast.walk(piece) if _assigned(node) and _is_bool(node.value)}
        piece = _Swept(_read(piece)).visit(_Filled(values).visit(_Decided(known).visit(piece)))
        if ast.dump(piece) == before:
            return piece


class _Decided(ast.NodeTransformer):
    """Puts true or false in the place of names that stand for it."""

    def __init__(self, known: dict[str, ast.expr]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.known.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


class _Swept(ast.NodeTransformer):
    """Leaves out assignments that nothing reads, unless they call something, and ``del``."""

    def __init__(self, read: set[str]) -> None:
        self.read = read

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        calls = any(isinstance(part, ast.Call) for part in ast.walk(node.value))
        return node if calls or _assigned(node) in (None, *self.read) else None

    def visit_Delete(self, node: ast.Delete) -> ast.stmt | None:
        return None


def _read(piece: ast.AST) -> set[str]:
    """The names of which a piece of code reads the value."""
    return {node.id for node in ast.walk(piece) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _assigned(node: ast.AST) -> str | None:
    """The one plain name to which a statement assigns."""
    named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    return node.targets[0].id if named else None
