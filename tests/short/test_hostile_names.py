"""Names that a program chose: none steers a terminal, is typeset, or becomes part of a page, wherever it is shown."""

from __future__ import annotations

import json
import sqlite3
import warnings
from pathlib import Path

import pytest

import stepbudget as sb
from labkit.display import show
from labkit.display.charts import budgets, flow
from labkit.display.table import table
from labkit.errors import LabError
from stepbudget.__main__ import main
from stepbudget.ask.budget import budget
from stepbudget.errors import ReportError, visible
from stepbudget.report import Report, open_report
from synthetic import SyntheticReport

EVIL = "\x1b[31m\x9b1m\u202e$\\frac{x$ $_$ <script>alert(1)</script><b>&amp; %{x}`|` @all"
STEERS = ("\x1b", "\x9b", "\u202e")


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    made = SyntheticReport(tmp_path_factory.mktemp("hostile") / "made.sqlite").range(0, 1000, "training")
    for at in range(0, 1000, 100):
        made.range(at, at + 40, EVIL).kernel(at + 20, at + 60, f"{EVIL}{at}", call=(at + 5, at + 8))
        made.copy(at + 61, at + 70, 1000, call=(at + 9, at + 12))
    written = made.write()
    with sqlite3.connect(written) as db:
        db.execute("CREATE TABLE TARGET_INFO_GPU (id, name)")
        db.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, ?)", (EVIL,))
    db.close()
    return written


@pytest.fixture(scope="module")
def report(path) -> Report:
    return open_report(path)


FIGURES = {
    "budgets": lambda report: budgets.budget_bars({report.name: budget(report)}),
    "a step": lambda report: flow.step_chart({report.name: report}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_shows_them_as_text(name, report):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a sign that no font has
        figure = FIGURES[name](report)
        assert show._png(figure)
        assert not any(sign in show.described(figure) for sign in STEERS)


@pytest.mark.parametrize("make", [sb.phases, sb.kernels, sb.copies, sb.budget])
def test_a_table_shows_them_as_text(make, report):
    bundle = make(report)._repr_mimebundle_()
    assert "<script" not in bundle["text/html"]
    assert not any(sign in text for sign in STEERS for text in bundle.values())


def test_a_tables_caption_and_tooltip_too():
    import pandas as pd

    made = table(pd.DataFrame({EVIL: [EVIL * 3]}), f"of {EVIL}", {EVIL: lambda text: text[:5]})
    bundle = made._repr_mimebundle_()
    assert "<script" not in bundle["text/html"] and not any(sign in made.cells()[0][0] for sign in STEERS)


def test_an_error_that_quotes_them_steers_nothing(report):
    with pytest.raises(ReportError) as told:
        report.window(f"{EVIL}, not there")
    for error in (told.value, LabError(f"the program failed: {EVIL}")):
        for text in (str(error), *error._render_traceback_(), repr(error)):
            assert not any(sign in text for sign in STEERS) and "$_$" in text
    assert visible("one line\n\tand two\u00a0more") == "one line\n\tand two\u00a0more"


@pytest.mark.parametrize("form", [[], ["--tables"], ["--markdown"], ["--html"], ["--trace"]])
def test_no_form_of_an_answer_is_steered(form, path, capsys, tmp_path):
    file = tmp_path / "answer.json"
    assert main([str(path), *form, *([str(file)] if form in (["--html"], ["--trace"]) else [])]) == 0
    told = capsys.readouterr().out
    assert not any(sign in told for sign in STEERS)
    if form == ["--html"]:
        page = file.read_text()
        assert "<script>alert" not in page and "&lt;script&gt;alert" in page and not any(s in page for s in STEERS)
    if form == ["--markdown"]:
        assert "<script" not in told.replace("\\<script", "")
    if form == ["--trace"]:
        assert any("<script>" in json.dumps(event) for event in json.loads(file.read_text())["traceEvents"])
