"""What a step keeps alive between its forward and its backward pass, counted tensor by tensor.

The counts are of a decoder layer as transformers writes it, with PEFT's LoRA on its linears, fused
attention and mixed precision. Source: running such a layer and its backward pass with every
storage counted; the figures below are the tensors found alive at the fullest moments.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..contrastive_candidates import looks_ahead
from ..fast import why_not_fast
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
"""Largest tile of logits in the fused head that next-token training uses outside fast mode."""
CHUNK_BYTES = 16
"""Bytes for each of the `LOGITS_AT_ONCE` of all other training: the logit as computed, in fp32, its
logarithm and two gradients."""
SLICE_BYTES = 12
"""Bytes for each of the `SLICE_LOGITS` of a sliced head, where one gradient is made in place."""
NORM_MOMENT = 22
"""Bytes per hidden element while the last norm is in its backward pass: fp32 copies."""
_QK_NORMS = ("qwen3", "gemma3", "olmo2")


def in_fast_mode(config: RunConfig) -> bool:
    """A run with CUDA graphs is to be expected where there are CUDA devices."""
    return why_not_fast(config, "cuda") is None


@dataclass(frozen=True)
class Moment:
    """What is alive at once, beyond weights, gradients and optimizer state; bytes."""

    activations: float
    logits: float
    dequantized: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.activations + self.logits + self.dequantized


@dataclass(frozen=True)
class MicroBatchShape:
    """One micro-batch of a run, at its full length."""

    config: RunConfig
    arch: Architecture
    number: int
    """Bytes of a number computed with."""
    adapter: int
    """Bytes of a number of the adapter."""
    adapter_elements: int
    """Of one layer."""
    sequences: int
    fast: bool = False
    """In CUDA graphs, with fused layers."""

    @property
    def tokens(self) -> int:
        """Padding included."""
        return self.sequences * self.config.data.max_length

    def fullest(self) -> Moment:
        """The moment at which most is alive."""
        return max(self._moments(), key=lambda moment: moment.total)

    def _moments(self) -> list[Moment]:
        """Around the layer that is in its backward pass: two inside it, the loss, the last norm."""
        tokens, arch, number = self.tokens, self.arch, self.number
        below, layer = self._below(), self._layer_bytes(whole=self._whole > 0)
        gradients = tokens * 2 * number * arch.hidden
        largest = max(i * o for i, o in arch.linears.values())
        dequantized = number * largest if self.config.model.quantize == "nf4" else 0
        inner = tokens * number * arch.intermediate
        at_loss, logits, head = self._loss()
        return [
            # The gradient of the last linear of the MLP: the weight is there, its input is gone.
            Moment(below + layer + gradients + inner, 0, dequantized),
            # The product of gate and up: it is gone, and three gradients of its size are there.
            Moment(below + layer + gradients + (2 if arch.gated else 1) * inner, 0, 0),
            Moment(self._above() + tokens * NORM_MOMENT * arch.hidden, 0, 0),
            Moment(self._above() + at_loss, logits, head),
            # Another micro-batch is embedded without a graph while all that are kept are there.
            Moment(self._kept() * self._kept_graph() + self._passing(), 0, dequantized),
        ]

    def _passing(self) -> float:
        """What is alive within a layer when nothing is kept."""
        arch = self.arch
        return (
            self.tokens
            * self.number
            * ((4 if arch.gated else 2) * arch.intermediate + 6 * arch.hidden)
        )

    @property
    def _slim(self) -> bool:
        """Norms keep their input as it came."""
        return self.fast or self.config.train.memory == "lean"

    @property
    def _whole(self) -> int:
        """Layers that keep everything; they are the last ones."""
        train, layers = self.config.train, self.arch.layers
        return min(train.whole_layers, layers) if train.recomputes else layers

    def _checkpoints(self) -> float:
        """Every other layer's input; two of them while they come and go to the host."""
        layers = self.arch.layers - self._whole
        if self.config.train.activations == "host":
            layers = min(layers, 3)
        return self.tokens * self.number * self.arch.hidden * layers

    def _graph(self) -> float:
        """What a micro-batch keeps before its backward pass."""
        return self._checkpoints() + self._whole * self._layer_bytes(whole=True)

    def _kept(self) -> int:
        """Micro-batches that keep their graph while the rest of the step is embedded ahead."""
        if not looks_ahead(self.config) or self.fast:
            return 0
        arch, train = self.arch, self.config.train
        per_token = graph_elements_per_token(
            arch.hidden, arch.intermediate, arch.layers, self._whole
        )
        own = self.tokens * self.number * per_token
        return min(max(1, KEPT_GRAPH_BYTES // own), train.accumulate - (train.devices > 1))

    def _kept_graph(self) -> float:
        """One of these: the last norm is in it, and what came out of that."""
        norm = self.number if self._slim else 4
        return self._graph() + self.tokens * self.arch.hidden * (norm + self.number)

    def _others(self) -> float:
        """Graphs of other micro-batches that are held as well."""
        return max(0, self._kept() - 1) * self._kept_graph()

    def _below(self) -> float:
        """What the layers keep that are not in their backward pass yet, at the fullest one."""
        own = max(0, self._whole - 1) * self._layer_bytes(whole=True)
        return self._checkpoints() + own + self._others()

    def _above(self) -> float:
        """What all layers keep before the first is in its backward pass."""
        return self._graph() + self._others()

    def _layer_bytes(self, *, whole: bool) -> float:
        """What one layer keeps for its backward pass; its input is kept besides unless `whole`."""
        per_token = self._kept_per_token(whole=whole)
        eager = 0
        if self.config.model.attention == "eager":
            eager = self.sequences * self.arch.heads * self.config.data.max_length**2 * 12
        # Mixed precision keeps a copy of the adapter in the format of the computation.
        casts = self.adapter_elements * self.number if self.adapter > self.number else 0
        return self.tokens * per_token + eager + casts

    def _kept_per_token(self, *, whole: bool) -> float:
        arch, number, r = self.arch, self.number, self.config.adapter.r
        hidden, query, inner = arch.hidden, arch.query_width, arch.intermediate
        # In fp32: both norms' inputs, and their inverse deviations.
        norms = 2 * (4 * hidden + 4)
        if self._slim:
            # Their inputs as they came; the first one's is the layer's own.
            norms = number * hidden * (2 if whole else 1) + 8
        if arch.name.startswith(_QK_NORMS):
            norms += (4 + number) * (query + arch.kv_width)
        # Queries, keys, values and the output of attention, with one fp32 number per head.
        attention = number * (2 * query + 2 * arch.kv_width) + 4 * arch.heads
        # With a gate: its input and output, the other branch, and their product; in fast mode its
        # output is made again.
        mlp = number * ((3 if self.fast else 4) if arch.gated else 2) * inner
        inputs = number * 2 * hidden
        low_rank = number * r * len(arch.linears)
        return norms + attention + mlp + inputs + low_rank + self._dropped_per_token()

    def _dropped_per_token(self) -> float:
        """Dropout: a copy and a mask for each adapter, instead of the one input that they share."""
        if self.config.adapter.dropout == 0:
            return 0
        hidden, query, inner = self.arch.hidden, self.arch.query_width, self.arch.intermediate
        of_hidden = 5 if self.arch.gated else 4
        copies = (self.number + 1) * (of_hidden * hidden + query + inner)
        return copies - self.number * (2 * hidden + inner)

    def _loss(self) -> tuple[float, float, float]:
        """States and their gradients, logits, and the part of the head that is dequantized."""
        config, arch, tokens = self.config, self.arch, self.tokens
        states = tokens * arch.hidden * (4 + 3 * self.number)
        if config.train.memory == "lean":
            part = min(SLICE_ELEMENTS, arch.vocabulary * arch.hidden)
            width = part // arch.hidden
            return states, min(tokens * width, SLICE_LOGITS) * SLICE_BYTES, part * self.number
        own = config.task != "sft" or config.train.label_smoothing > 0
        if own or self.fast:
            return states, min(tokens * arch.vocabulary, LOGITS_AT_ONCE) * CHUNK_BYTES, 0
        tile = min(tokens, FUSED_TOKENS) * min(arch.vocabulary, FUSED_VOCABULARY) * self.number
        return states, tile, 0
