"""Is this the picture that the code draws? A fingerprint of what is drawn, not of the bytes in the file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.category import StrCategoryLocator
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure, FigureBase
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch, Wedge
from matplotlib.path import Path
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator

FINGERPRINT_MARK = "[drawn data: "

SIGNIFICANT_DIGITS = 4
ZERO = 1e-12  # what is smaller is the rounding error of something that was meant to be zero
HEX_DIGITS = 12


def drawn_data(fig: Figure) -> str:
    """A short hexadecimal fingerprint (SHA-256, 12 digits) of what `fig` shows.

    Two figures have the same fingerprint when the same things stand at the same places in the same colours,
    made in the same order. It covers, for every axes with its insets: limits and scales, titles and axis
    labels, tick labels that were set by hand or are categories, and each visible line (its points), patch
    (its corners, or its extents where it is curved), text (what it says and where), annotation (both ends of
    its arrow), collection (offsets or corners, mapped values), image (its array and extents), legend entry.
    Numbers count to 4 significant digits, positions in the coordinates that the drawing code used.

    What is left out is what may differ between machines although the code and its data are the same: font
    metrics, rendered sizes, automatic ticks, places that a layout engine chooses, line widths and styles, and
    the bytes of the file.

    It is the same before and after the figure has been drawn or saved (the arrows of quiver excepted, which
    matplotlib makes only while it draws).
    """
    lines = "\n".join(_figure_lines(fig))
    return hashlib.sha256(lines.encode()).hexdigest()[:HEX_DIGITS]


def _figure_lines(fig: FigureBase) -> Iterator[str]:
    # Titles of the whole figure move with the layout: what they say counts, where they end up does not.
    layout_texts = {fig.get_suptitle(), fig.get_supxlabel(), fig.get_supylabel()} - {""}
    for text in fig.texts:
        if text.get_text() in layout_texts:
            yield f"figure title {text.get_text()}"
        else:
            yield from _artist_lines(text)
    for artist in [*fig.lines, *fig.patches]:
        yield from _artist_lines(artist)
    yield from _legend_lines(fig.legends)
    for ax in fig.axes:
        yield from _axes_lines(ax)
    for subfigure in fig.subfigs:  # their axes are among fig.axes already
        for text in subfigure.texts:
            yield f"figure title {text.get_text()}"


def _axes_lines(ax: Axes) -> Iterator[str]:
    if not ax.get_visible():
        return
    yield f"axes {ax.get_xscale()} {ax.get_yscale()} {_numbers([*ax.get_xlim(), *ax.get_ylim()])}"
    yield f"titles {[ax.get_title(loc=place) for place in ('left', 'center', 'right')]}"
    if ax.axison:
        yield f"labels {[ax.get_xlabel(), ax.get_ylabel()]}"
        yield from _tick_lines(ax.xaxis)
        yield from _tick_lines(ax.yaxis)
    for artist in [*ax.images, *ax.collections, *ax.patches, *ax.lines, *ax.texts, *ax.tables, *ax.artists]:
        yield from _artist_lines(artist)
    if ax.get_legend() is not None:
        yield from _legend_lines([ax.get_legend()])
    for inset in ax.child_axes:
        yield from _axes_lines(inset)


def _tick_lines(axis: Axis) -> Iterator[str]:
    """Labels that somebody wrote. Automatic ones follow the limits, and matplotlib's taste of the year."""
    if isinstance(axis.get_major_locator(), FixedLocator | StrCategoryLocator):
        names = [label.get_text() for label in axis.get_majorticklabels()]
        yield f"ticks {axis.axis_name} {_numbers(axis.get_majorticklocs())} {names}"


def _legend_lines(legends: Iterable) -> Iterator[str]:
    for legend in legends:
        yield f"legend {[text.get_text() for text in [legend.get_title(), *legend.get_texts()]]}"


def _artist_lines(artist: Artist) -> Iterator[str]:
    if not artist.get_visible():
        return
    if isinstance(artist, Annotation):
        head = [*artist.xy, *artist.xyann]
        tint = to_hex(artist.arrow_patch.get_edgecolor(), keep_alpha=True) if artist.arrow_patch else "-"
        yield f"annotation {artist.get_text()} {_numbers(head)} {tint} {_colours(artist.get_color())}"
    elif isinstance(artist, Text):
        place = _numbers([*artist.get_position(), artist.get_rotation()])
        align = f"{artist.get_horizontalalignment()} {artist.get_verticalalignment()}"
        yield f"text {artist.get_text()} {place} {align} {_colours(artist.get_color())}"
    elif isinstance(artist, Line2D):
        yield f"line {_numbers(artist.get_xydata())} {_colours(artist.get_color())} {artist.get_marker()}"
    elif isinstance(artist, Patch):
        yield f"patch {_patch_shape(artist)} {_colours(artist.get_facecolor(), artist.get_edgecolor())}"
    elif isinstance(artist, Collection):
        yield f"collection {_collection_shape(artist)}"
    elif isinstance(artist, AxesImage):
        place = _numbers([*artist.get_extent(), *artist.get_clim()])
        yield f"image {place} {_numbers(artist.get_array())} {artist.get_cmap().name}"
    else:
        # An artist that nobody thought of must not pass unseen.
        yield f"other {type(artist).__name__}"


def _patch_shape(patch: Patch) -> str:
    """The patch in the coordinates it was made in; some paths hold more than the numbers given."""
    if isinstance(patch, FancyBboxPatch):  # the path holds rounded corners and padding
        return _numbers([patch.get_x(), patch.get_y(), patch.get_width(), patch.get_height()])
    if isinstance(patch, FancyArrowPatch):  # the path is in pixels, and no public call returns the ends
        ends = getattr(patch, "_posA_posB", None)
        return _numbers([] if ends is None else ends)
    if isinstance(patch, Wedge):
        return _numbers([*patch.center, patch.r, patch.theta1, patch.theta2, patch.width or 0])
    return _path_shape(patch.get_patch_transform().transform_path(patch.get_path()))


def _collection_shape(collection: Collection) -> str:
    offsets = np.ma.asarray(collection.get_offsets(), dtype=float)
    markers = offsets.any()  # markers: where they are, not how a marker is built
    shape = _numbers(offsets) if markers else " / ".join(_path_shape(path) for path in collection.get_paths())
    values = collection.get_array()
    if values is not None:
        return f"{shape} values {_numbers(values)}"
    return f"{shape} {_colours(*collection.get_facecolor(), *collection.get_edgecolor())}"


def _path_shape(path: Path) -> str:
    """The corners, sorted: where an outline begins has changed between matplotlib's versions."""
    if path.codes is not None and {Path.CURVE3, Path.CURVE4} & {*path.codes.tolist()}:
        return f"curved {_numbers(path.get_extents().extents)}"
    return ", ".join(sorted({_words(corner) for corner in _clean(path.vertices).tolist()}))


def _numbers(values: object) -> str:
    """Numbers as text, to 4 significant digits; no minus zero, no noise around zero, gaps as nan."""
    return _words(_clean(values).ravel().tolist())


def _clean(values: object) -> np.ndarray:
    found = np.ma.filled(np.ma.asarray(values, dtype=float), np.nan)
    return np.where(np.abs(found) < ZERO, 0.0, found)


def _words(numbers: Iterable[float]) -> str:
    return " ".join(f"{number:.{SIGNIFICANT_DIGITS - 1}e}" for number in numbers)


def _colours(*colours: object) -> str:
    return " ".join(to_hex(colour, keep_alpha=True) for colour in colours)


def description(alt_text: str, fig: Figure) -> str:
    """What a chart's file says about itself: the alt text, and the fingerprint of what was drawn."""
    return f"{alt_text} {FINGERPRINT_MARK}{drawn_data(fig)}]"
