"""A training that stands for a step script where its end is tested, for a third of a script's CPU seconds.

What begins, times, records and ends it is what the scripts stand on, and its loader and its ranks are PyTorch's. But it
learns one layer by plain SGD: neither torch._dynamo, which each optimizer of torch.optim brings, nor torchvision.
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from labkit.training import distributed, steps
from labkit.training.data import normalise


def train(run, ranks, model, loader, lr, epoch):
    for step, (data, target) in enumerate(steps.loading(loader)):
        loss = F.nll_loss(F.log_softmax(model(data.flatten(1)), dim=1), target)
        for weights, gradient in zip(model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True):
            if ranks > 1:
                dist.all_reduce(gradient)
            weights.data -= lr * gradient / ranks
        run.log_step(epoch, step, loss)


@torch.no_grad()
def test(run, model, loader):
    loss, correct = 0.0, 0
    for data, target in loader:
        output = F.log_softmax(model(data.flatten(1)), dim=1)
        loss += F.nll_loss(output, target, reduction="sum").item()
        correct += (output.argmax(dim=1) == target).sum().item()
    run.log_test(loss / len(loader.dataset), correct, len(loader.dataset))


def main():
    args, ranks, rank = distributed.parse_args(__doc__), distributed.world_size(), int(os.environ.get("RANK", "0"))
    run = (distributed.DistributedRun if ranks > 1 else steps.Run)(args, loader=False)
    loading = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    sets = (TensorDataset(normalise(digits.data), digits.targets) for digits in (run.digits.train, run.digits.test))
    own = range(rank, len(run.digits.train), ranks)
    train_loader = DataLoader(next(sets), args.batch_size // ranks, sampler=own, **loading)
    test_loader = DataLoader(next(sets), args.test_batch_size, **loading)
    model = torch.nn.Linear(28 * 28, 10)
    with run:
        for epoch in run.epochs():
            with run.timed("training"):
                train(run, ranks, model, train_loader, args.lr / 100, epoch)
            with run.timed("test"):
                test(run, model, test_loader)


if __name__ == "__main__":
    main()
