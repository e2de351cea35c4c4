"""An epoch as one CUDA graph and kernel by kernel, on one GPU and on all of a host's, in turn in the same processes.

What one GPU does alone, the first rank runs, while the others wait for it (torchrun).
"""

import argparse
import gc
import sys

import torch.distributed as dist
from bench_ranks import PER_GPU, run

from labkit.training import steps
from labkit.training.distributed import Ranks

EPOCHS, ROUNDS = 4, 3
FEW = 512  # samples: a batch that shows what does not go with them
ALONE = {  # the ladder's steps → what their time belongs to
    f"main_opt4.py --epochs {EPOCHS}": ["alone"],
    f"main_opt5.py --epochs {EPOCHS}": ["alone"],
    f"main_opt5.py --epochs {EPOCHS} --batch-size {FEW}": ["few"],
}
TOGETHER = {
    f"main_ddp_on_gpu.py --epochs {EPOCHS}": ["strong"],
    f"main_ddp_on_gpu.py --epochs {EPOCHS} --per-gpu-batch {PER_GPU}": ["weak"],
    f"main_ddp_graph.py --epochs {EPOCHS}": ["strong"],
    f"main_ddp_graph.py --epochs {EPOCHS} --per-gpu-batch {PER_GPU}": ["weak"],
}


def main() -> None:
    args = parse_args()
    ranks = Ranks()
    device = ranks.take_gpu(args.device)
    ranks.join(device)
    more, rows = f"--device {args.device} {args.digits_flags}", []
    this = sys.argv
    for number in range(1, ROUNDS + 1):
        for program, scaling in (ALONE | TOGETHER).items():
            size = 1 if program in ALONE else ranks.ranks
            result = run(program, more, device) if ranks.rank < size else None
            dist.barrier()
            if ranks.leads:
                rows.append({"program": program, "scaling": scaling, "on": size, "round": number, **result})
    sys.argv = this
    gc.collect()  # NCCL waits with its leave for the last graph that holds kernels of its
    if ranks.leads:
        steps.write_benchmark_record(args, device, rows, data_source=rows[0]["data_source"], **ranks.about())
    ranks.leave()


def parse_args() -> argparse.Namespace:
    parser = steps.script_parser(__doc__)
    add = parser.add_argument
    add("--digits-flags", default="", metavar="TEXT", help="more flags for all programs")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
