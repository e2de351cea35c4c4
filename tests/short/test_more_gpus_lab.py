"""Lab 21: its runs tell nothing of themselves, its tables and pictures hold what the reports do, other cures pass, too.

And the door to what several GPUs of one host measured: recorded, live on two, and live on one.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from itertools import pairwise

import nbformat
import numpy as np
import pandas as pd
import pytest

from labkit import cases, course, exercises, source
from labkit.errors import LabError, NotRecorded
from labkit.labs import lab21
from labkit.labs.lab21 import EXERCISES, stragglers
from labkit.paths import RECORDED
from labkit.pretend import machines
from labkit.pretend.replay import Replay
from labkit.source import command, kinds, recorded
from labkit.source.door import Live, Recorded
from labkit.subjects.scaling import charts, model, readings, tables
from stepbudget import intervals
from stepbudget.ask import ranks
from stepbudget.export import files

pytestmark = pytest.mark.usefixtures("unbroken_lines")

LAB = nbformat.read(next(lab.path for lab in course.LABS if lab.name == "21_more_gpus"), as_version=4)
HOST = RECORDED / "h200-x2"
LATE = ("A", "B", "C")
DIGITS = command.rank_profiles_command("main_ddp_on_gpu_x2", "main_ddp_on_gpu.py --profile --epochs 2", 2)


def quiet(line: str) -> None:
    """Shows nothing."""


@pytest.fixture(scope="module")
def runs():
    return {letter: stragglers.run(letter) for letter in stragglers.letters()}


@pytest.fixture(scope="module")
def pair():
    return ranks.together(Recorded(HOST).get(kinds.rank_profiles(DIGITS), quiet))


# The four runs


def test_three_late_ranks_for_three_reasons_and_a_run_without():
    planted = [stragglers.case(letter) for letter in stragglers.letters()]
    assert [case.is_healthy for case in planted] == [False, False, False, True]
    assert {case.name for case in planted} == {case.name for case in cases.CASES if case.gpus == 2}
    assert {*map(stragglers.reason, LATE)} < set(stragglers.REASONS)
    with pytest.raises(LabError, match="there is no run E: they are called A, B, C, D"):
        stragglers.run("E")
    with pytest.raises(LabError, match="nothing was planted in a run D"):
        stragglers.reason("D")


@pytest.mark.parametrize("letter", LATE)
def test_the_reader_names_the_late_rank_and_the_reason_that_was_planted(runs, letter):
    found, case = runs[letter].late, stragglers.case(letter)
    assert (found.number, found.last > 0.8 * found.matched) == (case.late, True)
    assert found.cause in case.right
    causes = {"loader": ("loader",), "cpu": ranks.REASONS["CPU code"]}
    assert found.cause in causes.get(stragglers.reason(letter), ranks.REASONS["computation on the GPU"])


def test_a_run_tells_its_letter_alone(runs):
    for letter, found in runs.items():
        (report,) = {rank.report for rank in found.ranks}
        assert report.name == f"run_{letter}"
        assert not [text for (text,) in report.rows("SELECT value FROM StringIds") if "clinic_" in text]


def test_the_cells_do_not_say_who_is_who():
    hidden = {case.name for case in cases.CASES if case.gpus == 2}
    for cell in LAB.cells:
        text = cell.source
        if cell.cell_type == "code":
            text += "".join(out.get("text") or out.data["text/plain"] for out in cell.outputs)
        assert not [name for name in hidden if name in text or name.removeprefix("two_") == text]


# Tables and pictures


def test_the_tables_of_ranks_hold_the_budgets_and_splits_whole(pair):
    budgets = tables.budgets(pair).frame.set_index("cause")
    for rank in pair.ranks:
        shown = budgets[f"rank {rank.number}"]
        assert shown["all"] == pytest.approx(rank.window.duration_ms)
        assert shown.drop("all").sum() == pytest.approx(shown["all"], abs=tables.LEAST_MS * len(budgets))
    frame = lab21.communication(pair).frame.set_index("rank")
    assert (frame["waiting ms"] + frame["transfer ms"]).tolist() == pytest.approx(frame["total ms"].tolist())
    assert (frame["hidden ms"] + frame["exposed ms"]).tolist() == pytest.approx(frame["total ms"].tolist())
    assert frame["came last to"].sum() == frame["collectives"].max()


@pytest.mark.parametrize("which", ["pair", "D"])
def test_the_picture_of_a_step_draws_what_the_table_counts(which, pair, runs):
    found = pair if which == "pair" else runs[which]
    for rank in found.ranks:
        start, end = (int(time) for time in rank.clock.there([rank.window.start, rank.window.end]))
        waits, moves = (intervals.clip(own, start, end) for own in charts._waits_and_moves(found, rank))
        assert intervals.total(waits) / 1e6 == pytest.approx(rank.communication["waiting_ms"], abs=0.01)
        assert intervals.total(moves) / 1e6 == pytest.approx(rank.communication["transfer_ms"], abs=0.01)
    axes = charts.one_step(found).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        words.format(rank.number) for rank in found.ranks for words in charts.ROWS
    ]
    assert 0 < axes.get_xlim()[1] < found.ranks[0].window.duration_ms


def test_each_rank_s_own_phases_are_drawn_where_a_report_holds_both(runs):
    """Of the others' process, no range: at one time, two ranks are seldom in the same phase for as long."""
    axes = charts.one_step(runs["D"]).axes[0]
    rows: dict[float, list] = {}
    for bars in axes.collections:
        boxes = [path.get_extents() for path in bars.get_paths()]
        for box in boxes:
            rows.setdefault(round((box.y0 + box.y1) / 2, 3), []).append((box.x0, box.x1))
    cpu = [sorted(rows[key]) for key in (0.0, float(len(charts.ROWS) + charts.APART))]
    assert cpu[0] != cpu[1]
    for own in cpu:
        overlaps = [min(one[1], other[1]) - max(one[0], other[0]) for one, other in pairwise(own)]
        assert max(overlaps) < 1e-6, "one thread is in one phase at a time"


def test_a_report_without_steps_has_no_picture(pair):
    bare = replace(pair.ranks[0].window, start=pair.ranks[0].window.end - 10)
    empty = replace(pair, ranks=(replace(pair.ranks[0], window=bare), pair.ranks[1]))
    with pytest.raises(ValueError, match="where a step begins"):
        charts.one_step(empty)


def test_the_tables_show_the_programs_that_are_asked_for():
    found = readings.records()
    for kind in model.SCALINGS:
        shown = tables.gains(kind, found, readings.DDP).frame
        assert not shown["program"].str.contains("FSDP").any() and shown["program"].str.contains("DDP").any()
    assert "FSDP" in str(tables.gains("strong", found))
    labels = {readings.PROGRAMS["ddp"].label}
    assert set(tables.on_paper(["ddp"]).frame["program"]) == labels


def test_buckets_are_those_that_were_averaged(pair):
    found = readings.buckets(readings.records())
    assert found["ddp_on_gpu"] == sorted(pair.table["bytes"].dropna().astype(int).unique(), reverse=True)
    frame = lab21.buckets().frame.set_index("program")
    row = frame.loc[readings.PROGRAMS["text_ddp"].label]
    assert row["buckets"] == len(found["text_ddp"]) and row["largest MB"] == max(found["text_ddp"]) / 1e6


# Accuracy, seed by seed


@pytest.fixture
def trained(tmp_path):
    """Returns a host's folder in which whole trainings have these accuracies, by number of GPUs."""

    def write(**of: list[float]):
        folder = tmp_path / "host" / "ranks"
        folder.mkdir(parents=True)
        for gpus, values in of.items():
            rows = [
                {"arguments": {"seed": seed}, "epochs": [{"test_accuracy_pct": 50}, {"test_accuracy_pct": value}]}
                for seed, value in enumerate(values, 1)
            ]
            (folder / f"main_ddp-accuracy-{gpus}-01.json").write_text(json.dumps({"rows": rows}))
        return folder.parent

    return write


GOOD = [98.70 + 0.01 * seed for seed in range(10)]


@pytest.mark.parametrize(
    ("on_two", "verdict"),
    [
        (GOOD, "passed"),
        ([one - 0.06 for one in GOOD], "FAILED"),  # by less than a tenth of a point, in ten seeds
        (GOOD[3:6], "passed, of few seeds"),
        ([97.0, 97.1], "FAILED, of few seeds"),
    ],
)
def test_the_accuracy_gate_on_one_and_two_gpus(trained, on_two, verdict):
    found = lab21.accuracy(trained(x1=GOOD, x2=on_two))
    assert len(found) == 10 + len(on_two) and set(found["gpus"]) == {1, 2}
    assert set(found["script"]) == {"main_ddp.py"} and found["pct"].tolist()[:10] == GOOD
    frame = lab21.seeds(found).frame
    rows = frame.set_index(["script", "GPUs"])["gate"]
    assert rows["main_ddp.py", 2] == verdict and rows["main_ddp.py", 1] == rows["main_opt4.py", 1] == "passed"


def test_without_such_trainings_the_table_says_so(tmp_path):
    found = lab21.accuracy(tmp_path)
    assert found.empty and "no whole trainings are recorded yet" in lab21.seeds(found).caption


def test_what_is_recorded_of_the_accuracy_passes():
    found = lab21.accuracy()
    frame = lab21.seeds(found).frame
    assert len(frame) == 1 + found.groupby(["script", "gpus"]).ngroups
    assert not (frame["gate"] == "FAILED").any() and (found["epochs"] == 10).all()


# The door


def test_what_takes_two_gpus_is_found_on_a_host():
    """Whatever machine is asked for; its own come first."""
    for folder in (RECORDED / "h200", RECORDED / "h200-2cores", HOST):
        shown: list[str] = []
        found = Recorded(folder).get(kinds.on_gpus("bench_ranks.py", (1, 2)), shown.append)
        assert found == readings.records()
        assert [line.split()[-1] for line in shown[:2]] == ["source_code/benchmarks/bench_ranks.py"] * 2
        assert ("not recorded on" in "".join(shown)) == (folder != HOST)
        reports = Recorded(folder).get(kinds.rank_profiles(DIGITS), quiet)
        assert [report.name for report in reports] == ["main_ddp_on_gpu_x2_rank0", "main_ddp_on_gpu_x2_rank1"]


def test_the_command_in_the_cell_is_the_one_that_runs():
    shown: list[str] = []
    readings.measured(command.ranks_command("bench_ranks.py", 2), shown.append)
    assert command.ranks_command("bench_ranks.py", 2) in "".join(shown)
    with pytest.raises(LabError, match="is what measures the ranks"):
        readings.measured("torchrun source_code/main_ddp.py", quiet)


def test_ranks_that_nobody_recorded_are_an_error():
    with pytest.raises(NotRecorded, match=r"no reports of .* were recorded on h200"):
        Recorded(RECORDED / "h200").get(kinds.rank_profiles(DIGITS.replace("--epochs 2", "--epochs 3")), quiet)
    with pytest.raises(LabError, match="such a command reads: torchrun"):
        Recorded(HOST).get(
            kinds.rank_profiles("nsys profile --output reports/x python3 source_code/main_ddp.py"), quiet
        )
    with pytest.raises(LabError, match="each rank needs a report of its own"):
        Recorded(HOST).get(kinds.rank_profiles(DIGITS.replace("_rank%q{RANK}", "")), quiet)


def test_the_command_that_stands_in_its_cell_is_shown_in_one_line():
    shown: list[str] = []
    Recorded(HOST).get(kinds.rank_profiles(DIGITS), shown.append)
    program = DIGITS[DIGITS.index("python3") :]
    assert shown[0] == f"$ OMP_NUM_THREADS=1 torchrun … nsys profile … {' '.join(program.split())}"


def test_on_one_gpu_the_recorded_host_answers_with_the_reason():
    for machine, has in (("h200", "1"), ("cpu", "none")):
        shown: list[str] = []
        live = machines.live(machine)
        assert live.get(kinds.on_gpus("bench_ranks.py", (1, 2)), shown.append) == readings.records()
        assert f"2 GPUs are wanted, and this machine has {has}." in "".join(shown)
        assert len(live.get(kinds.rank_profiles(DIGITS), shown.append)) == 2


class TwoGpus(Replay):
    """The recorded host: its programs answer with what was recorded of it."""

    def __init__(self) -> None:
        super().__init__("h200")
        self.ran: list[str] = []

    @property
    def facts(self):
        return replace(super().facts, gpus=2)

    def run(self, words, file):
        self.ran.append(words)
        record = recorded.on_gpus(HOST)[int(words.split("--nproc-per-node ")[1].split()[0]), 1]
        file.write_text(json.dumps(record))
        return record

    def rank_profiles(self, words, reports):
        for slim, report in zip(recorded.rank_files(words, HOST), reports, strict=True):
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_bytes(files.NSYS_MAGIC)
            report.with_suffix(".sqlite").write_bytes(lzma.decompress(slim.read_bytes()))


def test_on_two_gpus_both_numbers_run_in_turn_and_each_rank_is_profiled(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_LIVE", "quick")
    monkeypatch.delenv("LAB_REPEATS", raising=False)
    shown: list[str] = []
    live = Live(programs := TwoGpus(), tmp_path)
    found = live.get(kinds.on_gpus("bench_ranks.py", (1, 2)), shown.append)
    assert list(found) == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert programs.ran == [command.ranks_command("bench_ranks.py", size) for size, _ in found]
    assert sum("the recorded machine took" in line for line in shown) == 1, "the wait is announced, once and whole"
    assert {file.name for file in (tmp_path / "ranks").iterdir()} == {
        f"scaling-x{size}-{number:02d}.json" for size, number in found
    }
    runs = readings.frame(found)
    assert readings.gained(runs, "text_ddp", "strong", 2).n == 2
    reports = live.get(kinds.rank_profiles(DIGITS), shown.append)
    assert [report.path.parent for report in reports] == [tmp_path] * 2
    assert len(ranks.together(reports).ranks) == 2
    assert not [line for line in shown if "recorded instead" in line]


def test_a_lab_on_two_gpus_measures_them_itself(monkeypatch, tmp_path):
    monkeypatch.setenv("LAB_LIVE", "quick")
    with source.using(Live(TwoGpus(), tmp_path)):
        assert max(size for size, _ in readings.measured(show=quiet)) == 2
        assert [rank.report.path.parent for rank in readings.read(DIGITS, quiet).ranks] == [tmp_path] * 2


# Cures that the worked solutions do not have


def test_other_cures_are_as_good(capsys):
    def counted_from_one(sampler, epochs):
        found = []
        for epoch in range(1, epochs + 1):
            sampler.set_epoch(epoch)
            found.append([int(sample) for sample in np.array(list(sampler))])
        return found

    def one_backward(model, optimizer, loss_fn, parts, ranks):
        optimizer.zero_grad(set_to_none=True)
        with model.no_sync():
            for data, target in parts[:-1]:
                (loss_fn(model(data), target) / len(parts)).backward()
        data, target = parts[-1]
        (loss_fn(model(data), target) / len(parts)).backward()
        optimizer.step()

    for number, answer in (("21.5", counted_from_one), ("21.6", one_backward)):
        assert exercises.exercise(number, answer)
    assert capsys.readouterr().out == "✓ exercise 21.5\n✓ exercise 21.6\n"


def test_the_average_has_to_hold_the_forward_pass(capsys):
    """As DDP does: outside of no_sync, it decides in the forward pass."""
    from contextlib import nullcontext

    def too_late(model, optimizer, loss_fn, parts, ranks):
        optimizer.zero_grad()
        for number, (data, target) in enumerate(parts, 1):
            loss = loss_fn(model(data), target) / len(parts)
            with nullcontext() if number == len(parts) else model.no_sync():
                loss.backward()
        optimizer.step()

    assert not exercises.exercise("21.6", too_late)
    assert "are averaged 3 times" in capsys.readouterr().out


def test_the_least_time_is_that_of_the_model():
    right = EXERCISES["21.4"].right(10**9, 64, 50e9)
    sent = pd.Series([4e9 / 64] * 63 * 2)  # n − 1 parts as sums are made, and n − 1 as they go round
    assert right == pytest.approx(1e3 * sent.sum() / 50e9)
