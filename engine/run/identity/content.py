"""Hashes of what a run is made of (model, tokenizer, template, data, adapter), and differences."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from ...errors import ConfigError

KINDS = {
    "base": "base model",
    "tokenizer": "tokenizer",
    "template": "chat template",
    "data": "data",
    "adapter": "start adapter",
}
"""The kinds of content, each with the words for it in messages."""
ALL = "all"
"""The name by which a change of every kind is accepted."""
_DIGITS = 12
"""Hexadecimal digits of a hash that are shown."""
_LISTED = 3
"""Changed parts of one kind that are named in a message."""


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of content: its hash, and what the hash is made of."""

    hash: str = ""
    """sha256 over all parts in hexadecimal, independent of folders; empty if it is not known."""
    parts: dict[str, str] = {}
    """Name of a file or other part → its sha256 in hexadecimal, or its version or revision."""
    sources: list[str] = []
    """The folders, files or hub ids of the configuration that it was read from."""
    revision: str = ""
    """Commit hash of a hub model; empty for local content."""
    unknown: str = ""
    """Why the hash is not known; empty if it is known."""

    def same_as(self, other: Content) -> bool:
        """Whether this content and another are known to be equal, by revision or by hash."""
        if self.revision and self.revision == other.revision:
            return True
        return bool(self.hash) and self.hash == other.hash


def hash_parts(parts: Mapping[str, str]) -> str:
    """Return one sha256 over named parts, independent of their order."""
    lines = "".join(f"{name}\0{value}\n" for name, value in sorted(parts.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


NO_CONTENT = Content(hash=hash_parts({}))
"""The content of a kind that a run does not have, such as a start adapter."""


class ContentIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a run by hash, one entry per kind."""

    base: Content
    """Weights and configuration of the base model."""
    tokenizer: Content
    template: Content
    """The chat template in force; its parts are empty if there is none."""
    data: Content
    """Training and evaluation sources, in their order."""
    adapter: Content = NO_CONTENT
    """The adapter that training started from."""

    def of(self, kind: str) -> Content:
        """Return the content of a kind from `KINDS`."""
        found: Content = getattr(self, kind)
        return found


@dataclass(frozen=True)
class ContentDifference:
    """One kind of content that differs from the recorded one."""

    kind: str
    recorded: str
    """Hash that was recorded."""
    found: str
    """Hash that was found."""
    text: str
    """What differs: the parts, with the first digits of both hashes."""
    place: str
    """Paths or hub ids of the content that was found."""


def hash_text(text: str) -> str:
    """Return the sha256 of a text in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def differences(
    recorded: ContentIdentity, found: ContentIdentity, kinds: frozenset[str] = frozenset(KINDS)
) -> list[ContentDifference]:
    """Return the kinds of content that are known on both sides and differ."""
    return [
        ContentDifference(
            kind,
            old.hash,
            new.hash,
            f"{KINDS[kind]}: {_described(old, new)}",
            " and ".join(new.sources),
        )
        for kind, old, new in _pairs(recorded, found, kinds)
        if old.hash and new.hash and not old.same_as(new)
    ]


def not_compared(
    recorded: ContentIdentity, found: ContentIdentity, kinds: frozenset[str] = frozenset(KINDS)
) -> list[str]:
    """Return one text for each kind of content that could not be compared, with the reason."""
    return [
        f"{KINDS[kind]}: {old.unknown or new.unknown}"
        for kind, old, new in _pairs(recorded, found, kinds)
        if not (old.hash and new.hash) and not old.same_as(new)
    ]


def _pairs(
    recorded: ContentIdentity, found: ContentIdentity, kinds: frozenset[str]
) -> Iterator[tuple[str, Content, Content]]:
    return ((kind, recorded.of(kind), found.of(kind)) for kind in KINDS if kind in kinds)


def _described(old: Content, new: Content) -> str:
    changes = list(_changes(old, new)) or ["the same parts in another order"]
    more = len(changes) - _LISTED
    listed = [*changes[:_LISTED], *([f"{more:,} more"] if more > 0 else [])]
    revisions = ""
    if old.revision and new.revision:
        revisions = f" (model.revision was {old.revision} and is now {new.revision})"
    return ", ".join(listed) + revisions


def _changes(old: Content, new: Content) -> Iterator[str]:
    """Yield the parts that changed; a part that was only renamed is left out."""
    gone = {name: value for name, value in old.parts.items() if name not in new.parts}
    added = {name: value for name, value in new.parts.items() if name not in old.parts}
    for name, value in new.parts.items():
        if name in old.parts and value != old.parts[name]:
            yield f"{name} was {_short(old.parts[name])} and is now {_short(value)}"
    for name, value in gone.items():
        if value not in added.values():
            yield f"{name} ({_short(value)}) is missing"
    for name, value in added.items():
        if value not in gone.values():
            yield f"{name} ({_short(value)}) is new"


def _short(value: str) -> str:
    """Return the first digits of a hash; a version is returned whole."""
    return value[:_DIGITS] if len(value) >= 2 * _DIGITS and " " not in value else value


def parse_accepted(text: str) -> frozenset[str]:
    """Return the kinds of content that `--accept-changed` names; `all` stands for every kind.

    Raises:
        ConfigError: A name is not a kind of content.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name != ALL and name not in KINDS:
            raise ConfigError(
                f"--accept-changed: got {name!r}, expected {', '.join(KINDS)} or {ALL}, separated "
                "by commas"
            )
    return frozenset(KINDS) if ALL in names else frozenset(names)
