"""The checkpoints of a run on disk; each is a folder that is complete once its manifest is written.

The manifest is written last, so a folder without one is not a checkpoint. `verify` compares sizes
and sha256 hashes before a checkpoint is used.

The name of a checkpoint is the name of its folder. If the manifest gives another name, a user has
copied the folder. A copy can be used under the name of its folder, but the engine neither counts
nor removes it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

import msgspec

from ..errors import CheckpointError
from ..protocol.command_args import existing
from .files import hash_file, sync_folder
from .folder.open_folder import OpenFolder, read_plain
from .identity.content import ContentIdentity
from .run_dir import SMALL_FILE_BYTES, RunDirectory

MANIFEST = "MANIFEST.json"
_OWN_NAME = re.compile(r"step-\d+(-t\d+)?(\.\d+)?")
"""The names that `checkpoint_name` makes; only incomplete folders of such a name are swept."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The size and hash of one file of a checkpoint."""

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a checkpoint, stored in its folder."""

    name: str
    step: int
    timeline: int
    time: float
    """Unix seconds."""
    world_size: int
    incarnation: int
    files: dict[str, FileEntry]
    control: dict[str, object] = {}
    """The settings at that step: learning rate scale, clip limit and the others."""
    versions: dict[str, str] = {}
    pinned: bool = False
    note: str = ""
    mean_of: list[str] = []
    """Names of the checkpoints whose weights were averaged; empty for a trained state."""
    good: bool = True
    loss: float | None = None
    """The smoothed training loss at that step."""
    eval_loss: float | None = None
    metrics: dict[str, float] = {}
    """The results of an evaluation at this step and of benchmarks; empty if there were none.

    Values that are not finite are left out when the manifest is read, because JSON has none.
    """
    number: int = 0
    """Position among the run's checkpoints; orders them even if the clock was set back."""
    identity: ContentIdentity | None = None
    """Base model, tokenizer, chat template and data by content hash; None in checkpoints of older
    versions, and if the hashes were not complete, in which case the run folder has them."""

    @property
    def kept_out(self) -> list[str]:
        """The ids of the samples that were in quarantine at that step; none in older versions."""
        found = self.control.get("quarantine")
        return [str(one) for one in found] if isinstance(found, list | tuple) else []

    @property
    def size_bytes(self) -> int:
        """The total size of the files."""
        return sum(entry.size_bytes for entry in self.files.values())


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a checkpoint that a user made under another name."""

    manifest: Manifest
    """The manifest of the copy, with the name of its folder in place of the recorded name."""
    original: str
    """The name of the checkpoint that was copied."""


def checkpoint_name(step: int, timeline: int, number: int = 1) -> str:
    """Return the name of a checkpoint; `number` distinguishes checkpoints of the same step."""
    stem = f"step-{step:06d}" if timeline == 1 else f"step-{step:06d}-t{timeline}"
    return stem if number == 1 else f"{stem}.{number}"


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self.folder = run.checkpoints

    def path(self, name: str) -> Path:
        """Return the folder of a checkpoint, whether it exists or not."""
        return self.folder / name

    def all(self) -> list[Manifest]:
        """Return the complete checkpoints, oldest first.

        Folders that a user has copied (see `copies`) and unreadable manifests are left out.
        """
        own = (manifest for folder, manifest in self._manifests() if manifest.name == folder)
        return sorted(own, key=lambda m: (m.number, m.time, m.step))

    def copies(self) -> list[Copy]:
        """Return the copies of checkpoints that users made, sorted by folder name."""
        return [
            Copy(manifest=msgspec.structs.replace(manifest, name=folder), original=manifest.name)
            for folder, manifest in self._manifests()
            if manifest.name != folder
        ]

    def next_number(self) -> int:
        """Return the number for the next checkpoint, which orders it after all existing ones."""
        return max((manifest.number for _, manifest in self._manifests()), default=0) + 1

    def _manifests(self) -> Iterator[tuple[str, Manifest]]:
        """Yield (folder name, manifest) of each checkpoint folder.

        A folder is left out if it has no manifest that can be read, or if the manifest names a file
        outside the folder.
        """
        try:
            with self._open() as checkpoints:
                names = checkpoints.folders(self.folder.name)
        except OSError:
            return
        for name in names:
            with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
                data = read_plain(self.folder / name / MANIFEST, SMALL_FILE_BYTES)
                manifest = read_manifest(data)
                if all(map(_stays_inside, manifest.files)):
                    yield name, manifest

    def _open(self) -> OpenFolder:
        return self._run.open()

    def _within(self, *parts: str) -> str:
        return "/".join((self.folder.name, *parts))

    def find(self, wanted: str) -> Manifest:
        """Return a checkpoint by its name, by its step (the newest at that step), or `last`.

        A copy, and the mean of several checkpoints, where training has never been, is found by the
        name of its folder only.

        Raises:
            CheckpointError: there is no such checkpoint; the text lists existing ones.
        """
        known, copies = self.all(), self.copies()
        trained = [manifest for manifest in known if not manifest.mean_of]
        if wanted == "last" and trained:
            return trained[-1]
        for manifest in reversed(trained):
            if wanted in (manifest.name, str(manifest.step)):
                return manifest
        for manifest in known:
            if wanted == manifest.name:
                return manifest
        for copy in copies:
            if wanted == copy.manifest.name:
                return copy.manifest
        listed = existing(wanted, [m.name for m in known], "checkpoints")
        copied = ", ".join(f"{copy.manifest.name} (of {copy.original})" for copy in copies)
        raise CheckpointError(
            f"no complete checkpoint {wanted!r}; {listed}"
            + (f"; copies: {copied}" if copied else "")
        )

    def verify(self, manifest: Manifest) -> Path:
        """Check every file against the manifest and return the folder.

        Raises:
            CheckpointError: a file is missing or damaged; the text names it.
            OSError: a file cannot be read, or was removed meanwhile.
        """
        folder = self.path(manifest.name)
        for name, entry in manifest.files.items():
            if damage := _damage(folder / name, entry):
                others = ", ".join(m.name for m in self.all() if m.name != manifest.name)
                choice = f"choose another one: {others}" if others else "there is no other one"
                raise CheckpointError(f"checkpoint {manifest.name}: {name} {damage}; {choice}")
        return folder

    def make_folder(self, name: str) -> Path:
        """Create the folder of a checkpoint and return its path.

        Another rank may have created the folder already.

        Raises:
            OSError: it cannot be created, or there is a link in its place.
        """
        with self._open() as run:
            run.make_folder(self.folder.name)
            run.make_folder(self._within(name))
        return self.path(name)

    def is_taken(self, name: str) -> bool:
        """Whether a file or folder with this name exists."""
        with self._open() as run:
            return run.exists(self._within(name))

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest, which makes the folder a complete checkpoint.

        Raises:
            OSError: it cannot be written.
        """
        with self._open() as run:
            data = msgspec.json.format(msgspec.json.encode(manifest))
            run.write(self._within(manifest.name, MANIFEST), data)
            run.sync(self.folder.name)

    def add_metrics(self, name: str, metrics: Mapping[str, float]) -> bool:
        """Add what was measured later to the manifest of a checkpoint, unless it was removed.

        Return whether the checkpoint exists.

        Raises:
            OSError: the manifest cannot be written.
        """
        for manifest in self.all():
            if manifest.name == name:
                known = {**manifest.metrics, **metrics}
                self.commit(msgspec.structs.replace(manifest, metrics=known))
                return True
        return False

    def sweep(self) -> None:
        """Remove incomplete checkpoints; call this only while no checkpoint is being written.

        Only folders with the name of a checkpoint are removed; all others belong to the user.
        """
        with suppress(OSError), self._open() as run:
            for name in run.folders(self.folder.name):
                if _OWN_NAME.fullmatch(name) and not run.exists(self._within(name, MANIFEST)):
                    with suppress(OSError):
                        run.remove_tree(self._within(name))

    def remove(self, name: str) -> bool:
        """Remove a checkpoint, its manifest first; return whether it is removed.

        False for a name that does not exist, for a copy that a user made, which is kept, and if the
        manifest cannot be removed.
        """
        if all(manifest.name != name for manifest in self.all()):
            return False
        with self._open() as run:
            try:
                run.remove(self._within(name, MANIFEST))
                # Otherwise a power cut may bring the manifest back and not the other files.
                run.sync(self._within(name))
            except OSError:
                return False
            with suppress(OSError):
                run.remove_tree(self._within(name))
        return True

    def discard(self, name: str) -> None:
        """Remove the files of a checkpoint that could not be completed, as far as that works."""
        with suppress(OSError), self._open() as run:
            run.remove_tree(self._within(name))


class CopyList:
    """The copies of checkpoints, read again only if the folder of the checkpoints has changed."""

    def __init__(self, run: RunDirectory) -> None:
        self._store = CheckpointStore(run)
        self._changed: int | None = None
        self._known: dict[str, str] = {}

    def current(self) -> dict[str, str]:
        """Return the copies: name of the copy → name of the checkpoint.

        There are none if the folder of the checkpoints cannot be looked at.
        """
        try:
            changed = self._store.folder.stat().st_mtime_ns
        except OSError:
            return {}
        if changed != self._changed:
            found = self._store.copies()
            self._changed, self._known = changed, {c.manifest.name: c.original for c in found}
        return self._known


def read_manifest(data: bytes) -> Manifest:
    """Return the manifest in a file, without the metrics that are null: they were not finite.

    Raises:
        DecodeError: it is not a manifest.
    """
    found = msgspec.json.decode(data)
    if isinstance(found, dict) and isinstance(metrics := found.get("metrics"), dict):
        found["metrics"] = {name: value for name, value in metrics.items() if value is not None}
    return msgspec.convert(found, Manifest)


def _stays_inside(name: str) -> bool:
    """Whether the file name in a manifest names a file in the folder of the checkpoint."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _damage(file: Path, entry: FileEntry) -> str | None:
    try:
        found = file.lstat()
    except OSError:
        return "is missing"
    if not stat.S_ISREG(found.st_mode):
        return "is not a plain file"
    if found.st_size != entry.size_bytes:
        return f"has {found.st_size} bytes, expected {entry.size_bytes}"
    return None if hash_file(file) == entry.sha256 else "is damaged (sha256 differs)"


def seal_files(folder: Path) -> dict[str, FileEntry]:
    """Sync every file in a checkpoint folder to disk and return the entries for its manifest.

    Raises:
        OSError: a file cannot be read or synced.
    """
    entries: dict[str, FileEntry] = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST):
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        name = str(file.relative_to(folder))
        entries[name] = FileEntry(size_bytes=file.stat().st_size, sha256=hash_file(file))
    sync_folder(folder)
    return entries
