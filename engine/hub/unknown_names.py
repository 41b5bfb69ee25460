"""Commands that name a checkpoint or an anomaly which the run does not have."""

from __future__ import annotations

from collections.abc import Collection

from ..errors import CheckpointError
from ..protocol.command_args import existing
from ..protocol.commands import (
    AnyCommand,
    AverageCheckpoints,
    Chat,
    FindCulprits,
    Recover,
    Rollback,
)
from ..run.checkpoint_store import CheckpointStore


def why_unknown(
    command: AnyCommand, store: CheckpointStore, anomalies: Collection[str]
) -> str | None:
    """Return why a command is refused whose checkpoint or anomaly the run lacks, or None.

    The text names the existing ones, of many the most similar.

    Args:
        command: the submitted command.
        store: the checkpoints of the run, which are read only if the command names one.
        anomalies: the ids of its anomalies, oldest first.
    """
    match command:
        case Rollback(checkpoint=wanted):
            try:
                store.find(wanted)
            except CheckpointError as error:
                return str(error)
        case Chat(checkpoint=str(wanted)) if wanted:
            return why_unknown(Rollback(checkpoint=wanted), store, anomalies)
        case AverageCheckpoints(checkpoints=names):
            try:
                for name in names:
                    store.find(name)
            except CheckpointError as error:
                return str(error)
        case Recover(anomaly=str(wanted)) | FindCulprits(anomaly=str(wanted)) if wanted:
            if wanted not in anomalies:
                return f"no anomaly {wanted!r}; {existing(wanted, [*anomalies], 'anomalies')}"
    return None
