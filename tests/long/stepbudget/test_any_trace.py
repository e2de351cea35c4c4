"""Any trace at all: what holds of every report, tried on random ones, against slow searches and simulations."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp import ALLREDUCE
from stepbudget import intervals
from stepbudget.ask import budget as rooms
from stepbudget.ask import collectives, iterations
from stepbudget.report import Report, open_report
from stepbudget.window import Window
from synthetic import AUTOGRAD, MAIN, PROCESS, SyntheticReport

GEMM, POINTWISE, UNKNOWN = "ampere_s16816gemm_128x64", "at::native::vectorized_elementwise_kernel", "mystery_kernel"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
RANKS = ((11, 0), (22, 1))

# --- the budget -----------------------------------------------------------------------------------------------

moments = st.integers(0, 1000)


spans = st.tuples(moments, st.integers(0, 300)).map(lambda pair: (pair[0], pair[0] + pair[1]))


names = st.sampled_from([GEMM, POINTWISE, UNKNOWN])


threads = st.sampled_from([1, AUTOGRAD, 7])


@st.composite
def traces(draw, folder):
    """Random traces: overlapping streams, nested and crossing ranges, instants, open ranges, calls of every kind."""
    origin = draw(st.sampled_from([0, 5000, 7_000_000_000_000, 1_700_000_000_000_000]))
    made = SyntheticReport(Path(folder) / "random.sqlite", origin_us=origin)
    if draw(st.booleans()):
        made.range(*draw(spans), "training")
    for start, end in draw(st.lists(spans, max_size=6)):
        name = draw(st.sampled_from(["data loading", "forward", "optimizer step", "backward"]))
        made.range(start, draw(st.sampled_from([end, None])), name, thread=draw(threads))
    for start, end in draw(st.lists(spans, max_size=12)):
        call = draw(st.one_of(st.none(), spans))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            memory = draw(st.sampled_from(["pageable", "pinned"]))
            made.copy(start, end, 1000, memory=memory, call=call, stream=draw(st.integers(7, 9)))
        elif kind == 1:
            made.graph(start, end, call=call)
        else:
            stream, device = draw(st.integers(7, 9)), draw(st.integers(0, 1))
            made.kernel(start, end, draw(names), call=call, stream=stream, device=device, thread=draw(threads))
    for start, end in draw(st.lists(spans, max_size=6)):
        call = draw(st.sampled_from(["cudaStreamSynchronize_v3020", "cudaMalloc_v3020", "cudaEventRecord_v3020"]))
        made.api(start, end, call, thread=draw(threads))
    for start, end in draw(st.lists(spans, max_size=6)):
        made.os_call(
            start, end, draw(st.sampled_from(["poll", "connect", "recvmsg", "mmap64", "write"])), thread=draw(threads)
        )
    for start, end in draw(st.lists(spans, max_size=2)):
        made.overhead(start, end, "CUPTI Buffer flush", thread=draw(threads))
    made.kernel(0, 1, POINTWISE)  # a report holds at least something
    return made


@settings(max_examples=40)
@given(data=st.data())
def test_the_causes_of_any_trace_add_up_and_never_overlap(data):
    with tempfile.TemporaryDirectory() as folder:
        made = data.draw(traces(folder))
        with open_report(made.write()) as report:
            start, end = sorted((data.draw(moments), data.draw(moments)))
            whole = report.extent
            cut = Window(whole.start + 1000 * start, whole.start + 1000 * end, "cut")
            for window in (report.window(), whole, cut):
                check_sums(rooms.budget(report, window), window)


def check_sums(found, window):
    length = window.end - window.start
    assert sum(found.ns.values()) == length
    assert sum(found.fractions.values()) == pytest.approx(1 if length else 0, abs=1e-9)
    assert all(ns >= 0 for ns in found.ns.values())
    taken = np.concatenate([*found.spans.values()])
    assert intervals.total(intervals.from_edges(*taken.T)) == length, "no two causes hold at once"
    assert len(taken) == 0 or (taken[:, 0].min() >= window.start and taken[:, 1].max() <= window.end)
    halves = [
        Window(window.start, window.start + length // 3, "1"),
        Window(window.start + length // 3, window.end, "2"),
    ]
    parts = found.over(halves)
    assert parts.sum().sum() * 1e6 == pytest.approx(length)
    assert parts.sum(axis=1).tolist() == pytest.approx([part.duration_ms for part in halves])


@settings(max_examples=15)
@given(data=st.data())
def test_the_answer_does_not_depend_on_where_the_clock_begins(data):
    with tempfile.TemporaryDirectory() as folder:
        made = data.draw(traces(folder))
        with open_report(made.write()) as report:
            first = rooms.budget(report, report.extent).ns
        shifted = 9_000_000_000_000_000_000 // 1000 - 10_000_000
        db = sqlite3.connect(made.path)
        offset = 1000 * (shifted - made.origin_us)
        for (table,) in db.execute("SELECT name FROM sqlite_master").fetchall():
            columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
            if "start" in columns:
                db.execute(f'UPDATE {table} SET start = start + ?, "end" = "end" + ?', (offset, offset))
        db.commit()
        db.close()
        with open_report(made.path) as report:
            assert rooms.budget(report, report.extent).ns == first


# --- steps ----------------------------------------------------------------------------------------------------

RANGES = [
    "data loading", "next batch", "step 1", "step 2", "ProfilerStep#3", "train", "epoch 1", "epoch 2", "test",
    "forward", "conv", "", "value",
]  # fmt: skip
any_range = st.tuples(
    st.integers(0, 300), st.integers(0, 120), st.sampled_from(RANGES), st.sampled_from([MAIN, AUTOGRAD, PROCESS])
)


@settings(max_examples=50)
@given(found=st.lists(any_range, max_size=14), start=st.integers(0, 150), length=st.integers(1, 300))
def test_steps_of_whatever_ranges_follow_each_other_in_the_window(tmp_path_factory, found, start, length):
    made = SyntheticReport(tmp_path_factory.mktemp("any") / "made.sqlite").kernel(0, 500, "k", call=(1, 2))
    for at, lasts, name, thread in found:  # nested, crossing, of no length, on three threads
        made.range(at, at + lasts, name, thread=thread)
    with Report(made.write()) as report:
        window = Window(report.extent.start + 1000 * start, report.extent.start + 1000 * (start + length), "any")
        steps = iterations.step_windows(report, window)
        table = iterations.steps(report, window)
    edges = [edge for step in steps for edge in (step.start, step.end)]
    assert edges == sorted(edges) and len(table) == len(steps)
    assert all(window.start <= step.start < step.end <= window.end for step in steps)
    assert len({step.thread for step in steps}) <= 1
    assert (table["gpu_busy_ms"] + table["gpu_idle_ms"]).tolist() == pytest.approx(table["duration_ms"].tolist())


events = st.tuples(st.integers(0, 900), st.integers(0, 200))


@settings(max_examples=40)
@given(
    work=st.lists(events, max_size=12),
    waits=st.lists(st.integers(5, 95), min_size=2, max_size=9),
    origin=st.sampled_from([1, 5000, 9 * 10**12]),  # from 0 to 0 is work whose times could not be had
)
def test_steps_against_counting_microseconds(tmp_path_factory, work, waits, origin):
    made = SyntheticReport(tmp_path_factory.mktemp("steps") / "made.sqlite", origin_us=origin)
    made.range(0, 100 * len(waits), "training", registered=True)
    busy, waiting = np.zeros(2000, bool), np.zeros(2000, bool)
    for number, wait in enumerate(waits):
        made.range(100 * number, 100 * number + wait, "data loading").range(100 * number + wait, 100 * number + 99, "f")
        waiting[100 * number : 100 * number + wait] = True
    for start, length in work:
        made.kernel(start, start + length, "k", call=(max(0, start - 5), start))
        busy[start : start + length] = True
    with Report(made.write()) as report:
        table = iterations.steps(report)
    assert len(table) == len(waits)
    for row in table.itertuples():
        own = slice(100 * (row.step - 1), 100 * row.step)
        assert row.start_ms == pytest.approx(0.1 * (row.step - 1))
        assert row.loader_wait_ms == pytest.approx(waiting[own].sum() / 1e3)
        if work:
            assert row.gpu_busy_ms == pytest.approx(busy[own].sum() / 1e3)
            assert row.gpu_busy_ms + row.gpu_idle_ms == pytest.approx(row.duration_ms)
    if work:
        inside = sum(max(0, start - 5) < 100 * len(waits) for start, _ in work)
        assert table["kernels"].sum() == inside


# --- communication --------------------------------------------------------------------------------------------

works_of_ranks = st.lists(
    st.tuples(st.integers(0, 900), st.integers(1, 200), st.booleans(), st.booleans(), st.booleans()), max_size=12
)


@settings(max_examples=28, deadline=None)
@given(works_of_ranks)
def test_the_parts_of_any_communication_add_up(works):
    with tempfile.TemporaryDirectory() as folder:
        build = SyntheticReport(Path(folder) / "any.sqlite").range(0, 1000, "training", process=11)
        for start, length, is_second, communicates, gathers in works:
            process, device = RANKS[is_second]
            name = (GATHER if gathers else ALLREDUCE) if communicates else GEMM
            build.kernel(start, start + length, name, device=device, process=process)
        report = open_report(build.write())
        found = collectives.communication(report)
        assert (found["hidden_ms"] + found["exposed_ms"]).to_numpy() == pytest.approx(found["total_ms"].to_numpy())
        parts = found[["waiting_ms", "transfer_ms", "unmatched_ms"]]
        assert parts.sum(axis=1).to_numpy() == pytest.approx(found["total_ms"].to_numpy()) and (parts >= -1e-9).all(
            axis=None
        )
        for row in found.to_dict("records"):
            own = rooms.budget(report, device=row["gpu"])
            assert own.ms["communication"] == pytest.approx(row["exposed_ms"], abs=1e-6)
            assert sum(own.fractions.values()) == pytest.approx(1)
