"""``python3 -m labkit.subjects.scaling``: what more GPUs brought, what the model says of it, and what it predicts.

The model rests on the host with two GPUs, whatever machine's runs are shown.
"""

from __future__ import annotations

import argparse
import json

from labkit.errors import LabError, one_sentence
from labkit.paths import RECORDED
from labkit.subjects.scaling import model, readings, tables

ON_TWO = "A step on two GPUs: predicted from one GPU, the reports and the other network; and measured"
LATER = "A step on more GPUs: predicted before, and measured since"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m labkit.subjects.scaling", description=__doc__)
    parser.add_argument("--machine", default=readings.MACHINE_FOLDER.name, help="the folder in reports/recorded/")
    parser.add_argument("--write", action="store_true", help=f"keep what is predicted in {model.PREDICTED.name}")
    args = parser.parse_args()
    where = RECORDED / args.machine
    with one_sentence():
        if not where.is_dir():
            raise LabError(f"nothing was recorded on {args.machine}.")
        for shown in (
            *(tables.gains(kind, readings.records(where)) for kind in model.SCALINGS),
            "\n".join(readings.missing(readings.records(where))) or "Nothing is missing.",
            tables.ranks(),
            tables.messages(),
            tables.jobs(),
            tables.predictions(model.scored(), ON_TWO),
            *(tables.on_paper(kind) for kind in model.SCALINGS),
            "\n".join(["What binds, by the model:", *model.bound_by(model.ahead())]),
        ):
            print(shown, end="\n\n")
        if args.write:
            model.PREDICTED.write_text(json.dumps(model.predicted(), indent=1) + "\n")
            print(f"kept in {model.PREDICTED.name}")
        later = model.scored_later(where)
        print(tables.predictions(later, LATER) if len(later) else f"No run on {args.machine} is of more GPUs than two.")


if __name__ == "__main__":
    main()
