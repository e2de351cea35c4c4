"""What lab 24 claims: ``nsys stats`` and this reader agree, and which row of the budget a sleep is laid to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from labkit.checks import Claim
from labkit.topics.nsight import readings
from stepbudget.ask import phases
from stepbudget.ask.budget import CAUSES, WORK
from stepbudget.ask.compare import compare
from stepbudget.report import Report


def tells_little(
    variables: Sequence[str], passed: Collection[str], homes: Sequence[str], pretended: str
) -> Iterator[Claim | str]:
    """The report that ships holds no variables and no home but those that it was given."""
    yield Claim("it holds only variables that were passed", {*variables} <= {*passed})
    yield Claim("it holds no home but the pretended", [*homes] == [pretended])


def sums_agree(found: pd.DataFrame) -> Iterator[Claim | str]:
    """The sums of ``nsys stats`` beside this reader's, as ``nsight.readings.beside`` has them."""
    same = bool((found["ns"] == found["our_ns"]).all() and (found["count"] == found["our_count"]).all())
    yield Claim("both count the same, and agree to the nanosecond", same)


def kernels_by_thread(report: Report, theirs: Mapping[str, pd.DataFrame]) -> Iterator[Claim | str]:
    """Whose kernels the backward pass's are; ``theirs``: the tables of ``nsys stats`` of the same report."""
    by_range = theirs["kernels by range"]
    by_thread = int(by_range.loc[by_range["NVTX Range"] == ":backward", "Kern Inst"].sum())
    here = phases.phases(report, report.extent).set_index("phase").loc["backward", "kernels"]
    yield f"Kernels of backward: nsys stats {by_thread}, here {here}."
    yield Claim("by thread, hardly a kernel is backward's", by_thread < 0.1 * here)


def row_of_the_sleeps(after: Report, when: np.ndarray, row_ms: float) -> Iterator[Claim | str]:
    """The row that grew did so by the sleeps; ``when`` they were (ns), ``row_ms``: by how much the row grew."""
    slept = readings.meanwhile(after, when)
    yield Claim("each moment of a sleep stands in one row", abs(slept.sum() - _lasting_ms(when)) < 1e-6)
    idle_ms = slept.drop([CAUSES[work] for work in WORK], errors="ignore").sum()
    yield Claim(
        "the row grew by what the GPU idled through in the sleeps, within 5 %", abs(row_ms - idle_ms) < 0.05 * idle_ms,
        row_ms / idle_ms if idle_ms else float("nan"),
        because="the two epochs differ in more than the sleeps, or the operating system was not traced",
        so="compare the table above: which other rows changed?",
    )  # fmt: skip


def cost_of_the_sleeps(before: Report, after: Report) -> Iterator[Claim | str]:
    """How much longer the epoch is for its sleeps: the wait for the loader hides them."""
    made, long_ms = compare(before, after), _lasting_ms(readings.asleep(after))
    change_ms = made.second.duration_ms - made.first.duration_ms
    loader_ms = made.causes["loader"].ms
    changed = f"epoch ~{change_ms:+,.0f} ms; wait for data ~{loader_ms:+,.0f} ms"
    yield f"The sleeps last ~{long_ms:,.0f} ms, and change: {changed}."
    yield Claim(
        "the sleeps cost the epoch less than half of what they last", change_ms < 0.5 * long_ms,
        change_ms / long_ms if long_ms else float("nan"),
        because="the program did not wait for its loader there, so nothing hides a sleep",
        so=f"the sleeps cost you {change_ms:.0f} ms an epoch",
    )  # fmt: skip


def _lasting_ms(when: np.ndarray) -> float:
    return sum(end - start for start, end in when) / 1e6


def blamed_rows(blamed: pd.DataFrame) -> Iterator[Claim | str]:
    """To which row each view of one report lays the same sleeps; ``blamed``: ms, a row a cause, a column a view."""
    taken = blamed.idxmax()
    for view, row in taken.items():
        yield f"{view}: the sleep goes to '{row}'."
    rows = [CAUSES[cause] for cause in ("optimizer", "os_wait", "loader", "python")]
    yield Claim(
        "the same sleep goes to four different rows, by a name and a trace", list(taken) == rows, list(taken),
        because="nothing slept there, or the operating system was not traced",
        so="the rules decide all the same: read them once more",
    )  # fmt: skip
