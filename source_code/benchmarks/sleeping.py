"""Run a step script that sleeps in each training step, after the optimizer: what does a report make of it?

python3 sleeping.py main_opt2.py --profile --epochs 2
"""

import argparse
import runpy
import sys
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

from labkit.paths import script
from labkit.training.flags import STEPS

SLEEP_S = 0.010


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="All other flags go to the step.")
    parser.add_argument("step", choices=STEPS, metavar="STEP", help="such as main_opt2.py")
    args, flags = parser.parse_known_args()
    register_optimizer_step_post_hook(lambda *_: time.sleep(SLEEP_S))
    sys.argv = [str(script(args.step)), *flags]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
