"""How does an answer stand in a pull request? Short Markdown as GitHub draws it: the budget, the verdict, what to do.

Names come from programs: they stand in code spans, and sentences that hold some are written so that nothing in them
formats, links or calls anybody.

Source: GitHub Flavored Markdown Spec, "Backslash escapes", "Code spans", "Tables (extension)".
"""

from __future__ import annotations

import re
from statistics import median

from stepbudget import kernel_names
from stepbudget.errors import printable
from stepbudget.say.text import LEAST_CHANGE_MS
from stepbudget.say.words import percent, sentence
from stepbudget.signs import signed

ADVICE, KERNELS, LINES = 3, 5, 5  # of each the first ones
NAME = 80  # letters
SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~$&]")
# What GitHub turns into a mention, a link or a picture, with or without an escape; falls apart behind the match.
CALLING = re.compile(r"@|#(?=\d)|GH-(?=\d)|www(?=\.)|(?<=\w)(?=://)|:(?=[\w+-]+:)")
SPACE = "\u200b"  # without width; written as an entity, which survives copying


def answer(found: dict) -> str:
    """The answer, or the comparison where there is one; ``found``: stepbudget.say.summary's object, plain."""
    lines = _comparison(found) if found.get("comparison") else _answer(found)
    return "\n".join(lines)


def code(name: str, width: int = NAME, in_table: bool = False) -> str:
    """A name as a code span, on one line and not longer than ``width`` letters."""
    name = _line(name) or "(no name)"
    name = name if len(name) <= width else name[: width - 1] + "…"
    fence = "`" * (1 + max(map(len, re.findall("`+", name)), default=0))
    pad = " " if name.startswith("`") or name.endswith("`") else ""
    name = name.replace("|", "\\|") if in_table else name
    return f"{fence}{pad}{name}{pad}{fence}"


def plain(text: str) -> str:
    """A sentence in which nothing is Markdown."""
    text = CALLING.sub(rf"\g<0>{SPACE}", _line(text))
    return SPECIAL.sub(r"\\\g<0>", text).replace(SPACE, "&#8203;")


def _line(text: str) -> str:
    """On one line, and nothing in it that cannot be seen."""
    return " ".join(printable(re.sub(r"\s", " ", text)).split())


def _answer(found: dict) -> list[str]:
    steps = f", {found['steps']} steps" if found["steps"] else ""
    lines = [
        f"**Step budget** of {code(found['report'])}, range {code(found['range'])}: {found['duration_ms']:,.1f} ms"
        f"{steps}; {plain(found['gpu'] or 'GPU not named')}, {percent(found['gpu_busy_fraction'])} busy",
        *(["", *(plain(text) for text in found["remarks"])] if found["remarks"] else []),
        "",
        "| cause | ms | % |",
        "|:--|--:|--:|",
    ]
    lines += [
        f"| {plain(found['causes'][cause])} | {share * found['duration_ms']:,.1f} | {100 * share:.1f} |"
        for cause, share in found["budget"].items()
        if share
    ]
    return lines + _lines(found) + _advice(found)


def _lines(found: dict) -> list[str]:
    """The lines of the program that backtraces name."""
    known = [one for one in found["lines"] if one["file"]][:LINES]
    if not known:
        return []
    lines = ["", "| line | cause | count | GPU idle ms |", "|:--|:--|--:|--:|"]
    return lines + [
        f"| {code(one['where'], in_table=True)} | {plain(found['causes'][one['cause']])} | {one['count']:,} | "
        f"{one['idle_ms']:,.1f} |"
        for one in known
    ]


def _advice(found: dict) -> list[str]:
    if not found["advice"]:
        return ["", "Nothing stands out."]
    lines = ["", "What to do next:", ""]
    for number, one in enumerate(found["advice"][:ADVICE], 1):
        lab = f" (lab {plain(one['lab'])})" if one["lab"] else ""
        what = f"**{plain(one['what'])}**, at most {one['upper_bound_ms']:,.1f} ms to gain{lab}"
        lines.append(f"{number}. {what}: {sentence(plain(one['evidence']))}")
    more = len(found["advice"]) - ADVICE
    return lines + (["", f"And {more} more."] if more > 0 else [])


def _comparison(found: dict) -> list[str]:
    said = found["comparison"]
    speedup = said["before_ms"] / said["after_ms"] if said["after_ms"] else float("inf")
    verdict = f"**{speedup:.2f} times as fast**: " if said["comparable"] else "**not comparable**: "
    lines = [
        f"{verdict}{said['before_ms']:,.1f} ms before, {said['after_ms']:,.1f} ms after "
        f"({code(said['before'])} → {code(said['after'])}, {plain(found['gpu'] or 'GPU not named')})"
    ]
    lines += ["", *(f"- differs: {plain(text)}" for text in said["obstacles"])] if said["obstacles"] else []
    lines += ["", sentence(plain(said["verdict"]))] if said["verdict"] else []
    if said["slower_than_allowed"] is not None and said["comparable"]:
        lines += ["", "**Slower than allowed.**" if said["slower_than_allowed"] else "Not slower than allowed."]
    lines += ["", "| cause | before ms | after ms | change | between |", "|:--|--:|--:|--:|:--|"]
    for cause, own in said["causes"].items():
        both = said["budget_ms"][cause]
        if both["before"] or both["after"]:
            lines.append(_changed(plain(found["causes"][cause]), both["before"], both["after"], own))
    whole = said["change"]
    edges = [median(whole[side]) for side in ("before_ms", "after_ms")]
    lines.append(_changed(f"**{code(said['compared'], 40, in_table=True)}**", *edges, whole))
    lines += ["", "\\* beyond what profiles of one program differ by"]
    kernels = [one for one in said["kernels"] if abs(one["change_ms"]) >= LEAST_CHANGE_MS][:KERNELS]
    if kernels:
        lines += ["", "| kernels, changed most | before ms | after ms | change |", "|:--|--:|--:|--:|"]
        for one in kernels:
            name = code(kernel_names.short(one["kernel"], 60), in_table=True)
            change = signed(f"{one['change_ms']:+,.2f}")
            lines.append(f"| {name} | {one['before_ms']:,.2f} | {one['after_ms']:,.2f} | {change} |")
    return lines + (["", *(f"- {plain(text)}" for text in said["remarks"])] if said["remarks"] else [])


def _changed(what: str, before: float, after: float, own: dict) -> str:
    mark = " \\*" if own["beyond_noise"] else ""
    change, low, high = (signed(f"{own[ms]:+,.1f}") for ms in ("ms", "low_ms", "high_ms"))
    return f"| {what} | {before:,.1f} | {after:,.1f} | {change} | {low} to {high}{mark} |"
