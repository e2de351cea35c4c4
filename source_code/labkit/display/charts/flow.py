"""How does the work flow? The queue of launched work before the GPU, and what each training step waits for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.display import style
from labkit.display.charts.timelines import AXIS_IN, LEFT, PIXELS, RIGHT, ROWS, SMALL, phase_colour, row_name
from labkit.display.given import on_reports
from stepbudget.ask import launch
from stepbudget.ask.iterations import loader_period, step_windows, steps
from stepbudget.report import Report
from stepbudget.show.palette import tint
from stepbudget.window import Window

TOP_IN, KEY_IN = 0.62, 0.3  # heights of the titles, the key
DEPTH_IN, PANEL_IN, PANEL_GAP_IN = 1.25, 1.15, 0.46
QUEUE, DRY = style.SKY, style.VERMILION
WAIT, BUSY = phase_colour("data loading"), style.COLOURS["kernel"]


@on_reports
def queue_depth(report: Report, window: Window | None = None) -> Figure:
    """Works launched and not finished, over a window (default: the step of median length).

    Above it the phases and what the GPU runs. Where nothing is queued the GPU has nothing to do: marked in red.
    """
    window = window or _usual_step(report)
    found = launch.launch(report, window)
    rows = [ROWS["phases"], ROWS["kernels"]]
    heights = [row.high for row in rows] + [DEPTH_IN]
    with style.house_style(formulas=False):
        high = TOP_IN + sum(heights) + 0.12 * len(rows) + AXIS_IN + KEY_IN
        fig = Figure(figsize=(style.WIDTH_IN, high))
        axes = fig.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        below = AXIS_IN + KEY_IN
        fig.subplots_adjust(left=LEFT, right=RIGHT, top=1 - TOP_IN / high, bottom=below / high, hspace=0.14)
        axes[0].set_xlim(0, window.duration_ms)
        for row, ax in zip(rows, axes, strict=False):
            row_name(ax, row.name)
            row.draw(ax, report, window)
            ax.tick_params(bottom=False, labelbottom=False)
        _draw_depth(axes[-1], report, window)
        axes[0].set_title(f"{report.name}: work queued for the GPU, {window.name}", pad=24)
        axes[0].text(0, 1.16, _depth_words(found), transform=axes[0].transAxes, size=9, va="bottom")
        axes[-1].set_xlabel("milliseconds", size=9)
        axes[-1].tick_params(axis="x", labelsize=9)
        kinds = {"launched, not finished": tint(QUEUE, 0.6), "nothing queued: the GPU waits for the CPU": DRY}
        _key(fig, kinds)
    return fig


@on_reports
def step_chart(reports: Mapping[str, Report]) -> Figure:
    """One panel a report, one bar a step: how long the program waits for the loader; the GPU's busy time as a line.

    All panels share their axes. The first step, which holds the start of the workers, is left out. Reports without
    steps say so.
    """
    tables = {name: steps(report).iloc[1:] for name, report in reports.items()}
    longest = max((table[["loader_wait_ms", "gpu_busy_ms"]].max().max() for table in tables.values()), default=1)
    last = max((int(table["step"].max()) for table in tables.values() if len(table)), default=1)
    with style.house_style(formulas=False):
        high = TOP_IN + len(tables) * (PANEL_IN + PANEL_GAP_IN) + 0.12 + KEY_IN
        fig = Figure(figsize=(style.WIDTH_IN, high))
        axes = fig.subplots(len(tables), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        spread = {"left": 0.075, "right": 0.985, "top": 1 - (TOP_IN + 0.12) / high, "bottom": (AXIS_IN + KEY_IN) / high}
        fig.subplots_adjust(**spread, hspace=PANEL_GAP_IN / PANEL_IN)
        axes[0].set(xlim=(0, last + 1), ylim=(0, 1.06 * longest if longest > 0 else 1))
        for (name, table), ax in zip(tables.items(), axes, strict=True):
            _draw_steps(ax, name, table)
        fig.suptitle(
            "What each training step waits for", x=0.075, y=1 - 0.08 / high, ha="left", va="top", size=11, weight="bold"
        )
        axes[-1].set_xlabel("training step (the first one left out)", size=9)
        axes[-1].tick_params(axis="x", labelsize=9)
        _key(fig, {"waits for the loader": WAIT, "GPU busy": BUSY}, left=0.075)
    return fig


# --- drawing ------------------------------------------------------------------------------------------------


def _usual_step(report: Report) -> Window:
    """The step of median length; the training range where there are no steps."""
    found = step_windows(report)
    return sorted(found, key=lambda step: (step.duration_ms, step.start))[len(found) // 2] if found else report.window()


def _depth_words(found: launch.Launch) -> str:
    if found.verdict == launch.NOT_LOOKED_AT:
        return f"{found.verdict}: {found.evidence}"
    return (
        f"on average {found.queue_mean:.1f} queued; nothing queued {100 * found.queue_0_share:.0f} % of the time; "
        f"a kernel {found.kernel_us:.1f} µs, a launch {found.launch_us:.1f} µs (medians)"
    )


def _draw_depth(ax: Axes, report: Report, window: Window) -> None:
    """The queue's depth as a filled step curve; at most two points a pixel, and never a maximum lost."""
    queue = launch.queue_depth(report, window)
    times, depth = queue["time"].to_numpy(), queue["depth"].to_numpy()
    edges = np.append(times, window.end)
    top = max(1, int(depth.max()))
    ax.set(ylim=(-0.09 * top, 1.05 * top), facecolor=tint(style.IDLE, 0.4))
    ax.spines[:].set_visible(False)
    ms, level = (edges - window.start) / 1e6, np.append(depth, depth[-1])
    if len(times) > 2 * PIXELS:
        columns = np.linspace(0, window.duration_ms, PIXELS + 1)
        place = np.clip(np.searchsorted(columns, ms, side="right") - 1, 0, PIXELS - 1)
        held = level[np.maximum(np.searchsorted(ms, columns[:-1], side="right") - 1, 0)]  # at each column's start
        np.maximum.at(held, place, level)
        ms, level = columns, np.append(held, held[-1])
    colour = QUEUE
    ax.fill_between(ms, level, step="post", facecolor=tint(colour, 0.6), edgecolor=colour, linewidth=0.7)
    dry = np.flatnonzero(depth == 0)
    spans = np.column_stack([edges[dry], edges[dry + 1]])
    pixel = window.duration_ms / PIXELS
    bars = [((start - window.start) / 1e6, max((end - start) / 1e6, pixel)) for start, end in spans]
    ax.broken_barh(bars, (-0.075 * top, 0.06 * top), facecolor=DRY, linewidth=0)
    row_name(ax, "queued\nwork")
    ax.set_yticks([0, top], ["0", f"{top:,}"], size=SMALL)
    ax.tick_params(axis="y", left=False, labelleft=False, labelright=True, length=0)


def _draw_steps(ax: Axes, name: str, table: pd.DataFrame) -> None:
    """One report's steps; its name and its rhythm above."""
    ax.grid(axis="y", lw=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(axis="y", labelsize=9, length=0)
    ax.spines["left"].set_visible(False)
    ax.set_ylabel("ms", size=9)
    ax.text(0, 1.05, name, transform=ax.transAxes, size=9.5, weight="bold", va="bottom")
    if table.empty:
        place = {"transform": ax.transAxes, "ha": "center", "va": "center", "size": 9, "color": style.MUTED}
        ax.grid(False)
        ax.text(0.5, 0.5, "no NVTX range says where a step begins", **place)
        return
    ax.text(1, 1.05, _step_words(table), transform=ax.transAxes, size=9, va="bottom", ha="right")
    number = table["step"].to_numpy()
    waits, busy = table["loader_wait_ms"].fillna(0).to_numpy(), table["gpu_busy_ms"].to_numpy(dtype=float)
    ax.bar(number, waits, width=0.8, color=WAIT, linewidth=0)
    ax.plot(number, busy, color=BUSY, lw=1.6, drawstyle="steps-mid", solid_joinstyle="miter")


def _step_words(table: pd.DataFrame) -> str:
    """What the bars come to, in one line."""
    if table["loader_wait_ms"].isna().all():
        return f"median step {table['duration_ms'].median():.1f} ms; no range says when it waits for the loader"
    period = loader_period(table["loader_wait_ms"], skip_first=False)
    share = table["loader_wait_ms"].sum() / table["duration_ms"].sum()
    words = f"{100 * share:.0f} % of the time is waiting; median step {table['duration_ms'].median():.1f} ms"
    return words + (f"; long waits every {period.steps} steps" if period else "")


def _key(fig: Figure, kinds: Mapping[str, str], left: float = LEFT) -> None:
    """What the colours mean, in the lower left corner."""
    handles = [Patch(facecolor=colour, linewidth=0, label=label) for label, colour in kinds.items()]
    place = {"loc": "lower left", "bbox_to_anchor": (left, 0.06 / fig.get_figheight()), "ncols": len(handles)}
    look = {"fontsize": SMALL + 0.5, "handlelength": 1.1, "handletextpad": 0.5, "columnspacing": 1.5}
    fig.legend(handles=handles, **place, **look, borderpad=0, borderaxespad=0)
