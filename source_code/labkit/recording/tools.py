"""What do other tools say of a report? Each is run at full strength on the whole export, and what it said is kept.

They need the export as nsys wrote it: the slim copy that ships lacks tables that they read. One reads traces of
PyTorch's profiler instead, made of the same program. A tool's answer is read by labkit.subjects.diagnosis, which also
says which tools are not asked, and why. Those that pip installs have an environment of their own, beside the course's:

python3 -m venv FOLDER; FOLDER/bin/pip install nsys-ai torch-tb-profiler; export LAB_TOOLS=FOLDER/bin
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from labkit.errors import LabError
from stepbudget.export.nsys import find_nsys, need_nsys

# The rules of nsys analyze for CUDA, as Nsight Systems names them from 2023 on, and before; and what is asked of each:
# all rows instead of the 50 longest, and gaps from one millisecond on instead of 500.
ALL_ROWS = "rows=-1"
RULES = {
    ("cuda_memcpy_async", "cuda-async-memcpy"): ALL_ROWS,
    ("cuda_memcpy_sync", "cuda-sync-memcpy"): ALL_ROWS,
    ("cuda_memset_sync", "cuda-sync-memset"): ALL_ROWS,
    ("cuda_api_sync", "cuda-sync-api"): ALL_ROWS,
    ("gpu_gaps", "gpu-starv"): f"{ALL_ROWS}:gap=1",
    ("gpu_time_util", "gpu-low-util"): ALL_ROWS,
}
TRACE = ".trace"  # TRACE.json, or TRACE-<rank>.json, of the same program
EXAMPLES = 3  # rows that are kept of each rule, and findings of each answer
FINDING = ("label", "severity", "category", "note", "explanation", "suggested_actions", "headroom_ms")
PATTERN = ("pattern", "severity", "evidence", "recommendation")


@dataclass(frozen=True)
class Tool:
    """``command``: as one types it, for ``{report}``; ``ask``: runs it; ``version``: None if not here.

    ``reads``: the ending of the file that it is given, beside the whole report.
    """

    command: str
    ask: Callable[[Path], dict]
    version: Callable[[], str | None]
    reads: str = ".sqlite"

    @property
    def name(self) -> str:
        """``nsys analyze``"""
        return self.command.removesuffix(" {report}")


def nsys_analyze(export: Path) -> dict:
    """Rule → number of rows, their durations' sum in ms, and the first EXAMPLES rows; a rule that failed says how."""
    nsys = need_nsys()
    rules = {new if nsys.version >= (2023, 1) else old: options for (new, old), options in RULES.items()}
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "report.sqlite"  # it may add tables of its own
        shutil.copyfile(export, copy)
        words = [nsys.path, "analyze", "--format", "json", "--output", str(Path(scratch) / "out")]
        asked = [word for rule, options in rules.items() for word in ("--rule", f"{rule}:{options}")]
        done = subprocess.run([*words, *asked, str(copy)], capture_output=True, text=True, errors="replace")
        said = {rule: _rows(Path(scratch), rule, done.stdout + done.stderr) for rule in rules}
    if all("error" in answer for answer in said.values()):
        raise LabError(f"nsys analyze failed on {export.name}: {next(iter(said.values()))['error']}")
    return {"rules": said}


def _rows(folder: Path, rule: str, printed: str) -> dict:
    files = [file for file in folder.glob(f"out_{rule}*.json") if file.stat().st_size]
    if not files:
        problem = re.search(rf"ERROR:[^\n]*\b{re.escape(rule)}\b[^\n]*", printed)
        return {"error": problem.group().replace(str(folder), "") if problem else "it said nothing"}
    rows = json.loads(files[0].read_text())
    ns = sum(row.get("Duration (ns)") or row.get("Duration") or 0 for row in rows)
    return {"rows": len(rows), "total_ms": ns / 1e6, "first": rows[:EXAMPLES]}


def nsys_ai(export: Path) -> dict:
    """The ranked findings of ``nsys-ai diagnose``, and the patterns that its root_cause_matcher found, in its order."""
    program = str(_folder() / "nsys-ai")
    with tempfile.TemporaryDirectory() as scratch:
        copy, found = Path(scratch) / "report.sqlite", Path(scratch) / "findings.json"
        shutil.copyfile(export, copy)  # it leaves caches beside the file that it reads
        _said([program, "diagnose", "--format", "json", "-o", str(found), str(copy)], Path(scratch))
        if not found.is_file():
            raise LabError(f"nsys-ai diagnose left no findings of {export.name}.")
        findings = json.loads(found.read_text())["findings"]
        words = [program, "skill", "run", "root_cause_matcher", str(copy), "--format", "json"]
        patterns = json.loads(_said(words, Path(scratch)))
    return {
        "findings": [_kept(one, FINDING) for one in findings[:EXAMPLES]],
        "patterns": [_kept(one, PATTERN) for one in patterns[:EXAMPLES]],
    }


# What the plugin shows in TensorBoard under "Performance Recommendation". It drops the loader's events as today's
# PyTorch files them (annotations): they are handed over as the operators that they were when it was written.
RECOMMENDED = """
import json, sys
from pathlib import Path
from torch_tb_profiler.profiler.data import RunProfileData
trace = json.loads(Path(sys.argv[1]).read_text(errors="replace"))
for event in trace["traceEvents"]:
    if event.get("name", "").startswith("enumerate(DataLoader)#"):
        event["cat"] = "cpu_op"
Path("handed.json").write_text(json.dumps(trace))
data = RunProfileData.parse("worker", "span", "handed.json", ".")
data.process()
data.analyze()
print(json.dumps(data.recommendations))
"""


def tb_profiler(trace: Path) -> dict:
    """The recommendations that PyTorch's plugin for TensorBoard makes of a trace, in its order."""
    with tempfile.TemporaryDirectory() as scratch:
        said = _said([str(_folder() / "python"), "-c", RECOMMENDED, str(trace)], Path(scratch))
    return {"recommendations": json.loads(said.splitlines()[-1])}


def _kept(answer: dict, names: tuple[str, ...]) -> dict:
    return {name: answer[name] for name in names if name in answer}


def _said(words: list[str], home: Path) -> str:
    done = subprocess.run(
        words, cwd=home, env=os.environ | {"HOME": str(home)}, capture_output=True, text=True, errors="replace"
    )
    if done.returncode != 0:
        last = (done.stderr + done.stdout).strip().splitlines()[-1:]
        raise LabError(f"{Path(words[0]).name} {words[1]} failed: {' '.join(last) or 'it said nothing'}")
    return done.stdout


def _nsys_version() -> str | None:
    nsys = find_nsys()
    return nsys.version_text if nsys else None


def _folder() -> Path:
    return Path(os.environ.get("LAB_TOOLS", ""))


def _installed(package: str) -> str | None:
    """The version of a package in the tools' environment."""
    python = _folder() / "python"
    if not os.environ.get("LAB_TOOLS") or not python.is_file():
        return None
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([str(python), "-c", asked], capture_output=True, text=True)
    return done.stdout.strip() or None


TOOLS = {
    "nsys_analyze": Tool("nsys analyze {report}", nsys_analyze, _nsys_version),
    "nsys_ai": Tool("nsys-ai diagnose {report}", nsys_ai, partial(_installed, "nsys-ai")),
    "tb_profiler": Tool(
        "torch-tb-profiler {report}", tb_profiler, partial(_installed, "torch-tb-profiler"), f"{TRACE}*.json"
    ),
}
