"""The worked examples of the last lab, and the template that one pastes into a script of one's own."""

import ast
import json
import os
import sys
from types import SimpleNamespace

import pytest
from support.scripts import SMALL, script

import forked
from labkit.paths import SOURCE_CODE
from labkit.recording import plan

EXAMPLES = SOURCE_CODE / "examples"


def template() -> str:
    tree = ast.parse((EXAMPLES / "template.py").read_text())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    return ast.get_source_segment((EXAMPLES / "template.py").read_text(), function)


def test_the_template_is_short_and_stands_in_both_examples_word_by_word():
    assert len(template().splitlines()) - 1 <= 15, "its docstring aside"
    for name in plan.EXAMPLES:
        assert template() in (EXAMPLES / f"{name}.py").read_text()


@pytest.mark.parametrize("name", plan.EXAMPLES)
def test_an_example_needs_nothing_of_the_course(name):
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not {name.split(".")[0] for name in names} & {"labkit", "stepbudget"}


@pytest.mark.parametrize("name", plan.EXAMPLES)
def test_an_example_trains_on_a_cpu_and_says_how_long_a_step_takes(name, tmp_path):
    flags = ["--device", "cpu", "--record", tmp_path / "record.json"]
    done = forked.run([EXAMPLES / f"{name}.py", *SMALL[name].split(), *flags])
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["status"] == "complete" and record["step_ms"] > 0
    assert len(record["losses"]) == 3 and all(loss > 0 for loss in record["losses"])
    assert f"{record['step_ms']:.2f} ms a step" in done.stdout


@pytest.mark.parametrize("name", plan.EXAMPLES)
@pytest.mark.parametrize(
    ("given", "why"),
    [("", "it is no file"), (".", "it is no file"), ("/dev/null", "it is no file"), ("pipe", "it is no file"),
     ("none/here.json", "No such file or directory"), ("kept.json/here.json", "Not a directory")],
)  # fmt: skip
def test_a_record_that_cannot_be_written_is_refused_before_training(name, given, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.json").write_text("kept")
    os.mkfifo("pipe")
    module = script(f"examples/{name}.py")
    monkeypatch.setattr(module, "train", lambda args: pytest.fail("it trains"))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--record", given])
    with pytest.raises(SystemExit) as end:
        module.main()
    said = capsys.readouterr()
    assert end.value.code == 2 and said.out == ""
    assert said.err.splitlines()[-1].endswith(f"argument --record: cannot write into '{given}': {why}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.json", "pipe"]
    assert (tmp_path / "kept.json").read_text() == "kept"


@pytest.mark.parametrize("name", plan.EXAMPLES)
def test_looking_at_a_record_changes_nothing(name, tmp_path):
    parse = script(f"examples/{name}.py").parse_args
    old, link = tmp_path / "old.json", tmp_path / "link.json"
    old.write_text("kept")
    link.symlink_to("new.json")
    assert parse(["--record", str(old)]).record == str(old) and old.read_text() == "kept"
    assert parse(["--record", str(link)]).record == str(link)
    assert link.is_symlink() and not link.exists()


@pytest.mark.parametrize("name", plan.EXAMPLES)
def test_each_flag_of_the_plan_is_one_of_the_script(name):
    parse = script(f"examples/{name}.py").parse_args
    before: dict = vars(parse([]))
    for flags in plan.EXAMPLES[name].values():
        after = vars(parse(flags.split()))
        assert after != before or not flags
        before = after


def test_whole_processes_are_timed_as_it_was_and_with_all_mends_in_turn():
    rounds = [item.command for item in plan.plan() if item.kind == "examples" and item.command in plan.EXAMPLE_ENDS]
    assert rounds == plan.EXAMPLE_ENDS * 3 and len(plan.EXAMPLE_ENDS) == 2 * len(plan.EXAMPLES)
    for name, mends in plan.EXAMPLES.items():
        first, last = (command for command in plan.EXAMPLE_ENDS if f"{name}.py" in command)
        assert not next(iter(mends.values())) and list(mends.values())[-1] in last
        assert first.split()[1:] == last.split()[-2:] == ["--steps", str(plan.EXAMPLE_LONG[name])]


def test_a_profiler_sees_the_steps_after_the_first_and_then_the_loop_ends(monkeypatch):
    module = script("examples/template.py")
    said: list[str] = []
    cuda = SimpleNamespace(
        synchronize=lambda: said.append("wait"),
        profiler=SimpleNamespace(start=lambda: said.append("start"), stop=lambda: said.append("stop")),
        nvtx=SimpleNamespace(
            range_push=lambda name: said.append(f"push {name}"),
            range_pop=lambda: said.append("pop"),
            range=lambda name: Range(name, said),
        ),
    )
    monkeypatch.setattr(module, "torch", SimpleNamespace(cuda=cuda))
    assert list(module.watched([1, 2, 3, 4, 5], skip=1, steps=2)) == [1, 2, 3]
    data, end = ["data", "end of data"], ["wait", "pop", "stop"]
    assert said == [*data, "wait", "start", "push training", *data, *data, *end]
    said.clear()
    assert list(module.watched([1, 2], skip=1, steps=5)) == [1, 2]
    assert said == [*data, "wait", "start", "push training", *data, *data, *end]


class Range:
    def __init__(self, name, said):
        self.name, self.said = name, said

    def __enter__(self):
        self.said.append(self.name)

    def __exit__(self, *problem):
        self.said.append(f"end of {self.name}")
