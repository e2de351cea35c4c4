"""What breaks around a script: its record's file, the disk, a signal, a killed process, wrong arguments."""

import contextlib
import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import psutil
import pytest

from folders import other_file_system, read_only, unchangeable
from labkit import course
from labkit.display import own_folder
from labkit.errors import LabError
from labkit.paths import ROOT, SOURCE_CODE
from labkit.pretend import machines
from labkit.recording import notebooks
from labkit.source import kinds
from labkit.training import data, flags, ranges, record
from stepbudget.export.nsys import find_nsys

SMALL = ROOT / "tests" / "support" / "small_training.py"  # what the scripts stand on, without all that they import
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
OWN_WORDS |= {f"benchmarks/{name}.py": ["mine.py"] for name in ("speedrun", "speedrun_search")}
NO_RECORD = {
    "benchmarks/count_kernels.py",
    "benchmarks/count_rungs.py",
    "benchmarks/one_kernel.py",
    "benchmarks/sleeping.py",
} | {name for name in SCRIPTS if "clinic" in name}


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """No GPU, the bundled digits."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("LAB_DATA_DIR", raising=False)
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
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


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
        ("benchmarks/bench_startup.py", "--repeats", "0"),
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


def test_a_disk_that_is_full_at_the_end_loses_no_result_and_leaves_no_draft(tmp_path):
    """The target was fine at the start. A script of its own, so that what happens at its very end is seen."""
    small = tmp_path / "small"
    small.mkdir()
    words = [sys.executable, SMALL, *FEW, "--record", small / "run.json"]
    with other_file_system(small, "4k"):
        (small / "full").write_bytes(bytes(4096))
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
        assert left_in(small) == ["full"], "no draft"
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].endswith("run.json: No space left on device. It is printed instead.")
    printed = json.loads(done.stdout[done.stdout.index("\n{") :])
    assert printed["status"] == "complete" and len(printed["epochs"]) == 2 and printed["manifest"]["modules"]


def test_a_notebook_on_a_full_disk_is_as_it_was_and_that_is_said(tmp_path, monkeypatch, capsys):
    """From the catalogue, from a run that was not stored, from a kernel that could not start."""
    small = tmp_path / "small"
    small.mkdir()
    with other_file_system(small, "12k"):
        file = small / "01_lab.ipynb"
        file.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
        before = file.read_bytes()
        (small / "full").write_bytes(bytes(8192))
        monkeypatch.setattr(notebooks, "files", lambda: [file])
        monkeypatch.setattr(notebooks.pages, "TEXTS", [])
        monkeypatch.setattr(sys, "argv", ["notebooks"])
        ran = nbformat.v4.new_notebook(metadata={notebooks.pages.RECORDINGS: ["x" * 6000]})
        for dress, execute in (
            (lambda file: notebooks.replace(file, "{}" * 3000), None),
            (lambda file: None, lambda file: file.with_name("kernel.json").write_bytes(bytes(6000))),
            (lambda file: None, lambda file: ran),
        ):
            monkeypatch.setattr(notebooks, "dress_again", dress)
            monkeypatch.setattr(notebooks, "execute", execute)
            with pytest.raises(SystemExit) as end:
                notebooks.main()
            said = capsys.readouterr().err
            assert end.value.code == 2 and said.count("\n") == 1
            assert re.search(r"01_lab.ipynb cannot be (written|run) \(No space left on device\): it is as it was", said)
            assert file.read_bytes() == before and not file.with_suffix(".tmp").exists()


def test_a_benchmark_on_a_full_disk_prints_its_result(monkeypatch, tmp_path, capsys):
    def full(file, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "write_json", full)
    with pytest.raises(record.LabError, match=r"No space left on device\. It is printed instead"):
        record.keep(str(tmp_path / "x.json"), {"rows": [1]})
    assert json.loads(capsys.readouterr().out) == {"rows": [1]}


# Folders


ANY_NAME = 'it\'s "a b" é $(touch pwned) `touch pwned`'
LIVE = """
import shutil
import sys
from pathlib import Path
from labkit import paths
from labkit.source import command, running
from labkit.training import flags
from stepbudget.export.nsys import find_nsys

few = "--limit 24 --batch-size 12 --epochs 1 --device cpu --workers 0"
paths.REPORTS.mkdir()
shutil.copy(sys.argv[1], paths.SOURCE_CODE / "main_opt2.py")  # the paths are what counts
print(running.run_once(f"main_opt2.py {few}", paths.REPORTS / "run.json")["status"])
if find_nsys():
    words = command.check(command.profile_command("opt2", f"main_opt2.py {few}"))
    command.run_profile(words, paths.REPORTS / "opt2.nsys-rep", lambda line: None)
"""


def test_a_checkout_in_a_folder_of_any_name_runs_live(tmp_path):
    """A timed run, and one under nsys: each starts a process by the paths of that checkout."""
    checkout = tmp_path / ANY_NAME
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(SOURCE_CODE, checkout / "source_code", ignore=left_out)
    environment = os.environ | {"PYTHONPATH": str(checkout / "source_code"), "LAB_MODE": "live"}
    done = subprocess.run(
        [sys.executable, "-c", LIVE, SMALL], cwd=checkout, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["complete"]
    made = {file.name for file in (checkout / "reports").iterdir() if file.suffix != ".sqlite"}
    assert made == {"run.json", *(["opt2.nsys-rep"] if find_nsys() else [])}
    assert not list(tmp_path.rglob("pwned"))


def as_nobody(work: Callable[[], object]) -> object:
    """What a function gives, or the sentence of its LabError, in a process that has no rights; skips where not root."""
    if os.geteuid() != 0:
        pytest.skip("only root can give its rights away")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                said = work()
            except LabError as error:
                said = str(error)
        except BaseException as error:  # for the parent to see
            said = repr(error)
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as said:  # noqa: PTH123
        answer = json.loads(said.read())
    os.waitpid(child, 0)
    return answer


@pytest.fixture
def private(tmp_path):
    """A folder that is nobody else's, on a path that everybody may go."""
    for folder in (tmp_path, *tmp_path.parents[:3]):  # with pytest-xdist it is one more
        folder.chmod(folder.stat().st_mode | 0o055)
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


def test_a_folder_that_may_not_be_read_is_one_sentence(private, monkeypatch):
    said = as_nobody(lambda: data.load_digits(private))
    assert said == f"cannot read {private}: permission denied. Name a directory that you may read."
    monkeypatch.setenv("XDG_CACHE_HOME", str(private))
    assert as_nobody(data._in_cache) is False, "the bundled digits then"
    said = as_nobody(lambda: flags.target(str(private / "run.json")))
    assert said == f"cannot write a record into {private}/run.json: Permission denied."
    said = as_nobody(lambda: flags.target(str(private.parent / "run.json")))
    assert said == f"cannot write a record into {private.parent}/run.json: Permission denied."


def test_no_home_and_one_that_cannot_be_written_is_no_matter(private, monkeypatch):
    """matplotlib would warn in the middle of a cell; it gets a folder of its own, and the next notebook the same."""
    for variable in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", own_folder.VARIABLE):
        monkeypatch.delenv(variable, raising=False)

    def chosen():
        own_folder.choose()
        return os.environ.get(own_folder.VARIABLE)

    temporary = (
        private.parent / "temporary"
    )  # of this test: another one on this machine may be at the same place in /tmp
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setattr(own_folder.tempfile, "gettempdir", lambda: str(temporary))
    for home in (str(private), "/proc/nowhere", ""):
        monkeypatch.setenv("HOME", home)
        assert as_nobody(chosen) == f"{temporary}/gpu-performance-lab-matplotlib-65534"
    monkeypatch.setenv("HOME", str(private))
    assert chosen() is None, "a home that can be written is left alone"


def test_reports_that_cannot_be_written_are_one_sentence(tmp_path, monkeypatch):
    """For runs, benchmarks, profiles and counts, before anything runs; predictions are not kept, and that is said."""
    reports = tmp_path / "reports"
    reports.mkdir()
    live = machines.live(course.DEFAULT_MACHINE)
    live.reports = reports
    asked = (
        kinds.runs(["main_opt2.py"]),
        kinds.benchmark("bench_timing.py"),
        kinds.profile("nsys profile --output reports/x python3 source_code/main_opt2.py"),
    )
    with read_only(reports):
        for request in asked:
            with pytest.raises(LabError, match=r"cannot write into .*reports.*: Read-only file system\."):
                live.get(request, lambda line: None)


# Ranks


HANGING = """
import torch.distributed as dist
from labkit.training import ending, flags

ending.PATIENCE_S = 1
flags.script_parser("A program.").parse_args()
print("begun", flush=True)
dist.init_process_group("gloo")  # waits for a rank that never comes, and hears no signal
"""


def test_a_rank_that_hangs_in_a_collective_ends_after_sigterm(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = [sys.executable, "-c", HANGING]
    with subprocess.Popen(words, env=os.environ | ranks, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        while not psutil.Process(process.pid).net_connections():  # the other rank is waited for there
            time.sleep(0.05)
        process.terminate()
        killed = threading.Timer(60, process.kill)
        killed.start()
        process.wait()
        assert killed.is_alive(), "it went by itself"
        killed.cancel()


LONG = ["--limit", "8", "--batch-size", "8", "--epochs", "100000", "--device", "cpu"]
TWO_RANKS = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@contextlib.contextmanager
def in_training(kept: Path, *words: object):
    """A training in a session of its own, from its first record on, and all processes that it has started by then."""
    with subprocess.Popen(
        [sys.executable, *map(str, words), "--record", str(kept)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        until = time.monotonic() + 240
        while not kept.exists():
            assert job.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        try:
            yield job, psutil.Process(job.pid).children(recursive=True)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)


def rank_of(job: subprocess.Popen, rank: int) -> psutil.Process:
    (own,) = [one for one in psutil.Process(job.pid).children() if one.environ().get("RANK") == str(rank)]
    return own


@pytest.mark.parametrize(
    ("to", "script"),
    [("torchrun", SOURCE_CODE / "main_ddp.py"), ("all", SMALL), ("the rank that does not lead", SMALL)],
    ids=["torchrun", "all of them, as Slurm does", "the rank that does not lead"],
)
def test_sigterm_marks_the_record_of_several_ranks_and_leaves_none(to, script, tmp_path):
    """By gloo, on the CPU: ranks that wait inside NCCL take two GPUs."""
    kept = tmp_path / "run.json"
    with in_training(kept, *TWO_RANKS, script, *LONG, "--workers", "0") as (job, started):
        if to == "torchrun":
            job.terminate()
        elif to == "all":
            os.killpg(job.pid, signal.SIGTERM)
        else:
            rank_of(job, 1).terminate()
        _, said = job.communicate(timeout=300)
        _, alive = psutil.wait_procs(started, timeout=60)
    assert job.returncode != 0 and not alive
    status = json.loads(kept.read_text())["status"]
    told = f"{script.name}: interrupted by SIGTERM. The record in {kept} is marked '{status}'." in said
    if "not lead" not in to:
        assert status == "interrupted" and told, said
    else:  # the leading rank may find its connection broken before its own signal comes, or before it has said so
        broken = status == "failed" and re.search("(closed|reset) by peer", said)
        assert (status in ("interrupted", "failed") and told) or broken, said


FULL = "error: out of GPU memory. Lower --batch-size, or free the GPU from other programs."


@pytest.mark.parametrize(
    ("rank", "script", "statuses"),
    [
        (None, SMALL, ["failed"]),
        (0, SMALL, ["failed"]),
        # Rank 0 keeps the record: it is ended by torchrun, or finds its connection broken first.
        (1, SOURCE_CODE / "main_ddp.py", ["interrupted", "failed"]),
    ],
    ids=["one process", "the rank that leads", "another rank"],
)
def test_a_full_gpu_is_one_sentence_keeps_the_record_and_leaves_no_process(rank, script, statuses, tmp_path):
    kept, altered = tmp_path / "run.json", ROOT / "tests" / "support" / "altered.py"
    launcher, workers = ([], 2) if rank is None else (TWO_RANKS, 1)
    program = [*launcher, altered, "out-of-memory", script, *LONG, "--workers", workers]
    with in_training(kept, *program) as (job, started):
        assert len(started) >= (4 if launcher else 2), "with the loader's workers"
        (job if rank is None else rank_of(job, rank)).send_signal(signal.SIGUSR1)
        _, said = job.communicate(timeout=300)
        _, alive = psutil.wait_procs(started, timeout=60)
    assert job.returncode == 1 and not alive
    own = "" if rank == 1 else f" The record in {kept} is marked 'failed'."
    assert said.count(f"{script.name}: {FULL}{own}\n") == 1 and "OutOfMemoryError" not in said
    record = json.loads(kept.read_text())
    assert record["status"] in statuses and record["epochs"][0]["test_accuracy_pct"] >= 0


def test_a_benchmark_on_a_full_gpu_is_one_sentence_too(tmp_path):
    """Any program of the course: no record was begun, and none is left."""
    program = "import torch; from labkit.training import flags; flags.script_parser('A program.').parse_args(); "
    program += "raise torch.cuda.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')"
    words = [sys.executable, "-c", program, "--record", str(tmp_path / "run.json")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and done.stderr.strip() == f"-c: {FULL}"
    assert left_in(tmp_path) == []


# Network


def test_without_any_network_a_training_takes_the_bundled_digits_and_says_so(tmp_path):
    """Not even this machine's own address answers there, and no download has failed yet."""
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
        pytest.skip("no network namespaces here")
    kept, cache = tmp_path / "run.json", tmp_path / "fresh"
    words = ["unshare", "--net", sys.executable, SOURCE_CODE / "main_opt1.py", *FEW, "--record", kept]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "bundled 5,000 digits" in done.stdout and json.loads(kept.read_text())["status"] == "complete"
    assert [path.name for path in (cache / "gpu-performance-lab").iterdir()] == [".download-failed"]


# Shared memory


@pytest.mark.parametrize("size", ["64k", "512k"], ids=["before the first batch", "after some"])
def test_loader_workers_without_shared_memory_name_the_flag_that_mends_it(size, tmp_path):
    """A /dev/shm of its own, as a container gets one, smaller than what two workers hand over."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespaces here")
    kept = tmp_path / "run.json"
    few = ["--limit", "512", "--batch-size", "128", "--epochs", "3", "--device", "cpu", "--workers", "2"]
    words = [sys.executable, SMALL, *few, "--record", kept]
    small = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"', "sh"]
    done = subprocess.run(list(map(str, [*small, *words])), capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    said = "the loader workers ran out of shared memory. In a container, add --ipc=host (or --shm-size=8g)."
    assert done.stderr.endswith(f"{SMALL.name}: error: {said} The record in {kept} is marked 'failed'.\n")
    assert json.loads(kept.read_text())["status"] == "failed"


# Terminals


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_letters_breaks_nothing(encoding):
    """Neither what is said nor what is read of our own files: the exercises quote a script of the course."""
    program = "from labkit.errors import speak_any_encoding; from labkit.training import flags; "
    program += "from labkit.labs.lab25 import exercises; speak_any_encoding(); "
    program += "print('a \\u2192 b \\xe9', len(exercises.TEMPLATE) > 100); "
    program += "flags.script_parser('Less than 5 \\xb5s \\u2192 good').parse_args(['--help'])"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": encoding}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=os.environ | plain, capture_output=True, text=True, encoding=encoding)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first == ("a ? b ? True" if encoding == "ascii" else "a ? b é True")
    assert "Less than 5 " in done.stdout
