"""The command line and the run record of the Keras scripts: the course's own, with a backend.

Keras chooses its backend once, when it is imported: TensorFlow, JAX or PyTorch. So it is imported here, after the
command line has been read and the environment prepared.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch

from labkit.errors import LabError, one_sentence
from labkit.training import keras_net, machine, steps
from labkit.training.data import normalise
from labkit.training.keras_net import HOW_TO_INSTALL
from labkit.training.model import Net

BACKENDS = ("tensorflow", "jax", "torch")
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")


def parse_args(doc: str, mixed: bool = False, bench: bool = False) -> argparse.Namespace:
    """The command line of ``labkit.training.steps`` and what Keras adds to it.

    ``mixed`` adds the flags of mixed precision, ``bench`` one with which the benchmark calls itself.

    Wrong arguments end the program with argparse's error and status 2.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, usage=argparse.SUPPRESS)
    group = parser.add_argument_group("Keras")
    default = os.environ.get("KERAS_BACKEND", BACKENDS[0])
    group.add_argument("--backend", choices=BACKENDS, default=default, help="what computes (default here: %(default)s)")
    group.add_argument("--jit", choices=("auto", "on", "off"), default="auto", help="XLA, or torch.compile")
    group.add_argument("--tf32", action="store_true", help="let FP32 convolutions and products use TF32")
    if mixed:
        group.add_argument("--policy", choices=POLICIES, default="mixed_float16", help="default: %(default)s")
        group.add_argument(
            "--loss-scale",
            type=_loss_scale,
            default="dynamic",
            metavar="dynamic|none|FACTOR",
            help="default: %(default)s",
        )
        group.add_argument("--initial-scale", type=float, default=2.0**15, metavar="S", help="where dynamic begins")
    if bench:
        group.add_argument("--rounding-only", action="store_true", help="print that with TF32 on, as JSON")
    own, rest = parser.parse_known_args()
    if {"-h", "--help"} & set(rest):
        print(parser.format_help())
    script, *_ = sys.argv
    sys.argv = [script, *rest]
    args = steps.parse_args(doc, workers=0)
    vars(args).update(vars(own))
    if mixed and args.policy != "mixed_float16" and args.loss_scale != "none":
        args.loss_scale = "none"  # only FP16 needs one
    return args


def _loss_scale(text: str) -> str | float:
    if text in ("dynamic", "none"):
        return text
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def use(backend: str, device: str = "auto", tf32: bool | None = False) -> None:
    """Import Keras with this backend, in true FP32 (or TF32) where arithmetic is FP32; None leaves that as it comes.

    Raises LabError where Keras or the backend is not installed.
    """
    if packages := machine.missing("keras", backend):
        raise LabError(f"{' and '.join(packages)}: not installed. {HOW_TO_INSTALL} brings Keras with TensorFlow.")
    os.environ["KERAS_BACKEND"] = backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes three quarters of the GPU's memory
    if device == "cpu":
        os.environ |= {"JAX_PLATFORMS": "cpu", "KERAS_TORCH_DEVICE": "cpu"}
    import keras

    if keras.backend.backend() != backend:
        raise LabError(f"Keras runs on {keras.backend.backend()} already: a process has one backend.")
    if tf32 is not None:
        set_fp32_precision(backend, tf32)


def set_fp32_precision(backend: str, tf32: bool) -> None:
    """True FP32 arithmetic, or TF32, for FP32 convolutions and products. TensorFlow and JAX default to TF32."""
    if backend == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(tf32)
    elif backend == "jax":
        import jax

        jax.config.update("jax_default_matmul_precision", None if tf32 else "highest")  # None: TF32 where there is one
    else:
        steps.set_fp32_precision(tf32)


def versions(backend: str) -> dict:
    """The versions of Keras and of its backend, both imported, by package; PyTorch's is in every record anyway."""
    return {package: sys.modules[package].__version__ for package in ("keras", backend) if package != "torch"}


class Run(steps.Run):
    """A ``labkit.training.steps.Run`` on a Keras backend, which its record names."""

    def __init__(self, args: argparse.Namespace) -> None:
        with one_sentence():
            use(args.backend, args.device, args.tf32)
        super().__init__(args, tf32=args.tf32, loader=False)
        import keras

        keras.utils.set_random_seed(args.seed)
        print(f"Keras {keras.__version__} on {args.backend}", flush=True)

    def arrays(self) -> tuple[tuple, tuple]:
        """Training and test set as NumPy arrays: images float32 ``(N, 28, 28, 1)``, normalised, and labels int64."""
        sets = self.digits.train, self.digits.test
        return tuple((keras_net.images_of(normalise(one.data)), one.targets.numpy()) for one in sets)

    def initial_weights(self) -> list:
        """The weights that a PyTorch step begins with if its seed is the same, for ``set_weights``."""
        torch.manual_seed(self.args.seed)
        return keras_net.weights_of(Net())

    def log_fit(self, history) -> None:
        """Print the epoch's training line from what ``fit`` returned: the mean loss of its steps."""
        self._log_loss(len(self.epoch_records), self.steps_an_epoch - 1, float(history.history["loss"][-1]))

    def log_evaluation(self, loss: float, accuracy: float) -> None:
        """Print the usual test line from what ``evaluate`` returned."""
        total = len(self.digits.test)
        self.log_test(float(loss), round(accuracy * total), total)

    def log_loss_scale(self, optimizer) -> None:
        """Keep the epoch's last loss scale and how many steps have been skipped so far."""
        steps_so_far = len(self.epoch_records) * self.steps_an_epoch
        scale = getattr(optimizer, "dynamic_scale", optimizer.loss_scale_factor)
        self.epoch_records[-1]["loss_scale"] = None if scale is None else float(scale)
        self.epoch_records[-1]["skipped_steps"] = steps_so_far - int(optimizer.iterations)

    def record(self, status: str) -> dict:
        found = super().record(status)
        found["backend"] = self.args.backend
        found["versions"] |= versions(self.args.backend)
        if self.cuda and self.args.backend == "jax":  # PyTorch's count knows nothing of JAX
            import jax

            found["peak_gpu_memory_mb"] = jax.local_devices()[0].memory_stats()["peak_bytes_in_use"] / 1e6
        return found
