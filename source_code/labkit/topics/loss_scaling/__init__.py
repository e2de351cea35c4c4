"""What does FP16 lose, and what keeps it?"""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
