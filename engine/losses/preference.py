"""Losses over completions that somebody judged, by log-probabilities of model and reference.

π is the model that is trained, ρ the reference, y⁺ and y⁻ the better and the worse completion of a
prompt x, and r(y) = log π(y|x) − log ρ(y|x). A completion's reward is β·r.
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
"""What is summed over judged completions beside the loss."""


@dataclass(frozen=True)
class LogProbs:
    """Of N completions, each given its prompt."""

    total: Tensor
    """Sum over the completion's tokens, [N] fp32."""
    tokens: Tensor
    """Tokens of each completion, [N]."""


def completion_log_probs(hidden: Tensor, labels: Tensor, lm_head: nn.Module) -> LogProbs:
    """Log-probabilities of the labelled tokens of each sequence.

    Args:
        hidden: last hidden states [N, T, H].
        labels: [N, T] token ids, -100 for the prompt and padding.
        lm_head: maps [n, H] to logits [n, V].
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
    """The loss of every pair, [B].

    With d = r(y⁺) − r(y⁻), and d̄ the same of r per token:

        sigmoid       −(1 − ε) log σ(βd) − ε log σ(−βd)
        robust        (−(1 − ε) log σ(βd) + ε log σ(−βd)) / (1 − 2ε)
        sigmoid_norm  −log σ(βd̄)
        hinge         max(0, 1 − βd)
        ipo           (d̄ − 1/(2β))²

    Args:
        chosen: r of the better completions [B].
        rejected: r of the worse ones [B].
        tokens: how many tokens each of both have, [B] and [B].
        kind: which of the above.
        beta: β.
        label_smoothing: ε, the share of pairs taken to be the wrong way round.

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
    """The loss of every rated completion, [N].

        wanted    w⁺ (1 − σ(β(r − z)))
        unwanted  w⁻ (1 − σ(β(z − r)))

    Args:
        ratio: r of the completions [N].
        desirable: which of them are wanted, bool [N].
        divergence: z, how far the model is from its reference; no gradient flows through it.
        beta: β.
        weights: w⁺ and w⁻.

    Source: Ethayarajh et al. 2024, equation 7.
    """
    above = beta * (ratio - divergence.detach())
    wanted, unwanted = weights[0] * torch.sigmoid(-above), weights[1] * torch.sigmoid(above)
    return torch.where(desirable, wanted, unwanted)


@dataclass(frozen=True)
class Compared:
    """Sums over judged completions; those of several batches add up."""

    loss_sum: Tensor
    """Over pairs, or over rated completions."""
    sums: Mapping[str, Tensor]
    """Of rewards, log-probabilities and right verdicts, by the name each mean goes by."""


def reward_sums(
    log_probs: LogProbs, ratio: Tensor, desirable: Tensor, beta: float
) -> dict[str, Tensor]:
    """Sums of rewards β·r and log-probabilities, of wanted and of unwanted completions."""
    sums = {}
    for name, rows in ((CHOSEN, desirable), (REJECTED, ~desirable)):
        sums[f"rewards_{name}"] = torch.where(rows, beta * ratio, 0.0).sum()
        sums[f"logps_{name}"] = torch.where(rows, log_probs.total, 0.0).sum()
    return sums


def means(sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
    """Means of summed figures, each over what it is about, and the margin of the rewards.

    Args:
        sums: as in `Compared`.
        counts: of `chosen` and `rejected` completions, and of `all` that is judged.
    """
    found = {
        name: total / counts[about(name)] for name, total in sums.items() if counts[about(name)]
    }
    if {"rewards_chosen", "rewards_rejected"} <= found.keys():
        found["reward_margin"] = found["rewards_chosen"] - found["rewards_rejected"]
    return found


def about(name: str) -> str:
    """What a figure is a mean over: `chosen`, `rejected` or `all`."""
    subject = name.rpartition("_")[2]
    return subject if subject in (CHOSEN, REJECTED) else "all"
