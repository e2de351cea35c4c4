"""How does a page look? Its style sheet: colours by class on light and on dark ground, calm type, nothing from outside.

All of it is about what lies within ``.stepbudget``, so that a notebook around it stays as it is.
"""

from __future__ import annotations

import re

from stepbudget.show import palette

CALL, FILL, BUSY, TENSOR = "call", "fill", "busy", "tensor"  # classes beside the causes of the budget
RANGES = [f"range{number}" for number in range(len(palette.PHASES))]  # of the palette's phases, in their order

# What lies within a page of ours. The second, which nothing is called, makes it weigh more than a notebook's own rules.
OWN = ":is(.stepbudget,#stepbudget)"

# Strokes across a colour, as SVG patterns.
HATCHES = {"/": "rising", "\\": "falling", "x": "crossed", ".": "dotted"}
STROKES = {
    "rising": '<path d="M-1 8L8 -1M-1 1L1 -1M6 8L8 6"/>',
    "falling": '<path d="M-1 -1L8 8M-1 6L1 8M6 -1L8 1"/>',
    "crossed": '<path d="M-1 8L8 -1M-1 -1L8 8"/>',
    "dotted": '<circle cx="3.5" cy="3.5" r="1.2"/>',
}


def sheet() -> str:
    """The style sheet. A notebook's own light or dark theme comes before the system's; paper is light."""
    light, dark = _variables(is_dark=False), _variables(is_dark=True)
    fills = "".join(
        f".{look}{{fill:var(--{look})}}.on.{look}{{fill:var(--on-{look})}}" for look in looks(is_dark=False)
    )
    return (
        f".stepbudget{{{light}}}@media(prefers-color-scheme:dark){{.stepbudget{{{dark}}}}}"
        f"{_chosen('true', 'light')}{{{light}}}{_chosen('false', 'dark')}{{{dark}}}"
        f"{WHOLE}{_within(fills + RULES)}"
        f"@media {NARROW}{{{_within(NARROW_RULES)}}}"
        f"@media print{{.stepbudget,{_chosen('false', 'dark')}{{{light}{PRINTED}}}{_within(PRINTED_RULES)}}}"
    ).replace("\n", "")


def looks(is_dark: bool) -> dict[str, str]:
    """Class → colour, of all that is drawn."""
    theme = palette.DARK if is_dark else palette.LIGHT
    causes = {cause: look.dark if is_dark else look.light for cause, look in palette.CAUSES.items()}
    phases = zip(RANGES, palette.PHASES.values(), strict=True)
    ranges = {look: palette.tint(colour, 0.55, theme["paper"]) for look, colour in phases}
    own = {CALL: theme["call"], FILL: theme["quiet"], BUSY: theme["call"], TENSOR: causes["tensor_core_kernels"]}
    return causes | ranges | own


def ink(colour: str) -> str:
    """Of dark and white text the one that reads better on a colour."""
    return max(("#0D0F12", "#FFFFFF"), key=lambda text: palette.contrast(text, colour))


def text(words: str) -> str:
    """The words as a text in a style sheet, with nothing in it that could end it."""
    return '"' + "".join(one if one.isalnum() else f"\\{ord(one):06x}" for one in words) + '"'


def _variables(is_dark: bool) -> str:
    theme, own = palette.DARK if is_dark else palette.LIGHT, looks(is_dark)
    inks = {f"on-{look}": ink(colour) for look, colour in own.items()}
    scheme = f"color-scheme:{'dark' if is_dark else 'light'};"
    return scheme + "".join(f"--{name}:{value};" for name, value in (theme | own | inks).items())


def _chosen(is_light: str, kind: str) -> str:
    """Where JupyterLab or VS Code shows a page of ours in a theme of its own choice."""
    return f'[data-jp-theme-light="{is_light}"] .stepbudget,[data-vscode-theme-kind="vscode-{kind}"] .stepbudget'


def _within(rules: str) -> str:
    """The rules for what lies within a page of ours."""

    def rule(found: re.Match) -> str:
        return ",".join(f"{OWN} {one.strip()}" for one in found[1].split(",")) + f"{{{found[2]}}}"

    return re.sub(r"([^{}]+)\{([^{}]*)\}", rule, rules)


WHOLE = """
body:has(>.stepbudget){margin:0}
.stepbudget{--sans:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",Ubuntu,sans-serif;
--mono:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
box-sizing:border-box;padding:40px max(20px,calc((100% - 1080px)/2)) 48px;
background:var(--paper);color:var(--ink);font:15px/1.55 var(--sans);text-align:left;-webkit-text-size-adjust:100%}
body>.stepbudget{min-height:100vh}
"""

RULES = """
*{box-sizing:border-box}
svg{display:block;overflow:hidden;shape-rendering:crispEdges}
svg text{font:11.5px var(--sans);shape-rendering:auto;pointer-events:none}
pattern *{stroke:var(--strokes);fill:none;shape-rendering:auto}
h1{margin:2px 0 6px;font-size:27px;line-height:1.25;font-weight:650;letter-spacing:-.01em;color:inherit}
h1 .to{color:var(--quiet);font-weight:400}
h2{margin:0 0 12px;padding:0;font-size:18px;line-height:1.3;font-weight:650;color:inherit}
h2.divider{margin-top:52px;padding-top:24px;border-top:2px solid var(--ink);overflow-wrap:anywhere}
h3{margin:0;font-size:15px;font-weight:600;line-height:1.5;color:inherit}
p{margin:0 0 10px;max-width:68em;overflow-wrap:anywhere}
ul{margin:0 0 10px;padding-left:1.2em}
li{overflow-wrap:anywhere}
section{margin-top:38px}
code{font:inherit;background:none;color:inherit;padding:0;overflow-wrap:anywhere}
td code,tbody th code{font:12.5px/1.5 var(--mono)}
small{color:var(--quiet);font-size:12.5px}
.kicker{margin:0;color:var(--quiet);font-size:12px;letter-spacing:.12em;text-transform:uppercase}
.facts{display:flex;flex-wrap:wrap;gap:0 8px;margin:0;padding:0;list-style:none;color:var(--quiet)}
.facts li:not(:last-child)::after{content:"·";margin-left:8px}
.first{margin:18px 0 0;font-size:18px;line-height:1.5;max-width:60em}
.remark,.note,figcaption{color:var(--quiet);font-size:13px;overflow-wrap:anywhere}
.remark{margin:8px 0 0}
footer{margin-top:44px;padding-top:12px;border-top:1px solid var(--line);color:var(--quiet);font-size:12.5px;
overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{width:100%;font:inherit;font-size:14px;font-variant-numeric:tabular-nums}
tr,tbody tr:nth-child(n),tbody tr:hover{background:none}
th,td{border:0;max-width:none;white-space:normal}
th{font-weight:600}
li{overflow-wrap:anywhere}
td,th{overflow-wrap:break-word}
figure{margin:0 0 18px}
figcaption{margin:4px 0 6px}
figcaption b{color:var(--ink)}
"""

# On a phone a table is a list: a row is a paragraph of its own, and each value has the head of its column before it.
MOST_HEADS = 16
NARROW = "screen and (max-width:760px)"
NARROW_RULES = """
table,caption,tbody,tr,td{display:block}
table{margin:0}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
tbody tr{padding:7px 0;border-bottom:1px solid var(--line)}
tbody td:nth-child(n){display:inline-block;max-width:100%;margin-right:14px;padding:0!important;border:0!important;
text-align:left!important;white-space:normal!important;overflow-wrap:break-word}
tbody td:first-child{display:block;margin:0;font-weight:600}
td::before{margin-right:.4em;color:var(--quiet);font-size:12px;font-weight:400}
tbody td:empty{display:none}
h1{font-size:20px}
figure{overflow-x:auto}
figure svg,figure .stepbudget-live{min-width:680px}
""" + "\n".join(
    f"td:nth-child({at}):not(:first-child)::before{{content:var(--head{at})}}" for at in range(2, MOST_HEADS)
)

PRINTED = "padding:0;background:#fff;font-size:10.5pt"
PRINTED_RULES = """
figure,tr,li{break-inside:avoid}
h2,caption,thead{break-after:avoid}
.scroll{overflow:visible}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
"""
