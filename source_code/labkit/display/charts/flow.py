"""How does the work flow? What each training step waits for."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.display import style
from stepbudget.ask.iterations import loader_period, steps
from stepbudget.report import Report
from stepbudget.show.answers import asked

TOP_IN, AXIS_IN, KEY_IN = 0.62, 0.47, 0.3  # heights of the title, the time axis, the key
PANEL_IN, PANEL_GAP_IN = 1.15, 0.46
WAIT, BUSY = style.phase_colour("data loading"), style.COLOURS["kernel"]


@asked
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


def _key(fig: Figure, kinds: Mapping[str, str], left: float) -> None:
    """What the colours mean, in the lower left corner."""
    handles = [Patch(facecolor=colour, linewidth=0, label=label) for label, colour in kinds.items()]
    place = {"loc": "lower left", "bbox_to_anchor": (left, 0.06 / fig.get_figheight()), "ncols": len(handles)}
    look = {"fontsize": 8.5, "handlelength": 1.1, "handletextpad": 0.5, "columnspacing": 1.5}
    fig.legend(handles=handles, **place, **look, borderpad=0, borderaxespad=0)
