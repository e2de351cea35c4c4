"""What does a piece of the course's own code read like? A function, class or constant, as it stands in its file."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.display import code
from labkit.display.pieces import part
from labkit.paths import ROOT


@dataclass(frozen=True)
class Listing:
    """A piece of a file: shows itself with the file's name."""

    file: str
    text: str

    def __str__(self) -> str:
        return f"# {self.file}\n{self.text}"

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": code.block(self.file, code.coloured(self.text)), "text/plain": str(self)}


def listing(file: str, *names: str) -> Listing:
    """Pieces of a file of the checkout: ``listing("source_code/labkit/kernels/matmul.py", "TILES", "_matmul")``."""
    source = (ROOT / file).read_text()
    return Listing(file, "\n".join(part(source, name) for name in names).rstrip())
