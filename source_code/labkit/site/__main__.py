"""Build the site into build/site/ and check it: python3 -m labkit.site

It needs the extra ``site``, which ``make site`` installs.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from labkit.paths import ROOT
from labkit.site import check, contents
from labkit.site.contents import SITE

UNUSED = ("*.map", "*macros.html", ".buildinfo*")  # of the theme's own files
HOME = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">{1}</a>\n'


def build() -> None:
    """Write the whole site anew; SystemExit on any warning."""
    try:
        from sphinx.cmd.build import build_main
    except ImportError:
        sys.exit("The site is built by Sphinx, which is not installed: make site installs it.")
    with tempfile.TemporaryDirectory() as scratch:
        strict = ["-q", "-W", "--keep-going", "-j", "auto"]
        folders = ["-c", str(Path(__file__).parent), "-d", f"{scratch}/pages", str(ROOT), f"{scratch}/site"]
        if failed := build_main(["-b", "html", *strict, *folders]):
            sys.exit(failed)
        shutil.rmtree(SITE, ignore_errors=True)
        shutil.copytree(f"{scratch}/site", SITE, ignore=shutil.ignore_patterns(*UNUSED))
    front = contents.Page(contents.FRONT).name
    (SITE / "index.html").write_text(HOME.format(f"{front}.html", "The course"))


def main() -> None:
    began = time.monotonic()
    build()
    found = check.checked(SITE)
    notebooks = [ROOT / file for file in contents.files() if file.endswith(".ipynb")]
    if wrong := found.wrong + check.unfolded(SITE, notebooks, ROOT):
        sys.exit("\n".join([*wrong, f"{len(wrong)} things are wrong in {SITE}"]))
    size = sum(file.stat().st_size for file in SITE.rglob("*") if file.is_file()) / 1e6
    counts = ", ".join(f"{number:,} {what}" for what, number in found.counted.items())
    print(f"{counts}: all hold. {size:.0f} MB in {time.monotonic() - began:.0f} s: {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
