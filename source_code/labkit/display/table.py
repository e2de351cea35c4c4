"""How does a table look in a notebook? Text left, numbers right, the measured ones marked, no index."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number

import pandas as pd

from labkit.display.spread import MEASURED

NOTHING = "–"  # there is no number here
Format = str | Callable[[object], str]

TABLE_STYLE = "border-collapse: collapse; margin: 0.4em 0; color: inherit"
CAPTION_STYLE = (
    "caption-side: top; text-align: left; padding-bottom: 0.4em; font-size: 0.9em; color: inherit; opacity: 0.7"
)
HEAD_RULE = "border-bottom: 1px solid currentColor"
CELL_STYLE = "padding: 0.25em 0.9em; white-space: nowrap"


@dataclass(frozen=True)
class Table:
    """A table that shows itself: HTML in a notebook, aligned text elsewhere. Made by ``table()``."""

    frame: pd.DataFrame
    caption: str | None = None
    formats: Mapping[str, Format] = field(default_factory=dict)
    measured: Sequence[str] = ()

    def cells(self) -> list[list[str]]:
        """The rows as they are shown."""
        return [list(row) for row in zip(*(self._column(name) for name in self.frame.columns), strict=True)]

    def __str__(self) -> str:
        names = [str(name) for name in self.frame.columns]
        rows = [names, *self.cells()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        pads = [str.rjust if self._is_numeric(name) else str.ljust for name in self.frame.columns]
        lines = ["  ".join(pad(*cell) for pad, *cell in zip(pads, row, widths, strict=True)).rstrip() for row in rows]
        lines.insert(1, "  ".join("─" * width for width in widths))
        return "\n".join([self.caption, *lines] if self.caption else lines)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self._html(), "text/plain": str(self)}

    def _html(self) -> str:
        names = list(self.frame.columns)
        aligned = [f"text-align: {'right' if self._is_numeric(name) else 'left'}" for name in names]
        head = [
            f'<th style="{align}; {HEAD_RULE}; {CELL_STYLE}">{html.escape(str(name))}</th>'
            for name, align in zip(names, aligned, strict=True)
        ]
        body = []
        for whole, shown in zip(self.frame.itertuples(index=False, name=None), self.cells(), strict=True):
            cells = [_html_cell(*cell) for cell in zip(whole, shown, aligned, strict=True)]
            body.append(f"<tr>{''.join(cells)}</tr>")
        caption = [f'<caption style="{CAPTION_STYLE}">{html.escape(self.caption)}</caption>'] if self.caption else []
        kind = "measured" if self.measured else "exact"
        return "\n".join(
            [
                f'<table class="{kind}" style="{TABLE_STYLE}">',
                *caption,
                f"<thead><tr>{''.join(head)}</tr></thead>",
                "<tbody>",
                *body,
                "</tbody>",
                "</table>",
            ]
        )

    def _is_numeric(self, name: str) -> bool:
        """Is every value of this column a number, or no value at all?"""
        values = list(self.frame[name])
        return any(_is_number(value) for value in values) and all(_is_number(v) or _is_missing(v) for v in values)

    def _column(self, name: str) -> list[str]:
        values = list(self.frame[name])
        shape = self.formats.get(name) or _usual_format(values)
        mark = MEASURED if name in self.measured else ""
        return [_shown(value, shape, mark) for value in values]


def table(
    df: pd.DataFrame,
    caption: str | None = None,
    formats: Mapping[str, Format] | None = None,
    measured: Sequence[str] = (),
) -> Table:
    """The rows of ``df`` as a table of the course.

    ``formats`` says for a column how its values are written (``"{:.1f}"`` or a function); else whole numbers get
    thousands separators, and others three significant digits of the column's largest. Numbers in the columns
    ``measured`` are marked with a leading ``~``: on another machine they differ. A missing value is a dash.
    """
    formats = formats or {}
    unknown = {*formats, *measured} - {*df.columns}
    if unknown:
        raise ValueError(f"the table has no column {', '.join(sorted(unknown))}")
    return Table(df.reset_index(drop=True), caption, dict(formats), tuple(measured))


def _html_cell(whole: object, shown: str, align: str) -> str:
    """One cell; text that its format made shorter keeps its whole length as a tooltip."""
    cut = isinstance(whole, str) and whole != shown
    title = f' title="{html.escape(whole)}"' if cut else ""
    return f'<td style="{align}; {CELL_STYLE}"{title}>{html.escape(shown)}</td>'


def _shown(value: object, shape: Format, mark: str) -> str:
    if _is_missing(value):
        return NOTHING
    if isinstance(value, str) and not callable(shape):
        return value
    text = shape(value) if callable(shape) else shape.format(value)
    return mark + text if mark and _is_number(value) and not text.startswith(mark) else text


def _usual_format(values: list) -> Format:
    """How a column's values are written where nobody said: the same number of decimals all the way down."""
    numbers = [value for value in values if _is_number(value) and not _is_missing(value)]
    if not numbers:
        return _plain
    if all(float(number).is_integer() for number in numbers):
        return "{:,.0f}"
    largest = max(abs(float(number)) for number in numbers)
    decimals = next((d for d, limit in enumerate((100, 10, 1)) if largest >= limit), 3)
    return f"{{:,.{decimals}f}}"


def _plain(value: object) -> str:
    return {True: "yes", False: "no"}[bool(value)] if pd.api.types.is_bool(value) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, Number) and not pd.api.types.is_bool(value)


def _is_missing(value: object) -> bool:
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


# --- kernel names -------------------------------------------------------------------------------------------

# Kernels that only apply what they are given: their template arguments say what is computed, their name does not.
WRAPPERS = re.compile(
    r"(vectorized|unrolled|legacy)?_?elementwise_kernel|reduce_kernel|multi_tensor_apply_kernel|Kernel2?|device_kernel"
)
# Words in template arguments that do not say it either: types, containers, and wrappers inside wrappers.
FILLERS = re.compile(
    r"void|int|unsigned|long|char|float|double|bool|const|operator|Half|half_t|__half|BFloat16|array|T\d*|lambda|"
    r"BinaryFunctor|ReduceOp|func_wrapper_t|gpu_kernel_impl(_nocast)?|TensorListMetadata|unnamed|instance|enable_if_t"
)
# Pieces of a generated name that say the least, the least first; each is cut only while the name is too long.
MINOR = [
    r"(?<=^multi_tensor_apply)_kernel",
    r"_execute(_\w+)?_kernel__5x_\w+$",
    r"_align(_?[a-z]?\d+)(_?align[a-z]\d+)?",
    r"_stage\d+",
    r"_warpsize\w+?x\d+x\d+",
    r"_g\d+(?=_|$)",
    r"_(nchw|nhwc)\w*?_(nchw|nhwc)(?=_|$)",
    r"_tilesize\d+x\d+x\d+",
    r"_implicit_gemm(_indexed)?",
]


def short_kernel(name: str, width: int = 60) -> str:
    """A kernel's name on one line of at most ``width`` characters: ``vectorized_elementwise_kernel<FillFunctor>``.

    Return type, call arguments and PyTorch's namespaces are dropped, template arguments become ``<…>``; where the name
    alone says nothing, the functor stays. An ``…`` stands wherever something was left out of a generated name.
    """
    library, own, arguments = _parts(name)
    if arguments:
        telling = _functors(arguments) if WRAPPERS.fullmatch(own) else []
        if telling and telling[0].startswith("cutlass_"):  # a generated name, wrapped
            library, own = "", telling[0]
        else:
            own += f"<{', '.join(telling) or '…'}>"
    own = library + own
    for piece in MINOR:
        if len(own) > width:
            own = re.sub(piece, "_…", own)
            own = re.sub(r"(_…)+", "_…", own)
    return own if len(own) <= width else own[: width - 1] + "…"


def _parts(name: str) -> tuple[str, str, str]:
    """The library that a kernel names as its own (``cudnn::``; none for PyTorch), its name, its template arguments."""
    name = re.sub(r"<unnamed>::|\(anonymous namespace\)::", "", name.strip().removeprefix("void "))
    head = re.match(r"[^<(]*", name).group()
    rest = name[len(head) :]
    space, _, own = head.strip().rpartition("::")
    library = re.match(r"(?:(?:at|c10)(?=::|$))?(\w*?)(?:__5x_\w+)?(?:::|$)", space).group(1)
    return f"{library}::" if library else "", own or name, _balanced(rest) if rest.startswith("<") else ""


def _balanced(text: str) -> str:
    """What stands between the ``<`` that the text begins with and the ``>`` that belongs to it."""
    depth = 0
    for place, letter in enumerate(text):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if depth == 0:
            return text[1:place]
    return text[1:]  # Nsight may have cut the name


def _functors(arguments: str, most: int = 2) -> list[str]:
    """What a wrapper applies: the first words of its template arguments that say something."""
    while (plain := re.sub(r"\([^()]*\)|\[[^][]*\]", "", arguments)) != arguments:
        arguments = plain
    words = [word.rpartition("::")[2] for word in re.findall(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*", arguments)]
    telling = [word for word in words if word and not FILLERS.fullmatch(word)]
    if telling and not telling[0].endswith(("OpFunctor", "ScalarFunctor", "AlphaFunctor", "ListFunctor")):
        most = 1  # the others only take an operation, which is the word after
    return list(dict.fromkeys(telling))[:most]
