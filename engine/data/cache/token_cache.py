"""A cache of tokenized data on disk, so that `run` after `check` does not tokenize again.

An entry is named after a hash of everything that its content depends on. It consists of
checksummed frames of MessagePack: a head, then the examples. An entry that is damaged, of another
version or incomplete counts as missing.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ...config.schema import RunConfig
from ...protocol.data.sample import SampleRecord
from ...run.files import free_bytes
from ...run.identity.hash_cache import HashCache
from ...run.journal import frame, valid_frames
from ..findings import Findings, FindingsState
from ..reading import SourceSummary
from ..tokenized import TokenizedData
from ..tokens.examples import (
    Example,
    PairExample,
    PreferenceExample,
    RatedExample,
    TextExample,
)
from .cache_key import cache_key

MOST_BYTES = 8 * 2**30
"""Largest size of all entries together; those used longest ago are removed."""
BLOCK_TOKENS = 200_000
"""Tokens after which a frame of examples ends; a frame holds at most 16 MiB."""
_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "TextExample": msgspec.msgpack.Decoder(list[TextExample]),
    "PairExample": msgspec.msgpack.Decoder(list[PairExample]),
    "PreferenceExample": msgspec.msgpack.Decoder(list[PreferenceExample]),
    "RatedExample": msgspec.msgpack.Decoder(list[RatedExample]),
}
_SUFFIX = ".tokens"


class CacheHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame of an entry."""

    key: str
    counts: list[int]
    """Number of examples of each training source."""
    eval_count: int
    findings: FindingsState
    sources: list[SourceSummary]
    sample: list[SampleRecord]


class _Block(msgspec.Struct, frozen=True):
    """Examples of one kind."""

    kind: str
    examples: msgspec.Raw


def default_folder() -> Path:
    """Return `$XDG_CACHE_HOME/fttui/tokens`, or `~/.cache/fttui/tokens` without that variable."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fttui" / "tokens"


class TokenCache:
    """Tokenized data by key, in a folder of the user.

    Args:
        folder: Where entries are kept; None is the user's cache folder.
        most_bytes: Largest size of all entries together.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self._folder = default_folder() if folder is None else folder
        self._most_bytes = most_bytes

    def load(self, key: str) -> TokenizedData | None:
        """Return the entry of a key and mark it as just used; None if none can be read."""
        path = self._path(key)
        try:
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as data,
            ):
                found = _decoded(key, (payload for _, payload in valid_frames(data)))
        except (OSError, ValueError, KeyError, StopIteration, msgspec.DecodeError):
            return None
        with suppress(OSError):
            os.utime(path)  # the entries used last are kept
        return found

    def store(self, key: str, data: TokenizedData) -> None:
        """Store an entry, and remove those used longest ago if all together are too large.

        Nothing is stored and nothing raised if the folder cannot be written, the entry is larger
        than the cache or than a quarter of the free space, or a text is not valid Unicode.
        """
        temporary = self._path(key).with_suffix(f".{os.getpid()}.tmp")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            room = min(self._most_bytes, (free_bytes(self._folder) or 0) // 4)
            with open(temporary, "wb", opener=_private) as file:
                for part in _encoded(key, data):
                    room -= file.write(part)
                    if room < 0:
                        raise OSError("the entry is too large")
            os.replace(temporary, self._path(key))
            self._remove_oldest()
        except (OSError, UnicodeEncodeError):  # a text that is not Unicode cannot be kept
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _remove_oldest(self) -> None:
        entries = sorted(
            ((found.stat(), found) for found in self._folder.glob(f"*{_SUFFIX}")),
            key=lambda entry: entry[0].st_mtime_ns,
            reverse=True,
        )
        total = 0
        for status, path in entries:
            total += status.st_size
            if total > self._most_bytes:
                path.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _encoded(key: str, data: TokenizedData) -> Iterator[bytes]:
    head = CacheHead(
        key=key,
        counts=[len(part) for part in data.parts],
        eval_count=len(data.eval),
        findings=data.findings.state(),
        sources=data.sources,
        sample=data.sample,
    )
    yield frame(msgspec.msgpack.encode(head))
    for examples in _blocks([*data.train, *data.eval]):
        encoded = msgspec.Raw(msgspec.msgpack.encode(examples))
        yield frame(msgspec.msgpack.encode(_Block(type(examples[0]).__name__, encoded)))


def _blocks(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """Yield examples in blocks of one kind and a bounded number of tokens."""
    block: list[Example] = []
    tokens = 0
    for example in examples:
        if block and (type(example) is not type(block[0]) or tokens > BLOCK_TOKENS):
            yield block
            block, tokens = [], 0
        block.append(example)
        tokens += example.length
    if block:
        yield block


def _decoded(key: str, payloads: Iterator[bytes]) -> TokenizedData | None:
    head = msgspec.msgpack.decode(next(payloads), type=CacheHead)
    examples: list[Example] = []
    for payload in payloads:
        block = msgspec.msgpack.decode(payload, type=_Block)
        examples += _DECODERS[block.kind].decode(block.examples)
    if head.key != key or len(examples) != sum(head.counts) + head.eval_count:
        return None
    rest = iter(examples)
    parts = [[next(rest) for _ in range(count)] for count in head.counts]
    findings = Findings.of(head.findings)
    return TokenizedData(parts, list(rest), findings, head.sources, head.sample)


def cached_data(
    config: RunConfig, tokenizer: Any, cache: TokenCache, make: Callable[[], TokenizedData]
) -> tuple[TokenizedData, bool]:
    """Return the tokenized data of a run, and whether they are from the cache.

    Data that are made are stored if they have a key and no file changed in the meantime.

    Args:
        config: The run.
        tokenizer: The tokenizer of the model.
        cache: Keeps what is made.
        make: Reads and tokenizes the data.

    Raises:
        DataError: The data cannot be used, as `make` finds.
    """
    hashes = HashCache()
    key = cache_key(config, tokenizer, hashes)
    if key is not None and (found := cache.load(key)) is not None:
        return found, True
    made = make()
    # A file that changed while it was read must not be kept under the hash from before.
    if key is not None and cache_key(config, tokenizer, hashes) == key:
        cache.store(key, made)
    return made, False
