"""What does Keras do with the same network?"""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
