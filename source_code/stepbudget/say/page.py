"""How does an answer travel? As one HTML file that opens anywhere: no network, on light and on dark ground.

All words come from the same object as the text's (stepbudget.say.summary); only the pictures look at the report again.
A notebook shows the same without the page around it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from statistics import median

from stepbudget import kernel_names
from stepbudget.ask.budget import WORK
from stepbudget.ask.compare import NOISE
from stepbudget.say import picture, style
from stepbudget.say.picture import escaped
from stepbudget.say.text import LEAST_CHANGE_MS
from stepbudget.say.timeline import Pictures
from stepbudget.say.words import held, percent, sentence, shaped
from stepbudget.show import svg
from stepbudget.signs import signed

KERNELS, PHASES, CHANGED = 20, 30, 15  # rows of a table; the others are counted
LINES = 12  # lines of the program, shapes of operators
NAME = 90  # letters of a kernel's name; all of it is told when pointed at
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{allowed}">
<title>{title} – step budget</title>
</head>
<body>
{content}
</body>
</html>
"""
SCRIPT = base64.b64encode(hashlib.sha256(svg.SCRIPT.encode()).digest()).decode()  # the only one that may run
ALLOWED = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{SCRIPT}'"


# --- the whole ----------------------------------------------------------------------------------------------


def page(found: dict, drawn: Sequence[Pictures]) -> str:
    """The file. ``found``: stepbudget.say.summary's object, plain; ``drawn``: of the report and of the one compared."""
    compared = found.get("comparison")
    title = f"{compared['before']} → {compared['after']}" if compared else found["report"]
    return PAGE.format(title=escaped(title), allowed=ALLOWED, content=fragment(found, drawn))


def fragment(found: dict, drawn: Sequence[Pictures]) -> str:
    """The same without the page around it, with its own style: for a notebook."""
    parts = [_head(found)]
    if found.get("comparison"):
        parts += [_comparison(found), f"<h2 class='divider'>Before: {_code(found['report'])}</h2>{_lead(found)}"]
    parts += [_budget(found), _advice(found), _timelines(drawn), _steps(found, drawn[0])]
    parts += [_phases(found), _lines(found), _copies(found), _memory(found), _kernels(found), _flops(found)]
    parts += [_communication(found), _launches(found)]
    parts += [_not_looked_at(found), _foot(found)]
    parts.append(f"<script>{svg.SCRIPT}</script>")
    return f'<style>{style.sheet()}</style><main class="stepbudget">{style.PATTERNS}\n{"".join(parts)}</main>'


# --- parts --------------------------------------------------------------------------------------------------


def _head(found: dict) -> str:
    compared = found.get("comparison")
    gpu = found["gpu"] or "GPU not named"
    if found["gpu_number"] is not None and len(found["gpus_used"]) > 1:
        gpu += f" (number {found['gpu_number']})"
    if compared:
        title = f"{_code(compared['before'])} <span class='to'>→</span> {_code(compared['after'])}"
        facts, lead = [gpu, f"compared: ‘{compared['compared']}’"], _compared_lead(compared)
    else:
        steps = [f"{found['steps']} step{'s' * (found['steps'] > 1)}"] if found["steps"] else []
        facts = [gpu, f"range ‘{found['range']}’", f"{found['duration_ms']:,.1f} ms", *steps]
        facts.append(f"Nsight Systems {found['nsys_version'] or 'of unknown version'}")
        title, lead = _code(found["report"]), _lead(found)
    remarks = "".join(f"<p class='remark'>{escaped(sentence(text))}</p>" for text in found["remarks"])
    head = f"<p class='kicker'>step budget</p><h1>{title}</h1><ul class='facts'>{_items(facts)}</ul>"
    return f"<header>{head}{lead}{remarks}</header>"


def _lead(found: dict) -> str:
    if not found["gpus_used"]:
        return "<p class='first'>The report holds no work of a GPU.</p>"
    idle = {cause: share for cause, share in found["budget"].items() if cause not in WORK and share > 0}
    lead = f"The GPU was busy for <b>{percent(found['gpu_busy_fraction'])}</b> of the time."
    if idle:
        cause = max(idle, key=idle.__getitem__)
        lead += f" What kept it idle most: <b>{escaped(found['causes'][cause])}</b>, {percent(idle[cause])}."
    return f"<p class='first'>{lead}</p>"


def _compared_lead(compared: dict) -> str:
    if not compared["comparable"]:
        return "<p class='first'>The two cannot be compared: what differs stands below.</p>"
    speedup = compared["before_ms"] / compared["after_ms"] if compared["after_ms"] else float("inf")
    took = f"{compared['before_ms']:,.1f} ms before, {compared['after_ms']:,.1f} ms after"
    return f"<p class='first'><b>{speedup:.2f} times as fast</b>: {took}.</p>"


def _budget(found: dict) -> str:
    whole_ms = found["duration_ms"]
    shares = {cause: share for cause, share in found["budget"].items() if share}
    label = ", ".join(f"{found['causes'][cause]} {percent(share)}" for cause, share in shares.items())
    parts = [(cause, found["causes"][cause], share * whole_ms) for cause, share in shares.items()]
    body = [
        (_keyed(cause, words), f"{ms:,.1f}", f"{100 * shares[cause]:.1f}", _evidence(found, cause))
        for cause, words, ms in parts
    ]
    caption = "Each nanosecond has one cause; the shares add up to 100 %"
    table = _table(caption, ["cause", "ms", "%", "how it was told"], body, "nnt")
    return _section("Where the time goes", picture.bar(parts, whole_ms, f"A stacked bar: {label}") + table)


def _evidence(found: dict, cause: str) -> str:
    return escaped(found["budget_evidence"].get(cause, ""))


def _advice(found: dict) -> str:
    if not found["advice"]:
        return _section("What to do next", "<p>Nothing stands out.</p>")
    items = []
    for one in found["advice"]:
        lab = f"<span class='lab'>Lab {escaped(one['lab'])}</span>" if one["lab"] else ""
        share = 100 * one["upper_bound_ms"] / found["duration_ms"] if found["duration_ms"] else 0.0
        meter = f"<span class='meter' aria-hidden='true'><i style='width:{min(100, share):.1f}%'></i></span>"
        bound = f"<span>at most <b>{one['upper_bound_ms']:,.1f} ms</b> to gain ({share:.0f} %)</span>"
        title = f"<h3>{_keyed(one['cause'], one['what'])}{lab}</h3>"
        items.append(f"<li>{title}<p class='bound'>{meter}{bound}</p><p>{escaped(sentence(one['evidence']))}</p></li>")
    note = "A bound says what a fix can gain at most while all else stays as it is; bounds do not add up."
    return _section("What to do next", f"<ol class='advice'>{''.join(items)}</ol><p class='note'>{note}</p>")


def _timelines(drawn: Sequence[Pictures]) -> str:
    sides = zip(("before", "after"), drawn, strict=False)
    whose = [f"<figcaption><b>{side}</b> {_code(own.name)}</figcaption>" for side, own in sides]
    whose = whose if len(drawn) > 1 else [""]
    figures = [f"<figure>{words}{own.timeline}</figure>" for words, own in zip(whose, drawn, strict=True)]
    note = (
        "Time runs to the right. What is thinner than a pixel is as high as the share of the time in which it ran: the "
        "higher, the busier. Point at a bar to read what it is; drag over a stretch to zoom into it."
    )
    return _section("Timeline", f"{''.join(figures)}<p class='note'>{note}</p>")


def _steps(found: dict, drawn: Pictures) -> str:
    steps = found["per_step"]
    if not steps:
        return ""
    std = "" if steps["std_ms"] is None else f", standard deviation {steps['std_ms']:,.2f}"
    line = (
        f"A step takes {steps['mean_ms']:,.2f} ms on average (median {steps['median_ms']:,.2f}{std}; "
        f"{steps['shortest_ms']:,.2f} to {steps['longest_ms']:,.2f})."
    )
    if steps["loader_period_steps"]:
        line += f" Every {steps['loader_period_steps']} steps the loader keeps it waiting."
    return _section("Steps", f"<p>{line}</p>{drawn.steps}{drawn.one_step}")


def _phases(found: dict) -> str:
    columns = ["phase", "ranges", "CPU ms", "kernels", "GPU ms"]
    body = [
        (escaped(one["name"]), f"{one['count']:,}", _number(one["cpu_ms"], 1), f"{one['kernels']:,}",
         f"{one['gpu_ms']:,.1f}")
        for one in found["phases"]
    ]  # fmt: skip
    caption = "NVTX ranges, with the kernels launched from inside each"
    return _section("Phases", _table(caption, columns, body, "nnnn", PHASES)) if body else ""


def _copies(found: dict) -> str:
    columns = ["copies", "count", "MB", "GPU ms", "beside kernels", "held ms", "GB/s"]
    body = [
        (escaped(f"{one['direction']}, {one['host_memory']}"), f"{one['count']:,}", f"{one['bytes'] / 1e6:,.2f}",
         f"{one['gpu_ms']:,.2f}", f"{one['overlap_ms']:,.2f}", _number(one["api_ms"], 2), _number(one["gb_per_s"], 1))
        for one in found["copies"]
    ]  # fmt: skip
    caption = "Copies by direction and kind of host memory; ‘held’ is how long the thread that asked was kept"
    return _section("Copies", _table(caption, columns, body, "nnnnnn")) if body else ""


def _kernels(found: dict) -> str:
    if not found["kernels"]:
        return ""
    body = [
        (_kernel(one["name"]), f"{one['count']:,}", f"{one['gpu_ms']:,.2f}",
         f"{escaped(one['tensor_core'])} <small>({escaped(one['evidence'])})</small>")
        for one in found["kernels"]
    ]  # fmt: skip
    used, ops = found["tensor_cores"], found["operations"]
    on, not_on, unknown = (f"{used[f'{verdict}_ms']:,.1f}" for verdict in ("yes", "no", "unknown"))
    lines = [f"On Tensor Cores {on} ms, not on them {not_on}, unknown {unknown}."]
    if used["samples"]:
        lines.append(f"Tensor Active {used['active_mean_pct']:.1f} % on average ({used['samples']:,} samples).")
    if ops["efficiency"] is not None:
        lines.append(
            f"Convolutions and matrix products (by {escaped(ops['by'])}): {percent(ops['efficiency'])} of their kernel "
            f"time on Tensor Cores, {ops['at_stake_ms']:,.1f} ms at stake."
        )
    caption = "Longest first; in brackets what the verdict on Tensor Cores rests on"
    table = _table(caption, ["kernel", "count", "GPU ms", "Tensor Cores"], body, "nnt", KERNELS)
    return _section("Kernels", f"<p>{' '.join(lines)}</p>{table}")


def _lines(found: dict) -> str:
    body = [
        (_keyed(one["cause"], found["causes"][one["cause"]]), escaped(one["where"]), escaped(one["call"]),
         f"{one['count']:,}", f"{one['cpu_ms']:,.1f}", f"{one['idle_ms']:,.1f}")
        for one in found["lines"]
    ]  # fmt: skip
    caption = "Where calls were made that the GPU waited for, the longest idle time first"
    columns = ["cause", "where", "call", "count", "CPU ms", "GPU idle ms"]
    return _section("Lines", _table(caption, columns, body, "ttnnn", LINES)) if body else ""


def _memory(found: dict) -> str:
    return _section("Memory", f"<p>{escaped(sentence(held(found['memory'])))}</p>") if found["memory"] else ""


def _flops(found: dict) -> str:
    body = [
        (f"<code>{escaped(shaped(one))}</code>", f"{one['ops']:,}", f"{one['gflop']:,.2f}", f"{one['gpu_ms']:,.2f}",
         f"{one['tflops']:,.1f}", escaped(one["group"]))
        for one in found["flops"]
        if one["unknown"] is None
    ]  # fmt: skip
    caption = "Convolutions and matrix products by the sizes of their inputs, the longest first"
    columns = ["operator", "count", "GFLOP each", "GPU ms", "TFLOP/s", "Tensor Cores"]
    return _section("Arithmetic", _table(caption, columns, body, "nnnnt", LINES)) if body else ""


def _communication(found: dict) -> str:
    if not found["communication"]:
        return ""
    columns = ["total", "hidden", "exposed", "waiting", "transfer", "unmatched"]
    body = [
        (f"GPU {one['gpu']}, process {one['process'] & 0xFFFFFF}", f"{one['kernels']:,}",
         *(f"{one[f'{column}_ms']:,.2f}" for column in columns))
        for one in found["communication"]
    ]  # fmt: skip
    late = "".join(f"<p>{escaped(sentence(text))}</p>" for text in found["late_rank"])
    table = _table("Collectives of each rank, in ms", ["rank", "kernels", *columns], body, "n" * 7)
    return _section("Communication", late + table)


def _launches(found: dict) -> str:
    own = found["launches"]
    words = f"<b>{escaped(sentence(own['verdict']))}</b> {escaped(sentence(own['evidence']))}"
    return _section("Launches", f"<p>{words}</p>")


def _not_looked_at(found: dict) -> str:
    if not found["not_looked_at"]:
        return ""
    return _section("Not looked at", f"<p>The report does not hold it:</p><ul>{_items(found['not_looked_at'])}</ul>")


def _foot(found: dict) -> str:
    when = f"ns {found['start_ns']:,} to {found['end_ns']:,} of the report’s own clock"
    return f"<footer>Made by stepbudget from {_code(found['report'])}: {when}.</footer>"


# --- the comparison -----------------------------------------------------------------------------------------


def _comparison(found: dict) -> str:
    compared = found["comparison"]
    parts = [f"<p><b>What differs:</b></p><ul>{_items(compared['obstacles'])}</ul>"] if compared["obstacles"] else []
    if compared["verdict"]:
        parts.append(f"<p>{escaped(sentence(compared['verdict']))}</p>")
    if compared["slower_than_allowed"] is not None and compared["comparable"]:
        words = "Slower than allowed" if compared["slower_than_allowed"] else "Not slower than allowed"
        low, high = (signed(f"{compared['change'][edge]:+,.1f}") for edge in ("low_ms", "high_ms"))
        parts.append(f"<p><b>{words}:</b> the change lies between {low} and {high} ms.</p>")
    whole_ms = max(compared["before_ms"], compared["after_ms"])
    for side in ("before", "after"):
        own = [(cause, found["causes"][cause], ms[side]) for cause, ms in compared["budget_ms"].items()]
        label = ", ".join(f"{words} {ms:,.1f} ms" for _, words, ms in own if ms)
        drawn = picture.bar(own, whole_ms, f"A stacked bar, {side}: {label}")
        took = f"{compared[f'{side}_ms']:,.1f} ms"
        parts.append(f"<div class='side'><span>{side}</span>{drawn}<span>{took}</span></div>")
    parts += [_changes(found), _changed_kernels(compared)]
    parts += [f"<ul class='note'>{_items(compared['remarks'])}</ul>"] if compared["remarks"] else []
    return _section("What changed", "".join(parts))


def _changes(found: dict) -> str:
    compared = found["comparison"]
    whole = compared["change"]
    causes = {cause: own for cause, own in compared["causes"].items() if any((*own["before_ms"], *own["after_ms"]))}
    reach = max(abs(own[edge]) for own in (*causes.values(), whole) for edge in ("low_ms", "high_ms"))
    body = [
        _change(_keyed(cause, found["causes"][cause]), *compared["budget_ms"][cause].values(), own, reach)
        for cause, own in causes.items()
    ]
    medians = [median(whole[side]) for side in ("before_ms", "after_ms")]
    body.append(_change(f"<b>‘{escaped(compared['compared'])}’</b>", *medians, whole, reach))
    profiles = [len(whole[side]) for side in ("before_ms", "after_ms")]
    how = "the pairs’ changes" if whole["paired"] else "all of one side less all of the other"
    of = f"of {profiles[0]} and {profiles[1]} profiles ({how})" if sum(profiles) > 2 else "with one profile a side"
    caption = (
        f"Cause by cause. In brackets, between what the change lies {of}: where they are so few that chance could make "
        f"them agree, {100 * NOISE:.0f} % of the window to either side at least. * beyond the noise"
    )
    return _table(caption, ["cause", "before ms", "after ms", "change ms (from … to)", "less · more"], body, "nnnw")


def _change(name: str, before: float, after: float, own: dict, reach: float) -> tuple[str, ...]:
    low, middle, high = (own[f"{where}ms"] for where in ("low_", "", "high_"))
    mark = "*" if own["beyond_noise"] else ""
    words = [signed(f"{change:+,.1f}") for change in (middle, low, high)]
    between = "<b>{}</b>{} <small>({} to {})</small>".format(words[0], mark, *words[1:])
    return name, f"{before:,.1f}", f"{after:,.1f}", between, picture.whisker(low, middle, high, reach)


def _changed_kernels(compared: dict) -> str:
    body = [
        (_kernel(one["kernel"]), f"{one['before']:,.0f}", f"{one['after']:,.0f}", f"{one['before_ms']:,.2f}",
         f"{one['after_ms']:,.2f}", signed(f"{one['change_ms']:+,.2f}"))
        for one in compared["kernels"]
        if abs(one["change_ms"]) >= LEAST_CHANGE_MS
    ]  # fmt: skip
    columns = ["kernel", "before", "after", "before ms", "after ms", "change ms"]
    return _table("Kernels, those changed most first", columns, body, "nnnnn", CHANGED) if body else ""


# --- pieces -------------------------------------------------------------------------------------------------


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escaped(title)}</h2>{body}</section>\n"


def _table(caption: str, columns: Sequence[str], body: Sequence[tuple], kinds: str, most: int | None = None) -> str:
    """A table of cells that are HTML already; ``kinds`` of all columns but the first: n(umber), t(ext), w(hisker)."""
    kinds = "r" + kinds
    head = (f"<th scope='col' class='{kind}'>{escaped(name)}</th>" for kind, name in zip(kinds, columns, strict=True))
    lines = []
    for first, *rest in body[:most]:
        cells = (f"<td class='{kind}'>{cell}</td>" for kind, cell in zip(kinds[1:], rest, strict=True))
        lines.append(f"<tr><th scope='row'>{first}</th>{''.join(cells)}</tr>")
    more = len(body) - len(lines)
    foot = f"<tfoot><tr><td colspan='{len(columns)}'>and {more:,} more</td></tr></tfoot>" if more else ""
    return (
        f"<div class='scroll'><table><caption>{escaped(caption)}</caption><thead><tr>{''.join(head)}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody>{foot}</table></div>"
    )


def _items(texts: Sequence[str]) -> str:
    return "".join(f"<li>{escaped(text)}</li>" for text in texts)


def _keyed(look: str, words: str) -> str:
    """Words with a cause's colour before them."""
    swatch = f"<svg class='swatch' width='12' height='12' aria-hidden='true'>{picture.box(look)}</svg>"
    return f"<span class='keyed'>{swatch}{escaped(words)}</span>"


def _code(name: str) -> str:
    return f"<code>{escaped(name)}</code>"


def _kernel(name: str) -> str:
    """A kernel's short name; all of it when pointed at."""
    return f"<code title='{escaped(name)}'>{escaped(kernel_names.short(name, NAME))}</code>"


def _number(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:,.{decimals}f}"
