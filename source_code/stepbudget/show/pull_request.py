"""How does an answer stand in a pull request? Short Markdown: the budget, the verdict, what to do."""

from __future__ import annotations

from dataclasses import replace

from stepbudget.show import sections
from stepbudget.show.blocks import Block
from stepbudget.show.markdown import code, plain
from stepbudget.show.table import Table
from stepbudget.show.words import percent

ADVICE, FIRST = 3, 5  # findings; rows of the program's lines and of kernels


def answer(found: dict) -> str:
    """The answer, or the comparison where there is one; ``found``: stepbudget.show.summary's object, plain."""
    return "\n".join(_comparison(found, found["comparison"]) if found.get("comparison") else _answer(found))


def _answer(found: dict) -> list[str]:
    steps = f", {found['steps']} steps" if found["steps"] else ""
    head = (
        f"**Step budget** of {code(found['report'])}, range {code(found['range'])}: {found['duration_ms']:,.1f} ms"
        f"{steps}; {plain(found['gpu'] or 'GPU not named')}, {_busy(found)}"
    )
    known = found | {"lines": [one for one in found["lines"] if one["file"]]}
    blocks = [*sections.budget(found), *sections.lines(known)]
    said = [["What to do next:"]] if found["advice"] else []
    parts = [[head], [plain(text) for text in found["remarks"]], *map(_short, blocks), *said]
    return _apart([*parts, *(block.markdown() for block in sections.advice(found, ADVICE))])


def _busy(found: dict) -> str:
    share = found["gpu_busy_fraction"]
    return sections.busy(found) if share is None else f"{percent(share)} busy"


def _comparison(found: dict, said: dict) -> list[str]:
    verdict = f"**{sections.speedup(said):.2f} times as fast**: " if said["comparable"] else "**not comparable**: "
    head = (
        f"{verdict}{said['before_ms']:,.1f} ms before, {said['after_ms']:,.1f} ms after "
        f"({code(said['before'])} → {code(said['after'])}, {plain(found['gpu'] or 'GPU not named')})"
    )
    return _apart(
        [[head], *map(_short, sections.compared(found, said)), ["\\* beyond what profiles of one program differ by"]]
    )


def _short(block: Block) -> list[str]:
    return (
        replace(block, most=min(FIRST, block.most)) if isinstance(block, Table) and block.most else block
    ).markdown()


def _apart(parts: list[list[str]]) -> list[str]:
    """The parts that say something, an empty line between two."""
    lines = [line for part in parts if part for line in ("", *part)]
    return lines[1:]
