"""What lab 25 claims: what each fix of two scripts gained, of what its bound promised, and all of them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labkit.checks import Claim
from labkit.display.spread import Spread
from labkit.labs.lab25 import mends, scripts
from labkit.labs.lab25.scored import Scored, pays_after, starts_s, starved
from stepbudget.ask.budget import budget
from stepbudget.ask.launch import launch
from stepbudget.ask.phases import phases
from stepbudget.ask.predict import bound
from stepbudget.report import Report


def loader_starves(before: Report) -> Iterator[Claim | str]:
    """The first script's GPU waits for the loader."""
    waits = budget(before).fractions["loader"]
    yield Claim(
        "for a tenth of the time or more, the GPU waits for the loader", waits > 0.1, waits,
        because="fewer cores decode fewer pictures, and a slower GPU waits less for them",
        so="read the largest row of your own table; what follows is somebody else's case",
    )  # fmt: skip


def whole_process(process: Spread, losses: Sequence[float]) -> Iterator[Claim | str]:
    """All fixes in a whole process: how many times as fast it is, and its loss at the end, before and after."""
    yield Claim("in each round, a process is over twice as fast", process.low > 2)
    yield Claim("the loss ends where it ended before", abs(losses[0] - losses[1]) < 0.01)


def workers_beat_the_bound(scored: Sequence[Scored]) -> Iterator[Claim | str]:
    """The workers alone gained more than their bound, and why; ``scored``: all fixes of the ResNet."""
    broken = [one.mend.word for one in scored if not one.kept]
    yield Claim("the workers, and they alone, gained more than their bound, in each round", broken == ["workers"])
    first = mends.report(scripts.before(scored[0].mend.report))
    found = bound(first, budget(first, starved(first)), "loader")
    yield f"The workers' bound from the first step on that waits long: at most {found.at_most_times:.2f} times as fast."
    names = [scripts.before(scored[0].mend.report), *(one.mend.report for one in scored)]
    waits = ", ".join(f"{mends.budget_of(name).ms['synchronisation']:.0f}" for name in names)
    yield f"The row 'synchronisation', as it was and fix by fix: {waits} ms of ten steps."


def within_bounds(scored: Sequence[Scored]) -> Iterator[Claim | str]:
    """No fix of the transformer gained more than promised; what its reports say of the last three."""
    yield Claim("no fix gained more than its bound", all(one.kept for one in scored))
    log, fused, compiled = scored[1:]
    took = [_optimizer_ms(one.mend.report) for one in (log, fused)]
    cpu, gpu = (f"{old:.1f} → {new:.1f} ms" for old, new in zip(*took, strict=True))
    yield f"Fused, the optimizer takes in a step: {cpu} of the CPU's time, {gpu} of the GPU's."
    found = {one.mend.report: launch(mends.report(one.mend.report)) for one in scored[1:]}
    counted = ", ".join(f"{own.launches / _steps(name):.0f}" for name, own in found.items())
    verdicts = ", ".join(dict.fromkeys(own.verdict for own in found.values()))
    yield f"Launches in a step, recorded after each of the last three fixes: {counted}; {verdicts}."
    watched_ms = mends.budget_of(compiled.mend.report).window.duration_ms / _steps(compiled.mend.report)
    yield f"Compiled, a step takes {watched_ms:.0f} ms under the profiler, {compiled.after.median:.0f} ms without it."
    later_s = starts_s(compiled.fast) - starts_s(compiled.slow)
    steps = pays_after(compiled.slow, compiled.fast)
    yield f"Compiled, the short runs start {later_s:.0f} s later; that has paid after {steps:,.0f} steps."


def _optimizer_ms(name: str) -> tuple[float, float]:
    """Milliseconds of the optimizer's phase in a step: of the CPU's time, and of its kernels."""
    own = phases(mends.report(name)).set_index("phase").loc["optimizer"]
    return own["cpu_ms"] / own["count"], own["gpu_ms"] / own["count"]


def _steps(name: str) -> int:
    return int(phases(mends.report(name)).set_index("phase").loc["optimizer", "count"])
