"""Copies that come as late as they may, to find weights that are used too early."""

from __future__ import annotations

import torch
from torch import Tensor

from fttui.engine.model.streaming.copies import Fill


class LateCopies:
    """Copies that spoil the slot when they begin, and arrive only when they are waited for."""

    def __init__(self, device: torch.device, slots: int) -> None:
        self._under_way: dict[int, tuple[Tensor, Fill]] = {}
        self.begun: list[int] = []
        """The slots of all copies, in order."""

    def begin(self, slot: int, into: Tensor, fill: Fill) -> None:
        """Spoil the slot."""
        self.begun.append(slot)
        into.fill_(0xA5)
        self._under_way[slot] = into, fill

    def wait(self, slot: int) -> None:
        """Copy, if a copy has begun."""
        if slot in self._under_way:
            into, fill = self._under_way.pop(slot)
            fill(into)
