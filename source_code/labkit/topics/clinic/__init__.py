"""Ten reports of other people's programs, and those programs: what ails each is for the reader to find."""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
