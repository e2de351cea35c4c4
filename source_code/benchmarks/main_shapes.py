"""Step 4 in other shapes: --hidden, --classes (above ten: padding), --channels-last (lab 12)."""

import argparse
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import StepLR

from labkit.training import steps
from labkit.training.data import normalise
from labkit.training.model import Net
from labkit.training.steps import phase

DIGITS = 10


def shaped(hidden, classes):
    """The network in other sizes. A class that is no digit starts without a chance, and no gradient gives it one."""
    model = Net()
    if (hidden, classes) != (model.fc1.out_features, model.fc2.out_features):
        model.fc1, model.fc2 = nn.Linear(model.fc1.in_features, hidden), nn.Linear(hidden, classes)
        with torch.no_grad():
            model.fc2.weight[DIGITS:] = 0.0
            model.fc2.bias[DIGITS:] = -1e4
    return model


def parse_args():
    """This script's own flags, then those of all steps."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--classes", type=int, default=DIGITS)
    parser.add_argument("--channels-last", action="store_true")
    own, sys.argv[1:] = parser.parse_known_args()
    if own.hidden < 1 or own.classes < DIGITS:
        parser.error(f"--hidden is at least 1 and --classes at least {DIGITS}")
    return argparse.Namespace(**vars(steps.parse_args(__doc__, workers=0, amp_dtype="bfloat16")), **vars(own))


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
    args = parse_args()
    run = steps.Run(args, loader=False)
    train_set, test_set = run.on_device(run.digits.train), run.on_device(run.digits.test)

    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = shaped(args.hidden, args.classes).to(run.device, memory_format=layout)
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
