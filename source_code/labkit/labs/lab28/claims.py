"""What lab 28 claims: fewer and shorter steps reach 99 % within the goals, and what such a time leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labkit.checks import Claim
from labkit.labs.lab28 import entries, searches
from labkit.speedrun import rules


def reaches_the_goal(course_net: dict) -> Iterator[Claim | str]:
    """The entry with the course's network is right often enough; its record, of ``speedrun.py``."""
    found = entries.line(course_net)
    yield Claim(
        f"the course's network reaches {rules.GOAL_PCT} %, as a mean over its seeds",
        found.mean_pct >= rules.GOAL_PCT,
        found.mean_pct,
        because="without MNIST at hand fewer digits are trained on",
        so="LAB_DATA_DIR says where the digits lie",
    )


def same_recipe(compiled: dict, own: dict) -> Iterator[Claim | str]:
    """The entry that is compiled and the one in kernels of its own differ in nothing else."""
    yield Claim("both trained the same network by the same recipe", entries.same_recipe(compiled, own))


def shorter_steps(own: dict, compiled: dict) -> Iterator[Claim | str]:
    """How long a step is in kernels of its own, and compiled."""
    own_us, compiled_us = (
        1e3 * entries.line(record).training_ms / entries.steps(record) for record in (own, compiled)
    )  # fmt: skip
    yield (
        f"the time by the number of steps, {entries.steps(own)}: "
        f"{own_us:.0f} µs in own kernels, {compiled_us:.0f} µs compiled"
    )
    yield Claim(
        "own kernels beat the compiler's, by its usual settings", own_us < compiled_us, own_us / compiled_us,
        because="their tiles were chosen on an H200",
        so="the compiled entry is the one to start from",
    )  # fmt: skip


def within_the_goals(records: Sequence[dict]) -> Iterator[Claim | str]:
    """The fastest entry of each track against what was set beforehand; ``records``: of all entries."""
    best = entries.goals(records).frame.set_index("track")["best ms"]
    own_net, any_net = rules.TRACKS.values()
    differs = {"because": "the goal was set for an H200", "so": "the fastest entry here is the one to beat"}
    own_ms, any_ms = best[own_net.name], best[any_net.name]
    yield Claim("the course's network is within its goal", own_ms <= own_net.goal_ms, own_ms, **differs)
    yield Claim("so is the fastest of all networks", any_ms <= any_net.goal_ms, any_ms, **differs)


def compiler_takes_longest(own: dict, course_net: dict, compiled: dict) -> Iterator[Claim | str]:
    """Whose process is the longest."""
    longest = max((own, course_net, compiled), key=lambda one: one["process_s"])
    yield Claim(
        "the compiled entry has the longest process", longest is compiled, longest["entry"],
        because="what its compiler made before was still in the cache",
        so="the first run of a machine is the one to look at",
    )  # fmt: skip


def search_cost(search: dict) -> Iterator[Claim | str]:
    """What the search took, in trainings by the recipe that it found; its record, of ``speedrun_search.py``."""
    tried = [row for number in (1, 2) for row in searches.tried(search, number)]
    trained_s = sum(row["seeds"] * row["median_ms"] for row in tried) / 1e3
    best_s = searches.chosen(search)["median_ms"] / 1e3
    rest_s = search["process_s"] - trained_s
    yield (
        f"the search trained for as long as {trained_s / best_s:.0f} trainings by the recipe "
        f"that it found; preparing and judging them took {rest_s:.0f} s more"
    )


def knew_nothing(knew: Sequence[float]) -> Iterator[Claim | str]:
    """No entry brings what it has learned before; ``knew``: per cent right before each training."""
    most = max(knew)
    yield Claim(
        "no network knew more than chance allows before its training", most <= rules.CHANCE_PCT, f"{most:.1f} %"
    )  # fmt: skip


def as_searched(search: dict, own: dict) -> Iterator[Claim | str]:
    """The entry was trained by what the search chose."""
    chosen = searches.chosen(search)
    yield Claim(
        "the entry's recipe is the one that the search chose", searches.is_recipe_of(chosen, own), chosen["settings"],
        because="a search with less time, or on another GPU, ends elsewhere",
        so="the entry keeps the recipe of the search that was recorded",
    )  # fmt: skip


def no_rule_broken(records: Sequence[dict]) -> Iterator[Claim | str]:
    """All that a record can be asked about, of each entry."""
    broken = [sentence for one in records for sentence in rules.broken(one)]
    yield Claim(
        "no rule is broken", not broken, "; ".join(dict.fromkeys(broken)),
        because="an accuracy near the goal, or MNIST not at hand, leaves too little",
        so="what broke a rule is no entry, however fast",
    )  # fmt: skip


def held_out_and_test(own: dict) -> Iterator[Claim | str]:
    """What the digits held out said of a recipe, and what the test digits say."""
    held, test = rules.mean_pct(own["hold_out"]), rules.mean_pct(own["rows"])
    yield f"own_kernels: {held:.3f} % of the held-out digits, {test:.3f} % of the test digits"
