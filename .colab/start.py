"""Makes the course ready on a notebook service such as Google Colab, where each notebook has a machine of its own.

The first cell of a notebook that ``notebooks.py`` wrote fetches the checkout and runs this file in the notebook's
process. What is missing is installed, and where there is a GPU, Nsight Systems with it. The last line says whether the
labs run live, and else why not.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

COURSE = Path(__file__).resolve().parents[1]
SERVICES_OWN = ("jupyterlab", "nbval", "pytest")  # it shows the notebooks itself, and tests nothing
OLDEST_NSYS = (2022, 4)
TOLD = ("GPU", "GPU counters", "CPU cores")  # of a T4: no TF32 and BF16, perhaps no Tensor Active, hardly a worker
GET_A_GPU = "on Colab, choose Runtime, Change runtime type, T4 GPU, and run this cell again"


class CannotStart(Exception):
    """Why the course cannot be used here at all, in one sentence."""


def main() -> None:
    """Install, decide between live and recorded, say so. What the notebook's later cells need stays behind.

    That is the path for imports, ``PYTHONPATH`` for the programs that they start, ``LAB_MODE``, and the folder.
    """
    has_gpu = gpu_answers()
    with_torch = has_gpu or importlib.util.find_spec("torch") is not None
    print(installed(requirements(with_torch)))
    make_known()
    if os.environ.get("LAB_MODE", "auto") == "auto" and (reason := why_recorded(has_gpu)):
        os.environ["LAB_MODE"] = "recorded"
        print(f"The labs show what was recorded, since {reason.rstrip('.')}.")
    else:
        tell_of_this_machine()


def gpu_answers() -> bool:
    """Does the driver name a GPU?"""
    try:
        return bool(subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=60, check=True).stdout.strip())
    except (OSError, subprocess.SubprocessError):
        return False


def requirements(with_torch: bool) -> list[str]:
    """What has to be installed: pyproject.toml's words on reading, with PyTorch on the whole course."""
    project = tomllib.loads((COURSE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["read"], *(extras["course"] if with_torch else ())]
    left_out = (project["name"], *SERVICES_OWN)
    return [line for line in lines if re.match(r"[\w-]+", line)[0] not in left_out]


def installed(wanted: list[str]) -> str:
    """Install what is missing of these; a line on what was. CannotStart with pip's last words."""
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-compile", *wanted]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise CannotStart(f"pip could not install what the labs need: {said[-1] if said else 'it said nothing'}")
    importlib.invalidate_caches()
    new = re.search(r"^Successfully installed (.+)", done.stdout, re.MULTILINE)
    return f"Installed: {new[1]}" if new else "All that the labs need was installed already."


def make_known() -> None:
    """To this process and to those that it starts: where the course lies."""
    source_code = str(COURSE / "source_code")
    if source_code not in sys.path:
        sys.path.insert(0, source_code)
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != source_code]
    os.environ["PYTHONPATH"] = os.pathsep.join([source_code, *others])
    os.chdir(COURSE / "labs")


def why_recorded(has_gpu: bool) -> str:
    """What keeps the labs from running live here; empty: nothing. Without an nsys that works, PyTorch profiles."""
    if not has_gpu:
        return f"this machine has no GPU ({GET_A_GPU})"
    from labkit.training import machine

    if machine.gpu_name() is None:
        return f"PyTorch cannot use this machine's GPU ({machine.gpu_problem() or 'it is built for CPUs'})"
    if problem := nsys_problem():
        os.environ["LAB_PROFILER"] = "torch"
        print(f"PyTorch's profiler makes the profiles, without Nsight Systems: {problem}")
    return ""


def nsys_problem() -> str:
    """Why no report can be made here, after an attempt to install Nsight Systems; empty where one can."""
    from labkit import doctor
    from stepbudget.export import nsys

    def found() -> bool:
        nsys.find_nsys.cache_clear()
        there = nsys.find_nsys()
        return there is not None and there.version[:2] >= OLDEST_NSYS

    problem = "" if found() else install_nsys(found)
    return problem or doctor.profiler()[2]


def install_nsys(found) -> str:
    """Install Nsight Systems from the machine's package sources until ``found()``; else why there is none."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "Nsight Systems is missing, and only root of a Debian or Ubuntu machine can install it here"
    quiet = {"env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, "capture_output": True, "text": True}
    subprocess.run(["apt-get", "-q", "update"], **quiet)
    known = subprocess.run(["apt-cache", "search", "--names-only", "^nsight-systems"], **quiet).stdout
    for package in packages(known.split("\n")):
        subprocess.run(["apt-get", "-q", "install", "-y", "--no-install-recommends", package], **quiet)
        if found():
            print(f"Installed: {package}")
            return ""
    oldest = ".".join(map(str, OLDEST_NSYS))
    return f"no Nsight Systems of {oldest} or later could be installed from this machine's package sources"


def packages(known: list[str]) -> list[str]:
    """Those of apt-cache's lines that may be Nsight Systems, the likeliest first.

    NVIDIA's sources have ``nsight-systems-cli`` (without the window) or ``nsight-systems-2025.3.2``, one a version;
    Ubuntu's have ``nsight-systems``, which may be years old.
    """
    names = {line.partition(" ")[0] for line in known}
    dated = {name: re.fullmatch(r"nsight-systems-(?:cli-)?(\d{4})\.(\d+)\.(\d+)", name) for name in names}
    newest = sorted((name for name in names if dated[name]), key=lambda name: [*map(int, dated[name].groups())])
    return [name for name in ("nsight-systems-cli", *newest[:-3:-1], "nsight-systems") if name in names]


def tell_of_this_machine() -> None:
    """Where the numbers come from; live, a line on each thing that the machine lacks."""
    from labkit import source
    from labkit.source.facts import torch_version
    from labkit.subjects import prerequisites

    if source.current().name == "live":
        for what, here, so in prerequisites.rows(source.this_machine(), torch_version("cuda"), None):
            if so and what in TOLD:
                print(f"{what}: {here}: {so}")
    print(source.current().greeting)


if __name__ == "__main__":
    try:
        main()
    except CannotStart as reason:
        sys.exit(f"The course cannot start here: {reason}")
