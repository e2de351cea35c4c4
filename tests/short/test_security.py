""".github/SECURITY.md says what runs when somebody else's file is opened; each row names the tests that hold it."""

from __future__ import annotations

import json
import pickle
import re
import sqlite3
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

import pages
from labkit.errors import LabError
from labkit.paths import ROOT
from labkit.source import recorded
from labkit.speedrun import referee
from labkit.subjects.ladder import wall_clock_table
from labkit.training import distributed
from stepbudget.__main__ import main
from stepbudget.export import nsys
from stepbudget.show import svg
from synthetic import SyntheticReport
from test_hostile_names import EVIL, STEERS
from traces import SyntheticTrace


class Trap:
    """What writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple:
        return Path.touch, (self.file,)


def rows() -> list[list[str]]:
    lines = [line for line in (ROOT / ".github" / "SECURITY.md").read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_every_row_names_tests_and_all_of_them_exist():
    files = {file.stem: file.read_text() for file in (ROOT / "tests").rglob("test_*.py")}
    assert len(rows()) == 12
    for row in rows():
        named = re.findall(r"`(test_\w+)::(test_\w+)`", row[-1])
        assert len(row) == 4 and named, row
        assert not [test for file, test in named if f"\ndef {test}(" not in files[file]], row


def test_a_view_in_a_report_is_refused_before_it_runs(tmp_path, capsys):
    """This one would never end."""
    path = SyntheticReport(tmp_path / "made.sqlite").range(0, 90, "training").kernel(10, 30, "sgemm").write()
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id, 'a' AS value FROM n"
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE StringIds RENAME TO others")
        db.execute(f"CREATE VIEW StringIds AS {endless}")
    db.close()
    assert main([str(path)]) == 2
    assert "holds a view (StringIds)" in capsys.readouterr().err


def test_a_report_s_name_is_no_command_and_no_option(tmp_path, monkeypatch, capsys):
    """What nsys is told of it is one word, from the root on; nothing of the name is run."""
    name = "--output=ran $(touch ran);`touch ran`\n-h"
    made = SyntheticReport(tmp_path / "made").range(0, 90, "training").kernel(10, 30, "sgemm").write()
    tool = tmp_path / "tool"
    tool.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "NVIDIA Nsight Systems version 2025.3.1.90-1"; exit 0; }\n'
        f'[ "$2" = --help ] && exit 0\nfor word in "$@"; do printf "%s\\0" "$word"; done >{tmp_path}/words\n'
        f'while [ "$1" != --output ]; do shift; done\ncp {made} "$2"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("LAB_NSYS", str(tool))
    nsys.find_nsys.cache_clear()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    report = Path(f"{name}.nsys-rep")
    report.write_bytes(b"NVIDIA Tegra Profiler\x00 2024.6.2.225-246235244400v0 \n")
    assert main(["--", str(report)]) == 0, capsys.readouterr().err
    assert (tmp_path / "words").read_text().split("\0")[-2] == str(report.absolute())
    assert {file.name for file in report.absolute().parent.iterdir()} == {report.name, f"{name}.sqlite"}
    nsys.find_nsys.cache_clear()


@pytest.mark.parametrize("form", ["--tables", "--markdown", "--html"])
def test_names_in_a_trace_are_text_in_every_form(form, tmp_path, capsys):
    trace = SyntheticTrace(tmp_path / "trace.json").step(0, 100).range(5, 60, EVIL)
    path, page = trace.launch(12, 20, 30, EVIL).launch(40, 50, 60, EVIL).write(), tmp_path / "page.html"
    assert main([str(path), form, *([str(page)] if form == "--html" else [])]) == 0
    told = page.read_text() if form == "--html" else capsys.readouterr().out
    assert not any(sign in told for sign in STEERS)
    if form in ("--html", "--markdown"):
        assert "<script>alert" not in told.replace("\\<script", "")


def test_words_of_a_run_s_record_are_text(tmp_path):
    """All that a record's maker can write freely, in the table that shows it."""
    kept = recorded.folder() / "runs" / "main_opt1-01.json"
    record = {name: EVIL if isinstance(one, str) else one for name, one in json.loads(kept.read_text()).items()}
    bundle = wall_clock_table({EVIL: [record]})._repr_mimebundle_()
    assert "<script" not in bundle["text/html"] and "&lt;script" in bundle["text/html"]
    assert not any(sign in text for sign in STEERS for text in bundle.values())


@pytest.mark.parametrize("file", pages.FILES, ids=lambda file: file.stem)
def test_the_course_s_notebooks_store_one_script_alone(file):
    scripts = []
    for cell in nbformat.read(file, as_version=4).cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            assert "application/javascript" not in data
            scripts += re.findall(r"<script[^>]*>(.*?)</script>", data.get("text/html", ""), re.DOTALL)
            assert not re.search(r"<[^>]+\son\w+=|<(?:iframe|object|embed|link)\b", data.get("text/html", ""))
    assert {*scripts} <= {svg.SCRIPT}


def test_an_entry_is_a_program(tmp_path):
    entry = tmp_path / "entry.py"
    entry.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(LabError, match="is no entry"):
        referee.read(entry)
    assert (tmp_path / "ran").exists()


def test_a_checkpoint_with_a_program_in_it_is_refused(tmp_path, capsys):
    torch.save({"epoch": Trap(tmp_path / "ran")}, tmp_path / "kept.pt")
    run = Namespace(args=Namespace(checkpoint=str(tmp_path / "kept.pt")))
    with pytest.raises(SystemExit) as end:
        distributed.DistributedRun._read(run)
    assert end.value.code == 2 and not (tmp_path / "ran").exists()
    assert "more than weights" in capsys.readouterr().err


def test_a_sharded_checkpoint_is_a_program(tmp_path):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    with suppress(AttributeError):  # after it has run
        FileSystemReader(tmp_path).read_metadata()
    assert (tmp_path / "ran").exists(), "PyTorch reads it otherwise by now: SECURITY.md may say so"
