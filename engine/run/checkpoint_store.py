"""The checkpoints of a run on disk: one folder each, complete once its manifest is written.

The manifest is written last, so a folder without one is not a checkpoint. `verify` compares sizes
and sha256 hashes before a checkpoint is used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import CheckpointError
from .files import hash_file, sync_folder, write_atomically
from .identity.content import ContentIdentity
from .run_dir import RunDirectory

MANIFEST = "MANIFEST.json"


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
    good: bool = True
    loss: float | None = None
    """The smoothed training loss at that step."""
    eval_loss: float | None = None
    metrics: dict[str, float] = {}
    """The results of an evaluation at this step; empty if there was none."""
    number: int = 0
    """Position among the run's checkpoints; orders them even if the clock was set back."""
    identity: ContentIdentity | None = None
    """Base model, tokenizer, chat template and data by content hash; None in checkpoints of older
    versions, and if the hashes were not complete, in which case the run folder has them."""

    @property
    def size_bytes(self) -> int:
        """The total size of the files."""
        return sum(entry.size_bytes for entry in self.files.values())


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, run: RunDirectory) -> None:
        self.folder = run.checkpoints

    def path(self, name: str) -> Path:
        """Return the folder of a checkpoint, whether it exists or not."""
        return self.folder / name

    def all(self) -> list[Manifest]:
        """Return the complete checkpoints, oldest first; unreadable manifests are left out."""
        return sorted(self._manifests(), key=lambda m: (m.number, m.time, m.step))

    def next_number(self) -> int:
        """Return the number for the next checkpoint."""
        return max((manifest.number for manifest in self._manifests()), default=0) + 1

    def _manifests(self) -> Iterator[Manifest]:
        for file in self.folder.glob(f"*/{MANIFEST}"):
            try:
                yield msgspec.json.decode(file.read_bytes(), type=Manifest)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                continue

    def find(self, wanted: str) -> Manifest:
        """Return a checkpoint by its name, by its step (the newest at that step), or `last`.

        Raises:
            CheckpointError: there is no such checkpoint; the text lists the existing ones.
        """
        known = self.all()
        if wanted == "last" and known:
            return known[-1]
        for manifest in reversed(known):
            if wanted in (manifest.name, str(manifest.step)):
                return manifest
        names = ", ".join(m.name for m in known) or "none yet"
        raise CheckpointError(f"no complete checkpoint {wanted!r}; existing checkpoints: {names}")

    def verify(self, manifest: Manifest) -> Path:
        """Check every file against the manifest and return the folder.

        Raises:
            CheckpointError: a file is missing or damaged; the text names it.
        """
        folder = self.path(manifest.name)
        for name, entry in manifest.files.items():
            if damage := _damage(folder / name, entry):
                others = ", ".join(m.name for m in self.all() if m.name != manifest.name)
                raise CheckpointError(
                    f"checkpoint {manifest.name}: {name} {damage}; "
                    f"choose another one: {others or 'no other checkpoint exists'}"
                )
        return folder

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest, which makes the folder a complete checkpoint."""
        write_atomically(
            self.path(manifest.name) / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest))
        )
        sync_folder(self.folder)

    def sweep(self) -> None:
        """Remove folders without a manifest; call it only while no checkpoint is being written."""
        for folder in self.folder.iterdir():
            if folder.is_dir() and not (folder / MANIFEST).is_file():
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self, name: str) -> None:
        """Remove a checkpoint: first its manifest, then its files."""
        (self.path(name) / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.path(name), ignore_errors=True)


def _damage(file: Path, entry: FileEntry) -> str | None:
    if not file.is_file():
        return "is missing"
    size = file.stat().st_size
    if size != entry.size_bytes:
        return f"has {size} bytes, expected {entry.size_bytes}"
    return None if hash_file(file) == entry.sha256 else "is damaged (sha256 differs)"


def seal_files(folder: Path) -> dict[str, FileEntry]:
    """Sync every file in a checkpoint folder to disk and return the entries for its manifest."""
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
