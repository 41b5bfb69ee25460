"""The file of a run folder that holds the newest race of the run, so that it can go on later."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.codec import UNDECODABLE
from fttui.engine.run.folder.open_folder import read_plain
from fttui.engine.run.run_dir import RunDirectory

from ...view_model.race.race_state import RaceState

_MOST_BYTES = 64 * 2**20


def race_file(run: RunDirectory) -> Path:
    """Return the path of the file, whether it exists or not."""
    return run.path / "race.json"


def read_race(run: RunDirectory) -> RaceState | None:
    """Return the newest race of a run; None if there was none.

    Raises:
        FttuiError: the file is damaged.
    """
    try:
        return msgspec.json.decode(read_plain(race_file(run), _MOST_BYTES), type=RaceState)
    except FileNotFoundError:
        return None
    except UNDECODABLE as error:
        raise FttuiError(
            f"{race_file(run)} is damaged ({error}); remove it to begin another race"
        ) from None


def store_race(run: RunDirectory, state: RaceState) -> None:
    """Store the state of a race.

    Raises:
        OSError: the file cannot be written.
    """
    run.write(race_file(run), msgspec.json.encode(state))
