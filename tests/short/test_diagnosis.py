"""The score of diagnoses: what is right counts, healthy programs raise no alarm, other tools' words are read fairly."""

from __future__ import annotations

import json
import lzma
import os
import stat
import sys
from pathlib import Path

import pytest
import torch

from labkit import cases
from labkit.cases import CASES
from labkit.errors import LabError
from labkit.recording import __main__ as command_line
from labkit.recording import both, make, plan, status, tools
from labkit.recording.status import CURRENT, OUTDATED
from labkit.subjects.diagnosis import answers, tables, words
from labkit.subjects.diagnosis.answers import Answer
from labkit.training import machine, traced
from stepbudget.export import nsys
from stepbudget.report import open_report
from synthetic import SyntheticReport
from traces import SyntheticTrace

GEMM, POINTWISE = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "void at::native::vectorized_elementwise_kernel<float>"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
MS = 1000  # µs


def waiting_for(made: SyntheticReport, what: str) -> SyntheticReport:
    """Ten steps of 10 ms, in 8 of which the program is in a range of this name and the GPU idle."""
    made.range(0, 100 * MS, "training")
    for start in range(0, 100 * MS, 10 * MS):
        made.range(start, start + 8 * MS, what).range(start + 8 * MS, start + 10 * MS, "forward")
        made.kernel(start + 8.1 * MS, start + 10 * MS, GEMM, call=(start + 8 * MS, start + 8.05 * MS))
    return made


def busy(made: SyntheticReport, kernel: str = GEMM) -> SyntheticReport:
    made.range(0, 100 * MS, "training")
    for start in range(0, 100 * MS, 10 * MS):
        made.kernel(start, start + 10 * MS, kernel, call=(max(0, start - MS), max(0, start - MS) + 5))
    return made


def two_ranks(made: SyntheticReport, late: int, why: str) -> SyntheticReport:
    """Each step computes for 2 ms and reduces for 1; the late rank first spends 7 ms in a range of this name."""
    for rank in (0, 1):
        process = 10 + rank
        made.range(0, 100 * MS, "training", process=process)
        for start in range(0, 100 * MS, 10 * MS):
            begin = start + 7 * MS if rank == late else start
            place = {"device": rank, "process": process}
            if rank == late:
                made.range(start, begin, why, process=process)
                for at in range(start, begin, MS // 2):  # a thread that calls so often did not sleep between
                    made.api(at, at + 1, "cudaGetDevice", process=process)
            made.kernel(begin + 10, begin + 2 * MS, GEMM, call=(begin, begin + 5), **place)
            made.kernel(begin + 2 * MS, start + 10 * MS, NCCL, call=(begin + 10, begin + 15), **place)
    return made


@pytest.fixture
def folder(tmp_path):
    """A machine's folder, into which a test puts reports and findings."""
    for name in ("profiles", "findings"):
        (tmp_path / name).mkdir()
    return tmp_path


def put(folder: Path, case: str, made: SyntheticReport) -> None:
    file = folder / "profiles" / f"{cases.case(case).report}.sqlite.xz"
    file.write_bytes(lzma.compress(made.write().read_bytes()))


def put_findings(folder: Path, tool: str, case: str, said: dict) -> None:
    record = {"version": "1.2.3", "said": said}
    (folder / "findings" / f"{tool}--{case}.json").write_text(json.dumps(record))


def made(folder: Path) -> SyntheticReport:
    return SyntheticReport(folder / "made.sqlite")


# Our answers


def test_a_planted_cause_is_named_and_another_one_is_not_right(folder):
    put(folder, "images_workers", waiting_for(made(folder), "data"))
    put(folder, "text_item", waiting_for(made(folder), "data"))
    found = tables.diagnose(folder)
    first = found.found["images_workers"]["stepbudget: advice"]
    assert first.causes == ("loader",) and first.first.startswith("waiting for the loader, 80 %") and first.late is None
    assert found.found["images_workers"]["stepbudget: budget"].causes == ("loader",)
    for tool in tables.OURS:
        score = found.score(tool)
        assert (score.planted, score.right, score.alone, score.healthy, score.alarms) == (2, 1, 1, 0, 0)
    said = tables.markdown(found)
    assert "| images_workers |" in said and "right: waiting for the loader" in said
    assert "wrong: waiting for the loader" in said.split("| text_item |")[1].splitlines()[0]


def test_a_healthy_program_raises_no_alarm_and_an_idle_one_does(folder):
    put(folder, "text_good", busy(made(folder)))
    put(folder, "images_good", waiting_for(made(folder), "data"))
    put(folder, "text_fp32", busy(made(folder), "ampere_sgemm_128x64_tn"))
    found = tables.diagnose(folder)
    for tool in tables.OURS:
        assert not found.found["text_good"][tool].alarm and found.found["images_good"][tool].alarm
        assert found.found["text_fp32"][tool].causes == ("other_kernels",)
        score = found.score(tool)
        assert (score.planted, score.right, score.healthy, score.alarms) == (1, 1, 2, 1)
    assert "alarm: waiting for the loader" in tables.markdown(found)


@pytest.mark.parametrize(("case", "late", "why"), [("two_loader", 1, "data"), ("two_log", 0, "log")])
def test_a_late_rank_is_named_with_its_own_reason(folder, case, late, why):
    put(folder, case, two_ranks(made(folder), late, why))
    row = tables.diagnose(folder).found[case]
    answer = row["stepbudget: advice"]
    assert answer.late == late and answer.is_right(cases.case(case)), answer
    other = Answer(answer.first, answer.causes, True, 1 - late)
    assert not other.is_right(cases.case(case)), "the other rank"
    assert not Answer("", ("copies",), True, late).is_right(cases.case(case)), "another reason"


def test_ranks_that_hardly_wait_are_not_called_late(folder):
    put(folder, "two_good", two_ranks(made(folder), late=2, why=""))
    assert tables.diagnose(folder).found["two_good"]["stepbudget: advice"].late is None


def test_what_was_not_recorded_is_said_and_not_scored(folder):
    found = tables.diagnose(folder)
    assert found.found == {} and found.missing == [case.name for case in CASES]
    said = tables.markdown(found)
    assert "Not recorded, so not scored: images_good" in said and "right" not in said


# Other tools' answers

GAP = {"rows": 9, "total_ms": 80.0, "first": []}


@pytest.mark.parametrize(
    ("rules", "causes", "alarm"),
    [
        ({"cuda_memcpy_async": {"rows": 3, "total_ms": 2.0, "first": []}, "gpu_gaps": GAP}, ("pageable_copy",), True),
        ({"cuda-sync-api": {"rows": 3, "total_ms": 12.0, "first": []}}, ("synchronisation",), True),
        ({"cuda_api_sync": {"rows": 1, "total_ms": 2.0, "first": []}}, ("synchronisation",), False),
        ({"gpu_gaps": GAP}, (), True),
        ({"gpu_gaps": {"rows": 0, "total_ms": 0.0, "first": []}, "cuda_memset_sync": {"error": "x"}}, (), False),
    ],
)
def test_nsys_analyze_is_read_by_the_rule_that_names_a_cause_and_found_most(rules, causes, alarm):
    answer = answers.of_nsys_analyze({"rules": rules}, window_ms=100.0)
    assert (answer.causes, answer.alarm) == (causes, alarm)


def test_every_rule_that_is_asked_for_can_be_read():
    assert {rule for names in tools.RULES for rule in names} == set(words.RULES)
    assert set(words.NAMES) | {"copies", "unknown_kernels"} >= {cause for case in CASES for cause in case.right}
    assert set(answers.READ) == set(tools.TOOLS)


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        ("Verify the dataloader is keeping up (num_workers)", ("loader",)),
        ("Remove .item() from the training loop", ("synchronisation",)),
        ("Pageable memory in async memcpy: use pin_memory", ("pageable_copy",)),
        ("Small kernel overhead: consider CUDA graphs", ("launch_overhead",)),
        ("No Tensor Core kernels: use bf16", ("other_kernels",)),
        ("Critical path is cpu-bound", ("python",)),
        ("Use foreach", ("optimizer",)),
        ("pad to a multiple of 8", ("sizes",)),
        ("GPU idle 91% of profile", ()),
    ],
)
def test_a_tool_s_words_name_causes(text, causes):
    assert words.named(text) == causes


def test_a_late_rank_is_read_only_where_one_is_said_to_be_late():
    assert words.late_rank("Rank 1 is a straggler") == 1 and words.late_rank("GPU 3 starts last") == 3
    assert words.late_rank("GPU 0 idle 91 %. Slow steps") is None


def said_by_nsys_ai(**finding) -> dict:
    return {"findings": [{"label": "GPU Idle Summary", "severity": "warning", **finding}], "patterns": []}


@pytest.mark.parametrize(
    ("said", "causes", "alarm"),
    [
        (said_by_nsys_ai(headroom_ms=50.0, suggested_actions=["check num_workers"]), ("loader",), True),
        (said_by_nsys_ai(headroom_ms=5.0), (), False),
        (said_by_nsys_ai(), (), True),
        (said_by_nsys_ai(severity="info"), (), False),
        (
            {"findings": [{"label": "x"}], "patterns": [{"pattern": "Excessive Synchronization"}]},
            ("synchronisation",),
            False,
        ),
        ({"findings": [], "patterns": []}, (), False),
    ],
)
def test_nsys_ai_is_right_by_its_first_finding_or_its_first_pattern(said, causes, alarm):
    answer = answers.of_nsys_ai(said, window_ms=100.0)
    assert (answer.causes, answer.alarm) == (causes, alarm)


def test_others_are_scored_where_their_findings_are(folder):
    for case in ("images_workers", "text_item"):
        put(folder, case, waiting_for(made(folder), "data"))
    listed = said_by_nsys_ai(headroom_ms=50.0, suggested_actions=["num_workers", "CUDA graphs"])
    put_findings(folder, "nsys_ai", "images_workers", listed)
    found = tables.diagnose(folder)
    score = found.score("nsys-ai diagnose")
    assert (score.planted, score.right, score.alone) == (1, 1, 0), "the other case was not asked, and is not scored"
    said = tables.markdown(found)
    assert "(1 of 2 named)" in said and "not asked" in said.split("| text_item |")[1].splitlines()[0]


# How the findings are made


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/usr/bin/env python3\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


FAKE_NSYS = """
import json, sys
words = sys.argv[1:]
out = words[words.index("--output") + 1]
for rule in [words[at + 1] for at, word in enumerate(words) if word == "--rule"]:
    name = rule.partition(":")[0]
    rows = [{"Duration (ns)": 2_000_000, "API Name": "x"}] * 5 if name == "cuda_api_sync" else []
    if name == "gpu_gaps":
        print("Processing [x] with [/rules/gpu_gaps.py]...")
        print("ERROR: Report 'gpu_gaps.py' encountered an internal error: no GPU", file=sys.stderr)
    else:
        open(f"{out}_{name}.json", "w").write(json.dumps(rows))
"""
FAKE_AI = """
import json, sys
words = sys.argv[1:]
if words[0] == "diagnose":
    finding = {"label": "first", "evidence": [1, 2], "profile_path": words[-1]}
    open(words[words.index("-o") + 1], "w").write(json.dumps({"findings": [finding] * 9}))
else:
    print(json.dumps([{"pattern": "a pattern", "analysed_device": 0}]))
"""


@pytest.fixture
def whole(tmp_path):
    (tmp_path / "whole.sqlite").write_bytes(b"an export")
    return tmp_path / "whole.sqlite"


def test_nsys_analyze_is_asked_for_all_rows_and_a_failed_rule_says_why(whole, monkeypatch):
    path = program(whole.parent / "nsys", FAKE_NSYS)
    monkeypatch.setattr(tools, "need_nsys", lambda: nsys.Nsys(path, (2025, 3, 1)))
    said = tools.nsys_analyze(whole)["rules"]
    assert said["cuda_api_sync"]["rows"] == 5 and said["cuda_api_sync"]["total_ms"] == 10.0
    assert len(said["cuda_api_sync"]["first"]) == tools.EXAMPLES
    assert said["gpu_gaps"] == {"error": "ERROR: Report 'gpu_gaps.py' encountered an internal error: no GPU"}
    assert said["cuda_memcpy_async"]["rows"] == 0
    broken = program(whole.parent / "broken", "import sys; sys.exit('bad file')")
    monkeypatch.setattr(tools, "need_nsys", lambda: nsys.Nsys(broken, (2025, 3, 1)))
    with pytest.raises(LabError, match=r"nsys analyze failed on whole\.sqlite"):
        tools.nsys_analyze(whole)


def test_nsys_ai_s_words_are_kept_and_its_paths_are_not(whole, monkeypatch):
    monkeypatch.setenv("LAB_TOOLS", str(whole.parent))
    program(whole.parent / "nsys-ai", FAKE_AI)
    said = tools.nsys_ai(whole)
    assert said == {"findings": [{"label": "first"}] * tools.EXAMPLES, "patterns": [{"pattern": "a pattern"}]}
    program(whole.parent / "nsys-ai", "import sys; sys.exit('no such column')")
    with pytest.raises(LabError, match="nsys-ai diagnose failed: no such column"):
        tools.nsys_ai(whole)


def test_findings_need_the_whole_report_and_know_of_which_they_are(folder, monkeypatch):
    monkeypatch.setattr(make, "REPORTS", folder)
    asked = tools.Tool("nsys-ai diagnose {report}", lambda export: {"findings": []}, lambda: "1.2.3")
    monkeypatch.setitem(tools.TOOLS, "nsys_ai", asked)
    item = next(item for item in plan.plan() if item.file == "findings/nsys_ai--text_good.json")
    file = folder / item.file
    put(folder, "text_good", busy(made(folder)))
    with pytest.raises(LabError, match=r"clinic_text_good\.sqlite is not in .*--only clinic"):
        make.findings(item, file)
    (folder / "clinic_text_good.sqlite").write_bytes(b"an export")
    make.findings(item, file)
    assert json.loads(file.read_text())["version"] == "1.2.3"
    assert status.judge(folder, item).state == CURRENT
    put(folder, "text_good", waiting_for(made(folder), "data"))
    assert status.judge(folder, item).state == OUTDATED, "the report was recorded again"


def test_a_tool_that_fails_names_nothing_and_one_without_a_trace_was_not_asked(folder, monkeypatch):
    def fail(export: Path) -> dict:
        raise LabError("no such column")

    monkeypatch.setattr(make, "REPORTS", folder)
    monkeypatch.setitem(tools.TOOLS, "nsys_ai", tools.Tool("nsys-ai diagnose {report}", fail, lambda: "1.2.3"))
    trace = tools.Tool("torch-tb-profiler {report}", fail, lambda: "0.4.3", f"{tools.TRACE}*.json")
    monkeypatch.setitem(tools.TOOLS, "tb_profiler", trace)
    put(folder, "text_item", busy(made(folder)))
    (folder / "clinic_text_item.sqlite").write_bytes(b"an export")
    for tool in ("nsys_ai", "tb_profiler"):
        item = next(item for item in plan.plan() if item.file == f"findings/{tool}--text_item.json")
        make.findings(item, folder / item.file)
    found = tables.diagnose(folder)
    row = found.found["text_item"]
    assert row["nsys-ai diagnose"] == Answer("failed: no such column", (), False)
    assert (
        set(row) == {*tables.OURS, "nsys-ai diagnose"} and found.title("nsys-ai diagnose") == "nsys-ai diagnose 1.2.3"
    )


def test_a_tool_s_further_version_is_named_with_the_cases_that_it_was_asked_about():
    found = tables.Diagnoses({}, {"tool": {"text_item": "2", "text_odd": "2", "two_good": "1", "two_log": "1.5"}})
    assert found.title("tool") == "tool 2 (two_good: 1; two_log: 1.5)" and found.title("ours") == "ours"


def test_a_recommendation_of_the_plugin_is_read_without_its_links():
    first = "This run has high time cost on input data loading. <a href='x/num_workers'>enable</a>"
    answer = answers.of_tb_profiler({"recommendations": [first, "other"]}, 100.0)
    assert answer.causes == ("loader",) and answer.alarm and "<" not in answer.first
    assert answers.of_tb_profiler({"recommendations": []}, 100.0) == Answer("nothing", (), False)


@pytest.fixture
def traced_names(tmp_path, monkeypatch):
    """Traces a program of these lines; the names of what PyTorch's profiler saw."""
    for place, name in (
        *((torch.cuda.profiler, name) for name in ("start", "stop")),
        *((torch.cuda.nvtx, name) for name in ("range_push", "range_pop")),
        (torch.autograd.profiler, "emit_nvtx"),
    ):
        monkeypatch.setattr(place, name, None)

    def names(*lines: str, file: str = "out.json", rank: str = "") -> set[str]:
        script = tmp_path / "program.py"
        script.write_text("\n".join(["import sys, torch", *lines]))
        monkeypatch.setenv("RANK", rank) if rank else monkeypatch.delenv("RANK", raising=False)
        monkeypatch.setattr(sys, "argv", ["traced", str(tmp_path / "out.json"), str(script), "--flag"])
        traced.main()
        return {event.get("name") for event in json.loads((tmp_path / file).read_text())["traceEvents"]}

    return names


@pytest.mark.parametrize(("rank", "file"), [("", "out.json"), ("1", "out-1.json")])
def test_a_program_is_traced_where_nsight_systems_would_look(traced_names, rank, file):
    names = traced_names(
        "torch.zeros(3).sin()",
        "torch.cuda.profiler.start()",
        "with torch.cuda.nvtx.range('its own'), torch.autograd.profiler.emit_nvtx(record_shapes=True):",
        "    torch.ones(3).cos()",
        "torch.cuda.profiler.stop()",
        "torch.zeros(3).tan()",
        "torch.cuda.profiler.start()",
        "torch.zeros(3).tan()",
        "torch.cuda.profiler.stop()",
        "assert sys.argv[1:] == ['--flag']",
        file=file,
        rank=rank,
    )
    assert {"aten::cos", "its own"} <= names and not {"aten::sin", "aten::tan"} & names


def test_a_program_that_never_stops_the_profiler_is_traced_to_its_end(traced_names):
    assert "aten::cos" in traced_names("torch.cuda.profiler.start()", "torch.ones(3).cos()")


def test_a_program_that_never_starts_the_profiler_is_told_so(traced_names):
    with pytest.raises(SystemExit, match=r"never called torch\.cuda\.profiler\.start\(\)"):
        traced_names("torch.cuda.profiler.stop()")


def test_ranges_of_two_threads_do_not_close_each_other(traced_names):
    names = traced_names(
        "import threading",
        "torch.cuda.profiler.start()",
        "torch.cuda.nvtx.range_push('outer')",
        "inner = threading.Thread(target=lambda: torch.cuda.nvtx.range_push('inner'))",
        "inner.start(), inner.join()",
        "torch.cuda.nvtx.range_pop()",
        "torch.cuda.profiler.stop()",
    )
    assert "outer" in names


@pytest.mark.parametrize("name", ["text_item", "two_log"])
def test_the_traced_program_is_the_profiled_one(name, folder, monkeypatch):
    monkeypatch.setattr(make, "REPORTS", folder)
    case = cases.case(name)
    (item,) = [item for item in plan.plan() if item.label == case.report]
    words = make.traced_words(item)
    at = words.index(traced.__file__)
    script, *flags = case.program.split()
    assert words[at + 1 :] == [str(folder / f"{case.report}.trace.json"), f"source_code/{script}", *flags]
    assert words[0] == sys.executable and ("torch.distributed.run" in words) == (case.gpus == 2)


def test_a_case_s_manifest_names_its_script(folder, monkeypatch):
    monkeypatch.setattr(make, "REPORTS", folder)
    monkeypatch.setattr(machine, "gpu_name", lambda: "NVIDIA Test GPU")
    caches = []
    monkeypatch.setenv("TRITON_CACHE_DIR", "kept")
    monkeypatch.setattr(
        make.command, "run_profile", lambda words, report, show: caches.append(os.environ["TRITON_CACHE_DIR"])
    )
    monkeypatch.setattr(nsys, "need_nsys", lambda: nsys.Nsys("nsys", (2025, 3, 1)))
    monkeypatch.setattr(nsys, "export", lambda report: report)
    monkeypatch.setattr(make, "slim", lambda export, file: file.write_bytes(b"a report"))
    monkeypatch.setattr(make.command, "stream", lambda words, show: (1, "no profiler"))
    item = next(item for item in plan.plan() if item.label == "clinic_text_item")
    assert make.make(folder, [item], lambda item: (folder / item.file).is_file()) == []
    assert caches != ["kept"] and os.environ["TRITON_CACHE_DIR"] == "kept" and not Path(caches[0]).exists()
    record = json.loads((folder / item.record).read_text())
    assert set(record["manifest"]["modules"]) == {"clinic/text.py"} and record["command"] == item.command
    assert status.judge(folder, item).state == CURRENT


def test_a_program_is_looked_at_by_both_profilers_in_turn(folder, monkeypatch):
    """Nsight Systems' program waits for its loader, the traced one computes: each budget is of its own."""
    monkeypatch.setattr(make, "REPORTS", folder)
    monkeypatch.setattr(machine, "gpu_name", lambda: "NVIDIA Test GPU")
    monkeypatch.setattr(nsys, "need_nsys", lambda: nsys.Nsys("nsys", (2025, 3, 1)))
    monkeypatch.setattr(nsys, "export", lambda report: report.with_suffix(".sqlite"))
    recorded = folder / "a machine"
    item = next(item for item in plan.plan() if item.file == "both/main_opt2.json")

    def profiled(words, report, show):
        waiting_for(SyntheticReport(report.with_suffix(".sqlite")), "data loading").write()

    def traced(words, show):
        made = SyntheticTrace(folder / "main_opt2.trace.json").range(0, 10 * MS, "training")
        made.launch(100, 200, 9800, GEMM).write()
        return 0, ""

    monkeypatch.setattr(make.command, "run_profile", profiled)
    monkeypatch.setattr(make.command, "stream", traced)
    assert make.make(recorded, [item], lambda item: (recorded / item.file).is_file()) == []
    record = json.loads((recorded / item.file).read_text())
    by_nsys, by_torch = record["nsys_budget"], record["torch_budget"]
    assert by_nsys["ms"]["loader"] == pytest.approx(80, abs=1)
    assert by_torch["ms"]["tensor_core_kernels"] == pytest.approx(9.6)
    (row,) = [line for line in both.table(folder).splitlines() if line.startswith("| main_opt2 |")]
    assert row.startswith("| main_opt2 | 100 / 10 | 19 / 96 | waiting for the loader 80 / ")
    assert row.endswith("| waiting for the loader -80 |")


def test_what_a_machine_lacks_is_left_out_and_said(monkeypatch, capsys):
    items = [item for item in plan.plan() if item.kind in ("clinic", "findings")]
    monkeypatch.setattr(command_line, "gpus", lambda: 1)
    monkeypatch.setitem(tools.TOOLS, "nsys_ai", tools.Tool("nsys-ai diagnose {report}", tools.nsys_ai, lambda: None))
    monkeypatch.setitem(
        tools.TOOLS, "nsys_analyze", tools.Tool("nsys analyze {report}", tools.nsys_analyze, lambda: "2")
    )
    kept = command_line.without_missing(items)
    assert not [item for item in kept if item.kind == "clinic" and "two_" in item.label]
    assert {item.file.split("--")[0] for item in kept if item.kind == "findings"} == {"findings/nsys_analyze"}
    said = capsys.readouterr().out
    assert "one GPU here" in said and "nsys-ai diagnose is not here" in said
    monkeypatch.setattr(command_line, "gpus", lambda: 2)
    assert len([item for item in command_line.without_missing(items) if item.kind == "clinic"]) == len(CASES)


def test_our_answers_are_those_of_the_reader(folder):
    """The recorded baseline, whose answer the course's first lab reads aloud."""
    baseline = Path(__file__).resolve().parents[2] / "reports/recorded/h200/profiles/main_baseline_nvtx.sqlite.xz"
    with open_report(baseline) as report:
        assert answers.of_advice(report).causes == answers.of_budget(report).causes == ("loader",)
