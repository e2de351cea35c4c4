"""Benchmark: what Keras's policies, loss scales and precision switches do, each one tried on a backend (lab 16)."""

import json
import os
import subprocess
import sys
import warnings

import numpy as np
import torch
import torch.nn.functional as F

from labkit.errors import one_sentence
from labkit.training import keras_net, keras_run, steps
from labkit.training.data import normalise
from labkit.training.model import Net

SIZE = 1024  # rows and columns of the product whose rounding error is measured
OVERRIDES = {  # environment variables that are said to switch Tensor Cores off
    "NVIDIA_TF32_OVERRIDE=0": {"NVIDIA_TF32_OVERRIDE": "0"},
    "TF_DISABLE_…TENSOR_OP_MATH=1": {
        f"TF_DISABLE_{library}TENSOR_OP_MATH": "1" for library in ("", "CUBLAS_", "CUDNN_")
    },
}


def array(tensor):
    from keras import ops

    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def agreement(images):
    """A row a policy: parameters, and the forward pass of Keras against PyTorch's FP32 from the same weights."""
    from keras import config

    torch.manual_seed(0)
    net = Net().eval()
    with torch.no_grad():
        expected = net(images).numpy()
    for policy in keras_run.POLICIES:
        config.set_dtype_policy(policy)
        model = keras_net.net()
        model.set_weights(keras_net.weights_of(net))
        found = array(model(keras_net.images_of(images), training=False))
        yield {
            "policy": policy,
            "parameters": model.count_params(),
            "parameters_torch": sum(parameter.numel() for parameter in net.parameters()),
            "largest_difference": float(abs(found - expected).max()),
            "largest_output": float(abs(expected).max()),
        }


def layer_dtypes():
    """A row a policy and layer, from the built model."""
    from keras import config

    for policy in keras_run.POLICIES:
        config.set_dtype_policy(policy)
        yield from ({"model_policy": policy, **row} for row in keras_net.dtypes(keras_net.net()))


def float16_layers():
    """What happens inside layers and the loss when all of them are given 16 bits, a row each."""
    from keras import config, layers, losses, ops

    config.set_dtype_policy("mixed_float16")
    thousands = ops.cast(np.linspace(-1000, 1000, 4096, dtype="float32").reshape(64, 64), "float16")
    spread = ops.cast(np.array([[0.0, -20.0]], "float32"), "float16")
    target = np.array([1])
    loss = losses.SparseCategoricalCrossentropy()
    squares = ops.mean(ops.square(thousands))
    yield row_of("mean of squares of ±1000, written out", squares)
    yield row_of("BatchNormalization of ±1000", layers.BatchNormalization()(thousands, training=True))
    yield row_of("LayerNormalization of ±1000", layers.LayerNormalization()(thousands))
    yield row_of("Softmax of (0, -20)", layers.Softmax()(spread))
    yield row_of("Softmax of (0, -20), dtype float32", layers.Softmax(dtype="float32")(spread))
    yield row_of("cross-entropy after Softmax", loss(target, layers.Softmax()(spread)))
    yield row_of("cross-entropy after Softmax, dtype float32", loss(target, layers.Softmax(dtype="float32")(spread)))
    dense = layers.Dense(4, dtype="float16")
    dense.build((1, 4))
    yield {"what": "variables of Dense(4, dtype='float16')", "dtype": str(dense.kernel.dtype), "last": None}


def row_of(what, tensor):
    from keras import backend

    value = float(array(tensor).ravel()[-1])
    dtype = backend.standardize_dtype(tensor.dtype)
    return {"what": what, "dtype": dtype, "last": value if np.isfinite(value) else "inf"}


def compiled_with():
    """Which optimizer ``compile`` makes of an Adadelta, a row for each way to ask for it."""
    import keras
    from keras import layers, optimizers

    ways = {
        "float32": ("float32", {}, {}),
        "mixed_bfloat16": ("mixed_bfloat16", {}, {}),
        "mixed_float16": ("mixed_float16", {}, {}),
        "mixed_float16, auto_scale_loss=False": ("mixed_float16", {}, {"auto_scale_loss": False}),
        "mixed_float16, loss_scale_factor=1024": ("mixed_float16", {"loss_scale_factor": 1024.0}, {}),
        "mixed_float16, loss_scale_factor=1024, auto_scale_loss=False": (
            "mixed_float16",
            {"loss_scale_factor": 1024.0},
            {"auto_scale_loss": False},
        ),
    }
    for way, (policy, of_optimizer, of_compile) in ways.items():
        keras.config.set_dtype_policy(policy)
        model = keras_net.net()
        model.compile(optimizers.Adadelta(**of_optimizer), "mse", **of_compile)
        yield {"way": way, **_optimizer(model.optimizer)}
    keras.config.set_dtype_policy("float32")
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4, dtype="mixed_float16")])
    model.compile(optimizers.Adadelta(), "mse")
    yield {"way": "float32, but layers with dtype='mixed_float16'", **_optimizer(model.optimizer)}


def _optimizer(optimizer):
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return {
        "optimizer": type(optimizer).__name__,
        "fixed_scale": inner.loss_scale_factor,
        "initial_scale": getattr(optimizer, "initial_scale", None),
        "growth_steps": getattr(optimizer, "dynamic_growth_steps", None),
    }


def steps_taken():
    """What one step does to a weight and to the scale, for good gradients and for an overflow, a row each."""
    import keras
    from keras import ops, optimizers

    def sgd(**flags):
        return optimizers.SGD(1.0, **flags)

    cases = {
        "dynamic": lambda: optimizers.LossScaleOptimizer(sgd(), dynamic_growth_steps=3),
        "fixed 1024": lambda: sgd(loss_scale_factor=1024.0),
        "none": sgd,
    }
    for name, make in cases.items():
        for gradient, count in ((0.5, 1), (0.5, 3), (float("inf"), 1)):
            optimizer, weight = make(), keras.Variable(1.0)
            optimizer.build([weight])
            scale = float(array(optimizer.scale_loss(ops.convert_to_tensor(1.0))))
            for _ in range(count):
                now = float(array(optimizer.scale_loss(ops.convert_to_tensor(1.0))))
                take_step(optimizer, ops.convert_to_tensor(gradient * now), weight)
            after = float(array(optimizer.scale_loss(ops.convert_to_tensor(1.0))))
            moved = float(array(weight))
            yield {
                "scale": name,
                "steps": f"{count} good" if np.isfinite(gradient) else f"{count} overflowed",
                "scale_before": scale,
                "scale_after": after,
                "weight": moved if np.isfinite(moved) else "inf",
                "steps_counted": int(optimizer.iterations),
            }


def take_step(optimizer, gradient, weight):
    """One step as Keras's own training loop takes it; JAX's has no side effects, so the new values are put in place."""
    import keras

    if keras.backend.backend() != "jax":
        optimizer.apply([gradient], [weight])
        return
    state = [variable.value for variable in optimizer.variables]
    (new,), new_state = optimizer.stateless_apply(state, [gradient], [weight.value])
    for variable, value in zip([weight, *optimizer.variables], [new, *new_state], strict=True):
        variable.assign(value)


def rounding(setting):
    """Relative error of an FP32 product and an FP32 convolution on this backend, against FP64: one row."""
    from keras import ops

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIZE, SIZE)).astype("float32") for _ in range(2))
    images, kernel = (rng.standard_normal(shape).astype("float32") for shape in ((64, 26, 26, 32), (3, 3, 32, 64)))
    inputs, filters = torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(kernel).permute(3, 2, 0, 1)
    convolved = F.conv2d(inputs.double(), filters.double()).permute(0, 2, 3, 1)
    exact = {
        "product": a.astype("float64") @ b.astype("float64"),
        "convolution": convolved.numpy(),
    }
    found = {"product": array(ops.matmul(a, b)), "convolution": array(ops.conv(images, kernel))}
    errors = {name: np.linalg.norm(found[name] - exact[name]) / np.linalg.norm(exact[name]) for name in exact}
    return {"setting": setting, **{f"{name}_error": float(error) for name, error in errors.items()}}


def precision(backend):
    """A row for FP32 as the backend comes, with TF32 off and on, and under each override."""
    yield rounding("as it comes")
    for tf32 in (True, False):  # off last: the tables after this one are in true FP32
        keras_run.set_fp32_precision(backend, tf32)
        yield rounding(f"TF32 {'on' if tf32 else 'off'}")
    for name, variables in OVERRIDES.items():
        words = [sys.executable, __file__, "--backend", backend, "--rounding-only"]
        done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
        yield {**json.loads(done.stdout.splitlines()[-1]), "setting": f"TF32 on, {name}"}


def claims():
    """What the seeds' TensorFlow lines do in the installed version, a row each."""
    import tensorflow as tf

    keras = tf.keras
    adam = keras.optimizers.Adam
    wrapped = keras.mixed_precision.LossScaleOptimizer
    keras.mixed_precision.set_global_policy("mixed_float16")
    tried = {
        "tf.keras.mixed_precision.LossScaleOptimizer(adam, loss_scale='dynamic')": lambda: wrapped(
            adam(), loss_scale="dynamic"
        ),
        "tf.keras.mixed_precision.LossScaleOptimizer(adam, dynamic=False, initial_scale=1024)": lambda: wrapped(
            adam(), dynamic=False, initial_scale=1024
        ),
        "tf.keras.mixed_precision.LossScaleOptimizer(adam)": lambda: wrapped(adam()).initial_scale,
        "tf.keras.mixed_precision.Policy('mixed_float16').variable_dtype": lambda: (
            keras.mixed_precision.Policy("mixed_float16").variable_dtype
        ),
        "tf.keras.mixed_precision.Policy('mixed_float16').compute_dtype": lambda: (
            keras.mixed_precision.Policy("mixed_float16").compute_dtype
        ),
        "tf.keras.layers.Conv2d(filters=48, kernel_size=7)": lambda: keras.layers.Conv2d(filters=48, kernel_size=7),
        "tf.keras.mixed_precision.experimental": lambda: keras.mixed_precision.experimental,
        "tf.config.experimental.tensor_float_32_execution_enabled()": (
            lambda: tf.config.experimental.tensor_float_32_execution_enabled()
        ),
        "tf.keras.__version__": lambda: keras.__version__,
    }
    for line, call in tried.items():
        yield {"line": line, **_outcome(call)}


def _outcome(call):
    try:
        return {"error": None, "says": str(call())}
    except (AttributeError, TypeError, ValueError) as error:
        return {"error": type(error).__name__, "says": str(error)}


def main():
    args = keras_run.parse_args(__doc__, bench=True)
    with one_sentence():
        keras_run.use(args.backend, args.device, tf32=None)
    if args.rounding_only:
        keras_run.set_fp32_precision(args.backend, True)
        print(json.dumps(rounding("")))
        return
    warnings.simplefilter("ignore")  # of PyTorch, about FP16 values that become inf: they are the point
    digits = steps.found_digits(args)
    tables = {"claims": claims() if args.backend == "tensorflow" else []}  # first, while all is as it comes
    tables |= {
        "precision": precision(args.backend),
        "agreement": agreement(normalise(digits.test.data[:256])),
        "layers": layer_dtypes(),
    }
    tables |= {"float16": float16_layers(), "compile": compiled_with(), "steps": steps_taken()}
    rows = [{"table": table, **row} for table, found in tables.items() for row in found]
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    device = steps.pick_device(args.device)
    versions = keras_run.versions(args.backend)
    steps.write_benchmark_record(args, device, rows, data_source=digits.source, backend=args.backend, keras=versions)


if __name__ == "__main__":
    main()
