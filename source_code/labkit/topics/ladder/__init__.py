"""What did each rung bring, and what does it cost?"""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
