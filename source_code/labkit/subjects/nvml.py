"""What does the driver say while a program runs? Utilisation, memory, power, clocks and energy, sampled through NVML.

NVML is the library that nvidia-smi reads; Python reaches it through NVIDIA's package nvidia-ml-py (module ``pynvml``),
as ``torch.cuda.utilization()`` does. It needs no root, and the program that is watched needs no change.

Source of the fields' meaning: NVIDIA, NVML API Reference Guide.
"""

from __future__ import annotations

import io
import os
import threading
import time
from types import ModuleType

import numpy as np
import pandas as pd

from labkit.errors import LabError

# column → unit and meaning
COLUMNS = {
    "t_s": "seconds since the sampler started",
    "gpu_pct": "utilisation: per cent of the last sample period in which any kernel ran",
    "memory_pct": "per cent of that period in which device memory was read or written",
    "used_mb": "device memory in use, of all programs, 10⁶ bytes",
    "power_w": "power of the board, as the driver averages it",
    "instant_w": "power of the board now",
    "sm_mhz": "clock of the SMs",
    "temperature_c": "temperature of the GPU",
    "energy_j": "energy of the board since the driver was loaded",
    "to_gpu_mb_s": "PCIe, host to GPU, 10⁶ bytes a second",
    "from_gpu_mb_s": "PCIe, GPU to host",
    "sm_pct": "per cent of the SMs that were busy (Hopper and later)",
    "occupancy_pct": "warps that were active, per cent of the most that fit (Hopper and later)",
    "tensor_pct": "per cent of the time in which the Tensor Cores worked (Hopper and later)",
    "dram_pct": "per cent of the memory's bandwidth in use (Hopper and later)",
}
# What NVML calls GPU Performance Monitoring (GPM): from two samples of the hardware's counters, 0.1 s apart or more.
GPM = {
    "sm_pct": "NVML_GPM_METRIC_SM_UTIL",
    "occupancy_pct": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_pct": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_pct": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
GPM_PERIOD_S = 0.1
PCIE = ("to_gpu_mb_s", "from_gpu_mb_s")  # asking takes the driver 20 ms each: done in a thread of its own
PERIOD_S = 0.02


def library() -> ModuleType:
    """The module ``pynvml``, initialised; LabError where it is not installed or finds no driver."""
    try:
        import pynvml
    except ImportError as error:
        raise LabError("reading the driver's counters needs NVIDIA's package: pip install nvidia-ml-py.") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise LabError(f"NVML, the driver's library, does not answer here: {error}.") from error
    return pynvml


def device(nvml: ModuleType) -> object:
    """NVML's handle of the GPU that CUDA calls 0. NVML numbers all GPUs, CUDA those in ``CUDA_VISIBLE_DEVICES``."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first and not first.isdecimal():
        return nvml.nvmlDeviceGetHandleByUUID(first)
    return nvml.nvmlDeviceGetHandleByIndex(int(first or 0))


class Sampler:
    """Reads the driver's counters every ``period_s`` seconds in a thread while a ``with`` block runs.

    ``samples`` is then a DataFrame with the columns of COLUMNS; one that this GPU or driver does not offer is NaN.
    """

    def __init__(self, period_s: float = PERIOD_S, nvml: ModuleType | None = None) -> None:
        self.period_s = period_s
        self._nvml = nvml or library()
        self._device = device(self._nvml)
        self._rows: list[dict] = []
        self._slow = dict.fromkeys((*PCIE, *GPM))  # what other threads have read last
        self._stop = threading.Event()
        self._failed: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True)
            for work in (self._watch, self._watch_pcie, self._watch_gpm)
        ]

    def __enter__(self) -> Sampler:
        self.started = time.perf_counter()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failed is not None:
            raise self._failed

    @property
    def samples(self) -> pd.DataFrame:
        rows = list(self._rows)  # as they are now: while the block runs, its thread adds to them
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(float)

    def now_s(self) -> float:
        """Seconds since the sampler started, on the clock of ``t_s``."""
        return time.perf_counter() - self.started

    def read(self) -> dict:
        """One sample, without ``t_s``."""
        nvml, gpu = self._nvml, self._device
        used = self._ask(nvml.nvmlDeviceGetUtilizationRates, gpu)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, gpu)
        return {
            "gpu_pct": used and used.gpu,
            "memory_pct": used and used.memory,
            "used_mb": memory and memory.used / 1e6,
            "power_w": _scaled(self._ask(nvml.nvmlDeviceGetPowerUsage, gpu), 1e-3),
            "instant_w": _scaled(self._instant_mw(), 1e-3),
            "sm_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
            "temperature_c": self._ask(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
            "energy_j": _scaled(self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, gpu), 1e-3),
            **self._slow,
        }

    def _ask(self, question, *arguments):
        """What NVML answers; None where this GPU, driver or MIG slice does not say."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None

    def _instant_mw(self) -> float | None:
        answers = self._ask(self._nvml.nvmlDeviceGetFieldValues, self._device, [self._nvml.NVML_FI_DEV_POWER_INSTANT])
        return answers[0].value.uiVal if answers and answers[0].nvmlReturn == 0 else None

    def _run(self, work) -> None:
        try:
            work()
        except BaseException as error:
            self._failed = error

    def _watch(self) -> None:
        while not self._stop.wait(self.period_s):
            at = self.now_s()
            self._rows.append({"t_s": at, **self.read()})

    def _watch_pcie(self) -> None:
        nvml = self._nvml
        counters = (nvml.NVML_PCIE_UTIL_RX_BYTES, nvml.NVML_PCIE_UTIL_TX_BYTES)
        while not self._stop.wait(self.period_s):
            for name, counter in zip(PCIE, counters, strict=True):
                kilobytes = self._ask(nvml.nvmlDeviceGetPcieThroughput, self._device, counter)
                self._slow[name] = _scaled(kilobytes, 1e-3)

    def _watch_gpm(self) -> None:
        nvml = self._nvml
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(self._device).isSupportedDevice:
                return
            before, after = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(self._device, before)
            while not self._stop.wait(max(GPM_PERIOD_S, self.period_s)):
                nvml.nvmlGpmSampleGet(self._device, after)
                self._slow.update(self._between(before, after))
                before, after = after, before
            for sample in (before, after):
                nvml.nvmlGpmSampleFree(sample)
        except (AttributeError, nvml.NVMLError):  # an older package or GPU, no permission, or another profiler is there
            self._slow.update(dict.fromkeys(GPM))

    def _between(self, before: object, after: object) -> dict[str, float | None]:
        """What GPM says of the time between two of its samples."""
        nvml = self._nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        asked.sample1, asked.sample2 = before, after
        for place, name in enumerate(GPM.values()):
            asked.metrics[place].metricId = getattr(nvml, name)
        nvml.nvmlGpmMetricsGet(asked)
        found = zip(GPM, asked.metrics, strict=False)
        return {column: one.value if one.nvmlReturn == 0 else None for column, one in found}


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


# --- what the samples say -----------------------------------------------------------------------------------


def as_text(samples: pd.DataFrame) -> str:
    """The samples as CSV, for a record: times in milliseconds' precision, the rest in a thousandth of its unit."""
    return samples.round(3).to_csv(index=False)


def from_text(text: str) -> pd.DataFrame:
    """The samples of a record; LabError where the text is no such thing."""
    found = pd.read_csv(io.StringIO(text))
    if "t_s" not in found or not {*found.columns} <= {*COLUMNS}:
        raise LabError(f"these are no samples of NVML: the columns are {', '.join(found.columns)}.")
    return found.reindex(columns=list(COLUMNS)).astype(float)


def energy_j(samples: pd.DataFrame, start_s: float, end_s: float) -> float:
    """Joules of the board between two times: by its counter, interpolated between samples; NaN where it has none."""
    known = samples.dropna(subset="energy_j")
    if known.empty:
        return float("nan")
    start, end = np.interp([start_s, end_s], known["t_s"], known["energy_j"])
    return float(end - start)


def mean(samples: pd.DataFrame, column: str, start_s: float, end_s: float) -> float:
    """The mean of a column between two times; NaN where nothing was sampled then."""
    inside = samples[(samples["t_s"] >= start_s) & (samples["t_s"] < end_s)]
    return float(inside[column].mean())


def update_period_s(samples: pd.DataFrame, column: str) -> float:
    """How often the driver has a new value: the median time between changes; NaN with fewer than three changes."""
    known = samples.dropna(subset=column)
    changed = known["t_s"][known[column].diff().fillna(0) != 0].to_numpy()
    return float(np.median(np.diff(changed))) if len(changed) > 2 else float("nan")


def busy_stretch(program: dict) -> tuple[float, float]:
    """Start and end (seconds) of what a program's averages are about: its epochs after the first, else its work."""
    ends = program["epoch_ends_s"]
    if len(ends) > 1:
        return ends[0], ends[-1]
    return program.get("begins_s", 0.0), program.get("ends_s", program["process_s"])


def power_limit_w(nvml: ModuleType) -> float | None:
    """The power that the board may draw, in watts; None where the driver does not say, as of a MIG slice."""
    try:
        return nvml.nvmlDeviceGetEnforcedPowerLimit(device(nvml)) / 1e3
    except nvml.NVMLError:
        return None
