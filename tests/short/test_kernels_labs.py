"""What labs 26 and 27 make of their benchmarks' records: bounds by hand, shares, banks, and what is drawn."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.labs import lab11, lab26, lab27
from labkit.paths import RECORDED
from labkit.subjects.kernels import warps_that_fit
from labkit.subjects.roofline import Peaks

PEAKS = Peaks("a GPU", {"fp32": 50.0, "bf16": 800.0}, 4.0, {})
TIME = {"low_us": 1.0, "high_us": 9.0, "rounds": 5}


def record() -> dict:
    """Two lengths, two choices, and so on: numbers that one can reckon with."""
    rows = [
        {"what": "softmax", "way": way, "rows": 1 << 20, "columns": columns, "us": us} | TIME
        for columns in (256,)
        for way, us in (("operators", 1048.576), ("torch", 300.0), ("compiled", 280.0), ("triton", 524.288),
                        ("pieces", 400.0))
    ]  # fmt: skip
    rows += [
        {"what": "attention", "batch": 2, "heads": 4, "length": length, "width": 64, "causal": causal, "way": way}
        | ({"refused": "no"} if way == "flash" and causal else {"us": us * length, "extra_bytes": 1000}) | TIME
        for length in (512, 1024)
        for causal in (False, True)
        for way, us in (("naive", 8.0), ("flash", 2.0), ("triton", 4.0))
    ]  # fmt: skip
    rows += [
        {"what": "tuning", "length": 512, "choice": [64, 32, 4, 2], "compile_s": 1.0, "us": 30.0, "registers": 116},
        {"what": "tuning", "length": 512, "choice": [128, 32, 8, 2], "compile_s": 2.0, "us": 20.0, "registers": 116},
        {"what": "tuning", "length": 512, "choice": [128, 128, 8, 3], "refused": "out of resource"},
        {"what": "autotune", "length": 512, "try_s": 3.0, "choice": [128, 32, 8, 2]},
    ]
    for row in rows:
        if row["what"] == "tuning" and "us" in row:
            row["shared_bytes"] = 1000
    rows += [
        {"what": "chains", "warps": warps, "chains": chains, "steps": 1000 // chains, "clocks": 4000.0,
         "per_clock": min(128.0, 8.0 * warps * chains) if warps < 64 else 999.0, "us": 2.0 + warps}
        for warps in (1, 8, 32, 64) for chains in (1, 8)
    ]  # fmt: skip
    rows += [
        {"what": "transpose", "form": form, "side": 10, "bytes": 800, "us": us}
        for form, us in (("copy", 2.0), ("direct", 8.0), ("tile", 6.0), ("padded", 3.0), ("swizzled", 3.0))
    ]
    rows += [
        {"what": "few", "rows": 128, "columns": 128, "inner": 512, "tiles": 1, "way": way, "us": us}
        for way, us in (("a tile each", 9.0), ("split in 2", 5.0), ("stream", 3.0), ("cublas", 4.0))
    ]
    rows += [
        {"what": "waves", "tiles": tiles, "way": way, "us": us * math.ceil(tiles / 4)}
        for tiles in (2, 4, 6)
        for way, us in (("a tile each", 10.0), ("stream", 8.0), ("cublas", 9.0))
    ]
    return {"gpu": "a GPU", "dtype": "bf16", "multiprocessors": 4, "rows": rows}


RECORDS = [record()]


def test_a_softmax_at_the_roof_by_hand():
    """2^28 numbers of 2 bytes, twice, at 4 TB/s: 268 µs."""
    assert lab26.softmax_floor_us(1 << 28, PEAKS, "bf16") == pytest.approx(2 * 2 * 2**28 / 4e6)
    shares = lab26.softmax_shares(RECORDS, PEAKS).loc[256]
    assert shares["triton"] == pytest.approx(0.512) and shares["operators"] == pytest.approx(0.256)
    assert list(shares.index) == ["operators", "torch", "compiled", "triton", "pieces"]


def test_attentions_bounds_by_hand():
    assert lab26.attention_flops(2, 4, 512, 64, False) == 4 * 2 * 4 * 512 * 512 * 64
    assert lab26.attention_flops(1, 1, 2, 64, True) == 4 * 3 * 64, "three of four scores"
    assert lab26.attention_bytes(1, 1, 512, 64, "bf16") == 4 * 512 * 64 * 2
    more = lab26.attention_bytes(1, 1, 512, 64, "bf16", naive=True) - lab26.attention_bytes(1, 1, 512, 64, "bf16")
    assert more == 4 * 512 * 512 * 2
    floors = lab26.attention_floors(RECORDS, PEAKS).loc[(512, False)]
    assert floors["arithmetic"] == pytest.approx(4 * 8 * 512**2 * 64 / 800e6)
    clock = 4000 / 34  # MHz: of the longest kernel of one block a multiprocessor
    assert floors["exponentials"] == pytest.approx(8 * 512**2 / (16 * 4 * clock))


def test_what_was_refused_has_no_time():
    times = lab26.attention_times(RECORDS)
    assert math.isnan(times.loc[(512, True), "flash"]) and times.loc[(512, False), "flash"] == 1024
    without = [{**RECORDS[0], "rows": [row for row in RECORDS[0]["rows"] if row.get("way") != "flash"]}]
    assert lab26.attention_times(without)["flash"].isna().all()


def test_each_rival_has_its_ratio_or_is_said_not_to_run():
    said = [*lab26.rivals(lab26.attention_times(RECORDS))]
    assert said[0] == "FlashAttention-2 takes 0.50 to 0.50 times as long as ours."
    assert said[1:] == ["cuDNN does not run here.", "FlashAttention-3 does not run here."]
    assert "cuDNN µs" in str(lab26.attention_table(RECORDS, PEAKS))
    legend = lab26.attention_chart(RECORDS, PEAKS).legends[0].get_texts()
    assert not {"cuDNN, in PyTorch", "FlashAttention-3"} & {one.get_text() for one in legend}, "no line without a point"


def test_tuning_pays_when_its_gain_has_added_up():
    cost = lab26.tuning_cost(RECORDS)
    assert (cost["choices"], cost["compile_s"], cost["best"], cost["first"]) == (3, 3.0, 20.0, 30.0)
    assert cost["pays_after"] == pytest.approx((2.0 + 3.0) * 1e6 / 10.0), "without what the first alone would cost"
    assert cost["chosen"] == 20.0
    missed = json.loads(json.dumps(RECORDS))
    next(row for row in missed[0]["rows"] if row["what"] == "autotune")["choice"] = [64, 32, 4, 2]
    cost = lab26.tuning_cost(missed)
    assert (cost["chosen"], cost["best"], cost["pays_after"]) == (30.0, 20.0, math.inf), "the tuner took the first"
    never = json.loads(json.dumps(RECORDS))
    next(row for row in never[0]["rows"] if row["what"] == "tuning")["us"] = 20.0
    assert lab26.tuning_cost(never)["pays_after"] == math.inf


def test_littles_law_and_the_warps_that_registers_allow():
    assert lab27.latency_clocks(RECORDS) == 4.0
    assert lab27.warps_needed(4.0, 1, 128.0) == 16 and lab27.warps_needed(4.0, 8, 128.0) == 2
    assert lab27.warps_enough(RECORDS).to_dict() == {1: 32.0, 8: 8.0}
    assert lab27.chains(RECORDS).index.tolist() == [1, 8, 32], "two blocks count each its own clocks"
    # CUDA's occupancy calculator: 32 registers let 64 warps in, 255 eight; 116 in blocks of 8 two blocks.
    assert [warps_that_fit(32, 8), warps_that_fit(255, 4), warps_that_fit(116, 8)] == [
        64, 8, 16,
    ]  # fmt: skip
    assert lab27.registers(RECORDS).frame[["rows", "warps that fit, by registers"]].to_numpy().tolist() == [
        [128, 16],
        [64, 16],
    ]


def test_registers_that_are_read_again():
    """A step that reads all three takes two clocks, the next of the same warp one."""
    assert [lab27.register_share(chains, 4.07) for chains in (1, 2, 4, 8)] == [1 / 2, 2 / 3, 1, 1]
    recorded = json.loads((RECORDED / "h100" / "benchmarks" / "bench_kernels-01.json").read_text())
    found = lab27.chains([recorded]).loc[32]
    for chains, per_clock in found.items():
        assert per_clock == pytest.approx(128 * lab27.register_share(chains, 4.07), rel=0.03)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=32))
def test_passes_are_those_of_the_fullest_bank(words):
    counted = np.bincount([word % 32 for word in set(words)])
    assert lab27.passes(words) == counted.max()


def test_which_tile_ran_is_read_off_the_products():
    """The small tile runs where the large one does not fit, and the record's own ``tile`` does not say so."""
    recorded = json.loads((RECORDED / "h100" / "benchmarks" / "bench_kernels-01.json").read_text())
    assert lab27.tile_side([recorded]) == recorded["tile"][0] == 128
    for row in recorded["rows"]:
        row["tiles"] = 4 * row["tiles"] if row["what"] == "waves" else row.get("tiles")
    assert lab27.tile_side([recorded]) == 64


def test_passes_by_hand():
    assert lab27.passes(range(32)) == 1 and lab27.passes([5] * 32) == 1, "one word is told to all"
    assert lab27.passes(range(0, 1024, 32)) == 32 and lab27.passes(range(0, 64, 2)) == 2
    asked = {form: lab27.column_passes(*there) for form, there in lab27.PLACES.items()}
    assert asked == {"tile": 32, "padded": 1, "swizzled": 1}
    assert {lab27.row_passes(*there) for there in lab27.PLACES.values()} == {1}


def staged() -> dict:
    """A kernel of which two programs fit with one stage, one with two, none with three."""

    def row(stages: int, warps: int, **more: object) -> dict:
        return {"kernel": "k", "shipped": False, "num_stages": stages, "num_warps": warps} | more

    full = "out of resource: shared memory, Required: 5000, Hardware limit: 4000. Reducing block sizes may help."
    rows = [
        {"kernel": "k", "shipped": True, "us": 9.0, "registers": 100, "shared_bytes": 1000},
        row(1, 4, us=10.0, registers=100, shared_bytes=1000), row(1, 8, us=20.0, registers=100, shared_bytes=1000),
        row(2, 4, us=30.0, registers=100, shared_bytes=3000), row(2, 8, us=40.0, registers=100, shared_bytes=3000),
        row(3, 4, refused=full), row(3, 8, refused=full),
        row(1, 4, us=1.0, registers=10, shared_bytes=10, BLOCK=32),
    ]  # fmt: skip
    return {"gpu": "a GPU", "rows": rows}


def test_more_stages_want_more_shared_memory():
    found = lab11.stages([staged()])
    assert found["stages"].tolist() == [1, 2, 3] and found["shared_bytes"].tolist() == [1000, 3000, 5000]
    assert found["programs"].tolist()[:2] == [2, 1] and math.isnan(found["programs"][2]), "5,024 bytes in all"
    assert found["us_4"].tolist()[:2] == [10, 30] and found["us_8"].tolist()[:2] == [20, 40]
    assert found[["us_4", "us_8"]].iloc[2].isna().all() and set(found["shipped_us"]) == {9.0}
    cells = lab11.stages_table([staged()]).cells()
    assert cells[1][4] == "30" and cells[2][2] == "5"


def test_where_nothing_is_refused_registers_say_how_many_programs_fit():
    rows = [row for row in staged()["rows"] if "refused" not in row]
    assert lab11.stages([{"gpu": "a GPU", "rows": rows}])["programs"].tolist() == [4, 4]


def test_the_recorded_stages_say_why_more_of_them_do_not_help():
    recorded = json.loads((RECORDED / "h200" / "benchmarks" / "bench_stages-01.json").read_text())
    found = lab11.stages([recorded]).set_index(["kernel", "stages"])
    refused = found.loc[("_conv2_pool", 2)]
    assert refused["shared_bytes"] == 237_568 and math.isnan(refused["us_4"])
    assert found.loc["_conv1_gradient", "programs"].tolist()[:2] == [2, 1]
    assert found.loc["_conv2_weight_gradient", "programs"].tolist() == [2, 2, 1]


def test_the_tables():
    assert lab26.softmax_table(RECORDS, PEAKS).cells()[0][4] == "51"
    assert lab26.attention_table(RECORDS, PEAKS).frame["causal"].tolist() == ["no", "no", "yes", "yes"]
    assert len(lab26.floors_table(RECORDS, PEAKS).frame) == 2
    assert lab26.tuning(RECORDS).frame["µs"].tolist()[:2] == [20.0, 30.0]
    assert lab27.transposes(RECORDS, PEAKS).frame["times a copy"].tolist() == [1.0, 4.0, 3.0, 1.5, 1.5]
    assert lab27.few(RECORDS).frame["stream"].tolist() == [3.0]
    assert len(lab27.registers(RECORDS).frame) == 2
    assert lab27.little(RECORDS).cells()[0] == ["1", "16", "32"]
    assert lab27.banks_model(RECORDS).cells() == [["1", "64", "128"], ["8", "128", "128"]]


def test_the_pictures():
    lines = {len(ax.lines) for ax in lab26.attention_chart(RECORDS, PEAKS).axes}
    assert lines == {5, 4}, "three ways and two bounds; causal, one way was refused"
    (ax,) = lab26.softmax_chart(RECORDS, PEAKS).axes
    assert "the memory's roof: 4.00 TB/s" in {text.get_text() for text in ax.texts}
    (ax,) = lab27.chains_chart(RECORDS).axes
    assert [line.get_label() for line in ax.lines[:2]] == ["1 chain a thread", "8 chains a thread"]
    (ax,) = lab27.waves(RECORDS).axes
    assert "4 tiles:\n1 full wave" in {text.get_text() for text in ax.texts}
