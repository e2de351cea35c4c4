"""Training steps: found in any program's ranges, added up by hand, and the rhythm of the loader told from chance."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepbudget.ask import iterations
from stepbudget.report import Report, open_report
from stepbudget.window import Window
from synthetic import AUTOGRAD, MAIN, PROCESS, SyntheticReport

RECORDED = Path(__file__).resolve().parents[3] / "reports" / "recorded" / "h200" / "profiles"
OTHER = 4712  # a second process


@pytest.fixture
def made(tmp_path):
    made = SyntheticReport(tmp_path / "made.sqlite")
    made.gpu("a GPU")._string("as every export, it holds a text")
    return made


def spans(made: SyntheticReport, window: tuple[float, float] | None = None) -> list[tuple[float, float]]:
    """From where to where the steps go, in µs since the origin; ``window``: not the training range, but these times."""
    with Report(made.write()) as report:
        zero = report.ranges["start"].min() - first_us(made)
        where = window and Window(*(int(zero + 1000 * us) for us in window), "chosen")
        return [((s.start - zero) / 1e3, (s.end - zero) / 1e3) for s in iterations.step_windows(report, where)]


def first_us(made: SyntheticReport) -> int:
    return min(row["start"] for row in made._rows["NVTX_EVENTS"]) - made._ns(0)


# --- where the steps are ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("data loading", True),
        ("Data_Load", True),
        ("dataloader", True),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", True),
        ("next batch", True),
        ("get_next_batch", True),
        ("fetch", True),
        ("load batch 17", True),
        ("wait for data", True),
        ("input pipeline", True),
        ("train/data", True),
        ("batch_norm", False),
        ("aten::batch_norm", False),
        ("copy to device", False),
        ("load_state_dict", False),
        ("DataParallel.forward", False),
        ("prefetch to GPU", False),
        ("Optimizer.step#SGD.step", False),
        ("aten::upload", False),
        ("get_" * 5000, False),
    ],
)
def test_names_of_the_loader(name, answer):
    assert iterations.is_loader(name) is answer


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("ProfilerStep#12", True),
        ("step 12", True),
        ("Step_12", True),
        ("iteration 3", True),
        ("iter12", True),
        ("Batch: 7", True),
        ("Epoch 1 step 3/59", True),
        ("train_step_4", True),
        ("[batch 4]", True),
        ("step", True),
        ("training step", True),
        ("optimizer step", False),
        ("Optimizer.step#SGD.step", False),
        ("BatchNorm2d", False),
        ("batch_norm2", False),
        ("footstep", False),
        ("conv2", False),
    ],
)
def test_names_of_steps(name, answer):
    assert iterations._is_step(name) is answer


def test_the_loader_s_range_comes_before_numbered_ones(made):
    made.range(0, 100, "training")
    for at in (0, 40):  # the loop's own ranges begin after the batch has come
        made.range(at, at + 10, "fetch").range(at + 10, at + 38, f"step {at}").range(at + 12, at + 30, "forward")
    assert spans(made) == [(0, 40), (40, 100)]


def test_several_fetches_a_numbered_step_are_one_step(made):
    made.range(0, 100, "training")
    for at in (0, 50):
        made.range(at, at + 45, f"ProfilerStep#{at}")
        for fetch in (at, at + 20):
            made.range(fetch, fetch + 5, "next batch").range(fetch + 5, fetch + 18, "forward")
    assert spans(made) == [(0, 50), (50, 95)]


def test_numbered_steps_and_the_last_one_ends_with_its_range(made):
    made.range(0, 300, "training")
    for number in (8, 9, 10):
        at = 100 * (number - 8)
        made.range(at + 5, at + 80, f"ProfilerStep#{number}").range(at + 6, at + 20, "iteration 1", registered=True)
    assert spans(made) == [(5, 105), (105, 205), (205, 280)]
    assert spans(made, (200, 300)) == [(205, 280)]  # one alone is a step, as it says so itself


def test_else_the_first_top_level_range_that_comes_again(made):
    made.range(0, 100, "training").range(0, 8, "set-up")
    for at in (10, 50):
        made.range(at, at + 20, "forward").range(at + 2, at + 6, "conv").range(at + 8, at + 12, "conv")
        made.range(at + 22, at + 38, "backward")
    assert spans(made) == [(10, 50), (50, 100)]


def test_epochs_are_looked_into_and_tests_belong_to_no_step(made):
    for epoch in (0, 1000):
        made.range(epoch, epoch + 400, "epoch")
        for at in (epoch + 10, epoch + 200):
            made.range(at, at + 100, "forward").range(at + 100, at + 150, "backward")
        made.range(epoch + 500, epoch + 900, "validation")
        for at in (epoch + 500, epoch + 600, epoch + 700):
            made.range(at, at + 90, "forward")
    assert spans(made, (0, 2000)) == [(10, 200), (200, 400), (1010, 1200), (1200, 1400)]


def test_a_test_after_the_last_fetch_ends_the_steps(made):
    for epoch in (0, 1000):  # no range holds the training, so the test stands between two fetches
        for at in (epoch, epoch + 100):
            made.range(at, at + 20, "data loading").range(at + 20, at + 90, "forward")
        made.range(epoch + 200, epoch + 210, "data loading")  # finds no batch
        made.range(epoch + 300, epoch + 600, "test").range(epoch + 310, epoch + 320, "data loading")
    assert spans(made, (0, 2000)) == [(0, 100), (100, 200), (1000, 1100), (1100, 1200)]


def test_where_nothing_says_so_there_are_no_steps(made):
    made.range(0, 100, "training").range(5, 60, "forward").range(60, 90, "backward")
    made.range(6, 10, "conv").range(12, 15, "conv")  # layers of a single forward pass
    assert spans(made) == []


def test_other_threads_and_processes_do_not_count(made):
    made.range(0, 100, "training")
    for at in (0, 50):
        made.range(at, at + 10, "data loading").range(at + 10, at + 45, "forward")
        made.range(at + 3, at + 4, "data loading", thread=AUTOGRAD)
        made.range(at + 20, at + 30, "data loading", thread=OTHER, process=OTHER)
    assert spans(made) == [(0, 50), (50, 100)]
    # Of no range's window, the main thread of the process with most kernels.
    made.kernel(1, 2, "k", process=OTHER)
    assert spans(made, (0, 100)) == [(20, 70), (70, 100)]


def test_the_main_thread_comes_before_the_others(made):
    for at in (0, 50):
        made.range(at, at + 5, "data loading", thread=AUTOGRAD).range(at + 5, at + 9, "collate", thread=AUTOGRAD)
        made.range(at + 10, at + 20, "data loading", thread=PROCESS).range(at + 20, at + 40, "forward", thread=PROCESS)
    assert spans(made, (0, 100)) == [(10, 60), (60, 100)]


# --- what they cost -----------------------------------------------------------------------------------------


def three_steps(made: SyntheticReport) -> SyntheticReport:
    """Training 0–300 µs: waits of 20, 10 and 40 µs; a kernel of 30 µs each, one of them over a step's end."""
    made.range(0, 300, "training")
    for at, wait in ((0, 20), (100, 10), (200, 40)):
        made.range(at, at + wait, "data loading").range(at + wait, at + 90, "forward")
    made.copy(20, 30, 1000, call=(18, 21)).kernel(25, 55, "k", call=(22, 24))  # overlap: busy 20–55
    made.kernel(90, 120, "k", call=(60, 62), thread=AUTOGRAD)  # launched in step 1, ends in step 2
    made.kernel(250, 280, "k").memset(285, 290, 64)  # its launch is not in the report
    return made.kernel(0, 300, "k", device=1)  # another GPU


def test_steps_by_hand(made):
    with Report(three_steps(made).write()) as report:
        table = iterations.steps(report)
    expected = {
        "step": [1, 2, 3],
        "start_ms": [0, 0.1, 0.2],
        "duration_ms": [0.1, 0.1, 0.1],
        "gpu_busy_ms": [0.045, 0.02, 0.035],
        "gpu_idle_ms": [0.055, 0.08, 0.065],
        "loader_wait_ms": [0.02, 0.01, 0.04],
        "kernels": [3, 0, 1],
    }
    pd.testing.assert_frame_equal(table, pd.DataFrame(expected), check_dtype=False)


def test_summary_with_and_without_the_first_step(made):
    with Report(three_steps(made).write()) as report:
        table = iterations.steps(report)
    waits = iterations.summary(table).set_index("measure").loc["loader wait"]
    assert waits.to_list() == pytest.approx([3, 0.07 / 3, 0.02, np.std([20, 10, 40], ddof=1) / 1e3, 0.01, 0.04])
    waits = iterations.summary(table, skip_first=True).set_index("measure").loc["loader wait"]
    assert waits.to_list() == pytest.approx([2, 0.025, 0.025, np.std([10, 40], ddof=1) / 1e3, 0.01, 0.04])
    assert iterations.summary(table.iloc[:0])["steps"].tolist() == [0, 0, 0, 0]


def test_what_the_report_does_not_hold_is_not_zero(made):
    made.range(0, 100, "training").range(0, 40, "forward").range(50, 90, "forward")
    with Report(made.write()) as report:
        table = iterations.steps(report)
    assert len(table) == 2
    assert table[["gpu_busy_ms", "gpu_idle_ms", "loader_wait_ms", "kernels"]].isna().all(axis=None)


def test_a_report_without_steps_has_an_empty_table(made):
    with Report(made.kernel(0, 10, "k").write()) as report:
        table = iterations.steps(report)
    assert table.empty and "gpu_busy_ms" in table


# --- rhythm -------------------------------------------------------------------------------------------------


def bursts(period: int, steps: int, seed: int = 0) -> np.ndarray:
    """Waits of about 0.05 ms, and of about 10 ms every so many steps."""
    random = np.random.default_rng(seed)
    waits = random.lognormal(-3, 0.4, steps)
    waits[period - 1 :: period] = random.lognormal(2.3, 0.3, len(waits[period - 1 :: period]))
    return waits


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 14])
def test_bursts_have_their_period(workers):
    for seed in range(10):
        waits = bursts(workers, 59, seed)
        found = iterations.loader_period(waits)
        assert found is not None and found.steps == workers
        assert found.p <= iterations.SIGNIFICANCE
        assert found.waits == 58


def test_a_burst_may_come_a_step_late():
    waits = bursts(8, 200)
    late = np.flatnonzero(waits[:-1] > 1)
    late = late[np.random.default_rng(0).random(len(late)) < 0.3]
    waits[[*late, *(late + 1)]] = waits[[*(late + 1), *late]]
    assert iterations.loader_period(waits).steps == 8


def test_the_first_wait_is_left_out_unless_told_otherwise():
    waits = bursts(8, 59)
    waits[0] = 1e5
    found = iterations.loader_period(waits)
    assert (found.steps, found.waits) == (8, 58)
    assert iterations.loader_period(waits, skip_first=False) is None  # beside such a wait, all others are the same


@pytest.mark.parametrize(
    "waits", [[], [1.0], [3.0] * 100, [0.0] * 100, [np.nan] * 100, np.linspace(1, 9, 100), [1.0, 2.0] * 5]
)
def test_no_rhythm_without_bursts(waits):
    assert iterations.loader_period(waits) is None


RANDOM = {
    "exponential": lambda random, n: random.exponential(size=n),
    "log-normal": lambda random, n: random.lognormal(0, 2, n),
    "Pareto": lambda random, n: random.pareto(1, n),
    "normal": lambda random, n: np.abs(random.normal(10, 3, n)),
    "rare": lambda random, n: np.where(random.random(n) < 0.1, 50, 0.05),
}


@pytest.mark.parametrize("kind", RANDOM)
def test_waits_in_random_order_are_rarely_taken_for_a_rhythm(kind):
    random = np.random.default_rng(11)
    runs = 200
    wrong = sum(iterations.loader_period(RANDOM[kind](random, 60)) is not None for _ in range(runs))
    assert wrong <= 7  # at 1 %: more than 7 of 200 in one case of a thousand


@settings(max_examples=30)
@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 99))
def test_the_unit_of_the_waits_does_not_matter(scale, seed):
    waits = bursts(5, 60, seed)
    one, other = iterations.loader_period(waits), iterations.loader_period(scale * waits)
    assert (one.steps, one.p) == (other.steps, other.p)


# --- the recorded reports -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["main_baseline_nvtx", "main_opt1", "main_opt2", "main_opt3"])
def test_the_recorded_epoch_has_59_steps_that_fill_it(name):
    with open_report(RECORDED / f"{name}.sqlite.xz") as report:
        window = report.window()
        table = iterations.steps(report)
        whole = iterations.steps(report, report.extent)
        query = 'SELECT start, "end" FROM NVTX_EVENTS WHERE coalesce(text, ?) = ? ORDER BY start'
        fetches = report._db.execute(query, ("", "data loading")).fetchall()
        if not fetches:  # the name is registered
            query = 'SELECT start, "end" FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE value = ? ORDER BY start'
            fetches = report._db.execute(query, ("data loading",)).fetchall()
    fetches = np.array(fetches)
    assert len(fetches) == 60 and len(table) == 59
    assert table["duration_ms"].to_numpy() == pytest.approx(np.diff(fetches[:, 0]) / 1e6)
    assert table["loader_wait_ms"].to_numpy() == pytest.approx((fetches[:-1, 1] - fetches[:-1, 0]) / 1e6)
    assert (table["gpu_busy_ms"] + table["gpu_idle_ms"]).to_numpy() == pytest.approx(table["duration_ms"].to_numpy())
    assert 0.96 * window.duration_ms < table["duration_ms"].sum() <= window.duration_ms
    assert table["kernels"].nunique() <= 2
    pd.testing.assert_frame_equal(whole.drop(columns="start_ms"), table.drop(columns="start_ms"))


def test_fourteen_workers_deliver_in_rounds_of_fourteen_and_one_does_not():
    found = {}
    for name in ("main_baseline_nvtx", "main_opt1", "main_opt2", "main_opt3", "main_opt3_bf16"):
        with open_report(RECORDED / f"{name}.sqlite.xz") as report:
            found[name] = iterations.loader_period(iterations.steps(report)["loader_wait_ms"])
    assert found.pop("main_baseline_nvtx") is None
    assert found.pop("main_opt2") is None, "late batches are scattered over this epoch: chance could do that"
    assert {period.steps for period in found.values()} == {14}


def test_a_report_without_ranges_has_no_steps():
    with open_report(RECORDED / "main_baseline.sqlite.xz") as report:
        assert iterations.step_windows(report) == []


def test_main_is_the_thread_of_the_window(made):
    with Report(three_steps(made).write()) as report:
        assert {step.thread for step in iterations.step_windows(report)} == {PROCESS << 24 | MAIN}
