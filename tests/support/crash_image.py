"""What a disk holds after a power cut, built from the recorded operations of a run.

A file system keeps what was synced: the content of a file by a sync of the file, its name by a sync
of its folder. Of everything else it may have kept any part.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from .disk_double import Kind, Operation


class Loss(Enum):
    """What the power cut took."""

    NOTHING = "nothing"
    CONTENT = "content that was not synced"
    NAMES = "content and names that were not synced"
    SOME = "some of the content and names that were not synced"


@dataclass
class _File:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass
class DiskImage:
    """The files and folders of a disk, and which of them would survive."""

    names: dict[str, _File | None] = field(default_factory=dict)
    """What each name leads to; None for a folder."""
    durable: dict[str, _File | None] = field(default_factory=dict)

    def apply(self, operations: Iterable[Operation]) -> DiskImage:
        """Do operations one after the other."""
        for operation in operations:
            self._apply(operation)
        return self

    def _apply(self, op: Operation) -> None:
        file = self.names.get(op.name)
        match op.kind:
            case Kind.CREATE:
                self.names[op.name] = _File()
            case Kind.MKDIR:
                self.names.setdefault(op.name, None)
            case Kind.WRITE if file is not None:
                end = op.offset + len(op.data)
                file.content.extend(b"\0" * (end - len(file.content)))
                file.content[op.offset : end] = op.data
            case Kind.TRUNCATE | Kind.ALLOCATE if file is not None:
                file.content.extend(b"\0" * (op.offset - len(file.content)))
                if op.kind is Kind.TRUNCATE:
                    del file.content[op.offset :]
            case Kind.SYNC if file is not None:
                file.synced = bytes(file.content)
            case Kind.SYNC_FOLDER:
                self._sync_folder(op.name)
            case Kind.RENAME:
                self.names[op.target] = self.names.pop(op.name)
            case Kind.UNLINK | Kind.RMDIR:
                self.names.pop(op.name, None)

    def _sync_folder(self, folder: str) -> None:
        for name in [n for n in self.durable if _parent(n) == folder]:
            del self.durable[name]
        self.durable |= {n: f for n, f in self.names.items() if _parent(n) == folder}

    def write(self, root: Path, loss: Loss, rng: random.Random) -> None:
        """Write what is left after a power cut into an empty folder."""
        names = {
            Loss.NAMES: lambda: dict(self.durable),
            Loss.SOME: lambda: self._some_names(rng),
        }.get(loss, lambda: dict(self.names))()
        for name in sorted(names):
            if not all(parent in names for parent in _parents(name)):
                continue  # its folder did not survive
            file, path = names[name], root / name
            if file is None:
                path.mkdir(mode=0o700, exist_ok=True)
            else:
                path.write_bytes(_content(file, loss, rng))

    def _some_names(self, rng: random.Random) -> dict[str, _File | None]:
        found = {}
        for name in sorted({*self.names, *self.durable}):
            now, then = name in self.names, name in self.durable
            source = self.names if now and (not then or rng.random() < 0.5) else self.durable
            if (now and then) or rng.random() < 0.5:
                found[name] = source[name]
        return found


def _content(file: _File, loss: Loss, rng: random.Random) -> bytes:
    if loss is Loss.NOTHING:
        return bytes(file.content)
    if loss is Loss.SOME and rng.random() < 0.5:
        # Pages are written in any order: the length may be new and a page of zeros.
        kept = rng.randint(0, len(file.content))
        lost = bytes(file.content[:kept]) + b"\0" * (len(file.content) - kept)
        return lost if lost[: len(file.synced)] == file.synced else file.synced
    return file.synced


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]
