"""Does the course install itself as the README says? The Makefile with stand-in Pythons, and facts of the container."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = ROOT / "Makefile"

PATIENCE_S = 300  # with a make, on a machine that is busy

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

# A python3 that installs nothing: it writes down how it was called, and breaks in the ways that the environment names.
# It is started some ten times a make, so that it imports only what a call needs.
STAND_IN = """#!{python} -IS
import os, sys

arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    print(*arguments, file=log)
if "SHIM" in os.environ:
    sys.exit("pyenv: python3.9: command not found\\n\\nThe `python3.9' command exists in these versions:\\n  3.9.18")
if "OLD" in os.environ:
    sys.version_info = (3, 8, 18, "final", 0)
if "NO_VENV" in os.environ:
    sys.modules["ensurepip"] = None
if arguments[0] == "-c":
    exec(arguments[1])
elif arguments[:2] == ["-m", "venv"]:
    import shutil
    from pathlib import Path

    folder = Path(arguments[-1])
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    system = "--system-site-packages" in arguments
    (folder / "pyvenv.cfg").write_text(f"include-system-site-packages = {{str(system).lower()}}\\n")
    shutil.copy(__file__, folder / "bin/python")
    (folder / "made").touch()
elif arguments == ["-m", "labkit.versions"]:
    import runpy

    sys.path.insert(0, "source_code")
    sys.argv, sys.prefix, sys.base_prefix = arguments[1:], os.path.realpath(".venv"), "/usr"
    sys.version_info = (*map(int, os.environ.get("AS_PYTHON", "3.12").split(".")), 0, "final", 0)
    runpy.run_module("labkit.versions", run_name="__main__")
elif arguments[:2] == ["-m", "ensurepip"]:
    open(".venv/has-pip", "w").close()
elif arguments[:2] == ["-m", "pip"]:
    import time

    with open({log!r}, "a") as log:
        print("held by", *(os.environ.get(name) for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")), file=log)
    while "install" in arguments and "WAIT_FOR" in os.environ and not os.path.exists(os.environ["WAIT_FOR"]):
        time.sleep(0.02)
    if not os.path.exists(".venv/has-pip") or ("OFFLINE" in os.environ and "install" in arguments):
        sys.exit(1)
"""


class Checkout:
    """A folder with the Makefile and a stand-in python3, and what that python3 was asked for."""

    def __init__(self, folder: Path, name: str = "checkout") -> None:
        self.folder = folder / name
        self.folder.mkdir()
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, self.folder)
        labkit = Path("source_code/labkit")
        shutil.copytree(ROOT / labkit / "versions", self.folder / labkit / "versions")
        for name in ("__init__.py", "paths.py"):
            shutil.copy(ROOT / labkit / name, self.folder / labkit)
        self.log = folder / "log"
        self.python = folder / "python3"
        self.python.write_text(STAND_IN.format(python=sys.executable, log=str(self.log)))
        self.python.chmod(0o755)

    def make(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        job = self.start(*words, **environment)
        out, error = job.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(job.args, job.returncode, out, error)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        not_ours = ("MAKE", "MFLAGS", "FLOAT", "PIP_", "SYSTEM_PACKAGES", "ARGS", "ENGINE", "IMAGE")
        outside = {name: value for name, value in os.environ.items() if not name.startswith(not_ours)}
        return subprocess.Popen(
            [shutil.which("make"), f"PYTHON={self.python}", *words],
            cwd=self.folder,
            env=outside | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        )

    def calls(self, start: str) -> list[str]:
        """The calls of python3 since the last ``make`` that begin with these words."""
        return [line for line in self.log.read_text().splitlines() if line.startswith(start)]

    def installed(self) -> list[str]:
        """What was installed in editable mode."""
        return [call.rpartition(" -e ")[2] for call in self.calls("-m pip") if " install " in call]

    def held(self) -> set[str]:
        """The constraints of what was installed, for packages and for what builds one."""
        log = self.log.read_text().splitlines()
        return {held for call, held in pairwise(log) if " install " in call and held.startswith("held by")}

    def installs(self) -> int:
        return sum(" install " in call for call in self.calls("-m pip"))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def installing(checkout: Checkout, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """A ``make lab`` that installs until there is a file ``go`` in ``folder``."""
    checkout.log.write_text("")
    job = checkout.start("lab", WAIT_FOR=str(folder / "go"), **environment)
    deadline = time.monotonic() + PATIENCE_S
    while not checkout.installs():
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.02)
    return job


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
            "keras",
            "doctor",
            "test",
            "test-all",
            "test-gpu",
            "lint",
            "record",
            "notebooks",
            "images",
            "slides",
            "site",
            "container",
            "clean",
        } == public
        assert not checkout.log.read_text(), "listing the commands must not need Python"

    @pytest.mark.parametrize(
        ("environment", "words"),
        [
            ({"OLD": "1"}, ["is Python 3.8,", "3.10 or newer", "PYTHON="]),
            ({"SHIM": "1"}, ["is on PATH and does not run (pyenv: python3.9: command not found)", "PYTHON="]),
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

    def test_the_doctor_costs_no_installation(self, checkout: Checkout) -> None:
        assert checkout.make("doctor").returncode == 0
        assert checkout.calls("-m labkit.versions.before") and not (checkout.folder / ".venv").exists()
        checkout.make("read")
        assert checkout.make("doctor", OFFLINE="1").returncode == 0
        assert checkout.calls("-m labkit.doctor") and not checkout.calls("-m pip")
        checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
        assert checkout.make("doctor", OFFLINE="1").returncode == 0
        assert checkout.calls("-m labkit.versions.before"), "what lies there does not run here"
        assert "3.10 or newer" in checkout.make("doctor", OLD="1").stderr

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

    @pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
    def test_a_second_make_waits_for_the_first_and_installs_nothing(self, checkout: Checkout, tmp_path: Path) -> None:
        first = installing(checkout, tmp_path)
        second = checkout.start("lab")
        assert "Another make installs into .venv: waiting" in second.stdout.readline()
        (tmp_path / "go").touch()
        assert [job.wait(PATIENCE_S) for job in (first, second)] == [0, 0]
        assert checkout.installed() == [".[course]"] and len(checkout.calls("-m venv")) == 1
        assert len(checkout.calls("-m jupyterlab")) == 2
        for job in (first, second):
            job.communicate()

    def test_without_flock_a_second_make_says_so_and_ends(self, checkout: Checkout, tmp_path: Path) -> None:
        tools = tmp_path / "tools"
        tools.mkdir()
        for name in ("sh", "make", "cat", "grep", "rm", "id", "test", "touch", "echo"):
            (tools / name).symlink_to(shutil.which(name))
        first = installing(checkout, tmp_path, PATH=str(tools))
        second = checkout.start("lab", PATH=str(tools))
        said = second.communicate(timeout=PATIENCE_S)[1].splitlines()
        assert second.returncode == 2
        assert re.fullmatch(r"Another make \(process \d+\) installs into \.venv: wait for its end", said[0])
        (tmp_path / "go").touch()
        assert first.wait(PATIENCE_S) == 0
        first.communicate()
        assert checkout.make("lab", PATH=str(tools)).returncode == 0

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_an_installation_that_was_killed_is_made_anew(
        self, checkout: Checkout, tmp_path: Path, how: signal.Signals
    ) -> None:
        first = installing(checkout, tmp_path)
        os.killpg(first.pid, how)
        assert first.wait(PATIENCE_S) != 0
        first.communicate()
        assert not (checkout.folder / ".venv/.installed").exists()
        assert checkout.make("lab").returncode == 0, "nobody holds the lock"
        assert checkout.calls("-m venv --clear") and checkout.installed() == [".[course]"]

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

    @pytest.mark.parametrize("goal", ["lab", "read", "doctor"])
    def test_a_line_break_in_the_folders_name_is_refused_before_anything_is_installed(
        self, tmp_path: Path, goal: str
    ) -> None:
        """An installation would end well there, and nothing be found in it."""
        checkout = Checkout(tmp_path, "one\ntwo")
        done = checkout.make(goal)
        said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
        assert done.returncode == 2 and len(said) == 1 and "line break in its name" in said[0]
        assert not checkout.log.read_text() and not (checkout.folder / ".venv").exists()

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

    @pytest.mark.parametrize(
        ("goal", "python"), [("lab", "3.10"), ("read", "3.11"), ("test", "3.12"), ("keras", "3.13")]
    )
    def test_versions_are_those_tested_with_this_python(self, checkout: Checkout, goal: str, python: str) -> None:
        assert checkout.make(goal, AS_PYTHON=python).returncode == 0
        assert checkout.held() == {" ".join(["held by", *[f"source_code/labkit/versions/python{python}.txt"] * 2])}

    @pytest.mark.parametrize("driver", ["535.183.01", "550.54.15", "570.124.06", "580.65.06", None])
    def test_the_driver_chooses_the_torch(self, checkout: Checkout, tmp_path: Path, driver: str | None) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{f'echo {driver}' if driver else 'exit 9'}\n")
        (tmp_path / "bin/nvidia-smi").chmod(0o755)
        done = checkout.make("lab", PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        old = driver is not None and int(driver[:3]) < 580
        file = ".venv/.held.txt" if old else "source_code/labkit/versions/python3.12.txt"
        assert checkout.held() == {f"held by {file} {file}"}
        assert (f"The NVIDIA driver {driver} runs CUDA 12: PyTorch is held at 2.10.0" in done.stderr) is old
        assert not old or "\ntorch==2.10.0\n" in (checkout.folder / file).read_text()

    def test_versions_float_on_request_and_so_does_what_is_added_later(self, checkout: Checkout) -> None:
        assert "FLOAT=1 was asked for" in checkout.make("read", "FLOAT=1").stderr
        assert checkout.held() == {"held by None None"}
        checkout.make("test")
        assert checkout.installs() == 2 and checkout.held() == {"held by None None"}
        shutil.rmtree(checkout.folder / ".venv")
        checkout.make("lab")
        assert "held by None None" not in checkout.held()

    def test_constraints_of_the_machine_come_first(self, checkout: Checkout) -> None:
        checkout.make("lab", PIP_CONSTRAINT="/etc/pip/constraint.txt")
        assert checkout.held() == {"held by /etc/pip/constraint.txt None"}

    def test_a_python_that_nothing_was_tested_with_gets_the_newest_and_is_told(self, checkout: Checkout) -> None:
        assert "nothing was tested with Python 3.99 yet" in checkout.make("lab", AS_PYTHON="3.99").stderr
        assert checkout.held() == {"held by None None"}

    def test_newly_tested_versions_are_installed(self, checkout: Checkout) -> None:
        checkout.make("lab")
        file = checkout.folder / "source_code/labkit/versions/python3.12.txt"
        later = (checkout.folder / ".venv/.installed").stat().st_mtime + 10
        os.utime(file, (later, later))
        checkout.make("lab")
        assert checkout.installs() == 1

    def test_reading_is_recorded_mode(self, checkout: Checkout) -> None:
        assert "LAB_MODE=recorded" in checkout.make("--dry-run", "read").stdout
        assert "LAB_MODE" not in checkout.make("--dry-run", "lab").stdout

    def test_live_tests_are_live(self, checkout: Checkout) -> None:
        plan = checkout.make("--dry-run", "test-gpu").stdout
        assert re.search(r"LAB_MODE=live .*pytest --nbval --nbval-sanitize-with tests/live_sanitizer.cfg", plan)

    @pytest.mark.parametrize(
        ("answers", "silent", "called"),
        [
            (["docker", "podman", "buildah"], [], "docker build -t gpu-performance-lab ."),
            (["podman", "buildah"], ["docker"], "podman build --format docker -t gpu-performance-lab ."),
            (["buildah"], ["docker"], "buildah build --format docker -t gpu-performance-lab ."),
            (["buildah"], ["docker", "podman"], "buildah build --format docker -t gpu-performance-lab ."),
        ],
    )
    def test_the_first_container_engine_that_answers_builds(
        self, checkout: Checkout, answers: list[str], silent: list[str], called: str
    ) -> None:
        """A client whose service does not run is on PATH, too."""
        done = checkout.make("container", PATH=_engines(checkout, answers, silent))
        assert done.returncode == 0, done.stderr
        assert checkout.calls("") == [called]

    def test_a_named_container_engine_builds_and_gets_the_readers_words(self, checkout: Checkout) -> None:
        path = _engines(checkout, ["docker", "nerdctl"], [])
        done = checkout.make("container", "ENGINE=nerdctl", "ARGS=--build-arg BASE_IMAGE=mine", "IMAGE=it", PATH=path)
        assert done.returncode == 0, done.stderr
        assert checkout.calls("") == ["nerdctl build -t it --build-arg BASE_IMAGE=mine ."]

    def test_without_a_container_engine_that_answers_one_sentence_says_what_was_tried(self, checkout: Checkout) -> None:
        done = checkout.make("container", PATH=_engines(checkout, [], ["docker"]))
        said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
        assert done.returncode == 2
        assert len(said) == 1
        assert "docker does not answer" in said[0] and "podman is not on PATH, buildah is not on PATH." in said[0]
        assert "ENGINE=" in said[0]

    def test_a_build_that_fails_fails(self, checkout: Checkout) -> None:
        path = _engines(checkout, ["docker"], [])
        assert checkout.make("container", PATH=path, NO_BUILD="1").returncode == 2

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


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the checkout came without its history")
@pytest.mark.parametrize("crlf", ["true", "input"])
def test_a_clone_that_would_turn_lines_has_those_of_the_repository(tmp_path: Path, crlf: str) -> None:
    """As Git for Windows sets it up, whose clone WSL opens: a Makefile and a shebang with a carriage return fail."""
    git = ["git", "-C", str(tmp_path / "clone"), "-c", "safe.directory=*"]
    clone = ["git", "-c", "safe.directory=*", "clone", "--quiet", "--shared", "--no-checkout"]
    subprocess.run([*clone, "-c", f"core.autocrlf={crlf}", str(ROOT), str(tmp_path / "clone")], check=True)
    parts = ["Makefile", ".ci", "conftest.py", "labs", "source_code", "reports/recorded/h200/counters"]
    for some in ([".gitattributes"], parts):
        subprocess.run([*git, "checkout", "--quiet", "HEAD", "--", *some], check=True)
    files = [path for part in parts for path in [tmp_path / "clone" / part, *(tmp_path / "clone" / part).rglob("*")]]
    turned = [path for path in files if path.is_file() and b"\r\n" in path.read_bytes()]
    assert len(files) > 200 and not turned
    said = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no", "--", *parts], capture_output=True)
    assert said.returncode == 0 and not said.stdout


def _engines(checkout: Checkout, answers: list[str], silent: list[str]) -> str:
    """A PATH with nothing but a shell and stand-ins for engines: those that answer, and those whose service is down."""
    folder = checkout.folder.parent / "engines"
    folder.mkdir()
    (folder / "sh").symlink_to(shutil.which("sh"))
    for name in (*answers, *silent):
        answer = f'echo "${{0##*/}} $*" >>{checkout.log}; exit ${{NO_BUILD:-0}}' if name in answers else "exit 1"
        (folder / name).write_text(f'#!/bin/sh\n[ "$1" = info ] && exit {int(name in silent)}\n{answer}\n')
        (folder / name).chmod(0o755)
    return str(folder)


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: name and arguments, continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def images() -> dict[str, list[tuple[str, str]]]:
    """Each image of the Dockerfile: what it is made from → its instructions."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, rest in instructions():
        if name == "FROM":
            found[rest] = []
        elif found:
            [*found.values()][-1].append((name, rest))
    return found


class TestContainer:
    def test_the_base_of_either_image_can_be_chosen_and_the_last_one_is_the_whole_course(self) -> None:
        (name, base), (other, slim) = instructions()[:2]
        assert name == other == "ARG"
        assert re.fullmatch(r"BASE_IMAGE=nvcr\.io/nvidia/pytorch:\d\d\.\d\d-py3", base)
        assert re.fullmatch(r"READ_IMAGE=python:3\.\d+-slim", slim)
        assert [*images()] == ["${READ_IMAGE} AS read", "${BASE_IMAGE} AS course"]

    def test_the_image_to_read_with_is_the_other_without_pytorch(self) -> None:
        read, course = images().values()
        (without,) = [rest for name, rest in read if "pip install" in rest]
        assert "-e '.[read]'" in without
        as_the_other = [
            (name, rest.replace("--no-compile ", "").replace(".[read]", ".[course]").replace("LAB_MODE=recorded", ""))
            for name, rest in read
        ]
        assert [(name, rest.split()) for name, rest in as_the_other] == [(name, rest.split()) for name, rest in course]

    def test_it_does_not_run_as_root(self) -> None:
        for image in images().values():
            users = [rest for name, rest in image if name == "USER"]
            assert users
            assert users[-1] not in ("root", "0")

    def test_jupyter_keeps_its_token(self) -> None:
        for image in images().values():
            (command,) = [rest for name, rest in image if name == "CMD"]
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
        assert _in_the_image(path) is included

    def test_what_the_notebooks_open_and_link_to_goes_into_the_image(self) -> None:
        named = set()
        for notebook in (ROOT / "start_here.ipynb", *sorted((ROOT / "labs").glob("*.ipynb"))):
            for cell in json.loads(notebook.read_text())["cells"]:
                text = "".join(cell["source"])
                if cell["cell_type"] == "code":
                    named |= {ROOT / path for path in re.findall(r'"((?:[\w-]+/)+[\w.-]+\.\w+)"', text)}
                else:
                    links = re.findall(r"\]\((?!https?:|#|attachment:)([^)#\s]+)", text)
                    named |= {(notebook.parent / path).resolve() for path in links}
        named = {path.relative_to(ROOT).as_posix() for path in named if path.is_file()}
        assert {"tests/long/test_limit.py", "source_code/stepbudget/README.md", "labs/glossary.md"} <= named
        assert not [path for path in sorted(named) if not _in_the_image(path)]


def _in_the_image(path: str) -> bool:
    verdict = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and _matches(path, line.lstrip("!").rstrip("/")):
            verdict = line.startswith("!")  # the last line that matches decides
    return verdict


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
