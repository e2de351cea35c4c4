"""Writes the notebooks as Google Colab wants them: each can be opened alone, from the address of this repository.

    python3 .colab/notebooks.py --repository https://github.com/OWNER/NAME --version COMMIT FOLDER

Colab knows one file only. So each notebook gets a first cell that fetches the rest (``start.py`` does what follows),
and its links, which lead from file to file, become addresses: of notebooks in Colab, of all else at the forge.
A workflow of the forge runs this after each change and keeps the folder as the branch ``colab``.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
BRANCH = "colab"
FORGE = "https://github.com/"  # the only one whose notebooks Colab opens by their address
LINK = re.compile(r"(?<=\]\()([^)\s\"#]+)")  # where a link of Markdown leads, without the place in the page

FIRST_CELL = """\
# Fetches the course and installs what is missing: about a minute, once for each notebook.
REPOSITORY = "{repository}"
VERSION = "{version}"

import pathlib, runpy, subprocess

COURSE = pathlib.Path.home() / "gpu-performance-lab"
if not (COURSE / ".colab").is_dir():
    COURSE.mkdir(exist_ok=True)
    fetch = ["fetch", "--quiet", "--depth", "1", REPOSITORY, VERSION]
    for words in (["init", "--quiet"], fetch, ["checkout", "--quiet", "FETCH_HEAD"]):
        subprocess.run(["git", "-C", COURSE, *words], check=True)
runpy.run_path(str(COURSE / ".colab" / "start.py"), run_name="__main__")"""


def for_colab(file: Path, repository: str, version: str) -> dict:
    """A notebook of the checkout with its first cell and its addresses, asking Colab for a T4."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = "".join(cell["source"])
            cell["source"] = LINK.sub(lambda link: address(link[1], file.parent, repository, version), text)
    source = FIRST_CELL.format(repository=repository, version=version)
    first = {"cell_type": "code", "execution_count": None, "id": "start", "metadata": {}, "outputs": []}
    notebook["cells"].insert(0, first | {"source": source})
    notebook["metadata"] |= {"accelerator": "GPU", "colab": {"gpuType": "T4", "provenance": []}}
    return notebook


def address(link: str, folder: Path, repository: str, version: str) -> str:
    """Where a link leads that is clicked far from the checkout; what is no file of the checkout stays as it is."""
    there = (folder / link).resolve()
    if not there.is_relative_to(COURSE) or not there.exists():
        return link
    path, name = there.relative_to(COURSE).as_posix(), repository.removeprefix(FORGE)
    if there.suffix == ".ipynb":
        return f"https://colab.research.google.com/github/{name}/blob/{BRANCH}/{path}"
    if there.suffix in (".svg", ".png"):
        return f"https://raw.githubusercontent.com/{name}/{version}/{path}?sanitize=true"  # else SVG is served as text
    return f"{repository}/{'tree' if there.is_dir() else 'blob'}/{version}/{path}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where they go, as start_here.ipynb and labs/")
    parser.add_argument("--repository", required=True, help=f"its address: {FORGE}OWNER/NAME")
    parser.add_argument("--version", required=True, help="the commit that the first cell fetches")
    args = parser.parse_args()
    repository = args.repository.rstrip("/").removesuffix(".git")
    if not re.fullmatch(rf"{re.escape(FORGE)}[\w.-]+/[\w.-]+", repository):
        parser.error(f"Colab opens notebooks of {FORGE}OWNER/NAME alone, and this is {args.repository}")
    for file in [COURSE / "start_here.ipynb", *sorted((COURSE / "labs").glob("*.ipynb"))]:
        target = args.folder / file.relative_to(COURSE)
        target.parent.mkdir(parents=True, exist_ok=True)
        made = for_colab(file, repository, args.version)
        target.write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
