"""The command line, python3 -m stepbudget, as users meet it: answers that plain SQL confirms, or one sentence."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from copy import deepcopy
from pathlib import Path

import pytest

from labkit.paths import SOURCE_CODE
from labkit.recording import plan
from labkit.source import recorded
from stepbudget.__main__ import main
from stepbudget.export import files, nsys
from stepbudget.report import open_report
from stepbudget.show.json import VERSION
from synthetic import AUTOGRAD, SyntheticReport, changed

PROFILES = recorded.folder() / "profiles"
STEPS = [*plan.PROFILES, "main_opt3_ops"]  # one of each kind is enough of those by operator
GEMM, POINTWISE = "ampere_s16816gemm_128x64", "at::native::vectorized_elementwise_kernel<4>"

IN_GRAPHS = ("main_opt5", "main_opt6", "main_opt6_block", "main_opt7", "main_opt8")  # whose epoch is one launch
each_step = pytest.mark.parametrize("step", STEPS)


@pytest.fixture(scope="module")
def answered() -> dict[tuple[str, ...], dict]:
    """The answers of recorded reports, which do not change: each question about them is asked once."""
    return {}


@pytest.fixture
def answer(answer, answered):
    """The answer as an object."""

    def run(*arguments: object) -> dict:
        question, is_recorded = tuple(map(str, arguments)), Path(arguments[0]).parent == PROFILES
        found = answered.get(question) or answer(*arguments)
        if is_recorded:
            answered[question] = found
        return deepcopy(found)

    return run


@pytest.fixture
def refused(ask):
    """What is said of something that cannot be answered: one line, status 2, nothing on stdout."""

    def run(*arguments: object) -> str:
        status, out, err = ask(*arguments)
        assert (status, out) == (2, "")
        assert err.endswith("\n") and err.count("\n") == 1, err
        return err.strip()

    return run


def small(made: SyntheticReport, name: str = "training") -> SyntheticReport:
    """A window of 100 µs with two steps on one GPU, and another GPU that works too."""
    made.range(0, 100, name).gpu("NVIDIA H200")
    for at in (0, 50):
        made.range(at, at + 10, "data loading").range(at + 10, at + 30, "forward")
        made.copy(at + 15, at + 17, 3000, memory="pinned", call=(at + 11, at + 12))
        made.kernel(at + 20, at + 40, GEMM, call=(at + 13, at + 14))
    return made.kernel(5, 9, POINTWISE, call=(1, 2), device=1, thread=AUTOGRAD)


def state(folder: Path) -> dict[str, str]:
    """Every file below the folder with the hash of what it holds."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


# --- the answer ---------------------------------------------------------------------------------------------


@each_step
def test_the_whole_of_a_recorded_epoch_is_told(answer, step):
    found = answer(PROFILES / f"{step}.sqlite.xz")
    assert found["range"] == "training" and found["gpu"] == "NVIDIA H200" and found["nsys_version"].startswith("2025.3")
    if step != "main_baseline":
        assert found["steps"] == (None if step in IN_GRAPHS else 59), "inside a graph there are no ranges"
        assert len(found["phases"]) >= (2 if step in IN_GRAPHS else 7)
    assert {one["tensor_core"] for one in found["kernels"]} <= {"yes", "no", "unknown"}
    assert sum(share or 0 for share in found["budget"].values()) == pytest.approx(1, abs=1e-9)
    assert all(0 <= (share or 0) <= 1 for share in found["budget"].values())


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A recorded report as a plain database: what an outsider's SQL reads."""
    folder = tmp_path_factory.mktemp("plain")

    def connect(step: str) -> sqlite3.Connection:
        path = folder / f"{step}.sqlite"
        if not path.exists():
            path.write_bytes(lzma.decompress((PROFILES / f"{step}.sqlite.xz").read_bytes()))
        return sqlite3.connect(path)

    return connect


RANGE = """
SELECT start, "end", globalTid >> 24 FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId
WHERE coalesce(text, value) = ? AND eventType IN (59, 60) ORDER BY start
"""
KERNEL_SUMS = """
SELECT value, count(*), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName
WHERE start >= ? AND start < ? GROUP BY value
"""
COPY_SUMS = """
SELECT copyKind, CASE copyKind WHEN 2 THEN dstKind ELSE srcKind END,
    count(*), sum(bytes), sum("end" - start), max("end" - start)
FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE start >= ? AND start < ? GROUP BY 1, 2
"""
PHASES = """
CREATE TEMP TABLE phase AS
SELECT coalesce(text, value) AS name, start, min("end", :end) AS "end", globalTid >> 24 AS process
FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId
WHERE eventType IN (59, 60) AND start > :start AND start < :end
    AND name NOT LIKE '%, seq = %' AND name NOT LIKE '%, op_id = %'  -- single operators are no phases
"""
PHASE_TIMES = """SELECT name, count(*), sum("end" - start) FROM phase GROUP BY name"""
# Of the phases around a call, the one that began last.
PHASE_SUMS = """
WITH launch AS (
    SELECT name, max(phase.start), work."end" - work.start AS ns
    FROM CUPTI_ACTIVITY_KIND_KERNEL AS work
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call
        ON call.correlationId = work.correlationId AND call.globalTid >> 24 = work.globalPid >> 24
    JOIN phase ON phase.process = work.globalPid >> 24 AND call.start >= phase.start AND call.start < phase."end"
    WHERE call.start >= :start AND call.start < :end
    GROUP BY work.rowid
)
SELECT name, count(*), sum(ns) FROM launch GROUP BY name
"""


@each_step
def test_plain_sql_finds_the_same_kernels(answer, database, step):
    db = database(step)
    start, end, _ = db.execute(RANGE, ("training",)).fetchone()
    found = answer(PROFILES / f"{step}.sqlite.xz")
    assert (found["start_ns"], found["end_ns"]) == (start, end)
    assert found["duration_ms"] == pytest.approx((end - start) / 1e6)
    expected = {name: (count, pytest.approx(ns / 1e6)) for name, count, ns in db.execute(KERNEL_SUMS, (start, end))}
    assert {one["name"]: (one["count"], one["gpu_ms"]) for one in found["kernels"]} == expected
    used = found["tensor_cores"]
    assert used["yes_ms"] + used["no_ms"] + used["unknown_ms"] == pytest.approx(
        sum(one["gpu_ms"] for one in found["kernels"])
    )


@each_step
def test_plain_sql_finds_the_same_copies(answer, database, step):
    db = database(step)
    start, end, _ = db.execute(RANGE, ("training",)).fetchone()
    directions = {1: "host to device", 2: "device to host", 8: "device to device"}
    memory = {0: "pageable", 1: "pinned", 2: "device"}
    expected = {
        (directions[kind], memory[host]): (count, size, pytest.approx(ns / 1e6), pytest.approx(longest / 1e3))
        for kind, host, count, size, ns, longest in db.execute(COPY_SUMS, (start, end))
    }
    found = answer(PROFILES / f"{step}.sqlite.xz")["copies"]
    keys = ("count", "bytes", "gpu_ms", "longest_gpu_us")
    assert {(one["direction"], one["host_memory"]): tuple(one[key] for key in keys) for one in found} == expected


@pytest.mark.parametrize("step", [step for step in STEPS if step not in ("main_baseline", *IN_GRAPHS)])
def test_plain_sql_finds_the_same_phases_with_the_backward_pass_of_autograds_thread(answer, database, step):
    db = database(step)
    start, end, _ = db.execute(RANGE, ("training",)).fetchone()
    window = {"start": start, "end": end}
    found = {one["name"]: one for one in answer(PROFILES / f"{step}.sqlite.xz")["phases"]}
    db.execute(PHASES, window)
    for name, count, ns in db.execute(PHASE_TIMES):
        assert found[name]["count"] == count
        assert found[name]["cpu_ms"] == pytest.approx(ns / 1e6)
    launched = {name: (count, ns / 1e6) for name, count, ns in db.execute(PHASE_SUMS, window)}
    assert launched["backward"][1] > 5, "PyTorch launches it from another thread"
    for name, (count, ms) in launched.items():
        assert (found[name]["kernels"], found[name]["gpu_ms"]) == (count, pytest.approx(ms))
    assert sum(one["kernels"] for one in found.values() if one["name"] != "(outside any phase)") == sum(
        count for count, _ in launched.values()
    )


@each_step
def test_the_text_says_the_same_in_lines_that_fit(ask, answer, step):
    path = PROFILES / f"{step}.sqlite.xz"
    status, out, err = ask(path)
    assert (status, err) == (0, "")
    found, lines = answer(path), out.splitlines()
    assert lines[0] == f"{path.name}: NVIDIA H200, Nsight Systems {found['nsys_version']}"
    assert f"{found['duration_ms']:,.1f} ms" in lines[1] and f"{100 * found['gpu_busy_fraction']:.1f} %" in lines[1]
    for title in ("Where the time goes", "What to do next", "Phases"):
        assert title in lines or not found["phases"]
    assert all(len(line) <= 120 for line in lines)
    assert "nan" not in out.lower().split() and "None" not in out


# --- which window, which GPU --------------------------------------------------------------------------------


def test_a_range_by_name_and_its_occurrences(answer, database):
    path = PROFILES / "main_opt1.sqlite.xz"
    rows = database("main_opt1").execute(RANGE, ("forward",)).fetchall()
    for occurrence in (1, 3, len(rows)):
        found = answer(path, "--range", "forward", "--occurrence", occurrence)
        assert (found["range"], found["start_ns"], found["end_ns"]) == ("forward", *rows[occurrence - 1][:2])
        assert sum(share or 0 for share in found["budget"].values()) == pytest.approx(1, abs=1e-9)


def test_a_range_that_is_not_there_is_answered_with_those_that_are(refused):
    said = refused(PROFILES / "main_opt1.sqlite.xz", "--range", "evaluation")
    assert "no NVTX range called 'evaluation'" in said
    for name in ("training", "data loading", "forward", "backward", "optimizer step"):
        assert name in said


def test_many_or_long_ranges_are_not_all_listed(refused, made):
    for number in range(200):
        made.range(number, number + 1, f"{number:03d}" * 400)
    said = refused(made.write(), "--range", "x\ny")
    assert "and 180 more" in said and len(said) < 2000


@pytest.mark.parametrize("occurrence", [2, 10**30])
def test_an_occurrence_that_is_not_there_is_refused(refused, made, occurrence):
    path = small(made).write()
    assert "'training' once" in refused(path, "--occurrence", occurrence)
    assert "'forward' 2 times" in refused(path, "--range", "forward", "--occurrence", 1 + occurrence)


def test_a_whole_capture_does_not_occur_twice(refused, made):
    small(made, "other")
    path = made.write()
    assert "no NVTX range called 'training'" in refused(path, "--occurrence", "2")


def test_a_gpu_by_its_number(answer, made):
    path = small(made).write()
    one, other = answer(path), answer(path, "--gpu", "1")
    assert one["gpus_used"] == [0, 1]
    assert (one["gpu_number"], other["gpu_number"]) == (0, 1)
    assert one["gpu_busy_fraction"] == pytest.approx(0.44) and other["gpu_busy_fraction"] == pytest.approx(0.04)


def test_a_ranges_kernels_are_those_of_its_process_and_whose_the_numbers_are_is_said(answer, ask, made):
    path = small(made).kernel(30, 45, POINTWISE, device=2, process=99).write()
    whole = answer(path)
    assert {one["name"]: one["count"] for one in whole["kernels"]} == {GEMM: 2}
    assert {one["name"]: one["count"] for one in answer(path, "--gpu", "1")["kernels"]} == {POINTWISE: 1}
    (said,) = whole["remarks"]
    assert said.startswith("2 processes worked on GPUs 0, 1, 2; all that follows is about process 4711 on GPU 0")
    assert "all that follows" in ask(path)[1]
    single = SyntheticReport(made.path.with_name("single.sqlite")).range(0, 9, "training").kernel(1, 2, GEMM)
    assert answer(single.write())["remarks"] == []


def test_kernels_launched_before_the_capture_are_counted_and_said_to_be_in_no_phase(answer, made):
    found = answer(small(made).kernel(60, 70, POINTWISE).write())
    assert sum(one["count"] for one in found["kernels"]) == 3
    assert sum(one["kernels"] for one in found["phases"]) == 2
    assert any("1 of 3 kernels" in text for text in found["not_looked_at"])


def test_rows_that_stand_there_twice_are_not_summed_up_in_silence(answer, made):
    path = small(made).write()
    assert not any("repeat" in text for text in answer(path)["not_looked_at"])
    changed(path, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert any(text.startswith("3 rows of CUPTI_ACTIVITY_KIND_KERNEL repeat") for text in answer(path)["not_looked_at"])


def test_a_gpu_that_did_nothing_is_refused(refused, made, tmp_path):
    path = small(made).write()
    assert "number 7; the GPUs that did are 0, 1" in refused(path, "--gpu", "7")
    refused(path, "--gpu", "9" * 40)
    idle = SyntheticReport(tmp_path / "idle.sqlite").range(0, 10, "training").write()
    assert "number 0; nor on any other" in refused(idle, "--gpu", "0")
    assert "idle.sqlite" in refused(path, "--gpu", "0", "--compare", idle)


# --- two reports --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "fix"),
    [("main_baseline_nvtx", "main_opt1", "loader"), ("main_opt2", "main_opt3", None)],
)
def test_a_fix_is_held_against_its_prediction(answer, ask, before, after, fix):
    arguments = (PROFILES / f"{before}.sqlite.xz", "--compare", PROFILES / f"{after}.sqlite.xz")
    found = answer(*arguments)["comparison"]
    assert found["comparable"] is True and found["obstacles"] == []
    assert found["prediction"]["kept"] is True
    assert fix is None or found["prediction"]["fix"] == fix
    change = sum(one["after"] - one["before"] for one in found["budget_ms"].values())
    assert found["gained_ms"] == pytest.approx(-change)
    status, out, _ = ask(*arguments)
    assert status == 0 and "are gone from the rows that it treats" in out and "times as fast" in out


def test_the_advice_of_the_command_names_no_labs(capsys):
    assert main([str(PROFILES / "main_baseline_nvtx.sqlite.xz")]) == 0
    said = capsys.readouterr().out
    assert "loader" in said and " lab" not in said


def test_what_cannot_be_compared_is_not_scored(answer, ask, made, tmp_path):
    """For which reasons is in test_predict.py."""
    other = small(SyntheticReport(tmp_path / "other.sqlite"))
    other._rows["TARGET_INFO_GPU"][0]["name"] = "NVIDIA L4"
    arguments = (small(made).write(), "--compare", other.write())
    found = answer(*arguments)["comparison"]
    assert found["comparable"] is False and found["prediction"] is None and found["obstacles"]
    status, out, err = ask(*arguments)
    assert (status, err) == (0, "")
    assert "not comparable" in out and found["obstacles"][0] in " ".join(out.split()) and "times as fast" not in out


def test_the_other_report_is_named_where_it_cannot_be_read(refused, made, tmp_path):
    path = small(made).write()
    (tmp_path / "other.sqlite").write_bytes(b"")
    assert "other.sqlite is empty" in refused(path, "--compare", tmp_path / "other.sqlite")
    second = SyntheticReport(tmp_path / "second.sqlite").range(0, 10, "training").write()
    assert "second.sqlite holds no NVTX range called 'forward'" in refused(
        path, "--range", "forward", "--compare", second
    )


# --- what cannot be answered --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["a.sqlite", "b.sqlite"], ["a.sqlite", "--nonsense"], ["a.sqlite", "--occurrence", "0"],
        ["a.sqlite", "--occurrence", "two"], ["a.sqlite", "--occurrence", "-1"], ["a.sqlite", "--gpu", "all"],
        ["a.sqlite", "--gpu", "-1"], ["a.sqlite", "--gpu", "1.5"], ["a.sqlite", "--range"], ["a.sqlite", "--compare"],
        ["a.sqlite", "--occurrence", "9" * 5000],
    ],
    ids=lambda arguments: " ".join(arguments)[:40] or "none",
)  # fmt: skip
def test_wrong_arguments_are_argparses_business(ask, arguments):
    status, out, err = ask(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("usage: python3 -m stepbudget") and "error: " in err.splitlines()[-1]
    assert "Traceback" not in err


def unreadable(folder: Path, kind: str) -> Path:
    """A file that is no report, by its name."""
    path = folder / kind
    content = {
        "empty.sqlite": b"", "empty.nsys-rep": b"", "empty.sqlite.xz": b"", "text.sqlite": b"This is a text.\n" * 100,
        "pointer.sqlite": b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n",
        "pointer.nsys-rep": b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n",
        "text.nsys-rep": b"This is no report.\n", "renamed.bin": b"NVIDIA Tegra Profiler\x00\x01",
        "raw.qdstrm": b"\x7fQDSTRM\x00" * 50,
    }  # fmt: skip
    if kind == "folder.sqlite":
        path.mkdir()
    elif kind == "dlprof.sqlite":
        changed(path, "CREATE TABLE dlprof_kernels (id INTEGER, name TEXT)")
    elif kind == "cut.sqlite.xz":
        whole = (PROFILES / "main_opt1.sqlite.xz").read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "cut.sqlite":
        whole = small(SyntheticReport(path)).write().read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "nothing.sqlite":
        SyntheticReport(path).write()
    elif kind != "missing.sqlite":
        path.write_bytes(content[kind])
    return path


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("missing.sqlite", "there is no report"), ("folder.sqlite", "is a folder"), ("empty.sqlite", "is empty"),
        ("empty.nsys-rep", "is empty"), ("empty.sqlite.xz", "is empty"), ("pointer.sqlite", "Git LFS"),
        ("pointer.nsys-rep", "Git LFS"), ("text.sqlite", "is not an Nsight Systems report"),
        ("text.nsys-rep", "is not an Nsight Systems report"), ("renamed.bin", "rename it to end in .nsys-rep"),
        ("raw.qdstrm", "raw capture"), ("dlprof.sqlite", "no table StringIds"), ("cut.sqlite.xz", "is damaged"),
        ("cut.sqlite", "malformed"), ("nothing.sqlite", "holds no events"),
    ],
)  # fmt: skip
def test_what_is_no_report_gets_one_sentence_and_stays_as_it_is(refused, tmp_path, kind, what):
    path = unreadable(tmp_path, kind)
    before = state(tmp_path)
    for arguments in ([path], [path, "--json"]):
        said = refused(*arguments)
        assert what in said and kind in said
    assert state(tmp_path) == before


def test_a_name_that_no_system_takes_is_one_sentence(refused):
    said = "there is no report" if sys.version_info >= (3, 14) else "cannot be read"  # pathlib no longer raises
    assert said in refused("x" * 5000)


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_changes_that_lie_beside_the_file_are_not_passed_over(refused, made, ending):
    path = small(made).write()
    path.with_name(path.name + ending).write_bytes(bytes.fromhex("d9d505f920a163d7") + b"more")
    assert f"made.sqlite{ending}" in refused(path)


def test_a_report_in_wal_mode_is_read_without_a_journal(answer, made):
    path = small(made).write()
    expected = answer(path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    before = state(path.parent)
    assert answer(path) == expected
    assert state(path.parent) == before


# --- files and places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True], ids=["sqlite", "xz"])
@pytest.mark.parametrize(
    "name",
    ["with space", "50% of %20 %p", 'it\'s "quoted"', "#1?mode=rwc&x=1", "Ünïcode ☃", "-dash", "a\nb", ":memory:"],
)
def test_any_name_is_a_name(answer, made, tmp_path, name, packed):
    content = small(made).write().read_bytes()
    made.path.unlink()
    folder = tmp_path / name
    folder.mkdir()
    path = folder / f"{name}.sqlite{'.xz' if packed else ''}"
    path.write_bytes(lzma.compress(content, preset=0) if packed else content)
    before = state(tmp_path)
    found = answer(path)
    assert found["report"] == path.name and len(found["kernels"]) == 1
    assert state(tmp_path) == before


def test_a_name_that_is_no_unicode_is_a_name(made, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.sqlite")
    try:
        shutil.copy(small(made).write(), path)
    except OSError:
        pytest.skip("this file system takes unicode only")
    for more in ([], ["--json"]):
        done = run_cli(path, *more)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_read_only_file_in_a_read_only_folder_is_read(made, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    path = folder / "made.sqlite"
    shutil.copy(small(made).write(), path)
    path.chmod(0o444)
    folder.chmod(0o555)
    try:
        done = run_cli(path, "--json")
        assert (done.returncode, done.stderr) == (0, b"")
        assert [file.name for file in folder.iterdir()] == ["made.sqlite"]
    finally:
        folder.chmod(0o755)


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read_is_named(refused, made):
    path = small(made).write()
    path.chmod(0)
    assert "made.sqlite cannot be read: Permission denied" in refused(path)


# --- as a process of its own --------------------------------------------------------------------------------


def run_cli(*arguments: object, **options: object) -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", "stepbudget", *map(str, arguments)]
    return subprocess.run(words, cwd=SOURCE_CODE, **{"capture_output": True, **options})


def test_a_process_of_its_own_answers_and_refuses(made, tmp_path):
    path = small(made).write()
    done = run_cli(path, "--json")
    assert (done.returncode, done.stderr) == (0, b"") and json.loads(done.stdout)["range"] == "training"
    done = run_cli(tmp_path / "missing.sqlite")
    assert (done.returncode, done.stdout) == (2, b"") and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_reader_that_stops_early_meets_no_traceback(made, form):
    read, write = os.pipe()
    os.close(read)
    path = small(made)
    for number in range(3000):  # more than a pipe holds
        path.kernel(10, 11, f"kernel number {number} with quite a long name that fills the pipe")
    with os.fdopen(write, "wb") as stream:
        done = run_cli(path.write(), *form, capture_output=False, stdout=stream, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence(made):
    with Path("/dev/full").open("wb") as stream:
        done = run_cli(small(made).write(), capture_output=False, stdout=stream, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == b"the answer cannot be written: No space left on device.\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_without_unicode_gets_what_it_can_show(made, encoding):
    path = small(made).kernel(10, 11, "größer_☃").write()
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = run_cli(path, env=environment)
    assert (done.returncode, done.stderr) == (0, b"") and b"Where the time goes" in done.stdout
    done = run_cli(path, "--json", env=environment)
    assert "größer_☃" in [one["name"] for one in json.loads(done.stdout.decode(encoding))["kernels"]]


# --- .nsys-rep ----------------------------------------------------------------------------------------------


def capture(folder: Path, version: bytes = b"2024@6@2@225-246235244400v0") -> Path:
    """Something that begins and ends like a .nsys-rep."""
    path = folder / "demo.nsys-rep"
    path.write_bytes(files.NSYS_MAGIC + b"filer\x00" + bytes(2_000_000) + version + bytes(300))
    return path


@pytest.fixture
def fake_nsys(monkeypatch, tmp_path):
    """Puts a shell script in nsys's place."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(body: str, version: str = "2022.4.2.1-df9881f") -> None:
        script = folder / "nsys"
        script.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "NVIDIA Nsight Systems version {version}"; exit 0; }}\n'
            'all="$*"\n'
            f'while [ $# -gt 0 ]; do [ "$1" = --output ] && out=$2; shift; done\n{body}\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("LAB_NSYS", str(script))
        nsys.find_nsys.cache_clear()

    yield put
    nsys.find_nsys.cache_clear()


@pytest.fixture
def reports(tmp_path) -> Path:
    (tmp_path / "reports").mkdir()
    return tmp_path / "reports"


def test_without_nsys_the_version_to_install_is_named(refused, monkeypatch, reports):
    monkeypatch.setenv("LAB_NSYS", str(reports / "nothing"))
    nsys.find_nsys.cache_clear()
    path = capture(reports)
    before = state(reports)
    said = refused(path)
    nsys.find_nsys.cache_clear()
    assert "captured by Nsight Systems 2024.6.2.225" in said and "which is no file" in said and "LAB_NSYS" in said
    assert state(reports) == before


@pytest.mark.parametrize("version", [b"2024@6@2@225-246235244400v0", b"2023.1.2.43-32377213v0"])
def test_an_nsys_that_is_too_old_is_told_from_the_version_in_the_file(refused, fake_nsys, reports, version):
    fake_nsys('echo half > "$out"; echo "Exportation error: Version number is invalid" >&2; exit 1')
    path = capture(reports, version)
    before = state(reports)
    said = refused(path)
    captured = ".".join(version.decode().split("-")[0].replace("@", ".").split("."))
    assert f"nsys 2022.4.2 is too old for demo.nsys-rep, captured by Nsight Systems {captured}" in said
    assert state(reports) == before


def test_another_failure_of_nsys_is_told_in_its_words(refused, fake_nsys, reports):
    fake_nsys('echo "no space here" >&2; exit 1', version="2026.1.1.1-1")
    path = capture(reports)
    assert "could not export demo.nsys-rep, captured by Nsight Systems 2024.6.2.225: no space here" in refused(path)
    assert [file.name for file in reports.iterdir()] == ["demo.nsys-rep"]


@pytest.mark.parametrize(("knows", "asked"), [("--include-blobs=", True), ("--lazy=", False)])
def test_payloads_of_ranges_are_exported_where_nsys_knows_how(answer, fake_nsys, made, reports, tmp_path, knows, asked):
    export = small(made).write().rename(tmp_path / "export")
    help_or_not = f'case "$all" in *--help*) echo " {knows}"; exit 0;; esac'
    fake_nsys(f'{help_or_not}\necho "$all" > "{tmp_path}/said"; cp "{export}" "$out"')
    assert answer(capture(reports))["report"] == "demo.nsys-rep"
    assert ("--include-blobs true" in (tmp_path / "said").read_text()) == asked


def test_an_export_that_is_older_is_named_where_no_new_one_can_be_made(refused, fake_nsys, made, reports):
    fake_nsys("exit 1")
    path = capture(reports)
    shutil.copy(small(made).write(), reports / "demo.sqlite")
    os.utime(reports / "demo.sqlite", (1, 1))
    before = state(reports)
    assert "name demo.sqlite, which lies beside it" in refused(path)
    assert state(reports) == before, "a failed export leaves the old one alone"


def test_an_export_that_is_there_needs_no_nsys(answer, monkeypatch, made, reports):
    monkeypatch.setenv("LAB_NSYS", str(reports / "nothing"))
    nsys.find_nsys.cache_clear()
    path = capture(reports)
    shutil.copy(small(made).write(), reports / "demo.sqlite")
    assert answer(path)["report"] == "demo.nsys-rep"
    nsys.find_nsys.cache_clear()


def test_an_export_that_is_damaged_is_named(refused, reports):
    path = capture(reports)
    (reports / "demo.sqlite").write_bytes(b"half")
    assert f"{reports / 'demo.sqlite'}, the export of demo.nsys-rep, is damaged: delete it" in refused(path)


def test_beside_a_report_in_a_folder_that_takes_no_files_nothing_is_written(
    answer, monkeypatch, fake_nsys, made, reports
):
    shutil.copy(small(made).write(), made.path.with_name("export"))
    fake_nsys(f'cp "{made.path.with_name("export")}" "$out"')
    path = capture(reports)
    before = state(reports)
    monkeypatch.setattr(files.os, "access", lambda folder, mode: Path(folder) != reports)  # root may write anywhere
    scratch = reports.parent / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert len(answer(path)["kernels"]) == 1
    assert state(reports) == before
    assert not [*scratch.iterdir()], "the scratch folder is gone"


def test_two_that_export_at_once_both_meet_a_whole_export(fake_nsys, made, reports):
    whole = small(made).write()
    fake_nsys(f'head -c 5000 "{whole}" > "$out"; sleep 0.5; cp "{whole}" "$out"')
    path = capture(reports)
    words = [sys.executable, "-m", "stepbudget", str(path), "--json"]
    both = [subprocess.Popen(words, cwd=SOURCE_CODE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] and said[0][1] == b""
    assert sorted(file.name for file in reports.iterdir()) == ["demo.nsys-rep", "demo.sqlite"]
    made = open_report(reports / "demo.sqlite")
    assert made.kernels.equals(open_report(whole).kernels) and nsys.noted(made.path) == nsys.identity(path)


@pytest.fixture(scope="module")
def real_report(tmp_path_factory) -> bytes:
    """A capture of this machine's own nsys."""
    nsys.find_nsys.cache_clear()
    found = nsys.find_nsys()
    if found is None:
        if os.environ.get("LAB_REQUIRE_NSYS") == "1":
            pytest.fail("LAB_REQUIRE_NSYS=1, but no nsys was found")
        pytest.skip("no nsys on this machine")
    path = tmp_path_factory.mktemp("capture") / "real.nsys-rep"
    words = [found.path, "profile", "--trace", "osrt", "--sample", "none", "--cpuctxsw", "none", "--output", str(path)]
    subprocess.run([*words, sys.executable, "-c", "import time; time.sleep(0.02)"], capture_output=True)
    if not path.is_file():
        pytest.skip("nsys records nothing here")
    return path.read_bytes()


def test_a_real_capture_is_exported_once_beside_it_and_again_when_it_is_another(answer, real_report, reports):
    folder = reports / "50% of %p, it's #1?"
    folder.mkdir()
    path = folder / 'a "real" %h one ☃.nsys-rep'
    path.write_bytes(real_report)
    found = answer(path)
    cached = path.with_suffix(".sqlite")
    assert found["budget"]["unexplained"] <= 1 and found["kernels"] == []
    assert state(folder).keys() == {path.name, cached.name}
    assert path.read_bytes() == real_report
    first = cached.stat().st_mtime_ns
    assert answer(path) == found and cached.stat().st_mtime_ns == first
    later = time.time() + 10
    os.utime(path, (later, later))
    assert answer(path) == found and cached.stat().st_mtime_ns == first, "a later date makes it no other report"
    changed(cached, f"UPDATE {nsys.NOTE} SET identity = 'of another run'")
    assert answer(path) == found
    assert cached.stat().st_mtime_ns != first
    assert state(folder).keys() == {path.name, cached.name}


def test_a_real_capture_that_is_damaged_is_one_sentence(refused, real_report, reports):
    path = reports / "cut.nsys-rep"
    path.write_bytes(real_report[: len(real_report) // 2])
    said = refused(path)
    assert "could not export cut.nsys-rep" in said or "is damaged" in said
    assert Counter(file.name for file in reports.iterdir()) == {"cut.nsys-rep": 1}


# --- the plain sums, --tables -------------------------------------------------------------------------------


@pytest.fixture
def tables(answer):
    def run(path: object) -> dict[str, list[dict]]:
        found = answer(path, "--tables")
        assert found.pop("schema") == VERSION
        return found

    return run


def test_the_plain_sums_of_a_report_made_by_hand(tables, made):
    made.range(0, 100, "training").range(10, 30, "forward").range(12, 20, "inner", registered=True)
    made.range(0, 100, "elsewhere", thread=AUTOGRAD).range(90, None, "open")
    made.range(71, 74, "aten::add, seq = 3, op_id = 7, sizes = [[2]]").range(75, 76, "aten::add, op_id = 8")
    made.api(95, 110, "cudaDeviceSynchronize_v3020").api(1, 2, "cuGraphInstantiate_v2_v12000")
    made.kernel(20, 24, GEMM, call=(13, 14)).kernel(24, 30, GEMM, call=(21, 22)).kernel(30, 31, GEMM, call=(5, 6))
    made.kernel(31, 33, GEMM, call=(13, 14), thread=AUTOGRAD).kernel(33, 34, POINTWISE)
    made.graph_nodes([(40, 41), (41, 44)], POINTWISE, call=(25, 26))
    made.kernel(50, 51, POINTWISE, call=(14, 15), process=4712)  # its thread is in no range
    made.copy(15, 17, 3000, memory="pinned", call=(11, 12)).copy(17, 18, 1000).memset(60, 61, 64)
    found = tables(made.write())
    assert list(found) == ["ranges", "kernels_by_range", "kernels", "copies", "calls"]
    assert {row["name"]: (row["count"], row["total_ns"]) for row in found["ranges"]} == {
        "training": (1, 100_000), "elsewhere": (1, 100_000), "forward": (1, 20_000), "inner": (1, 8_000),
        "open": (1, 20_000), "aten::add": (2, 4_000),
    }  # fmt: skip
    assert {(row["range"], row["kernel"]): (row["count"], row["total_ns"]) for row in found["kernels_by_range"]} == {
        ("inner", GEMM): (1, 4_000), ("forward", GEMM): (1, 6_000), ("training", GEMM): (1, 1_000),
        ("elsewhere", GEMM): (1, 2_000), ("forward", POINTWISE): (2, 4_000),
        ("(outside any range)", POINTWISE): (2, 2_000),
    }  # fmt: skip
    assert found["kernels"] == [
        {"name": GEMM, "count": 4, "total_ns": 13_000, "mean_ns": 3_250, "min_ns": 1_000, "max_ns": 6_000},
        {"name": POINTWISE, "count": 4, "total_ns": 6_000, "mean_ns": 1_500, "min_ns": 1_000, "max_ns": 3_000},
    ]
    assert {(row["direction"], row["memory"]): (row["count"], row["bytes"]) for row in found["copies"]} == {
        ("host to device", "pinned"): (1, 3000), ("host to device", "pageable"): (1, 1000),
        ("memset", "unknown"): (1, 64),
    }  # fmt: skip
    calls = {row["name"]: row["count"] for row in found["calls"]}
    assert calls["cudaDeviceSynchronize"] == calls["cuGraphInstantiate"] == calls["cudaGraphLaunch"] == 1


@each_step
def test_the_plain_sums_are_those_of_the_tables(tables, database, step):
    found = tables(PROFILES / f"{step}.sqlite.xz")
    db = database(step)
    for question, table, where in (
        ("kernels", "CUPTI_ACTIVITY_KIND_KERNEL", ""),
        ("kernels_by_range", "CUPTI_ACTIVITY_KIND_KERNEL", ""),
        ("calls", "CUPTI_ACTIVITY_KIND_RUNTIME", ""),
        ("ranges", "NVTX_EVENTS", 'WHERE eventType IN (59, 60) AND "end" IS NOT NULL'),
    ):
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            assert found[question] == []
            continue
        expected = db.execute(f'SELECT count(*), total("end" - start) FROM {table} {where}').fetchone()
        assert (
            sum(row["count"] for row in found[question]),
            sum(row["total_ns"] for row in found[question]),
        ) == expected


@each_step
def test_the_plain_sums_as_text_are_aligned_and_fit(ask, step):
    status, out, err = ask(PROFILES / f"{step}.sqlite.xz", "--tables")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    for block in out.split("\n\n"):
        rows = [line for line in block.splitlines()[1:] if not line.startswith(("  and ", "  none"))]
        assert len({len(row.rstrip("\n")) for row in rows}) <= 1, block


def test_plain_sums_of_a_report_without_some_tables(tables, made):
    found = tables(made.os_call(0, 10, "poll").write())
    assert found == {"ranges": [], "kernels_by_range": [], "kernels": [], "copies": [], "calls": []}
    found = tables(SyntheticReport(made.path).kernel(0, 5, GEMM).write())
    assert [(row["range"], row["total_ns"]) for row in found["kernels_by_range"]] == [("(outside any range)", 5_000)]
    assert found["calls"] == [] and found["copies"] == []


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET \"end\" = 'late'", "no whole number"),
        ("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = -1", "a size that cannot be"),
        ("UPDATE NVTX_EVENTS SET text = x'00ff'", "a name that is no text"),
        ("UPDATE NVTX_EVENTS SET start = -9223372036854775807", "months away"),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN nameId", "has no column nameId"),
        ("ALTER TABLE NVTX_EVENTS DROP COLUMN eventType", "has no column eventType"),
    ],
)
def test_plain_sums_of_what_is_damaged_are_one_sentence(refused, made, statement, what):
    said = refused(changed(small(made).write(), statement), "--tables")
    assert what in said and "made.sqlite" in said


@pytest.mark.parametrize("kind", ["missing.sqlite", "empty.sqlite", "text.sqlite", "cut.sqlite", "nothing.sqlite"])
def test_plain_sums_of_what_is_no_report_get_the_same_sentence(refused, tmp_path, kind):
    path = unreadable(tmp_path, kind)
    assert refused(path, "--tables") == refused(path)


@pytest.mark.parametrize("more", [["--range", "training"], ["--occurrence", "1"], ["--gpu", "0"], ["--compare", "x"]])
def test_plain_sums_are_about_the_whole_capture(ask, made, more):
    status, out, err = ask(small(made).write(), "--tables", *more)
    assert (status, out) == (2, "") and f"--tables: not allowed with argument {more[0]}" in err


def test_plain_sums_load_neither_pandas_nor_numpy(made):
    code = (
        "import sys; from stepbudget.__main__ import main; status = main(sys.argv[1:]); "
        "sys.exit(status or ', '.join({'pandas', 'numpy'} & {*sys.modules}) or 0)"
    )
    words = [sys.executable, "-c", code, str(small(made).write()), "--tables"]
    done = subprocess.run(words, cwd=SOURCE_CODE, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "Kernels" in done.stdout


def test_every_room_is_an_attribute_once_it_is_asked_for():
    code = (
        "from stepbudget import ask as nsight; from stepbudget.ask import budget; "
        "assert callable(nsight.budget.budget) and budget is nsight.budget; "
        "assert all(getattr(nsight, name).__name__ == f'stepbudget.ask.{name}' for name in nsight.__all__); "
        "assert {*nsight.__all__} <= {*dir(nsight)}; assert not hasattr(nsight, 'no_such_room')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=SOURCE_CODE, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
