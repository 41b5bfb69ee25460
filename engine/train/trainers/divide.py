"""Keeps a smaller micro-batch, after a larger one did not fit into memory when it was tried."""

from __future__ import annotations

from msgspec.structs import replace

from ...config.load import dump_config, read_resolved
from ...errors import TrainingFailed
from ...protocol.events import RunStarted
from ...run.run_dir import RunDirectory
from ..event_log import EventLog


def divide_further(
    run: RunDirectory, started: RunStarted, smaller: int, event_log: EventLog
) -> tuple[RunStarted, str]:
    """Store a smaller micro-batch in the run's configuration, so that resumes use it too.

    Returns:
        The start event with the smaller micro-batch, and the text that reports the larger one.

    Raises:
        TrainingFailed: the configuration cannot be written, such as on a full disk.
    """
    config = read_resolved(run.config)
    larger = config.train.micro_batch_size
    config = replace(config, train=replace(config.train, batch=smaller))
    text = f"{larger} at once did not fit in memory when they were tried"
    try:
        run.write(run.config, dump_config(config).encode())
    except OSError as error:
        raise TrainingFailed(
            f"train.batch: {smaller} instead of {larger}, because {text}, could not be written to "
            f"{run.config}: {error.strerror or error}; make room there, or start the run with "
            f"train.batch={smaller}"
        ) from None
    event_log.log("warning", f"train.batch: {smaller} instead of {larger}, because {text}")
    accumulation = config.train.accumulation
    return replace(started, micro_batch_size=smaller, accumulation=accumulation), text
