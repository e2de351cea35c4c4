"""Which formats do networks train in below 32 bits, and what has to be done for each?"""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
