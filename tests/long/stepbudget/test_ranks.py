"""Several reports, a rank each: numbered, on one clock, split, and the rank that the others waited for with its reason.

Runs are made by hand (ddp.py), so that every offset, drift and straggler is known.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddp import ALLREDUCE, TRANSFER, Ddp
from stepbudget.ask import clocks, collectives, ranks
from stepbudget.report import open_report
from stepbudget.show import ranks as say
from stepbudget.show import terminal
from synthetic import SyntheticReport


def lines(said: dict) -> list[str]:
    return terminal.lines(say.blocks(said))


def together(paths: list[Path], *more: object) -> ranks.Ranks:
    return ranks.together([open_report(path) for path in paths], *more)


# --- clocks -------------------------------------------------------------------------------------------------


def test_offset_and_drift_are_found_and_the_residual_is_what_the_ends_differ_by(tmp_path):
    run = Ddp(ranks=3, steps=80, offsets=(0, 54_321.5, -777.25), drifts=(0, 200e-6, 0), jitter=4, uneven=30)
    found = together(run.write(tmp_path)).ranks
    for rank, offset, drift in zip(found, run.offsets, run.drifts, strict=True):
        for true in (100, 20_000):
            own_ns = 1e3 * (5000 + run.own(rank.number, true))
            assert rank.clock.there([round(own_ns)])[0] == pytest.approx(1e3 * (5000 + true), abs=1500), offset
            assert rank.clock.back(rank.clock.there([round(own_ns)]))[0] == pytest.approx(round(own_ns), abs=1)
        assert rank.clock.drift == pytest.approx(drift, abs=40e-6)
    assert found[0].clock == clocks.Clock()
    assert all(0.3 < rank.clock.residual_us < 2 < rank.clock.residual_95_us < 4 for rank in found[1:])
    assert [rank.clock.collectives for rank in found] == [0, 160, 160]


def test_clocks_that_drift_apart_by_more_than_a_transfer_takes_are_followed(tmp_path):
    run = Ddp(steps=250, offsets=(0, 5e5), drifts=(0, -900e-6), jitter=2, uneven=30, skipped={1: 3}, loader={0: 60})
    found = together(run.write(tmp_path))
    assert 900e-6 * 1e3 * found.ranks[1].window.duration_ms > 1.5 * TRANSFER and not found.remarks
    assert found.ranks[1].clock.drift == pytest.approx(-900e-6, rel=0.02)
    assert [rank.communication["matched"] for rank in found.ranks] == [494, 494]
    assert (found.late.number, found.late.reason) == (0, "waiting for the loader")


spans = st.tuples(st.floats(-1e6, 1e6), st.lists(st.floats(0, 400), min_size=6, max_size=16), st.integers(0, 2**32 - 1))


@settings(max_examples=12, deadline=None)
@example((0.0, [0.0] * 6, 1560195), 8.0, 3)  # shifted by half of the six, two of three ends agree by chance
@given(spans, st.floats(0, 8), st.integers(2, 3))
def test_whatever_the_offsets_and_arrivals_the_clocks_are_found_and_the_split_adds_up(span, jitter, count):
    """Offsets within what the ends differ by; each rank's budget and its communication add up; waits as they were."""
    offset, lengths, seed = span
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        made = [SyntheticReport(Path(folder) / f"rank{rank}.sqlite", 10_000) for rank in range(count)]
        now, waits = 10.0, np.zeros(count)
        for length in lengths:
            starts = now + length * random.random(count)
            end = starts.max() + TRANSFER
            waits += starts.max() - starts
            for rank, report in enumerate(made):
                own = end + random.uniform(-jitter, jitter) / 2
                times = [time - offset * rank for time in (starts[rank], own)]
                report.kernel(*times, ALLREDUCE, call=(times[0] - 4, times[0] - 3), process=rank + 1)
                report.kernel(times[0] - 2, times[0] + 20, "sgemm", call=(times[0] - 5, times[0] - 4), process=rank + 1)
            now = end + 10 + random.uniform(0, 60)  # steps are never the same
        for rank, report in enumerate(made):
            report.range(-offset * rank, now + 100 - offset * rank, "training", process=rank + 1)
        found = together([report.write() for report in made])
        assert found.told_apart
        for rank in found.ranks:
            assert rank.clock.offset_ns / 1e3 == pytest.approx(offset * rank.number, abs=jitter + 0.01)
            assert rank.clock.residual_us <= jitter + 0.01
            own = rank.communication
            assert own["hidden_ms"] + own["exposed_ms"] == pytest.approx(own["total_ms"])
            parts = own["waiting_ms"] + own["transfer_ms"] + own["unmatched_ms"]
            assert parts == pytest.approx(own["total_ms"]) and own["unmatched_ms"] == pytest.approx(0, abs=1e-9)
            assert own["waiting_ms"] == pytest.approx(
                waits[rank.number] / 1e3, abs=len(lengths) * (jitter + 0.01) / 1e3
            )
            assert sum(rank.budget.fractions.values()) == pytest.approx(1, abs=1e-9)
            assert rank.budget.ms["communication"] == pytest.approx(own["exposed_ms"], abs=1e-6)


def test_a_capture_that_began_later_is_laid_beside_the_others_by_the_residual(tmp_path):
    run = Ddp(steps=12, skipped={1: 4}, offsets=(0, 3000), jitter=2, uneven=60)
    found = together(run.write(tmp_path))
    assert found.ranks[1].clock.offset_ns == pytest.approx(3e6, abs=2e3)
    assert not found.remarks and [rank.communication["matched"] for rank in found.ranks] == [16, 16]


def test_where_each_step_is_like_the_other_the_wall_clocks_decide_or_it_is_said(tmp_path):
    run = Ddp(steps=12, skipped={1: 4}, offsets=(0, 3000))
    found = together(run.write(tmp_path))
    assert any("may be off by whole steps" in text for text in found.remarks)

    def began(rank, report):
        report.began(1_800_000_000_000_000_000 + (3_050_000 if rank else 0))  # right to 50 µs

    found = together(run.write(tmp_path, extra=began))
    assert found.ranks[1].clock.offset_ns == pytest.approx(3e6, abs=1) and not found.remarks


def test_captures_of_one_length_began_together(tmp_path):
    found = together(Ddp(steps=12, offsets=(0, 3000)).write(tmp_path))
    assert found.ranks[1].clock.offset_ns == pytest.approx(3e6, abs=1) and not found.remarks


def numbered(rank: int, report: SyntheticReport) -> None:
    """What NCCL's advanced tracing says of each all-reduce: its number in the communicator."""
    own = report._string(ALLREDUCE)
    for place, row in enumerate([r for r in report._rows["CUPTI_ACTIVITY_KIND_KERNEL"] if r["demangledName"] == own]):
        start, end = (row[edge] / 1e3 - report.origin_us for edge in ("start", "end"))
        written = {"commHash": 7, "seqNumber": 100 + place, "count": 10, "dataType": 7}
        report.nccl(start + 0.1, end - 0.1, "AllReduce", thread=9, process=rank + 11, written=written)


def test_numbers_that_nccl_wrote_need_no_order(tmp_path):
    """The second rank's first all-reduces are in no order that the first's could be laid beside."""

    def shuffled(rank, report):
        numbered(rank, report)
        if rank:
            report._rows["CUPTI_ACTIVITY_KIND_KERNEL"][3]["end"] = 0  # the first of them is lost

    found = together(Ddp(steps=9, offsets=(0, 4000)).write(tmp_path, extra=shuffled))
    assert found.matched_by == "communicator and number" and not found.remarks
    assert [rank.communication["matched"] for rank in found.ranks] == [17, 17]
    assert found.ranks[1].clock.offset_ns == pytest.approx(4e6, abs=1)


def test_captures_of_different_days_are_doubted(tmp_path):
    def began(rank, report):
        report.began(1_800_000_000_000_000_000 + rank * 86_400_000_000_000)

    found = together(Ddp(steps=5, uneven=40).write(tmp_path, extra=began))
    assert found.remarks == (
        "by their wall clocks rank0.sqlite and rank1.sqlite lie 86,400 s apart: are they of one run?",
    )


def test_ranks_without_a_common_communicator_are_reached_by_way_of_others(tmp_path):
    """0 and 1, 1 and 2 talk to each other; 0 and 2 never do."""
    made = [SyntheticReport(tmp_path / f"rank{rank}.sqlite") for rank in range(3)]
    for step in range(8):
        for number, pair in ((1, (0, 1)), (2, (1, 2))):
            start = 1000 * step + 100 * number + step * step
            for rank in pair:
                at = start - 500 * rank
                written = {"NCCL communicator ID": number, "Message size [bytes]": 64}
                made[rank].nccl(at - 9, at - 5, "ncclAllReduce", process=rank + 1, written=written)
                made[rank].kernel(at, at + 50, ALLREDUCE, call=(at - 8, at - 7), process=rank + 1)
    found = together([report.write() for report in made])
    assert [rank.clock.offset_ns for rank in found.ranks] == pytest.approx([0, 500e3, 1e6])
    assert [rank.communication["matched"] for rank in found.ranks] == [8, 16, 8]


def test_clocks_that_fit_worse_than_a_transfer_takes_tell_no_waiting(tmp_path):
    random = np.random.default_rng(0)

    def wander(rank, report):
        for row in report._rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
            by = int(random.integers(-150_000, 150_000)) * rank
            row["start"], row["end"] = row["start"] + by, row["end"] + by
        numbered(rank, report)

    found = together(Ddp(steps=30, backward={1: 800}).write(tmp_path, extra=wander))
    assert not found.told_apart and found.late is None
    assert any("waiting and transfer are not told apart" in text for text in found.remarks)
    for rank in found.ranks:
        own = rank.communication
        assert own["waiting_ms"] == own["transfer_ms"] == 0 and own["unmatched_ms"] == pytest.approx(own["total_ms"])
        assert own["hidden_ms"] > 0
    assert "who kept the others waiting is not told" in "\n".join(lines(say.summary(found)))


def test_a_clock_that_rests_on_one_collective_says_so(tmp_path):
    made = [SyntheticReport(tmp_path / f"rank{rank}.sqlite").kernel(10, 20 + rank, ALLREDUCE) for rank in range(2)]
    found = together([report.write() for report in made])
    assert found.remarks == ("the clock of rank1.sqlite rests on one collective: how well it fits is not told",)


# --- the late rank ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("straggler", "reason", "share"),
    [
        ({"loader": {1: 300}}, "waiting for the loader", 1),
        ({"backward": {1: 150}}, "computation on the GPU", 1),
        ({"logging": {1: 200}}, "CPU code", 0.9),
    ],
)
@pytest.mark.parametrize("count", [2, 4])
def test_stragglers_are_named_with_what_took_them_longer(tmp_path, straggler, reason, share, count):
    run = Ddp(ranks=count, offsets=(0, 9e6, -9e6, 5)[:count], jitter=3, uneven=40, written=True, **straggler)
    found = together(run.write(tmp_path))
    last = found.late
    ((_, by),) = straggler.items()
    extra_ms = run.steps * by[1] / 1e3
    assert (last.number, last.reason) == (1, reason) and last.matched == 20 and last.last >= 18
    assert share * extra_ms * 0.95 <= last.reason_ms <= extra_ms * 1.05
    said = say.summary(found)
    for rank in said["ranks"]:
        assert sum(share or 0 for share in rank["budget"].values()) == pytest.approx(1, abs=1e-9)
    even = together(Ddp(ranks=count, jitter=3, uneven=40).write(tmp_path))
    gained_ms = found.ranks[0].window.duration_ms - even.ranks[0].window.duration_ms
    assert gained_ms <= said["bounds"]["late_rank_ms"] <= last.alone_ms + 1e-9
    text = " ".join(lines(said))
    assert "rank 1 came last to" in text and f"{reason} took it" in text


def test_where_all_are_alike_none_is_late(tmp_path):
    found = together(Ddp(offsets=(0, 777), jitter=3, uneven=40).write(tmp_path))
    assert found.late is None
    assert "no rank kept the others waiting, with nothing else to run" in "\n".join(lines(say.summary(found)))


def test_several_that_are_late_together_are_told(tmp_path):
    run = Ddp(ranks=4, loader={2: 300, 3: 310}, jitter=1, uneven=40)
    said = say.summary(together(run.write(tmp_path)))
    assert said["late_rank"]["rank"] == 3 and said["late_rank"]["alone_ms"] < 0.5
    assert "several came late together" in " ".join(lines(said))


def test_one_report_of_all_ranks_says_what_a_report_a_rank_says(tmp_path):
    run = dict(ranks=2, loader={0: 250}, uneven=40, written=True)
    (tmp_path / "each").mkdir()
    apart, one = together(Ddp(**run).write(tmp_path / "each")), together(Ddp(**run, in_one=True).write(tmp_path))
    assert (apart.numbered_by, one.numbered_by) == ("name", "gpu") and one.residual_us == 0
    for a, b in zip(apart.ranks, one.ranks, strict=True):
        assert a.communication == pytest.approx(b.communication)
        assert a.budget.ms == pytest.approx(b.budget.ms)
    a, b = apart.late, one.late
    assert a.reason == b.reason == "waiting for the loader" and a.reason_ms == pytest.approx(b.reason_ms)
    in_report = collectives.communication(one.ranks[0].report)
    assert in_report["waiting_ms"].tolist() == pytest.approx([rank.communication["waiting_ms"] for rank in one.ranks])


def test_communicators_of_some_ranks_are_matched_among_these(tmp_path):
    run = Ddp(ranks=4, groups=((0, 1),), written=True, init=True, loader={1: 300}, uneven=40, jitter=2)
    found = together(run.write(tmp_path))
    assert [rank.communication["matched"] for rank in found.ranks] == [30, 30, 20, 20]
    assert all(rank.communication["unmatched_ms"] == 0 for rank in found.ranks)
    last = found.late
    assert (last.number, last.reason) == (1, "waiting for the loader")
    assert last.reason_ms == pytest.approx(3, rel=0.05), "held against ranks that took part in two of three, too"
    table = found.bandwidth()
    assert table[["function", "ranks", "count"]].to_numpy().tolist() == [["AllReduce", 2, 10], ["AllReduce", 4, 20]]
    expected = 4e6 / (TRANSFER * 1e-6) / 1e9 * np.array([1, 1.5])
    assert table["bus_gb_per_s"].to_numpy() == pytest.approx(expected, rel=0.05)


def test_the_range_that_is_asked_for_is_each_ranks_own(tmp_path):
    run = Ddp(steps=6, offsets=(0, 4000), loader={1: 300})
    found = together(run.write(tmp_path), "data loading", 3)
    assert [rank.window.duration_ms for rank in found.ranks] == pytest.approx([0.02, 0.32])
    assert all(rank.communication["kernels"] == 0 for rank in found.ranks)
    assert found.late is None and lines(say.summary(found))


# --- which rank is which, and which are missing --------------------------------------------------------------


def some(tmp_path, chosen: tuple[int, ...], extra=None, name="report{}.sqlite", **run) -> list[Path]:
    paths = Ddp(ranks=4, steps=4, uneven=40, **run).write(tmp_path, name, extra)
    return [paths[rank] for rank in chosen]


def test_missing_ranks_are_named_where_the_environment_numbers_them(tmp_path):
    def torchrun(rank, report):
        report.environment(PATH="/bin", RANK=rank, WORLD_SIZE=4, SLURM_PROCID=0, SLURM_NTASKS=1)

    found = together(some(tmp_path, (3, 0, 2), torchrun, "x{}.sqlite"))
    assert (found.numbered_by, found.world, found.missing) == ("environment", 4, [1])
    assert [rank.number for rank in found.ranks] == [0, 2, 3]
    said = " ".join(lines(say.summary(found)))
    assert "3 ranks of 4" in said and "of 4 ranks, 1 are missing: 1; what seems to be transfer" in said


def test_what_nccl_wrote_comes_before_the_environment_and_the_name(tmp_path):
    def swapped(rank, report):
        report.environment(RANK=3 - rank, WORLD_SIZE=4)

    found = together(some(tmp_path, (0, 1, 2), swapped, "rank{}.sqlite", init=True, written=True))
    assert (found.numbered_by, found.world, found.missing) == ("nccl", 4, [3])
    assert [rank.label for rank in found.ranks] == ["rank0.sqlite", "rank1.sqlite", "rank2.sqlite"]
    assert found.bandwidth().empty, "of four ranks three are there"


@pytest.mark.parametrize(
    ("name", "by", "numbers"),
    [
        ("gpt_rank-{}_of_4.sqlite", "name", [1, 3]),
        ("my3run.{}.sqlite", "order", [0, 1]),  # 1 and 3 may be anything, such as process numbers
        ("frank{}.sqlite", "order", [0, 1]),
    ],
)
def test_a_rank_in_the_name(tmp_path, name, by, numbers):
    found = together(some(tmp_path, (1, 3), name=name))
    assert (found.numbered_by, [rank.number for rank in found.ranks]) == (by, numbers)
    assert found.world is None and found.missing is None
    assert any("how many ranks the run had is not in the reports" in text for text in say.summary(found)["remarks"])


def test_numbers_from_0_in_which_names_differ_are_ranks_but_none_is_missed_by_them(tmp_path):
    assert together(some(tmp_path, (2, 0), name="h100.{}.sqlite")).numbered_by == "differing"

    def of_four(rank, report):
        report.nccl(1, 2, "ncclCommInitRank", process=99, written={"No. of ranks": 4, "Rank": 0})

    found = together(some(tmp_path, (2, 0), of_four, name="h100.{}.sqlite"))
    assert found.world is None, "another process's communicator says nothing of these ranks"


def test_a_number_of_ranks_that_cannot_be_is_none(tmp_path):
    found = together(some(tmp_path, (0, 1), lambda rank, report: report.environment(RANK=rank, WORLD_SIZE=10**9)))
    assert (found.numbered_by, found.world, found.missing) == ("environment", None, None)


def test_a_communicator_of_fewer_ranks_than_are_there_is_not_the_run(tmp_path):
    def alone(rank, report):
        report.nccl(1, 2, "ncclCommInitRank", process=rank + 11, written={"No. of ranks": 1, "Rank": 0})

    found = together(some(tmp_path, (0, 1), alone))
    assert (found.numbered_by, found.world) == ("differing", None)


def test_without_other_numbers_gpus_tell_ranks_apart(tmp_path):
    run = Ddp(steps=4, uneven=40, in_one=True)
    assert together(run.write(tmp_path, "all.sqlite")).numbered_by == "gpu"


def test_how_many_are_missing_is_said_where_their_numbers_do_not_tell_which(tmp_path):
    def large(rank, report):
        report.nccl(1, 2, "ncclCommInitRank", process=rank + 11, written={"No. of ranks": 4, "Rank": 1})

    found = together(some(tmp_path, (0, 1), large, "h100.{}.sqlite"))
    assert (found.numbered_by, found.world, found.missing) == ("differing", 4, None)
    assert "2 of 4 ranks are missing; which ones, their numbers do not tell" in say.summary(found)["remarks"][0]


# --- reports that do not belong together, hostile ones, and how it is printed --------------------------------


def test_reports_that_do_not_belong_together_are_one_sentence(tmp_path, ask):
    first, second = Ddp(steps=5, uneven=40).write(tmp_path)
    other = SyntheticReport(tmp_path / "other.sqlite").kernel(0, 9, ALLREDUCE.replace("AllReduce", "AllGather"))
    plain = SyntheticReport(tmp_path / "plain.sqlite").kernel(0, 9, "sgemm")
    for paths, words in (
        ([first, other.write()], "have no collective in common that ran at the same time: are they of one run?"),
        ([first, plain.write()], "plain.sqlite holds no kernels of collectives"),
        ([first, second, first], "rank0.sqlite is given twice"),
        ([first, tmp_path / "none.sqlite"], "there is no report"),
    ):
        status, out, err = ask(*paths, "--ranks")
        assert (status, out) == (2, "") and words in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("options", [["--compare", "x"], ["--gpu", "0"], ["--tables"]])
def test_ranks_go_with_no_comparison_no_gpu_and_no_tables(ask, options):
    status, out, err = ask("a", "b", "--ranks", *options)
    assert (status, out) == (2, "") and "not allowed with argument" in err


def test_several_reports_without_a_word_name_both_choices(ask):
    status, _, err = ask("a", "b")
    assert status == 2 and "--compare" in err and "--ranks" in err


HOSTILE = "\x1b[31mrank\n$<b>{}</b>"


def test_hostile_names_are_harmless(tmp_path, ask):
    kernel = ALLREDUCE + HOSTILE

    def rename(rank, report):
        report.range(5, 6, HOSTILE.format("x"), process=rank + 11)
        report._strings = {kernel if name == ALLREDUCE else name: number for name, number in report._strings.items()}
        report.environment(RANK=HOSTILE, WORLD_SIZE="9" * 5000)

    paths = Ddp(steps=5, uneven=40).write(tmp_path, HOSTILE.replace("/", "_"), rename)
    status, out, err = ask(*paths, "--ranks")
    assert (status, err) == (0, "") and "\x1b" not in out and "$<b>" in out
    assert json.loads(ask(*paths, "--ranks", "--json")[1])["numbered_by"] == "differing"


def test_the_json_is_strict_and_complete(tmp_path, ask):
    run = Ddp(offsets=(0, 77), loader={1: 300}, uneven=40, written=True, init=True, as_bytes=True)
    status, out, err = ask(*run.write(tmp_path), "--ranks", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert found["missing_ranks"] == [] and found["world_size"] == 2
    assert found["late_rank"]["rank"] == 1 and found["late_rank"]["more_ms"]["loader"] == pytest.approx(3, rel=0.05)
    assert found["ranks"][1]["clock"]["offset_us"] == pytest.approx(77, abs=0.01)
    assert found["ranks"][0]["communication"]["waiting_ms"] > 3 and found["clock"]["waiting_told"]
    assert found["bandwidth"][0]["bus_gb_per_s"] == pytest.approx(80, rel=0.05)
    assert found["not_looked_at"] == [say.NO_PEAK]


@pytest.mark.parametrize("count", [2, 6, 12])
def test_the_text_fits_120_columns_and_adds_up(tmp_path, ask, count):
    run = Ddp(ranks=count, steps=4, loader={1: 3e6}, uneven=40, offsets=tuple(-1e9 * rank for rank in range(count)))
    paths = run.write(tmp_path, "a_run_with_a_name_that_is_longer_than_any_table_rank{}.sqlite")
    status, out, _ = ask(*paths, "--ranks")
    assert status == 0 and max(map(len, out.splitlines())) <= 120
    rows = out.split("Where the time goes, ms\n")[1].split("\n\n")[0].splitlines()[1:]
    rows = [row for row in rows if "─" not in row]
    numbers = np.array([[float(word.replace(",", "")) for word in row.split()[-min(count, 4) :]] for row in rows])
    columns = slice(None) if count <= 6 else slice(0, 1)  # of more ranks: the late one adds up, a median need not
    assert numbers[:-1, columns].sum(axis=0) == pytest.approx(numbers[-1, columns], abs=0.4)


# --- what lateness costs ------------------------------------------------------------------------------------


def behind(path: Path, first: float = 0.0) -> SyntheticReport:
    """Ten steps of 100 µs: GPU 1 begins its part 60 µs after GPU 0, which waits for it in the collective."""
    made = SyntheticReport(path)
    for rank in (0, 1):
        made.range(first * rank, 1000, "training", process=rank + 11)
        for at in range(0, 1000, 100):
            begin, place = at + 60 * rank, {"device": rank, "process": rank + 11}
            made.kernel(begin + 5, begin + 15, "ampere_sgemm_128x64_nn", call=(begin + 1, begin + 2), **place)
            made.kernel(begin + 15, at + 95, ALLREDUCE, call=(begin + 3, begin + 4), stream=20, **place)
    return made


def late_in(made: SyntheticReport) -> ranks.Late | None:
    report = open_report(made.write())
    return ranks.late_within(report, report.window())


def test_a_wait_that_another_kernel_hides_costs_nothing_and_makes_no_rank_late(tmp_path):
    made = behind(tmp_path / "a.sqlite")
    found = late_in(made)
    assert (found.number, found.last, found.matched) == (1, 10, 10)
    assert (found.alone_ms, found.exposed_ms, found.most_ms) == pytest.approx((0.6, 0.6, 0.06))
    for at in range(0, 1000, 100):
        made.kernel(at + 20, at + 40, "ampere_sgemm_128x64_nn", call=(at + 4, at + 5), device=0, process=11)
    assert late_in(made).exposed_ms == pytest.approx(0.4) and late_in(made).alone_ms == pytest.approx(0.6)
    for at in range(0, 1000, 100):
        made.kernel(at + 15, at + 76, "ampere_sgemm_128x64_nn", call=(at + 5, at + 6), device=0, process=11)
    assert late_in(made) is None


def test_where_the_others_cpu_is_hardly_faster_there_is_little_to_gain(tmp_path):
    """A rank that waits on its GPU while its CPU runs on would launch no earlier, were the late one on time."""
    made = behind(tmp_path / "a.sqlite").api(970, 990, "cudaDeviceSynchronize", process=11)
    assert late_in(made).at_most_ms == pytest.approx(0.6), "nothing tells what the CPU did"
    for process in (11, 12):
        made.os_call(0, 1, "write", process=process)
    found = late_in(made)
    assert found.at_rest_ms == found.at_most_ms == pytest.approx(0.02) and found.exposed_ms == pytest.approx(0.6)
    said = say.summary(together([made.write()]))
    assert said["bounds"]["late_rank_ms"] == pytest.approx(0.02)
    assert "the others' CPU was idle for only 0.0 ms" in " ".join(lines(said))


def test_what_passed_before_the_late_ranks_capture_began_is_not_its_doing(tmp_path):
    found = late_in(behind(tmp_path / "a.sqlite", first=50))
    assert found.alone_ms == pytest.approx(0.6) and found.exposed_ms == pytest.approx(0.6 - 0.035)
