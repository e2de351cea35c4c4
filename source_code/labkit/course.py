"""What does the course consist of? Every step and every lab, once; all that lists them comes out of this catalogue.

Navigation bars, the tables of the front page and of README.md, what ``make record`` measures, and the tests' lists are
derived. A new lab is an entry here, its notebook, its module in ``labkit.labs`` and its paragraph for teachers; a new
rung an entry here and its script.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from labkit.errors import LabError
from labkit.paths import RECORDED, ROOT

REPOSITORY = ""  # OWNER/NAME at github.com, where the course is published: buttons for Colab and Binder lead there
DEFAULT_MACHINE = "h200"  # the machine whose recordings the text is written from
_MACHINES = {
    "h200": "one H200, 16 cores",
    "h100": "one H100, 16 cores",
    "h200-4cores": "one H200, 4 cores",
    "h200-2cores": "one H200, 2 cores",
}
# Machines on which the ladder was recorded, in the order in which tables show them: folder → what it is.
MACHINES = {folder: what for folder, what in _MACHINES.items() if (RECORDED / folder / "runs").is_dir()}
# Those of them whose profiles were recorded as well, so that a whole lab of part 1 or 2 can be shown there.
PROFILED = [folder for folder in MACHINES if (RECORDED / folder / "profiles").is_dir()]
HOSTS = {  # hosts whose GPUs are recorded together, and nothing else of them: folder → what it is
    "h200-x2": "two H200s of one host, 32 cores",
}


@dataclass(frozen=True)
class Step:
    """A rung of the ladder, a script of source_code/: what is new in it, the lab that teaches it, how it computes.

    ``arithmetic``: of the convolutions (``fp32``, ``fp16``, ``bf16``); ``traffic``: how its kernels are fused, in the
    roofline's words. ``label`` names it in charts; a step without one stands beside the ladder: names on the phases
    for the profiler, or the same kernels another way.
    """

    script: str
    new: str
    lab: int
    arithmetic: str
    traffic: str = "unfused"
    label: str = ""
    loader: bool = True
    compiled: bool = False  # its first run fills the compilers' caches
    needs_bf16: bool = False
    needs_hopper: bool = False  # its kernels are compiled for that generation of GPUs alone

    @property
    def name(self) -> str:
        """``main_opt1``"""
        return self.script.removesuffix(".py")

    @property
    def counted(self) -> str:
        """The program of which Nsight Compute counts one step: an epoch on as many digits as a batch holds."""
        return f"{self.script} --profile --epochs 2 --limit 1024" + (" --workers 0" if self.loader else "")

    @property
    def profiled(self) -> str:
        """The program that Nsight Systems profiles."""
        return f"{self.script} --profile --epochs 2"


@dataclass(frozen=True)
class Lab:
    """A lab: its notebook in labs/, title and topic, minutes to read it, its part, and the fixes that it teaches."""

    file: str
    title: str
    topic: str
    minutes: int
    part: int
    treats: tuple[str, ...] = ()  # fixes of the report reader's advice
    on_nsight: bool = False  # about what Nsight Systems alone records: no trace takes its place

    @property
    def number(self) -> int:
        return int(self.file[:2])

    @property
    def name(self) -> str:
        """``02_pytorch_mnist``"""
        return self.file.removesuffix(".ipynb")

    @property
    def path(self) -> Path:
        return ROOT / "labs" / self.file


# fmt: off
STEPS = (
    Step("main_baseline.py", "plain FP32, one loader worker", 2, "fp32", label="baseline, FP32"),
    Step("main_baseline_nvtx.py", "NVTX ranges on the phases, for the profiler", 1, "fp32"),
    Step("main_opt1.py", "a loader worker for each core to spare", 2, "fp32", label="1: loader workers"),
    Step("main_opt2.py", "pinned memory, non-blocking copies", 3, "fp32", label="2: pinned copies"),
    Step("main_opt3.py", "mixed precision on Tensor Cores", 4, "fp16", label="3: mixed precision"),
    Step("main_opt4.py", "the digits on the GPU, no loader", 6, "bf16", label="4: data on the GPU", loader=False),
    Step("main_opt5.py", "a whole epoch as one CUDA graph", 7, "bf16", label="5: one launch", loader=False),
    Step("main_opt6.py", "torch.compile: fewer, larger kernels", 8, "bf16", "as a compiler fuses", "6: compiled",
         loader=False, compiled=True),
    Step("main_opt6_block.py", "the hot block as our own operator", 11, "bf16", "by hand (main_opt7)",
         loader=False, compiled=True, needs_bf16=True),
    Step("main_opt7.py", "our own kernels, in Triton", 11, "bf16", "by hand (main_opt7)", "7: own kernels",
         loader=False, compiled=True, needs_bf16=True),
    Step("main_opt8.py", "convolutions in CUDA C++, Hopper only", 11, "bf16", "by hand (main_opt7)",
         loader=False, compiled=True, needs_bf16=True, needs_hopper=True),
)
# fmt: on

ON_HOPPER = ("bench_rungs.py", "count_kernels.py", "count_rungs.py")  # whose kernels or sizes are for that generation
# Benchmarks whose kernels multiply in it, or whose results are put beside such kernels.
IN_BF16 = ("speedrun.py", "speedrun_search.py", "bench_stages.py", "bench_roofs.py")

SEVERAL_GPUS = {  # beside the ladder, started by torchrun: script → what it is
    "main_ddp.py": "step 3 on several GPUs: each rank trains on its share of a batch",
    "main_ddp_on_gpu.py": "step 4 on several GPUs",
    "main_ddp_graph.py": "step 5 on several GPUs: an epoch is one launch on each",
    "main_fsdp.py": "a transformer whose weights are shared out among the GPUs",
}

PARTS = {
    1: "**Part 1, the course proper.**",
    2: "**Part 2, to the limit.** In this order, after lab 5.",
    3: "**Part 3, mixed precision in depth.** In any order, after lab 5.",
    4: "**Part 4, out of the laboratory.** In any order, after lab 5.",
    5: "**Part 5, kernels in depth.** After lab 10.",
}


@dataclass(frozen=True)
class Route:
    """A way through the course: how long it takes, its labs, and what they leave you with."""

    name: str
    labs: tuple[int, ...]
    what: str


# fmt: off
LABS = (
    Lab("01_introduction.ipynb", "What a profile shows",
        "timing, timelines, NVTX ranges", 20, 1),
    Lab("02_pytorch_mnist.ipynb", "The starved GPU",
        "loader workers", 20, 1, ("loader",)),
    Lab("03_data_transfer.ipynb", "Copies that do not wait",
        "pinned memory, non-blocking copies", 20, 1, ("pinned_memory", "no_synchronisation")),
    Lab("04_tensor_cores.ipynb", "Tensor Cores",
        "TF32, FP16 with loss scaling, BF16", 20, 1, ("mixed_precision",)),
    Lab("05_summary.ipynb", "Every step side by side",
        "what each step gained, what's still idle", 20, 1),
    Lab("06_data_on_gpu.ipynb", "The data live on the GPU",
        "the digits on the GPU, no loader", 20, 2),
    Lab("07_launch_overhead.ipynb", "One launch for an epoch",
        "launch overhead, CUDA graphs", 20, 2, ("cuda_graph",)),
    Lab("08_fewer_kernels.ipynb", "Fewer and larger kernels",
        "torch.compile, and when it pays", 20, 2),
    Lab("09_roofline.ipynb", "Kernels and the roofline",
        "arithmetic, traffic, this network's limit", 25, 2),
    Lab("10_triton.ipynb", "Your own kernels: Triton",
        "a matrix product: tiles, masks, error bounds", 20, 2),
    Lab("11_own_step.ipynb", "A step of your own",
        "a training step in your own kernels", 20, 2),
    Lab("12_shapes.ipynb", "Shapes: matrix products",
        "sizes and alignment that Tensor Cores like", 20, 3, ("sizes",)),
    Lab("13_layouts.ipynb", "Layouts: convolutions",
        "channels-last, TF32's switches", 20, 3),
    Lab("14_loss_scaling.ipynb", "What FP16 loses",
        "underflow, overflow, and the scale", 20, 3),
    Lab("15_scaler.ipynb", "Loss scaling at work",
        "a GAN, a monitor, the scaler's price", 20, 3),
    Lab("16_keras.ipynb", "Keras and TensorFlow",
        "policies, and a loss scale that's applied", 20, 3),
    Lab("17_keras_gpu.ipynb", "Keras on the GPU",
        "what a policy gains, TF32, XLA", 20, 3),
    Lab("18_pytorch_profiler.ipynb", "Without Nsight",
        "PyTorch's own profiler", 20, 3),
    Lab("19_monitoring.ipynb", "What the driver says",
        "NVML's counters, a training's energy", 20, 3),
    Lab("20_clinic.ipynb", "The clinic",
        "ten unexplained reports, six programs to fix", 55, 4),
    Lab("21_more_gpus.ipynb", "More GPUs",
        "data parallelism, all-reduce, stragglers", 35, 4),
    Lab("22_sharding.ipynb", "A network shared out",
        "FSDP: all-gather, reduce-scatter, memory", 20, 4),
    Lab("23_eight_bits.ipynb", "Eight bits, and less",
        "FP8, BF16 weights, block scales", 20, 4),
    Lab("24_nsight.ipynb", "Nsight itself",
        "the tool's window, nsys stats", 20, 4, on_nsight=True),
    Lab("25_own_model.ipynb", "Your own model",
        "your own training script, profiled and fixed", 22, 4),
    Lab("26_attention.ipynb", "Softmax and attention",
        "online softmax, FlashAttention, tuning", 20, 5),
    Lab("27_inside.ipynb", "Inside a multiprocessor",
        "latency, registers, banks, split-K", 20, 5),
    Lab("28_time_to_99.ipynb", "Time to 99 %",
        "a speedrun with an open recipe", 20, 5),
    Lab("29_matrix_product.ipynb", "A matrix product, rung by rung",
        "CUDA C++ as fast as cuBLAS", 20, 5),
)
# fmt: on

ROUTES = (
    Route(
        "Two hours",
        (1, 2, 3, 4, 5),
        "1 and 2; 3 and 4 through *The fix*, then *Where it pays*; 5 to *Did each fix do what it promised?*",
    ),
    Route("Half a day", (1, 2, 3, 4, 5, 25), "with exercises, then your own model"),
    Route("A day", (1, 2, 3, 4, 5, 25, 20, 6, 7, 8, 9), "as above, then the clinic and roofline"),
    Route("Everything", tuple(range(1, 1 + len(LABS))), "parts 2 to 5 are electives"),
)

TREATED_IN = {fix: lab.name for lab in LABS for fix in lab.treats}  # fix of the reader's advice → lab


def ladder() -> tuple[Step, ...]:
    """The steps that are compared, in order: each builds on the one before."""
    return tuple(step for step in STEPS if step.label)


def step(name: str) -> Step:
    """The step called ``main_opt1`` or ``main_opt1.py``; KeyError where there is none."""
    found = next((one for one in STEPS if name in (one.name, one.script)), None)
    if found is None:
        raise KeyError(name)
    return found


def part(number: int) -> tuple[Lab, ...]:
    """The labs of one part, in reading order."""
    return tuple(lab for lab in LABS if lab.part == number)


def module_of(lab: int) -> ModuleType:
    """The module of a lab, imported when it is asked for. LabError where there is no such lab."""
    if lab not in {one.number for one in LABS}:
        raise LabError(f"there is no lab {lab}: they are numbered from 1 to {len(LABS)}.")
    return importlib.import_module(f"labkit.labs.lab{lab:02d}")
