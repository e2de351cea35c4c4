"""What several tests stand on lies in tests/support: made reports (``synthetic``)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
