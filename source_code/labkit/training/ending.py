"""How does a script end before its time? Whoever ends it, and whatever breaks: one sentence, and a status that says so.

SIGTERM, as batch systems, containers and torchrun send it, does what Ctrl-C does, and so does SIGHUP, which a closed
terminal or a lost connection sends.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType

from stepbudget.errors import ReportError, printable, speak_any_encoding

REFUSED, FAILED, CTRL_C, SIGNALLED = 2, 1, 130, 128  # exit statuses; of a signal the last one plus its number
ENDING = {getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)}
PATIENCE_S = 10  # with a rank that was asked to end, and waits for the others where Python cannot interrupt it
_begun = False
_asked = 0  # the signal that asked for the end
_main = 0  # the process that handles them: a loader worker is a copy of it until it has set handlers of its own


def in_one_sentence() -> None:
    """From now on this process ends in one sentence where a reader can do something about its end.

    That is: Ctrl-C and what is ``ENDING``, each LabError, and what ``sentence`` knows. All else keeps its traceback. A
    signal that is ignored already (nohup) stays so. Only the rank that keeps the record handles it: the others end at
    once.
    """
    global _begun, _main
    speak_any_encoding()
    _silence()
    _fork_workers()
    if _begun or os.environ.get("RANK", "0") != "0" or threading.current_thread() is not threading.main_thread():
        return
    _begun, _main = True, os.getpid()
    handled = {number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL}
    for number in handled:
        signal.signal(number, _as_ctrl_c)
    if handled and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        _end_what_hangs()


def status(error: BaseException | None) -> str:
    """What a record says of a run that ended so: ``complete``, ``interrupted`` or ``failed``.

    It is asked once, first of all. From then on the death of a loader worker breaks off nothing more: PyTorch raises it
    wherever the program is, and again for each worker that goes after the first, so in the midst of writing the record.
    """
    if hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, lambda *_: None)
    if error is None:
        return "complete"
    return "interrupted" if _asked or isinstance(error, KeyboardInterrupt) else "failed"


def exit_status(error: BaseException) -> int:
    """The exit status of a process that ended so."""
    if _asked:
        return SIGNALLED + _asked
    if isinstance(error, ReportError):
        return REFUSED
    return CTRL_C if isinstance(error, KeyboardInterrupt) else FAILED


def sentence(error: BaseException | None) -> str | None:
    """One sentence for an end that a reader can do something about; None leaves the traceback to speak."""
    if _asked and error is not None:  # whatever broke then: another rank, a loader worker
        return f"interrupted by {signal.Signals(_asked).name}."
    if isinstance(error, KeyboardInterrupt):
        return "interrupted."
    if isinstance(error, ReportError):
        return f"error: {printable(str(error))}"
    if type(error).__name__ == "OutOfMemoryError":  # torch.cuda's; PyTorch need not be there
        return "error: out of GPU memory. Lower --batch-size, or free the GPU from other programs."
    text = str(error) if isinstance(error, RuntimeError) else ""
    if "shared memory" in text or "Bus error" in text:
        return "error: the loader workers ran out of shared memory. In a container, add --ipc=host (or --shm-size=8g)."
    if "DataLoader worker" in text or _asked_a_worker_in_vain(error):
        return "error: a loader worker was killed. Is the machine out of memory? Lower --workers."
    return None


def _asked_a_worker_in_vain(error: BaseException | None) -> bool:
    """Did a loader worker go while its batch was fetched from it, before anyone heard of its death?"""
    if not isinstance(error, (EOFError, OSError)):
        return False
    files = (Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__))
    return any((file.parent.name, file.name) == ("multiprocessing", "resource_sharer.py") for file in files)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Once: what comes after it ends nothing any more, neither a second signal nor the death of a loader worker.

    A run that is just ending, since another rank ended first, is left to it: its record comes out whole. A loader
    worker that has just been born ends without a word.
    """
    global _asked
    if os.getpid() != _main:
        os._exit(SIGNALLED + number)
    _asked = number
    for one in ENDING:
        signal.signal(one, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while frame is not None:
        if frame.f_code.co_name == "__exit__" and Path(frame.f_code.co_filename).parent == Path(__file__).parent:
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _fork_workers() -> None:
    """Loader workers are copies of this process, as they are everywhere on Linux up to Python 3.13.

    From 3.14 on a server starts them, which outlives a run that was killed, and keeps its workers alive. A copy that
    was made while some thread held a lock may wait for it for ever and hear no signal. At the end multiprocessing would
    ask it to end, and wait: so what still lives by then is killed.
    """
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork", force=True)
    atexit.register(_kill_workers)


def _kill_workers() -> None:
    for worker in multiprocessing.active_children():
        worker.kill()


def _silence() -> None:
    """The main process says its sentence; a loader worker that Ctrl-C left alone in mid-talk says nothing."""
    if getattr(sys.excepthook, "of_labkit", False):
        return
    main, usual = os.getpid(), sys.excepthook

    def hook(kind, error, where) -> None:
        if os.getpid() != main:
            if not issubclass(kind, (ConnectionError, EOFError, KeyboardInterrupt)):
                usual(kind, error, where)
            return
        said = sentence(error)
        if said is None:
            usual(kind, error, where)
            return
        print(f"\n{Path(sys.argv[0]).name}: {said}", file=sys.stderr, flush=True)
        sys.exit(exit_status(error))

    def unraisable(what, usual=sys.unraisablehook) -> None:
        half_made = isinstance(what.exc_value, AttributeError) and getattr(what.object, "__name__", "") == "__del__"
        if not half_made:  # a signal may break off an __init__: then __del__ misses what it would have set
            usual(what)

    hook.of_labkit = True
    sys.excepthook, sys.unraisablehook = hook, unraisable


def _end_what_hangs() -> None:
    """A rank that waits for another one inside NCCL or gloo hears no signal: it is ended from a thread, a while later.

    Python writes the number of each signal that it handles into a socket at once, whatever the program is doing.
    """
    heard, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    main = os.getpid()

    def watch(told: socket.socket = told) -> None:  # which is open as long as somebody holds it
        while ENDING.isdisjoint(heard.recv(64)):
            pass
        time.sleep(PATIENCE_S)
        if _asked:  # heard in Python, so it is on its way out: on a busy machine that may take as long again
            time.sleep(PATIENCE_S)
        if os.getpid() == main:
            os.kill(main, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="end what hangs").start()
