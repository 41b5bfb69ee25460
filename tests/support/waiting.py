"""Waiting on conditions instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 30.0


def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Return as soon as a condition holds; fail when it does not in time.

    What is waited for needs the processor too, so looking takes half of the time at most.
    """
    deadline = time.monotonic() + timeout_s
    looked = time.monotonic()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(max(0.01, time.monotonic() - looked))
        looked = time.monotonic()


async def eventually(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """The same inside an event loop."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)
