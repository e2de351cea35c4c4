"""The timeline in a browser: a picture in a notebook that nobody trusts, and alive under a mouse where scripts run."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

import stepbudget as sb
from stepbudget.report import Report
from synthetic import SyntheticReport
from test_jupyterlab import SHOWN, page, server  # noqa: F401  (fixtures)

PICTURE, LIVE = "img.stepbudget-live", "svg[tabindex='0']"
EVIL = "<img src=x onerror=document.title='run'></text><script>document.title='run'</script>"


@pytest.fixture(scope="module")
def html(tmp_path_factory) -> str:
    """Of a report of 3 ms: kernels of 300 µs, one called as no kernel should be, and fifty of 1 µs side by side."""
    made = SyntheticReport(tmp_path_factory.mktemp("made") / "tiny.sqlite").range(0, 3000, "training")
    for at in (0, 1000, 2000):
        made.range(at, at + 480, "data loading").range(at + 480, at + 990, "forward")
        made.kernel(at + 600, at + 900, "gemm", call=(at + 570, at + 575)).counter(at + 500, 20).counter(at + 950, 5)
        made.copy(at + 420, at + 440, 3_211_264, call=(at + 405, at + 445))
    for at in range(50):
        made.kernel(1000 + 2 * at, 1001 + 2 * at, f"{EVIL}{at % 2}", call=(990, 991))
    with Report(made.write()) as report:
        return sb.timeline(report)._repr_mimebundle_()["text/html"]


def opened(tab, html: str):
    """A page of its own with nothing but the timeline; where on it a moment (ms) in a row lies."""
    tab.set_viewport_size({"width": 1000, "height": 700})
    tab.goto("about:blank")
    tab.set_content(f"<!DOCTYPE html><body>{html}</body>")
    tab.wait_for_selector(LIVE)
    place = tab.locator(LIVE).evaluate("""svg => {
      const data = JSON.parse(svg.querySelector('metadata').textContent), edge = svg.getBoundingClientRect();
      const scale = edge.width / (data.plot + data.beside);
      return [edge.left + scale * data.left, edge.top, scale, data.plot, data.rows.map(row => row.y + row.h / 2)];
    }""")
    left, top, scale, plot, rows = place
    return lambda ms, row: (left + scale * plot * ms / 3, top + scale * rows[row])


def ticks(tab) -> list[float]:
    words = tab.locator(f"{LIVE} .plot > text").all_text_contents()
    return [float(word.replace(",", "")) for word in words if word != "ms"]


def drag(tab, start: tuple[float, float], end: tuple[float, float]) -> None:
    tab.mouse.move(*start)
    tab.mouse.down()
    tab.mouse.move(*end, steps=4)
    tab.mouse.up()


PHASES, KERNELS = 1, 3


def test_a_drag_zooms_and_shift_moves_and_keys_and_a_double_click_go_back(page, html):  # noqa: F811
    at = opened(page, html)
    assert ticks(page) == [0, 0.5, 1, 1.5, 2, 2.5]
    drag(page, at(1.0, KERNELS), at(1.2, KERNELS))
    assert ticks(page)[0] == pytest.approx(1, abs=0.06) and ticks(page)[-1] == pytest.approx(1.2, abs=0.06)
    page.keyboard.down("Shift")
    drag(page, at(1.5, KERNELS), at(3.0, KERNELS))  # half of what is shown to the right: earlier
    page.keyboard.up("Shift")
    assert ticks(page)[0] == pytest.approx(0.9, abs=0.06) and ticks(page)[-1] == pytest.approx(1.1, abs=0.06)
    page.dblclick(LIVE)
    assert ticks(page) == [0, 0.5, 1, 1.5, 2, 2.5]
    page.focus(LIVE)
    for key in ("+", "+", "+", "ArrowRight"):
        page.keyboard.press(key)
    zoomed = ticks(page)
    assert zoomed[0] > 1 and zoomed[-1] < 2.6
    page.keyboard.press("-")
    assert ticks(page)[-1] - ticks(page)[0] > zoomed[-1] - zoomed[0]
    for key in ("0", "Escape"):
        page.keyboard.press("+")
        page.keyboard.press(key)
        assert ticks(page) == [0, 0.5, 1, 1.5, 2, 2.5]
    page.mouse.move(*at(2.9, KERNELS))
    page.mouse.wheel(0, -100)
    assert ticks(page) == [0, 0.5, 1, 1.5, 2, 2.5], "the wheel alone turns the page"
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function(
        "() => ![...document.querySelectorAll('svg .plot > text')].some(one => one.textContent === '0')"
    )
    assert ticks(page)[0] > 0 and ticks(page)[-1] == 2.5, "at the pointer"


def test_a_bar_says_what_it_is_and_many_in_a_pixel_how_many(page, html):  # noqa: F811
    at, hint = opened(page, html), page.locator("div[style*='fixed']")
    page.mouse.move(*at(1.75, KERNELS))
    assert hint.text_content() == "gemm\nlaunched in phase: forward\nat 1.6 ms, for 300 µs"
    page.mouse.move(*at(0.43, 4))
    assert hint.text_content().startswith(
        "host to device, pageable\n3.2 MB, launched in phase: data loading\nat 420 µs"
    )
    page.mouse.move(*at(1.75, 5))
    assert hint.text_content().startswith("Tensor Active: ")
    page.mouse.move(*at(1.05, KERNELS))
    count, words = hint.text_content().split("\n")[0].split(" ", 1)
    assert int(count) > 2 and words.startswith("kernels in ") and "busy " in words
    page.mouse.move(*at(2.95, KERNELS))
    assert hint.is_hidden(), "there is nothing"
    drag(page, at(1.0, KERNELS), at(1.1, KERNELS))
    page.mouse.move(*at(0.03, KERNELS))
    assert EVIL in hint.text_content() and page.title() != "run", "a name stays a name"


def test_it_takes_the_pages_own_ink_and_its_labels_fit(page, html):  # noqa: F811
    opened(page, f"<style>body{{background:#111;color:rgb(200,210,220)}}</style>{html}")
    ink = "getComputedStyle(document.querySelector('svg .plot > text')).fill"
    assert page.evaluate(ink) == "rgb(200, 210, 220)"
    out = """[...document.querySelectorAll('svg text')].filter(text => {
      const own = text.getBoundingClientRect(), all = text.closest('svg[tabindex]').getBoundingClientRect();
      return own.left < all.left || own.right > all.right || own.bottom > all.bottom + 1;
    }).map(text => text.textContent)"""
    assert page.evaluate(out) == []
    labels = page.locator(f"{LIVE} .plot g text")
    assert {"data loading", "forward", "matmul"} <= {*labels.all_text_contents()}


def test_where_no_script_runs_the_image_is_there(page, html):  # noqa: F811
    page.goto("about:blank")
    page.set_content(html.partition("<script>")[0])
    picture = page.locator(PICTURE)
    picture.wait_for()
    assert picture.evaluate("image => image.complete && image.naturalWidth") == 864
    assert picture.evaluate("image => image.getBoundingClientRect().height") > 200


def put(server, name: str, html: str) -> None:  # noqa: F811
    """A notebook with the output as it is stored in a clone: nobody has run it here, nobody trusts it."""
    address, token = server
    cell = new_code_cell("", outputs=[new_output("display_data", {"text/html": html, "text/plain": "Timeline"})])
    stored = json.loads(nbformat.writes(new_notebook(cells=[cell])))
    body = json.dumps({"type": "notebook", "content": stored}).encode()
    request = urllib.request.Request(f"{address}/api/contents/{name}?token={token}", body, method="PUT")
    urllib.request.urlopen(request, timeout=120).close()


def test_in_jupyterlab_an_untrusted_clone_shows_the_picture_and_a_trusted_one_is_alive(page, server, html):  # noqa: F811
    put(server, "stored.ipynb", html)
    address, token = server
    outside, errors = [], []
    host = urllib.parse.urlsplit(address).netloc
    page.on("request", lambda r: r.url.startswith(("http", "ws")) and host not in r.url and outside.append(r.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{address}/lab/tree/stored.ipynb?token={token}&reset")
    page.click(".jp-Dialog button:has-text('No Kernel')")
    picture = page.locator(f"{SHOWN} {PICTURE}")
    picture.wait_for(state="attached")
    assert picture.evaluate("image => image.complete && image.naturalWidth") == 864
    assert picture.evaluate("image => image.getBoundingClientRect().width") > 500
    assert picture.get_attribute("alt").startswith("Timeline of tiny: training (3.0 ms); ")
    assert page.locator(LIVE).count() == 0
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:trust'); }")
    page.click(".jp-Dialog button:has-text('Trust')")
    page.wait_for_selector(f"{SHOWN} {LIVE}")
    page.focus(LIVE)
    page.keyboard.press("+")
    assert ticks(page)[0] > 0
    top = "document.querySelector('.jp-WindowedPanel-outer').scrollTop"
    assert page.evaluate(top) == 0 and outside == [] and errors == []
