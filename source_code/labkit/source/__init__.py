"""Where do results come from? One door for every notebook: ``current().get(kinds.benchmark("bench_peaks.py"))``."""

from labkit.source.door import Live, Recorded, Source, current, this_machine, using
from labkit.source.facts import Machine
from labkit.source.programs import Programs

__all__ = ["Live", "Machine", "Programs", "Recorded", "Source", "current", "this_machine", "using"]
