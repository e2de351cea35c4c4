"""How does an answer travel? As one HTML file that opens anywhere: no network, on light and on dark ground.

All words come from the same object as the text's (stepbudget.show.summary); only the pictures look at the report again.
A notebook shows the same without the page around it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from stepbudget.ask.budget import WORK
from stepbudget.show import sections, style, svg
from stepbudget.show.blocks import Block
from stepbudget.show.pictures import Pictures
from stepbudget.show.table import HTML, Table
from stepbudget.show.words import escaped, percent, sentence

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{allowed}">
<title>{title} – step budget</title>
</head>
<body>
{content}
</body>
</html>
"""
SCRIPT = base64.b64encode(hashlib.sha256(svg.SCRIPT.encode()).digest()).decode()  # the only one that may run
ALLOWED = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{SCRIPT}'"


# --- the whole ----------------------------------------------------------------------------------------------


def page(found: dict, drawn: Sequence[Pictures]) -> str:
    """The file. ``found``: stepbudget.show.summary's object, plain; ``drawn``: of the report and the other."""
    compared = found.get("comparison")
    title = f"{compared['before']} → {compared['after']}" if compared else found["report"]
    return PAGE.format(title=escaped(title), allowed=ALLOWED, content=fragment(found, drawn))


def fragment(found: dict, drawn: Sequence[Pictures]) -> str:
    """The same without the page around it, with its own style: for a notebook."""
    parts = [_head(found)]
    if found.get("comparison"):
        parts += [
            _section("What changed", _blocks(sections.compared(found, found["comparison"]))),
            f"<h2 class='divider'>Before: {_code(found['report'])}</h2>{_lead(found)}",
        ]
    for title, blocks in sections.answer(found).items():
        more = f"{drawn[0].steps}{drawn[0].one_step}" if title == "Steps" else ""
        parts.append(_section(title, _blocks(blocks) + more))
        parts += [_timelines(drawn)] if title == sections.NEXT else []
    parts += [_foot(found), f"<script>{svg.SCRIPT}</script>"]
    return f'<style>{style.sheet()}</style><main class="stepbudget">{"".join(parts)}</main>'


# --- parts --------------------------------------------------------------------------------------------------


def _head(found: dict) -> str:
    compared = found.get("comparison")
    gpu = sections.gpu(found)
    if compared:
        title = f"{_code(compared['before'])} <span class='to'>→</span> {_code(compared['after'])}"
        facts, lead = [gpu, f"compared: ‘{compared['compared']}’"], _compared_lead(compared)
    else:
        steps = [f"{found['steps']} step{'s' * (found['steps'] > 1)}"] if found["steps"] else []
        facts = [gpu, f"range ‘{found['range']}’", f"{found['duration_ms']:,.1f} ms", *steps]
        facts.append(sections.recorded_by(found))
        title, lead = _code(found["report"]), _lead(found)
    remarks = "".join(f"<p class='remark'>{escaped(sentence(text))}</p>" for text in found["remarks"])
    head = f"<p class='kicker'>step budget</p><h1>{title}</h1><ul class='facts'>{_items(facts)}</ul>"
    return f"<header>{head}{lead}{remarks}</header>"


def _lead(found: dict) -> str:
    if found["gpu_busy_fraction"] is None:
        return f"<p class='first'>{sentence(sections.busy(found))}</p>"
    idle = {cause: share for cause, share in found["budget"].items() if cause not in WORK and share}
    lead = f"The GPU was busy for <b>{percent(found['gpu_busy_fraction'])}</b> of the time."
    if idle:
        cause = max(idle, key=idle.__getitem__)
        lead += f" What kept it idle most: <b>{escaped(found['causes'][cause])}</b>, {percent(idle[cause])}."
    return f"<p class='first'>{lead}</p>"


def _compared_lead(compared: dict) -> str:
    if not compared["comparable"]:
        return "<p class='first'>The two cannot be compared: what differs stands below.</p>"
    took = f"{compared['before_ms']:,.1f} ms before, {compared['after_ms']:,.1f} ms after"
    return f"<p class='first'><b>{sections.speedup(compared):.2f} times as fast</b>: {took}.</p>"


def _timelines(drawn: Sequence[Pictures]) -> str:
    sides = zip(("before", "after"), drawn, strict=False)
    whose = [f"<figcaption><b>{side}</b> {_code(own.name)}</figcaption>" for side, own in sides]
    whose = whose if len(drawn) > 1 else [""]
    figures = [f"<figure>{words}{own.timeline}</figure>" for words, own in zip(whose, drawn, strict=True)]
    note = (
        "Time runs to the right. What is thinner than a pixel is as high as the share of the time in which it ran: the "
        "higher, the busier. Point at a bar to read what it is; drag over a stretch to zoom into it."
    )
    return _section("Timeline", f"{''.join(figures)}<p class='note'>{note}</p>")


def _foot(found: dict) -> str:
    when = f"ns {found['start_ns']:,} to {found['end_ns']:,} of the report’s own clock"
    return f"<footer>Made by stepbudget from {_code(found['report'])}: {when}.</footer>"


# --- pieces -------------------------------------------------------------------------------------------------


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escaped(title)}</h2>{body}</section>\n"


def _blocks(blocks: Sequence[Block]) -> str:
    return "".join(f"<div class='scroll'{_heads(one)}>{one.html()}</div>" for one in blocks)


def _heads(block: Block) -> str:
    """The heads of a table's columns as variables of style: where the page is narrow, each value has its own."""
    columns = block.columns(HTML) if isinstance(block, Table) else []
    said = "".join(f"--head{number}:{style.text(name)};" for number, name in enumerate(columns, 1) if name)
    return f' style="{escaped(said)}"' if said else ""


def _items(texts: Sequence[str]) -> str:
    return "".join(f"<li>{escaped(text)}</li>" for text in texts)


def _code(name: str) -> str:
    return f"<code>{escaped(name)}</code>"
