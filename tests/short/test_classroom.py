"""A class that shares one course: each reader's own folder and reports, and the job that opens it on a cluster."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_server.services.contents.largefilemanager import LargeFileManager

from labkit import classroom, course, paths
from labkit.errors import LabError
from labkit.paths import RECORDED, ROOT, SOURCE_CODE
from labkit.source import command

JOB = SOURCE_CODE / "examples" / "one_reader.sbatch"
LABS = [lab.file for lab in course.LABS]


@pytest.fixture
def own(tmp_path) -> Path:
    """A reader's own folder."""
    folder = tmp_path / "her lab"
    assert classroom.furnish(folder) == 0
    return folder


def test_a_reader_gets_every_notebook_and_what_the_notebooks_lead_to(own):
    assert (own / "start_here.ipynb").read_bytes() == (ROOT / "start_here.ipynb").read_bytes()
    assert {file.name for file in (own / "labs").glob("*.ipynb")} == {*LABS}
    assert not [file for file in own.rglob("*.ipynb") if file.is_symlink()], "what is written into must be her own"
    for there in ("source_code/main_opt1.py", "labs/for_teachers.md", "README.md", "reports/recorded/h200"):
        assert (own / there).exists(), there
    jupyter = LargeFileManager(root_dir=str(own))
    assert jupyter.get("source_code/main_opt1.py")["content"] == (SOURCE_CODE / "main_opt1.py").read_text()
    pictures = list((own / "images").iterdir())
    assert pictures and not any(file.is_symlink() for file in pictures), "Jupyter serves no file that lies elsewhere"


def test_a_class_gets_its_notebooks_without_solutions(tmp_path):
    assert classroom.furnish(tmp_path / "class", solutions=False) == 0
    for file in (tmp_path / "class" / "labs").glob("*.ipynb"):
        cells, whole = (json.loads(one.read_text())["cells"] for one in (file, ROOT / "labs" / file.name))
        texts, before = (["".join(cell["source"]) for cell in own] for own in (cells, whole))
        assert not any("Solution</summary>" in text for text in texts), file.name
        assert sum(classroom.INSTEAD in text for text in texts) == sum("Solution</summary>" in text for text in before)
        assert [cell for cell in cells if cell["cell_type"] == "code"] == [
            cell for cell in whole if cell["cell_type"] == "code"
        ]
    there = {file.name for file in (tmp_path / "class" / "labs").glob("*.md")}
    assert "glossary.md" in there and not there & {*classroom.FOR_TEACHERS}
    assert all((ROOT / "labs" / name).is_file() for name in classroom.FOR_TEACHERS)


def test_her_notebooks_stay_and_links_follow_the_course(own):
    (own / "labs" / LABS[0]).write_text("what she wrote")
    (own / "source_code").unlink()
    (own / "source_code").symlink_to("/where/the/course/was/before")
    assert classroom.furnish(own) == 1 + len(LABS)
    assert (own / "labs" / LABS[0]).read_text() == "what she wrote"
    assert (own / "source_code").resolve() == SOURCE_CODE


def test_the_course_itself_and_a_folder_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(LabError, match="a folder of your own"):
        classroom.furnish(ROOT / "reports" / "ada")
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "labkit.classroom", str(tmp_path / "file")], capture_output=True, text=True
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "cannot write into" in done.stderr


def test_jupyterlab_opens_there_with_reports_of_her_own(own):
    words, environment = classroom.jupyterlab(own, ["--no-browser"])
    assert f"--ServerApp.root_dir={own}" in words and "--ip=127.0.0.1" in words and words[-1] == "--no-browser"
    assert not any(word.startswith("--port") for word in words), "so that Jupyter looks for a free one"
    assert environment["LAB_REPORTS"] == str(own / "reports")
    assert environment["PATH"].startswith(str(Path(sys.executable).parent))


# Reports elsewhere

ASKED = "import json; from labkit import paths, predictions; from labkit.source import door, command; "
ASKED += "from labkit.source.recorded import folder; live = door._live(); print(json.dumps([str(one) for one in "
ASKED += "(paths.REPORTS, paths.RECORDED, predictions.file(), live.reports, folder())]))"


@pytest.mark.parametrize("named", [None, "", "her reports"])
def test_a_reader_s_own_things_lie_where_lab_reports_says(tmp_path, named):
    environment = {name: value for name, value in os.environ.items() if name not in ("LAB_REPORTS", "LAB_RECORDED")}
    if named is not None:
        environment["LAB_REPORTS"] = named and str(tmp_path / named)
    done = subprocess.run([sys.executable, "-c", ASKED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reports, shipped, predictions, live, recorded = map(Path, json.loads(done.stdout))
    expected = tmp_path / named if named else ROOT / "reports"
    assert (reports, predictions, live) == (expected, expected / "predictions.jsonl", expected)
    assert shipped == RECORDED and recorded == RECORDED / course.DEFAULT_MACHINE


def test_a_command_writes_where_the_report_is_looked_for(tmp_path, monkeypatch):
    """nsys is told of the reader's folder, of what is recorded nothing moves, and the command shown stays as it is."""
    typed = "nsys profile --output reports/one --force-overwrite true python3 source_code/main_opt1.py"
    assert paths.at_home(shlex.split(typed)) == shlex.split(typed)
    monkeypatch.setattr(paths, "REPORTS", tmp_path / "reports")
    words = paths.at_home(shlex.split(typed))
    assert words[3] == str(tmp_path / "reports/one") and words[:3] + words[4:] == (
        shlex.split(typed)[:3] + shlex.split(typed)[4:]
    )
    ran = []
    monkeypatch.setattr(command.profile, "record", lambda words, report, *_: ran.append((words, report)))
    monkeypatch.setattr(command, "need_nsys", lambda: command.Nsys("/usr/bin/nsys", (2025, 3, 1)))
    monkeypatch.setattr(command.machine, "gpu_name", lambda: "a GPU")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    report = tmp_path / "reports" / "one.nsys-rep"
    command.run_profile(shlex.split(typed), report, lambda line: None)
    ((words, where),) = ran
    assert where == report and words[words.index("--output") + 1] == str(report.with_suffix(""))


def test_her_gpu_alone_is_sampled(monkeypatch):
    words = shlex.split("nsys profile --gpu-metrics-devices all --output reports/one python3 source_code/main_opt1.py")
    tool = command.Nsys("/usr/bin/nsys", (2025, 3, 1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    adapted = command.adapt(words, tool, has_gpu=True)
    assert adapted[adapted.index("--gpu-metrics-devices") + 1] == "1"


def test_what_is_carried_to_a_room_without_a_network_is_what_make_installs_there():
    guide = (ROOT / "labs" / "for_teachers.md").read_text()
    carried, installed = re.findall(r"^(.*pip download .*)\n(.*)", guide, re.MULTILINE)[0]
    assert ("-c " in carried) == ("PIP_CONSTRAINT" in (ROOT / "Makefile").read_text()), "the same versions at both ends"
    asked = set(re.findall(r"\[(\w+)\]", carried))
    assert asked == {"read", "course"} and "setuptools" in carried and "make read" in installed


# A cluster


def job(folder: Path, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The job as Slurm runs it, from a copy of its script, in the reader's home."""
    spooled = shutil.copy(JOB, folder / "slurm_script")
    told = {"SLURM_JOB_ID": "70042", "SLURMD_NODENAME": "gpu7", "SLURM_SUBMIT_HOST": "login1"}
    words = ["bash", str(spooled), *map(str, words)]
    return subprocess.run(words, cwd=folder, env=os.environ | told | environment, capture_output=True, text=True)


def test_a_job_opens_a_reader_s_folder_and_says_how_to_reach_it(tmp_path):
    python = tmp_path / "the course" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nfor word; do echo "word: $word"; done\n')
    python.chmod(0o755)
    done = job(tmp_path, tmp_path / "the course", tmp_path / "her lab")
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    asked = [line.removeprefix("word: ") for line in told if line.startswith("word: ")]
    assert asked[:3] == ["-m", "labkit.classroom", str(tmp_path / "her lab")]
    port = asked[asked.index("--port") + 1]
    assert 20000 <= int(port) < 40000 and "--ServerApp.port_retries=0" in asked
    assert told[0].endswith(f"ssh -N -L {port}:127.0.0.1:{port} -J login1 gpu7")


@pytest.mark.parametrize("words", [(), ("no-course",), ("no-course", "her-lab")])
def test_a_job_without_a_course_or_a_folder_says_what_it_wants(tmp_path, words):
    done = job(tmp_path, *words)
    assert done.returncode == 2 and done.stderr.startswith("usage: sbatch") and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("script", sorted((SOURCE_CODE / "examples").glob("*.sbatch")), ids=lambda script: script.stem)
def test_what_slurm_reads_of_a_script_comes_before_its_first_command(script):
    """bash takes its grammar, and sbatch its options, which it looks for only up to the first command."""
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True).stderr == ""
    lines = script.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line for line in lines if line.startswith("#SBATCH")]
    assert options and options == [line for line in lines[:first] if line.startswith("#SBATCH")]
    assert all(line.split()[1].startswith("--") and len(line.split()) == 3 for line in options)
