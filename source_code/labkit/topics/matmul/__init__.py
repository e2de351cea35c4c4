"""How does a matrix product of one's own compare?"""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
