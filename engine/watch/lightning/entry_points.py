"""Lightning entry points: callbacks that Lightning adds to each of its trainers.

There is none unless the environment asks for it, with `FTTUI=on` or under `fttui exec`. Nothing but
the standard library is imported before that, and no error of ours ends the script.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def of_lightning() -> list[Any]:
    """Return the callbacks for trainers of `lightning.pytorch`; none unless they are asked for."""
    return _callbacks("lightning.pytorch")


def of_pytorch_lightning() -> list[Any]:
    """Return the callbacks for trainers of `pytorch_lightning`; none unless they are asked for."""
    return _callbacks("pytorch_lightning")


def watching_requested() -> bool:
    """Whether the environment asks for trainers to be watched."""
    switch = os.environ.get("FTTUI", "").lower()
    return switch in ("on", "1", "true") or (not switch and "FTTUI_EXEC" in os.environ)


def _callbacks(package: str) -> list[Any]:
    if not watching_requested():
        return []
    try:
        from ..watch_options import WatchOptions
        from .callback import lightning_callback

        return [lightning_callback(WatchOptions(name=os.environ.get("FTTUI_NAME")), package)]
    except Exception as error:  # noqa: BLE001 -- no error of ours may end the user's script
        sys.stderr.write(f"fttui: this trainer is not watched: {type(error).__name__}: {error}\n")
        return []
