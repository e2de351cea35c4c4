"""At which line of its source did a kernel's warps wait, and for what? The source view of Nsight Compute, as rows.

While a kernel runs, Nsight Compute looks at a warp of each scheduler every so many clocks, and notes the instruction
that it stands at and why it does not go on (``ncu --section SourceCounters``). A compiler that keeps line numbers
(``-lineinfo``; Triton does) says which line each instruction belongs to. The report is read by NVIDIA's own module,
``ncu_report``, which lies beside ``ncu``, or where its installers put it (``ncu`` on the path may be a script that
calls another). Source: NVIDIA, "Nsight Compute: Python Report Interface", "Kernel Profiling Guide" (Warp Stall
Reasons).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepbudget.errors import ReportError

REASON, OTHERS = "smsp__pcsamp_warps_issue_stalled_", "_not_issued"  # the same samples, only where no warp issued
EXECUTED = "inst_executed"
FACTS = {  # of the whole kernel: name → counter
    "time_ns": "gpu__time_duration.sum",
    "registers": "launch__registers_per_thread",
    "warps_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "shared_passes": "memory_l1_wavefronts_shared",
    "shared_passes_ideal": "memory_l1_wavefronts_shared_ideal",
}
SECTIONS = ("SourceCounters", "Occupancy")
BESIDE = ("extras/python", "../extras/python", "../nsight-compute*/extras/python", "../../extras/python")
INSTALLED = (  # NVIDIA's usual places, the newest version first: it reads older reports
    "opt/nvidia/nsight-compute/*/extras/python",
    "usr/local/cuda*/nsight-compute*/extras/python",
    "usr/local/NVIDIA-Nsight-Compute*/extras/python",
)


@dataclass(frozen=True)
class Line:
    """A line of a kernel's source: samples of warps that stood there, by reason, and how often warps executed it."""

    file: str
    number: int
    samples: dict[str, int]
    executed: int

    @property
    def waited(self) -> int:
        """Samples in which a warp could not go on."""
        return sum(count for reason, count in self.samples.items() if reason not in ("selected", "not_selected"))


@dataclass(frozen=True)
class Kernel:
    """A kernel of a report: its name, FACTS as far as they were counted, and its lines in order."""

    name: str
    facts: dict[str, float]
    lines: list[Line]


def flags(report: str) -> list[str]:
    """ncu's flags for a report with the source view of the first kernel behind ``cudaProfilerStart``."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    metrics = ["--metrics", FACTS["time_ns"]]
    usual = ["--clock-control", "none", "--profile-from-start", "off", "--launch-count", "1"]
    return [*usual, *sections, *metrics, "--import-source", "yes", "--force-overwrite", "--export", report]


def reader(ncu: str, root: Path = Path("/")) -> object:
    """NVIDIA's ``ncu_report``, from beside the program ``ncu``, else from NVIDIA's usual places under ``root``.

    ReportError where it is nowhere, or does not load.
    """
    places = [(Path(ncu).resolve().parent, place) for place in BESIDE] + [(root, place) for place in INSTALLED]
    folders = [str(found.resolve()) for start, place in places for found in sorted(start.glob(place), reverse=True)]
    sys.path[:0] = folders
    try:
        return importlib.import_module("ncu_report")
    except ImportError as error:
        raise ReportError(f"Nsight Compute's Python module ncu_report cannot be loaded here: {error}") from error
    finally:
        del sys.path[: len(folders)]


def kernels(report: Path, module: object) -> list[Kernel]:
    """The kernels of an ``.ncu-rep``; ``module`` is ``reader``'s. ReportError where the file cannot be read."""
    try:
        context = module.load_report(str(report))
        ranges = [context.range_by_idx(number) for number in range(context.num_ranges())]
        actions = [one.action_by_idx(number) for one in ranges for number in range(one.num_actions())]
    except Exception as error:  # what it raises differs from version to version
        raise ReportError(f"{report.name} cannot be read as a report of Nsight Compute: {error}") from error
    return [_kernel(action) for action in actions]


def _kernel(action: object) -> Kernel:
    there = set(action.metric_names())
    reasons = [name for name in there if name.startswith(REASON) and not name.endswith(OTHERS)]
    samples: dict[tuple[str, int], dict[str, int]] = {}
    for name in sorted(reasons):
        for place, count in _by_line(action, name):
            if count:
                own = samples.setdefault(place, {})
                own[name.removeprefix(REASON)] = own.get(name.removeprefix(REASON), 0) + count
    executed: dict[tuple[str, int], int] = {}
    for place, count in _by_line(action, EXECUTED) if EXECUTED in there else ():
        executed[place] = max(executed.get(place, 0), count)
    places = sorted({*samples, *executed})
    facts = {name: action.metric_by_name(counter).as_double() for name, counter in FACTS.items() if counter in there}
    lines = [Line(*place, samples.get(place, {}), executed.get(place, 0)) for place in places]
    return Kernel(action.name(), facts, lines)


def _by_line(action: object, name: str) -> Iterator[tuple[tuple[str, int], int]]:
    """The counts of a metric's instructions, each with file and line of its source; those without one are left out."""
    metric = action.metric_by_name(name)
    if not metric.has_correlation_ids():
        return
    addresses = metric.correlation_ids()
    for place in range(metric.num_instances()):
        source = action.source_info(addresses.as_uint64(place))
        if source is not None:
            yield (Path(source.file_name()).name, source.line()), metric.as_uint64(place)


def longest(lines: Sequence[Line], count: int) -> list[Line]:
    """The lines at which warps waited most, the worst first."""
    return sorted(lines, key=lambda line: line.waited, reverse=True)[:count]
