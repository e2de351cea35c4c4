"""The versions that were tested together: the files, which of them is chosen, what moved away from it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from labkit import versions
from labkit.paths import ROOT
from labkit.versions import newest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # that pytest brings

FILES = sorted(versions.file_for().parent.glob("python*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ASKED_FOR = sum((EXTRAS[extra] for extra in ("read", "course", *versions.EXTRAS)), PROJECT["dependencies"])
WANTED = [one for one in map(Requirement, ASKED_FOR) if one.name != PROJECT["name"]]
LINUX = {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux"}


def test_each_python_has_its_file():
    oldest = PROJECT["requires-python"].removeprefix(">=3.")
    assert {file.name for file in FILES} >= {f"python3.{minor}.txt" for minor in range(int(oldest), 14)}
    assert versions.file_for((3, 12, 1)).name == "python3.12.txt"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
class TestFile:
    def test_it_holds_names_and_versions_alone(self, file):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert len(lines) > 100 and len(lines) == len({line.partition("==")[0] for line in lines})
        assert not [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)]
        python = file.stem.removeprefix("python")
        assert re.search(rf"with Python {re.escape(python)}\.\d+, Linux x86_64\.$", file.read_text().splitlines()[0])

    def test_it_holds_all_that_the_project_asks_for_in_a_version_that_will_do(self, file):
        pins = versions.pins(file)
        python = {**LINUX, "python_version": file.stem.removeprefix("python")}
        for wanted in WANTED:
            if wanted.marker is None or wanted.marker.evaluate(python):
                assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)]), wanted

    def test_the_torch_that_breaks_torchvision_is_not_in_it(self, file):
        assert Version(versions.pins(file)["torch"]) != Version("2.13.0")

    def test_cuda_is_left_to_the_build_of_torch(self, file):
        assert [name for name in versions.pins(file) if name.startswith(versions.OF_THE_BUILD)] == ["nvidia-ml-py"]


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """A new virtual environment of a Python that something was tested with; nothing is installed anywhere."""
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: [])
    monkeypatch.setattr(versions, "driver", lambda: "")
    return tmp_path


def with_torch(monkeypatch, folder):
    made = folder / "torch-2.9.0a0+nv25.10.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0a0+nv25.10\n")
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: [importlib.metadata.PathDistribution(made)])


def test_a_torch_in_the_environment_is_held(environment, monkeypatch):
    with_torch(monkeypatch, environment / "lib/python3.12/site-packages")
    assert versions.chosen() == ("source_code/labkit/versions/python3.12.txt", "")


@pytest.mark.parametrize("no_environment", [False, True])
def test_a_torch_of_the_base_is_kept(environment, monkeypatch, no_environment):
    """NVIDIA's container, a cluster's module: with SYSTEM_PACKAGES=1, or without an environment."""
    if no_environment:
        monkeypatch.setattr(sys, "base_prefix", sys.prefix)
        assert versions.chosen()[0], "a base that brings none gets the tested one"
        with_torch(monkeypatch, environment)
    else:
        with_torch(monkeypatch, environment.parent / "usr/lib/python3/dist-packages")
    assert versions.chosen()[0] == ""
    assert "PyTorch 2.9.0a0+nv25.10 came with the machine, and its companions with it" in versions.chosen()[1]


SMI = """#!/bin/sh
[ "$1 $2" = "--query-gpu=driver_version --format=csv,noheader" ] && {{ {0}; }}
"""
ANSWERS = {
    "535.183.01": ("echo 535.183.01; echo 535.183.01", "535.183.01"),
    "none that answers": ("echo NVIDIA-SMI has failed: 3 is not 4; exit 9", ""),
    "another library": ("echo 570.1; exit 18", ""),
    "nothing": (":", ""),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_driver_is_read_from_nvidia_smi(monkeypatch, tmp_path, answer):
    script, version = ANSWERS[answer]
    (tmp_path / "nvidia-smi").write_text(SMI.format(script))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert versions.driver() == version


def test_without_nvidia_smi_there_is_no_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert versions.driver() == ""


@pytest.mark.parametrize("driver", ["525.60.13", "535.183.01", "550.54.15", "570.124.06", "579.9"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_driver_for_cuda_12_gets_the_last_torch_for_it(environment, monkeypatch, driver, file):
    python = tuple(map(int, file.stem.removeprefix("python").split(".")))
    monkeypatch.setattr(sys, "version_info", (*python, 1, "final", 0))
    monkeypatch.setattr(versions, "driver", lambda: driver)
    path, said = versions.chosen()
    held = versions.pins(versions.held_by())
    assert (ROOT / path).resolve() == versions.held_by() == (environment / versions.HELD).resolve()
    assert held == versions.pins(file) | versions.pins(versions.CUDA12) and held["torch"] == "2.10.0"
    assert said == f"The NVIDIA driver {driver} runs CUDA 12: PyTorch is held at 2.10.0, the last one for it."
    for wanted in WANTED:
        if wanted.name in versions.pins(versions.CUDA12):
            assert wanted.specifier.contains(held[wanted.name])
    (environment / versions.FLOATS).touch()
    assert versions.pins(ROOT / versions.chosen()[0]) == versions.pins(versions.CUDA12), "all else floats"
    monkeypatch.setattr(versions, "driver", lambda: "580.65.06")
    versions.chosen()
    assert versions.held_by() == file, "a newer driver ends it"


@pytest.mark.parametrize("driver", ["", "580.65.06", "610.1"])
def test_a_newer_driver_or_none_gets_what_was_tested(environment, monkeypatch, driver):
    monkeypatch.setattr(versions, "driver", lambda: driver)
    assert versions.chosen() == ("source_code/labkit/versions/python3.12.txt", "")


def test_a_driver_too_old_for_all_is_told_what_to_do(environment, monkeypatch):
    monkeypatch.setattr(versions, "driver", lambda: "470.256.02")
    path, said = versions.chosen()
    assert path == "source_code/labkit/versions/python3.12.txt"
    assert "driver 470.256.02 is too old" in said and "580 or newer" in said and said.count(".") == 3


def test_what_moved_is_named_with_both_versions(monkeypatch, tmp_path):
    file = tmp_path / "python.txt"
    file.write_text("# a comment\nnumpy==2.0.0\npandas==3.0.0\nkeras==3.5\n")
    monkeypatch.setattr(versions, "installed", lambda: {"numpy": "2.1.0", "pandas": "3.0.0", "meson": "1.0"})
    assert versions.moved(file) == {"numpy": ("2.0.0", "2.1.0"), "meson": ("", "1.0")}


def test_what_is_installed_reaches_what_the_extras_need_and_what_that_needs():
    here = versions.installed()
    assert {"numpy", "jupyterlab", "jupyter-server", "tornado", "torch", "sympy", "ruff"} <= {*here}
    assert not {"stepbudget", "pip", "cuda-toolkit"} & {*here} and not any("+" in version for version in here.values())
    assert here["numpy"] == importlib.metadata.version("numpy")


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_well"/>
<testcase classname="tests.test_a" name="test_frame[1]">
<failure message="KeyError: 'a | b'&#10;and more">lib/site-packages/pandas/core/frame.py:12: KeyError</failure>
</testcase>
<testcase classname="labs" name="02_pytorch_mnist.ipynb::Cell 3"><error message="gone">ipykernel</error></testcase>
</testsuite></testsuites>"""


def test_what_broke_stands_beside_what_moved(tmp_path):
    results = tmp_path / "newest.xml"
    results.write_text(JUNIT)
    tests = newest.failed(results)
    assert [*tests] == ["tests.test_a::test_frame[1]", "labs::02_pytorch_mnist.ipynb::Cell 3"]
    page = newest.page(tests, {"numpy": ("2.0.0", "2.1.0"), "pandas": ("3.0.0", "3.1.0"), "meson": ("", "1.0")})
    assert "| `tests.test_a::test_frame[1]` | KeyError: 'a \\| b' | pandas |" in page
    assert "| `labs::02_pytorch_mnist.ipynb::Cell 3` | gone |  |" in page
    assert "3 packages differ" in page and "| pandas | 3.0.0 | 3.1.0 |" in page and "| meson | – | 1.0 |" in page
    assert "Every test passed." in newest.page({}, {}) and "No test was run" in newest.page(None, {})
