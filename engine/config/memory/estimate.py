"""How much memory a run will need, before it starts.

Terms are counted at the fullest moment of a step with every sequence `data.max_length` tokens
long, from what PyTorch holds then; docs/performance.md compares them with measured peaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..schema import RunConfig
from .activation_memory import MicroBatchShape, in_fast_mode
from .architecture import Architecture, read_architecture

__all__ = [
    "Architecture",
    "MemoryEstimate",
    "estimate_memory",
    "read_architecture",
]

DeviceKind = Literal["cuda", "cpu"]

GIB = 2**30
CONTEXT_BYTES = {"cuda": 0.6 * GIB, "cpu": 1.0 * GIB}
"""CUDA context and loaded kernels; on the CPU the interpreter with the training stack."""
CONTEXT_SPREAD_BYTES = 0.3 * GIB
GRAPH_BYTES = 5 * 2**20
"""Per layer, of the driver for its part of the graphs forward and backward."""
FRAGMENTATION = 0.04
"""Of what is allocated: reserved by the allocator and of no use."""
POOL_BYTES = 32 * 2**20
"""Found by measuring: what graphs leave unused of the memory they keep to themselves."""
SLICED_POOL_BYTES = 96 * 2**20
"""The same in lean mode, where slices of the head come and go between everything else."""
UNCERTAINTY = 0.05
WORKSPACE_BYTES = {"cuda": 64 * 2**20, "cpu": 0}
"""Of the matrix library for a stream: one for each of the two threads that compute."""
NF4_BYTES = 0.5
"""Per parameter, plus one constant per block of 64: fp32, or with double quantization a byte and
one fp32 per 256 of those."""
NF4_TABLES_BYTES = 1096
"""Code tables and offset that each double-quantized matrix carries."""
SMALL_TENSOR = 4096
"""Elements below which an 8-bit optimizer keeps its state in fp32."""
PAGED_TENSOR = 100_000
"""Elements from which a paged optimizer leaves the state to the driver."""
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
_STATE_BYTES_FP32 = {"adamw": 8, "lamb": 8, "lion": 4, "adafactor": 0, "sgd": 0}
_STATES = {"lion_8bit": 1, "paged_lion_8bit": 1}
"""Numbers an 8-bit optimizer keeps per weight, where it is not two."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes per term; they add up to `likely`."""

    base: int
    """Weights of the linears, quantized or not, with their quantization constants; in lean mode
    the head too."""
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
    """Matrix while dequantized, and what the matrix library keeps for itself."""
    context: int
    """Outside of what is allocated: CUDA context, and what fragmentation wastes."""
    architecture: Architecture
    device: DeviceKind
    paged: int = 0
    """Part of the optimizer that the driver moves to the host when memory is short."""
    outside: int = 0
    """Part of the context that no allocator of PyTorch's knows of."""
    graphs: bool = False
    """Activations are in CUDA graphs, which keep their memory between steps."""

    @property
    def likely(self) -> int:
        """The sum of all terms."""
        return sum(self.terms().values())

    @property
    def allocated(self) -> int:
        """What PyTorch's allocator is asked for at the peak of a step."""
        return self.likely - self.context - self.paged

    @property
    def reserved(self) -> int:
        """What PyTorch's allocator takes of the device for that, graphs included."""
        return self.likely - self.paged - self.outside

    @property
    def compared(self) -> int:
        """What a run's own figure should be: in fast mode memory is reserved and not allocated."""
        return self.reserved if self.graphs else self.allocated

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
    whole, kept = _weights(config, arch, formats)
    optimizer, paged = _optimizer_bytes(config, adapters, formats)
    graphs = device == "cuda" and in_fast_mode(config)
    # DDP keeps gradients twice; in fast mode nobody does.
    copies = 2 if config.train.devices > 1 and not graphs else 1
    moment = MicroBatchShape(
        config,
        arch,
        formats.compute,
        formats.adapter,
        sum(adapters) // arch.layers,
        sequences_per_micro_batch(config),
        graphs,
    ).fullest()
    workspace = moment.dequantized + WORKSPACE_BYTES[device] * (1 + _works_beside(config, graphs))
    held = whole + kept + adapter_bytes * (1 + copies) + average_bytes + optimizer - paged
    outside = CONTEXT_BYTES[device] + (GRAPH_BYTES * arch.layers if graphs else 0)
    wasted = FRAGMENTATION * (held + moment.activations + moment.logits + workspace)
    if graphs:
        wasted += SLICED_POOL_BYTES if config.train.memory == "lean" else POOL_BYTES
    return MemoryEstimate(
        base=int(whole),
        non_quantized=int(kept),
        adapters=adapter_bytes + average_bytes,
        gradients=adapter_bytes * copies,
        optimizer=int(optimizer),
        activations=int(moment.activations),
        logits=int(moment.logits),
        workspace=int(workspace),
        context=int(outside + wasted),
        architecture=arch,
        device=device,
        paged=int(paged),
        outside=int(outside),
        graphs=graphs,
    )


def _works_beside(config: RunConfig, graphs: bool) -> bool:
    """Matrices are multiplied outside of the graphs as well, which have a stream of their own."""
    return graphs and (config.task == "contrastive" or config.contrastive.kind == "simctg")


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


def _weights(config: RunConfig, arch: Architecture, formats: _Formats) -> tuple[float, float]:
    """Bytes of the linears, and of all that is never quantized and on the device."""
    if config.train.memory == "lean":
        head = arch.vocabulary * arch.hidden
        return _nf4_bytes(config, arch) + head * _nf4_share(double=True), 2 * arch.norm_params
    others = arch.other_params * formats.compute
    if config.model.quantize == "none":
        return arch.linear_params * formats.compute, others
    return _nf4_bytes(config, arch), others


def _nf4_bytes(config: RunConfig, arch: Architecture) -> float:
    double = config.model.double_quant
    tables = arch.layers * len(arch.linears) * NF4_TABLES_BYTES if double else 0
    return arch.linear_params * _nf4_share(double=double) + tables


def _nf4_share(*, double: bool) -> float:
    """Bytes per parameter."""
    return NF4_BYTES + (1 / 64 + 4 / (64 * 256) if double else 4 / 64)


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


def _optimizer_bytes(config: RunConfig, sizes: list[int], formats: _Formats) -> tuple[float, float]:
    """Bytes of the state, and how many of them are paged."""
    kind = config.train.optimizer
    if kind in _STATE_BYTES_FP32:
        per_element = _STATE_BYTES_FP32[kind]
        follows_the_weights = kind in ("adamw", "lamb") and formats.adapter == 2
        return sum(sizes) * (per_element / 2 if follows_the_weights else per_element), 0
    states = _STATES.get(kind, 2)
    state = {size: size * states * (4 if size < SMALL_TENSOR else 1 + 4 / 256) for size in sizes}
    paged = kind.startswith("paged_")
    return (
        sum(state[size] for size in sizes),
        sum(state[size] for size in sizes if paged and size >= PAGED_TENSOR),
    )


def sequences_per_micro_batch(config: RunConfig) -> int:
    """Return how many sequences one forward holds: a pair has two and its hard negatives."""
    if config.task == "dpo":
        return config.train.batch * 2
    if config.task != "contrastive":
        return config.train.batch
    return config.train.batch * (2 + config.contrastive.hard_negatives)
