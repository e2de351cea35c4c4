"""What is the next bottleneck, and how do we know? Short sentences, the costliest finding first.

A finding rests on what the report holds. Where something was not recorded, it is listed as not looked at; no finding
is made up in its place. Who teaches the fixes hands in the name of each one's lab.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from stepbudget import intervals, kernel_names
from stepbudget.ask import collectives, copies, launch, lines, ops, ranks, sizes, tensor_cores, threads
from stepbudget.ask.budget import Budget, before_graphs, where
from stepbudget.ask.predict import FIXES, bounds
from stepbudget.report import Report

UNTREATED = (
    "communication",
    "cuda_setup",
    "mpi",
    "os_wait",
    "profiler",
    "unexplained",
)  # findings of their own
HOW = {
    "mpi": "Use calls that don't block, beside kernels. Or let the GPUs talk to one another (NCCL, a CUDA-aware MPI)",
    "profiler": "The profiler notes only part of what it costs: time the program without it",
    "cuda_setup": "Context, code, memory: once at the start, so look at a later stretch. In a loop, keep what is there",
}
LAYOUT = (
    "kernels that only change a layout (nchwToNhwc, nhwcToNchw) ran for {ms:,.1f} ms beside Tensor Core kernels. "
    "Those need the channels last: keep model and images that way (memory_format=torch.channels_last)"
)
LINE_OF = {  # fix or finding → the cause whose calls tell the line
    "loader": "loader", "pinned_memory": "pageable_copy", "no_synchronisation": "synchronisation",
    "cuda_graph": "launch_overhead", "os_wait": "os_wait",
}  # fmt: skip
WORTH = 0.01  # of the window: what is less is not worth a sentence
SIZES, LATE = "sizes", "late_gpu"  # findings of which a cause's name alone does not tell
SIZES_LABEL = "sizes that are no multiple of 8"


@dataclass(frozen=True)
class Advice:
    """One finding: the cause, what shows it, what removing it gains at most, and the lab that treats it.

    ``what``: the cause in words. ``finding``: SIZES, where the sizes of products do not fit, or LATE, where the cause
    is that of another GPU (``gpu``, its number), for which the others wait; else None.
    """

    cause: str
    evidence: str
    upper_bound_ms: float
    lab: str | None
    what: str
    finding: str | None = None
    gpu: int | None = None


def advice(report: Report, budget: Budget, labs: Mapping[str, str] | None = None) -> list[Advice]:
    """The findings of a window, costliest first; empty where nothing is worth a sentence, or work left no rows.

    What a finding can gain is the bound of its fix (stepbudget.ask.predict), so that the two never differ.

    ``budget`` is the report's (``budget(report, window)``); a finding's ``upper_bound_ms`` is milliseconds of its
    window. ``labs``: fix (of ``predict.FIXES``) → the name of the lab that treats it. ReportError where the report is
    damaged.
    """
    found = []
    whole_ms = budget.window.duration_ms
    if budget.missing and budget.missing.kinds:
        return []
    for fix, bound in bounds(report, budget).items():
        if bound.at_most_ms >= WORTH * whole_ms > 0:
            cause = max(FIXES[fix].causes, key=budget.ms.__getitem__)  # the costliest of those that the fix treats
            evidence = _sentences(_evidence(report, budget, fix), _line(report, budget, fix))
            found.append(Advice(cause, evidence, bound.at_most_ms, (labs or {}).get(fix), budget.label(cause)))
    for cause in UNTREATED:
        if budget.ms[cause] >= WORTH * whole_ms > 0:
            evidence = _sentences(_untreated(report, budget, cause), _line(report, budget, cause))
            at_most_ms = _hidden_ms(report, budget) if cause == "communication" else budget.ms[cause]
            found.append(Advice(cause, evidence, at_most_ms, None, budget.label(cause)))
    layout_ms = min(_layout_ms(report, budget), budget.ms["other_kernels"])
    if layout_ms >= WORTH * whole_ms > 0:
        lab = (labs or {}).get("mixed_precision")
        what = budget.label("other_kernels")
        found.append(Advice("other_kernels", LAYOUT.format(ms=layout_ms), layout_ms, lab, what))
    slow = sizes.misaligned(report, budget.window)
    if slow is not None and slow.alone_ms >= WORTH * whole_ms > 0:
        lab = (labs or {}).get(SIZES)
        found.append(Advice("tensor_core_kernels", _fetched(slow), slow.alone_ms, lab, SIZES_LABEL, SIZES))
    late = _late(report, budget)
    same = next((one for one in found if late and (late.gpu, late.cause) == (budget.device, one.cause)), None)
    if same:  # it is this GPU that is late, and the cause is found already: one story, with the fix's bound and lab
        found.remove(same)
        evidence = _sentences(late.evidence, same.evidence)
        at_most_ms = max(late.upper_bound_ms, same.upper_bound_ms)
        late = replace(late, evidence=evidence, upper_bound_ms=at_most_ms, lab=same.lab)
    found += [late] if late else []
    return sorted(found, key=lambda one: -one.upper_bound_ms)


def not_looked_at(report: Report, budget: Budget) -> list[str]:
    """What the report does not hold, and so what was not looked at."""
    missing = [*budget.not_looked_at]
    if not any("Tensor Active" in name for name in report.sampled):
        missing.append("GPU counters (--gpu-metrics-devices): whether the Tensor Cores were active")
    if report.kernels.empty:
        missing.append("kernels: the report holds none")
    if budget.missing and budget.missing.kinds:
        missing.append("what a fix would gain: work left no rows")
    own = threads.within(report.kernels, budget.window)
    own = own[threads.of(own, budget.window)]
    if budget.ms["communication"] and collectives.kernels(report)["bytes"].isna().all():
        missing.append(collectives.NO_SIZES)
    unknown = int(own["api_start"].isna().sum())
    if unknown and len(report.api):
        missing.append(f"the launches of {unknown:,} of {len(own):,} kernels, made outside the capture: in which phase")
    return missing + report.notes


def _sentences(first: str, *others: str) -> str:
    """The texts as sentences, without the first one's capital and the last one's full stop; empty ones are left out."""
    return ". ".join([first, *(text[:1].upper() + text[1:] for text in others if text)])


def _evidence(report: Report, budget: Budget, fix: str) -> str:
    """What in the report shows that this fix has something to gain."""
    window_ms, ms = budget.window.duration_ms, budget.ms
    held_ms = budget.held_ms
    if fix == "loader":
        waits = budget.spans["loader"]
        longest = f" of up to {(waits[:, 1] - waits[:, 0]).max() / 1e6:,.1f} ms" if len(waits) else ""
        gaps = f"{len(waits):,} gap{'s' * (len(waits) != 1)}{longest}"
        return _sentences(
            f"the program waited {held_ms.get('loader', 0.0):,.1f} of {window_ms:,.1f} ms for data",
            f"Meanwhile the GPU idled for {ms['loader']:,.1f} ms, in {gaps}",
            budget.evidence.get("loader", ""),
        )
    if fix == "pinned_memory":
        return _sentences(
            f"copies ran for {ms['copies']:,.1f} ms with no kernel beside them",
            f"Those of pageable memory held the program for {held_ms.get('pageable_copy', 0.0):,.1f} ms",
            *_copied(report, budget),
        )
    if fix == "no_synchronisation":
        return _sentences(
            f"the program waited for the GPU for {held_ms.get('synchronisation', 0.0):,.1f} ms",
            f"Because of that the GPU idled for {ms['synchronisation']:,.1f} ms{_how(budget, 'synchronisation')}",
            _drained(report, budget),
        )
    if fix == "mixed_precision":
        found = ops.summary(report, budget.window)
        of = f"{found.at_stake_ms:,.1f} ms of the kernels" if found.at_stake_ms >= 0.05 else "no kernel"
        parts = [
            f"{of} in convolutions and matrix products ran without Tensor Cores (judged by {found.by}). "
            "16 bits can at best halve the time of other 32-bit kernels"
        ]
        if ms["unknown_kernels"] >= WORTH * window_ms:
            unknown = (
                f"{ms['unknown_kernels']:,.1f} ms of kernels may use Tensor Cores: their names don't tell. Sample the "
                "counter Tensor Active (--gpu-metrics-devices), or count their instructions with ncu"
            )
            parts.insert(0 if ms["unknown_kernels"] > ms["other_kernels"] else 1, unknown)
        return _sentences(*parts)
    verdict = launch.launch(report, budget.window)
    causes = [cause for cause in FIXES["cuda_graph"].causes if ms[cause] >= 0.05]
    held = ", ".join(f"{budget.label(cause).partition(':')[0]} {ms[cause]:,.1f} ms" for cause in causes)
    return _sentences(
        f"the GPU idled while the CPU prepared its work: {held}",
        _between_nodes(report, budget),
        f"{verdict.verdict}: {verdict.evidence.rstrip('.')}",
        _other_code(report, budget),
    )


def _between_nodes(report: Report, budget: Budget) -> str:
    """How much of the idle time lies inside CUDA graphs, where the GPU waits for no launch."""
    inside = before_graphs(report, budget.window, within_one=True)
    own = [intervals.intersect(budget.spans[cause], inside) for cause in FIXES["cuda_graph"].causes]
    ms = sum(map(intervals.total, own)) / 1e6
    return f"{ms:,.1f} ms of that lie between the nodes of CUDA graphs, and wait for no launch" if ms >= 0.05 else ""


def _other_code(report: Report, budget: Budget) -> str:
    """How much of the CPU's code is no code around launches: in its long stretches nothing was launched."""
    code = intervals.from_edges(*np.concatenate([budget.spans[cause] for cause in ("python", "optimizer")]).T)
    long = code[code[:, 1] - code[:, 0] > 1000 * launch.PAUSE_US]
    ms = intervals.total(long) / 1e6
    if ms < WORTH * budget.window.duration_ms or not len(long):
        return ""
    inside = where(report, budget.window, long)
    return _sentences(
        f"{ms:,.1f} ms of CPU code launched nothing, in {len(long):,} stretch{'es' * (len(long) != 1)} of over a "
        "millisecond",
        inside,
        "A CUDA graph leaves such code as it is",
    )


def _drained(report: Report, budget: Budget) -> str:
    """After how many of the program's waits the GPU had nothing left to do until the next launch."""
    found = launch.launch(report, budget.window)
    if found.emptied < launch.LEAST_LAUNCHES:
        return ""
    idled = f"The GPU then idled until the next launch ({found.emptied_us:,.1f} µs, median)"
    return f"After {found.emptied:,} of {found.waits:,} waits nothing was queued. {idled}"


def _copied(report: Report, budget: Budget) -> list[str]:
    """What was copied from where, and what follows: from pageable memory, by page faults, or from pinned memory."""
    table = copies.labelled(report, budget.window)
    table = table[~copies.brings_result(table) & table["direction"].str.contains("host|unified")]
    faults = table["direction"].str.startswith("unified")
    pageable = ~faults & (table["host_memory"] == "pageable")
    pinned = ~faults & (table["host_memory"] == "pinned")
    text = []
    if pageable.any():
        what, use = ("copy", "uses") if pageable.sum() == 1 else ("copies", "use")
        size = f"{table.loc[pageable, 'bytes'].sum() / 1e6:,.1f} MB"
        text.append(f"{pageable.sum():,} {what}, {size}, {use} pageable memory")
    if faults.any():
        text.append(
            f"{faults.sum():,} migrations of unified memory moved {table.loc[faults, 'bytes'].sum() / 1e6:,.1f} MB "
            "page by page, as the GPU or the CPU touched it. Prefetch it (cudaMemPrefetchAsync), or copy it once"
        )
    if pinned.any() and not pageable.any():
        size, ns = table.loc[pinned, "bytes"].sum(), table.loc[pinned, "gpu_ns"].sum()
        rate = f" at {size / ns:,.1f} GB/s" if ns else ""
        text.append(f"{size / 1e6:,.1f} MB were copied from pinned memory{rate}. Copy less, or beside kernels")
    unknown = (table["host_memory"] == "unknown").any()
    return text or [
        "What memory the copies use isn't known" if unknown else "Apart from results, none uses pageable memory"
    ]


def _layout_ms(report: Report, budget: Budget) -> float:
    """Milliseconds of kernels that only change a layout, where Tensor Core kernels run beside them."""
    table = tensor_cores.verdicts(report, budget.window)
    changes = table["kernel"].str.contains(kernel_names.CHANGES_LAYOUT)
    return float(table.loc[changes, "gpu_ms"].sum()) if (table["tensor_core"] == kernel_names.YES).any() else 0.0


def _untreated(report: Report, budget: Budget, cause: str) -> str:
    if cause == "communication":
        return _communicated(report, budget)
    text = f"{budget.ms[cause]:,.1f} of {budget.window.duration_ms:,.1f} ms"
    missing = [what for what in budget.not_looked_at if "--trace cuda" in what or "--trace osrt" in what]
    if cause == "unexplained" and missing:
        return _sentences(text, *(what.replace("): ", ") would tell ") for what in missing))
    return _sentences(text + _how(budget, cause), HOW.get(cause, ""))


def late_rank(found: pd.DataFrame) -> list[str]:
    """Of a table of ``collectives.communication``: which rank the others waited for, in words; empty where for none."""
    last = collectives.late(found)
    if last is None:
        return []
    times = f"{last['last']:,.0f} of {last['matched']:,.0f}"
    rank = f"GPU {last['gpu']:.0f} (process {int(last['process']) & 0xFFFFFF})"
    return [f"{rank} came last to {times} collectives. The others waited {last['alone_ms']:,.1f} ms for it alone"]


def _communicated(report: Report, budget: Budget) -> str:
    """What the collectives of the budget's GPU did."""
    found = collectives.communication(report, budget.window)
    own = found[found["gpu"] == budget.device]
    ms = {column: own[column].sum() for column in own if column.endswith("_ms")}
    text = (
        f"collectives ran for {ms['total_ms']:,.1f} ms: {ms['hidden_ms']:,.1f} hidden behind other kernels, "
        f"{ms['exposed_ms']:,.1f} exposed"
    )
    if ms["unmatched_ms"] < ms["total_ms"]:
        text += f". {ms['waiting_ms']:,.1f} ms were waiting for the last rank, {ms['transfer_ms']:,.1f} transfer"
    return text


def _hidden_ms(report: Report, budget: Budget) -> float:
    """What hiding all communication gains at most: no more than the rank has exposed that has least.

    The others' waiting for that one is no communication, and goes only with what makes it late.
    """
    found = collectives.communication(report, budget.window)
    return min([budget.ms["communication"], *found.loc[found["matched"] > 0, "exposed_ms"]])


def _late(report: Report, budget: Budget) -> Advice | None:
    """The GPU for which the others wait, as stepbudget.ask.ranks finds it among those of one report."""
    exposed_ms = collectives.communication(report, budget.window)["exposed_ms"]
    if not (exposed_ms >= WORTH * budget.window.duration_ms).any():
        return None
    last = ranks.late_within(report, budget.window)
    if last is None:
        return None
    own = last.rank.window
    text = (
        f"GPU {own.gpu} (process {own.process & 0xFFFFFF}) came last to {last.last:,} of {last.matched:,} collectives. "
        f"The others waited {last.exposed_ms:,.1f} ms for it with nothing else to run"
    )
    if last.most_ms > last.exposed_ms / 2:
        text += f", {last.most_ms:,.1f} at one collective"
    if last.at_rest_ms < last.exposed_ms:
        text += f". But their CPU was idle for only {last.at_rest_ms:,.1f} ms"
    late = f"GPU {own.gpu} is late"
    if last.cause is None:
        text += ". No cause held it up so much longer than the others"
        return Advice("communication", text, last.at_most_ms, None, late, LATE, own.gpu)
    text += f". Before it came, {last.reason} took it {last.reason_ms:,.1f} ms longer than the others"
    what = f"{late}: {last.rank.budget.label(last.cause)}"
    return Advice(last.cause, text, last.at_most_ms, None, what, LATE, own.gpu)


def _fetched(slow: sizes.Misaligned) -> str:
    """What the names of kernels for odd sizes say, and what follows."""
    numbers = "one number" if slow.least == 1 else f"{slow.least} numbers"
    text = (
        f"{slow.count:,} Tensor Core kernels ran for {slow.gpu_ms:,.1f} ms. By their names, they fetch as little as "
        f"{numbers} at once (align{slow.least}). Libraries take them where the lines of a matrix begin at no multiple "
        "of 16 bytes"
    )
    if slow.older is not None and slow.older_ms >= slow.gpu_ms / 2:
        made, own = (".".join(map(str, one)) for one in (slow.older, slow.capability))
        text += f". For {slow.older_ms:,.1f} ms they are also of an older generation ({made}, and the GPU has {own})"
    return (
        f"{text}. Make layer widths, vocabulary and numbers of channels a multiple of 8 in 16 bits, better of 64. "
        "In TF32, a multiple of 4 will do. The products themselves remain"
    )


def _line(report: Report, budget: Budget, finding: str) -> str:
    """The line of the program that the finding is most about, where a backtrace tells it."""
    line = lines.costliest(report, budget.window, LINE_OF[finding]) if finding in LINE_OF else ""
    return f"Most at {line}" if line else ""


def _how(budget: Budget, cause: str) -> str:
    return f": {budget.evidence[cause]}" if budget.evidence.get(cause) else ""
