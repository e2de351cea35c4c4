"""The benchmark of more roofs: what it makes of clocks, sums and seconds; the seconds themselves are a GPU's."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from labkit import paths
from labkit.errors import LabError
from labkit.kernels import bandwidth
from labkit.subjects import floors, nvml
from pretend_nvml import PretendNVML

CPU = torch.device("cpu")


@pytest.fixture
def bench(monkeypatch):
    """``bench_roofs`` where each call takes 0.01 s by the GPU's clock, and kernels add up what their references say."""
    monkeypatch.syspath_prepend(paths.BENCHMARKS)  # where they lie when they run
    import bench_peaks
    import bench_roofs

    def times(work, repeats, calls=1):
        work()
        time.sleep(0.2)
        return [0.01] * repeats

    def read(sums, clocks, rounds):
        sums.copy_(bandwidth.shared_reference(rounds).repeat(len(clocks)))
        clocks.fill_(bandwidth.BYTES * rounds // 128)

    def again(numbers, sums, rounds):
        assert numbers.numel() % (4 * bandwidth.UNDER_WAY * len(sums)) == 0
        sums.zero_()[0] = bandwidth.again_reference(numbers, rounds)

    sampler = nvml.Sampler
    monkeypatch.setattr(nvml, "Sampler", lambda: sampler(0.02, PretendNVML()))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=2))
    for module in (bench_peaks, bench_roofs):
        monkeypatch.setattr(module, "gpu_times", times)
    for name, value in {"BUFFER_GB": 0.01, "L2_MB": 1, "ZEROS": [(0.0, "left"), (1.0, "both")]}.items():
        monkeypatch.setattr(bench_roofs, name, value)
    monkeypatch.setattr(bandwidth, "shared_reads", read)
    monkeypatch.setattr(bandwidth, "again", again)
    return bench_roofs


def test_roofs_and_floors_from_one_run(bench):
    rows = [*bench.products(CPU, 64, 0.1), *bench.memory(CPU), *bench.caches(CPU, bench.L2_MB)]
    assert [row["what"] for row in rows] == ["product", "product", "copy", "read", "shared", "l2", "again"]
    assert rows[0]["tflops"] == rows[0]["brief_tflops"] == pytest.approx(2 * 64**3 / 0.01 / 1e12)
    assert (rows[0]["mhz"], rows[0]["watts"]) == (1980.0, 260.0)
    shared = next(row for row in rows if row["what"] == "shared")
    assert shared["per_clock"] == 128 and shared["multiprocessors"] == 2
    found = floors.roofs([{"gpu": "a GPU", "rows": rows}])
    assert found.shared_tb_per_s == pytest.approx(128 * 2 * 1980 / 1e6)
    assert min(floors.floors(found).values()) > 0


def test_without_nvidias_package_the_clock_is_unknown(bench, monkeypatch):
    def missing():
        raise LabError("no package")

    monkeypatch.setattr(nvml, "Sampler", missing)
    assert bench.watched(lambda: None, 0.1)[1] == {"mhz": None, "watts": None}


def test_what_was_not_read_stops_the_benchmark(bench, monkeypatch):
    monkeypatch.setattr(bandwidth, "shared_reads", lambda sums, clocks, rounds: clocks.fill_(1))
    with pytest.raises(AssertionError, match="shared memory: wrong sums"):
        next(bench.caches(CPU, 1))
