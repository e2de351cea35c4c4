"""How is a report made? ``nsys profile`` with few, cheap flags, run as this machine can run it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stepbudget.errors import ReportError
from stepbudget.export.nsys import Nsys
from stepbudget.export.processes import stream

METRICS = "--gpu-metrics-devices"
# Without --sample none and --cpuctxsw none the same run writes a thousand times as much.
TRACED = ["--trace", "cuda,osrt,nvtx", "--sample", "none", "--cpuctxsw", "none"]
CAPTURED = ["--capture-range", "cudaProfilerApi", "--capture-range-end", "stop"]  # only what the program brackets
METRICS_DENIED = re.compile(r"ERR_NVGPUCTRPERM|[Ii]nsufficient privilege|GPU Metrics.*(not supported|failed)")
# nsys that starts while another one starts: once in a hundred times, four at a time (2022.4.2). Nothing has run yet.
NOT_BEGUN = re.compile(r"Local Endpoint is not available|\bsem_open\b")
# What the importer prints of its own insides, a screen for each event that it can't read; one line says so anyway.
DUMP_BEGINS, DUMP = "**** Analysis failed", re.compile(r"Status: |(Props|Error) \{|[ }]")


def command(
    nsys: Nsys, report: Path, program: Sequence[str], more: Sequence[str] = (), captured: bool = False
) -> list[str]:
    """The command that profiles a program into ``report``, with ``more`` flags.

    ``captured``: only from the program's cudaProfilerStart to its cudaProfilerStop.
    """
    flags = [*TRACED, *(CAPTURED if captured else ()), METRICS, "all", *more]
    flags += ["--output", str(report.with_suffix("")), "--force-overwrite", "true"]
    return [nsys.path, "profile", *spelled(flags, nsys), *program]


def spelled(flags: Sequence[str], nsys: Nsys) -> list[str]:
    """The flags in the spelling that this nsys knows."""
    older = {METRICS: "--gpu-metrics-device"} if nsys.version < (2024, 1) else {}
    return [older.get(flag, flag) for flag in flags]


def without_metrics(words: list[str]) -> list[str]:
    """The same command without GPU metrics, for those who may not read them."""
    at = next((i for i, word in enumerate(words) if word.startswith("--gpu-metrics-device")), None)
    return words if at is None else words[:at] + words[at + 2 :]


def without_dumps(show: Callable[[str], None]) -> Callable[[str], None]:
    """``show``, for all lines but those of the importer's dumps."""
    inside = False

    def shown(line: str) -> None:
        nonlocal inside
        inside = line.startswith(DUMP_BEGINS) or (inside and DUMP.match(line) is not None)
        if not inside:
            show(line)

    return shown


def record(
    words: list[str],
    report: Path,
    nsys: Nsys,
    show: Callable[[str], None],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> None:
    """Run a profiling command in a folder; afterwards ``report`` exists. ReportError with nsys's own words if not.

    ``show`` gets each line of its output as it comes, but for the importer's dumps; ``environment``: variables beside
    those of this process; ``limit_s``: for a program that is known to be short (a training may take any time, as long
    as it does anything).
    """

    def run(words: list[str]) -> tuple[int, str]:
        try:
            return stream(words, without_dumps(show), folder, environment, limit_s)
        except OSError as error:
            raise ReportError(f"{words[0]} cannot be started: {error.strerror}.") from error
        except BaseException:  # what there is by now may be half a report
            remove()
            raise

    def remove() -> None:
        for made in (report, report.with_suffix(".qdstrm")):
            made.unlink(missing_ok=True)

    remove()
    status, said = run(words)
    if not report.is_file() and NOT_BEGUN.search(said):
        show("nsys did not start beside another one: once more")
        status, said = run(words)
    if not report.is_file() and METRICS_DENIED.search(said) and without_metrics(words) != words:
        show("no permission to read GPU metrics: profiling without them. To get them, run as root (in a container:")
        show("--user root --cap-add=SYS_ADMIN), or see https://developer.nvidia.com/ERR_NVGPUCTRPERM")
        status, said = run(without_metrics(words))
    if report.is_file() and status == 0:
        return
    if not report.is_file() and ("importer" in said or report.with_suffix(".qdstrm").is_file()):
        raise ReportError(
            f"nsys {nsys.version_text} recorded the run but cannot make a report of it: its importer does not start. "
            "On Ubuntu install libdw1 and libelf1; with Debian's package, link host-linux-x64 beside target-linux-x64."
        )
    lines = [line for line in said.splitlines() if line.strip()]
    if report.is_file():  # it was made although the program failed, whose words stand before nsys's
        lines = lines[: next((at for at, line in enumerate(lines) if line.startswith("Generat")), None)]
    what = "the program" if report.is_file() else "nsys profile"
    raise ReportError(f"{what} failed with status {status}: {' / '.join(lines[-4:]) or 'it said nothing'}")
