"""Mutants of valid inputs: changed bytes anywhere, and changed values of a message."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec

_NUMBERS = (
    0, 1, -1, 127, 128, 255, 256, 2**31 - 1, -(2**31), 2**32, 2**53, 2**63 - 1, -(2**63), 2**64 - 1,
    0.0, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
_TEXTS = (
    "", " ", "\0", "\x1b[2J", "\x9b31m", "\u202e", "../../x", "/etc/passwd", "nan", "1e999",
    "step-1",    "𝔘𝔫𝔦", "a" * 3000, "\n\r\t", "{}", "[]", "&a *a", "!!python/object:os.system",
)  # fmt: skip
_TOKENS = (
    b"\x00", b"\xff", b"\x1b]52;c;AAAA\x07", b"\xc1", b"\xdf\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\x81\xa1k", b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", b"{", b"[" * 50, b'"\\ud800"',
    b"&a ", b"*a", b": ",
    b"- ", b"%", b"\xef\xbb\xbf", b"\x85", b"\xe2\x80\xa8",
)  # fmt: skip


def mutant(rng: random.Random, base: bytes, form: str) -> bytes:
    """A changed copy of a valid input; `form` is `msgpack`, `json` or `bytes`."""
    if form != "bytes" and rng.random() < 0.5:
        return _changed_values(rng, base, form)
    return _changed_bytes(rng, base)


def _changed_bytes(rng: random.Random, base: bytes) -> bytes:
    data = bytearray(base)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        rng.choice(_BYTE_CHANGES)(rng, data)
    return bytes(data)


def _flip(rng: random.Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _replace(rng: random.Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randint(0, len(data)) :]


def _drop(rng: random.Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    del data[at : at + rng.randint(1, 8)]


def _repeat(rng: random.Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = data[at : at + rng.randint(1, 64)] * rng.randint(1, 4)


def _insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.choice(_TOKENS)


def _noise(rng: random.Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.randbytes(rng.randint(1, 16))


_BYTE_CHANGES: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip, _replace, _cut, _drop, _repeat, _insert, _noise,
)  # fmt: skip


def _changed_values(rng: random.Random, base: bytes, form: str) -> bytes:
    try:
        value = msgspec.msgpack.decode(base) if form == "msgpack" else json.loads(base)
        for _ in range(rng.choice((1, 1, 2, 4))):
            value = _changed(rng, value)
        packed = msgspec.msgpack.encode(value) if form == "msgpack" else json.dumps(value).encode()
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError):
        return _changed_bytes(rng, base)
    return packed


def _changed(rng: random.Random, value: Any) -> Any:
    """Change one value somewhere in a message."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    return _other(rng, value)


def _other(rng: random.Random, value: Any) -> Any:
    same_kind = rng.random() < 0.7
    if isinstance(value, bool) or value is None or not same_kind:
        return rng.choice((None, True, False, rng.choice(_NUMBERS), rng.choice(_TEXTS), [], {}))
    if isinstance(value, int):
        return rng.choice([n for n in _NUMBERS if isinstance(n, int)])
    if isinstance(value, float):
        return float(rng.choice(_NUMBERS))
    if isinstance(value, str):
        return rng.choice(_TEXTS)
    if isinstance(value, bytes):
        return rng.randbytes(rng.randint(0, 32))
    return rng.choice(([], {}, [value] * 3, {"x": value}))
