"""How is an answer written as JSON? One object, with the version of the schema that describes it.

The schema lies beside this file: every key, what it means and in which unit, and no key that is not there.
"""

from __future__ import annotations

import json
from pathlib import Path

# A new key, or a new word in a list of words, keeps the version. What goes away, or changes its type, its unit or its
# meaning, raises it; then the number in the schema file's ``title`` and ``version`` is this one too.
VERSION = 2
SCHEMA = Path(__file__).with_name("answer.schema.json")


def versioned(found: dict) -> dict:
    """The answer with the version of its schema as the first key."""
    return {"schema": VERSION, **found}


def text(found: dict) -> str:
    """The answer as JSON, strictly: ValueError where it holds what JSON has no word for (NaN)."""
    return json.dumps(versioned(found), indent=1, allow_nan=False)


def schema() -> str:
    """The JSON Schema (draft 2020-12) of all answers."""
    return SCHEMA.read_text(encoding="utf-8").rstrip()
