"""The page of stepbudget's documentation that holds the table: how it was made, on what, and where ours loses."""

from __future__ import annotations

from pathlib import Path

from labkit.cases import CASES
from labkit.recording.tools import TOOLS
from labkit.source import originals
from labkit.subjects.diagnosis import tables
from labkit.subjects.diagnosis.tables import Diagnoses

OURS = "stepbudget: advice"
HOW = {
    "nsys_analyze": "all six rules for CUDA, all rows, gaps from 1 ms on (its own default is 500). Its rules are in no "
    "order: read first is the one that names a cause and found the most time. A single wait is no alarm: each of the "
    "programs ends its capture with one",
    "nsys_ai": "the ranked findings, and the patterns of its matcher of root causes: right if the first of either "
    "names the cause, in whatever words, among whatever others",
    "tb_profiler": "the recommendations on a trace that PyTorch's profiler made of the same program; the loader's "
    "events are handed to it as it expects them. Under emit_nvtx there is no such trace",
}
# Where ours loses, and why.
LOST = {
    "text_item": "the 297 waits are second in the advice, with 8.8 ms, and the CPU's code is first, with 19.7. Both "
    "are what the report says: without the waits the CPU alone would still need 45 of the 54 ms. The advice says "
    "besides that after each of the waits nothing was queued any more. What `.item()` costs in Python, and the norm "
    "that goes with it, no trace tells apart from other code",
}
TEXT = """# Does it find the cause?

Programs with one planted mistake each, and some with none, were recorded; this reader and other tools were asked what
is wrong with each. What a right answer names was written down before any of the programs had run on a GPU
(`source_code/labkit/cases.py`); the programs lie in `source_code/clinic/`. Printed by
`python3 -m labkit.subjects.diagnosis` from what was recorded; a test holds this page against it.

Recorded on: {machine}.

An answer is *right* if the first thing that the tool says names the planted cause, and, of two GPUs, which one is late.
Of a healthy program it is right if nothing is said to be worth a tenth of the time; else it is an *alarm*.

{table}

## How each was asked

- **stepbudget: advice**: the first sentence under *What to do next*, as a user reads it. **stepbudget: budget**: the
  costliest row of the plain table, of idle time where a tenth or more is idle.
{how}

The words in which others name a cause were written down before they were asked, and in their favour
(`source_code/labkit/subjects/diagnosis/words.py`).

## Where ours loses

{lost}
- **budget**: a table of where the time goes is no diagnosis: it knows nothing of sizes, nor of a GPU for which others
  wait, and calls a kernel that waits for another GPU communication.

The programs and their faults are by this reader's own authors, who saw the recordings before they mended the reader
where it was wrong: sizes, the late GPU, and a window that a sleeping helper lengthened were taught to it afterwards, by
rules that were held against every other recorded report. Who looks for a fault that nobody thought of may find that no
tool names it, this one included.
"""


def page(diagnoses: Diagnoses, folder: Path) -> str:
    """The whole page as Markdown, of what a machine's folder holds."""
    reports = [originals.read(folder / "profiles" / f"{case.report}.json") for case in CASES]
    days = sorted({record["run_at"][:10] for record in reports})
    systems = sorted({f"Nsight Systems {record['nsys']}, driver {record['driver']}" for record in reports})
    gpus = sorted({record["gpu"] for record in reports})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    how = [f"- **{TOOLS[tool].command.format(report='REPORT')}**: {text}." for tool, text in HOW.items()]
    lost = [f"- **{name}**: {text}." for name, text in LOST.items()]
    machine = f"{', '.join(gpus)} ({'; '.join(systems)}; {when})"
    return TEXT.format(machine=machine, table=tables.markdown(diagnoses), how="\n".join(how), lost="\n".join(lost))


def losses(diagnoses: Diagnoses) -> list[str]:
    """The cases whose cause our advice does not name first."""
    planted = [case for case in CASES if not case.is_healthy]
    return [case.name for case in planted if not diagnoses.found[case.name][OURS].is_right(case)]
