"""The desired control state on disk, so that a restart honours what was asked last."""

from __future__ import annotations

import logging

import msgspec

from ..config.schema import RunConfig
from ..core.control import Desired
from ..run.files import write_atomically
from ..run.layout import RunDirectory

log = logging.getLogger(__name__)


def configured(config: RunConfig) -> Desired:
    """What the configuration asks for."""
    return Desired(clip=config.train.clip or None, nonfinite=config.guard.nonfinite)


def load_desired(run: RunDirectory, config: RunConfig) -> Desired:
    """What was asked last in this run; the configuration where nothing was.

    A pause is not kept: whoever starts a process again wants it to train.
    """
    try:
        stored = msgspec.json.decode((run.path / "desired.json").read_bytes(), type=Desired)
        return msgspec.structs.replace(stored, paused=False, pause_at_step=None)
    except FileNotFoundError:
        return configured(config)
    except msgspec.DecodeError as error:
        log.warning("desired.json is damaged (%s); the configured settings are used", error)
        return configured(config)


def store_desired(run: RunDirectory, desired: Desired) -> None:
    """Keep it for the next process."""
    write_atomically(run.path / "desired.json", msgspec.json.encode(desired))
