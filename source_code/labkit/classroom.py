"""A reader's own folder beside a course that she may only read, opened in JupyterLab.

    /where/the/course/lies/.venv/bin/python -m labkit.classroom ~/gpu-lab --no-browser
    /where/the/course/lies/.venv/bin/python -m labkit.classroom ~/gpu-lab --without-solutions

The folder gets a copy of each notebook; one that is there already is hers and stays as she left it. Her reports, runs
and predictions lie in its ``reports/``; texts, scripts and what was recorded are links to the course's own.
What follows the folder is for JupyterLab, which takes the next free port if its own is another reader's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from pathlib import Path

from labkit.errors import LabError, one_sentence
from labkit.paths import RECORDED, ROOT

SHARED = ("source_code", "README.md")  # at the course's top
FOR_TEACHERS = ("for_teachers.md", "lab_by_lab.md", "assessment.md")
SOLUTION = re.compile(r"<details><summary>Solution</summary>.*?</details>", re.DOTALL)
INSTEAD = "*The solution is with your teacher.*"


def without_solutions(notebook: str) -> str:
    """A notebook's text (JSON) with no solution in it: a sentence stands in the place of each."""
    content = json.loads(notebook)
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = SOLUTION.sub(INSTEAD, "".join(cell["source"]))
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def furnish(folder: Path, solutions: bool = True) -> int:
    """Make a folder a reader's own; how many notebooks were there already. LabError where it cannot be written.

    Without ``solutions``, the notebooks that are copied hold none.
    """
    if folder.resolve().is_relative_to(ROOT):
        raise LabError(f"{folder} lies in the course itself, which its readers share: name a folder of your own.")
    there = 0
    try:
        for name in ("images", "labs", "reports"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for notebook in (ROOT / "start_here.ipynb", *sorted((ROOT / "labs").glob("*.ipynb"))):
            own = folder / notebook.relative_to(ROOT)
            if own.exists():
                there += 1
            else:
                text = notebook.read_text(encoding="utf-8")  # not its mode: what one may only read is one's own now
                own.write_text(text if solutions else without_solutions(text), encoding="utf-8")
        for picture in (ROOT / "images").iterdir():  # Jupyter shows none that a link leads to outside its folder
            shutil.copyfile(picture, folder / "images" / picture.name)
        texts = [text for text in (ROOT / "labs").glob("*.md") if solutions or text.name not in FOR_TEACHERS]
        for original in (*(ROOT / name for name in SHARED), RECORDED, *texts):
            link = folder / original.relative_to(ROOT)
            if link.is_symlink():
                link.unlink()  # the course may have moved
            if not link.exists():
                link.symlink_to(original)
    except OSError as error:
        raise LabError(f"cannot write into {folder}: {error.strerror}. Name a folder of your own.") from None
    return there


def jupyterlab(folder: Path, more: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command that opens a reader's folder, and its environment: this Python's, with reports of her own."""
    words = [sys.executable, "-m", "jupyterlab", "--ip=127.0.0.1", f"--ServerApp.root_dir={folder}"]
    words += ["--LabApp.default_url=/lab/tree/start_here.ipynb", *(["--allow-root"] if os.geteuid() == 0 else [])]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return [*words, *more], os.environ | {"PATH": path, "LAB_REPORTS": str(folder / "reports")}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m labkit.classroom", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the reader's own; it is made if need be")
    parser.add_argument("--without-solutions", action="store_true", help="the notebooks that are copied hold none")
    args, more = parser.parse_known_args()
    folder = args.folder.expanduser().absolute()
    with one_sentence():
        there = furnish(folder, not args.without_solutions)
    print(f"{folder}: " + (f"{there} notebooks were there already, and stay" if there else "made"), flush=True)
    words, environment = jupyterlab(folder, more)
    os.execvpe(words[0], words, environment)


if __name__ == "__main__":
    main()
