"""What do other profilers say?"""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
