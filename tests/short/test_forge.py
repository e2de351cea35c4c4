"""What a forge finds in .github/: a workflow that runs what this repository runs; a guide that names what is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import yaml

import stepbudget as sb
from labkit import course, versions
from labkit.paths import ROOT
from labkit.recording import index, links
from labkit.versions import newest as newest_versions
from stepbudget import __main__ as command

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


def test_every_week_each_link_is_followed_and_redirects_are_listed():
    steps = yaml.safe_load((FORGE / "workflows" / "weekly.yml").read_text())["jobs"]["links"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert "make site" in commands[0] and "'build/site/**/*.html'" in commands[-1]
    assert "--verbose" in commands[-1], "else redirects are counted, and not named"
    (table,) = re.findall(r"--exclude-path (\S+)", commands[-1])
    assert links.__name__.replace(".", "/").endswith(table.removesuffix(".py"))


def test_an_address_that_moved_is_written_as_it_is_now():
    for old, new in links.MOVED.items():
        assert links.current(old) == links.current(new) != old, "what it moved to has not moved back"
        assert links.current(links.current(old)) == links.current(old)
    twice = "https://pytorch.org/docs/stable/torch.compiler.html"
    assert links.current(twice) == "https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler.html"


def test_the_newest_tag_of_the_changelog_is_the_package_s_version_and_a_release_has_its_words(tmp_path):
    tags = re.findall(r"^## .* (v\d+\.\d+\.\d+)$", (FORGE / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert tags[0] == f"v{sb.__version__}" and len(tags) == len({*tags})
    release = yaml.safe_load((FORGE / "workflows" / "release.yml").read_text())
    assert release[True]["push"]["tags"] == ["v*"]
    (extract,) = [step["run"] for step in release["jobs"]["wheel"]["steps"] if "notes.md\n" in step.get("run", "")]
    (tmp_path / ".github").mkdir()
    (tmp_path / ".github" / "CHANGELOG.md").write_text("# A\n\n## 2: v9.9.9\n\n- new\n- too\n\n## 1\n\n- old\n")
    for tag, status in (("v9.9.9", 0), ("v9.9", 1)):
        environment = os.environ | {"GITHUB_REF_NAME": tag}
        assert subprocess.run(["bash", "-ec", extract], cwd=tmp_path, env=environment).returncode == status
        assert (tmp_path / "notes.md").read_text().split() == ["-", "new", "-", "too"] * (not status)


def test_the_guide_names_files_and_commands_that_exist():
    guide = (FORGE / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:source_code|labs|tests|reports)/[\w./]+)`", guide)
    assert len(named) > 8
    assert not [path for path in named if "NN" not in path and "optN" not in path and not (ROOT / path).exists()]
    assert set(re.findall(r"\bmake ([a-z-]+)", guide)) <= TARGETS


def test_the_index_is_what_the_catalogue_and_the_plan_make_of_it():
    assert index.FILE.read_text(encoding="utf-8") == index.text(), "make notebooks writes it anew"
    found = json.loads(index.text())
    assert [lab["file"] for lab in found["labs"]] == [f"labs/{lab.file}" for lab in course.LABS]
    for path in (*found["scripts"], *found["machines"].values(), *(lab["file"] for lab in found["labs"])):
        assert (ROOT / path).exists(), path
    assert all(one["does"] for one in found["scripts"].values()) and all(found["commands"].values())
    assert {f"make {target}" for target in TARGETS} <= {*found["commands"]} and set(found["functions"]) == {*sb.__all__}
    machine = ROOT / found["machines"][course.DEFAULT_MACHINE]
    patterns = [pattern for one in found["recordings"] for pattern in one["files"]]
    there = [pattern for pattern in patterns if any(machine.glob(pattern))]
    assert len(there) > 200 and all(not Path(pattern).is_absolute() for pattern in patterns)


def test_the_skill_has_what_its_format_wants_and_names_what_there_is():
    """Its first lines, by the written format: name (as its folder's), and when to use it, in 1,024 characters."""
    (file,) = (FORGE / "skills").rglob("*.md")
    _, head, text = file.read_text(encoding="utf-8").split("---\n", 2)
    about = yaml.safe_load(head)
    assert {*about} == {"name", "description"} and about["name"] == file.parent.name
    assert re.fullmatch(r"[a-z0-9-]{1,64}", about["name"]) and len(about["description"]) <= 1024
    for link in re.findall(r"\]\((?!https:)([^)#]+)\)", text):
        assert (file.parent / link).exists(), link
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= TARGETS
    options = {option for action in command._parser()._actions for option in action.option_strings}
    for line in re.findall(r"^ *stepbudget (.+?)(?: +#.*)?$", text, re.MULTILINE):
        assert {word for word in line.split() if word.startswith("--")} <= options, line


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
