"""The timeline to look around in: what it holds, what it may weigh, how it is compared, and that a mouse moves it."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import nbformat
import numpy as np
import pytest
from matplotlib.text import Text
from nbformat.v4 import new_code_cell, new_notebook, new_output
from PIL import Image

from labkit.display import show
from labkit.display.charts import explorer as exploring
from labkit.display.charts.budgets import budget_bars, budget_share_bars
from labkit.display.charts.explorer import PLOTLY_MIME, Exploration, explore
from labkit.display.charts.flow import queue_depth, step_chart
from labkit.display.charts.timelines import MOST_KINDS, OTHERS, PIXELS, timeline
from labkit.errors import LabError
from stepbudget.ask.budget import budget
from stepbudget.ask.iterations import step_windows
from stepbudget.report import Report
from synthetic import AUTOGRAD, SyntheticReport
from test_jupyterlab import CHROMIUM, REQUIRED, page, server  # noqa: F401  (fixtures)

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "reports" / "recorded" / "h200" / "profiles"
GEMM = "sm80_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize64x64x64_stage3_tensor16x8x16_execute_kernel__5x_cublas"
POOL = "void at::native::<unnamed>::max_pool_forward_nchw<float, long>(int, const T1 *)"


def synthetic(path: Path, gemm_us: float = 300, steps: int = 3) -> Report:
    """Steps of 1,000 µs: a batch is loaded and copied; a pool kernel, then autograd's thread launches a GEMM."""
    made = SyntheticReport(path).range(0, 1000 * steps, "training")
    for at in range(0, 1000 * steps, 1000):
        made.range(at, at + 400, "data loading").range(at + 400, at + 480, "copy to device")
        made.range(at + 480, at + 560, "forward").range(at + 560, at + 690, "backward")
        made.copy(at + 420, at + 440, 3_211_264, call=(at + 405, at + 445))
        made.kernel(at + 500, at + 600, POOL, call=(at + 490, at + 495))
        made.kernel(at + 600, at + 600 + gemm_us, GEMM, call=(at + 570, at + 575), thread=AUTOGRAD)
        made.api(at + 800, at + 960, "cudaStreamSynchronize_v3020")
        made.counter(at + 550, 0).counter(at + 650, 20)
    return Report(made.write())


@pytest.fixture
def report(tmp_path):
    with synthetic(tmp_path / "tiny.sqlite") as opened:
        yield opened


def array(spec: object) -> np.ndarray:
    """An array as plotly's JSON holds it: a list, or typed and in base64."""
    if isinstance(spec, list):
        return np.array(spec)
    flat = np.frombuffer(base64.b64decode(spec["bdata"]), dtype=np.dtype(spec["dtype"]).newbyteorder("<"))
    return flat.reshape([int(n) for n in str(spec.get("shape", len(flat))).split(",")])


def bars(shown, row: int) -> list[tuple[str, float, float]]:
    """Hover text, start and length (ms) of each bar that plotly draws in the row of that number."""
    found = []
    for trace in shown.json["data"]:
        if trace["type"] == "bar" and trace["yaxis"] == ("y" if row == 1 else f"y{row}"):
            spans = zip(array(trace["base"]).tolist(), array(trace["x"]).tolist(), strict=True)
            found += [(trace["hovertemplate"], round(start, 6), round(length, 6)) for start, length in spans]
    return sorted(found, key=lambda bar: bar[1:])


# --- what it holds ------------------------------------------------------------------------------------------


def test_every_event_is_a_bar_with_its_name_its_times_and_its_phase(report):
    shown = explore(report)
    phases, api, kernels, copies = (bars(shown, row) for row in (1, 2, 3, 4))
    assert [bar[1:] for bar in kernels] == [
        (at + start, length) for at in (0, 1, 2) for start, length in ((0.5, 0.1), (0.6, 0.3))
    ]
    pool, gemm = kernels[0][0], kernels[1][0]
    assert pool.startswith("<b>max_pool_forward_nchw&lt;…&gt;</b><br>no Tensor Cores<br>launched in phase: forward")
    assert "launched in phase: backward" in gemm and "<br>Tensor Cores<br>" in gemm
    assert [(start, length) for _, start, length in copies] == [(0.42, 0.02), (1.42, 0.02), (2.42, 0.02)]
    assert "copy of 3.2 MB from pageable memory" in copies[0][0] and "copy to device" in copies[0][0]
    assert [bar[1:] for bar in phases][:4] == [(0, 0.4), (0.4, 0.08), (0.48, 0.08), (0.56, 0.13)]
    assert len(api) == 12 and "<b>cudaMemcpyAsync</b><br>copy<br>in phase: copy to device" in api[0][0]
    (curve,) = (trace for trace in shown.json["data"] if trace["type"] == "scatter")
    assert np.nanmax(array(curve["y"])) == 20


def test_only_the_time_axis_moves_and_never_out_of_the_window(report):
    plot = explore(report, step_windows(report)[1]).json
    layout, config = plot["layout"], plot["config"]
    assert (layout["xaxis"]["range"], layout["xaxis"]["minallowed"], layout["xaxis"]["maxallowed"]) == ([0, 1], 0, 1)
    assert all(layout[f"yaxis{number}"]["fixedrange"] for number in ("", 2, 3, 4, 5))
    assert layout["yaxis5"]["range"] == [0, 100] and layout["yaxis5"]["ticktext"] == [" 100 %"]
    assert layout["dragmode"] == "zoom" and not config["scrollZoom"] and not config["displaylogo"]


def test_rows_can_be_chosen_and_empty_ones_say_so(tmp_path, report):
    shown = explore(report, rows=("kernels", "phases"))
    assert len(bars(shown, 1)) == 6 and len(bars(shown, 2)) == 12
    with pytest.raises(LabError, match="no such row: kernel"):
        explore(report, rows=("kernel",))
    bare = SyntheticReport(tmp_path / "bare.sqlite").api(0, 10, "cudaMalloc").write()
    with Report(bare) as opened:
        words = [note["text"] for note in explore(opened).json["layout"]["annotations"]]
    assert {"no kernels in this stretch", "no NVTX ranges in this stretch", "Tensor Active was not sampled"} <= {*words}


def test_names_that_look_like_markup_stay_text(tmp_path):
    made = (
        SyntheticReport(tmp_path / "odd.sqlite")
        .range(0, 100, "training")
        .range(10, 50, "a<b>%{x}</b>", registered=True)
    )
    with Report(made.write()) as opened:
        shown = explore(opened)
    text = bars(shown, 1)[0][0]
    assert text.startswith("<b>a&lt;b&gt;") and "%{x}" not in text.partition("<br>")[0]
    assert [trace["name"] for trace in shown.json["data"]] == ["a&lt;b&gt;% {x}&lt;/b&gt;"]


def large(path: Path, kinds: int = 1) -> Report:
    """5,000 kernels, each in an operator's range, in 100 ranges of so many names."""
    made = SyntheticReport(path).range(0, 100_000, "training")
    for at in range(0, 100_000, 20):
        made.range(at, at + 9, f"aten::op{at % 7}, seq = {at}").kernel(at + 10, at + 18, GEMM, call=(at + 1, at + 5))
        if at % 1000 == 0:
            made.range(at, at + 500, f"phase {at // 1000 % kinds}")
    return Report(made.write())


def test_however_often_the_bars_are_merged_anew_the_picture_is_drawn_and_written_once(tmp_path, monkeypatch):
    calls = []
    for owner, name in ((exploring, "drawn_data"), (exploring.Figure, "savefig"), (exploring.timelines, "timeline")):
        drawn = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *a, _name=name, _drawn=drawn, **k: (calls.append(_name), _drawn(*a, **k))[1]
        )
    monkeypatch.setattr(exploring, "MOST_BYTES", 90_000)
    rounds = []
    monkeypatch.setattr(exploring, "Exploration", lambda *a: rounds.append(Exploration(*a)) or rounds[-1])
    with large(tmp_path / "large.sqlite") as report:
        shown = explore(report)
        assert shown.bytes <= 90_000 and len(rounds) > 1
        shown._repr_mimebundle_()
    assert sorted(calls) == ["drawn_data", "savefig", "timeline"]


def test_what_goes_into_the_picture_does_not_grow_with_the_report(tmp_path):
    with large(tmp_path / "large.sqlite", kinds=50) as report:
        assert len(report.ranges) > 5_000 == len(report.kernels)
        phases, *_ = (fig := timeline(report)).axes
        assert sum(len(bars.get_paths()) for bars in phases.collections) == 100, "the operators are left out"
        key = [text.get_text() for text in fig.legends[-1].get_texts()]
        assert len(key) == MOST_KINDS + 1 and key[-1] == OTHERS
        assert {trace["name"] for trace in explore(report, rows=("phases",)).json["data"]} == {*key}
        assert drawn_spans(explore(report)) < 6_000
    made = SyntheticReport(tmp_path / "dense.sqlite").range(0, 100_000, "training")
    for at in range(0, 100_000, 10):
        made.range(at, at + 5, "forward").range(at + 5, at + 10, "backward").copy(at, at + 2, 9, call=(at, at + 1))
    with Report(made.write()) as report:
        phases, _, _, copies, _ = timeline(report).axes
        assert all(len(bars.get_paths()) <= PIXELS for ax in (phases, copies) for bars in ax.collections)
        assert len(phases.collections) == 2


def drawn_spans(shown: Exploration) -> int:
    return sum(len(array(trace["x"])) for trace in shown.json["data"] if trace["type"] == "bar")


@pytest.mark.parametrize("name", ["${", "$\\frac{$", "$a_{$ %{x}"])
def test_a_dollar_in_a_name_is_a_dollar(tmp_path, name):
    made = SyntheticReport(tmp_path / "odd.sqlite").range(0, 100, "training").range(10, 50, name)
    made.kernel(20, 90, name, call=(11, 12)).range(60, 99, "data loading")
    with Report(made.write()) as report:
        drawings = [
            timeline(report, title=name), step_chart({name: report}),
            *(draw({name: budget(report)}) for draw in (budget_bars, budget_share_bars)),
        ]  # fmt: skip
        show._png(queue_depth(report))
        for fig in drawings:
            show._png(fig)
            assert any(text.get_text() == name for text in fig.findobj(Text))
        assert explore(report)._repr_mimebundle_()["image/png"]


# --- what it weighs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["main_baseline_nvtx", "main_opt3"])
def test_a_whole_recorded_epoch_stays_small(name):
    with Report(RECORDED / f"{name}.sqlite.xz") as opened:
        shown = explore(opened)
        window = opened.window()
        kernels = opened.kernels[(opened.kernels["end"] > window.start) & (opened.kernels["start"] < window.end)]
        cell = new_code_cell(outputs=[new_output("execute_result", shown._repr_mimebundle_())])
        weight = len(nbformat.writes(new_notebook(cells=[cell])).encode())
        assert weight < 300_000
        strips = shown.rows["kernels"].strips
        drawn = sum(len(strip.spans) if strip.counts is None else strip.counts.sum() for strip in strips)
        assert drawn == len(kernels) > 3000  # each is drawn, alone or with its neighbours


def test_what_is_drawn_together_says_how_many_and_how_long(tmp_path, monkeypatch):
    monkeypatch.setitem(exploring.MOST_BARS, "kernels", 4)
    made = SyntheticReport(tmp_path / "many.sqlite").range(0, 1000, "training").kernel(0, 100, GEMM)
    for at in range(200, 230, 3):  # ten kernels of 2 µs, a gap of 1 µs after each
        made.kernel(at, at + 2, POOL)
    made.kernel(212, 213, POOL)  # on top of another: its time counts once
    with Report(made.write()) as opened:
        row = explore(opened).rows["kernels"]
    assert row.resolution_ns == 10_000
    alone, together = row.strips
    assert alone.spans.tolist() == [[0, 100_000]] and alone.counts is None
    assert together.spans.tolist() == [[200_000, 211_000], [212_000, 220_000], [221_000, 229_000]]
    assert together.counts.tolist() == [4, 4, 3] and together.busy.tolist() == [8_000, 6_000, 6_000]


# --- how it is compared -------------------------------------------------------------------------------------


def test_the_output_is_the_same_each_time_and_readable_without_plotly(report):
    first, second = (explore(report)._repr_mimebundle_() for _ in range(2))
    assert first == second
    assert set(first) == {PLOTLY_MIME, "image/png", "text/plain"}
    assert Image.open(io.BytesIO(base64.b64decode(first["image/png"]))).size[0] == 900
    assert first["text/plain"].startswith("tiny: training (3.0 ms), to pan and zoom [drawn data: ~")
    assert "~" not in repr(explore(report, measured=False))
    json.dumps(first, allow_nan=False)


def test_a_kernel_one_nanosecond_longer_changes_the_fingerprint(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
    with synthetic(tmp_path / "a" / "tiny.sqlite") as one, synthetic(tmp_path / "b" / "tiny.sqlite", 300.001) as other:
        assert repr(explore(one)) != repr(explore(other))


def run_nbval(folder: Path, source: str, *outputs: list) -> subprocess.CompletedProcess:
    """``pytest --nbval`` on a notebook with this cell once for each of its outputs."""
    cells = [new_code_cell(source, execution_count=number, outputs=own) for number, own in enumerate(outputs, 1)]
    nbformat.write(new_notebook(cells=cells), folder / "explored.ipynb")
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", "-rA", "explored.ipynb"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=os.environ | {"LAB_MODE": "recorded"}
    )


def test_nbval_compares_the_fingerprint_and_not_the_json(tmp_path):
    """Another plotly may write other JSON; another report has another fingerprint."""
    synthetic(tmp_path / "tiny.sqlite").close()
    source = "from labkit.display.charts.explorer import explore\nfrom stepbudget.report import Report\n"
    source += "explore(Report('tiny.sqlite'))"
    with Report(tmp_path / "tiny.sqlite") as opened:
        bundle = explore(opened)._repr_mimebundle_()
    bundle[PLOTLY_MIME] = {"data": [], "layout": {}}
    other = bundle | {"text/plain": bundle["text/plain"].replace("[drawn data: ~", "[drawn data: ~0")}
    outputs = [new_output("execute_result", own, execution_count=n) for n, own in enumerate((bundle, other), 1)]
    done = run_nbval(tmp_path, source, *([output] for output in outputs))
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout
    assert "PASSED explored.ipynb::Cell 0" in done.stdout and "mismatch 'text/plain'" in done.stdout, done.stdout


# --- that a mouse moves it ----------------------------------------------------------------------------------

PLOT = ".jp-RenderedPlotly"
needs_browser = pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="no Chromium on this machine")


def axis(tab) -> list[float]:
    return tab.evaluate(f"document.querySelector('{PLOT}')._fullLayout.xaxis.range")


def wait_for_axis(tab, condition: str) -> None:
    tab.wait_for_function(f"(([from, to]) => {condition})(document.querySelector('{PLOT}')._fullLayout.xaxis.range)")


def settled_axis(tab) -> list[float]:
    """The range, once it no longer moves."""
    before = None
    while before != (now := axis(tab)):
        before = now
        tab.wait_for_timeout(500)
    return now


def bring_to_life(tab) -> None:
    """Put the mouse over the picture, again where the page still moved under it."""
    from playwright import sync_api as playwright

    for _ in range(10):
        box = tab.locator(PLOT).bounding_box()
        tab.mouse.move(5, 5)
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=3)
        with contextlib.suppress(playwright.TimeoutError):
            tab.wait_for_selector(f"{PLOT} .main-svg", timeout=3_000)
            return
    raise AssertionError("the picture never became a plot")


@needs_browser
def test_in_jupyterlab_it_pans_and_zooms_without_kernel_or_network(page, server, report):  # noqa: F811
    shown = explore(report)
    cell = new_code_cell("", outputs=[new_output("display_data", shown._repr_mimebundle_())])
    stored = json.loads(nbformat.writes(new_notebook(cells=[cell])))
    address, token = server
    body = json.dumps({"type": "notebook", "content": stored}).encode()
    request = urllib.request.Request(f"{address}/api/contents/explored.ipynb?token={token}", body, method="PUT")
    urllib.request.urlopen(request, timeout=120).close()

    outside, errors = [], []
    host = urllib.parse.urlsplit(address).netloc
    page.on("request", lambda r: r.url.startswith(("http", "ws")) and host not in r.url and outside.append(r.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{address}/lab/tree/explored.ipynb?token={token}&reset")
    page.click(".jp-Dialog button:has-text('No Kernel')")
    picture = page.locator(f"{PLOT} img.plot-img")
    picture.wait_for(state="attached")
    assert picture.evaluate("img => img.naturalWidth") == 900  # at first, the static picture
    bring_to_life(page)
    page.wait_for_function(f"document.querySelectorAll('{PLOT} .bars .point').length === {shown.bars}")
    assert axis(page) == [0, 3]

    rows = page.locator(f"{PLOT} .nsewdrag[data-subplot='xy3']").bounding_box()
    middle = rows["x"] + rows["width"] / 2, rows["y"] + rows["height"] / 2

    def drag(start: int, end: int) -> None:
        page.mouse.move(middle[0] + start, middle[1])
        page.mouse.down()
        page.mouse.move(middle[0] + end, middle[1], steps=4)
        page.mouse.up()

    drag(-100, 100)
    wait_for_axis(page, "to - from < 1.5")
    start, end = settled_axis(page)
    assert start < 1.5 < end  # it shows the stretch that was marked
    page.keyboard.down("Shift")
    drag(0, 60)
    page.keyboard.up("Shift")
    wait_for_axis(page, f"from < {start} - 1e-3")
    moved = settled_axis(page)
    assert moved[1] - moved[0] == pytest.approx(end - start)
    heights = f"[2, 3, 4].map(n => document.querySelector('{PLOT}')._fullLayout['yaxis' + n].range)"
    assert page.evaluate(heights) == [[-0.5, 0.5]] * 3  # the rows stay where they are

    kernel = page.locator(f"{PLOT} .xy3 .bars .point path").nth(1)
    kernel.hover(force=True)
    page.wait_for_selector(f"{PLOT} .hoverlayer text")
    words = page.locator(f"{PLOT} .hoverlayer").text_content()
    assert "launched in phase: " in words and " ms, for " in words
    assert outside == [] and errors == []
