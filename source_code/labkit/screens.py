"""What do a timeline, a budget and a report look like? Pictures of them, for README and the front page.

    python3 -m labkit.screens --out images      take them, with a headless Chromium
    python3 -m labkit.screens --check images    exit status 1 where a file is of something else than is shown now

A picture carries the fingerprint of the page that it was taken of: to check it takes no browser.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image, PngImagePlugin

import stepbudget as sb
from labkit.errors import LabError, one_sentence
from labkit.source import recorded
from stepbudget.__main__ import main as command_line

KEY = "Fingerprint"  # of the page, in the picture's text
COLOURS = 128
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
AROUND = (
    "<!doctype html><meta charset=utf-8><body style='margin:12px;width:976px;font-family:sans-serif;background:#fff'>"
)


def _report(name: str) -> Path:
    return recorded.folder() / "profiles" / f"{name}.sqlite.xz"


def timeline() -> str:
    """An epoch with enough workers, as a cell shows it."""
    return AROUND + sb.timeline(sb.open(_report("main_opt1")))._repr_mimebundle_()["text/html"]


def budget() -> str:
    """Where the baseline's epoch goes, as a cell shows it."""
    return AROUND + sb.budget(sb.open(_report("main_baseline_nvtx")))._repr_mimebundle_()["text/html"]


def report() -> str:
    """The page that ``--html`` writes of the baseline's report."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        page = Path(folder) / "page.html"
        command_line([str(_report("main_baseline_nvtx")), "--html", str(page)])
        return page.read_text()


SCREENS: dict[str, tuple[Callable[[], str], int]] = {  # name → the page, the height of the picture in pixels
    "screen_timeline": (timeline, 490),
    "screen_budget": (budget, 496),
    "screen_report": (report, 1000),
}


def save_all(folder: Path) -> list[Path]:
    """Take every picture; LabError where no browser is there."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise LabError(f"no browser takes the pictures: install one of {', '.join(BROWSERS)}.")
    written = []
    with tempfile.TemporaryDirectory() as scratch:
        page, shot = Path(scratch) / "page.html", Path(scratch) / "shot.png"
        for name, (made, height) in SCREENS.items():
            page.write_text(html := made())
            size = f"--window-size=1000,{height}"
            take = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", size]
            subprocess.run([*take, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True)
            about = PngImagePlugin.PngInfo()
            about.add_text(KEY, fingerprint(html))
            file = folder / f"{name}.png"
            Image.open(shot).convert("RGB").quantize(COLOURS).save(file, optimize=True, pnginfo=about)
            written.append(file)
    return written


def stale(folder: Path) -> list[str]:
    """One sentence for each picture that is missing, or was taken of something else than is shown now."""
    complaints = []
    for name, (made, _) in SCREENS.items():
        file = folder / f"{name}.png"
        if not file.is_file():
            complaints.append(f"{file}: missing")
        elif Image.open(file).info.get(KEY) != fingerprint(made()):
            complaints.append(f"{file}: what it shows looks different now; `make images` takes it again")
    return complaints


def fingerprint(html: str) -> str:
    """Of a page, short."""
    return hashlib.sha256(html.encode()).hexdigest()[:12]


def main(arguments: list[str] | None = None) -> int:
    """The command line: take the pictures, or check those that were taken."""
    parser = argparse.ArgumentParser(prog="python3 -m labkit.screens", description=main.__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="FOLDER", type=Path, help="write the pictures there")
    what.add_argument("--check", metavar="FOLDER", type=Path, help="compare the pictures there with what is shown")
    options = parser.parse_args(arguments)
    with one_sentence():
        said = stale(options.check) if options.check else list(map(str, save_all(options.out)))
    print("\n".join(said) or f"all {len(SCREENS)} pictures in {options.check} show what is shown now")
    return 1 if options.check and said else 0


if __name__ == "__main__":
    sys.exit(main())
