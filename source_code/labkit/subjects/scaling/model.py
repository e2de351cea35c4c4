"""How long does a step take on n GPUs, on paper? Compute, and what of the communication is not hidden behind it.

    step(n) = the longer of   GPU:  work(samples a GPU) of the slowest rank + slowed · hidden(n) + exposed(n)
                              host: CPU's code of a step + loader's work for a GPU's samples

*Work* goes with the samples a GPU has; the optimizer's does not, as it goes with the weights (a share of them, where
these are sharded). A third of the rest is the forward pass, two thirds the backward pass, which has two products where
the forward has one (Kaplan et al., "Scaling laws for neural language models", 2020, section 2.1).

*Exposed*: DDP averages its buckets one after another while the backward pass makes the next; the last one is ready
when the pass ends, so that it is never hidden (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3). FSDP
gathers each block in the forward pass and again in the backward pass, and reduce-scatters its gradients there (Zhao et
al., "PyTorch FSDP", VLDB 2023); what lies outside of the blocks it gathers once. What comes before the first block's
forward pass, and the last reduce-scatter, have nothing to hide behind. If k messages are ready one after another at
equal distances, the others are hidden as far as they fit into (k − 1)/k of the pass.

*Hidden* is not free: kernels run slower beside a collective, which takes multiprocessors and bandwidth. And a step
waits for the *slowest* rank: of n equal GPUs whose work varies a little, the longest is later the more there are. Both
are measured in the ranks' reports, ``scaling.beside``.

*Host*: the CPU's code of a step is the same for few samples and for many. With another rank beside it, it takes longer:
they share what a host has, and at each collective all wait for the slower one. A loader has to make a whole batch
before an epoch's first step, which goes with a GPU's samples; later ones are made meanwhile.

What is not in it: kernels that fill a GPU badly on few samples; hosts and links shared with others; more than two
ranks on a host's CPUs; ranks that fail, and batches too large to train with.

Where the numbers come from: see ``jobs`` and ``network``. Where a network's steps on two GPUs are scored, none of its
own timed runs there is among them: links, and what a second rank costs the CPU, are then the other network's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from labkit.errors import LabError, NotRecorded
from labkit.subjects.scaling import readings
from labkit.subjects.scaling.beside import latest
from labkit.subjects.scaling.collectives import Cost, Network, fitted

FORWARD = 1 / 3  # of the work that goes with the samples
FP32 = 4  # bytes
OTHER = {"digits": "text_fsdp", "transformer": "ddp_on_gpu"}  # network → whose collectives its score may rest on
AHEAD = (4, 8, 64, 1024)
SCALINGS = ("strong", "weak")


@dataclass(frozen=True)
class Job:
    """A program's step, as one GPU and the ranks' reports tell it. Seconds, bytes, samples."""

    program: str
    batch: int  # of one GPU, to which the times belong
    work_s: float  # of the GPU
    fixed_s: float  # of it, what does not go with the samples: the optimizer's
    cpu_s: float  # of the host's time, what does not go with the samples
    loader_s: float = 0.0  # and what does
    buckets: tuple[int, ...] = ()  # of gradients that DDP averages, the last one last
    gathered: tuple[int, ...] = ()  # FSDP: of each block's weights
    scattered: tuple[int, ...] = ()  # and of its gradients
    samples: int | None = None  # of an epoch, where there is one

    @property
    def sharded(self) -> bool:
        return bool(self.gathered)


@dataclass(frozen=True)
class Step:
    """A step on n GPUs, and what of it binds. Seconds; ``share``: samples a GPU."""

    job: Job
    scaling: str
    n: int
    share: float
    work_s: float
    communication: Cost
    exposed: Cost
    beside_s: float  # by which kernels take longer beside what is hidden
    cpu_s: float
    loader_s: float

    @property
    def gpu_s(self) -> float:
        return self.work_s + self.beside_s + self.exposed.total_s

    @property
    def host_s(self) -> float:
        return self.cpu_s + self.loader_s

    @property
    def is_possible(self) -> bool:
        """Has each GPU a sample, and an epoch a step?"""
        return self.share >= 1 and self.n * self.share <= (self.job.samples or float("inf"))

    @property
    def step_s(self) -> float:
        return max(self.gpu_s, self.host_s)

    @property
    def binds(self) -> str:
        """What takes longest: the CPU, the loader, or a part of the GPU's; batch: too few samples for so many."""
        if not self.is_possible:
            return "batch"
        if self.host_s > self.gpu_s:
            return "loader" if self.loader_s > self.cpu_s else "CPU"
        return self.binds_gpu

    @property
    def binds_gpu(self) -> str:
        """The longest of the GPU's parts: what would bind were the host no limit (CUDA graphs, data on the GPU)."""
        parts = {
            "compute": self.work_s + self.beside_s,
            "latency": self.exposed.latency_s,
            "bandwidth": self.exposed.transfer_s,
        }
        return max(parts, key=parts.__getitem__)


def step(job: Job, scaling: str, n: int, network: Network) -> Step:
    """A step of ``job`` on n GPUs; the batch of one GPU shared out among them (strong), or for each (weak)."""
    if scaling not in SCALINGS or n < 1:
        raise LabError(f"{scaling} on {n}: scaling is strong or weak, on one GPU at least.")
    share = job.batch / n if scaling == "strong" else float(job.batch)
    passes_s = (job.work_s - job.fixed_s) * share / job.batch
    fixed_s = job.fixed_s / n if job.sharded else job.fixed_s
    forward_s, backward_s = FORWARD * passes_s, (1 - FORWARD) * passes_s
    costs = {
        what: [network.cost(function, size, n) for size in sizes]
        for what, function, sizes in (
            ("buckets", "AllReduce", job.buckets),
            ("gathered", "AllGather", job.gathered),
            ("scattered", "ReduceScatter", job.scattered),
        )
    }
    there, back = costs["gathered"], [*costs["gathered"][1:], *costs["scattered"], *costs["buckets"]]
    exposed = exposure(there, there[:2], forward_s) + exposure(back, back[-1:], backward_s)
    all_of_it = _sum([*there, *back])
    beside_s = network.slowed * max(0.0, all_of_it.total_s - exposed.total_s)
    work_s = (passes_s + fixed_s) * (1 + network.spread * latest(n))
    return Step(
        job, scaling, n, share, work_s, all_of_it, exposed, beside_s,
        job.cpu_s * (network.beside if n > 1 else 1), job.loader_s * share / job.batch,
    )  # fmt: skip


def exposure(costs: list[Cost], edge: list[Cost], over_s: float) -> Cost:
    """What is not hidden of messages that are ready one after another while a pass of ``over_s`` seconds runs.

    ``edge``: those that have nothing to hide behind.
    """
    total, least = _sum(costs), _sum(edge)
    if not total.total_s:
        return Cost()
    rest_s = total.total_s - over_s * (1 - 1 / len(costs))
    return least if least.total_s >= rest_s else total.times(rest_s / total.total_s)


def _sum(costs: Iterable[Cost]) -> Cost:
    return sum(costs, Cost())


def network(where: Path | None = None, programs: Iterable[str] = tuple(OTHER.values())) -> Network:
    """A host as these programs know it: their collectives in the reports of two ranks, and their steps on two GPUs.

    The link is fitted to the former; the latter, which the CPU binds, against its code on one GPU say what a second
    rank costs it: the mean over the programs. So are what a collective costs the kernels beside it, and how the ranks'
    work varies.
    """
    programs = tuple(programs)
    known_of = [readings.profiled(program, 2, where) for program in programs]
    found = pd.concat([one.messages for one in known_of])
    runs, known = readings.frame(readings.records(where)), jobs(where)
    two = runs[(runs["ranks"] == 2) & (runs["scaling"] == "strong")].groupby("program")["step_ms"].median() / 1e3
    beside = statistics.fmean(float(two[program]) / known[program].cpu_s for program in programs)
    slowed, spread = (statistics.fmean(getattr(one, name) for one in known_of) for name in ("slowed", "spread"))
    return Network(fitted(found), beside=beside, slowed=slowed, spread=spread)


def jobs(where: Path | None = None) -> dict[str, Job]:
    """Each program as a job, from its runs on one GPU, with all samples and with few, and the reports of two ranks.

    Medians over the rounds. GPU's work: of the transformer its step, which the GPU binds. Of the digits their kernels
    in the report of two ranks, less what collectives slowed them, for half the samples each; in a CUDA graph, a line
    through both runs of the ladder's step. The optimizer's: its kernels in the reports, of half the weights under
    FSDP.

    CPU: the step with few samples, which the CPU binds. With the loader, an epoch is so many steps and the making of
    one batch: both are told by the epochs with all samples and with few. Of a graph: nothing, as it is launched once.
    """
    runs, rows = _on_one(readings.records(where))
    seconds = runs.groupby(["program", "scaling"])["step_ms"].median() / 1e3
    batch = runs[runs["scaling"] == "strong"].groupby("program")["batch"].first()
    if gone := [
        program.label
        for name, program in readings.PROGRAMS.items()
        if not program.apart and not {(name, "strong"), (name, readings.FEW)} <= {*seconds.index}
    ]:
        raise NotRecorded(f"not recorded on one GPU, from which the model starts: {'; '.join(gone)}.")
    digits, text = readings.profiled("ddp_on_gpu", 2, where), readings.profiled("text_fsdp", 2, where)
    fixed_s, weights_s = digits.optimizer_ms / 1e3, text.optimizer_ms / 1e3 * text.ranks
    of_digits = {"work_s": (digits.alone_ms / 1e3 - fixed_s) * digits.ranks + fixed_s, "fixed_s": fixed_s}
    loaded = loading(runs[runs["program"] == "ddp"], rows["ddp"]["train_samples"]).median()
    found = {
        "ddp_on_gpu": of_digits,
        "ddp": of_digits | {"cpu_s": loaded["cpu_s"], "loader_s": loaded["loader_s"]},
        "text_ddp": {"work_s": seconds["text_ddp", "strong"], "fixed_s": weights_s},
        "text_fsdp": {"work_s": seconds["text_fsdp", "strong"], "fixed_s": weights_s},
    }
    found["text_fsdp"] |= dict(zip(("gathered", "scattered"), sharded(rows["text_fsdp"]), strict=True))
    jobs = {}
    for name, own in found.items():
        usual = {"cpu_s": seconds[name, readings.FEW], "samples": rows[name].get("train_samples")}
        jobs[name] = Job(name, int(batch[name]), buckets=_buckets(rows[name]), **usual | own)
    return jobs | _graph(where)


def _on_one(found: readings.Records) -> tuple[pd.DataFrame, dict[str, dict]]:
    """Runs on one GPU, and a row of each program's records on any number of GPUs."""
    runs = readings.frame(found)
    rows = {readings.program_of(row): row for record in found.values() for row in record["rows"]}
    return runs[runs["ranks"] == 1], rows


def _graph(where: Path | None) -> dict[str, Job]:
    """The job of the digits in a CUDA graph; none where it was not recorded."""
    try:
        runs, rows = _on_one(readings.graphs(where))
    except NotRecorded:
        return {}
    own, row = runs[runs["program"] == "ddp_graph"].groupby("scaling"), rows["ddp_graph"]
    step_s, batch = own["step_ms"].median() / 1e3, own["batch"].first()
    part = batch[readings.FEW] / batch[readings.ALONE]
    fixed_s = max(0.0, (step_s[readings.FEW] - part * step_s[readings.ALONE]) / (1 - part))
    work = {"work_s": float(step_s[readings.ALONE]), "fixed_s": float(fixed_s), "cpu_s": 0.0}
    job = Job("ddp_graph", int(batch[readings.ALONE]), **work, buckets=_buckets(row), samples=row["train_samples"])
    return {job.program: job}


def _buckets(row: dict) -> tuple[int, ...]:
    """Bytes of the buckets that DDP averages; none of FSDP."""
    sizes = row.get("buckets", {}).get("rebuilt_bucket_sizes", "")
    return tuple(int(size) for size in sizes.split(", ") if size)


def loading(runs: pd.DataFrame, samples: int) -> pd.DataFrame:
    """What a step with a loader takes of the host, a row a round: ``cpu_s``, and ``loader_s`` with all samples.

    An epoch of e seconds and k steps of b samples: e = k·cpu + b·c, with c the seconds of a sample in a loader's
    process. Two batches tell both. ``runs``: on one GPU, with all samples and with few; rounds that have both.
    """
    scaled = {scaling: own.set_index("round").astype({"epoch_ms": float}) for scaling, own in runs.groupby("scaling")}
    both = scaled["strong"].merge(scaled[readings.FEW], left_index=True, right_index=True, suffixes=("", "_few"))
    steps = readings.steps(samples, both["batch"])
    steps_few = readings.steps(samples, both["batch_few"])
    times = both["batch"] / both["batch_few"]
    cpu_s = (times * both["epoch_ms_few"] - both["epoch_ms"]) / (times * steps_few - steps) / 1e3
    return pd.DataFrame({"cpu_s": cpu_s, "loader_s": both["epoch_ms"] / 1e3 / steps - cpu_s})


def sharded(row: dict) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes that FSDP gathers and reduce-scatters of each part: what lies outside of the blocks, then each block.

    A block of width w has 12·w² weights in its four linear layers and 13·w in their biases and the two norms.
    """
    args = row["arguments"]
    block = 12 * args["width"] ** 2 + 13 * args["width"]
    parts = [row["parameters"] - args["depth"] * block, *[block] * args["depth"]]
    narrow = 2 if args["param_dtype"] == "bfloat16" else FP32
    return tuple(narrow * part for part in parts), tuple(FP32 * part for part in reversed(parts))


def scored(where: Path | None = None) -> pd.DataFrame:
    """Predicted against measured on two GPUs, a row a program and scaling; links and CPUs are the other network's.

    Columns: ``program``, ``scaling``, ``ranks``, ``predicted_ms``, ``gpu_ms`` (were the host no limit), ``binds``,
    ``measured_ms`` (median), ``low_ms``, ``high_ms`` (over the rounds), ``off_pct`` of the median.
    """
    runs, known = _runs(where), jobs(where)
    runs = runs[runs["scaling"].isin(SCALINGS)]
    links = {name: network(where, [other]) for name, other in OTHER.items()}
    said = []
    for program, scaling in runs.loc[runs["ranks"] == 2, ["program", "scaling"]].drop_duplicates().to_numpy():
        found = step(known[program], scaling, 2, links[readings.PROGRAMS[program].network])
        said.append((program, scaling, 2, 1e3 * found.step_s, 1e3 * found.gpu_s, found.binds))
    return _beside(said, runs)


def _runs(where: Path | None) -> pd.DataFrame:
    """All runs: round by round, and those of a graph."""
    runs = [readings.frame(readings.records(where))]
    with suppress(NotRecorded):
        graphs = readings.frame(readings.graphs(where))
        runs.append(graphs[graphs["program"].map(lambda program: readings.PROGRAMS[program].apart)])
    return pd.concat(runs, ignore_index=True)


def _beside(said: list[tuple], runs: pd.DataFrame) -> pd.DataFrame:
    keys = ["program", "scaling", "ranks"]
    found = runs.groupby(keys)["step_ms"].agg(measured_ms="median", low_ms="min", high_ms="max").reset_index()
    found = pd.DataFrame(said, columns=[*keys, "predicted_ms", "gpu_ms", "binds"]).merge(found, on=keys)
    return found.assign(off_pct=100 * (found["predicted_ms"].astype(float) / found["measured_ms"] - 1))


def ahead(sizes: Iterable[int] = (1, 2, *AHEAD), once: bool = False) -> list[Step]:
    """What the model says of each program, strong and weak, for so many GPUs; the links fitted to all collectives.

    ``once``: as if a collective's latency inside a host were paid once (``Network.once``). The loader's digits are
    recorded in strong scaling only, and so carried on.
    """
    links = network().once if once else network()
    return [
        step(job, scaling, n, links)
        for job in jobs().values()
        for scaling in SCALINGS
        if scaling == "strong" or not job.loader_s
        for n in sizes
    ]


def efficiency(found: Step, of_one: Step) -> float:
    """Samples a second of each GPU, as a share of what one alone does."""
    return found.share / found.step_s / (of_one.share / of_one.step_s)
