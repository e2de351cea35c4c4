"""How far is a kernel from what the GPU can do?"""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
