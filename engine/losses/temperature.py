"""What divides the cosines: a number, or a parameter that is learned."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """A temperature; learned as ln(1 / temperature), so that it stays positive and steps are even.

    Args:
        start: the temperature, or the first one.
        learned: train it.
        bounds: lowest and highest temperature a learned one may take.

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
        """The temperature; a scalar tensor in the graph of `log_scale` where it is learned."""
        return self._fixed if self.log_scale is None else torch.exp(-self.log_scale)

    def clamp(self) -> None:
        """Bring a learned temperature back into its bounds; after every optimizer update."""
        if self.log_scale is not None:
            with torch.no_grad():
                self.log_scale.clamp_(*self._range)
