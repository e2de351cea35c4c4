"""What does each function of the report reader say of itself? ``stepbudget/API.md``, made of its docstrings."""

from __future__ import annotations

import inspect
import re

import stepbudget

QUOTED = re.compile(r"(: |-> )'([^']*)'")  # an annotation, as a signature shows it
EXAMPLE = re.compile(r"^>>> .*", re.MULTILINE | re.DOTALL)  # a docstring ends with what its test runs


def page() -> str:
    """A section for each public name: how it is called, what it says, its example. The tests run the examples."""
    objects: dict[object, list[str]] = {}
    for name in stepbudget.__all__:
        objects.setdefault(getattr(stepbudget, name), []).append(name)
    return "\n".join(_section(one, names) for one, names in objects.items())


def _section(one: object, names: list[str]) -> str:
    said = inspect.getdoc(one)
    text = EXAMPLE.sub("", said).strip().replace("``", "`")
    example = EXAMPLE.search(said)
    signature = QUOTED.sub(r"\1\2", str(inspect.signature(one)))
    call = f"```python\nsb.{names[0]}{signature}\n```\n"
    also = "".join(f" It is also called `sb.{name}`." for name in names[1:])
    shown = f"\n```python\n{example[0]}\n```\n" if example else ""
    return f"## {names[0]}\n\n{call}\n{text}{also}\n{shown}"
