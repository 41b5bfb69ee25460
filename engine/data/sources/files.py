"""Open a data file: undo its compression, find its encoding, and refuse what holds no data."""

from __future__ import annotations

import codecs
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO

from ...errors import DataError
from .compression import DAMAGED, UNREADABLE_ZIP, decompressed
from .refusals import describe_binary

_HEAD = 1 << 16
"""Bytes by which the content of a file is recognized."""
_UNPACKED_AT_ONCE = 1 << 20
"""Bytes that are unpacked at once into a temporary file."""
_READ_AT_ONCE = 1 << 20
"""Bytes of a text that are in memory at once while its encoding is found."""
_POOR = 0.2
"""Share of disorder above which a guessed encoding is not trusted."""
_NEAR = 0.05
"""Difference of two guesses below which they are about as good."""
_FEW = 8
"""Number of bytes beyond ASCII up to which they are too few to guess the encoding."""
_NOT_IN_CP1252 = b"\x81\x8d\x8f\x90\x9d"
_CONTROLS = bytes([*range(1, 9), *range(14, 27), 28, 29, 31, 127])
"""Bytes of control characters that texts do not have."""
_MOST_CONTROLS = 0.1
_MOST_ZEROS = 0.1
"""Largest share of such bytes, and of zero bytes, in a text in which some rows are damaged."""


@dataclass(frozen=True)
class DataFile:
    """A readable data file."""

    path: Path
    open_bytes: Callable[[], IO[bytes]]
    """Opens the content without compression."""
    head: bytes
    """The first bytes of the content."""
    name: str
    """Its name without the ending of the compression."""

    @contextmanager
    def seekable(self) -> Iterator[Path]:
        """Provide a path of the content without compression.

        The content of a compressed file is unpacked into a temporary file until the block ends.

        Raises:
            OSError, EOFError, zlib.error, LZMAError, BadZipFile: The file is damaged or ends early.
        """
        with self.path.open("rb") as file:
            if self.head.startswith(file.read(8)):
                yield self.path
                return
        with tempfile.NamedTemporaryFile(prefix="fttui-") as unpacked:
            with self.open_bytes() as content:
                shutil.copyfileobj(content, unpacked, _UNPACKED_AT_ONCE)
            unpacked.flush()
            yield Path(unpacked.name)

    @property
    def suffix(self) -> str:
        """The ending of the name, in lower case."""
        return Path(self.name).suffix.lower()

    def refuse(self, what: str) -> DataError:
        """Return the error that the file is `what`, such as `a PDF; extract its text first`."""
        return DataError(f"{self.path}: this file is {what}")


def open_file(path: Path) -> DataFile:
    """Return a data file, whose content is decompressed when it is read.

    Raises:
        DataError: The file cannot be read, or holds no data.
    """
    try:
        opened = decompressed(path)
        with opened.open_bytes() as file:
            head = file.read(_HEAD)
    except (*DAMAGED, *UNREADABLE_ZIP) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{path}: cannot be read: {reason}; check the path, its permissions and whether the "
            "file is complete"
        ) from None
    found = DataFile(path, opened.open_bytes, head, opened.name)
    if what := describe_binary(head):
        raise found.refuse(what)
    return found


@dataclass(frozen=True)
class Encoding:
    """The encoding of a text file."""

    name: str
    guessed: bool = False
    others: tuple[str, ...] = ()
    """Encodings that fit as well as a guessed one."""
    first: str = ""
    """Place of the first byte beyond ASCII, if the encoding is guessed."""

    @property
    def described(self) -> str:
        """The name of the encoding, with others that fit as well.

        If it is guessed by the bytes, the place of the first one beyond ASCII follows.
        """
        others = f", as likely as {', '.join(self.others)}" if self.others else ""
        return f"{self.name}{others}" + (f"; {self.first}" if self.first else "")


_known: dict[tuple[str, int, int], Encoding] = {}
"""Encodings by path, size and time of change: a stream opens its files many times."""


def encoding_of(file: DataFile) -> Encoding:
    """Return the encoding of a text file; it is remembered while the file does not change.

    It is the one of the byte-order mark, else UTF-16 if zero bytes show it, else UTF-8 if the
    content is valid UTF-8, else a guess.

    Raises:
        DataError: The file is not text, or its encoding cannot be guessed.
    """
    state = file.path.stat()
    key = (str(file.path), state.st_size, state.st_mtime_ns)
    if key not in _known:
        _known[key] = _found_encoding(file)
    return _known[key]


def _found_encoding(file: DataFile) -> Encoding:
    for mark, name in (
        (b"\xef\xbb\xbf", "utf-8-sig"),
        (b"\xff\xfe\x00\x00", "utf-32"),
        (b"\x00\x00\xfe\xff", "utf-32"),
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
    ):
        if file.head.startswith(mark):
            _require_decodable(file, name)
            return Encoding(name)
    if wide := _wide(file.head):
        return Encoding(wide, guessed=True)
    if _is_binary(file.head):
        raise file.refuse("binary, not text; write it as JSON lines, CSV or Parquet")
    return Encoding("utf-8") if _misfit(file, "utf-8") is None else _guessed(file)


def _require_decodable(file: DataFile, encoding: str) -> None:
    """Raise if the content is not in the encoding that its byte-order mark names.

    Raises:
        DataError: It is not; the error has the place of the first byte that does not fit.
    """
    encoding = encoding.removesuffix("-sig")  # which counts bytes from behind the mark on
    if found := _misfit(file, encoding):
        raise DataError(
            f"{file.path}:{found.line}: byte {found.byte:#04x} at offset {found.offset:,} of the "
            f"file does not fit its byte-order mark, which says {encoding} ({found.reason}); "
            "correct this line in an editor, or save the file again as UTF-8"
        )


@dataclass(frozen=True)
class _Misfit:
    """The first byte of a content that is not in an encoding."""

    byte: int
    offset: int
    line: int
    reason: str


def _chunks(file: DataFile) -> Iterator[bytes]:
    """Yield the content of a file in parts, because the whole may not fit into memory."""
    with file.open_bytes() as opened:
        while chunk := opened.read(_READ_AT_ONCE):
            yield chunk


def _misfit(file: DataFile, encoding: str) -> _Misfit | None:
    """Return the first byte of the content that is not in an encoding; None if all are."""
    decoder = codecs.getincrementaldecoder(encoding)()
    offset, line = 0, 1
    for chunk in chain(_chunks(file), [b""]):
        state = decoder.getstate()
        waiting = state[0]  # the beginning of a character
        try:
            line += decoder.decode(chunk, final=not chunk).count("\n")
        except UnicodeDecodeError as error:
            inside = error.start - len(waiting)
            decoder.setstate(state)
            line += decoder.decode(chunk[: max(0, inside)]).count("\n")
            return _Misfit((waiting + chunk)[error.start], offset + inside, line, error.reason)
        offset += len(chunk)
    return None


def _wide(head: bytes) -> str | None:
    """Return the name of UTF-16 if a text without a byte-order mark is in it; None if it is not.

    It is recognized by the zero bytes of ASCII characters.
    """
    zeros = [head[start:400:2].count(0) for start in (0, 1)]
    half = len(head[:400]) // 2
    if half > 3 and max(zeros) > 0.6 * half and min(zeros) == 0:
        return "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    return None


def _is_binary(head: bytes) -> bool:
    """Whether the first bytes of a file are not text; a text may have some damaged rows."""
    head = head.rstrip(b"\x00")  # the rest of a file that was not written to its end
    controls = len(head) - len(head.translate(None, _CONTROLS))
    return (
        not head
        or controls > _MOST_CONTROLS * len(head)
        or (head.count(0) > _MOST_ZEROS * len(head))
    )


def _likely(raw: bytes) -> Encoding | None:
    """Return the most likely encoding of bytes; None if no encoding is likely.

    cp1252 is preferred if it fits about as well as the best one, because most old files use it. It
    is also returned if the bytes beyond ASCII are too few to decide by.
    """
    from charset_normalizer import from_bytes  # deferred: only few files need it

    high = raw.translate(None, bytes(range(128)))
    if len(high) <= _FEW and not any(byte in _NOT_IN_CP1252 for byte in high):
        return Encoding("cp1252", guessed=True)
    matches = from_bytes(raw)
    best = matches.best()
    if best is None or best.chaos > _POOR:
        return None
    for one in matches:
        near = best.chaos + _NEAR >= one.chaos and one.coherence + _NEAR >= best.coherence
        if near and "cp1252" in one.could_be_from_charset:
            return Encoding("cp1252", guessed=True)
    alike = [one for one in matches if (one.chaos, one.coherence) == (best.chaos, best.coherence)]
    others = tuple(str(one.encoding) for one in alike if one.encoding != best.encoding)
    return Encoding(str(best.encoding), guessed=True, others=others)


def _refuse_damaged_utf8(file: DataFile) -> None:
    """Raise if a file is UTF-8 but for a few bytes: another encoding would garble all the rest.

    Raises:
        DataError: Most characters beyond ASCII are UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    right = wrong = 0
    for chunk in chain(_chunks(file), [b""]):
        text = decoder.decode(chunk, final=not chunk)
        damaged = text.count("\ufffd")
        wrong += damaged
        right += len(text) - len(text.encode("ascii", "ignore")) - damaged
    found = _misfit(file, "utf-8") if right > wrong else None
    if found:
        raise DataError(
            f"{file.path}:{found.line}: byte {found.byte:#04x} at offset {found.offset:,} of "
            f"the file is not UTF-8, unlike the rest of the file ({found.reason}; {wrong:,} "
            "such places); correct this line in an editor, or remove such bytes with: iconv "
            f"-f utf-8 -t utf-8 -c {file.path.name} > cleaned{file.path.suffix}"
        )


def _guessed(file: DataFile) -> Encoding:
    _refuse_damaged_utf8(file)
    with file.open_bytes() as opened:
        found = _likely(opened.read(1 << 20))
    if found is None:
        raise DataError(
            f"{file.path}: not UTF-8 text, and its encoding cannot be guessed; save it as UTF-8"
        )
    if misfit := _misfit(file, found.name):
        raise DataError(f"{file.path}: not UTF-8 text ({misfit.reason}); save it as UTF-8")
    first = _misfit(file, "ascii")
    assert first is not None, "a file without bytes beyond ASCII is UTF-8"
    place = f"byte {first.byte:#04x} in line {first.line:,}, offset {first.offset:,}"
    return replace(found, first=place)
