"""How the notebooks are validated: ``pytest --nbval``, typed as it is, at the top or in labs/."""

from __future__ import annotations

import os


def pytest_configure(config) -> None:
    """nbval with this environment's Python, a time limit that ends, and recorded results unless told otherwise."""
    option = config.option
    if getattr(option, "nbval", False) or getattr(option, "nbval_lax", False):
        option.nbval_current_env = option.nbval_kernel_name is None
        option.nbval_cell_timeout = min(option.nbval_cell_timeout, 1200)  # seconds; a dead kernel is noticed only then
        os.environ.setdefault("LAB_MODE", "recorded")


def pytest_collectstart(collector) -> None:
    """nbval leaves plotly's JSON out of the comparison, as it does with PNG.

    It is compared by the fingerprint in the same output's text, which covers every bar and word. The JSON itself
    changes with plotly's version, and live with every run; the sanitizer cannot mask a number in base64.
    """
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("application/vnd.plotly.v1+json",)
