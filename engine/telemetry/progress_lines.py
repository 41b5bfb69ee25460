"""Prints the progress of a command that runs as a process of its own."""

from __future__ import annotations

import time

_EVERY_S = 1.0


class ProgressPrinter:
    """Prints progress: a new label and completion at once, the share done once a second."""

    def __init__(self) -> None:
        self._label = ""
        self._next = 0.0

    def __call__(self, label: str, done: float, total: float) -> None:
        """Print a progress line if it is due."""
        now = time.monotonic()
        if label == self._label and now < self._next and done < total:
            return
        share = f" {100 * done / total:.0f} %" if total and done else ""
        if label != self._label or share:
            print_line(f"{label}{share}")
        self._label, self._next = label, now + _EVERY_S


def print_line(line: str) -> None:
    """Print one line and flush the output."""
    print(line, flush=True)  # noqa: T201 -- this is for commands of their own
