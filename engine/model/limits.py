"""Read vocabulary size and longest sequence of a model from its configuration, without torch."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

from ..config.model_limits import ModelLimits
from ..config.schema import ModelConfig
from .files.failures import readable_load_errors
from .progress import Progress
from .tokenizer import hub_arguments, resolve_model


def read_limits(model: ModelConfig, progress: Progress) -> ModelLimits:
    """Return vocabulary size and longest sequence of a model on this machine or on the hub.

    Raises:
        ModelError: The configuration cannot be read.
    """
    source = resolve_model(model, progress)
    with readable_load_errors(model.id):
        return limits_of(AutoConfig.from_pretrained(source, **hub_arguments(model)))


def limits_of(settings: Any) -> ModelLimits:
    """Return vocabulary size and longest sequence in a transformers configuration."""
    return ModelLimits.of(settings.get_text_config().to_dict())
