"""What limits a kernel of one's own, and how near does it come?"""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
