"""The content identities recorded in a run folder, one per start of an engine."""

from __future__ import annotations

import msgspec

from ..checkpoint_store import Manifest
from ..folder.open_folder import read_plain
from ..run_dir import SMALL_FILE_BYTES, RunDirectory
from .content import ContentDifference, ContentIdentity


class AcceptedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of content that a person has accepted."""

    kind: str
    checkpoint: str
    """The checkpoint with the recorded content."""
    recorded: str
    """Hash of the content that was recorded."""
    found: str
    """Hash of the content that was accepted instead."""
    text: str
    """What changed, in words and without folders, which are private."""

    def covers(self, difference: ContentDifference) -> bool:
        """Whether the user has accepted exactly this change of content."""
        same = (self.recorded, self.found) == (difference.recorded, difference.found)
        return same and self.kind == difference.kind


class StartedWith(msgspec.Struct, frozen=True, kw_only=True):
    """The content that one engine process trained on."""

    incarnation: int
    time: float
    """Unix seconds."""
    identity: ContentIdentity


class RecordedIdentities(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `identity.json` in a run folder."""

    starts: list[StartedWith] = []
    """The starts of the engine that loaded model and data, oldest first."""
    accepted: list[AcceptedChange] = []

    def of_start(self, incarnation: int) -> ContentIdentity | None:
        """Return the identity of a start; None if it was not recorded."""
        found = (one.identity for one in self.starts if one.incarnation == incarnation)
        return next(found, None)


def read_recorded(run: RunDirectory) -> RecordedIdentities:
    """Return the identities recorded in a run folder; empty if the file is missing or damaged."""
    try:
        return msgspec.json.decode(
            read_plain(run.content_identities, SMALL_FILE_BYTES), type=RecordedIdentities
        )
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return RecordedIdentities()


def add_start(run: RunDirectory, start: StartedWith) -> None:
    """Record the content of a start; a start that is recorded already is replaced.

    Raises:
        OSError: The run folder cannot be written.
    """
    known = read_recorded(run)
    others = [one for one in known.starts if one.incarnation != start.incarnation]
    _write(run, msgspec.structs.replace(known, starts=[*others, start]))


def add_accepted(run: RunDirectory, changes: list[AcceptedChange]) -> None:
    """Record the changes of content that the user has accepted.

    Raises:
        OSError: The run folder cannot be written.
    """
    known = read_recorded(run)
    _write(run, msgspec.structs.replace(known, accepted=[*known.accepted, *changes]))


def _write(run: RunDirectory, content: RecordedIdentities) -> None:
    run.write(run.content_identities, msgspec.json.format(msgspec.json.encode(content)))


def identity_of(run: RunDirectory, manifest: Manifest) -> ContentIdentity | None:
    """Return the identity of a checkpoint, or of the start that wrote it; None without either.

    A checkpoint that was written before the hashes were complete has none of its own.
    """
    return manifest.identity or read_recorded(run).of_start(manifest.incarnation)
