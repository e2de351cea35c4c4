"""NVML, the driver's library of counters, as a stand-in with its own names."""

from types import SimpleNamespace

import pynvml

from labkit.subjects import nvml

POWER_W = 250.0


class PretendNVML:
    """A GPU that draws 250 W, whose first 0.1 s are idle, and that knows neither temperature nor PCIe."""

    NVMLError, NVMLError_NotSupported = pynvml.NVMLError, pynvml.NVMLError_NotSupported
    NVMLError_NoPermission = pynvml.NVMLError_NoPermission

    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked: list[object] = []
        for name in ("NVML_CLOCK_SM", "NVML_TEMPERATURE_GPU", "NVML_FI_DEV_POWER_INSTANT"):
            setattr(self, name, getattr(pynvml, name))
        for name in ("NVML_PCIE_UTIL_RX_BYTES", "NVML_PCIE_UTIL_TX_BYTES", "NVML_GPM_METRICS_GET_VERSION"):
            setattr(self, name, getattr(pynvml, name))
        for name in ("c_nvmlGpmMetricsGet_t", *nvml.GPM.values()):
            setattr(self, name, getattr(pynvml, name))

    def nvmlDeviceGetHandleByIndex(self, index):
        self.asked.append(index)
        return "gpu"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.asked.append(uuid)
        return "gpu"

    def nvmlDeviceGetUtilizationRates(self, gpu):
        return SimpleNamespace(gpu=0 if self.now_s < 0.1 else 100, memory=7)

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return SimpleNamespace(used=2_000_000_000)

    def nvmlDeviceGetPowerUsage(self, gpu):
        return round(1000 * POWER_W)

    def nvmlDeviceGetFieldValues(self, gpu, fields):
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=260_000)) for _ in fields]

    def nvmlDeviceGetClockInfo(self, gpu, clock):
        return 1980

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        raise self._unsupported()

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):
        return round(1000 * POWER_W * self.now_s)

    def nvmlDeviceGetPcieThroughput(self, gpu, counter):
        raise self._unsupported()

    def nvmlGpmQueryDeviceSupport(self, gpu):
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self):
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleGet(self, gpu, sample):
        return sample

    def nvmlGpmSampleFree(self, sample):
        return None

    def nvmlGpmMetricsGet(self, asked):
        for one in asked.metrics[: asked.numMetrics]:
            one.value = 10.0 * one.metricId
            one.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if one.metricId == self.NVML_GPM_METRIC_SM_OCCUPANCY else 0

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu):
        return 700_000

    def _raise(self):
        raise self._unsupported()

    def _unsupported(self):
        return pynvml.NVMLError_NotSupported(pynvml.NVML_ERROR_NOT_SUPPORTED)
