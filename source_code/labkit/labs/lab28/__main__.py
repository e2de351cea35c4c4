"""The table of the speedrun's entries: ``python3 -m labkit.labs.lab28 [FOLDER]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from labkit.errors import one_sentence
from labkit.labs import lab28
from labkit.speedrun import rules


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m labkit.labs.lab28", description="The table of all entries.")
    parser.add_argument("folder", nargs="?", type=Path, default=lab28.ENTRIES, help="records of speedrun.py")
    with one_sentence():
        records = [*lab28.own(), *lab28.entries(parser.parse_args().folder)]
    refused = {record["entry"]: found for record in records if (found := rules.broken(record))}
    print(lab28.standing(record for record in records if record["entry"] not in refused))
    for name, sentences in refused.items():
        print(f"{name} is not in the table: {'; '.join(sentences)}.")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
