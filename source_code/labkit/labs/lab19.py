"""Lab 19: the driver's utilisation sees one thread as a busy GPU; its counters and its energy say more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isclose
from statistics import fmean

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkit import source
from labkit.checks import Claim
from labkit.display import style
from labkit.display.charts.bars import key
from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.numbers import NotANumber, Quantity, number, shown
from labkit.predictions import Guess
from labkit.source import kinds
from labkit.source.command import profile_command
from labkit.subjects import nvml
from labkit.subjects.floors import EPOCHS
from stepbudget import ask
from stepbudget.report import Report
from stepbudget.show.table import Table, table
from stepbudget.window import Window

SAID, WORKED = "utilisation (nvidia-smi)", "any work (trace)"
SMS, TENSOR = "SMs Active (counter)", "Tensor Active (counter)"
NOTHING, THREAD, PRODUCT = "nothing", "one_kernel.py thread", "one_kernel.py product"
BASELINE, STEP_2, STEP_3, STEP_4, STEP_7 = (f"main_{name}.py" for name in ("baseline", "opt2", "opt3", "opt4", "opt7"))
SMALL = 8.5  # points
PROFILES = {BASELINE: "main_baseline_nvtx", STEP_2: "main_opt2", STEP_4: "main_opt4", STEP_7: "main_opt7"}
WITH_GRAPHS = ("--cuda-graph-trace", "node")  # flags of nsys for a step that replays a graph
MULTIPROCESSORS, THREADS_EACH = 132, 2048  # of an H200, and how many threads each of them holds

# How much of the GPU is at work, from the widest meaning to the narrowest.
MEANINGS = {SAID: style.MUTED, WORKED: style.SKY, SMS: style.BLUE, TENSOR: style.GREEN}
# What the driver's performance monitoring (GPM) counts → what Nsight Systems calls the same.
SAME_COUNTERS = {"sm_pct": SMS, "tensor_pct": TENSOR, "dram_pct": "DRAM bandwidth (counter)"}


def short_program(program: dict) -> str:
    """The program's name without its flags: ``main_opt4.py --epochs 25`` → ``main_opt4.py``"""
    return program["program"].split(" --")[0]


def by_name(programs: Sequence[dict]) -> dict[str, dict]:
    """Each program of ``bench_nvml.py`` by its name without flags."""
    return {short_program(program): program for program in programs}


def driver(programs: Sequence[dict]) -> Table:
    """What the driver's counters say of each program on average: while it trains, or while its kernel runs.

    The power is the energy counter's difference over the time: the driver's own power lags behind a short program.
    NaN: the driver does not say.
    """
    names = {
        "gpu_pct": "utilisation %", "memory_pct": "memory %", "used_mb": "MB in use", "sm_mhz": "SM MHz",
        "temperature_c": "°C",
    }  # fmt: skip
    rows = []
    for program in programs:
        samples, (start, end) = nvml.from_text(program["samples"]), nvml.busy_stretch(program)
        found = {name: nvml.mean(samples, column, start, end) for column, name in names.items()}
        watts = nvml.energy_j(samples, start, end) / (end - start)
        rows.append({"program": short_program(program), "W": watts, **found})
    utilisation, *others = names.values()
    measured = [utilisation, "W", *others]
    frame = pd.DataFrame(rows)[["program", *measured]]
    return table(frame, "What the driver says, on average", dict.fromkeys(measured, "{:,.0f}"))


def utilisation(programs: Sequence[dict]) -> Figure:
    """The driver's utilisation over the run of each program, a panel each, on the same scale of time.

    The stretch between the two marks is what the averages are about. Without the GPU that is left alone.
    """
    programs = _at_work(programs)
    longest = max(program["process_s"] for program in programs)
    with style.chart(0.7 + 0.85 * len(programs), len(programs), 1, sharex=True) as (fig, axes):
        for ax, program in zip(axes, programs, strict=True):
            samples = nvml.from_text(program["samples"])
            ax.fill_between(samples["t_s"], samples["gpu_pct"], step="post", color=style.SKY, linewidth=0)
            if samples["gpu_pct"].isna().all():
                ax.text(longest / 2, 50, "the driver does not say", ha="center", va="center", size=SMALL)
            for edge in nvml.busy_stretch(program):
                ax.axvline(edge, color=style.VERMILION, linewidth=1)
            ax.set(ylim=(0, 105), xlim=(0, longest))
            ax.set_title(short_program(program), size=SMALL + 0.5, pad=3)
            ax.grid(axis="y")
        axes[-1].set_xlabel("seconds since the program started; utilisation, %", size=9)
    return fig


def _at_work(programs: Sequence[dict]) -> list[dict]:
    """Without the GPU that is left alone."""
    return [program for program in programs if program["program"] != NOTHING]


def usual_utilisation(program: dict) -> float:
    """The median of the driver's utilisation while a program was busy, in per cent; NaN where the driver says none."""
    samples = nvml.from_text(program["samples"])
    return float(samples.loc[samples["t_s"].between(*nvml.busy_stretch(program)), "gpu_pct"].median())


def at_work(report: Report) -> dict[str, float]:
    """How busy the GPU was in a report's training, in per cent: three of the meanings of MEANINGS, and the memory.

    ``"DRAM bandwidth (counter)"`` adds up reading and writing. NaN: not counted. Where the report marks no training:
    from the start of its first kernel to the end of its last.
    """
    window = report.window()
    if window.thread is None and len(report.kernels):
        window = Window(int(report.kernels["start"].min()), int(report.kernels["end"].max()), "kernels")
    found = {WORKED: 100 * (1 - ask.idle.idle(report, window).idle_share)}
    counters = {"SMs Active": ["SMs Active"], "Tensor Active": ["Tensor Active"]}
    counters["DRAM bandwidth"] = ["DRAM Read Bandwidth", "DRAM Write Bandwidth"]
    for name, parts in counters.items():
        found[f"{name} (counter)"] = sum(_mean_counter(report, part, window) for part in parts)
    return found


def counted(one_thread: Report) -> dict[str, dict[str, float]]:
    """``at_work`` of the step scripts' reports, which are not shown, and of this one."""
    found = {}
    for step, name in PROFILES.items():
        command = profile_command(name, f"{name}.py --profile --epochs 2", WITH_GRAPHS if step == STEP_7 else ())
        found[step] = at_work(source.current().get(kinds.profile(command), lambda line: None))
    return found | {THREAD: at_work(one_thread)}


def _mean_counter(report: Report, name: str, window: Window) -> float:
    """Mean of a sampled counter within the window; NaN where it was not sampled."""
    samples = report.counter(name, window)
    return float(samples.loc[samples["time"].between(window.start, window.end, inclusive="left"), "value"].mean())


def meanings(programs: Sequence[dict], at_work: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """How busy is the GPU? For each program of ``at_work`` the driver's mean utilisation, then what stands there."""
    said = driver(programs).frame.set_index("program")["utilisation %"]
    return {name: {SAID: float(said[name]), **found} for name, found in at_work.items()}


def meaning_bars(rows: Mapping[str, Mapping[str, float]]) -> Figure:
    """How busy is the GPU? For each program one bar a meaning of the word, in per cent.

    ``rows`` maps a program to {meaning: per cent}, with the meanings of MEANINGS; what was not measured is left out.
    """
    high = 0.8 / len(MEANINGS)
    with style.chart(1.0 + 0.62 * len(rows)) as (fig, ax):
        for place, found in enumerate(rows.values()):
            for number, (meaning, colour) in enumerate(MEANINGS.items()):
                value = found.get(meaning)
                if value is None or np.isnan(value):
                    continue
                y = place + high * (number - (len(MEANINGS) - 1) / 2)
                ax.barh(y, value, 0.9 * high, color=colour, linewidth=0)
                words = f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"
                place_of = {"textcoords": "offset points", "va": "center", "size": SMALL - 1.5}
                ax.annotate(words, (value, y), (4, 0), **place_of)
        ax.set(xlim=(0, 112), ylim=(len(rows) - 0.45, -0.55), xlabel="per cent of the time, or of the GPU")
        ax.set_yticks(range(len(rows)), list(rows))
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_title("How busy is the GPU? It depends on whom you ask")
        key(fig, MEANINGS, len(MEANINGS))
    return fig


def gpm_and_nsight(programs: Sequence[dict], at_work: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """The driver's performance monitoring beside Nsight Systems' counters, in per cent, a row a program.

    ``at_work`` maps a program to what Nsight's counters say of it, as the function of that name does. Columns:
    ``program``, then for each of SAME_COUNTERS the driver's mean and Nsight's, ``("sm_pct", "driver")`` and so on.
    NaN: not counted, or not profiled.
    """
    rows = []
    late = 2 * nvml.GPM_PERIOD_S  # a value is of the tenth of a second before it was read, and stands for another
    for program in _at_work(programs):
        samples, (start, end) = nvml.from_text(program["samples"]), nvml.busy_stretch(program)
        other = at_work.get(short_program(program), {})
        row = {("program", ""): short_program(program)}
        for column, name in SAME_COUNTERS.items():
            row[column, "driver"] = nvml.mean(samples, column, start + late, end)
            row[column, "Nsight"] = other.get(name, float("nan"))
        rows.append(row)
    return pd.DataFrame(rows).set_axis(pd.MultiIndex.from_tuples(rows[0]), axis=1)


def both_counters(programs: Sequence[dict], at_work: Mapping[str, Mapping[str, float]]) -> Table:
    """``gpm_and_nsight`` as a table."""
    frame = gpm_and_nsight(programs, at_work)
    words = {"sm_pct": "SMs", "tensor_pct": "Tensor", "dram_pct": "DRAM"}
    frame.columns = [f"{words[column]} %, {whose}" if whose else column for column, whose in frame.columns]
    measured = list(frame.columns[1:])
    formats = dict.fromkeys(measured, "{:.1f}")
    return table(frame, "How much of it was busy: the driver's counters (GPM) and Nsight Systems'", formats)


def freshness(program: dict) -> Table:
    """How often the driver had a new value while a program ran, a row a counter."""
    samples = nvml.from_text(program["samples"])
    names = {"gpu_pct": "utilisation", "power_w": "power", "energy_j": "energy"}
    rows = [(name, 1e3 * nvml.update_period_s(samples, column)) for column, name in names.items()]
    asked_ms = 1e3 * samples["t_s"].diff().median()
    caption = f"{short_program(program)}, asked every {asked_ms:.0f} ms"
    frame = pd.DataFrame(rows, columns=["counter", "new every ms"])
    return table(frame, caption, {"new every ms": "{:.0f}"})


def energy(programs: Sequence[dict]) -> Table:
    """Seconds, joules and watts of each training, a row a program; those that train nothing are left out.

    Start-up: until the first epoch is over. An epoch: the mean of those after it. All: ten epochs and the start.
    """
    formats = {
        "start-up s": "{:.1f}", "start-up J": "{:,.0f}", "an epoch s": "{:.3f}", "an epoch J": "{:,.1f}",
        "W": "{:,.0f}", "all s": "{:,.0f}", "all J": "{:,.0f}",
    }  # fmt: skip
    rows = []
    for program in programs:
        ends = program["epoch_ends_s"]
        if len(ends) < 2:
            continue
        samples = nvml.from_text(program["samples"])
        epoch_s = (ends[-1] - ends[0]) / (len(ends) - 1)
        epoch_j = nvml.energy_j(samples, ends[0], ends[-1]) / (len(ends) - 1)
        start_j = nvml.energy_j(samples, 0, ends[0])
        all_s, all_j = ends[0] + (EPOCHS - 1) * epoch_s, start_j + (EPOCHS - 1) * epoch_j
        rows.append((short_program(program), ends[0], start_j, epoch_s, epoch_j, epoch_j / epoch_s, all_s, all_j))
    caption = f"Energy of the board, from the driver's counter; the last columns: {EPOCHS} epochs"
    return table(pd.DataFrame(rows, columns=["program", *formats]), caption, formats)


# --- what it claims -----------------------------------------------------------------------------------------


def one_thread(programs: Sequence[dict]) -> Iterator[Claim | str]:
    """What the driver says of a single thread: that the whole GPU is used."""
    utilisation_pct = usual_utilisation(by_name(programs)[THREAD])
    if pd.isna(utilisation_pct):
        yield "no utilisation here (as in a MIG slice): ask the power, or SMs Active"
        return
    yield Claim(
        "one thread on the whole GPU: the driver says more than 90 %", utilisation_pct > 90, utilisation_pct,
        because="the driver of another GPU may count in another way",
        so="this utilisation is no share of time: find out what it is before you use it",
    )  # fmt: skip


def power(said: Table) -> Iterator[Claim | str]:
    """A large product draws more power than one thread; ``said``: what the driver says, of ``driver()``."""
    one, product = (_rows(said).loc[name] for name in (THREAD, PRODUCT))
    if pd.notna(product["W"]):
        yield (
            f"the large product: {product['W'] / one['W']:.1f} times the power of the one thread, "
            f"at {product['SM MHz']:,.0f} MHz against {one['SM MHz']:,.0f}"
        )


def busy(meanings: Mapping[str, Mapping[str, float]], thread: Report) -> Iterator[Claim | str]:
    """Utilisation sees a starving GPU, and the counters a GPU that is used little; ``thread``: of the one thread."""
    points = {name: said[SAID] - said[WORKED] for name, said in meanings.items()}
    told = {name: own for name, own in points.items() if thread.gpu is not None and pd.notna(own)}
    listed = ", ".join(f"{name} {own:+.0f}" for name, own in told.items())
    yield f"utilisation minus any work, in points: {listed or 'not told here'}"
    baseline_pct, sms = meanings[BASELINE][SAID], meanings[THREAD][SMS]
    if pd.notna(baseline_pct):
        yield Claim(
            "a starving GPU is seen: the baseline's mean is below 30 %", baseline_pct < 30, baseline_pct,
            because="a slower GPU starves less, and faster cores feed it better",
            so=f"from {baseline_pct:.0f} % it can't rise as far as from 5 %: more workers gain less than in lab 2",
        )  # fmt: skip
    if thread.gpu is not None and pd.notna(sms):
        yield Claim(
            "and one thread is told from a busy GPU: it keeps 3 % of the SMs or fewer active", sms <= 3, sms,
            because="another program used the GPU, whose counters see all, or it has few SMs",
            so="take counters on a GPU that you have to yourself",
        )  # fmt: skip
    (low, high), (less, more) = ([meanings[step][name] for step in (STEP_4, STEP_7)] for name in (SAID, TENSOR))
    if less > 0 and low > 0:  # not where a counter is missing (nan)
        yield Claim(
            "step 4 to 7: Tensor Active at least doubles, and grows twice as much as GPU-Util",
            more / less > max(2, 2 * high / low), f"{more:.1f} after {less:.1f} %",
            because="an older GPU computes step 7 with other kernels, or a slow CPU leaves it idle in step 4",
            so=f"Tensor Active grows {more / less:.1f} times here, the utilisation {high / low:.1f}",
        )  # fmt: skip


def counters(both: Table, thread: Report) -> Iterator[Claim | str]:
    """The driver's counters tell one thread from a product, and agree with Nsight's in step 7.

    ``both``: of ``both_counters()``; ``thread``: a report of the one thread.
    """
    frame = _rows(both)
    gpm, counted = (
        frame.filter(like=whose).rename(columns=lambda name: name.partition(" %")[0])
        for whose in (", driver", ", Nsight")
    )
    if thread.gpu is not None and gpm.notna().all(axis=None):
        one, large = gpm.loc[THREAD], gpm.loc[PRODUCT]
        yield f"One thread, by the driver: {one['SMs']:.2f} % of the SMs."
        yield Claim(
            "GPM tells one thread from a large product: under 3 % of the SMs, and over half",
            one["SMs"] < 3 and large[["SMs", "Tensor"]].min() > 50,
            f"{one['SMs']:.1f} and {large['SMs']:.0f} % of the SMs",
            because="another program used the GPU, or its library takes another kernel for the product",
            so="take counters on a GPU that you have to yourself",
        )
    else:
        yield "No GPM, or not all of it: it takes Hopper or later, and a driver that lets you read it."
    step_4, step_7 = (gpm - counted).abs().max(axis=1, skipna=False)[[STEP_4, STEP_7]]
    if pd.isna(step_7):
        yield "Nothing to compare: Nsight Systems or the driver counted nothing here."
        return
    yield f"driver and Nsight: step 4 {step_4:.0f} points apart, step 7 {step_7:.1f}"
    yield Claim(
        "in step 7, all three counters agree to 5 points", step_7 < 5, step_7,
        because="these are two runs, and something else kept the GPU busy in one of them",
        so="read either counter to that many points only",
    )  # fmt: skip


def energy_floor(said: Table, joules: Table) -> Iterator[Claim | str]:
    """What faster kernels alone leave of step 2's energy; ``said``: of ``driver()``, ``joules``: of ``energy()``."""
    if _has_energy(joules):
        yield (
            f"an epoch of step 2 takes {_rows(joules).loc[STEP_2, 'an epoch J']:.0f} J, an idle GPU "
            f"{_floor_j(said, joules):.0f} J in that time: while the loader sets the pace, "
            "faster kernels can't get below that"
        )


def energy_saved(said: Table, joules: Table) -> Iterator[Claim | str]:
    """Mixed precision saves energy, as far as the bound allows; the arguments of ``energy_floor``."""
    if not _has_energy(joules):
        return
    before, after = (_rows(joules).loc[step] for step in (STEP_2, STEP_3))
    yield f"step 3's epoch takes {after['an epoch s'] / before['an epoch s']:.2f} times the time of step 2's"
    yield Claim(
        "mixed precision takes less energy for an epoch, and not below the bound",
        _floor_j(said, joules) < after["an epoch J"] < before["an epoch J"],
        f"{100 * after['an epoch J'] / before['an epoch J']:.0f} %",
        because="each program ran once, a late loader makes an epoch dear, or the GPU sets step 2's pace",
        so="energy and time went together here: run both steps again before you conclude",
    )


def least_energy(said: Table, of_program: pd.DataFrame) -> Iterator[Claim | str]:
    """The fastest step draws the most power and takes the least energy; ``of_program``: of ``energy()``, a column each.

    ``said``: of ``driver()``.
    """
    slowest, fastest = (of_program[step] for step in (BASELINE, STEP_7))
    if slowest.isna().any() or fastest.isna().any():
        yield "This GPU does not count its energy: no answer here."
        return
    watts, energy, whole = (100 * fastest[one] / slowest[one] for one in ("W", "an epoch J", "all J"))
    yield (
        f"step 7 against the baseline: {watts / 100:.1f} times the power, "
        f"{energy:.1f} % of an epoch's energy, {whole:.0f} % of a whole run's"
    )
    listed = " and ".join(f"{100 * own['start-up J'] / own['all J']:.0f} %" for own in (slowest, fastest))
    yield f"the start's share of all the energy, in these two: {listed}"
    yield f"the baseline draws {slowest['W']:.0f} W, an idle GPU {_rows(said).loc[NOTHING, 'W']:.0f} W"
    yield Claim(
        "step 7 takes less than a tenth of the baseline's energy for an epoch", energy < 10, energy,
        because="a slow GPU works for most of the baseline's epoch, too",
        so=f"it takes {energy:.0f} % here",
    )  # fmt: skip


def _rows(found: Table) -> pd.DataFrame:
    """A table's frame by its programs."""
    return found.frame.set_index("program")


def _has_energy(joules: Table) -> bool:
    return bool(joules.frame["an epoch J"].notna().all())


def _floor_j(said: Table, joules: Table) -> float:
    """What an idle GPU takes in the time of step 2's epoch."""
    return _rows(said).loc[NOTHING, "W"] * _rows(joules).loc[STEP_2, "an epoch s"]


# --- its predictions ----------------------------------------------------------------------------------------


def _of_step_2_pct(joules: Table, column: str) -> float:
    """Step 3's share of what an epoch of step 2 takes."""
    found = _rows(joules)[column]
    return 100 * found[STEP_3] / found[STEP_2]


PREDICTIONS = {
    "one_thread": Guess(
        "GPU-Util of one thread", " %", lambda programs: usual_utilisation(by_name(programs)[THREAD]),
        wrong={
            "That's its share of the multiprocessors.": lambda programs: 100 / MULTIPROCESSORS,
            "That's its share of the threads that fit.": lambda programs: 100 / (MULTIPROCESSORS * THREADS_EACH),
        },
    ),
    "energy_pct": Guess(
        "step 3's energy for an epoch", " %", lambda said, joules: _of_step_2_pct(joules, "an epoch J"),
        wrong={
            "That's its share of the time. But while the GPU rests, it draws less.": (
                lambda said, joules: _of_step_2_pct(joules, "an epoch s")
            ),
            "That's the bound. Its kernels still take some time.": (
                lambda said, joules: 100 * _floor_j(said, joules) / _rows(joules).loc[STEP_2, "an epoch J"]
            ),
        },
    ),
}  # fmt: skip


# --- its exercises ------------------------------------------------------------------------------------------


def _farthest(programs: Sequence[dict]) -> str:
    training = [program for program in programs if len(program["epoch_ends_s"]) > 1]
    said = driver(training).frame.set_index("program")["utilisation %"]
    active = gpm_and_nsight(training, {}).set_index(("program", ""))["sm_pct", "driver"]
    apart = (said - active).dropna()
    return apart.idxmax() if len(apart) else "none of them"


FLATTERED = Choice(
    READ,
    "Take the driver's SMs away from its utilisation, a step at a time.",
    right=_farthest,
    wrong={
        "main_opt7.py": "its utilisation is the highest, and nearly as many of its SMs have work",
        "main_baseline.py": "the GPU idles for most of its time, and both numbers say so",
        "main_opt2.py": "its loader makes the GPU wait: both numbers are low, and close to each other",
        "one_kernel.py thread": "farther apart than any, but it is no step, and trains nothing",
        "one_kernel.py product": "that one fills the GPU, and is no step",
    },
)


def _joules(step: str) -> Quantity:
    return Quantity(lambda programs: float(energy(programs).frame.set_index("program")["all J"][step]))


LEFT = _joules(STEP_4) / _joules(BASELINE)
ENERGY_SAVED = Number(
    BOUND,
    "One minus what step 4 needs over what the baseline needs, start-up and ten epochs, in per cent.",
    right=100 * (1 - LEFT),
    wrong={
        "that is what step 4 still needs: by how much is it less?": 100 * LEFT,
        "that is a share of 1: in per cent it is a hundred times as much": 1 - LEFT,
        "those are joules: what share of the baseline's are they?": _joules(BASELINE) - _joules(STEP_4),
        "that is how many times as much the baseline needs": 1 / LEFT,
        "that is held against step 4, not against the baseline": 100 * (1 / LEFT - 1),
    },
)

# Power as nvidia-smi writes it down: now and then a reading is late, and the first is not at 0.
TIMES_S = (10.0, 10.5, 11.0, 13.0, 13.5)

POWER_W = (100.0, 300.0, 300.0, 100.0, 100.0)
JOULES = 700.0


def _try_joules(joules: Callable) -> str | None:
    given = joules(list(TIMES_S), list(POWER_W))
    try:
        found = number(given)
    except NotANumber:
        return f"it returns {shown(given)}, not a number"
    said = {
        900.0: "it adds up watts: a joule is a watt for a second, and the readings are not a second apart",
        450.0: "it takes all readings to be as far apart as the first two: one came late",
        630.0: "it takes the mean of the readings: one of them stands for two seconds, others for a half",
        787.5: "it takes all readings to be equally far apart: one came late",
        2430.0: "the first reading is not at 0 seconds: only the time between first and last counts",
        850.0: "each reading stands until the next there: between two, take the mean of both",
        550.0: "each reading stands for the time before it there: between two, take the mean of both",
        0.7: "those are kilojoules",
    }
    for wrong, why in said.items():
        if isclose(found, wrong, rel_tol=1e-6):
            return why
    if not isclose(found, JOULES, rel_tol=1e-6):
        return f"{found:g} is not it: from 10 s to 13.5 s, at 100 to 300 W, it is {JOULES:g} J"
    if not isclose(once := number(joules([4.0, 5.5], [50.0, 71.0])), 90.75, rel_tol=1e-6):
        return f"two readings, 50 and 71 W, 1.5 seconds apart, are 90.75 J: it says {once:g}"
    return None


def _rule(height: Callable[[float, float], float]) -> Callable:
    """Joules by some height between two"""

    def joules(times_s, power_w):
        spans = zip(pairwise(times_s), pairwise(power_w), strict=True)
        return sum((after - before) * height(*watts) for (before, after), watts in spans)

    return joules


JOULES_FROM_POWER = Code(
    "Go from one reading to the next: the seconds between them, times the mean of the two powers. Add all of that up.",
    _try_joules,
    wrong={
        "it adds up watts": lambda times_s, power_w: sum(power_w),
        "as far apart as the first two": lambda times_s, power_w: (times_s[1] - times_s[0]) * sum(power_w),
        "it takes the mean of the readings": lambda times_s, power_w: fmean(power_w) * (times_s[-1] - times_s[0]),
        "to be equally far apart": lambda times_s, power_w: (times_s[-1] - times_s[0]) * sum(power_w) / 4,
        "the first reading is not at 0 seconds": lambda times_s, power_w: fmean(power_w) * times_s[-1],
        "each reading stands until the next": _rule(lambda before, after: before),
        "each reading stands for the time before it": _rule(lambda before, after: after),
        "those are kilojoules": lambda times_s, power_w: _rule(lambda before, after: (before + after) / 2e3)(
            times_s, power_w
        ),
        "from 10 s to 13.5 s": lambda times_s, power_w: max(power_w) * (times_s[-1] - times_s[0]),
        "are 90.75 J": lambda times_s, power_w: JOULES,
        "it returns nan, not a number": lambda times_s, power_w: float("nan"),
    },
)

EXERCISES = {"19.1": FLATTERED, "19.2": ENERGY_SAVED, "19.3": JOULES_FROM_POWER}
