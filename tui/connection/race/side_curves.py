"""The file with the curves of variants that trained on other devices."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.codec import UNDECODABLE
from fttui.engine.run.folder.open_folder import read_plain
from fttui.engine.run.run_dir import RunDirectory

from ...view_model.race.race_state import RaceState
from ...view_model.race.side_curve import MOST_CURVES, SideCurve, curves_of

_MOST_BYTES = 256 * 2**20


def curves_file(run: RunDirectory) -> Path:
    """Return the path of the file, whether it exists or not."""
    return run.path / "race_curves.json"


def read_curves(run: RunDirectory) -> list[SideCurve]:
    """Return the curves, oldest first; none without the file.

    Raises:
        FttuiError: the file cannot be read, or is damaged.
    """
    try:
        return msgspec.json.decode(read_plain(curves_file(run), _MOST_BYTES), type=list[SideCurve])
    except FileNotFoundError:
        return []
    except (*UNDECODABLE, OSError) as error:
        raise FttuiError(
            f"the curves of races in {curves_file(run)} cannot be read ({error}); remove the file "
            "to do without them"
        ) from None


def keep_curves(run: RunDirectory, state: RaceState, kept: int | None) -> int:
    """Add the curves of a race to the file; return how many older ones are dropped for them.

    Args:
        run: the run.
        state: the race, after its last round.
        kept: the variant whose steps the run trains again; None for none.

    Raises:
        FttuiError: the file is damaged.
        OSError: it cannot be written.
    """
    new = curves_of(state, kept)
    known = [one for one in read_curves(run) if one not in new]
    found = [*known, *new]
    run.write(curves_file(run), msgspec.json.encode(found[-MOST_CURVES:]))
    return max(0, len(found) - MOST_CURVES)
