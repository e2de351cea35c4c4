"""What Nsight Compute counted: its CSV read however it is written, its failures in one sentence, its command run."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import course
from labkit.errors import LabError, NotHere
from labkit.paths import RECORDED, SOURCE_CODE
from labkit.source import Live, Recorded, counting, kinds, recorded
from labkit.training import machine
from listed import write_list
from stand_in import A_GPU, StandIn
from stepbudget.errors import ReportError
from stepbudget.ncu import counters

TIME, READ, WRITTEN, PIPE = counters.METRICS.values()
GMMA, HMMA, HFMA2 = counters.INSTRUCTIONS.values()
BF16, FP16, TF32 = counters.OPERATIONS.values()
ADD32, MUL32, FMA32 = counters.FP32.values()
RANGES = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
ADD = (
    "void native::vectorized_elementwise_kernel<4, native::CUDAFunctor_add<float>, std::array<char *, 3>>(int, T2, T3)"
)
GEMM = "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT"


def ranges(*names: str) -> str:
    """A cell as ncu 2025.3 writes it: the thread, then each range around the launch, the outermost first."""
    return "768  " + "  ".join(f'"<default domain>:{name}:none:none:none:none:none:none"' for name in names) + " "


def launch(kernel: str, phase: str, time: str, read: str, written: str, pipe: str) -> dict:
    cells = {counters.KERNEL: kernel, RANGES: ranges("training", phase)}
    return cells | {TIME: time, READ: read, WRITTEN: written, PIPE: pipe}


def output(rows: list[dict], units: dict[str, str] | None = None, extra: tuple[str, ...] = ()) -> str:
    """What ``ncu --csv --page raw --log-file`` writes, with its own lines around."""
    known = {TIME: "ns", READ: "byte", WRITTEN: "byte", PIPE: "%", GMMA: "inst", HMMA: "inst", HFMA2: "inst"}
    metrics = [name for name in rows[0] if "__" in name]
    names = ["ID", "Process ID", "Process Name", "Host Name", RANGES, counters.KERNEL, "Block Size", *extra, *metrics]
    out = io.StringIO()
    out.write("==WARNING== Note: Running with unmodified GPU clocks.\n==PROF== Connected to process 768 (python3)\n")
    write = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow
    write(names)
    write([(known | (units or {})).get(name, "") for name in names])
    for number, row in enumerate(rows):
        own = {"ID": number, "Process ID": 768, "Process Name": "python3", "Host Name": "secret", RANGES: ""}
        own |= {"Block Size": "(128, 1, 1)"} | dict.fromkeys(extra, "1,2")
        write([(own | row)[name] for name in names])
        if number == 0:
            out.write("==PROF== Disconnected from process 768\nTrain Epoch: 2 [0/1024 (0%)]\tLoss: 0.3\n\n")
    return out.getvalue()


STEP = [
    launch(ADD, "shuffle", "1000", "100", "50", "0"),
    launch(GEMM, "forward", "6000", "4000", "2000", "50"),
    launch(ADD, "backward", "3000", "300", "0", "4"),
    launch(ADD, "backward", "1000", "0", "100", "0"),
]
WORK = [(0, 0, 0, 0), (9, 1, 0, 1e9), (0, 7, 7, 0), (0, 0, 0, 0)]  # gmma, hmma, of them hfma2; operations in BF16
CUDA_CORES = {ADD32: "3", MUL32: "5", FMA32: "1,000"} | dict.fromkeys(counters.BUSY.values(), "20")
LAUNCHED = dict(zip(counters.LAUNCH.values(), ("264", "2"), strict=True))


def with_work(rows: list[dict] = STEP) -> list[dict]:
    return [
        {**row, GMMA: gmma, HMMA: hmma, HFMA2: hfma2, BF16: f"{flops:.0f}", FP16: "0", TF32: "0"}
        | CUDA_CORES
        | LAUNCHED
        for row, (gmma, hmma, hfma2, flops) in zip(rows, WORK, strict=True)
    ]


# --- reading ------------------------------------------------------------------------------------------------


def test_each_launch_is_a_row_with_its_phase_and_bytes():
    found = counters.parse(output(STEP, extra=("launch__grid_size",)))
    assert found["kernel"].tolist() == [ADD, GEMM, ADD, ADD]
    assert found["phase"].tolist() == ["shuffle", "forward", "backward", "backward"]
    assert found["time_us"].tolist() == [1, 6, 3, 1]
    assert found["bytes"].tolist() == [150, 6000, 300, 100]
    assert found[["tensor_instructions", "tensor_flops"]].isna().all(axis=None)


def test_a_librarys_own_range_is_no_phase_and_no_range_is_none():
    library = ranges("training", "shuffle") + ' "CCCL:cub::DeviceRadixSort:none:none:none:none:REGISTERED:sort" '
    rows = [{**STEP[0], RANGES: cell} for cell in (library, ranges("training"), "", ranges("training", "a: b"))]
    assert counters.parse(output(rows))["phase"].tolist() == ["shuffle", "", "", "a: b"]


def test_a_step_is_an_epoch_without_its_shuffle():
    counted = counters.Counted(counters.parse(output(STEP)), "ncu", "here")
    assert counted.step["phase"].tolist() == ["forward", "backward", "backward"]


def test_kernels_are_grouped_by_name():
    found = counters.by_kernel(counters.parse(output(with_work()))).set_index("kernel")
    assert found.index.tolist() == [GEMM, ADD], "the longest first"
    assert found["count"].tolist() == [1, 3]
    assert found["time_us"].tolist() == [6, 5]
    assert found["share"].tolist() == pytest.approx([6 / 11, 5 / 11])
    assert found["bytes"].tolist() == [6000, 550]
    assert found.loc[GEMM, "tb_per_s"] == pytest.approx(6000 / 6e-6 / 1e12)
    assert found.loc[ADD, "tensor_pct"] == pytest.approx(3 * 4 / 5), "the mean over time"
    assert found["tensor_cores"].tolist() == [True, False], "HFMA2 in the tensor pipe is no matrix instruction"
    assert found["tensor_type"].tolist() == ["bf16", ""]
    assert found["fp32_flops"].tolist() == [2008, 3 * 2008]
    assert found["l2_pct"].tolist() == pytest.approx([20, 20]), "means over time"
    assert found[["blocks", "waves"]].to_numpy().tolist() == [[264, 2], [264, 2]], "of the largest launch"


def test_where_nothing_was_counted_nobody_knows_of_tensor_cores():
    assert counters.by_kernel(counters.parse(output(STEP)))["tensor_cores"].tolist() == [None, None]


def test_two_runs_are_joined_where_they_launched_the_same():
    bytes_run, work_run = counters.parse(output(STEP)), counters.parse(output(with_work()))
    work_run["bytes"] = 1.0  # spoiled by the passes
    found = counters.joined(bytes_run, work_run)
    assert found["bytes"].tolist() == [150, 6000, 300, 100]
    assert found["tensor_instructions"].tolist() == [0, 10, 0, 0]
    assert found["tensor_flops"].tolist() == [0, 1e9, 0, 0]
    assert (found["fp32_flops"] == 2008).all() and (found["warps_pct"] == 20).all()
    with pytest.raises(ReportError, match=r"different kernels \(4 and 3\)"):
        counters.joined(bytes_run, work_run.iloc[:3])


@pytest.mark.parametrize(
    ("units", "value", "us"),
    [
        ("ns", "1500", 1.5),
        ("nsecond", "1,500", 1.5),
        ("us", "1.5", 1.5),
        ("usecond", "1,234.5", 1234.5),
        ("usecond", "1.234,5", 1234.5),
        ("msecond", "0.0015", 1.5),
        ("ms", "1'500.25", 1_500_250),
        ("second", "2", 2e6),
        ("ns", "1,234,567", 1234.567),
        ("ns", "1.234.567", 1234.567),
        ("ns", "1\u202f234\u202f567", 1234.567),
        ("ns", "1.5e3", 1.5),
        ("us", "3,25", 3.25),
    ],
)
def test_units_and_separators_are_read(units, value, us):
    found = counters.parse(output([{**STEP[0], TIME: value}], {TIME: units}))
    assert found["time_us"].tolist() == pytest.approx([us])


@pytest.mark.parametrize(("unit", "factor"), [("byte", 1), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte", 1e9)])
def test_bytes_come_in_decimal_units(unit, factor):
    found = counters.parse(output([{**STEP[0], READ: "1.5", WRITTEN: "2"}], {READ: unit}))
    assert found["bytes"].tolist() == [1.5 * factor + 2]


@pytest.mark.parametrize("value", ["n/a", "(!) n/a", "", "nan", "-", "many"])
def test_a_counter_that_is_not_available_is_no_zero(value):
    found = counters.parse(output([{**STEP[0], READ: value}, STEP[1]]))
    assert found["bytes"].isna().tolist() == [True, False]
    assert counters.by_kernel(found).set_index("kernel")["bytes"].isna().tolist() == [False, True]


def test_an_unknown_unit_is_no_number():
    assert counters.parse(output([STEP[0]], {TIME: "fortnight"}))["time_us"].isna().all()


def test_a_counter_that_is_absent_is_no_zero():
    rows = [{name: value for name, value in row.items() if name != READ} for row in STEP]
    assert counters.parse(output(rows))["bytes"].isna().all()


def test_what_the_program_prints_swallows_nothing():
    first, second = output(STEP).split('"1",', 1)
    found = counters.parse(f'{first}a "quotation that is never closed\n\r"{"x" * 200_000}\n"1",{second}')
    assert found["time_us"].tolist() == [1, 6, 3, 1]


def test_several_programs_one_after_the_other_and_a_header_again():
    found = counters.parse(output(STEP[:2]) + output(STEP[2:], {TIME: "us"}))
    assert found["time_us"].tolist() == [1, 6, 3000, 1000]


@given(st.floats(0, 1e12, allow_nan=False), st.sampled_from(["{:.0f}", "{:,.0f}", "{:.3f}", "{:,.4f}", "{:.6e}"]))
def test_any_number_that_ncu_writes_is_read_back(number, how):
    text = how.format(number)
    assert counters._number(text) == pytest.approx(float(text.replace(",", "")), rel=1e-9)


@given(st.text(max_size=400))
def test_any_text_is_read_or_refused_in_one_sentence(text):
    for content in (text, output(STEP[:1]) + text, text + "\n" + output(STEP[:1])):
        try:
            assert len(counters.parse(content)) >= 1
        except ReportError as error:
            assert "\n" not in str(error)


@given(st.integers(0, 3000))
def test_a_file_that_ends_anywhere_is_read_as_far_as_it_goes(length):
    whole = output(with_work())
    try:
        found = counters.parse(whole[:length])
    except ReportError:
        return
    pd.testing.assert_series_equal(found["kernel"], counters.parse(whole)["kernel"].iloc[: len(found)])


# --- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access …", 1, "--cap-add=SYS_ADMIN"),
        ("==PROF== Connected\n==WARNING== No kernels were profiled.", 0, "saw no kernel: was the program given"),
        ("==ERROR== The application returned an error code (1).", 1, "returned an error code"),
        ("Traceback …\nModuleNotFoundError: No module named 'torch'", 1, "status 1: ModuleNotFoundError"),
        ("", 9, "status 9: it said nothing"),
    ],
)  # fmt: skip
def test_a_failure_is_one_sentence(said, status, words):
    problem = counters.what_went_wrong(said, status)
    assert words in problem and "\n" not in problem


def test_success_is_none_although_ncu_warns():
    assert counters.what_went_wrong("==WARNING== Note: Running with unmodified GPU clocks.\n==PROF== Connected") is None


@pytest.mark.parametrize("text", ["", "==PROF== Connected", "a,b\n1,2", output(STEP[:1]).partition('"0"')[0]])
def test_a_file_without_kernels_is_named(text):
    with pytest.raises(ReportError, match=r"step\.csv holds no kernels"):
        counters.parse(text, "step.csv")
    with pytest.raises(ReportError, match="ERR_NVGPUCTRPERM"):
        counters.parse("==ERROR== ERR_NVGPUCTRPERM", "step.csv")


# --- the command --------------------------------------------------------------------------------------------

COMMAND = counting.count_command("step", course.step("main_opt7").counted)


def test_the_command_leaves_clocks_and_caches_alone_and_can_be_pasted():
    words = shlex.split(COMMAND)
    assert words[words.index("--clock-control") + 1] == words[words.index("--cache-control") + 1] == "none"
    assert words[words.index("--metrics") + 1].split(",") == list(counters.METRICS.values())
    assert words[-6:] == ["source_code/main_opt7.py", "--profile", "--epochs", "2", "--limit", "1024"]


def test_counters_that_a_gpu_lacks_are_left_out_and_no_others():
    more = shlex.split(counting.count_command("step", "main_opt7.py", in_depth=True))
    at = more.index("--metrics") + 1
    assert more[at].split(",") == list(counters.IN_DEPTH.values())
    left = counting.without_unknown(more, f"==ERROR== Failed to find metric {GMMA}\n{FMA32} is mentioned elsewhere")
    assert left[at].split(",") == [metric for metric in counters.IN_DEPTH.values() if metric != GMMA]
    few = shlex.split(counting.count_command("step", "main_opt7.py"))
    assert counting.without_unknown(more, "==ERROR== Unknown metrics") == few, "none is named"
    assert counting.without_unknown(few, f"==ERROR== Failed to find metric {TIME}") == few, "there is no less"


def test_what_a_multiprocessor_did_is_counted_on_request_and_kept():
    words = shlex.split(counting.count_command("step", "main_opt7.py", inside=True))
    asked = words[words.index("--metrics") + 1].split(",")
    assert asked == list((counters.METRICS | counters.INSIDE).values())
    units = {counters.INSIDE["load_sectors"]: "sector", counters.INSIDE["l2_bytes"]: "Kbyte"}
    text = output([row | dict.fromkeys(counters.INSIDE.values(), "1,024") for row in STEP], units)
    for read in (counters.parse(text), counters.parse(counters.slim(text, COMMAND, "a GPU"))):
        assert (read["load_sectors"] == 1024).all() and (read["l2_bytes"] == 1_024_000).all()


def test_every_counted_program_is_a_script_of_the_course():
    assert all((SOURCE_CODE / program.split()[0]).is_file() for program in (step.counted for step in course.STEPS))


# An ncu that writes what the environment says.
STAND_IN = """#!{python} -IS
import os, sys
if "--version" in sys.argv:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0")
    sys.exit()
metrics = sys.argv[sys.argv.index("--metrics") + 1].split(",")
log = open(sys.argv[sys.argv.index("--log-file") + 1], "w")
if os.environ.get("FAKE_OLD") and len(metrics) > 4:
    print("==ERROR== Failed to find metric", metrics[4], file=log)
    sys.exit(1)
print("Train Epoch: 2")
log.write(open(os.environ["FAKE_LOG"]).read())
sys.exit(int(os.environ.get("FAKE_STATUS", "0")))
"""


@pytest.fixture
def live(tmp_path, monkeypatch):
    """A machine with a GPU and an ncu that both are made up."""
    ncu = tmp_path / "ncu"
    ncu.write_text(STAND_IN.format(python=sys.executable))
    ncu.chmod(ncu.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("LAB_NCU", str(ncu))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "says.csv"))
    monkeypatch.setattr(machine, "gpu_name", lambda: "a GPU")
    counting.find_ncu.cache_clear()
    (tmp_path / "says.csv").write_text(output(STEP))
    yield Live(StandIn(replace(A_GPU, gpu="a GPU")), tmp_path / "reports")
    counting.find_ncu.cache_clear()


def command_into(live: Live, **more) -> str:
    words = counting.count_command("step", "main_opt7.py --profile", **more)
    return words.replace("reports/", f"{live.reports}/")


def run_into(live: Live) -> None:
    counting.run(shlex.split(command_into(live)), live.reports / "step.csv", lambda line: None)


def test_live_it_runs_ncu_and_reads_what_it_wrote(live):
    shown = []
    found = live.get(kinds.counts(command_into(live)), shown.append)
    assert found.origin == "a GPU, live"
    assert found.kernels["kernel"].tolist() == [ADD, GEMM, ADD, ADD]
    assert shown[0] == "$ ncu … python3 source_code/main_opt7.py --profile"
    assert "| Train Epoch: 2" in shown


def test_a_gpu_without_some_of_the_counters_is_counted_without_those(live, monkeypatch):
    monkeypatch.setenv("FAKE_OLD", "1")
    shown = []
    found = live.get(kinds.counts(command_into(live, in_depth=True)), shown.append)
    assert len(found.kernels) == 4
    left_out = [line for line in shown if "counting without those" in line]
    assert len(left_out) == len(counters.IN_DEPTH) - len(counters.METRICS), "ncu named one at a time"


def test_without_permission_live_counting_ends_in_one_sentence(live, monkeypatch):
    (live.reports.parent / "says.csv").write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission …")
    monkeypatch.setenv("FAKE_STATUS", "1")
    with pytest.raises(NotHere, match="ncu may not read the GPU's counters"):
        run_into(live)


def test_without_ncu_or_gpu_live_counting_ends_in_one_sentence(live, monkeypatch):
    monkeypatch.setattr(machine, "gpu_name", lambda: None)
    with pytest.raises(NotHere, match="none answers here"):
        run_into(live)
    monkeypatch.delenv("LAB_NCU")
    monkeypatch.setenv("PATH", str(live.reports))
    monkeypatch.setattr(counting, "NCU_PLACES", ())
    counting.find_ncu.cache_clear()
    with pytest.raises(NotHere, match=r"\(ncu\) was not found"):
        run_into(live)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "a folder: name the program in it"),
        (lambda path: path.write_text("no program"), "a file that may not be executed"),
        (lambda path: None, "no file"),
        (lambda path: (path.write_bytes(b"#!/bin/sh\nprintf '\\351\\377'\n"), path.chmod(0o755)), "no ncu that tells"),
    ],
)
def test_an_ncu_that_is_wrongly_named_is_told_and_nothing_recorded_stands_in(live, monkeypatch, make, words):
    path = live.reports.parent / "named"
    make(path)
    monkeypatch.setenv("LAB_NCU", str(path))
    counting.find_ncu.cache_clear()
    with pytest.raises(LabError, match=f"LAB_NCU names {path}, which is {words}") as told:
        run_into(live)
    assert not isinstance(told.value, NotHere)


def test_a_version_of_ncu_in_other_letters_is_read(tmp_path, monkeypatch):
    tool = tmp_path / "ncu"
    tool.write_bytes(b"#!/bin/sh\nprintf 'NVIDIA\\256 Nsight Compute\\nVersion 2025.3.1.0\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("LAB_NCU", str(tool))
    counting.find_ncu.cache_clear()
    assert counting.version() == "2025.3.1.0"
    counting.find_ncu.cache_clear()


def test_what_cannot_be_counted_here_comes_from_the_recordings_with_the_reason(tmp_path):
    def denied(words, log, show):
        raise NotHere("ncu may not read the GPU's counters (ERR_NVGPUCTRPERM)")

    words, shown = recorded.provenance()["counters"]["main_opt7_bytes"], []
    found = Live(StandIn(count=denied), tmp_path).get(kinds.counts(words, brief=True), shown.append)
    assert found.origin.startswith("NVIDIA H200") and len(found.kernels)
    assert shown[0].startswith("| the recorded machine took ")
    assert shown[1].startswith("| recorded instead, since it cannot be measured here: ncu may not read")
    assert shown[2].startswith("recorded (NVIDIA H200")


def test_a_command_of_another_kind_is_refused():
    with pytest.raises(ReportError, match="a counting command reads"):
        Recorded(Path()).get(kinds.counts("nsys profile python3 x.py"))


# --- recorded -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [STEP, with_work()], ids=["bytes", "tensor cores"])
def test_slimming_keeps_the_numbers_and_drops_the_host(rows):
    whole = output(rows)
    text = counters.slim(whole, COMMAND, "NVIDIA H200, 2026-11-21")
    pd.testing.assert_frame_equal(counters.parse(text), counters.parse(whole))
    assert "secret" in whole and "secret" not in text
    assert text.splitlines()[:2] == [f"# command: {COMMAND}", "# counted on: NVIDIA H200, 2026-11-21"]
    again = counters.slim(text, COMMAND, "NVIDIA H200, 2026-11-21")
    assert again == text


def test_recorded_counts_open_if_the_command_is_the_same(tmp_path):
    source = Recorded(tmp_path)
    (tmp_path / "counters").mkdir()
    write_list(tmp_path)
    with pytest.raises(ReportError, match="no set of counts called step was recorded"):
        source.get(kinds.counts(COMMAND), lambda line: None)
    (tmp_path / "counters" / "step.csv").write_text(counters.slim(output(STEP), COMMAND, "NVIDIA H200, 2026-11-21"))
    (tmp_path / "counters" / "step.json").write_text(json.dumps({"run_at": "2026-11-21", "manifest": {"modules": {}}}))
    write_list(tmp_path, counters={"step": COMMAND})
    shown = []
    found = source.get(kinds.counts(COMMAND), shown.append)
    assert (len(found.kernels), found.origin) == (4, "NVIDIA H200, 2026-11-21")
    assert shown[1].startswith("recorded (NVIDIA Test GPU, 2026-11-21)")
    with pytest.raises(ReportError, match="recorded with another command"):
        source.get(kinds.counts(COMMAND.replace("main_opt7", "main_opt6")), lambda line: None)


def test_the_recorded_counts_are_whole_and_name_no_machine():
    files = sorted(RECORDED.glob("*/counters/*.csv"))
    if not files:
        pytest.skip("no counts are recorded yet")
    for file in files:
        text = file.read_text()
        found = counters.parse(text, file.name)
        assert found["bytes"].notna().all() and (found["time_us"] > 0).all()
        assert text.startswith(counters.COMMAND) and "Host Name" not in text
        assert not re.search(r"/(home|root|tmp|work)/", text)


@pytest.mark.skipif(machine.gpu_name() is None or counting.find_ncu() is None, reason="no GPU, or no ncu to count with")
def test_live_ncu_counts_a_kernel(tmp_path):
    program = tmp_path / "add.py"
    program.write_text(
        "import torch\nx = torch.ones(2**20, device='cuda')\ntorch.cuda.profiler.start()\n"
        "torch.cuda.nvtx.range_push('training')\nx.add_(1)\ntorch.cuda.nvtx.range_pop()\ntorch.cuda.profiler.stop()\n"
    )
    log = tmp_path / "add.csv"
    words = shlex.split(counting.count_command("add", "add.py"))
    words[words.index("--log-file") + 1], words[-1] = str(log), str(program)
    counting.run(words, log, lambda line: None)
    assert len(counters.parse(log.read_text())) == 1
