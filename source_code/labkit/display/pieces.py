"""What does a named piece of a source file read like? A function, a class or a constant; in C++, a statement."""

from __future__ import annotations

import ast

from labkit.errors import LabError, near
from labkit.training.manifest import names_of


def part(source: str, name: str) -> str:
    """The source of one function or class with its decorators, ``"matmul"`` or ``"Run.captured"``, or of a constant.

    LabError where the source has nothing of that name.
    """
    node: ast.AST = ast.parse(source)
    for word in name.split("."):
        there = {known: child for child in ast.iter_child_nodes(node) for known in names_of(child) if known}
        if word not in there:
            raise LabError(f"there is nothing called {name} in this source. {near(word, there)}")
        node = there[word]
    return text_of(source, node)


def statement(source: str, begins: str) -> str:
    """The first statement of a source in C++ that begins so, with its block: ``"for (int step"``, ``"auto fetch"``.

    LabError where none does.
    """
    lines = source.splitlines()
    there = (number for number, line in enumerate(lines) if line.lstrip().startswith(begins))
    if (first := next(there, None)) is None:
        raise LabError(f"no statement begins with {begins} in this source.")
    indent = len(lines[first]) - len(lines[first].lstrip())
    code, last = lines[first].split("//")[0], first
    while code.count("{") > code.count("}") or not code.rstrip().endswith((";", "}")):
        last += 1
        code += lines[last].split("//")[0].replace("} else {", "}")
    shown = [line[min(indent, len(line) - len(line.lstrip())) :] for line in lines[first : last + 1]]
    return "\n".join(shown).removesuffix(" else {") + "\n"


def text_of(source: str, node: ast.AST) -> str:
    """The lines of a statement, decorators and all, without their indentation."""
    first = min([node.lineno, *(word.lineno for word in getattr(node, "decorator_list", []))])
    all_lines = source.splitlines()[first - 1 : node.end_lineno]
    indent = len(all_lines[0]) - len(all_lines[0].lstrip())
    return "\n".join(line[indent:] for line in all_lines) + "\n"
