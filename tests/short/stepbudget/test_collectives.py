"""Communication: whose it is, what hides it, which kernels are one collective, and for whom the ranks waited."""

from __future__ import annotations

import pytest

from stepbudget.ask import advice, collectives, predict
from stepbudget.ask.budget import budget
from stepbudget.kernel_names import is_collective
from stepbudget.report import open_report
from stepbudget.show import summary, terminal
from stepbudget.window import Window
from synthetic import SyntheticReport

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
SGEMM = "ampere_sgemm_128x64_nn"
RANKS = ((11, 0), (22, 1))


@pytest.fixture
def made(tmp_path):
    return SyntheticReport(tmp_path / "made.sqlite").range(0, 1000, "training", process=11)


def collective(made, at: tuple[float, ...], end: float, name: str = ALLREDUCE):
    """One collective: when each rank's kernel starts (None: not in the capture), and when all end."""
    for (process, device), start in zip(RANKS, at, strict=True):
        if start is not None:
            made.kernel(start, end, name, call=(start - 5, start - 4), device=device, stream=20, process=process)
    return made


def ranks(made) -> dict[int, dict]:
    return {row["gpu"]: row for row in collectives.communication(open_report(made.write())).to_dict("records")}


def test_hidden_is_what_another_kernel_of_the_same_gpu_runs_beside(made):
    collective(made, (100, 100), 200).kernel(50, 160, SGEMM, call=(40, 41), process=11)
    made.kernel(0, 1000, SGEMM, call=(0, 1), device=1, process=22)
    first, second = ranks(made).values()
    assert (first["total_ms"], first["hidden_ms"], first["exposed_ms"]) == pytest.approx((0.1, 0.06, 0.04))
    assert (second["hidden_ms"], second["exposed_ms"]) == pytest.approx((0.1, 0))


def test_until_the_last_rank_starts_the_others_wait_and_the_rest_is_transfer(made):
    collective(made, (100, 170), 200).range(0, 1, "x")
    collective(made, (310, 300), 350)
    first, second = ranks(made).values()
    assert (first["waiting_ms"], first["transfer_ms"], first["unmatched_ms"]) == pytest.approx((0.07, 0.07, 0))
    assert (second["waiting_ms"], second["transfer_ms"]) == pytest.approx((0.01, 0.07))
    assert (first["last"], second["last"], first["matched"]) == (1, 1, 2)
    assert (first["alone_ms"], second["alone_ms"]) == pytest.approx((0.01, 0.07))
    found = collectives.communication(open_report(made.path))
    assert collectives.late(found)["gpu"] == 1
    assert advice.late_rank(found) == [
        "GPU 1 (process 22) came last to 1 of 2 collectives. The others waited 0.1 ms for it alone"
    ]


def test_a_rank_that_the_capture_cut_short_is_shifted_to_where_it_runs_beside_the_others(made):
    for step in range(5):
        late = 100 * step + 40
        collective(made, (100 * step + 10, None if step < 2 else late), 100 * step + 60)
    first, second = ranks(made).values()
    assert (first["matched"], second["matched"], second["last"]) == (3, 3, 3)
    assert first["unmatched_ms"] == pytest.approx(0.1) and first["waiting_ms"] == pytest.approx(0.09)


def test_what_does_not_run_at_the_same_time_or_passes_between_two_is_unmatched(made):
    collective(made, (100, 200), 150).kernel(200, 250, SGEMM, process=11)
    collective(made, (300, 310), 400, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)")
    collective(made, (500, None), 600, GATHER)
    made._rows["CUPTI_ACTIVITY_KIND_KERNEL"][1]["end"] = made._ns(260)
    for row in ranks(made).values():
        assert row["waiting_ms"] == row["transfer_ms"] == row["matched"] == 0
        assert row["unmatched_ms"] == pytest.approx(row["total_ms"])
    assert collectives.late(collectives.communication(open_report(made.path))) is None


def test_names_are_matched_apart(made):
    collective(made, (100, 110), 200).kernel(0, 1, SGEMM)
    collective(made, (120, 115), 190, GATHER)
    found = collectives.collectives(open_report(made.write()), Window(0, 10**9, "all"))
    assert found.groupby("name")["last_start"].nunique().tolist() == [1, 1] and found["last_start"].notna().all()


def test_communicators_are_matched_apart_where_nccl_wrote_them(made):
    """Two all-reduces between all ranks, and between them one of two ranks only: by name and order it would not fit."""
    places = ((11, 0), (22, 1), (33, 2))
    for at, number, group in ((100, 5, places), (200, 6, places[:2]), (300, 5, places)):
        for place, (process, device) in enumerate(group):
            start = at + 10 * place
            written = {"NCCL communicator ID": number, "Message size [bytes]": 1000 * number}
            made.nccl(start - 8, start - 4, "ncclAllReduce", process=process, written=written)
            made.kernel(start, at + 60, ALLREDUCE, call=(start - 6, start - 5), device=device, process=process)
    found = collectives.communication(open_report(made.write()))
    assert found["matched"].tolist() == [3, 3, 2] and found["unmatched_ms"].max() == 0
    assert found["waiting_ms"].to_numpy() == pytest.approx([0.05, 0.02, 0])
    assert found["last"].tolist() == [0, 1, 2] and found["alone_ms"].to_numpy() == pytest.approx([0, 0.01, 0.02])


@pytest.mark.parametrize(
    ("name", "size", "factor"),  # nccl-tests, doc/PERFORMANCE.md: size in a rank's messages, and factor, of 4 ranks
    [
        ("AllReduce", 1, 1.5), ("AllGather", 4, 0.75), ("ReduceScatter", 4, 0.75), ("AlltoAll", 4, 0.75),
        ("Broadcast", 1, 1), ("Reduce", 1, 1),
    ],
)  # fmt: skip
def test_bus_bandwidth_is_nccl_tests_over_the_transfer(made, name, size, factor):
    for number, length in enumerate((100, 50)):
        for rank in range(4):
            process, start = 11 * (rank + 1), 300 * number + 20 * rank + 10
            written = {"NCCL communicator ID": 5, "Message size [bytes]": 8_000_000 // (number + 1)}
            made.nccl(start - 8, start - 4, f"nccl{name}", process=process, written=written)
            kernel = f"ncclDevKernel_{name}_RING_LL(ncclDevKernelArgsStorage<4096>)"
            times = (start, 300 * number + 70 + length)
            made.kernel(*times, kernel, call=(start - 6, start - 5), device=rank, process=process)
    report = open_report(made.write())
    said = summary.summary(report)
    (row,) = said["bandwidth"]
    assert any(f"{name} of 4 ranks: 2, 12.00 MB, bus bandwidth" in line for line in terminal.answer(said))
    assert collectives.NO_SIZES not in said["not_looked_at"]
    assert (row["function"], row["ranks"], row["count"], row["bytes"]) == (name, 4, 2, 12_000_000)
    assert row["transfer_ms"] == pytest.approx(0.15)
    assert row["algorithm_gb_per_s"] == pytest.approx(size * 12e6 / 150e-6 / 1e9)
    assert row["bus_gb_per_s"] == pytest.approx(factor * row["algorithm_gb_per_s"])
    assert (row["largest_bytes"], row["largest_bus_gb_per_s"]) == (8_000_000, pytest.approx(factor * size * 80))


def test_no_bandwidth_where_a_rank_of_the_communicator_is_missing(made):
    collective(made, (100, 110), 200)
    for process, start in ((11, 100), (22, 110)):
        made.nccl(start - 8, start - 2, "ncclAllReduce", process=process,
                  written={"NCCL communicator ID": 5, "Message size [bytes]": 1000})  # fmt: skip
    assert len(collectives.bandwidth(collectives.collectives(open_report(made.write())))) == 1
    init = {"NCCL communicator ID": 5, "No. of ranks": 3, "Rank": 0}
    made.nccl(1, 2, "ncclCommInitRank", process=11, written=init)
    assert collectives.bandwidth(collectives.collectives(open_report(made.write()))).empty


def test_communication_is_a_cause_of_its_own_and_no_precision_shortens_it(made):
    collective(made, (100, 400), 900).kernel(10, 90, SGEMM, call=(5, 6), process=11)
    made.kernel(800, 950, SGEMM, call=(700, 701), process=11)
    report = open_report(made.write())
    found = budget(report)
    assert found.device == 0 and found.ms["communication"] == pytest.approx(0.7)
    assert found.ms["other_kernels"] == pytest.approx(0.23) and sum(found.fractions.values()) == pytest.approx(1)
    assert found.ms["communication"] == pytest.approx(ranks(made)[0]["exposed_ms"])
    assert predict.bound(report, found, "mixed_precision").at_most_ms == pytest.approx(0.23)
    assert collectives.NO_SIZES in advice.not_looked_at(report, found)
    (said,) = [one for one in advice.advice(report, found) if one.cause == "communication"]
    assert said.upper_bound_ms == pytest.approx(0.5), "the other GPU has no more of it exposed"
    assert said.finding is None and ": 0.1 hidden behind" in said.evidence
    assert [one for one in advice.advice(report, found) if one.finding] == [], "what GPU 1 did before, nobody saw"
    report = open_report(made.api(50, 51, "cudaGetDevice", process=22).write())
    (late,) = [one for one in advice.advice(report, budget(report)) if one.finding == advice.LATE]
    assert late.gpu == 1 and late.what.startswith("GPU 1 is late") and late.upper_bound_ms == pytest.approx(0.3)
    assert "GPU 1 (process 22) came last to 1 of 1" in late.evidence
    assert "The others waited 0.3 ms for it with nothing else to run" in late.evidence
    shown = terminal.answer(summary.summary(report))
    assert any("communication between GPUs" in line for line in shown)
    (row,) = [line for line in shown if "GPU 1, process 22" in line]
    assert row.split()[4:] == ["1", "0.50", "0.00", "0.50", "0.00", "0.50", "0.00"]


def test_without_collectives_there_is_nothing_to_say(made):
    report = open_report(made.kernel(0, 10, SGEMM, call=(0, 1), process=11).write())
    assert collectives.communication(report).empty
    assert summary.summary(report)["communication"] == []


@pytest.mark.parametrize(
    "name",
    [
        ALLREDUCE, GATHER, "ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclDevComm *, unsigned long, ncclWork *)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "ncclSymkDevKernel_AllReduce_Sum_f32(ncclSymkDevArgs)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, (int)2>(vllm::RankData *)", "mscclKernel_Sum_float_LL",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, (int)2>(AllReduceParams)",
        "void deep_ep::internode::dispatch<(bool)1>(int4 *)", "nvshmemi_transfer_rma_put_threadgroup",
    ],
)  # fmt: skip
def test_kernels_that_communicate(name):
    assert is_collective(name)


@pytest.mark.parametrize(
    "name",
    [
        SGEMM, "void at::native::reduce_kernel<(int)512, (int)1, ncclFunctor>()", "void BlockAllReduceSum<float>()",
        "void softmax_warp_allreduce<float>(float *)", "void LayerNormWarpAllReduce<float>(float *)",
    ],
)  # fmt: skip
def test_kernels_that_do_not(name):
    assert not is_collective(name)


def test_collectives_of_one_rank_alone_are_advised_on_with_all_that_is_exposed(made):
    made.range(0, 1000, "training", process=11).kernel(100, 300, ALLREDUCE, call=(50, 51), process=11)
    report = open_report(made.write())
    (said,) = [one for one in advice.advice(report, budget(report)) if one.cause == "communication"]
    assert said.upper_bound_ms == pytest.approx(0.2) and said.finding is None and "waited for" not in said.evidence
