"""Where does an answer go that is a file? Onto a new file or in the place of one, all of it or nothing."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stepbudget.ask.budget import budget
from stepbudget.errors import ReportError, printable
from stepbudget.report import Report
from stepbudget.show import page, pictures
from stepbudget.show import trace as traces
from stepbudget.window import Window


def written(
    html: str | None, trace: str | None, sides: Sequence[Sequence[tuple[Report, Window]]], gpu: int | None, found: dict
) -> list[str]:
    """Write the files that are asked for, and say so, a line each.

    ``sides``: the reports that were read, each with its window: of either side the first is drawn, and the trace is
    the first's; ``gpu``: number of the card, if one was asked for; ``found``: stepbudget.show.summary's object, plain.
    """
    kept = [path for side in sides for report, _ in side for path in (report.path, report.sqlite_path)]
    looked_at = [(report, budget(report, window, gpu)) for report, window in (side[0] for side in sides if side)]
    sizes = {}
    if html:
        longest_ms = max(own.window.duration_ms for _, own in looked_at)
        drawn = [pictures.draw(report, own, longest_ms) for report, own in looked_at]
        sizes[html] = write(html, [page.page(found, drawn)], kept)
    if trace:
        told = {key: found[key] for key in ("report", "gpu", "nsys_version", "range", "start_ns", "end_ns")}
        sizes[trace] = write(trace, traces.trace(*looked_at[0], told), kept)
    return [f"written: {printable(path)} ({size / 1e6:,.2f} MB)" for path, size in sizes.items()]


def write(path: str | Path, pieces: Iterable[str], kept: Iterable[Path] = ()) -> int:
    """Write a text, compressed where the name ends in ``.gz``; its bytes on disk. ReportError as ``draft``."""
    with draft(path, kept) as own:
        try:
            with own.open("wb") as stream, ExitStack() as opened:
                if str(path).endswith(".gz"):  # no name and no time in it: the same answer, the same bytes
                    stream = opened.enter_context(gzip.GzipFile("", "wb", 6, stream, mtime=0))
                stream.writelines(piece.encode() for piece in pieces)
            return own.stat().st_size
        except OSError as error:
            raise _not_written(path, error) from error


@contextmanager
def draft(path: str | Path, kept: Iterable[Path] = ()) -> Iterator[Path]:
    """An empty file to be filled, which comes into the place of ``path`` at the end: nobody ever meets half of it.

    ReportError, in one sentence, where the folder is missing, where something stands there that is no regular file or
    is one of ``kept`` (the reports that are read), or where it cannot be written.
    """
    try:
        target = Path(path).resolve()  # of a link, what it points to
        if target.is_symlink():  # Python 3.13 resolves links in a circle to one of them; before, it raised
            raise ReportError(f"{path} cannot be written: its symbolic link leads in a circle.")
        if target.exists() and not target.is_file():
            raise ReportError(f"{path} is no regular file: name another to write to.")
        if any(target == own.resolve() for own in kept):
            raise ReportError(f"{path} is a report that is read: name another file to write to.")
        if not target.parent.is_dir():
            raise ReportError(f"{path} cannot be written: there is no folder {Path(path).parent}.")
        own = target.with_name(f".{target.name[:200]}.{os.getpid()}.draft")
        own.touch(exist_ok=False)
    except (OSError, ValueError, RuntimeError) as error:  # the others: a name with a null in it, links in a circle
        raise _not_written(path, error) from error
    try:
        yield own
        try:
            own.replace(target)
        except OSError as error:
            raise _not_written(path, error) from error
    finally:
        own.unlink(missing_ok=True)


def _not_written(path: str | Path, error: Exception) -> ReportError:
    return ReportError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.")
