"""What does a rank hold, and send, of a transformer that is shared out? Way by way on the same ranks (torchrun)."""

import gc
import itertools
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.training import steps, text
from labkit.training.distributed import Ranks

DEPTH, LENGTH, HEAD = 12, 512, 64  # blocks; symbols a sequence; width of one of attention's heads


@dataclass(frozen=True)
class Case:
    """A network and how it is shared out. ``sequences``: of a rank's batch.

    ``share``: ``fsdp`` all states, ``ddp`` only the gradients, ``copies`` those too, but with FSDP's types of numbers.
    ``reshard``: a block's weights are freed after its forward pass and gathered again in the backward pass.
    ``prefetch``: blocks to gather ahead; 0: the program says nothing, and FSDP does as it does by itself.
    """

    share: str
    width: int
    sequences: int
    reshard: bool = True
    prefetch: int = 1
    steps: int = 8
    length: int = LENGTH
    head: int = HEAD


CASES = (
    Case("ddp", 1024, 32),
    Case("fsdp", 1024, 32),
    Case("fsdp", 1024, 32, reshard=False),
    Case("ddp", 4096, 16),
    Case("fsdp", 4096, 16),
    Case("fsdp", 4096, 16, reshard=False),
    Case("fsdp", 4096, 16, prefetch=0),
    Case("fsdp", 4096, 16, prefetch=2),
    Case("copies", 4096, 16),
    Case("fsdp", 8192, 4, steps=4),
    Case("ddp", 8192, 4, steps=4),  # too large for one GPU: last, as it ends early
)
COLLECTIVES = {"_allgather_base_": "AllGather", "_reduce_scatter_base_": "ReduceScatter", "allreduce_": "AllReduce"}
WARM_UP = 3  # steps before those that are timed
BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Sent(TorchDispatchMode):
    """Counts collectives while it is on: (what, type of number, bytes of all that is gathered or reduced)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("c10d::")
        if name in COLLECTIVES:
            given = (one for part in args[:2] for one in (part if isinstance(part, (list, tuple)) else [part]))
            whole = max((one for one in given if isinstance(one, torch.Tensor)), key=torch.Tensor.numel)
            self.found[COLLECTIVES[name], str(whole.dtype), whole.nbytes] += 1
        return func(*args, **(kwargs or {}))

    def rows(self) -> list[dict]:
        return [
            {"function": name, "dtype": dtype.removeprefix("torch."), "bytes": size, "count": count}
            for (name, dtype, size), count in self.found.items()
        ]


def shared(case, ranks, device):
    """The network on its ranks, filled there: no rank ever holds all of one that is sharded."""
    with torch.device("meta"):
        model = text.Transformer(case.width, DEPTH, case.width // case.head, case.length)
    if case.share == "ddp":
        return DistributedDataParallel(filled(model.to_empty(device=device)), gradient_as_bucket_view=True)
    shape = (ranks.ranks, 1) if case.share == "copies" else (ranks.ranks,)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("copies", "shards")[-len(shape) :])
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=BFLOAT16, reshard_after_forward=case.reshard)
    fully_shard(model, mesh=mesh, mp_policy=BFLOAT16)
    for at, block in enumerate(model.blocks if case.prefetch else ()):
        block.set_modules_to_forward_prefetch(list(model.blocks[at + 1 : at + 1 + case.prefetch]))
        block.set_modules_to_backward_prefetch(list(reversed(model.blocks[max(0, at - case.prefetch) : at])))
    return filled(model.to_empty(device=device))


@torch.no_grad()
def filled(model):
    """Matrices with small random numbers, norms with ones, biases with zeros."""
    for name, parameter in model.named_parameters():
        own = local(parameter)
        if own.dim() > 1:
            own.normal_(0, 0.02)
        else:
            own.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    return model


def local(tensor):
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def held(tensors):
    """Megabytes of this rank's parts, by type of number."""
    parts = [part for part in map(local, tensors) if part.dim()]  # the optimizer counts its steps, too
    return {
        str(dtype).removeprefix("torch."): sum(part.nbytes for part in parts if part.dtype == dtype) / 1e6
        for dtype in {part.dtype for part in parts}
    }


class Training:
    """A case's training on this rank. ``allocated``: megabytes of PyTorch's tensors after each phase of a step."""

    def __init__(self, case, ranks, device):
        self.device, self.cuda = device, device.type == "cuda"
        self.model = shared(case, ranks, device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.batch = text.sequences(case.sequences, case.length + 1, seed=1 + ranks.rank).to(device)
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=case.share == "ddp")
        self.allocated = {}

    def step(self):
        self.optimizer.zero_grad()
        self._look("before")
        with self.autocast:
            logits = self.model(self.batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), self.batch[:, 1:].flatten())
        self._look("forward")
        loss.backward()
        self._look("backward")
        self.optimizer.step()
        return loss.detach()

    def _look(self, phase):
        if self.cuda:
            self.allocated[phase] = torch.cuda.memory_allocated() / 1e6

    def measured(self, count):
        losses = [self.step() for _ in range(WARM_UP)]
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        dist.barrier()
        clock = [read_clock(self.cuda)]
        for _ in range(count):
            losses.append(self.step())
            clock.append(read_clock(self.cuda))
        if self.cuda:
            torch.cuda.synchronize()
        state = [one for own in self.optimizer.state.values() for one in own.values() if isinstance(one, torch.Tensor)]
        row = {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "step_s": [seconds_between(one, other) for one, other in itertools.pairwise(clock)],
            "losses": [loss.item() for loss in losses],
            "weights_mb": held(self.model.parameters()),
            "gradients_mb": held(parameter.grad for parameter in self.model.parameters()),
            "optimizer_mb": held(state),
            "allocated_mb": self.allocated,
            "peak_memory_mb": torch.cuda.max_memory_allocated() / 1e6 if self.cuda else None,
        }
        with Sent() as sent:
            self.step()
        return row | {"sent": sent.rows()}


def measured(case, ranks, device):
    """What this rank says of a case; nothing but that where its GPU's memory does not do."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        return Training(case, ranks, device).measured(case.steps) | {"out_of_memory": False}
    except torch.OutOfMemoryError:
        return {"out_of_memory": True}


def read_clock(cuda):
    """Now, on the GPU's own clock where there is one: the program does not wait for it between steps."""
    if not cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(one, other):
    return other - one if isinstance(one, float) else one.elapsed_time(other) / 1e3


def shrunk(case, by):
    """The case, so small and short that a CPU has it done in seconds."""
    few = {name: max(1, getattr(case, name) // by) for name in ("sequences", "length")}
    return replace(case, width=case.width // by, head=max(2, case.head // by), steps=2, **few)


def main():
    args = parse_args()
    ranks = Ranks()
    device = ranks.take_gpu(args.device)
    ranks.join(device)
    steps.set_fp32_precision(tf32=False)
    cases = [shrunk(case, args.shrink) if args.shrink > 1 else case for case in CASES]
    rows = []
    for case in cases:
        torch.manual_seed(args.seed)
        of_each = ranks.of_each(measured(case, ranks, device))
        rows.append(asdict(case) | {"depth": DEPTH, "of_each_rank": of_each})
        peak, fits = of_each[0].get("peak_memory_mb"), not any(own["out_of_memory"] for own in of_each)
        print(f"{case}: {f'{peak:,.0f} MB' if peak else 'done' if fits else 'out of memory'}", flush=True)
    total_mb = torch.cuda.get_device_properties(device).total_memory / 1e6 if device.type == "cuda" else None
    if ranks.leads:
        steps.write_benchmark_record(args, device, rows, gpu_memory_mb=total_mb, **ranks.about())
    ranks.leave()


def parse_args():
    parser = steps.script_parser(__doc__)
    add = parser.add_argument
    add("--shrink", type=steps.at_least(1), default=1, metavar="N", help="every size an Nth, for a trial without a GPU")
    add("--seed", type=steps.at_least(0), default=1, help="random seed (default: %(default)s)")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one")
    args = parser.parse_args()
    if args.shrink > HEAD:
        parser.error(f"--shrink {args.shrink}: 1 to {HEAD}")
    return args


if __name__ == "__main__":
    main()
