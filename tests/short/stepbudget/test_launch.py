"""Does the GPU wait for launches? Small reports worked out by hand, brute force, and the recorded ones."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepbudget
from stepbudget.ask import launch
from stepbudget.ask.iterations import step_windows
from stepbudget.errors import ReportError
from stepbudget.report import Report, open_report
from stepbudget.window import Window
from synthetic import AUTOGRAD, MAIN, PROCESS, SyntheticReport

RECORDED = Path(__file__).resolve().parents[3] / "reports" / "recorded" / "h200" / "profiles"


def answers(made: SyntheticReport, window: Window | None = None) -> tuple[launch.Launch, pd.DataFrame, list[tuple]]:
    """The verdict, the table of launches, and the queue as (µs since the window's start, depth)."""
    with Report(made.write()) as report:
        window = window or report.window()
        queue = launch.queue_depth(report, window)
        steps = [((at - window.start) / 1e3, depth) for at, depth in queue.itertuples(index=False, name=None)]
        return launch.launch(report, window), launch.launches(report, window), steps


def starving(made: SyntheticReport, count: int = 10) -> SyntheticReport:
    """A launch every 10 µs of a kernel that takes 2 µs and begins 5 µs after its call."""
    made.range(0, 10 * count, "training")
    for at in range(0, 10 * count, 10):
        made.kernel(at + 5, at + 7, "k", call=(at, at + 3))
    return made


def fed(made: SyntheticReport, count: int = 10) -> SyntheticReport:
    """A launch every 10 µs of a kernel that takes 30 µs: the queue grows."""
    made.range(0, 30 * count + 5, "training")
    for number in range(count):
        made.kernel(30 * number + 5, 30 * number + 35, "k", call=(10 * number, 10 * number + 4))
    return made


# --- by hand ------------------------------------------------------------------------------------------------


def test_short_kernels_starve_the_gpu(made):
    found, table, queue = answers(starving(made))
    assert found.verdict == launch.BOUND
    assert (found.launches, found.kernels, found.unknown) == (10, 10, 0)
    assert (found.drained, found.drained_share, found.starved, found.starved_share) == (10, 1, 10, 1)
    assert (found.kernel_us, found.kernel_p10_us, found.kernel_p90_us) == (2, 2, 2)
    assert (found.launch_us, found.api_us, found.latency_us) == (10, 3, 5)
    assert found.shorter_share == 1
    assert found.starved_ms == pytest.approx(9 * 8e-3)  # from a kernel's end to the next one's start
    assert queue[:4] == [(0, 1), (7, 0), (10, 1), (17, 0)] and queue[-1] == (97, 0)
    assert (found.queue_mean, found.queue_0_share, found.queue_1_share) == pytest.approx((0.7, 0.3, 0.7))
    assert table["start_ms"].tolist() == pytest.approx([0.01 * n for n in range(10)])
    assert found.evidence == (
        "10 of 10 launches found the GPU with nothing to do (100 %, waits aside). "
        "A kernel takes 2.0 µs, a launch 10.0 µs (medians)."
    )


def test_long_kernels_keep_it_busy(made):
    found, table, queue = answers(fed(made))
    assert found.verdict == launch.NOT_BOUND
    assert (found.drained, found.starved) == (1, 1)  # the first one
    assert (found.launch_us, found.kernel_us, found.shorter_share) == (10, 30, 0)
    assert table["queued"].tolist() == [0, 1, 2, 3, 3, 4, 5, 5, 6, 7]
    assert max(depth for _, depth in queue) == 8
    assert found.queue_0_share == 0
    whole = Window(*(round(edge) for edge in _whole(made)), "whole capture")
    assert answers(made, whole)[2][-1][1] == 0


def _whole(made: SyntheticReport) -> tuple[int, int]:
    with Report(made.write()) as report:
        return report.extent.start, report.extent.end + 1


def test_what_follows_a_wait_for_the_loader_is_no_launch_overhead(made):
    made.range(0, 200, "training")
    for at in (0, 100):
        made.range(at, at + 50, "data loading")
        made.kernel(at + 60, at + 70, "k", call=(at + 55, at + 58)).kernel(
            at + 80, at + 81, "k", call=(at + 75, at + 78)
        )
        made.kernel(at + 90, at + 91, "k", call=(at + 79, at + 80))
    found, table, _ = answers(made)
    assert table["after"].tolist() == ["loader", "", "", "loader", "", ""]
    assert table["drained"].tolist() == [True, True, False] * 2
    assert (found.drained, found.after_loader, found.drained_share) == (4, 2, 0.5)
    assert (found.starved, found.starved_share, found.verdict) == (2, 0.5, launch.NOT_BOUND)
    assert found.launch_us == (4 + 20 + 4 + 20) / 4  # the time that the loader took is no launch's


@pytest.mark.parametrize("call", ["cudaStreamSynchronize_v3020", "cuCtxSynchronize", "cudaMemcpy_v3020"])
def test_what_follows_a_wait_for_the_gpu_is_none_either(made, call):
    made.range(0, 100, "training")
    for at in range(0, 100, 10):
        made.kernel(at + 3, at + 6, "k", call=(at, at + 1)).api(at + 2, at + 7, call)
    found, _, _ = answers(made)
    assert (found.drained, found.after_wait, found.starved) == (10, 9, 1)
    assert (found.waits, found.emptied, found.emptied_us) == (9, 9, 7)
    assert found.drained_share == 1


def test_a_fill_is_no_wait_and_hides_no_launch_overhead(made):
    made.range(0, 100, "training")
    for at in range(0, 100, 10):
        made.kernel(at + 3, at + 6, "k", call=(at, at + 1)).api(at + 7, at + 8, "cudaMemset_v3020")
    found, _, _ = answers(made)
    assert (found.starved, found.waits, found.verdict) == (10, 0, launch.BOUND)


def test_nor_a_pause(made):
    made.range(0, 100_000, "training")
    for at in range(0, 100_000, 10_000):
        made.kernel(at + 3, at + 6, "k", call=(at, at + 1)).kernel(at + 6, at + 20, "k", call=(at + 2, at + 5))
    found, _, _ = answers(made)
    assert (found.after_pause, found.starved, found.verdict) == (9, 1, launch.NOT_BOUND)
    assert found.launch_us == 2


def test_streams_have_queues_of_their_own_and_the_gpu_has_all(made):
    made.range(0, 100, "training")
    made.kernel(5, 90, "long", call=(0, 2)).kernel(15, 20, "k", call=(10, 12), stream=8)
    made.kernel(35, 40, "k", call=(30, 32), stream=8).kernel(90, 95, "k", call=(50, 52))
    found, table, queue = answers(made)
    assert table["drained"].tolist() == [True, True, True, False]
    assert table["queued"].tolist() == [0, 1, 1, 1]
    assert (found.drained, found.starved) == (3, 1)
    assert queue == [(0, 1), (10, 2), (20, 1), (30, 2), (40, 1), (50, 2), (90, 1), (95, 0)]


def test_launch_costs_are_a_thread_s_own(made):
    made.range(0, 100, "training")
    for number, (at, thread) in enumerate([(0, MAIN), (4, MAIN), (9, AUTOGRAD), (16, AUTOGRAD), (40, MAIN)]):
        made.kernel(50 + number, 51 + number, "k", call=(at, at + 1), thread=thread)
    _, table, _ = answers(made)
    assert table["interval_us"].fillna(-1).tolist() == [-1, 4, -1, 7, -1]
    assert table["thread"].tolist()[2] == PROCESS << 24 | AUTOGRAD


def test_other_processes_and_gpus_do_not_count(made):
    fed(made)
    for at in range(0, 300, 20):
        made.kernel(at + 1, at + 2, "other", call=(at, at + 1), process=4712)
        made.kernel(at + 1, at + 2, "other", call=(at + 0.1, at + 0.3), device=1)
    found, _, _ = answers(made)
    assert (found.launches, found.kernels, found.starved, found.kernel_us) == (10, 10, 1, 30)
    with Report(made.write()) as report:
        assert launch.launch(report, gpu=1).launches == 15
        for ask in (launch.launch, stepbudget.answer):
            with pytest.raises(ReportError, match=r"number 7; the GPUs that did are 0, 1"):
                ask(report, gpu=7)
        with pytest.raises(ReportError, match="number 7"):
            stepbudget.budget(report, device=7)


def test_a_graph_s_kernels_are_one_launch(made):
    made.range(0, 200, "training")
    for at in (0, 100):
        made.graph_nodes([(at + 10, at + 20), (at + 21, at + 40), (at + 41, at + 60)], "node", call=(at, at + 5))
    found, table, queue = answers(made)
    assert (found.launches, found.kernels) == (2, 6)
    assert table["kind"].tolist() == ["graph", "graph"]
    assert table["duration_us"].tolist() == [50, 50]
    assert queue == [(0, 1), (60, 0), (100, 1), (160, 0)]
    assert found.kernel_us == 19


def test_a_graph_traced_as_a_whole_is_a_launch_too(made):
    made.range(0, 200, "training").graph(10, 60, call=(0, 5)).graph(70, 120, call=(8, 12))
    found, _, queue = answers(made)
    assert (found.launches, found.kernels, found.starved, found.verdict) == (2, 0, 1, launch.NOT_BOUND)
    assert queue == [(0, 1), (8, 2), (60, 1), (120, 0)]
    assert np.isnan(found.kernel_us)


def test_copies_and_fills_queue_but_are_no_kernels(made):
    made.range(0, 100, "training").copy(5, 40, 100, call=(0, 3)).kernel(40, 50, "k", call=(10, 12)).memset(50, 60, 8)
    found, table, queue = answers(made)
    assert (found.launches, found.drained) == (1, 0)
    assert table["kind"].tolist() == ["copy", "kernel"]
    assert queue == [(0, 1), (10, 2), (40, 1), (60, 0)]  # the fill's launch is unknown: it counts while it runs


# --- what is not there --------------------------------------------------------------------------------------


def test_without_calls_it_is_not_looked_at(made):
    found, table, queue = answers(made.range(0, 100, "training").kernel(10, 20, "k"))
    assert found.verdict == launch.NOT_LOOKED_AT and "no CUDA API calls" in found.evidence
    assert (found.launches, found.unknown, found.kernel_us) == (0, 1, 10)
    assert np.isnan(found.starved_share) and np.isnan(found.launch_us) and np.isnan(found.shorter_share)
    assert table.empty and [*table] == launch.LAUNCH_COLUMNS
    assert queue == [(0, 0), (10, 1), (20, 0)]


def test_without_kernels_it_is_not_looked_at(made):
    found, _, queue = answers(made.range(0, 100, "training").api(1, 2, "cudaFree_v3020"))
    assert (found.verdict, found.evidence) == (launch.NOT_LOOKED_AT, "the report holds no work of a GPU.")
    assert np.isnan(found.kernel_us) and queue == [(0, 0)]


def test_where_the_window_holds_no_launch_it_says_so(made):
    made.range(0, 10, "start").range(50, 100, "training").kernel(2, 5, "k", call=(1, 2))
    found, _, _ = answers(made)
    assert (found.verdict, found.evidence) == (launch.NOT_LOOKED_AT, "No launch call of a kernel lies in training.")


# --- properties ---------------------------------------------------------------------------------------------

# Work in order on each stream: (CPU time before the call, latency at least, duration, stream).
calls = st.tuples(st.integers(1, 40), st.integers(1, 15), st.integers(1, 60), st.sampled_from([7, 8]))


def simulate(made: SyntheticReport, works: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int]]:
    """What a GPU would do: each stream runs its works in order. Returns (call, start, end) in µs."""
    cpu, free, done = 0, {7: 0, 8: 0}, []
    for pause, latency, duration, stream in works:
        cpu += pause
        start = max(cpu + latency, free[stream])
        free[stream] = start + duration
        made.kernel(start, free[stream], "k", call=(cpu, cpu + 1), stream=stream)
        done.append((cpu, start, free[stream]))
    made.range(0, max(end for *_, end in done) + 1, "training")
    return done


@settings(max_examples=30)
@given(works=st.lists(calls, min_size=1, max_size=25), origin=st.sampled_from([0, 5000, 8 * 10**12]))
def test_against_a_simulated_gpu(tmp_path_factory, works, origin):
    made = SyntheticReport(tmp_path_factory.mktemp("launch") / "made.sqlite", origin_us=origin)
    done = simulate(made, works)
    found, table, queue = answers(made)
    by_time = np.array([sum(call <= at < end for call, _, end in done) for at in range(done[-1][0] + 2000)])
    held = np.array([depth for _, depth in queue])
    times = np.array([at for at, _ in queue])
    for at in range(0, int(times[-1]) + 3, 3):
        assert held[np.searchsorted(times, at, side="right") - 1] == by_time[at]
    assert held.min() >= 0 and held[-1] == 0
    whole = max(end for *_, end in done) + 1
    assert found.queue_mean == pytest.approx(by_time.sum() / whole)
    assert found.queue_0_share == pytest.approx((by_time[:whole] == 0).sum() / whole)
    drained = [
        all(other[2] <= call for other, work in zip(done[:n], works[:n], strict=True) if work[3] == works[n][3])
        for n, (call, *_) in enumerate(done)
    ]
    assert table["drained"].tolist() == drained
    assert found.drained == sum(drained)
    assert table["queued"].tolist() == [sum(o[0] < call < o[2] for o in done[:n]) for n, (call, *_) in enumerate(done)]


@settings(max_examples=8)
@given(works=st.lists(calls, min_size=1, max_size=15))
def test_the_origin_of_the_clock_does_not_matter(tmp_path_factory, works):
    folder = tmp_path_factory.mktemp("origin")
    found = []
    for origin in (0, 7 * 10**12):
        made = SyntheticReport(folder / f"{origin}.sqlite", origin_us=origin)
        simulate(made, works)
        said, table, queue = answers(made)
        found.append(({k: v for k, v in vars(said).items() if k != "window"}, table.to_dict("list"), queue))
    assert repr(found[0]) == repr(found[1])


def test_a_hundred_thousand_kernels_take_less_than_two_seconds(made):
    made.range(0, 1_000_010, "training")
    for number in range(100_000):
        made.kernel(10 * number + 5, 10 * number + 5 + number % 13, "k", call=(10 * number, 10 * number + 2))
    with Report(made.write()) as report:
        assert len(report.kernels) == 100_000 and len(report.api) == 100_000
        began = time.process_time()
        found = launch.launch(report)
        seconds = time.process_time() - began
    assert found.launches == 100_000
    assert seconds < 2  # of the CPU, which others may use meanwhile: 0.5


# --- the recorded reports -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["main_baseline_nvtx", "main_opt1", "main_opt2", "main_opt3"])
def test_the_recorded_launches_against_one_walk_through_the_calls(name):
    with open_report(RECORDED / f"{name}.sqlite.xz") as report:
        window = report.window()
        found = launch.launch(report)
        query = """SELECT k.start, k."end", k.streamId, r.start, {kernel} FROM {table} AS k
            JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r USING (correlationId)"""
        work = []
        for kernel, table in enumerate(["MEMSET", "MEMCPY", "KERNEL"]):
            query_ = query.format(kernel=kernel == 2, table=f"CUPTI_ACTIVITY_KIND_{table}")
            work += report._db.execute(query_).fetchall()
        origin = (
            window.start
            - report._db.execute(
                "SELECT min(start) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId "
                "WHERE coalesce(text, value) = 'training'"
            ).fetchone()[0]
        )
    free, drained, launches, durations = {}, 0, 0, []
    for start, end, stream, call, kernel in sorted(work):
        inside = kernel and window.start <= call + origin < window.end
        launches += inside
        drained += inside and call >= free.get(stream, 0)
        durations += [(end - start) / 1e3] * inside
        free[stream] = max(free.get(stream, 0), end)
    assert (found.launches, found.drained) == (launches, drained)
    assert found.drained_share == pytest.approx(drained / launches)  # the first launch after the loader is a copy
    assert found.kernel_us == pytest.approx(np.median(durations))
    area = sum(max(0, min(end + origin, window.end) - max(call + origin, window.start)) for _, end, _, call, _ in work)
    assert found.queue_mean == pytest.approx(area / (window.end - window.start))
    assert found.verdict == launch.NOT_BOUND
    assert found.unknown == 0


def test_half_precision_brings_the_gpu_nearer_to_waiting_for_launches():
    found = {}
    for name in ("main_opt1", "main_opt3"):
        with open_report(RECORDED / f"{name}.sqlite.xz") as report:
            found[name] = launch.launch(report)
            step = launch.launch(report, step_windows(report)[20])
            assert 40 < step.launches < 100 and step.queue_mean > 1
    assert 0 < 2 * found["main_opt1"].starved_share < found["main_opt3"].starved_share < launch.MOST
    assert found["main_opt1"].shorter_share < found["main_opt3"].shorter_share
