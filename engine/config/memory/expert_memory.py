"""Memory of the experts of one layer of a mixture, counted tensor by tensor.

The counts are for stacked experts in transformers' grouped matrix products, whose weights stay
frozen. Source: such layers and their backward passes were run with every storage counted; the
numbers below are the tensors that were alive at the peaks.
"""

from __future__ import annotations

from dataclasses import dataclass

from .architecture import Mixture

ROUTING_BYTES = 42
"""Bytes of indices and weights that are kept for each token and each of its experts."""
CONSTANT_BYTES = 4 / 64
"""Bytes per weight of the quantization constants, in fp32 while a weight is dequantized."""


@dataclass(frozen=True)
class ExpertMemory:
    """What the experts of one layer hold during a pass over a micro-batch."""

    mixture: Mixture
    hidden: int
    """Width of the hidden states."""
    tokens: int
    """Tokens of the micro-batch, padding included."""
    number: int
    """Bytes per number in compute precision."""
    quantized: bool
    """Whether the experts are stored in four bits: a pass dequantizes all of them, and they stay
    dequantized until the backward pass of the layer is over."""
    trained: bool = False
    """Whether their weights are trained, so that the inputs of the products are kept."""

    @property
    def selected(self) -> int:
        """Rows of the products: each token once for each of its experts."""
        return self.tokens * self.mixture.per_token

    @property
    def dequantized(self) -> float:
        """Bytes of the dequantized weights of all experts; 0 if they are not stored quantized."""
        return 2 * self._matrix + self._down if self.quantized else 0

    @property
    def kept(self) -> float:
        """Bytes that are kept for the backward pass.

        These are the dequantized weights, gate and up, the activated gate, the output before it is
        weighted, the probabilities of all experts in fp32, and what shared experts keep.
        """
        return self.dequantized + self.selected * self._kept_per_row + self._routing + self._shared

    @property
    def peak(self) -> float:
        """Bytes alive at the fullest moment of the layer's backward pass, recomputation included.

        It is the largest of four moments: while the weights of the last product are dequantized,
        while the outputs are weighted, in the backward pass of this weighting, and in that of the
        gate, when the last product is over.
        """
        width, hidden = self.number * self.mixture.width, self.number * self.hidden
        weighted = self._weighted_bytes * self.hidden
        dequantizing = CONSTANT_BYTES * self.mixture.experts * self.mixture.width * self.hidden
        rows = [
            (4 * width + hidden + weighted, dequantizing if self.quantized else 0),
            (3 * width + 2 * hidden + 2 * weighted, 0),
            (3 * width + hidden + 3 * weighted, 0),
            (6 * width, -self._down if self.quantized else 0),
        ]
        inputs = self._inputs_per_row if self.trained else 0
        fullest = max(self.selected * (per_row + inputs) + more for per_row, more in rows)
        # Gradients of the gate of the shared experts and of their output.
        shared = self._shared + 2 * self.tokens * hidden * (self.mixture.shared > 0)
        return self.dequantized + fullest + self._routing + shared

    @property
    def passing(self) -> float:
        """Bytes alive in a pass that keeps nothing for a backward pass."""
        rows = self.number * (4 * self.mixture.width + 2 * self.hidden)
        return self.dequantized + self.selected * rows

    @property
    def _kept_per_row(self) -> float:
        kept = self.number * (3 * self.mixture.width + self.hidden)
        return kept + (self._inputs_per_row if self.trained else 0)

    @property
    def _inputs_per_row(self) -> int:
        return self.number * (self.hidden + self.mixture.width)

    @property
    def _weighted_bytes(self) -> int:
        """Bytes per number of an output times its weight."""
        return 4 if self.mixture.fp32_weights else self.number

    @property
    def _routing(self) -> float:
        return self.selected * ROUTING_BYTES + self.tokens * 4 * self.mixture.experts

    @property
    def _shared(self) -> float:
        """Bytes that shared experts keep: gate, up, the activated gate, and their output."""
        width = self.mixture.shared
        return self.tokens * self.number * (3 * width + self.hidden) if width else 0

    @property
    def _matrix(self) -> float:
        """Bytes of the gates of all experts in compute precision; up and down have the same."""
        return self.number * self.mixture.experts * self.mixture.width * self.hidden

    @property
    def _down(self) -> float:
        return self._matrix
