"""What do sizes and memory layouts cost? Pictures and tables of what ``labkit.topics.shapes.readings`` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.display import style
from labkit.topics.roofline.charts import ROOFS
from labkit.topics.shapes.readings import TYPES
from stepbudget.kernel_names import NO, YES
from stepbudget.say.palette import tint

SMALL = 8.5  # points
COLOURS = ROOFS | {"fp8": style.ORANGE}
WORDS = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16", "bf16": "BF16", "fp8": "FP8"}
FP16_WIDTH = 3.6  # points: its line and its dots show beside BF16's, which mostly lie upon them
MULTIPLE = 8
THICK = 0.36  # of a bar, in rows


def by_dimension(products: pd.DataFrame) -> Figure:
    """The rate of a product in per cent of that at its base size, a panel for each of M, N and K varied alone.

    ``products``: ``labkit.topics.shapes.readings.products``. A hollow point ran without Tensor Cores, a
    cross was refused.
    """
    own = products[products["part"] == "one"]
    aligned = own[own["varied"] == ""]
    panels = {
        f"{name} varied": pd.concat([own[own["varied"] == name.lower()], aligned]).assign(
            at=lambda f, n=name: f[n.lower()]
        )
        for name in "MNK"
    }
    return _sizes(panels, "One dimension of a 4096 × 4096 × 4096 product varied (medians)")


def together(products: pd.DataFrame) -> Figure:
    """The same with all three dimensions varied together, a panel for each base size."""
    own = products[products["part"] == "all"]
    panels = {f"around {base:,}": own[own["base"] == base].assign(at=own["n"]) for base in sorted(own["base"].unique())}
    return _sizes(panels, "Square products: M = N = K (medians)")


def _sizes(panels: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """Panels side by side: title → products with the size in ``at``; each type in per cent of itself at ``base``."""
    with style.house_style():
        fig = style.figure(3.9, w_pad=0.1)
        axes = fig.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        top = 100.0
        for ax, (name, frame) in zip(axes, panels.items(), strict=True):
            top = max(top, _size_panel(ax, frame))
            ax.set_title(name)
        axes[0].set_ylabel("TFLOP/s, % of the base size's")
        axes[0].set_ylim(-6, 1.06 * top)
        style.suptitle(fig, title)
        _types_key(fig, panels)
    return fig


def _size_panel(ax: Axes, frame: pd.DataFrame) -> float:
    """A line a type over equally spaced sizes; the highest per cent in it."""
    sizes = sorted(frame["at"].unique())
    place = {size: i for i, size in enumerate(sizes)}
    base = frame["base"].iloc[0]
    for size, i in place.items():
        if size % MULTIPLE == 0:
            ax.axvspan(i - 0.5, i + 0.5, color=style.GRID, lw=0, zorder=0)
    top = 0.0
    for dtype in TYPES:
        own = frame[frame["dtype"] == dtype].sort_values("at")
        done = own[own["refused"].isna()]
        if base not in set(done["at"]):
            continue
        line, dot = (FP16_WIDTH, 7) if dtype == "fp16" else (1.3, 4)
        whole = done.loc[done["at"] == base, "tflops"].iloc[0]
        x, y = done["at"].map(place), 100 * done["tflops"] / whole
        ax.plot(own["at"].map(place), 100 * own["tflops"] / whole, color=COLOURS[dtype], lw=line)  # a gap: refused
        for answer, face in ((YES, COLOURS[dtype]), (NO, style.PAPER), (None, style.MUTED)):
            # no kernel is known on a CPU
            shown = done["tensor_cores"] == answer if answer else ~done["tensor_cores"].isin([YES, NO])
            ax.plot(x[shown], y[shown], "o", ms=dot, mfc=face, mec=COLOURS[dtype], mew=1.1)
        refused = own.loc[own["refused"].notna(), "at"].map(place)
        ax.plot(refused, [0] * len(refused), "x", color=COLOURS[dtype], ms=5, mew=1.4)
        top = max(top, y.max())
    ax.set_xticks(range(len(sizes)), [str(size) for size in sizes], rotation=90, fontsize=SMALL - 1)
    ax.set_xlim(-0.6, len(sizes) - 0.4)
    ax.grid(axis="y")
    return top


def _types_key(fig: Figure, panels: Mapping[str, pd.DataFrame]) -> None:
    frame = pd.concat(panels.values())
    found = [dtype for dtype in TYPES if frame.loc[frame["dtype"] == dtype, "us"].notna().any()]
    widths = {dtype: FP16_WIDTH if dtype == "fp16" else 1.3 for dtype in found}
    handles = [
        Line2D([], [], color=COLOURS[t], marker="o", ms=3 + lw, lw=lw, label=WORDS[t]) for t, lw in widths.items()
    ]
    handles.append(Patch(facecolor=style.GRID, label=f"multiple of {MULTIPLE}"))
    plain = {"color": style.INK, "ls": "none"}
    handles.append(Line2D([], [], marker="o", mfc=style.PAPER, ms=4, label="without Tensor Cores", **plain))
    handles.append(Line2D([], [], marker="x", ms=5, label="refused", **plain))
    fig.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=SMALL, columnspacing=1.3)


LAYOUTS = {"NCHW": 0.35, "channels_last": 0.9}  # how strong the colour is


def layout_bars(convolutions: pd.DataFrame, channels: Mapping[str, int]) -> Figure:
    """Microseconds of a convolution by type and memory layout, a panel a layer; the hatched part changes the layout.

    ``convolutions``: ``labkit.topics.shapes.readings.convolutions``; ``channels``: which ``c_in`` of each layer is
    shown.
    """
    convolutions = convolutions[convolutions["refused"].isna()]
    dtypes = [dtype for dtype in TYPES if (convolutions["dtype"] == dtype).any()]
    with style.house_style():
        fig = style.figure(3.7, w_pad=0.1)
        for ax, (layer, c_in) in zip(fig.subplots(1, len(channels), squeeze=False)[0], channels.items(), strict=True):
            own = convolutions[(convolutions["layer"] == layer) & (convolutions["c_in"] == c_in)]
            _layout_panel(ax, own, dtypes)
            ax.set_title(f"{layer}: {c_in} → {own['c_out'].iloc[0]} channels")
            ax.set_xlabel("µs")
        handles = [Patch(facecolor=tint(style.BLUE, strength), label=name) for name, strength in LAYOUTS.items()]
        hatched = {"facecolor": style.PAPER, "hatch": "////", "edgecolor": style.INK, "linewidth": 0}
        handles.append(Patch(label="of it: changing the layout", **hatched))
        fig.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=SMALL)
        style.suptitle(fig, "A convolution, forward and backward, by layout (medians)")
    return fig


def _layout_panel(ax: Axes, frame: pd.DataFrame, dtypes: Sequence[str]) -> None:
    longest = 0.0
    for row, dtype in enumerate(dtypes):
        for side, (layout, strength) in zip((-1, 1), LAYOUTS.items(), strict=True):
            both = frame[(frame["dtype"] == dtype) & (frame["layout"] == layout)]
            whole, moving = both["us"].sum(), (both["us"] * both["layout_share"]).sum()
            y = row + side * THICK / 2
            ax.barh(y, whole, THICK, color=tint(COLOURS[dtype], strength), linewidth=0)
            ax.barh(y, moving, THICK, color="none", hatch="////", edgecolor=style.INK, linewidth=0)
            ax.annotate(f"{whole:,.0f}", (whole, y), (4, 0), textcoords="offset points", va="center", size=SMALL)
            longest = max(longest, whole)
    ax.set(xlim=(0, 1.22 * longest), ylim=(len(dtypes) - 0.45, -0.55))
    ax.set_yticks(range(len(dtypes)), [WORDS[dtype] for dtype in dtypes])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
