"""An append-only file of checksummed frames with one writer and any number of readers.

Layout: 8 bytes of magic, then frames of `u32 length | u32 crc32 | payload`, little-endian. After a
crash the valid part is the longest prefix of whole frames; the next writer truncates the rest.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..protocol.record_blocks import Frames
from .damage import HEAD, MAX_PAYLOAD_BYTES, found_frames, part_of_file
from .folder.open_folder import OpenFolder, blocks, open_plain

log = logging.getLogger(__name__)

MAGIC = b"FTTUIJ1\n"


_TOGETHER = 64
"""Frames of one length in a row from which they are checked together."""
LeadingWhole = Callable[[memoryview, int, int, int], int | None]
"""From (bytes, offset, length, most) the number of frames at the offset, `most` at most, whose
payloads have that length; None if one of these is not whole, so that each has to be checked."""
_MOST_KEPT_BYTES = MAX_PAYLOAD_BYTES
"""Most bytes that are kept behind the last whole frame of a damaged journal."""


class JournalLocked(RuntimeError):
    """The journal is locked by another process that writes it."""


def frame(payload: bytes) -> bytes:
    """Return a payload as one frame."""
    return HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def valid_frames(data: bytes | memoryview, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (end offset, payload) of the whole frames in `data` from offset `at` on."""
    while at + HEAD.size <= len(data):
        length, crc = HEAD.unpack_from(data, at)
        end = at + HEAD.size + length
        # A zero-filled tail (power loss) would parse as endless empty frames with valid checksums.
        if not 0 < length <= MAX_PAYLOAD_BYTES or end > len(data):
            return
        payload = bytes(data[at + HEAD.size : end])
        if zlib.crc32(payload) != crc:
            return
        yield end, payload
        at = end


def frames_after_damage(tail: bytes) -> Iterator[bytes]:
    """Yield the payloads of whole frames that follow a damaged part."""
    for _, _, payload in found_frames(lambda at, size: tail[at : at + size], len(tail)):
        yield payload


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(open_plain(path, os.O_RDONLY, shown=path), "rb")


def frames_in(data: bytes, before: int, leading: LeadingWhole | None = None) -> Frames:
    """Return the whole frames from the beginning of `data` on that begin before an offset in it.

    Args:
        data: bytes that begin with a frame.
        before: offset in `data`; frames that begin there or later are left out.
        leading: checks many frames at once; None checks each one.
    """
    starts: list[int] = []
    ends: list[int] = []
    at, last = 0, min(before - 1, len(data) - HEAD.size)
    view = memoryview(data)
    while at <= last:
        length = HEAD.unpack_from(view, at)[0]
        if not 0 < length <= MAX_PAYLOAD_BYTES:
            break
        count = _whole_alike(view, at, length, last, leading)
        if not count:
            break
        size = HEAD.size + length
        starts.extend(range(at + HEAD.size, at + count * size, size))
        at += count * size
        ends.extend(range(starts[-count] + length, at + 1, size))
    return Frames(data, starts, ends)


def _whole_alike(
    data: memoryview, at: int, length: int, last: int, leading: LeadingWhole | None
) -> int:
    """Return how many whole frames with payloads of one length follow each other from `at` on.

    Most neighbouring steps are of one length, and to check these together takes half the time.

    Args:
        data: bytes with frames.
        at: offset of the first frame.
        length: its length.
        last: greatest offset at which a frame may begin.
        leading: as in `frames_in`.
    """
    size, crc32, count = HEAD.size + length, zlib.crc32, 0
    most = min((len(data) - at) // size, (last - at) // size + 1)
    if leading is not None and _seem_alike(data, at, size, most):
        found = leading(data, at, length, most)
        if found is not None:
            return found
    heads = struct.Struct(f"<II{length}x").iter_unpack(data[at : at + most * size])
    start = at + HEAD.size
    for other, crc in heads:
        if other != length or crc32(data[start : start + length]) != crc:
            break
        start += size
        count += 1
    return count


def _seem_alike(data: memoryview, at: int, size: int, most: int) -> bool:
    """Whether so many frames of one length seem to follow that they are checked together."""
    if most < _TOGETHER:
        return False
    later = at + (_TOGETHER - 1) * size
    return data[at : at + 4] == data[later : later + 4]


@dataclass(frozen=True)
class DamagedPart:
    """A damaged part of a journal, which contains no complete frame."""

    offset: int
    size_bytes: int


def read_past_damage(path: Path, offset: int) -> Iterator[bytes | DamagedPart]:
    """Yield the payloads and damaged parts from the place where a reader stopped.

    Use it only for a journal that is no longer written; otherwise the last frame may be incomplete.

    Raises:
        OSError: there is no journal, or it cannot be read.
    """
    with _opened(path) as file:
        read, size = part_of_file(file.fileno(), offset)
        whole = 0
        for start, end, payload in found_frames(read, size):
            if start > whole:
                yield DamagedPart(offset + whole, start - whole)
            whole = end
            yield payload
        if whole < size:
            yield DamagedPart(offset + whole, size - whole)


class FrameReader:
    """Reads a frame file from an offset on, and later the frames appended since.

    `offset` is the end of the last whole frame read; an incomplete frame is read again next time.

    Raises:
        OSError: the methods raise it if the file is there but cannot be read, or is a link.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def read(self, limit_bytes: int = 8 * 1024 * 1024) -> list[tuple[int, bytes]]:
        """Return the next whole frames, up to `limit_bytes`, as (start offset, payload).

        A single frame may be larger. The list is empty at the end of the file, at a damaged part,
        and if there is no file.
        """
        try:
            with _opened(self.path) as file:
                return self._read(file.fileno(), limit_bytes)
        except FileNotFoundError:
            return []

    def _read(self, descriptor: int, limit_bytes: int) -> list[tuple[int, bytes]]:
        if self.offset == 0:
            if os.pread(descriptor, len(MAGIC), 0) != MAGIC:
                return []
            self.offset = len(MAGIC)
        found = self._parse(os.pread(descriptor, limit_bytes, self.offset))
        if not found and os.fstat(descriptor).st_size - self.offset > limit_bytes:
            found = self._parse(os.pread(descriptor, MAX_PAYLOAD_BYTES + HEAD.size, self.offset))
        return found

    def _parse(self, data: bytes) -> list[tuple[int, bytes]]:
        base, start, found = self.offset, self.offset, []
        for end, payload in valid_frames(data):
            found.append((start, payload))
            start = base + end
        self.offset = start
        return found

    def read_payloads(self, limit_bytes: int) -> list[bytes]:
        """Return the payloads of what `read` returns, twice as fast, for long journals.

        Raises:
            FileNotFoundError: there is no file.
        """
        with _opened(self.path) as file:
            if self.offset == 0:
                return [payload for _, payload in self._read(file.fileno(), limit_bytes)]
            data = os.pread(file.fileno(), limit_bytes, self.offset)
        found: list[bytes] = []
        at, size, head = 0, len(data), HEAD.size
        while at + head <= size:
            length, crc = HEAD.unpack_from(data, at)
            payload = data[at + head : at + head + length]
            if len(payload) != length or not length or zlib.crc32(payload) != crc:
                break
            found.append(payload)
            at += head + length
        self.offset += at
        return found or [payload for _, payload in self.read(limit_bytes)]

    def read_frames(
        self, limit_bytes: int, before: int, leading: LeadingWhole | None = None
    ) -> Frames:
        """Return what `read_payloads` returns, in one buffer, up to the first frame after `before`.

        Args:
            limit_bytes: bytes to read at most; a single frame may be larger.
            before: offset in the file; frames that begin there or later are left for the next call.
            leading: as in `frames_in`.

        Raises:
            FileNotFoundError: there is no file.
        """
        with _opened(self.path) as file:
            if self.offset == 0:
                self.offset = len(MAGIC) * (os.pread(file.fileno(), len(MAGIC), 0) == MAGIC)
            if self.offset == 0:
                return Frames(b"", [], [])
            found = frames_in(
                os.pread(file.fileno(), limit_bytes, self.offset), before - self.offset, leading
            )
            if not found and os.fstat(file.fileno()).st_size - self.offset > limit_bytes:
                data = os.pread(file.fileno(), MAX_PAYLOAD_BYTES + HEAD.size, self.offset)
                found = frames_in(data, min(1, before - self.offset))
        self.offset += found.ends[-1] if found else 0
        return found

    def __iter__(self) -> Iterator[bytes]:
        """Yield the payloads up to the current end of the file, or up to a damaged part."""
        while frames := self.read():
            for _, payload in frames:
                yield payload


class FrameWriter:
    """Appends frames to a file and holds its exclusive lock until closed.

    Raises:
        JournalLocked: another process has the lock.
        OSError: the file cannot be read or written.
    """

    def __init__(self, path: Path, lock: Path) -> None:
        self._path, self._lock_path = path, lock
        self._folder = OpenFolder(path.parent)
        try:
            self._lock = _locked(self._folder, lock)
        except (OSError, JournalLocked):
            self._folder.close()
            raise
        self._file = self._folder.open_file(path.name, os.O_RDWR | os.O_CREAT)
        self.cut_off: list[bytes] = []
        """Payloads found after a damaged part of the file; removed from the file."""
        self.cut_off_bytes = 0
        """Size of everything from the damaged part on."""
        self.kept_in: Path | None = None
        """The file that the damaged part was copied to; None if nothing was damaged."""
        self.recovered = list(self._recover(path))
        """The payloads in the file when it was opened, oldest first."""
        os.fdatasync(self._file)
        self._folder.sync_itself()  # the names of file and lock, if they are new
        self._unsynced = bytearray()
        self._end = self._unsynced_at = os.fstat(self._file).st_size
        self._sync_failed = False

    def _recover(self, path: Path) -> Iterator[bytes]:
        if os.pread(self._file, len(MAGIC), 0) != MAGIC:
            self._set_aside(path, 0)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, MAGIC, 0)
            return
        reader = FrameReader(path)
        yield from reader
        valid = reader.offset or len(MAGIC)
        self._set_aside(path, valid)
        os.ftruncate(self._file, valid)

    def _set_aside(self, path: Path, offset: int) -> None:
        """Copy the invalid part from an offset on to a file of its own if it holds whole frames.

        A crash leaves only an incomplete last frame, so whole frames mean damage.
        """
        read, self.cut_off_bytes = part_of_file(self._file, offset)
        found = list(found_frames(read, self.cut_off_bytes))
        self.cut_off = [payload for _, _, payload in found]
        if found:
            self.kept_in = path.with_name(f"{path.name}.damaged-{int(time.time())}")
            end = offset + found[-1][1] + _MOST_KEPT_BYTES
            self._folder.write(self.kept_in.name, blocks(self._file, offset, end))

    def keep_in_place(self) -> bool:
        """Write the file and its lock again if they were removed; return whether they were.

        The open file still has all content, unless somebody has truncated it. If another file took
        its place, that one is kept under another name.

        Raises:
            JournalLocked: another process has taken the lock meanwhile.
            OSError: the folder is missing or cannot be written.
        """
        self._fill_truncated()
        if _is_named(self._file, self._path) and _is_named(self._lock, self._lock_path):
            return False
        folder = OpenFolder(self._path.parent)
        self._folder.close()
        self._folder = folder
        if not _is_named(self._lock, self._lock_path):
            self._lock = _locked(folder, self._lock_path, instead_of=self._lock)
        if not _is_named(self._file, self._path):
            self._write_again(folder)
        return True

    def _fill_truncated(self) -> None:
        """Fill a truncated file up to its end with zeros, so that readers find what follows."""
        if (size := os.fstat(self._file).st_size) >= self._end:
            return
        log.error(
            "%s was truncated to %d of %d bytes, and what the others held is lost; stop the run "
            "before you change its files",
            self._path,
            size,
            self._end,
        )
        os.ftruncate(self._file, self._end)
        os.pwrite(self._file, MAGIC, 0)

    def _write_again(self, folder: OpenFolder) -> None:
        name = self._path.name
        if folder.exists(name):
            os.rename(self._path, self._path.with_name(f"{name}.replaced-{int(time.time())}"))
        folder.write(name, blocks(self._file, 0, self._end))
        again = folder.open_file(name, os.O_RDWR)
        os.close(self._file)
        self._file = again
        self._end = self._unsynced_at = os.fstat(again).st_size
        self._unsynced.clear()
        self._sync_failed = False

    def append(self, *payloads: bytes) -> int:
        """Append frames in one write and return the offset where they start, for `cut`.

        The frames are then in the page cache, so they survive the death of this process.

        Raises:
            OSError: the disk is full or failing; the file is unchanged.
        """
        data = b"".join(frame(payload) for payload in payloads)
        self._fill_truncated()
        end = self._end
        try:
            written = os.pwrite(self._file, data, end)
            if written != len(data):
                raise OSError(28, "short write: no space left on device")
        except OSError:
            os.ftruncate(self._file, end)
            raise
        self._end += len(data)
        self._unsynced += data
        return end

    def cut(self, offset: int) -> None:
        """Truncate the file at an offset that `append` returned."""
        os.ftruncate(self._file, offset)
        self._end = offset
        del self._unsynced[max(0, offset - self._unsynced_at) :]

    def sync(self) -> None:
        """Sync the file, so that everything appended survives a power loss.

        After a failed sync the kernel may drop the dirty pages and mark them clean, so that the
        next sync succeeds without them. Everything not yet synced is therefore written again
        first.

        Raises:
            OSError: the disk is failing; call `sync` again later.
        """
        if self._sync_failed:
            os.pwrite(self._file, self._unsynced, self._unsynced_at)
        self._sync_failed = True
        os.fdatasync(self._file)
        self._sync_failed = False
        self._unsynced_at += len(self._unsynced)
        self._unsynced.clear()

    def close(self) -> None:
        """Close the file and release the lock."""
        os.close(self._file)
        os.close(self._lock)
        self._folder.close()


def _locked(folder: OpenFolder, lock: Path, instead_of: int | None = None) -> int:
    """Open a lock file, take its lock, and return the descriptor.

    `instead_of`, the descriptor of the lock that it replaces, is closed then.

    Raises:
        JournalLocked: another process has the lock.
        OSError: the file cannot be opened, or its file system has no locks.
    """
    opened = folder.open_file(lock.name, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(opened)
        raise JournalLocked(
            f"another process is writing the journal: it holds the lock {lock}"
        ) from None
    except OSError:
        os.close(opened)
        raise
    if instead_of is not None:
        os.close(instead_of)
    return opened


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether a path leads to an open file, and not to another one or to none."""
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
