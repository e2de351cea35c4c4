"""How many loader workers are worth trying on a machine with so many cores?"""

from __future__ import annotations

KEPT_FREE = 2  # cores: one for the training loop, one for the system
LEAST_TRIED = 8  # workers wait now and then, so on few cores more of them than cores may still gain


def spare(cores: int) -> int:
    """The workers that a step starts by default on so many cores (``labkit.training.cli.spare_cores``)."""
    return max(1, cores - KEPT_FREE)


def worker_counts(cores: int) -> list[int]:
    """What the cores can spare, and powers of two until one is more than that, at least to LEAST_TRIED."""
    counts = [1]
    while counts[-1] <= spare(cores) or counts[-1] < LEAST_TRIED:
        counts.append(2 * counts[-1])
    return sorted({*counts, spare(cores)})


def few(cores: int) -> list[int]:
    """Those of them that quick mode tries: every other power of two up to the number of cores to spare, and that."""
    powers = [count for count in worker_counts(cores) if count.bit_count() == 1]
    return sorted({*(count for count in powers[::2] if count <= max(4, spare(cores))), spare(cores)})
