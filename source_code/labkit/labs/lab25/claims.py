"""What lab 25 claims: what each mend of two scripts gained, of what its bound promised, and all of them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labkit.checks import Claim, Note
from labkit.display.spread import Spread
from labkit.labs.lab25 import mends
from labkit.labs.lab25.scored import Scored, pays_after, starved
from stepbudget.ask.budget import budget
from stepbudget.ask.compare import Comparison
from stepbudget.ask.launch import launch
from stepbudget.ask.phases import phases
from stepbudget.ask.predict import bound
from stepbudget.report import Report


def loader_starves(before: Report) -> Iterator[Claim | str]:
    """The first patient's GPU waits for the loader."""
    waits = budget(before).fractions["loader"]
    yield Claim(
        "for a tenth of the time or more, the GPU waits for the loader", waits > 0.1, waits,
        because="fewer cores decode fewer pictures, and a slower GPU waits less for them",
        so="read the largest row of your own table; what follows is somebody else's case",
    )  # fmt: skip


def outcomes(scored: Sequence[Scored]) -> Iterator[Claim | str]:
    """Promise and outcome of each of these mends."""
    for one in scored:
        yield one.sentence


def workers_beat_the_bound(scored: Sequence[Scored]) -> Iterator[Claim | str]:
    """The first mend, and that it alone gained more than its bound; ``scored``: all mends of the ResNet."""
    yield scored[0].sentence
    broken = [one.mend.word for one in scored if not one.kept]
    yield Claim("the workers gained more than their bound, in each round", broken == ["workers"])


def starved_steps(first: Report) -> Iterator[Claim | str]:
    """The loader's bound by those steps alone that wait for it."""
    found = bound(first, budget(first, starved(first)), "loader")
    yield f"By the starved steps alone, at most {found.at_most_times:.2f} times as fast."


def whole_process(process: Spread, losses: Sequence[float]) -> Iterator[Claim | str]:
    """All mends in a whole process: how many times as fast it is, and its loss at the end, before and after."""
    yield Claim("in each round, a process is over twice as fast", process.low > 2)
    yield Claim("the loss ends where it ended before", abs(losses[0] - losses[1]) < 0.01)


def same_work(made: Comparison) -> Iterator[Claim | str]:
    """Why two reports are not of quite the same work, if they are not."""
    for differs in made.obstacles:
        yield f"Not quite the same work: {differs}."


def within_bounds(scored: Sequence[Scored]) -> Iterator[Claim | str]:
    """No mend of the transformer gained more than promised."""
    yield Claim("no mend gained more than its bound", all(one.kept for one in scored))


def steps_by_report(scored: Sequence[Scored]) -> Iterator[Claim | str]:
    """A step after each of these mends, by its report: the optimizer and the launches; of the last one, the clock's."""
    for one in scored:
        report = mends.report(one.mend.report)
        own, found = phases(report).set_index("phase").loc["optimizer"], launch(report)
        cpu_ms, gpu_ms = own.cpu_ms / own["count"], own.gpu_ms / own["count"]
        took = f"optimizer {cpu_ms:.1f} ms CPU, {gpu_ms:.1f} ms GPU"
        launches = f"{found.launches / own['count']:.0f} launches a step"
        label = one.mend.label[0].upper() + one.mend.label[1:]
        yield Note(f"{label}: {took}; {launches}, {found.verdict}.")
    watched = mends.budget_of(one.mend.report).window.duration_ms / own["count"]
    told = f"{watched:.0f} ms under the profiler, {one.after.median:.0f} ms without it"
    yield f"{one.mend.label}: a step takes {told}"


def longer_start_pays(compiled: Scored) -> Iterator[Claim | str]:
    """After how many steps a compiled process has made up for its longer start."""
    steps = pays_after(compiled.slow, compiled.fast)
    yield f"By the short runs, compiling has paid after {steps:,.0f} steps."


def promise_kept(made: Comparison) -> Iterator[Claim | str]:
    """What the fix between two reports was promised and gained, or why that cannot be said."""
    yield made.verdict or f"Not the same work: {'; '.join(made.obstacles)}."
