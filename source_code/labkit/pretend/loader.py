"""What was a DataLoader asked for? A stand-in for PyTorch's, for exercises that try a reader's call of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral


class PretendLoader:
    """Takes what ``torch.utils.data.DataLoader`` takes, refuses what it refuses, and starts nothing.

    ``workers``, ``pinned`` and ``kept`` (its workers, from epoch to epoch) are ``num_workers``, ``pin_memory`` and
    ``persistent_workers``; ``ahead`` is how many batches the workers fetch before they are asked for. ValueError as
    PyTorch's, and TypeError for a name that it does not know.
    """

    def __init__(
        self,
        dataset: object,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable | None = None,
        batch_sampler: Iterable | None = None,
        num_workers: int = 0,
        collate_fn: Callable | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable | None = None,
        multiprocessing_context: object = None,
        generator: object = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        if not isinstance(num_workers, Integral) or num_workers < 0:
            raise ValueError("num_workers option should be a whole number, and not negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError("prefetch_factor option needs num_workers > 0")
        if num_workers == 0 and persistent_workers:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if shuffle and sampler is not None:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        self.dataset, self.batch_size, self.shuffle, self.sampler = dataset, batch_size, shuffle, sampler
        self.workers, self.pinned, self.kept, self.drop_last = num_workers, pin_memory, persistent_workers, drop_last
        self.ahead = num_workers * (prefetch_factor or 2)
