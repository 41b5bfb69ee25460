"""The sections of the preference losses and of reward models."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ..tasks import PAIR_LOSSES, PairLoss, PairLossTraits
from .base import NonNegative, Positive, Section


class PreferenceConfig(Section, frozen=True, kw_only=True):
    """The losses of tasks dpo and kto.

    Their reference, if the loss has one, is the model as it was before training: without an
    adapter, or with the adapter that `adapter.start` continues.
    """

    loss: PairLoss = "sigmoid"
    """Loss of task dpo. orpo, simpo, cpo and slic have no reference, so that a step needs half the
    forward passes; sigmoid_norm, ipo, orpo and simpo compare log-probabilities per token."""
    beta: Positive = 0.1
    """Scale of the rewards (DPO's β): the larger, the closer the model stays to the reference; for
    ipo the strength of its regularization (τ), for orpo the weight of the odds ratio (λ). simpo
    usually takes 2 to 10."""
    gamma: NonNegative = 0.5
    """simpo: by how much the reward of the chosen completion should exceed the other one (γ)."""
    label_smoothing: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    """For sigmoid, robust, simpo and cpo: assumed share of preferences with chosen and rejected
    swapped."""
    ce_weight: NonNegative | None = None
    """Weight of the next-token loss on chosen completions, which keeps their probability from
    falling; null: 1 for orpo, cpo and slic, otherwise 0."""
    ce_tokens: Literal["auto", "completion", "all"] = "auto"
    """Tokens of the next-token loss: those of the chosen completion, or `all`, those of its prompt
    too; auto: all for orpo, as in TRL, otherwise completion."""
    desirable_weight: NonNegative = 1.0
    """kto: weight of desirable completions."""
    undesirable_weight: NonNegative = 1.0
    """kto: weight of undesirable completions."""

    @property
    def traits(self) -> PairLossTraits:
        """What the loss of task dpo compares and uses."""
        return PAIR_LOSSES[self.loss]

    @property
    def next_token_weight(self) -> float:
        """Weight of the next-token loss, given or as usual for the loss."""
        return self.traits.ce_weight if self.ce_weight is None else self.ce_weight

    @property
    def next_token_on_prompt(self) -> bool:
        """Whether there is a next-token loss that covers the prompt too."""
        asked = self.ce_tokens == "all" or (self.ce_tokens == "auto" and self.traits.ce_prompt)
        return asked and self.next_token_weight > 0


class RewardConfig(Section, frozen=True, kw_only=True):
    """The loss of task reward, which trains a model that scores answers."""

    centering: NonNegative = 0.0
    """Weight of (score of chosen + score of rejected)², which keeps the scores around 0, such as
    0.01; 0 is off."""
