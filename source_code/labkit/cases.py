"""Which cases has the clinic? Programs with one planted cause each, or none, and what a right diagnosis of each names.

The answers were written down before any of the programs had run on a GPU. A cause is named in the report reader's words
(stepbudget.ask.budget.CAUSES); what its vocabulary lacks stands in OTHER_CAUSES. A case's first right cause is what is
planted; each further one has the reason why it is right too. The healthy pair of GPUs has larger batches than its first
recording had: there, one process launched too slowly to be called healthy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PREFIX = "clinic_"  # of the cases' reports
OTHER_CAUSES = {"sizes": "sizes that are no multiple of 8"}
SELDOM_HZ, RARE_HZ = 1000, 100
PLANTED = ""  # the reason why the planted cause is right

# Why a cause beside the planted one is right too.
COPY = "while a large pageable copy runs, the GPU is busy with it: part of its cost is time of copies"
PREPARED = "the CPU's time for a launch is the call and the code around it, and the same fixes treat both"
UNKNOWN = "FP32 attention (fmha_cutlassF_f32) and kernels like it do not tell by their names how they multiply"


@dataclass(frozen=True)
class Case:
    """A program of source_code/clinic/, what is planted in it, and the causes that a right diagnosis names first.

    ``late``: of several GPUs, the rank for which the others wait; ``right`` are then the reasons why it is late.
    """

    name: str
    flags: str
    planted: str = ""  # nothing: a healthy program, in which nothing worth a tenth of the time is to be found
    right: dict[str, str] = field(default_factory=dict)
    late: int | None = None
    gpus: int = 1
    graph: bool = False  # its kernels lie in a CUDA graph
    metrics_hz: int | None = None  # of GPU counters, fewer than usual where the steps are long and the GPU mostly idle

    @property
    def script(self) -> str:
        """``clinic/images.py``"""
        patient = self.name.partition("_")[0]
        return "clinic/two_gpus.py" if patient == "two" else f"clinic/{patient}.py"

    @property
    def program(self) -> str:
        """What is profiled: the script of source_code/ with its flags."""
        return f"{self.script} --profile {self.flags}".strip()

    @property
    def report(self) -> str:
        """The name of its report."""
        return PREFIX + self.name

    @property
    def is_healthy(self) -> bool:
        return not self.planted


_SMALL = "--dim 1024 --layers 8 --steps 3"  # in text.py: steps so short that what the CPU does shows

CASES = (
    Case("images_good", ""),
    Case(
        "images_workers",
        "--fault workers --steps 4",
        "one loader worker decodes all JPEGs",
        {"loader": PLANTED},
        metrics_hz=SELDOM_HZ,
    ),
    Case(
        "images_unnamed",
        "--fault workers --steps 4 --no-ranges",
        "the same, in a program without ranges",
        {"loader": PLANTED},
        metrics_hz=SELDOM_HZ,
    ),
    Case(
        "images_augmentation",
        "--fault augmentation --steps 4",
        "pictures are augmented one by one in the main process",
        {"python": PLANTED},
        metrics_hz=SELDOM_HZ,
    ),
    Case("text_good", ""),
    Case("text_compiled", "--compile"),
    Case(
        "text_fp32",
        "--fault fp32 --batch 8 --steps 3 --no-ranges",
        "matrix products in FP32, TF32 off",
        {"other_kernels": PLANTED, "unknown_kernels": UNKNOWN},
    ),
    Case("text_odd", "--fault odd", "vocabulary and hidden layer of odd size", {"sizes": PLANTED}),
    Case(
        "text_item",
        f"--fault item {_SMALL} --batch 8",
        "a hook reads each gradient's norm with .item()",
        {"synchronisation": PLANTED},
    ),
    Case(
        "text_anomaly",
        f"--fault anomaly {_SMALL} --batch 16",
        "set_detect_anomaly was left on",
        {
            "synchronisation": PLANTED,
            "python": "in the forward pass anomaly mode writes down the stack for each operator: CPU code",
        },
    ),
    Case(
        "text_nvtx",
        f"--fault nvtx {_SMALL} --batch 8 --steps 2",
        "emit_nvtx was left on",
        {
            "profiler": PLANTED,
            "python": "the ranges are opened and named by PyTorch's own CPU code, between the launches",
            "launch_overhead": "so each launch comes later, and the GPU waits for it",
        },
    ),
    Case(
        "text_optimizer",
        "--fault optimizer --dim 1024 --layers 8 --steps 3 --batch 4",
        "the optimizer loops over the parameters",
        {"optimizer": PLANTED, "launch_overhead": "the loop makes a launch for each small operation: " + PREPARED},
    ),
    Case(
        "text_recompile",
        "--fault recompile --dim 256 --heads 4 --layers 1 --vocabulary 4096 --steps 3",
        "a new length is compiled for",
        {
            "python": PLANTED,
            "os_wait": "Inductor compiles in processes of its own, for which the main thread sleeps",
        },
        metrics_hz=RARE_HZ,
    ),
    Case("text_gc", f"--fault gc {_SMALL} --batch 8", "gc.collect() in every step", {"python": PLANTED}),
    Case("digits_graph", "--graph", graph=True),
    Case(
        "digits_pageable",
        "--fault pageable",
        "large batches from pageable memory",
        {"pageable_copy": PLANTED, "copies": COPY},
    ),
    Case(
        "digits_launch",
        "--fault launch --hidden 512 --steps 30 --no-ranges",
        "batches of 16",
        {"launch_overhead": PLANTED, "python": PREPARED, "optimizer": PREPARED},
    ),
    Case("two_good", "--batch 8192", gpus=2),
    Case(
        "two_loader",
        "--fault loader",
        "rank 1 has a slow loader",
        {"loader": PLANTED},
        late=1,
        gpus=2,
        metrics_hz=SELDOM_HZ,
    ),
    Case(
        "two_backward",
        "--fault backward",
        "rank 1 computes more in its backward pass",
        {
            "tensor_core_kernels": PLANTED,
            "other_kernels": "beside its products, the extra work has norms and divisions",
            "unknown_kernels": "some of its products' kernels may not tell by their names how they multiply",
        },
        late=1,
        gpus=2,
    ),
    Case(
        "two_log",
        "--fault log",
        "rank 0 makes a histogram of weights on the CPU",
        {
            "python": PLANTED,
            "pageable_copy": "the weights come by a copy into pageable memory, which holds the thread",
            "synchronisation": "that copy waits for the step to end",
        },
        late=0,
        gpus=2,
        metrics_hz=SELDOM_HZ,
    ),
)  # fmt: skip


def case(name: str) -> Case:
    """The case of this name, or of the report of this name; KeyError where there is none."""
    found = next((one for one in CASES if name in (one.name, one.report)), None)
    if found is None:
        raise KeyError(name)
    return found
