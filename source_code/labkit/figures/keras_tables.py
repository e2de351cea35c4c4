"""Lab 12's tables: what Keras does with types, scales and switches; the backend is named in each."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from labkit import recorded
from labkit.figures.tables import Table, table
from labkit.nsight import idle, tensor_cores
from labkit.nsight.report import Report

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
    found = pd.DataFrame(columns).reset_index(names="FP32 arithmetic")
    measured = list(found.columns[1:])
    return table(found, "Relative error against FP64", dict.fromkeys(measured, "{:.0e}"), measured)


def scales(commands: Mapping[str, str]) -> Table:
    """Trainings under different loss scales: name → command, from the shipped seeds."""
    rows = []
    for name, command in commands.items():
        records = recorded.accuracy(command)
        last = [record["epochs"][-1] for record in records]
        values = [record["test_accuracy_pct"] for record in records]
        scale = {epoch["loss_scale"] for epoch in last}
        rows.append(
            {
                "loss scale": name,
                "backend": records[0]["backend"],
                "seeds": len(records),
                "mean accuracy %": sum(values) / len(values),
                "lowest %": min(values),
                "highest %": max(values),
                "skipped steps": max(epoch["skipped_steps"] for epoch in last),
                "scale at the end": max((value for value in scale if value), default=None),
            }
        )
    caption = f"mixed_float16, ten epochs, {len(records[0]['epochs']) * 59} steps ({recorded.origin()})"
    percent = dict.fromkeys(["mean accuracy %", "lowest %", "highest %"], "{:.2f}")
    return table(pd.DataFrame(rows), caption, percent)


def tensor_core_ms(reports: Mapping[str, Report]) -> pd.DataFrame:
    """GPU milliseconds of one training epoch by what is known about Tensor Cores, a row a report."""
    rows = []
    for name, report in reports.items():
        ms = tensor_cores.verdicts(report).groupby("tensor_core")["gpu_ms"].sum()
        found = idle.idle(report)
        by_verdict = {verdict: float(ms.get(verdict, 0.0)) for verdict in ("yes", "no", "unknown")}
        rows.append({"report": name, **by_verdict, "busy": found.busy_ms, "idle": found.idle_ms})
    return pd.DataFrame(rows)


def tensor_core_table(reports: Mapping[str, Report]) -> Table:
    """``tensor_core_ms`` to read."""
    names = {verdict: f"Tensor Cores: {verdict} ms" for verdict in ("yes", "no", "unknown")}
    found = tensor_core_ms(reports).rename(columns=names | {"busy": "GPU busy ms", "idle": "GPU idle ms"})
    measured = list(found.columns[1:])
    return table(found, "Kernels of one training epoch", dict.fromkeys(measured, "{:,.1f}"), measured)


def first_epochs(runs: Mapping[str, list[dict]]) -> Table:
    """The first epoch's training beside the median of the later ones, in seconds, a row a command."""
    rows = []
    for name, records in runs.items():
        first = pd.Series([record["epochs"][0]["training_s"] for record in records])
        later = pd.Series([epoch["training_s"] for record in records for epoch in record["epochs"][1:]])
        rows.append((name, len(records), first.median(), later.median(), first.median() - later.median()))
    columns = ["step", "n", "first epoch s", "later epochs s", "difference s"]
    return table(
        pd.DataFrame(rows, columns=columns),
        "Training time of an epoch (medians)",
        dict.fromkeys(columns[2:], "{:.2f}"),
        columns[2:],
    )


def few_digits(found: pd.DataFrame) -> Table:
    """The trainings on few digits and a CPU, a row a framework and policy."""
    groups = found.groupby(["framework", "policy"], sort=False)["accuracy_pct"]
    shown = groups.agg(["count", "mean", "min", "max"]).reset_index()
    shown.columns = ["framework", "policy", "seeds", "mean accuracy %", "lowest %", "highest %"]
    digits = found["train_samples"].iloc[0]
    caption = f"Four epochs on the first {digits:,} digits, on a CPU"
    return table(shown, caption, dict.fromkeys(list(shown.columns[3:]), "{:.1f}"))


def claims(tried: Tried, runs: Mapping[str, list[dict]], reports: Mapping[str, Report], by_scale: Mapping) -> Table:
    """What three texts say about TensorFlow, and what was found: ``runs``, ``reports`` and scales as in the lab.

    ``by_scale`` maps ``"none"`` and ``"dynamic"`` to a command with recorded seeds.
    """
    tensorflow, jax = tried["tensorflow"], tried["jax"]
    lines = tensorflow["claims"].set_index("line")
    said = lines["error"].fillna("") + lines["says"].radd(": ").where(lines["error"].notna(), lines["says"])
    policy = "tf.keras.mixed_precision.Policy('mixed_float16')"
    layers = tensorflow["layers"]
    computes = layers.loc[layers["model_policy"] == "mixed_float16", "computes in"]
    sixteen = tensorflow["float16"].set_index("what")["dtype"]
    optimizer = tensorflow["compile"].set_index("way").loc["mixed_float16"]
    errors = jax["precision"].set_index("setting")["product_error"].map("{:.0e}".format)
    override = "NVIDIA_TF32_OVERRIDE=0"
    disabled = next(setting for setting in errors.index if "TENSOR_OP_MATH" in setting)
    mean = {
        name: pd.Series([record["test_accuracy_pct"] for record in recorded.accuracy(command)]).mean()
        for name, command in by_scale.items()
    }
    fp16 = tensor_core_ms(reports).iloc[-1]
    compiled_runs = runs["JAX, FP16"]
    first = pd.Series([record["epochs"][0]["training_s"] for record in compiled_runs]).median()
    later = pd.Series([epoch["training_s"] for record in compiled_runs for epoch in record["epochs"][1:]]).median()
    found = [
        (
            "guide",
            "give layers the type float16 where it fits",
            f"the policy gives it to {(computes == 'float16').sum()} of {len(computes)} layers; "
            f"Dense(dtype='float16') has {sixteen.iloc[-1]} weights",
            "tensorflow",
        ),
        (
            "guide",
            "variables are cast to float32",
            f"they are {said[f'{policy}.variable_dtype']}, and cast to {said[f'{policy}.compute_dtype']} for each use",
            "tensorflow",
        ),
        (
            "guide",
            "TF_DISABLE_TENSOR_OP_MATH=1 switches Tensor Cores off",
            f"error of a product with TF32: {errors['TF32 on']}, with the variable: {errors[disabled]}",
            "jax",
        ),
        (
            "article",
            "LossScaleOptimizer(adam, loss_scale='dynamic')",
            said["tf.keras.mixed_precision.LossScaleOptimizer(adam, loss_scale='dynamic')"],
            "tensorflow",
        ),
        (
            "article",
            "the optimizer has to be wrapped for a loss scale",
            f"compile wraps it: {optimizer['optimizer']}, from {optimizer['initial_scale']:,.0f}",
            "tensorflow",
        ),
        (
            "walkthrough",
            "tf.keras.layers.Conv2d(filters=48, …)",
            f"{lines.loc['tf.keras.layers.Conv2d(filters=48, kernel_size=7)', 'error']}: the class is Conv2D",
            "tensorflow",
        ),
        (
            "walkthrough",
            "loss scaling makes no great difference (for a GAN)",
            f"for our net: {mean['none']:.2f} % without, {mean['dynamic']:.2f} % with a dynamic scale",
            "jax",
        ),
        (
            "walkthrough",
            "the first iterations are slower: XLA compiles",
            f"first epoch ~{first:.1f} s, later ones ~{later:.2f} s",
            "jax",
        ),
        (
            "walkthrough",
            "Nsight Systems does not show Tensor Core use",
            f"FP16: Tensor Cores in kernels of ~{fp16['yes']:.0f} ms, none in ~{fp16['no']:.0f} ms, "
            f"unknown in ~{fp16['unknown']:.0f} ms",
            "jax",
        ),
        (
            "walkthrough",
            "a profile in FP32 needs TF32 switched off",
            f"error of a product: {errors['as it comes']} as JAX comes, {errors[f'TF32 on, {override}']} with {override}",
            "jax",
        ),
    ]
    return table(pd.DataFrame(found, columns=["text", "what it says", "what we found", "backend"]))
