"""Repeated runs: which are made, which are used again, in what order, and what is said about them."""

import json
import re
import statistics
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import pytest
import torch

from labkit import lines, paths
from labkit.display import spread
from labkit.display.spread import Spread
from labkit.errors import LabError, NotRecorded
from labkit.pretend import replay
from labkit.recording import plan
from labkit.source import Live, Programs, Recorded, current, door, facts, kinds, pace, quick, recorded, running
from labkit.training import clock, machine
from listed import write_list
from stand_in import A_GPU, StandIn

SCRIPT = """
import argparse, json, sys
import labkit.training.machine  # a module of ours: the manifest names it
parser = argparse.ArgumentParser()
parser.add_argument("--epochs")
parser.add_argument("--record")
args = parser.parse_args()
{body}
status = {status!r}
here = {here!r}
json.dump({{"status": status, "arguments": vars(args), "training_s": 2.0, **here}}, open(args.record, "w"))
"""


@pytest.fixture
def scripts(monkeypatch, tmp_path):
    """A source_code folder of the test's own; returns how a script is put there."""
    folder = tmp_path / "source_code"
    (folder / "labkit" / "training").mkdir(parents=True)
    monkeypatch.setattr(paths, "SOURCE_CODE", folder)
    monkeypatch.setattr(running, "ROOT", tmp_path)
    here = {"gpu": machine.gpu_name(), "cpu_cores": machine.usable_cores(), "versions": {"torch": torch.__version__}}

    def put(name: str, body: str = "", status: str = "complete") -> Path:
        (folder / name).write_text(SCRIPT.format(body=body, status=status, here=here))
        return folder / name

    return put


@pytest.fixture
def live(tmp_path) -> Live:
    """This machine, with a reports folder of the test's own."""
    return Live(Programs(), tmp_path / "reports")


CURRENT = {"run_at": "2030-01-02T00:00:00", "manifest": {"modules": {}}}


@pytest.fixture
def shipped(tmp_path) -> Recorded:
    """A recorded folder of two steps: the first with three runs, the second with two."""
    folder = tmp_path / "recorded" / "test-gpu"
    for command, times in {"main_a.py": (3.0, 1.0, 2.0), "main_a.py --epochs 3": (9.0,), "main_b.py": (5, 6)}.items():
        for number, seconds in enumerate(times, start=1):
            file = folder / "runs" / f"{recorded.key(command)}-{number:02d}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            record = {"command": command, "process_s": seconds, "training_s": seconds / 2} | CURRENT
            file.write_text(json.dumps(record))
    write_list(folder)
    return Recorded(folder)


# Numbers


def test_the_middle_is_the_median_and_the_spread_is_the_range():
    assert Spread.of([13.4, 13.9, 13.1]) == Spread(13.4, 13.1, 13.9, 3)
    assert Spread.of([1.0, 2.0, 4.0, 100.0]) == Spread(3.0, 1.0, 100.0, 4)


def test_a_spread_is_shown_marked_as_measured_with_its_unit():
    assert Spread.of([13.4, 13.9, 13.1]).text() == "13.4 s (13.1–13.9)"
    assert Spread.of([0.25, 0.5]).text("ms", 3) == "0.375 ms (0.250–0.500)"


def test_no_measurement_has_no_spread():
    with pytest.raises(ValueError, match="no measurements"):
        Spread.of([])


def test_a_speedup_is_median_over_median():
    slow = [{"process_s": value, "training_s": 8.0} for value in (10.0, 12.0, 50.0)]
    fast = [{"process_s": value, "training_s": 2.0} for value in (4.0, 3.0, 1.0)]
    assert spread.speedup(slow, fast) == 4.0
    assert spread.speedup(slow, fast, "training_s") == 4.0
    assert spread.spread(slow) == Spread(12.0, 10.0, 50.0, 3)


def test_the_stopwatch_waits_before_both_readings(monkeypatch):
    events = []

    def reading():
        events.append("clock")
        return float(len(events))

    monkeypatch.setattr(clock.time, "perf_counter", reading)
    with clock.stopwatch(lambda: events.append("synchronize")) as seconds:
        events.append("work")
        assert seconds == []
    assert events == ["synchronize", "clock", "work", "synchronize", "clock"]
    assert seconds == [3.0]


# Recorded


def test_recorded_runs_are_read_and_named(shipped):
    said: list[str] = []
    found = shipped.get(kinds.runs(["main_a.py", "main_b.py"]), said.append)
    assert [entry["process_s"] for entry in found["main_a.py"]] == [3.0, 1.0, 2.0]
    assert len(found["main_b.py"]) == 2
    assert said[:2] == ["$ time python3 source_code/main_a.py", "$ time python3 source_code/main_b.py"]
    assert re.match(r"recorded \(NVIDIA Test GPU, 2030-01-02\), 2 to 3 runs each: .*runs$", lines.joined(said[2]))


def test_a_command_is_not_answered_by_the_records_of_another(shipped):
    """``main_a-epochs-3-01.json`` must not count as a run of ``main_a.py``."""
    assert len(shipped.get(kinds.runs(["main_a.py"]), lambda line: None)["main_a.py"]) == 3
    assert len(shipped.get(kinds.runs(["main_a.py --epochs 3"]), lambda line: None)["main_a.py --epochs 3"]) == 1
    with pytest.raises(LabError, match=r"'main_a\.py --epochs 4' was not recorded on the NVIDIA Test GPU"):
        shipped.get(kinds.runs(["main_a.py --epochs 4"]), lambda line: None)


def test_what_a_machine_recorded_in_part_lacks_comes_from_the_default_one(monkeypatch):
    """All of a comparison from one machine, or all from the other."""
    monkeypatch.setenv("LAB_RECORDED", "h200-2cores")
    monkeypatch.setenv("LAB_MODE", "recorded")
    source, said = current(), []
    assert not source.is_strict and source.facts.cores == 2
    own = source.get(kinds.runs(["main_opt1.py"]), said.append)["main_opt1.py"]
    assert {run["cpu_cores"] for run in own} == {2}
    assert not any("not recorded" in line for line in said)
    others = source.get(kinds.runs(["main_opt1.py", "main_shapes.py"]), said.append)
    assert {run["cpu_cores"] for runs in others.values() for run in runs} == {16}
    assert "| not recorded on h200-2cores, so from h200:" in said
    assert recorded.accuracy("main_baseline.py"), "what is asked without a folder, too"
    with pytest.raises(NotRecorded, match=r"'main_moon\.py' was not recorded"):
        source.get(kinds.runs(["main_moon.py"]), said.append)


def test_a_damaged_record_is_named(shipped):
    (shipped.folder / "runs" / "main_b-02.json").write_text('{"command": "main_b.py", "proc')
    with pytest.raises(LabError, match=r"main_b-02\.json is not the file that was recorded"):
        shipped.get(kinds.runs(["main_b.py"]), lambda line: None)
    write_list(shipped.folder)
    with pytest.raises(LabError, match=r"main_b-02\.json cannot be read"):
        shipped.get(kinds.runs(["main_b.py"]), lambda line: None)


def test_recorded_mode_writes_nothing(shipped):
    before = sorted(shipped.folder.rglob("*"))
    shipped.get(kinds.runs(["main_a.py", "main_b.py"]), lambda line: None)
    assert sorted(shipped.folder.rglob("*")) == before


def test_a_key_is_a_file_name_of_its_own_for_each_recorded_command():
    commands = [*plan.RUNGS, *plan.BENCHMARKS, plan.REFERENCE]
    keys = [recorded.key(command) for command in commands]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", key) for key in keys)
    assert recorded.key("main_opt3.py --amp-dtype bfloat16") == "main_opt3-amp-dtype-bfloat16"


# Live


def test_live_runs_alternate_between_the_steps(tmp_path):
    order = []

    def run(command, file):
        order.append((command, file.name))
        return {"command": command, "process_s": float(len(order))}

    found = Live(StandIn(run=run), tmp_path).get(kinds.runs(["a.py", "b.py"], repeats=3), lambda line: None)
    assert order == [
        ("a.py", "a-01.json"), ("b.py", "b-01.json"), ("a.py", "a-02.json"), ("b.py", "b-02.json"),
        ("a.py", "a-03.json"), ("b.py", "b-03.json"),
    ]  # fmt: skip
    assert [entry["process_s"] for entry in found["b.py"]] == [2.0, 4.0, 6.0]


def test_a_live_run_is_a_process_with_its_record(live, scripts):
    scripts("a.py", "import time; time.sleep(0.2)")
    said: list[str] = []
    found = live.get(kinds.runs(["a.py --epochs 3"], repeats=1), said.append)["a.py --epochs 3"]
    assert len(found) == 1
    assert found[0]["command"] == "a.py --epochs 3"
    assert found[0]["process_s"] > 0.2
    assert found[0]["training_s"] == 2.0
    assert found[0]["arguments"] == {"epochs": "3"}, "where the record went is no setting"
    kept = live.reports / "runs" / "a-epochs-3-01.json"
    assert json.loads(kept.read_text()) == found[0]
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    assert said[:2] == [
        "$ time python3 source_code/a.py --epochs 3",
        "| run 1 of 1: time python3 source_code/a.py --epochs 3",
    ]


@pytest.mark.parametrize(
    ("how", "wanted", "runs"), [("", "", 2), ("quick", "", 2), ("full", "", 3), ("", "1", 1), ("full", "5", 5)]
)
def test_how_many_live_runs(tmp_path, monkeypatch, how, wanted, runs):
    monkeypatch.setenv("LAB_LIVE", how)
    monkeypatch.setenv("LAB_REPEATS", wanted)
    live = Live(StandIn(run=lambda command, file: {"process_s": 1.0}), tmp_path)
    assert len(live.get(kinds.runs(["a.py"]), lambda line: None)["a.py"]) == runs
    once = 1 if (how, wanted) in (("", ""), ("quick", "")) else runs
    assert len(live.get(kinds.runs(["a.py"], when_quick=1), lambda line: None)["a.py"]) == once


def test_in_quick_mode_each_command_can_have_rounds_of_its_own(tmp_path, monkeypatch):
    def runs(command, file):
        return {"command": command, "process_s": 1.0}

    live, said = Live(StandIn(run=runs), tmp_path), []
    when_quick = {"a.py": 1, "b.py": 0}
    found = live.get(kinds.runs(["a.py", "b.py", "c.py"], when_quick=when_quick), said.append)
    assert {command: len(records) for command, records in found.items()} == {"a.py": 1, "c.py": 2}
    assert "| left out, since quick: b.py" in said and said[-1].startswith("live: 1 to 2 runs each: ")
    monkeypatch.setenv("LAB_REPEATS", "4")
    assert sorted(live.get(kinds.runs(["a.py", "b.py"], when_quick=when_quick), said.append)) == ["a.py"]
    monkeypatch.setenv("LAB_LIVE", "full")
    assert len(live.get(kinds.runs(["a.py", "b.py"], when_quick=when_quick), said.append)["b.py"]) == 4


def test_of_a_run_from_the_clocks_future_its_own_time_is_said():
    long_ago = {"run_at": "2020-01-02T03:04:05+00:00"}
    assert door._ago(long_ago).endswith(" ago")
    ahead = {"run_at": "2999-01-02T03:04:05+00:00"}
    assert door._ago(ahead) == ", 2999-01-02T03:04:05+00:00 (the clock was set back since)"
    assert door._made_before([ahead], 1) == f"; all made before, from {door._ago(ahead)[2:]} on"


@pytest.mark.parametrize("wrong", ["many", "0", "101", "99999999999", "9" * 5000])
def test_a_number_of_runs_that_is_none_or_takes_a_lifetime(live, monkeypatch, wrong):
    monkeypatch.setenv("LAB_REPEATS", wrong)
    with pytest.raises(LabError, match=f"LAB_REPEATS={wrong} is not a number of runs: 1 to 100"):
        live.get(kinds.runs(["a.py"]), lambda line: None)


def test_another_word_is_no_way_to_run_live(live, monkeypatch):
    monkeypatch.setenv("LAB_LIVE", "slow")
    with pytest.raises(LabError, match="LAB_LIVE=slow is not a way to run live: use quick or full"):
        live.get(kinds.runs(["a.py"]), lambda line: None)


# Quick


@pytest.mark.parametrize(
    ("command", "short"),
    [
        ("main_opt1.py", "main_opt1.py --epochs 3"),
        ("main_opt3.py --amp-dtype bfloat16", "main_opt3.py --amp-dtype bfloat16 --epochs 3"),
        ("keras_mnist.py --backend jax", "keras_mnist.py --backend jax --epochs 3"),
        ("main_opt1.py --epochs 5 --workers 2", "main_opt1.py --epochs 5 --workers 2"),
        ("bench_peaks.py", "bench_peaks.py"),
        ("bench_gan.py", "bench_gan.py --seeds 3"),
        ("bench_startup.py", "bench_startup.py --repeats 1"),
        ("bench_roofs.py", "bench_roofs.py --seconds 0.5"),
        ("bench_sin_fit.py --profile", "bench_sin_fit.py --profile"),
    ],
)
def test_the_quick_form_of_a_command(command, short):
    assert quick.quick(command) == short == quick.quick(short) and quick.whole(short) == command
    assert recorded.key(short).startswith(recorded.key(command))


@pytest.mark.parametrize(("how", "asked"), [("quick", "main_a.py --epochs 3"), ("full", "main_a.py")])
def test_quick_runs_are_shorter_and_answer_for_the_command_as_asked(tmp_path, monkeypatch, how, asked):
    monkeypatch.setenv("LAB_LIVE", how)
    made = []
    programs = StandIn(run=lambda command, file: made.append((command, file.name)) or {"process_s": 1.0})
    found = Live(programs, tmp_path).get(kinds.runs(["main_a.py"], 1), lambda line: None)
    assert list(found) == ["main_a.py"] and made == [(asked, f"{recorded.key(asked)}-01.json")]


def test_a_machine_that_was_recorded_quickly_answers_for_the_long_command(shipped):
    short = {"command": "main_q.py --epochs 3"} | CURRENT
    shipped.folder.joinpath("runs", "main_q-epochs-3-01.json").write_text(json.dumps(short))
    write_list(shipped.folder)
    assert shipped.get(kinds.runs(["main_q.py"]), lambda line: None)["main_q.py"] == [short]


def test_a_long_run_is_shortened_by_what_its_later_epochs_took():
    epochs = [{"training_s": 2.0, "test_s": 1.0, "test_loss": 0.1 * n, "test_accuracy_pct": 90 + n} for n in range(5)]
    long = {"command": "main_a.py", "arguments": {"epochs": 5}, "epochs": epochs, "process_s": 20.0, "wall_s": 19.0}
    long |= {"training_s": 10.0, "test_s": 5.0, "test_loss": 0.4, "test_accuracy_pct": 94}
    short = quick.shortened(long)
    assert (short["process_s"], short["wall_s"], short["training_s"], short["test_s"]) == (14.0, 13.0, 6.0, 3.0)
    assert (short["command"], short["arguments"], len(short["epochs"])) == ("main_a.py --epochs 3", {"epochs": 3}, 3)
    assert short["test_accuracy_pct"] == 92 and long["process_s"] == 20.0 and len(long["epochs"]) == 5
    assert quick.shortened(short) == short


def test_a_benchmark_of_many_seeds_is_shortened_to_its_first():
    (long,) = recorded.records("benchmarks", "bench_gan.py")
    (short,) = recorded.long_or_short("benchmarks", "bench_gan.py --seeds 3")
    assert {row["seed"] for row in short["rows"]} == {1, 2, 3} < {row["seed"] for row in long["rows"]}
    assert short["process_s"] == pytest.approx(0.6 * long["process_s"])
    assert (short["command"], short["arguments"]["seeds"]) == ("bench_gan.py --seeds 3", 3)


def test_before_a_long_cell_it_says_how_long_and_while_it_runs_how_far(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_LIVE", "quick")
    there = [quick.shortened(record)["process_s"] for record in recorded.records("runs", "main_baseline.py")]
    slower = {"process_s": 2 * pace.recorded_s("runs", "main_baseline.py --epochs 3")}
    assert slower["process_s"] == pytest.approx(2 * statistics.median(there), rel=0.01)
    live, said = Live(StandIn(run=lambda command, file: slower), tmp_path), []
    live.get(kinds.runs(["main_baseline.py"], 2), said.append)
    live.get(kinds.runs(["main_baseline.py"], 2), said.append)
    assert re.fullmatch(r"\| the recorded machine took (\d+ min )?\d+ s", said[1])
    assert said[2].startswith("| run 1 of 2: time python3 source_code/main_baseline.py --epochs 3")
    assert re.search(r"\| run 2 of 2: time .* \(\d+ s so far\)$", said[3])
    announced = (
        r"\| about \d+ (s|min) \(recorded machine: (\d+ min )?\d+ s; this one has been 2\.0 times as slow so far\)"
    )
    assert re.fullmatch(announced, said[6])


def test_what_is_short_is_not_announced(tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "LONG_S", 1.01 * pace.recorded_s("runs", "main_opt7.py --epochs 3"))
    said = []
    Live(StandIn(run=lambda command, file: {"process_s": 1.0}), tmp_path).get(
        kinds.runs(["main_opt7.py"], 1), said.append
    )
    assert [line for line in said if line.startswith("| ")] == [
        "| run 1 of 1: time python3 source_code/main_opt7.py --epochs 3"
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.6, "5 s"), (59.6, "1 min 0 s"), (130, "2 min 10 s"), (3700, "1 h 1 min")]
)
def test_durations_in_words(seconds, text):
    assert pace.duration(seconds) == text


# What is used again


def just_made(command: str, file: Path) -> dict:
    """A run that has ended on A_GPU, of today's code; it keeps its record, as the real one does."""
    now = datetime.now(timezone.utc).isoformat()
    here = {"gpu": A_GPU.gpu, "cpu_cores": A_GPU.cores, "versions": {"torch": torch.__version__}}
    record = {"command": command, "status": "complete", "process_s": 1.0, "run_at": now, "manifest": {"modules": {}}}
    file.write_text(json.dumps(record | here))
    return record | here


def test_what_one_lab_timed_the_next_does_not_time_again_and_says_so(tmp_path):
    """PyTorch tells its version with an ending that the installed package's metadata may lack."""
    assert facts.torch_version() == torch.__version__
    made, said = [], []
    programs = StandIn(run=lambda command, file: made.append(command) or just_made(command, file))
    live = Live(programs, tmp_path)
    live.get(kinds.runs(["main_baseline.py"]), said.append)
    assert said[-1].startswith("live: 2 runs each: ")
    live.get(kinds.runs(["main_baseline.py", "main_opt1.py"]), said.append)
    assert made == ["main_baseline.py --epochs 3"] * 2 + ["main_opt1.py --epochs 3"] * 2
    assert re.match(r"live: 2 runs each; 2 of 4 made before, from \d+ s ago on: ", said[-1])
    live.get(kinds.runs(["main_baseline.py"]), said.append)
    assert len(made) == 4 and re.match(r"live: 2 runs each; all made before, from \d+ s ago on: ", said[-1])


def test_as_many_workers_as_a_step_starts_anyway_is_the_step_itself(tmp_path, monkeypatch):
    made = []
    live = Live(StandIn(run=lambda command, file: made.append(command) or just_made(command, file)), tmp_path)
    sweep = [f"main_opt1.py --epochs 3 --workers {workers}" for workers in (1, 14)]
    found = live.get(kinds.runs(sweep, when_quick=1), lambda line: None)
    assert list(found) == sweep and made == [sweep[0], "main_opt1.py --epochs 3"]
    live.get(kinds.runs(["main_baseline.py --epochs 3 --workers 14"], 1), lambda line: None)
    assert made[-1] == "main_baseline.py --epochs 3 --workers 14"
    assert len(live.get(kinds.runs(["main_opt1.py"]), lambda line: None)["main_opt1.py"]) == 2 and len(made) == 4
    monkeypatch.setenv("LAB_LIVE", "full")
    live.get(kinds.runs(sweep[1:], 1), lambda line: None)
    assert made[-1] == sweep[1]


@pytest.mark.parametrize("how", ["quick", "full"])
def test_kernels_that_are_the_same_are_counted_once_when_quick(tmp_path, monkeypatch, how):
    monkeypatch.setenv("LAB_LIVE", how)
    words, said = recorded.provenance()["counters"]["main_opt1_bytes"], []
    live = Live(StandIn(A_GPU, count=replay.Replay().count), tmp_path)
    baseline = recorded.provenance()["counters"]["main_baseline_bytes"]
    same, shipped = (where.get(kinds.counts(baseline), said.append) for where in (live, Recorded(recorded.folder())))
    found = live.get(kinds.counts(words, brief=True, same_kernels=same), said.append)
    assert (found is same) is (how == "quick")
    told = "live: main_opt1_bytes: the same kernels as before, not counted again, since quick"
    assert (told in said) is (how == "quick")
    assert live.get(kinds.counts(words, brief=True, same_kernels=shipped), said.append) is not shipped


def test_how_long_is_known_of_traces_cold_runs_and_reports_of_which_it_was_not_noted():
    trace = "profile_torch.py main_opt2.py --memory"
    file = recorded.traced_file(trace, recorded.folder())
    assert pace.recorded_s(recorded.TRACES, trace) == json.loads(file.read_text())["process_s"]
    assert pace.recorded_s(recorded.TRACES, "profile_torch.py main_moon.py") is None
    cold, warm = (ask("main_opt6.py --epochs 3") for ask in (pace.recorded_cold_s, partial(pace.recorded_s, "runs")))
    assert cold > warm and pace.recorded_cold_s("main_moon.py --epochs 3") is None
    noted = [recorded.took_s("profiles", name) for name in ("main_opt1", "main_opt2", "nobody's")]
    assert min(noted) > 5 and len(set(noted)) == 3
    assert recorded.took_s("no such kind", "main_opt1") is None


@pytest.mark.parametrize(("how", "made"), [("quick", 1), ("full", 2)])
def test_quick_benchmarks_are_made_once(live, scripts, monkeypatch, how, made):
    monkeypatch.setenv("LAB_LIVE", how)
    monkeypatch.setattr(running.manifest, "is_outdated", lambda record: False)
    scripts("bench_a.py", "open('ran', 'a').write('x')")
    said: list[str] = []
    first, second = (live.get(kinds.benchmark("bench_a.py"), said.append) for _ in range(2))
    assert (live.reports.parent / "ran").read_text() == "x" * made
    assert (first == second) is (made == 1) and said[1].startswith("live: ")
    assert re.match(r"live, \d+ s ago: " if made == 1 else "live: ", said[-1])


@pytest.mark.parametrize(
    ("how", "other", "made"), [("quick", {}, 1), ("full", {}, 2), ("quick", {"counters": False}, 2)]
)
def test_a_quick_report_is_made_once_on_a_machine(tmp_path, monkeypatch, how, other, made):
    monkeypatch.setenv("LAB_LIVE", how)
    monkeypatch.setattr(running.manifest, "is_outdated", lambda record: False)
    asked, said = [], []

    def profile(words, report, show):
        asked.append(words)
        replay.Replay().profile(words, report, show)

    words = recorded.provenance()["profiles"]["main_opt7"]
    for told in (A_GPU, replace(A_GPU, **other)):
        Live(StandIn(told, profile=profile), tmp_path).get(kinds.profile(words), said.append).close()
    assert len(asked) == made
    assert re.match(r"live, \d+ s ago: " if made == 1 else "live: ", said[-1])


def test_finished_runs_are_used_again_and_only_the_missing_ones_made(live, scripts):
    scripts("a.py", "open('ran', 'a').write('x')")
    live.get(kinds.runs(["a.py"], repeats=2), lambda line: None)
    (live.reports / "runs" / "a-01.json").unlink()
    live.get(kinds.runs(["a.py"], repeats=2), lambda line: None)
    assert (live.reports.parent / "ran").read_text() == "xxx"


def test_a_run_of_another_machine_is_not_used(live, scripts):
    scripts("a.py", "open('ran', 'a').write('x')")
    live.get(kinds.runs(["a.py"], repeats=1), lambda line: None)
    other = Live(StandIn(replace(live.facts, cores=999)), live.reports)
    other.get(kinds.runs(["a.py"], repeats=1), lambda line: None)
    assert (live.reports.parent / "ran").read_text() == "xx"


@pytest.mark.parametrize(
    "change",
    [
        {"command": "a.py --epochs 2"},
        {"status": "interrupted"},
        {"status": "running"},
        {"manifest": {"modules": {"main_opt1.py": "0" * 16}}},
        {"manifest": None},
        None,
    ],
    ids=str,
)
def test_a_run_of_another_command_or_code_or_that_was_not_finished_is_not_used(tmp_path, scripts, change):
    scripts("a.py")
    file = tmp_path / "a-01.json"
    assert running.run_once("a.py", file) == running.finished(file, "a.py")
    if change is None:
        file.write_text(file.read_text()[:-20])
    else:
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert running.finished(file, "a.py") is None


def test_a_run_is_made_again_after_its_code_changed(tmp_path, scripts):
    script = scripts("a.py")
    file = tmp_path / "a-01.json"
    running.run_once("a.py", file)
    script.write_text(script.read_text() + "\n# changed\n")
    assert running.finished(file, "a.py"), "a comment runs as before"
    script.write_text(script.read_text().replace("2.0", "2.5"))
    assert running.finished(file, "a.py") is None


def test_no_file_is_no_finished_run(tmp_path, scripts):
    scripts("a.py")
    assert running.finished(tmp_path / "missing.json", "a.py") is None


@pytest.mark.parametrize("body", ["sys.exit('error: out of GPU memory')", "raise ValueError('out of GPU memory')"])
def test_a_script_that_fails_gives_its_last_words_and_leaves_the_old_record(tmp_path, scripts, body):
    file = tmp_path / "a-01.json"
    file.write_text("of yesterday")
    scripts("a.py", body)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LabError, match=r"'a\.py' failed with status 1: .*out of GPU memory") as said:
        running.run_once("a.py", file)
    assert "\n" not in str(said.value)
    assert file.read_text() == "of yesterday"
    assert sorted(tmp_path.iterdir()) == before


def test_a_script_that_dies_without_a_word(tmp_path, scripts):
    scripts("a.py", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(LabError, match="failed with status -9: it said nothing"):
        running.run_once("a.py", tmp_path / "a-01.json")
    assert not (tmp_path / "a-01.json").exists()
