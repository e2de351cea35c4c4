"""How fast was 99 % reached, by whom, on what?"""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
