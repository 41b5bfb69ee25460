"""The surroundings of a process that loads libraries of trackers or messengers.

Their output may hold keys or ask for a login, so it goes nowhere; what fttui itself says has its
secrets masked.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from types import FrameType
from typing import TextIO

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL|_URLS?$")
_SHORTEST_SECRET = 6
"""A shorter value, such as `1`, is not a secret and would mask parts of words."""
_USER_PART = re.compile(r"(\w+://)[^/\s@]+@")
_QUERY = re.compile(r"([?&][^=\s&]*(?:key|token|secret|pass|sig)[^=\s&]*=)[^&\s]+", re.IGNORECASE)
_MOST_CHARACTERS = 500
MASK = "***"


def masked(text: str, environment: Mapping[str, str]) -> str:
    """Return a text as one line without the secrets of the environment and of addresses in it."""
    for name, value in environment.items():
        if not _SECRET.search(name.upper()):
            continue
        for part in {value, *re.split(r"[\s,]+", value)}:
            if len(part) >= _SHORTEST_SECRET:
                text = text.replace(part, MASK)
    text = _QUERY.sub(rf"\1{MASK}", _USER_PART.sub(rf"\1{MASK}@", text))
    line = " · ".join(part.strip() for part in text.splitlines() if part.strip())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"


def own_output() -> TextIO:
    """Return a stream to the present standard output, and send all other output nowhere.

    That includes what native code and child processes print. Standard input is empty from now on,
    so that no library can wait for an answer.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return kept


def settle_in_background() -> None:
    """Make way for training: a lower priority, no GPU, files for this user alone."""
    os.umask(0o077)
    os.nice(10)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


class Termination:
    """Notes that SIGTERM arrived; a second one ends the process at once. SIGINT is ignored."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        signal.signal(signal.SIGTERM, self._ask)
        for ignored in (signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked.is_set():
            os._exit(1)
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Whether the process has been asked to end."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, at most until SIGTERM; return whether the process has been asked to end."""
        return self._asked.wait(seconds)
