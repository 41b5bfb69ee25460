"""Activation and logits memory of a micro-batch, counted tensor by tensor at its peak.

The counts are for a decoder layer of transformers with PEFT's LoRA on its linear layers, fused
attention and mixed precision. Source: such a layer and its backward pass were run with every
storage counted; the numbers below are the tensors that were alive at the peaks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..fast_mode import why_not_fast
from ..schema import RunConfig
from .architecture import Architecture
from .contrastive_candidates import uses_gradcache
from .expert_memory import ExpertMemory
from .layer_traits import SCORE_BYTES
from .limits import (
    KEPT_GRAPH_BYTES,
    SLICE_ELEMENTS,
    SLICE_LOGITS,
    chunk_tokens_for,
    fused_chunk_tokens_for,
    graph_elements_per_token,
    whole_tiles,
)
from .sharding import NOTHING_GATHERED, Gathered, splits_ends

FUSED_TOKENS, FUSED_VOCABULARY = 4096, 32_768
"""Largest tile of logits, tokens and vocabulary, in the fused head that next-token training uses
outside fast mode."""
CHUNK_BYTES = 12
"""Bytes per logit of a chunk in all other training: the log-probability and two gradients in
fp32."""
CAPPED_BYTES = 2
"""Bytes per logit in addition if logits are softly capped: the tanh."""
FAST_CHUNK_BYTES = 16
"""Bytes per logit of a chunk in fast mode, where the graph's memory also keeps the logit in compute
precision and in fp32."""
SLICE_BYTES = 12
"""Bytes per logit of the `SLICE_LOGITS` of a sliced head, where one gradient is made in place."""
NORM_MOMENT = 22
"""Bytes per hidden element during the backward pass of the last norm, fp32 copies included."""
NORM_BACKWARD = {False: 20, True: 14}
"""Bytes per hidden element of the backward pass of a norm within a layer, by whether it keeps its
input in its own precision: fp32 copies and products."""

SCORE_GRADIENTS = 6
"""Bytes per attention score that the backward pass of eager attention has beside what is kept."""


def in_fast_mode(config: RunConfig) -> bool:
    """Whether the run would use CUDA graphs or static shapes on a CUDA device."""
    return why_not_fast(config, "cuda") is None


@dataclass(frozen=True)
class Moment:
    """Bytes alive at one moment, without weights, their gradients and the optimizer state."""

    activations: float
    logits: float
    dequantized: float
    gathered: float = 0
    """What FSDP has gathered."""

    @property
    def total(self) -> float:
        """Sum of the terms."""
        return self.activations + self.logits + self.dequantized + self.gathered


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
    gathered: Gathered = NOTHING_GATHERED
    """What FSDP gathers."""

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch, padding included."""
        return self.sequences * self.config.data.max_length

    def fullest(self) -> Moment:
        """Return the moment at which the most memory is alive."""
        at_loss, logits, head = self._loss()
        above, split = self._above(), self.gathered
        moments = [replace(one, gathered=split.in_layers) for one in self._in_layers()]
        moments.append(Moment(above + at_loss, logits, head, split.at_loss))
        return max(moments, key=lambda moment: moment.total)

    def _in_layers(self) -> list[Moment]:
        """Return the moments at which memory may peak within layers."""
        tokens, arch, number = self.tokens, self.arch, self.number
        below, layer = self._below(), self._layer_bytes(whole=self._whole > 0)
        gradients = tokens * (3 if arch.traits.scaled_residuals else 2) * number * arch.hidden
        largest = max(i * o for i, o in arch.linears.values())
        dequantized = number * largest if self.config.model.quantize != "none" else 0
        return [
            *self._in_mlp(below + layer + gradients, dequantized),
            Moment(below + layer + self._norm_at_end(), 0, 0),
            Moment(below + gradients + self._before_joined_gate(), 0, 0),
            # Gradient of the softmax of eager attention; that of the MLP is over.
            Moment(
                below + layer - self._mlp() + self._score_count * self._score_gradient_bytes, 0, 0
            ),
            Moment(self._above() + tokens * NORM_MOMENT * arch.hidden, 0, 0),
            # Another micro-batch is embedded without a graph while all kept graphs are alive.
            Moment(self._kept() * self._kept_graph() + self._passing(), 0, dequantized),
        ]

    def _in_mlp(self, others: float, dequantized: float) -> list[Moment]:
        """Return the moments within the backward pass of the MLP or the experts of a layer.

        Args:
            others: Bytes that all layers keep, with the gradients of the residual stream.
            dequantized: Bytes of the largest linear layer in compute precision.
        """
        if experts := self._experts:
            return [Moment(others - experts.kept + experts.peak, 0, 0)]
        inner = self.tokens * self.number * self.arch.intermediate
        return [
            # Gradient of the MLP's last linear: its weight is dequantized, its input is freed.
            Moment(others + inner, 0, dequantized),
            # Gradient of gate × up: the product is freed, three gradients of its size are alive.
            Moment(others + (2 if self.arch.gated else 1) * inner, 0, 0),
        ]

    @property
    def _experts(self) -> ExpertMemory | None:
        """What the experts of a layer hold; None for a dense model."""
        arch, config = self.arch, self.config
        if arch.mixture is None:
            return None
        quantized = config.model.quantize in ("nf4", "fp4")
        trained = config.adapter.kind == "none"
        return ExpertMemory(arch.mixture, arch.hidden, self.tokens, self.number, quantized, trained)

    def _passing(self) -> float:
        """Return the bytes alive within a layer that keeps nothing for a backward pass."""
        arch, per_element = self.arch, self.tokens * self.number
        if experts := self._experts:
            return per_element * 6 * arch.hidden + experts.passing
        return per_element * ((4 if arch.gated else 2) * arch.intermediate + 6 * arch.hidden)

    def _norm_at_end(self) -> float:
        """Return the bytes of the backward pass of a norm at the end of a layer; 0 without one."""
        if not self.arch.traits.norms_last:
            return 0
        per_element = self.number if self.fast and self._slim else NORM_BACKWARD[self._slim]
        return self.tokens * self.arch.hidden * (self.number + per_element)

    def _before_joined_gate(self) -> float:
        """Return the bytes of a layer while one linear layer makes gate and up.

        The outputs of base and adapter and their sum are alive then. 0 if gate and up have a linear
        layer each, and with fused layers.
        """
        arch, number = self.arch, self.number
        if self.fast or not arch.traits.joined_gate:
            return 0
        sums = self.tokens * number * (3 * 2 * arch.intermediate + arch.hidden)
        return self._layer_bytes(whole=self._whole > 0) - self._mlp() + sums

    @property
    def _slim(self) -> bool:
        """Whether norms keep their input in its own precision instead of fp32."""
        traits, lean = self.arch.traits, self.config.train.lean
        return (self.fast and traits.common_norms) or (lean and traits.common_norms_in_lean)

    @property
    def _whole(self) -> int:
        """Number of layers that keep all activations; they are the last ones."""
        train, layers = self.config.train, self.arch.layers
        return min(train.whole_layers, layers) if train.recomputes else layers

    def _checkpoints(self) -> float:
        """Return the device bytes of the kept inputs of the layers that are recomputed.

        If they are kept in host memory, only the up to three that are in transfer count.
        """
        layers = self.arch.layers - self._whole
        if self.config.train.activations == "host":
            layers = min(layers, 3)
        return self.tokens * self.number * self.arch.hidden * layers

    def _graph(self) -> float:
        """Return the bytes that a micro-batch keeps for its backward pass."""
        return self._checkpoints() + self._whole * self._layer_bytes(whole=True)

    def _kept(self) -> int:
        """Return how many micro-batches keep their graph during the first pass of GradCache.

        0 without GradCache, and in fast mode.
        """
        if not uses_gradcache(self.config) or self.fast:
            return 0
        arch, train = self.arch, self.config.train
        per_token = graph_elements_per_token(
            arch.hidden, arch.intermediate, arch.layers, self._whole
        )
        own = self.tokens * self.number * per_token
        return min(max(1, KEPT_GRAPH_BYTES // own), train.accumulation - (train.ranks > 1))

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
        eager = self._score_count * self._score_bytes
        # Mixed precision keeps a copy of the adapter in compute precision.
        casts = self.adapter_elements * self.number if self.adapter > self.number else 0
        return self.tokens * per_token + self._mlp() + eager + casts

    @property
    def _score_count(self) -> int:
        """The number of attention scores that one layer computes, over all sequences and heads."""
        return self.sequences * self.arch.heads * self.config.data.max_length**2

    @property
    def _score_bytes(self) -> int:
        """Bytes per attention score that a layer keeps; 0 with fused attention."""
        asked, own = self.config.model.attention, self.arch.traits.eager_score_bytes
        if asked == "auto":
            return own
        return (own or SCORE_BYTES) if asked == "eager" else 0

    @property
    def _score_gradient_bytes(self) -> int:
        """Bytes per attention score during the backward pass of eager attention."""
        return SCORE_GRADIENTS if self._score_bytes else 0

    def _kept_per_token(self, *, whole: bool) -> float:
        arch, number, r = self.arch, self.number, self.config.adapter.r
        # Only adapters keep the input of attention and of the MLP; experts have none.
        inputs = number * (1 if arch.mixture else 2) * arch.hidden
        low_rank = number * r * len(arch.linears)
        kept = self._norms_per_token(whole=whole) + self._attention_per_token()
        return kept + inputs + low_rank + self._dropped_per_token()

    def _mlp(self) -> float:
        """Return the bytes that the MLP or the experts of a layer keep.

        With a gate these are its input and output, the other branch, and their product; fast mode
        recomputes the output of SiLU.
        """
        if experts := self._experts:
            return experts.kept
        gated = 3 if self.fast and self.arch.traits.silu else 4
        per_token = self.number * (gated if self.arch.gated else 2) * self.arch.intermediate
        return self.tokens * per_token

    def _norms_per_token(self, *, whole: bool) -> float:
        """Return the bytes per token of the inputs of norms and of their inverse deviations."""
        arch, number, traits = self.arch, self.number, self.arch.traits
        count = traits.norms
        # In fp32, or in their own precision; then the first norm's input is the layer's.
        norms = count * (4 * arch.hidden + 4)
        if self._slim:
            norms = number * arch.hidden * (count if whole else count - 1) + 4 * count
        if traits.query_key_norms:
            norms += (number if self._slim else 4) * (arch.query_width + arch.kv_width)
        return norms

    def _attention_per_token(self) -> float:
        """Return the bytes per token of queries, keys, values and the output of attention."""
        arch, number = self.arch, self.number
        if self._score_bytes:  # keys and values are repeated for every query head
            return number * 4 * arch.query_width
        # One fp32 number per head.
        kept = number * (2 * arch.query_width + 2 * arch.kv_width) + 4 * arch.heads
        if arch.traits.joined_attention:  # values are a part of the output of the joined layer
            kept += number * (arch.query_width + arch.kv_width)
        return kept

    def _dropped_per_token(self) -> float:
        """Return the bytes per token that dropout adds; 0 without it.

        Each adapter has a copy and a mask of its input.
        """
        if self.config.adapter.dropout == 0:
            return 0
        hidden, query = self.arch.hidden, self.arch.query_width
        inner, inputs = (0, 1) if self.arch.mixture else (self.arch.intermediate, 2)
        of_hidden = sum(name not in ("o_proj", "down_proj") for name in self.arch.linears)
        copies = (self.number + 1) * (of_hidden * hidden + query + inner)
        # Nothing but the adapter keeps the output of eager attention.
        unkept = query if self._score_bytes else 0
        return copies - self.number * (inputs * hidden + inner + unkept)

    def _loss(self) -> tuple[float, float, float]:
        """Return the bytes of hidden states with gradients, of logits, and of copies of the head.

        Such a copy is the dequantized slice of the lean head, or a head with trained rows.
        """
        config, arch, tokens = self.config, self.arch, self.tokens
        states = tokens * arch.hidden * (4 + 3 * self.number)
        if config.task == "reward":  # one number per sequence instead of logits
            return states, 0, 0
        if config.train.lean:
            part = min(SLICE_ELEMENTS, arch.vocabulary * arch.hidden)
            width = part // arch.hidden
            return states, min(tokens * width, SLICE_LOGITS) * SLICE_BYTES, part * self.number
        head = self._rows_in_head()
        chunk = chunk_tokens_for(arch.vocabulary)
        if self.fast and self._fuses_rows:
            states = states + self._similarities()
            chunk = min(tokens, fused_chunk_tokens_for(arch.vocabulary))
            return states, chunk * arch.vocabulary * self.number, head
        if self.fast:
            chunk = min(tokens, whole_tiles(chunk))
            return states, chunk * arch.vocabulary * FAST_CHUNK_BYTES, head
        if self._own_loss:
            per_logit = CHUNK_BYTES + CAPPED_BYTES * arch.capped_logits
            return states, min(tokens, chunk) * arch.vocabulary * per_logit, head
        tile = min(tokens, FUSED_TOKENS) * min(arch.vocabulary, FUSED_VOCABULARY) * self.number
        return states, tile, head

    def _similarities(self) -> int:
        """Return the bytes of the contrast between the tokens of a row; 0 in other losses.

        Beside the memory of the graphs, the hidden states are normalized and their similarities
        computed in fp32, each with a gradient.
        """
        if self.config.contrastive.kind != "simctg":
            return 0
        return self.tokens * 4 * (2 * self.arch.hidden + 3 * self.config.data.max_length)

    @property
    def _fuses_rows(self) -> bool:
        """Whether the gradient of a chunk of logits overwrites it: behind a frozen linear head."""
        shaped = self.arch.scaled_logits or self.arch.capped_logits
        return not (shaped or self._targets_head or self.config.added_tokens)

    @property
    def _targets_head(self) -> bool:
        """Whether the output head has an adapter."""
        targets = self.config.adapter.targets
        named = targets if isinstance(targets, list) else []
        return any(name.rpartition(".")[2] == "lm_head" for name in named)

    @property
    def _own_loss(self) -> bool:
        """Whether the loss without fast mode is computed in chunks of logits, not by TRL's head."""
        arch, config = self.arch, self.config
        return (
            config.task != "sft"
            or config.train.label_smoothing > 0
            or config.train.focal > 0
            or config.train.optimizer == "sophia"
            or arch.scaled_logits
            or arch.capped_logits
            or arch.sees_images
            or (arch.mixture is not None and config.train.router_aux_loss != 0)
            or self._targets_head
            or (config.train.shards and splits_ends(config))
        )

    def _rows_in_head(self) -> float:
        """Return the bytes of a head with the rows of new tokens and of its gradient; 0 without."""
        if not self.config.added_tokens:
            return 0
        return 2 * self.arch.vocabulary * self.arch.hidden * self.number
