"""What .ci/container does inside the image, as its user and without a network; ends with status 1 at what is wrong.

``notebooks FILE …``: each file's tests (pytest --nbval), two files at a time. ``serve CONFIG``: JupyterLab by the
image's own command, until its own health check passes; a page, a file and a kernel are asked for over HTTP. CONFIG is
what the image says of itself (Docker's format), as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WORDS = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "--nbval"]
PATIENCE_S = 120  # until JupyterLab answers
PAGES = ("/lab/tree/start_here.ipynb", "/api/contents/labs/01_introduction.ipynb", "/api/kernelspecs")


def notebooks(files: list[str]) -> bool:
    """Run each file's cells and compare their outputs with the stored ones."""
    start = time.monotonic()
    with ThreadPoolExecutor(2) as two:
        results = [*two.map(_tested, files)]
    cells, passed = sum(cells for cells, _ in results), all(fine for _, fine in results)
    print(f"{len(files)} notebooks, {cells} cells run and compared as {_me()} in {time.monotonic() - start:.0f} s")
    return passed


def _tested(file: str) -> tuple[int, bool]:
    """How many of a notebook's cells passed; and did all?"""
    start = time.monotonic()
    done = subprocess.run([*WORDS, file], capture_output=True, text=True, errors="replace")
    found = re.search(r"(\d+) passed", done.stdout)
    cells, fine = int(found[1]) if found else 0, done.returncode == 0 and found is not None
    said = "" if fine else f"\n{done.stdout}{done.stderr}"
    print(f"{file}: {cells} cells, {time.monotonic() - start:.0f} s{said}", flush=True)
    return cells, fine


def serve(config: dict) -> bool:
    """Start the image's command, wait for its health check, and ask as a browser would: with the token and without."""
    command, check = config["Cmd"], config["Healthcheck"]["Test"]
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            while subprocess.run(check[1:], capture_output=True).returncode != 0:
                if server.poll() is not None or time.monotonic() - start > PATIENCE_S:
                    server.kill()
                    print(f"{' '.join(command)} does not answer:\n{server.stdout.read()}")
                    return False
                time.sleep(0.5)
            print(f"the health check passes {time.monotonic() - start:.0f} s after the start, as {_me()}")
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://127\S+", line)))
            token = address.partition("token=")[2]
            fine = [_asked(page, token) for page in PAGES]
            fine += [_asked("/api/kernels", token, b"{}", wanted=201), _asked("/api/contents", "", wanted=403)]
            return bool(token) and all(fine)
        finally:
            server.terminate()


def _asked(page: str, token: str, data: bytes | None = None, wanted: int = 200) -> bool:
    """Does the server answer so? A kernel is started by posting to /api/kernels."""
    asked = urllib.request.Request(f"http://127.0.0.1:8888{page}", data=data)
    if token:
        asked.add_header("Authorization", f"token {token}")
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            status, size = answer.status, len(answer.read())
    except urllib.error.HTTPError as refused:
        status, size = refused.code, 0
    how = "POST" if data else "GET"
    print(f"{how} {page} {'with' if token else 'without'} the token: {status}, {size:,} bytes")
    return status == wanted


def _me() -> str:
    return f"uid {os.getuid()}, HOME {Path.home()}, {Path.cwd()} {'' if os.access('.', os.W_OK) else 'not '}writable"


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    sys.exit(not (notebooks(rest) if what == "notebooks" else serve(json.loads(rest[0]))))
