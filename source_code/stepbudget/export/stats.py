"""What does Nsight Systems itself say? The tables of ``nsys stats``, which this package's answers are held against."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import pandas as pd

from stepbudget.errors import ReportError
from stepbudget.export.nsys import need_nsys
from stepbudget.export.processes import stream
from stepbudget.report import Report

# Question → what the table is called in Nsight Systems from 2023 on, and before.
TABLES = {
    "ranges": ("nvtx_sum", "nvtxsum"),
    "kernels by range": ("nvtx_kern_sum", "nvtxkernsum"),
    "kernels": ("cuda_gpu_kern_sum", "gpukernsum"),
    "copies by time": ("cuda_gpu_mem_time_sum", "gpumemtimesum"),
    "copies by size": ("cuda_gpu_mem_size_sum", "gpumemsizesum"),
    "calls": ("cuda_api_sum", "cudaapisum"),
}


def stats(report: Report, questions: list[str]) -> dict[str, str]:
    """The tables of ``nsys stats`` for these questions (keys of TABLES), as CSV texts; the report stays untouched.

    ReportError where there is no nsys, or where it fails.
    """
    nsys = need_nsys()
    names = [TABLES[question][0 if nsys.version >= (2023, 1) else 1] for question in questions]
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "report.sqlite"  # nsys stats adds tables of its own to the file that it reads
        report.copy_to(copy)
        out = Path(scratch) / "out"
        reports = [word for name in names for word in ("--report", name)]
        words = [nsys.path, "stats", *reports, "--format", "csv", "--output", str(out), str(copy)]
        status, said = stream(words, lambda line: None)
        files = [Path(f"{out}_{name}.csv") for name in names]
        if status != 0 or not all(file.is_file() for file in files):
            told = " ".join(said.strip().splitlines()[-3:]) or "it said nothing"
            raise ReportError(f"nsys stats failed on {report.path.name}: {told}")
        return {question: file.read_text() for question, file in zip(questions, files, strict=True)}


def table(text: str) -> pd.DataFrame:
    """A CSV text of ``nsys stats`` as a table; integers stay integers."""
    return pd.read_csv(io.StringIO(text))
