"""Lab 17: how long do Keras's epochs take by policy, and do the Tensor Cores compute?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkit import source
from labkit.checks import Claim
from labkit.display import style
from labkit.display.charts.bars import SMALL, bar, bar_axes, reach
from labkit.display.runs import epoch_ms
from labkit.display.spread import Spread, paired, spread
from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, Number, each_of
from labkit.labs.lab17.reports import Counted, broken_off, counted, counter_panels, counters, held, profile
from labkit.numbers import number
from labkit.predictions import Guess
from labkit.source import kinds
from labkit.subjects.keras import KIND, USUAL_SCALE, Tried, with_keras
from stepbudget.ask.budget import CAUSES, IDLE, budget
from stepbudget.ask.tensor_cores import verdicts
from stepbudget.report import Report
from stepbudget.show.palette import tint
from stepbudget.show.table import Table, table

# --- how long an epoch takes --------------------------------------------------------------------------------


def runs(commands: Mapping[str, str], repeats: int | None = None) -> dict[str, list[dict]]:
    """Whole-process runs of each command by its name, as ``lab.runs``; in quick live mode one of each.

    A command stands as in a terminal: ``python3 source_code/benchmarks/keras_mnist.py --backend jax``.
    """
    plain = {name: command.removeprefix("python3 source_code/benchmarks/") for name, command in commands.items()}
    found = source.current().get(with_keras(kinds.runs(list(plain.values()), repeats, KIND, when_quick=1)))
    return {name: found[command] for name, command in plain.items()}


def later_epochs(runs: Mapping[str, Sequence[dict]]) -> dict[str, list[float]]:
    """Training seconds of each epoch but a process's first, by the name of what ran."""
    return {name: [epoch["training_s"] for run in own for epoch in run["epochs"][1:]] for name, own in runs.items()}


def faster(runs: Mapping[str, Sequence[dict]], base: str) -> dict[str, Spread]:
    """How many times as fast a later epoch is as one of ``base``, round by round, by each process's median."""
    later = {name: [{"ms": epoch_ms([record])} for record in own] for name, own in runs.items()}
    return {name: paired(later[base], own, "ms") for name, own in later.items()}


def parts(records: Sequence[dict]) -> pd.Series:
    """Seconds of a whole process and of its parts, by their medians."""
    first = spread([record["epochs"][0] for record in records], "training_s").median
    training, tests, whole = (spread(records, field).median for field in ("training_s", "test_s", "process_s"))
    return pd.Series({"process": whole, "first epoch": first, "later epochs": training - first, "tests": tests})


def epoch_table(runs: Mapping[str, Sequence[dict]], backend: str) -> Table:
    """Training seconds of the first epoch, and median and range of the later ones, a row a command."""
    rows = []
    for name, records in runs.items():
        first = spread([record["epochs"][0] for record in records], "training_s")
        later = spread([epoch for record in records for epoch in record["epochs"][1:]], "training_s")
        rows.append((name, len(records), first.median, later.median, f"{later.low:.2f}–{later.high:.2f}"))
    columns = ["step", "processes", "first epoch s", "later epochs s", "their range s"]
    formats = {"first epoch s": "{:.1f}", "later epochs s": "{:.2f}"}
    caption = f"Training time of an epoch: the first, and the median of the later ones (Keras on {backend})"
    return table(pd.DataFrame(rows, columns=columns), caption, formats)


def epoch_bars(runs: Mapping[str, Sequence[dict]], backend: str) -> Figure:
    """Training seconds of an epoch: the later ones as dots and as their median, the first one in words.

    ``runs`` maps a step's name to its records. The label says how many times as fast it is as the first step's.
    """
    later = later_epochs(runs)
    base = median(next(iter(later.values())))
    with style.house_style():
        title = f"Training time of an epoch but the first: each a dot, and their median (Keras on {backend})"
        fig, ax = bar_axes(list(runs), title, "seconds")
        reach(ax, max(map(max, later.values())), words_in=2.2)
        for y, (name, found) in enumerate(runs.items()):
            middle = median(later[name])
            bar(ax, y, 0, middle, tint(style.COLOURS["kernel"], 0.7))
            ax.plot(later[name], [y] * len(later[name]), "o", ms=4, mfc=style.PAPER, mec=style.INK, mew=0.9)
            times = f"   {base / middle:.1f}×" if y else ""
            words = f"{middle:.2f} s{times}   first: {median(run['epochs'][0]['training_s'] for run in found):.1f} s"
            ax.annotate(words, (max(later[name]), y), (8, 0), textcoords="offset points", va="center", size=SMALL + 0.5)
    return fig


# --- what three older texts say -----------------------------------------------------------------------------


def precision(tried: Tried) -> Table:
    """Relative rounding error of a product and a convolution in FP32, a column a backend and operation."""
    columns = {}
    for backend, tables in tried.items():
        found = tables["precision"].set_index("setting")
        for operation in ("product", "convolution"):
            columns[f"{backend}: {operation}"] = found[f"{operation}_error"]
    found = pd.DataFrame(columns).reset_index(names="setting (policy float32)")
    measured = list(found.columns[1:])
    return table(found, "Relative error against FP64", dict.fromkeys(measured, "{:.0e}"))


def texts(tried: Tried, runs: Mapping[str, Sequence[dict]], few: pd.DataFrame, counted: Mapping[str, Counted]) -> Table:
    """What three texts say about TensorFlow, and what was found: all arguments as in the lab."""
    tensorflow, jax = tried["tensorflow"], tried["jax"]
    lines = tensorflow["claims"].set_index("line")
    policy = "tf.keras.mixed_precision.Policy('mixed_float16')"
    old_call = lines.loc["tf.keras.mixed_precision.LossScaleOptimizer(adam, loss_scale='dynamic')"]
    switch = "tf.config.experimental.tensor_float_32_execution_enabled()"
    layers = tensorflow["layers"]
    computes = layers.loc[layers["model_policy"] == "mixed_float16", "computes in"]
    dense = tensorflow["float16"].set_index("what")["dtype"].iloc[-1]
    optimizer = tensorflow["compile"].set_index("way").loc["mixed_float16"]
    products = jax["precision"].set_index("setting")["product_error"]
    errors = products.map("{:.0e}".format)
    disabled = next(setting for setting in errors.index if "TENSOR_OP_MATH" in setting)
    override = next(setting for setting in errors.index if "TF32_OVERRIDE" in setting)
    mixed = few[few["policy"] == "mixed_float16"]
    without = mixed[mixed["scale"] == "none"]
    usual = mixed[(mixed["scale"] == USUAL_SCALE) & mixed["seed"].isin(without["seed"])]
    later = {name: median(own) for name, own in later_epochs(runs).items()}
    of = pd.DataFrame({name: parts(own) for name, own in runs.items()})
    process, first, less = of.loc["process"], of.loc["first epoch"], (of["FP32"] - of["FP16"]).map("{:.1f} s".format)
    active = {name: one.tensor for name, one in counted.items()}
    seen = ", ".join(f"{name} {own.max_pct:.0f} %" for name, own in active.items() if own)
    found = [
        ("guide", "give layers the type float16 where it fits", "tensorflow",
         f"the policy gives it to {(computes == 'float16').sum()} of {len(computes)}; "
         f"Dense(dtype='float16') gets {dense} weights"),
        ("guide", "variables are cast to float32", "tensorflow",
         f"they are {lines.loc[f'{policy}.variable_dtype', 'says']}; "
         f"each use casts them to {lines.loc[f'{policy}.compute_dtype', 'says']}"),
        ("guide", "TF_DISABLE_TENSOR_OP_MATH=1: no Tensor Cores", "jax",
         f"not tried on TensorFlow; on JAX {_switched(products, disabled)}: "
         f"error {errors[disabled]} with, {errors['TF32 on']} without"),
        ("guide", "Tensor Cores speed training up significantly", "jax",
         f"FP16 over FP32: a later epoch {later['FP32'] / later['FP16']:.1f} times as fast, "
         f"the process, compiling included, {process['FP32'] / process['FP16']:.1f} times"),
        ("guide", "the same", "jax",
         f"FP32's process less FP16's: {less['process']}, of it {less['first epoch']} first epoch, "
         f"{less['tests']} tests"),
        ("article", "FP32 gains far less from Tensor Cores than FP16", "jax",
         f"a later epoch: FP32 {later['FP32']:.2f} s, as TF32 {later['TF32']:.2f} s, "
         f"FP16 {later['FP16']:.2f} s"),
        ("article", "LossScaleOptimizer(adam, loss_scale='dynamic')", "tensorflow",
         _outcome(old_call)),
        ("article", "an optimizer has to be wrapped by hand", "tensorflow",
         f"compile makes of it: {optimizer['optimizer']}, from {optimizer['initial_scale']:,.0f}"),
        ("walkthrough", "tf.keras.layers.Conv2d(filters=48, …)", "tensorflow",
         f"{_outcome(lines.loc['tf.keras.layers.Conv2d(filters=48, kernel_size=7)']).split(':')[0]}: "
         "the class is Conv2D"),
        ("walkthrough", "loss scaling makes no great difference (GAN)", "tensorflow",
         f"our net, a seed: {without['accuracy_pct'].mean():.1f} % without, {usual['accuracy_pct'].mean():.1f} % with"),
        ("walkthrough", "XLA makes the first iterations slow", "jax",
         f"FP16: first epoch {first['FP16']:.1f} s, later ones {later['FP16']:.2f} s"),
        ("walkthrough", "Nsight Systems hardly shows Tensor Core use", "jax, torch",
         f"highest sample of Tensor Active: {seen or 'not sampled here'}"),
        ("walkthrough", "FP32 needs TF32 switched off", "jax",
         f"error of a product: {errors['as it comes']} as JAX comes, {errors['TF32 off']} with TF32 off"),
        ("walkthrough", "the same", "tensorflow",
         f"tensor_float_32_execution_enabled() is {lines.loc[switch, 'says']} as it comes"),
        ("lab 13", "NVIDIA_TF32_OVERRIDE=0 switches TF32 off", "jax",
         f"{_switched(products, override)}: error {errors[override]}"),
    ]  # fmt: skip
    frame = pd.DataFrame(found, columns=["text", "what it says", "backend", "what we found"])
    return table(frame[["text", "what it says", "what we found", "backend"]])


def _switched(products: pd.Series, setting: str) -> str:
    """Did this setting take TF32 away from JAX's product? In words; an error above 0.00001 is not FP32's."""
    if products["TF32 on"] < 1e-5:
        return "no TF32 to switch off"
    return "a product stays TF32" if products[setting] > 1e-5 else "TF32 is off"


def _outcome(row: pd.Series) -> str:
    """What became of a line of an older text: the error that it raises, or what it says."""
    return f"{row['error']}: {row['says']}" if isinstance(row.get("error"), str) else f"it runs: {row['says']}"


# --- what it claims -----------------------------------------------------------------------------------------


FP32_ERROR = 1e-5  # a larger error of a product is TF32's
WHOLE = "the program's events reach the test that follows"
BROKEN = "the program's events break off before the test, so an empty table isn't a zero"
OVERRIDE = "TF32 on, NVIDIA_TF32_OVERRIDE=0"  # a setting, as bench_keras.py calls it

Runs = Mapping[str, Sequence[dict]]  # records by FP32, TF32, FP16 and BF16


def faster_than_fp32(runs: Runs) -> Iterator[Claim | str]:
    """What FP16 gains over FP32 and over TF32 in a later epoch."""
    gain, later = faster(runs, "FP32")["FP16"], later_epochs(runs)
    yield Claim(
        "in every round, a later epoch in FP16 is at least 1.2 times as fast as one in FP32",
        gain.low > 1.2,
        gain.text("×", 2),
        because="the CPU sets the pace of both, or FP16 has no Tensor Cores here to run on",
        so="mixed precision buys less here than the text says: find what an epoch waits for first",
    )
    apart = [name for name, own in later.items() if max(own) < min(later["FP32"])]
    yield f"faster than FP32 in every later epoch: {', '.join(apart) or 'none of the three'}"
    gains, over_tf32 = max(later["FP16"]) < min(later["TF32"]), epoch_ms(runs["TF32"]) / epoch_ms(runs["FP16"])
    always = "in every epoch" if gains else "but not in every epoch"
    against = f"FP16 gains over TF32, {always}" if over_tf32 > 1 else "FP16 gains nothing over TF32"
    yield f"{against}: {over_tf32:.2f} times as fast, by the medians"


def shorter_process(runs: Runs) -> Iterator[Claim | str]:
    """What FP16 gains in a whole process, and in which of its parts."""
    process = paired(runs["FP32"], runs["FP16"])
    yield Claim(
        "in every round the process in FP16 is shorter than the one in FP32", process.low > 1, process.text("×", 2),
        because="most of a short process is start and compilation, which vary from run to run",
        so="FP16 does not pay in a run as short as this one: go by the later epochs",
    )  # fmt: skip
    took = {name: parts(runs[name]) for name in ("FP32", "FP16")}
    saved = (took["FP32"] - took["FP16"]).map("{:.1f} s".format)
    yield f"FP32 less FP16: {', '.join(f'{part} {s}' for part, s in saved.items())}"
    first, later = took["FP16"][["first epoch", "later epochs"]]
    yield f"FP16: {100 * first / (first + later):.0f} % of the training's seconds are in the first epoch"


def beside_pytorch(bf16: Sequence[dict], beside: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """An epoch of Keras in BF16 against PyTorch's; ``beside``: runs of an eager script, then of a compiled one."""
    for script, records in beside.items():
        yield f"{script} (PyTorch, BF16): an epoch takes {epoch_ms(records) / 1e3:.2f} s."
    eager, compiled = (epoch_ms(bf16) / epoch_ms(records) for records in beside.values())
    yield (
        f"Keras on JAX in BF16 takes {eager:.1f} times as long an epoch as the eager step, "
        f"and {compiled:.1f} times as long as the compiled one"
    )


def on_tensor_cores(report: Report) -> Iterator[Claim | str]:
    """Kernels of FP16 on PyTorch ran on Tensor Cores, by their names; nothing is said where there are no kernels."""
    by_name = verdicts(report).groupby("tensor_core")["gpu_ms"].sum()
    if by_name.empty:
        return
    used = by_name.get("yes", 0.0)
    yield Claim(
        "in FP16 on PyTorch, kernels run on Tensor Cores", used > 0,
        ", ".join(f"{verdict}: {ms:.0f} ms" for verdict, ms in by_name.items()),
        because="this GPU has none, or its kernels' names are newer than the rules for them",
        so="go by the counter further down, not by the names",
    )  # fmt: skip
    yield f"on Tensor Cores: {100 * used / by_name.sum():.0f} % of the kernel time"


def whole_reports(reports: Mapping[str, Report]) -> Iterator[Claim | str]:
    """Which reports reach the test."""
    for name, report in reports.items():
        yield f"{name}: {WHOLE if report.windows('test') else BROKEN}"


def counters_tell(counted: Mapping[str, Counted], runs: Runs) -> Iterator[Claim | str]:
    """Tensor Active is high in FP16 alone, FP16 pauses more, the kernels lie between the bounds; where sampled."""
    for name in ("FP32", "FP16"):
        own = counted[f"{name} on JAX"]
        if own.least is not None:
            bar_ms, alone_ms = own.steps.duration_ms, epoch_ms(runs[name])
            yield f"{name}: the bar is {bar_ms:.0f} ms long, an epoch without the profiler {alone_ms:.0f} ms."
    if not _sampled(counted):
        return
    highest = {name: one.tensor.max_pct for name, one in counted.items()}
    peaks = ", ".join(f"{name} {pct:.0f} %" for name, pct in highest.items())
    yield Claim(
        "in FP16 Tensor Active reaches 10 %, on JAX and on PyTorch",
        min(highest["FP16 on JAX"], highest["FP16 on PyTorch"]) >= 10,
        peaks,
        because="this GPU has no Tensor Cores for FP16, or the library chose other kernels",
        so="FP16 does not reach the Tensor Cores here: it saves bytes, no arithmetic",
    )
    yield Claim(
        "in FP32 it never does", highest["FP32 on JAX"] < 10, peaks,
        because="FP32 is emulated on Tensor Cores, or another program used them",
        so="a reading of 10 % or more is no evidence of FP16 on this GPU",
    )  # fmt: skip
    own = [one for one in counted.values() if one.by_kernels is not None]
    yield Claim(
        "what the kernels say lies between the counter's bounds, to one point",
        all(one.least - 0.01 <= one.by_kernels <= one.most + 0.01 for one in own),
        ", ".join(f"{one.by_kernels:.3f} in {one.least:.3f}–{one.most:.3f}" for one in own),
        because="the counter sees every program on the GPU, and a report may have lost kernels",
        so="the bounds are no better than the report: do not build on them here",
    )
    bounds = ", ".join(f"{name} {100 * one.least:.0f} to {100 * one.most:.0f} %" for name, one in counted.items())
    yield Claim(
        "on JAX, the least that FP16 pauses is more than the most that FP32 can pause",
        counted["FP16 on JAX"].least > counted["FP32 on JAX"].most,
        bounds,
        because="a slower GPU is busy in FP16 too, and a slower CPU leaves it waiting in FP32 too",
        so="where FP16 hardly pauses, faster arithmetic still pays",
    )


def idles_for(reports: Mapping[str, Report], counted: Mapping[str, Counted]) -> Iterator[Claim | str]:
    """What the GPU idles for, where a report tells, and how much of a budget is unexplained."""
    for name, report in reports.items():
        own, is_whole = budget(report), bool(report.windows("test"))
        if is_whole and len(report.kernels):
            yield f"{name}: the GPU idles mostly for this: {CAUSES[max(IDLE, key=own.ms.get)]}"
        if _sampled(counted):
            yield f"{name}: {100 * own.fractions['unexplained']:.0f} % of the budget is unexplained"
        elif not is_whole:
            yield f"{name}: breaks off, and no counter saw the work that is lost: no budget"


def _sampled(counted: Mapping[str, Counted]) -> bool:
    """Were the counters read in all three profiles?"""
    on_jax = (counted["FP32 on JAX"].least, counted["FP16 on JAX"].least)
    return all(one.tensor for one in counted.values()) and None not in on_jax


def float32_is(tried: Tried) -> Iterator[Claim | str]:
    """In what each backend computes a product of float32, as it comes and under two variables of the environment."""
    errors = _errors(tried)
    free = {backend: found.loc["as it comes", "product_error"] for backend, found in errors.items()}
    told = ", ".join(f"{backend} {error:.0e}" for backend, error in free.items())
    yield Claim(
        "PyTorch computes float32 products in FP32 as it comes", free["torch"] < FP32_ERROR, told,
        because="another version has another default, or a variable of the environment sets it",
        so="your FP32 baselines in PyTorch are TF32, unless you say otherwise",
    )  # fmt: skip
    if errors["torch"].loc["TF32 on", "product_error"] > FP32_ERROR:
        yield Claim(
            "JAX computes them in TF32 as it comes", free["jax"] > FP32_ERROR, told,
            because="JAX runs on the CPU here, or another version has another default",
            so="float32 is FP32 here: the speedups over it are honest",
        )  # fmt: skip
    else:
        yield "this GPU has no TF32 (Ampere and later do): the rows cannot differ"
    of_torch, of_jax = (errors[backend].loc[OVERRIDE] for backend in ("torch", "jax"))
    yield Claim(
        "NVIDIA_TF32_OVERRIDE=0 makes PyTorch's product FP32 again, and JAX's convolution",
        max(of_torch["product_error"], of_jax["convolution_error"]) < FP32_ERROR,
        f"{of_torch['product_error']:.0e}, {of_jax['convolution_error']:.0e}",
        because="a kernel ran that is none of NVIDIA's libraries', and need not ask the variable",
        so="use the framework's own switch, and measure the error",
    )
    error = of_jax["product_error"]
    obeys = "is FP32" if error < FP32_ERROR else "stays TF32"
    yield f"on JAX, with the variable, the product {obeys} (error {error:.0e})"
    for backend, found in errors.items():
        (disabled,) = found.index[found.index.str.contains("TENSOR_OP_MATH")]
        change = found.loc[disabled, "product_error"] / found.loc["TF32 on", "product_error"]
        does = "nothing" if 0.5 < change < 2 else f"this: an error {change:.2g} times as large"
        yield f"TF_DISABLE_TENSOR_OP_MATH=1 does to a product on {backend}: {does}"


def _errors(tried: Tried) -> dict[str, pd.DataFrame]:
    """Errors of a product and a convolution by backend, a row a setting."""
    return {backend: told["precision"].set_index("setting") for backend, told in tried.items()}


def without_compilation(compiled: Sequence[dict], no_jit: Sequence[dict]) -> Iterator[Claim | str]:
    """How much longer an epoch in FP16 takes without ``jit_compile``."""
    longest = max(epoch["training_s"] for record in compiled for epoch in record["epochs"][1:])
    off = min(epoch["training_s"] for epoch in no_jit[0]["epochs"][1:])
    yield Claim(
        "without compilation every later epoch takes at least ten times as long as any with it", off > 10 * longest,
        f"{off / longest:.1f} times",
        because="where each operation takes long (a slow GPU, a CPU), its start costs next to nothing",
        so="compilation gains less here: decide by the two rows above",
    )  # fmt: skip
    times = off / (epoch_ms(compiled) / 1e3)
    yield f"without compilation an epoch is {times:.0f} times as long"


# --- its exercises ------------------------------------------------------------------------------------------


Reports = Mapping[str, Report]  # by arithmetic and backend


def _if_sampled(found: Counted) -> Counted:
    """It, where the counters were read."""
    if found.least is None:
        raise NothingToAnswer("the GPU's counters were not read here")
    return found


def _step_ms(reports: Reports, runs: Runs, name: str = "FP16 on JAX") -> float:
    """Milliseconds of a profiled training step, by the bar above its counters."""
    return _if_sampled(counted(reports[name])).steps.duration_ms / _steps(runs)


def _steps(runs: Runs) -> int:
    """Training steps of an epoch."""
    run = runs["FP16"][0]
    return -(-run["train_samples"] // run["arguments"]["batch_size"])


STEP_LENGTH = Number(
    READ,
    "How long is the black bar, on the axis below it? Share that out among the steps.",
    right=_step_ms,
    wrong={
        "that is the whole bar: all steps of the epoch lie below it": lambda reports, runs: (
            counted(reports["FP16 on JAX"]).steps.duration_ms
        ),
        "that shares out all that is shown: the test is in it": lambda reports, runs: (
            reports["FP16 on JAX"].window().duration_ms / _steps(runs)
        ),
        "that is a step in FP32: FP16 is one row further down": lambda reports, runs: _step_ms(
            reports, runs, "FP32 on JAX"
        ),
        "that is a step on PyTorch, in the last row": lambda reports, runs: _step_ms(reports, runs, "FP16 on PyTorch"),
        "that is for how long kernels run in a step: the pauses belong to it": lambda reports, runs: (
            _step_ms(reports, runs) * (1 - counted(reports["FP16 on JAX"]).least)
        ),
    },
    within=0.1,  # read off a picture
)


def _try_pause_bounds(pause_bounds: Callable) -> str | None:
    for samples, least, most in (
        ([0, 100], 0.5, 0.5),
        ([50, 50, 50], 0.0, 0.5),
        ([0, 0, 0, 20], 0.75, 0.95),
        ([100] * 4, 0.0, 0.0),
        ([0.4, 99.6], 0.0, 0.5),
    ):
        found = each_of(pause_bounds(list(samples)), "two shares are wanted, the least and the most: two numbers are")
        if len(found) != 2:
            return f"it returns {len(found)} numbers: two shares are wanted, the least and the most"
        found = [number(one) for one in found]
        if max(found) > 1:
            return "two shares between 0 and 1 are wanted, and these look like per cent"
        if not np.isclose(found[0], least):
            return f"the least is {found[0]:g} for {samples}: no kernel ran for certain only where a sample reads 0"
        if not np.isclose(found[1], most):
            return f"the most is {found[1]:g} for {samples}: kernels take the least time if all SMs work at once"
    return None


def _mean_only(samples):
    return 1 - sum(samples) / len(samples) / 100


def _bounds(least: Callable, most: Callable) -> Callable:
    return lambda samples: (least(samples), most(samples))


PAUSE_BOUNDS = Code(
    "Least: the share of samples that read 0. Most: kernels that fill all SMs would need only the samples' mean.",
    _try_pause_bounds,
    wrong={
        "two shares are wanted": _mean_only,
        "the least is 1 for": _bounds(lambda s: sum(one < 30 for one in s) / len(s), _mean_only),
        "the most is 0 for": _bounds(*[lambda s: s.count(0) / len(s)] * 2),
        "the least is 0 for [0, 100]": _bounds(lambda s: 0.0, _mean_only),
        "look like per cent": _bounds(lambda s: 100 * s.count(0) / len(s), lambda s: 100 * _mean_only(s)),
        "the most is 1 for": _bounds(lambda s: s.count(0) / len(s), lambda s: 1.0),
    },
)


WITHOUT_PAUSES = Number(
    BOUND,
    "What is certainly a pause goes, the rest of the time stays: one over that rest.",
    right=lambda pauses: 1 / (1 - _if_sampled(pauses).least),
    wrong={
        "that is the upper bound of the pauses: not all of it is certain": lambda pauses: 1 / (1 - pauses.most),
        "that is one over the pauses: what is left is the rest": lambda pauses: 1 / pauses.least,
        "that is the share that stays: how many times as fast is that?": lambda pauses: 1 - pauses.least,
        "that is the share that goes: how many times as fast is what stays?": lambda pauses: pauses.least,
        "that adds the pauses to the epoch: they leave it": lambda pauses: 1 + pauses.least,
    },
)

EXERCISES = {"17.1": STEP_LENGTH, "17.2": PAUSE_BOUNDS, "17.3": WITHOUT_PAUSES}


# --- what it asks before it shows ---------------------------------------------------------------------------


def _pauses(counted: Mapping[str, Counted]) -> tuple[float, float] | float:
    """Per cent of FP16's steps on JAX without a kernel, at least and at most; nan where the counter was not read."""
    fp16 = counted["FP16 on JAX"]
    return math.nan if fp16.least is None else (100 * fp16.least, 100 * fp16.most)


def _ran_pct(counted: Mapping[str, Counted]) -> float:
    return 100 * (1 - counted["FP16 on JAX"].most)


PREDICTIONS = {
    "times": Guess(
        "an epoch in FP16 on JAX", "×", lambda runs: faster(runs, "FP32")["FP16"].median,
        wrong={
            "That's the whole process. In the later epochs nothing is compiled.": (
                lambda runs: paired(runs["FP32"], runs["FP16"]).median
            ),
            "Half the bytes would gain that, if the GPU never waited.": lambda runs: 2.0,
            "FP16 gains something, because FP32 keeps the GPU busy.": lambda runs: 1.0,
        },
    ),
    "pause_pct": Guess(
        "time without a kernel", " %", _pauses,
        wrong={
            "That's FP32, at most. FP16's kernels are shorter, the CPU's work isn't, so its pauses are longer.": (
                lambda counted: 100 * counted["FP32 on JAX"].most
            ),
            "For so long kernels run at the least. The question was about the rest.": _ran_pct,
            "For so long the Tensor Cores don't work, on average. Other kernels run in that time, too.": (
                lambda counted: 100 - counted["FP16 on JAX"].tensor.mean_pct
            ),
        },
    ),
}  # fmt: skip
