"""Which versions are known to work together? A file for each Python, beside this module; ``make`` hands it to pip.

It holds the name and version of all that the course, its tests and Keras had installed when every test passed, as
constraints: what is not asked for is not installed. CUDA's libraries are left out, since each build of PyTorch names
its own. Choosing a file takes the standard library alone: nothing is installed yet.
"""

from __future__ import annotations

import importlib.metadata
import os
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
OF_THE_BUILD = ("nvidia-", "cuda-")  # PyTorch's wheel names them with their versions


def file_for(python: tuple[int, ...] | None = None) -> Path:
    """Where the tested set of a Python, or of this one, lies or would lie."""
    return Path(__file__).with_name("python{}.{}.txt".format(*python or sys.version_info))


def pins(file: Path) -> dict[str, str]:
    """Versions by name, as they stand in a file of constraints."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


def chosen() -> tuple[str, str]:
    """The constraints for this environment, as a path from the top of the checkout, or nothing; and why nothing."""
    if os.environ.get("PIP_CONSTRAINT"):
        return "", "PIP_CONSTRAINT names others"
    if Path(sys.prefix, FLOATS).exists():
        return "", "FLOAT=1 was asked for"
    if version := _torch_of_the_base():
        return "", f"PyTorch {version} came with the machine, and its companions with it"
    file = file_for()
    if not file.is_file():
        return "", "nothing was tested with Python {}.{} yet".format(*sys.version_info)
    return file.relative_to(ROOT).as_posix(), ""


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


def moved(file: Path) -> dict[str, tuple[str, str]]:
    """What is installed here in another version than was tested: name → (tested, or nothing where it is new; here).

    Without the file everything is new.
    """
    tested = pins(file) if file.is_file() else {}
    return {name: (tested.get(name, ""), here) for name, here in installed().items() if here != tested.get(name)}
