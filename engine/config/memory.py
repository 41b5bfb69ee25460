"""How much memory a run will need, before it starts.

Terms are counted at the fullest moment of a step with every sequence `data.max_length` tokens
long. Source of each term: the tensors that PyTorch keeps alive at that moment, counted from the
modelling code; checked against published measurements within ±10 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from .architecture import Architecture, read_architecture
from .schema import RunConfig

__all__ = [
    "Architecture",
    "MemoryEstimate",
    "advice",
    "estimate_memory",
    "read_architecture",
]

DeviceKind = Literal["cuda", "cpu"]

GIB = 2**30
CONTEXT_BYTES = {"cuda": 0.6 * GIB, "cpu": 1.0 * GIB}
"""CUDA context and library workspaces; on the CPU the interpreter with the training stack."""
CONTEXT_SPREAD_BYTES = 0.3 * GIB
FRAGMENTATION = 0.05
UNCERTAINTY = 0.10
NF4_BYTES = 0.5
"""Per parameter, plus one constant per block of 64: fp32, or with double quantization a byte and
one fp32 per 256 of those."""
NF4_TABLES_BYTES = 1096
"""Code tables and offset that each double-quantized matrix carries."""
SMALL_TENSOR = 4096
"""Elements below which an 8-bit optimizer keeps its state in fp32."""
FUSED_TOKENS, FUSED_VOCABULARY = 4096, 32_768
"""Largest tile of logits in the fused head that next-token training uses."""
CHUNK_LOGITS = 2**24
"""Logits held at once by the head that joint training uses."""
TERMS = (
    "base",
    "non_quantized",
    "adapters",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "workspace",
    "context",
)
WORTH_SAYING = 0.01
"""Share of the need that a change has to save to be advised."""
SHORTEST_LENGTH = 128
_STATE_BYTES_FP32 = {"adamw": 8, "lamb": 8, "lion": 4, "adafactor": 0, "sgd": 0}
_STATES = {"lion_8bit": 1, "paged_lion_8bit": 1}
"""Numbers an 8-bit optimizer keeps per weight, where it is not two."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes per term; they add up to `likely`."""

    base: int
    """Weights of the linears, quantized or not, with their quantization constants."""
    non_quantized: int
    """Embeddings, head and norms."""
    adapters: int
    """Their weights, and the moving average of these if one is kept."""
    gradients: int
    """Of the adapters, and DDP's copy of them."""
    optimizer: int
    activations: int
    """What the forward pass keeps for the backward pass at the fullest moment."""
    logits: int
    """Of the loss; 0 where the fullest moment is inside a layer instead."""
    workspace: int
    """Largest matrix while dequantized, and what fragmentation wastes."""
    context: int
    architecture: Architecture
    device: DeviceKind

    @property
    def likely(self) -> int:
        """The sum of all terms."""
        return sum(self.terms().values())

    @property
    def low(self) -> int:
        """A run that needs less would be a surprise."""
        return int((self.likely - self.context) * (1 - UNCERTAINTY) + self._context(-1))

    @property
    def high(self) -> int:
        """A run that needs more would be a surprise: what has to be free to be safe."""
        return int((self.likely - self.context) * (1 + UNCERTAINTY) + self._context(+1))

    def terms(self) -> dict[str, int]:
        """Return the terms by name, in the order of a step."""
        return {name: getattr(self, name) for name in TERMS}

    def _context(self, sign: int) -> float:
        return max(self.context + sign * CONTEXT_SPREAD_BYTES, 0)


def estimate_memory(
    config: RunConfig, arch: Architecture, device: DeviceKind = "cuda"
) -> MemoryEstimate:
    """Predict what one rank of a run needs on its device."""
    formats = _Formats.of(config, device)
    adapters = _adapter_sizes(config, arch)
    adapter_bytes = sum(adapters) * formats.adapter
    average_bytes = 4 * sum(adapters) if config.train.ema else 0
    copies = 2 if config.train.devices > 1 else 1
    activations, logits, dequantized = _fullest_moment(config, arch, formats)
    weights = _base_bytes(config, arch, formats), arch.other_params * formats.compute
    optimizer = _optimizer_bytes(config, adapters, formats)
    held = sum(weights) + adapter_bytes * (1 + copies) + average_bytes + optimizer
    wasted = FRAGMENTATION * (held + activations + logits + dequantized)
    return MemoryEstimate(
        base=int(weights[0]),
        non_quantized=int(weights[1]),
        adapters=adapter_bytes + average_bytes,
        gradients=adapter_bytes * copies,
        optimizer=int(optimizer),
        activations=int(activations),
        logits=int(logits),
        workspace=int(dequantized + wasted),
        context=int(CONTEXT_BYTES[device]),
        architecture=arch,
        device=device,
    )


@dataclass(frozen=True)
class _Formats:
    """Bytes per number."""

    compute: int
    adapter: int

    @classmethod
    def of(cls, config: RunConfig, device: DeviceKind) -> _Formats:
        auto = "bf16" if device == "cuda" else "fp32"
        precision = auto if config.model.precision == "auto" else config.model.precision
        compact = device == "cuda" and config.model.quantize == "nf4" and precision == "bf16"
        chosen = config.train.adapter_precision
        adapter = ("bf16" if compact else "fp32") if chosen == "auto" else chosen
        return cls(4 if precision == "fp32" else 2, 4 if adapter == "fp32" else 2)


def _base_bytes(config: RunConfig, arch: Architecture, formats: _Formats) -> float:
    if config.model.quantize == "none":
        return arch.linear_params * formats.compute
    if not config.model.double_quant:
        return arch.linear_params * (NF4_BYTES + 4 / 64)
    tables = arch.layers * len(arch.linears) * NF4_TABLES_BYTES
    return arch.linear_params * (NF4_BYTES + 1 / 64 + 4 / (64 * 256)) + tables


def _adapter_sizes(config: RunConfig, arch: Architecture) -> list[int]:
    """Elements of each adapter tensor. A name not known here counts as all linears would."""
    names, known = config.adapter.targets, arch.linears
    if isinstance(names, str) or not set(names) <= set(known):
        shapes = list(known.values())
    else:
        shapes = [known[name] for name in names]
    r = config.adapter.r
    one_layer = [size for i, o in shapes for size in (r * i, r * o)]
    one_layer += [o for _, o in shapes] if config.adapter.dora else []
    # Whole modules are counted as embeddings, the largest there are; tied ones are one.
    whole = len(config.adapter.modules_to_save)
    copies = min(whole, 1) if arch.tied else whole
    return one_layer * arch.layers + [arch.vocabulary * arch.hidden] * copies


def _optimizer_bytes(config: RunConfig, sizes: list[int], formats: _Formats) -> float:
    kind = config.train.optimizer
    if kind in _STATE_BYTES_FP32:
        per_element = _STATE_BYTES_FP32[kind]
        follows_the_weights = kind in ("adamw", "lamb") and formats.adapter == 2
        return sum(sizes) * (per_element / 2 if follows_the_weights else per_element)
    states = _STATES.get(kind, 2)
    return sum(size * states * (4 if size < SMALL_TENSOR else 1) for size in sizes)


def sequences_per_micro_batch(config: RunConfig) -> int:
    """Return how many sequences one forward holds: a pair has two and its hard negatives."""
    if config.task == "dpo":
        return config.train.batch * 2
    if config.task != "contrastive":
        return config.train.batch
    return config.train.batch * (2 + config.contrastive.hard_negatives)


def _fullest_moment(
    config: RunConfig, arch: Architecture, formats: _Formats
) -> tuple[float, float, float]:
    """Return activations, logits and dequantized bytes where their sum is largest.

    With checkpointing either one layer's activations or the logits are alive at a time, on top of
    one checkpoint per layer. Without it all layers' are, when the logits come.
    """
    sequences = sequences_per_micro_batch(config)
    tokens = sequences * config.data.max_length
    layer = tokens * _layer_bytes_per_token(config, arch, formats)
    if config.model.attention == "eager":
        layer += sequences * arch.heads * config.data.max_length**2 * 12
    largest = max(i * o for i, o in arch.linears.values())
    dequantized = largest * formats.compute if config.model.quantize == "nf4" else 0
    logits = _loss_bytes(config, arch, tokens, sequences)
    if not config.train.activation_checkpointing:
        in_layer = dequantized > logits
        return layer * arch.layers, 0 if in_layer else logits, dequantized if in_layer else 0
    checkpoints = tokens * arch.hidden * formats.compute * arch.layers
    if layer + dequantized > logits:
        return checkpoints + layer, 0, dequantized
    return checkpoints, logits, 0


def _layer_bytes_per_token(config: RunConfig, arch: Architecture, formats: _Formats) -> float:
    """What one decoder layer keeps for its backward pass, per token, with fused attention."""
    number, hidden, query, inner = formats.compute, arch.hidden, arch.query_width, arch.intermediate
    norms = 8 * hidden
    # LoRA keeps its own copy of each input where its format is another than the model's.
    kept_input = number + (formats.adapter if formats.adapter != number else 0)
    inputs = kept_input * (2 * hidden + query + inner)
    attention = number * (2 * query + 2 * arch.kv_width) + 4 * arch.heads
    mlp = number * (3 if arch.gated else 2) * inner
    residual = number * 2 * hidden
    dropped = 0
    if config.adapter.dropout > 0:
        of_hidden = 5 if arch.gated else 4
        dropped = (formats.adapter + 1) * (of_hidden * hidden + query + inner)
    return norms + inputs + attention + mlp + residual + dropped


def _loss_bytes(config: RunConfig, arch: Architecture, tokens: int, sequences: int) -> float:
    states = tokens * arch.hidden * 4
    if config.task != "sft":
        chunk = min(tokens * arch.vocabulary, CHUNK_LOGITS)
        return states + chunk * 12
    token_pairs = sequences * config.data.max_length**2 * 12
    return (
        states
        + min(tokens, FUSED_TOKENS) * min(arch.vocabulary, FUSED_VOCABULARY) * 2
        + (token_pairs if config.contrastive.kind == "simctg" else 0)
    )


def advice(estimate: MemoryEstimate, free_bytes: int, config: RunConfig) -> list[str]:
    """Say what to change so that a run fits, the change that costs least first.

    Each line builds on the ones before it and names the need after it; the list ends where the
    run fits. Changes that would save next to nothing are left out.

    Args:
        estimate: Of `config`.
        free_bytes: Free on the device now, not the card's size.
        config: The run as configured.

    Returns:
        No line where even the high estimate fits.
    """
    if estimate.high <= free_bytes:
        return []
    lines = []
    need = estimate
    for text, change in _changes():
        changed = change(config)
        after = estimate_memory(changed, need.architecture, need.device)
        if need.likely - after.likely < WORTH_SAYING * need.likely:
            continue
        config, need = changed, after
        fits = need.high <= free_bytes
        lines.append(f"{text(config)} → {_gib(need)}{', fits' * fits}")
        if fits:
            return lines
    tight = need.likely <= free_bytes
    last = "It may still fit: try it" if tight else "Choose a smaller model"
    return [*lines, f"{last}; {_gib(need)} is needed and {free_bytes / GIB:.1f} GiB is free"]


def _gib(need: MemoryEstimate) -> str:
    return f"{need.likely / GIB:.1f} GiB (at most {need.high / GIB:.1f})"


_Text = Callable[[RunConfig], str]
_Change = Callable[[RunConfig], RunConfig]


def _changes() -> Iterator[tuple[_Text, _Change]]:
    """From those that leave the result alone to those that change what is learned."""
    yield (
        lambda c: "Set train.activation_checkpointing: true (about a third slower)",
        lambda c: _with_train(c, activation_checkpointing=True),
    )
    yield lambda c: "Set model.attention: auto", lambda c: _with_model(c, attention="auto")
    yield (
        lambda c: f"Set train.batch: 1 and train.accumulate: {c.train.accumulate} (same gradient)",
        _one_at_a_time,
    )
    yield (
        lambda c: "Set train.optimizer: paged_adamw_8bit",
        lambda c: _with_train(c, optimizer="paged_adamw_8bit"),
    )
    yield lambda c: "Set adapter.dropout: 0", lambda c: _with_adapter(c, dropout=0.0)
    yield (
        lambda c: "Set train.adapter_precision: auto",
        lambda c: _with_train(c, adapter_precision="auto"),
    )
    yield lambda c: "Set model.quantize: nf4", lambda c: _with_model(c, quantize="nf4")
    yield lambda c: "Set model.double_quant: true", lambda c: _with_model(c, double_quant=True)
    for _ in range(4):
        yield lambda c: f"Set data.max_length: {c.data.max_length}", _shorter
    for _ in range(3):
        yield lambda c: f"Set train.batch: {c.train.batch} (fewer negatives)", _fewer_pairs
    yield lambda c: f"Set adapter.r: {c.adapter.r}", _lower_rank


def _with_model(config: RunConfig, **values: object) -> RunConfig:
    return replace(config, model=replace(config.model, **values))


def _with_train(config: RunConfig, **values: object) -> RunConfig:
    return replace(config, train=replace(config.train, **values))


def _with_adapter(config: RunConfig, **values: object) -> RunConfig:
    return replace(config, adapter=replace(config.adapter, **values))


def _one_at_a_time(config: RunConfig) -> RunConfig:
    """Accumulate instead, which is the same unless sequences are each other's negatives."""
    if config.task == "contrastive":
        return config
    accumulate = config.train.accumulate * config.train.batch
    return _with_train(config, batch=1, accumulate=accumulate)


def _shorter(config: RunConfig) -> RunConfig:
    length = max(config.data.max_length // 2, min(config.data.max_length, SHORTEST_LENGTH))
    return replace(config, data=replace(config.data, max_length=length))


def _fewer_pairs(config: RunConfig) -> RunConfig:
    """Halve the pairs per micro-batch, but keep two: one alone may have no negative."""
    if config.task != "contrastive" or config.train.batch < 4:
        return config
    return _with_train(config, batch=config.train.batch // 2)


def _lower_rank(config: RunConfig) -> RunConfig:
    return _with_adapter(config, r=max(config.adapter.r // 2, min(config.adapter.r, 4)))
