"""Several GPUs of one host, recorded: what is planned, that it runs, and what a rank that fails or hangs leaves.

Ranks are processes on the CPU (gloo); Nsight Systems is a stand-in that leaves a report made by hand.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support.scripts import script
from support.smaller import smaller
from support.synthetic import SyntheticReport

from benchmarks import bench_ranks
from labkit import paths
from labkit.errors import LabError
from labkit.recording import __main__ as command_line
from labkit.recording import make, plan, provenance, status
from labkit.recording.plan import Item
from labkit.recording.status import CURRENT, MISSING
from labkit.source import running
from labkit.training import distributed, machine
from stepbudget.export import nsys
from stepbudget.report import open_report

DIGITS = "--limit 32 --epochs 2 --batch-size 32 --workers 0 --amp-dtype float32"
TEXT = "--width 16 --depth 2 --heads 2 --length 12 --batch-size 8 --pool 2 --steps 3 --warm-up 1 --param-dtype float32"
TINY = f"--device cpu '--digits-flags={DIGITS}' '--text-flags={TEXT}'"

# The plan


@pytest.mark.parametrize(
    ("gpus", "sizes"), [(0, []), (1, []), (2, [1, 2]), (3, [1, 2]), (6, [1, 2, 4]), (8, [1, 2, 4, 8])]
)
def test_as_many_ranks_are_planned_as_there_are_gpus_in_turn(gpus, sizes):
    items = [item for item in plan.of_ranks(gpus, rounds=3) if item.kind == "ranks" and item.how == "run"]
    assert [item.command for item in items] == [
        f"OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node {size} source_code/benchmarks/bench_ranks.py"
        for _ in range(3)
        for size in sizes
    ]
    reports = [item for item in plan.of_ranks(gpus) if item.how == "rank_reports"]
    assert {len(item.files) for item in reports} == ({sizes[-1]} if sizes else set())
    assert len(reports) == (len(plan.RANKS_PROFILES) if sizes else 0)
    assert all(len(set(item.files)) == item.ranks and item.files[0] == item.file for item in reports)


def test_the_first_round_and_the_reports_come_first():
    """Should time run out."""
    how = [item.how for item in plan.of_ranks(2)]
    assert how[:2] == ["run", "run"] and set(how[2:5]) == {"rank_reports"} and set(how[5:]) == {"run"}


def test_every_rank_count_runs_what_its_scaling_is_compared_with():
    """Strong and weak rows of one program differ in the batch alone."""
    kinds = []
    for ranks in (1, 2, 4):
        programs = bench_ranks.scaling(ranks)
        own = {(program.split()[0], "ddp" in program, kind) for program, own in programs for kind in own}
        kinds.append({one for one in own if one[2] != bench_ranks.FEW})
    assert kinds[0] == kinds[1] == kinds[2]
    assert Counter(kind for _, _, kind in kinds[0]) == {"strong": 4, "weak": 3}
    alone = [program.split()[0] for program, own in bench_ranks.scaling(1) if not own]
    assert alone == ["main_opt4.py", "main_opt3.py"] and all(own for _, own in bench_ranks.scaling(2))
    few = [program for program, own in bench_ranks.scaling(1) if own == [bench_ranks.FEW]]
    assert len(few) == 4 and not any(bench_ranks.FEW in own for _, own in bench_ranks.scaling(2))
    epochs = {program.split()[2] for program, _ in bench_ranks.scaling(1) if "on_gpu" in program or "opt4" in program}
    assert len(epochs) == 1, "what is compared trains as long"


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Returns what ``python3 -m labkit.recording`` would record on a host with so many GPUs: folder, items, status."""
    monkeypatch.setattr(machine, "gpu_name", lambda: "NVIDIA Test GPU")
    monkeypatch.setattr(command_line, "RECORDED", tmp_path)
    found = []
    monkeypatch.setattr(command_line, "record", lambda folder, items, args: found.append((folder, items)) or 0)

    def call(gpus: int, *words: str) -> tuple[Path | None, list[Item], int]:
        monkeypatch.setattr(command_line, "gpus", lambda: gpus)
        monkeypatch.setattr(sys, "argv", ["record", *words])
        with pytest.raises(SystemExit) as end:
            command_line.main()
        return (*(found.pop() if found else (None, [])), end.value.code)

    return call


def test_several_gpus_have_a_folder_of_their_own_and_are_recorded_where_they_are_named(asked):
    folder, items, _ = asked(4, "--only", "ranks")
    assert folder.name == "test-gpu-x4" and items == [one for one in plan.of_ranks(4) if one.kind == "ranks"]
    folder, items, _ = asked(2, "--only", "ranks_accuracy", "--machine", "mine")
    assert folder.name == "mine" and {item.kind for item in items} == {"ranks_accuracy"} and len(items) == 10
    assert not {item.kind for item in asked(2)[1]} & set(plan.OF_RANKS)
    assert asked(2)[0].name == "test-gpu"


@pytest.mark.parametrize("words", [(1, "--only", "ranks"), (2, "--only", "ranks", "--only", "profiles")])
def test_one_gpu_and_other_kinds_beside_are_refused(asked, capsys, words):
    assert asked(*words)[2] == 2
    assert f"want two GPUs or more (here: {words[0]}), and a call of their own" in capsys.readouterr().err


# A recording, on the CPU

NSYS = """#!{python}
import os, shutil, subprocess, sys
words = sys.argv[1:]
if "--version" in words:
    print("NVIDIA Nsight Systems version 2025.3.1.1")
elif words[0] == "profile":
    at = words.index("--output") + 1
    out = words[at].replace("%q{{RANK}}", os.environ["RANK"])
    status = subprocess.run(words[words.index("--force-overwrite") + 2 :]).returncode
    if out.endswith(os.environ.get("LOSES", "nothing")):
        sys.exit(status)
    shutil.copy({report!r}, out + ".nsys-rep")
    sys.exit(status)
elif "--output" in words:
    shutil.copy(words[-1], words[words.index("--output") + 1])
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Nsight Systems, as far as a recording calls it; reports go where the test can see them."""
    report = SyntheticReport(tmp_path / "made.sqlite").range(0, 100, "training").kernel(20, 30, "sgemm", call=(12, 14))
    program = tmp_path / "nsys"
    program.write_text(NSYS.format(python=sys.executable, report=str(report.write())))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("LAB_NSYS", str(program))
    reports = make.REPORTS
    nsys.find_nsys.cache_clear()
    yield
    nsys.find_nsys.cache_clear()
    for file in reports.glob("test_ranks_*"):
        file.unlink()


def tiny(item: Item) -> Item:
    """The item, so short that a CPU has it done in seconds; its reports under names that no reader has."""
    if item.how == "rank_reports":
        flags = TEXT if "main_fsdp" in item.command else DIGITS
        words = item.command.replace("reports/", "reports/test_ranks_")
        file, label = item.file.replace("profiles/", "profiles/test_ranks_"), f"test_ranks_{item.label}"
        return dataclasses.replace(item, command=f"{words} --device cpu {flags}", file=file, label=label)
    return dataclasses.replace(item, command=f"{item.command} {TINY}")


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("LAB_COMMIT", "a" * 40)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A host's folder with a first round on one and two ranks."""
    folder = tmp_path_factory.mktemp("recorded") / "test-gpu-x2"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setenv("LAB_COMMIT", "a" * 40)
        items = [tiny(item) for item in plan.of_ranks(2)[:2]]
        assert make.make(folder, items, lambda item: (folder / item.file).is_file()) == []
    return folder


def test_a_round_holds_every_program_with_what_its_table_needs(recorded):
    for ranks in (1, 2):
        record = json.loads((recorded / "ranks" / f"scaling-x{ranks}-01.json").read_text())
        assert (record["script"], record["ranks"], record["backend"]) == ("bench_ranks.py", ranks, "gloo")
        assert record["omp_threads"] == 1, "the same for one rank and for many"
        assert [row["program"] for row in record["rows"]] == [program for program, _ in bench_ranks.scaling(ranks)]
        digits = [row for row in record["rows"] if "main_ddp" in row["program"]]
        for row in digits:
            assert len(row["of_each_rank"]) == ranks and len(row["epochs"]) == 2
            assert row["buckets"]["gradient_as_bucket_view"] == 1 and row["test_accuracy_pct"] > 0
        wide = [row for row in record["rows"] if "main_fsdp" in row["program"]]
        assert all(len(one["rows"]) == ranks and len(one["rows"][0]["step_s"]) == 3 for one in wide)
        scripts = {name for name in record["manifest"]["modules"] if "/" not in name}
        assert scripts == {row["program"].split()[0] for row in record["rows"]}, "a change there is a change here"


def test_what_was_recorded_is_current_and_the_rest_is_shown_as_missing(recorded):
    first = [tiny(item) for item in plan.of_ranks(2)[:2]]
    assert [status.judge(recorded, item).state for item in first] == [CURRENT, CURRENT]
    found = status.findings(recorded)
    assert [finding.item for finding in found] == plan.of_ranks(2), "planned by what was recorded"
    assert Counter(finding.state for finding in found)[MISSING] == len(found) - 2
    assert status.unplanned(recorded, [finding.item for finding in found]) == []


def test_the_provenance_of_several_gpus(recorded):
    for file in recorded.glob("ranks/*.json"):  # as on a machine with a GPU
        record = json.loads(file.read_text()) | {"gpu": "NVIDIA Test GPU", "gpus": 2}
        file.write_text(json.dumps(record))
    provenance.write(recorded)
    about = json.loads((recorded / "provenance.json").read_text())
    assert (about["gpu"], about["repetitions"]) == ("NVIDIA Test GPU", 1) and len(about["sha256"]) == 2
    assert about["commits"] == {"ranks": ["a" * 40]} and len(about["data_source"]) == 1


def test_accuracy_is_trained_seed_by_seed(tmp_path):
    (item,) = [item for item in plan.of_ranks(2) if item.file == "ranks/main_ddp_on_gpu-accuracy-x1-02.json"]
    item = dataclasses.replace(item, command=f"{item.command} --device cpu '--digits-flags={DIGITS} --epochs 1'")
    make.make(tmp_path, [item], lambda item: False)
    rows = json.loads((tmp_path / item.file).read_text())["rows"]
    assert [row["arguments"]["seed"] for row in rows] == [6, 7, 8, 9, 10]
    assert len({row["test_loss"] for row in rows}) == 5


def test_the_jobs_of_a_script_have_every_seed_once():
    items = [item for item in plan.of_ranks(2) if "main_ddp_graph" in item.command and item.kind == "ranks_accuracy"]
    for size in (1, 2):
        own = [item.command.split() for item in items if f"--nproc-per-node {size} " in item.command]
        firsts = [int(words[words.index("--first-seed") + 1]) for words in own]
        seeds = [first + one for first in firsts for one in range(plan.SEEDS_A_JOB)]
        assert seeds == list(range(1, plan.SEEDS + 1))


def test_a_graph_and_launches_take_turns_in_the_same_ranks(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(paths.BENCHMARKS)  # where it lies when it runs
    bench = script("bench_rank_graphs.py")
    (item,) = [item for item in plan.of_ranks(2) if item.kind == "ranks_graphs"]
    rounds = (f"EPOCHS, ROUNDS = {bench.EPOCHS}, {number}" for number in (bench.ROUNDS, 2))
    own = smaller(tmp_path, "bench_rank_graphs.py", *rounds)
    words = item.command.replace("source_code/benchmarks/bench_rank_graphs.py", str(own))
    item = dataclasses.replace(item, command=f"{words} --device cpu '--digits-flags={DIGITS} --epochs 1'")
    make.make(tmp_path, [item], lambda item: False)
    record = json.loads((tmp_path / item.file).read_text())
    assert (record["script"], record["ranks"]) == ("bench_rank_graphs.py", 2)
    one_round = [*bench.ALONE, *bench.TOGETHER]
    assert [row["program"] for row in record["rows"]] == one_round * 2
    for row in record["rows"]:
        assert row["on"] == (1 if row["program"] in bench.ALONE else 2)
        assert len(row.get("of_each_rank", [1])) == row["on"]
    scripts = {name for name in record["manifest"]["modules"] if "/" not in name}
    assert scripts == {program.split()[0] for program in one_round}


def test_each_rank_leaves_a_report(tmp_path, stand_in):
    item = next(tiny(item) for item in plan.of_ranks(2) if item.label == "main_ddp_on_gpu_x2")
    assert status.judge(tmp_path, item).state == MISSING
    make.make(tmp_path, [item], lambda item: False)
    assert status.judge(tmp_path, item).state == CURRENT
    names = [f"test_ranks_main_ddp_on_gpu_x2_rank{rank}" for rank in (0, 1)]
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == sorted(
        [f"{names[0]}.json", *(f"{name}.sqlite.xz" for name in names)]
    )
    for name in names:
        with open_report(tmp_path / "profiles" / f"{name}.sqlite.xz") as report:
            assert len(report.kernels) == 1
    modules = json.loads((tmp_path / "profiles" / f"{names[0]}.json").read_text())["manifest"]["modules"]
    assert {"main_ddp_on_gpu.py", "labkit/training/distributed.py"} <= set(modules)
    (tmp_path / "profiles" / f"{names[1]}.sqlite.xz").unlink()
    assert status.judge(tmp_path, item).state == MISSING, "without one rank's report"


def test_a_rank_without_a_report_leaves_nothing(tmp_path, stand_in, monkeypatch):
    monkeypatch.setenv("LOSES", "rank1")
    (tmp_path / "nothing.py").touch()
    item = next(tiny(item) for item in plan.of_ranks(2) if item.label == "main_ddp_on_gpu_x2")
    words = f"{item.command.partition(' python3 ')[0]} python3 {tmp_path / 'nothing.py'}"
    item = dataclasses.replace(item, command=words)
    with pytest.raises(LabError, match=r"nsys left no test_ranks_main_ddp_on_gpu_x2_rank1\.nsys-rep\.$"):
        make.make(tmp_path, [item], lambda item: False)
    assert list((tmp_path / "profiles").iterdir()) == []


# What goes wrong


def of_two(script: Path) -> Item:
    words = f"OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 {script}"
    return Item("ranks", "run", words, "ranks/x.json", "x")


def test_a_rank_that_fails_says_why_and_leaves_no_record(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import os\nif os.environ['RANK'] == '1':\n    raise ValueError('planted')\n")
    with pytest.raises(LabError, match=r"failed with status 1: .*ValueError: planted$"):
        make.make(tmp_path, [of_two(script)], lambda item: False)
    assert list((tmp_path / "ranks").iterdir()) == []


def test_ranks_that_hang_are_ended_and_none_is_left(tmp_path, monkeypatch):
    script = tmp_path / "hangs.py"
    lines = "import os, time\nfrom pathlib import Path\n"
    lines += f"Path({str(tmp_path)!r}, 'pid-' + os.environ['RANK']).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    script.write_text(lines)
    for patience_s in (5, 15, 90):  # a busy machine may take longer to start them
        monkeypatch.setattr(running, "HANGS_S", patience_s)
        start = time.monotonic()
        with pytest.raises(LabError, match=f"hung: it was ended after {patience_s} s"):
            make.make(tmp_path, [of_two(script)], lambda item: False)
        assert time.monotonic() - start < patience_s + running.PATIENCE_S
        pids = [int(text) for file in tmp_path.glob("pid-*") if (text := file.read_text())]
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        if len(pids) == 2:
            break
    assert len(pids) == 2
    assert list((tmp_path / "ranks").iterdir()) == []


# What the record says of the machine

TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\t0-31\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t0-31\t0\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def test_how_the_gpus_are_connected_is_read_where_it_is_said(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for said, links in ((TOPOLOGY, {"GPU0": ["X", "NV18"], "GPU1": ["NV18", "X"]}), ("No devices were found", None)):
        program.write_text(f"#!/bin/sh\ncat <<'E'\n{said}\nE\n")
        program.chmod(0o755)
        assert distributed.links() == links
