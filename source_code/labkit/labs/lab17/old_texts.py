"""What do three older texts say about TensorFlow, and what was found? Their lines, and the errors of FP32 and TF32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import pandas as pd

from labkit.labs.lab17.epochs import later_epochs, parts
from labkit.labs.lab17.reports import Counted
from labkit.subjects.keras import USUAL_SCALE, Tried
from stepbudget.show.table import Table, table


def precision(tried: Tried) -> Table:
    """Relative rounding error of a product and a convolution in FP32, a column a backend and operation."""
    columns = {}
    for backend, tables in tried.items():
        found = tables["precision"].set_index("setting")
        for operation in ("product", "convolution"):
            columns[f"{backend}: {operation}"] = found[f"{operation}_error"]
    found = pd.DataFrame(columns).reset_index(names="setting (policy float32)")
    measured = list(found.columns[1:])
    return table(found, "Relative error against FP64", dict.fromkeys(measured, "{:.0e}"))


def texts(tried: Tried, runs: Mapping[str, Sequence[dict]], few: pd.DataFrame, counted: Mapping[str, Counted]) -> Table:
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
    errors = products.map("{:.0e}".format)
    disabled = next(setting for setting in errors.index if "TENSOR_OP_MATH" in setting)
    override = next(setting for setting in errors.index if "TF32_OVERRIDE" in setting)
    mixed = few[few["policy"] == "mixed_float16"]
    without = mixed[mixed["scale"] == "none"]
    usual = mixed[(mixed["scale"] == USUAL_SCALE) & mixed["seed"].isin(without["seed"])]
    later = {name: median(own) for name, own in later_epochs(runs).items()}
    of = pd.DataFrame({name: parts(own) for name, own in runs.items()})
    process, first, less = of.loc["process"], of.loc["first epoch"], (of["FP32"] - of["FP16"]).map("{:.1f} s".format)
    active = {name: one.tensor for name, one in counted.items()}
    seen = ", ".join(f"{name} {own.max_pct:.0f} %" for name, own in active.items() if own)
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
         f"FP16 over FP32: a later epoch {later['FP32'] / later['FP16']:.1f} times as fast, "
         f"the process, compiling included, {process['FP32'] / process['FP16']:.1f} times"),
        ("guide", "the same", "jax",
         f"FP32's process less FP16's: {less['process']}, of it {less['first epoch']} first epoch, "
         f"{less['tests']} tests"),
        ("article", "FP32 gains far less from Tensor Cores than FP16", "jax",
         f"a later epoch: FP32 {later['FP32']:.2f} s, as TF32 {later['TF32']:.2f} s, "
         f"FP16 {later['FP16']:.2f} s"),
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
         f"FP16: first epoch {first['FP16']:.1f} s, later ones {later['FP16']:.2f} s"),
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
    return table(frame[["text", "what it says", "what we found", "backend"]])


def _switched(products: pd.Series, setting: str) -> str:
    """Did this setting take TF32 away from JAX's product? In words; an error above 0.00001 is not FP32's."""
    if products["TF32 on"] < 1e-5:
        return "no TF32 to switch off"
    return "without effect" if products[setting] > 1e-5 else "TF32 is off"


def _outcome(row: pd.Series) -> str:
    """What became of a line of an older text: the error that it raises, or what it says."""
    return f"{row['error']}: {row['says']}" if isinstance(row.get("error"), str) else f"it runs: {row['says']}"
