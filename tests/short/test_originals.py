"""Recorded files that are valid but wrong: refused by name before anything is read out of them, and found by a command.

Every fault is made in a copy; a fixture holds the recordings themselves against what they were before.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys

import pytest

from labkit import course, doctor, lines
from labkit.errors import LabError, NotRecorded
from labkit.paths import RECORDED, SOURCE_CODE
from labkit.recording import __main__ as command_line
from labkit.recording import provenance
from labkit.source import Recorded, kinds, originals, recorded, running
from stepbudget.errors import ReportError
from stepbudget.report import open_report

OF = RECORDED / course.DEFAULT_MACHINE
RUN, PROFILE, OTHER = "main_baseline.py", "main_opt5", "main_opt6"
COUNTS, STEP = "main_opt7_bytes", "profile_torch.py main_opt2.py --memory"
FILES = {
    "run": "runs/main_baseline-01.json",
    "profile": f"profiles/{PROFILE}.sqlite.xz",
    "other profile": f"profiles/{OTHER}.sqlite.xz",
    "counts": f"counters/{COUNTS}.csv",
    "trace": "torch_profiler/main_opt2.trace.json.gz",
    "record of the trace": "torch_profiler/main_opt2.json",
    "record of the profile": f"profiles/{PROFILE}.json",
    "record of the other profile": f"profiles/{OTHER}.json",
    "record of the counts": f"counters/{COUNTS}.json",
}


def sums() -> dict[str, str]:
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in RECORDED.rglob("*") if file.is_file()}


@pytest.fixture(scope="module", autouse=True)
def recordings_stay_as_they_are():
    before = sums()
    yield
    assert sums() == before


@pytest.fixture
def machine(tmp_path) -> Recorded:
    """A few of the default machine's recordings, to break."""
    folder = tmp_path / "recorded" / "copy"
    for name in FILES.values():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(OF / name, folder / name)
    about = json.loads((OF / "provenance.json").read_text())
    about["sha256"] = {name: sum for name, sum in about["sha256"].items() if name in FILES.values()}
    (folder / "provenance.json").write_text(json.dumps(about))
    return Recorded(folder)


def quiet(line: str) -> None:
    pass


def use(machine: Recorded, which: str) -> object:
    """What a lab does with a file."""
    about = json.loads((OF / "provenance.json").read_text())
    if which == "run":
        return machine.get(kinds.runs([RUN]), quiet)
    if which == "counts":
        return machine.get(kinds.counts(about["counters"][COUNTS]), quiet)
    if which in ("trace", "record of the trace"):
        return machine.get(kinds.trace(STEP), quiet)
    return machine.get(kinds.profile(about["profiles"][PROFILE]), quiet)


def test_of_several_profiles_the_shortest_and_the_longest_are_said(machine):
    beside = machine.folder / FILES["record of the profile"]
    about = json.loads(beside.read_text())
    for others, said in (([], ""), ([1841.4, 764.44], ", the middle of 3 profiles of 764.4 to 1,841 ms")):
        beside.write_text(json.dumps(about | {"others": [{"duration_ms": ms, "ms": {}} for ms in others]}))
        whole = json.loads((machine.folder / "provenance.json").read_text())
        whole["sha256"][FILES["record of the profile"]] = hashlib.sha256(beside.read_bytes()).hexdigest()
        (machine.folder / "provenance.json").write_text(json.dumps(whole))
        told = []
        machine.get(kinds.profile(whole["profiles"][PROFILE]), told.append)
        assert re.fullmatch(rf"recorded \([^()]+\){said}: \S+{PROFILE}\.sqlite\.xz", lines.joined(told[-1]))


def cut_counts(raw: bytes) -> bytes:
    """Its first kernels alone: lines that are whole, and parse."""
    lines = raw.splitlines(keepends=True)
    return b"".join(lines[: len(lines) // 3])


FAULTS = {
    "an empty record": ("run", lambda raw: b"{}"),
    "another number": ("run", lambda raw: raw.replace(b'"wall_s": ', b'"wall_s": 1', 1)),
    "no JSON": ("run", lambda raw: raw[: len(raw) // 2]),
    "nothing": ("run", lambda raw: b""),
    "no text": ("run", lambda raw: b"\xff\xfe" + raw),
    "counts that were cut": ("counts", cut_counts),
    "another's profile": ("profile", lambda raw: (OF / FILES["other profile"]).read_bytes()),
    "a profile cut short": ("profile", lambda raw: raw[:-100]),
    "a profile packed again": ("profile", lambda raw: lzma.compress(lzma.decompress(raw)[:-4096])),
    "a broken trace": ("trace", lambda raw: raw[:2000] + bytes(100) + raw[2100:]),
    "an empty trace": ("trace", lambda raw: gzip.compress(b'{"traceEvents": []}')),
    "another record of a trace": ("record of the trace", lambda raw: raw.replace(b"main_opt2", b"main_opt3")),
}


def test_the_copy_is_whole(machine):
    assert originals.differing(machine.folder) == {}
    for which in ("run", "counts", "profile", "trace"):
        assert use(machine, which)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_valid_but_wrong_is_refused_by_name(fault, machine):
    which, change = FAULTS[fault]
    file = machine.folder / FILES[which]
    raw = file.read_bytes()
    assert change(raw) != raw
    file.write_bytes(change(raw))
    with pytest.raises(LabError) as told:
        use(machine, which)
    assert file.name in str(told.value) and "not the file that was recorded" in str(told.value)
    assert "\n" not in str(told.value) and not isinstance(told.value, NotRecorded), "no other machine's instead"
    assert originals.differing(machine.folder) == {FILES[which]: originals.CHANGED}


def test_a_recording_that_nobody_listed_is_refused(machine):
    shutil.copyfile(machine.folder / FILES["run"], machine.folder / "runs" / "main_baseline-02.json")
    with pytest.raises(LabError, match=r"main_baseline-02\.json is not in the list of what was recorded"):
        use(machine, "run")


def test_one_that_is_gone_is_missing(machine):
    (machine.folder / FILES["profile"]).unlink()
    assert originals.differing(machine.folder) == {FILES["profile"]: originals.MISSING}


@pytest.mark.parametrize("which", ["run", "counts", "profile", "record of the trace"])
def test_a_run_that_is_gone_is_named_and_the_others_are_not_told_as_all(which, machine):
    file = machine.folder / FILES[which]
    file.unlink()
    with pytest.raises(LabError, match=rf"{file.name} is missing") as told:
        use(machine, which)
    assert not isinstance(told.value, NotRecorded), "no other machine's instead"


def test_a_machine_whose_list_is_gone_is_named(machine, monkeypatch):
    (machine.folder / "provenance.json").unlink()
    assert check(machine, monkeypatch) not in (0, None)


@pytest.mark.parametrize("content", ["{}", "[]", "null", '{"gpu": "NVIDIA H200"}', '{"gpu": 1, "recorded":', ""])
def test_a_provenance_that_says_too_little_is_one_sentence(content, machine):
    (machine.folder / "provenance.json").write_text(content)
    for ask in (lambda: use(machine, "run"), lambda: machine.greeting, lambda: machine.facts):
        with pytest.raises(LabError, match=r"provenance\.json (does not say|cannot be read)"):
            ask()


def test_live_results_have_no_list_and_are_read(tmp_path):
    file = tmp_path / "reports" / "runs" / "mine-01.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"process_s": 1}')
    assert originals.read(file) == {"process_s": 1}


@pytest.mark.parametrize("content", ["[]", "null", "{}", '{"status": "complete"}', "{", ""])
def test_a_live_record_that_is_none_is_made_again(content, tmp_path):
    file = tmp_path / "mine-01.json"
    file.write_text(content)
    assert running.finished(file, RUN) is None


@pytest.mark.parametrize("change", [FAULTS["a broken trace"][1], lambda raw: raw[: len(raw) // 2], gzip.decompress])
def test_a_live_trace_that_is_damaged_is_one_sentence_or_says_what_is_missing(change, tmp_path):
    file = tmp_path / "mine.trace.json.gz"
    file.write_bytes(change((OF / FILES["trace"]).read_bytes())[:-1000])
    try:
        assert any("may be missing" in text for text in open_report(file).losses)
    except ReportError as error:
        assert "mine.trace.json.gz is" in str(error)


def test_a_file_that_is_mended_is_read_in_the_same_session(machine):
    file = machine.folder / FILES["run"]
    raw = file.read_bytes()
    file.write_bytes(b"{}")
    with pytest.raises(LabError):
        use(machine, "run")
    file.write_bytes(raw)
    assert use(machine, "run")


# --- the command --------------------------------------------------------------------------------------------


def check(machine: Recorded, monkeypatch, *words: str) -> int:
    monkeypatch.setattr(command_line, "RECORDED", machine.folder.parent)
    monkeypatch.setattr(sys, "argv", ["record", "--check", *words])
    with pytest.raises(SystemExit) as end:
        command_line.main()
    return end.value.code


def test_one_command_names_every_file_that_differs(machine, monkeypatch, capsys):
    assert check(machine, monkeypatch) == 0 and "copy: every file is as it was recorded" in capsys.readouterr().out
    (machine.folder / FILES["run"]).write_text("{}")
    (machine.folder / FILES["trace"]).unlink()
    (machine.folder / "runs" / "mine.json").write_text("{}")
    assert check(machine, monkeypatch, "--machine", "copy") == 1
    out = capsys.readouterr().out
    assert f"{FILES['run']}: {originals.CHANGED}" in out and f"{FILES['trace']}: {originals.MISSING}" in out
    assert f"runs/mine.json: {originals.UNLISTED}" in out and "copy: 3 files differ" in out


def test_the_shipped_recordings_are_what_was_recorded():
    done = subprocess.run(
        [sys.executable, "-m", "labkit.recording", "--check"],
        env={**os.environ, "PYTHONPATH": str(SOURCE_CODE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.count("every file is as it was recorded") == len(
        [*RECORDED.glob("*/provenance.json")]
    )


def test_recording_does_not_vouch_for_a_file_that_was_changed(machine):
    command_line.refuse_changed(machine.folder)
    (machine.folder / FILES["run"]).write_text("{}")
    before = (machine.folder / provenance.FILE).read_bytes()
    with pytest.raises(LabError, match=r"main_baseline-01\.json is not the file.*or delete it to have it measured"):
        command_line.refuse_changed(machine.folder)
    assert (machine.folder / provenance.FILE).read_bytes() == before
    (machine.folder / FILES["run"]).unlink()
    command_line.refuse_changed(machine.folder)


def test_the_morning_check_says_so_too(machine, monkeypatch):
    monkeypatch.setattr(doctor, "RECORDED", machine.folder.parent)
    assert doctor.recordings() == ("recordings", f"all {len(FILES)} files as recorded", "")
    (machine.folder / FILES["run"]).write_text("{}")
    _, found, so = doctor.recordings()
    assert found == f"1 of {len(FILES)} files differ" and "--check" in so
    (machine.folder / "provenance.json").write_text("{}")
    assert "does not say what was recorded" in doctor.recordings()[2]


def test_what_is_shown_is_from_the_checkouts_top():
    assert recorded.shown(OF / "runs") == f"reports/recorded/{OF.name}/runs"
