"""What does a script look like that somebody brings, what does the template add to it, and what do all fixes change?

The scripts of source_code/examples/ carry all fixes, and the profiler's bracket, behind flags. Here flags are put in,
as for the clinic's patients, and what they rule out is gone: so each is a script as its owner would have it.
"""

from __future__ import annotations

import ast
from types import SimpleNamespace

from labkit.display.diffs import Diff
from labkit.errors import LabError
from labkit.recording import plan
from labkit.subjects.without_flags import Plain, source

FILE = "train.py"  # as the owner calls it
SHOWN = ("train",)  # the function in which all fixes lie
BATCHES = "batches"  # in it, the loader or what watches it


def pasted(report: str, steps: int = 10) -> Diff:
    """What the template adds to the training function behind a report: the wrapped loader, a name for each phase."""
    return _diff(script(report, steps), f"{FILE}, which a profiler can watch", script(report, steps, watched=True))


def fixes(first: str) -> Diff:
    """What all fixes of a script change in it; ``first``: its first report. LabError where it is none."""
    if first not in plan.EXAMPLES:
        raise LabError(f"no script here is called {first}: there are {', '.join(plan.EXAMPLES)}.")
    return _diff(script(first), f"{FILE}, fixed", script(list(plan.EXAMPLES[first])[-1]))


def before(report: str) -> str:
    """The report of the script to which this one's mend was added; LabError for a first report, or an unknown one."""
    for mends in plan.EXAMPLES.values():
        names = list(mends)
        if report in names[1:]:
            return names[names.index(report) - 1]
    raise LabError(f"no fix led to a report called {report}.")


def train(file: str, flags: str, watched: bool = False) -> str:
    """The training function of a script of source_code/, its flags put in; ``watched``: with the template in it."""
    program = SimpleNamespace(script=file, flags=f"{flags} --profile" if watched else flags)
    tree = ast.parse(source(program, SHOWN, ranges=watched))
    return ast.unparse(ast.fix_missing_locations(Plain().visit(_AsWritten(tree).visit(tree))))


def script(report: str, steps: int | None = None, watched: bool = False) -> str:
    if report not in plan.EXAMPLE_STEPS:
        raise LabError(f"no report is called {report}: there are {', '.join(plan.EXAMPLE_STEPS)}.")
    file, _, flags = plan.EXAMPLE_STEPS[report].partition(" ")
    return train(file, flags + (f" --steps {steps}" if steps else ""), watched)


class _AsWritten(ast.NodeTransformer):
    """As people write it: no name for the loader, no clock, no argument that says what holds, no *every step*."""

    def __init__(self, tree: ast.AST) -> None:
        named = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == [BATCHES]
        ]
        self.batches = named[0].value

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        return None if [ast.unparse(one) for one in node.targets] == [BATCHES] else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        node = self.generic_visit(node)
        test = ast.unparse(node.test)
        if test.startswith("step == "):  # from here on it takes the time
            return None
        return node.body if test.endswith(" % 1 == 0") else node

    def visit_Return(self, node: ast.Return) -> ast.Return:
        return ast.Return(node.value.elts[-1])  # the losses, without the time

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.batches if node.id == BATCHES else node

    def visit_keyword(self, node: ast.keyword) -> ast.keyword | None:
        usual = ("None", "True" if node.arg == "enabled" else "False")
        return None if ast.unparse(node.value) in usual else node


def _diff(before: str, new: str, after: str) -> Diff:
    return Diff.of(FILE, before.splitlines(), new, after.splitlines())
