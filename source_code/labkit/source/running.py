"""How is a script of the course run, and what is kept of it? A process of its own, timed from outside; its record.

Inside the process the script's own record gives the training loop and the evaluation. ``--trace`` leaves a trace of
PyTorch's profiler beside the record.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import ROOT
from labkit.scripts import script
from labkit.source import container
from labkit.training import manifest
from stepbudget.export import processes
from stepbudget.export.leftovers import sweep

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # where compilers keep what they made
TRACE = ".trace.json.gz"
SCRATCH, SCRATCH_OF_TRACE = "labkit-run-", "labkit-trace-"  # folders beside a record while it is made
TORCHRUN = "torchrun --standalone"
OF_TORCHRUN = re.compile(r"^.*torch[./]distributed[./]elastic.*$", re.MULTILINE)  # its own words on a rank that failed
HANGS_S, PATIENCE_S = 240, 40  # no command of the plan takes so long; and torchrun waits 30 s for its ranks to end


def run_once(command: str, file: Path, environment: Mapping[str, str] | None = None) -> dict:
    """Run ``source_code/<command>`` as a process of its own and keep its record in ``file``, with ``process_s`` added.

    ``environment`` holds variables beside those that the process has anyway. A script that loads no module of ours is
    all of our code that ran. Raises LabError with the script's last words where it fails; ``file`` is then not written.
    """
    sweep(file.parent, SCRATCH)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=file.parent) as scratch:
        draft = Path(scratch) / file.name
        more = ["--record", str(draft)]
        started = datetime.now(timezone.utc)
        start = time.perf_counter()
        variables = {**_environment(), **manifest.watched(Path(scratch)), **(environment or {})}
        if TORCHRUN in command:
            run_ranks(command, variables=variables, more=more)
        else:
            words = [sys.executable, *_script(command), *more]
            done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, errors="replace")
            if done.returncode != 0:
                raise LabError(f"'{command}' failed with status {done.returncode}: {_last_words(done)}")
        process_s = time.perf_counter() - start
        record = json.loads(draft.read_text())
        record["arguments"].pop("record", None)
        record.update(
            command=command,
            process_s=process_s,
            run_at=started.isoformat(timespec="seconds"),
            manifest=manifest.gathered(Path(scratch)) or manifest.manifest([shlex.split(command)[0]]),
        )
        draft.write_text(json.dumps(record, indent=1) + "\n")
        draft.replace(file)
    return record


def run_ranks(
    command: str,
    programs: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    more: Iterable[str] = (),
) -> None:
    """Run ``NAME=VALUE … torchrun …`` at the checkout's top, by this Python; LabError with the failed rank's words.

    ``programs``: word → the path to call instead; ``variables``: all of the environment, but for those of the command;
    ``more``: words at its end. Ranks that hang are ended after HANGS_S, and so are those of a run that is interrupted.
    """
    words = shlex.split(command)
    at = words.index("torchrun")
    own = dict(word.split("=", 1) for word in words[:at])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--log_dir"]  # a folder that it makes anyway, and leaves
    program = [(programs or {}).get(one, one) for one in words[at + 1 :]]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    mark = uuid.uuid4().hex
    environment = {**(variables or _environment()), **own, **processes.marked(mark)}
    with (
        tempfile.TemporaryDirectory(prefix="labkit-ranks-") as logs,
        subprocess.Popen([*torchrun, logs, *program, *more], cwd=ROOT, env=environment, **pipes) as job,
    ):
        try:
            said, errors = job.communicate(timeout=HANGS_S)
        except BaseException as ended:
            job.terminate()  # and torchrun ends its ranks
            try:
                job.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                job.kill()
                processes.kill(mark)  # ranks that did not heed it, and what nsys leaves
            if isinstance(ended, subprocess.TimeoutExpired):
                raise LabError(f"'{command}' hung: it was ended after {HANGS_S} s.") from None
            raise
    if job.returncode != 0:
        told = OF_TORCHRUN.split(errors, maxsplit=1)[0].strip() or said.strip() or errors.strip() or "it said nothing"
        raise LabError(
            f"'{command}' failed with status {job.returncode}: {told.splitlines()[-1]}{container.hint(errors)}"
        )


@contextmanager
def watching() -> Iterator[dict]:
    """Watch which of our measured modules the programs run that the block starts.

    Its end puts ``manifest`` into the dict.
    """
    made_by: dict = {}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= manifest.watched(Path(scratch))
        try:
            yield made_by
        finally:
            del os.environ["LAB_MANIFEST"]
        made_by["manifest"] = manifest.gathered(Path(scratch))


def kept_beside(file: Path, command: str, machine: dict, make: Callable[[], None]) -> dict:
    """Have a report or counts made; the record of that, kept beside the ``file``."""
    kept = record_beside(file)
    kept.unlink(missing_ok=True)
    start, now = time.monotonic(), datetime.now(timezone.utc)
    with watching() as made_by:
        make()
    record = {"command": command, "status": "complete", "machine": machine, "took_s": time.monotonic() - start}
    record |= {"run_at": now.isoformat(timespec="seconds"), **made_by}
    kept.write_text(json.dumps(record, indent=1) + "\n")
    return record


def run_cold(command: str, file: Path) -> dict:
    """Time a command whose compilers find nothing that they made before; its record, kept in ``file``."""
    with tempfile.TemporaryDirectory() as scratch:
        return run_once(command, file, {name: str(Path(scratch) / name) for name in CACHES})


def run_traced(command: str, file: Path) -> dict:
    """Run ``profile_torch.py STEP …``; its record goes to ``file`` and its trace beside it. LabError where it fails."""
    sweep(file.parent, SCRATCH_OF_TRACE)
    with tempfile.TemporaryDirectory(prefix=SCRATCH_OF_TRACE, dir=file.parent) as scratch:
        draft = Path(scratch) / file.name
        record = run_once(f"{command} --trace {trace_beside(draft)}", draft)
        record["arguments"].pop("trace")
        record["command"] = command
        draft.write_text(json.dumps(record, indent=1) + "\n")
        trace_beside(draft).replace(trace_beside(file))
        draft.replace(file)
    return record


def trace_beside(file: Path) -> Path:
    """Where the trace of a record lies."""
    return file.with_name(file.stem + TRACE)


def record_beside(file: Path) -> Path:
    """Where the record of a report, of counts or of a trace lies; that of a record is itself."""
    return file.with_name(file.name.replace(TRACE, ".json")).with_suffix(".json")


def finished(file: Path, command: str) -> dict | None:
    """The complete record in ``file`` if this command and the code of today made it, else None."""
    try:
        record = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("status") != "complete":
        return None
    return None if record.get("command") != command or manifest.is_outdated(record) else record


def _script(command: str) -> list[str]:
    """The command's words, with the script's path from source_code/ (an absolute path stays)."""
    name, *flags = shlex.split(command)
    return [str(script(name)), *flags]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def _last_words(done: subprocess.CompletedProcess) -> str:
    said = (done.stderr or done.stdout).strip()
    return said.splitlines()[-1] + container.hint(said) if said else "it said nothing"
