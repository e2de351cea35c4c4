"""What lab 1 claims: a clock has to wait for the GPU, phases are told by process, and a budget leaves nothing out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from labkit.checks import Claim
from labkit.display.runs import compared
from labkit.display.spread import paired
from stepbudget.ask.budget import Budget, budget
from stepbudget.ask.idle import idle
from stepbudget.ask.phases import phases
from stepbudget.report import Report


def clocks(ms: Mapping[str, float]) -> Iterator[Claim | str]:
    """Which clocks see the product, and what the first call takes; ``ms``: of one product, by the clock."""
    first, launched = ms["first call, to the end"], ms["launch only, 50 times"]
    done, by_events = ms["to the end, 50 times"], ms["CUDA events, 50 times"]
    yield Claim(
        "a clock that does not wait sees less than a tenth of the time", launched < 0.1 * done, launched / done,
        because="a slow or busy CPU takes long to launch, and a fast GPU little time for the product",
        so=f"it still misses {100 * (1 - launched / done):.0f} % of the time: wrong, if less so",
    )  # fmt: skip
    agree = by_events / done
    yield Claim(
        "waiting for the GPU and asking its own clock agree within 10 %", abs(agree - 1) < 0.1, agree,
        because="the GPU changed its clock rate, or was shared, between the two series",
        so="compare only what ran in turn, and more often than here",
    )  # fmt: skip
    yield Claim(
        "the first call is more than three times as slow as the later ones", first > 3 * done, first / done,
        because="the product takes so long on a slow GPU that loading the libraries adds little to it",
        so=f"a warm-up saves your timing {first - done:.0f} ms of {first:.0f}",
    )  # fmt: skip


def annotating(plain: Sequence[dict], named: Sequence[dict]) -> Iterator[Claim | str]:
    """The script with ranges in its source takes no longer; both: records of runs."""
    yield f"Round by round, the annotated script is {compared(plain, named)}."
    slower = 1 / paired(plain, named).median - 1
    yield Claim(
        "annotating costs less than 15 %, if anything", slower < 0.15, slower,
        because="the machine was busy in some rounds, or there was one round only",
        so="run more rounds before you blame the ranges: without --profile they do nothing",
    )  # fmt: skip


def backward(report: Report) -> Iterator[Claim | str]:
    """Counted by thread the backward pass is missed; by process it takes most of the GPU's time."""
    if report.kernels.empty:
        yield "This report holds no kernels: no phase is robbed of any."
        return
    right, wrong = (phases(report, by=by).set_index("phase")["gpu_ms"] for by in ("process", "thread"))
    yield Claim(
        "by thread, nearly all of the backward pass is missed",
        wrong.get("backward", 0.0) < 0.05 * right.get("backward", 0.0),
    )
    yield Claim(
        "by process, the backward pass is the largest consumer of GPU time",
        right.idxmax() == "backward", right.idxmax(),
        because="another library picks other kernels, and may have a slow one for the forward pass",
        so=f"the phase to look at first is {right.idxmax()}",
    )  # fmt: skip


def nothing_left_out(found: Budget, report: Report) -> Iterator[Claim | str]:
    """The causes of the epoch's budget add up, to the whole and to what the GPU idles."""
    yield Claim("the shares add up to 1", abs(sum(found.fractions.values()) - 1) < 1e-9)
    by_clock = idle(report).idle_ms  # the epoch less all kernels and copies
    yield Claim("the idle causes add up to the GPU's idle time", abs(found.idle_ms - by_clock) < 1e-6, by_clock)


def in_words(report: Report) -> Iterator[Claim | str]:
    """Why the GPU stands still for most of the epoch, and what the waits for it cost."""
    if report.kernels.empty:
        yield "No GPU took part: the causes say what the CPU did."
        return
    found = budget(report)
    top = found.table().nlargest(1, "share_of_idle").iloc[0]
    percent = 100 * found.idle_ms / found.window.duration_ms
    yield (
        f"The GPU stands still for ~{percent:.0f} % of the epoch, and the largest cause "
        f"of it is '{top['cause']}', with ~{100 * top['share_of_idle']:.0f} % of that time."
    )
    yield (
        f"The program waited for the GPU for ~{found.held_ms.get('synchronisation', 0.0):.1f} ms; "
        f"because of it the GPU stood still for ~{found.ms['synchronisation']:.1f} ms."
    )
