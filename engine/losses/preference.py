"""Preference losses from log-probabilities of the model and, for most of them, the reference.

π is the trained model, ρ the reference, y⁺ and y⁻ the chosen and the rejected completion of a
prompt x, and r(y) = log π(y|x) − log ρ(y|x), or log π(y|x) for a loss without reference. The reward
of a completion is β·r.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.tasks import PAIR_LOSSES, PairLoss
from .cross_entropy import IGNORED, token_log_probs

CHOSEN, REJECTED = "chosen", "rejected"
FIGURES = (
    *("rewards_chosen", "logps_chosen", "rewards_rejected", "logps_rejected"),
    "reward_accuracy",
)
"""Names of the sums over completions beside the loss."""


@dataclass(frozen=True)
class LogProbs:
    """Log-probabilities of N completions, each given its prompt."""

    total: Tensor
    """Sum over the completion's tokens, [N] fp32."""
    tokens: Tensor
    """Number of tokens of each completion, [N]."""
    context: Tensor | None = None
    """Sum over the tokens of the prompt, [N] fp32; None if it is not wanted."""
    context_tokens: Tensor | None = None
    """Number of tokens of the prompt that are counted, [N]."""

    def with_context(self) -> tuple[Tensor, Tensor]:
        """Return the sum over completion and counted prompt, and its number of tokens, [N] each."""
        if self.context is None or self.context_tokens is None:
            return self.total, self.tokens
        return self.total + self.context, self.tokens + self.context_tokens


def completion_log_probs(
    hidden: Tensor, labels: Tensor, lm_head: nn.Module, context: Tensor | None = None
) -> LogProbs:
    """Return the log-probabilities of the labelled tokens of each sequence.

    Args:
        hidden: Last hidden states [N, T, H].
        labels: [N, T] token ids, -100 for the prompt and padding.
        lm_head: Maps [n, H] to logits [n, V].
        context: [N, T] token ids of the prompt where `labels` has none, -100 elsewhere; None leaves
            the prompt out.
    """
    if context is None:
        found, mask = token_log_probs(hidden, labels, lm_head)
        return LogProbs(found.sum(dim=1), mask.sum(dim=1))
    found, mask = token_log_probs(hidden, labels.where(labels != IGNORED, context), lm_head)
    own = labels[:, 1:] != IGNORED
    others = mask & ~own
    return LogProbs((found * own).sum(1), own.sum(1), (found * others).sum(1), others.sum(1))


@dataclass(frozen=True)
class PairLossSettings:
    """The numbers that the losses of pairs use."""

    beta: float = 0.1
    """β."""
    label_smoothing: float = 0.0
    """ε, the assumed share of swapped pairs."""
    gamma: float = 0.0
    """γ, by how much the reward of the chosen completion should exceed the other one."""


def _logistic(difference: Tensor, settings: PairLossSettings) -> Tensor:
    """Return −(1 − ε) log σ(βd) − ε log σ(−βd)."""
    beta, share = settings.beta, settings.label_smoothing
    right, wrong = -F.logsigmoid(beta * difference), -F.logsigmoid(-beta * difference)
    return right if not share else (1 - share) * right + share * wrong


def _robust(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    scaled, share = settings.beta * (chosen - rejected), settings.label_smoothing
    right, wrong = -F.logsigmoid(scaled), -F.logsigmoid(-scaled)
    return ((1 - share) * right - share * wrong) / (1 - 2 * share)


def _sigmoid(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    return _logistic(chosen - rejected, settings)


def _hinge(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    return torch.relu(1 - settings.beta * (chosen - rejected))


def _ipo(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    return (chosen - rejected - 1 / (2 * settings.beta)) ** 2


def _simpo(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    return _logistic(chosen - rejected - settings.gamma / settings.beta, settings)


def _orpo(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    log_odds = (chosen - rejected) - (_log_complement(chosen) - _log_complement(rejected))
    return -settings.beta * F.logsigmoid(log_odds)


def _log_complement(log_prob: Tensor) -> Tensor:
    """Return log(1 − exp(x)) of negative x [N], precise near both ends.

    A probability of 1, whose complement has no logarithm, counts as the largest number below 1.
    """
    below = log_prob.clamp(max=-torch.finfo(log_prob.dtype).eps)
    near_one = below > -0.6931
    # Each branch gets values of its own range, because the gradient of the other one may be NaN.
    small = torch.log(-torch.expm1(below.where(near_one, -0.5)))
    large = torch.log1p(-torch.exp(below.where(~near_one, -1.0)))
    return torch.where(near_one, small, large)


_PAIR_LOSSES: Mapping[PairLoss, Callable[[Tensor, Tensor, PairLossSettings], Tensor]] = {
    "sigmoid": _sigmoid,
    "sigmoid_norm": _sigmoid,
    "hinge": _hinge,
    "ipo": _ipo,
    "robust": _robust,
    "orpo": _orpo,
    "simpo": _simpo,
    "cpo": _sigmoid,
    "slic": _hinge,
}
"""The functions of the losses in `PAIR_LOSSES`. Each takes r of the chosen and of the rejected
completions, [B] each, and per token if its traits say so."""


def pair_losses(
    chosen: Tensor,
    rejected: Tensor,
    tokens: tuple[Tensor, Tensor],
    kind: PairLoss,
    settings: PairLossSettings = PairLossSettings(),
) -> Tensor:
    """Return the loss of every pair, [B].

    With d = r(y⁺) − r(y⁻), d̄ the same with r per token, and p̄ = exp(r per token):

        sigmoid       −(1 − ε) log σ(βd) − ε log σ(−βd)
        robust        (−(1 − ε) log σ(βd) + ε log σ(−βd)) / (1 − 2ε)
        sigmoid_norm  −log σ(βd̄)
        hinge         max(0, 1 − βd)
        ipo           (d̄ − 1/(2β))²
        cpo           as sigmoid, without reference
        slic          as hinge, without reference
        simpo         −(1 − ε) log σ(βd̄ − γ) − ε log σ(γ − βd̄), without reference
        orpo          −β log σ(log odds p̄(y⁺) − log odds p̄(y⁻)), without reference

    Args:
        chosen: r of the chosen completions [B].
        rejected: r of the rejected completions [B].
        tokens: Number of tokens of the chosen and of the rejected completions, [B] each.
        kind: One of the losses above.
        settings: β, ε and γ.

    Source: Rafailov et al. 2023 (sigmoid); Mitchell 2023 (its ε); Chowdhury et al. 2024 (robust);
    Meng et al. 2024 (simpo; per token); Zhao et al. 2023 (hinge, slic); Azar et al. 2023 (ipo); Xu
    et al. 2024 (cpo); Hong et al. 2024 (orpo).
    """
    if PAIR_LOSSES[kind].per_token:
        chosen, rejected = (
            r / n.clamp_min(1) for r, n in zip((chosen, rejected), tokens, strict=True)
        )
    return _PAIR_LOSSES[kind](chosen, rejected, settings)


def rated_losses(
    ratio: Tensor,
    desirable: Tensor,
    divergence: Tensor,
    beta: float,
    weights: tuple[float, float] = (1.0, 1.0),
) -> Tensor:
    """Return the loss of every rated completion, [N].

        desirable    w⁺ (1 − σ(β(r − z)))
        undesirable  w⁻ (1 − σ(β(z − r)))

    Args:
        ratio: r of the completions [N].
        desirable: Whether each completion is desirable, bool [N].
        divergence: z, the KL divergence from the reference; no gradient flows through it.
        beta: β.
        weights: w⁺ and w⁻.

    Source: Ethayarajh et al. 2024, equation 7.
    """
    above = beta * (ratio - divergence.detach())
    good, bad = weights[0] * torch.sigmoid(-above), weights[1] * torch.sigmoid(above)
    return torch.where(desirable, good, bad)


@dataclass(frozen=True)
class Compared:
    """Sums over the completions of a batch; sums of several batches can be added."""

    loss_sum: Tensor
    """Sum of the loss over pairs, or over rated completions."""
    sums: Mapping[str, Tensor]
    """Sums of rewards, log-probabilities and correct rankings, by the name of their mean."""


def reward_sums(
    log_probs: LogProbs, ratio: Tensor, desirable: Tensor, beta: float
) -> dict[str, Tensor]:
    """Return sums of rewards β·r and log-probabilities of chosen and rejected completions.

    Desirable completions count as chosen, undesirable ones as rejected.
    """
    sums = {}
    for name, rows in ((CHOSEN, desirable), (REJECTED, ~desirable)):
        sums[f"rewards_{name}"] = torch.where(rows, beta * ratio, 0.0).sum()
        sums[f"logps_{name}"] = torch.where(rows, log_probs.total, 0.0).sum()
    return sums


def means(sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
    """Return the mean of every sum over its completions, and the margin of the mean rewards.

    A sum over no completions is left out, and with it the `reward_margin` that needs it.

    Args:
        sums: Sums by name, as in `Compared`.
        counts: Number of `chosen` and `rejected` completions, and of `all` pairs or completions.
    """
    found = {
        name: total / counts[about(name)] for name, total in sums.items() if counts[about(name)]
    }
    if {"rewards_chosen", "rewards_rejected"} <= found.keys():
        found["reward_margin"] = found["rewards_chosen"] - found["rewards_rejected"]
    return found


def about(name: str) -> str:
    """Return which of the `counts` of `means` a sum is divided by: `chosen`, `rejected` or `all`.

    Args:
        name: name of the sum; its last word is what it is about, such as `rewards_chosen`.
    """
    subject = name.rpartition("_")[2]
    return subject if subject in (CHOSEN, REJECTED) else "all"
