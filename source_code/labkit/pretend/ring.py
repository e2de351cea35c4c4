"""Does a ring of tiles hold? A loop over mbarriers, walked on the CPU with each copy as late as its barrier lets it be.

The loop is that of ``5_tma.cu``: wait until this step's tiles are there, multiply, wait for products, fetch the next.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping

_TWO = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: lambda a, b: int(a / b),
    ast.Mod: lambda a, b: a - b * int(a / b), ast.BitXor: operator.xor, ast.BitAnd: operator.and_,
}  # fmt: skip


def value(expression: str, names: Mapping[str, int]) -> int:
    """An expression of whole numbers in C++ (``+ - * / % ^ &``) with these names. ValueError where it is another."""

    def of(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp) and type(node.op) in _TWO:
            return _TWO[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            return -of(node.operand) if isinstance(node.op, ast.USub) else of(node.operand)
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        raise ValueError(f"{ast.unparse(node)} is none of {', '.join(names)}, a whole number, + - * / % ^ &")

    try:
        return of(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f"'{expression}' cannot be worked out: {error}") from None


def trouble(phase: str, pending: str, following: str, stages: int = 4, steps: int = 24) -> str | None:
    """What goes wrong first in a ring of so many stages, in a sentence; None where every step reads its own tiles.

    ``phase``: the parity of the mbarrier's phase that ``step`` waits for; ``pending``: how many steps' products go on
    behind ``wgmma_wait``; ``following``: which step's tiles are fetched then. A wait for a parity is over at once where
    the phase under way has the other one (PTX ISA, ``mbarrier.try_wait.parity``). ValueError as ``value``.
    """
    asked: list[list[int]] = [[] for _ in range(stages)]  # steps whose tiles were asked for, by their place
    over = [0] * stages  # phases of its mbarrier that are over: copies that have come
    for step in range(min(stages, steps)):
        asked[step].append(step)
    under_way: list[int] = []  # steps whose products may still read their tiles
    for step in range(steps):
        names, place = {"step": step, "STAGES": stages}, step % stages
        parity, left = value(phase, names), value(pending, names)
        if parity not in (0, 1):
            return f"at step {step} PHASE is {parity}: a phase is 0 or 1"
        if over[place] % 2 == parity:
            if over[place] == len(asked[place]):
                return f"step {step} waits for ever: its tiles were not asked for, or its phase never comes"
            over[place] += 1
        if asked[place][over[place] - 1 : over[place]] != [step] or over[place] < len(asked[place]):
            return f"step {step} does not wait: that phase is over already, and its tiles may not be there"
        if left not in (0, 1):
            return f"PENDING is {left}: 1 lets this step's products go on, 0 waits for them, too"
        under_way = [*under_way, step][-left:] if left else []
        fetched = value(following, names)
        if step > 0 and fetched < steps:
            if fetched % stages in {one % stages for one in under_way}:
                return f"at step {step} new tiles land where this step's products still read"
            if asked[fetched % stages][-1] > step and asked[fetched % stages][-1] != fetched:
                return f"at step {step} new tiles land on those of a step that is still to come"
            if any(fetched in own for own in asked):
                return f"at step {step} the tiles of step {fetched} are fetched a second time"
            asked[fetched % stages].append(fetched)
    return None
