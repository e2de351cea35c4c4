"""How fast is a matrix product of one's own, beside cuBLAS?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from labkit.display import style
from labkit.topics.matmul.readings import median_rows, narrow_type
from labkit.topics.roofline.readings import DTYPE_WORDS, Peaks
from stepbudget.say.palette import tint

SMALL = 8.5  # points
HALO = [withStroke(linewidth=2.5, foreground=style.PAPER)]  # a line behind words stops at them
WAYS = {"triton": ("our Triton kernel", style.BLUE), "cublas": ("cuBLAS", style.GREEN)}


def rates(records: Sequence[dict], peaks: Peaks) -> Figure:
    """TFLOP/s by size, Triton beside cuBLAS, under the roof that this GPU's fastest product sets."""
    found = median_rows(records, "size", ["rows", "columns", "inner"])
    names = [
        f"{row.rows:,}" if row.rows == row.columns == row.inner else f"{row.rows:,} ×\n{row.columns:,} ×\n{row.inner:,}"
        for row in found.itertuples()
    ]
    with style.house_style():
        fig = style.figure(3.8)
        ax = fig.subplots()
        places = np.arange(len(names))
        for offset, (way, (label, colour)) in zip((-0.2, 0.2), WAYS.items(), strict=True):
            heights = found[f"{way}_tflops"]
            ax.bar(places + offset, heights, 0.38, color=tint(colour, 0.75), label=label, lw=0)
            for x, height in zip(places + offset, heights, strict=True):
                ax.annotate(
                    f"{height:.0f}",
                    (x, height),
                    (0, 2),
                    textcoords="offset points",
                    ha="center",
                    size=SMALL - 1,
                    path_effects=HALO,
                )
        dtype = narrow_type(records)
        roof, name = peaks.rate(dtype), DTYPE_WORDS[dtype]
        ax.axhline(roof, color=style.VERMILION, lw=1.4)
        where = {"textcoords": "offset points", "ha": "left", "va": "bottom", "size": SMALL}
        ax.annotate(f"{name} roof: {roof:.0f} TFLOP/s", (-0.5, roof), (2, 3), color=style.VERMILION, **where)
        ax.set_xticks(places, names, size=SMALL)
        highest = max(roof, found["triton_tflops"].max(), found["cublas_tflops"].max())
        ax.set(ylabel="TFLOP/s", ylim=(0, 1.15 * highest), xlim=(-0.6, len(names) - 0.4))
        ax.tick_params(axis="x", length=0)
        ax.set_title(f"A matrix product in {name}, by size (medians): rows = columns = inner, or as written")
        ax.legend(loc="upper left", bbox_to_anchor=(0, 0.86), fontsize=SMALL + 0.5)
    return fig
