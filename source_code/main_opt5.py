"""Step 5, one launch: channels-last layout, and a whole epoch recorded as one CUDA graph (lab 07)."""

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR

from labkit.training import steps
from labkit.training.data import normalise
from labkit.training.model import Net
from labkit.training.steps import phase


def train(run, model, batch_loss, order, optimizer, losses):
    model.train()
    for step, batch in enumerate(order.split(run.args.batch_size)):
        optimizer.zero_grad()
        loss = batch_loss(batch)
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()


@torch.no_grad()
def test(run, model, predict, images, labels, sums):
    model.eval()
    sums.zero_()
    size = run.args.test_batch_size
    for data, target in zip(images.split(size), labels.split(size), strict=True):
        output = predict(data)
        sums[0] += F.nll_loss(output, target, reduction="sum")
        sums[1] += (output.argmax(dim=1) == target).sum()


def main():
    args = steps.parse_args(__doc__, workers=0, amp_dtype="bfloat16")
    run = steps.Run(args, loader=False)
    (images, labels), test_set = run.on_device(run.digits.train), run.on_device(run.digits.test)

    model = Net().to(run.device, memory_format=torch.channels_last)
    lr = torch.tensor(args.lr, device=run.device)  # the graph reads it at each launch; a number would be fixed in it
    optimizer = torch.optim.Adadelta(model.parameters(), lr=lr, capturable=run.cuda)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    dtype = args.amp_dtype
    autocast = torch.autocast(run.device.type, dtype, enabled=dtype != torch.float32)

    def predict(digits):
        with autocast:
            return model(normalise(digits)).float()

    def batch_loss(batch):
        return F.nll_loss(predict(images[batch]), labels[batch])

    # What a graph reads and writes keeps its place in memory: between launches only the contents change.
    order = torch.arange(len(labels), device=run.device)
    losses, sums = torch.zeros(run.steps_an_epoch, device=run.device), torch.zeros(2, device=run.device)

    def shuffle():
        order.copy_(torch.randperm(len(order), device=run.device))

    def train_epoch(order=order):
        train(run, model, batch_loss, order, optimizer, losses)

    def test_epoch():
        test(run, model, predict, *test_set, sums)

    with run:
        with run.warming_up():
            if run.cuda:
                with steps.rehearsal(model, optimizer):  # one step of each size: the last batch is short
                    train_epoch(order[: args.batch_size + len(order) % args.batch_size])
                    test_epoch()
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
            scheduler.step()


if __name__ == "__main__":
    main()
