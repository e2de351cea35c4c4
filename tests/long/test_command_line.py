"""Wrong arguments, interruptions and crashes: one sentence, the right exit status, no half-written record."""

import contextlib
import hashlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import resource_sharer
from pathlib import Path

import psutil
import pytest
import torch

from labkit import paths
from labkit.paths import ROOT, SOURCE_CODE
from labkit.training import cli, data, ending, machine, ranges, record
from labkit.training.model import Net

SCRIPTS = sorted({path.name for path in SOURCE_CODE.glob("main_*.py")} - {"main_fsdp.py"})  # those that read digits
FEW = ["--limit", "24", "--batch-size", "12", "--epochs", "2", "--device", "cpu", "--workers", "0"]


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """The bundled digits."""
    monkeypatch.delenv("LAB_DATA_DIR", raising=False)
    monkeypatch.setattr(ranges, "_on", False)


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Starts a script in this process, which must refuse: status 2, one sentence, nothing written; the sentence."""

    def start(script: str, *flags: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(paths.script(script)), *map(str, flags)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(paths.script(script)), run_name="__main__")
        said = capsys.readouterr()
        assert end.value.code == 2
        assert said.out == ""
        assert sorted(tmp_path.rglob("*")) == before, "nothing may be written"
        return the_sentence(said.err)

    return start


def the_sentence(stderr: str) -> str:
    """The one line with an error in what a script said; argparse's usage lines go before it."""
    assert "Traceback" not in stderr
    *usage, last = stderr.strip().splitlines()
    assert "error: " in last
    assert not usage or usage[0].startswith("usage: ")
    assert not any("error" in line for line in usage)
    return last


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_unknown_flag_is_refused(refused, script):
    assert "unrecognized arguments: --faster" in refused(script, "--faster", "--record", "run.json")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--epochs", "-1"), ("--epochs", "0"), ("--epochs", "two"), ("--epochs", "1.5"), ("--batch-size", "0"),
        ("--test-batch-size", "0"), ("--lr", "nan"), ("--lr", "inf"), ("--lr", "0"), ("--lr", "-1"), ("--gamma", "nan"),
        ("--gamma", "-0.7"), ("--workers", "-1"), ("--limit", "0"), ("--seed", "-1"), ("--log-interval", "0"),
        ("--device", "tpu"),
    ],
)  # fmt: skip
def test_a_senseless_value_is_refused_by_name(refused, flag, value):
    assert f"argument {flag}: " in refused("main_baseline.py", flag, value, "--record", "run.json")


@pytest.mark.parametrize("flags", [["--amp-dtype", "float64"], ["--amp-dtype"]])
def test_mixed_precision_has_three_types(refused, flags):
    assert "argument --amp-dtype: " in refused("main_opt3.py", *flags)


def test_a_step_without_mixed_precision_knows_no_flags_for_it(refused):
    assert "--amp-dtype" in refused("main_opt2.py", "--amp-dtype", "float16")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_data_directory_without_mnist_is_refused(refused, tmp_path, script):
    (tmp_path / "other").mkdir()
    sentence = refused(script, *FEW, "--data-dir", "other", "--record", "run.json")
    assert "no MNIST in other" in sentence and "train-images-idx3-ubyte is missing" in sentence


def test_a_data_directory_that_is_not_there_is_refused(refused):
    assert "no MNIST in nowhere" in refused("main_baseline.py", *FEW, "--data-dir", "nowhere")


def test_a_truncated_file_is_refused_by_name(refused, tmp_path):
    raw = tmp_path / "mnist" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in data.FILES:
        (raw / name).write_bytes(b"\x00\x00\x08\x03")
    sentence = refused("main_baseline.py", *FEW, "--data-dir", "mnist", "--record", "run.json")
    assert "train-images-idx3-ubyte is damaged: 4 bytes instead of 47,040,016" in sentence


def test_cuda_without_a_gpu_is_refused(refused, monkeypatch):
    monkeypatch.setattr(machine, "gpu_name", lambda: None)
    monkeypatch.setattr(machine, "gpu_problem", lambda: None)
    assert "no GPU that CUDA can use" in refused("main_baseline.py", "--device", "cuda", "--record", "run.json")


@pytest.mark.parametrize("folder", ["missing", "file", "/proc"])
def test_a_record_that_could_not_be_written_is_refused_before_training(refused, tmp_path, folder):
    (tmp_path / "file").touch()
    sentence = refused("main_baseline.py", *FEW, "--record", f"{folder}/run.json")
    assert "cannot write a record into" in sentence and folder in sentence


def test_a_record_that_is_a_folder_is_refused_before_training(refused, tmp_path):
    (tmp_path / "run.json").mkdir()
    assert "run.json" in refused("main_baseline.py", *FEW, "--record", "run.json")


@pytest.mark.parametrize("flags", [["--lr", "nan"], ["--data-dir", "nowhere"]], ids=["argparse", "LabError"])
def test_a_process_of_its_own_ends_with_status_2_and_no_traceback(tmp_path, flags):
    words = [sys.executable, SOURCE_CODE / "main_opt3.py", *FEW, *flags, "--record", "run.json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    the_sentence(done.stderr)
    assert not [*tmp_path.iterdir()]


# Failures in the middle


@pytest.fixture
def failing(monkeypatch, tmp_path, capsys):
    """Runs the baseline in this process with an error in its fourth step; what it said, and its record."""

    def run(error: BaseException, expected: type[BaseException]) -> tuple[pytest.ExceptionInfo, str, dict]:
        calls = []

        def forward(model, images, forward=Net.forward):
            calls.append(model.training)
            if calls.count(True) == 4:
                raise error
            return forward(model, images)

        monkeypatch.setattr(Net, "forward", forward)
        file = tmp_path / "run.json"
        monkeypatch.setattr(sys, "argv", ["main_baseline.py", *FEW, "--record", str(file)])
        with pytest.raises(expected) as end:
            runpy.run_path(str(SOURCE_CODE / "main_baseline.py"), run_name="__main__")
        assert not list(tmp_path.glob("*.tmp"))
        return end, capsys.readouterr().err, json.loads(file.read_text())

    return run


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "--batch-size"),
        (RuntimeError("DataLoader worker (pid 28) is killed by signal: Bus error. It is possible that dataloader's "
                      "workers are out of shared memory."), "--ipc=host"),
        (RuntimeError("unable to write to file </torch_1_2>: No space left on device (28) in shared memory"),
         "--ipc=host"),
        (RuntimeError("DataLoader worker (pid 28) is killed by signal: Killed."), "--workers"),
    ],
)  # fmt: skip
def test_a_failure_that_the_reader_can_mend_is_one_sentence_with_its_remedy(failing, error, advice):
    end, said, record = failing(error, SystemExit)
    assert end.value.code == 1
    assert advice in said and "marked 'failed'" in said
    assert said.strip().count("\n") == 0
    assert record["status"] == "failed"
    assert len(record["epochs"]) == 2 and record["test_loss"] == record["epochs"][0]["test_loss"]


def test_any_other_failure_keeps_its_traceback_and_the_partial_record(failing):
    _, _, record = failing(ValueError("a mistake in the script"), ValueError)
    assert record["status"] == "failed"
    assert "test_loss" in record["epochs"][0] and "test_loss" not in record["epochs"][1]


def test_an_interruption_ends_with_status_130(failing):
    end, said, record = failing(KeyboardInterrupt(), SystemExit)
    assert end.value.code == 130
    assert "interrupted" in said and "Traceback" not in said
    assert record["status"] == "interrupted"


# Signals to a real process with loader workers

START_S, END_S = 240, 60  # on a machine that is busy: until the first record, and from a signal to the end of all


SMALL = ROOT / "tests" / "support" / "small_training.py"  # what the scripts stand on, without all that they import


def as_in_a_terminal() -> None:
    """In a new process: tests that run in the background, or under nohup, ignore these, and it would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Started:
    """A long training with two loader workers, in a session of its own."""

    def __init__(self, folder: Path, script: Path) -> None:
        self.record, self.script = folder / "run.json", script.name
        flags = ["--limit", "96", "--batch-size", "16", "--epochs", "100000", "--device", "cpu", "--workers", "2"]
        words = [sys.executable, script, *flags, "--record", self.record]
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            preexec_fn=as_in_a_terminal,
        )

    def wait_for_first_record(self) -> None:
        until = time.monotonic() + START_S
        while not self.record.exists():
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < until, f"no record after {START_S} s"
            time.sleep(0.02)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def started(request, tmp_path):
    training = Started(tmp_path, getattr(request, "param", SMALL))
    yield training
    with contextlib.suppress(ProcessLookupError):
        os.killpg(training.process.pid, signal.SIGKILL)
    training.process.wait()
    training.process.stderr.close()


CTRL_C, SIGTERM = (signal.SIGINT, 130, "interrupted."), (signal.SIGTERM, 143, "interrupted by SIGTERM.")
SIGHUP = (signal.SIGHUP, 129, "interrupted by SIGHUP.")  # to all of a terminal that is closed


@pytest.mark.parametrize(
    ("started", "to", "number", "status", "sentence"),
    [
        (SMALL, "process", *CTRL_C),
        (SOURCE_CODE / "main_opt1.py", "group", *CTRL_C),  # as a terminal does it to a reader's own run
        (SMALL, "process", *SIGTERM),
        (SMALL, "group", *SIGTERM),
        (SMALL, "group", *SIGHUP),
    ],
    ids=["Ctrl-C-process", "Ctrl-C-group", "SIGTERM-process", "SIGTERM-group", "SIGHUP-group"],
    indirect=["started"],
)
def test_ctrl_c_and_sigterm_keep_the_record_and_leave_no_worker(started, to, number, status, sentence):
    started.wait_for_first_record()
    workers = started.children()
    assert len(workers) >= 2
    if to == "group":
        os.killpg(started.process.pid, number)
    else:
        started.process.send_signal(number)
    _, said = started.process.communicate(timeout=END_S)
    assert started.process.returncode == status
    assert "Traceback" not in said
    kept = f" The record in {started.record} is marked 'interrupted'."
    assert [line for line in said.splitlines() if "interrupted" in line] == [f"{started.script}: {sentence}{kept}"]
    record = json.loads(started.record.read_text())
    assert record["status"] == "interrupted"
    assert record["epochs"][0]["test_accuracy_pct"] >= 0
    _, alive = psutil.wait_procs(workers, timeout=END_S)
    assert not alive
    assert not list(started.record.parent.glob("*.tmp"))


DEAF = """
import signal, time
from torch.utils.data import DataLoader
from labkit.training import ending

class Deaf:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        time.sleep(600)

ending.in_one_sentence()
next(iter(DataLoader(Deaf(), num_workers=2)))
"""


def test_workers_that_hear_no_signal_do_not_keep_a_script_from_its_end(tmp_path):
    """As one does that was forked while a thread held a lock."""
    script = tmp_path / "deaf.py"
    script.write_text(DEAF)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE_CODE)}, preexec_fn=as_in_a_terminal,
    ) as process:  # fmt: skip
        try:
            assert [process.stdout.readline() for _ in range(2)] == ["deaf\n"] * 2
            workers = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            _, said = process.communicate(timeout=END_S)
            assert process.returncode == 143 and "Traceback" not in said
            assert said.splitlines()[-1] == "deaf.py: interrupted by SIGTERM."
            _, alive = psutil.wait_procs(workers, timeout=END_S)
            assert not alive
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_second_sigterm_cuts_nothing_off(started):
    """Slurm, torchrun and a shell may all send one."""
    started.wait_for_first_record()
    until = time.monotonic() + END_S
    while started.process.poll() is None and time.monotonic() < until:
        started.process.terminate()
        time.sleep(0.005)
    _, said = started.process.communicate(timeout=END_S)
    assert started.process.returncode == 143 and "Traceback" not in said
    assert json.loads(started.record.read_text())["status"] == "interrupted"


def test_a_killed_worker_is_said_and_the_partial_record_kept(started):
    started.wait_for_first_record()
    workers = [child for child in started.children() if "resource_tracker" not in " ".join(child.cmdline())]
    workers[0].kill()
    _, said = started.process.communicate(timeout=END_S)
    assert started.process.returncode == 1 and "Traceback" not in said
    assert "error: a loader worker was killed" in said and "marked 'failed'" in said
    record = json.loads(started.record.read_text())
    assert record["status"] == "failed" and record["epochs"][0]["test_accuracy_pct"] >= 0
    _, alive = psutil.wait_procs(workers, timeout=END_S)
    assert not alive


@pytest.mark.parametrize("gone", [True, False], ids=["no file any more", "nobody who answers"])
def test_a_worker_that_went_while_its_batch_was_fetched_was_killed(tmp_path, monkeypatch, gone):
    """Batches come as files that the worker hands over when it is asked."""
    monkeypatch.setattr(resource_sharer, "_resource_sharer", sharer := resource_sharer._ResourceSharer())
    sharer._start()
    batch = resource_sharer.DupFd(0)
    sharer.stop(timeout=10)
    address = batch._id[0]
    Path(address).unlink(missing_ok=True)
    if not gone:
        silent = socket.socket(socket.AF_UNIX)
        silent.bind(address)
        silent.listen()
        threading.Thread(target=lambda: silent.accept()[0].close(), daemon=True).start()
    with pytest.raises((EOFError, OSError)) as found:
        batch.detach()
    assert "a loader worker was killed" in ending.sentence(found.value)
    with pytest.raises(OSError) as found:
        Path(tmp_path / "none").read_text()
    assert ending.sentence(found.value) is None


def test_a_run_that_ends_is_not_broken_off_by_one_loader_worker_more():
    """PyTorch raises from its handler of SIGCHLD: while the record of the first failure is written, too."""

    def raising(*_):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    usual = signal.signal(signal.SIGCHLD, raising)
    try:
        with pytest.raises(RuntimeError):
            signal.raise_signal(signal.SIGCHLD)
        assert ending.status(RuntimeError("DataLoader worker (pid 6) is killed by signal: Killed.")) == "failed"
        signal.raise_signal(signal.SIGCHLD)
    finally:
        signal.signal(signal.SIGCHLD, usual)


def test_a_signal_before_the_first_epoch_is_one_sentence_too(tmp_path):
    """While the digits are read, or a benchmark measures: no record was begun, and none is left."""
    program = "import sys, time; from labkit.training import flags; flags.script_parser('A program.').parse_args(); "
    program += "print('begun', flush=True)\n"
    program += "while True: time.sleep(0.1)"  # one long sleep would not hear a signal that comes just before it
    for number, status, sentence in (
        (signal.SIGTERM, 143, "interrupted by SIGTERM."),
        (signal.SIGINT, 130, "interrupted."),
    ):
        words = [sys.executable, "-c", program, "--record", str(tmp_path / "run.json")]
        usual = {"preexec_fn": as_in_a_terminal}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(words, **pipes, **usual) as process:
            assert process.stdout.readline() == "begun\n"
            process.send_signal(number)
            _, said = process.communicate(timeout=END_S)
        assert process.returncode == status and said.strip() == f"-c: {sentence}"
    assert not (tmp_path / "run.json").exists()


def test_a_killed_run_leaves_a_whole_record_that_says_running(started):
    assert not started.record.exists()
    started.wait_for_first_record()
    workers = started.children()
    seen = set()
    late = time.monotonic() + START_S
    while len(seen) < 10 and time.monotonic() < late:  # the record is written at each epoch's end
        text = started.record.read_text()
        assert json.loads(text)["status"] == "running"
        seen.add(hashlib.sha256(text.encode()).digest())
    started.process.kill()
    started.process.wait()
    record = json.loads(started.record.read_text())
    assert record["status"] == "running"
    assert len(seen) == 10, "the record was written as often meanwhile"
    assert len(record["epochs"]) >= 10
    _, alive = psutil.wait_procs(workers, timeout=END_S)
    assert not alive, "loader workers notice that their parent is gone"


def test_json_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "run.json"
    record.write_json(file, {"old": 1})
    with pytest.raises(TypeError):
        record.write_json(file, {"new": object()})
    assert json.loads(file.read_text()) == {"old": 1}
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_no_draft(tmp_path):
    with pytest.raises(TypeError):
        record.write_json(tmp_path / "run.json", {"new": object()})
    assert not list(tmp_path.glob("*.tmp"))


def test_workers_by_default_are_the_cores_that_this_process_may_use_less_two(monkeypatch):
    """Not those of the host: in a container, or under taskset, os.cpu_count() says more."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)), raising=False)
    monkeypatch.setattr(machine, "Path", lambda name: SOURCE_CODE / "no such file")  # no quota either
    assert machine.usable_cores() == 6
    assert cli.spare_cores() == 4
    monkeypatch.setattr(sys, "argv", ["main_opt1.py"])
    assert cli.parse_args("A step.").workers == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert cli.spare_cores() == 1


@pytest.mark.parametrize(
    ("capability", "expected"),
    [(None, torch.bfloat16), ((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)],
)
def test_the_type_of_mixed_precision_is_one_that_the_gpu_has(monkeypatch, capability, expected):
    monkeypatch.setattr(machine, "gpu_name", lambda: capability and "a GPU")
    monkeypatch.setattr(machine, "capability", lambda: capability)
    monkeypatch.setattr(sys, "argv", ["main_opt4.py"])
    assert cli.parse_args("A step.", workers=0, amp_dtype="bfloat16").amp_dtype is expected
    monkeypatch.setattr(sys, "argv", ["main_opt4.py", "--amp-dtype", "float32"])
    assert cli.parse_args("A step.", workers=0, amp_dtype="bfloat16").amp_dtype is torch.float32


@pytest.mark.parametrize("step", ["main_opt6_block.py", "main_opt7.py", "main_opt8.py"])
def test_a_step_that_needs_bf16_says_so_on_a_gpu_without(monkeypatch, refused, step):
    monkeypatch.setattr(machine, "gpu_name", lambda: "Tesla T4")
    monkeypatch.setattr(machine, "capability", lambda: (7, 5))
    assert f"{step} needs BF16, and Tesla T4 has none" in refused(step, "--device", "cuda")
