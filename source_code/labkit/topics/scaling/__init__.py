"""What do more GPUs bring? Measured on the GPUs of one host, and on paper for as many as one likes."""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
