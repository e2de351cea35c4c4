"""Several GPUs, step 4 on each: the digits lie on every GPU, a rank gathers its share of each batch (torchrun)."""

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR

from labkit.training import distributed
from labkit.training.data import normalise
from labkit.training.model import Net
from labkit.training.steps import phase


def train(run, model, images, labels, optimizer, autocast, epoch):
    model.train()
    with phase("shuffle"):
        same = torch.Generator(run.device).manual_seed(1_000 * run.args.seed + epoch)  # on every rank
        order = torch.randperm(len(labels), device=run.device, generator=same)
    for step, batch in enumerate(order.split(run.args.batch_size)):
        if len(batch) < run.ranks:  # a rest that does not go round
            break
        with phase("gather"):
            batch = run.own(batch)
            data, target = normalise(images[batch]), labels[batch]
        with phase("zero grad"):
            optimizer.zero_grad()
        with phase("forward"), autocast:
            output = model(data)
        with phase("loss"), autocast:
            loss = F.nll_loss(output, target)
        with phase("backward"):
            loss.backward()
        with phase("optimizer step"):
            optimizer.step()
        run.log_step(epoch, step, loss)


@torch.no_grad()
def test(run, model, images, labels):
    model.eval()
    loss, correct = torch.zeros(2, device=run.device)
    size = run.args.test_batch_size
    for data, target in zip(images.split(size), labels.split(size), strict=True):
        output = model(normalise(data)).float()
        loss += F.nll_loss(output, target, reduction="sum")
        correct += (output.argmax(dim=1) == target).sum()
    loss, correct, seen = run.total(loss, correct, len(labels))
    run.log_test(loss / seen, int(correct), int(seen))


def main():
    args = distributed.parse_args(__doc__, workers=0, amp_dtype="bfloat16")
    run = distributed.DistributedRun(args, loader=False)
    train_set, test_set = run.on_device(run.digits.train), run.on_device(run.digits.test)
    own_test_set = [part[run.rank :: run.ranks] for part in test_set]

    model = Net().to(run.device)
    parallel = DistributedDataParallel(model, bucket_cap_mb=args.bucket_mb, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    dtype = args.amp_dtype
    autocast = torch.autocast(run.device.type, dtype, enabled=dtype != torch.float32)
    run.kept(model=model, optimizer=optimizer, scheduler=scheduler)

    with run:
        for epoch in run.epochs():
            with run.timed("training"):
                train(run, parallel, *train_set, optimizer, autocast, epoch)
            with run.timed("test"), autocast:
                test(run, model, *own_test_set)
            scheduler.step()
        run.extras["buckets"] = distributed.buckets(parallel)


if __name__ == "__main__":
    main()
