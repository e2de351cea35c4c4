"""The timeline: every event where it belongs, in the drawing and in the numbers behind it; its size, its bytes."""

from __future__ import annotations

import json
import re
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path
from xml.dom import minidom

import pytest

import stepbudget as sb
from stepbudget.ask.budget import budget
from stepbudget.ask.iterations import step_windows
from stepbudget.errors import ReportError
from stepbudget.report import Report
from stepbudget.show import svg
from stepbudget.show.timeline import ROWS, Timeline, of_budget
from stepbudget.window import Window
from synthetic import AUTOGRAD, SyntheticReport

GEMM = "sm80_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize64x64x64_stage3_tensor16x8x16_execute_kernel__5x_cublas"
POOL = "void at::native::<unnamed>::max_pool_forward_nchw<float, long>(int, const T1 *)"
EVIL = "\x1b[31m\x9b1m\u202e$\\frac{x$ <script>alert(1)</script>]]><b onload='x'>&amp; %{x}`|` \"@all\""


def steps(path: Path) -> SyntheticReport:
    """Three steps of 1,000 µs: a batch is loaded and copied; a pool kernel, then autograd's thread launches a GEMM."""
    made = SyntheticReport(path).range(0, 3000, "training")
    for at in range(0, 3000, 1000):
        made.range(at, at + 400, "data loading").range(at + 400, at + 480, "copy to device")
        made.range(at + 480, at + 560, "forward").range(at + 560, at + 690, "backward")
        made.copy(at + 420, at + 440, 3_211_264, call=(at + 405, at + 445))
        made.kernel(at + 500, at + 600, POOL, call=(at + 490, at + 495))
        made.kernel(at + 600, at + 900, GEMM, call=(at + 570, at + 575), thread=AUTOGRAD)
        made.api(at + 800, at + 960, "cudaStreamSynchronize_v3020")
        made.counter(at + 550, 0).counter(at + 650, 20)
    return made


@pytest.fixture
def report(tmp_path):
    with Report(steps(tmp_path / "tiny.sqlite").write()) as opened:
        yield opened


def numbers(packed: str) -> list[int]:
    """What ``svg._packed`` wrote."""
    found = [0]
    for digit in packed:
        value = svg.DIGITS.index(digit)
        found[-1] = 32 * found[-1] + value % 32
        found += [0] if value >= 32 else []
    return found[:-1]


def data(drawn: Timeline) -> dict:
    """What the script draws from; each row's events as (from, to, label, name, detail, count, busy), in ns."""
    (metadata,) = minidom.parseString(drawn.svg).getElementsByTagName("metadata")
    found = json.loads(metadata.firstChild.data)
    unit, texts = found["unit"], found["texts"]
    for row in found["rows"]:
        left, at, row["events"] = numbers(row.get("bars", "")), 0, []
        while left:
            (gap, length, what), left = left[:3], left[3:]
            count, busy = left[:2] if what % 2 else (1, length)
            left = left[2:] if what % 2 else left
            at += gap
            _, _, label, name, detail = found["said"][what // 2]
            words = (texts[label], texts[name], texts[detail])
            row["events"].append((at * unit, (at + length) * unit, *words, count, busy * unit))
    return found


def bars(drawn: Timeline, row: int) -> dict[str, list[tuple[float, float]]]:
    """What is drawn in a row as bars: colour → from and to in ms, as their pixels say."""
    group = re.findall(r"<g transform='translate\(0 \d+\)'>(.*?)</g>", drawn.svg)[row]
    ms = drawn.span_ns / 1e6 / svg.PLOT
    found = {}
    for fill, shape in re.findall(r"<path fill='([^']+)'[^>]*? d='(M[\d.]+ 0[^']*)'", group):
        places = re.findall(r"M([\d.]+) 0h([\d.]+)v", shape)
        found[fill] = [(round(float(x) * ms, 2), round((float(x) + float(wide)) * ms, 2)) for x, wide in places]
    return found


def texts(drawn: Timeline) -> list[str]:
    return [text.firstChild.data for text in minidom.parseString(drawn.svg).getElementsByTagName("text")]


# --- what it holds ------------------------------------------------------------------------------------------


def test_every_event_is_there_to_the_nanosecond_with_what_it_is_and_its_phase(report):
    causes, phases, main, autograd, kernels, copies, _ = data(sb.timeline(report))["rows"]
    at = [0, 1_000_000, 2_000_000]
    assert [event[:2] for event in kernels["events"]] == [
        (step + start, step + end) for step in at for start, end in ((500_000, 600_000), (600_000, 900_000))
    ]
    pool, gemm = kernels["events"][:2]
    assert pool[2:5] == ("pool", POOL, "launched in phase: forward")
    assert gemm[2:5] == ("matmul", GEMM, "launched in phase: backward")
    assert [event[:5] for event in copies["events"]] == [
        (step + 420_000, step + 440_000, "3.2 MB", "host to device, pageable",
         "3.2 MB, launched in phase: copy to device") for step in at
    ]  # fmt: skip
    assert [event[:3] for event in phases["events"]][:2] == [(0, 400_000, "data loading"),
                                                             (400_000, 480_000, "copy to device")]  # fmt: skip
    assert [event[2] for event in main["events"]][:3] == ["MemcpyAsync", "LaunchKernel", "StreamSynchronize"]
    assert len(main["events"]) == 9 and len(autograd["events"]) == 3
    assert sum(end - start for start, end, *_ in causes["events"]) == 3_000_000, "each nanosecond has one cause"


def test_a_step_is_drawn_where_it_happened(report):
    drawn = sb.timeline(report, step_windows(report)[1])
    assert drawn.title == "tiny: step 2 (1.0 ms)" and drawn.window.duration_ms == 1
    looks = svg.COLOURS
    assert bars(drawn, 1)[looks["range0"]] == [(0, 0.4)]
    assert bars(drawn, 2)[looks["synchronisation"]] == [(0.8, 0.96)]
    kernels = bars(drawn, 4)
    assert kernels[looks["other_kernels"]] == [(0.5, 0.6)]
    assert kernels[looks["tensor_core_kernels"]] == [(0.6, 0.9)], "as the budget says, which has the counter's word"
    assert [span for spans in bars(drawn, 5).values() for span in spans] == [(0.42, 0.44)]
    assert {"data loading", "matmul", "Tensor Core kernels", "pageable copy", "to 25 %"} <= {*texts(drawn)}


def test_a_window_may_be_two_times(report):
    drawn = sb.timeline(report, (1, 2.5))
    assert drawn.window.start == report.window().start + 1_000_000 and drawn.window.duration_ms == 1.5
    assert sb.timeline(report, (2, 99)).window.end == report.window().end
    for nothing in ((4, 5), (2, 1), (-1, 1)):
        with pytest.raises(ReportError, match="lasts 3 ms: nothing from"):
            sb.timeline(report, nothing)


def test_rows_can_be_chosen_and_empty_ones_say_so(tmp_path, report):
    assert [row.title for row in sb.timeline(report, rows=("kernels", "phases")).rows] == ["GPU kernels", "phases"]
    assert "phases (PyTorch): 12 ranges" in str(sb.timeline(report, marked_by="PyTorch"))
    with pytest.raises(ReportError, match=r"no such row: kernel\. Near it: kernels\."):
        sb.timeline(report, rows=["kernel"])
    with pytest.raises(ReportError, match=r"no such row: x\. There are: causes, phases"):
        sb.timeline(report, rows=["x"])
    bare = SyntheticReport(tmp_path / "bare.sqlite").os_call(0, 10, "poll").write()
    with Report(bare) as opened:
        said = {*texts(sb.timeline(opened))}
        assert of_budget(opened, budget(opened), opened.window()).rows[1:] == [], "a page leaves them out"
    assert {"no NVTX ranges in this report", "no CUDA calls in this stretch", "no kernels in this stretch",
            "no copies in this stretch", "Tensor Active was not sampled"} <= said  # fmt: skip


@pytest.mark.parametrize(("handed", "said"), [("text", "a str"), (None, "nothing"), ({}, "a dict")])
def test_what_is_no_report_is_named_by_its_type(handed, said):
    with pytest.raises(ReportError, match=f"timeline.. asks a report, .*, and was given {said}."):
        sb.timeline(handed)


def test_ranges_within_ranges_stand_below_one_another(tmp_path):
    made = SyntheticReport(tmp_path / "nested.sqlite").range(0, 100, "training")
    made.range(0, 80, "forward").range(20, 40, "loss").range(25, 30, "aten::sum, op_id = 3")
    with Report(made.write()) as report:
        outer, inner = data(sb.timeline(report, rows=["phases"]))["rows"]
    assert [event[:3] for event in outer["events"]] == [(0, 80_000, "forward")]
    assert [event[:3] for event in inner["events"]] == [(20_000, 40_000, "loss")]


def test_of_many_names_the_key_holds_those_that_last_longest(tmp_path):
    made = SyntheticReport(tmp_path / "many.sqlite").range(0, 4000, "training")
    for number in range(40):
        made.range(100 * number, 100 * number + 10 + number, f"phase {number}")
    with Report(made.write()) as report:
        key = texts(sb.timeline(report, rows=["phases"]))
    assert "phase 39" in key and "phase 28" in key and "phase 27" not in key and "and 28 other names" in key


def test_what_is_thinner_than_a_pixel_is_as_high_as_its_share_of_the_time(tmp_path):
    made = SyntheticReport(tmp_path / "dense.sqlite").range(0, 20_000, "training")
    for number in range(2000):  # busy for 4 of each 10 µs, half of that with each kernel
        made.kernel(10 * number, 10 * number + 2, POOL).kernel(10 * number + 2, 10 * number + 4, "fill")
        made.copy(10 * number, 10 * number + 1, 9)
    with Report(made.write()) as report:
        drawn = sb.timeline(report, rows=["kernels"])
    (shape,) = re.findall(r"<path fill='#0072B2'[^>]* d='(M0 28V[^']*)'", drawn.svg)
    area, height, at = 0.0, 0.0, 0.0
    for letter, number in re.findall(r"([VH])([\d.]+)", shape):
        if letter == "V":
            height = 28 - float(number)
        else:
            area, at = area + height * (float(number) - at), float(number)
    assert area / (28 * svg.PLOT) == pytest.approx(0.4, abs=0.02)


def test_the_queue_is_drawn_where_it_was(tmp_path):
    made = SyntheticReport(tmp_path / "queue.sqlite").range(0, 1000, "training")
    made.kernel(700, 800, "k", call=(650, 660)).kernel(800, 900, "k", call=(670, 680))
    with Report(made.write()) as report:
        drawn = sb.timeline(report, rows=("queue",))
        found = data(drawn)
    curve, dry = found["rows"]
    values = [round(number / 1000 * curve["top"]) for number in numbers(curve["curve"])]
    assert curve["top"] == 2 and len(values) == 2000
    assert [values[at] for at in (1298, 1301, 1345, 1599, 1602, 1799, 1802)] == [0, 1, 2, 2, 1, 1, 0]
    assert [event[:2] for event in dry["events"]] == [(0, 650_000), (900_000, 1_000_000)]
    said = "on average 0.4 queued; nothing queued 75 % of the time; a kernel 100.0 µs, a launch 20.0 µs (medians)"
    assert said in texts(drawn) and said in str(drawn)


def test_a_curve_is_the_mean_of_its_samples(tmp_path):
    made = SyntheticReport(tmp_path / "counter.sqlite").range(0, 1000, "training")
    for at in range(0, 1000, 10):
        made.counter(at, 20 if at < 500 else 60)
    with Report(made.write()) as report:
        (row,) = data(sb.timeline(report, rows=("counters",)))["rows"]
    values = [number * row["top"] / 1000 for number in numbers(row["curve"])]
    assert row["top"] == 100 and sum(values) / len(values) == pytest.approx(40, abs=0.1)
    assert values[0] == 20 and values[-1] == 60


# --- what it weighs -----------------------------------------------------------------------------------------


def test_what_is_kept_together_says_how_many_and_how_long(tmp_path):
    made = SyntheticReport(tmp_path / "many.sqlite").range(0, 1000, "training").kernel(0, 100, GEMM)
    for at in range(200, 230, 3):  # ten kernels of 2 µs, a gap of 1 µs after each
        made.kernel(at, at + 2, POOL)
    made.kernel(212, 213, POOL)  # on top of another: its time counts once
    with Report(made.write()) as report:
        (row,) = sb.timeline(report, rows=["kernels"]).rows
    together = svg.merged(row.events, 10_000)
    assert [*zip(together["start"], together["end"], together["count"], together["busy"], strict=True)] == [
        (0, 100_000, 1, 100_000), (200_000, 211_000, 4, 8_000), (212_000, 220_000, 4, 6_000),
        (221_000, 229_000, 3, 6_000),
    ]  # fmt: skip
    assert len(svg.merged(row.events, 0)) == 12


def test_a_large_report_stays_small_and_loses_no_event(tmp_path):
    made = SyntheticReport(tmp_path / "large.sqlite").range(0, 400_000, "training")
    for at in range(0, 400_000, 20):
        made.kernel(at + 10, at + 18 + at % 3, GEMM if at % 40 else POOL, call=(at + 1, at + 5))
    with Report(made.write()) as report:
        drawn = sb.timeline(report)
        bundle = json.dumps(drawn._repr_mimebundle_())
        rows = {row["what"]: row["events"] for row in data(drawn)["rows"]}
    assert len(bundle) <= 150_000
    for what in ("calls", "kernels"):
        assert sum(event[5] for event in rows[what]) == 20_000, "each is drawn, alone or with its neighbours"
        assert max(event[5] for event in rows[what]) > 1
    busy_ms = sum(event[6] for event in rows["kernels"]) / 1e6
    assert busy_ms == pytest.approx(20_000 * 9e-3, rel=0.01)
    assert "neighbours drawn together when shorter than: " in drawn.svg


def test_the_script_is_short_and_asks_for_nothing():
    assert len(svg.SCRIPT.encode()) <= 9_000
    assert not re.search(r"https?:|fetch|\b(import|eval)\b|XMLHttp", svg.SCRIPT)


# --- its bytes ----------------------------------------------------------------------------------------------


def test_its_bytes_are_the_same_each_time_and_another_reports_differ(tmp_path, report):
    first = sb.timeline(report)
    with Report(report.path) as again:
        assert sb.timeline(again)._repr_mimebundle_() == first._repr_mimebundle_()
    (tmp_path / "other").mkdir()
    with Report(steps(tmp_path / "other" / "tiny.sqlite").kernel(950, 950.001, POOL).write()) as other:
        assert sb.timeline(other).svg != first.svg


def test_two_on_a_page_share_no_name_and_each_that_is_used_is_there(report):
    drawn = [sb.timeline(report).svg, sb.timeline(report, (0, 1)).svg]
    own = [{*re.findall(r"\bid='([^']+)'", one)} for one in drawn]
    assert all(own) and not own[0] & own[1]
    for one, names in zip(drawn, own, strict=True):
        used = {*re.findall(r"url\(#([^)]+)\)", one)}
        assert used and used <= names


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.found.append((tag, dict(attrs)))


def test_it_is_an_image_and_a_script_and_text_for_who_sees_neither(report):
    bundle = sb.timeline(report)._repr_mimebundle_()
    (_, (image, look), (script, _)) = Tags(bundle["text/html"]).found
    assert (image, script) == ("img", "script")
    kind, _, source = look["src"].partition(",")
    assert kind == "data:image/svg+xml" and urllib.parse.unquote(source) == sb.timeline(report).svg
    assert "\n" not in source and not {*'<>"#&'} & {*source}
    assert look["alt"].startswith("Timeline of tiny: training (3.0 ms); where time goes: ")
    causes = data(sb.timeline(report))["rows"][0]["events"]
    assert bundle["text/plain"].splitlines() == [
        "Timeline of tiny: training (3.0 ms)",
        f"  where time goes: {len(causes)} stretches",
        "  phases (NVTX): 12 ranges",
        "  CUDA calls (main thread): 9 calls",
        "  CUDA calls (thread 2): 3 calls",
        "  GPU kernels (stream 7): 6 kernels",
        "  GPU copies: 3 copies",
        "  Tensor Active (to 25 %): 10.0 % on average",
    ]


def test_names_that_a_program_chose_stay_text(tmp_path):
    made = SyntheticReport(tmp_path / "odd.sqlite").range(0, 100, "training").range(10, 90, EVIL)
    made.kernel(20, 90, EVIL, call=(11, 12))
    with Report(made.write()) as report:
        drawn = sb.timeline(report, title=EVIL)
    bundle = drawn._repr_mimebundle_()
    assert not any(sign in text for sign in ("\x1b", "\x9b", "\u202e") for text in (drawn.svg, *bundle.values()))
    assert (
        "<script>alert" not in drawn.svg.replace(minidom_data(drawn), "") and "<script>alert" not in bundle["text/html"]
    )
    elements = {element.tagName for element in minidom.parseString(drawn.svg).getElementsByTagName("*")}
    assert elements == {"svg", "metadata", "defs", "text", "rect", "path", "g"} | ({"pattern"} & elements)
    assert any("<script>alert(1)</script>]]>" in text for text in data(drawn)["texts"]), "the name itself is there"


def minidom_data(drawn: Timeline) -> str:
    return drawn.svg[drawn.svg.index("<![CDATA[") : drawn.svg.index("]]></metadata>")]


def test_a_shorter_window_than_its_neighbours_fills_its_part_of_the_width(report):
    drawn = of_budget(report, budget(report), report.window(), span_ms=6)
    (wide,) = {float(wide) for wide in re.findall(r"<rect class='ground'[^>]* width='([\d.]+)'", drawn.svg)}
    assert wide == pytest.approx(svg.PLOT / 2, abs=0.1)
    assert max(x for spans in bars(drawn, 1).values() for _, x in spans) <= 3.01


def test_a_window_without_length_is_a_picture_too(report):
    start = report.window().start
    assert "Timeline of" in str(sb.timeline(report, Window(start, start, "nothing"), rows=[*ROWS]))
    minidom.parseString(sb.timeline(report, Window(start, start, "nothing")).svg)
