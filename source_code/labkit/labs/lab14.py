"""Lab 14: what FP16 loses of a gradient, and a scale that keeps it."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from unittest import mock

import pandas as pd
from matplotlib.figure import Figure

from labkit.checks import Claim
from labkit.display import charts
from labkit.exercises.kinds import BOUND, READ, Choice, Code, NotWanted, Number, quietly
from labkit.lazily import torch
from labkit.predictions import Guess
from labkit.subjects import accuracy
from labkit.subjects.loss_scaling import FIRST_SCALE, scales
from stepbudget.ask import tensor_cores
from stepbudget.kernel_names import short as short_kernel
from stepbudget.report import Report
from stepbudget.show.table import Table, table

DRAWN = (1, 256, 65536, 2**20)  # of the scales that were tried
BATCH = 1024


def zeros_pct(rows: Sequence[dict], layer: str = "conv1", first: bool = False) -> dict[float, float]:
    """Scale → per cent of a layer's gradients that FP16 makes zero, after the last epoch, or before the ``first``."""
    epoch = (min if first else max)(row["epoch"] for row in rows)
    own = [row for row in rows if (row["epoch"], row["layer"]) == (epoch, layer)]
    return {row["scale"]: 100 * row["zero_share"] for row in own}


def zeros_chart(rows: Sequence[dict]) -> Figure:
    """The share of zeros over the epochs, a panel a layer, with four of the scales."""
    return charts.underflow([row for row in rows if row["scale"] in DRAWN])


def skipped(runs: Sequence[dict]) -> Table:
    """Runs with a scaler, a row each: their steps, the last scale, and how many steps were skipped on the way to it."""
    rows = []
    for record in runs:
        scale = record["extras"]["final_loss_scale"]
        steps = len(record["epochs"]) * -(-record["train_samples"] // BATCH)
        rows.append((steps, scale, round(math.log2(FIRST_SCALE / scale))))
    frame = pd.DataFrame(rows, columns=["steps", "final scale", "skipped steps"])
    return table(frame, "FP16 with GradScaler, a run a row", {"final scale": "{:,.0f}"})


# --- the cubic ----------------------------------------------------------------------------------------------


FP16_MAX = 65504.0
ALPHA = 0.99  # RMSprop's default: its state becomes ALPHA times itself, plus 1 - ALPHA of the gradient's square
LIMIT_PCT = 2.0  # above least squares
VARIANTS = ("fp32", "tf32", "bf16", "O1", "O2", "O3", "O3 mean")  # those that are profiled
COMPARED = ("fp32", "O1", "O2", "bf16")
SEARCH = 100  # iterations within which a scaler has found its scale: it is doubled after 2,000 good steps or later


def fits(record: dict) -> pd.DataFrame:
    """The fits, a row each: ``variant``, ``seed``, ``above_pct``, ``skipped``, µs an iteration.

    ``above_pct``: per cent above least squares by the final weights; NaN where they are not finite.
    """
    frame = pd.DataFrame(record["rows"])
    frame["above_pct"] = 100 * (frame["exact_loss"].astype(float) / record["least_squares"] - 1)
    frame["skipped"] = frame["skipped"].map(len)
    return frame


def by_variant(record: dict) -> Table:
    """A row a variant: how far its seeds end above least squares, how many within the limit, what they cost."""
    rows = []
    within = f"seeds within {LIMIT_PCT:g} %"
    for name, own in fits(record).groupby("variant", sort=False):
        finite = own["above_pct"].notna().all()
        rows.append(
            {
                "variant": name,
                "seeds": len(own),
                within: int((own["above_pct"] < LIMIT_PCT).sum()),
                "above least squares %": own["above_pct"].median() if finite else None,
                "worst %": own["above_pct"].max() if finite else None,
                "skipped steps": own["skipped"].median(),
                "µs an iteration": own["us_an_iteration"].median(),
            }
        )
    formats = dict.fromkeys(["above least squares %", "worst %"], "{:,.2f}")
    formats |= {within: "{:.0f}", "skipped steps": "{:.0f}", "µs an iteration": "{:.0f}"}
    caption = f"A cubic fitted to sin(x), the last iteration (medians); least squares: {record['least_squares']:.3f}"
    return table(pd.DataFrame(rows), caption, formats)


def tails(record: dict) -> pd.DataFrame:
    """A row a variant, finite ones: ``worst_pct``, the worst seed's median loss over its last 100 iterations.

    In per cent above least squares, as the runs say.
    """
    best, rows = record["least_squares"], []
    for name in dict.fromkeys(row["variant"] for row in record["rows"]):
        own = [row["tail"] for row in record["rows"] if row["variant"] == name]
        if all(value is not None for tail in own for value in tail):
            rows.append((name, 100 * (max(median for _, median, _ in own) / best - 1)))
    return pd.DataFrame(rows, columns=["variant", "worst_pct"])


def losses(record: dict) -> dict[tuple[str, int], list[float]]:
    """The recorded losses of each fit, by variant and seed."""
    return {(row["variant"], row["seed"]): row["losses"] for row in record["rows"]}


def halvings(gradient: float, scale: float = FIRST_SCALE) -> int:
    """How often ``scale`` must be halved until ``gradient`` times it fits into FP16."""
    return max(0, math.ceil(math.log2(gradient * scale / FP16_MAX)))


def overflow(record: dict) -> Table:
    """A row a seed: the first step's largest numbers, the halvings they ask for, and what became of O1 and of O3.

    The steps that O1 skips are those of its search: of the first iterations, before the scale is ever doubled.
    """
    rows = []
    for seed in sorted({row["seed"] for row in record["rows"]}):
        own = {row["variant"]: row for row in record["rows"] if row["seed"] == seed}
        start = own["fp32"]["start"]
        rows.append(
            {
                "seed": seed,
                "first loss": start["loss"],
                "largest gradient": start["gradient"],
                "RMSprop stores": (1 - ALPHA) * start["gradient_squared"],
                "halvings needed": halvings(start["gradient"]),
                "steps O1 skips": sum(iteration < SEARCH for iteration in own["O1"]["skipped"]),
                "O3's loss at the end": own["O3"]["exact_loss"],
            }
        )
    frame = pd.DataFrame(rows)
    formats = dict.fromkeys(["first loss", "largest gradient", "O3's loss at the end"], "{:,.0f}")
    return table(frame, "The first step, by seed", formats | {"RMSprop stores": "{:.1e}"})


def scales_chart(record: dict) -> Figure:
    """O1's loss scale: how the scaler finds it, and the whole fit."""
    own = [row for row in record["rows"] if row["variant"] == "O1"]
    panels = {"the first 30 iterations": own, "all of them": own}
    return scales(panels, [30, 5000], "O1: how GradScaler finds its scale")


PRODUCT = r"gemm|gemv|nvjet|cutlass|cublas|dot_kernel|splitK|xmma"  # in the name of a kernel of a matrix product


def products(report: Report, variants: Sequence[str]) -> Table:
    """The kernels of the matrix products, a row a variant and kernel, with the verdict on Tensor Cores.

    Empty where the report holds no kernels (there was no GPU). A variant that was not profiled is left out.
    """
    rows = []
    for name in filter(report.windows, variants):
        for own in tensor_cores.verdicts(report, report.window(name)).itertuples():
            if re.search(PRODUCT, own.kernel):
                us = 1e3 * own.gpu_ms / own.count
                rows.append((name, _product_name(own.kernel), own.count, us, own.tensor_core, own.evidence))
    frame = pd.DataFrame(rows, columns=["variant", "kernel", "count", "mean µs", "Tensor Cores", "told by"])
    caption = f"{report.name}: the kernels of the matrix products"
    return table(frame, caption, {"mean µs": "{:.1f}"})


def _product_name(kernel: str) -> str:
    """A kernel's name in short; one that is just called ``kernel`` keeps its namespaces: ``internal::gemvx``."""
    kernel = re.sub(r"^(void |std::enable_if<[^>]*>::type )+", "", kernel)
    head = re.match(r"[^<(]*", kernel).group()
    return head if head.endswith("::kernel") else short_kernel(kernel)


def _of_tensor_cores(products: pd.DataFrame) -> str:
    """Which variants multiplied on Tensor Cores, in a sentence; ``products``: the table's rows."""
    if products.empty:
        return "no GPU was profiled here"
    found = products.groupby("variant", sort=False)["Tensor Cores"].agg(set)
    yes = [name for name, said in found.items() if "yes" in said]
    unknown = [name for name, said in found.items() if "unknown" in said and name not in yes]
    if yes:
        rest = f"; not known of {', '.join(unknown)}" if unknown else ""
        return f"{'yes' if len(yes) == len(found) else 'in part'}: in {', '.join(yes)}{rest}"
    if unknown:
        return f"not known of {', '.join(unknown)}"
    return f"no: in none of {', '.join(found.index)}"


def iteration(record: dict, report: Report, iterations: int = 100) -> Table:
    """An iteration of each variant: how long it takes, unprofiled, and what it asks of the GPU.

    ``iterations``: how many of them each variant's range in the report holds.
    """
    us = fits(record).groupby("variant", sort=False)["us_an_iteration"].median()
    rows = []
    for name in filter(report.windows, VARIANTS):
        kernels = tensor_cores.verdicts(report, report.window(name))
        product = kernels["kernel"].astype(str).str.contains(PRODUCT)
        gpu_us = 1e3 * kernels["gpu_ms"] / iterations
        rows.append((name, us.get(name), kernels["count"].sum() / iterations, gpu_us.sum(), gpu_us[product].sum()))
    heads = {"µs an iteration": "{:.0f}", "kernels": "{:.0f}", "their µs": "{:.1f}", "of that, products µs": "{:.1f}"}
    return table(pd.DataFrame(rows, columns=["variant", *heads]), "What an iteration asks of the GPU", heads)


def text(record: dict, products: pd.DataFrame) -> Table:
    """The first text's statements, in our words, beside the recorded fits; ``products``: the table's rows."""
    own = fits(record)
    middle = own.groupby("variant")[["exact_loss", "us_an_iteration"]].median()
    loss, us = middle["exact_loss"], middle["us_an_iteration"]
    apex = f", {loss['apex O1']:.2f} with Apex's O1" if "apex O1" in loss else ""
    searched = overflow(record).frame
    skipped = searched["steps O1 skips"]
    foretold = "" if (skipped == searched["halvings needed"]).all() else "NOT "
    slower = us["O1"] / us["fp32"]
    fine = {name: int((found["above_pct"] < LIMIT_PCT).sum()) for name, found in own.groupby("variant")}
    seeds, best = own["seed"].nunique(), record["least_squares"]
    compared = ", ".join(f"{name} {fine[name]}" for name in COMPARED if name in fine)
    frame = pd.DataFrame(
        [
            (
                "the loss is a mean squared error, 8.82 at best",
                f"it is a sum over 2,000 points: {best:.2f} at best, or {best / 2000:.4f} a point",
            ),
            (
                "8.92 without AMP, 8.85 with PyTorch's, 8.86 with Apex's",
                f"medians: {loss['fp32']:.2f} in FP32, {loss['O1']:.2f} in O1{apex}",
            ),
            (
                "with and without AMP comparable, a little less exact than least squares",
                f"within {LIMIT_PCT:g} %: {compared} of {seeds} seeds; pure half (O3): {fine['O3']}",
            ),
            (
                "18 skipped steps, the scale falls from 65,536 to 0.25",
                f"{skipped.min()} to {skipped.max()} by seed, {foretold}as the first gradient foretells",
            ),
            (
                "mixed precision is faster",
                f"{us['fp32']:.0f} µs an iteration in FP32, {us['O1']:.0f} µs in O1: {slower:.1f} times as long",
            ),
            ("unclear whether Tensor Cores are used", _of_tensor_cores(products)),
            ("a V100's Tensor Cores work on integers, too", "no run needed: these came with Turing"),
        ],
        columns=["the text", "what we measured"],
    )
    return table(frame, "The text on the cubic")


# --- what it claims -----------------------------------------------------------------------------------------


AT_REST = ("fp32", "tf32", "O1", "O2", "O3 mean")  # variants of the cubic whose seeds all come to lie near the best


def underflow(zero_pct: Mapping[float, float]) -> Iterator[Claim | str]:
    """Most of conv1's gradients vanish without a scale; ``zero_pct``: per cent that are zero, by scale."""
    plain, scaled = zero_pct[1], zero_pct[65536]
    yield Claim(
        "without scaling, FP16 makes more than half of conv1's gradients zero", plain > 50, plain,
        because="a network that has learned less has larger gradients (fewer epochs, fewer digits)",
        so=f"{plain:.0f} % are lost here; a longer training may lose more, a larger batch will",
    )  # fmt: skip
    yield Claim(
        "a scale of 65,536 saves at least three quarters of those", scaled < plain / 4,
        [round(plain, 1), round(scaled, 1)],
        because="some gradients are smaller still, or larger ones overflow at that scale",
        so="look at the other scales in the picture; GradScaler looks for the right one by itself",
    )  # fmt: skip


def accuracy_kept(baseline: Sequence[float], unscaled: Sequence[float]) -> Iterator[Claim | str]:
    """FP16 without a scaler passes the gate: test accuracies of both, one a seed."""
    p = accuracy.below(baseline, unscaled)
    yield Claim(
        "even without loss scaling, the accuracy is not significantly below the baseline's",
        p >= accuracy.SIGNIFICANCE, p,
        because="a small loss shows in some sets of ten seeds and not in others",
        so=f"the mean is {statistics.mean(unscaled):.2f} %: keep the scaler",
    )  # fmt: skip


def few_skipped(runs: pd.DataFrame) -> Iterator[Claim | str]:
    """The scaler hardly ever skips a step; a run a row, with its ``steps`` and ``skipped steps``."""
    steps, most = int(runs["steps"].max()), int(runs["skipped steps"].max())
    yield Claim(
        "one step was skipped, or at most 1 % of them", most <= max(1, 0.01 * steps), most,
        because="the scale is found in the first steps, and a short run has few others",
        so=f"{most} of {steps} steps trained nothing: if that goes on, find what overflows",
    )  # fmt: skip


def skips_foretold(overflow: pd.DataFrame) -> Iterator[Claim | str]:
    """The size of the first gradient tells how many steps the scaler skips; a row a seed."""
    foretold = overflow["halvings needed"] == overflow["steps O1 skips"]
    yield Claim(
        "O1 skips as many steps as the first gradient foretells, with every seed", bool(foretold.all()),
        f"with {foretold.sum()} of {len(foretold)} seeds",
        because="a kernel that keeps its sums in FP16 overflows a little earlier",
        so="the search takes another step or two; only where it never ends is something wrong",
    )  # fmt: skip


def o3_fails(stored: Sequence[float], ends: pd.DataFrame) -> Iterator[Claim | str]:
    """Pure FP16 cannot hold RMSprop's state; ``stored``: of the largest first gradient, one a seed; ``ends``: fits."""
    yield Claim("what RMSprop stores overflows FP16, with every seed", min(stored) > FP16_MAX)
    failed = ~(ends[ends["variant"] == "O3"]["above_pct"] < 100)
    yield Claim("O3 fails with every seed", bool(failed.sum() == len(stored)), list(failed))


def medians_near(tails: pd.DataFrame) -> Iterator[Claim | str]:
    """Over the last iterations, all but BF16 and O3 lie near least squares; a row a variant."""
    worst = tails.set_index("variant")["worst_pct"]
    fine = worst[worst.index.isin(AT_REST)]
    yield Claim(
        "over the last 100 iterations, every seed's median is within 2 %, but for BF16 and O3", fine.max() < 2,
        {name: f"{own:.2f} %" for name, own in fine.items()},
        because="another kernel adds up in another order, and RMSprop jumps at other moments",
        so=f"the worst seed lies {fine.max():.1f} % above least squares: compare with the table",
    )  # fmt: skip
    if "bf16" in worst.index:  # not on a GPU without it
        yield f"in BF16 the worst seed's median is {worst['bf16']:.2f} % above least squares"


def apex_as_native(losses: Mapping[tuple[str, int], Sequence[float]]) -> Iterator[Claim | str]:
    """Apex and PyTorch train alike; ``losses`` of each fit, by variant and seed. Live: only where Apex has its amp."""
    seeds = sorted({seed for _, seed in losses})
    if ("apex O1", 1) in losses:
        same = [seed for seed in seeds if losses["apex O1", seed] == losses["O1", seed]]
        yield Claim(
            "Apex's O1 and PyTorch's own take the same steps, loss by loss", same == seeds,
            f"with {len(same)} of {len(seeds)} seeds",
            because="today's PyTorch casts elsewhere than Apex does",
            so="trust the native one, which is maintained",
        )  # fmt: skip


def on_tensor_cores(report: Report, losses: Mapping[tuple[str, int], Sequence[float]]) -> Iterator[Claim | str]:
    """Which of the cubic's variants multiply on Tensor Cores, by their kernels and, for TF32, by their losses."""
    found = products(report, VARIANTS).frame
    yield f"on Tensor Cores: {_of_tensor_cores(found)}"
    plain = set(found.loc[found["variant"] == "fp32", "Tensor Cores"])
    yield Claim(
        "FP32's products, at least, run on no Tensor Core", plain == {"no"}, sorted(plain) or "no products",
        because="there was no GPU to profile, or cuBLAS imitates FP32 by several short products",
        so="tell the arithmetic by the losses, not by the kernels' names",
    )  # fmt: skip
    same = all(losses["tf32", seed] == losses["fp32", seed] for seed in {seed for _, seed in losses})
    found = "every recorded loss is the same as in FP32: nothing was rounded to ten bits"
    other = "some losses differ from FP32's: another kernel took part, which may round to ten bits"
    yield f"with the switch for TF32, {found if same else other}"


def mixed_is_slower(iteration: Mapping[str, Sequence]) -> Iterator[Claim | str]:
    """Mixed precision makes the cubic slower: µs and kernels of an iteration; each column's values, by its name."""
    us, kernels = (
        dict(zip(iteration["variant"], iteration[name], strict=True)) for name in ("µs an iteration", "kernels")
    )
    times = us["O1"] / us["fp32"]
    yield f"An iteration takes {us['fp32']:.0f} µs in FP32; in O1 {times:.2f} times as long."
    yield Claim(
        "mixed precision makes this fit slower, not faster", times > 1, float(times),
        because="on a slow GPU the kernels themselves take the time, or the runs differ by more",
        so="a gain here would be of the kernels: compare their µs",
    )  # fmt: skip
    more = not sum(kernels.values()) or kernels["O1"] > kernels["fp32"]
    yield Claim("and it launches more kernels, where it launches any", more, kernels)


# --- its exercises ------------------------------------------------------------------------------------------


SCALE = 2.0**24
POINTS = 2000  # over which the cubic's loss is a sum


@quietly
def _try_fixed_scale_step(step: Callable) -> str | None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.1)  # a step without gradients shows
    seen = []
    model.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    data = torch.randn(8, 4)
    expected = torch.nn.Linear(4, 1)
    expected.load_state_dict(model.state_dict())
    expected(data).square().mean().backward()
    refused = NotWanted("a step without GradScaler is wanted")
    with mock.patch.object(torch.amp.GradScaler, "scale", side_effect=refused):
        step(model, model(data).square().mean(), optimizer, SCALE)
    if not seen:
        return "there is no backward pass"
    if torch.allclose(seen[0], expected.weight.grad / SCALE, rtol=1e-4):
        return "the loss is divided by the factor: multiply it"
    if not torch.allclose(seen[0], SCALE * expected.weight.grad, rtol=1e-4):
        return "the backward pass starts from a loss that is not scaled by the factor given"
    pairs = list(zip(model.parameters(), expected.parameters(), strict=True))
    wrong = [(own.detach() - (other - 0.5 * (other.grad + 0.1 * other))).abs().max() > 1e-5 for own, other in pairs]
    if torch.equal(model.weight, expected.weight):
        return "the weights do not move at all, though each gradient is finite in FP32: the optimizer's step is missing"
    if any(wrong):
        return "the weights do not move as they would without scaling: is each gradient divided before the step?"
    before = model.weight.detach().clone()
    for (name, parameter), bad in product(model.named_parameters(), (math.inf, math.nan)):
        spoilt = parameter.register_hook(partial(_with_a_last, bad))
        optimizer.zero_grad()
        step(model, model(data).square().mean(), optimizer, SCALE)
        spoilt.remove()
        if not torch.equal(before, model.weight):
            where = f"here the {name}'s was {bad} in one place, and the loss was finite"
            return f"a step must be left out when any gradient is not finite: {where}"
    optimizer.zero_grad()
    step(model, model(data).square().mean(), optimizer, SCALE)
    if torch.equal(before, model.weight):
        return "after a step that was left out, the next one must be taken again"
    return None


def _with_a_last(number: float, gradient):
    gradient = gradient.clone()
    gradient.view(-1)[-1] = number
    return gradient


def _fixed_scale(
    scaled: Callable = lambda loss, scale: loss * scale,
    unscaled: Callable = lambda gradient, scale: gradient / scale,
    looks: bool = True,
    steps: bool = True,
) -> Callable:
    """A step with all that belongs to it, but for what is said otherwise."""

    def step(model, loss, optimizer, scale):
        scaled(loss, scale).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        if looks and not all(one.isfinite().all() for one in gradients):
            return
        for one in gradients:
            one.copy_(unscaled(one, scale))
        if steps:
            optimizer.step()

    return step


def _gives_up(model, loss, optimizer, scale):
    """Once a step was left out, none is taken any more."""
    gave_up = getattr(model, "gave_up", False)
    _fixed_scale(steps=not gave_up)(model, loss, optimizer, scale)
    model.gave_up = gave_up or not all(parameter.grad.isfinite().all() for parameter in model.parameters())


def _by_loss(model, loss, optimizer, scale):
    _fixed_scale(looks=False, steps=bool(loss.isfinite()))(model, loss, optimizer, scale)


def _by_first(model, loss, optimizer, scale):
    first = next(model.parameters())
    _fixed_scale(looks=False, steps=False)(model, loss, optimizer, scale)
    if first.grad.isfinite().all():
        optimizer.step()


def _divides_one(model, loss, optimizer, scale):
    model.bias.register_hook(lambda gradient: gradient * scale)
    _fixed_scale()(model, loss, optimizer, scale)


FIXED_SCALE_STEP = Code(
    "Scale the loss, go backward, divide every gradient by the scale, and step only where all of them are finite.",
    _try_fixed_scale_step,
    wrong={
        "there is no backward pass": lambda model, loss, optimizer, scale: optimizer.step(),
        "the loss is divided by the factor": _fixed_scale(scaled=lambda loss, scale: loss / scale),
        "not scaled by the factor given": _fixed_scale(scaled=lambda loss, scale: loss),
        "is each gradient divided before the step?": _fixed_scale(unscaled=lambda gradient, scale: gradient),
        "the weights do not move as they would": _divides_one,
        "must be left out": _fixed_scale(looks=False),
        "here the bias's was": _by_first,
        "and the loss was finite": _by_loss,
        "the optimizer's step is missing": _fixed_scale(steps=False),
        "the next one must be taken again": _gives_up,
    },
)


def largest_scale(first_steps: pd.DataFrame, points: int = POINTS) -> float:
    """The largest power of two by which the *mean* loss may be multiplied: no seed's first gradient overflows FP16.

    ``first_steps``: a row a seed, with ``largest gradient``, that of the loss summed over ``points`` points.
    """
    return 2.0 ** math.floor(math.log2(_room(first_steps, points)))


def _room(first_steps: pd.DataFrame, points: int) -> float:
    """By which factor the largest of all first gradients may grow before FP16 overflows."""
    return FP16_MAX / (first_steps["largest gradient"].max() / points)


LARGEST_SCALE = Number(
    BOUND,
    "Divide the largest gradient of any seed by the number of points; what may it be multiplied by, up to 65,504?",
    right=largest_scale,
    wrong={
        "that is for the sum: the mean's gradients are smaller by the number of points": lambda first: largest_scale(
            first, 1
        ),
        "that is the next power of two: some seed's gradient overflows there": lambda first: 2 * largest_scale(first),
        "that is the factor itself: which power of two is not above it?": lambda first: _room(first, POINTS),
        "that is the exponent: the scale is two to that power": lambda first: math.log2(largest_scale(first)),
        "that is right for the seed with the smallest gradient, and the others overflow": lambda first: largest_scale(
            first.nsmallest(1, "largest gradient")
        ),
        "that is GradScaler's first one: it overflows": lambda first: FIRST_SCALE,
    },
)


def _zeros(rows: Sequence[dict], scale: float) -> dict[str, float]:
    """Layer → share of its gradients that are zero at this scale, after the last epoch."""
    last = max(row["epoch"] for row in rows)
    return {row["layer"]: row["zero_share"] for row in rows if (row["epoch"], row["scale"]) == (last, scale)}


def neediest(rows: Sequence[dict], scale: float = FIRST_SCALE) -> str:
    """The layer at whose output this scale leaves the largest share of the gradients zero, after the last epoch."""
    shares = _zeros(rows, scale)
    return max(shares, key=shares.__getitem__)


NOT_THE_HIGHEST = "its line for × 65,536 is not the highest at the right end"
NEEDIEST_LAYER = Choice(
    READ,
    "Compare one line from panel to panel, that for × 65,536, at its right end.",
    right=neediest,
    wrong={
        "conv1": f"it loses most without scaling, but here {NOT_THE_HIGHEST}",
        "conv2": f"look at its panel again: {NOT_THE_HIGHEST}",
        "fc1": f"it loses least of all four: {NOT_THE_HIGHEST}",
        "fc2": f"it is next to the loss, but here {NOT_THE_HIGHEST}",
    },
)
EXERCISES = {"14.1": FIXED_SCALE_STEP, "14.2": LARGEST_SCALE, "14.3": NEEDIEST_LAYER}


# --- what it asks before it shows ---------------------------------------------------------------------------


PREDICTIONS = {
    "zero": Guess(
        "gradients of conv1 that FP16 makes zero", " %", lambda rows: zeros_pct(rows)[1],
        wrong={
            "That's before training. Gradients shrink as the network gets better.": (
                lambda rows: zeros_pct(rows, first=True)[1]
            ),
            "That's next to the loss. conv1 is the layer farthest from it.": lambda rows: zeros_pct(rows, "fc2")[1],
            "That's what is still lost with a scale of 65,536.": lambda rows: zeros_pct(rows)[FIRST_SCALE],
        },
    ),
    "skipped": Guess(
        "steps skipped at first", " steps", lambda fits: float(overflow(fits).frame["steps O1 skips"].median()),
        wrong={
            "One halving makes room for a factor of two. This loss is a sum over 2,000 points.": lambda fits: 1,
            "That counts the points alone. The inputs are large as well: x³ reaches 31.": (
                lambda fits: round(math.log2(POINTS))
            ),
            "That would bring the scale down to 1. These gradients don't fit even then.": (
                lambda fits: round(math.log2(FIRST_SCALE))
            ),
        },
    ),
    "largest": Guess(
        "the largest first gradient of RMSprop in FP16", "", lambda: math.sqrt(FP16_MAX / (1 - ALPHA)),
        wrong={
            "That's the largest gradient that FP16 holds, but RMSprop stores a square.": lambda: FP16_MAX,
            "That's the root of 65,504. The first step stores only a hundredth of the square.": (
                lambda: math.sqrt(FP16_MAX)
            ),
        },
    ),
}  # fmt: skip
