"""The table of the speedrun's entries: ``python3 -m labkit.topics.speedrun [FOLDER]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from labkit.errors import one_sentence
from labkit.speedrun import rules
from labkit.topics.speedrun import readings, tables


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m labkit.topics.speedrun", description="The table of all entries.")
    parser.add_argument("folder", nargs="?", type=Path, default=readings.ENTRIES, help="records of speedrun.py")
    with one_sentence():
        records = [*readings.own(), *readings.entries(parser.parse_args().folder)]
    refused = {record["entry"]: found for record in records if (found := rules.broken(record))}
    print(tables.standing(record for record in records if record["entry"] not in refused))
    for name, sentences in refused.items():
        print(f"{name} is not in the table: {'; '.join(sentences)}.")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
