"""The temperature of a contrastive loss, fixed or learned."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """A temperature; it is learned as ln(1 / temperature), which keeps it positive.

    Args:
        start: The temperature, or the initial value of a learned one.
        learned: Whether it is trained.
        bounds: Lower and upper bound of a learned temperature.

    Source: Radford et al., "Learning Transferable Visual Models From Natural Language
        Supervision", 2021 (log parametrisation and clamp).
    """

    def __init__(
        self, start: float, *, learned: bool = False, bounds: tuple[float, float] = (0.01, 1.0)
    ) -> None:
        super().__init__()
        self._fixed = start
        self._range = (-math.log(bounds[1]), -math.log(bounds[0]))
        self.log_scale = nn.Parameter(torch.tensor(-math.log(start))) if learned else None

    def now(self) -> float | Tensor:
        """Return the temperature; a scalar tensor in the graph of `log_scale` if it is learned."""
        return self._fixed if self.log_scale is None else torch.exp(-self.log_scale)

    def clamp(self) -> None:
        """Clamp a learned temperature to its bounds; called after every optimizer update."""
        if self.log_scale is not None:
            with torch.no_grad():
                self.log_scale.clamp_(*self._range)
