"""What did Keras do? The records of labs 16 and 17: made now where Keras and the backend are there, else shipped ones.

What ran on TensorFlow, on a CPU, is shipped and never run again by the labs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from labkit import source
from labkit.display.runs import epoch_ms
from labkit.display.spread import Spread, paired, spread
from labkit.source import kinds, recorded
from labkit.training import keras_net
from stepbudget import intervals
from stepbudget.ask.tensor_cores import TensorActive, tensor_active
from stepbudget.ask.work import device_of, work_of
from stepbudget.report import Report
from stepbudget.window import Window

KIND = "keras"
KERAS_STEP = "Keras's step"  # as bench_keras_step.py calls it
# In the JAX reports that the course ships the SMs pause for 3.1 ms at most between two steps, 10.9 before the test.
PAUSE_NS = 4_000_000
BROKEN_OFF = "jax_reports.json"  # made once, by hand, as it says: no part of the plan
PAUSE_PCT = 1  # of SMs Active: what a single small kernel makes of a sample


def runs(commands: Sequence[str], repeats: int | None = None) -> dict[str, list[dict]]:
    """Whole-process runs of each command, as ``lab.runs``; in quick live mode one of each."""
    return source.current().get(_with_keras(kinds.runs(commands, repeats, KIND, when_quick=1)))


def later_epochs(runs: Mapping[str, Sequence[dict]]) -> dict[str, list[float]]:
    """Training seconds of each epoch but a process's first, by the name of what ran."""
    return {name: [epoch["training_s"] for run in own for epoch in run["epochs"][1:]] for name, own in runs.items()}


def faster(runs: Mapping[str, Sequence[dict]], base: str) -> dict[str, Spread]:
    """How many times as fast a later epoch is as one of ``base``, round by round, by each process's median."""
    later = {name: [{"ms": epoch_ms([record])} for record in own] for name, own in runs.items()}
    return {name: paired(later[base], own, "ms") for name, own in later.items()}


def parts(records: Sequence[dict]) -> pd.Series:
    """Seconds of a whole process and of its parts, by their medians."""
    first = spread([record["epochs"][0] for record in records], "training_s").median
    training, tests, whole = (spread(records, field).median for field in ("training_s", "test_s", "process_s"))
    return pd.Series({"process": whole, "first epoch": first, "later epochs": training - first, "tests": tests})


def profile(command: str) -> Report:
    """The report of an ``nsys profile`` command, as ``lab.profile``; live, what runs on JAX was compiled before."""
    return source.current().get(_with_keras(kinds.profile(command)))


def _with_keras(request: kinds.Request[kinds.Answer]) -> kinds.Request[kinds.Answer]:
    """The same, for which live runs need Keras and the backends that its commands name."""
    backends = {backend for command in request.commands for backend in re.findall(r"--backend (\w+)", command)}
    return replace(request, packages=("keras", *sorted(backends)), install=keras_net.HOW_TO_INSTALL)


@dataclass(frozen=True)
class Counted:
    """What the counters say of the training steps; None where a counter was not sampled.

    The share of time without a kernel lies between ``least`` and ``most``. A sample of SMs Active is a mean over all
    SMs and 100 µs, in whole per cents and, it seems, rounded up: where it is 0 no kernel ran; and kernels ran at least
    for the share of its mean, give or take the rounding, since more than all SMs are never active. ``by_kernels`` is
    the share by the kernels themselves, None where the report holds none. Copies need no SM.
    """

    steps: Window
    tensor: TensorActive | None
    least: float | None
    most: float | None
    by_kernels: float | None


def counted(report: Report) -> Counted:
    """Tensor Active and SMs Active over the training steps (``steps_window``)."""
    steps = steps_window(report)
    sms = _sms_active(report, steps)["value"]
    least, most = ((sms == 0).mean(), 1 - sms.mean() / 100) if len(sms) else (None, None)
    return Counted(steps, tensor_active(report, steps), least, most, _without_kernel(report, steps))


def _without_kernel(report: Report, window: Window) -> float | None:
    """The share of the window in which no kernel ran, by the kernels; None where the report holds none."""
    device = device_of(report, window)
    if device is None or not len(report.kernels):
        return None
    ran = intervals.union(*(work_of(table, device) for table in (report.kernels, report.graphs)))
    ran_ns = intervals.total(intervals.clip(ran, window.start, window.end))
    return 1 - ran_ns / (window.end - window.start)


def steps_window(report: Report) -> Window:
    """The training range; where a report's events break off before the test, its steps by the counter SMs Active.

    Then the range has no end of its own: it reaches to the end of the capture, and the test is in it. The steps are its
    longest stretch without a long pause. A pause is long from 4 ms on, as before the first step and before the test,
    and samples of 1 % belong to it. Without the counter: the range.
    """
    whole = report.window()
    samples = _sms_active(report, whole)
    busy = samples.loc[samples["value"] > PAUSE_PCT, "time"].to_numpy(np.int64)
    if report.windows("test") or not len(busy):
        return whole
    interval = int(np.median(np.diff(samples["time"]))) if len(samples) > 1 else 0
    before_pause = np.flatnonzero(np.diff(busy) >= PAUSE_NS)
    starts, ends = busy[np.append(0, before_pause + 1)], busy[np.append(before_pause, -1)]
    longest = int(np.argmax(ends - starts))
    end = min(int(ends[longest]) + interval, whole.end)
    return Window(int(starts[longest]), end, "training steps", whole.thread)


def last_event_ms(report: Report) -> float:
    """When the last kernel, call or range began that the report holds, in ms after its training range did."""
    tables = (report.kernels, report.api, report.os_calls, report.ranges)
    start = report.window().start
    return (max((table["start"].max() for table in tables if len(table)), default=start) - start) / 1e6


def flushes(report: Report) -> int:
    """How often, as the report has it, the profiler fetched the events that it had collected in the program."""
    return int(report.overhead["name"].str.contains("flush").sum()) if len(report.overhead) else 0


def broken_off() -> pd.DataFrame:
    """The shipped trial of what breaks a report off, a row a report of ``keras_mixed.py``.

    ``compiled``: where XLA compiled; ``changed``: what else was; ``whole``: has it all of the epoch, and the test after
    it; ``name_not_found``: did Nsight Systems say that it missed an event's name; what the report holds; and where and
    when that was.
    """
    trial = json.loads((recorded.RECORDED / recorded.DEFAULT / BROKEN_OFF).read_text(encoding="utf-8"))
    return pd.DataFrame(trial["rows"]).assign(gpu=trial["gpu"], run_at=trial["run_at"])


def _sms_active(report: Report, window: Window) -> pd.DataFrame:
    """Samples of SMs Active within the window; none where several GPUs were sampled and no kernel says which it was."""
    samples = report.counter("SMs Active", window)
    samples = samples[(samples["time"] >= window.start) & (samples["time"] < window.end)]
    if samples["device"].nunique() > 1:
        samples = samples[samples["device"] == report.sampled_gpu()]
    return samples


def tried(backend: str) -> dict[str, pd.DataFrame]:
    """The tables of ``bench_keras.py`` on a backend, by name; of TensorFlow's the shipped ones."""
    asked = source.Recorded(recorded.folder()) if backend == "tensorflow" else source.current()
    record = asked.get(_with_keras(kinds.record(f"bench_keras.py --backend {backend}", KIND)))
    rows = pd.DataFrame(record["rows"])
    return {name: table.dropna(axis=1, how="all") for name, table in rows.groupby("table", sort=False)}


def few_digits() -> pd.DataFrame:
    """The shipped trainings on few digits and a CPU, a row each: framework, policy, loss scale, seed, what came out."""
    rows = []
    for record in recorded.matching(KIND, "*-limit-3000-*"):
        told, last = record["arguments"], record["epochs"][-1]
        rows.append(
            {
                "framework": f"Keras on {record['backend']}" if "backend" in record else "PyTorch",
                "policy": told.get("policy", "float32"),
                "scale": _scale(told),
                "seed": told["seed"],
                "accuracy_pct": record["test_accuracy_pct"],
                "loss": record["test_loss"],
                "skipped_steps": last.get("skipped_steps"),
                "last_scale": last.get("loss_scale"),
                "steps": len(record["epochs"]) * -(-record["train_samples"] // told["batch_size"]),
                "train_samples": record["train_samples"],
            }
        )
    return pd.DataFrame(rows)


def own_step() -> pd.DataFrame:
    """The shipped trial of a training step of one's own on a CPU: a row an optimizer and way.

    ``times_shorter``: how many times as far Keras's own first step moved the weights as this one, from the same start.
    """
    (file,) = recorded.matching(KIND, "bench_keras_step-*")
    found = pd.DataFrame(file["rows"])
    keras = found[found["way"] == KERAS_STEP].set_index("optimizer")["first_step"]
    found["times_shorter"] = found["optimizer"].map(keras) / found["first_step"]
    return found.assign(train_samples=file["train_samples"], epochs=file["arguments"]["epochs"])


def _scale(arguments: dict) -> str:
    """A run's loss scale in words."""
    scale = arguments.get("loss_scale", "none")
    if scale == "dynamic":
        return f"dynamic, from {arguments['initial_scale']:,.0f}"
    return scale if scale == "none" else f"fixed, {scale:,.0f}"
