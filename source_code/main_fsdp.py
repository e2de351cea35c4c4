"""A transformer shared out among GPUs: each rank keeps a part of every weight and fetches the rest (torchrun)."""

import itertools
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from labkit.training import steps, text
from labkit.training.distributed import Ranks, buckets, world_size
from labkit.training.ranges import phase, switch
from labkit.training.sharding import Checkpoints, filled


def sharded(model, ranks, device, args):
    """Each block is fetched and freed as one; the next ones are fetched while one computes."""
    shape = (args.copies, ranks.ranks // args.copies)[args.copies == 1 :]
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("copies", "shards")[-len(shape) :])
    policy = MixedPrecisionPolicy(param_dtype=args.param_dtype, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for at, block in enumerate(model.blocks):
        block.set_modules_to_forward_prefetch(list(model.blocks[at + 1 : at + 1 + args.prefetch]))
        block.set_modules_to_backward_prefetch(list(reversed(model.blocks[max(0, at - args.prefetch) : at])))
    return model


def train_step(model, optimizer, symbols, autocast):
    with phase("zero grad"):
        optimizer.zero_grad()
    with phase("forward"), autocast:
        logits = model(symbols[:, :-1])
    with phase("loss"):
        loss = F.cross_entropy(logits.flatten(0, 1).float(), symbols[:, 1:].flatten())
    with phase("backward"):
        loss.backward()
    with phase("optimizer step"):
        optimizer.step()
    return loss.detach()


def main():
    args = parse_args()
    ranks = Ranks()
    device = ranks.take_gpu(args.device)
    ranks.join(device)
    steps.set_fp32_precision(tf32=False)
    switch(args.profile)
    cuda = device.type == "cuda"

    with torch.device("meta"):  # shapes alone: no host ever holds all of it
        model = text.Transformer(args.width, args.depth, args.heads, args.length)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    autocast = torch.autocast(device.type, args.param_dtype, enabled=args.param_dtype != torch.float32)
    if args.share == "fsdp":  # which broadcasts nothing: that the ranks' parts fit together is the common seed's doing
        model = filled(sharded(model, ranks, device, args), device, args.seed)
        autocast = torch.autocast(device.type, enabled=False)
    else:
        model = DistributedDataParallel(filled(model, device, args.seed), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    checkpoints = Checkpoints(args.checkpoint, model, optimizer) if args.checkpoint else None
    made = checkpoints.resume(args.warm_up + args.steps) if args.resume else 0
    symbols = text.sequences(args.batch_size * args.pool, args.length + 1, args.seed).to(device)
    batches = [batch[ranks.rank :: ranks.ranks] for batch in symbols.split(args.batch_size)]

    losses = [train_step(model, optimizer, batches[step % args.pool], autocast) for step in range(made, args.warm_up)]
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        if args.profile:
            torch.cuda.profiler.start()
    dist.barrier()
    clock = [read_clock(cuda)]
    with phase("training"):
        for step in range(max(made, args.warm_up), args.warm_up + args.steps):
            losses.append(train_step(model, optimizer, batches[step % args.pool], autocast))
            if checkpoints and (step + 1) % args.keep_every == 0:
                checkpoints.keep(step + 1)
            clock.append(read_clock(cuda))
        if cuda:
            torch.cuda.synchronize()
    if args.profile and cuda:
        torch.cuda.profiler.stop()

    means = torch.stack(losses)
    dist.all_reduce(means)
    losses = (means / ranks.ranks).tolist()
    step_s = [seconds_between(one, other) for one, other in itertools.pairwise(clock)]
    row = {"step_s": step_s, "peak_memory_mb": torch.cuda.max_memory_allocated() / 1e6 if cuda else None}
    of_each = [row | {"rank": rank} for rank, row in enumerate(ranks.of_each(row))]
    slowest_s = max(statistics.median(row["step_s"]) for row in of_each)
    per_s = args.batch_size * args.length / slowest_s
    print(f"{parameters / 1e6:.1f} million parameters, {args.share}: loss {losses[0]:.3f} to {losses[-1]:.3f} nats")
    print(f"a step takes {1e3 * slowest_s:.2f} ms (median of {args.steps}): {per_s:,.0f} symbols a second")
    if ranks.leads:
        more = ranks.about() | {"parameters": parameters, "losses": losses}
        more |= {"buckets": buckets(model)} if args.share == "ddp" else {}
        steps.write_benchmark_record(args, device, of_each, **more)
    ranks.leave()


def read_clock(cuda):
    """Now, on the GPU's own clock where there is one: the program does not wait for it between steps."""
    if not cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(one, other):
    return other - one if isinstance(one, float) else one.elapsed_time(other) / 1e3


def parse_args():
    parser = steps.script_parser(__doc__)
    add, count = parser.add_argument, steps.at_least(1)
    add("--share", choices=("fsdp", "ddp"), default="fsdp", help="the weights, or only the gradients (default: fsdp)")
    add("--copies", type=count, default=1, help="of the network, each shared out; as many as ranks: FSDP's types alone")
    add("--width", type=count, default=1024, help="of the network (default: %(default)s)")
    add("--depth", type=count, default=12, help="blocks (default: %(default)s)")
    add("--heads", type=count, default=16, help="of attention (default: %(default)s)")
    add("--length", type=count, default=512, help="symbols a sequence (default: %(default)s)")
    add("--batch-size", type=count, default=32, help="sequences a step, of all ranks together (default: %(default)s)")
    add("--steps", type=count, default=20, help="that are measured (default: %(default)s)")
    add("--warm-up", type=steps.at_least(0), default=5, help="steps before these (default: %(default)s)")
    add("--pool", type=count, default=8, help="batches to train on in turn (default: %(default)s)")
    add("--prefetch", type=count, default=1, help="blocks to fetch ahead, from 1 on (default: %(default)s)")
    dtype = steps.number_type("bfloat16", "float32")
    add("--param-dtype", type=dtype, default="bfloat16", help="bfloat16 or float32: to compute in (default: bfloat16)")
    add("--checkpoint", metavar="FOLDER", help="keep the state of the training in FOLDER")
    add("--keep-every", type=count, default=10, metavar="N", help="after each N steps, warm-up included (default: 10)")
    add("--resume", action="store_true", help="go on from --checkpoint, if something was kept there, to the same end")
    add("--lr", type=steps.positive, default=3e-4, help="AdamW's learning rate (default: %(default)s)")
    add("--seed", type=steps.at_least(0), default=1, help="random seed (default: %(default)s)")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one")
    add("--profile", action="store_true", help="bracket the measured steps for the profiler, with NVTX ranges")
    args = parser.parse_args()
    if args.batch_size % world_size():
        parser.error(f"--batch-size {args.batch_size}: {world_size()} ranks do not divide it")
    if world_size() % args.copies or (args.copies > 1 and args.share == "ddp"):
        parser.error(f"--copies {args.copies}: of --share fsdp, and {world_size()} ranks are shared out among them")
    if args.resume and not args.checkpoint:
        parser.error("--resume needs --checkpoint FOLDER: where the training stopped")
    return args


if __name__ == "__main__":
    main()
