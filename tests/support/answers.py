"""Is an answer what the reader's written schema says?"""

from __future__ import annotations

import json
from functools import cache

from jsonschema import Draft202012Validator

from stepbudget.show import json as said


@cache
def validator() -> Draft202012Validator:
    schema = json.loads(said.schema())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def conforms(found: dict) -> dict:
    """The answer, printed by --json; AssertionError with every place at which it is not what the schema says."""
    wrong = [f"{error.json_path}: {error.message[:200]}" for error in validator().iter_errors(found)]
    assert not wrong, "\n".join(wrong)
    return found
