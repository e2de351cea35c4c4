"""The reader's command line in this process; what it prints with --json is what the written schema says."""

from __future__ import annotations

import json

import pytest

from answers import conforms
from stepbudget.__main__ import main
from stepbudget.show import json as said


@pytest.fixture(autouse=True)
def every_answer_conforms(monkeypatch) -> None:
    written = said.text

    def text(found: dict) -> str:
        made = written(found)
        conforms(json.loads(made))
        return made

    monkeypatch.setattr(said, "text", text)


@pytest.fixture
def ask(capsys):
    """Runs the command line in this process: its exit status, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            status = end.code
        said = capsys.readouterr()
        return status, said.out, said.err

    return run
