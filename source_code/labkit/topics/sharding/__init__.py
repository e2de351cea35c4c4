"""What does sharding a network leave on a rank, and what does it cost? On paper, and in what was recorded."""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
