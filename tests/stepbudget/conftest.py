"""Whatever a test of the reader has printed with --json is what the written schema says."""

from __future__ import annotations

import json

import pytest

from answers import conforms
from stepbudget.say import json as said


@pytest.fixture(autouse=True)
def every_answer_conforms(monkeypatch) -> None:
    written = said.text

    def text(found: dict) -> str:
        made = written(found)
        conforms(json.loads(made))
        return made

    monkeypatch.setattr(said, "text", text)
