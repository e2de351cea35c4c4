"""Both networks on the GPUs of one host, one program after another on the same ranks (torchrun)."""

import argparse
import gc
import importlib
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path

import torch

from labkit.training import steps
from labkit.training.distributed import Ranks, world_size
from labkit.training.flags import STEPS

# One GPU without DDP: what has to be beaten.
ALONE = ["main_opt4.py --epochs 4", "main_opt3.py --epochs 3"]
ON_GPU, LOADER, GRAPH = "main_ddp_on_gpu.py --epochs 4", "main_ddp.py --epochs 3", "main_ddp_graph.py --epochs 4"
PER_GPU = 1024  # digits a step, where each GPU has a full batch: the same as on one GPU
TEXT = "main_fsdp.py --steps 12 --warm-up 4"
SEQUENCES = 64  # a step: of all GPUs together, or of each
FEW = "few"  # samples, on one GPU: so that a step shows what does not go with them
FEW_DIGITS, FEW_SEQUENCES = 512, 8
TOLD_ABOVE = (  # of a program's record: what this one's says itself, or what is about a process of its own
    "format", "script", "status", "profiled", "started", "wall_s", "startup_s", "manifest",
    "device", "gpu", "driver", "cpu", "cpu_cores", "versions",
    "ranks", "backend", "omp_threads", "gpus", "nccl", "nccl_nvls", "links",
)  # fmt: skip


def scaling(ranks: int) -> list[tuple[str, list[str]]]:
    """Each program to run on so many ranks, and what its time belongs to: strong or weak scaling, few samples, none."""
    text = [f"{TEXT} --share {share} --batch-size" for share in ("fsdp", "ddp")]
    if ranks == 1:
        return [
            *((program, []) for program in ALONE),
            (ON_GPU, ["strong", "weak"]),
            (LOADER, ["strong"]),
            *((f"{program} {SEQUENCES}", ["strong", "weak"]) for program in text),
            *((f"{program} --batch-size {FEW_DIGITS}", [FEW]) for program in (ON_GPU, LOADER)),
            *((f"{program} {FEW_SEQUENCES}", [FEW]) for program in text),
        ]
    return [
        (ON_GPU, ["strong"]),
        (f"{ON_GPU} --per-gpu-batch {PER_GPU}", ["weak"]),
        (LOADER, ["strong"]),
        *((f"{program} {SEQUENCES * ranks}", ["weak"]) for program in text),
        *((f"{program} {SEQUENCES}", ["strong"]) for program in text),
    ]


def run(program: str, more: str, device: torch.device) -> dict | None:
    """Run a step script in this process, with ``more`` flags; what its record adds, on the rank that leads."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    name, *flags = shlex.split(f"{program} {more}")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "record.json"
        sys.argv = [name, *flags, "--record", str(file)]
        start = time.perf_counter()
        importlib.import_module(name.removesuffix(".py")).main()
        took_s = time.perf_counter() - start
        record = json.loads(file.read_text()) if file.is_file() else None
    if record is None:
        return None
    record["arguments"].pop("record")
    own = {key: value for key, value in record.items() if key not in (*TOLD_ABOVE, "extras")}
    extras = {key: value for key, value in record.get("extras", {}).items() if key not in TOLD_ABOVE}
    return {"took_s": took_s, **own, **extras}


def main() -> None:
    args = parse_args()
    ranks = Ranks()
    device = ranks.take_gpu(args.device)
    ranks.join(device)
    if args.accuracy:
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        programs = [(f"{args.accuracy} --seed {seed}", []) for seed in seeds]
    else:
        programs = scaling(ranks.ranks)
    rows, this = [], sys.argv
    for program, kinds in programs:
        more = args.text_flags if program.startswith("main_fsdp") else args.digits_flags
        result = run(program, f"--device {args.device} {more}", device)
        if ranks.leads:
            rows.append({"program": program, "scaling": kinds, **result})
    sys.argv = this
    if ranks.leads:
        source = next(row["data_source"] for row in rows if "data_source" in row)
        steps.write_benchmark_record(args, device, rows, data_source=source, **ranks.about())
    ranks.leave()


def parse_args() -> argparse.Namespace:
    parser = steps.script_parser(__doc__)
    add = parser.add_argument
    add("--accuracy", choices=STEPS, metavar="SCRIPT", help="instead: whole trainings of this script, a seed each")
    add("--seeds", type=steps.at_least(1), default=3, help="of --accuracy (default: %(default)s)")
    add("--first-seed", type=steps.at_least(0), default=1, metavar="N", help="of these (default: %(default)s)")
    add("--digits-flags", default="", metavar="TEXT", help="more flags for the programs that read digits")
    add("--text-flags", default="", metavar="TEXT", help="more flags for the transformer")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one")
    args = parser.parse_args()
    if SEQUENCES % world_size():
        parser.error(f"{world_size()} ranks: there are 1 to 64, a power of 2")
    return args


if __name__ == "__main__":
    main()
