"""``python3 -m labkit.subjects.diagnosis``: every tool's first answer to every recorded case of the clinic, scored."""

from __future__ import annotations

import argparse

from labkit import course
from labkit.errors import LabError, one_sentence
from labkit.paths import RECORDED
from labkit.subjects.diagnosis import tables


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m labkit.subjects.diagnosis", description=__doc__)
    parser.add_argument("--machine", default=course.DEFAULT_MACHINE, help="the folder in reports/recorded/")
    args = parser.parse_args()
    with one_sentence():
        folder = RECORDED / args.machine
        if not folder.is_dir():
            raise LabError(f"nothing was recorded on {args.machine}.")
        print(tables.recorded_on(folder), tables.markdown(tables.diagnose(folder)), sep="\n\n", end="")


if __name__ == "__main__":
    main()
