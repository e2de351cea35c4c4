"""What a step script stands on: the command line, the run and its record, the digits, the network."""

import os
from pathlib import Path

if os.environ.get("LAB_MANIFEST"):  # who started this process asks which modules it loaded
    from labkit.training import manifest

    manifest.name_modules_at_exit(Path(os.environ["LAB_MANIFEST"]))
