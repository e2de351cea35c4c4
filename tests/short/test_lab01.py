"""What lab 1 gives its reader to take home: the lines of its page are those that the course itself runs."""

from __future__ import annotations

import ast

import nbformat

from labkit import course
from labkit.paths import ROOT


def function(source: str, name: str) -> str:
    """What a function does, whatever its docstring says."""
    (found,) = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name]
    body = found.body[1:] if ast.get_docstring(found) else found.body
    return "\n".join(map(ast.unparse, [found.args, *body]))


def test_the_bracket_that_the_page_shows_is_the_templates():
    template = (ROOT / "source_code/examples/template.py").read_text()
    (page,) = [
        cell.source
        for cell in nbformat.read(course.LABS[0].path, as_version=4).cells
        if cell.cell_type == "code" and "def watched(" in cell.source
    ]
    assert function(page, "watched") == function(template, "watched")
