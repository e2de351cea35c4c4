"""Which pictures in images/ show recorded runs, and are they what the code draws?

    python3 -m labkit.images --out images      write them
    python3 -m labkit.images --check images    exit status 1 where a file is not what the code draws

Each file says in its description what it shows (the alternative text) and the fingerprint of what was drawn, so a
figure whose data changed is found without comparing bytes. The other pictures there are diagrams, edited as SVG.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from labkit import course
from labkit.display import style
from labkit.display.fingerprint import FINGERPRINT_MARK, description
from labkit.errors import one_sentence
from labkit.source import recorded
from labkit.source.command import check_writable
from labkit.subjects import floors, ladder_charts, roofline


def whole_ladder() -> Figure:
    """Training loop and whole process of every rung, and the floor, from the recorded runs."""
    peaks = roofline.peaks(recorded.records("benchmarks", "bench_peaks.py"))
    runs = {step.label: recorded.records("runs", step.script) for step in course.ladder()}
    figure = ladder_charts.ladder(runs, floors.training_floor_s(peaks))
    steps = f"steps 1 to {len(runs) - 1}, and the floor"
    figure.axes[0].set_title(f"Ten epochs of MNIST on one {recorded.provenance()['gpu']}: {steps}")
    return figure


IMAGES = {
    "whole_ladder": (
        whole_ladder,
        "For each of the eight steps a dot for the seconds of the training loop and one for the whole process, on a "
        "logarithmic axis. The loop falls from about a minute to a fraction of a second, a few times the "
        "floor; the process falls from more than a minute to a few seconds.",
    ),
}


def save_all(folder: Path | str) -> list[Path]:
    """Write every picture into the folder as SVG; the same code and records give the same bytes again."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with style.house_style():
        for stem, (draw, alt_text) in IMAGES.items():
            fig = draw()
            title = (draw.__doc__ or stem).splitlines()[0].rstrip(".")
            about = {"Date": None, "Creator": None, "Title": title, "Description": description(alt_text, fig)}
            fig.savefig(folder / f"{stem}.svg", metadata=about)
            plt.close(fig)
            written.append(folder / f"{stem}.svg")
    return written


def stale(folder: Path | str) -> list[str]:
    """One sentence for each picture whose file is missing, or is not what the code draws now."""
    complaints = []
    with style.house_style():
        for stem, (draw, alt_text) in IMAGES.items():
            fig = draw()
            now = description(alt_text, fig)
            plt.close(fig)
            path = Path(folder) / f"{stem}.svg"
            if not path.is_file():
                complaints.append(f"{path}: missing")
            elif (said := written_description(path)) is None:
                complaints.append(f"{path}: not an SVG with a description")
            elif said != now:
                was, draws = (text.rpartition(FINGERPRINT_MARK)[2].rstrip("]") for text in (said, now))
                complaints.append(f"{path}: drawn data {was}, now {draws}" if was != draws else f"{path}: alt text")
    return complaints


def written_description(svg: Path) -> str | None:
    """The description inside an SVG file, or None where there is none to be read."""
    try:
        found = ET.parse(svg).getroot().find(".//{http://purl.org/dc/elements/1.1/}description")
    except ET.ParseError:
        return None
    return None if found is None else found.text


def main(arguments: list[str] | None = None) -> int:
    """The command line: write the pictures, or check those that were written."""
    parser = argparse.ArgumentParser(prog="python3 -m labkit.images", description=main.__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="FOLDER", type=Path, help="write the pictures there")
    what.add_argument("--check", metavar="FOLDER", type=Path, help="compare the pictures there with the code")
    options = parser.parse_args(arguments)
    if options.out:
        with one_sentence():
            check_writable(options.out)
            for path in save_all(options.out):
                print(path)
        return 0
    complaints = stale(options.check)
    print("\n".join(complaints or [f"all {len(IMAGES)} pictures in {options.check} are what the code draws"]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
