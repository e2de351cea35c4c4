"""make record: what is planned, how it is made, whether it is still true, and where it comes from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import course, paths
from labkit.recording import __main__ as command_line
from labkit.recording import make, pages, plan, provenance, status
from labkit.recording.plan import Item
from labkit.recording.status import CURRENT, MISSING, OUTDATED
from labkit.source import Recorded, command, counting, kinds, quick, recorded
from labkit.training import machine, manifest
from listed import write_list
from stepbudget.ask.budget import CAUSES
from stepbudget.export import nsys
from stepbudget.report import open_report

# The plan


def commands_of(kind: str, **more) -> list[str]:
    return [item.command for item in plan.plan(**more) if item.kind == kind]


def test_every_rung_and_variant_runs_in_each_round_in_turn():
    items = [item for item in plan.plan(rounds=3) if item.kind == "runs"]
    cold = [item.command for item in items if item.how == "cold"]
    assert cold == [step.script for step in course.STEPS if step.compiled] and "main_opt6.py" in cold
    timed = items[len(cold) :]
    numbers = [int(item.label.rpartition(" ")[2]) for item in timed]
    rounds = [[item.command for item, own in zip(timed, numbers, strict=True) if own == number] for number in range(6)]
    assert numbers == sorted(numbers) and rounds[0] == []
    assert rounds[1] == rounds[2] == rounds[3] == [*plan.LADDER, *plan.VARIANTS, *rounds[1][len(plan.RUNGS) :]]
    assert rounds[4] == rounds[5] == plan.LADDER, "the ladder alone goes on"
    assert {step.script for step in course.STEPS} - set(plan.LADDER) == {"main_baseline_nvtx.py"}
    assert {item.command for item in items if item.how == "warm"} == set(cold)


def test_every_item_has_files_of_its_own_and_a_script_that_is_there():
    full, of_ranks = plan.plan(reference=True), plan.of_ranks(8)
    for items in (full, plan.plan(is_quick=True), of_ranks):
        assert len({item.file for item in items}) == len(items) == len({item.record for item in items})
        for item in items:
            assert item.how in (*make.WAYS, "reference")
            if item.how not in ("stats", "findings", "reference"):
                words = item.command.split(" source_code/")[-1].split()
                assert (paths.SOURCE_CODE / words[0]).is_file() or paths.script(words[0]).is_file(), item.command
    assert {item.kind for item in [*full, *of_ranks]} == set(plan.KINDS)


def test_the_reference_runs_beside_the_baseline():
    assert commands_of("reference", rounds=2, reference=True) == [plan.REFERENCE, "main_baseline.py"] * 2
    assert commands_of("reference") == []


def test_a_quick_machine_gets_part_1_and_the_ladder_and_short_runs():
    items = plan.plan(rounds=quick.ROUNDS, is_quick=True, cores=4)
    assert {item.kind for item in items} == {"runs", "benchmarks", "profiles"}
    assert all(f"--epochs {quick.EPOCHS}" in item.command for item in items if item.kind == "runs")
    there = {item.command for item in items if item.how in ("run", "warm")}
    assert set(map(quick.quick, plan.LADDER)) < there
    assert {item.label for item in items if item.how == "profile"} == set(plan.PROFILES)


# How an item is made

NCU_SAID = """==PROF== Connected to process 1
"ID","Host Name","Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum"
"","","","ns","byte","byte"
"0","my-machine","a_kernel","1,500","10","2"
"""


def leave_modules(*modules: str) -> None:
    """What a watched process of the course does at its end."""
    (Path(os.environ["LAB_MANIFEST"]) / "modules-1.json").write_text(json.dumps(modules))


@pytest.fixture
def on_a_gpu(monkeypatch, tmp_path) -> Path:
    """An empty machine's folder, a GPU by name, and a reports folder of the test's own."""
    monkeypatch.setattr(make, "REPORTS", tmp_path)
    monkeypatch.setattr(machine, "gpu_name", lambda: "NVIDIA Test GPU")
    return tmp_path / "test-gpu"


def test_counts_are_kept_slim_with_a_record_beside_them(on_a_gpu, monkeypatch):
    def run(words: list[str], log: Path, show: object) -> None:
        assert words[0] == "ncu" and words[words.index("--log-file") + 1] == f"reports/{log.name}"
        log.write_text(NCU_SAID)
        leave_modules("main_opt6.py")

    monkeypatch.setattr(counting, "run", run)
    item = next(item for item in plan.plan() if item.label == "main_opt6_bytes")
    assert status.judge(on_a_gpu, item).state == MISSING
    assert make.make(on_a_gpu, [item], lambda item: (on_a_gpu / item.file).is_file()) == []
    assert status.judge(on_a_gpu, item).state == CURRENT
    file = on_a_gpu / item.file
    assert "my-machine" not in file.read_text()
    write_list(on_a_gpu, counters={item.label: item.command})
    found = Recorded(on_a_gpu).get(kinds.counts(item.command), lambda line: None)
    assert found.kernels[["kernel", "time_us", "bytes"]].to_numpy().tolist() == [["a_kernel", 1.5, 12]]
    assert found.origin.startswith("NVIDIA Test GPU, 20")
    about = json.loads((on_a_gpu / item.record).read_text())
    assert (
        about["gpu"] == "NVIDIA Test GPU"
        and about["took_s"] >= 0
        and set(about["manifest"]["modules"]) == {"main_opt6.py"}
    )
    file.write_text(file.read_text().replace("main_opt6.py", "main_opt5.py"))
    assert status.judge(on_a_gpu, item).state == OUTDATED, "another command made it"


@pytest.fixture
def profiled(monkeypatch):
    """Returns how to say which slim reports, one after the other, profiling a program leaves."""

    def run_profile(words: list[str], report: Path, show: object) -> None:
        report.write_text("a whole report")
        leave_modules("main_opt2.py")

    monkeypatch.setattr(command, "run_profile", run_profile)
    monkeypatch.setattr(nsys, "need_nsys", lambda: nsys.Nsys("nsys", (2025, 3, 1)))
    monkeypatch.setattr(nsys, "export", lambda report: report)

    def leaves(*reports: bytes) -> None:
        left = iter(reports)
        monkeypatch.setattr(make, "slim", lambda export, file: file.write_bytes(next(left)))

    return leaves


def test_of_three_profiles_the_one_in_the_middle_is_kept_and_of_the_others_their_budgets(on_a_gpu, profiled):
    item = next(item for item in plan.plan(rounds=3) if item.file == "profiles/main_opt2.sqlite.xz")
    shipped = [paths.RECORDED / course.DEFAULT_MACHINE / f"profiles/main_opt{number}.sqlite.xz" for number in (5, 7, 6)]
    profiled(*(file.read_bytes() for file in shipped))
    make.make(on_a_gpu, [item], lambda item: False)
    assert (on_a_gpu / item.file).read_bytes() == shipped[2].read_bytes()
    assert [file.name for file in (on_a_gpu / "profiles").iterdir() if file.is_dir()] == [], "no draft is left"
    fast, slow = json.loads((on_a_gpu / item.record).read_text())["others"]
    with open_report(shipped[2]) as report:
        middle_ms = report.window().duration_ms
    assert fast["duration_ms"] < middle_ms < slow["duration_ms"]
    for own in (fast, slow):
        assert set(own["ms"]) <= set(CAUSES) and sum(own["ms"].values()) == pytest.approx(own["duration_ms"])


def test_a_report_has_a_record_beside_it_and_its_tables_know_the_report(on_a_gpu, profiled):
    profiled(b"a report")
    items = {item.file: item for item in plan.plan(rounds=1)}
    item, tables = items["profiles/main_opt2.sqlite.xz"], items["nsys_stats/main_opt2.json"]
    make.make(on_a_gpu, [item], lambda item: False)
    about = json.loads((on_a_gpu / "profiles" / "main_opt2.json").read_text())
    assert about["command"] == item.command and about["nsys"] == "2025.3.1"
    assert set(about["manifest"]["modules"]) == {"main_opt2.py"} and "others" not in about
    assert "LAB_MANIFEST" not in os.environ

    record = {"command": tables.command, "manifest": manifest.manifest([])}
    for of, state in ((make.checksum(on_a_gpu / item.file), CURRENT), ("0", OUTDATED)):
        (on_a_gpu / "nsys_stats").mkdir(exist_ok=True)
        (on_a_gpu / tables.file).write_text(json.dumps(record | {"of": of}))
        assert status.judge(on_a_gpu, tables).state == state


def test_a_compiled_step_runs_once_before_it_is_timed(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(make.running, "run_once", lambda step, file, environment=None: ran.append(step))
    monkeypatch.setattr(make, "_warmed", set())
    items = [item for item in plan.plan(rounds=2) if item.command == "main_opt6.py" and item.how == "warm"]
    make.make(tmp_path, items, lambda item: False)
    assert ran == ["main_opt6.py"] * (1 + 2 + plan.MORE_ROUNDS)


def test_an_interrupted_recording_goes_on_where_it_stopped(tmp_path, monkeypatch):
    made = []

    def run(item: Item, file: Path) -> None:
        made.append(item.label)
        if item.label == "2" and made.count("2") == 1:
            raise KeyboardInterrupt
        file.write_text("{}")

    monkeypatch.setitem(make.WAYS, "run", run)
    items = [Item("runs", "run", "x", f"runs/{number}.json", str(number)) for number in (1, 2, 3)]
    with pytest.raises(KeyboardInterrupt):
        make.make(tmp_path, items, lambda item: (tmp_path / item.file).is_file())
    assert made == ["1", "2"]
    assert make.make(tmp_path, items, lambda item: (tmp_path / item.file).is_file()) == []
    assert made == ["1", "2", "2", "3"], "the first was not made again"


def test_a_time_limit_begins_nothing_new(tmp_path, monkeypatch):
    monkeypatch.setitem(make.WAYS, "run", lambda item, file: pytest.fail("was begun"))
    items = [Item("runs", "run", "x", "runs/1.json", "1")]
    assert make.make(tmp_path, items, lambda item: False, time_limit_s=-1.0) == items


# The command line


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Returns how ``python3 -m labkit.recording`` is called; nothing is made: the items are handed back."""
    monkeypatch.setattr(machine, "gpu_name", lambda: "NVIDIA Test GPU")
    monkeypatch.setattr(machine, "missing", lambda *packages: [])
    monkeypatch.setattr(command_line, "RECORDED", tmp_path)
    found = []
    monkeypatch.setattr(command_line, "record", lambda folder, items, args: found.append((folder, items)) or 0)

    def call(*words: str) -> tuple[Path, list[Item], int]:
        monkeypatch.setattr(sys, "argv", ["record", *words])
        with pytest.raises(SystemExit) as end:
            command_line.main()
        return (*(found.pop() if found else (None, [])), end.value.code)

    return call


@pytest.mark.parametrize(("named", "kept"), [(["bench_peaks"], 3), (["bench_peaks", "main_opt7_units"], 4)])
def test_only_what_is_named_is_recorded(asked, named, kept):
    _, items, code = asked(*(word for name in named for word in ("--named", name)))
    assert code == 0 and len(items) == kept
    assert all(any(name in item.label for name in named) for item in items)


def test_a_name_that_nothing_has_is_refused(asked, capsys):
    assert asked("--named", "bench_peeks")[2] == 2
    assert capsys.readouterr().err == "error: nothing that is recorded has bench_peeks in its name.\n"


def test_the_machine_is_named_after_the_gpu_or_by_hand(asked):
    assert asked("--only", "profiles")[0].name == "test-gpu"
    folder, items, _ = asked("--machine", "h100-4cores", "--quick")
    assert folder.name == "h100-4cores" and len(items) < 120


def test_what_is_about_the_cpu_is_recorded_only_where_it_is_asked_for(asked):
    assert "keras_cpu" not in {item.kind for item in asked()[1]}
    assert {item.kind for item in asked("--only", "keras_cpu")[1]} == {"keras_cpu"}


def test_the_labs_on_keras_are_left_out_where_it_is_missing(asked, monkeypatch, capsys):
    assert any(item.kind == "keras" for item in asked()[1])
    monkeypatch.setattr(machine, "missing", lambda *packages: ["keras"])
    assert not any(item.kind.startswith("keras") for item in asked()[1])
    assert "of labs 16 and 17 is left out what needs keras" in capsys.readouterr().out


def test_a_missing_backend_leaves_the_others_of_lab_12(asked, monkeypatch, capsys):
    monkeypatch.setattr(machine, "missing", lambda *packages: [one for one in packages if one == "jax"])
    commands = [item.command for item in asked("--only", "keras_cpu")[1]]
    assert any("--backend tensorflow" in command for command in commands)
    assert not any("--backend jax" in command for command in commands)
    assert "what needs jax" in capsys.readouterr().out


def test_recording_without_a_gpu_is_refused_but_for_what_needs_none(asked, monkeypatch, capsys):
    monkeypatch.setattr(machine, "gpu_name", lambda: None)
    assert asked()[2] == 2
    assert capsys.readouterr().err == "error: recording needs a GPU, and none answers here.\n"
    assert asked("--machine", "h200", "--only", plan.FROM_REPORTS[0])[2] == 0


# Still true? A copy of the course is changed under real runs.

RUNS = ["main_opt1.py", "main_opt4.py"]
TINY = "--limit 40 --epochs 1 --workers 0 --device cpu"


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[Path, list[Item]]:
    """A copy of source_code/ in a folder of its own, and the records of two tiny runs of it, in ``machine/``."""
    top = tmp_path_factory.mktemp("checkout")
    shutil.copytree(paths.SOURCE_CODE, top / "source_code", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (top / "machine" / "runs").mkdir(parents=True)
    items = [Item("runs", "run", f"{script} {TINY}", f"runs/{Path(script).stem}.json", script) for script in RUNS]
    wanted = [(item.command, str(top / "machine" / item.file)) for item in items]
    program = f"from pathlib import Path\nfrom labkit.source import running\nfor command, file in {wanted!r}:\n"
    program += "    running.run_once(command, Path(file))"
    environment = os.environ | {"PYTHONPATH": str(top / "source_code"), "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=600)
    return top, items


@pytest.fixture
def changed(ran, tmp_path):
    """Returns what becomes of the two recordings after a change of one file of the copy: script → finding."""
    top, items = ran
    source_code = tmp_path / "source_code"
    shutil.copytree(top / "source_code", source_code)

    def change(name: str, old: str, new: str) -> dict[str, status.Finding]:
        text = (source_code / name).read_text()
        assert old in text
        (source_code / name).write_text(text.replace(old, new, 1))
        found = status.findings(top / "machine", items, source_code)
        return {finding.item.label: finding for finding in found}

    return change


def outdated(found: dict[str, status.Finding]) -> list[str]:
    assert {finding.state for finding in found.values()} <= {CURRENT, OUTDATED}
    return [script for script, finding in found.items() if finding.state == OUTDATED]


def test_what_was_just_recorded_is_current(ran):
    top, items = ran
    assert [finding.state for finding in status.findings(top / "machine", items, top / "source_code")] == [CURRENT] * 2


@pytest.mark.parametrize(
    ("name", "old", "new", "concerned"),
    [
        ("main_opt4.py", "loss.backward()", "loss.mul(1.0).backward()", ["main_opt4.py"]),
        ("main_opt1.py", "args.workers > 0", "args.workers > 1", ["main_opt1.py"]),
        ("main_opt1.py", "shuffle=True", "shuffle=False", ["main_opt1.py"]),
        ("labkit/training/model.py", "nn.Dropout(0.25)", "nn.Dropout(0.2)", RUNS),
        ("labkit/training/cli.py", "default=0.7", "default=0.8", RUNS),
        ("labkit/training/cli.py", 'help="random seed', 'help="the seed', []),
        ("labkit/training/run.py", "time.perf_counter() - start", "time.monotonic() - start", RUNS),
        ("labkit/training/run.py", "self.started = ", "self.started = self.began = ", []),
        ("labkit/training/data.py", "float() / 255", "float() / 256", RUNS),
        ("labkit/training/data.py", "fetch it with", "get it with", []),
        ("main_opt4.py", "from labkit.training import steps", "from labkit.training import steps, machine", []),
        ("main_opt4.py", 'amp_dtype="bfloat16")', 'amp_dtype="float16")', ["main_opt4.py"]),
        ("main_opt4.py", "loss.backward()", "loss.backward()  # of the mean", []),
        ("main_opt4.py", '"""', '"""Once more: ', []),
        ("main_opt7.py", "loss", "loss_", []),
        ("labkit/kernels/conv1.py", "BLOCK", "BLOCKS", []),
        ("labkit/display/spread.py", "def ", "def new_", []),
    ],
    ids=str,
)
def test_a_change_makes_exactly_the_recordings_concerned_outdated(changed, name, old, new, concerned):
    found = changed(name, old, new)
    assert outdated(found) == concerned
    assert all(f"the code of {name} differs" in found[script].why for script in concerned)


def test_a_recording_of_which_nobody_knows_the_code_and_one_that_broke_off_are_outdated(ran, tmp_path):
    top, items = ran
    record = json.loads((top / "machine" / items[0].file).read_text())
    file = tmp_path / items[0].file
    file.parent.mkdir()
    for change in ({"manifest": None}, {"manifest": {"commit": "a", "modules": None}}, {"status": "interrupted"}):
        file.write_text(json.dumps(record | change))
        assert status.judge(tmp_path, items[0]).state == OUTDATED
        assert "status" in change or recorded.outdated([record, record | change]) == f", {recorded.OLDER}"
    assert recorded.outdated([record]) == ""


def test_the_status_names_the_pages_and_fails_while_one_is_silent(ran, tmp_path, monkeypatch, capsys):
    top, items = ran
    folder = tmp_path / "test-gpu"
    shutil.copytree(top / "machine", folder)
    (folder / "provenance.json").write_text("{}")
    page = tmp_path / "01_it.ipynb"
    monkeypatch.setattr(command_line, "RECORDED", tmp_path)
    monkeypatch.setattr(pages, "NOTEBOOKS", [page])
    monkeypatch.setattr(status, "planned", lambda folder: items)
    monkeypatch.setattr(sys, "argv", ["record", "--status", "--machine", "test-gpu"])
    file = folder / items[1].file
    kept = json.loads(file.read_text())

    def asked(hash_: str, says: str) -> int:
        kept["manifest"]["modules"]["main_opt4.py"] = hash_
        file.write_text(json.dumps(kept))
        cell = {
            "cell_type": "code",
            "source": [],
            "outputs": [{"output_type": "stream", "text": [f"recorded ({says})"]}],
        }
        opened = {pages.RECORDINGS: ["test-gpu/runs/main_opt4.json"]}
        page.write_text(json.dumps({"cells": [cell], "metadata": opened}))
        with pytest.raises(SystemExit) as end:
            command_line.main()
        return end.value.code

    assert asked(kept["manifest"]["modules"]["main_opt4.py"], "H200") == 0
    assert "2 current" in capsys.readouterr().out
    assert asked("0" * 16, f"H200, {recorded.OLDER}") == 0
    said = capsys.readouterr().out
    assert "runs: runs/main_opt4.json: the code of main_opt4.py differs; shown on 01_it.ipynb" in said
    assert "1 current" in said and f"1 {OUTDATED}" in said
    assert asked("0" * 16, "H200") == 1
    assert "01_it.ipynb does not say that this is outdated: runs/main_opt4.json" in capsys.readouterr().out


def test_the_estimate_comes_from_what_was_recorded(tmp_path):
    for number, seconds in ((1, 10.0), (2, 30.0)):
        file = tmp_path / "a" / "runs" / f"x-{number:02d}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"command": "x.py", "process_s": seconds}))
    (tmp_path / "b" / "profiles").mkdir(parents=True)
    (tmp_path / "b" / "profiles" / "p.json").write_text(json.dumps({"command": "nsys p", "took_s": 70.0}))
    (tmp_path / "b" / "profiles" / "x.json").write_text(json.dumps({"command": "x.py", "process_s": 1.0}))
    times = {"x.py": 1, "nsys p": 3, "never.py": 1}
    items = [Item("other", "run", words, "f.json", words, times=often) for words, often in times.items()]
    assert status.expected_s([tmp_path / "a", tmp_path / "b"], items) == [20.0, 210.0, None]
    assert status.estimate([20.0, 70.0, None]) == "about 2 min for 2 of them, and 1 that nobody has timed"
    assert status.estimate([]) == "nothing to do"


# Where recordings come from


def a_recorded_folder(folder: Path) -> Path:
    about = {"gpu": "NVIDIA Test GPU", "driver": "1", "cpu": "CPU", "cpu_cores": 2, "versions": {"torch": "2"}}
    for kind in ("runs", "profiles", "counters"):
        (folder / kind).mkdir(parents=True)
    for number, commit in ((2, "b" * 40), (1, "a" * 40)):
        entry = about | {"command": "main_baseline.py", "run_at": f"2030-01-0{number}T00:00:00", "data_source": "MNIST"}
        entry["manifest"] = {"commit": commit, "clean": number == 2, "modules": {}}
        (folder / "runs" / f"main_baseline-0{number}.json").write_text(json.dumps(entry))
    (folder / "profiles" / "main_opt3.sqlite.xz").write_bytes(b"a report")
    (folder / "counters" / "main_opt7_bytes.csv").write_text("# command: ncu x\n")
    beside = {"command": "nsys y", "nsys": "2025.3.1", "run_at": "2030-01-01T12:00:00"}
    (folder / "profiles" / "main_opt3.json").write_text(json.dumps(beside))
    return folder


def test_the_provenance_is_derived_from_the_files(tmp_path):
    folder = a_recorded_folder(tmp_path)
    provenance.write(folder)
    about = json.loads((folder / "provenance.json").read_text())
    files = [path for path in folder.glob("*/*") if path.is_file()]
    assert about["sha256"] == {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    assert len(files) == 5
    assert (about["recorded"], about["finished"]) == ("2030-01-01T00:00:00", "2030-01-02T00:00:00")
    assert (about["gpu"], about["repetitions"], about["data_source"]) == ("NVIDIA Test GPU", 2, ["MNIST"])
    assert about["commits"] == {"runs": ["a" * 40 + "+dirty", "b" * 40]}
    assert about["profiles"] == {"main_opt3": "nsys y"} and about["counters"] == {"main_opt7_bytes": "ncu x"}
    assert about["commands"] == ["main_baseline.py", "nsys y"]
    assert provenance.derive(folder) == about, "again the same"


def test_nothing_recorded_has_no_provenance(tmp_path):
    assert provenance.derive(tmp_path) == {}
    provenance.write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_machine_is_planned_as_it_was_recorded_quickly_or_in_full_and_in_these_kinds(tmp_path):
    def planned(*files: str) -> list[Item]:
        for name in files:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("{}")
        return status.planned(tmp_path)

    assert planned() == []
    short = f"runs/{recorded.key(quick.quick('main_baseline.py'))}-01.json"
    quickly = plan.plan(rounds=quick.ROUNDS, is_quick=True)
    assert planned(short) == [item for item in quickly if item.kind == "runs"]
    in_full = [item for item in plan.plan() if item.kind in ("runs", "counters")]
    assert planned("runs/main_baseline-01.json", "counters/main_opt6_bytes.csv") == in_full
