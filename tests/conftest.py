"""What several tests stand on lies in tests/support; property tests have no deadline, since a machine can be busy."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

settings.register_profile("course", deadline=None)
settings.load_profile("course")
