"""The losses of fttui as functions, for trainers and loops of your own.

Shapes: B sequences of T tokens, hidden states of width H, a vocabulary of V, N texts or pairs.
Log-probabilities and next-token losses take the last hidden states [B, T, H] and the output head
instead of logits [B, T, V], which are never held as a whole. Importing this module loads torch.

    from fttui import losses

    class MyTrainer(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels, weights = inputs.pop("labels"), inputs.pop("weights")      # [B, T], [B, T]
            hidden, head = losses.hidden_states(model, **inputs)               # [B, T, H]
            total, count = losses.selected_cross_entropy(
                hidden, labels, head, focal=2.0, weights=weights
            )
            return total / count
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fttui.engine.losses.contrastive import (
    ContrastiveResult,
    info_nce,
    pairwise_logistic,
    simctg,
    triplet,
)
from fttui.engine.losses.cross_entropy import selected_cross_entropy, token_log_probs
from fttui.engine.losses.pooling import pool
from fttui.engine.losses.preference import (
    LogProbs,
    PairLossSettings,
    completion_log_probs,
    desensitized,
    f_scores,
    ordered_losses,
    pair_losses,
    rated_losses,
    shaped_rewards,
    tail_of,
)
from fttui.engine.losses.reward import last_token_states, reward_losses, scores_of
from fttui.engine.losses.scored import cosent, pair_cosines, squared_errors
from fttui.engine.model.hidden import HiddenStates, lm_head_of

__all__ = [
    "ContrastiveResult",
    "LogProbs",
    "PairLossSettings",
    "completion_log_probs",
    "cosent",
    "desensitized",
    "f_scores",
    "hidden_states",
    "info_nce",
    "last_token_states",
    "ordered_losses",
    "pair_cosines",
    "pair_losses",
    "pairwise_logistic",
    "pool",
    "rated_losses",
    "reward_losses",
    "scores_of",
    "selected_cross_entropy",
    "shaped_rewards",
    "simctg",
    "squared_errors",
    "tail_of",
    "token_log_probs",
    "triplet",
]


def hidden_states(model: nn.Module, **inputs: Any) -> tuple[Tensor, nn.Module]:
    """Run a causal language model; return its last hidden states [B, T, H] and its output head.

    The head maps states [..., H] to the logits [..., V] of this model. Works through the wrappers
    of PEFT and DDP.

    Args:
        model: A causal language model of transformers.
        inputs: What its forward pass takes, such as `input_ids` [B, T] and `attention_mask` [B, T];
            without labels.
    """
    with HiddenStates(model) as hidden:
        model(**inputs, logits_to_keep=1)
        return hidden.take(), lm_head_of(model)
