"""By how much do two reports' clocks differ? Told by the collectives that both took part in.

A collective ends on all its ranks at nearly the same moment: none is through before all have given their part. So the
ends that belong together, each on its own report's clock, differ by the clocks' difference and little else. Its median
is the *offset*; how far the single differences lie from it is the *residual*: half of the collectives fit better than
``residual_us``, 95 % better than ``residual_95_us``. By how much one rank always ends later than the other cannot be
told from the clocks' difference. Over a long capture clocks drift apart: a line (Theil–Sen: the median of all slopes)
takes the offset's place where it leaves clearly smaller residuals. While places are compared, a quicker line stands for
it, between the medians of the first and the last third (Tukey).

Which ends belong together is told as in stepbudget.ask.collectives: by NCCL's own numbers; else by order, and where one
capture began earlier than the other, by the shift that leaves the smallest residual. Where several do almost as well
(each step is like the one before), the sessions' wall clocks decide; without them the captures count as having begun
together, and if they are not of one length the answer is *ambiguous*.

Sources: NVIDIA, NCCL User Guide, "Collective Operations"; H. Theil (1950) and P. K. Sen (1968) on the slope; Nsight
Systems' table TARGET_INFO_SESSION_START_TIME (UTC at 0 of a report's clock).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from stepbudget.ask.collectives import MOST_SHIFTS, POINT_TO_POINT, by_communicator

TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll")  # in these every rank waits for every other
LEAST_ALIKE, LEAST_BESIDE = 0.9, 0.5  # of two orders laid side by side: the same names, and kernels that overlap
AS_GOOD, AS_GOOD_NS = 2.0, 1_000  # a residual of at most twice the best, and 1 µs, is as good
LEAST_FOR_DRIFT = 20  # collectives
MOST_DRIFT = 1e-3  # of the time that passes: quartz does a thousandth of it
MOST_POINTS = 300  # for a slope: their pairs are 45,000


@dataclass(frozen=True)
class Clock:
    """How a report's clock becomes another's: time + offset_ns + drift · (time − since_ns)."""

    offset_ns: float = 0.0
    drift: float = 0.0
    since_ns: int = 0
    residual_us: float = 0.0
    residual_95_us: float = 0.0
    collectives: int = 0  # by which it was told; 0: it is the clock of reference
    is_ambiguous: bool = False

    def there(self, times: pd.Series | np.ndarray) -> np.ndarray:
        """Times of this report (ns), on the clock of reference."""
        times = np.asarray(times, dtype=np.int64)
        return times + np.rint(self.offset_ns + self.drift * (times - self.since_ns)).astype(np.int64)

    def back(self, times: pd.Series | np.ndarray) -> np.ndarray:
        """Times on the clock of reference (ns; NaN stays), on this report's; exact to a nanosecond."""
        times = np.asarray(times, dtype=np.float64)
        return times - np.rint((self.offset_ns + self.drift * (times - self.since_ns)) / (1 + self.drift))

    def after(self, other: Clock) -> Clock:
        """The way by two clocks: from this report to another, and from that one on."""
        since = self.since_ns + self.offset_ns - other.since_ns
        return Clock(
            self.offset_ns + other.offset_ns + other.drift * since,
            self.drift + other.drift,
            self.since_ns,
            self.residual_us + other.residual_us,
            self.residual_95_us + other.residual_95_us,
            min(self.collectives, other.collectives) if other.collectives else self.collectives,
            self.is_ambiguous or other.is_ambiguous,
        )


def between(one: pd.DataFrame, other: pd.DataFrame, near_ns: float | None = None) -> Clock | None:
    """The other report's clock in terms of the one's; None where no collective is common to both.

    ``one``, ``other``: kernels of collectives (columns of ``collectives.kernels``, and ``rank``), times in ns, each on
    its own report's clock, from which these must not be far (2⁵³ ns). ``near_ns``: the offset by the wall clocks.
    """
    told = by_communicator(one) and by_communicator(other)
    pairs = [(a, b) for key, a in _orders(one, told) for other_key, b in _orders(other, told) if key == other_key]
    found = [fit for a, b in pairs if (fit := _fit(a, b, near_ns)) is not None]
    return max(found, key=lambda fit: fit.collectives, default=None)


def _orders(table: pd.DataFrame, told: bool) -> list[tuple[str, pd.DataFrame]]:
    """Each rank's collectives in order: those of each communicator, with its name, where it is told; else all."""
    table = table[~table["name"].str.contains(POINT_TO_POINT)]
    if table["function"].isin(TOGETHER).any():
        table = table[table["function"].isin(TOGETHER)]
    key = table["communicator"] if told else pd.Series("", index=table.index)
    return [(str(name), own) for (_, name), own in table.groupby([table["rank"], key])]


def _fit(one: pd.DataFrame, other: pd.DataFrame, near_ns: float | None) -> Clock | None:
    """The clock by two orders of collectives, laid side by side where they fit best."""
    if one["sequence"].notna().all() and other["sequence"].notna().all():
        both = one.drop_duplicates("sequence").merge(other.drop_duplicates("sequence"), on="sequence")
        return _clock(both["end_x"].to_numpy(np.int64), both["end_y"].to_numpy(np.int64)) if len(both) else None
    a, b = (
        (own["name"].to_numpy(object), own["start"].to_numpy(np.int64), own["end"].to_numpy(np.int64))
        for own in (one, other)
    )
    tried = [made for shift in _shifts(len(one), len(other)) if (made := _laid(a, b, shift)) is not None]
    if not tried:
        return None
    best = min(residual for _, _, residual, _ in tried)
    good = [made for made in tried if made[2] <= AS_GOOD * best + AS_GOOD_NS]
    if near_ns is not None:
        chosen = min(good, key=lambda made: abs(made[1] - near_ns))
    else:
        chosen = min(good, key=lambda made: (abs(made[0]), made[2]))
    is_ambiguous = near_ns is None and len(one) != len(other) and len(good) > 1
    return _clock(*chosen[3], is_ambiguous)


def _shifts(one: int, other: int) -> range:
    """By how many places the other order may begin later (or, negative, earlier) than the one: half of it beside it."""
    half = -(-min(one, other) // 2)
    return range(max(half - other, -MOST_SHIFTS), min(one - half, MOST_SHIFTS) + 1)


def _laid(
    one: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...], shift: int
) -> tuple[int, float, float, tuple[np.ndarray, np.ndarray]] | None:
    """Two orders (names, starts, ends) side by side: shift, offset, its residual (ns), and the ends that match.

    The residual that three quarters stay below: two of three may well agree by chance. None where they do not fit.
    """
    first, second = max(shift, 0), max(-shift, 0)
    count = min(len(one[0]) - first, len(other[0]) - second)
    (names, start, end), (other_names, other_start, other_end) = (
        [column[begin : begin + count] for column in own] for own, begin in ((one, first), (other, second))
    )
    alike = names == other_names
    if alike.mean() < LEAST_ALIKE:
        return None
    start, end, other_start, other_end = (times[alike] for times in (start, end, other_start, other_end))
    since = other_end - other_end[len(other_end) // 2]
    straight = _thirds(since, end - other_end) * since  # without it a long capture's clocks fit nowhere
    differences = end - other_end - straight
    offset = float(np.median(differences))
    there = offset + straight
    beside = np.maximum(start, other_start + there) < np.minimum(end, other_end + there)
    if beside.mean() < LEAST_BESIDE:
        return None
    return shift, offset, float(np.quantile(np.abs(differences - offset), 0.75)), (end, other_end)


def _thirds(times: np.ndarray, values: np.ndarray) -> float:
    """The slope from the first third to the last, by their medians: a drift, quickly told; 0 where it cannot be one."""
    third = len(times) // 3
    if len(times) < LEAST_FOR_DRIFT:
        return 0.0
    run, rise = (np.median(column[-third:]) - np.median(column[:third]) for column in (times, values))
    return float(rise / run) if abs(rise) <= MOST_DRIFT * run else 0.0


def _clock(one: np.ndarray, other: np.ndarray, is_ambiguous: bool = False) -> Clock:
    """The clock by ends that belong together, with a drift where that leaves clearly smaller residuals."""
    differences, since = (one - other).astype(np.float64), int(np.median(other))
    offset, drift = float(np.median(differences)), 0.0
    residuals = np.abs(differences - offset)
    if len(differences) >= LEAST_FOR_DRIFT:
        slope = _slope(other - since, differences)
        line = float(np.median(differences - slope * (other - since)))
        left = np.abs(differences - line - slope * (other - since))
        if abs(slope) <= MOST_DRIFT and np.median(left) < 0.7 * np.median(residuals):
            offset, drift, residuals = line, slope, left
    half, most = np.quantile(residuals, (0.5, 0.95)) / 1e3
    return Clock(offset, drift, since, float(half), float(most), len(differences), is_ambiguous)


def _slope(times: np.ndarray, values: np.ndarray) -> float:
    """The median of the slopes of all pairs, of points evenly chosen."""
    chosen = np.unique(np.linspace(0, len(times) - 1, min(len(times), MOST_POINTS)).astype(int))
    first, second = np.triu_indices(len(chosen), 1)
    run = (times[chosen][second] - times[chosen][first]).astype(np.float64)
    rise = values[chosen][second] - values[chosen][first]
    return float(np.median(rise[run != 0] / run[run != 0])) if (run != 0).any() else 0.0
