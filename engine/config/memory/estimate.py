"""Estimate of the device memory that a run needs, by terms.

Terms are counted at the peak of a step in which every sequence has `data.max_length` tokens, from
what PyTorch holds then; docs/performance.md compares them with measured peaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from ..schema import RunConfig
from ..sections.optimizers import OPTIMIZERS, TrainedTensor, state_bytes
from .activation_memory import MicroBatchShape, Moment, in_fast_mode
from .architecture import Architecture, read_architecture
from .contrastive_candidates import hard_negatives_used
from .sharding import (
    Gathered,
    casts_at_once,
    gathered_bytes,
    gradient_copies,
    parts,
    split_weights,
)
from .streaming import Streamed, streamed_bytes

__all__ = [
    "Architecture",
    "MemoryEstimate",
    "estimate_memory",
    "read_architecture",
]

DeviceKind = Literal["cuda", "cpu"]

GIB = 2**30
CONTEXT_BYTES = {"cuda": 0.6 * GIB, "cpu": 1.0 * GIB}
"""Bytes of the CUDA context and loaded kernels; on a CPU of the interpreter and the libraries."""
CONTEXT_SPREAD_BYTES = 0.3 * GIB
"""Bytes by which the context may differ, for `low` and `high`."""
GRAPH_BYTES = 5 * 2**20
"""Bytes of the driver per layer for its part of the forward and backward graphs."""
FRAGMENTATION = 0.04
"""Share of the allocated memory that the allocator reserves in addition and cannot use; memory in
the pool of CUDA graphs does not count."""
POOL_BYTES = 24 * 2**20
"""Bytes that graphs leave unused in their private memory pool, as measured."""
SLICED_POOL_BYTES = 40 * 2**20
"""The same in lean mode, where slices of the head are allocated between other tensors."""
UNCERTAINTY = 0.05
"""Relative error of all terms but the context, for `low` and `high`."""
WORKSPACE_BYTES = {"cuda": 64 * 2**20, "cpu": 0}
"""Bytes of the matrix library per stream: one, and another for the stream of the graphs."""
NF4_BYTES = 0.5
"""Bytes per parameter, without the constant per block of 64: 4 bytes, or with double quantization 1
byte and 4 bytes per 256 blocks."""
NF4_TABLES_BYTES = 1096
"""Bytes of code tables and offset of each double-quantized matrix."""
STACKS = 2
"""Tensors of a layer that hold all its experts: gates with ups, and downs."""
HEAD_GRADIENTS = 3
"""Gradients of a trained output head that are alive at once beside the accumulated one."""
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


@dataclass(frozen=True)
class MemoryEstimate:
    """Estimated bytes per term; the terms add up to `likely`."""

    base: int
    """Weights of the linears and experts, quantized or not, with their quantization constants; in
    lean mode also the output head; in streamed mode the slots of both."""
    non_quantized: int
    """Embeddings, output head, norms and vision tower."""
    adapters: int
    """Trained weights, their moving average if one is kept, their copy from the start if that is
    the reference, and what SAM or Sophia hold during their second pass."""
    gradients: int
    """Gradients of the trained weights, and DDP's copy of them."""
    optimizer: int
    """State of the optimizer."""
    activations: int
    """Activations kept for the backward pass at the peak."""
    logits: int
    """Logits of the loss; 0 if the peak is inside a layer."""
    workspace: int
    """The matrix being dequantized, what FSDP gathers, and the workspace of the matrix library."""
    context: int
    """Memory outside the allocated tensors: CUDA context and fragmentation."""
    architecture: Architecture
    device: DeviceKind
    bf16: bool = True
    """Whether the device supports bf16."""
    paged: int = 0
    """Part of the optimizer state that the driver can move to the host."""
    outside: int = 0
    """Part of the context that is not allocated through PyTorch."""
    graphs: bool = False
    """Whether activations are in CUDA graphs, which keep their memory between steps."""
    host: int = 0
    """Host bytes of weights in streamed mode, page-locked, and of activation checkpoints beside
    them; 0 in other modes."""
    copied: int = 0
    """Bytes of weights that a micro-batch copies to the device in streamed mode, at least."""
    loading: int = 0
    """Bytes of the weights at the end of loading, if they are more than `base` and
    `non_quantized`: stacked experts are quantized only after all weights are loaded. Loading may
    take more in between."""

    @property
    def likely(self) -> int:
        """Return the likely bytes of memory: the sum of all terms."""
        return sum(self.terms().values())

    @property
    def allocated(self) -> int:
        """Bytes allocated through PyTorch at the peak of a step."""
        return self.likely - self.context - self.paged

    @property
    def reserved(self) -> int:
        """Bytes that PyTorch's allocator reserves on the device, graphs included."""
        return self.likely - self.paged - self.outside

    @property
    def compared(self) -> int:
        """Bytes to compare with a run's peak: reserved with CUDA graphs, otherwise allocated."""
        return self.reserved if self.graphs else self.allocated

    @property
    def low(self) -> int:
        """Lower end of the expected range, in bytes."""
        return int((self.likely - self.context) * (1 - UNCERTAINTY) + self._context(-1))

    @property
    def high(self) -> int:
        """Upper end of the expected range, in bytes: what must be free for a safe start."""
        return int((self.likely - self.context) * (1 + UNCERTAINTY) + self._context(+1))

    def terms(self) -> dict[str, int]:
        """Return the bytes of each term by its name, in the order of `TERMS`."""
        return {name: getattr(self, name) for name in TERMS}

    def _context(self, sign: int) -> float:
        return max(self.context + sign * CONTEXT_SPREAD_BYTES, 0)


def estimate_memory(
    config: RunConfig, arch: Architecture, device: DeviceKind = "cuda", *, bf16: bool = True
) -> MemoryEstimate:
    """Estimate the memory that one rank of a run needs on its device.

    `bf16` says whether a GPU supports it; without it, `model.precision: auto` is fp32.
    """
    formats = _Formats.of(config, device == "cuda" and bf16)
    adapters = _trained_tensors(config, arch)
    trained = sum(tensor.size for tensor in adapters)
    adapter_bytes = trained * formats.adapter
    average_bytes = _copies(config, trained, formats)
    whole, kept = _weights(config, arch, formats)
    casts = _casts(config, arch, trained, formats)
    if config.adapter.kind == "none":
        whole, kept = _frozen(config, arch, formats)
        config = replace(config, adapter=replace(config.adapter, r=0, dropout=0.0))
    optimizer, paged = state_bytes(config.train, adapters, formats.adapter)
    frozen_bytes = formats.linear, formats.compute
    gathered = gathered_bytes(config, arch, trained, frozen_bytes, formats.adapter)
    split = parts(config)
    if not config.train.streams:
        whole = split_weights(whole, arch.linear_params * formats.linear, split)
    kept, optimizer = kept / split, optimizer / split
    average_bytes, adapter_bytes = average_bytes // split, adapter_bytes // split
    graphs = device == "cuda" and arch.mixture is None and in_fast_mode(config)
    copies = gradient_copies(config, graphs=graphs)
    moment = _fullest(config, arch, formats, trained, gathered, graphs=graphs)
    workspace = (
        moment.gathered + casts + moment.dequantized + WORKSPACE_BYTES[device] * (1 + graphs)
    )
    streamed = _streamed(config, arch, formats)
    whole += streamed.host if device == "cpu" else 0  # the slots are beside the weights there
    held = whole + kept + adapter_bytes * (1 + copies) + average_bytes + optimizer - paged
    outside = CONTEXT_BYTES[device] + (GRAPH_BYTES * arch.layers if graphs else 0)
    wasted = FRAGMENTATION * (held + moment.activations + moment.logits + workspace)
    if graphs:
        pool = SLICED_POOL_BYTES if config.train.lean else POOL_BYTES
        wasted = FRAGMENTATION * (held + workspace) + pool
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
        bf16=bf16,
        paged=int(paged),
        outside=int(outside),
        graphs=graphs,
        host=streamed.host,
        copied=streamed.copied,
        loading=int(_loading(config, arch, formats, whole + kept)),
    )


def _fullest(
    config: RunConfig,
    arch: Architecture,
    formats: _Formats,
    trained: int,
    gathered: Gathered,
    *,
    graphs: bool,
) -> Moment:
    """Return the moment of a micro-batch at which the most memory is alive."""
    return MicroBatchShape(
        config,
        arch,
        formats.compute,
        formats.adapter,
        0 if config.adapter.kind == "none" else trained // arch.layers,
        sequences_per_micro_batch(config),
        graphs,
        gathered,
    ).fullest()


def _casts(config: RunConfig, arch: Architecture, trained: int, formats: _Formats) -> float:
    """Return the bytes of casts of the model's own trained weights; 0 for an adapter."""
    if config.adapter.kind != "none":
        return 0
    mixed = formats.adapter > formats.compute
    casts = casts_at_once(config, arch, trained) * formats.compute if mixed else 0
    if isinstance(config.train.layers, int):
        return casts
    return max(casts, HEAD_GRADIENTS * arch.vocabulary * arch.hidden * formats.adapter)


def _copies(config: RunConfig, trained: int, formats: _Formats) -> int:
    """Return the bytes of copies of the trained weights.

    They are the moving average, the reference, and what an optimizer holds during another pass.
    """
    average = 4 * trained if config.train.ema else 0
    copies = config.copies_reference + OPTIMIZERS[config.train.optimizer].copies
    return average + copies * trained * formats.adapter


def _loading(config: RunConfig, arch: Architecture, formats: _Formats, held: float) -> float:
    """Return the bytes of the weights before experts are quantized; 0 if they never are."""
    if arch.mixture is None or config.model.quantize not in ("nf4", "fp4"):
        return 0
    packed = arch.expert_params * _nf4_share(double=config.model.double_quant)
    return held - packed + arch.expert_params * formats.compute


@dataclass(frozen=True)
class _Formats:
    """Bytes per number in compute precision, of the adapter, and of frozen linears."""

    compute: int
    adapter: int
    linear: float

    @classmethod
    def of(cls, config: RunConfig, bf16_on_gpu: bool) -> _Formats:
        auto = "bf16" if bf16_on_gpu else "fp32"
        precision = auto if config.model.precision == "auto" else config.model.precision
        compact = bf16_on_gpu and config.model.quantize in ("nf4", "fp4") and precision == "bf16"
        chosen = config.train.adapter_precision
        adapter = ("bf16" if compact else "fp32") if chosen == "auto" else chosen
        compute = 4 if precision == "fp32" else 2
        packed = config.model.quantize in ("nf4", "fp4")
        return cls(compute, 4 if adapter == "fp32" else 2, NF4_BYTES if packed else compute)


def _weights(config: RunConfig, arch: Architecture, formats: _Formats) -> tuple[float, float]:
    """Return the device bytes of linears and experts, and of the weights that are never quantized.

    In lean mode the output head counts with the linears, and the embedding is not on the device.
    """
    small = 2 * (arch.norm_params + arch.router_params)
    if config.train.streams:
        return _streamed(config, arch, formats).slots + _table_bytes(config, arch), small
    if config.train.lean:
        head = arch.vocabulary * arch.hidden
        return _nf4_bytes(config, arch) + head * _nf4_share(double=True), small
    others = (arch.other_params + arch.tower_params) * formats.compute
    if config.model.quantize == "none":
        return (arch.linear_params + arch.expert_params) * formats.compute, others
    if config.model.quantize == "int8":
        scales = 4 * arch.layers * sum(o for _, o in arch.linears.values())
        # Stacked experts are not linear layers, which are all that int8 covers.
        return arch.linear_params + scales + arch.expert_params * formats.compute, others
    return _nf4_bytes(config, arch), others


def _streamed(config: RunConfig, arch: Architecture, formats: _Formats) -> Streamed:
    """Return the memory and traffic of streamed mode; all 0 in other modes."""
    if not config.train.streams:
        return Streamed()
    layer = arch.linear_params / arch.layers * _nf4_share(double=config.model.double_quant)
    kept = 0
    if config.train.activations == "host":
        tokens = sequences_per_micro_batch(config) * config.data.max_length
        kept = tokens * arch.hidden * arch.layers * formats.compute
    ranks = parts(config)
    found = streamed_bytes(arch, layer, _nf4_share(double=True), formats.compute, ranks)
    return Streamed(found.slots, found.host + kept, found.copied)


def _nf4_bytes(config: RunConfig, arch: Architecture) -> float:
    share = _nf4_share(double=config.model.double_quant)
    return (arch.linear_params + arch.expert_params) * share + _table_bytes(config, arch)


def _table_bytes(config: RunConfig, arch: Architecture) -> int:
    """Return the bytes of the tables of double quantization, which are the same for every size."""
    stacks = STACKS if arch.mixture else 0
    matrices = arch.layers * (len(arch.linears) + stacks)
    return matrices * NF4_TABLES_BYTES if config.model.double_quant else 0


def _nf4_share(*, double: bool) -> float:
    """Return the bytes per parameter in NF4, quantization constants included."""
    return NF4_BYTES + (1 / 64 + 4 / (64 * 256) if double else 4 / 64)


def _trained_tensors(config: RunConfig, arch: Architecture) -> list[TrainedTensor]:
    """Return every trained tensor, with the head of a reward model."""
    head = [TrainedTensor((1, arch.hidden), at_end=True)] if config.task == "reward" else []
    return _adapter_tensors(config, arch) + head


def _adapter_tensors(config: RunConfig, arch: Architecture) -> list[TrainedTensor]:
    """Return every trained tensor of the adapter; unknown targets count as all linears."""
    if config.adapter.kind == "none":
        return _own_tensors(config, arch)
    names, known = config.adapter.targets, arch.linears
    ends = {
        "lm_head": (arch.hidden, arch.vocabulary),
        "embed_tokens": (arch.vocabulary, arch.hidden),
    }
    named = [] if isinstance(names, str) else [name.rpartition(".")[2] for name in names]
    single = [ends[name] for name in named if name in ends]
    chosen = {name: known[name] for name in named if name in known}
    if not chosen or len(chosen) + len(single) < len(set(named)):
        chosen = {} if single and not chosen else known
    r, ranks = config.adapter.r, config.adapter.rank_pattern
    one_layer = [
        tensor for name, shape in chosen.items() for tensor in _low_rank(shape, ranks.get(name, r))
    ]
    one_layer += [TrainedTensor((o,)) for _, o in chosen.values()] if config.adapter.dora else []
    once = [tensor for shape in single for tensor in _low_rank(shape, r)]
    # Fully trained modules count as embeddings, the largest modules; tied ones count once.
    whole = len(config.adapter.modules_to_save)
    copies = min(whole, 1) if arch.tied else whole
    # The rows of new tokens, at most: tokens that the tokenizer has already get none.
    new = TrainedTensor((len(config.added_tokens), arch.hidden), at_end=True)
    rows = [new] * (1 if arch.tied else 2) if config.added_tokens else []
    embedding = TrainedTensor((arch.vocabulary, arch.hidden), at_end=True)
    return one_layer * arch.layers + once + [embedding] * copies + rows


def _own_tensors(config: RunConfig, arch: Architecture) -> list[TrainedTensor]:
    """Return every trained weight of the model itself, without an adapter.

    If `train.layers` is a pattern, all weights count. Stacked experts do not count as matrices.
    """
    one_layer = [TrainedTensor(shape) for shape in arch.linears.values()]
    one_layer += [TrainedTensor((arch.hidden,))] * 2
    if mixture := arch.mixture:
        third = mixture.routed_params(arch.hidden) // 3
        routed = [2 * third, third, mixture.router_params(arch.hidden)]
        shared = [mixture.shared_params(arch.hidden) // 3] * 3
        one_layer += [TrainedTensor((size,)) for size in routed + shared]
    if isinstance(config.train.layers, int):
        return one_layer * min(config.train.layers, arch.layers)
    end = TrainedTensor((arch.vocabulary, arch.hidden), at_end=True)
    ends = [end] * (1 if arch.tied else 2)
    return one_layer * arch.layers + ends + [TrainedTensor((arch.hidden,))]


def _frozen(config: RunConfig, arch: Architecture, formats: _Formats) -> tuple[float, float]:
    """Return the bytes of frozen linears and experts, and of other frozen weights; no adapter.

    Without a number in `train.layers`, only the vision tower counts as frozen.
    """
    tower = arch.tower_params * formats.compute
    if not isinstance(config.train.layers, int):
        return 0, tower
    rest = arch.layers - min(config.train.layers, arch.layers)
    linears = (arch.linear_params + arch.expert_params) * rest / arch.layers
    trained = (2 * arch.hidden + arch.router_params // arch.layers) * (arch.layers - rest)
    return linears * formats.compute, (arch.other_params - trained) * formats.compute + tower


def _low_rank(shape: tuple[int, int], rank: int) -> tuple[TrainedTensor, TrainedTensor]:
    """Return the two matrices A and B of an adapter."""
    return TrainedTensor((rank, shape[0])), TrainedTensor((shape[1], rank))


def sequences_per_micro_batch(config: RunConfig) -> int:
    """Return the sequences per micro-batch: one per record, or two per preference.

    A pair of task contrastive has two, and one for each of its hard negatives.
    """
    if config.task in ("dpo", "reward"):
        return config.train.micro_batch_size * 2
    if config.task != "contrastive":
        return config.train.micro_batch_size
    return config.train.micro_batch_size * (2 + hard_negatives_used(config))
