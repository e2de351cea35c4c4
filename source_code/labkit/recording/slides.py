"""Which slides does a lab make? Its texts, tables and figures, one to a slide, in a page that needs no network.

python3 -m labkit.recording.slides                     labs 1 and 2, into build/slides/
python3 -m labkit.recording.slides FILE … --into DIR

(nbconvert's own slides load reveal.js from the network.) Code, exercises, checks and scores are left out. A slide that
is too large for the window is made smaller as a whole. Arrow keys, space and a click turn; printed, each is a page.
"""

from __future__ import annotations

import argparse
import base64
import html
import re
from pathlib import Path

import nbformat
from nbconvert.filters import ansi2html, markdown2html

from labkit import course
from labkit.errors import LabError, one_sentence
from labkit.paths import ROOT
from labkit.source.command import check_writable
from stepbudget.show.files import draft

USUAL = course.LABS[:2]
LEFT_OUT = re.compile(
    r"lab\.(exercise|start|finish)\(|<summary>Solution|^## Exercises|^\*\*(\d+\.\d+|On your own)", re.M
)
PICTURE = re.compile(r'src="(?!data:)([^"]+)"')
ANCHOR = re.compile(r'<a class="anchor-link".*?</a>', re.DOTALL)
CHECK = re.compile(r"^(?:✓|Prediction:|no prediction made).*\n?", re.MULTILINE)
LINK = re.compile(r'<a [^>]*href="(?!https://)[^"]*"[^>]*>(.*?)</a>', re.DOTALL)
TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
STYLE = """
body { margin: 0; background: white; color: #1a1a1a; font: 24px/1.4 system-ui, sans-serif; overflow: hidden }
section { display: none; position: absolute; inset: 0; padding: 36px 56px }
section.on { display: block }
section > div { transform-origin: 0 0; width: max-content; max-width: calc(100vw - 112px) }
table { font-size: 20px; border-collapse: collapse } td, th { padding: 0.2em 0.8em; text-align: left }
pre { font-size: 18px; white-space: pre-wrap; overflow-wrap: anywhere } img { max-width: 100% }
@media print { body { overflow: visible } section { display: block; position: static; break-after: page } }
"""
SCRIPT = """
const all = [...document.querySelectorAll("section")];
let at = 0;
function turn(to) {
  at = Math.max(0, Math.min(all.length - 1, to));
  all.forEach((one, n) => one.classList.toggle("on", n === at));
  const inner = all[at].firstElementChild;
  inner.style.transform = "none";
  const fits = Math.min(1, (innerWidth - 112) / inner.scrollWidth, (innerHeight - 72) / inner.scrollHeight);
  inner.style.transform = `scale(${fits})`;
  history.replaceState(null, "", `#${at + 1}`);
}
const keys = {ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1};
addEventListener("keydown", event => event.key in keys && turn(at + keys[event.key]));
addEventListener("click", event => event.target.closest("a, summary") || turn(at + 1));
addEventListener("resize", () => turn(at));
addEventListener("load", () => turn((parseInt(location.hash.slice(1)) || 1) - 1));
"""


def slides(file: Path) -> list[str]:
    """A lab's slides, as HTML. LabError where the file is no notebook."""
    found: list[str] = []
    is_last_shown = False
    try:
        cells = nbformat.read(file, as_version=4).cells
    except OSError as error:
        raise LabError(f"cannot read {file}: {error.strerror}. Name a notebook, as labs/05_summary.ipynb.") from error
    except Exception as error:  # nbformat has no word of its own for all that a file may be
        raise LabError(f"{file} is no notebook ({type(error).__name__}).") from error
    for cell in cells[1:-1]:  # between the navigation bars
        if LEFT_OUT.search(cell.source):
            continue
        if cell.cell_type == "markdown":
            found.append(_text(cell.source, file.parent))
            is_last_shown = False
            continue
        shown = [made for output in cell.outputs if (made := _figure(output))]
        said = CHECK.sub("", "".join(output.text for output in cell.outputs if output.output_type == "stream"))
        words = f"<pre>{ansi2html(said)}</pre>" if said else ""
        if shown:
            found += [f"{words}{shown[0]}", *shown[1:]]
        elif words and is_last_shown:
            found[-1] += words
        elif words:
            found.append(words)
        is_last_shown = is_last_shown or bool(shown or words)  # else a question's answer would join its slide
    return found


def page(file: Path) -> str:
    """All slides of a lab in one page, with all that it needs in it."""
    sections = "\n".join(f"<section><div>{slide}</div></section>" for slide in slides(file))
    title = next((lab.title for lab in course.LABS if lab.file == file.name), file.stem)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body>\n{sections}\n<script>{SCRIPT}</script></body></html>'
    )


def _text(source: str, folder: Path) -> str:
    """A text as HTML: its pictures within it, links to other pages of the course as plain words."""
    made = LINK.sub(r"\1", ANCHOR.sub("", markdown2html(source)))
    return PICTURE.sub(lambda found: f'src="{_embedded(folder / found[1])}"', made)


def _embedded(picture: Path) -> str:
    return f"data:{TYPES[picture.suffix]};base64,{base64.b64encode(picture.read_bytes()).decode()}"


def _figure(output: nbformat.NotebookNode) -> str:
    """A table or a picture of a cell's; empty for other output."""
    data = output.get("data", {})
    if "image/png" in data:
        words = html.escape(" ".join(data.get("text/plain", "").split()), quote=True)
        return f'<img alt="{words}" src="data:image/png;base64,{"".join(data["image/png"].split())}">'
    return data.get("text/html", "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m labkit.recording.slides", description="Make slides of labs.")
    parser.add_argument("files", nargs="*", type=Path, help="notebooks; default: labs 1 and 2")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "slides", help="default: build/slides")
    args = parser.parse_args()
    with one_sentence():
        check_writable(args.into)
        for file in args.files or [lab.path for lab in USUAL]:
            made = args.into / f"{file.stem}.html"
            with draft(made) as unfinished:
                unfinished.write_text(page(file), encoding="utf-8")
            print(made)


if __name__ == "__main__":
    main()
