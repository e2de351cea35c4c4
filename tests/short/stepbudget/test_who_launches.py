"""Whose program is it? The thread that launches or waits for the GPU, and the card with the work, whoever is loud."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepbudget.ask import iterations, phases, threads
from stepbudget.ask.budget import budget
from stepbudget.report import open_report
from stepbudget.show import summary
from synthetic import AUTOGRAD, PROCESS, SyntheticReport, opened

POINTWISE, ALLREDUCE = "at::native::vectorized_elementwise_kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"
GEMM = "ampere_s16816gemm_128x64"
TRAINER, PREFETCH, PINNING, WRITER = 20, 21, 22, 23
FIRST = PROCESS & 0xFFFFFF  # the number of a process's first thread is the process's own
MS = 1000  # µs
STEPS = 20


def main_of(report) -> int:
    window = threads.about(report, report.window())
    return threads.main_thread(report, window) & 0xFFFFFF


def train(made, thread=TRAINER, process=PROCESS, autograd=AUTOGRAD):
    """Steps of 10 ms: 4 ms without data, a kernel of the thread's, two of autograd's, and a loss that is read."""
    for at in range(0, STEPS * 10 * MS, 10 * MS):
        made.range(at, at + 4 * MS, "data loading", thread=thread, process=process)
        made.kernel(at + 4200, at + 5000, GEMM, call=(at + 4100, at + 4110), thread=thread, process=process)
        for number in (1, 2):
            call = (at + 4200 + 10 * number, at + 4205 + 10 * number)
            start = at + 4000 + 1000 * number
            made.kernel(start, start + 1000, GEMM, call=call, thread=autograd, process=process)
        made.api(at + 4300, at + 7010, "cudaStreamSynchronize_v3020", thread=thread, process=process)
    return made


def test_a_trainer_in_a_thread_of_its_own_beside_a_first_thread_that_only_waits_for_it(made):
    train(made).api(1, 2, "cudaSetDevice", thread=FIRST).os_call(5, 199 * MS, "pthread_join", thread=FIRST)
    for at in range(0, 199 * MS, 100):  # noise: rows without end, and none of them launches
        made.range(at, at + 50, "heartbeat", thread=FIRST)
    report = opened(made)
    assert main_of(report) == TRAINER
    assert budget(report).ms["loader"] == pytest.approx(STEPS * 4, abs=1)
    assert len(iterations.step_windows(report)) == STEPS


def test_nor_does_a_range_of_the_first_thread_around_all_of_it_hide_the_trainer(made):
    train(made).api(1, 2, "cudaSetDevice", thread=FIRST).range(0, 200 * MS, "training", thread=FIRST)
    report = opened(made)
    assert main_of(report) == TRAINER and len(iterations.step_windows(report)) == STEPS
    assert budget(report).ms["loader"] == pytest.approx(STEPS * 4, abs=1)


@pytest.mark.parametrize("first", ["trains", "sleeps"])
def test_threads_that_prefetch_pin_or_write_are_not_the_program(made, first):
    trainer = FIRST if first == "trains" else TRAINER
    train(made, thread=trainer)
    for at in range(0, STEPS * 10 * MS, 200):
        made.api(at, at + 50, "cudaHostAlloc", thread=PINNING).api(at + 60, at + 90, "cudaEventQuery", thread=PINNING)
        made.range(at, at + 150, "read batch", thread=WRITER).range(at, at + 100, "prefetch", thread=PREFETCH)
    made.kernel(3000, 3010, POINTWISE, call=(2991, 2995), thread=PREFETCH)  # prepares, and waits for copies
    for at in range(1 * MS, STEPS * 10 * MS, MS):
        made.api(at + 200, at + 400, "cudaStreamSynchronize", thread=PREFETCH)
    report = opened(made)
    assert main_of(report) == trainer
    assert len(iterations.step_windows(report)) == STEPS
    assert budget(report).ms["loader"] == pytest.approx(STEPS * 4, abs=1)


def test_where_a_runtime_launches_the_first_thread_with_the_programs_ranges_is_the_program(made):
    for at in range(0, 100 * MS, 10 * MS):
        made.range(at, at + 3 * MS, "data loading", thread=FIRST).range(at + 3 * MS, at + 9 * MS, "run", thread=FIRST)
        made.kernel(at + 4 * MS, at + 9 * MS, GEMM, call=(at + 3500, at + 3510), thread=TRAINER)
    report = opened(made)
    assert main_of(report) == FIRST and len(iterations.step_windows(report)) == 10
    assert phases.phases(report).set_index("phase")["kernels"]["run"] == 10


def test_of_several_processes_the_one_with_the_work_is_asked(made):
    train(made, process=4712)
    for at in range(0, STEPS * 10 * MS, 100):
        made.range(at, at + 50, "heartbeat", thread=FIRST).api(at, at + 20, "cudaEventQuery", thread=FIRST)
    report = opened(made.copy(3, 4, 4096, call=(1, 2)))
    window = threads.about(report, report.window())
    assert (window.process & 0xFFFFFF, main_of(report)) == (4712, TRAINER)
    assert budget(report).ms["loader"] == pytest.approx(STEPS * 4, abs=1)


# --- which card ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "us"), [(ALLREDUCE, 40), (POINTWISE, 40), (ALLREDUCE, 90_000)], ids=["collective", "kernel", "a long wait"]
)
def test_a_stray_kernel_on_another_card_is_not_the_program(made, name, us):
    made.range(0, 100 * MS, "training").kernel(100, 100 + us, name, call=(50, 60), device=0)
    for at in range(0, 100 * MS, 10 * MS):
        made.kernel(at + 100, at + 9 * MS, GEMM, call=(at + 10, at + 20), device=1)
    report = opened(made.gpu("the idle one", 0).gpu("the busy one", 1))
    said = summary.summary(report)
    assert said["gpu_number"] == 1 and said["gpu"] == "the busy one"
    assert said["gpu_busy_fraction"] == pytest.approx(0.89, abs=0.01)
    assert budget(report, device=0).device == 0, "who asks for a card gets it"


def test_a_card_on_which_nothing_runs_but_collectives_is_looked_at_if_there_is_no_other(made):
    made.range(0, 100, "training").kernel(10, 90, ALLREDUCE, call=(1, 2), device=3)
    assert budget(opened(made)).device == 3


@settings(max_examples=30, deadline=None)
@given(loads=st.lists(st.integers(1, 1000), min_size=1, max_size=4))
def test_the_default_card_is_the_lowest_with_a_share_of_the_work(tmp_path_factory, loads):
    made = SyntheticReport(tmp_path_factory.mktemp("cards") / "made.sqlite").range(0, 2000, "training")
    for device, us in enumerate(loads):
        made.kernel(10, 10 + us, GEMM, call=(1, 2), device=device)
    with open_report(made.write()) as report:
        chosen = threads.about(report, report.window()).gpu
    assert loads[chosen] >= threads.STRAY * max(loads)
    assert all(us < threads.STRAY * max(loads) for us in loads[:chosen])
