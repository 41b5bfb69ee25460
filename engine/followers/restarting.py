"""The process that starts a follower of a run, and starts it again when it was killed.

`python -m fttui.engine.followers.restarting NAME MODULE ARGUMENTS` runs `MODULE` until it ends by
itself. Both write to the same output.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

PAUSES_S = (1.0, 5.0, 20.0, 60.0, 60.0)
"""Seconds before each new start; after the last one the follower is not started again."""
WISHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals by which a user or the system asks a process to end."""


def keep_running(
    command: Sequence[str], say: Callable[[str], None], wait: Callable[[float], None] = time.sleep
) -> int:
    """Run a command until it ends by itself; return its exit code, negative for a signal.

    A command that a signal killed, such as SIGKILL for lack of memory, is started again, as often
    as `PAUSES_S` has entries. SIGTERM is passed on to the command. A command that one of `WISHED`
    ended is not started again.

    Args:
        command: the command.
        say: receives a line about each new start, and about giving up.
        wait: waits the given seconds.

    Raises:
        OSError: the command cannot be started.
    """
    for number, pause_s in enumerate((*PAUSES_S, None), start=1):
        code = _run(command)
        if code >= 0 or -code in WISHED:
            return code
        killed = f"killed by {signal.Signals(-code).name}"
        if pause_s is None:
            say(f"{killed}; it was started {len(PAUSES_S)} times again and stays ended; what a "
                "tracker lacks is delivered with: fttui sync")  # fmt: skip
            return code
        say(f"{killed}; started again in {pause_s:.0f} s ({number} of {len(PAUSES_S)})")
        wait(pause_s)
    raise AssertionError("the last pause returns")


def _run(command: Sequence[str]) -> int:
    """Run a command to its end, passing SIGTERM on to it; return its exit code."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: process.terminate())
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: Sequence[str]) -> int:
    """Run a module of fttui; return its exit code, or 128 plus the signal that ended it."""
    name, module, *rest = arguments
    for ignored in (signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)

    def say(text: str) -> None:
        sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {name}: {text}\n")
        sys.stdout.flush()

    code = keep_running([sys.executable, "-P", "-m", module, *rest], say)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
