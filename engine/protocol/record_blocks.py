"""Packs many encoded records into a compressed block, with records of one length transposed.

Records of one kind mostly have one length and equal bytes at equal positions (keys, signs,
exponents). Stored column by column they compress about a third better and faster.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import overload

from .codec import DecodeError, inflated

_COUNT = struct.Struct("<I")
_LEVEL = 1
MAX_BLOCK_BYTES = 64 * 1024 * 1024
"""Largest unpacked size that is accepted from a peer."""


class Frames(Sequence[bytes]):
    """The payloads of whole frames in one buffer; a payload is copied when it is taken out."""

    def __init__(self, data: bytes, starts: list[int], ends: list[int]) -> None:
        self.data, self.starts, self.ends = data, starts, ends

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            ends = zip(self.starts[index], self.ends[index], strict=True)
            return [self.data[start:end] for start, end in ends]
        return self.data[self.starts[index] : self.ends[index]]


def pack_block(payloads: Sequence[bytes]) -> bytes:
    """Pack payloads into a block; `unpack_block` returns them in the same order."""
    groups: dict[int, list[bytes]] = {}
    for payload in payloads:
        groups.setdefault(len(payload), []).append(payload)
    lengths = struct.pack(f"<{len(payloads)}I", *map(len, payloads))
    transposed = (_transpose(b"".join(group), length) for length, group in groups.items())
    return zlib.compress(b"".join((_COUNT.pack(len(payloads)), lengths, *transposed)), _LEVEL)


def unpack_block(block: bytes) -> list[bytes]:
    """Return the payloads in a block.

    Raises:
        DecodeError: the block is damaged or too large.
    """
    data = inflated(block, MAX_BLOCK_BYTES, "a packed block")
    try:
        (count,) = _COUNT.unpack_from(data)
        lengths = struct.unpack_from(f"<{count}I", data, _COUNT.size)
    except struct.error as error:
        raise DecodeError(f"a packed block is truncated: {error}") from None
    at = _COUNT.size * (count + 1)
    if len(data) - at != sum(lengths):
        raise DecodeError(f"a packed block has {len(data) - at} bytes, expected {sum(lengths)}")
    groups = {}
    for length, number in Counter(lengths).items():
        rows = _transpose(data[at : at + length * number], number)
        groups[length] = iter([rows[i * length : (i + 1) * length] for i in range(number)])
        at += length * number
    return [next(groups[length]) for length in lengths]


def _transpose(data: bytes, width: int) -> bytes:
    """Transpose a matrix of bytes, stored row after row, whose rows are `width` bytes long.

    Called on the result with the former number of rows as `width`, it restores the matrix.
    """
    if width <= 1 or width == len(data):
        return data
    return b"".join([data[i::width] for i in range(width)])
