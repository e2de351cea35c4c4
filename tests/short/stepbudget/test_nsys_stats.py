"""Held against ``nsys stats``: where both answer the same question, they agree to the nanosecond.

Twice: with the answers that Nsight Systems gave when the reports were recorded, and with the nsys of this machine. The
plain sums are held against them; test_one_layer.py holds the tables against the plain sums.
"""

from __future__ import annotations

import json
import os

import pytest

from labkit.recording import plan
from labkit.source import recorded
from stepbudget.ask import phases, sums
from stepbudget.export import nsys, stats
from stepbudget.report import open_report

# nsys stats' word for a copy → ours.
OPERATIONS = {"HtoD": "host to device", "DtoH": "device to host", "DtoD": "device to device"}


def answers(name: str, source: str) -> dict:
    """The tables of nsys stats for a recorded report."""
    if source == "recorded":
        return json.loads((recorded.folder() / "nsys_stats" / f"{name}.json").read_text())["tables"]
    if nsys.find_nsys() is None:
        if os.environ.get("LAB_REQUIRE_NSYS"):
            pytest.fail("nsys is not there, and LAB_REQUIRE_NSYS asks for it")
        pytest.skip("this machine has no nsys")
    with open_report(recorded.folder() / "profiles" / f"{name}.sqlite.xz") as report:
        return stats.stats(report, list(stats.TABLES))


@pytest.fixture(scope="module", params=["recorded", "this machine's nsys"])
def source(request):
    return request.param


@pytest.fixture(scope="module", params=plan.CHECKED)
def both(request, source):
    """A report, and what nsys stats says of it."""
    found = {question: stats.table(text) for question, text in answers(request.param, source).items()}
    with open_report(recorded.folder() / "profiles" / f"{request.param}.sqlite.xz") as report:
        yield report, found


def column(table, *names):
    """The column by whichever of its names this version uses."""
    return table[next(name for name in names if name in table)]


def test_phases_by_thread_agree_and_by_process_hold_what_nsys_leaves_out(both):
    """nsys stats gives a range the kernels that its own thread launched: autograd's stay outside."""
    report, theirs = both
    table = theirs["kernels by range"].rename(
        columns={"NVTX Range": "range", "Kern Inst": "n", "Total Time (ns)": "ns"}
    )
    table["range"] = table["range"].astype("string").str.removeprefix(":")
    their = table[table["range"].notna()].groupby("range")[["n", "ns"]].sum()
    outside_ns = table.loc[table["range"].isna(), "ns"].sum()
    ours = phases.phases(report, report.extent, by="thread").set_index("phase")
    innermost = [name for name in their.index if name != "training"]  # which holds the other phases
    for name in innermost:
        assert tuple(their.loc[name]) == (ours.loc[name, "kernels"], round(1e6 * ours.loc[name, "gpu_ms"]))
    if outside_ns:
        assert round(1e6 * ours.loc[phases.OUTSIDE, "gpu_ms"]) == outside_ns
    whole = phases.phases(report, report.extent).set_index("phase")
    assert whole.loc["backward", "gpu_ms"] > 10 * ours.loc["backward", "gpu_ms"]
    assert whole["gpu_ms"].sum() == pytest.approx(ours["gpu_ms"].sum())


# --- the plain sums, --tables -------------------------------------------------------------------------------

SPREAD = ["count", "total_ns", "min_ns", "max_ns"]


@pytest.fixture(scope="module")
def plain(both):
    """What the plain sums say of the report, question → a list of dicts, and what nsys stats says of it."""
    report, theirs = both
    return sums.objects(sums.sums(report.path)), theirs


def spread(rows, *keys):
    """Key → count, total, shortest and longest (ns)."""
    found = {tuple(row[key] for key in keys): tuple(row[column] for column in SPREAD) for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def their_spread(table, count, *keys):
    """The same of a table of nsys stats, whose rows may be finer (by grid, by thread)."""
    grouped = table.groupby(list(keys)).agg(
        count=(count, "sum"),
        total_ns=("Total Time (ns)", "sum"),
        min_ns=("Min (ns)", "min"),
        max_ns=("Max (ns)", "max"),
    )
    return {key if isinstance(key, tuple) else (key,): tuple(row) for key, row in grouped.iterrows()}


def test_the_plain_sums_of_ranges_agree(plain):
    ours, theirs = plain
    table = theirs["ranges"]
    table = table.assign(name=column(table, "Range").str.removeprefix(":"))
    assert spread(ours["ranges"], "name") == their_spread(table, "Instances", "name")
    means = dict(zip(table["name"], table["Avg (ns)"], strict=True))
    assert {row["name"]: row["mean_ns"] for row in ours["ranges"]} == pytest.approx(means, abs=0.051)


def test_the_plain_sums_of_kernels_agree(plain):
    ours, theirs = plain
    assert spread(ours["kernels"], "name") == their_spread(theirs["kernels"], "Instances", "Name")


def test_the_plain_sums_of_calls_agree(plain):
    ours, theirs = plain
    table = theirs["calls"]
    table = table.assign(name=table["Name"].str.replace(r"(_v\d+)+$", "", regex=True))
    assert spread(ours["calls"], "name") == their_spread(table, "Num Calls", "name")


def test_the_plain_sums_of_copies_and_fills_agree(plain):
    ours, theirs = plain
    words = {"[CUDA memset]": "memset", "[CUDA Memset]": "memset"}
    for word, direction in OPERATIONS.items():
        words[f"[CUDA memcpy {word}]"] = words[f"[CUDA memcpy {direction.title().replace(' To ', '-to-')}]"] = direction
    times, sizes = (theirs[f"copies by {what}"] for what in ("time", "size"))
    times, sizes = (table.assign(direction=table["Operation"].map(words)) for table in (times, sizes))
    assert times["direction"].notna().all() and sizes["direction"].notna().all()
    rows = ours["copies"]
    merged = []  # nsys does not tell the kinds of memory apart
    for direction in {row["direction"] for row in rows}:
        own = [row for row in rows if row["direction"] == direction]
        low, high = min(row["min_ns"] for row in own), max(row["max_ns"] for row in own)
        whole = {key: sum(row[key] for row in own) for key in ("count", "total_ns", "bytes")}
        merged.append({"direction": direction, **whole, "min_ns": low, "max_ns": high})
    assert spread(merged, "direction") == their_spread(times, "Count", "direction")
    megabytes = dict(zip(sizes["direction"], sizes["Total (MB)"], strict=True))
    assert {row["direction"]: row["bytes"] / 1e6 for row in merged} == pytest.approx(megabytes, abs=1e-3)


def test_the_plain_sums_of_kernels_by_range_agree(plain):
    """nsys stats gives a kernel to every range around its launch: only what holds no other range compares row by row.

    What is left, "training", holds there what it and all the ranges inside it hold here.
    """
    ours, theirs = plain
    table = theirs["kernels by range"].rename(columns={"NVTX Range": "range", "Kernel Name": "kernel"})
    named = table["range"].astype("string").str.removeprefix(":").replace("None", None)
    table = table.assign(range=named.astype(object).where(named.notna(), sums.OUTSIDE))
    their = their_spread(table, "Kern Inst", "range", "kernel")
    found = spread(ours["kernels_by_range"], "range", "kernel")
    assert {key: row for key, row in found.items() if key[0] != "training"} == {
        key: row for key, row in their.items() if key[0] != "training"
    }
    totals = [
        sum(row[1] for key, row in found.items() if key[0] not in ("test", sums.OUTSIDE)),
        sum(row[1] for key, row in their.items() if key[0] == "training"),
    ]
    assert totals[0] == totals[1] > 0
