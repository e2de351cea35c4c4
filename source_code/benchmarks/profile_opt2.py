"""Step 2 under PyTorch's own profiler: twenty steps, as one would profile one's own loop (lab 18)."""

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader

from labkit.paths import REPORTS
from labkit.training import steps
from labkit.training.model import Net
from labkit.training.steps import phase


def train(run, model, device, loader, optimizer, epoch, profiler):
    model.train()
    for step, (data, target) in enumerate(steps.loading(loader)):
        with phase("copy to device"):
            data, target = data.to(device, non_blocking=True), target.to(device, non_blocking=True)
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
        profiler.step()


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
    args = steps.parse_args(__doc__, workers=steps.spare_cores())
    run = steps.Run(args)
    loading = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loading["pin_memory"] = run.cuda
    train_loader = DataLoader(run.digits.train, args.batch_size, shuffle=True, **loading)
    test_loader = DataLoader(run.digits.test, args.test_batch_size, **loading)

    model = Net().to(run.device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)

    plan = schedule(wait=4, warmup=5, active=20, repeat=1)
    with run, profile(schedule=plan, record_shapes=True, profile_memory=True, with_flops=True) as profiler:
        for epoch in run.epochs():
            with run.timed("training"):
                train(run, model, run.device, train_loader, optimizer, epoch, profiler)
            with run.timed("test"):
                test(run, model, run.device, test_loader)
            scheduler.step()
    print(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=12))
    profiler.export_chrome_trace(str(REPORTS / "profile_opt2.json.gz"))


if __name__ == "__main__":
    main()
