"""What a sharded network holds and moves, on paper: held against what was measured, recorded, and made by hand."""

from __future__ import annotations

import json

import pytest

import stepbudget
from labkit.errors import NotRecorded
from labkit.labs import lab22
from labkit.labs.lab22 import memory, steps, ways
from labkit.labs.lab22.memory import Network, Way
from labkit.paths import ROOT
from labkit.subjects.scaling.readings import MACHINE_FOLDER, frame, records
from labkit.training.text import Transformer
from stepbudget.ask import ranks

REPORTS = MACHINE_FOLDER / "profiles"

SMALL = Network(8, 3, 100)
DDP, ON_4 = Way("ddp", 4), Way("fsdp", 4)


def test_a_network_on_paper_has_the_weights_of_the_one_that_is_trained():
    model = Transformer(width=32, depth=3, heads=2, length=10)
    outside = sum(own.numel() for name, own in model.named_parameters() if not name.startswith("blocks."))
    assert Network(32, 3, outside).weights == sum(own.numel() for own in model.parameters())


def test_states_are_sixteen_bytes_a_weight_and_an_nth_where_they_are_shared_out():
    whole, part = DDP.held(SMALL), ON_4.held(SMALL)
    states = [sum(own[kind] for kind in memory.NUMBERS) for own in (whole, part)]
    assert states == [16 * SMALL.weights, 4 * SMALL.weights]
    assert (whole["BF16 copies"], part["BF16 copies"]) == (2 * SMALL.weights, 2 * 2 * SMALL.block)


def test_the_fuller_of_two_moments_counts():
    few, many = 10.0, 1e6
    part = 2 * 2 * SMALL.block
    assert DDP.moments(SMALL, few) == {"begins": 18 * SMALL.weights + few, "ends": 16 * SMALL.weights}
    assert ON_4.moments(SMALL, few) == {
        "begins": 3 * SMALL.weights + part + few,
        "ends": 4 * SMALL.weights + part + 4 * SMALL.block,
    }
    assert ON_4.fullest(SMALL, few) == ON_4.moments(SMALL)["ends"]
    assert ON_4.fullest(SMALL, many) == ON_4.moments(SMALL, many)["begins"]


# What was recorded


def test_the_reports_bytes_are_those_of_three_passes_and_ddp_s_of_two():
    found = records()
    network = lab22.network(found)
    pair = ranks.together([stepbudget.open_report(REPORTS / f"main_fsdp_x2_rank{rank}.sqlite.xz") for rank in (0, 1)])
    moved = lab22.moved(pair, network.weights).groupby("function")["total"].sum()
    blocks = network.depth * network.block
    assert moved["AllGather"] == memory.BF16 * (network.weights + blocks), "the rest is gathered once"
    assert moved["ReduceScatter"] == memory.FP32 * network.weights == lab22.averaged(found)
    found = lab22.overlap(pair)
    each = found.groupby("rank")[["total_ms", "waiting_ms", "transfer_ms"]].sum() * steps(pair)
    for rank in pair.ranks:
        assert each.loc[rank.number].to_dict() == pytest.approx(
            {name: rank.communication[name] for name in each.columns}, rel=1e-6
        )
    assert (found["hidden_ms"] <= found["transfer_ms"]).all() and (found["hidden_ms"] > 0).all()


def test_the_difference_between_the_ways_is_explained():
    found = records()
    measured = lab22.peaks(found)
    parts = lab22.difference(lab22.network(found), measured, 32)
    assert parts["all that"] == pytest.approx(parts["measured"], rel=0.1)
    direct = [
        measured.loc[(measured["share"] == share) & (measured["ranks"] == 2) & (measured["sequences"] == 32), "bytes"]
        for share in ("ddp", "fsdp")
    ]
    assert direct[0].item() - direct[1].item() == pytest.approx(parts["measured"])


def test_the_fullest_moment_on_paper_is_that_which_was_measured():
    """Given the activations, which are measured; DDP's copies are among what the forward pass leaves."""
    found = lab22.tried()
    for row in found[found["fits"] & found["reshard"]].itertuples():
        network, way = Network.of(row.width, 12, row.weights), Way(row.share, 2)
        copies = way.held(network)["BF16 copies"] if row.share == "ddp" else 0.0
        assert way.fullest(network, row.forward - row.before - copies) == pytest.approx(row.peak, rel=0.05)


def test_the_page_s_mfu_is_that_of_the_recorded_steps():
    """Peak: 989 TFLOP/s a GPU, BF16 without sparsity, says the H200's data sheet."""
    found, page = records(), (ROOT / "labs" / "parallelisms.md").read_text()
    weights, runs = lab22.network(found).weights, frame(found)
    operations = 6 * weights + 12 * 12 * 1024 * 512  # a token's
    for scaling, share in (("weak", "**MFU: 39 %.**"), ("strong", "MFU falls to 21 %")):
        own = runs[(runs["program"] == "text_fsdp") & (runs["scaling"] == scaling) & (runs["ranks"] == 2)]
        step_ms, tokens = own["step_ms"].median(), 512 * own["batch"].iloc[0]
        mfu = tokens * operations / (step_ms / 1e3 * 2 * 989e12)
        assert share in page and f"{100 * mfu:.0f} %" in share and f"{step_ms:.2f} ms" in page


def test_a_network_that_no_gpu_holds_alone_runs_on_two():
    found = lab22.tried()
    wide = found[found["width"] == found["width"].max()].set_index("share")
    assert wide["fits"].to_dict() == {"fsdp": True, "ddp": False}
    assert 16 * wide.loc["fsdp", "weights"] > memory.H200_BYTES


def test_a_line_wants_two_points():
    measured = lab22.peaks(records())
    with pytest.raises(NotRecorded, match="fsdp on 16 GPUs was not recorded"):
        lab22.line(measured, "fsdp", 16)


# Each way in turn


def one(rank_mb: float | None, count: int = 10, **sent: int) -> dict:
    """What a rank says; ``sent``: bytes by collective."""
    return {
        "out_of_memory": False, "parameters": count, "step_s": [0.003, 0.001, 0.002],
        "weights_mb": {"float32": 1.0}, "gradients_mb": {"float32": 1.0}, "optimizer_mb": {"float32": 2.0},
        "allocated_mb": {"before": 3.0, "forward": 7.0, "backward": 4.0} if rank_mb else {},
        "peak_memory_mb": rank_mb,
        "sent": [{"function": name, "bytes": size, "count": 2} for name, size in sent.items()],
    }  # fmt: skip


def row(share: str, *each: dict, **more: object) -> dict:
    about = {"share": share, "width": 8, "sequences": 1, "reshard": True, "prefetch": 1}
    return about | more | {"of_each_rank": list(each)}


RECORD = {
    "rows": [
        row("ddp", one(9.0, AllReduce=20), one(10.0, AllReduce=20)),
        row("fsdp", one(5.0, AllGather=10, ReduceScatter=20), one(5.0), reshard=False, prefetch=2),
        row("fsdp", one(None)),
        row("ddp", one(9.0), {"out_of_memory": True}),
    ]
}


def test_ways_are_read_rank_by_rank():
    found = lab22.tried(RECORD)
    assert found["way"].tolist() == ["DDP", "FSDP, kept, 2 ahead", "FSDP", "DDP"]
    assert found["fits"].tolist() == [True, True, True, False]
    assert found["peak"].tolist()[:2] == [10e6, 5e6] and found["peak"].isna().tolist() == [False, False, True, True]
    assert found["moved"].tolist()[:2] == [2 * 2 * 20, 2 * 10 + 2 * 20]
    assert found["kept"].tolist()[0] == 4e6 and found["step_ms"].tolist()[0] == pytest.approx(2.0)
    shown = str(lab22.shared_out(found))
    assert "out of memory" in shown and "fits" not in str(lab22.shared_out(found[:2]))


def test_a_record_of_the_ways_is_found_or_missed(tmp_path):
    with pytest.raises(NotRecorded, match="no ways of sharing out were recorded on"):
        ways.record(tmp_path)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "sharding-x2-01.json").write_text(json.dumps(RECORD))
    assert ways.record(tmp_path) == RECORD
