"""What does a piece of the course's own code read like? A function, class or constant, as it stands in its file."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.display import code
from labkit.display.pieces import part, statement
from labkit.errors import LabError, near
from labkit.paths import ROOT


@dataclass(frozen=True)
class Listing:
    """A piece of a file: shows itself with the file's name."""

    file: str
    text: str
    language: str = "python"

    def __str__(self) -> str:
        return f"# {self.file}\n{self.text}"

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": code.block(self.file, code.coloured(self.text, self.language)), "text/plain": str(self)}


def listing(file: str, *names: str) -> Listing:
    """Pieces of a file of the checkout: ``listing("source_code/labkit/kernels/matmul.py", "TILES", "_matmul")``.

    Of a ``.cu`` file, statements that begin so.
    LabError where there is no such file, or no such piece in it.
    """
    path = ROOT / file
    if not path.is_file():
        there = [one.relative_to(ROOT).as_posix() for one in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise LabError(f"there is no file {file} in the checkout. {near(file, sorted(there))}")
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".cu":
        return Listing(file, "".join(statement(source, name) for name in names).rstrip(), "cuda")
    return Listing(file, "\n".join(part(source, name) for name in names).rstrip())
