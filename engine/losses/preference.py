"""Preference losses (DPO variants, KTO) from log-probabilities of the model and the reference.

π is the trained model, ρ the reference, y⁺ and y⁻ the chosen and the rejected completion of a
prompt x, and r(y) = log π(y|x) − log ρ(y|x). The reward of a completion is β·r.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cross_entropy import token_log_probs

PairLoss = Literal["sigmoid", "sigmoid_norm", "hinge", "ipo", "robust"]
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


def completion_log_probs(hidden: Tensor, labels: Tensor, lm_head: nn.Module) -> LogProbs:
    """Return the log-probabilities of the labelled tokens of each sequence.

    Args:
        hidden: Last hidden states [N, T, H].
        labels: [N, T] token ids, -100 for the prompt and padding.
        lm_head: Maps [n, H] to logits [n, V].
    """
    found, mask = token_log_probs(hidden, labels, lm_head)
    return LogProbs(found.sum(dim=1), mask.sum(dim=1))


def pair_losses(
    chosen: Tensor,
    rejected: Tensor,
    tokens: tuple[Tensor, Tensor],
    kind: PairLoss,
    beta: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the loss of every pair, [B].

    With d = r(y⁺) − r(y⁻), and d̄ the same with r per token:

        sigmoid       −(1 − ε) log σ(βd) − ε log σ(−βd)
        robust        (−(1 − ε) log σ(βd) + ε log σ(−βd)) / (1 − 2ε)
        sigmoid_norm  −log σ(βd̄)
        hinge         max(0, 1 − βd)
        ipo           (d̄ − 1/(2β))²

    Args:
        chosen: r of the chosen completions [B].
        rejected: r of the rejected completions [B].
        tokens: Number of tokens of the chosen and of the rejected completions, [B] each.
        kind: One of the losses above.
        beta: β.
        label_smoothing: ε, the assumed share of swapped pairs.

    Source: Rafailov et al. 2023 (sigmoid); Mitchell 2023 (its ε); Chowdhury et al. 2024 (robust);
    Meng et al. 2024 (per token); Zhao et al. 2023 (hinge); Azar et al. 2023 (ipo).
    """
    if kind in ("sigmoid_norm", "ipo"):
        chosen, rejected = (
            r / n.clamp_min(1) for r, n in zip((chosen, rejected), tokens, strict=True)
        )
    difference = chosen - rejected
    if kind == "ipo":
        return (difference - 1 / (2 * beta)) ** 2
    if kind == "hinge":
        return torch.relu(1 - beta * difference)
    right, wrong = -F.logsigmoid(beta * difference), -F.logsigmoid(-beta * difference)
    if kind == "robust":
        kept = (1 - label_smoothing) * right - label_smoothing * wrong
        return kept / (1 - 2 * label_smoothing)
    return right if not label_smoothing else (1 - label_smoothing) * right + label_smoothing * wrong


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
