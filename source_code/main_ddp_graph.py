"""Several GPUs, step 5 on each: an epoch is one CUDA graph, the averaging of the gradients in it (torchrun)."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR

from labkit.training import distributed, steps
from labkit.training.data import normalise
from labkit.training.model import Net
from labkit.training.steps import phase

REHEARSED = 11  # steps that DDP wants to have taken before it is captured; it times the first ten, which a graph cannot
NEVER = 2**31 - 1  # and every hundredth later: every so many are none


def train(run, model, batch_loss, order, optimizer, losses):
    model.train()
    for step, batch in enumerate(order.split(run.args.batch_size)):
        if len(batch) < run.ranks:  # a rest that does not go round
            break
        optimizer.zero_grad()
        loss = batch_loss(run.own(batch))
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()


@torch.no_grad()
def test(run, model, predict, images, labels, sums):
    model.eval()
    sums.zero_()
    size = run.args.test_batch_size
    for data, target in zip(images.split(size), labels.split(size), strict=True):
        output = predict(model, data)
        sums[0] += F.nll_loss(output, target, reduction="sum")
        sums[1] += (output.argmax(dim=1) == target).sum()


def main():
    args = distributed.parse_args(__doc__, workers=0, amp_dtype="bfloat16")
    run = distributed.DistributedRun(args, loader=False)
    (images, labels), test_set = run.on_device(run.digits.train), run.on_device(run.digits.test)
    own_test_set = [part[run.rank :: run.ranks] for part in test_set]

    model = Net().to(run.device, memory_format=torch.channels_last)
    with torch.cuda.stream(torch.cuda.Stream()) if run.cuda else nullcontext():  # where a capture wants it made
        parallel = DistributedDataParallel(model, bucket_cap_mb=args.bucket_mb, gradient_as_bucket_view=True)
    parallel._set_ddp_runtime_logging_sample_rate(NEVER)
    lr = torch.tensor(args.lr, device=run.device)  # the graph reads it at each launch; a number would be fixed in it
    optimizer = torch.optim.Adadelta(model.parameters(), lr=lr, capturable=run.cuda)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    dtype = args.amp_dtype
    autocast = torch.autocast(run.device.type, dtype, enabled=dtype != torch.float32)

    def predict(network, digits):
        with autocast:
            return network(normalise(digits)).float()

    def batch_loss(batch):
        return F.nll_loss(predict(parallel, images[batch]), labels[batch])

    # What a graph reads and writes keeps its place in memory: between launches only the contents change.
    order = torch.arange(len(labels), device=run.device)
    losses, sums = torch.zeros(run.steps_an_epoch, device=run.device), torch.zeros(2, device=run.device)

    def train_epoch(order=order):
        train(run, parallel, batch_loss, order, optimizer, losses)

    def test_epoch():
        test(run, model, predict, *own_test_set, sums)

    with run:
        with run.warming_up():
            if run.cuda:
                with steps.rehearsal(model, optimizer):  # steps of each size: the last batch is short
                    some = order[: REHEARSED * args.batch_size + len(order) % args.batch_size]
                    for _ in range(distributed.times(REHEARSED, len(order), args.batch_size)):
                        train_epoch(some)
                    test_epoch()
            run.kept(model=model, optimizer=optimizer, scheduler=scheduler)
            optimizer.param_groups[0]["lr"] = lr.copy_(optimizer.param_groups[0]["lr"])  # one that was kept, too
            train_epoch, test_epoch = run.captured(train_epoch), run.captured(test_epoch)
        for epoch in run.epochs():
            with run.timed("training"):
                with phase("shuffle"):
                    same = torch.Generator(run.device).manual_seed(1_000 * args.seed + epoch)  # on every rank
                    order.copy_(torch.randperm(len(order), device=run.device, generator=same))
                with phase("graph launch"):
                    train_epoch()
                run.log_epoch(epoch, losses)
            with run.timed("test"):
                test_epoch()
                loss, correct, seen = run.total(*sums, len(own_test_set[1]))
                run.log_test(loss / seen, int(correct), int(seen))
            scheduler.step()
        run.extras["buckets"] = distributed.buckets(parallel)
        del train_epoch, test_epoch  # NCCL waits with its leave for the last graph that holds kernels of its


if __name__ == "__main__":
    main()
