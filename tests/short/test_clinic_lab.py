"""Lab 20: its patients tell nothing of themselves, their scripts are the programs that ran, other cures pass, too."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import shlex
from functools import partial

import nbformat
import pytest
import torch

from labkit import cases, course, exercises
from labkit.cases import CASES, Case
from labkit.errors import LabError
from labkit.labs import lab20
from labkit.labs.lab20 import patients
from labkit.labs.lab20.exercises import BusyLoader
from labkit.paths import SOURCE_CODE
from labkit.subjects import without_flags
from stepbudget.ask.budget import budget

LAB = nbformat.read(course.LABS[19].path, as_version=4)
NUMBERS = patients.numbers()
HEALTHY = "clinic_digits_graph"  # which the lab calls so


# Patients


def test_ten_patients_two_of_them_healthy_and_one_a_pair():
    planted = [patients.case(number) for number in NUMBERS]
    assert len(NUMBERS) >= 10 and len({case.name for case in planted}) == len(NUMBERS)
    assert sum(case.is_healthy for case in planted) >= 2 and any(case.gpus == 2 for case in planted)
    for number, case in zip(NUMBERS, planted, strict=True):
        assert (patients.cause(number) == "healthy") == case.is_healthy
        assert patients.cause(number) in patients.CAUSES
    assert set(map(patients.cause, NUMBERS)) == set(patients.CAUSES), "no word but has its patient"
    assert not {case.report for case in planted} & {HEALTHY}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_report_tells_its_number_alone(number):
    report = patients.report(number)
    assert report.name == f"patient_{number}" and patients.report(number) is report
    case = patients.case(number)
    assert not [text for (text,) in report.rows("SELECT value FROM StringIds") if case.report in text]
    assert not [text for (text,) in report.rows("SELECT value FROM StringIds") if "--fault" in text]
    assert budget(report).window.duration_ms > 0


def test_the_cells_do_not_say_who_is_who():
    names = {case.name for case in CASES} | {case.report for case in CASES} - {HEALTHY}
    for cell in LAB.cells:
        text = cell.source.replace(HEALTHY, "")
        if cell.cell_type == "code":
            text += "".join(out.get("text") or out.data["text/plain"] for out in cell.outputs).replace(HEALTHY, "")
        assert not [name for name in names if name in text]


def test_a_patient_that_there_is_not():
    for ask in (patients.case, patients.cause, patients.report, lab20.script):
        with pytest.raises(LabError, match="there is no patient 11: they have the numbers 1 to 10"):
            ask(11)


def test_the_advice_is_right_about_most_and_the_lab_shows_where_not():
    rounds = lab20.rounds().frame
    assert list(rounds["patient"]) == NUMBERS and rounds["right"].sum() >= 8
    assert not rounds.set_index("patient")["right"][2], "the lab explains why the first advice is not the best for it"


# Their scripts

TINY = {
    "text": "--dim 16 --heads 2 --layers 1 --vocabulary 64 --batch 2 --length 64 --warmup 1 --steps 3 --objects 100",
    "digits": "--batch 32 --size 16 --hidden 32 --batches 2 --warmup 2 --steps 2",
    "images": "--batch 4 --size 32 --stored 16 --files 8 --workers 0 --warmup 1 --steps 1",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_script_has_its_fault_and_no_flags(case):
    text = without_flags.source(case, patients.SHOWN[case.script.partition("/")[2]])
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert not names & {"args", "named"} and "fault" not in text and '"""' not in text
    assert not re.search(r"return \(|^\s*\(.*\) = ", text, re.MULTILINE), "Pythons differ in these brackets"
    assert ("set_detect_anomaly(True)" in text) == (case.name == "text_anomaly") == ("set_detect_anomaly" in text)
    assert (".item()" in text) == (case.name == "text_item")
    assert ("torch.compile" in text) == (case.name in ("text_compiled", "text_recompile"))
    assert ("gc.collect" in text) == (case.name == "text_gc")
    assert ("recoloured" in text) == (case.name == "images_augmentation")
    assert ("operators_named" in text) == (case.name == "text_nvtx")
    assert ("50257" in text and "8193" in text) == (case.name == "text_odd")
    assert ("num_workers=1," in text) == (case.name in ("images_workers", "images_unnamed"))
    assert ("nvtx.range" in text) != ("--no-ranges" in case.flags)
    assert ("bfloat16" in text) != (case.name == "text_fp32")


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        *(("text", f"--fault {fault}") for fault in ("item", "anomaly", "odd", "optimizer")),
        ("text", ""),
        ("images", "--fault augmentation"),
        ("digits", "--fault pageable"),
    ],
    ids=str,
)
def test_a_script_computes_what_the_program_does(program, flags):
    """What the flags rule out is left out, and nothing else: the losses are the same."""
    spec = importlib.util.spec_from_file_location(f"clinic_{program}", SOURCE_CODE / "clinic" / f"{program}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    case = Case(f"{program}_tiny", f"{TINY[program]} --device cpu --no-ranges {flags}")
    args = module.parse_args(shlex.split(case.flags))
    before = torch.is_anomaly_enabled()
    try:
        losses = module.train(args)
        own = {name: partial(part, args) for name, part in vars(module).items() if takes_args(part)}
        names = vars(module) | own
        exec(without_flags.source(case, patients.SHOWN[f"{program}.py"]), names)
        assert names["train"]() == losses and len(losses) >= 1
    finally:
        torch.autograd.set_detect_anomaly(before)


def test_what_calls_something_stays():
    piece = ast.parse("def f():\n    a = g()\n    b = []\n    c = False\n    return 1 if c or args.d else 2").body[0]
    filled = without_flags._swept(without_flags._Filled({"d": False}).visit(piece), {"d": False})
    assert ast.unparse(filled) == "def f():\n    a = g()\n    return 2"


def takes_args(part: object) -> bool:
    """Is it one of the program's own, whose first argument are its flags?"""
    is_own = callable(part) and getattr(part, "__module__", "").startswith("clinic_")
    return is_own and "args" in inspect.signature(part).parameters


# Cures that the worked solutions do not have


def test_other_cures_are_as_good(capsys):
    def with_tf32(turn_on):
        def train_step(model, loss_fn, batch, target):
            turn_on()
            loss = loss_fn(model(batch), target)
            loss.backward()
            return loss

        return train_step

    matmul = torch.backends.cuda.matmul
    ways = [lambda: torch.set_float32_matmul_precision("high"), lambda: setattr(matmul, "allow_tf32", True)]
    if hasattr(matmul, "fp32_precision"):
        ways += [lambda at=at: setattr(at, "fp32_precision", "tf32") for at in (torch.backends, matmul)]
    before = torch.get_float32_matmul_precision()
    for turn_on in ways:
        assert exercises.exercise("20.3.3", with_tf32(turn_on)) and torch.get_float32_matmul_precision() == before
    assert not exercises.exercise("20.3.3", with_tf32(lambda: None))
    for how in ({"foreach": True}, {}):
        assert exercises.exercise("20.5.3", lambda own, given, how=how: own.optim.AdamW(given, lr=3e-4, **how))
    assert exercises.exercise("20.7.3", lambda make, data: make(data, None, None, None, None, 8, None, True))
    assert exercises.exercise("20.10.3", lambda *both: [-(-size // 64) * 64 for size in both])
    capsys.readouterr()
    assert not exercises.exercise("20.7.3", lambda make, data: make(data, None, num_workers=7, pin_memory=True))
    assert "a step takes 14 ms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("workers", "step_ms", "took_ms"),
    [(0, 10, 110), (1, 10, 100), (4, 10, 25), (8, 10, 12.5), (16, 10, 10), (1, 150, 150)],
)
def test_the_loader_that_is_simulated_delivers_in_turn(workers, step_ms, took_ms):
    assert BusyLoader(None, None, num_workers=workers).steps_ms(step_ms) == pytest.approx(took_ms, rel=0.02)


def test_each_wrong_word_has_a_word_of_its_own():
    for number in NUMBERS:
        if number not in patients.EXAMINED:
            one = lab20.EXERCISES[f"20.{number}.1"]
            assert set(one.wrong) == set(patients.CAUSES) - {patients.cause(number)}
            assert len(set(one.wrong.values())) == len(one.wrong)


def test_the_examined_patients_are_the_worked_ones():
    assert {number.split(".")[1] for number in lab20.EXERCISES} == {str(number) for number in NUMBERS if number > 1}
    assert cases.case("text_item") is patients.case(2)
