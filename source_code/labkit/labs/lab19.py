"""What lab 19 claims: the driver's utilisation sees one thread as a busy GPU; its counters and its energy say more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from labkit.checks import Claim
from stepbudget.report import Report

SAID, WORKED = "utilisation (nvidia-smi)", "any work (trace)"
SMS, TENSOR = "SMs Active (counter)", "Tensor Active (counter)"
THREAD, PRODUCT = "one_kernel.py thread", "one_kernel.py product"
BASELINE, STEP_2, STEP_3, STEP_4, STEP_7 = (f"main_{name}.py" for name in ("baseline", "opt2", "opt3", "opt4", "opt7"))


def one_thread(utilisation_pct: float) -> Iterator[Claim | str]:
    """What the driver says of a single thread: that the whole GPU is used."""
    if pd.isna(utilisation_pct):
        yield "no utilisation here (as in a MIG slice): ask the power, or SMs Active"
        return
    yield Claim(
        "one thread on the whole GPU: the driver says more than 90 %", utilisation_pct > 90, utilisation_pct,
        because="the driver of another GPU may count in another way",
        so="this utilisation is no share of time: find out what it is before you use it",
    )  # fmt: skip


def power(driver: pd.DataFrame) -> Iterator[Claim | str]:
    """A large product draws more power than one thread; ``driver``: what the driver says, a row a program."""
    one, product = (driver.loc[name] for name in (THREAD, PRODUCT))
    if pd.notna(product["W"]):
        yield (
            f"the large product: ~{product['W'] / one['W']:.1f} times the power of the one thread, "
            f"at ~{product['SM MHz']:,.0f} MHz against ~{one['SM MHz']:,.0f}"
        )


def apart(meanings: Mapping[str, Mapping[str, float]], thread: Report) -> Iterator[Claim | str]:
    """How far the driver's utilisation and the trace's work are apart; ``thread``: a report of the one thread."""
    points = {name: said[SAID] - said[WORKED] for name, said in meanings.items()}
    told = {name: own for name, own in points.items() if thread.gpu is not None and pd.notna(own)}
    listed = ", ".join(f"{name} ~{own:+.0f}" for name, own in told.items())
    yield f"utilisation less any work, in points: {listed or 'not told here'}"


def told_from_busy(meanings: Mapping[str, Mapping[str, float]], thread: Report) -> Iterator[Claim | str]:
    """Utilisation sees a starving GPU, and the counters a GPU that is used little; the arguments of ``apart``."""
    baseline_pct, sms = meanings[BASELINE][SAID], meanings[THREAD][SMS]
    if pd.notna(baseline_pct):
        yield Claim(
            "a starving GPU is seen: the baseline stays below 30 %", baseline_pct < 30, baseline_pct,
            because="a slower GPU starves less, and faster cores feed it better",
            so=f"of ~{baseline_pct:.0f} % it cannot rise as far as in lab 2: more workers gain less",
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
            more / less > max(2, 2 * high / low), f"~{more:.1f} after ~{less:.1f} %",
            because="an older GPU computes step 7 with other kernels, or a slow CPU leaves it idle in step 4",
            so=f"Tensor Active grows ~{more / less:.1f} times here, the utilisation ~{high / low:.1f}",
        )  # fmt: skip


def counters(gpm: pd.DataFrame, counted: pd.DataFrame, thread: Report) -> Iterator[Claim | str]:
    """The driver's counters (``gpm``) tell one thread from a product, and agree with Nsight's (``counted``) in step 7.

    ``thread``: a report of the one thread.
    """
    if thread.gpu is not None and gpm.notna().all(axis=None):
        one, large = gpm.loc[THREAD], gpm.loc[PRODUCT]
        yield f"One thread, by the driver: ~{one['sm_pct']:.2f} % of the SMs."
        yield Claim(
            "GPM tells one thread from a large product: under 3 % of the SMs, and over half",
            one["sm_pct"] < 3 and large[["sm_pct", "tensor_pct"]].min() > 50,
            f"~{one['sm_pct']:.1f} and ~{large['sm_pct']:.0f} % of the SMs",
            because="another program used the GPU, or its library takes another kernel for the product",
            so="take counters on a GPU that you have to yourself",
        )
    else:
        yield "No GPM, or not all of it: it takes Hopper or later, and a driver that lets you read it."
    step_4, step_7 = (gpm - counted).abs().max(axis=1, skipna=False)[[STEP_4, STEP_7]]
    if pd.isna(step_7):
        yield "Nothing to compare: Nsight Systems or the driver counted nothing here."
        return
    yield f"driver and Nsight: step 4 ~{step_4:.0f} points apart, step 7 ~{step_7:.1f}"
    yield Claim(
        "in step 7, all three counters agree to 5 points", step_7 < 5, step_7,
        because="these are two runs, and something else kept the GPU busy in one of them",
        so="read either counter to that many points only",
    )  # fmt: skip


def energy_floor(driver: pd.DataFrame, joules: pd.DataFrame) -> Iterator[Claim | str]:
    """What faster kernels alone leave of step 2's energy; ``driver``: a row a program, ``joules``: a column each."""
    if _has_energy(joules):
        yield (
            f"an epoch of step 2 takes ~{joules[STEP_2]['an epoch J']:.0f} J, an idle GPU "
            f"~{_floor_j(driver, joules):.0f} J in that time: by faster kernels alone it can get no lower"
        )


def energy_saved(driver: pd.DataFrame, joules: pd.DataFrame) -> Iterator[Claim | str]:
    """Mixed precision saves energy, as far as the bound allows; the arguments of ``energy_floor``."""
    if not _has_energy(joules):
        return
    before, after = joules[STEP_2], joules[STEP_3]
    yield f"in ~{after['an epoch s'] / before['an epoch s']:.2f} times the time"
    yield Claim(
        "mixed precision takes less energy for an epoch, and not below the bound",
        _floor_j(driver, joules) < after["an epoch J"] < before["an epoch J"],
        f"~{100 * after['an epoch J'] / before['an epoch J']:.0f} %",
        because="each program ran once, and a loader that is late makes an epoch dear",
        so="energy and time went together here: run both steps again before you conclude",
    )


def least_energy(driver: pd.DataFrame, joules: pd.DataFrame) -> Iterator[Claim | str]:
    """The fastest step draws the most power and takes the least energy; the arguments of ``energy_floor``."""
    if not _has_energy(joules):
        yield "This GPU does not count its energy: no answer here."
        return
    slowest, fastest = joules[BASELINE], joules[STEP_7]
    watts, energy, whole = (100 * fastest[one] / slowest[one] for one in ("W", "an epoch J", "all J"))
    yield (
        f"step 7 against the baseline: ~{watts / 100:.1f} times the power, "
        f"~{energy:.1f} % of an epoch's energy, ~{whole:.0f} % of a whole run's"
    )
    listed = " and ".join(f"~{100 * own['start-up J'] / own['all J']:.0f} %" for own in (slowest, fastest))
    yield f"the start's share of all the energy, in these two: {listed}"
    yield f"the baseline draws ~{slowest['W']:.0f} W, an idle GPU ~{driver.loc['nothing', 'W']:.0f} W"
    yield Claim(
        "step 7 takes less than a tenth of the baseline's energy for an epoch", energy < 10, energy,
        because="a slow GPU works for most of the baseline's epoch, too",
        so=f"it takes ~{energy:.0f} % here",
    )  # fmt: skip


def unhurt(watched: pd.DataFrame) -> Iterator[Claim | str]:
    """Asking the driver costs steps without a loader little; ``watched``: epochs alone and watched, a row a step."""
    steady = watched.set_index("step").loc[[STEP_4, STEP_7], "× alone"].max()
    yield Claim(
        "steps 4 and 7 take no longer while the driver is asked, to 25 %", steady < 1.25, steady,
        because="the sampler takes time from the one core that launches, where cores are few",
        so="a watched run is no timed run here: keep the two apart",
    )  # fmt: skip


def _has_energy(joules: pd.DataFrame) -> bool:
    return bool(joules.loc["an epoch J"].notna().all())


def _floor_j(driver: pd.DataFrame, joules: pd.DataFrame) -> float:
    """What an idle GPU takes in the time of step 2's epoch."""
    return driver.loc["nothing", "W"] * joules[STEP_2]["an epoch s"]
