"""One HTML file: what stands in it is the report's, it needs nothing from outside, and names in it are harmless."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

import pytest

from labkit.source import recorded
from stepbudget.__main__ import main
from stepbudget.ask.budget import budget
from stepbudget.ask.iterations import step_windows
from stepbudget.report import open_report
from stepbudget.show import page, palette, pictures, style, summary, svg
from stepbudget.show.sections import cut
from stepbudget.show.timeline import of_budget
from synthetic import SyntheticReport

PROFILES = recorded.folder() / "profiles"
GEMM, POINTWISE = "ampere_s16816gemm_128x64", "at::native::vectorized_elementwise_kernel<4>"
EVIL = '<script>alert(1)</script>"><img src=x onerror=y> \x1b[31mred $x^2$ {0} %s ]]> --> \n \u202e </title></svg>'
GROUND = "getComputedStyle(document.querySelector('main')).backgroundColor"
# The words of ordinary length that stand on two lines.
BROKEN = """() => {
  const found = [];
  for (const cell of document.querySelectorAll('td, th, p, li')) {
    const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
      for (const word of node.data.matchAll(/(?<!\\S)[A-Za-z.,:;()]{4,24}(?!\\S)/g)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
        if (tops.size > 1) found.push(word[0]);
      }
    }
  }
  return found;
}"""


class Read(HTMLParser):
    """A page as a browser reads it: its elements, each table's rows, and whether all that opens is closed."""

    EMPTY = frozenset({"meta", "br", "img", "wbr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)
        if tag == "caption":
            self.caption = ""
        elif tag == "tr" and "tbody" in self.open:
            self.tables.setdefault(self.caption, []).append([])
        elif tag in ("th", "td") and "tbody" in self.open:
            self.tables[self.caption][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)
        if "caption" in self.open:
            self.caption += data
        elif "tbody" in self.open and {"th", "td"} & {*self.open}:
            self.tables[self.caption][-1][-1] += data

    def pictures(self, of: str) -> list[str]:
        """The drawings whose alternative text begins so."""
        images = [own for tag, own in self.elements if tag == "img" and own["alt"].startswith(of)]
        return [urllib.parse.unquote(own["src"]) for own in images]


def small(made: SyntheticReport) -> SyntheticReport:
    """Two steps of 50 µs."""
    made.range(0, 100, "training").gpu("NVIDIA H200")
    for at in (0, 50):
        made.range(at, at + 10, "data loading").range(at + 10, at + 30, "forward")
        made.copy(at + 15, at + 17, 3000, memory="pinned", call=(at + 11, at + 12))
        made.kernel(at + 20, at + 40, GEMM, call=(at + 13, at + 14))
    return made


def paged(path: Path) -> tuple[dict, str]:
    """The answer as an object, and the page."""
    with open_report(path) as report:
        own = budget(report)
        found = summary.plain(summary.summary(report, own.window, own))
        return found, page.page(found, [pictures.draw(report, own)])


def test_what_stands_in_the_page_is_the_answer():
    found, text = paged(PROFILES / "main_opt3.sqlite.xz")
    read = Read(text)
    causes = next(rows for caption, rows in read.tables.items() if "add up to 100" in caption)
    shares = {found["causes"][cause]: share for cause, share in found["budget"].items() if share}
    assert {row[0].strip(): row[1:3] for row in causes} == {
        name: [f"{share * found['duration_ms']:,.1f}", f"{100 * share:.1f}"] for name, share in shares.items()
    } | {"all": [f"{found['duration_ms']:,.1f}", "100.0"]}
    phases = next(rows for caption, rows in read.tables.items() if caption.startswith("NVTX"))
    assert [row[0] for row in phases] == [one["name"] for one in found["phases"]]
    said = " ".join(" ".join(read.text).split())
    for one in found["advice"]:
        assert one["evidence"][1:].rstrip(".") in said and f"{one['upper_bound_ms']:,.1f} ms" in said
    assert found["launches"]["evidence"][1:].rstrip(".") in said
    assert f"{100 * found['operations']['efficiency']:.1f} %" in said and "\ufffd" not in text
    assert len(text) < 400_000


def test_lines_memory_and_arithmetic_have_their_place(made):
    small(made).range(12.5, 14.5, "aten::mm, op_id = 1, sizes = [[8, 16], [16, 4], []]")
    made.allocate(5, 4096, 3_000_000).api(40, 49, "cudaDeviceSynchronize").chain(("wait_here", "/home/ann/run"))
    found, text = paged(made.write())
    read = Read(text)
    tables = {caption.split(",")[0]: rows for caption, rows in read.tables.items()}
    lines = tables["Where calls were made that the GPU waited for"]
    assert [(row[0], row[2], row[3]) for row in lines] == [
        (cut(one["where"], 40), cut(one["call"], 16), f"{one['count']:,}") for one in found["lines"]
    ]
    assert any("wait_here" in row[0] for row in lines)
    assert tables["Convolutions and matrix products by the sizes of their inputs"][0][:3] == [
        "aten::mm [[8, 16], [16, 4]]", "1", "0.00",
    ]  # fmt: skip
    assert "at most 3.0 MB held at once" in " ".join(read.text)


def test_the_bars_parts_are_as_wide_as_the_causes_shares():
    found, text = paged(PROFILES / "main_baseline.sqlite.xz")
    (bar,) = Read(text).pictures("A stacked bar")
    widths = [float(width) for width in re.findall(r"<svg x='[\d.]+%' y='0' width='([\d.]+)%'", bar)]
    assert widths == pytest.approx([100 * share for share in found["budget"].values() if share], abs=0.001)
    assert sum(widths) == pytest.approx(100, abs=0.01)


def test_the_page_needs_nothing_from_outside_and_runs_one_script_alone():
    _, text = paged(PROFILES / "main_opt3.sqlite.xz")
    (allowed,) = re.findall(r"script-src 'sha256-([^']+)'", text)
    (script,) = re.findall(r"<script>(.*?)</script>", text)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() == allowed
    drawn = urllib.parse.unquote(text).replace("http://www.w3.org/2000/svg", "")  # a name: nothing is fetched from it
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)|javascript", drawn)
    for tag, attributes in Read(text).elements:
        assert tag not in ("link", "iframe", "object", "form"), tag
        source = attributes.pop("src", "data:")
        assert source.startswith("data:") and not [name for name in attributes if name.startswith("on")], attributes
    assert "default-src 'none'" in text, "a browser is told so too"
    references = set(re.findall(r"url\(#([\w-]+)\)", drawn))
    assert references == set(re.findall(r"<pattern id=[\"']([\w-]+)", drawn))


def test_every_picture_has_a_title_and_every_table_a_caption():
    _, text = paged(PROFILES / "main_opt3.sqlite.xz")
    assert text.count("<table") == text.count("<caption") > 3
    read = Read(text)
    told = {start: len(read.pictures(start)) for start in ("Timeline of ", "A stacked bar", "59 steps in their order")}
    assert [*told.values()] == [2, 1, 1]
    silent = [own for tag, own in read.elements if tag == "img" and not own["alt"]]
    assert len(silent) + 4 == text.count("<img "), "a cause's colour stands before its name"


def test_names_are_harmless(made, tmp_path):
    small(made).range(41, 45, EVIL).kernel(45, 49, f"{EVIL}<float>", call=(42, 43)).gpu(EVIL, 1)
    path = made.write().rename(tmp_path / "a&b <i>.sqlite")
    elements = {tag for tag, _ in Read(paged(path)[1]).elements}
    plain = {tag for tag, _ in Read(paged(PROFILES / "main_opt3.sqlite.xz")[1]).elements}
    assert elements <= plain | {"i"}, "i: the meter beside a bound"
    text = paged(path)[1]
    assert "\x1b" not in text and "\u202e" not in text and text.count("<script") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text, "the name itself is there"


def test_a_report_without_gpu_and_one_without_anything_but_a_range_are_pages_too(made, tmp_path):
    made.range(0, 100, "training").range(0, 50, "work").os_call(10, 20, "poll")
    found, text = paged(made.write())
    assert (
        "the report holds no kernels, and no CUDA calls that would tell whether any ran" in text
        and found["gpus_used"] == []
    )
    assert Read(text).tables


def test_a_steps_kernels_look_as_in_the_budget(made):
    """The counter tells in the first step; the step of median length has too few samples to tell by itself."""
    made.range(0, 3000, "training").gpu("NVIDIA H200")
    for at, length in ((0, 1900), (2000, 50), (2500, 60)):
        made.range(at, at + 10, "data loading").range(at + 10, at + length, "forward")
        made.kernel(at + 20, at + length, "triton_fused", call=(at + 12, at + 14))
    for at in range(0, 3000, 100):
        made.counter(at, 50 if at < 1900 else 0).counter(at, 100, "SMs Active [Throughput %]")
    with open_report(made.write()) as report:
        own = budget(report)
        for window in (own.window, step_windows(report, own.window)[1]):
            (row,) = of_budget(report, own, window, rows=["kernels"]).rows
            assert {*row.events["look"]} == {"tensor_core_kernels"}


# --- pictures -----------------------------------------------------------------------------------------------


def test_words_read_well_on_their_ground():
    for is_dark, theme in ((False, palette.LIGHT), (True, palette.DARK)):
        for name in ("ink", "quiet", "good", "bad"):
            assert min(palette.contrast(theme[name], theme[ground]) for ground in ("paper", "ground")) >= 4.5, name
        for look, colour in style.looks(is_dark).items():
            assert palette.contrast(style.ink(colour), colour) >= 4.5, look


def test_black_on_white_has_the_highest_contrast():
    assert palette.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert palette.contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01), "W3C's own example"


# --- the comparison -----------------------------------------------------------------------------------------


def compared(tmp_path, capsys, *arguments: object) -> tuple[dict, str]:
    file = tmp_path / "page.html"
    words = [*map(str, arguments), "--html", str(file)]
    assert main([*words, "--json"]) in (0, 3)
    return json.loads(capsys.readouterr().out), file.read_text()


def test_a_comparison_is_told_cause_by_cause_with_both_timelines(tmp_path, capsys):
    found, text = compared(
        tmp_path, capsys, PROFILES / "main_opt1.sqlite.xz", "--compare", PROFILES / "main_baseline_nvtx.sqlite.xz",
        "--fail-if-slower", "0.05",
    )  # fmt: skip
    said = found["comparison"]
    read = Read(text)
    changes = next(rows for caption, rows in read.tables.items() if caption.startswith("Cause by cause"))
    loader = next(row for row in changes if row[0].strip() == "waiting for the loader")
    own = said["causes"]["loader"]
    assert loader[1:3] == [f"{said['budget_ms']['loader'][side]:,.1f}" for side in ("before", "after")]
    assert loader[3:5] == [f"{own['ms']:+,.1f}", "*"]
    words = " ".join(" ".join(read.text).split())
    assert said["verdict"][1:] in words and "Slower than allowed" in words
    drawn = read.pictures("Timeline of ")[:2]
    widths = [float(re.search(r"class='ground'.*? width='([\d.]+)'", one)[1]) / svg.PLOT for one in drawn]
    assert widths == pytest.approx([said["before_ms"] / said["after_ms"], 1], abs=1e-3), "on one scale"


def test_what_cannot_be_compared_says_why(tmp_path, capsys):
    found, text = compared(
        tmp_path, capsys, PROFILES / "main_opt3.sqlite.xz", "--compare", PROFILES / "main_opt5.sqlite.xz"
    )
    assert "The two cannot be compared" in text and "times as fast" not in text
    assert found["comparison"]["obstacles"][0] in " ".join(Read(text).text)


def test_each_row_of_the_budget_says_how_it_was_told(made):
    """Whatever fills the time: in a phase, beside all phases, or where the program has none."""
    for number, around in enumerate((None, "forward", "a phase elsewhere")):
        report = SyntheticReport(made.path.with_name(f"{number}.sqlite")).range(0, 100, "training")
        report.kernel(2, 10, GEMM, call=(0, 1)).kernel(90, 99, POINTWISE, call=(88, 89)).copy(10, 12, 3000, call=(1, 2))
        if around:
            report.range(*((0, 100) if around == "forward" else (98, 99)), around)
        found, text = paged(report.write())
        rows = next(rows for caption, rows in Read(text).tables.items() if "add up to 100" in caption)
        told = {row[0].strip(): row[4] for row in rows[:-1]}
        assert len(told) >= 4 and all(told.values()), told
        assert {*found["budget_evidence"]} == {cause for cause, share in found["budget"].items() if share}
        assert ("outside any phase" in told["CPU code: Python, libraries"]) == (around == "a phase elsewhere"), told


# --- in a browser -------------------------------------------------------------------------------------------


def rgb(colour: str) -> str:
    """As a browser tells a colour."""
    return "rgb({}, {}, {})".format(*(round(255 * part) for part in palette.rgb(colour)))


def test_the_page_fits_narrow_and_wide_windows_light_and_dark(made, tmp_path, browser):
    long_name = "very_long_kernel_name_without_any_blank_" * 8
    small(made).kernel(45, 49, long_name, call=(42, 43)).range(41, 45, long_name)
    pages = {"long": paged(made.write())[1], "recorded": paged(PROFILES / "main_opt3.sqlite.xz")[1]}
    for name, text in pages.items():
        file = tmp_path / f"{name}.html"
        file.write_text(text)
        for width, scheme in ((360, "light"), (700, "light"), (1400, "dark")):
            tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            trouble: list[str] = []
            tab.on("console", lambda message, to=trouble: to.append(message.text))
            tab.on("request", lambda request, to=trouble: to.append(request.url))
            tab.goto(file.as_uri())
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert tab.evaluate(wide) == 0, (name, width)
            tables = "[...document.querySelectorAll('.scroll')].filter(t => t.scrollWidth > t.clientWidth).length"
            assert tab.evaluate(tables) == 0, (name, width)
            still = "[...document.querySelectorAll('figure > img')].filter(i => i.width > i.parentNode.clientWidth)"
            assert tab.evaluate(f"{still}.length") == 0, "the picture of the steps is never wider than the page"
            assert tab.evaluate(BROKEN) == [], (name, width)
            ground = tab.evaluate(GROUND)
            paper = palette.PAPER if scheme == "light" else palette.DARK["paper"]
            assert ground == rgb(paper)
            fetched = [address for address in trouble if not address.startswith("data:")]
            assert fetched == [file.as_uri()], "nothing else is fetched, nothing complains"
            assert tab.locator("main svg[tabindex='0']").count() == text.count('alt="Timeline of '), "alive"
            tab.emulate_media(media="print")
            assert tab.evaluate(GROUND) == "rgb(255, 255, 255)"
            assert tab.evaluate("getComputedStyle(document.querySelector('h1')).color") == rgb(palette.INK), "on paper"
            tab.close()


@pytest.mark.parametrize(("system", "is_light", "paper"), [("light", "false", "dark"), ("dark", "true", "light")])
def test_a_notebooks_own_theme_comes_before_the_systems(made, tmp_path, browser, system, is_light, paper):
    with open_report(small(made).write()) as report:
        own = budget(report)
        found = summary.plain(summary.summary(report, own.window, own))
        text = page.fragment(found, [pictures.draw(report, own)])
    file = tmp_path / "notebook.html"
    file.write_text(f"<body data-jp-theme-light='{is_light}'><div>{text}</div></body>")
    tab = browser.new_page(color_scheme=system)
    tab.goto(file.as_uri())
    assert tab.evaluate(GROUND) == rgb(palette.DARK["paper"] if paper == "dark" else palette.PAPER)
    assert tab.evaluate("getComputedStyle(document.body).marginTop") == "8px", "all around it stays as it is"
