"""The head of a reward model: one number per text, from the hidden state of its last token."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from ...errors import ModelError
from ..hidden import base_model_of

SCORE = "score"
"""Name of the head in transformers' sequence classifiers, and here in the language model."""


def add_score_head(base: Any, seed: int, device: torch.device) -> None:
    """Give a language model a head with one output, with initial weights from a seed.

    Raises:
        ModelError: transformers has no sequence classifier for this kind of model, so that the
            trained one could not be exported.
    """
    classifier = _classifier(base.config)
    if not isinstance(getattr(classifier, SCORE, None), nn.Linear):
        raise ModelError(
            f"task: reward needs a model with a sequence classifier in transformers whose head is "
            f"named {SCORE}, but {type(base).__name__} has none. Choose another model, such as a "
            "Llama, Qwen, Mistral or Gemma."
        )
    width = base.config.get_text_config().hidden_size
    generator = torch.Generator().manual_seed(seed)
    weight = torch.empty(1, width).normal_(
        std=base.config.get_text_config().initializer_range, generator=generator
    )
    head = nn.Linear(width, 1, bias=False, device="meta")
    head.weight = nn.Parameter(weight.to(device), requires_grad=False)
    base.score = head


def score_weight(model: nn.Module) -> nn.Parameter:
    """Return the trained weight [1, H] of the head of a model with `add_score_head`."""
    head: Any = base_model_of(model).score
    copies = getattr(head, "modules_to_save", None)
    weight: nn.Parameter = (head if copies is None else copies["default"]).weight
    return weight


def as_classifier(model: Any) -> Any:
    """Return a language model with a head as a sequence classifier with the same weights.

    Raises:
        ModelError: The classifier has a weight that the language model does not have.
    """
    classifier = _classifier(model.config)
    found = classifier.load_state_dict(model.state_dict(), strict=False, assign=True)
    if found.missing_keys:
        raise ModelError(
            f"the sequence classifier of {type(model).__name__} has a weight that the trained "
            f"model does not have: {found.missing_keys[0]}; export the adapter with --adapter"
        )
    return classifier


def _classifier(config: Any) -> Any:
    """Return the sequence classifier of a kind of model, without weights; None without one."""
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return None
    own = copy.deepcopy(config)
    own.num_labels = 1
    with torch.device("meta"):
        return AutoModelForSequenceClassification.from_config(own)
