"""Memory of this process."""

from __future__ import annotations

import psutil


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)
