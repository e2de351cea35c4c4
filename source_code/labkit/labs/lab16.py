"""Lab 16: is it PyTorch's network, which layers stay in FP32, and when is a loss scaled?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from labkit.checks import Claim
from labkit.exercises.kinds import BOUND, READ, Code, Number
from labkit.predictions import Guess
from labkit.source import recorded
from labkit.subjects.accuracy import FLOOR_PCT, SIGNIFICANCE
from labkit.subjects.keras import KIND, USUAL_SCALE, Tried
from stepbudget.show.table import Table, table
from stepbudget.signs import signed

WRAPPED = "LossScaleOptimizer"
ON_LAYERS = "float32, but layers with dtype='mixed_float16'"
RECOVERED, RUINED = "dynamic, from 1,073,741,824", "fixed, 1,073,741,824"
FIXED = "mixed_float16, loss_scale_factor=1024"  # a way to compile, as bench_keras.py calls it
USUAL = [USUAL_SCALE, "fixed, 1,024", "none"]  # scales, as keras.few_digits calls them
# Ways, as bench_keras_step.py calls them.
SCALED, UNSCALED, KERAS_STEP = "own step, scale_loss", "own step", "Keras's step"


def agreement(tried: Tried) -> Table:
    """Parameters, and how far Keras's output is from PyTorch's in FP32, from the same weights."""
    rows = [
        (backend, row["policy"], row["parameters"], row["parameters_torch"], row["largest_difference"])
        for backend, tables in tried.items()
        for row in tables["agreement"].to_dict("records")
    ]
    columns = ["backend", "policy", "parameters", "PyTorch's", "largest difference"]
    caption = "The net in Keras and in PyTorch (FP32): 256 digits, log-probabilities from the same weights"
    return table(pd.DataFrame(rows, columns=columns), caption, {"largest difference": "{:.0e}"})


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


def ways_to_compile(tables: Mapping[str, pd.DataFrame], backend: str) -> Table:
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
    found = tables["steps"].rename(columns=names)[list(names.values())].replace({"weight after": {"inf": "not finite"}})
    caption = f"A weight of 1, gradients of 0.5, SGD with rate 1; here dynamic doubles after 3 (Keras on {backend})"
    return table(found, caption, {"weight after": "{:.1f}"})


def own_step() -> Table:
    """The shipped trial of a training step of one's own on a CPU: a row an optimizer and way.

    How many times as far Keras's own first step moved the weights as this one, from the same start; and what the
    training has learnt.
    """
    (record,) = recorded.matching(KIND, "bench_keras_step-*")
    found = pd.DataFrame(record["rows"])
    keras = found[found["way"] == KERAS_STEP].set_index("optimizer")["first_step"]
    found["times_shorter"] = found["optimizer"].map(keras) / found["first_step"]
    names = {
        "optimizer": "optimizer", "way": "trained by", "times_shorter": "first step: times shorter",
        "scale": "scale at the end", "accuracy_pct": "accuracy %",
    }  # fmt: skip
    on = f"{record['arguments']['epochs']} epochs on the first {record['train_samples']:,} digits"
    caption = f"mixed_float16, {on} (Keras on tensorflow, CPU)"
    formats = {"first step: times shorter": "{:,.0f}", "scale at the end": "{:,.0f}", "accuracy %": "{:.1f}"}
    return table(found.rename(columns=names)[list(names.values())], caption, formats)


def few_digits(found: pd.DataFrame) -> Table:
    """The trainings on few digits and a CPU, a row a framework, policy and loss scale."""
    rows = []
    for (framework, policy, scale), group in sorted(found.groupby(["framework", "policy", "scale"]), key=_in_order):
        accuracy, loss, is_fp16 = group["accuracy_pct"], group["loss"], policy == "mixed_float16"
        rows.append(
            {
                "framework": framework,
                "policy": policy,
                "loss scale": scale if is_fp16 else None,
                "seeds": len(group),
                "mean %": accuracy.mean(),
                "lowest %": accuracy.min(),
                "highest %": accuracy.max(),
                "test loss": loss.mean() if loss.notna().all() else "nan",
                "skipped": f"{group['skipped_steps'].max():.0f} of {group['steps'].iloc[0]}"
                if scale.startswith("dynamic")
                else None,
                "scale at the end": group["last_scale"].max(),
            }
        )
    caption = f"Accuracy after four epochs on the first {found['train_samples'].iloc[0]:,} digits, on a CPU"
    formats = dict.fromkeys(["mean %", "lowest %", "highest %"], "{:.1f}") | {"test loss": "{:.2f}"}
    return table(pd.DataFrame(rows), caption, formats | {"scale at the end": "{:,.0f}"})


def _in_order(row: tuple[tuple[str, str, str], pd.DataFrame]) -> tuple:
    """PyTorch first, then by policy; the usual scale first, the others by their size."""
    framework, policy, scale = row[0]
    size = float("0" + "".join(filter(str.isdigit, scale)))
    return framework != "PyTorch", ["float32", "mixed_bfloat16", "mixed_float16"].index(policy), (
        scale != USUAL_SCALE, size, scale,
    )  # fmt: skip


# --- what it asks before it shows ---------------------------------------------------------------------------


def _of_fp16(layers: pd.DataFrame) -> pd.DataFrame:
    return layers[layers["model_policy"] == "mixed_float16"]


def _times_shorter(own_step: pd.DataFrame, optimizer: str) -> float:
    """How many times too short the first step of one's own is, whose loss was not scaled."""
    by_step = own_step.set_index(["optimizer", "trained by"])
    return float(by_step.loc[(optimizer, UNSCALED), "first step: times shorter"])


PREDICTIONS = {
    "fp32_layers": Guess(
        "layers that compute in FP32", "",
        lambda layers: int((_of_fp16(layers)["computes in"] == "float32").sum()),
        wrong={
            "The last layer asks for FP32 itself.": lambda layers: 0,
            "So many layers have weights. These are kept in FP32, but cast before they're used.": (
                lambda layers: int((_of_fp16(layers)["weights"] == "float32").sum())
            ),
            "So many layers have no weights. A policy doesn't look at that.": (
                lambda layers: int((_of_fp16(layers)["weights"] != "float32").sum())
            ),
        },
    ),
    "shorter": Guess(
        "a first step whose loss wasn't scaled", "×", lambda own_step: _times_shorter(own_step, "SGD"),
        wrong={
            "The optimizer divides the gradients by the scale, whether the loss was multiplied or not.": (
                lambda own_step: 1
            ),
            "With that scale PyTorch's `GradScaler` begins.": lambda own_step: 2**16,
            "That's Adam, which divides each gradient by its own size. SGD doesn't.": (
                lambda own_step: _times_shorter(own_step, "Adam")
            ),
        },
    ),
}  # fmt: skip


# --- what it claims -----------------------------------------------------------------------------------------


def same_network(tried: Tried) -> Iterator[Claim | str]:
    """The net has PyTorch's parameters and outputs, on each backend."""
    rows = pd.concat(tables["agreement"] for tables in tried.values())
    same = rows["parameters"] == rows["parameters_torch"]
    yield Claim("Keras counts as many parameters as PyTorch, on every backend", bool(same.all()))
    furthest = rows.loc[rows["policy"] == "float32", "largest_difference"].max()
    yield Claim(
        "in FP32, no output differs by more than 0.00001", furthest < 1e-5, furthest,
        because="a library rounds more there: TF32 stayed on, or Winograd's convolution was chosen",
        so="below 0.001 it is rounding, and the same network; above, look at the order of the weights",
    )  # fmt: skip


def fp32_layers(layers: pd.DataFrame) -> Iterator[Claim | str]:
    """Weights are FP32 under mixed_float16, and what computes in FP32 is the last layer alone."""
    mixed = _of_fp16(layers)
    weights = set(mixed["weights"]) - {""}
    yield Claim("the weights are FP32 in every layer", weights == {"float32"}, weights)
    in_fp32 = mixed[mixed["computes in"] == "float32"]
    yield Claim("only the last layer computes in FP32", list(in_fp32["layer"]) == ["log_softmax"])


def overflow_inside(tried: Mapping[str, Mapping[str, pd.DataFrame]]) -> Iterator[Claim | str]:
    """A mean of squares overflows in FP16, and layers that compute one do not; ``tried``: tables, by backend."""
    last = pd.concat([told["float16"].set_index("what")["last"].rename(name) for name, told in tried.items()], axis=1)
    squares = last[last.index == "mean of squares of ±1000, written out"]
    normalised = last[last.index.str.endswith("Normalization of ±1000")]
    yield Claim(
        "in float16 the mean written out overflows, and both normalisations do not",
        bool((squares == "inf").all(axis=None) and np.isfinite(normalised.astype(float)).all(axis=None)),
        (set(squares.stack()), set(normalised.stack())),
        because="another version of Keras, or of a backend, computes other things in FP32",
        so="go by the table above, not by the text below",
    )


def compiled(ways: pd.DataFrame) -> Iterator[Claim | str]:
    """What compile wraps, and what it drops; ``ways``: a row for each way to ask for a scale."""
    scaled = set(ways.loc[ways["optimizer"] == WRAPPED, "way"])
    unscaled = set(ways.loc[ways["optimizer"] != WRAPPED, "way"])
    kept = list(ways.loc[ways["fixed_scale"] == 1024, "way"])
    yield Claim(
        "mixed_float16 is given a dynamic scale, mixed_bfloat16 none",
        "mixed_float16" in scaled and "mixed_bfloat16" in unscaled,
        because="versions of Keras differ in what compile adds",
        so="print model.optimizer before you train: that is what trains",
    )
    yield Claim(
        "a fixed scale is dropped, unless auto_scale_loss=False",
        f"{FIXED}, auto_scale_loss=False" in kept and FIXED not in kept,
        because="versions of Keras differ in what compile keeps",
        so=f"your 1,024 stays with: {'; '.join(kept) or 'none of these ways'}",
    )
    yield Claim(
        "with the policy on the layers instead of the model, nothing scales the loss", ON_LAYERS in unscaled,
        because="versions of Keras differ in whose policy compile asks for",
        so="this trap is mended here",
    )  # fmt: skip


def overflowed_steps(steps: pd.DataFrame) -> Iterator[Claim | str]:
    """What each scale makes of an overflow and of a good gradient; ``steps``: a row a scale and kind of step."""
    overflow, good = (steps[steps["steps"] == kind].set_index("scale") for kind in ("1 overflowed", "1 good"))
    overflow, good = (rows.reindex(["dynamic", "fixed 1024", "none"]) for rows in (overflow, good))
    dynamic, ruined = overflow.loc["dynamic"], set(overflow.loc[["fixed 1024", "none"], "weight"])
    yield Claim("under a dynamic scale an overflow changes no weight", dynamic["weight"] == 1)
    yield Claim("under a fixed scale, or none, it ruins the weights", ruined == {"inf"})
    yield Claim("the scale never shows in the weights", set(good["weight"]) == {0.5})
    yield Claim(
        "a step that overflowed is not counted", dynamic["steps_counted"] == 0,
        because="versions of Keras differ in what they count",
        so="optimizer.iterations does not tell how many steps were skipped here",
    )  # fmt: skip


def scales(few: pd.DataFrame) -> Iterator[Claim | str]:
    """What skipped steps and what learnt, by loss scale and framework; ``few``: a row a training on few digits."""
    by_scale = few[few["policy"] == "mixed_float16"].groupby("scale")
    skipped = by_scale["skipped_steps"].max().reindex([*USUAL, RECOVERED])
    accuracy = by_scale["accuracy_pct"].min().reindex([*USUAL, RECOVERED, RUINED])
    lowest, lost = accuracy[USUAL].min(skipna=False), accuracy[RUINED]
    learns = skipped[RECOVERED] > 0 and accuracy[RECOVERED] > 90
    yield Claim("from 2¹⁵, a dynamic scale skips no step", skipped[USUAL_SCALE] == 0)
    yield Claim("with it, with a fixed 1,024 and with none every seed reaches 94 %", lowest > 94, lowest)
    yield Claim("from 2³⁰, a dynamic scale skips some steps and learns", learns)
    yield Claim("a fixed 2³⁰ ruins the training", lost < 20, lost)
    of_torch = few["framework"] == "PyTorch"
    base, own = (few.loc[rows, "accuracy_pct"] for rows in (of_torch, ~of_torch & (few["policy"] == "float32")))
    difference, noise = abs(own.mean() - base.mean()), max(base.max() - base.min(), own.max() - own.min())
    yield Claim(
        "in FP32, TensorFlow's mean is as near to PyTorch's as seeds are to each other",
        difference <= noise,
        (difference, noise),
    )


def first_steps(own_step: pd.DataFrame) -> Iterator[Claim | str]:
    """How far a first step goes with scale_loss and without, and what is learnt; a row an optimizer and way."""
    by_step = own_step.set_index(["optimizer", "trained by"])
    shorter, accuracy = (by_step[name].unstack() for name in ("first step: times shorter", "accuracy %"))
    sgd, least = shorter.loc["SGD", UNSCALED], shorter[UNSCALED].min()
    yield Claim(
        "with scale_loss the first step is Keras's own, to 1 %",
        bool(shorter[SCALED].between(0.99, 1.01).all()),
        shorter[SCALED].to_dict(),
    )
    yield Claim(
        "without it SGD's is shorter by the scale, to 1 %; the others' ten times or more",
        0.99 < sgd / 2**15 < 1.01 and least > 10,
        (sgd, least),
    )
    learnt = accuracy[UNSCALED]
    yield Claim(
        "every optimizer learns less without it, SGD and Adadelta no more than guessing",
        bool((learnt < accuracy[SCALED]).all() and learnt[["SGD", "Adadelta"]].max() < 20),
        accuracy.to_dict(),
    )


def learns_as_well(gates: Sequence[tuple[float, float]]) -> Iterator[Claim | str]:
    """Keras keeps the accuracy; ``gates``: in FP32 and in FP16 the mean and the p-value of being below PyTorch."""
    yield Claim(
        "the mean of Keras on JAX is at least 98.70 % in FP32 and in FP16, not significantly below PyTorch (p ≥ 0.05)",
        all(mean >= FLOOR_PCT and p >= SIGNIFICANCE for mean, p in gates),
        ", ".join(f"{mean:.2f} %, p {p:.2f}" for mean, p in gates),
        because="of two equal networks one in twenty fails this test",
        so="train with more seeds before you call it a loss",
    )


# --- its exercises ------------------------------------------------------------------------------------------

CHANNELS, ROWS, COLUMNS, OUTPUTS = 3, 4, 2, 5  # a small fc1


def _try_fc1_for_keras(fc1_for_keras: Callable) -> str | None:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((2, CHANNELS, ROWS, COLUMNS))
    weight = rng.standard_normal((OUTPUTS, CHANNELS * ROWS * COLUMNS))
    expected = images.reshape(2, -1) @ weight.T
    kernel = np.asarray(fc1_for_keras(weight.copy(), CHANNELS, ROWS, COLUMNS))
    if kernel.shape != (CHANNELS * ROWS * COLUMNS, OUTPUTS):
        return f"its shape is {kernel.shape}: Keras wants a row for each input and a column for each output"
    if np.allclose(images.transpose(0, 2, 3, 1).reshape(2, -1) @ kernel, expected):
        return None
    if np.allclose(images.reshape(2, -1) @ kernel, expected):
        return "transposed, but its rows still come channel by channel; Keras flattens pixel by pixel"
    return "the products differ: go from (out, channel, row, column) to (row, column, channel, out)"


def _weights(order: tuple[int, ...] | None, transposed: bool = True) -> Callable:
    """The conversion with the four axes in another order, and transposed or not."""

    def fc1_for_keras(weight, channels, rows, columns):
        if order is None:
            return weight.T if transposed else weight
        moved = weight.reshape(-1, channels, rows, columns).transpose(order)
        return moved.reshape(-1, len(weight)) if transposed else moved.reshape(len(weight), -1)

    return fc1_for_keras


FC1_FOR_KERAS = Code(
    "Give the matrix its four axes with reshape, put them in Keras's order with transpose, and reshape again.",
    _try_fc1_for_keras,
    wrong={
        "its shape is (5, 24): Keras wants": _weights(None, transposed=False),
        "its rows still come channel by channel": _weights(None),
        "the products differ": _weights((3, 2, 1, 0)),
        "its shape is (5, 24)": _weights((0, 2, 3, 1), transposed=False),
    },
)


STEPS = 4500  # what the colleague does


def _last_scale(compiled: pd.DataFrame, steps: int = STEPS) -> float:
    """By what the loss is multiplied in the last step: the fixed scale where this Keras keeps it, else what grew."""
    row = compiled.set_index("way").loc[FIXED]
    if pd.notna(row["fixed_scale"]):
        return float(row["fixed_scale"])
    if pd.isna(row["initial_scale"]):
        return 1.0
    return float(row["initial_scale"] * 2 ** ((steps - 1) // row["growth_steps"]))


LAST_SCALE = Number(
    READ,
    "In the row for what the colleague asks: what trains, what does it begin with, and how often does it double?",
    right=_last_scale,
    wrong={
        "that is what was asked for: look in its row at what trains": lambda compiled: 1024.0,
        "with that it begins: does it stay so, for so many good steps?": lambda compiled: _last_scale(compiled, 1),
        "it doubled once more: after how many good steps in a row does it?": lambda compiled: _last_scale(
            compiled, STEPS // 2
        ),
        "it has not doubled that often yet: count whole runs of good steps": lambda compiled: 2 * _last_scale(compiled),
        "a doubling is not added, it multiplies": lambda compiled: 3 * _last_scale(compiled, 1),
        "nothing is what a model under float32 gets: which row is this?": lambda compiled: 1.0,
    },
    within=0.0,
)
FP16_LARGEST, FP16_SMALLEST = 65504.0, 2.0**-24
LARGEST_BEFORE_SCALING = Number(
    BOUND,
    "Scaled, a number may be FP16's largest at most. Before it was multiplied, it was smaller by the scale.",
    right=lambda run: FP16_LARGEST / run["last_scale"],
    wrong={
        "that is by the scale at the beginning, which was halved since": lambda run: (
            FP16_LARGEST / (run["last_scale"] * 2 ** run["skipped_steps"])
        ),
        "that is upside down: the number times the scale is FP16's largest": lambda run: (
            run["last_scale"] / FP16_LARGEST
        ),
        "that is the bound after scaling: before it, the number was smaller": lambda run: FP16_LARGEST,
        "that multiplies by the scale once more: go back from what is scaled": lambda run: (
            FP16_LARGEST * run["last_scale"]
        ),
        "that is the smallest number that is kept, not the largest": lambda run: FP16_SMALLEST / run["last_scale"],
    },
)

EXERCISES = {
    "16.1": FC1_FOR_KERAS,
    "16.2": LAST_SCALE,
    "16.3": LARGEST_BEFORE_SCALING,
}
