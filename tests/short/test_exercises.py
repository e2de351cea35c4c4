"""What an exercise says to an answer, whatever it is. test_pages_as_stored.py tries all of them where a page asks."""

from __future__ import annotations

import random
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from labkit import course, exercises
from labkit.errors import LabError
from labkit.exercises.__main__ import overview
from labkit.exercises.kinds import CODE, KINDS, Choice, NothingToAnswer, Number
from labkit.recording.notebooks import files
from labkit.source import recorded
from labkit.subjects.roofline import Peaks, Point
from solutions import CALL, EVERY, LOUD, Loud, refused
from stepbudget.ask.budget import budget
from stepbudget.report import open_report

LABS = [path for path in files() if path.parent.name == "labs"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:CUDA initialization"),
    pytest.mark.usefixtures("unbroken_lines"),
]


def test_every_exercise_of_the_labs_has_a_check_and_the_other_way_round():
    asked = {number for path in LABS for number in CALL.findall(path.read_text().replace('\\"', '"'))}
    assert asked == set(EVERY)


@pytest.mark.parametrize("number", EVERY)
def test_every_exercise_has_a_hint_and_usual_wrong_answers(number, capsys):
    one = EVERY[number]
    assert len(one.hint) > 20
    assert not exercises.exercise(number, " Hint")
    assert capsys.readouterr().out == f"exercise {number}, a hint: {one.hint}\n"
    assert len(one.wrong) >= 3
    assert one.kind in KINDS


def test_every_lab_reads_computes_a_bound_and_writes_code():
    table = overview().set_index("lab")
    assert list(table.index) == [lab.number for lab in course.LABS]
    assert (table[list(KINDS)] != "").all().all()
    assert table["wrong answers"].sum() == sum(len(one.wrong) for one in EVERY.values())


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("10.9", "lab 10 has no exercise 10.9. Near it: 10."),
        ("77.1", "there is no lab 77: they are numbered from 1 to"),
        (2.1, "no exercise is called 2.1: its name is lab and number, in quotes"),
        ("two", "no exercise is called 'two': its name is"),
        (None, "no exercise is called something of type NoneType"),
    ],
)
def test_an_exercise_that_there_is_not_is_named(number, said):
    with pytest.raises(LabError, match=re.escape(said)):
        exercises.exercise(number, 1)


@pytest.mark.parametrize("number", [number for number, one in EVERY.items() if isinstance(one, Number | Choice)])
def test_what_an_exercise_is_not_about_is_one_sentence_with_the_lab_s_own_line(number, capsys):
    """Too much is given, and of a kind that no exercise is about."""
    with pytest.raises(LabError) as refused:
        exercises.exercise(number, 1 if isinstance(EVERY[number], Number) else "this", *[Loud()] * 9)
    said = str(refused.value)
    assert said.startswith(f"exercise {number} is about something else than something of type Loud")
    assert said.endswith(")") and f'the check reads: lab.exercise("{number}", ' in said
    assert refused.value._render_traceback_() == [f"LabError: {said}"]
    assert LOUD not in said + capsys.readouterr().out


# What is handed in


@pytest.mark.parametrize("number", [number for number, one in EVERY.items() if one.kind == CODE])
def test_an_empty_function_is_no_answer(number, capsys):
    def unanswered(*_):
        raise NotImplementedError

    def kernel(x, bias, y, count, columns, BLOCK):
        raise NotImplementedError

    for none in (kernel if number == "10.1" else unanswered, None):
        assert not exercises.exercise(number, none)
        assert capsys.readouterr().out == f'exercise {number}: no answer yet (answer "hint" for a hint)\n'
    assert not exercises.exercise(number, 7)
    assert "the function itself is wanted, not 7" in capsys.readouterr().out


def test_a_function_that_breaks_is_told_how(capsys):
    assert not exercises.exercise("18.2", lambda events: events["kernel"])
    assert "it raises TypeError" in capsys.readouterr().out


SQUARE = Number("bound", "Two times two.", right=lambda: 4.0, wrong={"that is a sum": lambda: 40.0})
SEVENTH = Number("read", "Count them.", right=lambda: 7, wrong={}, within=0.0)


@pytest.mark.parametrize(
    "given",
    [
        4, 4.0, np.int64(4), np.float32(4), Fraction(8, 2), Decimal("4"), np.array(4), np.array([4.0]),
        pd.Series([4.0]), pd.Series([1, 4]).max(), pd.DataFrame({"ms": [4.0]}).loc[0, "ms"],
    ],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
def test_whatever_holds_one_number_is_a_number(given):
    assert SQUARE.check("0.1", given)
    assert not SEVENTH.check("0.2", given)
    assert SEVENTH.check("0.2", np.int64(7))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (float("nan"), "nan is not a number"),
        (np.nan, "nan is not a number"),
        (pd.Series([float("nan")]), "nan is not a number"),
        (pd.NA, "something of type NAType is not one number"),
        (10**400, "larger than any measured one"),
        (-(10**5000), "larger than any measured one"),
        (float("inf"), "inf is too large. Two times two."),
        ([4.0], "something of type list is not one number"),
        (np.array([4.0, 4.0]), "something of type ndarray is not one number"),
        (pd.Series([4.0, 4.0]), "something of type Series is not one number"),
        ("4 ms", "'4 ms' is text"),
        ("4" * 50, "something of type str is text"),
        (True, "True is not a number"),
        (np.True_, "True is not a number"),
        (4j, "is not one number"),
        (len, "this is a function"),
        (40, "that is a sum"),
        (4000, "a thousand times the answer: look at the units"),
        (0.04, "1 % of the answer"),
        (5, "5 is too large. Two times two."),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_is_no_right_number_gets_a_word(given, said, capsys):
    assert not SQUARE.check("0.1", given)
    assert said in capsys.readouterr().out


def test_a_number_without_an_answer(capsys):
    assert not SQUARE.check("0.1", None)
    assert "no answer yet" in capsys.readouterr().out

    def nothing():
        raise NothingToAnswer("there is no GPU")

    for given in (None, 4):
        assert not Number("read", "", right=nothing, wrong={}).check("0.3", given)
        assert "there is no GPU, so there is nothing to work out" in capsys.readouterr().out


def test_a_wrong_answer_that_a_machine_has_not_or_that_is_right_there_is_left_out():
    one = Number(
        "bound",
        "",
        right=lambda: 4.0,
        wrong={
            "the same": lambda: 4.01,
            "over nothing": lambda: 1 / 0,
            "none": lambda: float("nan"),
            "other": lambda: 5,
        },
    )
    assert one.usual() == {"other": 5}


def test_a_word_is_right_whatever_its_case(capsys):
    one = Choice("read", "Look.", right=lambda: ["Blue", "green"], wrong={"red": "that is hot", "blue": "that is cold"})
    assert one.check("0.4", " blue ") and one.check("0.4", "GREEN")
    assert one.usual() == {"that is hot": "red"}
    capsys.readouterr()
    for given, said in (
        ("Red", "that is hot"),
        ("pink", "'pink' is not it. Look."),
        (7, "a word in quotes"),
        (None, "no answer"),
    ):
        assert not one.check("0.4", given)
        assert said in capsys.readouterr().out


# Single exercises


@pytest.mark.parametrize("machine", course.PROFILED)
def test_what_the_hint_to_2_2_asks_for_is_accepted_on_every_machine(machine):
    file = recorded.RECORDED / machine / "profiles" / "main_opt1.sqlite.xz"
    with open_report(file) as report:
        found = budget(report)
        whole_ms = found.window.duration_ms
        held_ms = min(found.held_ms["loader"], found.idle_ms)
        assert exercises.exercise("2.2", whole_ms / (whole_ms - held_ms), report)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda *_: None, "FP32"),
        (lambda model, *_: model.missing, "it raises AttributeError"),
    ],
)
def test_a_step_that_does_nothing(wrong, said, capsys):
    assert not exercises.exercise("4.2", wrong)
    assert said in capsys.readouterr().out


def test_a_clip_that_is_written_by_hand_is_right():
    import torch

    def amp_step(model, loss_fn, data, target, optimizer, scaler, max_norm):
        with torch.autocast(data.device.type, torch.float16):
            loss = loss_fn(model(data), target)
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        own = [parameter.grad for parameter in model.parameters()]
        factor = (max_norm / torch.cat([one.flatten() for one in own]).norm()).clamp(max=1.0)
        for one in own:
            one.mul_(factor)
        scaler.step(optimizer)
        scaler.update()

    assert exercises.exercise("4.2", amp_step)


def run(process_s: float, epoch_s: float) -> dict:
    return {"process_s": process_s, "epochs": [{"training_s": epoch_s - 0.1, "test_s": 0.1}] * 10}


class OfOnesOwn:
    def __init__(self, digits):
        self.count = len(digits)

    def __iter__(self):
        return iter(random.sample(range(self.count), self.count))


@pytest.mark.parametrize("own", [False, True], ids=["RandomSampler", "a sampler of one's own"])
def test_a_sampler_that_shuffles_is_right(own):
    from torch.utils.data import RandomSampler

    def make_loader(DataLoader, digits, cores):
        options = {"num_workers": max(1, cores - 2), "persistent_workers": True}
        return DataLoader(digits, batch_size=1024, sampler=(OfOnesOwn if own else RandomSampler)(digits), **options)

    assert exercises.exercise("2.3", make_loader)


def test_a_sampler_beside_shuffle_is_refused_as_pytorch_does(capsys):
    assert not exercises.exercise(
        "2.3", lambda DataLoader, digits, cores: DataLoader(digits, 1024, True, num_workers=1, sampler=range(5000))
    )
    assert "the DataLoader refuses: sampler option is mutually exclusive with shuffle" in capsys.readouterr().out


def test_pinned_where_there_is_a_gpu_is_right_on_a_machine_without():
    import torch

    before = torch.cuda.is_available()

    def epoch(DataLoader, digits, device, train_step):
        pin = torch.cuda.is_available()
        for batch in DataLoader(digits, batch_size=1024, shuffle=True, num_workers=2, pin_memory=pin):
            train_step(*(part.to(device, non_blocking=True) for part in batch))

    assert exercises.exercise("3.2", epoch)
    assert torch.cuda.is_available() == before


def test_the_break_even_of_a_cold_start(capsys):
    runs, cold = [run(7.0, 0.5)] * 3, run(20.0, 0.25)  # fixed: 2 and 17.5 s
    assert exercises.exercise("8.1", 62, runs, cold)
    assert not exercises.exercise("8.1", 52, runs, cold)
    assert "differ by their epochs, too" in capsys.readouterr().out
    assert not exercises.exercise("8.1", 60, [], None)
    assert "nothing to work out" in capsys.readouterr().out


LIMITS = pd.DataFrame({"limit": ["waiting", "memory", "memory"], "mb": [200.0, 100.0, 50.0], "us": [90.0, 30.0, 40.0]})


def test_a_fused_kernel_saves_half_if_memory_limits_it(capsys):
    assert exercises.exercise("9.3", 15.0, LIMITS)
    assert refused("9.3", LIMITS) == 5
    assert not exercises.exercise("9.3", None, LIMITS[LIMITS["limit"] == "waiting"])
    assert "nothing to work out" in capsys.readouterr().out


ENTRIES = pd.DataFrame(
    {
        "step": ["main_baseline.py", "main_opt5.py", "main_opt7.py"],
        "process_s": [40.0, 6.0, 3.0],
        "process_low_s": [39.0, 5.8, 2.9],
        "process_high_s": [41.0, 6.2, 3.1],
        "cold_s": [None, None, 9.0],
        "training_s": [30.0, 1.0, 1.0],
    }
)


def test_the_first_time_counts_compiling():
    assert exercises.exercise("11.1", "main_opt5.py", ENTRIES)
    near = ENTRIES.assign(process_s=[6.3, 6.0, 3.0], process_low_s=[6.1, 5.8, 2.9])
    assert exercises.exercise("11.1", "main_baseline.py", near) and exercises.exercise("11.1", "main_opt5.py", near)
    assert not exercises.exercise("11.1", "main_baseline.py", ENTRIES), (
        "rungs whose ranges overlap are told apart by none"
    )


def test_the_last_rung_is_the_one_that_ran():
    assert exercises.exercise("11.2", 3.0 / 2.5, ENTRIES, 0.5)
    assert exercises.exercise("11.2", 3.0 / 2.5, ENTRIES.replace("main_opt7.py", "main_opt6.py"), 0.5)


def test_a_size_may_be_any_whole_number():
    assert exercises.exercise(
        "12.1", lambda size, dtype: np.int64(-(-size * dtype.itemsize // 16) * 16 // dtype.itemsize)
    )


@pytest.mark.parametrize(
    ("answer", "said"), [(64.0, "✓"), (32.0, "too small"), (6, "that is the exponent"), (-6, "below zero")]
)
def test_the_smallest_scale(answer, said, capsys):
    exercises.exercise("15.2", answer, [0.02, 0.48, 0.5], -30)
    assert said in capsys.readouterr().out


def test_the_seed_with_the_largest_gradient_says_how_large_a_scale_may_be(capsys):
    first_steps = pd.DataFrame({"seed": [1, 2], "largest gradient": [40_000.0, 130_000.0]})
    assert exercises.exercise("14.2", 2.0**9, first_steps)  # 65,504 / (130,000 / 2,000) is 1,007.8
    assert not exercises.exercise("14.2", 2.0**11, first_steps)
    assert "the seed with the smallest gradient" in capsys.readouterr().out


def test_the_layer_is_the_last_epoch_s_and_of_that_scale():
    shares = {(1, 65536): {"conv1": 0.9, "fc2": 0.1}, (2, 1): {"conv1": 0.8, "fc2": 0.7}}
    shares[2, 65536] = {"conv1": 0.1, "fc2": 0.2}
    rows = [
        {"epoch": epoch, "scale": float(scale), "layer": layer, "zero_share": share}
        for (epoch, scale), layers in shares.items()
        for layer, share in layers.items()
    ]
    assert exercises.exercise("14.3", "FC2", rows) and not exercises.exercise("14.3", "conv1", rows)


def test_the_rule_of_a_scale_is_grad_scaler_s(capsys):
    def by_its_own_count(scale, good_steps, overflow, interval):
        if overflow:
            return 0.5 * scale, 0
        return (2 * scale, 0) if good_steps == interval - 1 else (scale, good_steps + 1)

    assert exercises.exercise("15.1", by_its_own_count)
    assert not exercises.exercise("15.1", lambda scale, good_steps, *others: (scale, good_steps))
    assert "after 3 good steps in a row the scale must double" in capsys.readouterr().out


def windows(skipped=0, zero=0.1, subnormal=0.1) -> list[dict]:
    healthy = {"skipped": 0, "zero_share": 0.0, "subnormal_share": 0.0}
    return [healthy, {"skipped": skipped, "zero_share": zero, "subnormal_share": subnormal}]


def test_the_logs():
    logs = [windows(skipped=1), windows(zero=0.9, subnormal=0.08), windows(skipped=10)]
    assert exercises.exercise("15.3", ("healthy", "underflow", "Overflow "), *logs)
    assert refused("15.3", *logs) == 5


PEAKS = Peaks("ours", {"bf16": 800.0, "fp32": 50.0}, 4.0, {})


@pytest.mark.parametrize(
    ("flop_per_byte", "times"),
    [(20.0, 1.6), (400.0, 16.0), (5.0, 1.0)],  # the slope above it, the level roof, memory before and after
)
def test_the_roof_of_another_type_at_the_same_bytes(flop_per_byte, times):
    points = [Point("main_baseline", "fp32", flop_per_byte * 1e9, 1e9, 1.0), Point("main_opt4", "bf16", 1e9, 1e9, 1.0)]
    assert exercises.exercise("9.4", 1.05 * times, points, PEAKS)
    assert not exercises.exercise("9.4", 1.2 * times, points, PEAKS)
    assert refused("9.4", points, PEAKS) >= 2


def test_where_nothing_computes_in_16_bits_there_is_no_higher_roof(capsys):
    points = [Point("main_baseline", "fp32", 1e9, 1e9, 1.0)]
    assert not exercises.exercise("9.4", 1, points, Peaks("ours", {"fp32": 50.0}, 4.0, {}))
    assert "so there is nothing to work out" in capsys.readouterr().out


def test_a_newer_keras_may_keep_the_scale_that_is_asked_for():
    way = "mixed_float16, loss_scale_factor=1024"
    dropped = pd.DataFrame({"way": [way], "fixed_scale": [None], "initial_scale": [2.0**15], "growth_steps": [2000.0]})
    assert exercises.exercise("16.2", 2**17, dropped) and refused("16.2", dropped) == 6
    kept = dropped.assign(fixed_scale=1024.0, initial_scale=None, growth_steps=None)
    assert exercises.exercise("16.2", 1024, kept) and not exercises.exercise("16.2", 2**17, kept)
