"""Stop signals that wait until a process that starts can handle them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_signals_held() -> Iterator[None]:
    """Within the block, start processes that get stop signals only once they can handle them.

    They inherit the blocked signals, and the engine takes those that were sent meanwhile when it
    installs its handlers. Otherwise a stop would end a process that still imports its libraries
    without a record of how the run ended.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
