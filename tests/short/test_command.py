"""How a report is made: the command as it is shown, the changes a machine asks for, and every way nsys can fail."""

import hashlib
import json
import lzma
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from labkit import lines, source
from labkit.errors import LabError
from labkit.source import Live, Recorded, command, door, facts, kinds, recorded, turns, visible
from labkit.training import machine, traced
from listed import write_list
from stand_in import A_GPU, NO_GPU, StandIn
from stepbudget.errors import ReportError
from stepbudget.export import nsys as exports
from stepbudget.export import profile
from traces import SyntheticTrace

PROGRAM = "main_baseline_nvtx.py --profile --epochs 2"
NEW = exports.Nsys("/opt/nsys", (2025, 3, 1))
OLD = exports.Nsys("/usr/bin/nsys", (2022, 4, 2))


@pytest.fixture
def reports(tmp_path) -> Path:
    """A reports folder of the test's own."""
    return tmp_path / "reports"


@pytest.fixture
def gpu(monkeypatch) -> None:
    monkeypatch.setattr(machine, "gpu_name", lambda: "NVIDIA Test GPU")


@pytest.fixture
def no_gpu(monkeypatch) -> None:
    monkeypatch.setattr(machine, "gpu_name", lambda: None)


@pytest.fixture
def nsys(monkeypatch, tmp_path):
    """Puts a shell script in nsys's place; each call's arguments end up as a line of the file it returns."""
    exports.find_nsys.cache_clear()

    def put(body: str, version: str = "2025.3.1.90-1") -> Path:
        script, calls = tmp_path / "nsys", tmp_path / "calls"
        script.write_text(
            "#!/bin/sh\n"
            f'[ "$1" = --version ] && {{ echo "NVIDIA Nsight Systems version {version}"; exit 0; }}\n'
            f'echo "$*" >> {calls}\n'
            'while [ $# -gt 0 ]; do [ "$1" = --output ] && out=$2; shift; done\n'
            f"{body}\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("LAB_NSYS", str(script))
        exports.find_nsys.cache_clear()
        return calls

    yield put
    exports.find_nsys.cache_clear()


def make(reports: Path, shown: list[str] | None = None) -> Path:
    """Runs the profiling command of the tests; the report it makes."""
    report = reports / "demo.nsys-rep"
    words = shlex.split(command.profile_command("demo", PROGRAM).replace("reports/demo", str(reports / "demo")))
    command.run_profile(words, report, (shown if shown is not None else []).append)
    return report


# The command


def test_the_command_is_what_one_would_type():
    assert command.profile_command("demo", PROGRAM) == (
        "nsys profile --trace cuda,osrt,nvtx --sample none --cpuctxsw none --capture-range cudaProfilerApi "
        "--capture-range-end stop --gpu-metrics-devices all --output reports/demo --force-overwrite true "
        "python3 source_code/main_baseline_nvtx.py --profile --epochs 2"
    )


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (command.profile_command("demo", PROGRAM), f"nsys profile … python3 source_code/{PROGRAM}"),
        (
            command.profile_command("demo", "a.py --profile", processes=2),
            "nsys profile … python3 -m torch.distributed.run --standalone --nproc-per-node 2 "
            "source_code/a.py --profile",
        ),
        (
            command.rank_profiles_command("demo", "a.py --profile", 2),
            "OMP_NUM_THREADS=1 torchrun … nsys profile … python3 source_code/a.py --profile",
        ),
        ("nsys profile --output 'reports/a' python3 a.py 'of two words'", "nsys profile … python3 a.py 'of two words'"),
    ],
)
def test_what_is_shown_of_a_command_is_what_runs(typed, shown):
    assert command.abridged(shlex.split(typed)) == shown


def test_a_command_may_be_broken_into_lines_as_in_a_terminal():
    typed = command.profile_command("demo", PROGRAM)
    broken = "\n" + typed.replace(" --", " \\\n    --").replace(" python3", " \\\n    python3") + "\n"
    assert broken.count("\\\n") == typed.count(" --") + 1
    assert command.check(broken) == command.check(typed) == shlex.split(typed)
    told = subprocess.run(["bash", "-c", f"nsys() {{ printf '%s\\n' nsys \"$@\"; }}\n{broken}"], capture_output=True)
    assert told.stdout.decode().splitlines() == command.check(broken)


def test_a_new_nsys_gets_the_command_by_path_and_otherwise_unchanged():
    words = shlex.split(command.profile_command("demo", PROGRAM))
    adapted = command.adapt(words, NEW, has_gpu=True)
    assert adapted == ["/opt/nsys", *[sys.executable if word == "python3" else word for word in words[1:]]]


@pytest.mark.parametrize(
    ("version", "flag"),
    [((2022, 4, 2), "--gpu-metrics-device"), ((2023, 4, 9), "--gpu-metrics-device"),
     ((2024, 1, 1), "--gpu-metrics-devices")],
)  # fmt: skip
def test_an_old_nsys_gets_the_older_spelling(version, flag):
    words = shlex.split(command.profile_command("demo", PROGRAM))
    adapted = command.adapt(words, exports.Nsys("nsys", version), has_gpu=True)
    assert flag in adapted
    assert adapted[adapted.index(flag) + 1] == "all"
    assert len(adapted) == len(words)


# As the driver prints it, with its spaces; the second GPU is cut in slices.
LISTED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-5e4a-11d0-8d34-c5f4e9f0b7a1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-5d7c0e11-0c52-4e0f-93a1-2b1d8c6f7e55)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-8f3a2c44-77aa-4b6e-8b0e-0c9a1e2d3f40)
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """An nvidia-smi that lists GPUs, and counts how often it was asked."""
    tool = tmp_path / "driver" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\n[ "$1" = -L ] && echo asked >> "$0.asked"\ncat <<END\n{LISTED}END\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    visible.listed.cache_clear()
    yield tool
    visible.listed.cache_clear()


@pytest.mark.parametrize(
    ("names", "sampled", "remark"),
    [
        ("2", "2", None), ("0,2", "0,2", None), ("", "all", None),
        ("GPU-8f3a", "2", None), ("GPU-8f3a, 0", "2,0", None),
        ("MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb", "1", "of the whole GPU, of which MIG-cba663e8"),
        ("MIG-c6d4,MIG-cba6", "1", "of the whole GPU, of which MIG-c6d4 is a slice"),
        ("GPU-5d", "all", "knows no GPU-5d: the counters in the report are of all GPUs"),  # two begin so
        ("GPU-0000", "all", "knows no GPU-0000"),
    ],
)  # fmt: skip
def test_the_counters_are_those_of_the_gpus_that_the_program_may_use(
    names, sampled, remark, driver, monkeypatch, tmp_path
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    words = command.check(command.profile_command("demo", "main_opt1.py --profile"))
    adapted = command.adapt(words, NEW, has_gpu=True)
    assert adapted[adapted.index("--gpu-metrics-devices") + 1] == sampled
    said: list[str] = []
    monkeypatch.setattr(command.profile, "record", lambda *_: None)
    monkeypatch.setattr(command, "need_nsys", lambda: NEW)
    monkeypatch.setattr(command.machine, "gpu_name", lambda: "a GPU")
    command.run_profile(words, tmp_path / "reports" / "demo.nsys-rep", said.append)
    assert [line for line in said if remark and remark in line] == said and len(said) == bool(remark)
    assert not names or (driver.parent / "nvidia-smi.asked").read_text() == "asked\n", "once is enough"


def test_where_no_driver_tells_numbers_are_taken_as_they_are(monkeypatch, tmp_path):
    visible.listed.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert command.sampled() == ("1,3", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f3a")
    assert command.sampled()[0] == "all"
    visible.listed.cache_clear()


def test_a_gpu_has_one_lock_whatever_it_is_called(driver, monkeypatch):
    """By number, by UUID or by none: in another container the same GPU may have another number."""
    whole = "GPU-5d5ba0d6-5e4a-11d0-8d34-c5f4e9f0b7a1"
    for names in ("", "0", whole, "GPU-5d5b"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
        assert turns.gpus() == [whole], names
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [name[:8] for name in turns.gpus(3)] == ["GPU-5d5b", "GPU-5d7c", "GPU-8f3a"]


def test_without_a_gpu_only_the_cpu_is_traced_on_few_digits():
    words = shlex.split(command.profile_command("demo", PROGRAM))
    adapted = command.adapt(words, OLD, has_gpu=False)
    assert adapted[:4] == ["/usr/bin/nsys", "profile", "--trace", "osrt,nvtx"]
    ours = [word for word in adapted if word != sys.executable]  # whose folder may have any name
    assert not any("cuda" in word or "gpu" in word or "capture" in word for word in ours)
    assert adapted[adapted.index("--output") + 1] == "reports/demo"
    assert "--force-overwrite" in adapted
    assert adapted[adapted.index("--limit") + 1] == "2048"
    script = adapted.index("source_code/main_baseline_nvtx.py")
    assert adapted[script - 1] == sys.executable and "--profile" in adapted[script:]


@pytest.mark.parametrize("version", [(2022, 4, 2), (2025, 3, 1)])
def test_metrics_can_be_left_out_in_either_spelling(version):
    words = command.adapt(
        shlex.split(command.profile_command("demo", PROGRAM)), exports.Nsys("nsys", version), has_gpu=True
    )
    less = profile.without_metrics(words)
    at = next(i for i, word in enumerate(words) if word.startswith("--gpu-metrics"))
    assert less == words[:at] + words[at + 2 :]
    assert profile.without_metrics(less) == less


@pytest.mark.parametrize(
    "wrong", ["nsys stats reports/demo", "python3 main.py", "nsys profile python3 x.py", "nsys profile --output a b"]
)
def test_what_is_no_profiling_command_is_refused(wrong):
    with pytest.raises(ReportError, match="a profiling command reads"):
        Live(StandIn()).get(kinds.profile(wrong), lambda line: None)


# Recorded mode


@pytest.fixture
def shipped(tmp_path) -> Recorded:
    """A recorded folder with one small report."""
    folder = tmp_path / "recorded" / "test-gpu"
    (folder / "profiles").mkdir(parents=True)
    plain = tmp_path / "plain.sqlite"
    db = sqlite3.connect(plain)
    db.execute("CREATE TABLE StringIds (id, value)")
    db.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, globalTid, text, textId)")
    db.execute("INSERT INTO NVTX_EVENTS VALUES (5, 1000, 59, 1, 'training', NULL)")
    db.commit()
    db.close()
    (folder / "profiles" / "demo.sqlite.xz").write_bytes(lzma.compress(plain.read_bytes()))
    beside = {"run_at": "2030-01-02T00:00:00", "manifest": {"modules": {}}}
    (folder / "profiles" / "demo.json").write_text(json.dumps(beside))
    write_list(folder, profiles={"demo": command.profile_command("demo", PROGRAM)})
    return Recorded(folder)


def test_recorded_mode_shows_the_command_says_so_and_opens_the_report(shipped):
    said: list[str] = []
    with shipped.get(kinds.profile(command.profile_command("demo", PROGRAM)), said.append) as report:
        assert report.window().name == "training"
    assert said[0] == f"$ nsys profile … python3 source_code/{PROGRAM}"
    assert re.match(r"recorded \(NVIDIA Test GPU, 2030-01-02\): .*demo\.sqlite\.xz$", lines.joined(said[1]))
    assert len(said) == 2


def test_recorded_mode_refuses_another_command(shipped):
    with pytest.raises(ReportError, match="recorded with another command: nsys profile"):
        shipped.get(kinds.profile(command.profile_command("demo", PROGRAM + " --batch-size 64")), lambda line: None)


def test_recorded_mode_names_the_reports_there_are(shipped):
    with pytest.raises(ReportError, match=r"no report called other was recorded\. There are: demo\."):
        shipped.get(kinds.profile(command.profile_command("other", PROGRAM)), lambda line: None)


def test_another_gpus_records_are_refused_by_name(monkeypatch):
    monkeypatch.setenv("LAB_RECORDED", "b200")
    with pytest.raises(ReportError, match=r"nothing was recorded on b200: there are .*h200"):
        recorded.folder()


# An nsys that fails


MAKES = 'echo report > "$out.nsys-rep"; echo "Generated:"'


def test_a_working_nsys_leaves_its_report_and_shows_what_it_said(reports, nsys, gpu):
    calls = nsys(MAKES)
    said: list[str] = []
    assert make(reports, said).read_text() == "report\n"
    assert said == ["| Generated:"]
    assert calls.read_text().count("\n") == 1


def test_a_program_on_jax_is_traced_with_what_xla_compiled_before(reports, nsys, gpu, tmp_path):
    """It runs once alone, which fills the cache that the traced run finds; neither remains."""
    program = tmp_path / "compiles.py"
    program.write_text(
        "import os, sys\nfrom pathlib import Path\n"
        "assert '--profile' not in sys.argv and sys.argv[1:3] == ['--backend', 'jax'], sys.argv\n"
        "(Path(os.environ['JAX_COMPILATION_CACHE_DIR']) / 'code').write_text('compiled\\n')\n"
        "assert float(os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS']) == 0\n"
    )
    calls = nsys(f'cat "$JAX_COMPILATION_CACHE_DIR/code"; {MAKES}')
    said: list[str] = []
    words = shlex.split(f"nsys profile --output {reports / 'demo'} python3 {program} --backend jax --profile")
    command.run_profile(words, reports / "demo.nsys-rep", said.append)
    assert said[1:] == ["| compiled", "| Generated:"] and "XLA compiles" in said[0]
    assert "--backend jax --profile" in calls.read_text()
    assert [path.name for path in reports.iterdir()] == ["demo.nsys-rep"]


def test_a_program_on_jax_that_fails_is_not_traced(reports, nsys, gpu, tmp_path):
    program = tmp_path / "fails.py"
    program.write_text("raise SystemExit('no such digits')")
    calls = nsys(MAKES)
    words = shlex.split(f"nsys profile --output {reports / 'demo'} python3 {program} --backend jax")
    with pytest.raises(LabError, match="without the profiler, with status 1: no such digits"):
        command.run_profile(words, reports / "demo.nsys-rep", print)
    assert not calls.exists() and list(reports.iterdir()) == []


def test_nsyss_own_words_are_in_the_error(reports, nsys, gpu):
    nsys('echo "starting"; echo "unrecognised option --trace" >&2; exit 1')
    with pytest.raises(ReportError, match="failed with status 1: starting / unrecognised option --trace"):
        make(reports)


def test_an_nsys_that_says_nothing(reports, nsys, gpu):
    nsys("exit 3")
    with pytest.raises(ReportError, match="failed with status 3: it said nothing"):
        make(reports)


def test_a_report_of_a_program_that_failed_is_not_taken(reports, nsys, gpu):
    nsys(f"{MAKES}; exit 2")
    with pytest.raises(ReportError, match="failed with status 2"):
        make(reports)


def test_an_older_report_is_not_taken_for_the_new_one(reports, nsys, gpu):
    reports.mkdir()
    (reports / "demo.nsys-rep").write_text("of yesterday")
    nsys("exit 0")
    with pytest.raises(ReportError):
        make(reports)


def test_a_missing_importer_is_explained(reports, nsys, gpu):
    nsys('echo raw > "$out.qdstrm"; exit 0')
    with pytest.raises(ReportError, match=r"importer does not start.*libdw1.*host-linux-x64"):
        make(reports)


def test_the_importer_is_not_blamed_for_a_file_of_yesterday(reports, nsys, gpu):
    reports.mkdir()
    (reports / "demo.qdstrm").write_text("of yesterday")
    nsys('echo "no such option"; exit 1')
    with pytest.raises(ReportError, match="no such option"):
        make(reports)


@pytest.mark.parametrize(
    "words",
    ["Illegal --gpu-metrics-devices argument: all. ERR_NVGPUCTRPERM", "Insufficient privilege, see the manual"],
)
def test_without_permission_for_metrics_the_profile_is_made_without_them(reports, nsys, gpu, words):
    calls = nsys(f'grep -c . {reports.parent}/calls | grep -q "^1$" && {{ echo "{words}" >&2; exit 1; }}\n{MAKES}')
    said: list[str] = []
    assert make(reports, said).is_file()
    first, second = calls.read_text().splitlines()
    assert "--gpu-metrics-devices all" in first and "gpu-metrics" not in second
    assert second == first.replace("--gpu-metrics-devices all ", "")
    assert any("--cap-add=SYS_ADMIN" in line for line in said)


def test_metrics_are_denied_only_once(reports, nsys, gpu):
    calls = nsys('echo "ERR_NVGPUCTRPERM"; exit 1')
    with pytest.raises(ReportError, match="ERR_NVGPUCTRPERM"):
        make(reports)
    assert calls.read_text().count("\n") == 2


COLLIDES = "[QuadDCommon::tag_message*] = Local Endpoint is not available."


def test_an_nsys_that_did_not_start_beside_another_one_is_started_once_more(reports, nsys, gpu):
    calls = nsys(f'grep -c . {reports.parent}/calls | grep -q "^1$" && {{ echo "{COLLIDES}" >&2; exit 1; }}\n{MAKES}')
    said: list[str] = []
    assert make(reports, said).is_file()
    first, second = calls.read_text().splitlines()
    assert first == second and any("once more" in line for line in said)


def test_an_nsys_that_never_starts_is_started_twice(reports, nsys, gpu):
    calls = nsys(f'echo "{COLLIDES}"; exit 1')
    with pytest.raises(ReportError, match="Local Endpoint"):
        make(reports)
    assert calls.read_text().count("\n") == 2


def test_of_a_progress_bar_only_the_last_state_is_shown(reports, nsys, gpu):
    nsys(rf"printf '[1/1] [0%%  ] demo\r[1/1] [50%% ] demo\r[1/1] [100%%] demo\n'; {MAKES}")
    said: list[str] = []
    make(reports, said)
    assert said == ["| [1/1] [100%] demo", "| Generated:"]


def test_of_events_that_the_importer_cannot_read_the_reader_sees_that_not_its_insides(reports, nsys, gpu):
    dump = ["Status: TargetProfilingFailed", "Props {", "  Items {", '    Value: "Local (CLI)"', "  }", "}", "Error {"]
    dump += ["  Type: RuntimeError", "}"]
    ends = "**** Errors occurred while processing the raw events. ****"
    said = ["  a program may", "Error { like this", "Importer error status: Importation succeeded with errors."]
    printed = "\n".join([*said, "**** Analysis failed with:", *dump, *dump, ends, "  indent"])
    nsys(f"cat <<'END'\n{printed}\nEND\n{MAKES}")
    shown: list[str] = []
    make(reports, shown)
    assert shown == [f"| {line}" for line in [*said, ends, "  indent", "Generated:"]]


def test_output_is_shown_as_it_comes_and_not_at_the_end(tmp_path):
    """The program says its second line only once its first was seen; after a minute it gives up and says another."""
    seen = tmp_path / "seen"
    script = "import pathlib, time; print('one', flush=True); until = time.monotonic() + 60\n"
    script += f"while not pathlib.Path({str(seen)!r}).exists() and time.monotonic() < until: time.sleep(0.01)\n"
    script += f"print('two' if pathlib.Path({str(seen)!r}).exists() else 'nobody saw it')"
    assert command.stream([sys.executable, "-c", script], lambda line: seen.touch()) == (0, "one\ntwo")


def test_bytes_that_are_no_text_do_not_stop_the_output():
    script = r"import sys; sys.stdout.buffer.write(b'caf\xe9\n')"
    assert command.stream([sys.executable, "-c", script], lambda line: None) == (0, "caf�")


def test_without_a_gpu_the_reader_is_told(reports, nsys, no_gpu):
    calls = nsys(MAKES)
    said: list[str] = []
    make(reports, said)
    assert said[0] == "| no GPU here: CPU phases only, on a few digits"
    assert "--trace osrt,nvtx" in calls.read_text() and "gpu-metrics" not in calls.read_text()


def test_reports_that_cannot_be_written_are_named_before_nsys_runs(tmp_path, nsys, gpu):
    calls = nsys(MAKES)
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match=r"cannot write into .*file/reports"):
        make(tmp_path / "file" / "reports")
    assert not calls.exists()


def test_without_nsys_the_reader_is_told_what_to_do(reports, monkeypatch, gpu):
    monkeypatch.setattr(exports, "find_nsys", lambda: None)
    with pytest.raises(ReportError, match="LAB_NSYS"):
        make(reports)


def test_a_live_profile_leaves_the_recorded_folder_as_it_is(shipped, reports, nsys, gpu):
    nsys("exit 1")
    before = {
        file: hashlib.sha256(file.read_bytes()).hexdigest() for file in shipped.folder.rglob("*") if file.is_file()
    }
    with pytest.raises(ReportError):
        Live(StandIn(), reports).get(kinds.profile(command.profile_command("demo", PROGRAM)), lambda line: None)
    assert {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in before} == before
    assert len(before) == len([file for file in shipped.folder.rglob("*") if file.is_file()])


# The export


def database(file: Path) -> Path:
    """The smallest file that an export can be."""
    db = sqlite3.connect(file)
    db.execute("CREATE TABLE StringIds (id, value)")
    db.commit()
    db.close()
    return file


def test_a_report_is_exported_once_and_again_only_when_it_is_another(reports, nsys, tmp_path):
    reports.mkdir()
    report = reports / "demo.nsys-rep"
    report.write_text("report")
    calls = nsys(f'cp "{database(tmp_path / "made")}" "$out"')
    assert exports.export(report) == reports / "demo.sqlite"
    later = time.time() + 10
    os.utime(report, (later, later))
    exports.export(report)
    assert calls.read_text().count("export --type sqlite") == 1
    report.write_text("of the same day's other run")
    exports.export(report)
    assert calls.read_text().count("export --type sqlite") == 2


def test_a_failed_export_leaves_nothing_and_says_why(reports, nsys):
    reports.mkdir()
    report = reports / "demo.nsys-rep"
    report.write_text("report")
    nsys('echo half > "$out"; echo "the report is of a newer version" >&2; exit 1')
    with pytest.raises(ReportError, match=r"could not export demo\.nsys-rep: the report is of a newer version"):
        exports.export(report)
    assert not (reports / "demo.sqlite").exists()
    assert report.read_text() == "report"


# Which machine


@pytest.mark.parametrize(
    ("word", "nsys_there", "gpu_there", "expected"),
    [
        ("auto", True, True, "live"), ("auto", True, False, "recorded"), ("auto", False, True, "live"),
        ("auto", False, False, "recorded"), (None, True, True, "live"), ("", False, True, "live"),
        ("live", False, False, "live"), ("recorded", True, True, "recorded"), (" LIVE ", True, True, "live"),
    ],
)  # fmt: skip
def test_the_mode_follows_the_variable_and_else_the_machine(monkeypatch, word, nsys_there, gpu_there, expected):
    told = replace(A_GPU if gpu_there else NO_GPU, nsys="2025.3.1" if nsys_there else None)
    monkeypatch.setattr(door, "_live", lambda: Live(StandIn(told)))
    if word is None:
        monkeypatch.delenv("LAB_MODE", raising=False)
    else:
        monkeypatch.setenv("LAB_MODE", word)
    assert source.current().name == expected


def misnamed(monkeypatch, gpu: bool) -> None:
    monkeypatch.delenv("LAB_MODE", raising=False)
    monkeypatch.setenv("LAB_NSYS", "/opt/nowhere/nsys")
    found = replace(A_GPU if gpu else NO_GPU, nsys=None)
    monkeypatch.setattr(door, "_live", lambda: Live(StandIn(found)))


def test_an_nsys_that_is_wrongly_named_does_not_end_in_recorded_mode(monkeypatch):
    misnamed(monkeypatch, gpu=True)
    with pytest.raises(
        LabError, match=r"^LAB_NSYS names /opt/nowhere/nsys, which is no file\. Correct it, or unset it"
    ):
        source.current()
    monkeypatch.setenv("LAB_MODE", "recorded")
    assert "LAB_NSYS" not in source.current().greeting, "who asks for what was recorded gets it"


def test_without_a_gpu_the_greeting_says_that_it_is_wrongly_named(monkeypatch):
    misnamed(monkeypatch, gpu=False)
    greeting = source.current().greeting
    assert greeting.startswith("Recorded mode") and "LAB_NSYS names /opt/nowhere/nsys, which is no file" in greeting
    monkeypatch.delenv("LAB_NSYS")
    assert source.current().greeting.endswith(").")


def test_another_word_is_no_mode(monkeypatch):
    monkeypatch.setenv("LAB_MODE", "dead")
    with pytest.raises(ReportError, match="LAB_MODE=dead is not a mode: use auto, live, recorded"):
        source.current()


def test_only_the_courses_own_recordings_are_strict(monkeypatch, shipped):
    assert not shipped.is_strict and not Live(StandIn()).is_strict
    monkeypatch.setenv("LAB_MODE", "recorded")
    monkeypatch.delenv("LAB_RECORDED", raising=False)
    assert source.current().is_strict


NO_NSYS = replace(A_GPU, nsys=None)


def test_where_there_is_a_gpu_and_no_nsys_pytorchs_profiler_looks_and_says_so(reports, monkeypatch):
    def run(words, show, folder):
        assert words[1:3] == [traced.__file__, str(reports / "demo.trace.json.gz")]
        assert words[3:] == ["source_code/main_opt2.py", "--profile", "--epochs", "2"]
        SyntheticTrace(words[2]).step(0, 100).launch(12, 20, 30, "sgemm").write()
        Path(os.environ["LAB_MANIFEST"], "modules-0.json").write_text("[]")
        show("a line of the program")
        return 0, ""

    monkeypatch.setattr(profile, "stream", run)
    live, said = Live(StandIn(NO_NSYS), reports), []
    assert live.greeting.endswith("Without nsys, PyTorch's profiler makes the profiles.")
    words = command.profile_command("demo", "main_opt2.py --profile --epochs 2")
    with live.get(kinds.profile(words), said.append) as report:
        assert (report.profiler, report.name, len(report.kernels)) == ("torch.profiler", "demo", 1)
    assert said[-3:] == [
        "| without nsys: PyTorch's profiler traces the program; no system calls, no GPU counters",
        "| a line of the program",
        f"live: {reports / 'demo.trace.json.gz'}",
    ]
    assert json.loads((reports / "demo.json").read_text())["machine"]["nsys"] is None
    with live.get(kinds.profile(words), said.append) as again:
        assert len(again.kernels) == 1
    assert "live, " in said[-1] and "ago" in said[-1], "in quick mode a trace is used again, as a report is"


def test_pytorchs_profiler_can_be_chosen(monkeypatch):
    monkeypatch.setattr(exports, "find_nsys", lambda: NEW)
    assert facts._nsys() == NEW
    for word, expected in (("torch", None), (" Torch", None), ("nsys", NEW), ("", NEW)):
        monkeypatch.setenv("LAB_PROFILER", word)
        assert facts._nsys() == expected
    monkeypatch.setenv("LAB_PROFILER", "nvprof")
    with pytest.raises(LabError, match=r"LAB_PROFILER=nvprof is no profiler of the labs: use nsys or torch\."):
        facts._nsys()


def test_a_program_that_fails_under_pytorchs_profiler_is_quoted(reports, monkeypatch):
    monkeypatch.setattr(profile, "stream", lambda words, show, folder: (1, "Traceback\nMemoryError: full\n"))
    words = command.profile_command("demo", "main_opt2.py --profile")
    with pytest.raises(LabError, match="under PyTorch's profiler, with status 1: MemoryError: full"):
        Live(StandIn(NO_NSYS), reports).get(kinds.profile(words), lambda line: None)


def test_what_pytorchs_profiler_cannot_see_comes_from_the_recordings(reports):
    live = Live(StandIn(NO_NSYS), reports)
    for name in ("keras_mnist_jax", "keras_mixed_jax"):
        words, said = recorded.provenance()["profiles"][name], []
        with live.get(kinds.profile(words), said.append) as report:
            assert report.profiler == "Nsight Systems"
        assert any("PyTorch's profiler looks at PyTorch alone" in line for line in said)


def test_a_profile_that_needs_a_gpu_comes_from_the_recordings_where_there_is_none(reports):
    def fails(words, report, show):
        raise LabError("nsys profile failed with status 2: error: no GPU that CUDA can use")

    name = "one_thread"
    words = recorded.provenance()["profiles"][name]
    said: list[str] = []
    with Live(StandIn(NO_GPU, profile=fails), reports).get(kinds.profile(words), said.append) as report:
        assert report.name == name
    assert said[1].startswith("| the recorded machine took ")
    assert said[2].startswith("| recorded instead, since it cannot be measured here: nsys profile failed")
    assert said[3].startswith("recorded (")
    with pytest.raises(LabError, match="failed with status 2"):
        Live(StandIn(A_GPU, profile=fails), reports).get(kinds.profile(words), said.append)


def test_a_named_nsys_that_does_not_run_is_not_replaced_by_another(monkeypatch, tmp_path):
    monkeypatch.setenv("LAB_NSYS", str(tmp_path / "missing"))
    exports.find_nsys.cache_clear()
    try:
        assert exports.find_nsys() is None
    finally:
        exports.find_nsys.cache_clear()


def test_the_version_is_read_as_numbers(nsys):
    nsys(MAKES, version="2022.4.2.1-df9881f")
    found = exports.find_nsys()
    assert found.version == (2022, 4, 2) and found.version_text == "2022.4.2"
