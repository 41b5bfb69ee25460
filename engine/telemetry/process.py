"""The resident memory of this process."""

from __future__ import annotations

import psutil


def rss_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    return int(psutil.Process().memory_info().rss)
