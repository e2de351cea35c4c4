"""The last lab: its scripts are the ones that ran, its bounds say what can go, its scores what the rounds can tell."""

from __future__ import annotations

import ast
import multiprocessing
import shlex
from functools import partial

import pytest
from support.scripts import SMALL, script

from labkit import exercises
from labkit.display import style
from labkit.errors import LabError
from labkit.labs import lab25
from labkit.labs.lab25 import exercises as asked
from labkit.labs.lab25 import scripts
from labkit.pretend.profiler import LAUNCH_MS, Cuda
from labkit.recording import plan
from stepbudget.ask import iterations, predict
from stepbudget.ask.budget import budget

REPORTS = [name for steps in plan.EXAMPLES.values() for name in steps]
OF_FLAGS = ("now", "Pictures", "Sentences", "Model")  # what the examples call with their flags

# Scripts


@pytest.mark.parametrize("report", REPORTS)
def test_a_script_is_as_its_owner_would_have_it(report):
    text = scripts.script(report)
    assert not {"args", "named", "batches"} & {
        node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)
    }
    assert [word for word in ("nvtx", "watched", "enabled", "=None", "% 1 ") if word in text] == []
    flags = plan.EXAMPLE_STEPS[report]
    assert ("autocast" in text) == ("--amp" in flags)
    assert ("pin_memory=True" in text and "non_blocking=True" in text) == ("--pinned" in flags)
    assert ("fused=True" in text, "torch.compile" in text) == ("--fused" in flags, "--compile" in flags)
    assert ("channels_last" in text) == ("--channels-last" in flags)


@pytest.fixture
def forks():
    """Loader workers are forks, also from Python 3.14 on: the server there can't import a script that the test read."""
    usual = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(usual, force=True)


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("name", "flags"),
    [("train_resnet", ""), ("train_resnet", "--channels-last --log-every 2"), ("train_transformer", "--amp --fused")],
)
def test_a_script_computes_what_the_program_does(name, flags):
    module = script(f"examples/{name}.py")
    flags = f"{SMALL[name]} --device cpu {flags}"
    args = module.parse_args(shlex.split(flags))
    _, losses = module.train(args)
    own = {key: partial(part, args) for key, part in vars(module).items() if getattr(part, "__name__", "") in OF_FLAGS}
    names = vars(module) | own
    exec(scripts.train(f"examples/{name}.py", flags), names)
    assert names["train"]() == losses and len(losses) >= 2


@pytest.mark.parametrize("name", plan.EXAMPLES)
def test_the_template_adds_ranges_and_the_wrapper_and_changes_nothing_else(name):
    lines = scripts.pasted(name).lines
    added, gone = ([line[1:].strip() for line in lines if line[0] == sign] for sign in "+-")
    new = [line for line in added if line not in gone]
    ranges = [line for line in new if line.startswith("with torch.cuda.nvtx.range(")]
    assert len(new) == len(ranges) + 1 and "enumerate(watched(loader, 10, 10))" in new[0]
    assert {"forward", "backward", "optimizer"} <= {line.split("'")[1] for line in ranges}


@pytest.mark.parametrize("name", plan.EXAMPLES)
def test_all_fixes_change_few_lines(name):
    assert 4 <= scripts.fixes(name).changed() <= 9


def test_what_is_no_report_of_the_examples_is_named():
    with pytest.raises(LabError, match="no report is called train_moon: there are train_resnet, "):
        scripts.script("train_moon")
    with pytest.raises(LabError, match="no fix led to a report called train_resnet"):
        scripts.before("train_resnet")
    with pytest.raises(LabError, match="no script here is called train_moon: there are train_resnet, "):
        scripts.fixes("train_moon")
    with pytest.raises(LabError, match="no script here is called train_moon: there are train_resnet, "):
        lab25.mends("train_moon")


# Bounds and scores


def test_every_mend_of_the_plan_has_its_bound_in_order():
    for patient, steps in plan.EXAMPLES.items():
        assert [patient, *(mend.report for mend in lab25.mends(patient))] == list(steps)


@pytest.mark.parametrize("patient", lab25.PATIENTS)
def test_a_bound_is_no_more_than_the_window(patient):
    for mend in lab25.mends(patient):
        before = scripts.before(mend.report)
        found = lab25.budget_of(before)
        assert 0 <= mend.bound_ms(lab25.report(before), found) <= found.window.duration_ms


def run(step_ms: float, process_s: float = 10.0, steps: int = 30) -> dict:
    return {"step_ms": step_ms, "process_s": process_s, "arguments": {"steps": steps}}


def mend_of(before: list[float], after: list[float], share: float) -> lab25.Scored:
    mend = lab25.Mend("train_resnet_workers", "more workers", lambda report, found: 0.0)
    return lab25.Scored(mend, [run(one) for one in before], [run(one) for one in after], share)


@pytest.mark.parametrize(
    ("after", "share", "verdict"),
    [
        ([60.0, 61.0, 59.0], 0.5, "gained"),
        ([60.0, 61.0, 59.0], 0.1, "more than the bound"),
        ([60.0, 61.0, 59.0], 0.395, "gained"),  # one round within it
        ([60.0, 80.0, 95.0], 0.5, "gained, perhaps by chance"),
        ([99.5, 101.0, 100.5], 0.5, "no difference shows"),
        ([99.0, 99.1, 98.9], 0.5, "no difference shows"),  # a hundredth: two timings of one program differ by more
        ([130.0, 131.0, 129.0], 0.5, "lost"),
        ([96.0, 96.5, 95.5], 0.0, "more than the bound"),
        ([98.5, 98.6, 98.4], 0.0, "no difference shows"),
    ],
)
def test_what_became_of_a_promise(after, share, verdict):
    one = mend_of([100.0, 100.5, 99.5], after, share)
    assert one.verdict == verdict
    assert one.best_ms == pytest.approx(100.0 * (1 - share))
    assert one.kept == (verdict != "more than the bound")


def test_the_steps_that_a_full_queue_hides():
    """The ResNet's first six steps live on what the workers had ready; bounded by the others, the bound holds."""
    report = lab25.report("train_resnet")
    late = lab25.starved(report)
    waits = iterations.steps(report)["loader_wait_ms"]
    assert late.end == report.window().end and iterations.steps(report, late)["loader_wait_ms"].iloc[0] > waits.median()
    found = {when: predict.bound(report, budget(report, when), "loader").at_most_times for when in (None, late)}
    workers = lab25.score(lab25.mends("train_resnet")[0])
    assert not workers.kept and workers.at_most_times == pytest.approx(found[None])
    assert workers.ratio.low <= found[late] * (1 + lab25.NOISE_SHARE)
    with pytest.raises(LabError, match="no step of this report waits long"):
        lab25.starved(lab25.report("train_resnet_workers"))


def test_the_ledger_says_what_of_a_promise_came_true():
    told = lab25.ledger([mend_of([100.0, 100.5, 99.5], [60.0, 61.0, 59.0], 0.8)])
    assert [row[0] for row in told.cells()] == [lab25.AS_IT_WAS, "more workers"]
    row = dict(zip(told.frame.columns, told.cells()[1], strict=True))
    assert (row["at best ms"], row["timed ms"], row["× before"]) == ("20.0", "60.0", "1.67")
    assert (row["rounds ×"], row["× at most"], row["verdict"]) == ("1.65–1.69", "5.00", "gained")
    axes = lab25.steps([mend_of([100.0, 100.5, 99.5], [60.0, 61.0, 59.0], 0.8)], "A step").axes[0]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_color() == style.VERMILION] == pytest.approx([20.0])


def test_losses_are_compared_at_the_same_step():
    def records(often: int, offset: float) -> list[dict]:
        losses = [step + offset for step in range(0, 95, often)]
        return [{"arguments": {"log_every": often}, "losses": losses, "process_s": 1.0, "step_ms": 1.0}] * 3

    assert lab25.Whole(85, records(1, 0.0), records(10, 0.5), (1.0, 1.0)).losses == (90.0, 90.5)


def test_a_short_run_tells_how_long_a_long_one_takes():
    assert lab25.longer_s([run(100.0, 13.0)] * 3, 630) == pytest.approx(13.0 + 600 * 0.1)


def test_a_longer_start_pays_after_as_many_steps_as_make_up_for_it():
    plain, compiled = [run(20.0, 10.0)] * 3, [run(10.0, 19.7)] * 3  # starts of 9.4 and 19.4 s
    assert lab25.pays_after(plain, compiled) == pytest.approx(1000)
    assert lab25.pays_after(compiled, plain) == float("inf")


@pytest.mark.parametrize("patient", lab25.PATIENTS)
def test_process_and_step_are_twice_as_fast_and_every_mend_is_scored(patient):
    """What the lab is to show: three rounds, on one GPU, all mends predicted."""
    whole = lab25.whole(patient)
    assert whole.process.n == whole.step.n >= 3
    assert whole.process.low > 2 and whole.step.low > 2
    found = lab25.scores(patient)
    assert [one.mend for one in found] == list(lab25.mends(patient))
    assert all(one.before.n == one.after.n >= 3 for one in found)
    assert [one.mend.word for one in found if not one.kept] in ([], ["workers"]), "the lab says why"
    before, after = whole.losses
    assert abs(before - after) < 0.01 * max(1, before), "the result is the same"
    assert len({record["gpu"] for record in (*whole.before, *whole.after)}) == 1


# The pretended profiler


def test_the_gpu_works_behind_the_program_and_a_wait_lets_it_catch_up():
    cuda = Cuda()
    for _ in range(2):
        cuda.work(5.0, step=0)
    assert cuda.now == pytest.approx(2 * LAUNCH_MS)
    assert [one.start for one in cuda.kernels] == pytest.approx([LAUNCH_MS, LAUNCH_MS + 5.0])
    cuda.synchronize()
    assert cuda.now == pytest.approx(LAUNCH_MS + 10.0)


def test_a_report_holds_the_kernels_that_ran_while_the_profiler_looked():
    cuda = Cuda()
    cuda.work(5.0, step=0)
    cuda.start()
    cuda.work(5.0, step=1)
    assert cuda.seen == [] and cuda.captured is None
    cuda.stop()
    assert cuda.seen == [], "both are still to run"
    cuda.synchronize()
    cuda.start()
    cuda.work(5.0, step=2)
    cuda.synchronize()
    cuda.stop()
    assert [one.step for one in cuda.seen] == [2]


def test_ranges_know_what_is_around_them():
    cuda = Cuda()
    with cuda.nvtx.range("outer"), cuda.nvtx.range("inner"):
        cuda.work(1.0, step=0)
    cuda.range_pop()
    assert [(one.name, one.within) for one in cuda.ranges] == [("inner", ("outer",)), ("outer", ())]


# Exercises


def test_the_template_itself_passes_where_a_bracket_is_asked_for():
    number = next(number for number, one in asked.EXERCISES.items() if one is asked.BRACKET)
    assert exercises.exercise(number, lambda loader, cuda, skip, steps: asked.template(cuda)(loader, skip, steps))


def test_ranges_by_push_and_pop_and_ranges_of_ones_own_are_as_good(capsys):
    def train(loader, model, optimizer, watched, nvtx):
        for number, batch in enumerate(watched(loader)):
            with nvtx.range(f"step {number}"):
                nvtx.range_push("forward")
                loss = model(batch)
                nvtx.range_pop()
                nvtx.range_push("backward")
                loss.backward()
                nvtx.range_pop()
                with nvtx.range("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()

    number = next(number for number, one in asked.EXERCISES.items() if one is asked.PASTED)
    assert exercises.exercise(number, train)
