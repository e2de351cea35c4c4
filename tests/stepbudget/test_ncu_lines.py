"""The source view of Nsight Compute: lines, reasons, facts; by a stand-in for NVIDIA's module, which needs reports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from stepbudget.errors import ReportError
from stepbudget.ncu import lines

WAIT, LONG = f"{lines.REASON}wait", f"{lines.REASON}long_scoreboard"
PLACES = {16: ("/somewhere/kernel.cu", 7), 32: ("/somewhere/kernel.cu", 9), 48: None}  # instruction → line


class Metric:
    """A counter of a whole kernel, or of each of its instructions."""

    def __init__(self, whole: float = 0.0, each: dict[int, int] | None = None):
        self.whole, self.each = whole, each or {}

    def has_correlation_ids(self) -> bool:
        return bool(self.each)

    def correlation_ids(self) -> SimpleNamespace:
        return SimpleNamespace(as_uint64=lambda place: list(self.each)[place])

    def num_instances(self) -> int:
        return len(self.each)

    def as_uint64(self, place: int) -> int:
        return list(self.each.values())[place]

    def as_double(self) -> float:
        return self.whole


class Action:
    """A kernel of a report, as ncu_report gives it."""

    metrics = {  # noqa: RUF012 – never changed
        LONG: Metric(each={16: 30, 32: 2, 48: 99}),
        f"{LONG}_not_issued": Metric(each={16: 29, 32: 2, 48: 98}),
        WAIT: Metric(each={16: 5, 32: 4, 48: 0}),
        f"{lines.REASON}selected": Metric(each={16: 8, 32: 90, 48: 0}),
        lines.EXECUTED: Metric(each={16: 64, 32: 64, 48: 1}),
        lines.FACTS["time_ns"]: Metric(1500.0),
        lines.FACTS["registers"]: Metric(24.0),
    }

    def name(self) -> str:
        return "transpose"

    def metric_names(self) -> list[str]:
        return list(self.metrics)

    def metric_by_name(self, name: str) -> Metric:
        return self.metrics[name]

    def source_info(self, address: int) -> SimpleNamespace | None:
        place = PLACES[address]
        return place and SimpleNamespace(file_name=lambda: place[0], line=lambda: place[1])


def module(actions: int = 1) -> SimpleNamespace:
    one = SimpleNamespace(num_actions=lambda: actions, action_by_idx=lambda number: Action())
    report = SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda number: one)
    return SimpleNamespace(load_report=lambda file: report)


def test_samples_are_added_up_by_line_and_reason():
    (kernel,) = lines.kernels(Path("a.ncu-rep"), module())
    assert kernel.name == "transpose" and kernel.facts == {"time_ns": 1500.0, "registers": 24.0}
    seven, nine = kernel.lines
    assert (seven.file, seven.number, seven.executed) == ("kernel.cu", 7, 64)
    assert seven.samples == {"long_scoreboard": 30, "wait": 5, "selected": 8} and seven.waited == 35
    assert nine.waited == 6, "a warp that is selected does not wait"
    assert lines.longest(kernel.lines, 1) == [seven]


def test_instructions_without_a_line_are_left_out_and_every_kernel_is_read():
    found = lines.kernels(Path("a.ncu-rep"), module(actions=2))
    assert len(found) == 2 and {line.number for kernel in found for line in kernel.lines} == {7, 9}


def test_a_file_that_is_no_report_is_named():
    def refuses(file: str) -> None:
        raise RuntimeError("bad magic")

    with pytest.raises(ReportError, match=r"a\.ncu-rep cannot be read as a report of Nsight Compute: bad magic"):
        lines.kernels(Path("a.ncu-rep"), SimpleNamespace(load_report=refuses))


@pytest.fixture
def afresh(monkeypatch):
    """No ncu_report loaded before or after."""
    monkeypatch.delitem(lines.sys.modules, "ncu_report", raising=False)
    yield
    lines.sys.modules.pop("ncu_report", None)


def put(folder: Path, words: str) -> None:
    folder.mkdir(parents=True)
    (folder / "ncu_report.py").write_text(f"HERE = {words!r}\n")


def test_the_module_is_looked_for_beside_the_program_and_then_where_it_is_installed(tmp_path, afresh):
    ncu, root = tmp_path / "bin" / "ncu", tmp_path / "root"
    ncu.parent.mkdir()
    ncu.touch()
    with pytest.raises(ReportError, match="ncu_report cannot be loaded here"):
        lines.reader(str(ncu), root)
    before = list(lines.sys.path)
    for version in ("2024.1.1", "2025.3.1"):
        put(root / "opt/nvidia/nsight-compute" / version / "extras/python", version)
    assert lines.reader(str(ncu), root).HERE == "2025.3.1", "the newest"
    del lines.sys.modules["ncu_report"]
    put(ncu.parent / "extras/python", "beside")
    assert lines.reader(str(ncu), root).HERE == "beside", "of the ncu that wrote the report, where it is there"
    assert lines.sys.path == before


def test_the_flags_ask_for_one_kernel_with_its_source():
    said = " ".join(lines.flags("x.ncu-rep"))
    assert all(part in said for part in ("--launch-count 1", "SourceCounters", "--import-source yes", "x.ncu-rep"))
