"""Without a GPU: a file's kernel tests again, in a process in which Triton interprets its kernels in Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def kernel_tests(file: str) -> str:
    """What pytest says of the tests of a file that are called ``test_kernel_…``; AssertionError where one fails.

    In a process of its own: Triton reads TRITON_INTERPRET when it is imported. It has one thread: the products are
    small, and threads that wait for each other take the cores from the tests beside them.
    """
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(file)), "-k", "test_kernel_"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout
