"""The exercises of the last lab: a script's trouble in a word, what an optimizer gains at most, two loops to write.

The loops run on the CPU, under a pretended GPU and profiler (labkit.pretend.profiler).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace

from labkit.display.pieces import part
from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.numbers import Quantity, shown
from labkit.paths import SOURCE_CODE
from labkit.pretend.profiler import LAUNCH_MS, Cuda
from labkit.subjects.bounds import row_ms, whole_ms
from stepbudget.ask import phases

# The second script, as it was

TROUBLE = Choice(
    READ,
    "sb.budget says that the GPU is busy; sb.kernels says with what, and whether on Tensor Cores.",
    right=lambda: "precision",
    wrong={
        "loader": "then 'waiting for the loader' would be large: two workers are enough for such small samples",
        "copies": "a batch is only a few kilobytes: see the row 'copies'",
        "waiting": "true, the loss is read in each step; but while the program waits, the GPU works",
        "launches": "then the GPU would find its queue empty again and again, but it is busy nearly all the time",
        "cpu work": "then the GPU would be idle while the CPU computes, but it is busy nearly all the time",
        "sizes": "then kernels for badly aligned memory would run on the Tensor Cores: do these run there?",
        "debugging": "then each step would run something that training never needs: what are the longest kernels?",
        "healthy": "the GPU is busy, but with products that could be several times as fast",
    },
)


def _optimizer(column: str) -> Quantity:
    return Quantity(lambda report: phases.phases(report).set_index("phase").loc["optimizer", column])


STEPS = _optimizer("count")
CPU_MS, GPU_MS = (_optimizer(column) / STEPS for column in ("cpu_ms", "gpu_ms"))  # of one step
OPTIMIZER_MS = Number(
    BOUND,
    "In its row of sb.phases, add the CPU's time and the GPU's. The report holds ten steps: take one.",
    right=CPU_MS + GPU_MS,
    wrong={
        "that is all captured steps: one step is asked for": STEPS * (CPU_MS + GPU_MS),
        "that is the CPU's time for it: its kernels on the GPU could go, too": CPU_MS,
        "those are its kernels: the CPU's time for them could go, too": GPU_MS,
        "that is the budget's row: only the GPU's waits between launches": row_ms("optimizer") / STEPS,
        "that is a whole step: forward and backward stay": whole_ms / STEPS,
    },
)

# Loops, run under a pretended GPU

KERNEL_MS, NEAR_MS = 1.5 * LAUNCH_MS, 1e-6  # what a kernel takes: longer than its launch, so the GPU falls behind
KERNELS, FIRST, CAPTURED = 4, 3, 5  # of one step; steps before the capture, and in it
BATCHES = 40
TEMPLATE = part((SOURCE_CODE / "examples" / "template.py").read_text(encoding="utf-8"), "watched")
WINDOW, PHASES = "training", ("forward", "backward", "optimizer")


def template(cuda: Cuda) -> Callable:
    """The template's function, on a pretended GPU."""
    names = {"torch": SimpleNamespace(cuda=cuda)}
    exec(compile(TEMPLATE, "template.py", "exec"), names)
    return names["watched"]


class _Training:
    """A model, its loss and its optimizer, which keep the order of what is called."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda, self.calls, self.step_number = cuda, [], 0
        self.zeroed: list[int] = []  # how many calls came before each zero_grad

    def model(self, batch: object) -> _Training:
        self._called("forward", batch)
        return self

    def backward(self) -> None:
        self._called("backward")

    def step(self) -> None:
        self._called("optimizer")
        self.step_number += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing to do on a pretended GPU, but to note when."""
        self.zeroed.append(len(self.calls))

    def _called(self, phase: str, batch: object = None) -> None:
        self.calls.append((phase, batch, tuple(name for name, _ in self.cuda.open)))
        self.cuda.work(KERNEL_MS, self.step_number)


def _try_pasted(train: Callable) -> str | None:
    cuda = Cuda()
    own = _Training(cuda)
    asked: list[int] = []
    watched = template(cuda)
    train(_loader(asked, own), own.model, own, lambda loader, *_, **__: watched(loader, FIRST, CAPTURED), cuda.nvtx)
    trained = [batch for phase, batch, _ in own.calls if phase == "forward"]
    if cuda.captured is None:
        return "the profiler saw nothing: which loader does the loop go through?"
    if trained != list(range(FIRST + CAPTURED)):
        return f"it trains on the batches {trained}: train on each that the wrapped loader yields, once"
    if [phase for phase, *_ in own.calls] != [*PHASES] * len(trained):
        return "each batch takes model, backward and step, once and in this order: only names are to be added"
    if cuda.open:
        return f"the range '{cuda.open[-1][0]}' is never closed: 'with' closes it, whatever happens"
    if max(asked, default=0) > 1:
        return "batches are fetched too early: the loop has to fetch them one by one"
    for phase, _, names in own.calls:
        *_, inner = "none", *(name for name in names if name != WINDOW)
        if inner == phase and (other := {*names} & {*PHASES} - {phase}):
            return f"the {phase} phase runs in the range '{other.pop()}', too: close that first"
        if inner != phase:
            return f"the {phase} phase runs in the range '{inner}': give it a range of its own, '{phase}'"
    if len(own.zeroed) != len(trained) or any(calls % len(PHASES) for calls in own.zeroed):
        return "the gradients are set to zero once a step, not between backward and step"
    return None


def _loader(asked: list[int], own: _Training) -> Iterator[int]:
    """Batches 0, 1, …; notes how many were asked for beyond those trained on."""
    for batch in range(BATCHES):
        asked.append(batch - own.step_number)
        yield batch


def _pasted(wrapped: bool = True, first: Callable = iter, names: tuple[str, str, str] = PHASES) -> Callable:
    def train(loader, model, optimizer, watched, nvtx):
        for batch in first(watched(loader) if wrapped else loader):
            with nvtx.range(names[0]):
                loss = model(batch)
            with nvtx.range(names[1]):
                loss.backward()
            with nvtx.range(names[2]):
                optimizer.step()
                optimizer.zero_grad()

    return train


def _bare(loader, model, optimizer, watched, nvtx):
    for batch in watched(loader):
        model(batch).backward()
        optimizer.step()


def _never_closed(loader, model, optimizer, watched, nvtx):
    for batch in watched(loader):
        nvtx.range_push("forward")
        loss = model(batch)
        nvtx.range_push("backward")
        loss.backward()
        nvtx.range_push("optimizer")
        optimizer.step()


def _one_range(loader, model, optimizer, watched, nvtx):
    for batch in watched(loader):
        with nvtx.range("forward"):
            model(batch).backward()
        with nvtx.range("optimizer"):
            optimizer.step()


def _every_other(loader, model, optimizer, watched, nvtx):
    batches = watched(loader)
    for _ in batches:
        _pasted()([next(batches, None)], model, optimizer, lambda own: own, nvtx)


PASTED = Code(
    "Two changes: 'for batch in watched(loader)', and a 'with nvtx.range(…)' around each of the three.",
    _try_pasted,
    wrong={
        "the profiler saw nothing": _pasted(wrapped=False),
        "in the range 'none'": _bare,
        "in the range 'forward'": _one_range,
        "is never closed": _never_closed,
        "batches are fetched too early": _pasted(first=lambda batches: iter(list(batches))),
        "give it a range of its own, 'optimizer'": _pasted(names=("forward", "backward", "step")),
        "yields, once": _every_other,
    },
)


def _try_bracket(watched: Callable) -> str | None:
    cuda, trained = Cuda(), []
    waits_before = 0
    given = watched(iter(range(BATCHES)), cuda, FIRST, CAPTURED)
    if not isinstance(given, Iterable):
        return f"it has to yield the loader's batches, one by one, but it returns {shown(given)}"
    for step, batch in enumerate(given):
        trained.append(batch)
        if any(name != WINDOW for name, _ in cuda.open):
            return f"the range '{cuda.open[-1][0]}' is still open while the batch is trained on: close it before yield"
        for _ in range(KERNELS):
            cuda.work(KERNEL_MS, step)
        waits_before = len(cuda.waits)
    if cuda.captured is None:
        return "the profiler is never stopped" if trained else "it yields no batch"
    if trained != list(range(FIRST + CAPTURED)):
        return f"it yields {len(trained)} batches, not {FIRST} before the capture and {CAPTURED} in it"
    if waits_before > 1:
        return f"the program waits {waits_before} times while it trains, which it would not without a profiler"
    steps = [one.step for one in cuda.seen]
    if 0 in steps:
        return f"the report begins with the first step: leave out the {FIRST} steps of warm-up"
    if foreign := sum(step < FIRST for step in steps):
        return f"{foreign} warm-up kernels are in the report: wait for the GPU before the profiler starts"
    if len(steps) < KERNELS * CAPTURED:
        return f"{len(steps)} of {KERNELS * CAPTURED} kernels are in the report: the GPU is still at work when it ends"
    training = [one for one in cuda.ranges if one.name == WINDOW]
    if not training:
        return "the report has no range 'training', the window that every table covers"
    if training[0].end < max(one.end for one in cuda.seen) - NEAR_MS:
        return "the range 'training' ends while the GPU is at work: wait first, then close it"
    if sum(one.name != WINDOW and WINDOW in one.within for one in cuda.ranges) < CAPTURED:
        return "the loader's time has no name: put next(…) in a range 'data'"
    return _try_short(watched)


def _try_short(watched: Callable) -> str | None:
    """A loader that ends within the capture."""
    cuda, trained = Cuda(), []
    for step, batch in enumerate(watched(iter(range(FIRST + 1)), cuda, FIRST, CAPTURED)):
        trained.append(batch)
        for _ in range(KERNELS):
            cuda.work(KERNEL_MS, step)
    if len(trained) != FIRST + 1:
        return f"from a loader with {FIRST + 1} batches it yields {len(trained)}"
    if cuda.captured is None or cuda.open:
        return "a loader that ends early leaves the bracket open: leave the loop, not the function"
    if len(cuda.seen) < KERNELS:
        return f"where the loader ends early, {len(cuda.seen)} of {KERNELS} kernels are in the report: wait there, too"
    return None


def _watched(
    before: bool = True,
    after: bool = True,
    late: bool = False,
    data: bool = True,
    always: bool = False,
    at_once: bool = False,
    leave: bool = False,
    window: bool = True,
) -> Callable:
    """The bracket, with what may be wrong with it: waits that are missing, or come late, and the rest."""

    def watched(loader, cuda, skip=10, steps=10):
        batches = iter(loader)
        for step in range(skip + steps):
            if step == (0 if at_once else skip):
                if before:
                    cuda.synchronize()
                cuda.profiler.start()
                if window:
                    cuda.nvtx.range_push("training")
            if always:
                cuda.synchronize()
            if data:
                with cuda.nvtx.range("data"):
                    batch = next(batches, None)
            else:
                batch = next(batches, None)
            if batch is None and leave:
                return
            if batch is None:
                break
            yield batch
        if after and not late:
            cuda.synchronize()
        cuda.nvtx.range_pop()
        if after and late:
            cuda.synchronize()
        cuda.profiler.stop()

    return watched


BRACKET = Code(
    "cuda.synchronize() waits for the GPU: where could kernels of other steps slip in, or the last be cut off?",
    _try_bracket,
    wrong={
        "of 20 kernels are in the report": _watched(after=False),
        "warm-up kernels are in the report": _watched(before=False),
        "ends while the GPU is at work": _watched(late=True),
        "the loader's time has no name": _watched(data=False),
        "times while it trains": _watched(always=True),
        "the report begins with the first step": _watched(at_once=True),
        "leave the loop, not the function": _watched(leave=True),
        "has no range 'training'": _watched(window=False),
        "is never stopped": lambda loader, cuda, skip, steps: iter(range(skip + steps)),
    },
)

EXERCISES = {"25.1": TROUBLE, "25.2": OPTIMIZER_MS, "25.3": PASTED, "25.4": BRACKET}
