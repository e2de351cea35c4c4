"""What there is not is said in one sentence, with the names that come near it."""

from __future__ import annotations

import pytest

from labkit import lab
from labkit.errors import LabError, near
from labkit.source import running


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
        (lambda: lab.runs(["main_opt1.py --epochs 77"]), "was not recorded on the NVIDIA H200: run the lab live"),
    ],
)  # fmt: skip
def test_what_there_is_not(ask, said, capsys):
    with pytest.raises(LabError) as refused:
        ask()
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert refused.value._render_traceback_() == [f"{type(refused.value).__name__}: {refused.value}"]


def test_nor_is_it_run(tmp_path):
    with pytest.raises(LabError, match=r"there is no script called main_opt11\.py"):
        running.run_once("main_opt11.py", tmp_path / "run.json")


def test_near_names_or_the_first_few():
    assert near("main_opt11", ["main_opt1", "other"]) == "Near it: main_opt1."
    assert near("x", ["first", "second"]) == "There are: first, second."
    assert near("x", [f"number {i}" for i in range(20)]).endswith("number 7 …")
    assert near("x", []) == "There are none."
