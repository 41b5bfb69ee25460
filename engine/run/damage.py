"""Search for whole frames behind a damaged part of a journal.

A journal may come from elsewhere. So it is read in windows, and what is searched in vain has
limits: otherwise a sparse file would fill the memory, and made-up lengths, of which the checksums
are computed in vain, would take time that grows with the square of the size. What comes after a
limit counts as damaged.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator

MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
"""Largest payload of a frame."""
HEAD = struct.Struct("<II")
"""The head of a frame: length and CRC of the payload."""

_WINDOW_BYTES = 2 * (MAX_PAYLOAD_BYTES + HEAD.size)
_VAIN_FACTOR, _VAIN_BYTES = 64, 64 * 2**20
"""Bytes of checksums computed in vain: as a multiple of the bytes searched, and in addition."""
_MOST_DAMAGED_BYTES = 2**25
"""Most bytes outside frames that are searched, which takes some seconds."""
_ZEROS_PER_BYTE = 8
"""Zeros that count as much as another byte."""
_ZERO_BLOCK_BYTES = 2**16

Read = Callable[[int, int], bytes]
"""Returns bytes from an offset on: as many as asked for, or those up to the end."""


def part_of_file(descriptor: int, start: int) -> tuple[Read, int]:
    """Return a function that reads an open file from `start` on, and the size of that part."""
    size = max(0, os.fstat(descriptor).st_size - start)
    return lambda at, count: os.pread(descriptor, count, start + at), size


def found_frames(read: Read, size_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """Search bytes for whole frames, and yield each as (start, end, payload).

    The search ends early at the limits of this module for what is searched in vain.
    """
    window, base, at, checked = b"", 0, 0, 0
    spent = 0.0
    while at + HEAD.size < size_bytes and spent < _MOST_DAMAGED_BYTES:
        if at + HEAD.size > base + len(window):
            window, base = read(at, _WINDOW_BYTES), at
            if len(window) < HEAD.size:
                return  # it was truncated meanwhile
        length, crc = HEAD.unpack_from(window, at - base)
        end = at + HEAD.size + length
        if 0 < length <= MAX_PAYLOAD_BYTES and end <= size_bytes:
            if end > base + len(window):
                window, base = read(at, _WINDOW_BYTES), at
            payload = window[at - base + HEAD.size : end - base]
            if zlib.crc32(payload) == crc and len(payload) == length:
                yield at, end, payload
                at = end
                continue
            checked += length
            if checked > _VAIN_FACTOR * at + _VAIN_BYTES:
                return
        zeros = 0 if length else _zeros(window, at - base)
        at += 1 + zeros
        spent += 1 + zeros / _ZEROS_PER_BYTE


def _zeros(window: bytes, start: int) -> int:
    """Return how many positions after `start` can be skipped: frames there would have length 0."""
    rest = window[start : start + _ZERO_BLOCK_BYTES]
    return max(0, len(rest) - len(rest.lstrip(b"\0")) - 4)
