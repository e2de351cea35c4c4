"""Which constraints hold for this environment? Their path, for pip, or nothing; and on stderr what to say of it.

python -m labkit.versions            before anything is installed: the standard library is enough
python -m labkit.versions --write    after every test passed: what is installed becomes this Python's tested set
"""

from __future__ import annotations

import argparse
import platform
import sys
from datetime import datetime, timezone

from labkit import versions


def write() -> None:
    """The tested set of this Python, from what is installed."""
    here = versions.installed()
    if versions.held_by() != versions.file_for():
        sys.exit(f"this environment's PyTorch was chosen for an older driver ({versions.HELD}): no tested set of all")
    if missing := sorted({one.name for one in versions.required(versions.PACKAGE, versions.EXTRAS)} - {*here}):
        sys.exit(f"not installed: {', '.join(missing)}. A whole set wants make keras and make test-all first")
    file = versions.file_for()
    file.write_text(
        f"# Tested together on {datetime.now(timezone.utc):%Y-%m-%d} with Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}.\n"
        "# Made by python -m labkit.versions --write (CONTRIBUTING.md, New versions).\n"
        + "".join(f"{name}=={version}\n" for name, version in here.items())
    )
    print(f"{file}: {len(here)} versions")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m labkit.versions", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="make what is installed the tested set of this Python")
    if parser.parse_args().write:
        return write()
    path, said = versions.chosen()
    if said:
        print(said, file=sys.stderr)
    if path:
        print(path)


if __name__ == "__main__":
    main()
