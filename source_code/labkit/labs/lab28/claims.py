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


def shorter_steps(own: dict, course_net: dict, compiled: dict) -> Iterator[Claim | str]:
    """A step in kernels of its own and compiled, of one recipe; the fastest of each track and its goal."""
    yield Claim("own kernels and compiled: the same network by the same recipe", entries.same_recipe(compiled, own))
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
    for _, row in entries.goals([own, course_net, compiled]).frame.iterrows():
        goal_ms, best_ms = row["set beforehand, ms"], row["best ms"]
        yield Claim(
            f"{row['track']}: {best_ms:.1f} ms, within the {goal_ms:.0f} ms set before any entry was made",
            best_ms <= goal_ms, best_ms,
            because="the goal was set for an H200", so="the fastest entry here is the one to beat",
        )  # fmt: skip


def compiler_takes_longest(own: dict, course_net: dict, compiled: dict) -> Iterator[Claim | str]:
    """Whose process is the longest."""
    longest = max((own, course_net, compiled), key=lambda one: one["process_s"])
    yield Claim(
        "the compiled entry has the longest process", longest is compiled, longest["entry"],
        because="what its compiler made before was still in the cache",
        so="the first run of a machine is the one to look at",
    )  # fmt: skip


def honest(search: dict, own: dict, records: Sequence[dict], knew: Sequence[float]) -> Iterator[Claim | str]:
    """No entry knew a digit before, the search chose the recipe, no rule is broken; held-out and test digits.

    ``knew``: per cent right before each training.
    """
    most, chosen = max(knew), searches.chosen(search)
    yield Claim(
        "no network knew more than chance allows before its training", most <= rules.CHANCE_PCT, f"{most:.1f} %"
    )  # fmt: skip
    yield Claim(
        "the entry's recipe is the one that the search chose", searches.is_recipe_of(chosen, own), chosen["settings"],
        because="a search with less time, or on another GPU, ends elsewhere",
        so="the entry keeps the recipe of the search that was recorded",
    )  # fmt: skip
    broken = [sentence for one in records for sentence in rules.broken(one)]
    yield Claim(
        "no rule is broken", not broken, "; ".join(dict.fromkeys(broken)),
        because="an accuracy near the goal, or MNIST not at hand, leaves too little",
        so="what broke a rule is no entry, however fast",
    )  # fmt: skip
    held, test = rules.mean_pct(own["hold_out"]), rules.mean_pct(own["rows"])
    yield f"own_kernels: {held:.3f} % of the held-out digits, {test:.3f} % of the test digits"
