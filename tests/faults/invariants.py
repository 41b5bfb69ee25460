"""What must hold after every fault, whatever it was.

I1  the journal is whole: sequence numbers 1…n, and what a viewer saw is its beginning
I2  an acknowledged command is once in the control journal and once in effect, at one step of all
    ranks
I3  a command without an answer is fully applied or not at all
I4  steps are consecutive and their losses equal those of the fault-free run, bit for bit
I5  descriptors, threads and memory of the engine come back to where they were
I6  every checkpoint in the ledger verifies, and every folder without a manifest is none
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

import psutil

from fttui.engine.protocol.events import Record, StepFinished
from fttui.engine.run.checkpoint_store import MANIFEST, CheckpointStore
from fttui.engine.run.control_log import ControlEntry
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory

from .stage import outcomes, read_journal

MAX_LEAKED_DESCRIPTORS = 2
MAX_LEAKED_THREADS = 1
MAX_LEAKED_BYTES = 64 * 1024**2


class Broken(AssertionError):
    """An invariant does not hold."""


def require(condition: object, what: str) -> None:
    """Raise unless it holds."""
    if not condition:
        raise Broken(what)


def check_run(
    run: RunDirectory,
    *,
    acked: Iterable[str] = (),
    witnesses: Sequence[Sequence[Record]] = (),
    reference: Mapping[int, float] | None = None,
) -> list[Record]:
    """Everything that can be checked of a run's folder; returns its records."""
    records = check_journal(run)
    check_commands(run, records, acked, witnesses)
    check_steps(records, reference)
    check_checkpoints(run)
    return records


def check_journal(run: RunDirectory) -> list[Record]:
    """I1, the journal."""
    records = read_journal(run)
    seqs = [record.seq for record in records]
    require(seqs == list(range(1, len(seqs) + 1)), "I1: the journal has a gap or a double")
    return records


def marks(payloads: Iterable[bytes]) -> list[int]:
    """A checksum per record, to compare histories by."""
    return [zlib.crc32(payload) for payload in payloads]


def check_history(run: RunDirectory, seen: Sequence[int]) -> None:
    """I1, a viewer: the checksums of what it saw are the journal's beginning."""
    whole = marks(FrameReader(run.journal))
    require(list(seen) == whole[: len(seen)], "I1: a viewer's history is not the journal's")


def control_entries(run: RunDirectory) -> list[ControlEntry]:
    """The control journal as it is on disk."""
    import msgspec

    decoder = msgspec.msgpack.Decoder(ControlEntry)
    return [decoder.decode(payload) for payload in FrameReader(run.control)]


def check_commands(
    run: RunDirectory,
    records: Sequence[Record],
    acked: Iterable[str],
    witnesses: Sequence[Sequence[Record]],
) -> None:
    """I2 and I3."""
    journaled = [entry.id for entry in control_entries(run)]
    require(len(set(journaled)) == len(journaled), "I2: a command is in the control journal twice")
    effects = outcomes(list(records))
    for id_, found in effects.items():
        require(len(found) == 1, f"I3: {id_} has {len(found)} outcomes")
    for id_ in acked:
        require(id_ in journaled, f"I2: {id_} was acknowledged and is not in the control journal")
        require(id_ in effects, f"I2: {id_} was acknowledged and has no outcome")
    told = [_effects(witness) for witness in witnesses]
    for other in told[1:]:
        require(other == told[0], "I2: ranks differ in which command took effect at which step")


def _effects(records: Sequence[Record]) -> list[tuple[str, str, int]]:
    return [
        (id_, type(record.event).__name__, record.step)
        for id_, found in outcomes(list(records)).items()
        for record in found
    ]


def check_steps(records: Sequence[Record], reference: Mapping[int, float] | None) -> None:
    """I4."""
    last: dict[int, int] = {}
    for record in records:
        if not isinstance(record.event, StepFinished):
            continue
        before = last.get(record.timeline)
        require(
            before is None or record.step == before + 1,
            f"I4: step {record.step} after {before} on timeline {record.timeline}",
        )
        last[record.timeline] = record.step
        if reference is not None and record.step in reference:
            loss, expected = record.event.loss, reference[record.step]
            require(loss == expected, f"I4: loss {loss} ≠ {expected} at step {record.step}")


def check_checkpoints(run: RunDirectory) -> int:
    """I6; returns how many there are."""
    ledger = CheckpointStore(run)
    known = ledger.all()
    for manifest in known:
        ledger.verify(manifest)
        require(manifest.files, f"I6: {manifest.name} lists no files")
    with_manifest = {file.parent.name for file in run.checkpoints.glob(f"*/{MANIFEST}")}
    require(with_manifest == {m.name for m in known}, "I6: a manifest cannot be read")
    return len(known)


class Footprint:
    """I5: what a process holds."""

    def __init__(self, pid: int) -> None:
        process = psutil.Process(pid)
        self.descriptors = process.num_fds()
        self.threads = process.num_threads()
        self.rss_bytes = process.memory_info().rss

    def check_against(self, before: Footprint) -> None:
        """It has come back to where it was."""
        for what, limit in (
            ("descriptors", MAX_LEAKED_DESCRIPTORS),
            ("threads", MAX_LEAKED_THREADS),
            ("rss_bytes", MAX_LEAKED_BYTES),
        ):
            then, now = getattr(before, what), getattr(self, what)
            require(now <= then + limit, f"I5: {what} {then} → {now}")
