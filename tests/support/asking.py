"""A report to be made, and the reader's command line in this process; its JSON is what the written schema says."""

from __future__ import annotations

import json

import pytest

from answers import conforms
from stepbudget.__main__ import main
from stepbudget.show import json as said
from synthetic import SyntheticReport


@pytest.fixture
def made(tmp_path) -> SyntheticReport:
    """An empty report, which a test fills."""
    return SyntheticReport(tmp_path / "made.sqlite")


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


@pytest.fixture
def answer(ask):
    """The answer as an object; the JSON has to be strict."""

    def run(*arguments: object) -> dict:
        status, out, err = ask(*arguments, "--json")
        assert (status, err) == (0, "")
        return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))

    return run
