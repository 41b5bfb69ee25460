"""The exit code of the ranks of a node that has no journal, because rank 0 is on another node."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from ..folder.open_folder import read_plain
from ..run_dir import SMALL_FILE_BYTES, RunDirectory

_FILE = "node-end.json"


def record_node_end(run: RunDirectory, exit_code: int) -> None:
    """Record the exit code of a rank, for the next attempt of torchrun and for `fttui run`.

    If that fails, the next attempt waits in vain for the other nodes, and says so.
    """
    with suppress(OSError):
        run.write(run.path / _FILE, msgspec.json.encode(exit_code))


def recorded_node_end(run: RunDirectory) -> int | None:
    """Return the exit code that a rank of this node recorded, or None."""
    try:
        return msgspec.json.decode(read_plain(run.path / _FILE, SMALL_FILE_BYTES), type=int)
    except (OSError, msgspec.DecodeError):
        return None
