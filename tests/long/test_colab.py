"""Google Colab: notebooks that can be opened alone, and their first cell, from an empty folder to a lab that runs."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

import pages
from labkit import course, doctor
from labkit.paths import ROOT
from labkit.recording import pages as written
from stepbudget.export import nsys

REPOSITORY = "https://github.com/somebody/gpu-performance-lab"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECONDS = 300


def module(name: str):
    spec = importlib.util.spec_from_file_location(f"colab_{name}", ROOT / ".colab" / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


notebooks, start = module("notebooks"), module("start")


# The notebooks


@pytest.mark.parametrize("file", pages.FILES, ids=lambda file: file.stem)
def test_a_notebook_stands_alone(file):
    made = nbformat.reads(json.dumps(notebooks.for_colab(file, REPOSITORY, COMMIT)), as_version=4)
    nbformat.validate(made)
    first, *rest = made.cells
    compile(first.source, "first cell", "exec")
    assert REPOSITORY in first.source and COMMIT in first.source
    there = nbformat.read(file, as_version=4).cells
    assert [(cell.source, cell.outputs) for cell in rest if cell.cell_type == "code"] == [
        (cell.source, cell.outputs) for cell in there if cell.cell_type == "code"
    ]
    for cell in (cell for cell in rest if cell.cell_type == "markdown"):
        for link in notebooks.LINK.findall(cell.source):
            assert ":" in link or not (file.parent / link).exists(), link


def test_links_lead_to_colab_to_pictures_and_to_the_forge():
    def leads(link: str) -> str:
        return notebooks.address(link, ROOT / "labs", REPOSITORY, COMMIT)

    colab = "https://colab.research.google.com/github/somebody/gpu-performance-lab/blob/colab"
    assert leads("02_pytorch_mnist.ipynb") == f"{colab}/labs/02_pytorch_mnist.ipynb"
    assert leads("../start_here.ipynb") == f"{colab}/start_here.ipynb"
    raw = f"https://raw.githubusercontent.com/somebody/gpu-performance-lab/{COMMIT}"
    assert leads("../images/whole_ladder.svg") == f"{raw}/images/whole_ladder.svg?sanitize=true"
    assert leads("../source_code/main_opt1.py") == f"{REPOSITORY}/blob/{COMMIT}/source_code/main_opt1.py"
    assert leads("../source_code/benchmarks") == f"{REPOSITORY}/tree/{COMMIT}/source_code/benchmarks"
    for other in ("https://pytorch.org", "no_such_file.py", "../../etc"):
        assert leads(other) == other


def test_the_front_page_s_button_opens_what_the_workflow_writes(monkeypatch):
    monkeypatch.setattr(course, "REPOSITORY", "somebody/gpu-performance-lab")
    there = notebooks.address("start_here.ipynb", ROOT, f"{notebooks.FORGE}{course.REPOSITORY}", COMMIT)
    front = nbformat.read(ROOT / "start_here.ipynb", as_version=4).cells[0].source
    for text in ((ROOT / "README.md").read_text(encoding="utf-8"), front):
        assert f"[▶ Open in Colab]({there})" in written.filled(text)


def made(folder: Path, repository: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, ROOT / ".colab" / "notebooks.py", "--repository", repository, "--version", COMMIT, folder]
    return subprocess.run(list(map(str, words)), capture_output=True, text=True)


def test_an_address_that_colab_cannot_open_is_refused(tmp_path):
    done = made(tmp_path, "https://example.org/course")
    assert done.returncode == 2 and "https://example.org/course" in done.stderr and not any(tmp_path.iterdir())


def test_the_workflow_keeps_them_as_a_branch_that_holds_nothing_else(tmp_path):
    """Its commands, run on a small repository with this one's .colab."""
    here, forge = tmp_path / "here", tmp_path / "forge"
    git(tmp_path, "init", "--quiet", "--bare", str(forge))
    for name in (".colab", "images"):
        shutil.copytree(ROOT / name, here / name, ignore=shutil.ignore_patterns("__pycache__"))
    (here / "labs").mkdir()
    shutil.copy(ROOT / "start_here.ipynb", here)
    shutil.copy(pages.FILES[1], here / "labs")
    commit(here)
    git(here, "remote", "add", "origin", str(forge))
    (job,) = yaml.safe_load((ROOT / ".github/workflows/colab.yml").read_text())["jobs"].values()
    (step,) = (step for step in job["steps"] if "run" in step)
    told = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "somebody/course", "GITHUB_SHA": COMMIT}
    done = subprocess.run(
        ["bash", "-c", step["run"]], cwd=here, env=os.environ | step["env"] | told, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kept = git(forge, "ls-tree", "-r", "--name-only", "colab").split()
    assert kept == [f"labs/{pages.FILES[1].name}", "start_here.ipynb"]
    assert f'VERSION = \\"{COMMIT}\\"' in git(forge, "show", "colab:start_here.ipynb")


# The first cell


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def commit(folder: Path) -> None:
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    who = ["-c", "user.name=a test", "-c", "user.email=test@localhost"]
    git(folder, *who, "commit", "--quiet", "--message", "as it is")


FIRST = 9  # cells: its own, and those of lab 1 up to its first command


@pytest.fixture
def alone(tmp_path, monkeypatch) -> Path:
    """Lab 1 as Colab opens it, in an empty home; the forge is a folder here."""
    forge, home = tmp_path / "forge", tmp_path / "home"
    home.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".ipynb_checkpoints")
    for name in (".colab", "images", "labs", "source_code", "reports/recorded/h200"):
        shutil.copytree(ROOT / name, forge / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", forge)
    commit(forge)
    for name, value in {"HOME": home, "LAB_PREDICTIONS": "off", "PYTHONPATH": ""}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("LAB_MODE", "LAB_REPORTS"):
        monkeypatch.delenv(name, raising=False)
    (home / "lab.ipynb").write_text(json.dumps(notebooks.for_colab(pages.FILES[1], str(forge), "HEAD")))
    return home / "lab.ipynb"


def printed(book) -> list[str]:
    """What each code cell printed."""
    return ["".join(one.get("text", "") for one in cell.outputs) for cell in book.cells if cell.cell_type == "code"]


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a GPU's tools")
def test_from_an_empty_folder_to_a_lab_s_first_command(alone, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # what is there must do: a test installs nothing
    book = nbformat.read(alone, as_version=4)
    book.cells = book.cells[:FIRST]
    where = {"metadata": {"path": str(alone.parent)}}
    NotebookClient(book, timeout=SECONDS, resources=where, kernel_name="python3").execute()
    first, second, *_, last = printed(book)
    assert "was installed already" in first and "since this machine has no GPU" in first
    assert "Recorded mode" in second and "recorded (" in last
    assert (alone.parent / "gpu-performance-lab/source_code/labkit").is_dir()


@pytest.mark.skipif(os.environ.get("LAB_REQUIRE_INSTALL") != "1", reason="downloads 150 MB: .ci/run asks for it")
def test_on_a_machine_without_any_of_it_the_whole_lab_runs(alone, tmp_path):
    """A fresh environment that can show notebooks, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True)
    words = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "ipykernel", "nbclient"]
    python = tmp_path / "bare" / "bin" / "python"
    subprocess.run([python, *words], check=True)
    done = subprocess.run(
        [python.with_name("jupyter-execute"), "--inplace", alone], cwd=alone.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second, *rest = printed(nbformat.read(alone, as_version=4))
    assert "Installed: " in first and "numpy" in first and "torch" not in first
    assert "Recorded mode" in second and any("✓" in said for said in rest)


def test_what_is_installed_is_what_pyproject_says_without_the_service_s_own():
    reading, whole = start.requirements(with_torch=False), start.requirements(with_torch=True)
    assert {"numpy>=1.24", "pandas>=2.0", "matplotlib>=3.8"} <= set(reading) < set(whole)
    assert any(line.startswith("torch>=") for line in whole) and not any("torch" in line for line in reading)
    assert not any(line.startswith(start.SERVICES_OWN) for line in whole)
    text = (ROOT / "pyproject.toml").read_text()
    assert all(f'"{name}>=' in text for name in start.SERVICES_OWN)


def test_pip_s_own_words_where_it_cannot_install(monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(start.CannotStart, match="no-such-package-of-anybody"):
        start.installed(["no-such-package-of-anybody"])


@pytest.fixture
def a_gpu(monkeypatch):
    """A machine whose GPU PyTorch can use."""
    monkeypatch.setattr("labkit.training.machine.gpu_name", lambda: "Tesla T4")


def test_a_gpu_is_live_with_an_nsys_that_works_and_else_with_pytorchs_profiler(monkeypatch, a_gpu, capsys):
    monkeypatch.setenv("LAB_PROFILER", "")
    there = lambda: nsys.Nsys("/usr/bin/nsys", (2025, 3, 1))  # noqa: E731
    there.cache_clear = lambda: None
    monkeypatch.setattr(nsys, "find_nsys", there)
    monkeypatch.setattr(doctor, "profiler", lambda: ("a profile", "made and exported", ""))
    assert start.why_recorded(True) == "" and not os.environ["LAB_PROFILER"]
    monkeypatch.setattr(doctor, "profiler", lambda: ("a profile", "none", "its importer does not start"))
    assert start.why_recorded(True) == "" and os.environ["LAB_PROFILER"] == "torch"
    assert "PyTorch's profiler makes the profiles" in capsys.readouterr().out


def test_a_gpu_that_pytorch_cannot_use_is_told_with_its_reason(monkeypatch):
    monkeypatch.setattr("labkit.training.machine.gpu_name", lambda: None)
    monkeypatch.setattr("labkit.training.machine.gpu_problem", lambda: "the driver is too old")
    assert start.why_recorded(True) == "PyTorch cannot use this machine's GPU (the driver is too old)"


APT = """#!/bin/sh
echo "$0 $*" >> "$APT_WAS_ASKED"
case "$*" in *search*) printf '%s - x\\n' nsight-systems nsight-systems-2024.6.2 nsight-systems-2025.3.2 ;; esac
case "$*" in *"install"*"2025.3.2") touch "$APT_WAS_ASKED.installed" ;; esac
"""


@pytest.fixture
def apt(tmp_path, monkeypatch):
    """Stand-ins for apt that know three packages, of which one installs an nsys; the file with what they were asked."""
    for name in ("apt-get", "apt-cache"):
        (tmp_path / name).write_text(APT)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("APT_WAS_ASKED", str(tmp_path / "asked"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path / "asked"


def test_nsys_is_installed_the_newest_first(apt, capsys):
    assert start.install_nsys(lambda: apt.with_suffix(".installed").exists()) == ""
    installed = [line.split()[-1] for line in apt.read_text().splitlines() if " install " in line]
    assert installed == ["nsight-systems-2025.3.2"]
    assert "nsight-systems-2025.3.2" in capsys.readouterr().out


def test_an_nsys_that_cannot_be_had_is_a_reason(apt, monkeypatch):
    assert "no Nsight Systems of 2022.4 or later" in start.install_nsys(lambda: False)
    assert len([line for line in apt.read_text().splitlines() if " install " in line]) == 3
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "only root" in start.install_nsys(lambda: False)


def test_the_package_without_the_window_comes_first():
    known = ["nsight-systems-cli - x", "nsight-systems-cli-2025.5.1 - x", "nsight-systems - x", "nsight-compute - x"]
    assert start.packages(known) == ["nsight-systems-cli", "nsight-systems-cli-2025.5.1", "nsight-systems"]


def test_a_t4_is_told_what_it_lacks(monkeypatch, capsys):
    from labkit import source
    from labkit.pretend import machines

    monkeypatch.setenv("LAB_MODE", "live")
    with source.using(machines.live("turing")):
        start.tell_of_this_machine()
    told = capsys.readouterr().out
    assert "Tesla T4" in told and "TF32 and BF16 gain nothing" in told
