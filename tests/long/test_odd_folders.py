"""A checkout may lie in a folder of any name: the tests of paths and commands pass in a copy there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from labkit.paths import ROOT

SHORT = ("test_command.py", "test_originals.py", "test_anonymous.py")
FILES = [*(f"tests/short/{file}" for file in SHORT), "tests/long/test_manifest.py", "tests/long/test_real_nsys.py"]


def test_tests_of_paths_pass_in_a_folder_of_any_name(tmp_path):
    """Its words are those of commands, between spaces; it has the README's name in it, and an apostrophe."""
    copy = tmp_path / "it's nsys cuda capture gpu-performance-lab"
    copy.mkdir()
    for part in ("source_code", "labs", "images", "reports", "tests"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("conftest.py", "pyproject.toml", "start_here.ipynb", "README.md"):
        shutil.copyfile(ROOT / part, copy / part)
    python = copy / ".venv" / "bin" / "python3"  # whose path holds the folder's name, as a reader's does
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", copy / ".venv"], check=True)
    (packages,) = (copy / ".venv").glob("lib/python*/site-packages")
    (packages / "as_here.pth").write_text("\n".join([str(copy / "source_code"), *filter(None, sys.path)]))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES]
    done = subprocess.run(words, cwd=copy, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
