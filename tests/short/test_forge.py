"""What a forge finds in .github/: a workflow that runs what this repository runs; a guide that names what is there."""

from __future__ import annotations

import re

import yaml

from labkit import course, versions
from labkit.paths import ROOT
from labkit.versions import newest as newest_versions

FORGE = ROOT / ".github"
FILES = [*versions.file_for().parent.glob("python*.txt")]
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_workflow_calls_ci_and_the_pythons_that_the_project_takes():
    jobs = yaml.safe_load((FORGE / "workflows" / "test.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert "bash .ci/run" in commands
    assert {word for command in commands for word in re.findall(r"\bmake ([a-z-]+)", command)} <= TARGETS
    pythons = jobs["pythons"]["strategy"]["matrix"]["python"]
    oldest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert pythons[0] == oldest and all(versions.file_for((*python.split("."),)).is_file() for python in pythons)


def test_every_week_the_newest_versions_are_tried_and_the_tested_ones_audited():
    weekly = yaml.safe_load((FORGE / "workflows" / "weekly.yml").read_text())
    assert weekly[True]["schedule"], "YAML takes on for true"
    newest, audit = weekly["jobs"]["newest"], weekly["jobs"]["audit"]
    commands = [step["run"] for step in newest["steps"] if "run" in step]
    assert all("FLOAT=1" in command for command in commands if command.startswith("make "))
    tested, (last,) = commands[:-1], [step for step in newest["steps"] if step.get("if") == "always()"]
    (results,) = re.findall(r"make test-all .*--junitxml=([^\s\"]+)", tested[-1])
    assert f".venv/bin/python -m {newest_versions.__name__} {results} >> " in last["run"]
    assert {file.stem.removeprefix("python") for file in FILES} < {*newest["strategy"]["matrix"]["python"]}
    (run,) = [step["run"] for step in audit["steps"] if "pip-audit --" in step.get("run", "")]
    assert "--strict" in run, "else what its database does not know counts as safe"
    (pattern,) = re.findall(r"for set in (\S+);", run)
    assert {*ROOT.glob(pattern)} == {*FILES}


def test_the_guide_names_files_and_commands_that_exist():
    guide = (FORGE / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:source_code|labs|tests|reports)/[\w./]+)`", guide)
    assert len(named) > 8
    assert not [path for path in named if "NN" not in path and "optN" not in path and not (ROOT / path).exists()]
    assert set(re.findall(r"\bmake ([a-z-]+)", guide)) <= TARGETS


def test_a_citation_has_what_its_format_wants_and_no_license_but_the_project_s():
    """Required by the Citation File Format 1.2.0: version, message, title, authors, each with a name."""
    cited = yaml.safe_load((FORGE / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software" and cited["message"]
    assert cited["title"] == (ROOT / "README.md").read_text().partition("\n")[0].removeprefix("# ")
    assert all(author.get("name") for author in cited["authors"])
    assert cited["license"] == ["Apache-2.0", "CC-BY-4.0"]
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License, Version 2.0" in licence and "Creative Commons Attribution 4.0" in licence


def test_the_changelog_is_newest_first_and_knows_where_each_lab_went():
    changes = (FORGE / "CHANGELOG.md").read_text()
    days = re.findall(r"^## (\d{4}-\d\d-\d\d)", changes, re.MULTILINE)
    assert len(days) > 2 and days == sorted(days, reverse=True)
    now = " ".join(re.findall(r"^ *\|.*\| (\d.*?) \|$", changes, re.MULTILINE)).replace("1 to 6", "1 2 3 4 5 6")
    moved = [int(number) for number in re.findall(r"\b(\d+)\b", now)]
    assert len(moved) == len({*moved}) > 20 and {*moved} <= {lab.number for lab in course.LABS}
    named = re.findall(r"`((?:source_code|labkit|tests|reports|\.\w+)/[\w./]*)`", changes)
    there = [path.replace("labkit/", "source_code/labkit/", 1) if path.startswith("labkit") else path for path in named]
    assert len(there) > 6 and [path for path in there if not (ROOT / path).exists()] == ["reports/predictions.jsonl"]
