"""Two training scripts that are not the course's: what is mended in them, what each mend may gain, and what it does."""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
