"""``python3 -m labkit.subjects.diagnosis``: every tool's first answer to every recorded case of the clinic, scored."""

from __future__ import annotations

import argparse

from labkit import course
from labkit.errors import LabError, one_sentence
from labkit.paths import RECORDED
from labkit.subjects.diagnosis import page, tables


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m labkit.subjects.diagnosis", description=__doc__)
    parser.add_argument("--machine", default=course.DEFAULT_MACHINE, help="the folder in reports/recorded/")
    args = parser.parse_args()
    with one_sentence():
        if not (RECORDED / args.machine).is_dir():
            raise LabError(f"nothing was recorded on {args.machine}.")
        print(page.page(tables.diagnose(RECORDED / args.machine), RECORDED / args.machine), end="")


if __name__ == "__main__":
    main()
