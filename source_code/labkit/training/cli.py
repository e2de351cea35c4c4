"""Which command line do all step scripts share?"""

from __future__ import annotations

import argparse

from labkit.training import machine
from labkit.training.devices import number_type, reduced_precision
from labkit.training.flags import at_least, positive, script_parser


def spare_cores() -> int:
    """Loader workers to start by default: the usable cores, less one for the training loop and one for the system."""
    return max(1, machine.usable_cores() - 2)


def parse_args(
    doc: str, workers: int | None = None, amp: bool = False, amp_dtype: str | None = None
) -> argparse.Namespace:
    """The command line that all steps share; ``doc`` is the script's docstring.

    ``workers`` is the step's default number of loader workers (spare_cores() if None); ``amp`` adds the flags of
    automatic mixed precision, ``amp_dtype`` that of its type alone, and its default (BF16 only on a GPU that has it).
    Wrong arguments end the program with argparse's error and status 2.
    """
    workers = spare_cores() if workers is None else workers
    parser = script_parser(doc, "the run's record")
    add = parser.add_argument
    add("--epochs", type=at_least(1), default=10, help="passes over the training set (default: %(default)s)")
    add("--batch-size", type=at_least(1), default=1024, help="samples a step (default: %(default)s)")
    add(
        "--test-batch-size",
        type=at_least(1),
        default=1000,
        help="samples a test batch (default: %(default)s)",
    )
    add("--lr", type=positive, default=1.0, help="Adadelta's learning rate (default: %(default)s)")
    add("--gamma", type=positive, default=0.7, help="learning-rate factor an epoch (default: %(default)s)")
    add("--seed", type=at_least(0), default=1, help="random seed (default: %(default)s)")
    add("--workers", type=at_least(0), default=workers, help="loader processes (default here: %(default)s)")
    add("--data-dir", metavar="DIR", help="where MNIST lies (default: LAB_DATA_DIR, then the cache folder)")
    add("--limit", type=at_least(1), metavar="N", help="train on the first N samples only")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one")
    add("--log-interval", type=at_least(1), default=10, metavar="N", help="print the loss every N steps")
    add("--profile", action="store_true", help="bracket one epoch for the profiler and switch NVTX ranges on")
    add("--profile-ops", action="store_true", help="with --profile: a range for each operator too, with its shapes")
    if amp or amp_dtype:
        add(
            "--amp-dtype",
            type=number_type("float16", "bfloat16", "float32"),
            default=reduced_precision() if amp_dtype == "bfloat16" else "float16",
            help="float16, bfloat16 or float32, which is no autocast (default here: %(default)s)",
        )
    if amp:
        add("--tf32", action="store_true", help="let FP32 convolutions and products use TF32 on Tensor Cores")
        add("--no-grad-scaler", dest="grad_scaler", action="store_false", help="FP16 without loss scaling")
    args = parser.parse_args()
    if args.profile_ops and not args.profile:
        parser.error("argument --profile-ops: only with --profile")
    return args
