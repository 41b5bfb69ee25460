"""The end of a run: every command gets an outcome, and the last event says what is on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from ...errors import StateNotSaved
from ...protocol.events import RunEnded
from ...protocol.states import RunState
from ...run.control_log import ControlEntry, ControlReader, decision_lock
from ...run.run_dir import RunDirectory
from ..journal_writer import JournalWriter

log = logging.getLogger(__name__)


def accepted_since(run: RunDirectory, control_seq: int) -> list[ControlEntry]:
    """Return the commands that the hub accepted after a number of the control journal.

    Call it under `decision_lock`. None are returned if the control journal cannot be read, and the
    log says so.
    """
    try:
        with ControlReader(run) as reader:
            if reader.waiting() >= control_seq:  # else all came after a new beginning
                reader.take(control_seq)
            return reader.take_all()
    except OSError as error:
        log.error("the control journal cannot be read: %s; waiting commands have no outcome", error)
        return []


def end_run(
    run: RunDirectory,
    writer: JournalWriter,
    ended: RunEnded,
    record: Callable[[RunEnded], None],
    conclude: Callable[[RunEnded], None],
) -> RunEnded:
    """Give open commands an outcome, record the end, close the journal, and return the end.

    A successful end becomes `unsaved` if the last events could not be written, even if the
    checkpoint is complete.

    Args:
        run: the run.
        writer: writes its journal.
        ended: how the engine ended.
        record: records an end.
        conclude: gives open commands an outcome; called while the hub accepts none.
    """
    fault = writer.settle()
    ended = _unsaved(ended, fault)
    with decision_lock(run):
        conclude(ended)
        record(ended)
        writer.settle()
    late = writer.settle()
    if late and not fault and ended.exit_code == 0:
        ended = _unsaved(ended, late)
        record(ended)
    writer.close()
    return ended


def _unsaved(ended: RunEnded, fault: str) -> RunEnded:
    if not fault or ended.exit_code != 0:
        return ended
    return msgspec.structs.replace(
        ended, state=RunState.UNSAVED, exit_code=StateNotSaved.exit_code, error=fault
    )
