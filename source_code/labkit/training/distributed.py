"""One training run on several GPUs: a process a GPU, called a rank, started by torchrun.

    torchrun --standalone --nproc-per-node 2 source_code/main_ddp.py

Each rank runs the whole script on its share of every batch. Rank 0 speaks and writes the record, which holds what every
rank measured. Without torchrun the script is one rank, and does what a script of the ladder does.

Source of the environment variables: PyTorch, "torchrun (Elastic Launch)".
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit.errors import LabError, one_sentence
from labkit.training import cli, machine
from labkit.training.devices import pick_device
from labkit.training.run import Run

MOST_RANKS = 1_000  # places that an epoch's seeds have for ranks
PATIENCE_S = 300  # for which a rank waits at a collective for the others; PyTorch's own: 10 minutes, by gloo 30


def world_size() -> int:
    """How many ranks torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def parse_args(doc: str, workers: int | None = None, **more: object) -> argparse.Namespace:
    """The command line of all steps (``cli.parse_args``), and what only several GPUs need.

    ``batch_size`` stays the batch of all ranks together. ``workers`` is a rank's: by default its share of spare cores.
    """
    flags = _flags()
    if {"-h", "--help"} & set(sys.argv):
        flags.print_help()  # and the flags of all steps come after it
    own, sys.argv[1:] = flags.parse_known_args()
    if (own.per_gpu_batch is not None and own.per_gpu_batch < 1) or (own.bucket_mb is not None and own.bucket_mb <= 0):
        flags.error("--per-gpu-batch and --bucket-mb are numbers above 0")
    if own.patience <= 0:
        flags.error("--patience is a number above 0")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # ranks that share this machine's cores
    workers = max(1, cli.spare_cores() // here) if workers is None else workers
    args = cli.parse_args(doc, workers=workers, **more)
    vars(args).update(vars(own))
    if args.per_gpu_batch is not None:
        args.batch_size = args.per_gpu_batch * world_size()
    with one_sentence():
        if world_size() > MOST_RANKS:
            raise LabError(f"{world_size()} ranks, and an epoch has seeds for {MOST_RANKS:,}: dropout would repeat.")
        if args.batch_size % world_size():
            raise LabError(
                f"--batch-size {args.batch_size} is that of all GPUs together: {world_size()} do not divide it."
            )
        if args.resume and not args.checkpoint:
            raise LabError("--resume needs --checkpoint FILE: where the training stopped.")
    return args


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, usage="torchrun … %(prog)s [flags]")
    add = parser.add_argument_group("several GPUs").add_argument
    add("--per-gpu-batch", type=int, metavar="N", help="N samples a GPU and step: another experiment, not the recipe")
    add("--bucket-mb", type=float, metavar="MB", help="gradients averaged at once (default: 1 first, then 25)")
    add(
        "--patience",
        type=float,
        default=PATIENCE_S,
        metavar="S",
        help="seconds to wait for a rank (default: %(default)s)",
    )
    add("--checkpoint", metavar="FILE", help="keep the state of the training in FILE after each epoch")
    add("--resume", action="store_true", help="go on from --checkpoint, if it is there, to the same end")
    return parser


class Ranks:
    """The group of processes that train together: NCCL between GPUs, gloo between CPUs. ``leads``: is this rank 0?"""

    def __init__(self) -> None:
        self.rank, self.ranks = int(os.environ.get("RANK", "0")), world_size()
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self.leads = self.rank == 0

    def take_gpu(self, wanted: str) -> torch.device:
        """Each rank its own GPU, unless ``cpu`` is wanted; only rank 0 speaks from here on. SystemExit(2): no GPU."""
        if not self.leads:
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 – as long as the process lives
        with one_sentence():
            if wanted != "cpu" and machine.gpu_name():
                if self.local >= torch.cuda.device_count():
                    raise LabError(f"rank {self.rank} has no GPU: {torch.cuda.device_count()} are visible here.")
                torch.cuda.set_device(self.local)
            return pick_device(wanted)

    def join(self, device: torch.device, patience_s: float = PATIENCE_S) -> None:
        """Meet the other ranks, unless whoever runs this script in its own process has met them already.

        A collective for which one of them is missing longer than ``patience_s`` ends all; not one in a CUDA graph, of
        whose replays PyTorch knows nothing.
        """
        self.own = not dist.is_initialized()
        if not self.own:
            return
        gpu = {"backend": "nccl", "device_id": torch.device("cuda", self.local)}
        group = gpu if device.type == "cuda" else {"backend": "gloo"}
        store = self.store(patience_s)
        met = {"store": store, "rank": self.rank, "world_size": self.ranks} if store else {}
        dist.init_process_group(**group, **met, timeout=timedelta(seconds=patience_s))
        print(f"{self.ranks} rank{'s' * (self.ranks > 1)} by {dist.get_backend()}", flush=True)

    def store(self, patience_s: float) -> dist.Store | None:
        """Where the ranks tell each other their addresses, if not where ``init_process_group`` would look.

        torchrun keeps one store for all restarts, so a rank could find there the address of one that has died
        (pytorch issue 135712). Several machines count their restarts apart, so theirs stays shared.
        """
        said = os.environ.get
        if "WORLD_SIZE" not in os.environ:
            return dist.HashStore()
        restart, one_machine = int(said("TORCHELASTIC_RESTART_COUNT", "0")), said("LOCAL_WORLD_SIZE") == str(self.ranks)
        if not (restart and one_machine and said("TORCHELASTIC_USE_AGENT_STORE") == "True"):
            return None
        place, patience = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timedelta(seconds=patience_s)
        shared = dist.TCPStore(*place, is_master=False, timeout=patience)
        return dist.PrefixStore(f"restart {restart}", shared)

    def of_each(self, own: object) -> list:
        """What every rank has to say, in order of the ranks."""
        said: list = [None] * self.ranks
        dist.all_gather_object(said, own)
        return said

    def about(self) -> dict:
        """What the ranks' times depend on beside all else (``record.surroundings``); ``links`` as that function."""
        cuda = dist.get_backend() == "nccl"
        return {
            "ranks": self.ranks,
            "backend": dist.get_backend(),
            "omp_threads": torch.get_num_threads(),
            "gpus": torch.cuda.device_count(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
            "nccl_nvls": os.environ.get("NCCL_NVLS_ENABLE"),  # reductions inside the NVLink switch; null: not said
            "links": links() if cuda else None,
        }

    def leave(self) -> None:
        """Part from the other ranks, where ``join`` met them."""
        if self.own:
            dist.destroy_process_group()


class DistributedRun(Run):
    """One rank's part of a run; ``share``: how many samples of a batch are its own."""

    def __init__(self, args: argparse.Namespace, **more: bool) -> None:
        """``Run``, and its group of ranks. SystemExit(2) as ``Run``'s."""
        self.group = Ranks()
        self.rank, self.ranks = self.group.rank, self.group.ranks
        self.share = args.batch_size // self.ranks
        self._first_epoch, self._states = 1, {}
        self.group.take_gpu(args.device)
        if not self.group.leads:
            args.record = None
        super().__init__(args, **more)
        self.group.join(self.device, getattr(args, "patience", PATIENCE_S))
        print(f"{self.share} samples of each batch a rank", flush=True)

    def __exit__(self, kind, error, traceback) -> bool:
        """What ``Run`` does; each rank's seconds go into the record. A rank that failed leaves at once, as it is."""
        if error is None:
            measured: dict = {name: [epoch[name] for epoch in self.epoch_records] for name in ("training_s", "test_s")}
            measured["peak_memory_mb"] = torch.cuda.max_memory_allocated(self.device) / 1e6 if self.cuda else None
            self.extras |= self.group.about()
            self.extras["of_each_rank"] = self.group.of_each(measured)
        handled = super().__exit__(kind, error, traceback)
        if error is None:
            self.group.leave()
        return handled

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """As ``Run.timed``; all ranks begin together, also where one wrote a record or a profiler started meanwhile."""
        self.synchronize()
        dist.barrier()
        with super().timed(name):
            yield

    def kept(self, **states: torch.nn.Module | torch.optim.Optimizer | object) -> None:
        """Name what ``--checkpoint`` keeps (each has ``state_dict``), and with ``--resume`` put it back as it was.

        Rank 0 reads it for all; where nothing was kept yet, the training starts. There may be another number of ranks:
        each step has the samples that it would have had, in other shares. Only the dropout masks are others, then.
        """
        self._states = states
        if not self.args.resume:
            return
        read = [self._read() if self.group.leads else None]
        dist.broadcast_object_list(read)
        if held := read[0]:
            for name, state in states.items():
                state.load_state_dict(held[name])
            self._first_epoch = held["epoch"] + 1
            print(f"epoch {held['epoch']} was kept by {held['ranks']} rank(s); going on from there", flush=True)

    def _read(self) -> dict | None:
        """What was kept; None where nothing was."""
        with one_sentence():
            try:
                return torch.load(self.args.checkpoint, map_location="cpu", weights_only=True)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise LabError(f"cannot resume from {self.args.checkpoint}: {error.strerror}.") from error
            except pickle.UnpicklingError as error:
                raise LabError(f"{self.args.checkpoint} is damaged, or holds more than weights: not read.") from error

    def epochs(self) -> Iterator[int]:
        """The epochs that are left, as ``Run.epochs``; after each the state is kept where ``--checkpoint`` says.

        Each epoch begins with random numbers of its own on each rank (dropout masks must differ from rank to rank), so
        that one that is resumed draws what it would have drawn.
        """
        for epoch in super().epochs():
            if epoch < self._first_epoch:
                self.epoch_records.pop()
                continue
            torch.manual_seed((self.args.seed * 1_000 + epoch) * 1_000 + self.rank)
            yield epoch
            if self.group.leads and self.args.checkpoint:
                self._keep(epoch)

    def generator(self) -> torch.Generator:
        """Where a loader of this rank draws its workers' seeds: others than another rank's, the same in another run.

        An unseeded one would give all ranks' workers the same: they would augment alike.
        """
        return torch.Generator().manual_seed(self.args.seed * MOST_RANKS + self.rank)

    def own(self, batch: torch.Tensor) -> torch.Tensor:
        """This rank's share of a batch's numbers, as long as every other rank's; what does not divide is left out."""
        return batch[: len(batch) // self.ranks * self.ranks][self.rank :: self.ranks]

    def total(self, *values: torch.Tensor | float) -> list[float]:
        """The sums of these numbers over all ranks."""
        numbers = torch.tensor([float(value) for value in values], dtype=torch.float64, device=self.device)
        dist.all_reduce(numbers)
        return numbers.tolist()

    def _keep(self, epoch: int) -> None:
        file = Path(self.args.checkpoint)
        draft = file.with_name(f"{file.name}.tmp")
        states = {name: state.state_dict() for name, state in self._states.items()}
        torch.save(states | {"epoch": epoch, "ranks": self.ranks}, draft)
        draft.replace(file)


# What DDP itself says of its buckets; times in ns, of the steps that it looked at, which are few.
SAID_BY_DDP = (
    "gradient_as_bucket_view", "bucket_cap_bytes", "bucket_sizes", "rebuilt_bucket_sizes", "static_graph",
    "avg_backward_compute_time", "avg_backward_comm_time", "avg_backward_compute_comm_overlap_time",
)  # fmt: skip


def times(wanted: int, samples: int, batch: int) -> int:
    """How often some batches of an epoch are gone through until so many whole steps are taken."""
    return -(-wanted // max(1, min(wanted, samples // batch)))


def buckets(parallel: DistributedDataParallel) -> dict:
    """What DDP says of its buckets: their bytes, how long their averaging took and how much of that was hidden."""
    said = parallel._get_ddp_logging_data()
    return {name: said[name] for name in SAID_BY_DDP if name in said}


def links() -> dict[str, list[str]] | None:
    """How the host's GPUs are connected: each → its link to all of them, in order; None where nobody tells.

    ``NV18``: 18 NVLinks; ``PIX`` to ``SYS``: PCIe, ever further; ``X``: itself. Source: ``nvidia-smi topo -m``.
    """
    try:
        done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()]
    of_gpus = [row for row in rows if "X" in row and re.fullmatch(r"GPU\d+", row[0])]
    return {row[0]: row[1 : 1 + len(of_gpus)] for row in of_gpus} or None
