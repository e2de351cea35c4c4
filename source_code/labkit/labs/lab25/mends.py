"""What was mended in the two scripts, in which order, and what can each mend gain at most, by the report before it?

Reports and runs come from the machine that the lab's text is written from, as those of the clinic do: they are case
histories, and a history has one course. Where none of the reader's bounds (stepbudget.ask.predict) is about a mend,
the bound stands here, with what it rests on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit import course
from labkit.errors import LabError
from labkit.paths import RECORDED
from labkit.recording import plan
from labkit.source import recorded
from stepbudget import kernel_names
from stepbudget.ask import phases, predict, tensor_cores
from stepbudget.ask.budget import Budget, budget
from stepbudget.report import Report, open_report

MACHINE = course.DEFAULT_MACHINE
AS_IT_WAS = "as it was"
PATIENTS = tuple(plan.EXAMPLES)  # the scripts, by the names of their first reports


@dataclass(frozen=True)
class Mend:
    """One change: the report after it, what it is in few words, and what it gains at most by the report before it.

    ``bound_ms``: of a report and its budget, milliseconds of the window.
    """

    report: str
    label: str
    bound_ms: Callable[[Report, Budget], float]

    @property
    def word(self) -> str:
        """``bf16``, ``workers``, …: what a prediction calls it."""
        return self.report.rpartition("_")[2].replace("amp", "bf16")


def _fix(name: str) -> Callable[[Report, Budget], float]:
    return lambda report, found: predict.bound(report, found, name).at_most_ms


def sixteen_bits_ms(report: Report, found: Budget) -> float:
    """What BF16 gains at most: the reader's bound, and half of the Tensor Core kernels that work in TF32.

    TF32 is on Tensor Cores already, so the reader's bound leaves it out; in 16 bits they multiply twice as fast, and
    half as many bytes move (NVIDIA H200 data sheet: 495 TFLOP/s in TF32, 989 in BF16, both dense).
    """
    return predict.bound(report, found, "mixed_precision").at_most_ms + tf32_ms(report, found) / 2


def tf32_ms(report: Report, found: Budget) -> float:
    """Milliseconds of Tensor Core kernels whose names say that they multiply in TF32."""
    table = tensor_cores.verdicts(report, found.window)
    used = table["tensor_core"] == kernel_names.YES
    return float(table.loc[used & table["kernel"].str.contains(kernel_names.TF32), "gpu_ms"].sum())


def optimizer_ms(report: Report, found: Budget) -> float:
    """What another optimizer gains at most: all of that phase, the CPU's time for it and its kernels' on the GPU."""
    own = phases.phases(report, found.window).set_index("phase").loc["optimizer"]
    return float(own["cpu_ms"] + own["gpu_ms"])


def all_but_products_ms(report: Report, found: Budget) -> float:
    """What compiling gains at most: all but the matrix products on Tensor Cores, which it leaves to the libraries."""
    return found.window.duration_ms - found.ms["tensor_core_kernels"]


MENDS = {
    "train_resnet": (
        Mend("train_resnet_workers", "14 loader workers", _fix("loader")),
        Mend("train_resnet_pinned", "pinned memory, non-blocking", _fix("pinned_memory")),
        Mend("train_resnet_amp", "BF16 and channels-last", sixteen_bits_ms),
        Mend("train_resnet_log", "loss read every 10 steps", _fix("no_synchronisation")),
    ),
    "train_transformer": (
        Mend("train_transformer_amp", "BF16", sixteen_bits_ms),
        Mend("train_transformer_log", "loss read every 10 steps", _fix("no_synchronisation")),
        Mend("train_transformer_fused", "fused optimizer", optimizer_ms),
        Mend("train_transformer_compiled", "torch.compile", all_but_products_ms),
    ),
}


def mends(patient: str) -> tuple[Mend, ...]:
    """What was mended in a script of PATIENTS, in order; LabError for another name."""
    if patient not in MENDS:
        raise LabError(f"no script here is called {patient}: there are {', '.join(MENDS)}.")
    return MENDS[patient]


def report_file(name: str) -> Path:
    """Where a recorded report lies; NotRecorded where there is none of that name."""
    where = RECORDED / MACHINE
    return recorded.named("profiles", name, recorded.provenance(where)["profiles"].get(name, ""), where)


@cache
def report(name: str) -> Report:
    """A recorded report of ``plan.EXAMPLE_STEPS``; NotRecorded where there is none of that name."""
    return open_report(report_file(name))


@cache
def budget_of(name: str) -> Budget:
    return budget(report(name))


def runs(name: str, steps: int | None = None) -> list[dict]:
    """The timed runs of a report's program, one a round; ``steps``: those of so many steps, for whole processes."""
    command = plan.EXAMPLE_STEPS[name] + (f" --steps {steps}" if steps else "")
    return recorded.records("runs", command, RECORDED / MACHINE)
