"""What a forge finds in .github/: a workflow that runs what this repository runs; a guide that names what is there."""

from __future__ import annotations

import re

import yaml

from labkit.paths import ROOT

FORGE = ROOT / ".github"
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_workflow_calls_ci_and_the_pythons_that_the_project_takes():
    jobs = yaml.safe_load((FORGE / "workflows" / "test.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert "bash .ci/run" in commands
    assert {word for command in commands for word in re.findall(r"\bmake ([a-z-]+)", command)} <= TARGETS
    oldest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert jobs["pythons"]["strategy"]["matrix"]["python"][0] == oldest


def test_the_guide_names_files_and_commands_that_exist():
    guide = (FORGE / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:source_code|labs|tests|reports)/[\w./]+)`", guide)
    assert len(named) > 8
    assert not [path for path in named if "NN" not in path and "optN" not in path and not (ROOT / path).exists()]
    assert set(re.findall(r"\bmake ([a-z-]+)", guide)) <= TARGETS
