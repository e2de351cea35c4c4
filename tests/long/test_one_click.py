"""What services read to open the course by one click: Binder's files and the dev container."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from packaging.requirements import Requirement

from labkit.paths import ROOT

BINDER = ROOT / ".binder"
CONTAINER = ROOT / ".devcontainer" / "devcontainer.json"


# Binder: names and places as repo2docker looks for them


def test_binder_finds_nothing_but_files_that_it_knows():
    assert {file.name for file in BINDER.iterdir()} == {
        "requirements.txt",
        "runtime.txt",
        "start",
        "jupyter_server_config.json",  # for Jupyter, which start tells of this folder
    }
    assert not (ROOT / "binder").exists(), "repo2docker refuses to choose between two"


def test_binder_installs_what_reading_needs_on_a_python_that_the_course_takes():
    lines = [line for line in (BINDER / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["-e .[read]"], "from the top, where repo2docker runs pip"
    read = re.search(r"^read = \[.*?\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)[1]
    assert "torch" not in {Requirement(line).name for line in re.findall(r'^\s*"([^"]+)"', read, re.MULTILINE)}
    version = re.fullmatch(r"python-(\d+\.\d+)\n", (BINDER / "runtime.txt").read_text())[1]
    oldest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert tuple(map(int, version.split("."))) >= tuple(map(int, oldest.split(".")))


def test_what_binder_starts_is_in_recorded_mode_and_ends_what_was_left_open(tmp_path):
    assert os.access(BINDER / "start", os.X_OK)
    ask = "import os, json; print(json.dumps([os.environ['LAB_MODE'], os.environ['JUPYTER_CONFIG_PATH']]))"
    done = subprocess.run([BINDER / "start", "python3", "-c", ask], cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(done.stdout) == ["recorded", str(BINDER)], done.stderr
    shown = subprocess.run(
        [BINDER / "start", sys.executable, "-m", "jupyterlab", "--show-config-json"],
        env=os.environ | {"JUPYTER_CONFIG_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    kernels = json.loads(shown.stdout)["MappingKernelManager"]
    # A kernel with a lab read takes up to 304 MB, Jupyter 103 (measured); who takes five minutes a lab has six open.
    assert kernels["cull_connected"] and 103 + 304 * (kernels["cull_idle_timeout"] / 300) < 2048


# The dev container


def described() -> dict:
    """devcontainer.json, in which whole lines may be comments."""
    return json.loads(re.sub(r"^\s*//.*$", "", CONTAINER.read_text(), flags=re.MULTILINE))


# Of the written schema (containers.dev/implementors/json_schema): what is used, its type, and the words that it takes.
KNOWN = {
    "name": str,
    "build": dict,
    "hostRequirements": dict,
    "runArgs": list,
    "remoteUser": str,
    "remoteEnv": dict,
    "customizations": dict,
}
GPU = (True, False, "optional")


def test_the_dev_container_says_what_its_schema_knows():
    about = described()
    assert {name: type(value) for name, value in about.items()} == KNOWN
    assert set(about["build"]) <= {"dockerfile", "context", "args", "target", "cacheFrom", "options"}
    assert about["hostRequirements"]["gpu"] in GPU and about["hostRequirements"]["gpu"] == "optional"
    assert re.fullmatch(r"\d+([tgmk]b)?", about["hostRequirements"]["storage"])


def test_the_dev_container_is_the_dockerfile_s_with_the_checkout_on_python_s_path():
    about = described()
    folder = CONTAINER.parent
    assert (folder / about["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert (folder / about["build"]["context"]).resolve() == ROOT
    assert re.search(rf"\buseradd\b.* {about['remoteUser']}\b", (ROOT / "Dockerfile").read_text())
    assert about["remoteEnv"]["PYTHONPATH"] == "${containerWorkspaceFolder}/source_code"


def test_the_dev_container_runs_with_the_flags_that_the_page_names():
    run = re.search(r"^docker run (.*?)\n```", (ROOT / "labs" / "running.md").read_text(), re.MULTILINE | re.DOTALL)[1]
    flags = " ".join(described()["runArgs"]).replace("--ulimit ", "--ulimit=").split()
    assert flags and all(flag.replace("--ulimit=", "--ulimit ") in run for flag in flags)
