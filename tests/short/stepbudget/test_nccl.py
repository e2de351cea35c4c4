"""What NCCL wrote beside its calls: read from both forms, given to the kernels it is about, kept in slim copies."""

from __future__ import annotations

import lzma
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepbudget.ask import collectives
from stepbudget.export import nsys
from stepbudget.export.slim import slim
from stepbudget.report import open_report
from synthetic import PROCESS, SyntheticReport

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
LARGEST = 2**64 - 3  # a communicator's number fills all 64 bits


def message(size: int, communicator: int = 7) -> dict[str, int]:
    return {"NCCL communicator ID": communicator, "Message size [bytes]": size}


@pytest.fixture
def made(tmp_path):
    return SyntheticReport(tmp_path / "made.sqlite").range(0, 1000, "training")


def told(made) -> list[tuple]:
    """Communicator and bytes of each collective's kernel, in order."""
    table = collectives.kernels(open_report(made.write()))
    return list(table[["communicator", "bytes"]].itertuples(index=False, name=None))


@pytest.mark.parametrize("as_bytes", [False, True])
def test_both_forms_tell_the_same(made, as_bytes):
    init = {"NCCL communicator ID": LARGEST, "No. of ranks": 4, "Rank": 3, "CUDA device": 1}
    made.nccl(1, 2, "ncclCommInitRankConfig", written=init, as_bytes=as_bytes)
    made.nccl(10, 12, "ncclAllReduce", written=message(4096, LARGEST), as_bytes=as_bytes).nccl(20, 21, "ncclGroupEnd")
    found = open_report(made.write()).nccl_calls
    assert found["function"].tolist() == ["CommInitRankConfig", "AllReduce", "GroupEnd"]
    assert found["communicator"].tolist() == ["0xfffffffffffffffd"] * 2 + [None]
    assert found["bytes"].tolist() == [None, 4096, None]
    assert (found["rank"][0], found["ranks"][0]) == (3, 4)
    assert found["end"].tolist() == [made._ns(time) for time in (2, 12, 21)]
    assert set(found["process"]) == {PROCESS}


def test_a_kernel_belongs_to_the_call_that_its_launch_lies_in(made):
    made.nccl(10, 12, "ncclAllReduce", written=message(4096)).kernel(20, 30, ALLREDUCE, call=(11, 11.5))
    made.nccl(13, 15, "ncclAllGather", written=message(512, 8)).kernel(30, 40, GATHER, call=(14, 14.5))
    made.kernel(50, 60, ALLREDUCE, call=(45, 46)).kernel(70, 80, ALLREDUCE)  # outside of any call; call unknown
    seven, eight = "0x0000000000000007", "0x0000000000000008"
    assert told(made) == [(seven, 4096), (eight, 512), (None, None), (None, None)]


@pytest.mark.parametrize(
    ("sizes", "communicators", "kernels", "expected"),
    [
        ((4096,), (7,), 1, [("0x0000000000000007", 4096)]),
        ((4096, 1024), (7, 7), 1, [("0x0000000000000007", 5120)]),
        ((4096, 4096), (7, 7), 2, [("0x0000000000000007", 4096)] * 2),
        ((4096, 1024), (7, 7), 2, [("0x0000000000000007", None)] * 2),
        ((4096, 4096), (7, 8), 1, [(None, None)]),
    ],
)
def test_a_group_is_launched_at_its_end(made, sizes, communicators, kernels, expected):
    made.nccl(1, 2, "ncclAllReduce", written=message(99)).nccl(3, 4, "ncclGroupEnd")  # of the group before
    made.nccl(5, 5.5, "ncclAllReduce", written=message(77))  # captured into a graph: launched nothing
    made.nccl(9, 9.1, "ncclGroupStart")
    for place, (size, communicator) in enumerate(zip(sizes, communicators, strict=True)):
        made.nccl(10 + place, 10.1 + place, "ncclGroupStart")  # PyTorch opens one around each call of several
        made.nccl(10.2 + place, 10.5 + place, "ncclAllReduce", written=message(size, communicator))
        made.nccl(10.6 + place, 10.7 + place, "ncclGroupEnd")
    made.nccl(20, 24, "ncclGroupEnd")
    for place in range(kernels):
        made.kernel(30 + 10 * place, 35 + 10 * place, ALLREDUCE, call=(21 + place, 21.5 + place))
    assert told(made) == expected


def test_what_nccl_saw_run_on_the_gpu_numbers_the_kernels_that_ran_then(made):
    """Advanced tracing: a range a channel, in NCCL's domain, without the prefix; count and type give the size."""
    for number, start in ((41, 100), (42, 200)):
        made.kernel(start, start + 50, ALLREDUCE)
        for channel in range(2):
            made.nccl(start + channel, start + 45, "AllReduce", thread=9, written={
                "commHash": 7, "commRank": 1, "seqNumber": number, "count": 1000, "dataType": 7,
            })  # fmt: skip
    found = collectives.kernels(open_report(made.write()))
    assert found["sequence"].tolist() == [41, 42] and set(found["communicator"]) == {"0x0000000000000007"}
    assert found["bytes"].tolist() == [4000, 4000], "type 7 is ncclFloat32"


KINDS = [("ncclFloat16", 2), ("ncclBfloat16", 2), ("ncclInt8", 1), ("float64", 8), (9, 2), ("7", 4)]


@pytest.mark.parametrize(("kind", "size"), KINDS)
def test_count_and_type_are_a_size(made, kind, size):
    made.nccl(10, 12, "ncclAllReduce", written={"count": 1000, "dataType": kind})
    assert open_report(made.write()).nccl_calls["bytes"].tolist() == [1000 * size]


def test_other_peoples_ranges_are_not_ncclss(made):
    made.range(1, 2, "ncclish").range(3, 4, "my ncclAllReduce")
    assert open_report(made.write()).nccl_calls.empty


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.none(), st.text(max_size=60), st.sampled_from(['{"Rank": 1e400}', "[1]", '{"No. of ranks": -5}', "{"])
    ),
    st.one_of(st.none(), st.binary(max_size=80)),
    st.lists(st.tuples(st.integers(-3, 120), st.one_of(st.none(), st.integers(-5, 200))), max_size=4),
)
def test_damaged_payloads_say_nothing_and_break_nothing(text, blob, entries):
    with tempfile.TemporaryDirectory() as folder:
        made = SyntheticReport(Path(folder) / "any.sqlite").range(0, 100, "training")
        made.nccl(10, 20, "ncclAllReduce", written={"Rank": 0}).kernel(30, 40, ALLREDUCE, call=(11, 12))
        made._rows["NVTX_EVENTS"][-1] |= {"jsonText": text, "binaryData": blob}
        for place, (kind, offset) in enumerate(entries):
            entry = {"domainId": 3, "schemaId": 5, "idx": place, "type": kind, "name": "Message size [bytes]"}
            made._add("NVTX_PAYLOAD_SCHEMA_ENTRIES", **entry, offset=offset)
        found = collectives.kernels(open_report(made.write()))
        assert found["bytes"][0] is None or 0 <= found["bytes"][0] <= 2**48


def test_a_slim_copy_keeps_what_nccl_wrote_and_nothing_that_others_did(made, tmp_path):
    made.nccl(10, 12, "ncclAllReduce", written=message(4096), as_bytes=True).began(1_800_000_000_000_000_000)
    made.nccl(13, 15, "AllReduce", written={"seqNumber": 5}).range(20, 30, "mine")
    made._rows["NVTX_EVENTS"][-1]["jsonText"] = '{"user": "somebody"}'
    made.kernel(40, 50, ALLREDUCE, call=(11, 11.5))
    slim(made.write(), tmp_path / "slim.sqlite.xz")
    with open_report(tmp_path / "slim.sqlite.xz") as report:
        assert report.nccl_calls[["bytes", "sequence"]].to_numpy().tolist() == [[4096, None], [None, 5]]
        assert collectives.kernels(report)["bytes"].tolist() == [4096]
        assert report.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME") == [(1_800_000_000_000_000_000,)]
    (tmp_path / "plain").write_bytes(lzma.decompress((tmp_path / "slim.sqlite.xz").read_bytes()))
    kept = sqlite3.connect(tmp_path / "plain").execute("SELECT jsonText FROM NVTX_EVENTS").fetchall()
    assert [text for (text,) in kept if text] == ['{"seqNumber": 5}']


@pytest.mark.parametrize("helps", ["--include-blobs=  --include-json=", "--lazy="])
def test_payloads_are_asked_for_where_nsys_can_export_them(tmp_path, monkeypatch, made, helps):
    whole, words = made.write(), tmp_path / "words"
    script = tmp_path / "nsys"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "NVIDIA Nsight Systems version 2026.1.1.1-1"; exit 0; }}\n'
        f'[ "$2" = --help ] && {{ echo "{helps}"; exit 0; }}\necho "$*" > {words}\n'
        f'while [ $# -gt 0 ]; do [ "$1" = --output ] && out=$2; shift; done\ncp "{whole}" "$out"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("LAB_NSYS", str(script))
    nsys.find_nsys.cache_clear()
    (tmp_path / "a.nsys-rep").write_bytes(b"any")
    nsys.export(tmp_path / "a.nsys-rep")
    nsys.find_nsys.cache_clear()
    assert ("--include-json true --include-blobs true" in words.read_text()) == ("blobs" in helps)
