"""How is a report recorded that may be passed on as it is? Where Nsight Systems sees neither host, user nor variables.

A ``.nsys-rep`` cannot be cleaned afterwards: it holds the host's name, the paths of its program's files, and of all
processes of the machine their names and variables. So the program runs in a copy of source_code/ in a folder of its
own, under another host name, where no other process is to be seen, and with no variable but those that it needs.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import ROOT, SOURCE_CODE
from labkit.source import command
from stepbudget.export.nsys import Nsys

HOST, HOME = "gpu-course", "/home/reader"
KEPT = (
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LAB_DATA_DIR",
    "LAB_MANIFEST",
)  # variables that the run needs, if they are set
GIVEN = ("HOME", "LANG", "TMPDIR", "PATH")  # those that it gets anew
ADDED = ("PWD", "LD_PRELOAD")  # by the shell, and by nsys
# Shared memory of its own, too: nsys leaves there what another nsys of the same process number stumbles over.
BEFORE = f'hostname {HOST} && mount -t tmpfs tmpfs /dev/shm && exec "$@"'
HIDDEN = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c", BEFORE, "sh"]
TELLING = 6  # characters of a text that is looked for: shorter ones stand in any file by chance


def record(words: list[str], folder: Path, nsys: Nsys) -> Path:
    """Run a profiling command (as ``labkit.source.command`` has it) so; the report, in ``folder``.

    LabError where host and processes cannot be hidden (that takes root on Linux), where the run fails, and where the
    report holds what it must not.
    """
    program = folder / "course"
    shutil.copytree(SOURCE_CODE, program / "source_code", ignore=shutil.ignore_patterns("__pycache__"))
    report = folder / Path(words[words.index("--output") + 1]).with_suffix(".nsys-rep").name
    words = command.adapt(words, nsys, has_gpu=True)
    words[words.index("--output") + 1] = str(report.with_suffix(""))
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    own = (HOME, "C.UTF-8", str(folder), f"{Path(sys.executable).parent}:/usr/bin:/bin")
    environment |= dict(zip(GIVEN, own, strict=True))
    done = subprocess.run([*HIDDEN, *words], cwd=program, env=environment, capture_output=True, text=True)
    if done.returncode or not report.is_file():
        raise LabError(f"the report could not be recorded: {(done.stderr or done.stdout).strip().splitlines()[-3:]}")
    if found := revealed(report.read_bytes(), environment):
        raise LabError(f"the report holds what may not be passed on: {', '.join(found)}.")
    return report


def revealed(report: bytes, environment: Mapping[str, str]) -> list[str]:
    """What the report tells of this machine: its name, its user's home, this checkout, other variables.

    ``environment``: the variables that the program had. The file's compression leaves a text readable where it stands
    first.
    """
    # A value that the program's own begins with (TMPDIR, where the run's folder lies in it) tells no more than that.
    others = [f"{name}={it}" for name, it in os.environ.items() if not environment.get(name, "").startswith(it)]
    home = os.path.expanduser("~")  # noqa: PTH111 – Path.home() raises where there is none
    texts = [socket.gethostname(), home, str(ROOT), *others]
    found = {text for text in texts if len(text) >= TELLING and text.encode() in report}
    known = (*environment, *ADDED)  # of which compression may leave the end alone
    return sorted(found | {name for name in variables(report) if not any(own.endswith(name) for own in known)})


# Two or more variables in a row, as a process has them: NAME=value, a zero byte, NAME=value.
LISTED = re.compile(rb"(?:[A-Za-z_]\w*=[^\x00-\x1f]*\x00)+[A-Za-z_]\w*=")


def variables(report: bytes) -> list[str]:
    """The names of the variables that stand readable in a report, in lists of at least two."""
    lists = LISTED.findall(report)
    return sorted({name.decode() for one in lists for name in re.findall(rb"(?:^|\x00)(\w+)=", one)})


def homes(report: bytes) -> list[str]:
    """The home folders that stand readable in a report: of root, and those in /home."""
    return sorted({home.decode() for home in re.findall(rb"(?<![\w./-])(?:/root|/home/[\w.-]+)", report)})
