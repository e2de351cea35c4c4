"""What is kept of a run? One JSON object: what was run, on what, how long it took, and what came out."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from labkit.errors import LabError
from labkit.training import machine, manifest

RECORD_FORMAT = 1


def surroundings(device: torch.device) -> dict:
    """What a measurement depends on beside the code: device, GPU, driver, CPU, versions."""
    cuda = device.type == "cuda"
    return {
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if cuda else None,
        "driver": machine.driver_version() if cuda else None,
        "cpu": machine.cpu_name(),
        "cpu_cores": machine.usable_cores(),
        "versions": {
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        },
    }


def write_benchmark_record(args: argparse.Namespace, device: torch.device, rows: list[dict], **more: str | int) -> None:
    """Write a benchmark's rows, with where they were measured, to ``--record FILE``; nothing without that flag."""
    if args.record:
        record = {"format": RECORD_FORMAT, "script": Path(sys.argv[0]).name, "status": "complete"}
        record |= {"arguments": vars(args), "rows": rows, **more, **surroundings(device), **manifest.for_record()}
        keep(args.record, record)


def keep(file: str, record: dict) -> None:
    """Write a record that is finished. Where that fails by now (a full disk) it is printed: nothing is lost.

    LabError then, in one sentence.
    """
    try:
        write_json(Path(file), record)
    except OSError as error:
        print(as_json(record), flush=True)
        raise LabError(f"cannot write a record into {file}: {error.strerror}. It is printed instead.") from error


def as_json(content: dict) -> str:
    """``content`` as JSON; number types by their names, as the command line has them (``bfloat16``)."""

    def name(value: object) -> str:
        if not isinstance(value, torch.dtype):
            raise TypeError(f"{value!r} is nothing that JSON can hold")
        return str(value).removeprefix("torch.")

    return json.dumps(content, indent=1, default=name)


def write_json(file: Path, content: dict) -> None:
    """Write ``content`` as JSON so that the file is either the old one or the new one, never half of one.

    A symbolic link is followed. OSError where nothing can be written, and then no draft is left.
    """
    text = as_json(content) + "\n"
    file = file.resolve()
    with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".tmp", delete=False) as stream:
        draft = Path(stream.name)
        try:
            stream.write(text)
            stream.flush()
            draft.chmod(0o644)  # as an ordinary file: temporary ones are for their owner only
            draft.replace(file)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def seconds_since_process_start() -> float:
    """Seconds since the operating system started this process (Linux, 10 ms steps), so that imports count too."""
    stat = Path("/proc/self/stat")
    if not stat.is_file():
        return time.perf_counter()
    started_ticks = int(stat.read_text().rpartition(")")[2].split()[19])  # field 22 of proc(5), after "(comm)"
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return uptime_s - started_ticks / os.sysconf("SC_CLK_TCK")
