"""What did newer versions break? The failed tests beside what differs from the tested set, in Markdown.

make test-all FLOAT=1 ARGS="--junitxml=build/newest.xml"
.venv/bin/python -m labkit.versions.newest build/newest.xml
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from labkit import versions

WIDTH = 160  # characters of an error that are shown


def failed(results: Path) -> dict[str, str]:
    """Failed tests and what was said, whole, by name; from pytest's JUnit file."""
    found = {}
    for case in ElementTree.parse(results).iter("testcase"):
        for wrong in (*case.iterfind("failure"), *case.iterfind("error")):
            name = f"{case.get('classname', '')}::{case.get('name', '')}"
            found[name] = f"{wrong.get('message') or ''}\n{wrong.text or ''}".strip()
    return found


def named_in(said: str) -> set[str]:
    """The distributions whose files a traceback passes through."""
    # The files' own folders: on Python 3.10, packages_distributions() knows only who wrote a top_level.txt.
    modules = set(re.findall(r"site-packages/(\w+)", said))
    return {
        one.name.lower().replace("_", "-")
        for one in importlib.metadata.distributions()
        if modules & {file.parts[0].removesuffix(".py") for file in one.files or ()}
    }


def page(tests: dict[str, str] | None, differs: dict[str, tuple[str, str]]) -> str:
    """The whole of it. ``tests``: what failed, or None where nothing was run."""
    lines = [f"## Python {sys.version_info[0]}.{sys.version_info[1]} with the newest versions", ""]
    if tests is None:
        lines.append("**No test was run**: the log of the step before says why.")
    elif not tests:
        lines.append("Every test passed.")
    else:
        lines += ["| failed | what was said | moved packages in its traceback |", "|---|---|---|"]
        for name, said in tests.items():
            suspects = ", ".join(sorted(named_in(said) & {*differs}))
            first = said.partition("\n")[0][:WIDTH].replace("|", "\\|")
            lines.append(f"| `{name}` | {first} | {suspects} |")
    lines += ["", f"{len(differs)} packages differ from the tested set.", ""]
    if differs:
        lines += ["| package | tested | here |", "|---|---|---|"]
        lines += [f"| {name} | {tested or '–'} | {here} |" for name, (tested, here) in differs.items()]
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m labkit.versions.newest RESULTS.xml")
    results = Path(sys.argv[1])
    print(page(failed(results) if results.is_file() else None, versions.moved(versions.file_for())))


if __name__ == "__main__":
    main()
