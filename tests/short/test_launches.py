"""What an epoch's launches cost, and the kernels in it: the readings and tables of labs 7 and 8."""

import numpy as np
import pytest

from labkit.labs import lab07, lab08
from labkit.source import recorded
from labkit.subjects import launches
from stepbudget.report import open_report


@pytest.fixture(scope="module")
def opt5():
    with open_report(recorded.folder() / "profiles" / "main_opt5.sqlite.xz") as report:
        yield report


def row(network: str, compiled: bool, how: str, epoch_ms: float) -> dict:
    times = {"epoch_ms": epoch_ms, "epoch_ms_range": [epoch_ms - 1, epoch_ms + 1]}
    return {"network": network, "compiled": compiled, "batch": 32, "steps": 3, "how": how, **times}


def test_the_ways_to_launch_an_epoch():
    plain, fused = ("Net", False), ("LeanNet", True)
    times = {plain: (8.0, 4.0), fused: (6.0, 1.0)}
    rows = [row(*way, how, ms) for way, both in times.items() for how, ms in zip(launches.HOW, both, strict=True)]
    slower = [{**one, "epoch_ms": one["epoch_ms"] + 2} for one in rows]
    records = [{"rows": rows}, {"rows": slower}]
    found = launches.ways(records).frame
    assert list(found["network"]) == ["Net", "LeanNet"], "in the order of the benchmark"
    assert list(found["kernels"]) == ["PyTorch's", "the compiler's"]
    assert list(found["one by one"]) == [9.0, 7.0] and list(found["graph"]) == [5.0, 2.0], "medians"
    np.testing.assert_allclose(found["times as fast"], [1.8, 3.5])
    assert list(found["range"]) == ["7–9", "5–7"], "of the first record, whose rows the second repeats"
    told = str(launches.ways(records, network="Net"))
    assert "an epoch of 3 steps" in told and "1.80" in told and "LeanNet" not in told


def test_the_barest_launch():
    rows = [{"what": "launch", "how": "python", "us": us} for us in (7.0, 9.0)]
    rows += [{"what": "launch", "how": "graph", "us": 1.0}, {"what": "copy", "how": "python", "us": 50.0}]
    assert lab07.bare_us([{"rows": rows}]) == {"graph": 1.0, "python": 8.0}


def test_how_many_and_how_long_the_kernels_are(opt5):
    found = lab08.kernel_sizes({"opt5": opt5})
    [(step, kernels, mean_us, all_ms)] = found.frame.to_numpy()
    window = opt5.window()
    own = opt5.kernels[opt5.kernels["start"].between(window.start, window.end)]
    assert step == "opt5" and kernels == len(own) and all_ms == pytest.approx((own["end"] - own["start"]).sum() / 1e6)
    assert mean_us == pytest.approx(1e3 * all_ms / kernels)
    assert f"{len(own):,}" in str(found)
