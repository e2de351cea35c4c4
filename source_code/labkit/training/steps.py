"""What a step script stands on, under one name: its command line, its run, the ranges of the profile."""

from labkit.training.cli import parse_args, spare_cores
from labkit.training.devices import need_gpu, number_type, pick_device, set_fp32_precision
from labkit.training.flags import at_least, output, positive, script_parser
from labkit.training.ranges import loading, phase
from labkit.training.record import write_benchmark_record
from labkit.training.run import Run, found_digits, rehearsal

__all__ = [
    "Run", "at_least", "found_digits", "loading", "need_gpu", "number_type", "output", "parse_args", "phase",
    "pick_device", "positive", "rehearsal", "script_parser", "set_fp32_precision", "spare_cores",
    "write_benchmark_record",
]  # fmt: skip
