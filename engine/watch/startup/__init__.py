"""The folder that `fttui exec` puts on the path of a command, and the switch of the user."""

from __future__ import annotations

import os


def switched_off() -> bool:
    """Whether `FTTUI=off` in the environment asks for scripts to run unwatched."""
    return os.environ.get("FTTUI", "").lower() in ("off", "0", "false")
