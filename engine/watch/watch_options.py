"""What the caller of `fttui.watch` may choose."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import msgspec

from ..config.schema import RunConfig
from ..config.sections.outward import TRACKER_PACKAGES
from .script_run import MakeEventLog, plain_event_log, say

TRACKERS = "FTTUI_TRACKERS"
"""Environment variable with the trackers of watched runs, such as `wandb,tensorboard`."""


@dataclass(frozen=True)
class WatchOptions:
    """Name, checkpoints, memory and trackers of a watched run."""

    name: str | None = None
    """Name of the run; None is that of the trainer's arguments, else of the script."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; None plans them by their size, 0 writes them on command only."""
    keep: int = 3
    """Newest checkpoints that are kept."""
    tape_mib: int = 512
    """Host memory for the batches since the oldest checkpoint, in MiB."""
    steps: int | None = None
    """Planned optimizer steps of a plain loop; None if unknown."""
    accumulate: int = 1
    """Batches per optimizer step of a plain loop."""
    trackers: Sequence[str] | None = None
    """Trackers that the run is delivered to; None takes those of `$FTTUI_TRACKERS`."""
    make_event_log: MakeEventLog = plain_event_log
    """Makes the event log of the run."""

    def with_trackers(self, config: RunConfig) -> RunConfig:
        """Return the configuration of a watched run with the trackers that were chosen.

        One that is unknown, or whose package is missing, is left out, and a line says so.
        """
        wanted = self.trackers
        if wanted is None:
            wanted = os.environ.get(TRACKERS, "").split(",")
        elif isinstance(wanted, str):
            wanted = wanted.split(",")
        names = [name.strip() for name in wanted]
        found = list(_usable(dict.fromkeys(filter(None, names))))
        return msgspec.structs.replace(config, trackers=found)


def _usable(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        packages = TRACKER_PACKAGES.get(name)
        if packages is None:
            known = ", ".join(TRACKER_PACKAGES)
            say(f"there is no tracker {name}, so nothing is delivered to it; known are {known}")
        elif not any(find_spec(one.removesuffix("-skinny")) for one in packages):
            say(
                f"nothing is delivered to {name}, because {' or '.join(packages)} is missing; "
                f"install it with: pip install 'fttui[{name}]', then deliver the run with: "
                f"fttui sync RUN --to {name}"
            )
        else:
            yield name
