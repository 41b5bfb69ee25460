"""End this process with its parent, for engines that nobody could find after it."""

from __future__ import annotations

import os
import signal
import threading
import time

_LOOK_S = 0.5


def end_with_parent(parent: int) -> None:
    """Kill this process and those that it started, as soon as its parent is another process.

    It is for a process that leads a process group of its own. Nothing is saved.

    Args:
        parent: id of the parent that started this process; it may have ended already.
    """
    watch = threading.Thread(target=_watch, args=[parent], name="parent", daemon=True)
    watch.start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
