"""Each page as a newcomer has it before her: the file browser open on the left, on a laptop and on a large screen.

Nothing is wider than the room it has, no word is torn, and the wheel turns the page wherever the mouse is. Pages are
opened without a kernel, as they are stored, in one session of one browser, and measured at both widths.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from test_jupyterlab import SHOWN, page, server  # noqa: F401  (fixtures)

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ["start_here.ipynb", *(f"labs/{file.name}" for file in sorted((ROOT / "labs").glob("*.ipynb")))]
TEXTS = [f"labs/{file.name}" for file in sorted((ROOT / "labs").glob("*.md"))]
SIZES = {1366: 768, 1920: 1080}  # a laptop's screen and a large one, in CSS pixels
PREVIEW = ".jp-MarkdownViewer:not(.lm-mod-hidden)"

OPEN = """async ([path, factory]) => {
  const kernelPreference = {shouldStart: false, canStart: false, autoStartDefault: false};
  await window.jupyterapp.commands.execute('docmanager:open', {path, factory, kernelPreference});
}"""

# A list of [cell, what, its room, what is wrong], of the page in front. A cell's number counts from 0 over all cells.
MEASURE = """([notebook, preview]) => {
  const shown = document.querySelector(notebook) || document.querySelector(preview);
  const found = [];
  const wider = (element) => element.scrollWidth - element.clientWidth;
  const page = document.documentElement;
  if (wider(page) > 0) found.push(['-', 'the document', page.clientWidth, `${wider(page)} px too wide`]);
  const scroller = shown.querySelector('.jp-WindowedPanel-outer') || shown;
  const edge = scroller.getBoundingClientRect().left + scroller.clientWidth;
  const cells = [...shown.querySelectorAll('.jp-Cell')];
  (cells.length ? cells : [scroller]).forEach((cell, number) => {
    for (const element of [cell, ...cell.querySelectorAll('*')]) {
      if (!element.clientWidth) continue;
      const name = `${element.tagName.toLowerCase()}.${[...element.classList].join('.')}`;
      const text = element.textContent.trim().slice(0, 50);
      if (wider(element) > 1 && getComputedStyle(element).overflowX !== 'visible')
        found.push([number, `${name} '${text}'`, element.clientWidth, `${wider(element)} px too wide`]);
      const out = element.matches('table, pre, img, svg') ? element.getBoundingClientRect().right - edge : 0;
      if (out > 1) found.push([number, `${name} '${text}'`, element.clientWidth, `${Math.round(out)} px off the page`]);
    }
    for (const pre of cell.querySelectorAll('.jp-OutputArea-output pre, details pre')) {
      const most = pre.clientWidth / 8.5;  // characters: a longer word has to be broken
      const texts = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT);
      const range = document.createRange();
      while (texts.nextNode()) {
        const node = texts.currentNode;
        for (const word of node.data.matchAll(/[^\\s-]{2,}/g)) {
          if (word[0].length > most) continue;
          range.setStart(node, word.index);
          range.setEnd(node, word.index + word[0].length);
          if (range.getBoundingClientRect().height > 25 && range.getClientRects().length > 1)
            found.push([number, 'pre', pre.clientWidth, `'${word[0]}' is torn`]);
        }
      }
    }
  });
  return found;
}"""


@pytest.fixture(scope="module")
def lab(page, server):  # noqa: F811
    """JupyterLab as it opens for the first time."""
    address, token = server
    page.set_viewport_size({"width": 1366, "height": SIZES[1366]})
    page.goto(f"{address}/lab?token={token}&reset")
    page.wait_for_selector("#jp-main-dock-panel .lm-TabBar-tab")
    assert page.locator("#filebrowser").bounding_box()["width"] > 150  # the sidebar takes its room
    return page


def open_page(lab, path: str) -> None:
    lab.evaluate(OPEN, [path, "Notebook" if path.endswith(".ipynb") else "Markdown Preview"])
    if path.endswith(".md"):
        lab.wait_for_selector(f"{PREVIEW} .jp-RenderedMarkdown :is(h1, p)")
        return
    cells = json.loads((ROOT / path).read_text())["cells"]
    ready = """([shown, cells]) => {
      const count = (what) => document.querySelectorAll(`${shown} ${what}`).length;
      return count('.jp-Cell') === cells && count('.jp-MarkdownCell') === count('.jp-MarkdownCell .jp-RenderedMarkdown')
        && count('.jp-CodeCell') === count('.jp-CodeCell .jp-Cell-inputWrapper .cm-content');
    }"""
    lab.wait_for_function(ready, arg=[SHOWN, len(cells)])
    lab.evaluate("window.jupyterapp.commands.execute('notebook:show-all-cell-outputs')")
    pictures = f"[...document.querySelectorAll('{SHOWN} img')].every(image => image.complete)"
    lab.wait_for_function(pictures)


def close_page(lab) -> None:
    """Close it without a question: what was unfolded counts as a change."""
    lab.evaluate("window.jupyterapp.shell.currentWidget.context.model.dirty = false")
    lab.evaluate("window.jupyterapp.commands.execute('application:close')")
    lab.wait_for_function(f"!document.querySelector('{SHOWN}') && !document.querySelector('{PREVIEW}')")


def measured(lab) -> list[str]:
    """What is too wide or torn in the page in front, at each width; answers are unfolded."""
    lab.evaluate("document.querySelectorAll('#jp-main-dock-panel details').forEach(fold => fold.open = true)")
    found = []
    for width, height in SIZES.items():
        lab.set_viewport_size({"width": width, "height": height})
        lab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        for cell, what, room, wrong in lab.evaluate(MEASURE, [SHOWN, PREVIEW]):
            found.append(f"at {width} pixels, cell {cell}: {what}, room {room}: {wrong}")
    return found


@pytest.mark.parametrize("path", [*NOTEBOOKS, *TEXTS])
def test_everything_has_room_and_no_word_is_torn(lab, path):
    open_page(lab, path)
    try:
        found = measured(lab)
    finally:
        close_page(lab)
    assert not found, "\n".join([path, *found])


DOT = "data:image/gif;base64,R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs="
WORDS = " ".join("understanding"[: 5 + number % 9] for number in range(200))
WIDE = {
    "a table of numbers": f"<table><tr><td style='white-space: nowrap'>{'1,234,567 ' * 40}</td></tr></table>",
    "a line that does not break": f"<pre style='white-space: pre'>{'word ' * 60}</pre>",
    "a picture": f"<img style='max-width: none' width='1700' height='9' src='{DOT}'>",
    "a torn word": f"<pre style='word-break: break-all'>{WORDS}</pre>",
}


def test_what_is_too_wide_or_torn_is_seen(lab, server):  # noqa: F811
    """The measure itself: pages made wrong on purpose, each named; the table's code, too long a line, in the same."""
    import urllib.request

    from nbformat.v4 import new_code_cell, new_notebook, new_output, writes

    cells = [new_code_cell("", outputs=[new_output("display_data", {"text/html": html})]) for html in WIDE.values()]
    cells.append(new_code_cell("# " + "a long line " * 20))
    address, token = server
    body = json.dumps({"type": "notebook", "content": json.loads(writes(new_notebook(cells=cells)))}).encode()
    request = urllib.request.Request(f"{address}/api/contents/wide.ipynb?token={token}", body, method="PUT")
    urllib.request.urlopen(request, timeout=120).close()
    lab.evaluate(OPEN, ["wide.ipynb", "Notebook"])
    lab.wait_for_function(f"document.querySelectorAll('{SHOWN} .jp-OutputArea-output').length === {len(WIDE)}")
    found = measured(lab)
    close_page(lab)
    for width in SIZES:
        for number in range(len(cells)):
            assert any(one.startswith(f"at {width} pixels, cell {number}:") for one in found), (width, number, found)


def test_the_wheel_turns_the_page_over_the_timeline_too(lab):
    lab.set_viewport_size({"width": 1366, "height": SIZES[1366]})
    open_page(lab, "labs/01_introduction.ipynb")
    lab.evaluate("() => { window.jupyterapp.commands.execute('notebook:trust'); }")
    lab.click(".jp-Dialog button:has-text('Trust')")
    picture = lab.locator(f"{SHOWN} svg[tabindex='0']").first
    picture.scroll_into_view_if_needed()
    axis = picture.locator(".plot > text")
    before = axis.all_text_contents()
    box = picture.bounding_box()
    lab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    at = f"document.querySelector('{SHOWN} .jp-WindowedPanel-outer').scrollTop"
    top = lab.evaluate(at)
    for _ in range(20):
        lab.mouse.wheel(0, 20)
    lab.wait_for_function(f"{at} > {top} + 300")
    assert axis.all_text_contents() == before  # nothing was zoomed
    close_page(lab)
