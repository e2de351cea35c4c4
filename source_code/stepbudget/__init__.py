"""Where does every nanosecond of a training step go? A reader of Nsight Systems' reports."""


def load_ipython_extension(shell: object) -> None:
    """``%load_ext stepbudget`` in a notebook: ``%%stepbudget`` profiles a cell's script (stepbudget.magic)."""
    from stepbudget import magic

    magic.load_ipython_extension(shell)
