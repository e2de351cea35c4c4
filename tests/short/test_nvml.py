"""The driver's counters: sampled from a stand-in with NVML's own names, and read back."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pynvml
import pytest

from labkit.display.fingerprint import drawn_data
from labkit.errors import LabError
from labkit.labs import lab19
from labkit.source import recorded
from labkit.subjects import nvml
from pretend_nvml import POWER_W, PretendNVML
from stepbudget.report import open_report


class Stepped(nvml.Sampler):
    """Every sample is a period later, on the stand-in's clock: how busy this machine is cannot be seen."""

    def now_s(self):
        self._nvml.now_s += self.period_s
        return self._nvml.now_s


@pytest.fixture(scope="module")
def sampler():
    with Stepped(0.005, PretendNVML()) as sampler:
        sampler._stop = waiting = Mock(wraps=sampler._stop)
        deadline = time.monotonic() + 60
        while len(sampler.samples) < 80 or sampler.samples["tensor_pct"].isna().iloc[-1]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    sampler.waits_s = {call.args[0] for call in waiting.wait.call_args_list}
    return sampler


def test_samples_may_be_looked_at_while_more_are_taken():
    """pandas counts the rows first and walks over them later."""
    taken = nvml.Sampler(0.005, PretendNVML())
    row = {"t_s": 0.0} | taken.read()
    added = threading.Thread(target=lambda: [taken._rows.append(row) for _ in range(20_000)])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        added.start()
        while added.is_alive():
            assert set(taken.samples["power_w"]) <= {POWER_W}
    finally:
        sys.setswitchinterval(interval)
        added.join()


@pytest.fixture(scope="module")
def sampled(sampler):
    return sampler.samples


def test_samples_are_a_period_apart_and_what_is_slow_is_asked_less_often(sampler):
    assert sampler.waits_s == {0.005, nvml.GPM_PERIOD_S} and nvml.GPM_PERIOD_S > 0.005


def test_the_stand_in_has_names_that_nvml_has():
    own = [name for name in dir(PretendNVML) if name.startswith("nvml")]
    assert own
    assert all(callable(getattr(pynvml, name)) for name in own)


def test_samples(sampled):
    assert list(sampled.columns) == list(nvml.COLUMNS)
    assert len(sampled) >= 80
    assert (sampled["t_s"].diff().dropna() > 0).all()
    assert (sampled["power_w"] == POWER_W).all()
    assert (sampled["instant_w"] == 260).all()
    assert sampled["temperature_c"].isna().all()  # what a GPU does not offer is missing, not zero
    assert sampled["to_gpu_mb_s"].isna().all()


def test_performance_monitoring(sampled):
    last = sampled.iloc[-1]
    assert last["sm_pct"] == 10 * pynvml.NVML_GPM_METRIC_SM_UTIL
    assert last["tensor_pct"] == 10 * pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
    assert np.isnan(last["occupancy_pct"])  # the one that this GPU does not know


def test_a_gpu_without_performance_monitoring_is_sampled_all_the_same():
    for lacks in (
        {"nvmlGpmQueryDeviceSupport": lambda gpu: SimpleNamespace(isSupportedDevice=0)},
        {"nvmlGpmSampleGet": lambda gpu, sample: PretendNVML()._raise()},
    ):
        pretend = PretendNVML()
        vars(pretend).update(lacks)
        with nvml.Sampler(0.005, pretend) as sampler:
            time.sleep(0.15)
        assert sampler.samples["tensor_pct"].isna().all()
        assert (sampler.samples["power_w"] == POWER_W).all()


def test_energy_is_power_by_time(sampled):
    assert nvml.energy_j(sampled, 0.1, 0.3) == pytest.approx(0.2 * POWER_W)
    assert np.isnan(nvml.energy_j(sampled.assign(energy_j=np.nan), 0.1, 0.3))


def test_a_mean_is_of_its_stretch_only(sampled):
    assert nvml.mean(sampled, "gpu_pct", 0.15, 0.4) == 100
    assert nvml.mean(sampled, "gpu_pct", 0.0, 0.4) < 100
    assert np.isnan(nvml.mean(sampled, "gpu_pct", 5, 6))


def test_samples_survive_a_record(sampled):
    back = nvml.from_text(nvml.as_text(sampled))
    pd.testing.assert_frame_equal(back, sampled.round(3), check_exact=False, atol=1e-3)
    with pytest.raises(LabError, match="no samples of NVML"):
        nvml.from_text("a,b\n1,2\n")


def test_how_often_the_driver_has_a_new_value():
    samples = pd.DataFrame({"t_s": np.arange(0, 2, 0.02), "gpu_pct": np.repeat(np.arange(20), 5)})
    assert nvml.update_period_s(samples, "gpu_pct") == pytest.approx(0.1)
    assert np.isnan(nvml.update_period_s(samples.assign(gpu_pct=3), "gpu_pct"))


def test_the_gpu_that_cuda_sees_is_the_one_that_is_read(monkeypatch):
    for visible, asked in (("", 0), ("2,3", 2), ("GPU-1234", "GPU-1234")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        pretend = PretendNVML()
        nvml.device(pretend)
        assert pretend.asked == [asked]


def test_a_counter_that_fails_while_sampling_is_told():
    pretend = PretendNVML()
    pretend.nvmlDeviceGetPowerUsage = lambda gpu: 1 / 0
    with pytest.raises(ZeroDivisionError), nvml.Sampler(0.005, pretend):
        time.sleep(0.05)


def test_without_the_package_or_the_driver_there_is_one_sentence(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pynvml", None)
        with pytest.raises(LabError, match="pip install nvidia-ml-py"):
            nvml.library()
    broken = ModuleType("pynvml")
    broken.NVMLError = pynvml.NVMLError

    def fails():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    broken.nvmlInit = fails
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    with pytest.raises(LabError, match="does not answer"):
        nvml.library()


def program(name: str, watts: float, epoch_s: float) -> dict:
    """A program whose start takes 4 s at 100 W, and whose three epochs draw so many watts."""
    ends = [4 + epoch_s * number for number in (1, 2, 3)]
    t = np.arange(0, ends[-1] + 1, 0.1)
    rows = pd.DataFrame(dict.fromkeys(nvml.COLUMNS, 1.0), index=range(len(t)))
    rows["t_s"], rows["gpu_pct"] = t, 50.0
    rows["energy_j"] = 100 * np.minimum(t, 4) + watts * np.clip(t - 4, 0, None)
    marks = {"begins_s": 4.0, "epoch_ends_s": ends, "process_s": ends[-1] + 1}
    return {"program": f"{name} --epochs 3", **marks, "samples": nvml.as_text(rows)}


def test_energy_of_a_training():
    shown = lab19.energy([program("a.py", 300.0, 2.0), {**program("b.py", 1, 1), "epoch_ends_s": []}])
    (row,) = shown.frame.to_dict("records")
    assert row["program"] == "a.py"
    assert (row["an epoch s"], row["an epoch J"], row["W"]) == pytest.approx((2, 600, 300))
    assert row["start-up J"] == pytest.approx(400 + 600)
    assert row["all J"] == pytest.approx(400 + 10 * 600)
    assert row["all s"] == pytest.approx(4 + 10 * 2)


def test_the_drivers_utilisation_beside_other_meanings():
    programs = [program("a.py", 300.0, 2.0), program("b.py", 300.0, 2.0)]
    samples = nvml.from_text(programs[0]["samples"])
    samples.loc[samples["t_s"].between(6.2, 7.0), "gpu_pct"] = 100.0
    watched = programs[0] | {"samples": nvml.as_text(samples)}
    assert lab19.usual_utilisation(watched) == 50.0
    found = lab19.meanings([watched, programs[1]], {"a.py": {"any work (trace)": 40.0}})
    assert found["a.py"].pop("utilisation (nvidia-smi)") > 55 and found == {"a.py": {"any work (trace)": 40.0}}
    assert set(lab19.by_name(programs)) == {"a.py", "b.py"}


def test_a_table_of_how_often_the_driver_has_a_new_value():
    watched = program("a.py", 300.0, 2.0)
    samples = nvml.from_text(watched["samples"])
    samples["gpu_pct"] = np.arange(len(samples)) // 2
    told = lab19.freshness(watched | {"samples": nvml.as_text(samples)}).frame.set_index("counter")["new every ms"]
    assert told["utilisation"] == pytest.approx(200) and np.isnan(told["power"])


def test_the_drivers_counters_stand_beside_those_of_nsight():
    own = program("a.py", 300.0, 2.0)
    samples = nvml.from_text(own["samples"])
    begins = nvml.busy_stretch(own)[0]
    samples["sm_pct"] = np.where(samples["t_s"] < begins + 0.15, 0.0, 80.0)  # GPM's values come late
    own["samples"] = nvml.as_text(samples)
    at_work = {"a.py": {"SMs Active (counter)": 82.0, "DRAM bandwidth (counter)": 1.5}}
    found = lab19.gpm_and_nsight([own, program("b.py", 1.0, 2.0)], at_work)
    row, unprofiled = found.iloc[0], found.iloc[1]
    assert np.isnan(unprofiled["sm_pct", "Nsight"]) and unprofiled["sm_pct", "driver"] == 1.0
    assert (row["sm_pct", "driver"], row["sm_pct", "Nsight"], row["dram_pct", "Nsight"]) == (80.0, 82.0, 1.5)
    assert np.isnan(row["tensor_pct", "Nsight"])
    shown = lab19.both_counters([own], at_work).frame
    assert shown.loc[0, "SMs %, driver"] == 80.0 and np.isnan(shown.loc[0, "Tensor %, Nsight"])


def test_the_recorded_counters_of_driver_and_nsight_agree_where_the_gpu_waits_for_nothing():
    """In step 7, one launch an epoch. What waits for its CPU waits longer under the profiler (lab 18)."""
    (record,) = recorded.records("benchmarks", "bench_nvml.py")
    with open_report(recorded.folder() / "profiles" / "main_opt7.sqlite.xz") as report:
        at_work = {"main_opt7.py": lab19.at_work(report)}
    found = lab19.gpm_and_nsight(record["rows"], at_work).set_index(("program", "")).loc["main_opt7.py"]
    for column in lab19.SAME_COUNTERS:
        assert found[column, "driver"] == pytest.approx(found[column, "Nsight"], abs=5)


def test_the_drivers_table_takes_power_from_the_energy_counter():
    (row,) = lab19.driver([program("a.py", 300.0, 2.0)]).frame.to_dict("records")
    assert (row["W"], row["utilisation %"]) == pytest.approx((300, 50))


def test_the_charts_show_what_was_sampled():
    slow, fast = program("a.py", 300.0, 2.0), program("a.py", 300.0, 1.0)
    pictures = [drawn_data(lab19.utilisation(programs)) for programs in ([slow], [slow], [fast])]
    assert pictures[0] == pictures[1] != pictures[2]
    rows = {"a": {"utilisation (nvidia-smi)": 100.0, "SMs Active (counter)": 0.8}}
    other = {"a": {"utilisation (nvidia-smi)": 100.0, "SMs Active (counter)": 0.9}}
    assert drawn_data(lab19.meaning_bars(rows)) != drawn_data(lab19.meaning_bars(other))


class PretendSlice(PretendNVML):
    """A slice of a GPU (MIG): most questions end in one error or another, and the driver still tells the memory."""

    def nvmlDeviceGetUtilizationRates(self, gpu):
        raise self._unsupported()

    def nvmlDeviceGetClockInfo(self, gpu, clock):
        raise pynvml.NVMLError_InvalidArgument(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):
        raise pynvml.NVMLError_NoPermission(pynvml.NVML_ERROR_NO_PERMISSION)

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu):
        raise self._unsupported()


def test_a_slice_of_a_gpu_says_less_and_nothing_stops():
    with nvml.Sampler(0.005, PretendSlice()) as sampler:
        time.sleep(0.1)
    assert sampler.samples[["gpu_pct", "sm_mhz", "energy_j"]].isna().all(axis=None)
    assert (sampler.samples["used_mb"] == 2000).all()
    assert nvml.power_limit_w(PretendSlice()) is None
    watched = program("a.py", 300.0, 1.0) | {"samples": nvml.as_text(sampler.samples)}
    assert lab19.driver([watched]).frame[["utilisation %", "W", "SM MHz"]].isna().all(axis=None)
    (ax,) = lab19.utilisation([watched]).axes
    assert "the driver does not say" in [text.get_text() for text in ax.texts]


def test_what_was_recorded_is_whole():
    (record,) = recorded.records("benchmarks", "bench_nvml.py")
    names = [row["program"].split()[0] for row in record["rows"]]
    assert {"nothing", "main_baseline.py", "main_opt7.py", "one_kernel.py"} <= set(names)
    for row in record["rows"]:
        samples = nvml.from_text(row["samples"])
        assert len(samples) > 20 * row["process_s"]
        assert all(before < after for before, after in itertools.pairwise(row["epoch_ends_s"]))
        start, end = nvml.busy_stretch(row)
        assert 0 <= start < end <= row["process_s"] + 0.1
        assert nvml.mean(samples, "power_w", start, end) < record["power_limit_w"] * 1.1
