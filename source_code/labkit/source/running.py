"""How is a script of the course run, and what is kept of it? A process of its own, timed from outside; its record.

Inside the process the script's own record gives the training loop and the evaluation. ``--trace`` leaves a trace of
PyTorch's profiler beside the record.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import ROOT, SOURCE_CODE, script

REPEATS = 3  # whole-process runs of each step, as they are recorded
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # where compilers keep what they made
TRACE = ".trace.json.gz"


def run_once(command: str, file: Path, environment: Mapping[str, str] | None = None) -> dict:
    """Run ``source_code/<command>`` as a process of its own and keep its record in ``file``, with ``process_s`` added.

    ``environment`` holds variables beside those that the process has anyway. Raises LabError with the script's last
    words where it fails; ``file`` is then not written.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-run-", dir=file.parent) as scratch:
        draft = Path(scratch) / file.name
        words = [sys.executable, *_script(command), "--record", str(draft)]
        started = datetime.now(timezone.utc)
        start = time.perf_counter()
        done = subprocess.run(
            words, cwd=ROOT, env={**_environment(), **(environment or {})}, capture_output=True, text=True
        )
        process_s = time.perf_counter() - start
        if done.returncode != 0:
            raise LabError(f"'{command}' failed with status {done.returncode}: {_last_words(done)}")
        record = json.loads(draft.read_text())
        record["arguments"].pop("record", None)
        record.update(
            command=command,
            process_s=process_s,
            run_at=started.isoformat(timespec="seconds"),
            code=code_sum(command),
        )
        draft.write_text(json.dumps(record, indent=1) + "\n")
        draft.replace(file)
    return record


def run_cold(command: str, file: Path) -> dict:
    """Time a command whose compilers find nothing that they made before; its record, kept in ``file``."""
    with tempfile.TemporaryDirectory() as scratch:
        return run_once(command, file, {name: str(Path(scratch) / name) for name in CACHES})


def run_traced(command: str, file: Path) -> dict:
    """Run ``profile_torch.py STEP …``; its record goes to ``file`` and its trace beside it. LabError where it fails."""
    with tempfile.TemporaryDirectory(prefix="labkit-trace-", dir=file.parent) as scratch:
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


def finished(file: Path, command: str) -> dict | None:
    """The complete record in ``file`` if the same command and the same code made it, else None."""
    try:
        record = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    same = record.get("command") == command and record.get("code") == code_sum(command)
    return record if same and record.get("status") == "complete" else None


def code_sum(command: str) -> str:
    """A checksum of what the command runs: its script, the labkit rooms that train, and those that it alone uses."""
    file, labkit = Path(_script(command)[0]), SOURCE_CODE / "labkit"
    files = [file, *sorted(path for path in (labkit / "training").glob("*.py") if "keras" not in path.name)]
    if file.is_file() and b"labkit.kernels" in file.read_bytes():
        files += sorted((labkit / "kernels").glob("*.py"))
    if file.is_file() and b"keras_net" in file.read_bytes():
        files += [labkit / "training" / "keras_net.py", labkit / "training" / "keras_run.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()[:16]


def _script(command: str) -> list[str]:
    """The command's words, with the script's path from source_code/ (an absolute path stays)."""
    name, *flags = shlex.split(command)
    return [str(script(name)), *flags]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def _last_words(done: subprocess.CompletedProcess) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else "it said nothing"
