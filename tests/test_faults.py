"""What breaks around a script: its record's file, the disk, a signal, a killed process, wrong arguments."""

import contextlib
import json
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.paths import SOURCE_CODE
from labkit.training import flags, ranges, record

FEW = ["--limit", "24", "--batch-size", "12", "--epochs", "2", "--device", "cpu", "--workers", "0"]
SCRIPTS = sorted(
    str(file.relative_to(SOURCE_CODE))
    for file in [
        *SOURCE_CODE.glob("*.py"),
        *(SOURCE_CODE / "benchmarks").glob("*.py"),
        *SOURCE_CODE.glob("clinic/*.py"),
    ]
)
OWN_WORDS = {"benchmarks/one_kernel.py": ["thread"], "benchmarks/profile_torch.py": ["main_opt2.py"]}
OWN_WORDS |= {"benchmarks/sleeping.py": ["main_opt2.py"]}
NO_RECORD = {"benchmarks/one_kernel.py", "benchmarks/sleeping.py"} | {name for name in SCRIPTS if "clinic" in name}


@pytest.fixture(autouse=True)
def no_mnist(monkeypatch, tmp_path):
    """A cache folder in which a download has just failed: the bundled digits, and no network."""
    folder = tmp_path / "cache" / "gpu-performance-lab"
    folder.mkdir(parents=True)
    (folder / ".download-failed").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("LAB_DATA_DIR", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(ranges, "_on", False)


@pytest.fixture
def start(monkeypatch, capsys, tmp_path):
    """Starts a script in this process, in an empty folder: its exit status, what it said, and what against it."""

    def run(script: str, *words: object) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(SOURCE_CODE / script), *map(str, words)])
        monkeypatch.setattr(sys, "path", [str((SOURCE_CODE / script).parent), *sys.path])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(SOURCE_CODE / script), run_name="__main__")
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return run


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "cache" not in path.parts)


# Wrong arguments


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_refuses_what_it_does_not_know(start, tmp_path, script):
    if script in ("benchmarks/profile_torch.py", "benchmarks/sleeping.py"):  # what they do not know is for the step
        words, why = ["main_moon.py"], "argument STEP: invalid choice: 'main_moon.py'"
    else:
        words, why = [*OWN_WORDS.get(script, []), "--faster"], "unrecognized arguments: --faster"
    status, said, against = start(script, *words)
    assert status == 2 and said == ""
    assert against.startswith("usage: ") and "Traceback" not in against
    assert "error: " in against.splitlines()[-1] and why in against.splitlines()[-1]
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("script", "flag", "value"),
    [
        ("main_fsdp.py", "--depth", "0"), ("main_fsdp.py", "--lr", "nan"), ("benchmarks/bench_gan.py", "--seeds", "0"),
        ("benchmarks/bench_deep.py", "--iterations", "-1"), ("benchmarks/bench_underflow.py", "--epochs", "0"),
        ("benchmarks/bench_launches.py", "--repeats", "many"), ("benchmarks/bench_nvml.py", "--only", "main_moon.py"),
        ("benchmarks/bench_nvml.py", "--period", "0"), ("benchmarks/bench_ranks.py", "--accuracy", "main_moon.py"),
        ("benchmarks/bench_report.py", "--runs", "0"), ("benchmarks/bench_startup.py", "--repeats", "0"),
    ],
)  # fmt: skip
def test_a_benchmark_refuses_a_senseless_value_by_name(start, tmp_path, script, flag, value):
    status, said, against = start(script, flag, value)
    assert status == 2 and said == "" and f"argument {flag}: " in against.splitlines()[-1]
    assert left_in(tmp_path) == []


# The record's file


def test_every_script_with_a_record_looks_at_its_file_first(start, tmp_path):
    (tmp_path / "folder").mkdir()
    for script in sorted({*SCRIPTS} - NO_RECORD):
        status, said, against = start(script, *OWN_WORDS.get(script, []), "--record", "folder")
        assert status == 2 and said == "", script
        assert "cannot write a record into 'folder': it is a folder" in against.splitlines()[-1], script
    assert left_in(tmp_path) == ["folder"]


@pytest.fixture(params=["device", "named pipe", "socket", "folder", "link to nowhere", "link to a device"])
def no_file(request, tmp_path):
    """Something that is no regular file, and what it is."""
    place = tmp_path / "run.json"
    if request.param == "device":
        os.mknod(place, 0o600 | 0o020000, os.makedev(1, 3))  # as /dev/null, which a failure would replace
    elif request.param == "named pipe":
        os.mkfifo(place)
    elif request.param == "socket":
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as one:
            one.bind(os.path.relpath(place))
    elif request.param == "folder":
        place.mkdir()
    elif request.param == "link to nowhere":
        place.symlink_to(place)
    else:
        place.symlink_to("/dev/null")
    return place


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_only_a_regular_file_is_replaced(start, no_file):
    before = no_file.lstat()
    status, said, against = start("main_baseline.py", *FEW, "--record", no_file)
    assert status == 2 and said == ""
    assert "cannot write a record into" in against.splitlines()[-1] and against.splitlines()[-1].endswith("a file.")
    after = no_file.lstat()
    assert (after.st_mode, after.st_ino, after.st_mtime) == (before.st_mode, before.st_ino, before.st_mtime)


def test_a_name_that_is_empty_or_too_long_is_refused(start):
    assert "the name is empty" in start("main_baseline.py", *FEW, "--record", "")[2].splitlines()[-1]
    assert "File name too long" in start("main_baseline.py", *FEW, "--record", "a" * 300)[2].splitlines()[-1]


def test_a_link_is_followed_also_to_another_file_system(start, tmp_path, monkeypatch):
    """As it is at the start: a link that is turned round during the run changes nothing."""
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    link = tmp_path / "run.json"
    link.symlink_to("there/kept.json")
    assert flags.target("run.json") == str(tmp_path / "there" / "kept.json")
    with other_file_system(tmp_path / "there"):
        record.write_json(link, {"one": 1})
        assert link.is_symlink() and json.loads(link.read_text()) == {"one": 1}
        assert left_in(tmp_path / "there") == ["kept.json"]


def test_a_write_protected_record_is_refused_before_training(start, tmp_path):
    kept = tmp_path / "run.json"
    kept.write_text("{}")
    with unchangeable(kept):
        status, said, against = start("main_baseline.py", *FEW, "--record", "run.json")
    assert status == 2 and said == "" and "it is write-protected" in against.splitlines()[-1]
    assert kept.read_text() == "{}"


@contextlib.contextmanager
def other_file_system(folder: Path, size: str = "64k"):
    """A small file system of its own in a folder, as long as the block takes; skips where nobody may mount one."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if made.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def unchangeable(file: Path):
    """A file that even root may not change; skips where the file system knows no such thing."""
    made = subprocess.run(["chattr", "+i", file], capture_output=True)
    if made.returncode != 0:
        pytest.skip("no file can be protected from root here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", file], check=True)


def test_a_disk_that_is_full_at_the_end_loses_no_result_and_leaves_no_draft(tmp_path):
    """The target was fine at the start. A script of its own, so that what happens at its very end is seen."""
    small = tmp_path / "small"
    small.mkdir()
    words = [sys.executable, SOURCE_CODE / "main_baseline.py", *FEW, "--record", small / "run.json"]
    with other_file_system(small, "4k"):
        (small / "full").write_bytes(bytes(4096))
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
        assert left_in(small) == ["full"], "no draft"
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].endswith("run.json: No space left on device. It is printed instead.")
    printed = json.loads(done.stdout[done.stdout.index("\n{") :])
    assert printed["status"] == "complete" and len(printed["epochs"]) == 2 and printed["manifest"]["modules"]


def test_a_benchmark_on_a_full_disk_prints_its_result(monkeypatch, tmp_path, capsys):
    def full(file, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "write_json", full)
    with pytest.raises(record.LabError, match=r"No space left on device\. It is printed instead"):
        record.keep(str(tmp_path / "x.json"), {"rows": [1]})
    assert json.loads(capsys.readouterr().out) == {"rows": [1]}
