"""Preference losses from log-probabilities of the model and, for most of them, the reference.

π is the trained model, ρ the reference, y⁺ and y⁻ the chosen and the rejected completion of a
prompt x, and r(y) = log π(y|x) − log ρ(y|x), or log π(y|x) for a loss without reference. The reward
of a completion is β·r.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.tasks import PAIR_LOSSES, FDivergence, PairLoss
from .cross_entropy import IGNORED, token_log_probs

CHOSEN, REJECTED = "chosen", "rejected"
FIGURES = (
    *("rewards_chosen", "logps_chosen", "rewards_rejected", "logps_rejected"),
    "reward_accuracy",
)
"""Names of the sums over completions beside the loss."""
MOST_EXPONENT = 80.0
"""Largest exponent of a score; above 88, exp has no number in fp32. TRL has the same bound, but for
`forward_kl` and `reward_alpha`, where it has none and returns inf or NaN."""


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
    whole: Tensor | None = None
    """Sum over the completion's tokens if `total` weighs some of them less, [N] fp32."""

    def with_context(self) -> tuple[Tensor, Tensor]:
        """Return the sum over completion and counted prompt, and its number of tokens, [N] each."""
        if self.whole is not None:
            return self.whole, self.tokens
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


def desensitized(found: LogProbs, alpha: float) -> LogProbs:
    """Return log-probabilities whose total counts the `context` times `alpha` (LD-DPO).

    The context is that part of the completion which is longer than the other completion of the
    pair, as `tail_of` names it. It belongs to the completion afterwards.

    Source: Liu et al. 2024.
    """
    whole, tokens = found.with_context()
    return LogProbs(found.total + alpha * (whole - found.total), tokens, whole=whole)


def tail_of(labels: Tensor) -> Tensor:
    """Return the labels that lie beyond the length of the other completion, -100 elsewhere.

    Args:
        labels: [2 B, T] token ids of B chosen and B rejected completions, -100 elsewhere.
    """
    inside = labels != IGNORED
    inside[:, 0] = False  # The first token of a sequence is not predicted.
    lengths = inside.sum(dim=1)
    shared = torch.minimum(*lengths.chunk(2)).repeat(2)
    beyond = inside & (inside.cumsum(dim=1) > shared.unsqueeze(1))
    return labels.masked_fill(~beyond, IGNORED)


@dataclass(frozen=True)
class PairLossSettings:
    """The numbers that the losses of pairs use."""

    beta: float = 0.1
    """β."""
    label_smoothing: float = 0.0
    """ε, the assumed share of swapped pairs."""
    gamma: float = 0.0
    """γ, by how much the reward of the chosen completion should exceed the other one."""
    f_divergence: FDivergence = "reverse_kl"
    """The divergence from the reference that the scores of losses of differences come from."""
    f_alpha: float = 0.5
    """Order of the α-divergence."""
    discopop_tau: float = 0.05
    """τ of discopop."""
    reward_alpha: float = 0.0
    """α of AlphaPO; 0 leaves the log-probabilities as they are."""


PairFunction = Callable[[Tensor, Tensor, PairLossSettings], Tensor]


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


def _exo(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    """Return KL(σ(βd), σ(−βd) ‖ 1 − ε, ε) of every pair; ε must be above 0."""
    scaled, share = settings.beta * (chosen - rejected), settings.label_smoothing
    won, lost = F.logsigmoid(scaled), F.logsigmoid(-scaled)
    return won.exp() * (won - math.log1p(-share)) + lost.exp() * (lost - math.log(share))


def _nca(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    better, worse = settings.beta * chosen, settings.beta * rejected
    even = F.logsigmoid(-better) + F.logsigmoid(-worse)
    return -F.logsigmoid(better) - 0.5 * even


def _bco(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    return -F.logsigmoid(settings.beta * chosen) - F.logsigmoid(-settings.beta * rejected)


def _sppo(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    half = 0.5 / settings.beta
    return (chosen - half) ** 2 + (rejected + half) ** 2


def _apo_zero(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    return torch.sigmoid(-settings.beta * chosen) + torch.sigmoid(settings.beta * rejected)


def _apo_down(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    beta = settings.beta
    return torch.sigmoid(beta * chosen) + torch.sigmoid(-beta * (chosen - rejected))


def _discopop(chosen: Tensor, rejected: Tensor, settings: PairLossSettings) -> Tensor:
    scaled = settings.beta * (chosen - rejected)
    share = torch.sigmoid(scaled / settings.discopop_tau)
    return -F.logsigmoid(scaled) * (1 - share) + torch.exp(-scaled) * share


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


_PAIR_LOSSES: Mapping[PairLoss, PairFunction] = {
    "sigmoid": _sigmoid,
    "sigmoid_norm": _sigmoid,
    "hinge": _hinge,
    "ipo": _ipo,
    "robust": _robust,
    "exo_pair": _exo,
    "nca_pair": _nca,
    "bco_pair": _bco,
    "sppo_hard": _sppo,
    "apo_zero": _apo_zero,
    "apo_down": _apo_down,
    "discopop": _discopop,
    "aot": _sigmoid,
    "aot_unpaired": _sigmoid,
    "orpo": _orpo,
    "simpo": _simpo,
    "cpo": _sigmoid,
    "slic": _hinge,
}
"""The functions of the losses in `PAIR_LOSSES`. Each takes two scores of every pair, [B] each, and
per token if its traits say so. They are r of the chosen and of the rejected completion, but for the
ordered losses the sorted values that are compared."""


def f_scores(ratio: Tensor, settings: PairLossSettings) -> Tensor:
    """Return f′(t) of log t = r, whose difference replaces that of r in the losses, [N].

        reverse_kl        log t
        forward_kl        1 − 1/t
        js_divergence     log 2 + log σ(log t)
        alpha_divergence  (t^(α − 1) − 1) / (α − 1)

    Source: Wang et al. 2024, table 1.
    """
    match settings.f_divergence:
        case "forward_kl":
            return 1 - torch.exp(_bounded(-ratio))
        case "js_divergence":
            return math.log(2) + F.logsigmoid(ratio)
        case "alpha_divergence" if abs(settings.f_alpha - 1) >= 1e-6:
            power = settings.f_alpha - 1
            return torch.expm1(_bounded(power * ratio)) / power
    return ratio


def shaped_rewards(log_probs: Tensor, alpha: float) -> Tensor:
    """Return (1 − exp(−α log p)) / α, or log p for α = 0, [N] (AlphaPO).

    Source: Gupta et al. 2025.
    """
    return log_probs if not alpha else -torch.expm1(_bounded(-alpha * log_probs)) / alpha


def _bounded(exponent: Tensor) -> Tensor:
    return exponent.clamp(max=MOST_EXPONENT)


def pair_losses(
    chosen: Tensor,
    rejected: Tensor,
    tokens: tuple[Tensor, Tensor],
    kind: PairLoss,
    settings: PairLossSettings = PairLossSettings(),
) -> Tensor:
    """Return the loss of every pair, [B].

    With r⁺ = r(y⁺) and r⁻ = r(y⁻), d = r⁺ − r⁻, d̄ the same with r per token, q = σ(βd), and
    p̄ = exp(r per token):

        sigmoid       −(1 − ε) log σ(βd) − ε log σ(−βd)
        robust        (−(1 − ε) log σ(βd) + ε log σ(−βd)) / (1 − 2ε)
        sigmoid_norm  −log σ(βd̄)
        hinge         max(0, 1 − βd)
        ipo           (d̄ − 1/(2β))²
        exo_pair      q log(q / (1 − ε)) + (1 − q) log((1 − q) / ε)
        discopop      −log σ(βd) (1 − σ(βd/τ)) + exp(−βd) σ(βd/τ)
        nca_pair      −log σ(βr⁺) − ½ log σ(−βr⁺) − ½ log σ(−βr⁻)
        bco_pair      −log σ(βr⁺) − log σ(−βr⁻)
        sppo_hard     (r⁺ − 1/(2β))² + (r⁻ + 1/(2β))²
        apo_zero      1 − σ(βr⁺) + σ(βr⁻)
        apo_down      σ(βr⁺) + 1 − σ(βd)
        cpo           as sigmoid, without reference
        slic          as hinge, without reference
        simpo         −(1 − ε) log σ(βd̄ − γ) − ε log σ(γ − βd̄), without reference
        orpo          −β log σ(log odds p̄(y⁺) − log odds p̄(y⁻)), without reference

    Args:
        chosen: r of the chosen completions [B].
        rejected: r of the rejected completions [B].
        tokens: Number of tokens of the chosen and of the rejected completions, [B] each.
        kind: One of the losses above; `ordered_losses` has aot and aot_unpaired.
        settings: β, ε, γ, τ, and what r is replaced by: see `f_scores` and `shaped_rewards`.

    Raises:
        ValueError: The loss compares the pairs in an order, or exo_pair has no ε above 0.

    Source: Rafailov et al. 2023 (sigmoid); Mitchell 2023 (its ε); Chowdhury et al. 2024 (robust);
    Meng et al. 2024 (simpo; per token); Zhao et al. 2023 (hinge, slic); Azar et al. 2023 (ipo); Ji
    et al. 2024 (exo_pair); Lu et al. 2024 (discopop); Chen et al. 2024 (nca_pair); Jung et al. 2024
    (bco_pair); Wu et al. 2024 (sppo_hard); D'Oosterlinck et al. 2024 (apo_zero, apo_down); Xu et
    al. 2024 (cpo); Hong et al. 2024 (orpo).
    """
    traits = PAIR_LOSSES[kind]
    if traits.ordered:
        raise ValueError(f"got {kind}, which compares the pairs in an order; use ordered_losses")
    if kind == "exo_pair" and not settings.label_smoothing > 0:
        raise ValueError("exo_pair needs label_smoothing above 0, got 0; 0.001 is usual")
    if traits.divergence:
        chosen, rejected = f_scores(chosen, settings), f_scores(rejected, settings)
    if traits.per_token:
        chosen, rejected = (
            r / n.clamp_min(1) for r, n in zip((chosen, rejected), tokens, strict=True)
        )
    if traits.shape:
        chosen, rejected = (shaped_rewards(r, settings.reward_alpha) for r in (chosen, rejected))
    return _PAIR_LOSSES[kind](chosen, rejected, settings)


def ordered_losses(
    upper: Tensor,
    lower: Tensor,
    settings: PairLossSettings = PairLossSettings(),
    partners: Tensor | None = None,
) -> Tensor:
    """Return the losses of aot and aot_unpaired, [B]: `sigmoid` of the sorted values.

    aot compares log π(y⁺) − log π(y⁻) with the same of ρ, aot_unpaired r(y⁺) with r(y⁻): the
    smallest value of one side with the smallest one of the other, and so on. ε is used.

    Args:
        upper: The values that should be the larger ones [B].
        lower: The values that they are compared with [B].
        settings: β and ε.
        partners: Of more pairs than these, the value of the other side that each value of `upper`
            and of `lower` is compared with, [2, B]; None sorts these pairs alone. The gradient is
            that of the loss over all pairs.

    Source: Melnyk et al. 2024.
    """
    if partners is None:
        return _logistic(upper.sort().values - lower.sort().values, settings)
    above = _logistic(upper - partners[0].detach(), settings)
    below = _logistic(partners[1].detach() - lower, settings)
    # Each value is compared once as `upper` and once as `lower`: the mean of both is the loss, and
    # the sum of both has its gradient.
    both = above + below
    return both - both.detach() / 2


def partners_of(upper: Tensor, lower: Tensor) -> Tensor:
    """Return what each value is compared with when both sides [N] are sorted, [2, N]."""
    return torch.stack([_by_rank(upper, lower), _by_rank(lower, upper)])


def _by_rank(values: Tensor, others: Tensor) -> Tensor:
    ranks = values.argsort(stable=True).argsort(stable=True)
    return others.sort().values[ranks]


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

    With z = 0 this is apo_zero_unpaired.

    Source: Ethayarajh et al. 2024, equation 7; D'Oosterlinck et al. 2024.
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
