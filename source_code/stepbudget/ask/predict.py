"""What can a fix gain at most? From one report an upper bound for each fix, and later a score against a second report.

The bounds hold if the rest of the program stays as it is:

- A fix that frees the *CPU* (the loader, pageable copies, waits for the GPU) can make the window shorter by no more
  than the time for which these held the program, GPU idle or not: so much earlier it can come to all that follows. Nor
  by more than the GPU's idle time: its work has to be done. Copies may besides vanish from the GPU's own time.
- Fewer and cheaper *launches* can gain the idle time for which the CPU prepared work, no more: what the loader delivers
  comes no earlier for it, and a program starts up (its context, its first code) as long as before. Between two nodes
  of a CUDA graph the GPU waits for no CPU; and where nearly all work is graphs', what ends with one gains nothing.
- *Mixed precision* can gain kernel time: all of it where an operation could use Tensor Cores and does not, half of it
  where a kernel moves 32-bit numbers.

Where the report does not tell what a fix treats, or work left no rows, nobody knows the gain: its bound is NaN.
A bound is no forecast: another cause may take the place of the one that went.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepbudget import intervals, kernel_names
from stepbudget.ask import ops, tensor_cores
from stepbudget.ask.budget import WORK, Budget, before_graphs, graph_share
from stepbudget.errors import ReportError
from stepbudget.report import Report

MOSTLY_GRAPHS = 0.9  # of the kernels' time: a program whose work is CUDA graphs' is one already


@dataclass(frozen=True)
class Fix:
    """Something to be done about a bottleneck, the causes that it treats, and those that part of these turn into."""

    label: str
    causes: tuple[str, ...]
    becomes: tuple[str, ...] = ()


FIXES = {
    "loader": Fix("enough loader workers, kept alive", ("loader",)),
    "pinned_memory": Fix("pinned memory and non-blocking copies", ("pageable_copy", "copies")),
    "no_synchronisation": Fix("no waiting for the GPU", ("synchronisation",)),
    "mixed_precision": Fix(
        "mixed precision on Tensor Cores", ("other_kernels", "unknown_kernels"), ("tensor_core_kernels",)
    ),
    "cuda_graph": Fix(
        "fewer, cheaper launches (CUDA graph, compilation)",
        ("launch_overhead", "python", "optimizer"),
    ),
}


@dataclass(frozen=True)
class Bound:
    """What a fix can gain at most in a window."""

    fix: str
    at_most_ms: float  # NaN: not known
    of_ms: float

    @property
    def best_ms(self) -> float:
        """How long the window lasts at best, once the fix is made."""
        return self.of_ms - self.at_most_ms

    @property
    def at_most_times(self) -> float:
        """By which factor the window can become faster at most."""
        return float("inf") if self.best_ms <= 0 else self.of_ms / self.best_ms


def bounds(report: Report, budget: Budget) -> dict[str, Bound]:
    """An upper bound for each fix, in the order of FIXES."""
    return {fix: bound(report, budget, fix) for fix in FIXES}


def known(fix: str) -> str:
    """That fix, if it is one of FIXES; ReportError if not."""
    if fix not in FIXES:
        raise ReportError(f"no fix is called '{fix}'. There are: {', '.join(FIXES)}.")
    return fix


def bound(report: Report, budget: Budget, fix: str) -> Bound:
    """What one fix of FIXES can gain at most in the budget's window; ReportError for a fix that is none of them."""
    known(fix)
    causes, ms = FIXES[fix].causes, budget.ms
    exposed_ms = sum(ms[cause] for cause in causes)
    covered = {"optimizer"} if "python" in causes else set()  # the optimizer's code is Python's where no range names it
    if budget.untold & {*causes} - covered:
        return Bound(fix, float("nan"), budget.window.duration_ms)
    if fix == "mixed_precision":
        at_most_ms = _mixed_precision_ms(report, budget, exposed_ms)
    elif fix == "cuda_graph":
        since = budget.window.start if budget.started is None else budget.started
        later = [intervals.clip(budget.spans[cause], since, budget.window.end) for cause in causes]
        is_one = graph_share(report, budget.window) > MOSTLY_GRAPHS
        done = before_graphs(report, budget.window, within_one=not is_one)
        at_most_ms = sum(intervals.total(intervals.subtract(own, done)) for own in later) / 1e6
    else:
        on_gpu_ms = sum(ms[cause] for cause in causes if cause in WORK)
        held_ms = sum(budget.held_ms.get(cause, 0.0) for cause in causes)
        at_most_ms = max(exposed_ms, min(held_ms, budget.idle_ms) + on_gpu_ms)
    return Bound(fix, at_most_ms, budget.window.duration_ms)


def _mixed_precision_ms(report: Report, budget: Budget, exposed_ms: float) -> float:
    """Kernel time that can vanish, and half of that which can halve; no more than is exposed.

    What can vanish: operations that could use Tensor Cores and do not, what serves their algorithm and no other (a
    Fourier transform, a change of layout), and kernels of which nothing is known. What can halve: other kernels, unless
    their names say that they work in 16 bits already.
    """
    table = tensor_cores.verdicts(report, budget.window)
    table = table[~table["kernel"].map(kernel_names.is_collective).astype(bool)]
    names, ms = table["kernel"], table["gpu_ms"]
    product = names.map(kernel_names.is_product).astype(bool) | names.str.contains(kernel_names.SERVES)
    vanishes = (table["tensor_core"] == kernel_names.UNKNOWN) | product & (table["tensor_core"] == kernel_names.NO)
    halves = (table["tensor_core"] == kernel_names.NO) & ~vanishes & ~names.str.contains(kernel_names.SIXTEEN_BITS)
    vanishing_ms = max(float(ms[vanishes].sum()), ops.summary(report, budget.window).at_stake_ms)
    rest_ms = max(0.0, float(ms[vanishes | halves].sum()) - vanishing_ms)
    return min(vanishing_ms + rest_ms / 2, exposed_ms)
