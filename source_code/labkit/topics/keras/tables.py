"""The tables of labs 16 and 17: what Keras does with types, scales and switches; the backend is named in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.display.spread import MEASURED, spread
from labkit.display.table import Table, table
from labkit.topics.keras import readings as keras_records
from stepbudget.report import Report
from stepbudget.signs import signed

SETTING = "a setting"  # as the trial of broken reports has it
USUAL_SCALE = "dynamic, from 32,768"  # as compile gives it
Tried = Mapping[str, Mapping[str, pd.DataFrame]]  # backend → the tables that keras_records.tried() gives


def agreement(tried: Tried) -> Table:
    """Parameters, and how far Keras's output is from PyTorch's in FP32, from the same weights."""
    rows = [
        (backend, row["policy"], row["parameters"], row["parameters_torch"], row["largest_difference"])
        for backend, tables in tried.items()
        for row in tables["agreement"].to_dict("records")
    ]
    columns = ["backend", "policy", "parameters", "PyTorch's", "largest difference"]
    caption = "The net in Keras and in PyTorch (FP32): 256 digits, log-probabilities from the same weights"
    return table(pd.DataFrame(rows, columns=columns), caption, {"largest difference": "{:.0e}"}, columns[4:])


def layers(tables: Mapping[str, pd.DataFrame], policy: str, backend: str) -> Table:
    """The layers of the net under a policy: its own policy, and the types of weights, arithmetic and output."""
    found = tables["layers"]
    found = found.loc[found["model_policy"] == policy, ["layer", "policy", "weights", "computes in", "output"]]
    return table(found.replace("", None), f"The net under {policy} (Keras on {backend})")


def in_float16(tried: Tried) -> Table:
    """What layers and losses make of float16 inputs, a column a backend."""
    columns = {
        backend: tables["float16"].dropna(subset="last").set_index(["what", "dtype"])["last"]
        for backend, tables in tried.items()
    }
    found = pd.DataFrame(columns).reset_index().rename(columns={"what": "under mixed_float16", "dtype": "comes out as"})
    found.columns = [*found.columns[:2], *(f"on {backend}" for backend in tried)]
    found.iloc[:, 0] = found.iloc[:, 0].str.replace("±1000", "-1000 to 1000").map(signed)
    return table(found, "The last value that comes out", dict.fromkeys(found.columns[2:], "{:.3g}"))


def compiled(tables: Mapping[str, pd.DataFrame], backend: str) -> Table:
    """Which optimizer ``compile`` leaves, for each way to ask for one."""
    names = {
        "way": "what is asked for", "optimizer": "what trains", "fixed_scale": "fixed scale",
        "initial_scale": "first dynamic scale", "growth_steps": "doubles after",
    }  # fmt: skip
    found = tables["compile"].rename(columns=names)[list(names.values())]
    return table(found, f"model.compile(Adadelta(…), …) (Keras on {backend})")


def steps(tables: Mapping[str, pd.DataFrame], backend: str) -> Table:
    """What good and overflowed steps do to a weight of 1 with gradient 0.5, and to the scale."""
    names = {
        "scale": "scale", "steps": "steps", "scale_before": "scale before", "scale_after": "after",
        "weight": "weight after", "steps_counted": "steps counted",
    }  # fmt: skip
    found = tables["steps"].rename(columns=names)[list(names.values())]
    caption = f"A weight of 1, gradients of 0.5, SGD with rate 1; here dynamic doubles after 3 (Keras on {backend})"
    return table(found, caption, {"weight after": "{:.1f}"})


def precision(tried: Tried) -> Table:
    """Relative rounding error of a product and a convolution in FP32, a column a backend and operation."""
    columns = {}
    for backend, tables in tried.items():
        found = tables["precision"].set_index("setting")
        for operation in ("product", "convolution"):
            columns[f"{backend}: {operation}"] = found[f"{operation}_error"]
    found = pd.DataFrame(columns).reset_index(names="setting (policy float32)")
    measured = list(found.columns[1:])
    return table(found, "Relative error against FP64", dict.fromkeys(measured, "{:.0e}"), measured)


def epochs(runs: Mapping[str, Sequence[dict]], backend: str) -> Table:
    """Training seconds of the first epoch, and median and range of the later ones, a row a command."""
    rows = []
    for name, records in runs.items():
        first = spread([record["epochs"][0] for record in records], "training_s")
        later = spread([epoch for record in records for epoch in record["epochs"][1:]], "training_s")
        rows.append((name, len(records), first.median, later.median, f"{MEASURED}{later.low:.2f}–{later.high:.2f}"))
    columns = ["step", "processes", "first epoch s", "later epochs s", "their range s"]
    formats = {"first epoch s": "{:.1f}", "later epochs s": "{:.2f}"}
    caption = f"Training time of an epoch: the first, and the median of the later ones (Keras on {backend})"
    return table(pd.DataFrame(rows, columns=columns), caption, formats, list(formats))


def held(reports: Mapping[str, Report]) -> Table:
    """What a report holds of the program, and until when: events and samples, in ms after the training range began."""
    rows = []
    for name, report in reports.items():
        window, samples = report.window(), report.counter("SMs Active")["time"]
        sampled_ms = (samples.max() - window.start) / 1e6 if len(samples) else None
        rows.append(
            {
                "report": name,
                "kernels": len(report.kernels),
                "CUDA calls": len(report.api),
                "flushes": keras_records.flushes(report),
                "range test": "yes" if report.windows("test") else "no",
                "last event at ms": keras_records.last_event_ms(report),
                "last sample at ms": sampled_ms,
            }
        )
    frame = pd.DataFrame(rows)
    formats = dict.fromkeys(frame.columns[1:].drop("range test"), "{:,.0f}")
    return table(frame, "What the reports hold, times from the beginning of the training on", formats, list(formats))


def broken_off(found: pd.DataFrame) -> Table:
    """Which reports of the trial are whole (``readings.broken_off``), a row a place of compiling and change."""
    rows = []
    for (compiled, changed), own in found.groupby(["compiled", "changed"], sort=False):
        rows.append(
            {
                "XLA compiled": compiled,
                "changed besides": changed if changed != SETTING else f"one of {own['variant'].nunique()} settings",
                "reports": len(own),
                "whole": own["whole"].sum(),
                "a name not found": own["name_not_found"].sum(),
                "kernels": _range(own["kernels"]),
                "last event at ms": _range(own["last_event_ms"]),
            }
        )
    gpu, date = found["gpu"].iloc[0], found["run_at"].iloc[0][:10]
    return table(pd.DataFrame(rows), f"Reports of keras_mixed.py, by where XLA compiled ({gpu}, {date})")


def _range(values: pd.Series) -> str:
    """``186–377``, or the one value that there is."""
    return "–".join(f"{value:,.0f}" for value in dict.fromkeys((values.min(), values.max())))


def counters(reports: Mapping[str, Report]) -> Table:
    """The counters over the training steps: Tensor Active, and between which shares the time without a kernel lies."""
    rows = []
    for name, report in reports.items():
        found = keras_records.counted(report)
        tensor, shares = found.tensor, (found.least, found.most, found.by_kernels)
        active = (tensor.mean_pct, tensor.max_pct, tensor.samples) if tensor else (None, None, 0)
        percents = (None if share is None else 100 * share for share in shares)
        rows.append((name, found.steps.duration_ms, *active, *percents))
    formats = {
        "all steps ms": "{:,.0f}", "Tensor Active mean %": "{:.1f}", "highest %": "{:.0f}", "samples": "{:,.0f}",
        "no kernel: at least %": "{:.1f}", "at most %": "{:.1f}", "by the kernels %": "{:.1f}",
    }  # fmt: skip
    frame = pd.DataFrame(rows, columns=["report", *formats])
    return table(frame, "The training steps of one epoch, as profiled", formats, list(formats))


def own_step(found: pd.DataFrame) -> Table:
    """A training step of one's own beside Keras's: the first step, and what the training has learnt."""
    names = {
        "optimizer": "optimizer", "way": "trained by", "times_shorter": "first step: times shorter",
        "scale": "scale at the end", "accuracy_pct": "accuracy %",
    }  # fmt: skip
    digits, epochs = found[["train_samples", "epochs"]].iloc[0]
    caption = f"mixed_float16, {epochs} epochs on the first {digits:,} digits (Keras on tensorflow, CPU)"
    formats = {"first step: times shorter": "{:,.0f}", "scale at the end": "{:,.0f}", "accuracy %": "{:.1f}"}
    return table(found.rename(columns=names)[list(names.values())], caption, formats)


def few_digits(found: pd.DataFrame) -> Table:
    """The trainings on few digits and a CPU, a row a framework and policy; FP16 with ``compile``'s scale."""
    usual = found[(found["policy"] != "mixed_float16") | (found["scale"] == USUAL_SCALE)]
    groups = usual.groupby(["policy", "framework"])["accuracy_pct"]
    shown = groups.agg(["count", "mean", "min", "max"]).reset_index()
    shown.columns = ["policy", "framework", "seeds", "mean accuracy %", "lowest %", "highest %"]
    digits = found["train_samples"].iloc[0]
    caption = f"Four epochs on the first {digits:,} digits, on a CPU"
    return table(shown, caption, dict.fromkeys(list(shown.columns[3:]), "{:.1f}"))


def scales(found: pd.DataFrame) -> Table:
    """The trainings in mixed_float16 among those on few digits, a row a loss scale."""
    mixed = found[found["policy"] == "mixed_float16"]
    rows = []
    for scale in sorted(mixed["scale"].unique(), key=_by_size):
        group = mixed[mixed["scale"] == scale]
        accuracy, loss = group["accuracy_pct"], group["loss"]
        rows.append(
            {
                "loss scale": scale,
                "seeds": len(group),
                "mean accuracy %": accuracy.mean(),
                "lowest %": accuracy.min(),
                "highest %": accuracy.max(),
                "test loss": loss.mean() if loss.notna().all() else "nan",
                "steps skipped": f"{group['skipped_steps'].max():.0f} of {group['steps'].iloc[0]}",
                "scale at the end": group["last_scale"].max(),
            }
        )
    digits = found["train_samples"].iloc[0]
    caption = f"mixed_float16, four epochs on the first {digits:,} digits (Keras on tensorflow, CPU)"
    formats = dict.fromkeys(["mean accuracy %", "lowest %", "highest %"], "{:.1f}") | {"test loss": "{:.2f}"}
    return table(pd.DataFrame(rows), caption, formats | {"scale at the end": "{:,.0f}"})


def _by_size(scale: str) -> tuple[bool, float, str]:
    """The usual scale first, the others by their size."""
    return scale != USUAL_SCALE, float("0" + "".join(filter(str.isdigit, scale))), scale


def claims(tried: Tried, runs: Mapping[str, Sequence[dict]], few: pd.DataFrame, reports: Mapping[str, Report]) -> Table:
    """What three texts say about TensorFlow, and what was found: all arguments as in the lab."""
    tensorflow, jax = tried["tensorflow"], tried["jax"]
    lines = tensorflow["claims"].set_index("line")
    policy = "tf.keras.mixed_precision.Policy('mixed_float16')"
    old_call = lines.loc["tf.keras.mixed_precision.LossScaleOptimizer(adam, loss_scale='dynamic')"]
    switch = "tf.config.experimental.tensor_float_32_execution_enabled()"
    layers = tensorflow["layers"]
    computes = layers.loc[layers["model_policy"] == "mixed_float16", "computes in"]
    dense = tensorflow["float16"].set_index("what")["dtype"].iloc[-1]
    optimizer = tensorflow["compile"].set_index("way").loc["mixed_float16"]
    products = jax["precision"].set_index("setting")["product_error"]
    errors = products.map((MEASURED + "{:.0e}").format)
    disabled = next(setting for setting in errors.index if "TENSOR_OP_MATH" in setting)
    override = next(setting for setting in errors.index if "TF32_OVERRIDE" in setting)
    mixed = few[few["policy"] == "mixed_float16"]
    without = mixed[mixed["scale"] == "none"]
    usual = mixed[(mixed["scale"] == USUAL_SCALE) & mixed["seed"].isin(without["seed"])]
    first, later = (_epoch_s(runs, part) for part in (slice(1), slice(1, None)))
    process = {name: spread(own).median for name, own in runs.items()}
    tests = {name: spread(own, "test_s").median for name, own in runs.items()}
    less = [f"{MEASURED}{part['FP32'] - part['FP16']:.1f} s" for part in (process, first, tests)]
    active = {name: keras_records.counted(report).tensor for name, report in reports.items()}
    seen = ", ".join(f"{name} {MEASURED}{own.max_pct:.0f} %" for name, own in active.items() if own)
    found = [
        ("guide", "give layers the type float16 where it fits", "tensorflow",
         f"the policy gives it to {(computes == 'float16').sum()} of {len(computes)}; "
         f"Dense(dtype='float16') gets {dense} weights"),
        ("guide", "variables are cast to float32", "tensorflow",
         f"they are {lines.loc[f'{policy}.variable_dtype', 'says']}; "
         f"each use casts them to {lines.loc[f'{policy}.compute_dtype', 'says']}"),
        ("guide", "TF_DISABLE_TENSOR_OP_MATH=1: no Tensor Cores", "jax",
         f"not tried on TensorFlow; on JAX {_switched(products, disabled)}: "
         f"error {errors[disabled]} with, {errors['TF32 on']} without"),
        ("guide", "Tensor Cores speed training up significantly", "jax",
         f"FP16 over FP32: a later epoch {MEASURED}{later['FP32'] / later['FP16']:.1f} times as fast, "
         f"the process, compiling included, {MEASURED}{process['FP32'] / process['FP16']:.1f} times"),
        ("guide", "the same", "jax",
         f"FP32's process less FP16's: {less[0]}, of it {less[1]} first epoch, {less[2]} tests"),
        ("article", "FP32 gains far less from Tensor Cores than FP16", "jax",
         f"a later epoch: FP32 {MEASURED}{later['FP32']:.2f} s, as TF32 {MEASURED}{later['TF32']:.2f} s, "
         f"FP16 {MEASURED}{later['FP16']:.2f} s"),
        ("article", "LossScaleOptimizer(adam, loss_scale='dynamic')", "tensorflow",
         _outcome(old_call)),
        ("article", "an optimizer has to be wrapped by hand", "tensorflow",
         f"compile makes of it: {optimizer['optimizer']}, from {optimizer['initial_scale']:,.0f}"),
        ("walkthrough", "tf.keras.layers.Conv2d(filters=48, …)", "tensorflow",
         f"{_outcome(lines.loc['tf.keras.layers.Conv2d(filters=48, kernel_size=7)']).split(':')[0]}: "
         "the class is Conv2D"),
        ("walkthrough", "loss scaling makes no great difference (GAN)", "tensorflow",
         f"our net, a seed: {without['accuracy_pct'].mean():.1f} % without, {usual['accuracy_pct'].mean():.1f} % with"),
        ("walkthrough", "XLA makes the first iterations slow", "jax",
         f"FP16: first epoch {MEASURED}{first['FP16']:.1f} s, later ones {MEASURED}{later['FP16']:.2f} s"),
        ("walkthrough", "Nsight Systems hardly shows Tensor Core use", "jax, torch",
         f"highest sample of Tensor Active: {seen or 'not sampled here'}"),
        ("walkthrough", "FP32 needs TF32 switched off", "jax",
         f"error of a product: {errors['as it comes']} as JAX comes, {errors['TF32 off']} with TF32 off"),
        ("walkthrough", "the same", "tensorflow",
         f"tensor_float_32_execution_enabled() is {lines.loc[switch, 'says']} as it comes"),
        ("lab 13", "NVIDIA_TF32_OVERRIDE=0 switches TF32 off", "jax",
         f"{_switched(products, override)}: error of a product {errors[override]}"),
    ]  # fmt: skip
    frame = pd.DataFrame(found, columns=["text", "what it says", "backend", "what we found"])
    return table(frame[["text", "what it says", "what we found", "backend"]], measured=["what we found"])


def _switched(products: pd.Series, setting: str) -> str:
    """Did this setting take TF32 away from JAX's product? In words; an error above 0.00001 is not FP32's."""
    if products["TF32 on"] < 1e-5:
        return "no TF32 to switch off"
    return "without effect" if products[setting] > 1e-5 else "TF32 is off"


def _outcome(row: pd.Series) -> str:
    """What became of a line of an older text: the error that it raises, or what it says."""
    return f"{row['error']}: {row['says']}" if isinstance(row.get("error"), str) else f"it runs: {row['says']}"


def _epoch_s(runs: Mapping[str, Sequence[dict]], part: slice) -> dict[str, float]:
    """Median training seconds over these epochs of all runs of a step, by its name."""
    return {
        name: spread([epoch for record in own for epoch in record["epochs"][part]], "training_s").median
        for name, own in runs.items()
    }
