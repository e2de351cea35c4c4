"""The exercises of lab 20: what ails eight patients, what a cure gains at most, and six programs mended.

Exercise 20.5.2 is the second about patient 5. What ails a patient is a word of ``patients.CAUSES``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping

from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number, each_of, quietly
from labkit.labs.lab20 import patients
from labkit.lazily import torch
from labkit.numbers import NotANumber, Quantity, number, shown
from labkit.pretend.loader import PretendLoader
from labkit.subjects.bounds import idle_ms, row_ms, whole_ms, without
from stepbudget.ask import collectives, copies, phases, predict, tensor_cores
from stepbudget.ask.budget import budget
from stepbudget.report import Report

# What else one would see if a word were right.
THEN = {
    "loader": "then the row 'waiting for the loader' would be large: is it?",
    "cpu work": "then the GPU would wait for CPU code that launches nothing: does it?",
    "copies": "then copies from pageable memory would take much of the time: sb.copies says how much",
    "waiting": "then numbers would come back from the GPU one by one in a step, and the program would wait for each",
    "launches": "then short kernels would find the GPU empty, one after another: what does sb.launches say?",
    "precision": "then the longest products would be in kernels that use no Tensor Cores: see sb.kernels",
    "sizes": "then Tensor Core kernels for badly aligned memory would run (align1, align2): see sb.kernels",
    "debugging": "then something would run in each step that no training needs: do you see any such thing?",
    "healthy": "a cure gains more than a tenth of the time here: which row of the budget is too large?",
}
ALMOST = {  # patient → a word that comes near → what speaks against it
    3: {"sizes": "plain FP32 kernels (simt) are all called align1, whatever the sizes: do these use Tensor Cores?"},
    5: {"cpu work": "there is much CPU code, yes: but what does it do? Count the kernels that each phase launches"},
    6: {
        "copies": "there is such a copy, and it takes a few per cent: what makes the memory pageable?",
        "loader": "the phase 'data' takes next to nothing: the loader is in time",
    },
    7: {
        "waiting": "a GPU waits for the other one: that is what you see, and not yet why",
        "healthy": "the GPU looks busy, but its collectives only wait for the other GPU",
    },
    8: {
        "waiting": "true as far as it goes: all through the backward pass, results are fetched. Who would want that?",
        "launches": "there are many, yes: which kernels run as often as results are fetched?",
    },
    10: {"healthy": "the Tensor Cores are busy, but with what kind of kernels? See sb.kernels"},
}


def _cause(patient: int) -> Choice:
    """What ails a patient, as a word of ``patients.CAUSES``."""
    wrong = {word: why for word, why in (THEN | ALMOST.get(patient, {})).items() if word != patients.cause(patient)}
    hint = f"Which row of the budget is large, and in which phase? The words are {', '.join(patients.CAUSES)}."
    return Choice(READ, hint, right=lambda: patients.cause(patient), wrong=wrong)


# Bounds


def _fix_ms(fix: str) -> Quantity:
    return Quantity(lambda report: predict.bound(report, budget(report), fix).at_most_ms)


PRECISION_MS = _fix_ms("mixed_precision")
TENSOR_CORES_MS = Number(
    BOUND,
    "A row of sb.bounds: the fix that puts matrix products on Tensor Cores.",
    right=PRECISION_MS,
    wrong={
        "that is the window at best, once the cure works: what does it gain?": whole_ms - PRECISION_MS,
        "that is the whole window": whole_ms,
        "those are seconds: milliseconds are asked for": PRECISION_MS / 1e3,
        "that is what the GPU's idle time could gain, and this GPU is busy": idle_ms,
        "that is a factor: milliseconds are asked for": without(PRECISION_MS),
    },
)


def _phase(name: str, column: str = "cpu_ms") -> Quantity:
    return Quantity(lambda report: phases.phases(report).set_index("phase").loc[name, column])


OPTIMIZER_MS = Number(
    BOUND,
    "At most what the CPU spends in one phase: see sb.phases.",
    right=_phase("optimizer"),
    wrong={
        "that is for all launches, and those of forward and backward stay as they are": _fix_ms("cuda_graph"),
        "that is the kernels' time: the CPU's is what the GPU waits for": _phase("optimizer", "gpu_ms"),
        "that row is the code between the launches: the launches are the optimizer's, too": row_ms("optimizer"),
        "that is the backward pass": _phase("backward"),
        "that is the whole window": whole_ms,
    },
)

IDLE_MS = Number(
    BOUND,
    "However fast the CPU is, the GPU's own work remains. So what can vanish at most?",
    right=idle_ms,
    wrong={
        "that is what remains: the GPU's own work": whole_ms - idle_ms,
        "that is the whole window: the GPU's work does not vanish": whole_ms,
        "those are the copies: small beside what goes on before them": row_ms("copies", "pageable_copy"),
        "that is a share: milliseconds are asked for": idle_ms / whole_ms,
    },
    within=0.03,  # the row of the CPU code alone is as good an answer
)


@Quantity
def late_gpu(report: Report) -> float:
    return float(collectives.late(collectives.communication(report))["gpu"])


LATE_GPU = Number(
    READ,
    "ask.collectives.communication(ward[7]) has a row for each GPU: 'last' says how often that one came last.",
    right=late_gpu,
    wrong={
        "that is the one that waits": 1 - late_gpu,
        "that is how often it came last: which GPU is it?": lambda report: float(
            collectives.communication(report)["last"].max()
        ),
        "that is how many GPUs there are: their numbers begin at 0": lambda report: 2.0,
    },
    within=0.0,
)

STEPS = 3  # that patient 8's report holds


@Quantity
def fetched(report: Report) -> float:
    found = copies.copies(report)
    return float(found.loc[found["direction"] == "device to host", "count"].sum())


FETCHED = Number(
    READ,
    "sb.copies counts the copies from device to host, over three steps.",
    right=fetched / STEPS,
    wrong={
        "that is in all: the report holds three steps": fetched,
        "those are the batches, on their way to the GPU": lambda report: float(STEPS),
        "that is the number of kernels": lambda report: float(len(report.kernels)),
    },
)


def _kernels_ms(pattern: str) -> Quantity:
    def ms(report: Report) -> float:
        found = tensor_cores.verdicts(report)
        return float(found.loc[found["kernel"].str.contains(pattern), "gpu_ms"].sum())

    return Quantity(ms)


ALIGN_MS = Number(
    BOUND,
    "At most all the time of the kernels whose names end in align1: see sb.kernels.",
    right=_kernels_ms("align1"),
    wrong={
        "that is all Tensor Core kernels: the others are as fast as they can be": row_ms("tensor_core_kernels"),
        "that is the longest of them alone": lambda report: float(tensor_cores.verdicts(report)["gpu_ms"].max()),
        "that is the whole window": whole_ms,
        "those are the fast ones: the others are asked for": _kernels_ms("nvjet"),
        "those are seconds: milliseconds are asked for": _kernels_ms("align1") / 1e3,
    },
)


# Programs, mended: each runs on the CPU, in small

READS = "aten::_local_scalar_dense"  # what .item() comes to; an optimizer's step counters lie on the CPU anyway


def _fetched(run: Callable[[], object]) -> tuple[object, int]:
    """What ``run`` returns, and how often it would fetch from a GPU: what came to the CPU as a whole counts once."""
    from torch.overrides import TorchFunctionMode

    own = torch.Tensor
    whole, plain = {own.cpu, own.numpy, own.__array__}, {own.item, own.tolist, own.__float__, own.__int__}

    class Count(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.fetches, self.here = 0, set()

        def fetch(self, one, stays: bool = False) -> None:
            place = one.untyped_storage().data_ptr()
            self.fetches += place not in self.here
            self.here |= {place} if stays else set()

        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.tensor:  # of tensors in a list it fetches each
                data = args[0] if args else kwargs["data"]
                for one in data if isinstance(data, list | tuple) else [data]:
                    if isinstance(one, torch.Tensor):
                        self.fetch(one)
            elif func in whole or (func is own.to and "cpu" in map(str, (*args[1:], *(kwargs or {}).values()))):
                self.fetch(args[0], stays=True)
            elif func in plain:
                self.fetch(args[0])
            return func(*args, **(kwargs or {}))

    with Count() as count:
        return run(), count.fetches


def _seen(run: Callable[[], object], also: Callable[[], object] = lambda: None) -> tuple[object, list[tuple]]:
    """What ``run`` returns, and PyTorch's operations below it: name (``aten::mm``), types of tensors, ``also()``."""
    from torch.utils._python_dispatch import TorchDispatchMode

    operations = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            tensors = [one.dtype for one in args if isinstance(one, torch.Tensor)]
            operations.append((func.name().partition(".")[0], tuple(tensors), also()))
            return func(*args, **(kwargs or {}))

    with Log():
        return run(), operations


def _small_model(layers: int = 4):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)))
    return model, torch.nn.functional.mse_loss, torch.randn(16, 8), torch.randn(16, 8)


@quietly
def _try_norms(step: Callable) -> str | None:
    model, loss_fn, batch, target = _small_model()
    found, fetches = _fetched(lambda: step(model, loss_fn, batch, target))
    gradients = [parameter.grad for parameter in model.parameters()]
    if any(gradient is None for gradient in gradients):
        return "some gradients are missing: was there no backward pass, or were they cleared before the end?"
    right = [float(gradient.norm()) for gradient in gradients]
    if not isinstance(found, (list, tuple)):
        return f"a list of plain numbers is wanted, not {shown(found)}"
    other = next((one for one in found if not isinstance(one, float)), None)
    if other is not None:
        return f"the list should hold plain numbers, and it holds {shown(other)}"
    if len(found) != len(right) or not all(map(_near, found, right)):
        return "these are not the norms of all gradients, in the order of model.parameters()"
    if fetches > 1:
        return f"{fetches} numbers are fetched one by one, and the program waits for each: fetch them together"
    return None


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-4)


def _norms(fetch: Callable, backward: bool = True) -> Callable:
    def train_step(model, loss_fn, batch, target):
        if backward:
            loss_fn(model(batch), target).backward()
        return fetch([parameter.grad for parameter in model.parameters()])

    return train_step


def _stacked(gradients):
    return torch.stack([gradient.norm() for gradient in gradients])


NORMS = Code(
    "torch.stack makes one tensor of many; .tolist() fetches a whole tensor at once.",
    _try_norms,
    wrong={
        "numbers are fetched one by one": _norms(lambda own: [gradient.norm().item() for gradient in own]),
        "a list of plain numbers is wanted": _norms(_stacked),
        "the list should hold plain numbers": _norms(lambda own: list(_stacked(own))),
        "not the norms of all gradients": _norms(lambda own: [_stacked(own).norm().item()]),
        "or were they cleared before the end?": _norms(lambda own: [], backward=False),
    },
)

SIXTEEN_BITS = ("torch.bfloat16", "torch.float16")
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear")


@contextlib.contextmanager
def _fp32_products() -> Iterator[Callable[[], bool]]:
    """FP32 products, TF32 off, until the block ends; was it turned on meanwhile, by any of PyTorch's names?"""
    matmul = torch.backends.cuda.matmul
    by_name = hasattr(matmul, "fp32_precision")  # from torch 2.9 on
    places = [(torch.backends, "fp32_precision"), (matmul, "fp32_precision")] if by_name else [(matmul, "allow_tf32")]
    older = None
    with contextlib.suppress(RuntimeError):  # it refuses to answer where the reader has used the newer names
        older = torch.get_float32_matmul_precision()
    before = [getattr(*place) for place in places]
    for place in places:
        setattr(*place, "none" if by_name else False)
    try:
        yield lambda: getattr(*places[-1]) in ("tf32", True)
    finally:
        if older:
            torch.set_float32_matmul_precision(older)
        for place, value in zip(places, before, strict=True):
            setattr(*place, value)


@quietly
def _try_precision(step: Callable) -> str | None:
    model, loss_fn, batch, target = _small_model()
    usual = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)  # as on a GPU, which the patient has
    try:
        with _fp32_products() as turned_on:
            loss, operations = _seen(lambda: step(model, loss_fn, batch, target), turned_on)
    finally:
        torch.set_autocast_dtype("cpu", usual)
    tf32 = all(on for name, _, on in operations if name in PRODUCTS)
    if any(parameter.grad is None for parameter in model.parameters()):
        return "some gradients are missing: the backward pass belongs to the step"
    if not isinstance(loss, torch.Tensor) or not torch.isfinite(loss).all():
        return f"the loss is wanted, as a tensor, not {shown(loss)}"
    types = [{str(dtype) for dtype in dtypes} for name, dtypes, _ in operations if name in PRODUCTS]
    if any("torch.float16" in own for own in types):
        return "FP16 underflows without a GradScaler: BF16 needs none"
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        return "the weights are to stay in FP32: let autocast round them for the products alone"
    if tf32 or all(own & {*SIXTEEN_BITS} for own in types):
        return None
    if any(own & {*SIXTEEN_BITS} for own in types):
        return "some products still run in FP32: the whole forward pass belongs under autocast"
    return (
        "all products still run in FP32 (turn TF32 on inside the step; autocast is for one type of device, here a CPU)"
    )


def _autocast_step(dtype: str | None = "bfloat16", device: str = "", only_loss: bool = False, backward: bool = True):
    def train_step(model, loss_fn, batch, target):
        kind = device or batch.device.type
        with torch.autocast(kind, getattr(torch, dtype or "bfloat16"), enabled=bool(dtype) and not only_loss):
            output = model[:2](batch)
        with torch.autocast(kind, getattr(torch, dtype or "bfloat16"), enabled=bool(dtype)):
            loss = loss_fn(model[2:](output), target)
        if backward:
            loss.backward()
        return loss

    return train_step


def _all_in_sixteen_bits(model, loss_fn, batch, target):
    model.to(torch.bfloat16)
    loss = loss_fn(model(batch.to(torch.bfloat16)), target.to(torch.bfloat16))
    loss.backward()
    return loss


PRECISION = Code(
    "Two cures: torch.autocast around model and loss, or TF32 (lab 4).",
    _try_precision,
    wrong={
        "all products still run in FP32": _autocast_step(dtype=None),
        "some products still run in FP32": _autocast_step(only_loss=True),
        "FP16 underflows without a GradScaler": _autocast_step("float16"),
        "the backward pass belongs to the step": _autocast_step(backward=False),
        "the weights are to stay in FP32": _all_in_sixteen_bits,
        "the loss is wanted": lambda *given: _autocast_step()(*given) and None,
    },
)

FEW = 1.0  # operations a parameter: a loop makes nine


@quietly
def _try_optimizer(make_optimizer: Callable) -> str | None:
    model, loss_fn, batch, target = _small_model(layers=20)
    twin, *_ = _small_model(layers=20)
    parameters = list(model.parameters())
    optimizer = make_optimizer(torch, parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        return f"an optimizer is wanted, not {shown(optimizer)}"
    for group in optimizer.param_groups:
        if group.get("foreach") is None and group.get("fused") is None:
            group["foreach"] = True  # what PyTorch chooses on a GPU where nothing is said
    usual = torch.optim.AdamW(twin.parameters(), lr=3e-4, foreach=False)
    for _ in range(2):  # the first step makes the optimizer's state, too
        for own in (model, twin):
            loss_fn(own(batch), target).backward()
        _, operations = _seen(optimizer.step)
        usual.step()
    pairs = zip(parameters, twin.parameters(), strict=True)
    if not all(torch.allclose(one, other, rtol=1e-6, atol=1e-7) for one, other in pairs):
        return "the weights come out otherwise: AdamW and its learning rate are to stay as they are"
    count = sum(name != READS for name, *_ in operations)
    if count > FEW * len(parameters):
        return f"{count} operations for {len(parameters)} parameters: it still goes through them in a loop"
    return None


def _optimizer(name: str = "AdamW", lr: float = 3e-4, **how) -> Callable:
    return lambda torch, parameters: getattr(torch.optim, name)(parameters, lr=lr, **how)


OPTIMIZER = Code(
    "The argument fused updates all parameters in a few kernels; foreach needs a few more.",
    _try_optimizer,
    wrong={
        "it still goes through them in a loop": _optimizer(foreach=False, fused=False),
        "the weights come out otherwise": _optimizer("SGD", foreach=True),
        "AdamW and its learning rate are to stay": _optimizer(lr=1e-3, fused=True),
        "the weights come out otherwise: AdamW": _optimizer("Adam", fused=True),
        "an optimizer is wanted": lambda torch, parameters: None,
    },
)


@quietly
def _try_recoloured(recoloured: Callable) -> str | None:
    torch.manual_seed(0)
    means, channels = torch.tensor([90, 165] * 128).view(-1, 1, 1, 1), torch.tensor([-15, 0, 15]).view(-1, 1, 1)
    same = means + channels + torch.randint(-25, 26, (256, 3, 16, 16))
    same[:, :, 0, 0], same[:, :, 0, 1] = 0, 255  # each picture has something black and something white
    same = same.byte()
    found, many = _seen(lambda: recoloured(torch, same))
    _, few = _seen(lambda: recoloured(torch, same[:4]))
    if not isinstance(found, torch.Tensor) or found.shape != same.shape or found.dtype != same.dtype:
        return "as many pictures are wanted as come in, of the same size, in whole numbers (torch.uint8)"
    own, before = found[:, :, 1:].float().flatten(1) + 0.5, same[:, :, 1:].float().flatten(1)
    mean = same.float().mean((1, 2, 3)).view(-1, 1)
    centred = before - before.mean(1, keepdim=True)
    contrast = (own * centred).sum(1) / centred.square().sum(1)  # a line through each picture's numbers
    rest = own - mean - (before - mean) * contrast[:, None]
    brightness = rest.mean(1)
    if contrast.std() < 0.02:
        return "all pictures get the same contrast: a number for each is to be drawn"
    if brightness.std() < 2:
        return "all pictures get the same brightness: a number for each is to be drawn"
    if not (
        0.79 < contrast.min() < 0.9 < 1.1 < contrast.max() < 1.21
        and -21.5 < brightness.min() < -10 < 10 < brightness.max() < 21.5
    ):
        return "contrast lies between 0.8 and 1.2, about the picture's own mean; brightness between -20 and 20"
    if (rest - brightness[:, None]).abs().max() > 2:
        return "a picture has one contrast, one mean and one brightness: its three channels get the same"
    if torch.corrcoef(torch.stack([contrast, brightness]))[0, 1].abs() > 0.9:
        return "contrast and brightness are two numbers: draw each on its own"
    if (found[:, :, 0, 0] > 128).any() or (found[:, :, 0, 1] < 128).any():
        return "black turned bright, or white dark: cut off what is below 0 or above 255 before .byte()"
    if len(many) > len(few):
        return f"{len(few)} operations for 4 pictures, {len(many)} for {len(same)}: it still takes them one by one"
    return None


def _recoloured(contrasts: str = "each", brightnesses: str = "each", about_mean: bool = True, back: bool = True):
    def recoloured(torch, images):
        def drawn(which: str):
            return torch.rand(len(images) if which == "each" else 1, 1, 1, 1)

        images = images.float()
        mean = images.mean((1, 2, 3), keepdim=True) if about_mean else 0
        changed = (images - mean) * (0.8 + 0.4 * drawn(contrasts)) + mean + 40 * drawn(brightnesses) - 20
        return changed.clamp(0, 255).byte() if back else changed

    return recoloured


def _one_by_one(torch, images):
    return torch.cat([_recoloured()(torch, image[None]) for image in images])


RECOLOURED = Code(
    "torch.rand(len(images), 1, 1, 1) is a number a picture; mean((1, 2, 3), keepdim=True) is each picture's mean.",
    _try_recoloured,
    wrong={
        "it still takes them one by one": _one_by_one,
        "the same contrast": _recoloured(contrasts="one"),
        "the same brightness": _recoloured(brightnesses="one"),
        "about the picture's own mean": _recoloured(about_mean=False),
        "in whole numbers": _recoloured(back=False),
    },
)

DISK_MS = 100  # for a batch: what --fault loader of clinic/two_gpus.py waits
CORES, STEPS_TRIED, NEAR = 16, 400, 1.05


class BusyLoader(PretendLoader):
    """A loader whose workers each need DISK_MS for a batch, and fetch some batches ahead."""

    def steps_ms(self, step_ms: float) -> float:
        """What a step takes in the long run, if its batch had only to be there."""
        if not self.workers:
            return step_ms + DISK_MS
        ready, free, done, now = [], [0.0] * self.workers, [], 0.0
        for batch in range(STEPS_TRIED):
            asked = done[batch - self.ahead] if batch >= self.ahead else 0.0
            worker = batch % self.workers
            free[worker] = max(free[worker], asked) + DISK_MS
            ready.append(free[worker])
            now = max(now, ready[batch]) + step_ms
            done.append(now)
        half = STEPS_TRIED // 2
        return (done[-1] - done[half - 1]) / (STEPS_TRIED - half)


def _step_ms(report: Report) -> float:
    """What a step of patient 7 takes on the GPU that is in time: without its wait for the other."""
    found = collectives.communication(report)
    early = found[found["alone_ms"] == 0].iloc[0]
    waits_ms = min(early["exposed_ms"], early["waiting_ms"])
    return (budget(report, device=int(early["gpu"])).window.duration_ms - waits_ms) / _captured_steps(report)


def _captured_steps(report: Report) -> int:
    found = phases.phases(report)
    return int(found.loc[found["phase"] == "forward", "count"].max())


def _try_loader(make_loader: Callable) -> str | None:
    data, step_ms = object(), _step_ms(patients.report(7))
    loader = make_loader(BusyLoader, data)
    if not isinstance(loader, BusyLoader):
        return f"the loader is wanted, not {shown(loader)}"
    if loader.batch_size is not None:
        return "the data come as whole batches: the second argument stays None"
    if loader.workers > CORES // 2:
        return f"{loader.workers} workers: two such programs share {CORES} cores"
    if not loader.pinned:
        return "it no longer pins its batches, and that's a fault of its own"
    took_ms = loader.steps_ms(step_ms)
    if took_ms > NEAR * step_ms:
        return f"a step takes {took_ms:.0f} ms, because its batch comes no sooner; the GPU needs {step_ms:.0f}"
    return None


def _loader(workers: int, batch: int | None = None, **more) -> Callable:
    more = {"pin_memory": True, **more}
    return lambda DataLoader, data: DataLoader(data, batch, num_workers=workers, **more)


LOADER = Code(
    "The workers take turns. How many deliver a batch as often as a step wants one?",
    _try_loader,
    wrong={
        "a step takes 50 ms": _loader(2),
        "a step takes 25 ms": _loader(4, prefetch_factor=8),
        "64 workers: two such programs": _loader(64),
        "it no longer pins its batches": _loader(8, pin_memory=False),
        "the data come as whole batches": _loader(8, batch=32),
        "the loader is wanted": lambda DataLoader, data: data,
    },
)

TRIED = ((50257, 8193), (32000, 11008), (30522, 3073), (101, 64))
SPARE = 128  # what is more is waste


def _try_sizes(sizes: Callable) -> str | None:
    for asked in TRIED:
        given = each_of(sizes(*asked), "two sizes are")
        if len(given) != 2:
            return f"two sizes are wanted, not {len(given)}"
        for name, size, before in zip(("vocabulary", "hidden layer"), given, asked, strict=True):
            try:
                whole = number(size)
            except NotANumber:
                return f"the {name} is {shown(size)}: a size is a whole number"
            if not math.isclose(whole, round(whole), abs_tol=0):
                return f"the {name} is {whole:g}: a size is a whole number"
            if whole < before:
                return f"of a {name} of {before:,} only {whole:,.0f} are left: round up"
            if whole % 8:
                return f"a {name} of {before:,} becomes {whole:,.0f}, which is no multiple of 8"
            if whole - before >= SPARE:
                return f"a {name} of {before:,} becomes {whole:,.0f}: less will do"
    return None


def _sized(size: Callable[[int], object], other: Callable[[int], object] | None = None) -> Callable:
    return lambda vocabulary, hidden: (size(vocabulary), (other or size)(hidden))


def _up(size: int, unit: int = 8) -> int:
    return -(-size // unit) * unit


SIZES = Code(
    "Divide, round up, multiply: -(-size // 8) * 8.",
    _try_sizes,
    wrong={
        "which is no multiple of 8": _sized(lambda size: size),
        "a hidden layer of 8,193": _sized(_up, lambda size: size),
        "only": _sized(lambda size: size // 8 * 8),
        "less will do": _sized(lambda size: size // 8 * 8 + 128),
        "a size is a whole number": _sized(lambda size: size / 8 * 8 + 0.5),
        "two sizes are wanted": lambda vocabulary, hidden: _up(vocabulary),
    },
)

MORE: Mapping[int, tuple] = {  # patient → what is asked beside the cause
    3: (TENSOR_CORES_MS, PRECISION),
    5: (OPTIMIZER_MS, OPTIMIZER),
    6: (IDLE_MS, RECOLOURED),
    7: (LATE_GPU, LOADER),
    8: (FETCHED,),
    10: (ALIGN_MS, SIZES),
}
EXERCISES = {"20.2.1": NORMS} | {
    f"20.{patient}.{place}": one
    for patient in patients.numbers()
    if patient not in patients.EXAMINED
    for place, one in enumerate((_cause(patient), *MORE.get(patient, ())), 1)
}
