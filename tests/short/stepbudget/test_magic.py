"""The cell magic: a cell's script under nsys, its budget in the notebook, and one sentence where that fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

import stepbudget
from stepbudget.errors import ReportError
from stepbudget.export import nsys as exports
from stepbudget.report import open_report
from synthetic import SyntheticReport

NSYS = shutil.which("nsys")


@pytest.fixture
def shell():
    """An IPython of the test's own, with the magic loaded."""
    own = InteractiveShell()
    own.run_line_magic("load_ext", "stepbudget")
    yield own
    InteractiveShell.clear_instance()


@pytest.fixture
def nsys(monkeypatch, tmp_path):
    """Puts a Python script in nsys's place, which runs the program; its calls are lines of the file it returns."""

    def put(body: str = "", version: str = "2025.3.1.90-1") -> Path:
        script, calls = tmp_path / "nsys", tmp_path / "calls"
        SyntheticReport(tmp_path / "made.sqlite").range(0, 100, "training").range(10, 40, "forward").kernel(
            20, 30, "sgemm", call=(12, 14)
        ).write()
        script.write_text(
            f"#!{sys.executable}\nimport shutil, subprocess, sys\nwords = sys.argv[1:]\n"
            f"if words == ['--version']: sys.exit(print('NVIDIA Nsight Systems version {version}'))\n"
            f"print(*words, file=open({str(calls)!r}, 'a'))\n"
            f"made, out = {str(tmp_path / 'made.sqlite')!r}, words[words.index('--output') + 1]\n"
            "if words[0] == 'export': sys.exit(not shutil.copy(made, out))\n"
            f"{body}\n"
            "at = words.index(sys.executable)\n"
            "status = subprocess.run(words[at:]).returncode\n"
            "open(out + '.nsys-rep', 'wb').write(b'NVIDIA Tegra Pro')\n"
            "print('Generated:')\nsys.exit(status)\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("LAB_NSYS", str(script))
        exports.find_nsys.cache_clear()
        return calls

    yield put
    exports.find_nsys.cache_clear()


def run(shell: InteractiveShell, line: str, cell: str = "print('ran')\n") -> object:
    """What the cell shows as its result; its error is raised."""
    return shell.run_cell_magic("stepbudget", line, cell)


def test_a_cell_shows_its_budget(shell, nsys, capsys):
    calls = nsys()
    found = run(shell, "--args 'a \"b c\"'", "import sys\nprint('args', sys.argv[1:])\n")
    assert capsys.readouterr().out == "args ['a', 'b c']\nGenerated:\n", "as it comes"
    assert "range 'training': 0.1 ms" in repr(found) and "Where the time goes" in repr(found)
    html = found._repr_html_()
    assert '<main class="stepbudget">' in html and "<html" not in html and "forward" in html
    assert found.found["budget"]["other_kernels"] == pytest.approx(0.1)
    first = calls.read_text().splitlines()[0]
    assert first.startswith(
        "profile --trace cuda,osrt,nvtx --sample none --cpuctxsw none --gpu-metrics-devices all --output "
    )
    assert "--capture-range" not in first


def test_it_is_the_cells_result_as_html_and_text(shell, nsys, capsys):
    nsys()
    shown = shell.run_cell("%%stepbudget\nprint('ran')\n").result
    data, _ = shell.display_formatter.format(shown)
    assert data["text/html"].startswith("<style>") and data["text/plain"].startswith("cell.sqlite: ")


def test_the_script_finds_the_notebooks_modules(shell, nsys, tmp_path, monkeypatch, capsys):
    nsys()
    (tmp_path / "beside_it.py").write_text("word = 'found beside the notebook'\n")
    monkeypatch.chdir(tmp_path)
    run(shell, "", "import beside_it\nprint(beside_it.word)\n")
    assert "found beside the notebook" in capsys.readouterr().out


def test_options_reach_nsys_and_the_answer(shell, nsys, tmp_path, capsys):
    calls = nsys(version="2022.4.2.1-1")
    keep = tmp_path / "kept.nsys-rep"
    found = run(shell, f"--capture --range forward --nsys '--pytorch autograd-nvtx' --keep {keep}")
    first = calls.read_text().splitlines()[0]
    assert "--capture-range cudaProfilerApi --capture-range-end stop" in first
    assert "--gpu-metrics-device all --pytorch autograd-nvtx" in first, "as an old nsys spells it"
    assert found.found["range"] == "forward" and found.found["report"] == "kept.sqlite"
    assert keep.read_bytes() == b"NVIDIA Tegra Pro" and sorted(p.name for p in tmp_path.iterdir()) == [
        "calls", "kept.nsys-rep", "made.sqlite", "nsys",
    ]  # fmt: skip


def test_without_nsys_it_is_said(shell, monkeypatch, tmp_path):
    monkeypatch.setenv("LAB_NSYS", str(tmp_path / "none"))
    exports.find_nsys.cache_clear()
    with pytest.raises(ReportError, match=r"LAB_NSYS names .*, which is no file\. Correct it, or unset it"):
        run(shell, "")
    exports.find_nsys.cache_clear()


@pytest.mark.parametrize(
    "body, cell, words",
    [
        ("sys.exit('no option --trace')", "pass", "nsys profile failed with status 1: no option --trace"),
        ("", "raise ValueError('seven')", "the program failed with status 1: .*ValueError: seven$"),
        ("", "import sys; sys.exit(3)", "the program failed with status 3: it said nothing"),
        ("open(out + '.qdstrm', 'w'); sys.exit(0)", "pass", "importer does not start"),
    ],
)
def test_failures_come_in_their_own_words(shell, nsys, body, cell, words, capsys):
    nsys(body)
    with pytest.raises(ReportError, match=words):
        run(shell, "", cell)


@pytest.mark.parametrize(
    "line, words",
    [
        ("--foo", "unrecognized arguments: --foo"),
        ("--gpu x", "invalid int value"),
        ("--keep x.sqlite", r"does not end in \.nsys-rep"),
        ("--keep /missing/x.nsys-rep", "there is no folder /missing"),
        ("--args 'open", "--args cannot be read|No closing quotation"),
    ],
)
def test_wrong_options_are_said_before_anything_runs(shell, nsys, line, words, capsys):
    calls = nsys()
    with pytest.raises(ReportError, match=words):
        run(shell, line)
    assert not calls.exists()


def test_a_range_that_is_not_there_is_named_and_the_report_kept(shell, nsys, tmp_path, capsys):
    nsys()
    with pytest.raises(ReportError, match="no NVTX range called 'nothing'"):
        run(shell, f"--range nothing --keep {tmp_path / 'kept.nsys-rep'}")
    assert (tmp_path / "kept.nsys-rep").is_file(), "the run was long, and its report is good"


def test_help_runs_nothing(shell, nsys, capsys):
    calls = nsys()
    assert run(shell, "--help") is None
    assert "--keep FILE" in capsys.readouterr().out and not calls.exists()


def test_an_error_is_one_line_in_the_notebook(shell, nsys, capsys):
    nsys()
    shell.run_cell("%%stepbudget --foo\nprint(1)\n")
    assert "Traceback" not in capsys.readouterr().out


def test_importing_the_package_loads_nothing():
    script = "import sys, stepbudget; print(sorted({'numpy', 'pandas', 'IPython', 'argparse'} & {*sys.modules}))"
    folder = Path(stepbudget.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.skipif(NSYS is None, reason="no nsys on this machine")
def test_with_the_nsys_of_this_machine(shell, monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("LAB_NSYS", raising=False)
    exports.find_nsys.cache_clear()
    cell = (
        "import time\nfrom torch.cuda import nvtx\n"
        "nvtx.range_push('training')\n"
        "for step in range(4):\n"
        "    nvtx.range_push('data loading'); time.sleep(0.05); nvtx.range_pop()\n"
        "    nvtx.range_push('forward'); nvtx.range_pop()\n"
        "nvtx.range_pop()\n"
    )
    keep = tmp_path / "kept.nsys-rep"
    found = run(shell, f"--keep {keep}", cell)
    assert found.found["range"] == "training" and found.found["steps"] == 4
    assert {one["name"]: one["count"] for one in found.found["phases"]} == {"data loading": 4, "forward": 4}
    assert found.found["duration_ms"] >= 4 * 50
    if found.found["gpu_number"] is None:
        assert found.found["budget"]["loader"] > 0.9
    with open_report(keep) as report:
        assert report.window().duration_ms == pytest.approx(found.found["duration_ms"])
