"""The pairwise loss of reward models (Bradley-Terry), with margins and centring."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .numerics import widened


def reward_losses(
    chosen: Tensor, rejected: Tensor, margins: Tensor | None = None, centering: float = 0.0
) -> Tensor:
    """Return −log σ(s⁺ − s⁻ − m) + c (s⁺ + s⁻)² of every pair, [B].

    Args:
        chosen: Scores s⁺ of the chosen answers [B].
        rejected: Scores s⁻ of the rejected answers [B].
        margins: m, by how much s⁺ should exceed s⁻ [B]; None is 0.
        centering: c, the weight of the square of the sum, which keeps scores around 0.

    Source: Ouyang et al. 2022 (pairwise); Touvron et al. 2023 (margins); Eisenstein et al. 2023
    (centring).
    """
    lead = chosen - rejected
    losses = -F.logsigmoid(lead if margins is None else lead - margins)
    return losses if not centering else losses + centering * (chosen + rejected).square()


def last_token_states(hidden: Tensor, input_ids: Tensor, pad_id: int) -> Tensor:
    """Return the hidden state [B, H] of the last token of each text that is not the pad token.

    transformers' sequence classifiers take their scores from this token, so that an EOS which is
    also the pad token does not count. A text of pad tokens alone gives its first state.

    Args:
        hidden: Hidden states [B, T, H].
        input_ids: [B, T] token ids, padded with `pad_id`.
        pad_id: Id of the pad token.
    """
    places = torch.arange(input_ids.shape[1], device=input_ids.device)
    last = (places * (input_ids != pad_id)).argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def scores_of(states: Tensor, weight: Tensor) -> Tensor:
    """Return the scores [B] of states [B, H] by a head of one row [1, H], in fp32 or wider."""
    with torch.autocast(states.device.type, enabled=False):
        return F.linear(widened(states), widened(weight)).squeeze(-1)
