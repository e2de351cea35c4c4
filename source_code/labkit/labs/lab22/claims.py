"""What lab 22 claims: what sharding leaves on a rank, what it moves, and whose CPU is late where work is little."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from labkit.checks import Claim
from labkit.display.spread import Spread
from labkit.labs.lab22 import measured
from labkit.labs.lab22.memory import Network, Way
from labkit.subjects.scaling.readings import ON_CPU, gained
from stepbudget.ask.ranks import Ranks


def explained(parts: Mapping[str, float]) -> Iterator[Claim | str]:
    """What FSDP's rank holds less than DDP's, taken to pieces; ``parts``: of ``difference``."""
    off = abs(parts["all that"] / parts["measured"] - 1)
    yield Claim(
        "three items on paper and the activations explain the difference to a tenth", off < 0.1, off,
        because="another version of PyTorch frees gradients, or copies weights, at another time",
        so="torch.cuda.memory._record_memory_history() shows what is there at the fullest moment",
    )  # fmt: skip


def fits_only_shared_out(wide: pd.DataFrame, network: Network) -> Iterator[Claim | str]:
    """The wide network, by FSDP and by DDP, a row each, as deep as ``network``: the two moments, and what fits."""
    shared, peak = wide.iloc[0], wide["peak"].max()
    large = Network.of(int(shared.width), network.depth, int(shared.weights))
    paper = Way("fsdp", 2).moments(large, shared.forward - shared.before)
    for when, size in paper.items():
        yield f"On paper, as the backward pass {when}: {size / 1e9:.1f} GB."
    near = abs(max(paper.values()) / peak - 1) < 0.05
    yield Claim("the fuller one is what was measured, to a twentieth", near, peak)
    yield Claim("by DDP it ran out of memory, as recorded", wide["fits"].tolist() == [True, False])


def messages_are_blocks(moved: pd.DataFrame, network: Network) -> Iterator[Claim | str]:
    """The largest messages of a step, and how many there are; ``moved``: of ``measured.moved``."""
    gathered, scattered = (
        moved[moved["function"] == function].sort_values("bytes").iloc[-1]
        for function in ("AllGather", "ReduceScatter")
    )
    yield Claim(
        "the report's messages are a block's weights, two bytes and four",
        (gathered.bytes, scattered.bytes) == (2 * network.block, 4 * network.block),
    )
    yield Claim("each block is gathered twice a step", bool(gathered["count"] == 2 * network.depth))


def ddp_is_faster(runs: pd.DataFrame, by_fsdp: Spread) -> Iterator[Claim | str]:
    """The batch of one GPU shared out between two: what DDP gains, by the ``runs``, and what FSDP does."""
    by_ddp, by_fsdp = gained(runs, "text_ddp", "strong", 2).median, by_fsdp.median
    yield Claim(
        "shared out, the batch of one GPU is faster by DDP than by FSDP", by_ddp > by_fsdp, (by_ddp, by_fsdp),
        because="a faster CPU keeps ahead of the GPU also where a step is short",
        so="FSDP costs little here: see how much of the transfer is hidden",
    )  # fmt: skip


def cpu_is_late(pair: Ranks) -> Iterator[Claim | str]:
    """Both ranks wait for the one that waits least: for its CPU, rather than for bytes."""
    own = measured.overlap(pair).groupby("rank")[["waiting_ms", "transfer_ms"]].sum()  # of a step
    late, *_, other = sorted(pair.ranks, key=lambda rank: own["waiting_ms"][rank.number])
    cpu_ms = sum(late.budget.ms[cause] for cause in ON_CPU) / measured.steps(pair)
    move_ms = float(own["transfer_ms"][late.number])
    yield f"Rank {late.number}, a step: its CPU behind {cpu_ms:.1f} ms, transfer {move_ms:.1f} ms."
    longer = other.budget.ms["tensor_core_kernels"] / late.budget.ms["tensor_core_kernels"]
    yield f"same work: rank {other.number}'s Tensor Core kernels take {longer:.2f}× rank {late.number}'s"
    yield Claim(
        "the late rank's GPU idles for its own CPU over three times as long as weights travel",
        cpu_ms > 3 * move_ms,
        (cpu_ms, move_ms),
        because="the CPU is faster, or the link between the GPUs slower (PCIe in place of NVLink)",
        so="the transfer is a larger part of your step: prefetching can hide it",
    )


def full_batches_scale(runs: pd.DataFrame) -> Iterator[Claim | str]:
    """What FSDP on two GPUs gains where each has the batch of one; ``runs``: ``scaling.frame``."""
    weak = gained(runs, "text_fsdp", "weak", 2).median
    yield Claim(
        "with full batches, FSDP on two keeps over nine tenths of two single GPUs", weak > 1.8, weak,
        because="the link is slower, and a block's kernels too short to hide its messages",
        so="gather more ahead (--prefetch 2), or give each GPU more samples",
    )  # fmt: skip


def large_steps_hide_it(wider: pd.DataFrame) -> Iterator[Claim | str]:
    """The wider network, a row a way: DDP, FSDP, FSDP kept, with none and with two blocks fetched ahead."""
    ddp, fsdp, kept, none, two = (wider.iloc[at] for at in range(5))
    yield Claim("as recorded, FSDP's median step is shorter than DDP's", bool(fsdp.step_ms < ddp.step_ms))
    saved, more = fsdp.step_ms - kept.step_ms, (kept.peak - fsdp.peak) / 1e9
    vary = fsdp.high_ms - fsdp.low_ms
    yield f"a pass less: {saved:.0f} ms of {fsdp.step_ms:.0f}, and {more:.1f} GB more"
    yield f"but steps of one way vary by {vary:.0f} ms"
    apart = max(abs(one.step_ms - fsdp.step_ms) for one in (none, two))
    yield f"none or two blocks fetched ahead: {apart:.1f} ms apart, less than steps vary"
    yield Claim("within a way, steps vary by more", bool(apart < vary))
