"""From a cause to a line: backtraces of Python and of compiled code, ranges in their place, and what is said else."""

from __future__ import annotations

import lzma
from collections import Counter
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.source import recorded
from stepbudget import backtraces
from stepbudget.ask import advice, lines, sums
from stepbudget.ask.budget import budget
from stepbudget.export import frames
from stepbudget.export.slim import slim
from stepbudget.report import open_report
from synthetic import AUTOGRAD, PROCESS, SyntheticReport, changed

TORCH = ("item", "/home/ann/.venv/lib/python3.11/site-packages/torch/_tensor.py", 12)
THREADING = ("run", "/usr/lib/python3.11/threading.py", 982)
KERNEL = "at::native::vectorized_elementwise_kernel<4>"


def table(made: SyntheticReport):
    return lines.lines(open_report(made.write()))


def frame(function: str, line: int, file: str = "/home/ann/project/train.py") -> tuple[str, str, int]:
    return function, file, line


def waits(made: SyntheticReport, marks: bool = True) -> SyntheticReport:
    """Two places that wait for the GPU: .item() in each of three steps at line 41, and at the end line 60."""
    made.range(0, 1000, "training")
    for at in (100, 300, 500):
        made.kernel(at + 2, at + 20, KERNEL, call=(at, at + 1))
        made.copy(at + 21, at + 22, 4, "device to host", call=(at + 3, at + 24))
        if marks:
            made.python(TORCH, frame("train", 41), frame("<module>", 90))
        made.api(at + 25, at + 60, "cudaStreamSynchronize_v3020")
        if marks:
            made.python(TORCH, frame("train", 41), frame("<module>", 90))
    made.kernel(802, 890, KERNEL, call=(800, 801)).api(803, 900, "cudaDeviceSynchronize_v3020")
    if marks:
        made.python(frame("finish", 60), frame("<module>", 91))
    return made.kernel(950, 990, KERNEL, call=(940, 941))


def test_the_line_that_synchronised_and_how_often(made):
    found = table(waits(made))
    own = found[(found["cause"] == "synchronisation") & (found["how"] == backtraces.CALLED_BY)]
    assert own[["where", "file", "line", "function", "count"]].values.tolist() == [
        ["train.py:41 in train", "train.py", 41, "train", 3],
        ["train.py:60 in finish", "train.py", 60, "finish", 1],
    ]
    assert own["call"].tolist() == ["cudaMemcpyAsync", "cudaDeviceSynchronize"]
    assert own["cpu_ms"].tolist() == pytest.approx([3 * (21 + 35) / 1e3, 0.097])


def test_the_lines_share_the_idle_time_of_their_cause_and_no_more(made):
    report = open_report(waits(made).write())
    found, whole = lines.lines(report), budget(report).ms
    for cause, own in found.groupby("cause"):
        assert own["idle_ms"].sum() <= whole[cause] + 1e-9
    own = found[found["cause"] == "synchronisation"].set_index("where")["idle_ms"]
    assert own.sum() == pytest.approx(whole["synchronisation"]) and whole["synchronisation"] > 0.1
    # At the end's wait, 803 to 900, nothing runs from 890 on; as it had held the thread before, what follows up to the
    # next launch at 940 is laid to it too.
    assert own["train.py:60 in finish"] == pytest.approx(0.010 + 0.040)


def test_a_wait_that_follows_a_pageable_copy_is_a_part_of_it(made):
    made.range(0, 100, "training").kernel(1, 3, KERNEL, call=(0, 1))
    made.copy(22, 40, 3_000_000, call=(20, 41)).python(frame("load", 7), frame("<module>", 90))
    made.api(42, 44, "cudaStreamSynchronize_v3020").kernel(60, 70, KERNEL, call=(58, 59))
    found = table(made).set_index("cause")
    assert found.loc["pageable_copy", ["where", "count"]].tolist() == ["train.py:7 in load", 1]
    assert found.loc["pageable_copy", "cpu_ms"] == pytest.approx(0.021 + 0.002) and "synchronisation" not in found.index


def test_a_backtrace_belongs_to_the_call_that_its_row_encloses(made):
    """The mark of Python is as old as nsys's own row, which begins before the call: here inside another call."""
    made.range(0, 1000, "training")
    for at, line in ((100, 11), (200, 12)):
        made.api(at - 1, at - 0.05, "cuKernelGetName").kernel(at + 5, at + 50, KERNEL, call=(at, at + 4))
        made.python(frame("step", line)).api(at + 4.05, at + 5, "cudaGetLastError_v3020")
    made.kernel(305, 350, KERNEL, call=(300, 304), thread=AUTOGRAD).kernel(405, 450, KERNEL, call=(400, 404))
    made.python(TORCH)
    made.api(700, 704, "cudaDeviceSynchronize_v3020").python(frame("end", 15))
    found = table(made)
    assert found.loc[found["cause"] == "synchronisation", "where"].tolist() == ["train.py:15 in end"]
    found = found[(found["cause"] == "launch_overhead") & (found["count"] > 0)].set_index("where")["count"]
    assert found.to_dict() == {"train.py:11 in step": 1, "train.py:12 in step": 1, "not known": 2}


def test_a_call_whose_backtrace_was_taken_is_one_call(made, tmp_path):
    """Nsight Systems 2025.3 writes two rows of it: the call's own, and one around it that holds the backtrace."""
    paths = [waits(SyntheticReport(tmp_path / f"{marks}.sqlite"), marks).write() for marks in (True, False)]
    with_them, without = map(open_report, paths)
    pd.testing.assert_frame_equal(with_them.api, without.api)
    pd.testing.assert_frame_equal(with_them.kernels, without.kernels)
    assert len(with_them.rows("SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME")) == len(with_them.api) + 7
    assert budget(with_them).ns == budget(without).ns
    assert sums.sums(paths[0])["calls"] == sums.sums(paths[1])["calls"]


@pytest.mark.parametrize("left_out", ["jsonText", "binaryData"])
def test_both_forms_of_a_backtrace_of_python_tell_the_same(made, left_out):
    path = waits(made).python_sample(945, frame("rest", 70)).write()
    both = lines.lines(open_report(path))
    changed(path, f"UPDATE NVTX_EVENTS SET {left_out} = NULL")
    pd.testing.assert_frame_equal(lines.lines(open_report(path)), both)


def test_samples_name_only_calls_that_they_lie_in_by_the_thread_that_they_met(made):
    waits(made, marks=False)
    made.python_sample(110, frame("train", 41), frame("<module>", 90))
    made.python_sample(290, frame("train", 42), frame("<module>", 90))  # in no call
    made.python_sample(310, frame("work", 43), THREADING, thread=77)  # of another thread
    known = (found := table(made))[found["file"].notna()]
    assert known[["cause", "where", "how", "count"]].values.tolist() == [
        ["synchronisation", "train.py:41 in train", backtraces.SAMPLED_BY, 1]
    ]


def test_samples_of_2024_are_the_main_threads_if_they_began_with_it(made):
    waits(made, marks=False)
    made.python_sample(110, frame("train", 41), frame("<module>", 90), thread=77, of_2024=True)
    made.python_sample(310, frame("work", 43), THREADING, thread=77, of_2024=True)  # of another thread of Python
    made._rows["NVTX_EVENTS"][0]["globalTid"] = PROCESS << 24 | PROCESS
    for row in made._rows["CUPTI_ACTIVITY_KIND_RUNTIME"]:
        row["globalTid"] = PROCESS << 24 | PROCESS
    known = (found := table(made))[found["file"].notna()]
    assert known[["where", "how", "count"]].values.tolist() == [["train.py:41 in train", backtraces.SAMPLED_BY, 1]]


def test_samples_share_the_idle_time_of_cpu_code_among_its_lines(made):
    """The GPU idles from 20 to 60 of each 100 µs while Python runs, at line 7 three times as long as at line 8."""
    made.range(0, 1000, "training")
    for at in range(0, 1000, 100):
        made.kernel(at + 61, at + 100, KERNEL, call=(at + 60, at + 61)).os_call(at + 1, at + 20, "poll")
        for time, line in ((25, 7), (35, 7), (45, 7), (55, 8), (80, 9)):
            made.python_sample(at + time, TORCH, frame("train", line), frame("<module>", 90))
    report = open_report(made.write())
    own = lines.lines(report).query("cause == 'python'").set_index("where")
    assert own["count"].to_dict() == {"train.py:7 in train": 30, "train.py:8 in train": 10}
    whole = budget(report).ms["python"]
    assert whole > 0.35 and own["idle_ms"].tolist() == pytest.approx([0.75 * whole, 0.25 * whole])
    assert own["cpu_ms"].tolist() == pytest.approx([0.3, 0.1]) and set(own["how"]) == {backtraces.SAMPLED_BY}


def test_a_few_samples_of_cpu_code_name_no_line(made):
    made.range(0, 1000, "training").kernel(900, 950, KERNEL, call=(890, 891))
    for time in range(100, 100 + 10 * (lines.LEAST_SAMPLES - 1), 10):
        made.python_sample(time, frame("train", 7))
    assert "python" not in table(made)["cause"].values


def test_html_in_a_name_is_undone(made):
    found = table(waits(made).python(frame("&lt;module&gt;", 95, "/home/ann/it &amp; me.py")))
    assert "it & me.py:95" in found["where"].values


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/ann/train.py", True),
        ("/workspace/torch/train.py", True),
        ("/tmp/ipykernel_7/3.py", True),
        ("<stdin>", True),
        ("<ipython-input-3-abc>", True),
        (r"C:\ann\train.py", True),
        ("/home/ann/.venv/lib/python3.11/site-packages/torch/_tensor.py", False),
        ("/usr/local/lib/python3.12/dist-packages/torch/utils/data/dataloader.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("/opt/conda/lib/python3.10/contextlib.py", False),
        ("/opt/pytorch/pytorch/torch/nn/modules/module.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        (r"C:\Python\Lib\threading.py", False),
        ("", False),
    ],
)
def test_whose_file_it_is(file, own):
    assert frames.is_users(file) == own == frames.is_users(frames.scrubbed(file))


def test_chains_name_the_function_of_a_compiled_program(made):
    system = ("cudaLaunchKernel", "/usr/local/cuda/lib64/libcudart.so.12"), ("0x7f31", "/home/ann/hello")
    end = ("_start", "/home/ann/hello")
    made.range(0, 100, "training").kernel(12, 20, KERNEL, call=(10, 11))
    made.chain(*system, ("step(float *)", "/home/ann/hello"), ("main", "/home/ann/hello"), end)
    made.kernel(32, 40, KERNEL, call=(30, 31)).chain(*system[:1], end)
    found = table(made)
    launched = found[found["cause"] == "launch_overhead"].set_index("where")
    assert launched["count"].to_dict() == {"hello in step(float *)": 1, "not known": 1}
    assert launched["how"]["hello in step(float *)"] == "backtraces"


@pytest.mark.parametrize(
    ("symbol", "module", "where"),
    [
        ("train", "/home/ann/train.py:41", "train.py:41 in train"),
        ("[Python] train (/home/ann/train.py:41)", "[Unknown]", "train.py:41 in train"),
        ("train:41", "/home/ann/train.py", "train.py in train:41"),
        ("&lt;module&gt;", "/home/ann/train.py", "train.py"),
    ],
)
def test_a_chain_that_names_a_file_of_python(made, symbol, module, where):
    made.range(0, 100, "training").kernel(12, 20, KERNEL, call=(10, 11))
    made.chain(("_PyEval_EvalFrameDefault", "/usr/bin/python3.11"), (symbol, module))
    assert where in table(made)["where"].values


def test_samples_of_compiled_code_count_for_the_call_that_they_lie_in(made):
    made.range(0, 100, "training").kernel(12, 90, KERNEL, call=(10, 11)).api(13, 95, "cudaDeviceSynchronize_v3020")
    made.os_call(20, 30, "ioctl")  # the system's own calls inside it do not hide it
    made.sample(50, ("poll", "/usr/lib/libc.so.6"), ("simulate", "/home/ann/hello"), ("main", "/home/ann/hello"))
    found = table(made).set_index("cause")
    assert found.loc["synchronisation", ["where", "how"]].tolist() == ["hello in simulate", "samples"]


def test_without_backtraces_the_innermost_range_stands_for_the_line(made):
    waits(made, marks=False).range(90, 700, "test").range(95, 400, "aten::item, seq = 5, op_id = 3")
    made.range(97, 190, "aten::_local_scalar_dense, seq = 5, op_id = 4").range(195, 197, "elsewhere")
    made.kernel(612, 615, KERNEL, call=(610, 611), thread=AUTOGRAD)  # its thread has no range: the main thread's counts
    found = table(made)
    own = found[found["cause"] == "synchronisation"].set_index("where")["count"]
    assert own.to_dict() == {
        "within range 'test › aten::item › aten::_local_scalar_dense'": 1,
        "within range 'test › aten::item'": 1,
        "within range 'test'": 1,
        "not known": 1,
    }
    launched = found[found["cause"] == "launch_overhead"].set_index("where")["count"]
    assert launched["within range 'test'"] == 2
    assert found["file"].isna().all() and found["line"].isna().all()


def test_numbered_steps_are_one_place(made):
    made.range(0, 100, "training")
    for number in range(1, 5):
        made.range(20 * number, 20 * number + 15, f"step {number}")
        made.kernel(20 * number + 3, 20 * number + 9, KERNEL, call=(20 * number + 1, 20 * number + 2))
    assert table(made)[["where", "count"]].values.tolist() == [["within range 'step #'", 4]]


def test_the_advice_names_the_line_and_only_where_a_backtrace_tells_it(made, tmp_path):
    for marks, named in ((True, True), (False, False)):
        report = open_report(waits(SyntheticReport(tmp_path / f"{marks}.sqlite"), marks).write())
        (one,) = [one for one in advice.advice(report, budget(report)) if one.cause == "synchronisation"]
        assert one.evidence.endswith(". Most at train.py:41 in train: cudaMemcpyAsync, 3 times") == named
        assert ("train.py" in one.evidence) == named


def test_a_line_is_the_costliest_only_if_no_range_costs_more(made):
    """As of a backward pass, whose launches come from autograd's thread and have no backtrace of Python."""
    made.range(0, 1000, "training").range(90, 700, "backward")
    for at in (100, 300, 500):
        made.kernel(at + 5, at + 100, KERNEL, call=(at, at + 4), thread=AUTOGRAD)
    made.kernel(803, 990, KERNEL, call=(800, 802)).python(TORCH, frame("train", 27))
    report = open_report(made.write())
    found = lines.lines(report).query("cause == 'launch_overhead'")
    assert found["where"].tolist() == ["within range 'backward'", "train.py:27 in train"]
    assert lines.costliest(report, report.window(), "launch_overhead") == ""
    alone = open_report(waits(SyntheticReport(made.path.with_name("alone.sqlite"))).write())
    assert lines.costliest(alone, alone.window(), "synchronisation").startswith("train.py:41 in train: ")


def test_what_would_name_the_lines_is_said_where_nothing_does(made, answer):
    path = waits(made, marks=False).write()
    missing = answer(path)["not_looked_at"]
    assert any("--python-backtrace=cuda --cudabacktrace=all:0" in text for text in missing)
    assert any("--cuda-memory-usage=true" in text for text in missing)


def test_a_program_that_is_no_python_is_not_asked_for_backtraces_of_python(made):
    report = open_report(waits(made, marks=False).program("simulation").write())
    (text,) = lines.not_looked_at(report, report.window())
    assert "--cudabacktrace=all:0" in text and "python" not in text


def test_backtraces_that_the_export_leaves_out_are_said(made):
    waits(made)
    for row in made._rows["NVTX_EVENTS"]:
        row.pop("binaryData", None), row.pop("jsonText", None)
    report = open_report(made.write())
    assert lines.not_looked_at(report, report.window()) == [
        "7 backtraces of Python: this export leaves out what they say (nsys export --include-blobs=true, where nsys "
        "knows it)"
    ]


def test_the_answer_holds_the_lines_in_words_and_in_json(made, ask, answer):
    path = waits(made).write()
    out = ask(path)[1]
    (line,) = [line for line in out.splitlines() if "train.py:41" in line and "Most at" not in line]
    assert line.split()[:4] == ["train.py:41", "in", "train", "synchronisation"]
    assert max(map(len, out.splitlines())) <= 120
    (one,) = [one for one in answer(path)["lines"] if one["line"] == 41]
    assert (one["cause"], one["file"], one["function"], one["count"]) == ("synchronisation", "train.py", "train", 3)


def test_hostile_names_are_harmless(made, ask):
    waits(made, marks=False)._rows["CUPTI_ACTIVITY_KIND_RUNTIME"].pop()  # the last launch: the wait is the last call
    made.python(("\x1b[31m$<b>\n", "/home/ann/\x1b[2J\n.py", 2**32 - 1))
    out = ask(made.write())[1]
    assert "\x1b" not in out and ":4294967295 in" in out


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE NVTX_EVENTS SET binaryData = NULL, jsonText = NULL",
        'UPDATE NVTX_EVENTS SET binaryData = NULL, jsonText = \'{"a": {"Frames": [{"Function": 1e9}]}}\'',
        'UPDATE NVTX_EVENTS SET binaryData = NULL, jsonText = \'{"a": {"Frames": 7}, "b": 1}\'',
        "UPDATE NVTX_EVENTS SET binaryData = NULL, jsonText = '[]'",
        "UPDATE NVTX_EVENTS SET binaryData = zeroblob(10)",
        "UPDATE NVTX_EVENTS SET binaryData = zeroblob(5000)",
        "UPDATE NVTX_EVENTS SET binaryData = randomblob(104)",
        "UPDATE NVTX_EVENTS SET binaryData = 'text' WHERE eventType = 34",
        "UPDATE NVTX_EVENTS SET domainId = NULL",
        "UPDATE NVTX_EVENTS SET domainId = 'text'",
        "UPDATE NVTX_EVENTS SET globalTid = NULL WHERE eventType = 34",
        "UPDATE NVTX_EVENTS SET start = 'now' WHERE eventType = 34",
        "DELETE FROM StringIds WHERE value LIKE '%.py'",
        "UPDATE StringIds SET value = x'ff' WHERE value LIKE '%.py'",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN binaryData",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN domainId",
        "UPDATE CUDA_CALLCHAINS SET symbol = NULL",
        "UPDATE CUDA_CALLCHAINS SET module = 'text'",
        "UPDATE CUDA_CALLCHAINS SET stackDepth = NULL",
        "UPDATE CUDA_CALLCHAINS SET id = NULL",
        "UPDATE CUDA_CALLCHAINS SET id = 1, stackDepth = 0",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET callchainId = 4711",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET callchainId = 'text'",
        "ALTER TABLE CUDA_CALLCHAINS DROP COLUMN module",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN callchainId",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = 1",
        "DROP TABLE CUDA_CALLCHAINS",
        "DROP TABLE SAMPLING_CALLCHAINS",
    ],
)
def test_damaged_backtraces_are_passed_over(made, answer, change):
    made = waits(made).chain(("main", "/home/ann/run"))
    made.sample(120, ("main", "/home/ann/run"))
    found = answer(changed(made.write(), change))
    assert sum(share or 0 for share in found["budget"].values()) == pytest.approx(1, abs=1e-9)
    assert sum(one["count"] for one in found["lines"] if one["cause"] == "synchronisation") in (0, 4)


def test_a_slim_copy_names_the_same_lines_and_no_folder_of_the_owner(made, tmp_path):
    made = waits(made).chain(("helper", "/home/ann/build/tool"), ("poll", "/usr/lib/libc.so.6"))
    made.os_call(5, 9, "poll").chain(("main", "/home/ann/secret/run"), of="OSRT_API")
    path = made.write()
    slim(path, tmp_path / "slim.sqlite.xz")
    whole, thin = open_report(path), open_report(tmp_path / "slim.sqlite.xz")
    tables = [table[table["cause"] != "os_wait"] for table in (lines.lines(thin), lines.lines(whole))]
    assert tables[0].to_dict("records") == tables[1].to_dict("records")
    content = lzma.decompress((tmp_path / "slim.sqlite.xz").read_bytes())
    assert b"site-packages/torch/_tensor.py" in content and b"/usr/lib/libc.so.6" in content
    assert b"ann" not in content and b"secret" not in content
    assert b"rest" not in content, "the unused bytes of a frame"


def test_a_slim_copy_of_an_export_without_bytes_names_the_same_lines(made, tmp_path):
    path = waits(made).write()
    changed(path, "UPDATE NVTX_EVENTS SET binaryData = NULL")
    slim(path, tmp_path / "slim.sqlite.xz")
    thin, whole = (lines.lines(open_report(one)) for one in (tmp_path / "slim.sqlite.xz", path))
    pd.testing.assert_frame_equal(thin, whole)


def test_slimming_drops_the_payloads_of_others(made, tmp_path):
    made.range(0, 100, "training").kernel(12, 20, KERNEL, call=(10, 11))
    made._rows["NVTX_EVENTS"][0]["binaryData"] = b"a payload with hunter2 in it, and long enough to be one"
    made.python(("secret", "an environment", 1))
    made._rows["NVTX_EVENTS"][-1]["domainId"] = 99  # looks like a backtrace, and is not in their domain
    slim(made.write(), tmp_path / "slim.sqlite.xz")
    content = lzma.decompress((tmp_path / "slim.sqlite.xz").read_bytes())
    assert b"hunter2" not in content and b"an environment" not in content and b"secret" not in content


def test_recorded_runs_name_the_range_of_what_they_wait_for():
    report = open_report(recorded.folder() / "profiles" / "main_opt3.sqlite.xz")
    found, whole = lines.lines(report), budget(report).ms
    first = found[found["cause"] == "synchronisation"].iloc[0]
    assert first["where"] == "within range 'optimizer step'" and first["count"] == 59  # GradScaler reads its flag
    for cause, own in found.groupby("cause"):
        assert own["idle_ms"].sum() <= whole[cause] + 1e-6
        assert own["idle_ms"].sum() >= 0.95 * whole[cause]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["cudaMalloc", "cudaFree", "cudaMemcpy"])), min_size=1))
def test_a_place_names_the_call_that_is_made_there_most(calls):
    numbers = {place: number for number, place in enumerate(dict.fromkeys(place for place, _ in calls))}
    made = lines._made_most(np.array([numbers[place] for place, _ in calls]), np.array([name for _, name in calls]))
    assert made == [Counter(name for at, name in calls if at == place).most_common(1)[0][0] for place in numbers]


def test_a_thousand_places_take_no_more_steps_than_ten(tmp_path):
    """Two million ranges that all had a name of their own took six minutes: each place was summed up by itself."""
    steps = []
    for count in (10, 600):
        made = SyntheticReport(tmp_path / f"{count}.sqlite").range(0, 10 * count, "training")
        for at in range(0, 10 * count, 10):
            made.range(at, at + 9, f"part {chr(97 + at // 260)}{chr(97 + at // 10 % 26)}")
            made.kernel(at + 6, at + 8, KERNEL, call=(at + 1, at + 2))
        with mock.patch.object(
            pd.DataFrame, "__getitem__", autospec=True, side_effect=pd.DataFrame.__getitem__
        ) as asked:
            assert len(table(made)) == count
        steps.append(asked.call_count)
    assert steps[0] == steps[1]
