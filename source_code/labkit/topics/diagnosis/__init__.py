"""Who finds the planted cause? The report reader and other tools, asked about the clinic's reports."""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
