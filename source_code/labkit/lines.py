"""How long may a printed line be? What a page of 1,366 pixels has room for; a longer one goes on below, indented.

JupyterLab breaks what is printed wherever the page ends, in mid-word too. So the course breaks it first.
"""

from __future__ import annotations

import re
import textwrap

WIDE = 110  # characters; 119 fit beside JupyterLab's file browser on such a page, in a usual font
INDENT = "    "
TIED = re.compile(r"(?<=\d) (?=(?:ms|µs|s|MB|GB|GB/s|TFLOP/s|times)\b|%)")  # a number and its unit
TIE = "\u00a0"
WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")  # of a command, with what is quoted in it


def say(text: str) -> None:
    """Print it, no line of it wider than the page."""
    print(wrapped(text))


def wrapped(text: str) -> str:
    """The text, its long lines broken between words; a number stays with its unit."""
    return "\n".join(line if len(line) <= WIDE else _broken(line) for line in text.split("\n"))


def _broken(line: str) -> str:
    tied = TIED.sub(TIE, line)
    filled = textwrap.fill(tied, WIDE, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)
    return filled.replace(TIE, " ")


def joined(text: str) -> str:
    """What ``wrapped`` broke, whole again; to be read line by line."""
    return re.sub(rf"(?<=\S)\n{INDENT}(?=\S)", " ", text)


def command(text: str) -> str:
    """A command over as many lines as it needs, which a shell takes as they are.

    A flag and its value stay together, and a list goes on after one of its commas.
    """
    units: list[str] = []
    for word in WORD.findall(text):
        if units and re.fullmatch(r"--\S+", units[-1]) and not word.startswith("-"):
            units[-1] += f" {word}"
        else:
            units.append(word)
    lines = units[:1]
    for unit in units[1:]:
        if len(lines[-1]) + len(unit) + 5 > WIDE:  # with the blank, " \\" behind it, and "$ " in front of the first
            lines.append(f"{INDENT}{unit}")
        else:
            lines[-1] += f" {unit}"
    return " \\\n".join(map(_at_commas, lines))


def _at_commas(line: str) -> str:
    """A line with a list that is too long goes on at the margin: a blank would end the word."""
    lines = [""]
    for piece in re.split(r"(?<=,)", line) if len(line) > WIDE else [line]:
        if lines[-1] and len(lines[-1]) + len(piece) + 1 > WIDE:
            lines.append("")
        lines[-1] += piece
    return "\\\n".join(lines)
