"""Several profiles a side: what changed, between what it lies, and when a program is called slower."""

from __future__ import annotations

import json

import pytest

from stepbudget.ask import compare
from stepbudget.errors import ReportError
from stepbudget.report import open_report
from synthetic import SyntheticReport

POINTWISE, SGEMM = "at::native::vectorized_elementwise_kernel", "ampere_sgemm_128x64_nn"


@pytest.fixture
def profiles(tmp_path):
    """A function that makes the profiles of one side: their lengths in µs, half of each a pointwise kernel."""

    def make(side: str, *lengths: int, sgemm_us: int = 10, step_us: int = 5, sent: int = 4096):
        for number, length in enumerate(lengths):
            build = SyntheticReport(tmp_path / f"{side}{number}.sqlite").range(0, length, "training")
            build.kernel(0, length / 2, POINTWISE, call=(0, 1)).kernel(length - sgemm_us, length, SGEMM, call=(2, 3))
            build.copy(length / 2, length / 2 + 1, sent, memory="pinned", call=(1, 2))
            for at in (10, 20, 30):
                build.range(at, at + step_us, "eval step")
            yield build.write()

    return make


def change_of(profiles, before, after):
    sides = [[open_report(path) for path in profiles(*side)] for side in (("a", *before), ("b", *after))]
    return compare.compare(*sides).change


def test_as_many_on_each_side_are_pairs_in_the_order_in_which_they_were_given(profiles):
    found = change_of(profiles, (1000, 2000, 3000), (1100, 2100, 3100))
    assert found.paired and found.ms == pytest.approx(0.1)
    assert found.before_ms == (1, 2, 3) and found.after_ms == pytest.approx((1.1, 2.1, 3.1))
    assert (found.low_ms, found.high_ms) == pytest.approx((0.06, 0.14)), "three pairs: 2 % of the median may be noise"
    many = compare.change([1, 2, 3, 4, 5], [1.1, 2.1, 3.1, 4.1, 5.2], noise_ms=9)
    assert (many.low_ms, many.high_ms) == pytest.approx((0.1, 0.2)), "all of five pairs by chance: 1 in 32"


def test_others_are_held_against_all_of_the_other_side(profiles):
    found = change_of(profiles, (1000, 1010), (1100, 1110, 1120))
    assert not found.paired and found.ms == pytest.approx(0.105)
    assert found.beyond_noise and found.exceeds(0.05) and not found.exceeds(0.1)


def test_a_single_profile_a_side_is_uncertain_by_what_two_profiles_differ_by():
    found = compare.change([100], [103], noise_ms=2)
    assert (found.ms, found.low_ms, found.high_ms, found.paired) == (3, 1, 5, False)
    assert found.exceeds(0.005) and not found.exceeds(0.02)


@pytest.mark.parametrize("order", [(100, 140, 101), (140, 100, 101), (101, 100, 140)])
def test_noise_within_the_spread_is_never_called_slower(order):
    for after in [(100, 101, 140), (140, 101, 100), (141, 99, 101)]:
        assert not compare.change(order, after, noise_ms=2).exceeds(0.0)
    assert compare.change(order, [us + 50 for us in order], noise_ms=2).exceeds(0.2)


def test_what_changed_kernel_by_kernel_and_cause_by_cause(profiles):
    first = [open_report(path) for path in profiles("a", 1000, 1000, sgemm_us=300)]
    second = [open_report(path) for path in profiles("b", 900, 900, sgemm_us=270)]
    made = compare.compare(first, second)
    rows = made.kernels.set_index("kernel")
    assert rows.index.tolist() == [POINTWISE, SGEMM] and rows["change_ms"].tolist() == pytest.approx([-0.05, -0.03])
    assert rows["before"].tolist() == [1, 1] == rows["after"].tolist()
    assert made.kernels["change_ms"].sum() == pytest.approx(made.causes["other_kernels"].ms)
    assert made.causes["other_kernels"].beyond_noise and made.causes["other_kernels"].high_ms < 0
    assert sum(found.ms for found in made.causes.values()) == pytest.approx(made.change.ms)


# --- the command line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "share", "status"),
    [
        ((1000, 1010), 0.0, 0),
        ((1100, 1110), 0.05, 3),
        ((1100, 1110), 0.2, 0),
        ((900, 910), 0.0, 0),
        ((1005, 1300), 0.1, 0),
    ],
)
def test_the_exit_status_says_whether_it_became_slower(profiles, ask, after, share, status):
    before, other = profiles("a", 1000, 1005), profiles("b", *after)
    said = ask(*before, "--compare", *other, "--fail-if-slower", share)
    assert said[0] == status and said[2] == ""
    assert ("Not slower than allowed" in said[1]) == (status == 0)
    assert "* beyond the noise" in said[1] and "the pairs’ changes" in said[1]


def test_what_cannot_be_compared_passes_no_gate(profiles, ask):
    (before,), (after,) = profiles("a", 1000), profiles("b", 1000, sent=9_000_000)
    status, out, err = ask(before, "--compare", after, "--fail-if-slower", "0.1")
    assert status == 2 and "not comparable" in out and "What differs" in out and "cannot be compared" in err
    assert ask(before, "--compare", after)[0] == 0, "without the option it is only said"


def test_a_kind_of_step_is_compared_by_its_median(profiles, ask):
    before, after = list(profiles("a", 1000, 1000)), list(profiles("b", 1000, 1000, step_us=8))
    arguments = (*before, "--compare", *after, "--each", "eval step", "--fail-if-slower", "0.1", "--json")
    status, out, _ = ask(*arguments)
    found = json.loads(out)["comparison"]
    assert status == 3 and found["compared"] == "eval step" and found["slower_than_allowed"] is True
    assert found["change"]["ms"] == pytest.approx(0.003) and found["gained_ms"] == 0
    assert "‘eval step’" in ask(*before, "--compare", *after, "--each", "eval step")[1]
    with pytest.raises(ReportError, match="no range 'test step' in 'training'"):
        compare.compare(open_report(before[0]), open_report(after[0]), each="test step")


def test_the_json_of_a_comparison_holds_every_profile(profiles, ask):
    status, out, _ = ask(*profiles("a", 1000, 1010, 1020), "--compare", *profiles("b", 900, 910), "--json")
    found = json.loads(out)["comparison"]
    assert status == 0 and found["before"] == "a0.sqlite, a1.sqlite, a2.sqlite" and found["slower_than_allowed"] is None
    assert found["change"]["before_ms"] == pytest.approx([1, 1.01, 1.02]) and not found["change"]["paired"]
    assert {*found["causes"]} == {*found["budget_ms"]} and found["kernels"][0]["kernel"] == POINTWISE


@pytest.mark.parametrize(
    "arguments",
    [
        ["--compare", "a", "b"], ["a", "b"], ["a", "--each", "x"], ["a", "--fail-if-slower", "0.1"],
        ["a", "--compare", "b", "--fail-if-slower", "-1"], ["a", "--compare", "b", "--fail-if-slower", "nan"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_arguments_that_do_not_say_which_side_is_which_are_refused(ask, arguments):
    status, out, err = ask(*arguments)
    assert (status, out) == (2, "") and "error: " in err
