"""What lab 16 claims: Keras's network is PyTorch's, which layers stay in FP32, and when a loss scale is applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from labkit.checks import Claim

WRAPPED = "LossScaleOptimizer"
FIXED = "mixed_float16, loss_scale_factor=1024"  # a way to compile, as bench_keras.py calls it
ON_LAYERS = "float32, but layers with dtype='mixed_float16'"
USUAL = ["dynamic, from 32,768", "fixed, 1,024", "none"]  # scales, as keras.readings.few_digits calls them
RECOVERED, RUINED = "dynamic, from 1,073,741,824", "fixed, 1,073,741,824"
SCALED, UNSCALED = "own step, scale_loss", "own step"  # ways, as bench_keras_step.py calls them


def same_network(agreement: Mapping[str, pd.DataFrame]) -> Iterator[Claim | str]:
    """The net has PyTorch's parameters and outputs; ``agreement``: a row a backend, by policy."""
    rows = pd.concat(agreement.values())
    same = rows["parameters"] == rows["parameters_torch"]
    yield Claim("Keras counts as many parameters as PyTorch, on every backend", bool(same.all()))
    furthest = agreement["float32"]["largest_difference"].max()
    yield Claim(
        "in FP32, no output differs by more than 0.00001", furthest < 1e-5, furthest,
        because="a library rounds more there: TF32 stayed on, or Winograd's convolution was chosen",
        so="below 0.001 it is rounding, and the same network; above, look at the order of the weights",
    )  # fmt: skip


def fp32_layers(layers: pd.DataFrame) -> Iterator[Claim | str]:
    """Weights are FP32 under mixed_float16, and what computes in FP32 is the last layer alone."""
    mixed = layers[layers["model_policy"] == "mixed_float16"]
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
    yield Claim("under a dynamic scale an overflow costs no weight", dynamic["weight"] == 1)
    yield Claim("under a fixed scale, or none, it ruins the weights", ruined == {"inf"})
    yield Claim("the scale never shows in the weights", set(good["weight"]) == {0.5})
    yield Claim(
        "a step that overflowed is not counted", dynamic["steps_counted"] == 0,
        because="versions of Keras differ in what they count",
        so="optimizer.iterations does not tell how many steps were skipped here",
    )  # fmt: skip


def scales(few: pd.DataFrame) -> Iterator[Claim | str]:
    """What skipped steps and what learnt, by loss scale; ``few``: a row a training on few digits."""
    by_scale = few[few["policy"] == "mixed_float16"].groupby("scale")
    skipped = by_scale["skipped_steps"].max().reindex([*USUAL, RECOVERED])
    accuracy = by_scale["accuracy_pct"].min().reindex([*USUAL, RECOVERED, RUINED])
    lowest, lost = accuracy[USUAL].min(skipna=False), accuracy[RUINED]
    learns = skipped[RECOVERED] > 0 and accuracy[RECOVERED] > 90
    yield Claim("from 2¹⁵, with 1,024 and with none no step is skipped", bool((skipped[USUAL] == 0).all()))
    yield Claim("those three reach 94 %, every seed", lowest > 94, lowest)
    yield Claim("from 2³⁰, a dynamic scale skips some steps and learns", learns)
    yield Claim("a fixed 2³⁰ ruins the training", lost < 20, lost)


def first_steps(own_step: pd.DataFrame) -> Iterator[Claim | str]:
    """How far a first step goes with scale_loss and without, and what is learnt; a row an optimizer and way."""
    by_step = own_step.set_index(["optimizer", "way"])
    shorter, accuracy = (by_step[name].unstack() for name in ("times_shorter", "accuracy_pct"))
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
        "Keras on JAX reaches 98.70 % in FP32 and in FP16, not significantly below PyTorch (p ≥ 0.05)",
        all(mean >= 98.70 and p >= 0.05 for mean, p in gates),
        ", ".join(f"{mean:.2f} %, p {p:.2f}" for mean, p in gates),
        because="of two equal networks one in twenty fails this test",
        so="train with more seeds before you call it a loss",
    )


def as_near_as_seeds(few: pd.DataFrame) -> Iterator[Claim | str]:
    """TensorFlow's accuracy in FP32 is PyTorch's, give or take the seeds; the argument of ``scales``."""
    of_torch = few["framework"] == "PyTorch"
    base, own = (few.loc[rows, "accuracy_pct"] for rows in (of_torch, ~of_torch & (few["policy"] == "float32")))
    difference = abs(own.mean() - base.mean())
    noise = max(base.max() - base.min(), own.max() - own.min())
    yield Claim(
        "as shipped: TensorFlow's mean in FP32 is as near to PyTorch's as seeds are to each other",
        difference <= noise,
        (difference, noise),
    )
