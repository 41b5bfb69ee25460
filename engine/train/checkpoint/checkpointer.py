"""Checkpointer: writes complete checkpoints and restores them exactly, on all ranks or on none."""

from __future__ import annotations

import functools
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from ...errors import CheckpointError, TrainingFailed
from ...run.checkpoint_store import CheckpointStore, Manifest, checkpoint_name, seal_files
from ...run.files import free_bytes
from ...run.identity.run_identity import RunIdentity
from ...run.run_dir import RunDirectory
from ..distributed.agreement import Agreement, attempt
from ..distributed.nodes import ONE_NODE, NodePlace
from .counters import Counters
from .exact_state import ExactState
from .node_files import Files, NodeFiles, write_files, written_files

_SPARE = 1.2
"""Free space required, as a multiple of the size of the last checkpoint."""
_LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "trl", "fttui")


@functools.cache
def _versions() -> dict[str, str]:
    """Return the versions of the training libraries, cached because reading metadata is slow.

    Those that are not installed, as may be the case beside a watched script, are left out.
    """
    found = {}
    for library in _LIBRARIES:
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


@dataclass(frozen=True)
class Saved:
    """A checkpoint that has just been written."""

    manifest: Manifest
    seconds: float
    """Duration of the writing."""


class Checkpointer:
    """Writes and restores the checkpoints of one run."""

    def __init__(
        self,
        run: RunDirectory,
        state: ExactState,
        agreement: Agreement,
        incarnation: int,
        identity: RunIdentity | None = None,
        nodes: NodePlace = ONE_NODE,
    ) -> None:
        self.ledger = CheckpointStore(run)
        self._remote = nodes.remote
        self._files = NodeFiles(self.ledger, agreement, nodes)
        self._incarnation = incarnation
        self._names: set[str] = set()
        """Names this process has used; never reused, even after retention removes a checkpoint."""
        self._state = state
        self._agreement = agreement
        self._identity = identity
        """Hashes of the run's model and data; None except on rank 0, or if not recorded."""
        self._unidentified: list[str] = []
        """Checkpoints that were written before the hashes of model and data were known."""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, the only rank that changes the checkpoint store."""
        return self._agreement.rank == 0

    def save(self, counters: Counters, facts: dict[str, Any], timeline: int) -> Saved:
        """Write one checkpoint and return it; if any rank fails, remove the checkpoint's folder.

        All ranks call this together.

        Args:
            counters: the plain values of the state.
            facts: further fields of the manifest, by name.
            timeline: the present timeline.

        Raises:
            CheckpointError: writing failed; the text says on which ranks. Training can continue.
        """
        started = time.monotonic()
        name = self._fresh_name(counters.step, timeline)
        folder = self.ledger.path(name)
        own: Files = {}
        with self._state.gathered():
            errors = self._agreement.errors(attempt(lambda: self._write(folder, counters, own)))
        manifest = None
        if not errors:
            sent = self._files.collect(own)
            draft = self._draft(name, counters, facts, timeline)
            sealed: list[Manifest] = []
            seal = functools.partial(self._seal, folder, draft, sent, sealed)
            errors = self._agreement.errors(attempt(seal))
            manifest = sealed[0] if sealed else draft
        if errors:
            if self._agreement.rank == 0:
                self.ledger.discard(name)
            raise CheckpointError(f"checkpoint not written: {'; '.join(errors)}")
        return Saved(manifest or draft, time.monotonic() - started)

    def is_complete(self, name: str) -> bool:
        """Return whether a checkpoint is still on disk; all ranks call this together."""
        known = self._agreement.rank != 0 or any(m.name == name for m in self.ledger.all())
        return not self._agreement.errors(None if known else f"{name} is missing")

    def _fresh_name(self, step: int, timeline: int) -> str:
        name = checkpoint_name(step, timeline)
        if self._agreement.rank == 0:
            number = 1
            while name in self._names or self.ledger.is_taken(name):
                number += 1
                name = checkpoint_name(step, timeline, number)
            self._names.add(name)
        return self._agreement.share(name.encode()).decode()

    def _write(self, folder: Path, counters: Counters, own: Files) -> None:
        """Write the state of this rank to the checkpoint, or, on another node, into `own`."""
        rank = self._agreement.rank
        if self._remote:
            own |= written_files(lambda target: self._state.save_own(target, rank))
            return
        if rank == 0:
            self._require_space()
        self.ledger.make_folder(folder.name)
        self._state.save_own(folder, rank)
        if rank == 0:
            self._state.save_shared(folder, counters)

    def _require_space(self) -> None:
        known = self.ledger.all()
        need = int(known[-1].size_bytes * _SPARE) if known else 0
        free = free_bytes(self.ledger.folder)
        if free is not None and free < need:
            raise CheckpointError(
                f"the disk is full: {free / 1e6:.3g} MB free, about {need / 1e6:.3g} MB needed; "
                "free some disk space"
            )

    def _draft(
        self, name: str, counters: Counters, facts: dict[str, Any], timeline: int
    ) -> Manifest:
        return Manifest(
            name=name,
            step=counters.step,
            timeline=timeline,
            time=time.time(),
            world_size=self._agreement.world_size,
            incarnation=self._incarnation,
            files={},
            control=msgspec.to_builtins(counters.desired),
            versions=dict(_versions()),
            **facts,
        )

    def _seal(self, folder: Path, draft: Manifest, sent: Files, sealed: list[Manifest]) -> None:
        if self._agreement.rank != 0:
            return
        write_files(folder, sent)
        number = self.ledger.next_number()
        manifest = msgspec.structs.replace(draft, number=number, files=seal_files(folder))
        sealed.append(self._identified(manifest))
        self.ledger.commit(sealed[0])

    def _identified(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the hashes of model and data, and add them to earlier manifests.

        A checkpoint before the first step does not wait for the hashes and gets them later. The
        manifest is returned unchanged while the hashes are not known, or if none are recorded.
        """
        if self._identity is None:
            return manifest
        identity = self._identity.known(wait=manifest.step > 0)
        if identity is None:
            self._unidentified.append(manifest.name)
            return manifest
        for earlier in self.ledger.all() if self._unidentified else ():
            if earlier.name in self._unidentified:
                self.ledger.commit(msgspec.structs.replace(earlier, identity=identity))
        self._unidentified.clear()
        return msgspec.structs.replace(manifest, identity=identity)

    def restore(self, wanted: str) -> tuple[Manifest, Counters]:
        """Verify a checkpoint on every rank, restore it in place, and return manifest and counters.

        All ranks call this together.

        Args:
            wanted: name or step of the checkpoint, or `last`.

        Raises:
            CheckpointError: the checkpoint is not usable; no rank has changed anything. It is
                `ContentChanged` if model or data are not those of the checkpoint.
            TrainingFailed: the ranks have restored different states.
        """
        with self._files.copied(wanted) as name:
            return self._restore(name)

    def _restore(self, wanted: str) -> tuple[Manifest, Counters]:
        manifest, staged = self._agreed(wanted)
        counters = self._state.apply(staged)
        self._require_same_state(manifest.name, counters)
        return manifest, counters

    def staged(self, wanted: str) -> Any:
        """Verify and read a checkpoint on every rank without applying it; all call this together.

        Raises:
            CheckpointError: the checkpoint is not usable; nothing was changed.
        """
        with self._files.copied(wanted) as name:
            return self._agreed(name)[1]

    def _agreed(self, wanted: str) -> tuple[Manifest, Any]:
        """Stage a checkpoint on every rank, or raise on every rank."""
        found: tuple[Manifest, Any] | None = None
        error: CheckpointError | None = None
        try:
            found = self._stage(wanted)
        except CheckpointError as problem:
            error = problem
        if errors := self._agreement.errors(str(error) if error else None):
            kind = type(error) if error else CheckpointError
            raise kind("; ".join(errors) if len(errors) < 2 else errors[0])
        assert found is not None
        return found

    def _stage(self, wanted: str) -> tuple[Manifest, Any]:
        manifest = self.ledger.find(wanted)
        self._check(manifest)
        return manifest, self._state.stage(self.ledger.path(manifest.name), self._agreement.rank)

    def _require_same_state(self, name: str, counters: Counters) -> None:
        """Compare the states that the ranks restored; with different ones they would train apart.

        Raises:
            TrainingFailed: the ranks hold different states.
        """
        prints = self._agreement.gather(self._state.fingerprint(counters))
        if len(set(prints)) > 1:
            listed = ", ".join(f"rank {rank}: {p.hex()[:8]}" for rank, p in enumerate(prints))
            raise TrainingFailed(
                f"after restoring {name} the ranks hold different states ({listed}), so the run "
                "ends; its checkpoints are unchanged: make sure that the ranks of a node read the "
                "same run folder, then resume"
            )

    def _check(self, manifest: Manifest) -> None:
        if manifest.world_size != self._agreement.world_size:
            raise CheckpointError(
                f"checkpoint {manifest.name} was written by {manifest.world_size} ranks, this run "
                f"has {self._agreement.world_size}; start with train.devices={manifest.world_size}"
            )
        if self._identity is not None:
            self._identity.require_same(manifest)
        self.ledger.verify(manifest)
