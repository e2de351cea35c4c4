"""Markdown for a pull request: it renders as meant, and no name in it formats, links or calls anybody."""

from __future__ import annotations

import json
import re

import pytest

from labkit.source import recorded
from stepbudget.__main__ import main
from stepbudget.show.markdown import code

mistune = pytest.importorskip("mistune")  # comes with Jupyter

PROFILES = recorded.folder() / "profiles"
EVIL = "@team **b** _i_ ~~s~~ <b>x</b> | `code` ![p](http://x/y) [l](http://z) $m$ #12 :tada: www.x.org \n# h\n\x1b[3m"


@pytest.fixture
def ask(capsys):
    def run(*arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) in (0, 3)
        return capsys.readouterr().out

    return run


def rendered(text: str) -> str:
    return mistune.create_markdown(plugins=["table", "strikethrough", "url"])(text)


def cells(html: str) -> list[list[str]]:
    """The rows of all tables."""
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    return [[re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def test_the_answer_is_the_budget_and_what_to_do(ask):
    path = PROFILES / "main_opt3.sqlite.xz"
    found = json.loads(ask(path, "--json"))
    text = ask(path, "--markdown")
    rows = cells(rendered(text))
    assert rows[0] == ["cause", "ms", "%", "% of idle"] and rows[-1][0] == "all"
    assert [row[:3] for row in rows[1:-1]] == [
        [found["causes"][cause], f"{share * found['duration_ms']:,.1f}", f"{100 * share:.1f}"]
        for cause, share in found["budget"].items()
        if share
    ]
    html = rendered(text)
    assert html.count("<li>") == 3 < len(found["advice"]), "the first three"
    assert f"at most {found['advice'][0]['upper_bound_ms']:,.1f} ms to gain" in html and "And 3 more." in html
    assert len(text) < 3000 and "\x1b" not in text


def test_a_comparison_is_its_verdict_and_what_changed(ask):
    before, after = PROFILES / "main_opt1.sqlite.xz", PROFILES / "main_baseline_nvtx.sqlite.xz"
    sides = before, "--compare", after, "--fail-if-slower", "0"
    said = json.loads(ask(*sides, "--json"))["comparison"]
    html = rendered(ask(*sides, "--markdown"))
    rows = {row[0]: row[1:] for row in cells(html)}
    own = said["causes"]["loader"]
    assert rows["waiting for the loader"] == [
        f"{said['budget_ms']['loader']['before']:,.1f}", f"{said['budget_ms']['loader']['after']:,.1f}",
        f"{own['ms']:+,.1f}", "*" * own["beyond_noise"],
    ]  # fmt: skip
    assert own["beyond_noise"] and rows["‘training’"][:2] == [f"{said['before_ms']:,.1f}", f"{said['after_ms']:,.1f}"]
    times = f"{said['before_ms'] / said['after_ms']:.2f} times as fast"
    assert f"<strong>{times}</strong>" in html and "Slower than allowed: the change lies between" in html
    assert said["verdict"][1:] in html.replace("&#x27;", "'")


def test_what_cannot_be_compared_is_said_first(ask):
    text = ask(PROFILES / "main_opt3.sqlite.xz", "--compare", PROFILES / "main_opt5.sqlite.xz", "--markdown")
    assert text.startswith("**not comparable**") and "What differs:\n\n- 188.6 MB copied to the device before" in text


def test_names_neither_format_nor_call(made, ask):
    made.range(0, 100, EVIL).gpu(EVIL).range(2, 80, f"loader {EVIL}").kernel(90, 95, EVIL, call=(85, 86))
    html = rendered(ask(made.write(), "--range", EVIL, "--markdown"))
    assert not re.search(r"<(em|del|img|a|b|h\d|i)\b", html), html
    assert len(cells(html)[1]) == 4, "no name makes a column"
    for calling in ("@team", "www.x.org", ":tada:"):
        assert calling not in re.sub(r"<code>.*?</code>", "", html), "falls apart, or stands in a code span"


@pytest.mark.parametrize("name", ["a`b", "``", "`", "a|b", " x ", "", "a\nb", "\\", "x" * 200])
def test_a_code_span_holds_the_name(name):
    table = f"| a |\n|:--|\n| {code(name, in_table=True)} |"
    html = rendered(table)
    held = [
        text.replace("\\|", "|") for text in re.findall(r"<td[^>]*><code>(.*?)</code></td>", html)
    ]  # as GitHub does
    expected = " ".join(name.split()) or "(no name)"
    assert held == [expected if len(expected) <= 80 else expected[:79] + "…"]


def test_markdown_and_json_are_one_or_the_other(made, capsys):
    path = made.range(0, 10, "training").write()
    for words in (["--json", "--markdown"], ["--tables", "--markdown"], ["--tables", "--html", "x.html"]):
        with pytest.raises(SystemExit) as end:
            main([str(path), *words])
        assert end.value.code == 2 and "not allowed with argument" in capsys.readouterr().err


def test_the_lines_that_backtraces_name_are_in_it(made, ask):
    made.range(0, 1000, "training").kernel(20, 40, "k", call=(10, 11)).api(41, 990, "cudaDeviceSynchronize_v3020")
    made.python((EVIL, "/home/ann/train.py", 41), ("<module>", "/home/ann/train.py", 90)).write()
    rows = cells(html := rendered(ask(made.path, "--markdown")))
    at = rows.index(["where", "cause", "call", "count", "CPU ms", "GPU idle ms"])
    row = rows[at + 1]
    assert [row[column] for column in (1, 3, 5)] == ["synchronisation", "1", "0.9"] and "train.py:41 in" in row[0]
    assert len(row) == 6 and not re.search(r"<(a|b|img|em|del)\b", html.split("<table>")[2])
