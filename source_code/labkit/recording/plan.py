"""What is recorded of a machine? Each item: its kind, how it is made, its command, and the file in which it ends.

In full, everything that the labs show. Quick: part 1 and the ladder, as the labs run them live by default: fewer
epochs and rounds, one report a step. Smaller machines get that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit import cases, course
from labkit.recording.tools import TOOLS
from labkit.source import command, counting
from labkit.source.quick import EPOCHS, FULL_ROUNDS, quick
from labkit.source.recorded import TRACES, key, traced_name
from labkit.source.sweep import worker_counts

KINDS = (
    "runs", "reference", "benchmarks", "profiles", "operators", "nsys_stats", "counters", "torch_profiler", "nvml",
    "shapes", "loss_scaling", "formats", "kernels", "rungs", "speedrun",
    "clinic", "findings", "both", "examples", "nsight",
    "keras", "keras_seeds", "keras_cpu",
    "accuracy",
    "ranks", "ranks_graphs", "ranks_memory", "ranks_accuracy",
)  # fmt: skip
# Not timed: several fit on the machine.
SIDE_BY_SIDE = ("accuracy", "keras_seeds", "findings", "ranks_accuracy")
ON_CPU = ("keras_cpu",)  # made on the CPU, only where --only names it
FROM_REPORTS = ("findings",)  # made of the whole reports that --only clinic leaves, likewise only where named
BOTH = ("both",)  # profilers, one after the other on each of these programs, and on the clinic's: where named
BOTH_STEPS = ("main_baseline_nvtx", "main_opt1", "main_opt2", "main_opt3", "main_opt4", "main_opt5")
OF_RANKS = (
    "ranks",
    "ranks_graphs",
    "ranks_memory",
    "ranks_accuracy",
)  # several GPUs of one host: a folder of their own, only where --only names them
SEEDS = 10  # of the accuracy gate

# Timed, in turn, round by round, the ladder's rungs in more of them. Compilers' caches are warm but where the name says
# cold.
STEPS = [step.script for step in course.STEPS]
LADDER = [step for step in STEPS if step != "main_baseline_nvtx.py"]  # which only names phases: it is profiled
MORE_ROUNDS = 2  # of these alone
OTHER_ARITHMETIC = ("--amp-dtype float32 --tf32", "--amp-dtype bfloat16", "--no-grad-scaler")
VARIANTS = [f"main_opt3.py {flags}" for flags in OTHER_ARITHMETIC]
RUNGS = [*LADDER, *VARIANTS]
COMPILED = [step.script for step in course.STEPS if step.compiled]
REFERENCE = "pytorch/examples mnist/main.py --batch-size 1024 --epochs 10"
CORES = 16  # of the machines that are recorded in full, unless the plan is told otherwise

BENCHMARKS = [
    "bench_timing.py",
    "bench_transfers.py",
    "bench_underflow.py",
    "bench_peaks.py",
    "bench_matmul.py",
    "bench_startup.py",
    "bench_wmma.py",
]
PART_1_BENCHMARKS = BENCHMARKS[:4]
LAUNCHES = "bench_launches.py"  # once: each of its numbers is a median over epochs, and it compiles for a minute
# Where the ladder goes on from main_opt5.py to main_opt7.py: each once, with its rounds or processes inside.
FURTHER = ["bench_stages.py", "bench_roofs.py"]

# Profiled: name of the report → program. The loader's steps also with another arithmetic.
PROFILES = {step.name: step.profiled for step in course.STEPS}
PROFILES |= {
    "main_opt3_tf32": f"{course.step('main_opt3').profiled} --amp-dtype float32 --tf32",
    "main_opt3_bf16": f"{course.step('main_opt3').profiled} --amp-dtype bfloat16",
}
# The same with a range for every operator and its shapes: slower, so never compared by its times on the CPU.
OPERATORS = {f"{name}_ops": f"{PROFILES[name]} --profile-ops" for name in ("main_opt2", "main_opt3_tf32", "main_opt3")}
CHECKED = ("main_baseline_nvtx", "main_opt2", "main_opt3")  # profiles whose tables by nsys stats are kept
# A graph's kernels are traced one by one, which makes the graph slower, but shows what is in it.
GRAPH_FLAGS = ["--cuda-graph-trace", "node"]
WITH_GRAPHS = [step.name for step in course.STEPS if not step.loader][1:]  # beside those of Keras

# One step of each rung under Nsight Compute, its bytes; of the last two also what each of the GPU's units did.
COUNTED = {f"{step.name}_bytes": counting.count_command(f"{step.name}_bytes", step.counted) for step in course.ladder()}
COUNTED |= {
    f"{step.name}_units": counting.count_command(f"{step.name}_units", step.counted, in_depth=True)
    for step in course.STEPS
    if step.compiled
}
# The same epoch by PyTorch's own profiler, and the driver's counters while steps train: once each.
TORCH_PROFILES = [
    "profile_torch.py main_baseline_nvtx.py",
    "profile_torch.py main_opt2.py --memory",
    "profile_torch.py main_opt3.py --memory",
    "profile_torch.py main_opt4.py --overhead 3",
]
NVML = "bench_nvml.py"
NVML_PROFILES = {"one_thread": "one_kernel.py thread --seconds 1 --profile"}

# Labs 12 and 13: the network of main_opt4.py (the second), and it with one thing changed.
SHAPES = [f"main_shapes.py {flags}".strip() for flags in ("--hidden 127", "", "--classes 16", "--channels-last")]
BENCH_SHAPES = "bench_shapes.py"
SHAPES_ONCE = ("bench_tf32.py", "bench_thin.py")  # the former's answers are no times, the latter has rounds inside
_SHAPE_NAMES = dict(zip(("main_shapes_127", "main_shapes", "main_shapes_16", "main_shapes_last"), SHAPES, strict=True))
SHAPE_PROFILES = {name: f"{step} --profile --epochs 2" for name, step in _SHAPE_NAMES.items() if "16" not in name}
SHAPE_PROFILES |= {f"{name}_ops": f"{step} --profile --epochs 2 --profile-ops" for name, step in _SHAPE_NAMES.items()}

# Labs 14 and 15: each once, with its seeds inside.
LOSS_SCALING = ["bench_sin_fit.py", "bench_gan.py", "bench_deep.py", "bench_optimizers.py"]
LOSS_SCALING_PROFILES = {"bench_sin_fit": "bench_sin_fit.py --profile"}

# Lab 23: each once; the first with its seeds inside, the others with repeats or rounds.
FORMATS = ["bench_formats.py", "bench_fp8.py", "bench_attention.py", "bench_lstm.py"]

# Labs 26 and 27: once, with its rounds inside.
KERNELS = ["bench_kernels.py"]

# Lab 29: once, with its rounds inside; and a product of each rung under Nsight Compute.
PRODUCT = "bench_rungs.py"

# Lab 28: entries of the speedrun, each once, with its seeds inside, and the searches that chose their recipes.
SPEEDRUN = [f"speedrun.py {entry}" for entry in ("own_kernels", "course_net", "any_net")]
SPEEDRUN += [f"speedrun_search.py {entry}" for entry in ("own_kernels", "course_net")]

# Worked examples, each mend added to those before it; name of the mended program's report → flags.
EXAMPLES = {
    "train_resnet": {
        "train_resnet": "",
        "train_resnet_workers": "--workers 14",
        "train_resnet_pinned": "--workers 14 --pinned",
        "train_resnet_amp": "--workers 14 --pinned --amp --channels-last",
        "train_resnet_log": "--workers 14 --pinned --amp --channels-last --log-every 10",
    },
    "train_transformer": {
        "train_transformer": "",
        "train_transformer_amp": "--amp",
        "train_transformer_log": "--amp --log-every 10",
        "train_transformer_fused": "--amp --log-every 10 --fused",
        "train_transformer_compiled": "--amp --log-every 10 --fused --compile",
    },
}
EXAMPLE_LONG = {"train_resnet": 600, "train_transformer": 1000}  # steps of which a whole process is timed
EXAMPLE_STEPS = {
    name: f"examples/{script}.py {flags}".strip() for script, mends in EXAMPLES.items() for name, flags in mends.items()
}
EXAMPLE_ENDS = [  # as it was, and with all mends
    f"{EXAMPLE_STEPS[name]} --steps {EXAMPLE_LONG[script]}"
    for script, mends in EXAMPLES.items()
    for name in (next(iter(mends)), list(mends)[-1])
]

# Nsight itself: a step with a sleep in it, and a report to open in Nsight's own window, recorded where it can hold
# neither host nor user.
NSIGHT_PROFILES = {"sleeping": "sleeping.py main_opt2.py --profile --epochs 2"}
NSIGHT = "nsight/main_baseline_nvtx.nsys-rep"
NSIGHT_PROGRAM = "main_baseline_nvtx.py --profile --epochs 2 --limit 10240"  # ten steps
NSIGHT_FLAGS = ["--gpu-metrics-frequency", "2000"]  # samples a second, a fifth of the usual: it ships as it is

# Labs 16 and 17, where Keras and JAX are installed: once each, timed in turn, and for the accuracy gate.
KERAS_ONCE = [
    "bench_keras.py --backend jax",
    "bench_keras.py --backend torch",
    "keras_mixed.py --backend jax --jit off --epochs 3",
]
KERAS_RUNS = [
    "keras_mnist.py --backend jax",
    "keras_mnist.py --backend jax --tf32",
    "keras_mixed.py --backend jax",
    "keras_mixed.py --backend jax --policy mixed_bfloat16",
]
KERAS_PROFILES = {
    "keras_mnist_jax": "keras_mnist.py --backend jax --profile --epochs 2",
    "keras_mixed_jax": "keras_mixed.py --backend jax --profile --epochs 2",
    "keras_mixed_torch": "keras_mixed.py --backend torch --profile --epochs 2",
}
KERAS_ACCURACY = ["keras_mnist.py --backend jax", "keras_mixed.py --backend jax"]
# What labs 16 and 17 show of a CPU, where TensorFlow is installed too, on few digits: nothing that is timed.
_FEW = "--limit 3000 --epochs 4 --batch-size 64"
_SEEDS = (1, 2, 3)
KERAS_CPU_ONCE = [
    "bench_keras.py --backend tensorflow",
    "bench_keras_step.py --backend tensorflow --device cpu --limit 1024 --epochs 4 --batch-size 64",
    *(f"keras_mnist.py --backend tensorflow {_FEW} --seed {seed}" for seed in _SEEDS),
    *(f"main_opt4.py {_FEW} --amp-dtype float32 --seed {seed}" for seed in _SEEDS),
    *(f"keras_mixed.py --backend tensorflow {_FEW} --seed {seed}" for seed in _SEEDS),
    *(
        f"keras_mixed.py --backend tensorflow {flags} {_FEW} --seed 1"
        for flags in (
            "--initial-scale 1073741824", "--loss-scale 1024", "--loss-scale 1073741824", "--loss-scale none",
            "--policy mixed_bfloat16",
        )
    ),
]  # fmt: skip

# Several GPUs: how many, as far as a host has them. Each round is a process a GPU with all programs in it, and has
# every number in turn. Intra-operator threads are the same for one GPU and for many, where torchrun would differ.
SIZES = (1, 2, 4, 8)
SCALING = "bench_ranks.py"
GRAPHS = "bench_rank_graphs.py"  # on all GPUs, with its rounds inside
SHARDING = "bench_sharding.py"  # once, on all GPUs: most of its numbers are no times
RANKS_ACCURACY = ("main_ddp_on_gpu.py", "main_ddp_graph.py")  # with all SEEDS
RANKS_FEW_SEEDS = "main_ddp.py"  # with as many as the benchmark has by itself: loaders keep a host busy for minutes
SEEDS_A_JOB = 5  # one after another in a process; such jobs stand side by side
ACCURACY_WORKERS = 8  # of a job, all its ranks together: no result changes
RANKS_PROFILES = [
    "main_ddp_on_gpu.py --profile --epochs 2",
    "main_fsdp.py --profile --steps 6 --batch-size 64",
    "main_ddp.py --profile --epochs 2",
]

LIMIT = [step.script for step in course.STEPS if not step.loader]
ACCURACY = ["main_baseline.py", "main_opt3.py", *VARIANTS, *LIMIT, *SHAPES[2:]]


@dataclass(frozen=True)
class Item:
    """One thing to record. ``how`` is a function of ``labkit.recording.make``; ``file`` lies in the machine's folder.

    ``command`` is as one types it: a script of source_code/ with its flags, or all of ``nsys profile …``.
    """

    kind: str
    how: str
    command: str
    file: str
    label: str
    ranks: int = 1  # how many leave a file each
    times: int = 1  # how often a program is profiled, of which the report in the middle is kept

    @property
    def files(self) -> list[str]:
        """All that is made, beside the record: ``file``, of the first rank, and its like of each further one."""
        return [self.file.replace("_rank0.", f"_rank{rank}.") for rank in range(self.ranks)]

    @property
    def record(self) -> str:
        """The JSON file that says how it was made: the item's own, or the one beside a report or counts."""
        return self.file if self.file.endswith(".json") else f"{self.file.partition('.')[0]}.json"


def plan(
    rounds: int = FULL_ROUNDS, seeds: int = SEEDS, is_quick: bool = False, reference: bool = False, cores: int = CORES
) -> list[Item]:
    """Everything to record, in order. Each kind's timed runs are in turn, so that what is compared alternates.

    ``reference``: PyTorch's own MNIST example too. ``cores`` decide which numbers of loader workers are tried.
    """
    sweep = [f"main_opt1.py --epochs {EPOCHS} --workers {workers}" for workers in worker_counts(cores)]
    if is_quick:
        return [
            *_runs([quick(step) for step in RUNGS], sweep, rounds),
            *(_timed("benchmarks", script, "benchmarks", 1) for script in PART_1_BENCHMARKS),
            *_profiles("profiles", PROFILES),  # operators' work is the GPU's: the default machine's reports tell it
        ]
    return [
        *_runs(RUNGS, sweep, rounds),
        *_in_turn("runs", LADDER, "runs", MORE_ROUNDS, rounds),
        *(_reference(rounds) if reference else ()),
        *_in_turn("benchmarks", BENCHMARKS, "benchmarks", rounds),
        *(_timed("benchmarks", script, "benchmarks", 1) for script in (LAUNCHES, *FURTHER)),
        *_profiles("profiles", PROFILES, rounds),
        *_profiles("operators", OPERATORS),
        *(_stats(name) for name in CHECKED),
        *(Item("counters", "count", words, f"counters/{name}.csv", name) for name, words in COUNTED.items()),
        *(_torch_profile(program) for program in TORCH_PROFILES),
        _timed("nvml", NVML, "benchmarks", 1),
        *_profiles("nvml", NVML_PROFILES),
        *_shapes(rounds),
        *(_timed("loss_scaling", script, "benchmarks", 1) for script in LOSS_SCALING),
        *_profiles("loss_scaling", LOSS_SCALING_PROFILES),
        *(_timed("formats", script, "benchmarks", 1) for script in FORMATS),
        *(_timed("kernels", script, "benchmarks", 1) for script in KERNELS),
        Item("kernels", "count", counting.KERNELS, "counters/kernels_units.csv", "kernels_units"),
        _timed("rungs", PRODUCT, "benchmarks", 1),
        Item("rungs", "count", counting.RUNGS, "counters/rungs_units.csv", "rungs_units"),
        *(_timed("speedrun", entry, "benchmarks", 1) for entry in SPEEDRUN),
        *(_case(case) for case in cases.CASES),
        *(_findings(case, tool) for case in cases.CASES for tool in TOOLS),
        *_both(),
        *_in_turn("examples", EXAMPLE_ENDS, "runs", rounds),
        *_in_turn("examples", list(EXAMPLE_STEPS.values()), "runs", rounds),
        *_profiles("examples", {name: f"{step} --profile --steps 10" for name, step in EXAMPLE_STEPS.items()}),
        *_profiles("nsight", NSIGHT_PROFILES),
        _nsight(),
        *(_timed("keras", step, "keras", 1) for step in KERAS_ONCE),
        *_profiles("keras", KERAS_PROFILES),
        *_in_turn("keras", KERAS_RUNS, "keras", rounds),
        *_seeds("keras_seeds", KERAS_ACCURACY, seeds),
        *(_timed("keras_cpu", step, "keras", 1) for step in KERAS_CPU_ONCE),
        *_seeds("accuracy", ACCURACY, seeds, " --workers 2"),  # no result changes, and several fit side by side
    ]


def of_ranks(gpus: int, rounds: int = FULL_ROUNDS) -> list[Item]:
    """What is recorded of a host's GPUs together: a first round, reports, other rounds, graphs, memory, accuracy.

    Nothing for one GPU. Numbers of GPUs alternate within a round; the reports are of all GPUs.
    """
    sizes = [size for size in SIZES if size <= gpus]
    if len(sizes) < 2:
        return []
    first, *others = (
        [_of_ranks("ranks", SCALING, size, f"scaling-x{size}-{one:02d}", f"round {one}") for size in sizes]
        for one in range(1, rounds + 1)
    )
    few = f"{SCALING} --accuracy {RANKS_FEW_SEEDS} '--digits-flags=--workers 4'"
    name = f"{key(RANKS_FEW_SEEDS)}-accuracy-x{{}}-01"
    accuracy = [_of_ranks("ranks_accuracy", few, size, name.format(size), "seed by seed") for size in sizes]
    accuracy += [
        _seeds_of_ranks(script, size, first)
        for script in RANKS_ACCURACY
        for size in sizes
        for first in range(1, SEEDS + 1, SEEDS_A_JOB)
    ]
    reports = [_rank_reports(program, sizes[-1]) for program in RANKS_PROFILES]
    memory = _of_ranks("ranks_memory", SHARDING, sizes[-1], f"sharding-x{sizes[-1]}-01", "way by way")
    graphs = _of_ranks("ranks_graphs", GRAPHS, sizes[-1], f"graphs-x{sizes[-1]}-01", "round by round")
    return [*first, *reports, *(item for round_ in others for item in round_), graphs, memory, *accuracy]


def profile_command(name: str, program: str) -> str:
    """The command that profiles ``program`` into the report ``name``."""
    has_graphs = name in WITH_GRAPHS or name in KERAS_PROFILES
    return command.profile_command(name, program, GRAPH_FLAGS if has_graphs else ())


def _runs(rungs: list[str], sweep: list[str], rounds: int) -> Iterator[Item]:
    """Each compiled step once with cold caches; then all rungs, and the numbers of workers, round by round."""
    for step in rungs:
        if step.split()[0] in COMPILED:
            yield Item("runs", "cold", step, f"runs/{key(step)}-cold.json", f"{step}, cold caches")
    for number in range(1, rounds + 1):
        yield from (_timed("runs", step, "runs", number) for step in (*rungs, *sweep))


def _reference(rounds: int) -> Iterator[Item]:
    """PyTorch's own example and our baseline, in turn: is the baseline a straw man?"""
    for number in range(1, rounds + 1):
        file = f"reference/{key(REFERENCE)}-{number:02d}.json"
        yield Item("reference", "reference", REFERENCE, file, f"{REFERENCE}, round {number}")
        yield _timed("reference", STEPS[0], "reference", number)


def _in_turn(kind: str, commands: list[str], folder: str, rounds: int, after: int = 0) -> Iterator[Item]:
    for number in range(after + 1, after + rounds + 1):
        yield from (_timed(kind, step, folder, number) for step in commands)


def _timed(kind: str, step: str, folder: str, number: int) -> Item:
    warm = step.split()[0] in COMPILED or "--compile" in step.split()
    file = f"{folder}/{key(step)}-{number:02d}.json"
    return Item(kind, "warm" if warm else "run", step, file, f"{step}, round {number}")


def _seeds(kind: str, commands: list[str], seeds: int, more: str = "") -> Iterator[Item]:
    for step in commands:
        for seed in range(1, seeds + 1):
            full = f"{step} --seed {seed}{more}"
            yield Item(kind, "run", full, f"accuracy/{key(step)}--seed-{seed:02d}.json", full)


def _profiles(kind: str, programs: dict[str, str], times: int = 1) -> Iterator[Item]:
    for name, program in programs.items():
        words, file = profile_command(name, program), f"profiles/{name}.sqlite.xz"
        yield Item(kind, "profile", words, file, name, times=times)


def _of_ranks(kind: str, program: str, ranks: int, name: str, what: str) -> Item:
    label = f"{program} on {ranks} GPU{'s' * (ranks > 1)}, {what}"
    return Item(kind, "run", command.ranks_command(program, ranks), f"ranks/{name}.json", label)


def _seeds_of_ranks(script: str, ranks: int, first: int) -> Item:
    """A job's share of the seeds, from ``first`` on: whole trainings of a script on so many GPUs."""
    seeds = f"--first-seed {first} --seeds {SEEDS_A_JOB}"
    loading = f"'--digits-flags=--workers {max(1, ACCURACY_WORKERS // ranks)}'"
    name = f"{key(script)}-accuracy-x{ranks}-{first // SEEDS_A_JOB + 1:02d}"
    return _of_ranks("ranks_accuracy", f"{SCALING} --accuracy {script} {seeds} {loading}", ranks, name, seeds)


def _rank_reports(program: str, ranks: int) -> Item:
    name = f"{key(program.split()[0])}_x{ranks}"
    words, file = command.rank_profiles_command(name, program, ranks), f"profiles/{name}_rank0.sqlite.xz"
    return Item("ranks", "rank_reports", words, file, name, ranks)


def _stats(name: str) -> Item:
    words = f"nsys stats {name}.sqlite.xz"
    return Item("nsys_stats", "stats", words, f"nsys_stats/{name}.json", f"nsys stats {name}")


def _case(case: cases.Case) -> Item:
    more = [*(GRAPH_FLAGS if case.graph else ())]
    if case.metrics_hz:
        more += ["--gpu-metrics-frequency", str(case.metrics_hz)]
    words = command.profile_command(case.report, case.program, more, case.gpus)
    return Item("clinic", "case", words, f"profiles/{case.report}.sqlite.xz", case.report)


def _nsight() -> Item:
    words = command.profile_command(Path(NSIGHT).stem, NSIGHT_PROGRAM, NSIGHT_FLAGS)
    return Item("nsight", "whole_report", words, NSIGHT, f"{NSIGHT}, with neither host nor user in it")


def _findings(case: cases.Case, tool: str) -> Item:
    words = TOOLS[tool].command.format(report=f"reports/{case.report}{TOOLS[tool].reads}")
    return Item("findings", "findings", words, f"findings/{tool}--{case.name}.json", f"{tool} on {case.report}")


def _both() -> Iterator[Item]:
    steps = [(name, profile_command(name, PROFILES[name])) for name in BOTH_STEPS]
    for name, words in [*steps, *((item.label, item.command) for item in map(_case, cases.CASES))]:
        yield Item("both", "both", words, f"both/{name}.json", f"{name}, both profilers")


def _torch_profile(program: str) -> Item:
    return Item("torch_profiler", "torch_profile", program, f"{TRACES}/{traced_name(program)}", program)


def _shapes(rounds: int) -> Iterator[Item]:
    """What labs 12 and 13 show: their benchmarks and runs, in turn, and their profiles."""
    for number in range(1, rounds + 1):
        yield _timed("shapes", BENCH_SHAPES, "benchmarks", number)
        yield from (_timed("shapes", step, "runs", number) for step in SHAPES)
    yield from (_timed("shapes", script, "benchmarks", 1) for script in SHAPES_ONCE)
    yield from _profiles("shapes", SHAPE_PROFILES)
