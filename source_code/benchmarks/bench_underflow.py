"""Benchmark: how many FP16 gradients of the MNIST net fall to zero, by loss scale, as training goes on (lab 14)."""

import torch
import torch.nn.functional as F

from labkit.training import steps
from labkit.training.data import MEAN, STD
from labkit.training.model import Net

LAYERS = ("conv1", "conv2", "fc1", "fc2")
SCALES = tuple(2.0**exponent for exponent in (0, 4, 8, 12, 16, 20, 24))  # GradScaler begins with 2**16
BATCH = 1024


def gradients(model, data, target, scale):
    """FP16 gradients of the scaled loss with respect to each layer's output, as autocast training has them."""
    outputs, hooks = {}, []
    for name in LAYERS:
        layer = getattr(model, name)
        hooks.append(layer.register_forward_hook(lambda _, __, out, name=name: outputs.update({name: out})))
    torch.manual_seed(0)  # the same dropout masks for every scale
    with torch.autocast(data.device.type, torch.float16):
        loss = F.nll_loss(model(data), target)
    found = torch.autograd.grad(loss * scale, [outputs[name] for name in LAYERS])
    for hook in hooks:
        hook.remove()
    return dict(zip(LAYERS, found, strict=True))


def underflow(model, data, target):
    """A row a scale and layer. A gradient exists if it is finite and not zero at one of the scales at least."""
    by_scale = {scale: gradients(model, data, target, scale) for scale in SCALES}
    for name in LAYERS:
        finite = {scale: found[name].isfinite() for scale, found in by_scale.items()}
        exists = torch.stack([finite[s] & (by_scale[s][name] != 0) for s in SCALES]).any(dim=0)
        for scale in SCALES:
            zero = exists & (by_scale[scale][name] == 0)
            yield {
                "scale": scale,
                "layer": name,
                "gradients": int(exists.sum()),
                "zero_share": float(zero.sum() / exists.sum()),
                "not_finite_share": float((~finite[scale]).float().mean()),
            }


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--data-dir", metavar="DIR", help="where MNIST lies")
    parser.add_argument("--epochs", type=steps.at_least(1), default=10, help="train this far (default: %(default)s)")
    parser.add_argument("--limit", type=steps.at_least(1), help="train on the first N samples only")
    args = parser.parse_args()
    device = steps.pick_device("auto")
    digits = steps.found_digits(args)
    torch.manual_seed(1)
    steps.set_fp32_precision(tf32=False)
    images = digits.train.data.to(device).float().div(255).sub(MEAN).div(STD).unsqueeze(1)
    labels = digits.train.targets.to(device)
    model = Net().to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)

    rows = []
    for epoch in range(args.epochs + 1):
        for row in underflow(model, images[:BATCH], labels[:BATCH]):
            rows.append({"epoch": epoch, **row})
            print(f"after epoch {epoch:2}, scale {row['scale']:9.0f}, {row['layer']:5}: ", end="")
            print(f"{row['zero_share']:6.1%} of the gradients are zero, {row['not_finite_share']:6.1%} not finite")
        if epoch < args.epochs:
            torch.manual_seed(100 + epoch)
            for index in torch.randperm(len(images), device=device).split(BATCH):
                optimizer.zero_grad()
                F.nll_loss(model(images[index]), labels[index]).backward()
                optimizer.step()
            scheduler.step()
    steps.write_benchmark_record(args, device, rows, data_source=digits.source)


if __name__ == "__main__":
    main()
