"""Does the course install itself as the README says? The Makefile with stand-in Pythons, and facts of the container."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = ROOT / "Makefile"

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

# A python3 that installs nothing: it writes down how it was called, and breaks in the ways that the environment names.
STAND_IN = """#!{python} -IS
import os, shutil, sys
from pathlib import Path

arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    print(*arguments, file=log)
if "OLD" in os.environ:
    sys.version_info = (3, 8, 18, "final", 0)
if "NO_VENV" in os.environ:
    sys.modules["ensurepip"] = None
if arguments[0] == "-c":
    exec(arguments[1])
elif arguments[:2] == ["-m", "venv"]:
    folder = Path(arguments[-1])
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    system = "--system-site-packages" in arguments
    (folder / "pyvenv.cfg").write_text(f"include-system-site-packages = {{str(system).lower()}}\\n")
    shutil.copy(__file__, folder / "bin/python")
    (folder / "made").touch()
elif arguments[:2] == ["-m", "ensurepip"]:
    Path(".venv/has-pip").touch()
elif arguments[:2] == ["-m", "pip"]:
    if not Path(".venv/has-pip").exists() or ("OFFLINE" in os.environ and "install" in arguments):
        sys.exit(1)
"""


class Checkout:
    """A folder with the Makefile and a stand-in python3, and what that python3 was asked for."""

    def __init__(self, folder: Path, name: str = "checkout") -> None:
        self.folder = folder / name
        self.folder.mkdir()
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, self.folder)
        self.log = folder / "log"
        self.python = folder / "python3"
        self.python.write_text(STAND_IN.format(python=sys.executable, log=str(self.log)))
        self.python.chmod(0o755)

    def make(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        return subprocess.run(
            ["make", f"PYTHON={self.python}", *words],
            cwd=self.folder,
            env=outside | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self, start: str) -> list[str]:
        """The calls of python3 since the last ``make`` that begin with these words."""
        return [line for line in self.log.read_text().splitlines() if line.startswith(start)]

    def installed(self) -> list[str]:
        """What was installed in editable mode."""
        return [call.rpartition(" -e ")[2] for call in self.calls("-m pip") if " install " in call]

    def installs(self) -> int:
        return sum(" install " in call for call in self.calls("-m pip"))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@needs_make
class TestMakefile:
    def test_make_alone_lists_every_command(self, checkout: Checkout) -> None:
        done = checkout.make()
        listed = set(re.findall(r"^make ([a-z-]+) +\S", done.stdout, re.MULTILINE))
        public = set(re.findall(r"^([a-z-]+):", MAKEFILE.read_text(), re.MULTILINE))
        assert done.returncode == 0
        assert listed == public
        assert {
            "help",
            "lab",
            "read",
            "doctor",
            "test",
            "test-gpu",
            "lint",
            "record",
            "notebooks",
            "images",
            "slides",
            "container",
            "clean",
        } == public
        assert not checkout.log.read_text(), "listing the commands must not need Python"

    @pytest.mark.parametrize(
        ("environment", "words"),
        [
            ({"OLD": "1"}, ["is Python 3.8,", "3.10 or newer", "PYTHON="]),
            ({"NO_VENV": "1"}, ["virtual environments", "apt-get install python3-venv"]),
        ],
    )
    def test_an_unusable_python_is_named_in_one_sentence(
        self, checkout: Checkout, environment: dict[str, str], words: list[str]
    ) -> None:
        done = checkout.make("lab", **environment)
        said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
        assert done.returncode == 2
        assert len(said) == 1
        assert all(word in said[0] for word in [str(checkout.python), *words])
        assert not (checkout.folder / ".venv").exists()

    def test_a_missing_python_is_named(self, checkout: Checkout) -> None:
        done = checkout.make("lab", "PYTHON=python3-that-is-not-there")
        assert done.returncode == 2
        assert "python3-that-is-not-there is not on PATH" in done.stderr
        assert not (checkout.folder / ".venv").exists()

    def test_the_second_call_installs_nothing(self, checkout: Checkout) -> None:
        assert checkout.make("lab").returncode == 0
        assert checkout.installed() == [".[course]"]
        assert checkout.make("lab", OFFLINE="1").returncode == 0
        assert not checkout.calls("-m pip")
        assert checkout.make("test").returncode == 0
        assert checkout.installed() == [".[dev]"]
        assert checkout.make("test", OFFLINE="1").returncode == 0
        assert not checkout.calls("-m pip")

    def test_jupyter_listens_on_loopback_with_its_token(self, checkout: Checkout) -> None:
        checkout.make("lab", "ARGS=--no-browser --port 9999")
        (call,) = checkout.calls("-m jupyterlab")
        assert "--ip=127.0.0.1" in call
        assert f"--ServerApp.root_dir={checkout.folder}" in call
        assert "--LabApp.default_url=/lab/tree/start_here.ipynb" in call
        assert call.endswith("--no-browser --port 9999")
        assert ("--allow-root" in call) == (os.geteuid() == 0)

    def test_an_interrupted_installation_is_made_anew(self, checkout: Checkout) -> None:
        assert checkout.make("lab", OFFLINE="1").returncode == 2
        assert not checkout.calls("-m jupyterlab")
        assert checkout.make("lab").returncode == 0
        assert checkout.calls("-m venv --clear")
        assert checkout.make("lab").returncode == 0
        assert not checkout.calls("-m venv")

    def test_an_environment_whose_python_is_gone_is_made_anew(self, checkout: Checkout) -> None:
        checkout.make("lab")
        python = checkout.folder / ".venv/bin/python"
        python.unlink()
        python.symlink_to("/python3-that-was-upgraded-away")
        assert checkout.make("lab").returncode == 0
        assert checkout.calls("-m venv --clear")

    def test_an_environment_without_pip_is_made_anew(self, checkout: Checkout) -> None:
        checkout.make("lab")
        (checkout.folder / ".venv/has-pip").unlink()
        (checkout.folder / ".venv/.installed").unlink()
        assert checkout.make("lab").returncode == 0
        assert checkout.calls("-m venv --clear")

    def test_a_changed_pyproject_is_installed_and_the_environment_kept(self, checkout: Checkout) -> None:
        checkout.make("lab")
        later = (checkout.folder / ".venv/.installed").stat().st_mtime + 10
        os.utime(checkout.folder / "pyproject.toml", (later, later))
        assert checkout.make("lab", OFFLINE="1").returncode == 2
        assert (checkout.folder / ".venv/made").exists(), "being offline must not cost the reader the environment"
        assert checkout.make("lab").returncode == 0
        assert checkout.installs() == 1
        assert not checkout.calls("-m venv")

    def test_a_hand_made_environment_is_kept(self, checkout: Checkout) -> None:
        checkout.make("lab")
        (checkout.folder / ".venv/.installed").unlink()
        assert checkout.make("lab").returncode == 0
        assert checkout.installs() == 1
        assert not checkout.calls("-m venv")

    @pytest.mark.parametrize(
        "name", ["one two", "d'été", 'the "course"', "$(touch pwned) `touch pwned`", "a;touch pwned"]
    )
    def test_a_folder_may_have_any_name(self, tmp_path: Path, name: str) -> None:
        """No shell takes a part of the name for a word of its own, or for a command."""
        checkout = Checkout(tmp_path, name)
        done = checkout.make("lab")
        assert done.returncode == 0, done.stderr
        (call,) = checkout.calls("-m jupyterlab")
        assert f"--ServerApp.root_dir={checkout.folder} " in call
        for target in ("lab", "doctor", "images", "record", "notebooks", "slides"):
            assert checkout.make(target, OFFLINE="1").returncode == 0, target
            assert not checkout.calls("-m pip"), "installed, and for this very folder"
        assert checkout.make("test").returncode == 0 and checkout.make("lint").returncode == 0
        assert checkout.make("clean").returncode == 0 and not (checkout.folder / ".venv").exists()
        assert not list(tmp_path.rglob("pwned"))

    def test_a_moved_checkout_is_installed_again(self, checkout: Checkout) -> None:
        checkout.make("lab")
        checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
        assert checkout.make("lab").returncode == 0
        assert checkout.calls("-m venv --clear")
        assert checkout.installs() == 1

    def test_an_installed_torch_is_used_on_request(self, checkout: Checkout) -> None:
        checkout.make("lab")
        assert "--system-site-packages" not in checkout.calls("-m venv")[0]
        checkout.make("lab", "SYSTEM_PACKAGES=1")
        assert "--system-site-packages" in checkout.calls("-m venv")[0]
        checkout.make("lab", "SYSTEM_PACKAGES=1")
        assert not checkout.calls("-m venv")
        checkout.make("lab")
        assert not checkout.calls("-m venv"), "once made so, it stays so"

    def test_reading_installs_no_torch_and_nothing_twice(self, checkout: Checkout) -> None:
        assert checkout.make("read").returncode == 0
        assert checkout.installed() == [".[read]"]
        assert checkout.calls("-m jupyterlab")
        assert checkout.make("read", OFFLINE="1").returncode == 0
        assert not checkout.calls("-m pip")

    def test_the_whole_course_comes_on_top_of_what_reading_installed(self, checkout: Checkout) -> None:
        checkout.make("read")
        assert checkout.make("lab").returncode == 0
        assert checkout.installed() == [".[course]"]
        assert not checkout.calls("-m venv")
        assert checkout.make("read", OFFLINE="1").returncode == 0, "the whole course is enough to read it"
        assert not checkout.calls("-m pip")
        checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
        assert checkout.make("read").returncode == 0
        assert checkout.calls("-m venv --clear")

    def test_reading_is_recorded_mode(self, checkout: Checkout) -> None:
        assert "LAB_MODE=recorded" in checkout.make("--dry-run", "read").stdout
        assert "LAB_MODE" not in checkout.make("--dry-run", "lab").stdout

    def test_live_tests_are_live(self, checkout: Checkout) -> None:
        plan = checkout.make("--dry-run", "test-gpu").stdout
        assert re.search(r"LAB_MODE=live .*pytest --nbval --nbval-sanitize-with tests/live_sanitizer.cfg", plan)

    def test_a_missing_container_engine_is_named(self, checkout: Checkout) -> None:
        done = checkout.make("container", "ENGINE=")
        assert done.returncode == 2
        assert "Neither docker nor podman" in done.stderr

    def test_clean_keeps_what_the_course_shipped_with(self, checkout: Checkout) -> None:
        kept = ["reports/recorded/gpu/provenance.json", "reports/README.md", "labs/01.ipynb", "Makefile"]
        gone = [
            ".venv/bin/python",
            ".pytest_cache/x",
            ".ruff_cache/x",
            "build/lib/stepbudget/x.py",
            "source_code/stepbudget.egg-info/PKG-INFO",
            "reports/mine.nsys-rep",
            "reports/runs/mine.json",
            "source_code/labkit/__pycache__/x.pyc",
            "labs/.ipynb_checkpoints/x.ipynb",
        ]
        for name in (*kept[:3], *gone):
            (checkout.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout.folder / name).touch()
        assert checkout.make("clean").returncode == 0
        assert all((checkout.folder / name).exists() for name in kept)
        assert not any((checkout.folder / name).exists() for name in gone)
        assert checkout.make("clean").returncode == 0, "a second time there is nothing to remove"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: name and arguments, continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


class TestContainer:
    def test_the_base_can_be_chosen(self) -> None:
        (name, base), (origin, image) = instructions()[:2]
        assert (name, origin, image) == ("ARG", "FROM", "${BASE_IMAGE}")
        assert re.fullmatch(r"BASE_IMAGE=nvcr\.io/nvidia/pytorch:\d\d\.\d\d-py3", base)

    def test_it_does_not_run_as_root(self) -> None:
        users = [rest for name, rest in instructions() if name == "USER"]
        assert users
        assert users[-1] not in ("root", "0")

    def test_jupyter_keeps_its_token(self) -> None:
        (command,) = [rest for name, rest in instructions() if name == "CMD"]
        assert '"jupyter", "lab"' in command
        for file in ("Dockerfile", "Makefile"):
            assert not re.search(r"token|password", re.sub(r"#.*", "", (ROOT / file).read_text()), re.IGNORECASE)

    @pytest.mark.parametrize(
        ("path", "included"),
        [
            ("start_here.ipynb", True),
            ("labs/01_introduction.ipynb", True),
            ("source_code/labkit/training/machine.py", True),
            ("reports/recorded/h200/provenance.json", True),
            (".venv/bin/python", False),
            (".git/config", False),
            (".env", False),
            ("reports/mine.nsys-rep", False),
            ("reports/runs/mine.json", False),
            ("source_code/labkit/__pycache__/machine.cpython-312.pyc", False),
        ],
    )
    def test_only_the_course_goes_into_the_image(self, path: str, included: bool) -> None:
        verdict = True
        for line in (ROOT / ".dockerignore").read_text().splitlines():
            if line and not line.startswith("#") and _matches(path, line.lstrip("!").rstrip("/")):
                verdict = line.startswith("!")  # the last line that matches decides
        assert verdict is included


def _matches(path: str, pattern: str) -> bool:
    """Does a .dockerignore pattern match a path or a folder above it? A star stops at a slash."""
    parts, wanted = path.split("/"), pattern.split("/")
    if wanted[0] == "**":
        return any(fnmatch(part, wanted[1]) for part in parts)
    return len(wanted) <= len(parts) and all(map(fnmatch, parts, wanted))


def test_the_torch_that_breaks_torchvision_is_excluded() -> None:
    wanted = re.search(r'^ *"(torch\b[^"]*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert wanted
    torch = Requirement(wanted[1])
    assert not torch.specifier.contains("2.13.0")
    assert torch.specifier.contains("2.13.1")
    assert torch.specifier.contains("2.9.0a0+gitabc.nv25.10", prereleases=True), (
        "NVIDIA's containers bring such versions"
    )
