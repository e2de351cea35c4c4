"""Step 4, no loader: the digits lie on the GPU as bytes and are shuffled and normalised there; BF16 (lab 06)."""

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR

from labkit.training import steps
from labkit.training.data import normalise
from labkit.training.model import Net
from labkit.training.steps import phase


def train(run, model, images, labels, optimizer, autocast, epoch):
    model.train()
    with phase("shuffle"):
        order = torch.randperm(len(labels), device=run.device)
    for step, batch in enumerate(order.split(run.args.batch_size)):
        with phase("gather"):
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
    run.log_test(loss.item() / len(labels), int(correct), len(labels))


def main():
    args = steps.parse_args(__doc__, workers=0, amp_dtype="bfloat16")
    run = steps.Run(args, loader=False)
    train_set, test_set = run.on_device(run.digits.train), run.on_device(run.digits.test)

    model = Net().to(run.device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    dtype = args.amp_dtype
    autocast = torch.autocast(run.device.type, dtype, enabled=dtype != torch.float32)

    with run:
        for epoch in run.epochs():
            with run.timed("training"):
                train(run, model, *train_set, optimizer, autocast, epoch)
            with run.timed("test"), autocast:
                test(run, model, *test_set)
            scheduler.step()


if __name__ == "__main__":
    main()
