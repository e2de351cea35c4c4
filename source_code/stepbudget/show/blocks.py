"""What is an answer made of? Sentences, bars and findings beside tables: each as text, as HTML and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stepbudget.errors import printable
from stepbudget.show import bars, markdown
from stepbudget.show.table import WIDTH
from stepbudget.show.words import NO_BREAK, breakable, escaped, sentence

QUIET = "opacity: 0.7; font-size: 0.93em"
ITEM = "margin: 0 0 0.9em; padding: 0"
METER = "display: inline-block; vertical-align: 1px; width: 120px; height: 6px; border-radius: 3px; margin-right: 10px"
TRACK, FILL = "rgba(128, 128, 128, 0.25)", "display: block; height: 6px; border-radius: 3px; background: #7A828C"


class Block(Protocol):
    """A part of an answer."""

    def text(self) -> list[str]:
        """Lines of at most WIDTH letters."""

    def html(self) -> str:
        """HTML that needs no style sheet and no script."""

    def markdown(self) -> list[str]:
        """Lines as GitHub draws them; none where the block is a picture beside a table."""


@dataclass(frozen=True)
class Words:
    """A paragraph; ``quiet``: beside what is to be read first."""

    words: str
    quiet: bool = False

    def text(self) -> list[str]:
        return textwrap.wrap(self.words.replace(NO_BREAK, " "), WIDTH)

    def html(self) -> str:
        style = f"margin: 0.4em 0{'; ' + QUIET if self.quiet else ''}"
        return f'<p style="{style}">{escaped(sentence(self.words))}</p>'

    def markdown(self) -> list[str]:
        return [sentence(markdown.plain(self.words))]


@dataclass(frozen=True)
class Items:
    """Sentences, each with a dot before it."""

    items: Sequence[str]

    def text(self) -> list[str]:
        return [line for item in self.items for line in _item(item)]

    def html(self) -> str:
        return f"<ul>{''.join(f'<li>{breakable(printable(item))}</li>' for item in self.items)}</ul>"

    def markdown(self) -> list[str]:
        return [f"- {markdown.plain(item)}" for item in self.items]


@dataclass(frozen=True)
class Bar:
    """Times of causes, stacked: (cause, words, ms), of ``whole_ms`` that fill the width. A table has the numbers."""

    parts: Sequence[tuple[str, str, float]]
    whole_ms: float
    side: str = ""  # what it is of, where there are two

    def text(self) -> list[str]:
        return []

    def html(self) -> str:
        label = ", ".join(f"{words} {ms:,.1f} ms" for _, words, ms in self.parts if ms > 0)
        side = f'<p style="margin: 0.6em 0 0; {QUIET}">{escaped(self.side)}</p>' if self.side else ""
        return side + bars.bar(self.parts, self.whole_ms, f"A stacked bar{self.side and ', ' + self.side}: {label}")

    def markdown(self) -> list[str]:
        return []


@dataclass(frozen=True)
class Findings:
    """What to do next: the findings of an answer's ``advice``, the costliest first, with their bounds in ``of_ms``."""

    found: Sequence[dict]
    of_ms: float
    most: int | None = None  # in Markdown

    def text(self) -> list[str]:
        return [
            line
            for one in self.found
            for line in _item(f"{one['what']}: {one['evidence']}. {self._bound(one)}{_lab(one, '; see lab {}')}.")
        ] or ["  nothing stands out"]

    def html(self) -> str:
        if not self.found:
            return "<p>Nothing stands out.</p>"
        return f'<ol style="margin: 0.6em 0; padding-left: 1.6em">{"".join(map(self._html, self.found))}</ol>'

    def markdown(self) -> list[str]:
        if not self.found:
            return ["Nothing stands out."]
        lines = [
            f"{number}. **{markdown.plain(one['what'])}**, {self._bound(one).lower()}"
            f"{markdown.plain(_lab(one, ' (lab {})'))}: {sentence(markdown.plain(one['evidence']))}"
            for number, one in enumerate(self.found[: self.most], 1)
        ]
        more = len(self.found) - len(lines)
        return lines + (["", f"And {more} more."] if more else [])

    def _html(self, one: dict) -> str:
        share = min(100, 100 * one["upper_bound_ms"] / self.of_ms) if self.of_ms else 0.0
        meter = f'<span style="{METER}; background: {TRACK}"><span style="{FILL}; width: {share:.1f}%"></span></span>'
        lab = _lab(one, f' <span style="{QUIET}">· lab {{}}</span>', escaped)
        return (
            f'<li style="{ITEM}">{bars.swatch(one["cause"])}<b>{escaped(one["what"])}</b>{lab}<br>'
            f"{meter}{self._bound(one)} ({share:.0f} %)<br>"
            f'<span style="{QUIET}">{escaped(sentence(one["evidence"]))}</span></li>'
        )

    @staticmethod
    def _bound(one: dict) -> str:
        return f"At most {one['upper_bound_ms']:,.1f} ms to gain"


def _lab(one: dict, words: str, spelt: object = str) -> str:
    return words.format(spelt(one["lab"])) if one["lab"] else ""


def _item(words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent="  - ", subsequent_indent="    ")
