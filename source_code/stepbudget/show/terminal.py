"""How is an answer printed? As lines for people, at most 120 characters wide, what to do next the last of them."""

from __future__ import annotations

import textwrap

from stepbudget.errors import printable
from stepbudget.show import sections
from stepbudget.show.blocks import WIDTH, Block
from stepbudget.show.sections import NEXT, UNSEEN, cut
from stepbudget.show.table import Table
from stepbudget.show.words import NO_BREAK


def answer(found: dict) -> list[str]:
    """The lines for a summary (stepbudget.show.summary)."""
    steps = f", {found['steps']} step{'s' * (found['steps'] > 1)}" if found["steps"] else ""
    said = [
        f"{cut(found['report'])}: {sections.gpu(found)}, {sections.recorded_by(found)}",
        f"range '{cut(found['range'])}': {found['duration_ms']:,.1f} ms{steps}; "
        f"{sections.busy(found).replace(NO_BREAK, ' ')}",
    ]
    said += [line for text in found["remarks"] for line in textwrap.wrap(text, WIDTH)]
    parts = sections.answer(found)
    last = [title for title in (NEXT, UNSEEN) if title in parts]
    for title in [*(title for title in parts if title not in last), *last]:
        said += ["", title, *_under_title(parts[title])]
    return _narrow(said)


def comparison(found: dict, made: dict) -> list[str]:
    """The lines for a comparison (stepbudget.show.summary.compared); ``found``: the summary of the first side."""
    verdict = f"{sections.speedup(made):.2f} times as fast" if made["comparable"] else "not comparable"
    said = [f"before {made['before']}, after {made['after']}", verdict]
    return [*_narrow(said), "", *lines(sections.compared(found, made))]


def lines(blocks: list[Block]) -> list[str]:
    """The blocks, each with an empty line before it."""
    return _narrow([line for one in blocks if (own := one.text()) for line in ("", *own)][1:])


def _under_title(blocks: list[Block]) -> list[str]:
    """The blocks of one title, which says what the tables' captions say."""
    return [line for one in blocks for line in (one.text(captioned=False) if isinstance(one, Table) else one.text())]


def _narrow(lines: list[str]) -> list[str]:
    """No longer than WIDTH, without what would steer a terminal: a program may put anything into its names."""
    return [cut(printable(line), WIDTH) for line in lines]
