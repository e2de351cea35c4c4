"""The reader as strangers get it: a wheel of its own, built here without a network, and its page of documentation."""

from __future__ import annotations

import doctest
import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import stepbudget
from labkit.paths import ROOT, SOURCE_CODE
from labkit.source import recorded
from stepbudget import __main__ as command
from stepbudget.ask.budget import CAUSES
from synthetic import SyntheticReport

PROFILES = recorded.folder() / "profiles"
READER = SOURCE_CODE / "stepbudget"
PAGE = (READER / "README.md").read_text()
PRINTED = re.findall(r"<!-- printed by: (.+?) -->\n```text\n(.+?)\n```", PAGE, re.DOTALL)


def build(folder: Path, what: str) -> Path:
    """The wheel that setuptools, which is installed, makes of the distribution in a folder."""
    code = f"from setuptools.build_meta import {what}; print({what}('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "dist" / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(SOURCE_CODE, folder / "source_code", ignore=ignored)
    with zipfile.ZipFile(build(folder, "build_wheel")) as opened:
        yield opened


@pytest.fixture(scope="module")
def about(wheel) -> dict[str, str]:
    """The files of the wheel that are about it."""
    folder = f"stepbudget-{stepbudget.__version__}.dist-info/"
    return {name: wheel.read(folder + name).decode() for name in ("METADATA", "entry_points.txt")}


def test_the_wheel_holds_the_reader_and_nothing_else(wheel):
    files = {path.relative_to(SOURCE_CODE).as_posix() for path in READER.rglob("*") if path.is_file()}
    wanted = {name for name in files if not re.search(r"__pycache__|\.ipynb_checkpoints", name)}
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == wanted and "stepbudget/show/answer.schema.json" in held
    assert sum(one.file_size for one in wheel.infolist()) < 1e6


def test_the_wheel_needs_numpy_and_pandas_and_the_course_is_an_extra(about):
    said = email.message_from_string(about["METADATA"])
    assert (said["Name"], said["Version"]) == ("stepbudget", stepbudget.__version__)
    assert said.get_payload().strip() == PAGE.strip()
    needed: dict[str, set[str]] = {extra: set() for extra in ("", *said.get_all("Provides-Extra"))}
    for line in said.get_all("Requires-Dist"):
        name, extra = Requirement(line), re.search(r"extra == ['\"](\w+)['\"]", line)
        needed[extra[1] if extra else ""].add(name.name + "".join(f"[{one}]" for one in name.extras))
    assert needed[""] == {"numpy", "pandas"}
    assert {"jupyterlab", "matplotlib", "scipy"} <= needed["read"] and "torch" not in needed["read"]
    assert {"stepbudget[read]", "torch", "torchvision", "nbval", "pytest"} <= needed["course"]
    assert {"stepbudget[course]", "ruff"} <= needed["dev"] and {"stepbudget[course]", "keras"} <= needed["keras"]


def test_the_wheel_alone_answers_as_a_command(wheel, about, tmp_path):
    script = ConfigParser()
    script.read_string(about["entry_points.txt"])
    assert dict(script["console_scripts"]) == {"stepbudget": "stepbudget.__main__:main"}
    path = SyntheticReport(tmp_path / "made.sqlite").range(0, 90, "training").kernel(10, 30, "sgemm").write()
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), wheel.filename], check=True, capture_output=True)

    def run(*words: str | Path) -> subprocess.CompletedProcess:
        alone = {**os.environ, "PYTHONPATH": str(site)}  # before the checkout, which is installed here as well
        return subprocess.run(words, cwd=tmp_path, env=alone, capture_output=True, text=True)

    code = (
        "import sys, stepbudget; report = stepbudget.open_report(sys.argv[1]); stepbudget.answer(report); "
        "print(stepbudget.__file__, *{'torch', 'matplotlib', 'labkit'} & {*sys.modules})"
    )
    assert run(sys.executable, "-c", code, path).stdout.split() == [str(site / "stepbudget" / "__init__.py")]
    answered, schema, nothing = (run(site / "bin/stepbudget", *words) for words in ([path], ["--schema"], []))
    assert (answered.returncode, answered.stderr) == (0, "") and "Where the time goes" in answered.stdout
    assert schema.stdout == (READER / "show/answer.schema.json").read_text()
    assert nothing.returncode == 2 and nothing.stderr.startswith("usage: stepbudget ")


@pytest.mark.skipif(os.environ.get("LAB_REQUIRE_INSTALL") != "1", reason="downloads 50 MB: .ci/run asks for it")
def test_the_wheel_brings_all_it_needs_into_an_empty_environment(wheel, tmp_path):
    path = SyntheticReport(tmp_path / "made.sqlite").range(0, 90, "training").kernel(10, 30, "sgemm").write()
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pip = [tmp_path / "empty/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*pip, wheel.filename], env=alone, check=True)
    words = [tmp_path / "empty/bin/stepbudget", path]
    done = subprocess.run(words, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "Where the time goes" in done.stdout
    listed = [
        tmp_path / "empty/bin/python",
        "-m",
        "pip",
        "list",
        "--format=freeze",
        "--exclude=pip",
        "--exclude=setuptools",
    ]
    there = subprocess.run(listed, env=alone, capture_output=True, text=True, check=True).stdout
    names = {line.partition("==")[0].partition(" @")[0] for line in there.splitlines()}
    assert {"stepbudget", "numpy", "pandas"} <= names and len(names) <= 7 and not names & {"torch", "matplotlib"}


def test_what_the_dockerfile_copies_first_is_enough_to_install_the_course(tmp_path):
    before, _, _ = (ROOT / "Dockerfile").read_text().partition("pip install --no-cache-dir ${PIP_ARGS} -e '.[course]'")
    for files, folder in re.findall(r"^COPY ((?:[^-\s]\S* )+)(\S+)$", before, re.MULTILINE):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name in files.split():
            shutil.copy(ROOT / name, tmp_path / folder)
    assert all((tmp_path / "source_code/stepbudget" / name).is_file() for name in ("__init__.py", "README.md"))
    with zipfile.ZipFile(build(tmp_path, "build_editable")) as made:
        (pth,) = [name for name in made.namelist() if name.endswith(".pth")]
        assert made.read(pth).decode().strip() == str(tmp_path / "source_code"), "the course's modules are found too"


# --- the page of documentation ------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "shown"), PRINTED, ids=[shown.split("\n")[0][:30] for _, shown in PRINTED])
def test_the_output_that_the_page_shows_is_what_is_printed(arguments, shown, monkeypatch, capsys):
    monkeypatch.chdir(PROFILES)
    assert command.main(arguments.split()) == 0
    assert f"\n{shown}\n" in f"\n{capsys.readouterr().out}"


def test_the_page_shows_every_part_of_the_output():
    assert len(PRINTED) == PAGE.count("```text") == 6
    assert len(PAGE.splitlines()) <= 270
    rows = re.findall(r"^\| (.+?) \| idles|^\| (.+?) \| (?:runs|only)", PAGE, re.MULTILINE)
    assert {row for cell in rows for row in "".join(cell).split("; ")} == {*CAUSES.values()}


def test_the_python_of_the_page_runs(monkeypatch):
    monkeypatch.chdir(PROFILES)
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(PAGE.replace("\n```", "\n\n```"), {}, "README.md", None, 0)
    assert len(test.examples) >= 5
    assert doctest.DocTestRunner().run(test, out=said.append).failed == 0, "".join(said)
    assert all(f"`{name}`" in PAGE for name in stepbudget.__all__ if name != "ReportError")


def test_the_options_of_the_page_are_those_of_the_command():
    options = {option for action in command._parser()._actions for option in action.option_strings}
    others = {"--trace", "--sample", "--cuda-graph-trace", "--gpu-metrics-devices"}  # of nsys
    others |= {"--cudabacktrace", "--python-backtrace", "--python-sampling", "--pytorch"}
    named = {*re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)}
    assert named - others <= options
    assert options - {"-h", "--help"} <= named, "every option has its place on the page"
