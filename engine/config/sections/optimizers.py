"""The table of optimizers: the package, the state per weight and the settings of each.

One entry is one value of `train.optimizer`. Checks, memory plan, import of other tools' files and
the builders of training read it here; no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from .train import TrainConfig

Library = Literal["torch", "transformers", "bitsandbytes", "pytorch-optimizer"]

SMALL_TENSOR = 4096
"""Number of elements below which an 8-bit optimizer keeps its state in fp32."""
PAGED_TENSOR = 100_000
"""Number of elements from which a paged optimizer keeps its state in managed memory."""
EIGHT_BITS = 1 + 4 / 256
"""Bytes per value of an 8-bit state, with its constant of 4 bytes per block of 256."""


@dataclass(frozen=True)
class TrainedTensor:
    """A trained weight as the memory plan knows it."""

    shape: tuple[int, ...]
    at_end: bool = False
    """Whether it belongs to the embedding, the output head or the rows of new tokens."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class OptimizerKind:
    """One optimizer: its package, the size of its state, and the keys of `train` that it uses."""

    library: Library
    states: float
    """Number of state values per element of a weight."""
    bits: Literal[8, 32] = 32
    """Bits of a state value; with 32 it has the precision of its weight or fp32."""
    paged: bool = False
    """Whether the driver may move large parts of the state to the host."""
    state_in_fp32: bool = False
    """Whether the state is always in fp32; otherwise it has the precision of its weight."""
    compensated: bool = False
    """Whether weights in bf16 have one more state value, which sums up their rounding errors."""
    elementwise: bool = False
    """Whether each element of a weight is updated by its own gradient and state alone."""
    betas: bool = False
    """Whether it uses `train.betas`."""
    epsilon: bool = False
    """Whether it uses `train.epsilon`."""
    momentum: bool = False
    """Whether it uses `train.momentum`."""
    plain: bool = False
    """Whether it has a state only with `train.momentum`."""
    matrices_only: bool = False
    """Whether `states` counts for the matrices of layers only; all other weights have AdamW's 2."""
    projects: bool = False
    """Whether the state of a matrix is that of its projection to `train.projection.rank`."""
    at_random: bool = False
    """Whether the projection is random; its rank is then the configured one for any matrix."""
    copies: int = 0
    """Copies of the trained weights, or tensors as large, that are held while it passes again over
    the micro-batches of a step; 0 for an optimizer with a single pass."""

    def state_bytes(self, tensor: TrainedTensor, weight_bytes: int, rank: int) -> float:
        """Return the bytes of the state of one weight, as far as they grow with its size.

        Args:
            tensor: The weight.
            weight_bytes: Bytes per element of the weight, 2 or 4.
            rank: Rank of the projection, for the optimizers that project.
        """
        if self.bits == 8:
            per_value = 4 if tensor.size < SMALL_TENSOR else EIGHT_BITS
            return tensor.size * self.states * per_value
        value = 4 if self.state_in_fp32 else weight_bytes
        if self.projects and len(tensor.shape) == 2:
            low, high = sorted(tensor.shape)
            kept = rank if self.at_random else min(rank, low)
            return value * (self.states * kept * high + kept * low)
        states = self.states
        if self.matrices_only and (tensor.at_end or len(tensor.shape) != 2):
            states = 2
        return value * tensor.size * (states + (self.compensated and weight_bytes == 2))

    def is_paged(self, tensor: TrainedTensor) -> bool:
        """Whether the driver may move the state of this weight to the host."""
        return self.paged and tensor.size >= PAGED_TENSOR


def _adam(library: Library = "pytorch-optimizer", states: float = 2) -> OptimizerKind:
    return OptimizerKind(library, states, betas=True, epsilon=True)


def _eight_bits(states: float, *, paged: bool, epsilon: bool) -> OptimizerKind:
    return OptimizerKind("bitsandbytes", states, 8, paged=paged, betas=True, epsilon=epsilon)


OPTIMIZERS: dict[str, OptimizerKind] = {
    "adamw": replace(_adam("torch"), elementwise=True),
    "adamw_8bit": _eight_bits(2, paged=False, epsilon=True),
    "paged_adamw_8bit": _eight_bits(2, paged=True, epsilon=True),
    "adafactor": OptimizerKind("transformers", 0, state_in_fp32=True),
    "lion": OptimizerKind("bitsandbytes", 1, state_in_fp32=True, betas=True),
    "lion_8bit": _eight_bits(1, paged=False, epsilon=False),
    "paged_lion_8bit": _eight_bits(1, paged=True, epsilon=False),
    "lamb": _adam(),
    "sgd": OptimizerKind("torch", 1, elementwise=True, momentum=True, plain=True),
    "muon": OptimizerKind("torch", 1, betas=True, epsilon=True, momentum=True, matrices_only=True),
    "lookahead": _adam("torch", 3),
    "ranger": _adam(states=3),
    "lars": OptimizerKind("pytorch-optimizer", 1, momentum=True),
    "adan": OptimizerKind("pytorch-optimizer", 4, epsilon=True),
    "ademamix": OptimizerKind("pytorch-optimizer", 3, epsilon=True),
    "adopt": _adam(),
    "stable_adamw": replace(_adam(), compensated=True),
    "galore": replace(_adam(), projects=True),
    "apollo": replace(_adam(), projects=True, at_random=True),
    "sam": replace(_adam("torch"), copies=1),
    "sophia": replace(_adam("torch"), copies=1),
}
"""Every optimizer by its name in the configuration; `sam` has the state of `train.sam.base`."""

NOT_OFFERED = {
    "prodigy": "it estimates one rate for all parameter groups, whatever their ratios; measure a "
    "rate with `fttui lr-find`",
    "schedule_free": "it needs other weights in evaluations than in training; train.ema with "
    "train.schedule: constant averages too",
}
"""Optimizers that people ask for and fttui does not have, each with the reason and a way out."""
_OTHER_NAMES = {
    "asam": "asam is train.optimizer: sam with train.sam.adaptive: true",
    "gsam": "gsam is not offered; train.optimizer: sam is the method that it changes",
    "sophiag": "sophiag is train.optimizer: sophia",
    "sophiah": "sophiah is not offered: it differentiates the gradient again, which quantized "
    "weights and recomputed layers do not allow; train.optimizer: sophia estimates the curvature "
    "from gradients alone",
}


def why_not_offered(name: str) -> str:
    """Return why fttui lacks an optimizer that is in `NOT_OFFERED`; empty for any other name."""
    plain = name.lower().replace("-", "_")
    if plain in _OTHER_NAMES:
        return _OTHER_NAMES[plain]
    found = next((known for known in NOT_OFFERED if plain.startswith(known)), None)
    return f"{name} is not offered: {NOT_OFFERED[found]}" if found else ""


def kind_of(train: TrainConfig) -> OptimizerKind:
    """Return the optimizer that makes the updates of a run, below SAM if that is configured."""
    return OPTIMIZERS[train.base_optimizer]


def base_key(train: TrainConfig) -> str:
    """Return the key that names the optimizer which makes the updates."""
    return "train.sam.base" if train.optimizer == "sam" else "train.optimizer"


def with_base(train: TrainConfig, name: str) -> TrainConfig:
    """Return the section with another optimizer for the updates; SAM stays."""
    if train.optimizer == "sam":
        return msgspec.structs.replace(train, sam=msgspec.structs.replace(train.sam, base=name))
    return msgspec.structs.replace(train, optimizer=name)


def passes_fact(train: TrainConfig) -> str:
    """Return what the additional passes of an optimizer cost, in words; empty without any."""
    if train.optimizer == "sam":
        form = "ASAM" if train.sam.adaptive else "SAM"
        return (
            f"{form} with {train.sam.base}, rho {train.sam.rho:g}: every step passes twice over "
            "its micro-batches, so it takes about twice as long"
        )
    if train.optimizer == "sophia":
        every = train.sophia.every
        return (
            f"one step of {every} passes once more over its micro-batches to estimate the "
            f"curvature, which adds about {1 / every:.0%} to the time of training"
        )
    return ""


def state_bytes(
    train: TrainConfig, tensors: Iterable[TrainedTensor], weight_bytes: int
) -> tuple[float, float]:
    """Return the bytes of the optimizer state of a run, and how many of them are paged.

    Args:
        train: Optimizer and its settings.
        tensors: The trained weights.
        weight_bytes: Bytes per element of a weight, 2 or 4.
    """
    kind = kind_of(train)
    if kind.plain and not train.momentum:
        return 0, 0
    rank = train.projection.rank
    sizes = [(kind.state_bytes(one, weight_bytes, rank), kind.is_paged(one)) for one in tensors]
    return sum(size for size, _ in sizes), sum(size for size, paged in sizes if paged)
