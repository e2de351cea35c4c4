"""The trace for Perfetto and Chrome: valid as the Trace Event Format has it, and equal to the report's own tables."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.source import recorded
from stepbudget.__main__ import main
from stepbudget.ask.budget import budget
from stepbudget.ask.threads import within
from stepbudget.report import open_report
from stepbudget.show import rows, trace
from synthetic import AUTOGRAD

PROFILES = recorded.folder() / "profiles"
GEMM = "ampere_s16816gemm_128x64"
EVIL = 'a"b\\c\x1b[31m\n\u2028</script>☃'


def written(path: Path, to: Path, *options: str) -> dict:
    """The trace that the command line writes; its JSON has to be strict."""
    assert main([str(path), "--trace", str(to), *options]) == 0
    raw = gzip.decompress(to.read_bytes()) if to.suffix == ".gz" else to.read_bytes()
    return json.loads(raw, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def ns(event: dict) -> tuple[int, int]:
    """Start and end in nanoseconds, which microseconds with three decimals hold exactly."""
    return round(1000 * event["ts"]), round(1000 * event["ts"]) + round(1000 * event["dur"])


def check(found: dict, length_ns: int) -> dict[str, list[dict]]:
    """What holds of every valid trace; its events by kind."""
    kinds: dict[str, list[dict]] = defaultdict(list)
    for event in found["traceEvents"]:
        kinds[event["ph"]].append(event)
        assert {"ph", "pid", "tid", "name"} <= event.keys()
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
    assert kinds.keys() <= {"X", "C", "M", "s", "f"}
    named = {
        kind: {(e["pid"], e["tid"]) for e in kinds["M"] if e["name"] == kind}
        for kind in ("process_name", "thread_name")
    }
    tracks = defaultdict(list)
    for event in kinds["X"]:
        assert (event["pid"], 0) in named["process_name"] and (event["pid"], event["tid"]) in named["thread_name"]
        start, end = ns(event)
        assert 0 <= start <= end <= length_ns, event
        tracks[event["pid"], event["tid"]].append((start, end))
    for spans in tracks.values():
        running: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while running and running[-1] <= start:
                running.pop()
            assert not running or end <= running[-1], "one within the other, or apart"
            running.append(end)
    begun = {event["id"]: event for event in kinds["s"]}
    assert len(begun) == len(kinds["s"]) == len(kinds["f"])
    starts = defaultdict(set)
    for event in kinds["X"]:
        starts[event["pid"], event["tid"]].add(event["ts"])
    for end in kinds["f"]:
        start = begun[end["id"]]
        assert start["ts"] <= end["ts"], "from the call to what it launched"
        assert all(event["ts"] in starts[event["pid"], event["tid"]] for event in (start, end)), "each within a slice"
    for event in kinds["C"]:
        assert 0 <= event["ts"] <= length_ns / 1000 and isinstance(event["args"]["value"], float)
        assert (event["pid"], 0) in named["process_name"]
    return kinds


def check_as_perfetto(found: dict) -> None:
    """What Perfetto's importer asks of a trace besides (src/trace_processor/importers/json; it was not run here).

    It reads the top-level keys in order and stops at one that it does not know; sorts the events by time and keeps the
    order of those at one time, so that the outer of two that begin together has to come first; gives a thread's name to
    the thread of that number that was made last; and takes an arrow's end for the slice that runs when it comes.
    """
    assert [*found] == ["displayTimeUnit", "otherData", "traceEvents"] and found["displayTimeUnit"] in ("ms", "ns")
    events = found["traceEvents"]
    latest: dict[int, tuple[int, int]] = {}  # number of a thread → its process, the last made
    running = defaultdict(list)
    for event in sorted(events, key=lambda event: event.get("ts", 0)):
        keys, place = [*event], (event["pid"], event["tid"])
        assert all(0 <= number < 2**32 for number in place)
        if event["ph"] == "M":
            if place not in running:
                latest[event["tid"]] = place
            running[place] = running[place]
            assert event["name"] != "thread_name" or latest[event["tid"]] == place, "the name would be another's"
            continue
        assert keys.index("ts") < keys.index("name"), "older versions cannot read escaped letters before the time"
        if event["ph"] == "C":
            continue
        start, end = ns({"dur": 0, **event})
        open_ = running[place]
        while open_ and open_[-1] <= start and not (event["ph"] in "sf" and open_[-1] == start):
            open_.pop()
        if event["ph"] == "X":
            assert not open_ or end <= open_[-1], "one within the other, in the order of the file"
            open_.append(end)
        else:
            assert open_ and isinstance(event["id"], int), "an arrow from or to no slice"


@pytest.mark.parametrize(
    "report", ["main_baseline_nvtx", "main_opt3_ops", "main_opt6", "clinic_two_log", "keras_mixed_jax"]
)
def test_perfettos_importer_has_what_it_asks_for(report, tmp_path, capsys):
    check_as_perfetto(written(PROFILES / f"{report}.sqlite.xz", tmp_path / "trace.json"))


def test_of_two_calls_that_begin_together_the_outer_comes_first(made, tmp_path, capsys):
    made.range(0, 100, "training").kernel(60, 70, GEMM, call=(20, 22)).api(20, 50, "cudaGraphLaunch_v10000")
    made.os_call(30, 35, "futex").os_call(30, 90, "poll").range(5, 9, "in").range(5, 50, "out ☃")
    found = written(made.write(), tmp_path / "trace.json")
    check_as_perfetto(found)
    calls = [event["name"] for event in found["traceEvents"] if event.get("cat") == "cuda_api"]
    assert calls == ["cudaGraphLaunch", "cudaLaunchKernel"]


@pytest.mark.parametrize("step", ["main_baseline", "main_opt3", "main_opt7"])
def test_what_the_trace_holds_is_what_the_report_holds(step, tmp_path, capsys):
    path = PROFILES / f"{step}.sqlite.xz"
    found = written(path, tmp_path / "trace.json.gz")
    with open_report(path) as report:
        own = budget(report)
        window = own.window
        kinds = check(found, window.end - window.start)
        by_category = defaultdict(list)
        for event in kinds["X"]:
            by_category[event["cat"]].append(event)
        budgets = Counter()
        for event in by_category.pop("budget"):
            start, end = ns(event)
            budgets[event["name"]] += end - start
        assert budgets == {own.label(cause): length for cause, length in own.ns.items() if length}
        assert sum(budgets.values()) == window.end - window.start, "every nanosecond has one cause"
        for category, table in (("nvtx", report.ranges), ("cuda_api", report.api), ("os", report.os_calls)):
            assert spans(by_category[category]) == spans_of(table, window), category
        kernels = [
            event
            for category in ("tensor_core_kernels", "other_kernels", "unknown_kernels")
            for event in by_category[category]
        ]
        assert spans(kernels) == spans_of(report.kernels, window)
        assert spans(by_category["copies"]) == spans_of(report.copies.assign(name=None), window, named=False)
        assert (
            sum(event["args"]["bytes"] for event in by_category["copies"])
            == within(report.copies, window)["bytes"].sum()
        )
        assert {event["name"] for event in kinds["C"]} == set(report.sampled)
        assert found["otherData"]["report"] == path.name and found["otherData"]["range"] == "training"
    assert kinds["s"], "calls and what they launched"


def spans(events: list[dict]) -> Counter:
    return Counter((event["name"] if event["cat"] != "copies" else None, *ns(event)) for event in events)


def spans_of(table: pd.DataFrame, window, named: bool = True) -> Counter:
    """Name, start and end of the table's rows within a window, cut at its edges, since its start."""
    inside = within(table, window)
    edges = (inside[edge].clip(window.start, window.end) - window.start for edge in ("start", "end"))
    return Counter(zip(inside["name"] if named else [None] * len(inside), *edges, strict=True))


def test_a_counters_steps_are_the_samples(tmp_path, capsys):
    path = PROFILES / "main_opt7.sqlite.xz"
    found = written(path, tmp_path / "trace.json")
    with open_report(path) as report:
        window = report.window()
        samples = report.counter("Tensor Active", window)
    steps = [e for e in found["traceEvents"] if e["ph"] == "C" and e["name"].startswith("Tensor Active")]
    at = np.searchsorted([round(1000 * step["ts"]) for step in steps], samples["time"] - window.start, side="right") - 1
    assert [steps[i]["args"]["value"] for i in at] == samples["value"].tolist(), "each holds until the next"
    assert len(steps) <= len(samples)


def test_what_reaches_beyond_the_window_is_cut_and_says_so(made, tmp_path, capsys):
    made.range(10, 60, "training").range(0, 100, "outer").kernel(50, 80, GEMM, call=(5, 12))
    found = written(made.write(), tmp_path / "trace.json")
    kinds = check(found, 50_000)
    outer, kernel = (next(e for e in kinds["X"] if e["name"] == name) for name in ("outer", GEMM))
    assert (outer["ts"], outer["dur"], outer["args"]["whole_us"]) == (0, 50, 100)
    assert (kernel["ts"], kernel["dur"], kernel["args"]["whole_us"]) == (40, 10, 30)
    assert not kinds["s"], "its call began before the window"


def test_threads_streams_and_processes_have_rows_of_their_own(made, tmp_path, capsys):
    made.range(0, 100, "training").gpu("NVIDIA H200").gpu("NVIDIA H200", 1).program("python3")
    made.kernel(20, 30, GEMM, call=(10, 12)).kernel(22, 40, GEMM, call=(14, 16), thread=AUTOGRAD, stream=8)
    made.kernel(50, 60, GEMM, call=(45, 46), device=1, process=4712)
    kinds = check(written(made.write(), tmp_path / "trace.json"), 100_000)
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in kinds["M"] if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in kinds["M"] if e["name"] == "process_name"}
    assert {processes[pid] for pid, _ in tracks} == {
        "step budget of training", "GPU 0, NVIDIA H200", "GPU 1, NVIDIA H200", "python3", "program",
    }  # fmt: skip
    on_gpus = {(processes[pid], name) for (pid, _), name in tracks.items() if processes[pid].startswith("GPU")}
    assert on_gpus == {(f"GPU {gpu}, NVIDIA H200", f"stream {stream}") for gpu, stream in ((0, 7), (0, 8), (1, 7))}
    assert {(e["pid"], tracks[e["pid"], e["tid"]]) for e in kinds["s"]} == {
        (4711, "CUDA calls, thread 1"), (4711, "CUDA calls, thread 2"), (4712, "CUDA calls, thread 1"),
    }  # fmt: skip


def test_ranges_that_cross_lie_in_rows_beside_one_another(made, tmp_path, capsys):
    made.range(0, 100, "training").range(10, 50, "a").range(30, 70, "b").range(60, 90, "c")
    kinds = check(written(made.write(), tmp_path / "trace.json"), 100_000)
    tracks = {e["name"]: e["tid"] for e in kinds["X"] if e["cat"] == "nvtx"}
    assert tracks["a"] == tracks["training"] == tracks["c"] != tracks["b"]


def test_names_survive(made, tmp_path, capsys):
    made.range(0, 100, "training").range(1, 90, EVIL).kernel(20, 30, EVIL, call=(10, 12))
    found = written(made.write(), tmp_path / "trace.json")
    assert Counter(e["name"] for e in found["traceEvents"])[EVIL] == 2
    assert (tmp_path / "trace.json").read_bytes().isascii()


def test_the_same_answer_is_the_same_bytes(made, tmp_path, capsys):
    path = made.range(0, 100, "training").kernel(20, 30, GEMM, call=(10, 12)).write()
    for name in ("a.json.gz", "b.json.gz"):
        written(path, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_a_window_in_which_nothing_ran_is_a_trace_too(made, tmp_path, capsys):
    made.range(0, 10, "training").kernel(20, 30, GEMM, call=(12, 14))
    kinds = check(written(made.write(), tmp_path / "trace.json"), 10_000)
    assert {e["cat"] for e in kinds["X"]} == {"budget", "nvtx"}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=40))
def test_any_events_are_laid_out_so_that_each_row_nests(found):
    table = pd.DataFrame([(start, start + length) for start, length in found], columns=["start", "end"], dtype="int64")
    tracks, depths = rows.nested(table), rows.depths(table)
    for track in set(tracks.tolist()):
        own = table[tracks == track].assign(depth=depths[tracks == track])
        for (a, b, _), (c, d, _) in pairwise(
            sorted(own.itertuples(index=False, name=None), key=lambda r: (r[0], -r[1]))
        ):
            assert b <= c or d <= b or (c <= a and b <= d)
    level = {}
    for track, depth, start, end in zip(tracks, depths, table["start"], table["end"], strict=True):
        for s, e in level.get((track, depth), ()):
            assert e <= start or end <= s, "of one row and depth, none over another"
        level.setdefault((track, depth), []).append((start, end))


def test_microseconds_lose_nothing():
    assert [trace._us(number) for number in (0, 1, 999, 1000, 1_234_567)] == [
        "0.000",
        "0.001",
        "0.999",
        "1.000",
        "1234.567",
    ]


def test_only_two_endings_are_known(made, tmp_path, capsys):
    path = made.range(0, 10, "training").write()
    with pytest.raises(SystemExit) as end:
        main([str(path), "--trace", str(tmp_path / "trace.txt")])
    assert end.value.code == 2 and "neither .json nor .json.gz" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(path), "--trace", str(tmp_path / "t.json"), "--compare", str(path)])
    assert "not allowed with argument --compare" in capsys.readouterr().err
