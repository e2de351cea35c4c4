"""Where does what lie? The folders of the checkout; ``labkit`` is installed from it in editable mode."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_CODE = ROOT / "source_code"
REPORTS = ROOT / "reports"
RECORDED = REPORTS / "recorded"
