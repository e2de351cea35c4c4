"""Benchmark: how many FP16 gradients of the MNIST net fall to zero, with and without loss scaling (lab 04)."""

import argparse

import torch
import torch.nn.functional as F

from labkit import steps
from labkit.model import Net

LAYERS = ("conv1", "conv2", "fc1", "fc2")
SCALES = (1.0, 256.0, 65536.0)  # none; a modest one; where PyTorch's GradScaler begins
BATCH = 1024


def gradients(model, data, target, scale, amp):
    """The loss's gradients with respect to each layer's output, scaled; FP16 under autocast, else FP32."""
    outputs, hooks = {}, []
    for name in LAYERS:
        layer = getattr(model, name)
        hooks.append(layer.register_forward_hook(lambda _, __, out, name=name: outputs.update({name: out})))
    torch.manual_seed(0)  # the same dropout masks each time
    with torch.autocast(data.device.type, torch.float16, enabled=amp):
        loss = F.nll_loss(model(data), target)
    found = torch.autograd.grad(loss * scale, [outputs[name] for name in LAYERS])
    for hook in hooks:
        hook.remove()
    return dict(zip(LAYERS, found, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", metavar="FILE", help="write the results, one JSON object, to FILE")
    parser.add_argument("--data-dir", metavar="DIR", help="where MNIST lies")
    parser.add_argument("--epochs", type=int, default=10, help="train this far (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="train on the first N samples only")
    args = parser.parse_args()
    device = steps.pick_device("auto")
    digits = steps.found_digits(args)
    torch.manual_seed(1)
    steps.set_fp32_precision(tf32=False)
    images = digits.train.data.to(device).float().div(255).sub(0.1307).div(0.3081).unsqueeze(1)
    labels = digits.train.targets.to(device)
    model = Net().to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)

    rows = []
    for epoch in range(args.epochs + 1):
        batch = slice(0, min(BATCH, len(images)))
        exact = gradients(model, images[batch], labels[batch], 1.0, amp=False)
        for scale in SCALES:
            half = gradients(model, images[batch], labels[batch], scale, amp=True)
            for name in LAYERS:
                alive = exact[name] != 0
                rows.append(
                    {
                        "epoch": epoch,
                        "scale": scale,
                        "layer": name,
                        "nonzero_in_fp32": int(alive.sum()),
                        "zero_in_fp16_share": float((half[name][alive] == 0).float().mean()),
                        "not_finite_share": float((~half[name].isfinite()).float().mean()),
                        "median_exponent": float(exact[name][alive].abs().log2().median()),
                    }
                )
                print(f"after epoch {epoch:2}, scale {scale:7.0f}, {name}: ", end="")
                print(f"{100 * rows[-1]['zero_in_fp16_share']:5.1f} % of the gradients are zero in FP16 only")
        if epoch < args.epochs:
            torch.manual_seed(100 + epoch)
            model.train()
            for index in torch.randperm(len(images), device=device).split(BATCH):
                optimizer.zero_grad()
                F.nll_loss(model(images[index]), labels[index]).backward()
                optimizer.step()
            scheduler.step()
    steps.write_benchmark_record(args, device, rows, data_source=digits.source)


if __name__ == "__main__":
    main()
