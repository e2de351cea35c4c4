"""The ledger: seconds by part, lines of code counted in the sources, and what is drawn of them."""

from __future__ import annotations

import ast
import re

import pandas as pd
import pytest

from labkit import course, paths
from labkit.display import listing
from labkit.display.fingerprint import drawn_data
from labkit.display.runs import compared, in_rounds, in_turn
from labkit.display.spread import Spread
from labkit.errors import LabError
from labkit.labs import start_here
from labkit.paths import ROOT
from labkit.subjects import ladder, ledger
from labkit.subjects import ladder_charts as figures

SOURCE = '''"""What the module is for,
in two lines."""

import os  # why


@decorated(
    with_more=1,
)
def kernel(x):
    """One line."""
    text = """a string
    over two lines"""

    # a comment
    return x


class Thing:
    """A docstring."""

    SIZE, OTHER = 1, 2

    def method(self):
        return os.name


TILES = [
    1,
]
'''


def test_lines_hold_code():
    """import; four of decorator and def, three of body; class, a constant, method and its body; three of TILES."""
    assert ledger.code_lines(SOURCE) == 1 + 4 + 3 + 4 + 3


def test_a_part_is_a_function_a_class_a_method_or_a_constant():
    assert ledger.code_lines(ledger.part(SOURCE, "kernel")) == 7
    assert ledger.part(SOURCE, "kernel").startswith("@decorated(")
    assert ledger.part(SOURCE, "Thing.method") == "def method(self):\n    return os.name\n"
    assert ledger.part(SOURCE, "TILES") == "TILES = [\n    1,\n]\n"
    assert ledger.part(SOURCE, "Thing.OTHER") == "SIZE, OTHER = 1, 2\n"
    with pytest.raises(LabError, match=r"Thing\.nothing"):
        ledger.part(SOURCE, "Thing.nothing")


def test_gpu_functions_are_those_that_triton_compiles():
    source = "@triton.jit\ndef a(): pass\n\n@triton.jit(do_not_specialize=['x'])\ndef b(): pass\n\ndef c(): pass\n"
    assert [text.splitlines()[-1] for text in ledger.gpu_functions(source)] == ["def a(): pass", "def b(): pass"]


def imported(script: str) -> set[str]:
    """The labkit modules that a script imports, as files; of those in ``labkit.training`` also the names."""
    found = set()
    for node in ast.walk(ast.parse((paths.script(script)).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("labkit."):
            found.add(node.module.removeprefix("labkit.").replace(".", "/") + ".py")
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("step", ledger.NEEDS)
def test_what_a_rung_needs_of_its_own_is_counted(step):
    needed, text = ledger.NEEDS[step], (paths.script(step)).read_text()
    kernels = {name for name in imported(step) if name.startswith("kernels/")}
    assert kernels <= set(needed)
    assert ("LeanNet" in imported(step)) == ("training/model.py" in needed)
    for name in ("on_device", "captured", "warming_up", "rehearsal"):
        used = bool(re.search(rf"\b{name}\(", text))
        assert used == any(own.endswith(name) for own in needed["training/run.py"]), name


def test_the_last_steps_cost_the_most():
    lines = {step: ledger.lines(step) for step in ["main_baseline.py", *ledger.NEEDS]}
    assert lines["main_baseline.py"].beside == 0 < lines["main_baseline.py"].script
    assert all(0 < lines[step].on_gpu < lines[step].beside for step in ("main_opt7.py", "main_opt8.py"))
    costs = {step: own.script + own.beside for step, own in lines.items()}
    assert sorted(costs, key=costs.get)[-2:] == ["main_opt7.py", "main_opt8.py"]


def run(process_s: float, training_s: float, warm_up_s: float | None = None) -> dict:
    extras = {} if warm_up_s is None else {"warm_up_s": warm_up_s}
    return {
        "process_s": process_s,
        "startup_s": 1.0,
        "training_s": training_s,
        "test_s": 0.5,
        "extras": extras,
        "epochs": [{}] * 10,
    }


RUNS = {"main_a.py": [run(20, 16), run(24, 20), run(22, 17)], "main_b.py": [run(5, 1, 1.0), run(6, 2, 2.0)]}


def test_the_parts_of_a_process():
    found = ledger.parts(RUNS, {"main_b.py": run(9, 1, 5)}).set_index("step")
    assert found.loc["main_a.py", ["n", "training_s", "warm_up_s", "process_s", "rest_s"]].tolist() == [
        3,
        17,
        0,
        22,
        2.5,
    ]
    assert found.loc["main_b.py", ["warm_up_s", "training_s", "process_s", "cold_s"]].tolist() == [1.5, 1.5, 5.5, 9]
    assert pd.isna(found.loc["main_a.py", "cold_s"])
    assert found["loop_times"].tolist() == pytest.approx([1, 17 / 1.5])
    assert found["process_times"].tolist() == [1, 4]


def test_the_tables_and_figures_show_it():
    entries = ledger.parts(RUNS, {"main_b.py": run(9, 1, 5)})
    shown = str(ledger.seconds(entries))
    assert "medians over the runs" in shown and "11.3" in shown and "9.00" in shown
    fig = figures.ladder(RUNS, floor_s=0.75)
    words = [text.get_text() for text in fig.axes[0].texts]
    assert {"the floor: 750 ms", "17.0 s", "1.50 s  11×", "5.50 s  4.0×"} <= set(words)
    assert drawn_data(fig) != drawn_data(figures.ladder(RUNS, floor_s=0.7))


def test_a_ladder_without_a_floor():
    ax = figures.ladder(RUNS).axes[0]
    words = [text.get_text() for text in ax.texts]
    assert "17.0 s" in words and not any("floor" in one for one in words)
    assert 0 < ax.get_xlim()[0] < 1.5 / 2, "room for the words beside the shortest loop"


def trained(*seconds: float) -> dict:
    return {"epochs": [{"training_s": s} for s in seconds]}


def test_the_front_page_says_which_step_saved_most_seconds():
    first, second, third = course.ladder()[:3]
    runs = {first: [trained(9, 5), trained(9, 5.2)], second: [trained(9, 2), trained(9, 2.1)]}
    found = {"h200": runs | {third: [trained(9, 1.5), trained(9, 1.6)]}}
    one = start_here.mattered_most(found).frame.iloc[0]
    assert (one["machine"], one["what saved most"]) == (course.MACHINES["h200"], "loader workers")
    assert one["saved s"] == pytest.approx(3.05)
    unsure = {"h200": runs | {third: [trained(9, 0.1), trained(9, 4.2)]}}
    assert start_here.mattered_most(unsure).frame.iloc[0]["what saved most"] == "loader workers", "rounds disagree"
    close = [trained(9, 2.51), trained(9, 2.49)]
    tie = {"h200": {first: [trained(9, 5)] * 2, second: close, third: [trained(9, 0.01)] * 2}}
    assert start_here.mattered_most(tie).frame["saved s"].tolist() == pytest.approx([2.49, 2.5]), "each in one round"
    same = {"h200": {step: [trained(9, 5), trained(9, 5)] for step in (first, second)}}
    assert start_here.mattered_most(same).frame.empty, "none saved any"


def test_epochs_are_compared_round_by_round_without_the_first():
    slow, fast = [trained(9, 2, 2, 5), trained(9, 3, 3, 3)], [trained(9, 1, 1, 1), trained(9, 1, 1, 1)]
    found = ladder.epoch_times(slow, fast)
    assert (found.low, found.median, found.high, found.n) == (2, 2.5, 3, 2)
    assert ladder.first_epoch_longer_s(slow) == pytest.approx(6.5)


def test_captions_say_how_many_epochs_were_run():
    short = {step: [{**own, "epochs": [{}] * 3} for own in records] for step, records in RUNS.items()}
    entries = ledger.parts(short)
    assert entries["epochs"].tolist() == [3, 3] and entries["cold_s"].isna().all()
    assert str(ledger.seconds(entries)).startswith("3 epochs, medians")
    assert str(ledger.seconds(ledger.parts(RUNS))).startswith("Ten epochs, medians")
    assert figures.ladder(short, floor_s=0.75).axes[0].get_xlabel() == "seconds, 3 epochs"
    assert ladder.epochs_words(1) == "1 epoch"


def test_a_listing_is_what_stands_in_the_file():
    found = listing.listing("source_code/labkit/kernels/matmul.py", "TOO_LONG", "_matmul")
    lines = str(found).splitlines()
    assert lines[:2] == ["# source_code/labkit/kernels/matmul.py", "TOO_LONG = 2**31  # offsets are 32 bits wide"]
    assert "@triton.jit" in lines
    text = (ROOT / found.file).read_text()
    assert all(line in text for line in lines[1:])
    assert "&lt;" in found._repr_mimebundle_()["text/html"], "escaped"


def test_a_stage_of_the_start_takes_what_its_process_takes_longer_than_the_one_before():
    def record(*seconds):
        stages = [("Python starts", None), ("PyTorch is imported", "Python starts"), ("torchvision", "Python starts")]
        return {"rows": [{"stage": s, "after": a, "process_s": t} for (s, a), t in zip(stages, seconds, strict=True)]}

    shown = ledger.startup([record([0.5], [2.0], [1.5]), record([0.7, 0.6], [2.2, 2.1], [1.5, 9.0])])
    found = shown.frame.set_index("one thing more")
    assert list(found["the whole process s"]) == [0.6, 2.1, 1.5]
    assert list(found["takes s"]) == pytest.approx([0.6, 1.5, 0.9])
    assert found["on top of"]["torchvision"] == "Python starts"


@pytest.mark.parametrize(
    ("ratios", "says"),
    [
        ([1.08, 1.15, 1.10], "1.10 times as fast (1.08–1.15), and faster in each of 3 rounds"),
        ([0.5, 0.52], "0.51 times as fast (0.50–0.52), and slower in each of 2 rounds"),
        ([0.9, 0.8], "slower in each of 2 rounds; but 2 rounds that differ so could do that by chance"),
        ([0.9, 0.8], "(95 %: 0.40–1.79)"),
        ([1.17, 1.24], "faster in each of 2 rounds; but 2 rounds that differ so could do that by chance"),
        ([0.98, 1.05, 1.02], "the 3 rounds disagree on which is faster: no difference can be claimed"),
        ([1.001, 1.003], "1.00 times as fast (1.00–1.00): no difference in 2 rounds"),
        ([2.0], "2.00 times as fast in one round; another may say otherwise"),
    ],
)
def test_rounds_that_disagree_claim_nothing(ratios, says):
    assert says in in_rounds(Spread.of(ratios))


def started(*minutes: int, process_s: float) -> list[dict]:
    return [{"started": f"2030-01-01T00:{minute:02d}:00", "process_s": process_s} for minute in minutes]


def test_runs_that_did_not_alternate_are_no_pairs():
    slow, fast = started(1, 3, 5, process_s=3.0), started(2, 4, 6, process_s=2.0)
    assert in_turn(slow, fast)
    assert compared(slow, fast) == "1.50 times as fast (1.50–1.50), and faster in each of 3 rounds"
    later = started(7, 8, 9, process_s=2.0)
    assert not in_turn(slow, later)
    assert in_turn(slow, fast[:2]), "rounds that only one of them has are left out"
    assert "faster in each of 3 rounds; besides, they were not run in turn" in compared(slow, later)
    assert "turn" not in compared(slow, started(7, 8, 9, process_s=3.0)), "nothing is claimed"
