"""Step 8, kernels for one kind of GPU: all layers in CUDA C++, a training step in six calls (lab 11)."""

import torch
import torch.nn.functional as F

from labkit.kernels.adadelta import adadelta
from labkit.kernels.beside import beside
from labkit.kernels.hopper import conv_backward, conv_forward
from labkit.kernels.hopper_fc1 import fc1_backward, fc1_head
from labkit.kernels.weights import Weights
from labkit.training import steps
from labkit.training.model import Net
from labkit.training.steps import phase


def train(run, weights, images, labels, order, seeds, lr, losses):
    losses.zero_()
    for step, batch in enumerate(order.split(run.args.batch_size)):
        pooled, winner = conv_forward(images, batch, weights, seeds, step)
        back = fc1_head(pooled, labels, batch, weights, losses, seeds, step)
        upstream = fc1_backward(pooled, back, weights)
        with beside(run.device, adadelta, weights, lr, weights.overwritten):  # fc1.weight: 98 % of the parameters
            conv_backward(images, batch, weights, upstream, winner)
        adadelta(weights, lr, weights.added)


def test(run, weights, images, labels, sums):
    value, copy = weights.values, weights.copies
    sums.zero_()
    for batch in torch.arange(len(labels), device=run.device).split(run.args.test_batch_size):
        pooled, _ = conv_forward(images, batch, weights)
        linear = (pooled.flatten(1) @ copy["fc1.weight"].t()).float()
        logits = F.linear(F.relu(linear + value["fc1.bias"]), value["fc2.weight"], value["fc2.bias"])
        sums[0] += F.cross_entropy(logits, labels[batch], reduction="sum")
        sums[1] += (logits.argmax(dim=1) == labels[batch]).sum()


def main():
    args = steps.parse_args(__doc__, workers=0)
    run = steps.Run(args, loader=False, needs_bf16=True)
    (images, labels), test_set = run.on_device(run.digits.train), run.on_device(run.digits.test)

    net = Net().to(run.device)
    weights = Weights(net)
    lr = torch.tensor(args.lr, device=run.device)

    # What a graph reads and writes keeps its place in memory: between launches only the contents change.
    order = torch.arange(len(labels), device=run.device)
    losses, sums = torch.zeros(run.steps_an_epoch, device=run.device), torch.zeros(2, device=run.device)
    seeds = torch.zeros(run.steps_an_epoch, dtype=torch.int64, device=run.device)

    def shuffle():
        order.copy_(torch.randperm(len(order), device=run.device))
        seeds.random_()

    def train_epoch(order=order):
        train(run, weights, images, labels, order, seeds, lr, losses)

    def test_epoch():
        test(run, weights, *test_set, sums)

    with run:
        with run.warming_up():
            if run.cuda:
                train_epoch(order[: args.batch_size + len(order) % args.batch_size])  # compiles the kernels
                test_epoch()
                weights.load(net)  # and begin again
            train_epoch, test_epoch = run.captured(train_epoch), run.captured(test_epoch)
            shuffle()  # whose kernels load now, and not in the first epoch
        for epoch in run.epochs():
            with run.timed("training"):
                with phase("graph launch"):
                    train_epoch()
                with phase("shuffle"):  # the next epoch's, queued behind this one
                    shuffle()
                run.log_epoch(epoch, losses)
            with run.timed("test"):
                test_epoch()
                run.log_test(sums[0].item() / len(test_set[1]), int(sums[1]), len(test_set[1]))
            lr *= args.gamma


if __name__ == "__main__":
    main()
