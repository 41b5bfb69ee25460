"""Faults injected into real processes, what must hold afterwards, and the table of figures."""

from __future__ import annotations

from . import (
    agreement,
    audience,
    clocks,
    damage,
    endurance,
    every_write,
    hubs,
    intruders,
    journals,
    removals,
    rollbacks,
    saves,
    ssh_links,
    stops,
)
from .book import FAULTS, Box, Fault, Figures, Row, play_all
from .stage import Stage

__all__ = [
    "FAULTS",
    "Box",
    "Fault",
    "Figures",
    "Row",
    "Stage",
    "agreement",
    "audience",
    "clocks",
    "damage",
    "endurance",
    "every_write",
    "hubs",
    "intruders",
    "journals",
    "play_all",
    "removals",
    "rollbacks",
    "saves",
    "ssh_links",
    "stops",
]
