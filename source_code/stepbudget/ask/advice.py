"""What is the next bottleneck, and how do we know? One sentence a finding, the costliest first.

A finding rests on what the report holds. Where something was not recorded, it is listed as not looked at; no finding
is made up in its place. Who teaches the fixes hands in the name of each one's lab.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepbudget.ask import copies, launch, ops, threads
from stepbudget.ask.budget import CAUSES, Budget
from stepbudget.ask.predict import FIXES, bounds
from stepbudget.report import Report

UNTREATED = ("os_wait", "profiler", "unexplained", "unknown_kernels", "cuda_graph")  # findings of their own
WORTH = 0.01  # of the window: what is less is not worth a sentence


@dataclass(frozen=True)
class Advice:
    """One finding: the cause, what shows it, what removing it gains at most, and the lab that treats it."""

    cause: str
    evidence: str
    upper_bound_ms: float
    lab: str | None


def advice(report: Report, budget: Budget, labs: Mapping[str, str] | None = None) -> list[Advice]:
    """The findings of a window, costliest first; empty where nothing is worth a sentence.

    ``labs``: fix (of ``predict.FIXES``) → the name of the lab that treats it.
    """
    found = []
    whole_ms = budget.window.duration_ms
    for fix, bound in bounds(report, budget).items():
        treated = [cause for cause in FIXES[fix].causes if cause not in UNTREATED]
        at_most_ms = bound.at_most_ms - sum(budget.ms[cause] for cause in FIXES[fix].causes if cause in UNTREATED)
        if at_most_ms >= WORTH * whole_ms > 0:
            cause = max(treated, key=budget.ms.__getitem__)  # the costliest of those that the fix treats
            found.append(Advice(cause, _evidence(report, budget, fix), at_most_ms, (labs or {}).get(fix)))
    for cause in UNTREATED:
        if budget.ms[cause] >= WORTH * whole_ms > 0:
            found.append(Advice(cause, _untreated(budget, cause), budget.ms[cause], None))
    return sorted(found, key=lambda one: -one.upper_bound_ms)


def not_looked_at(report: Report, budget: Budget) -> list[str]:
    """What the report does not hold, and so what was not looked at."""
    missing = [*budget.not_looked_at]
    if not any("Tensor Active" in name for name in report.sampled):
        missing.append("GPU counters (--gpu-metrics-devices): whether the Tensor Cores were active")
    if report.kernels.empty:
        missing.append("kernels: the report holds none")
    own = threads.within(report.kernels, budget.window)
    unknown = int(own["api_start"].isna().sum())
    if unknown and len(report.api):
        missing.append(f"the launches of {unknown:,} of {len(own):,} kernels, made outside the capture: in which phase")
    return missing + report.notes


def _evidence(report: Report, budget: Budget, fix: str) -> str:
    """What in the report shows that this fix has something to gain."""
    window_ms, ms = budget.window.duration_ms, budget.ms
    held_ms = budget.held_ms
    if fix == "loader":
        waits = budget.spans["loader"]
        longest = f"; the longest gap {(waits[:, 1] - waits[:, 0]).max() / 1e6:,.1f} ms" if len(waits) else ""
        return (
            f"the program waited for data for {held_ms.get('loader', 0.0):,.1f} of {window_ms:,.1f} ms, and the GPU "
            f"was idle for {ms['loader']:,.1f} ms of it ({len(waits):,} gaps{longest}){_how(budget, 'loader')}"
        )
    if fix == "pinned_memory":
        table = copies.copies(report, budget.window)
        pageable = table[table["host_memory"] == "pageable"]
        text = (
            f"copies ran for {ms['copies']:,.1f} ms with no kernel beside them; those of pageable memory held the "
            f"program for {held_ms.get('pageable_copy', 0.0):,.1f} ms"
        )
        if len(pageable):
            return f"{text}; {pageable['count'].sum():,} copies, {pageable['mb'].sum():,.1f} MB, use pageable memory"
        return f"{text}; none of them uses pageable memory"
    if fix == "no_synchronisation":
        return (
            f"the program waited for the GPU for {held_ms.get('synchronisation', 0.0):,.1f} ms, and the GPU was idle "
            f"for {ms['synchronisation']:,.1f} ms because of it{_how(budget, 'synchronisation')}"
        )
    if fix == "mixed_precision":
        found = ops.summary(report, budget.window)
        return (
            f"{found.at_stake_ms:,.1f} ms of kernels in convolutions and matrix products ran without Tensor Cores "
            f"(judged by {found.by}); of other kernels that work in 32 bits, 16 bits can at best halve the time"
        )
    verdict = launch.launch(report, budget.window, budget.device)
    held = ", ".join(
        f"{CAUSES[cause]} {ms[cause]:,.1f} ms" for cause in FIXES["cuda_graph"].causes if ms[cause] >= 0.05
    )
    return (
        f"the GPU was idle while the CPU prepared its work: {held} ({verdict.verdict}: {verdict.evidence.rstrip('.')})"
    )


def _untreated(budget: Budget, cause: str) -> str:
    text = f"{budget.ms[cause]:,.1f} of {budget.window.duration_ms:,.1f} ms"
    missing = [what for what in budget.not_looked_at if "--trace cuda" in what or "--trace osrt" in what]
    if cause == "unexplained" and missing:
        return f"{text}; not looked at, for want of {'; '.join(missing)}"
    return text + _how(budget, cause)


def _how(budget: Budget, cause: str) -> str:
    return f": {budget.evidence[cause]}" if budget.evidence.get(cause) else ""
