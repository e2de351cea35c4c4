"""What does an answer say, part by part? Tables, bars, findings and sentences of what ``summary`` found.

Each function is given the answer (``summary.summary``'s object, or the part of it that it needs, plain) and returns
blocks; none where the report holds nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import pandas as pd

from stepbudget import kernel_names
from stepbudget.ask.budget import WORK
from stepbudget.ask.compare import NOISE
from stepbudget.show.bars import whisker
from stepbudget.show.blocks import Bar, Block, Findings, Items, Words
from stepbudget.show.table import HTML, TEXT, Format, Picture, Table, table
from stepbudget.show.words import held, percent, shaped
from stepbudget.signs import signed

KERNELS, PHASES, CHANGED, LINES, FIRST = 20, 30, 15, 12, 5  # rows of a table; the others are counted
NAME = 60  # letters of a name that a program gave
LEAST_CHANGE_MS = 0.05  # of a kernel, to be shown
BAR = 40  # letters for the whole window
WHOLE, ONE, TWO = "{:,.0f}", "{:,.1f}", "{:,.2f}"  # decimals


def cut(text: object, width: int = NAME) -> str:
    """A name of at most so many letters."""
    words = str(text)
    return words if len(words) <= width else words[: width - 1] + "…"


def recorded_by(found: dict) -> str:
    """Which profiler made the report, and its version where that is told."""
    version = found["nsys_version"] or ("of unknown version" if found["profiler"] == "Nsight Systems" else "")
    return f"{found['profiler']} {version}".rstrip()


def gpu(found: dict) -> str:
    """The GPU's name, with its number where several worked."""
    number = (
        f" (number {found['gpu_number']})" if found["gpu_number"] is not None and len(found["gpus_used"]) > 1 else ""
    )
    return (found["gpu"] or "GPU not named") + number


def speedup(said: dict) -> float:
    """How many times as fast the second side of a comparison is."""
    return said["before_ms"] / said["after_ms"] if said["after_ms"] else float("inf")


def kernel(name: object) -> str:
    """A kernel's short name."""
    return kernel_names.short(str(name), NAME)


def busy(found: dict) -> str:
    """How busy the GPU was, in words: key ``gpu_busy_fraction``."""
    share = found["gpu_busy_fraction"]
    return "how busy the GPU was is not known" if share is None else f"the GPU was busy for {percent(share)} of it"


def budget(found: dict, caption: str = "Each nanosecond has one cause; the shares add up to 100 %") -> list[Block]:
    """Where the time goes: keys ``duration_ms``, ``budget``, ``causes``, ``budget_evidence``."""
    whole_ms, shares = found["duration_ms"], {cause: share for cause, share in found["budget"].items() if share}
    idle = sum(share for cause, share in shares.items() if cause not in WORK)
    known = all(found["budget"][cause] is not None for cause in WORK)  # else some of it may have been work
    rows = [
        (
            found["causes"][cause], share * whole_ms, 100 * share,
            None if cause in WORK or not idle or not known else 100 * share / idle,
            found["budget_evidence"].get(cause, ""), "█" * round(BAR * share),
        )
        for cause, share in shares.items()
    ]  # fmt: skip
    rows.append(("all", whole_ms, 100.0 * sum(shares.values()), None, "", ""))
    columns = ["cause", "ms", "%", "% of idle", "how it was told", ""]
    formats = dict.fromkeys(("ms", "%", "% of idle"), ONE)
    only = {"how it was told": HTML, "": TEXT}
    frame = pd.DataFrame(rows, columns=columns)
    made = table(frame, caption, formats, totals=[-1], looks=[*shares, None], only=only)
    return [Bar([(cause, found["causes"][cause], share * whole_ms) for cause, share in shares.items()], whole_ms), made]


def advice(found: dict, most: int | None = None) -> list[Block]:
    """What to do next: keys ``advice`` and ``duration_ms``; ``most``: findings in Markdown."""
    return [Findings(found["advice"], found["duration_ms"], most)]


def not_looked_at(found: dict) -> list[Block]:
    return [Items(found["not_looked_at"])] if found["not_looked_at"] else []


def steps(found: dict) -> list[Block]:
    """What a step costs: key ``per_step``."""
    own = found["per_step"]
    if not own:
        return []
    std = "" if own["std_ms"] is None else f", standard deviation {own['std_ms']:,.2f}"
    line = (
        f"A step takes {own['mean_ms']:,.2f} ms on average (median {own['median_ms']:,.2f}{std}, "
        f"{own['shortest_ms']:,.2f} to {own['longest_ms']:,.2f})."
    )
    every = own["loader_period_steps"]
    return [Words(line + (f" Every {every} steps the loader keeps it waiting." if every else ""))]


def phases(
    found: Sequence[dict], caption: str = "NVTX ranges, with the kernels launched from inside each"
) -> list[Block]:
    """Rows of the answer's ``phases``."""
    columns = {"name": ("phase", cut), "count": "ranges", "cpu_ms": ("CPU ms", ONE)}
    return listed(found, caption, columns | {"kernels": ("kernels", WHOLE), "gpu_ms": ("GPU ms", ONE)}, most=PHASES)


def copies(
    found: Sequence[dict],
    caption: str = "Copies by direction and kind of host memory; ‘held’ is how long the thread that asked was kept",
) -> list[Block]:
    """Rows of the answer's ``copies``."""
    columns = {
        "direction": "direction", "host_memory": "host memory", "count": "count", "mb": ("MB", TWO),
        "gpu_ms": ("GPU ms", TWO), "overlap_ms": ("beside kernels ms", TWO), "api_ms": ("held ms", TWO),
        "longest_gpu_us": ("longest µs", WHOLE), "gb_per_s": ("GB/s", ONE),
    }  # fmt: skip
    return listed([one | {"mb": one["bytes"] / 1e6} for one in found], caption, columns)


def kernels(
    found: Sequence[dict],
    caption: str = "Kernels, longest first, and what the verdict on Tensor Cores rests on",
    most: int = KERNELS,
) -> list[Block]:
    """Rows of the answer's ``kernels``."""
    whole_ms = sum(one["gpu_ms"] for one in found)
    rows = [
        one
        | {"mean_us": 1e3 * one["gpu_ms"] / one["count"], "share": 100 * one["gpu_ms"] / whole_ms if whole_ms else 0}
        for one in found
    ]
    columns = {
        "name": ("kernel", kernel), "tensor_core": "Tensor Cores", "count": "count", "gpu_ms": ("GPU ms", ONE),
        "mean_us": ("mean µs", ONE), "share": ("share %", ONE), "evidence": "told by",
    }  # fmt: skip
    return listed(rows, caption, columns, names=["kernel"], most=most)


def tensor_cores(found: dict) -> list[Block]:
    """How much of the kernels' time is on Tensor Cores: keys ``kernels``, ``tensor_cores``, ``operations``."""
    if not found["kernels"]:
        return []
    used, ops = found["tensor_cores"], found["operations"]
    if used["unknown_ms"] is None:
        return [Words("How long kernels ran on Tensor Cores is not known: some left no rows.")]
    on, not_on, unknown = (f"{used[f'{verdict}_ms']:,.1f}" for verdict in ("yes", "no", "unknown"))
    words = [f"On Tensor Cores {on} ms, not on them {not_on}, unknown {unknown}."]
    if used["samples"]:
        words.append(f"Tensor Active {used['active_mean_pct']:.1f} % on average ({used['samples']:,} samples).")
    if ops["efficiency"] is not None:
        words.append(
            f"Convolutions and matrix products (by {ops['by']}): {percent(ops['efficiency'])} of their kernel time on "
            f"Tensor Cores, {ops['at_stake_ms']:,.1f} ms at stake."
        )
    return [Words(" ".join(words))]


def lines(found: dict) -> list[Block]:
    """Where the program waits and launches: keys ``lines`` and ``causes``."""
    rows = [one | {"cause": found["causes"][one["cause"]]} for one in found["lines"]]
    columns = {
        "where": ("where", lambda name: cut(name, 40)), "cause": "cause", "call": ("call", lambda name: cut(name, 16)),
        "count": "count", "cpu_ms": ("CPU ms", ONE), "idle_ms": ("GPU idle ms", ONE),
    }  # fmt: skip
    known = any(one["file"] for one in found["lines"])
    caption = "Where calls were made that the GPU waited for, the longest idle time first"
    return listed(rows, caption, columns, names=["where"], most=LINES if known else FIRST)


def memory(found: dict) -> list[Block]:
    return [Words(held(found["memory"]))] if found["memory"] else []


def flops(found: dict) -> list[Block]:
    """Arithmetic of convolutions and products: key ``flops``."""
    rows = [one | {"name": shaped(one)} for one in found["flops"] if one["unknown"] is None]
    columns = {
        "name": ("operator", cut), "ops": "count", "gflop": ("GFLOP each", TWO), "gpu_ms": ("GPU ms", TWO),
        "tflops": ("TFLOP/s", ONE), "group": "Tensor Cores",
    }  # fmt: skip
    caption = "Convolutions and matrix products by the sizes of their inputs, the longest first"
    return listed(rows, caption, columns, names=["operator"], most=FIRST)


def communication(found: dict) -> list[Block]:
    """Collectives of each rank: keys ``communication``, ``late_rank``, ``bandwidth``."""
    if not found["communication"]:
        return []
    parts = ("total", "hidden", "exposed", "waiting", "transfer", "unmatched")
    rows = [one | {"rank": f"GPU {one['gpu']}, process {one['process'] & 0xFFFFFF}"} for one in found["communication"]]
    columns = {"rank": "rank", "kernels": "kernels"} | {f"{part}_ms": (part, TWO) for part in parts}
    made = listed(rows, "Collectives of each rank, in ms", columns)
    moved = [
        f"{row['function']} of {row['ranks']} ranks: {row['count']:,}, {row['bytes'] / 1e6:,.2f} MB, bus bandwidth "
        f"{row['bus_gb_per_s']:,.1f} GB/s ({row['largest_bus_gb_per_s']:,.1f} of the largest)"
        for row in found["bandwidth"]
    ]
    return [*map(Words, found["late_rank"]), *made, *map(Words, moved)]


def launches(found: dict) -> list[Block]:
    """Does the GPU wait for launches? Key ``launches``."""
    own = found["launches"]
    return [Words(f"{own['verdict']}: {own['evidence']}")]


# --- a comparison -------------------------------------------------------------------------------------------


def compared(found: dict, said: dict) -> list[Block]:
    """What changed. ``found``: ``causes``; ``said``: what ``summary.compared`` says, plain."""
    blocks: list[Block] = []
    if said["obstacles"]:
        blocks += [Words("What differs:"), Items(said["obstacles"])]
    if said["verdict"]:
        blocks.append(Words(said["verdict"]))
    if said["slower_than_allowed"] is not None and said["comparable"]:
        words = "Slower than allowed" if said["slower_than_allowed"] else "Not slower than allowed"
        low, high = (signed(f"{said['change'][edge]:+,.1f}") for edge in ("low_ms", "high_ms"))
        blocks.append(Words(f"{words}: the change lies between {low} and {high} ms."))
    whole_ms = max(said["before_ms"], said["after_ms"])
    for side in ("before", "after"):
        parts = [(cause, found["causes"][cause], ms[side] or 0.0) for cause, ms in said["budget_ms"].items()]
        blocks.append(Bar(parts, whole_ms, f"{side}: {said[f'{side}_ms']:,.1f} ms"))
    blocks += [_changes(found["causes"], said), *_changed_kernels(said["kernels"])]
    return blocks + ([Items(said["remarks"])] if said["remarks"] else [])


def _changes(words: Mapping[str, str], said: dict) -> Table:
    whole = said["change"]
    both = {cause: [*ms.values(), *_all_ms(said["causes"][cause])] for cause, ms in said["budget_ms"].items()}
    causes = {cause: said["causes"][cause] for cause, ms in both.items() if any(ms)}
    reach = max(abs(own[edge]) for own in (*causes.values(), whole) if own for edge in ("low_ms", "high_ms"))
    profiles = [len(whole[side]) for side in ("before_ms", "after_ms")]
    several = sum(profiles) > 2
    rows = [_change(several, words[cause], *said["budget_ms"][cause].values(), own) for cause, own in causes.items()]
    medians = (median(whole[side]) for side in ("before_ms", "after_ms"))
    rows.append(_change(several, f"‘{said['compared']}’", *medians, whole))
    if several:
        how = "the pairs’ changes" if whole["paired"] else "all of one side less all of the other"
        caption = (
            f"Cause by cause; from … to: between what the change lies, of {profiles[0]} and {profiles[1]} profiles "
            f"({how}); * beyond the noise"
        )
    else:
        caption = f"Cause by cause, one profile a side; * changed by more than {100 * NOISE:.0f} % of the window"
    columns = ["cause", "before ms", "after ms", "change ms", "from … to" if several else "*", "less · more"]
    formats = dict.fromkeys(columns[1:3], ONE) | {"change ms": "{:+,.1f}"}
    formats["less · more"] = lambda edges: Picture(whisker(*edges, reach)) if edges else ""
    frame = pd.DataFrame(rows, columns=columns)
    return table(frame, caption, formats, totals=[-1], looks=[*causes, None], only={"less · more": HTML})


def _all_ms(own: dict | None) -> list[float]:
    return [*own["before_ms"], *own["after_ms"]] if own else []


def _change(several: bool, name: str, before: float | None, after: float | None, own: dict | None) -> tuple:
    """A row, for a table of several profiles or of one a side; no change where a side does not tell the cause."""
    if own is None:
        return name, before, after, None, "", None
    edges = own["low_ms"], own["ms"], own["high_ms"]
    low, high = (signed(f"{edge:+,.1f}") for edge in (edges[0], edges[2]))
    mark = "*" if own["beyond_noise"] else ""
    return name, before, after, own["ms"], f"{low} to {high} {mark}".rstrip() if several else mark, edges


def _changed_kernels(found: Sequence[dict]) -> list[Block]:
    rows = [one for one in found if abs(one["change_ms"]) >= LEAST_CHANGE_MS]
    columns = {
        "kernel": ("kernel", kernel), "before": ("before", WHOLE), "after": ("after", WHOLE),
        "before_ms": ("before ms", TWO), "after_ms": ("after ms", TWO), "change_ms": ("change ms", "{:+,.2f}"),
    }  # fmt: skip
    return listed(rows, "Kernels, those changed most first", columns, names=["kernel"], most=CHANGED)


def listed(
    found: Sequence[dict], caption: str, columns: Mapping[str, str | tuple[str, Format]], **more: object
) -> list[Block]:
    """The table of rows; nothing where there are none. ``columns``: key → what it is called, and how it is written."""
    if not found:
        return []
    told = {key: (own, None) if isinstance(own, str) else own for key, own in columns.items()}
    frame = pd.DataFrame([[one[key] for key in told] for one in found], columns=[name for name, _ in told.values()])
    return [table(frame, caption, {name: shape for name, shape in told.values() if shape}, **more)]


# --- all of it ----------------------------------------------------------------------------------------------

NEXT, UNSEEN = "What to do next", "Not looked at"


def answer(found: dict) -> dict[str, list[Block]]:
    """All parts that have something to say, by their titles."""
    parts = {
        "Where the time goes": budget(found),
        NEXT: advice(found),
        "Steps": steps(found),
        "Phases": phases(found["phases"]),
        "Lines": lines(found),
        "Copies": copies(found["copies"]),
        "Memory": memory(found),
        "Kernels": [*tensor_cores(found), *kernels(found["kernels"])],
        "Arithmetic": flops(found),
        "Communication": communication(found),
        "Launches": launches(found),
        UNSEEN: not_looked_at(found),
    }
    return {title: blocks for title, blocks in parts.items() if blocks}
