"""Lines of a page: what is printed and typed breaks between words, and code keeps its lines without any style."""

from __future__ import annotations

import re
import shlex
import subprocess
from html.parser import HTMLParser

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import checks, lines
from labkit.display import code
from labkit.display.diffs import diff
from labkit.display.listing import listing
from stepbudget.show.table import table

WORDS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=40)


@given(st.lists(WORDS, min_size=1, max_size=60).map(" ".join))
def test_a_long_line_is_broken_between_words_and_loses_none(text):
    shown = lines.wrapped(text)
    assert shown.split() == text.split()
    first, *rest = shown.split("\n")
    assert all(len(line) <= lines.WIDE for line in (first, *rest))
    assert all(line.startswith(lines.INDENT) for line in rest)
    assert rest or shown == text
    assert lines.joined(shown) == text


def test_a_number_stays_with_its_unit():
    text = "x" * (lines.WIDE - 6) + " 12.5 ms of it"
    assert lines.wrapped(text).split("\n")[1] == f"{lines.INDENT}12.5 ms of it"
    assert lines.wrapped("as it is,  twice\n\n  indented") == "as it is,  twice\n\n  indented"


def test_a_conclusion_is_broken_too(capsys):
    checks.conclude("it takes 1.5 ms " * 12)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("→ ") and len(shown) > 1 and max(map(len, shown)) <= lines.WIDE


COMMANDS = [
    "nsys profile --trace cuda,nvtx --output reports/x python3 source_code/main_opt1.py --epochs 2",
    "A=$(mktemp) B='two words' printf %s " + " ".join(f"--flag-{n} value{n}" for n in range(30)),
    "ncu --metrics " + ",".join(f"sm__pipe_{n}.avg.pct_of_peak" for n in range(30)) + " --log-file x python3 y.py",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_broken_command_is_the_same_command_to_a_shell(command):
    shown = lines.command(command)
    assert all(len(f"$ {line}") <= lines.WIDE + 2 for line in shown.split("\n"))
    assert all(line.endswith("\\") for line in shown.split("\n")[:-1])
    ran = [
        subprocess.run(
            ["bash", "-c", f'show() {{ printf "%s\\n" "$@"; }}; show {text}'], capture_output=True, text=True
        ).stdout
        for text in (command.replace("$(mktemp)", "$(echo 1)"), shown.replace("$(mktemp)", "$(echo 1)"))
    ]
    assert ran[0] == ran[1] and len(ran[0].splitlines()) == len(shlex.split(command))
    assert not re.search(r"--[\w-]+ \\\n", shown)  # no flag without its value


class Bare(HTMLParser):
    """A page without styles and classes, as GitHub shows it: the text inside ``<pre>``, line by line."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside, self.text, self.tags = 0, "", set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.inside += tag == "pre"
        self.tags.add(tag)

    def handle_endtag(self, tag):
        self.inside -= tag == "pre"

    def handle_data(self, data):
        self.text += data if self.inside else ""


@pytest.mark.parametrize("pair", [("main_opt2.py", "main_opt3.py"), ("main_baseline.py:train", "main_opt2.py:train")])
def test_a_diff_keeps_its_lines_where_styles_are_stripped(pair):
    made = diff(*pair)
    page = made._repr_mimebundle_()["text/html"]
    bare = Bare(page)
    title, *shown = bare.text.removesuffix("\n").split("\n")
    assert shown == made.lines and title == f"{pair[0]} → {pair[1]}: {made.changed()} changed lines"
    assert bare.tags == {"div", "pre", "b", "span"}  # nothing that needs a style to break a line
    assert 'class="highlight"' in page and '<span class="k">' in page


def test_a_listing_keeps_its_lines_and_is_coloured():
    made = listing("source_code/labkit/kernels/matmul.py", "_matmul")
    page = made._repr_mimebundle_()["text/html"]
    title, *shown = Bare(page).text.removesuffix("\n").split("\n")
    assert title == made.file and shown == made.text.split("\n")
    assert "color" not in page  # of classes, which JupyterLab colours in both themes
    assert "word-break: normal" in page and "white-space: pre-wrap" in page


def test_each_line_of_what_spans_several_is_whole_by_itself():
    marked = code.coloured('def f():\n    """One\n\n    <two>."""\n')
    assert len(marked) == 4 and all(line.count("<span") == line.count("</span>") for line in marked)
    assert "&lt;two&gt;" in marked[3] and marked[1].count('class="sd"') == marked[3].count('class="sd"') == 1


def test_a_rule_stands_above_totals():
    shown = table(pd.DataFrame({"cause": ["a", "b", "all"], "ms": [1, 2, 3]}), totals=[-1])
    rule = "─────  ──"
    assert str(shown).split("\n") == ["cause  ms", rule, "a       1", "b       2", rule, "all     3"]
    rows = re.findall(r"<tr>.*?</tr>", shown._repr_mimebundle_()["text/html"])
    assert ["border-top" in row for row in rows] == [False, False, False, True]


def test_text_wraps_numbers_do_not_and_a_long_name_breaks_at_its_joints():
    name = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
    page = table(pd.DataFrame({"kernel": [name], "words": ["a few of them"], "µs": [1234]}))._repr_mimebundle_()[
        "text/html"
    ]
    assert name.replace("_", "_<wbr>") in page and "a few of them" in page
    cells = re.findall(r"<td.*?>", page)
    assert ["nowrap" in cell for cell in cells] == [False, False, True]
