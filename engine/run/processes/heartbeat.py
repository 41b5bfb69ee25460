"""The heartbeat of a run, the same whether its hub sends it or it is built from the run folder."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.requests import Beat
from ...protocol.states import RunState
from ..checkpoint_store import CopyList
from ..files import free_bytes, last_lines
from ..journal_summary import summarize_records
from ..run_dir import RunDirectory
from ..run_index import read_ends
from ..run_status import EngineStatus
from .marks import read_engine_status

_LOG_TAIL_LINES = 20


@dataclass(frozen=True)
class HubStatus:
    """The part of a heartbeat that only a hub knows."""

    controller: str | None = None
    """Issuer who holds control; None if nobody does."""
    controller_viewer: str | None = None
    viewers: int = 0
    generation: int = 0
    """Number of changes of the settings so far, by commands and by recoveries."""


NO_HUB = HubStatus()


def build_beat(
    run: RunDirectory,
    state: RunState,
    engine: EngineStatus,
    last_seq: int,
    *,
    now: float,
    hub: HubStatus = NO_HUB,
    copies: CopyList | None = None,
    damaged_bytes: int = 0,
) -> Beat:
    """Build a heartbeat; of a lost run it has the end of the engine's log.

    Args:
        run: the run, whose free disk space is looked up.
        state: its state.
        engine: its engine process.
        last_seq: sequence number of the newest record in the journal.
        now: Unix seconds.
        hub: what the hub knows.
        copies: the copies of checkpoints known so far; None reads them again.
        damaged_bytes: damaged bytes of the journal that were left out.
    """
    lost = state is RunState.LOST
    return Beat(
        time=now,
        last_seq=last_seq,
        engine_alive=engine.alive,
        engine_pid=engine.pid,
        state=state,
        controller=hub.controller,
        controller_viewer=hub.controller_viewer,
        viewers=hub.viewers,
        generation=hub.generation,
        engine_log_tail=last_lines(run.engine_log, _LOG_TAIL_LINES) if lost else [],
        disk_free_bytes=free_bytes(run.path),
        checkpoint_copies=(copies or CopyList(run)).current(),
        damaged_bytes=damaged_bytes,
    )


def beat_from_folder(
    run: RunDirectory, last_seq: int, *, now: float, damaged_bytes: int = 0
) -> Beat:
    """Build the heartbeat of a run that no hub serves."""
    engine = read_engine_status(run)
    status = summarize_records(read_ends(run.journal)).status
    state = status.state(engine)
    return build_beat(run, state, engine, last_seq, now=now, damaged_bytes=damaged_bytes)
