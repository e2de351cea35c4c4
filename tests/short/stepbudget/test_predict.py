"""Upper bounds, comparisons, scores and advice: bounds hold, unlike reports are not compared, nothing is guessed."""

from __future__ import annotations

from itertools import permutations

import pytest

from labkit.source import recorded
from stepbudget import kernel_names
from stepbudget.ask import advice, predict
from stepbudget.ask.budget import budget
from stepbudget.ask.compare import Score, compare
from stepbudget.errors import ReportError
from stepbudget.report import open_report
from synthetic import SyntheticReport

LADDER = ["main_baseline_nvtx", "main_opt1", "main_opt2", "main_opt3_tf32", "main_opt3", "main_opt3_bf16"]
FP32, FP16 = "ampere_sgemm_128x64_nn", "ampere_fp16_s16816gemm_fp16_128x64"
POINTWISE, HALF = "at::native::elementwise_kernel<float>", "at::native::elementwise_kernel<c10::Half>"


@pytest.fixture(scope="module")
def reports():
    found = {name: open_report(recorded.folder() / "profiles" / f"{name}.sqlite.xz") for name in LADDER}
    yield found
    for report in found.values():
        report.close()


def training(path, steps=3, kernel=FP32, size=1000, gpu="NVIDIA H200", wait_us=100, launches=2):
    """A small training: each step waits for data, copies, and runs kernels."""
    build = SyntheticReport(path).gpu(gpu)
    length = wait_us + 100
    build.range(0, steps * length, "training")
    for number in range(steps):
        start = number * length
        build.range(start, start + wait_us, "data loading").range(start + wait_us, start + length - 1, "forward")
        at = start + wait_us
        build.copy(at + 10, at + 20, size, memory="pinned", call=(at + 2, at + 4))
        for launch in range(launches):
            begin = at + 20 + 30 * launch
            build.kernel(begin, begin + 30, kernel, call=(at + 5 + launch, at + 6 + launch))
    return open_report(build.write())


# --- bounds -------------------------------------------------------------------------------------------------


def test_a_bound_is_the_time_of_the_causes_that_the_fix_removes(tmp_path):
    report = training(tmp_path / "a.sqlite")
    found = predict.bound(report, budget(report), "loader")
    assert found.at_most_ms == pytest.approx(0.3, abs=0.01), "three waits of 100 µs"
    assert found.of_ms == pytest.approx(0.6)
    assert found.at_most_times == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize(
    ("kernel", "share"),
    [(FP32, 1.0), (POINTWISE, 0.5), (HALF, 0.0), (FP16, 0.0)],
    ids=["a product in FP32 can vanish", "other FP32 work can halve", "16 bits gain nothing", "nor do Tensor Cores"],
)
def test_the_bound_of_mixed_precision(tmp_path, kernel, share):
    report = training(tmp_path / "a.sqlite", kernel=kernel)
    found = predict.bound(report, budget(report), "mixed_precision")
    assert found.at_most_ms == pytest.approx(share * 3 * 0.06)


def test_an_unknown_fix_is_an_error_that_lists_the_known(tmp_path):
    report = training(tmp_path / "a.sqlite")
    with pytest.raises(ReportError, match=r"no fix is called 'magic'\. There are: loader"):
        predict.bound(report, budget(report), "magic")


def test_no_bound_exceeds_the_window_or_is_negative(reports):
    for report in reports.values():
        found = budget(report)
        for bound in predict.bounds(report, found).values():
            assert 0 <= bound.at_most_ms <= found.window.duration_ms


# --- comparisons --------------------------------------------------------------------------------------------


def after_first_ms(name: str) -> list[float]:
    """Epochs of a step's timed runs, first ones left out: what they differ by is the noise of a single profile."""
    words = {
        "main_opt3_tf32": "main_opt3.py --amp-dtype float32 --tf32",
        "main_opt3_bf16": "main_opt3.py --amp-dtype bfloat16",
    }
    runs = recorded.records("runs", words.get(name, f"{name}.py"))
    return [1e3 * epoch["training_s"] for run in runs for epoch in run["epochs"][1:]]


def test_the_ladders_bounds_hold(reports):
    """The causes that a fix treats shrink by no more than was predicted; what the loader takes differs beside them."""
    for before, after, fix in (
        ("main_baseline_nvtx", "main_opt1", "loader"),
        ("main_opt1", "main_opt2", "pinned_memory"),
        ("main_opt2", "main_opt3_tf32", "mixed_precision"),
        ("main_opt2", "main_opt3", "mixed_precision"),
        ("main_opt2", "main_opt3_bf16", "mixed_precision"),
    ):
        made = compare(reports[before], reports[after])
        assert made.comparable, made.obstacles
        timed = [after_first_ms(name.removesuffix("_nvtx")) for name in (before, after)]
        score = made.score(fix, sum(max(own) - min(own) for own in timed))
        assert score.kept, (before, after, str(score))
        score = made.score(fix)
        assert 0 < score.removed_ms <= score.bound.at_most_ms + score.noise_ms, (before, after, str(score))


def test_the_fix_that_was_made_is_recognised(reports):
    assert compare(reports["main_baseline_nvtx"], reports["main_opt1"]).likely_fix == "loader"
    assert compare(reports["main_opt2"], reports["main_opt3_tf32"]).likely_fix == "mixed_precision"


def test_a_comparisons_changes_add_up_to_the_gain(reports):
    for before, after in permutations(LADDER[:3], 2):
        made = compare(reports[before], reports[after])
        assert made.table()["change_ms"].sum() == pytest.approx(-made.gained_ms, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "obstacle"),
    [
        ({"gpu": "NVIDIA A100"}, "different GPUs: NVIDIA H200, NVIDIA A100"),
        ({"steps": 4, "size": 750}, "3 steps before, 4 after"),
        ({"size": 2000}, "MB copied to the device"),
        ({"launches": 0}, "no kernels in one of the two"),
    ],
)
def test_what_did_other_work_is_not_compared(tmp_path, change, obstacle):
    made = compare(training(tmp_path / "a.sqlite"), training(tmp_path / "b.sqlite", **change))
    assert not made.comparable
    assert any(obstacle in text for text in made.obstacles), made.obstacles
    assert made.score("loader") is None, "nothing is scored that is not comparable"


def test_other_kernels_are_remarked_on(tmp_path):
    made = compare(training(tmp_path / "a.sqlite"), training(tmp_path / "b.sqlite", kernel=FP16))
    assert made.comparable
    assert "6 launches before, 6 after, 0 of the same name" in made.remarks[0]


def test_a_gain_beyond_the_bound_breaks_it(tmp_path):
    slow, fast = training(tmp_path / "a.sqlite", wait_us=400), training(tmp_path / "b.sqlite", wait_us=50)
    made = compare(slow, fast)
    assert made.score("loader").kept
    assert not made.score("pinned_memory").kept, "far more was gained than these copies cost"
    assert "more has changed than this fix" in str(made.score("pinned_memory"))


# --- noise --------------------------------------------------------------------------------------------------


def pages(folder, name, wait_us, copy_us=30):
    """A small training whose copies hold the program: what pinned memory treats, beside waits for the loader."""
    build = SyntheticReport(folder / f"{name}.sqlite").gpu("NVIDIA H200")
    length = wait_us + copy_us + 100
    build.range(0, 3 * length, "training")
    for start in range(0, 3 * length, length):
        at = start + wait_us
        build.range(start, at, "data loading").range(at, start + length - 1, "forward")
        build.copy(at + 5, at + copy_us, 1000, call=(at + 2, at + copy_us))
        build.kernel(at + copy_us + 10, at + copy_us + 90, FP32, call=(at + copy_us + 2, at + copy_us + 4))
    return open_report(build.write())


def test_a_loader_that_was_faster_by_itself_is_told_from_what_the_fix_gained(tmp_path):
    made = compare(pages(tmp_path, "a", wait_us=400), pages(tmp_path, "b", wait_us=150))
    score = made.score("pinned_memory")
    assert score.gained_ms == pytest.approx(0.75) and score.removed_ms == pytest.approx(0)
    assert score.beside == {"loader": pytest.approx(0.75)}
    assert not score.kept, "one profile a side: nothing says that it was noise"
    noisy = made.score("pinned_memory", noise_ms=0.8)
    assert noisy.kept and noisy.noise_ms == 0.8
    assert (noisy.gained_ms, noisy.bound, noisy.share) == (score.gained_ms, score.bound, score.share)
    assert made.score("loader").beside == {}


def test_what_a_cause_takes_over_is_no_gain_beside_the_fix(tmp_path):
    made = compare(pages(tmp_path, "a", wait_us=100, copy_us=80), pages(tmp_path, "b", wait_us=140, copy_us=30))
    score = made.score("pinned_memory")
    assert score.gained_ms == pytest.approx(0.03) and score.removed_ms == pytest.approx(0.15)
    assert score.beside == {}, "the loader's row grew"


def test_of_several_profiles_the_medians_are_compared_and_their_spread_is_noise(tmp_path):
    slow = [pages(tmp_path, f"a{wait}", wait) for wait in (400, 200)]
    fast = [pages(tmp_path, f"b{wait}", wait) for wait in (180, 150)]
    made = compare(slow, fast)
    assert made.comparable, made.obstacles
    assert made.gained_ms == pytest.approx(3 * (300 - 165) / 1000)
    assert made.noise_ms == pytest.approx(3 * (200 + 30) / 1000), "what each side's profiles differ by"
    assert made.table()["change_ms"].sum() == pytest.approx(-made.gained_ms)
    assert made.bounds["loader"].at_most_ms == pytest.approx(0.9, abs=0.01), "the mean of the two bounds"
    assert made.score("pinned_memory").kept, "the same program, whose loader is not always as fast"
    single = compare(slow[0], fast[1])
    assert not single.score("pinned_memory").kept
    assert single.noise_ms == pytest.approx(0.02 * single.before.window.duration_ms)


def test_the_profile_of_median_length_stands_for_three(tmp_path):
    waits = (150, 400, 160)
    made = compare([pages(tmp_path, f"a{wait}", wait) for wait in waits], pages(tmp_path, "b", 100))
    assert made.before.window.duration_ms == made.first.duration_ms == pytest.approx(3 * 0.29)
    assert sum(made.first.ms.values()) == pytest.approx(made.first.duration_ms)


def test_one_unlike_profile_makes_two_sides_incomparable(tmp_path):
    same = [training(tmp_path / f"{number}.sqlite") for number in range(3)]
    made = compare(same[:2], [same[2], training(tmp_path / "other.sqlite", gpu="NVIDIA A100")])
    assert made.obstacles == ("different GPUs: NVIDIA H200, NVIDIA A100",)
    assert made.score("loader") is None


def test_windows_of_several_profiles_are_one_of_each(tmp_path):
    two = [training(tmp_path / f"{number}.sqlite") for number in range(2)]
    windows = [report.window("data loading", 2) for report in two]
    made = compare(two, two, windows, windows)
    assert made.first.duration_ms == pytest.approx(0.1) and made.gained_ms == 0
    with pytest.raises(ValueError):
        compare(two, two, windows[:1])


# --- advice -------------------------------------------------------------------------------------------------


def test_the_costliest_cause_comes_first(reports):
    for name, cause in (("main_baseline_nvtx", "loader"), ("main_opt2", "loader")):
        found = advice.advice(reports[name], budget(reports[name]))
        assert found[0].cause == cause
        assert [one.upper_bound_ms for one in found] == sorted((one.upper_bound_ms for one in found), reverse=True)


def test_each_finding_names_its_evidence_and_the_lab_that_was_handed_in_for_its_fix(reports):
    labs = {fix: f"lab of {fix}" for fix in predict.FIXES}
    for report in reports.values():
        found = budget(report)
        for one, without in zip(advice.advice(report, found, labs), advice.advice(report, found), strict=True):
            assert any(letter.isdigit() for letter in one.evidence), one
            treating = {labs[fix] for fix, about in predict.FIXES.items() if one.cause in about.causes}
            assert one.lab in treating if one.cause not in advice.UNTREATED else one.lab is None
            assert without.lab is None and without.evidence == one.evidence


def test_what_is_missing_is_said_and_nothing_made_up(tmp_path):
    build = SyntheticReport(tmp_path / "a.sqlite").kernel(0, 10, POINTWISE).kernel(90, 100, POINTWISE)
    report = open_report(build.write())
    found = budget(report)
    causes = {one.cause for one in advice.advice(report, found)}
    assert causes <= {"unexplained", "other_kernels"}
    missing = "\n".join(advice.not_looked_at(report, found))
    for what in ("--trace cuda", "--trace nvtx", "--trace osrt", "--gpu-metrics-devices"):
        assert what in missing


def test_waits_behind_a_busy_gpu_are_held_time_and_the_idle_time_bounds_what_they_cost(tmp_path):
    build = SyntheticReport(tmp_path / "a.sqlite").range(0, 1000, "training")
    build.range(100, 900, "data loading").kernel(10, 980, POINTWISE, call=(2, 5))
    report = open_report(build.write())
    found = budget(report)
    assert found.held_ms["loader"] == pytest.approx(0.8)
    assert found.ms["loader"] == 0
    assert predict.bound(report, found, "loader").at_most_ms == pytest.approx(found.idle_ms)
    (one,) = (one for one in advice.advice(report, found) if one.cause == "loader")
    assert "waited 0.8 of 1.0 ms for data. Meanwhile the GPU idled for 0.0 ms" in one.evidence


@pytest.mark.parametrize(
    ("gained_ms", "kept"), [(-3.0, True), (10.0, True), (11.9, True), (12.1, False), (19.0, False)]
)
def test_a_bound_is_kept_up_to_the_noise_and_no_further(gained_ms, kept):
    score = Score(predict.Bound("loader", 10.0, 100.0), gained_ms, gained_ms, noise_ms=2.0)
    assert score.kept is kept and score.share == gained_ms / 10


# --- what the advice says of waits, of code without launches, and of sizes -----------------------------------


def advised(made: SyntheticReport) -> dict[str, advice.Advice]:
    report = open_report(made.write())
    return {one.finding or one.cause: one for one in advice.advice(report, budget(report))}


def test_code_in_which_nothing_is_launched_is_told_from_that_around_launches(tmp_path):
    made = SyntheticReport(tmp_path / "a.sqlite").range(0, 100_000, "training").range(20_000, 60_000, "augment")
    made.os_call(0, 1, "write").os_call(99_990, 99_991, "write")
    for at in (*range(0, 20_000, 500), *range(60_000, 100_000, 500)):
        made.kernel(at + 20, at + 120, POINTWISE, call=(at + 5, at + 10))
    said = advised(made)["python"].evidence
    assert "40.4 ms of CPU code launched nothing, in 1 stretch of over a millisecond. 99 % in phase augment" in said
    assert "A CUDA graph leaves such code as it is" in said
    made.kernel(19_900, 60_100, POINTWISE, call=(19_600, 19_605))
    assert "stretches" not in advised(made)["python"].evidence


def test_after_how_many_waits_nothing_was_queued_is_said_of_synchronisation(tmp_path):
    made = SyntheticReport(tmp_path / "a.sqlite").range(0, 1000, "training")
    for at in range(0, 1000, 100):
        made.kernel(at + 10, at + 50, POINTWISE, call=(at + 2, at + 4)).api(at + 5, at + 55, "cudaStreamSynchronize")
    said = advised(made)["synchronisation"].evidence
    assert "After 9 of 9 waits nothing was queued. The GPU then idled until the next launch (60.0 µs, median)" in said


def test_a_pageable_copy_that_begins_at_once_is_no_start_up(tmp_path):
    made = SyntheticReport(tmp_path / "a.sqlite").range(0, 100_000, "training").os_call(0, 1, "write")
    made.os_call(99_990, 99_991, "write").copy(50_200, 53_000, 30_000_000, call=(50_000, 53_000))
    made.kernel(53_100, 60_000, POINTWISE, call=(53_050, 53_060))
    report = open_report(made.write())
    assert budget(report).started is None
    assert predict.bound(report, budget(report), "cuda_graph").at_most_ms > 85
    made.api(10_000, 40_000, "cudaMalloc")
    assert budget(open_report(made.write())).started == 5_000_000 + 40_000_000


SLOW = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>(T1::Params)"


@pytest.mark.parametrize(
    ("kernel", "numbers"),
    [
        (SLOW, 1),
        ("cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_64x1_tn_align2", 2),
        (
            "sm80_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize64x128x32_stage5_warpsize2x2x1_tensor16x8x16_aligna2_alignc2",
            2,
        ),
        ("cutlass_80_tensorop_s1688gemm_128x64_32x3_nt_align1", 1),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align4", None),  # TF32: 16 bytes
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_tn_align8", None),
        ("cutlass_80_simt_sgemm_128x64_8x5_tn_align1", None),  # on the CUDA cores any size does
        ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", None),  # FP64
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", None),
        ("fmha_cutlassB_f32_aligned_128x64_k128_sm80", None),
    ],
)
def test_a_kernels_name_tells_whether_it_is_for_sizes_that_do_not_fit(kernel, numbers):
    assert kernel_names.is_misaligned(kernel) == (numbers is not None)
    assert numbers is None or kernel_names.alignment(kernel) == numbers


def test_sizes_gain_at_most_the_time_in_which_nothing_else_ran_and_old_generations_are_said(tmp_path):
    made = SyntheticReport(tmp_path / "a.sqlite").range(0, 1000, "training").gpu("NVIDIA H200", capability=(9, 0))
    made.kernel(0, 400, SLOW, call=(0, 1)).kernel(300, 500, POINTWISE, call=(2, 3), stream=8)
    made.kernel(600, 605, "cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_64x1_tn_align2", call=(4, 5))
    found = advised(made)["sizes"]
    assert found.upper_bound_ms == pytest.approx(0.305) and found.cause == "tensor_core_kernels"
    assert "2 Tensor Core kernels ran for 0.4 ms" in found.evidence and "(align1)" in found.evidence
    assert "of an older generation (7.5, and the GPU has 9.0)" in found.evidence
    turing = SyntheticReport(tmp_path / "b.sqlite").range(0, 1000, "training").gpu("Tesla T4", capability=(7, 5))
    assert "older" not in advised(turing.kernel(0, 400, SLOW, call=(0, 1)))["sizes"].evidence
