"""Step 0 with NVTX ranges: the same loop, its phases named for the profiler (lab 01)."""

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from labkit.training import steps
from labkit.training.model import Net
from labkit.training.steps import phase


def train(run, model, device, loader, optimizer, epoch):
    model.train()
    for step, (data, target) in enumerate(steps.loading(loader)):
        with phase("copy to device"):
            data, target = data.to(device), target.to(device)
        with phase("zero grad"):
            optimizer.zero_grad()
        with phase("forward"):
            output = model(data)
        with phase("loss"):
            loss = F.nll_loss(output, target)
        with phase("backward"):
            loss.backward()
        with phase("optimizer step"):
            optimizer.step()
        run.log_step(epoch, step, loss)


@torch.no_grad()
def test(run, model, device, loader):
    model.eval()
    loss, correct = 0.0, 0
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        output = model(data)
        loss += F.nll_loss(output, target, reduction="sum").item()
        correct += (output.argmax(dim=1) == target).sum().item()
    run.log_test(loss / len(loader.dataset), correct, len(loader.dataset))


def main():
    args = steps.parse_args(__doc__, workers=1)
    run = steps.Run(args)
    loading = {"num_workers": args.workers}
    train_loader = DataLoader(run.digits.train, args.batch_size, shuffle=True, **loading)
    test_loader = DataLoader(run.digits.test, args.test_batch_size, **loading)

    model = Net().to(run.device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)

    with run:
        for epoch in run.epochs():
            with run.timed("training"):
                train(run, model, run.device, train_loader, optimizer, epoch)
            with run.timed("test"):
                test(run, model, run.device, test_loader)
            scheduler.step()


if __name__ == "__main__":
    main()
