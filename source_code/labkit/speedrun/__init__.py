"""How fast is 99 %? A speedrun on MNIST: whose clock, whose data, who judges.

An entry is a Python file that trains; it has no clock and sees no test digit. The ``referee`` gives it the training
digits, starts it from fresh weights for each seed, times it and counts what it gets right. ``search`` tries settings of
an entry on digits held out of the training set. ``pieces`` are what entries may share. What counts as an entry is
written in source_code/speedrun/RULES.md, and checked by ``labkit.speedrun.rules``.
"""
