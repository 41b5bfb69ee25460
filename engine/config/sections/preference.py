"""The sections of the preference losses and of reward models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from ..tasks import PAIR_LOSSES, FDivergence, PairLoss, PairLossTraits, traits_of
from .base import NonNegative, Positive, Section


class PreferenceConfig(Section, frozen=True, kw_only=True):
    """The losses of tasks dpo and kto.

    Their reference, if the loss has one, is the model as it was before training: without an
    adapter, or with the adapter that `adapter.start` continues.
    """

    loss: PairLoss | dict[PairLoss, Positive] = "sigmoid"
    """Loss of task dpo, or the weights of several that are added up, such as `{sigmoid: 0.8,
    bco_pair: 0.2}`. orpo, simpo, cpo and slic have no reference, so that a step needs half the
    forward passes; sigmoid_norm, ipo, orpo and simpo compare log-probabilities per token; aot and
    aot_unpaired compare the sorted pairs of a whole step."""
    beta: Positive = 0.1
    """Scale of the rewards (DPO's β): the larger, the closer the model stays to the reference; for
    ipo the strength of its regularization (τ), for orpo the weight of the odds ratio (λ). simpo
    usually takes 2 to 10."""
    gamma: NonNegative = 0.5
    """simpo: by how much the reward of the chosen completion should exceed the other one (γ)."""
    label_smoothing: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    """For sigmoid, robust, exo_pair, aot, aot_unpaired, simpo and cpo: assumed share of preferences
    with chosen and rejected swapped. exo_pair needs it, usually 0.001."""
    f_divergence: FDivergence = "reverse_kl"
    """Divergence from the reference (f-DPO), for sigmoid, sigmoid_norm, hinge, ipo, robust,
    exo_pair and discopop."""
    f_alpha: float = 0.5
    """`f_divergence: alpha_divergence`: its order, as TRL's `f_alpha_divergence_coef`; 1 is
    reverse_kl."""
    ld_alpha: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Factor on the log-probabilities of those tokens of the longer completion that lie beyond the
    length of the shorter one (LD-DPO); null is 1."""
    discopop_tau: Positive = 0.05
    """discopop: the smaller, the sharper it passes from the logistic to the exponential loss."""
    reward_alpha: float = 0.0
    """simpo, cpo, slic: shape of the rewards, (1 − exp(−α r)) / α instead of r (AlphaPO)."""
    rated_loss: Literal["kto", "apo_zero_unpaired"] = "kto"
    """Loss of task kto; apo_zero_unpaired compares with 0 instead of the mean divergence, which
    saves its three passes."""
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
    def losses(self) -> Mapping[PairLoss, float]:
        """The losses of task dpo that are added up, each with its weight."""
        return {self.loss: 1.0} if isinstance(self.loss, str) else self.loss

    @property
    def traits(self) -> PairLossTraits:
        """What the loss of task dpo, or any of several, compares and uses."""
        return traits_of(self.losses or ("sigmoid",))

    @property
    def every_traits(self) -> list[PairLossTraits]:
        """What each of the losses of task dpo compares and uses."""
        return [PAIR_LOSSES[name] for name in self.losses]

    @property
    def named(self) -> str:
        """The losses of task dpo in words, such as `sigmoid + bco_pair`."""
        return " + ".join(self.losses)

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
