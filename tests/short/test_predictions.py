"""The reader's predictions: compared kindly, kept once, and read again whatever became of their file."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from labkit import course, lab, paths, predictions
from labkit.predictions import Prediction, compare

pytestmark = pytest.mark.usefixtures("unbroken_lines")


@pytest.fixture(autouse=True)
def reports(tmp_path, monkeypatch):
    """A checkout's own folder of reports, empty, and lab 1 begun."""
    monkeypatch.setattr(paths, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.delenv("LAB_PREDICTIONS", raising=False)
    predictions.begin(1)
    return tmp_path / "reports"


def lines(reports) -> list[dict]:
    return [json.loads(line) for line in (reports / predictions.FILE).read_text().splitlines() if line]


def said(capsys) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("predicted", "measured", "unit", "says"),
    [
        (5, 2.5, " ms", "you predicted 5 ms; answer: 2.5 ms – over by a factor of 2.00"),
        (1, 4.0, "×", "you predicted 1×; answer: 4× – under by a factor of 4.00"),
        (np.int64(3), 3.0, " ms", "you predicted 3 ms; answer: 3 ms – under by a factor of 1.00"),
        (Fraction(1, 2), np.float64(0.25), "", "you predicted 0.5; answer: 0.25 – over by a factor of 2.00"),
        (0, 4.0, " %", "you predicted 0 %; answer: 4 % – not so"),
        (4.0, -9.3, " %", "you predicted 4 %; answer: −9.3 % – not so"),
        (5774, 5300.4, " ms", "you predicted 5,774 ms; answer: 5,300 ms – over by a factor of 1.09"),
        (float("inf"), 88.0, " epochs", "you predicted inf epochs; answer: 88 epochs – not so"),
        (float("inf"), float("inf"), " epochs", "you predicted inf epochs; answer: inf epochs – right"),
        (3, float("nan"), " ms", "you predicted 3 ms; not measured here"),
        (30, (20.0, 40.0), " %", "you predicted 30 %; answer: between 20 % and 40 % – right, between the bounds"),
        (10, (20.0, 40.0), " %", "you predicted 10 %; answer: between 20 % and 40 % – under by a factor of 2.00"),
        (80, (20.0, 40.0), " %", "you predicted 80 %; answer: between 20 % and 40 % – over by a factor of 2.00"),
        (80, (float("nan"), 40.0), " %", "you predicted 80 %; not measured here"),
        ("m", "M", "", "you predicted m; answer: M – right"),
        ("N", "M", "", "you predicted N; answer: M – not so"),
        (
            "3 ms",
            2.5,
            " ms",
            "'3 ms' is text: write the number alone, without quotes and without its unit; answer: 2.5 ms",
        ),
        (7, "M", "", "a word in quotes is wanted here, not 7; answer: M"),
        ("\x1b[31mM ", "M", "", "you predicted [31mM; answer: M – not so"),
        ([3], 2.5, "", "something of type list is not one number; answer: 2.5"),
        (
            float("nan"),
            2.5,
            "",
            "nan is not a number: something that it was worked out from is missing; answer: 2.5",
        ),
    ],
)
def test_a_prediction_is_compared(predicted, measured, unit, says, capsys):
    compare(predicted, measured, unit, of="it")
    assert said(capsys) == ["Prediction: it", says]
    predictions.begin(2)
    compare(predicted, measured, unit)
    assert said(capsys) == [says]


def test_a_reader_without_a_prediction_is_asked_kindly_and_once(capsys, reports):
    compare(None, 2.5, " ms", of="it")
    compare(None, 3.5, " ms", of="that")
    _, first, _, second = said(capsys)
    assert first.startswith("no prediction made (next time") and first.endswith("; answer: 2.5 ms")
    assert second == "no prediction made; answer: 3.5 ms"
    predictions.finish()
    assert said(capsys) == [] and not reports.exists()
    predictions.begin(2)
    compare(None, 2.5)
    assert "next time" in said(capsys)[0]


def test_the_first_prediction_is_the_one_that_counts(capsys, reports):
    compare(10, 2.5, " ms", of="it")
    compare(10, 2.6, " ms", of="it")
    compare(2.5, 2.5, " ms", of="it")
    *_, again = said(capsys)
    assert again.endswith("(your first, 10 ms, is the one that counts)")
    assert [(one["predicted"], one["measured"]) for one in lines(reports)] == [(10, 2.5)]
    predictions.begin(1)  # the notebook is run again
    compare(2.5, 2.5, " ms", of="it")
    assert "your first, 10 ms" in said(capsys)[1]
    predictions.finish()
    assert "it: you predicted 10 ms; answer: 2.5 ms – over by a factor of 4.00" in said(capsys)[1]


def test_what_has_no_name_or_no_end_is_not_kept(reports):
    compare(10, 2.5)
    compare(float("inf"), 2.5, of="it")
    compare(10, float("inf"), of="it")
    compare(10, float("nan"), of="it")
    assert not reports.exists()


def test_a_lab_ends_with_its_predictions(capsys):
    compare(5, 2.5, " ms", of="one product")
    compare("N", "M", of="the free dimension")
    capsys.readouterr()
    lab.finish()
    assert said(capsys) == [
        "→ Everything this lab expects held here.",
        "→ Your predictions in this lab:",
        "→ one product: you predicted 5 ms; answer: 2.5 ms – over by a factor of 2.00",
        "→ the free dimension: you predicted N; answer: M – not so",
        "→ Over all labs: 2 predictions, 0 of them right (within 25 %, or the right word). From 6 numbers on, this "
        "line says whether you are getting better.",
    ]


@pytest.mark.parametrize("number", [one.number for one in course.LABS])
def test_the_last_lab_of_a_part_looks_back_on_all(number, capsys):
    compare(5, 2.5, " ms", of="one product")
    predictions.begin(number)
    compare(1.17, 1.2, "×", of="another")
    capsys.readouterr()
    predictions.finish()
    told = said(capsys)
    looks_back = "→ lab 1: 0 of 1 right, off by a factor of 2.00 (median)" in told
    assert looks_back == (number in {course.part(one)[-1].number for one in course.PARTS})
    assert told[-1].startswith("→ Over all labs: 2 predictions, 1 of them right")


def made(*factors: float) -> list[Prediction]:
    return [Prediction(1 + place // 2, f"thing {place}", factor, 1.0) for place, factor in enumerate(factors)]


@pytest.mark.parametrize(
    ("factors", "says"),
    [
        (
            (4, 4, 4, 2, 2, 2),
            "Off by a factor of 4.00 in the first 3, 2.00 in the last 3 (medians): you are getting better.",
        ),
        ((2, 2, 9, 0.5, 2, 2), "(medians): no better yet."),
        ((2, 2, 2, 4, 0.25, 4), "further off than before"),
        ((4, 4, 2, 2, 2), "5 predictions, 0 of them right (within 25 %, or the right word). From 6 numbers on"),
        ((1.2,), "1 prediction, 1 of them right"),
    ],
)
def test_getting_better_or_not(factors, says):
    assert says in predictions.trend(made(*factors))


@pytest.mark.parametrize(
    ("said", "measured", "is_right"),
    [(1.2, 1.0, False), (1.04, 1.0, True), (2.1, 2.34, True), (1.9, 2.34, False), (0.8, 0.75, True), (1.1, 0.9, False)],
)
def test_a_ratio_is_right_by_what_it_gains(said, measured, is_right):
    assert Prediction(2, "it", said, measured, "×").is_right == is_right


def test_ratios_near_1_are_no_progress():
    ratios = [Prediction(5, f"ratio {place}", 1.1, 1.0, " times") for place in range(6)]
    alone, with_ratios = made(4, 4, 4, 4, 4, 4), [*made(4, 4, 4, 4, 4, 4), *ratios]
    assert "no better yet" in predictions.trend(alone) and "no better yet" in predictions.trend(with_ratios)


def test_words_are_right_or_not_and_move_no_factor():
    told = predictions.by_lab([Prediction(2, "a", "M", "M"), Prediction(2, "b", "N", "M"), Prediction(1, "c", 4, 2.0)])
    assert told == ["lab 1: 0 of 1 right, off by a factor of 2.00 (median)", "lab 2: 1 of 2 right"]


def test_two_notebooks_at_once_lose_nothing(reports):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: predictions._append(Prediction(1, f"thing {number}", 2.0, 1.0)), range(200)))
    assert {one["of"] for one in lines(reports)} == {f"thing {number}" for number in range(200)}


DAMAGED = [
    "{", "null", "[1]", '"text"', '{"lab": 1}', "x" * 10_000, "[" * 100_000,
    '{"lab": 1, "of": "it", "predicted": 1, "measured": "M", "unit": ""}',
    '{"lab": 1, "of": "it", "predicted": true, "measured": 2, "unit": ""}',
    '{"lab": 1, "of": "it", "predicted": NaN, "measured": 2, "unit": ""}',
    '{"lab": 1, "of": "\\u001b[31mred", "predicted": 1, "measured": 2, "unit": ""}',
    '{"lab": "1", "of": "it", "predicted": 1, "measured": 2, "unit": ""}',
    '{"lab": 1, "of": ["it"], "predicted": 1, "measured": 2, "unit": ""}',
    '{"lab": 1, "of": "it", "predicted": "\\u001b[31m", "measured": "M", "unit": ""}',
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_costs_no_other(line, reports, capsys):
    compare(5, 2.5, " ms", of="one product")
    with (reports / predictions.FILE).open("a") as file:
        file.write(line)  # broken off: no newline
    predictions.begin(1)
    compare(3, 2.5, " ms", of="another")
    predictions.begin(1)
    compare(3, 2.5, " ms", of="a third")
    capsys.readouterr()
    predictions.finish()
    told = said(capsys)
    assert (
        told[-1]
        == f"→ 1 line of reports/{predictions.FILE} cannot be read and stay out; delete the file to begin anew."
    )
    assert "Over all labs: 3 predictions" in told[-2]


def test_a_file_that_is_no_text_is_damaged_and_no_more(reports, capsys):
    reports.mkdir()
    (reports / predictions.FILE).write_bytes(bytes(range(256)) * 10)
    compare(5, 2.5, " ms", of="one product")
    predictions.finish()
    assert "cannot be read and stay out" in said(capsys)[-1]


@pytest.mark.parametrize("what", ["a folder", "a fifo", "a file in the place of the folder"])
def test_what_is_no_file_is_said_in_a_sentence(what, reports, capsys):
    file = reports / predictions.FILE
    if what == "a folder":
        file.mkdir(parents=True)
    elif what == "a fifo":
        reports.mkdir()
        os.mkfifo(file)
    else:
        reports.write_text("")
    compare(5, 2.5, " ms", of="one product")
    capsys.readouterr()
    predictions.finish()
    told = said(capsys)
    assert told[1] == "→ one product: you predicted 5 ms; answer: 2.5 ms – over by a factor of 2.00"
    assert any("cannot be written" in line for line in told)
    assert sum("reports/" in line for line in told) <= 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(reports, capsys):
    reports.mkdir(mode=0o500)
    compare(5, 2.5, " ms", of="one product")
    predictions.finish()
    assert "cannot be written (Permission denied): your predictions are not kept." in said(capsys)[-1]


def test_no_right_to_write_is_said_in_a_sentence(reports, capsys, monkeypatch):
    reports.mkdir()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    compare(5, 2.5, " ms", of="one product")
    predictions.finish()
    assert "cannot be written (Permission denied): your predictions are not kept." in said(capsys)[-1]


def test_where_pages_are_made_or_tested_nothing_is_kept_or_shown(reports, capsys, monkeypatch):
    monkeypatch.setenv("LAB_PREDICTIONS", "off")
    compare(5, 2.5, " ms", of="one product")
    capsys.readouterr()
    predictions.finish()
    assert said(capsys) == [] and not reports.exists()


def test_the_file_lies_where_git_does_not_look():
    assert "reports/*" in (paths.SOURCE_CODE.parent / ".gitignore").read_text().splitlines()


SO_MUCH = "; answer: 20 times"
TIMES = predictions.Guess(
    "how many times", " times", lambda whole, left: whole / left, {"That is what is left.": lambda whole, left: left}
)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (2.1, [f"you predicted 2.1 times{SO_MUCH} – under by a factor of 9.52", "2.1 times? That is what is left."]),
        (19, ["you predicted 19 times; answer: 20 times – under by a factor of 1.05"]),
        (9, ["you predicted 9 times; answer: 20 times – under by a factor of 2.22"]),
        (None, [f"{predictions.ASKED}; answer: 20 times"]),
    ],
)  # fmt: skip
def test_a_guess_is_told_what_it_left_out(made, says, capsys):
    predictions.begin(2)
    predictions.predict(TIMES, made, 40.0, 2.0)
    assert said(capsys) == ["Prediction: how many times", *says]


def test_a_guess_that_is_no_number_has_no_reason(capsys):
    predictions.predict(TIMES, "many", 40.0, 2.0)
    assert len(said(capsys)) == 2


def test_a_mistake_that_does_not_exist_here_is_no_reason():
    assert replace(TIMES, wrong={"Never.": lambda whole, left: whole / 0}).why(3.0, 40.0, 2.0) == ""
