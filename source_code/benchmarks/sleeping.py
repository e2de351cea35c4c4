"""Run a step script that sleeps in each training step, after the optimizer: what does a report make of it?

python3 sleeping.py main_opt2.py --profile --epochs 2
"""

import runpy
import sys
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

from labkit.paths import script

SLEEP_S = 0.010


def main():
    step, *flags = sys.argv[1:]
    register_optimizer_step_post_hook(lambda *_: time.sleep(SLEEP_S))
    sys.argv = [str(script(step)), *flags]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
