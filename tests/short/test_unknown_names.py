"""What there is not is said in one sentence, with the names that come near it."""

from __future__ import annotations

import inspect

import pandas as pd
import pytest

import stepbudget as sb
from labkit import lab
from labkit.course import DEFAULT_MACHINE
from labkit.display.charts import flow
from labkit.errors import LabError, near
from labkit.paths import RECORDED
from labkit.source import running
from stepbudget.errors import ReportError
from stepbudget.show import answers
from stepbudget.show.table import table

FEW = pd.DataFrame({"step": ["main_opt1"], "ms": [1.5]})


def a_report():
    return sb.open(RECORDED / DEFAULT_MACHINE / "profiles" / "bench_sin_fit.sqlite.xz")


@pytest.fixture(autouse=True)
def recorded_mode(monkeypatch):
    monkeypatch.setenv("LAB_MODE", "recorded")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: lab.diff("main_opt11.py", "main_opt2.py"), "there is no script called main_opt11.py"),
        (lambda: lab.diff("main_opt1.py:trainn", "main_opt2.py:train"), "called trainn in this source. Near it: train"),
        (lambda: lab.listing("source_code/main_opt11.py", "train"), "there is no file source_code/main_opt11.py"),
        (lambda: lab.listing("nowhere/main.py", "train"), "no file nowhere/main.py in the checkout."),
        (lambda: lab.listing("source_code/main_opt1.py", "mian"), "nothing called mian in this source. Near it: main"),
        (lambda: lab.runs(["main_opt11.py"]), "there is no script called main_opt11.py"),
        (lambda: lab.benchmark("bench_matmull.py"), "Near it: bench_matmul.py"),
        (lambda: lab.cold_run("main_opt11.py"), "no script called main_opt11.py in source_code/. Near it: main"),
        (lambda: lab.cold_run("main_moon.py --epochs 3"), "there is no script called main_moon.py"),
        (lambda: lab.cold_run(""), "there is no script called "),
        (lambda: table(FEW, formats={"ms_": "{:.1f}"}), "the table has no column ms_. There are: ms."),
        (lambda: table(FEW, formats={"moon": "{}"}), "the table has no column moon. There are: step, ms."),
        (lambda: sb.timeline(a_report(), rows=["kernel"]), "no such row: kernel. Near it: kernels."),
        (lambda: sb.phases(a_report(), by="text"), "phases are told by process or by thread, not by text."),
        (lambda: lab.runs(["main_opt1.py --epochs 77"]), "was not recorded on the NVIDIA H200: run the lab live"),
    ],
)  # fmt: skip
def test_what_there_is_not(ask, said, capsys):
    with pytest.raises(ReportError) as refused:
        ask()
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert refused.value._render_traceback_() == [f"{type(refused.value).__name__}: {refused.value}"]


QUESTIONS = [
    question
    for module in (answers, flow)
    for question in vars(module).values()
    if hasattr(question, "__wrapped__") and question.__code__.co_filename == answers.__file__
]


def test_the_questions_on_reports_are_all_there():
    asked = {question.__name__ for question in QUESTIONS}
    assert asked >= {"phases", "idle", "budget", "kernels", "step_chart"}
    for module in (answers, flow):
        for name, one in vars(module).items():
            takes = inspect.isfunction(one) and one.__module__ == module.__name__ and not name.startswith("_")
            first = next(iter(inspect.signature(one).parameters.values()), None) if takes else None
            if first and str(first.annotation) in ("Report", "Report | Mapping[str, Report]", "Mapping[str, Report]"):
                assert name in asked, f"{name} takes anything for a report"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.__name__)
@pytest.mark.parametrize("handed", ["text", None, 7, ["text"], {"text": "text"}, {}], ids=repr)
def test_what_is_no_report_is_named_by_its_type(question, handed):
    several = "report" not in inspect.signature(question).parameters
    if several and handed == {}:
        return  # of no reports there is nothing to say
    parameters = inspect.signature(question).parameters.values()
    needed = [one for one in parameters if one.default is inspect.Parameter.empty]
    with pytest.raises(ReportError) as refused:
        question(handed, *[0] * (len(needed) - 1))
    said = str(refused.value)
    kind = "nothing" if handed is None else f"a {type(handed).__name__}"
    expected = "a str among them" if several and isinstance(handed, dict) else kind
    assert said.startswith(f"{question.__name__}() asks ") and said.endswith(f", and was given {expected}.")


@pytest.mark.parametrize("handed", ["text", None, 7, ["text"]], ids=repr)
@pytest.mark.parametrize("question", [answers.ranks, lambda handed: answers.compare(handed, handed)])
def test_nor_are_ranks_and_sides_that_are_no_reports(question, handed):
    kind = "nothing" if handed is None else "an? (str|int)"
    with pytest.raises(ReportError, match=rf"^(ranks|compare)\(\) asks .*, and was given {kind}\.$"):
        question(handed)


def test_nor_is_it_run(tmp_path):
    with pytest.raises(LabError, match=r"there is no script called main_opt11\.py"):
        running.run_once("main_opt11.py", tmp_path / "run.json")


def test_near_names_or_the_first_few():
    assert near("main_opt11", ["main_opt1", "other"]) == "Near it: main_opt1."
    assert near("x", ["first", "second"]) == "There are: first, second."
    assert near("x", [f"number {i}" for i in range(20)]).endswith("number 7 …")
    assert near("x", []) == "There are none."
