"""Run scripts on the same ranks, one after the other, so that they import once: ``in_turn.py SCRIPT … then SCRIPT …``.

On the CPU, also under torchrun; the ranks meet as the scripts of several GPUs have them meet.
"""

import runpy
import sys

from labkit.training.distributed import Ranks

if __name__ == "__main__":
    words, each = sys.argv[1:], []
    while "then" in words:
        at = words.index("then")
        each.append(words[:at])
        words = words[at + 1 :]
    ranks = Ranks()
    ranks.join(ranks.take_gpu("cpu"))
    for sys.argv in [*each, words]:
        runpy.run_path(sys.argv[0], run_name="__main__")
    ranks.leave()
