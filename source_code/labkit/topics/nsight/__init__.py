"""What does Nsight Systems itself show and say, and by which rules does the budget blame idle time?"""

from labkit.topics import rooms

__getattr__, __dir__ = rooms(__name__, __path__)
