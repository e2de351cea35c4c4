"""Step 3, mixed precision: autocast on Tensor Cores, FP16 with loss scaling unless told otherwise (lab 04)."""

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from labkit.training import steps
from labkit.training.model import Net
from labkit.training.steps import phase


def train(run, model, device, loader, optimizer, scaler, autocast, epoch):
    model.train()
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
    run.log_test(loss / len(loader.dataset), correct, len(loader.dataset))


def main():
    args = steps.parse_args(__doc__, workers=steps.spare_cores(), amp=True)
    run = steps.Run(args, tf32=args.tf32)
    loading = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loading["pin_memory"] = run.cuda
    train_loader = DataLoader(run.digits.train, args.batch_size, shuffle=True, **loading)
    test_loader = DataLoader(run.digits.test, args.test_batch_size, **loading)

    model = Net().to(run.device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    dtype = args.amp_dtype
    autocast = torch.autocast(run.device.type, dtype, enabled=dtype != torch.float32)
    scaler = torch.amp.GradScaler(run.device.type, enabled=dtype == torch.float16 and args.grad_scaler)

    with run:
        for epoch in run.epochs():
            with run.timed("training"):
                train(run, model, run.device, train_loader, optimizer, scaler, autocast, epoch)
            with run.timed("test"), autocast:
                test(run, model, run.device, test_loader)
            scheduler.step()
        run.extras["final_loss_scale"] = scaler.get_scale()


if __name__ == "__main__":
    main()
