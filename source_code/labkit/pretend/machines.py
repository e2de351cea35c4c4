"""What would the labs meet on a smaller machine, or a newer one? Recorded results, changed as it would change them.

    python3 -m labkit.recording.live_check --pretend turing --labs 4

``source.using(live(name))`` has a lab run there: a name of MACHINES, or of a folder of ``reports/recorded/`` as it is.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from labkit import course
from labkit.errors import LabError, NotHere
from labkit.pretend import traced
from labkit.pretend.replay import Replay, drop, tables
from labkit.source import command, counting, door, running
from stepbudget.ncu.counters import DENIED, what_went_wrong
from stepbudget.report import open_report

GPU_WORK = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION")]
COUNTERS = ["GPU_METRICS", "TARGET_INFO_GPU_METRICS"]
FUSED = ("flash", "cudnn", "flash 3")  # attention in one kernel: wants Ampere, the last Hopper
NO_GPU = "error: no GPU that CUDA can use on this machine (none was found)."
IN_BF16 = (*(step.script for step in course.STEPS if step.arithmetic == "bf16"), "main_shapes.py")  # by default


class NoCounters(Replay):
    """A driver that lets only root read counters: reports without GPU metrics, an ncu that says ERR_NVGPUCTRPERM."""

    told: ClassVar[dict] = {"counters": False}

    def report(self, name: str, db: sqlite3.Connection) -> None:
        drop(db, *COUNTERS)

    def count(self, words, log, show) -> None:
        raise NotHere(what_went_wrong(f"==ERROR== {DENIED} - The user does not have permission", 1))


class Mig(Replay):
    """A slice of a GPU (MIG), of which the driver tells no utilisation."""

    told: ClassVar[dict] = {"gpu": "NVIDIA H200 MIG 1g.18gb"}

    def record(self, command: str, record: dict) -> dict:
        return _without_samples(record, ("gpu_pct", "memory_pct"))


class Cpu(Replay):
    """No GPU: reports of CPU phases only, trainings as slow as a CPU, benchmarks that end with one sentence."""

    told: ClassVar[dict] = {"gpu": None, "capability": None, "driver": None, "ncu": False, "counters": False}
    needs_gpu = ("bench_timing", "bench_transfers", "bench_peaks", "bench_matmul", "bench_shapes", "bench_tf32")
    needs_gpu += ("bench_nvml", "one_kernel", "bench_formats", "bench_fp8", "bench_attention", "bench_lstm")
    needs_gpu += ("bench_wmma", "bench_kernels", "bench_rungs", "bench_stages", "bench_roofs", "speedrun")
    slower = 5  # than the baseline's epoch on a machine with a GPU, whatever the step

    def run(self, words: str, file: Path) -> dict:
        if words.startswith(self.needs_gpu):
            raise LabError(f"'{words}' failed with status 2: {NO_GPU}")
        return super().run(words, file)

    def record(self, command: str, record: dict) -> dict:
        if "device" in record:
            record["device"] = "cpu"
        for name in ("peak_gpu_memory_mb", "peak_allocated_mb", "peak_reserved_mb"):
            record.pop(name, None)
        if "epochs" in record:
            record["peak_gpu_memory_mb"] = None
            epochs = self._records("main_baseline.py", self.folder)[0]["epochs"]
            names = ("training_s", "test_s")
            return _retimed(record, [{name: self.slower * epoch[name] for name in names} for epoch in epochs])
        if "operators" in record:
            record["operators"] = [
                row | {"gpu_ms": 0.0, "self_gpu_ms": 0.0} for row in record["operators"] if not row["on_gpu"]
            ]
        if "snapshot" in record:
            record["snapshot"] = {"allocations": 0, "peak_mb": 0.0, "before_mb": 0.0, "at_peak": []}
        return record

    def report(self, name: str, db: sqlite3.Connection) -> None:
        drop(db, *GPU_WORK, *COUNTERS, "CUPTI_ACTIVITY_KIND_RUNTIME", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE")

    def count(self, words, log, show) -> None:
        raise NotHere(counting.NOT_FOUND)

    def trace_of(self, content: dict) -> dict:
        gone = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_runtime", "cuda_driver")
        events = [event for event in content["traceEvents"] if event.get("cat") not in gone]
        return content | {"traceEvents": events, "deviceProperties": []}


class Turing(Replay):
    """A T4: Tensor Cores for FP16 only. BF16 is computed as FP32, TF32 is FP32; no Tensor Active, no GPM, no FP8."""

    told: ClassVar[dict] = {"gpu": "Tesla T4", "capability": (7, 5), "cores": 4}
    stands_in: ClassVar[dict] = {
        "main_opt3_tf32": "main_opt2",
        "main_opt3_bf16": "main_opt2",
        "main_opt3_tf32_ops": "main_opt2_ops",
    }
    renamed = (("bf16", "f16"), ("BFloat16", "Half"), ("bfloat16", "half"), ("sm90", "sm75"), ("sm80", "sm75"))
    gpm = ("sm_pct", "occupancy_pct", "tensor_pct", "dram_pct")
    unknown = ("sm__pipe_tensor_cycles", "sm__ops_path_tensor", "sm__inst_executed_pipe_tensor_op_gmma")

    def run(self, words: str, file: Path) -> dict:
        record = super().run(self._same_work(words), file)
        record["command"] = words
        if "--amp-dtype bfloat16" in words or "--tf32" in words:
            record["arguments"] |= {"amp_dtype": "bfloat16" if "bfloat16" in words else "float32"}
        return record

    def _same_work(self, words: str) -> str:
        """The command that does on the recorded machine what this one would do."""
        if words.startswith("main_opt3.py") and ("bfloat16" in words or "--tf32" in words):
            return (
                words.replace("opt3", "opt2")
                .replace(" --amp-dtype bfloat16", "")
                .replace(" --amp-dtype float32 --tf32", "")
            )
        if words.startswith("keras_mixed.py --backend jax --policy mixed_bfloat16"):
            return words.replace("mixed", "mnist", 1).replace(" --policy mixed_bfloat16", "")
        if words.startswith("keras_"):
            return words.replace(" --tf32", "")
        return words

    def record(self, command: str, record: dict) -> dict:
        if command.startswith(IN_BF16) and "amp_dtype" in record["arguments"]:
            record["arguments"]["amp_dtype"] = "float16"
        change = {
            "bench_peaks.py": lambda: _as_fp32(record, ("what", "size")),
            "bench_shapes.py": lambda: self._shapes(record),
            "bench_matmul.py": lambda: self._types(record),
            "bench_wmma.py": lambda: _rows(record, lambda row: row["what"] != "bf16"),
            "bench_tf32.py": lambda: self._switches(record),
            "bench_sin_fit.py": lambda: self._fits(record),
            "bench_gan.py": lambda: _without_bf16(record),
            "bench_deep.py": lambda: _without_bf16(record),
            "bench_formats.py": lambda: _rows(record, lambda row: row["variant"] in ("fp32", "fp16 autocast")),
            "bench_fp8.py": lambda: _refused(record, lambda row: "fp8" in row["how"] or "torchao" in row["how"]),
            "bench_attention.py": lambda: _refused(record, self._has_no_attention),
            "bench_kernels.py": lambda: _refused(record | {"dtype": "fp16"}, lambda row: row.get("way") in FUSED),
            "bench_lstm.py": lambda: _rows(record, lambda row: row["dtype"] in ("fp32", "fp16")),
            "bench_nvml.py": lambda: _without_samples(record, self.gpm),
            "bench_keras.py": lambda: self._precision(record),
        }.get(command.split()[0])
        return change() if change else record

    def _shapes(self, record: dict) -> dict:
        results = ("error", "calls", "us", "low_us", "high_us")
        for row in record["rows"]:
            if row["dtype"] in ("tf32", "bf16", "fp8"):
                for name in results:
                    row.pop(name, None)
                row |= {"refused": "not on this GPU", "kernels": [], "kernel_us": []}
        return record

    @staticmethod
    def _has_no_attention(row: dict) -> bool:
        """Types that it lacks; and the kernels of flash attention, which want Ampere."""
        return row["dtype"] in ("tf32", "bf16") or row["kernel"] in FUSED

    def _types(self, record: dict) -> dict:
        for row in record["rows"]:
            if row["what"] == "size":
                row["dtype"] = "fp16"
        types = {row["dtype"]: row for row in record["rows"] if row["what"] == "type"}
        types["bf16"] |= {name: value for name, value in types["fp32"].items() if name != "dtype"}
        types["fp16"]["instructions"] = {"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32": 8}
        return record

    def _switches(self, record: dict) -> dict:
        for what in ("matmul", "conv"):
            plain = next(row[f"{what}_error"] for row in record["rows"] if row[what] == "FP32")
            for row in record["rows"]:
                if row[what] == "TF32":
                    row |= {what: "FP32", f"{what}_error": plain}
        return record

    def _precision(self, record: dict) -> dict:
        rows = [row for row in record["rows"] if row["table"] == "precision"]
        for name in ("product_error", "convolution_error"):
            plain = min(row[name] for row in rows)
            for row in rows:
                row[name] = plain
        return record

    def _fits(self, record: dict) -> dict:
        plain = {row["seed"]: row for row in record["rows"] if row["variant"] == "fp32"}
        record["rows"] = [
            plain[row["seed"]] | {"variant": "tf32"} if row["variant"] == "tf32" else row for row in record["rows"]
        ]
        return _without_bf16(record)

    def report(self, name: str, db: sqlite3.Connection) -> None:
        for before, after in self.renamed:
            db.execute("UPDATE StringIds SET value = replace(value, ?, ?)", (before, after))
        made = tables(db)
        if "TARGET_INFO_GPU" in made:
            gpu = (self.told["gpu"], "TU104", *self.told["capability"], 40)
            columns = ("name", "chipName", "computeMajor", "computeMinor", "smCount")
            db.execute(f"UPDATE TARGET_INFO_GPU SET {', '.join(f'{column} = ?' for column in columns)}", gpu)
        if "GPU_METRICS" in made:
            tensor = "(SELECT metricId FROM TARGET_INFO_GPU_METRICS WHERE metricName LIKE 'Tensor Active%')"
            db.execute(f"DELETE FROM GPU_METRICS WHERE metricId IN {tensor}")
            db.execute("DELETE FROM TARGET_INFO_GPU_METRICS WHERE metricName LIKE 'Tensor Active%'")

    def counts(self, text: str) -> str:
        for before, after in self.renamed:
            text = text.replace(before, after)
        for metric in self.unknown:
            text = text.replace(f'"{metric}', f'"not_on_turing_{metric}')
        return text

    def trace_of(self, content: dict) -> dict:
        for event in content["traceEvents"]:
            for before, after in self.renamed:
                event["name"] = event.get("name", "").replace(before, after)
        for gpu in content["deviceProperties"]:
            gpu |= {"name": self.told["gpu"], "computeMajor": 7, "computeMinor": 5, "numSms": 40}
        return content


class NoNsys(Turing):
    """A T4 in a notebook service: no Nsight Systems, no counters; profiles are traces of PyTorch's profiler."""

    told: ClassVar[dict] = {**Turing.told, "nsys": None, "ncu": False, "counters": False}

    def profile(self, words: Sequence[str], report: Path, show: Callable[[str], None]) -> None:
        command.check_traceable(words)
        with tempfile.TemporaryDirectory() as scratch:
            there = Path(scratch) / report.name.replace(running.TRACE, ".nsys-rep")
            super().profile(words, there, show)
            with open_report(there.with_suffix(".sqlite")) as found:
                report.write_bytes(gzip.compress(json.dumps(traced.trace(found)).encode(), compresslevel=1))

    def count(self, words, log, show) -> None:
        raise NotHere(counting.NOT_FOUND)


class NewerLibrary(Replay):
    """Libraries that refuse nothing: whatever was refused is measured, here as its neighbour was."""

    def record(self, command: str, record: dict) -> dict:
        if command == "bench_shapes.py":
            measured = next(row for row in record["rows"] if row["dtype"] == "fp8" and "refused" not in row)
            results = {name: measured[name] for name in ("error", "calls", "us", "low_us", "high_us")}
            results |= {name: measured[name] for name in ("kernels", "kernel_us")}
            record["rows"] = [_replaced(row, results) if "refused" in row else row for row in record["rows"]]
        if command == "bench_tf32.py":
            for row in record["rows"]:
                row["refused"] = {}
        return record


MACHINES: dict[str, Callable[[], Replay]] = {
    "turing": Turing,
    "no-counters": NoCounters,
    "mig": Mig,
    "cpu": Cpu,
    "no-nsys": NoNsys,
    "newer-library": NewerLibrary,
}
_scratch: list[tempfile.TemporaryDirectory] = []  # kept while the process lives, and removed with it


def names() -> list[str]:
    """All that can be pretended: the machines whose profiles are recorded, then the made-up ones."""
    return [*sorted(course.PROFILED), *MACHINES]


def live(name: str) -> door.Live:
    """A live source on the machine called ``name``; what it makes lies in a folder of this process's own."""
    programs = MACHINES[name]() if name in MACHINES else Replay(name)
    _scratch.append(tempfile.TemporaryDirectory(prefix="labkit-pretend-"))
    return door.Live(programs, Path(_scratch[-1].name) / "reports")


def _replaced(row: dict, results: dict) -> dict:
    return {name: value for name, value in row.items() if name != "refused"} | results


def _as_fp32(record: dict, case: Iterable[str]) -> dict:
    """A benchmark's rows where TF32 and BF16 do what FP32 did in the same case; without cases that FP32 left out."""
    plain = {tuple(row.get(name) for name in case): row for row in record["rows"] if row.get("dtype") == "fp32"}
    rows = []
    for row in record["rows"]:
        if row.get("dtype") not in ("tf32", "bf16"):
            rows.append(row)
        elif same := plain.get(tuple(row.get(name) for name in case)):
            rows.append(same | {"dtype": row["dtype"]})
    return record | {"rows": rows}


def _without_bf16(record: dict) -> dict:
    """A record of trainings that left BF16 out."""
    return _rows(record, lambda row: row["variant"] != "bf16")


def _rows(record: dict, kept: Callable[[dict], bool]) -> dict:
    """A record with those rows alone."""
    return record | {"rows": [row for row in record["rows"] if kept(row)]}


def _refused(record: dict, which: Callable[[dict], bool]) -> dict:
    """A benchmark of lab 23 in which those rows have no time, but what was said against them."""
    times = ("error", "us", "low_us", "high_us", "tflops", "peak_bytes", "extra_bytes")
    rows = [
        {name: value for name, value in row.items() if name not in times} | {"refused": "not on this GPU"}
        if which(row)
        else row
        for row in record["rows"]
    ]
    return record | {"rows": rows}


def _without_samples(record: dict, columns: Iterable[str]) -> dict:
    """A record of ``bench_nvml.py`` in which the driver had nothing to say on some of the columns."""
    for row in record.get("rows", []):
        if isinstance(row.get("samples"), str):
            head, *lines = row["samples"].splitlines()
            blank = {number for number, name in enumerate(head.split(",")) if name in columns}
            kept = [
                ",".join("" if number in blank else cell for number, cell in enumerate(line.split(",")))
                for line in lines
            ]
            row["samples"] = "\n".join([head, *kept]) + "\n"
    return record


def _retimed(record: dict, epochs: list[dict]) -> dict:
    """A training whose epochs took as long as these did, where that is longer; the rest of the process as it was."""
    before_s = record["training_s"] + record["test_s"]
    for own, other in zip(record["epochs"], epochs, strict=False):
        own |= {name: max(own[name], other[name]) for name in ("training_s", "test_s")}
    for name in ("training_s", "test_s"):
        record[name] = sum(epoch[name] for epoch in record["epochs"])
    longer_s = record["training_s"] + record["test_s"] - before_s
    for name in ("wall_s", "process_s"):
        record[name] += longer_s
    return record
