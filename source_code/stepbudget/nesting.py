"""Of nested ranges, which one is a moment in? The innermost: the one that began last of those that run then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def innermost(ranges: Iterable[tuple], moments: Iterable) -> Iterator[tuple | None]:
    """For each moment the innermost range; None where none runs.

    A range begins with its start and its end, which is no longer part of it. Both come in order of time, of ranges that
    start together the outer one first. They need not nest: any two may overlap.
    """
    coming = iter(ranges)
    following = next(coming, None)
    running: list[tuple] = []  # by start; some below the last may be over, none of which comes up again alive
    for moment in moments:
        while following is not None and following[0] <= moment:
            running.append(following)
            following = next(coming, None)
        while running and running[-1][1] <= moment:
            running.pop()
        yield running[-1] if running else None
