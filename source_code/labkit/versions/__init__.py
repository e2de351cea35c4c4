"""Which versions are known to work together? A file for each Python, beside this module; ``make`` hands it to pip.

It holds the name and version of all that the course, its tests and Keras had installed when every test passed, as
constraints: what is not asked for is not installed. CUDA's libraries are left out, since each build of PyTorch names
its own. Where the driver is too old for that PyTorch, ``cuda12.txt`` names an older one. Choosing takes the standard
library alone: nothing is installed yet.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.paths import ROOT

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PACKAGE = "stepbudget"
EXTRAS = ("dev", "keras")  # with those that they name in turn
FLOATS = ".floats"  # in an environment that was made with FLOAT=1
HELD = ".held.txt"  # in one whose PyTorch was chosen for an older driver: what holds there
CUDA12 = Path(__file__).with_name("cuda12.txt")
OF_THE_BUILD = ("nvidia-", "cuda-")  # PyTorch's wheel names them with their versions
# For each major version of CUDA, the oldest driver that runs all of its minor versions
# (docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
PATIENCE_S = 30.0  # with nvidia-smi, which wakes the GPU


def file_for(python: tuple[int, ...] | None = None) -> Path:
    """Where the tested set of a Python, or of this one, lies or would lie."""
    return Path(__file__).with_name("python{}.{}.txt".format(*python or sys.version_info))


def pins(file: Path) -> dict[str, str]:
    """Versions by name, as they stand in a file of constraints."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


def chosen() -> tuple[str, str]:
    """The constraints for this environment, as a path from the top of the checkout, or nothing; and what to say of it.

    Written anew where the driver wants another PyTorch than was tested on this Python, or than the newest.
    """
    held = Path(sys.prefix, HELD)
    held.unlink(missing_ok=True)
    if os.environ.get("PIP_CONSTRAINT"):
        return "", "Versions are not held: PIP_CONSTRAINT names others."
    if version := _torch_of_the_base():
        why = f"PyTorch {version} came with the machine, and its companions with it"
        return "", f"Versions are not held: {why}."
    file, why = file_for(), ""
    if Path(sys.prefix, FLOATS).exists():
        why = "Versions are not held: FLOAT=1 was asked for."
    elif not file.is_file():
        why = "Versions are not held: nothing was tested with Python {}.{} yet.".format(*sys.version_info)
    older, of_the_driver = for_driver(driver())
    said = " ".join(filter(None, (why, of_the_driver)))
    if not older:
        return "" if why else file.relative_to(ROOT).as_posix(), said
    holds = ({} if why else pins(file)) | older
    held.write_text("".join(f"{name}=={version}\n" for name, version in holds.items()))
    return os.path.relpath(held.resolve(), ROOT.resolve()), said


def driver() -> str:
    """The NVIDIA driver's version as ``nvidia-smi`` tells it (``570.124.06``); empty where it tells none."""
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.match(r"\d+(\.\d+)*$", done.stdout, re.MULTILINE)
    return found[0] if found and done.returncode == 0 else ""


def for_driver(version: str) -> tuple[dict[str, str], str]:
    """Which PyTorch a driver wants in the place of the tested one: versions by name, or nothing; and a sentence on it.

    ``version`` as ``driver`` gives it. Where it is too old for all that the course takes, the sentence says what to do.
    """
    major = int(version.partition(".")[0] or OLDEST_DRIVER[13])
    if major >= OLDEST_DRIVER[13]:
        return {}, ""
    if major < OLDEST_DRIVER[12]:
        mend = f"install {OLDEST_DRIVER[13]} or newer (on Ubuntu: sudo ubuntu-drivers install), then make lab"
        return (
            {},
            f"The NVIDIA driver {version} is too old for the course's PyTorch, which will not use the GPU: {mend}.",
        )
    older = pins(CUDA12)
    return older, f"The NVIDIA driver {version} runs CUDA 12: PyTorch is held at {older['torch']}, the last one for it."


def _torch_of_the_base() -> str:
    """The version of a PyTorch that lies outside this environment; in a Python that is none, of any."""
    no_environment = sys.prefix == sys.base_prefix
    for found in importlib.metadata.distributions(name="torch"):
        if no_environment or not Path(found.locate_file("")).is_relative_to(sys.prefix):
            return found.version
    return ""


def required(name: str, extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """What an installed distribution requires on this machine, with these extras and those of its own they name."""
    from packaging.requirements import Requirement

    for text in importlib.metadata.requires(name) or ():
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            if one.name == name:
                yield from required(name, one.extras)
            else:
                yield one


def installed() -> dict[str, str]:
    """The version of each distribution that is here, by name; pip, the course itself and CUDA's libraries left out.

    Raises ``importlib.metadata.PackageNotFoundError`` where the course itself is not installed.
    """
    from packaging.utils import canonicalize_name

    there = reversed([*importlib.metadata.distributions()])  # of two, the one that Python finds first
    versions = {canonicalize_name(one.name): one.version.partition("+")[0] for one in there}
    left_out = {"pip", PACKAGE, *(name for name in versions if name.startswith(OF_THE_BUILD))}
    left_out -= {canonicalize_name(one.name) for one in required(PACKAGE, EXTRAS)}
    return {name: versions[name] for name in sorted({*versions} - left_out)}


def held_by() -> Path:
    """What this environment is held by: its Python's tested set, or what was made of it for an older driver."""
    held = Path(sys.prefix, HELD)
    return held if held.is_file() else file_for()


def moved(file: Path) -> dict[str, tuple[str, str]]:
    """What is installed here in another version than was tested: name → (tested, or nothing where it is new; here).

    Without the file everything is new.
    """
    tested = pins(file) if file.is_file() else {}
    return {name: (tested.get(name, ""), here) for name, here in installed().items() if here != tested.get(name)}
