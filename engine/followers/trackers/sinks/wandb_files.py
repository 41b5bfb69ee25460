"""How far W&B's own local files of a run got.

Source: the log format of LevelDB (blocks of 32 KiB, chunks of `u32 crc | u16 length | u8 type`),
which W&B uses with a head of 7 bytes; its records are `wandb_internal.Record`.
"""

from __future__ import annotations

import importlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MAGIC = b":W&B"
_HEAD_BYTES = 7
_BLOCK_BYTES = 32 * 1024
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4
_SETTLED_S, _PATIENCE_S = 0.5, 5.0
"""W&B's process writes the rest of its file when the process that it served has died."""


def newest_step(folder: Path, ident: str) -> int | None:
    """Return the newest internal step in the local files of a run; None if there are none.

    Args:
        folder: the folder `wandb`.
        ident: the id of the run, without characters that are special in patterns.
    """
    files = sorted(folder.glob(f"*run-*-{ident}/run-{ident}.wandb"))
    files = [file for file in files if not file.parent.is_symlink()]
    if not files:
        return None
    _wait_until_settled(files)
    return max((step for file in files for step in _steps(file.read_bytes())), default=0)


def _wait_until_settled(files: list[Path]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    newest = max(file.stat().st_mtime for file in files)
    while time.time() - newest < _SETTLED_S and time.monotonic() < deadline:
        time.sleep(_SETTLED_S / 5)
        newest = max(file.stat().st_mtime for file in files)


def _steps(data: bytes) -> Iterator[int]:
    record: Any = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    for payload in payloads(data):
        one = record.FromString(payload)
        if one.WhichOneof("record_type") == "history":
            names = {item.nested_key[0]: item.value_json for item in one.history.item}
            yield int(names.get("_step", 0))


def payloads(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file of W&B up to its end, or up to an incomplete one."""
    at = _HEAD_BYTES if data.startswith(_MAGIC) else len(data)
    parts: list[bytes] = []
    while at + _CHUNK.size <= len(data):
        room = _BLOCK_BYTES - at % _BLOCK_BYTES
        if room < _CHUNK.size:
            at += room
            continue
        _, length, kind = _CHUNK.unpack_from(data, at)
        begin, at = at + _CHUNK.size, at + _CHUNK.size + length
        if not kind or at > len(data):
            return
        if kind in (_FULL, _FIRST):
            parts = []
        parts.append(data[begin:at])
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
