"""Files of checkpoints on their way between nodes, which do not share a run folder.

Only the node of rank 0 keeps checkpoints. Ranks of other nodes send it the files of their own state
when a checkpoint is written. To restore one, each of these nodes receives a temporary copy.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ...errors import CheckpointError
from ...run.checkpoint_store import CheckpointStore, Manifest
from ..distributed.agreement import Agreement, attempt
from ..distributed.nodes import NodePlace

CHUNK_BYTES = 32 * 2**20
"""Bytes that rank 0 sends at once."""

Files = dict[str, bytes]


def written_files(write: Callable[[Path], None]) -> Files:
    """Return the files that a function writes into a folder: name → content."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


class NodeFiles:
    """Sends files of checkpoints to rank 0 and copies of checkpoints to other nodes.

    All ranks call each method together. With a single node nothing is sent.
    """

    def __init__(self, store: CheckpointStore, agreement: Agreement, place: NodePlace) -> None:
        self._store = store
        self._agreement = agreement
        self._place = place

    def collect(self, own: Files) -> Files:
        """Return the files that the ranks of other nodes have sent; empty except on rank 0.

        Args:
            own: the files of this rank, which are sent if it is on another node than rank 0.
        """
        if not self._place.several:
            return {}
        sent = self._agreement.gather(msgspec.msgpack.encode(own if self._place.remote else {}))
        found: Files = {}
        for data in sent if self._agreement.rank == 0 else ():
            found |= msgspec.msgpack.decode(data, type=Files)
        return found

    @contextmanager
    def copied(self, wanted: str) -> Iterator[str]:
        """Copy a checkpoint to all nodes, yield its name, and remove the copies at the end.

        Args:
            wanted: name or step of the checkpoint, or `last`.

        Raises:
            CheckpointError: there is no such checkpoint, it is damaged, or a node cannot hold it.
        """
        if not self._place.several:
            yield wanted
            return
        manifest = self._share_manifest(wanted)
        receives = self._place.remote and self._place.local_rank == 0
        try:
            failed = attempt(lambda: self._make_folder(manifest)) if receives else None
            failed = self._send(manifest, receives and not failed) or failed
            if errors := self._agreement.errors(failed):
                raise CheckpointError(f"{manifest.name} was not copied: {'; '.join(errors)}")
            yield manifest.name
        finally:
            if receives:
                self._store.discard(manifest.name)

    def _share_manifest(self, wanted: str) -> Manifest:
        found: list[Manifest] = []

        def verify() -> None:
            found.append(self._store.find(wanted))
            self._store.verify(found[0])

        leads = self._agreement.rank == 0
        if errors := self._agreement.errors(attempt(verify) if leads else None):
            raise CheckpointError("; ".join(errors).removeprefix("rank 0: "))
        shared = self._agreement.share(msgspec.json.encode(found[0]) if leads else b"")
        return msgspec.json.decode(shared, type=Manifest)

    def _make_folder(self, manifest: Manifest) -> None:
        self._store.discard(manifest.name)  # left over if an earlier process was killed
        self._store.make_folder(manifest.name)

    def _send(self, manifest: Manifest, writes: bool) -> str | None:
        """Send the files of a checkpoint from rank 0 to all ranks, in chunks.

        Return why this rank could not read or write one, or None. `writes` is true for the ranks
        that write the copies.
        """
        folder = self._store.path(manifest.name)
        failed: str | None = None
        for name, entry in manifest.files.items():
            for start in range(0, max(1, entry.size_bytes), CHUNK_BYTES):
                chunk, unread = self._chunk(folder / name, start)
                failed = failed or unread
                if writes and failed is None:
                    failed = attempt(functools.partial(_append, folder / name, chunk))
        if writes and failed is None:
            failed = attempt(lambda: self._store.commit(manifest))
        return failed

    def _chunk(self, file: Path, start: int) -> tuple[bytes, str | None]:
        """Return a chunk of a file of rank 0, and on rank 0 why it could not be read, or None.

        If it cannot be read, rank 0 sends no bytes, so that the other ranks do not wait.
        """
        read: list[bytes] = []

        def load() -> None:
            with file.open("rb") as opened:
                opened.seek(start)
                read.append(opened.read(CHUNK_BYTES))

        unread = attempt(load) if self._agreement.rank == 0 else None
        return self._agreement.share(read[0] if read else b""), unread


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a checkpoint folder.

    Raises:
        OSError: one cannot be written.
    """
    for name, data in files.items():
        _append(folder / Path(name).name, data)


def _append(file: Path, data: bytes) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("ab") as opened:
        opened.write(data)
