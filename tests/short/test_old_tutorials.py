"""The page on old tutorials: its numbers are those of the recordings, and what it says of PyTorch is so."""

from __future__ import annotations

import re
import warnings
from functools import reduce

import pytest
import torch

import stepbudget
from labkit import course
from labkit.display.spread import paired
from labkit.labs import lab12, lab13, lab18, lab19
from labkit.paths import ROOT
from labkit.recording import pages
from labkit.source import recorded
from labkit.subjects import shapes, torch_profiler
from stepbudget.ask import ops
from stepbudget.export.profile import METRICS
from stepbudget.report import open_report

PAGE = ROOT / "labs" / "old_tutorials.md"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)]+)\)")
CODE = re.compile(r"`([^`]+)`")
FIGURE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) (%|µs|times)")


def section(heading: str) -> str:
    """The text of a section of the page."""
    return PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]


def rows(heading: str) -> dict[str, list[str]]:
    """The table of a section: first cell → the others."""
    lines = [line.strip("| ").split(" | ") for line in section(heading).splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in lines[1:]}


def test_every_link_leads_somewhere_and_labs_are_called_by_their_number():
    for words, link in LINK.findall(PAGE.read_text()):
        assert link.startswith("https://") or (PAGE.parent / link).exists(), link
        if words.isdecimal():
            assert link in [lab.file for lab in course.LABS if lab.number == int(words)]
    for heading in ("Commands", "Sentences"):
        assert all(LINK.search(cells[-1]) for cells in rows(heading).values())


def test_the_front_page_and_both_labs_lead_to_the_page():
    assert f"(labs/{PAGE.name})" in pages.FRONT_PAGE.read_text()
    for lab in course.LABS:
        if lab.number in (18, 19):
            assert f"({PAGE.name})" in lab.path.read_text()


def profiled(command: str) -> torch_profiler.Profile:
    return torch_profiler.profile(f"profile_torch.py {command}", show=lambda line: None)


def of_shapes() -> list[list[float]]:
    """What labs 12 and 13 measured of two texts on Tensor Cores."""
    records = recorded.records("benchmarks", "bench_shapes.py")
    products, convolutions = shapes.products(records), shapes.convolutions(records)
    efficiency = []
    for name in ("main_shapes_127_ops", "main_shapes_ops"):
        with open_report(recorded.folder() / "profiles" / f"{name}.sqlite.xz") as report:
            efficiency.append(100 * ops.summary(report).efficiency)
    by_layout = products[(products["part"] == "layout") & (products["m"] == 4096) & (products["dtype"] == "bf16")]
    layouts = by_layout.set_index("layout")["us"]
    cube = products[(products["part"] == "one") & (products["varied"] == "")].set_index("dtype")["us"]
    return [
        [lab12.PREDICTIONS["times"].measured(products)],
        efficiency,
        [layouts["nn"] / layouts.min()],
        [cube["fp32"] / cube["tf32"]],
        [lab13.PREDICTIONS["left_pct"].measured(convolutions)],
    ]


def test_what_was_measured_is_what_the_recordings_say():
    (watched,) = recorded.records("benchmarks", "bench_nvml.py")
    by_name = lab19.by_name(watched["rows"])
    driver = lab19.driver(watched["rows"]).frame.set_index("program")["utilisation %"]
    at_work = {}
    for name in ("main_opt4", "main_opt7", "one_thread"):
        with open_report(recorded.folder() / "profiles" / f"{name}.sqlite.xz") as report:
            at_work[name] = lab19.at_work(report)
    fp32, fp16 = profiled("main_opt2.py --memory"), profiled("main_opt3.py --memory")
    costs = profiled("main_opt4.py --overhead 3").record["rows"]
    off, plain = ([row for row in costs if row["profiler"] == kind] for kind in ("off", "plain"))
    tensor, sms = "Tensor Active (counter)", "SMs Active (counter)"
    measured = [
        [driver["main_opt4.py"], at_work["main_opt4"][tensor]],
        [lab19.usual_utilisation(by_name["one_kernel.py thread"]), at_work["one_thread"][sms]],
        [at_work["main_opt7"][tensor]],
        [*lab18.plugin([fp32, fp16])],
        [lab18.counted_flops(one)["all"] for one in (fp32, fp16)],
        *of_shapes(),
        [paired(plain, off, "training_s").median],
    ]
    for cells, values in zip(rows("Sentences").values(), measured, strict=True):
        typed = [figure for figure, _ in FIGURE.findall(cells[0])]
        assert typed == [f"{value:.{len(one.partition('.')[2])}f}" for one, value in zip(typed, values, strict=True)]
    release = ".".join(watched["versions"]["torch"].split(".")[:2])
    assert f"(one {watched['gpu']}, torch {release})" in section("Sentences")


def test_what_takes_an_old_commands_place_is_there():
    for cells in rows("Commands").values():
        for name in CODE.findall(cells[0]):
            dotted = re.match(r"[\w.]+", name)
            parts = dotted[0].split(".") if dotted else []
            if parts[:1] == ["torch"] or parts[:1] == ["sb"]:
                assert callable(reduce(getattr, parts[1:], {"torch": torch, "sb": stepbudget}[parts[0]])), name
    assert METRICS in CODE.findall(rows("Commands")["`nsys … --gpu-metrics-device`"][0])


def test_what_is_called_deprecated_is():
    old = {
        "`torch.cuda.amp.autocast()`": lambda: torch.cuda.amp.autocast(),
        "`torch.profiler.profile.export_memory_timeline`": lambda: torch.profiler.profile().export_memory_timeline(""),
        "`torch.autograd.profiler.profile(use_cuda=True)`": lambda: torch.autograd.profiler.profile(use_cuda=True),
    }
    assert set(old) <= set(rows("Commands"))
    for name, call in old.items():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                call()
            except Exception as error:
                if isinstance(error, TypeError) and "unexpected keyword" in str(error):
                    continue  # gone altogether
        assert any("deprecated" in str(one.message).casefold() for one in told), name


@pytest.mark.parametrize("heading", ["Commands", "Sentences"])
def test_each_row_of_a_table_is_whole(heading):
    cells = rows(heading)
    assert len(cells) >= 6
    assert len({len(rest) for rest in cells.values()}) == 1
