"""Several GPUs, step 3 on each: every rank trains on its share of each batch, the gradients are averaged (torchrun)."""

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler

from labkit.training import distributed, steps
from labkit.training.model import Net
from labkit.training.steps import phase


def train(run, model, device, loader, optimizer, scaler, autocast, epoch):
    model.train()
    loader.sampler.set_epoch(epoch)
    for step, (data, target) in enumerate(steps.loading(loader)):
        with phase("copy to device"):
            data, target = data.to(device, non_blocking=True), target.to(device, non_blocking=True)
        with phase("zero grad"):
            optimizer.zero_grad()
        with phase("forward"), autocast:
            output = model(data)
        with phase("loss"), autocast:
            loss = F.nll_loss(output, target)
        with phase("backward"):
            scaler.scale(loss).backward()
        with phase("optimizer step"):
            scaler.step(optimizer)
            scaler.update()
        run.log_step(epoch, step, loss)


@torch.no_grad()
def test(run, model, device, loader):
    model.eval()
    loss, correct = 0.0, 0
    for data, target in loader:
        data, target = data.to(device, non_blocking=True), target.to(device, non_blocking=True)
        output = model(data)
        loss += F.nll_loss(output, target, reduction="sum").item()
        correct += (output.argmax(dim=1) == target).sum().item()
    loss, correct, seen = run.total(loss, correct, len(loader.sampler))
    run.log_test(loss / seen, int(correct), int(seen))


def main():
    args = distributed.parse_args(__doc__, amp=True)
    run = distributed.DistributedRun(args, tf32=args.tf32)
    loading = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loading |= {"pin_memory": run.cuda, "generator": run.generator()}  # its workers' seeds
    shares = DistributedSampler(run.digits.train, seed=args.seed)
    train_loader = DataLoader(run.digits.train, run.share, sampler=shares, **loading)
    own = range(run.rank, len(run.digits.test), run.ranks)
    test_loader = DataLoader(run.digits.test, args.test_batch_size, sampler=own, **loading)

    model = Net().to(run.device)
    parallel = DistributedDataParallel(model, bucket_cap_mb=args.bucket_mb, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    dtype = args.amp_dtype
    autocast = torch.autocast(run.device.type, dtype, enabled=dtype != torch.float32)
    scaler = torch.amp.GradScaler(run.device.type, enabled=dtype == torch.float16 and args.grad_scaler)
    run.kept(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)

    with run:
        for epoch in run.epochs():
            with run.timed("training"):
                train(run, parallel, run.device, train_loader, optimizer, scaler, autocast, epoch)
            with run.timed("test"), autocast:
                test(run, model, run.device, test_loader)
            scheduler.step()
        run.extras |= {"final_loss_scale": scaler.get_scale(), "buckets": distributed.buckets(parallel)}


if __name__ == "__main__":
    main()
