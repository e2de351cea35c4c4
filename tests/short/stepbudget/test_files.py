"""Answers written as files: all of one or nothing, never onto a report or what is no file; one sentence if it fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepbudget.__main__ import main
from stepbudget.errors import ReportError
from stepbudget.show import files
from synthetic import SyntheticReport


@pytest.fixture
def report(tmp_path) -> Path:
    return SyntheticReport(tmp_path / "made.sqlite").range(0, 10, "training").write()


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_both_files_are_written_beside_the_text(report, tmp_path, capsys):
    page, trace = tmp_path / "page.html", tmp_path / "trace.json.gz"
    assert main([str(report), "--html", str(page), "--trace", str(trace)]) == 0
    out = capsys.readouterr().out
    assert "Where the time goes" in out and f"written: {page}" in out and f"written: {trace}" in out
    assert page.read_text().startswith("<!DOCTYPE html>") and trace.read_bytes()[:2] == b"\x1f\x8b"
    assert left(tmp_path) == {"made.sqlite", "page.html", "trace.json.gz"}, "no draft is left"


def test_what_is_printed_is_the_json_or_the_markdown_alone(report, tmp_path, capsys):
    for option, start in (("--json", "{"), ("--markdown", "**Step budget**")):
        assert main([str(report), "--html", str(tmp_path / "page.html"), option]) == 0
        out = capsys.readouterr().out
        assert out.startswith(start) and "written:" not in out


def test_an_older_answer_is_replaced_and_its_link_kept(report, tmp_path, capsys):
    (tmp_path / "real.html").write_text("of yesterday")
    (tmp_path / "page.html").symlink_to("real.html")
    assert main([str(report), "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").is_symlink() and (tmp_path / "real.html").read_text().startswith("<!DOCTYPE")


def refusals(report: Path, tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "alias.html").symlink_to(report)
    os.mkfifo(tmp_path / "pipe")
    return {
        "there is no folder": tmp_path / "missing" / "page.html",
        "is no regular file": tmp_path / "folder",
        r"is no regular file\b": tmp_path / "pipe",
        "is no regular file: name another": Path(os.devnull),
        "is a report that is read": report,
        "is a report that is read: name another": tmp_path / "alias.html",
        "cannot be written": tmp_path / "circle",
        "cannot be written: ": tmp_path / ("x" * 300),
    }


def test_what_cannot_be_written_is_one_sentence_and_nothing_is_touched(report, tmp_path, capsys):
    before = report.read_bytes()
    for words, path in refusals(report, tmp_path).items():
        there = left(tmp_path)
        assert main([str(report), "--html", str(path)]) == 2, path
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and words.replace(r"\b", "") in said.err
        assert left(tmp_path) == there and report.read_bytes() == before


def test_a_report_named_by_a_link_is_kept_too(report, tmp_path, capsys):
    (tmp_path / "link.sqlite").symlink_to(report)
    assert main([str(tmp_path / "link.sqlite"), "--html", str(report)]) == 2
    assert "is a report that is read" in capsys.readouterr().err and report.read_bytes().startswith(b"SQLite")


def test_a_files_name_does_not_steer_the_terminal(report, tmp_path, capsys):
    assert main([str(report), "--html", str(tmp_path / "\x1b[31m.html")]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_half_an_answer_is_never_met(tmp_path):
    (tmp_path / "page.html").write_text("of yesterday")

    def pieces():
        yield "half"
        assert (tmp_path / "page.html").read_text() == "of yesterday"
        raise ReportError("the report is damaged")

    with pytest.raises(ReportError, match="damaged"):
        files.write(tmp_path / "page.html", pieces())
    assert left(tmp_path) == {"page.html"} and (tmp_path / "page.html").read_text() == "of yesterday"


def test_a_full_disk_is_one_sentence(tmp_path):
    def pieces():
        yield "half"
        raise OSError(28, "No space left on device")

    with pytest.raises(ReportError, match=r"page\.html cannot be written: No space left on device\."):
        files.write(tmp_path / "page.html", pieces())
    assert not left(tmp_path)


def test_the_two_files_are_two(report, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main([str(report), "--html", str(tmp_path / "a.json"), "--trace", str(tmp_path / "." / "a.json")])
    assert end.value.code == 2 and "the same file as --html" in capsys.readouterr().err
