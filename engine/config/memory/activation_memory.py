"""Activation and logits memory of a micro-batch, counted tensor by tensor at its peak.

The counts are for a decoder layer of transformers with PEFT's LoRA on its linear layers, fused
attention and mixed precision. Source: such a layer and its backward pass were run with every
storage counted; the numbers below are the tensors that were alive at the peaks.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..contrastive_candidates import uses_gradcache
from ..fast_mode import why_not_fast
from ..schema import RunConfig
from .architecture import Architecture
from .limits import (
    KEPT_GRAPH_BYTES,
    LOGITS_AT_ONCE,
    SLICE_ELEMENTS,
    SLICE_LOGITS,
    graph_elements_per_token,
)

FUSED_TOKENS, FUSED_VOCABULARY = 4096, 32_768
"""Largest tile of logits, tokens and vocabulary, in the fused head that next-token training uses
outside fast mode."""
CHUNK_BYTES = 16
"""Bytes per logit of the `LOGITS_AT_ONCE` in all other training: the logit in compute precision and
in fp32, its logarithm and two gradients."""
SLICE_BYTES = 12
"""Bytes per logit of the `SLICE_LOGITS` of a sliced head, where one gradient is made in place."""
NORM_MOMENT = 22
"""Bytes per hidden element during the backward pass of the last norm, fp32 copies included."""
_QK_NORMS = ("qwen3", "gemma3", "olmo2")


def in_fast_mode(config: RunConfig) -> bool:
    """Whether the run uses CUDA graphs on a CUDA device."""
    return why_not_fast(config, "cuda") is None


@dataclass(frozen=True)
class Moment:
    """Bytes alive at one moment, without weights, their gradients and the optimizer state."""

    activations: float
    logits: float
    dequantized: float

    @property
    def total(self) -> float:
        """Sum of the three terms."""
        return self.activations + self.logits + self.dequantized


@dataclass(frozen=True)
class MicroBatchShape:
    """Sizes of one micro-batch whose sequences all have the full length."""

    config: RunConfig
    arch: Architecture
    number: int
    """Bytes per number in compute precision."""
    adapter: int
    """Bytes per adapter weight."""
    adapter_elements: int
    """Adapter weights of one layer."""
    sequences: int
    fast: bool = False
    """Whether it runs in CUDA graphs, with fused layers."""

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch, padding included."""
        return self.sequences * self.config.data.max_length

    def fullest(self) -> Moment:
        """Return the moment at which the most memory is alive."""
        return max(self._moments(), key=lambda moment: moment.total)

    def _moments(self) -> list[Moment]:
        """Return the moments at which memory may peak, within layers and around the loss."""
        tokens, arch, number = self.tokens, self.arch, self.number
        below, layer = self._below(), self._layer_bytes(whole=self._whole > 0)
        gradients = tokens * 2 * number * arch.hidden
        largest = max(i * o for i, o in arch.linears.values())
        dequantized = number * largest if self.config.model.quantize != "none" else 0
        inner = tokens * number * arch.intermediate
        at_loss, logits, head = self._loss()
        return [
            # Gradient of the MLP's last linear: its weight is dequantized, its input is freed.
            Moment(below + layer + gradients + inner, 0, dequantized),
            # Gradient of gate × up: the product is freed, three gradients of its size are alive.
            Moment(below + layer + gradients + (2 if arch.gated else 1) * inner, 0, 0),
            Moment(self._above() + tokens * NORM_MOMENT * arch.hidden, 0, 0),
            Moment(self._above() + at_loss, logits, head),
            # Another micro-batch is embedded without a graph while all kept graphs are alive.
            Moment(self._kept() * self._kept_graph() + self._passing(), 0, dequantized),
        ]

    def _passing(self) -> float:
        """Return the bytes alive within a layer that keeps nothing for a backward pass."""
        arch = self.arch
        return (
            self.tokens
            * self.number
            * ((4 if arch.gated else 2) * arch.intermediate + 6 * arch.hidden)
        )

    @property
    def _slim(self) -> bool:
        """Whether norms keep their input in its own precision instead of fp32."""
        return self.fast or self.config.train.memory == "lean"

    @property
    def _whole(self) -> int:
        """Number of layers that keep all activations; they are the last ones."""
        train, layers = self.config.train, self.arch.layers
        return min(train.whole_layers, layers) if train.recomputes else layers

    def _checkpoints(self) -> float:
        """Return the bytes of the inputs of the layers that are recomputed.

        On the host they take no device memory, except for those in transfer.
        """
        layers = self.arch.layers - self._whole
        if self.config.train.activations == "host":
            layers = min(layers, 3)
        return self.tokens * self.number * self.arch.hidden * layers

    def _graph(self) -> float:
        """Return the bytes that a micro-batch keeps for its backward pass."""
        return self._checkpoints() + self._whole * self._layer_bytes(whole=True)

    def _kept(self) -> int:
        """Return how many micro-batches keep their graph during the first pass of GradCache."""
        if not uses_gradcache(self.config) or self.fast:
            return 0
        arch, train = self.arch, self.config.train
        per_token = graph_elements_per_token(
            arch.hidden, arch.intermediate, arch.layers, self._whole
        )
        own = self.tokens * self.number * per_token
        return min(max(1, KEPT_GRAPH_BYTES // own), train.accumulate - (train.devices > 1))

    def _kept_graph(self) -> float:
        """Return the bytes of one kept graph, with the input and output of the last norm."""
        norm = self.number if self._slim else 4
        return self._graph() + self.tokens * self.arch.hidden * (norm + self.number)

    def _others(self) -> float:
        """Return the bytes of the kept graphs of other micro-batches."""
        return max(0, self._kept() - 1) * self._kept_graph()

    def _below(self) -> float:
        """Return the bytes that all other layers keep during the last layer's backward pass."""
        own = max(0, self._whole - 1) * self._layer_bytes(whole=True)
        return self._checkpoints() + own + self._others()

    def _above(self) -> float:
        """Return the bytes kept by all layers before their backward pass begins."""
        return self._graph() + self._others()

    def _layer_bytes(self, *, whole: bool) -> float:
        """Return the bytes that one layer keeps for its backward pass.

        `whole` includes its input; otherwise the input is counted among the checkpoints.
        """
        per_token = self._kept_per_token(whole=whole)
        eager = 0
        if self.config.model.attention == "eager":
            eager = self.sequences * self.arch.heads * self.config.data.max_length**2 * 12
        # Mixed precision keeps a copy of the adapter in compute precision.
        casts = self.adapter_elements * self.number if self.adapter > self.number else 0
        return self.tokens * per_token + eager + casts

    def _kept_per_token(self, *, whole: bool) -> float:
        arch, number, r = self.arch, self.number, self.config.adapter.r
        hidden, query, inner = arch.hidden, arch.query_width, arch.intermediate
        # The inputs of both norms and their inverse standard deviations, in fp32.
        norms = 2 * (4 * hidden + 4)
        if self._slim:
            # Their inputs in their own precision; the first norm's input is the layer's.
            norms = number * hidden * (2 if whole else 1) + 8
        if arch.name.startswith(_QK_NORMS):
            norms += (4 + number) * (query + arch.kv_width)
        # Queries, keys, values and the output of attention, with one fp32 number per head.
        attention = number * (2 * query + 2 * arch.kv_width) + 4 * arch.heads
        # With a gate: its input and output, the other branch, and their product; fast mode
        # recomputes its output.
        mlp = number * ((3 if self.fast else 4) if arch.gated else 2) * inner
        inputs = number * 2 * hidden
        low_rank = number * r * len(arch.linears)
        return norms + attention + mlp + inputs + low_rank + self._dropped_per_token()

    def _dropped_per_token(self) -> float:
        """Return the bytes that dropout adds: each adapter has a copy and a mask of its input."""
        if self.config.adapter.dropout == 0:
            return 0
        hidden, query, inner = self.arch.hidden, self.arch.query_width, self.arch.intermediate
        of_hidden = 5 if self.arch.gated else 4
        copies = (self.number + 1) * (of_hidden * hidden + query + inner)
        return copies - self.number * (2 * hidden + inner)

    def _loss(self) -> tuple[float, float, float]:
        """Return the bytes of states with gradients, of logits, and of the dequantized head."""
        config, arch, tokens = self.config, self.arch, self.tokens
        states = tokens * arch.hidden * (4 + 3 * self.number)
        if config.train.memory == "lean":
            part = min(SLICE_ELEMENTS, arch.vocabulary * arch.hidden)
            width = part // arch.hidden
            return states, min(tokens * width, SLICE_LOGITS) * SLICE_BYTES, part * self.number
        own = config.task != "sft" or config.train.label_smoothing > 0
        head = self._rows_in_head()
        if own or self.fast:
            return states, min(tokens * arch.vocabulary, LOGITS_AT_ONCE) * CHUNK_BYTES, head
        tile = min(tokens, FUSED_TOKENS) * min(arch.vocabulary, FUSED_VOCABULARY) * self.number
        return states, tile, head

    def _rows_in_head(self) -> float:
        """Return the bytes of a head with trained rows put into it, and of its whole gradient."""
        if not self.config.data.special_tokens:
            return 0
        return 2 * self.arch.vocabulary * self.arch.hidden * self.number
