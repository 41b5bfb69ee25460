"""The record formats of each task, the tasks with preference data, and what their losses need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Format = Literal["messages", "prompt_completion", "text", "tokens", "preference", "rated", "pairs"]
"""Formats of records."""

SCORED_KINDS = ("cosent", "cosine")
"""Contrastive losses of pairs with similarity scores; they use no negatives."""
PREFERENCE_TASKS = ("dpo", "kto")
"""Tasks that learn from rated or compared completions, by log-probabilities of the model."""
COMPARING_TASKS = (*PREFERENCE_TASKS, "reward")
"""Tasks that learn to distinguish good answers from bad ones; their loss falls towards zero."""
FORMATS_OF: Mapping[str, tuple[Format, ...]] = {
    "sft": ("messages", "prompt_completion", "text", "tokens"),
    "contrastive": ("pairs",),
    "dpo": ("preference",),
    "kto": ("rated", "preference"),
    "reward": ("preference",),
}
"""Record formats by task; of formats that equally many rows have, the first one is used."""

PairLoss = Literal[
    "sigmoid",
    "sigmoid_norm",
    "hinge",
    "ipo",
    "robust",
    "exo_pair",
    "nca_pair",
    "bco_pair",
    "sppo_hard",
    "apo_zero",
    "apo_down",
    "discopop",
    "aot",
    "aot_unpaired",
    "orpo",
    "simpo",
    "cpo",
    "slic",
]
"""Losses of task dpo."""

FDivergence = Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"]
"""Divergences from the reference that a loss of task dpo can be built on, as TRL names them."""


@dataclass(frozen=True)
class PairLossTraits:
    """What a loss of task dpo compares and which keys it uses."""

    reference: bool = True
    """Whether log-probabilities are compared with those of the reference model."""
    per_token: bool = False
    """Whether log-probabilities are divided by the number of tokens of their completion."""
    smoothing: bool = False
    """Whether `label_smoothing` is used."""
    margin: bool = False
    """Whether `gamma` is used."""
    divergence: bool = False
    """Whether `f_divergence` is used: the loss depends on the difference of two rewards alone."""
    sharpness: bool = False
    """Whether `discopop_tau` is used."""
    shape: bool = False
    """Whether `reward_alpha` is used."""
    ordered: bool = False
    """Whether the pairs of a step are sorted and compared with each other."""
    ce_weight: float = 0.0
    """Weight of the next-token loss of chosen completions, if none is given."""
    ce_prompt: bool = False
    """Whether the next-token loss covers the prompt too, unless `ce_tokens` says otherwise."""


PAIR_LOSSES: Mapping[PairLoss, PairLossTraits] = {
    "sigmoid": PairLossTraits(smoothing=True, divergence=True),
    "sigmoid_norm": PairLossTraits(per_token=True, divergence=True),
    "hinge": PairLossTraits(divergence=True),
    "ipo": PairLossTraits(per_token=True, divergence=True),
    "robust": PairLossTraits(smoothing=True, divergence=True),
    "exo_pair": PairLossTraits(smoothing=True, divergence=True),
    "nca_pair": PairLossTraits(),
    "bco_pair": PairLossTraits(),
    "sppo_hard": PairLossTraits(),
    "apo_zero": PairLossTraits(),
    "apo_down": PairLossTraits(),
    "discopop": PairLossTraits(divergence=True, sharpness=True),
    "aot": PairLossTraits(smoothing=True, ordered=True),
    "aot_unpaired": PairLossTraits(smoothing=True, ordered=True),
    "orpo": PairLossTraits(reference=False, per_token=True, ce_weight=1.0, ce_prompt=True),
    "simpo": PairLossTraits(
        reference=False, per_token=True, smoothing=True, margin=True, shape=True
    ),
    "cpo": PairLossTraits(reference=False, smoothing=True, shape=True, ce_weight=1.0),
    "slic": PairLossTraits(reference=False, shape=True, ce_weight=1.0),
}
"""The losses of task dpo; their functions are in `losses.preference`."""

REFERENCE_LOSSES = tuple(name for name, traits in PAIR_LOSSES.items() if traits.reference)
"""The losses that TRL's trainer DPO has as well, by the same names."""


def traits_of(losses: Iterable[PairLoss]) -> PairLossTraits:
    """Return the traits of a sum of losses: what any of them needs; all of one kind of reference.

    Args:
        losses: at least one loss.
    """
    every = [PAIR_LOSSES[name] for name in losses]
    values = {
        field.name: max(getattr(one, field.name) for one in every)
        for field in dataclasses.fields(PairLossTraits)
    }
    return PairLossTraits(**values)


def pair_losses_with(trait: str) -> str:
    """Return the names of the losses that have a trait, for messages, such as `orpo, simpo`."""
    return ", ".join(name for name, traits in PAIR_LOSSES.items() if getattr(traits, trait))
