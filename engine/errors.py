"""Errors that a user can act on, each with the exit code of the command."""

from __future__ import annotations

import sys
from collections.abc import Callable

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C has ended."""


class FttuiError(Exception):
    """Base class of errors that a user can act on and that are shown without a traceback.

    The text says what is wrong, what was found and expected, and what to do. Exit code 1.
    """

    exit_code = 1


class ConfigError(FttuiError):
    """The configuration is invalid. Exit code 2."""

    exit_code = 2


class NoSuchRun(FttuiError):
    """No run has the given name. Exit code 3."""

    exit_code = 3


class NewerRun(NoSuchRun):
    """A newer version wrote the run, in a format that this version does not know. Exit code 4."""

    exit_code = 4


class ProtocolMismatch(FttuiError):
    """The peer speaks another major version of the protocol. Exit code 4."""

    exit_code = 4


class JournalReplaced(FttuiError):
    """The run's journal is not the one that was read before: records were lost or replaced.

    Exit code 1.
    """


class NotOwner(FttuiError):
    """The run belongs to another user. Exit code 5."""

    exit_code = 5


class EngineGone(FttuiError):
    """The run has no live engine; its history can still be read. Exit code 6."""

    exit_code = 6


class CommandRejected(FttuiError):
    """The run refused a command or could not execute it. Exit code 7."""

    exit_code = 7


class ModelError(FttuiError):
    """The model cannot be loaded, or it does not fit into memory. Exit code 8."""

    exit_code = 8


class DataError(FttuiError):
    """The data cannot be read, or no record of it can be used. Exit code 9."""

    exit_code = 9


class SourceUnreachable(DataError):
    """A source of data is on the Hugging Face Hub, which cannot be reached now. Exit code 9."""


class CheckpointError(FttuiError):
    """A checkpoint is missing, damaged or does not fit this run. Exit code 10."""

    exit_code = 10


class TrainingFailed(FttuiError):
    """Training ended with an error, or before it had the requested result. Exit code 11."""

    exit_code = 11


class StateNotSaved(FttuiError):
    """The run has ended, but its last state could not be saved. Exit code 13."""

    exit_code = 13


class ContentChanged(CheckpointError):
    """Base model, tokenizer, chat template or data changed since the checkpoint. Exit code 12."""

    exit_code = 12


def exit_code_of(work: Callable[[], object]) -> int:
    """Do the work of a command, print an error that a user can act on, and return the exit code."""
    try:
        work()
    except FttuiError as error:
        print(f"fttui: {error}", file=sys.stderr)  # noqa: T201 -- the caller is a command
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
