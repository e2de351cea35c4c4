"""What do PyTorch's profiler and the driver's counters say? Charts of labs 18 and 19; each takes data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from labkit.display import style
from labkit.display.charts.bars import key
from labkit.topics.profilers import nvml, readings

SMALL = 8.5  # points

# What memory is for, as PyTorch's profiler tells it, from the bottom of the stack.
CATEGORIES = {
    "parameter": style.INK,
    "optimizer state": style.PINK,
    "input": style.ORANGE,
    "gradient": style.GREEN,
    "activation": style.BLUE,
    "autograd": style.SKY,
    "temporary": style.YELLOW,
    "other": style.MUTED,
}
# How much of the GPU is at work, from the widest meaning to the narrowest.
MEANINGS = {
    "utilisation (nvidia-smi)": style.MUTED,
    "any work (trace)": style.SKY,
    "SMs Active (counter)": style.BLUE,
    "Tensor Active (counter)": style.GREEN,
}


# --- PyTorch's profiler -------------------------------------------------------------------------------------


def memory_timeline(named: Mapping[str, Mapping]) -> Figure:
    """Allocated GPU memory over a few steps by what it is for, a panel a step script, both axes on the same scale.

    ``named`` maps a name to ``{"us": [...], "mb": {category: [...]}}``, as ``torch_profiler.memory_by_category`` gives.
    """
    highest = max(sum(np.array(mb) for mb in memory["mb"].values()).max() for memory in named.values())
    longest_ms = max(memory["us"][-1] for memory in named.values()) / 1e3
    with style.house_style():
        fig = style.figure(0.9 + 1.9 * len(named))
        axes = fig.subplots(len(named), 1, squeeze=False)[:, 0]
        used = {}
        for ax, (name, memory) in zip(axes, named.items(), strict=True):
            ms = np.array(memory["us"]) / 1e3
            known = [category for category in CATEGORIES if category in memory["mb"]]
            ax.stackplot(
                ms,
                *[memory["mb"][category] for category in known],
                colors=[CATEGORIES[category] for category in known],
                step="post",
                linewidth=0,
            )
            used |= {category: CATEGORIES[category] for category in CATEGORIES if category in known}
            ax.set(title=f"{name}: megabytes allocated", xlim=(0, longest_ms), ylim=(0, 1.08 * highest))
            ax.grid(axis="y")
            ax.set_axisbelow(True)
        axes[-1].set_xlabel("milliseconds")
        key(fig, used, len(CATEGORIES))
    return fig


# --- the driver's counters ----------------------------------------------------------------------------------


def utilisation(programs: Sequence[dict]) -> Figure:
    """The driver's utilisation over the run of each program, a panel each, on the same scale of time.

    The stretch between the two marks is what the averages are about.
    """
    longest = max(program["process_s"] for program in programs)
    with style.house_style():
        fig = style.figure(0.7 + 0.85 * len(programs))
        axes = fig.subplots(len(programs), 1, sharex=True, squeeze=False)[:, 0]
        for ax, program in zip(axes, programs, strict=True):
            samples = nvml.from_text(program["samples"])
            ax.fill_between(samples["t_s"], samples["gpu_pct"], step="post", color=style.SKY, linewidth=0)
            if samples["gpu_pct"].isna().all():
                ax.text(longest / 2, 50, "the driver does not say", ha="center", va="center", size=SMALL)
            for edge in nvml.busy_stretch(program):
                ax.axvline(edge, color=style.VERMILION, linewidth=1)
            ax.set(ylim=(0, 105), xlim=(0, longest))
            ax.set_title(readings.short_program(program), size=SMALL + 0.5, pad=3)
            ax.grid(axis="y")
        axes[-1].set_xlabel("seconds since the program started; utilisation, %", size=9)
    return fig


def meanings(rows: Mapping[str, Mapping[str, float]]) -> Figure:
    """How busy is the GPU? For each program one bar a meaning of the word, in per cent.

    ``rows`` maps a program to {meaning: per cent}, with the meanings of MEANINGS; what was not measured is left out.
    """
    high = 0.8 / len(MEANINGS)
    with style.house_style():
        fig = style.figure(1.0 + 0.62 * len(rows))
        ax = fig.subplots()
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
