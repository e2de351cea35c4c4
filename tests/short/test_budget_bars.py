"""Budgets as bars: lengths are the data's, every cause that occurs is in the key, and no other."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import rgb_to_hsv, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.display import style
from labkit.display.charts import budgets as bars_of
from labkit.display.charts.budgets import LOOKS, budget_bars, budget_share_bars
from labkit.display.fingerprint import drawn_data
from stepbudget.ask.budget import CAUSES, IDLE, WORK
from stepbudget.show import palette
from stepbudget.window import Window


@dataclass(frozen=True)
class Given:
    """A budget with the milliseconds that a test names; what is not named is unexplained."""

    window: Window
    named: dict

    @property
    def ms(self) -> dict[str, float]:
        given = dict.fromkeys(CAUSES, 0.0) | self.named
        return given | {"unexplained": self.window.duration_ms - sum(self.named.values())}

    @property
    def fractions(self) -> dict[str, float]:
        return {cause: ms / self.window.duration_ms for cause, ms in self.ms.items()}


def given(total_ms: float, **named: float) -> Given:
    return Given(Window(5_000, 5_000 + round(1e6 * total_ms), "training"), named)


BEFORE = given(3912, other_kernels=250, copies=18, loader=3450, pageable_copy=15, launch_overhead=11, python=150)
AFTER = given(498, other_kernels=233, copies=4, loader=230, launch_overhead=10, python=13)
BUDGETS = {"baseline": BEFORE, "opt2": AFTER}


def drawn(fig: Figure) -> list[tuple[int, float, float]]:
    """Row, left end and length of each segment."""
    boxes = [patch for patch in fig.axes[0].patches if isinstance(patch, Rectangle)]
    return [(round(box.get_y() + box.get_height() / 2), box.get_x(), box.get_width()) for box in boxes]


def key(fig: Figure) -> list[str]:
    return [text.get_text() for text in fig.legends[0].get_texts()]


def words(fig: Figure) -> list[str]:
    return [text.get_text() for text in fig.axes[0].texts]


def as_given(budgets: dict, found: list[tuple[int, float, float]]) -> bool:
    """Is there one segment for each cause that took time, as long as it took, each where the one before ends?"""
    expected = []
    for row, budget in enumerate(budgets.values()):
        start = 0.0
        for ms in budget.ms.values():
            expected += [(row, start, ms)] if ms else []
            start += ms
    return np.shape(found) == np.shape(expected) and np.allclose(found, expected, rtol=1e-9)


def test_segments_are_as_long_as_the_causes_took():
    found = drawn(budget_bars(BUDGETS))
    assert as_given(BUDGETS, found)
    row, start, length = found[2]
    assert not as_given(BUDGETS, [*found[:2], (row, start, 1.01 * length), *found[3:]])


def test_shares_fill_each_bar():
    found = drawn(budget_share_bars(BUDGETS))
    for row, budget in enumerate(BUDGETS.values()):
        own = [length for at, _, length in found if at == row]
        assert sum(own) == pytest.approx(100)
        assert own == pytest.approx([100 * part for part in budget.fractions.values() if part])


def test_the_key_names_what_occurs_in_order_and_nothing_else():
    for draw in (budget_bars, budget_share_bars):
        fig = draw(BUDGETS)
        occurring = {CAUSES[cause] for budget in BUDGETS.values() for cause, ms in budget.ms.items() if ms}
        assert {*key(fig)} == occurring and len(key(fig)) == len(occurring) == 7
    everything = budget_bars({"all": given(150, **dict.fromkeys(CAUSES, 10))})
    assert {*key(everything)} == {*CAUSES.values()} - {"unexplained"}


def test_the_key_reads_row_by_row():
    """matplotlib fills a key's columns from the top; what a reader meets first is the first row."""
    fig = budget_bars({"all": given(165, **{cause: 10 for cause in CAUSES if cause != "unexplained"})})
    fig.draw_without_rendering()
    places = [
        (round(-text.get_window_extent().y0), text.get_window_extent().x0, text.get_text())
        for text in fig.legends[0].get_texts()
    ]
    assert [name for *_, name in sorted(places)] == list(CAUSES.values())


def test_wide_segments_say_what_they_are():
    shown = words(budget_bars(BUDGETS))
    assert "waiting for the loader\n3,450" in shown and "250" in shown
    assert "3,912 ms" in shown and "498 ms" in shown
    assert not any("4.00" in text for text in shown)  # too narrow for words
    assert "other kernels\n46.8 %" in words(budget_share_bars(BUDGETS))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_neighbours_that_share_a_hue_differ_by_far_or_one_is_hatched(theme):
    for (cause, one), (after, other) in pairwise(palette.CAUSES.items()):
        first, second = getattr(one, theme), getattr(other, theme)
        apart = abs(rgb_to_hsv(to_rgb(first))[0] - rgb_to_hsv(to_rgb(second))[0])
        unlike = min(apart, 1 - apart) > 30 / 360 or palette.contrast(first, second) > 1.5
        assert one.hatch != other.hatch or unlike, f"{cause} and {after}"


def test_every_cause_has_a_look_of_its_own():
    assert [*LOOKS] == [*CAUSES]
    assert len({*LOOKS.values()}) == len(CAUSES)
    greys = [(sum(to_rgb(colour) * np.array([0.3, 0.59, 0.11])), hatch) for colour, hatch in LOOKS.values()]
    for (one, hatch), (other, other_hatch) in pairwise(greys):
        assert abs(one - other) > 0.05 or hatch != other_hatch, "neighbours look alike without hues"
    hues = {cause: 360 * rgb_to_hsv(to_rgb(LOOKS[cause][0]))[0] for cause in CAUSES}
    assert all(100 < hues[cause] < 240 for cause in WORK)
    neutral = {"os_wait", "profiler", "unexplained"}
    assert not any(100 < hues[cause] < 240 for cause in {*IDLE} - neutral)


def test_the_fingerprint_tells_one_per_cent():
    longer = given(3912 + 34.5, **(BEFORE.named | {"loader": 1.01 * 3450}))
    assert drawn_data(budget_bars(BUDGETS)) == drawn_data(budget_bars(BUDGETS))
    assert drawn_data(budget_bars(BUDGETS)) != drawn_data(budget_bars(BUDGETS | {"baseline": longer}))


def test_a_window_without_time_draws_an_empty_bar():
    nothing = Given(Window(0, 0, "training"), {})
    fig = budget_bars({"nothing": nothing})
    assert drawn(fig) == [] and words(fig) == ["0.00 ms"]


def test_readers_settings_stay_untouched(monkeypatch):
    import matplotlib

    before = dict(matplotlib.rcParams)
    budget_bars(BUDGETS)
    assert dict(matplotlib.rcParams) == before
    assert bars_of.LOOKS["unexplained"] == (style.IDLE, "////")
