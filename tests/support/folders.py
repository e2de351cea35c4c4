"""Folders and files as a bad day has them: on a small disk, read-only, protected from everybody."""

import contextlib
import subprocess
from pathlib import Path

import pytest


@contextlib.contextmanager
def other_file_system(folder: Path, size: str = "64k"):
    """A small file system of its own in a folder, as long as the block takes; skips where nobody may mount one."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if made.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def unchangeable(file: Path):
    """A file that even root may not change; skips where the file system knows no such thing."""
    made = subprocess.run(["chattr", "+i", file], capture_output=True)
    if made.returncode != 0:
        pytest.skip("no file can be protected from root here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", file], check=True)


@contextlib.contextmanager
def read_only(folder: Path):
    """A folder that not even root can write; skips where nobody may mount."""
    for words in (["mount", "--bind", folder, folder], ["mount", "-o", "remount,bind,ro", folder]):
        if subprocess.run(words, capture_output=True).returncode != 0:
            pytest.skip("no folder can be made read-only here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
