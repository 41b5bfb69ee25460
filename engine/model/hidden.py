"""The last hidden states of a model, its backbone, and its output head."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..config.memory.architecture import LOGIT_CAPS, LOGIT_FACTORS
from ..losses.numerics import in_weight_dtype


class HiddenStates:
    """Captures the last hidden states [B, T, H] of each forward pass.

    `output_hidden_states` would keep those of every layer, and a fused loss returns none; a hook on
    the backbone receives the one tensor that the losses need. It works through DDP and PEFT
    wrappers and with activation checkpointing, because the backbone itself is never recomputed.

    Use as a context manager, or call `attach` and `detach`:

        with HiddenStates(model) as hidden:
            model(input_ids=ids, attention_mask=mask, logits_to_keep=1)
            states = hidden.take()
    """

    def __init__(self, model: nn.Module) -> None:
        self._backbone = backbone_of(model)
        self._handle: RemovableHandle | None = None
        self._states: Tensor | None = None

    def attach(self) -> HiddenStates:
        """Register the hook; further calls have no effect."""
        if self._handle is None:
            self._handle = self._backbone.register_forward_hook(self._keep)
        return self

    def detach(self) -> None:
        """Remove the hook and the captured states."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._states = None

    def take(self) -> Tensor:
        """Return and release the hidden states [B, T, H] of the last forward pass, in their graph.

        Raises:
            RuntimeError: No forward pass ran since the last `take`.
        """
        states, self._states = self._states, None
        if states is None:
            raise RuntimeError("no forward pass through the backbone since the last take()")
        return states

    def __enter__(self) -> HiddenStates:
        return self.attach()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def _keep(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._states = output[0] if isinstance(output, tuple) else output.last_hidden_state


def base_model_of(model: nn.Module) -> nn.Module:
    """Return the transformers model inside DDP, compile and PEFT wrappers."""
    inner = model
    while True:
        if isinstance(getattr(inner, "module", None), nn.Module):
            inner = inner.module  # type: ignore[assignment]  # an nn.Module, by the line above
        elif isinstance(getattr(inner, "_orig_mod", None), nn.Module):
            inner = inner._orig_mod  # type: ignore[assignment]  # an nn.Module, by the line above
        elif hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()  # type: ignore[operator]  # a PeftModel's method
        else:
            return inner


def backbone_of(model: nn.Module) -> nn.Module:
    """Return the layers below the output head, final norm included.

    Raises:
        TypeError: The model has no backbone apart from its head.
        AttributeError: The model has no method `get_decoder`.
    """
    base: Any = base_model_of(model)
    backbone = base.get_decoder()
    if not isinstance(backbone, nn.Module) or backbone is base:
        raise TypeError(
            f"{type(base).__name__} has no backbone separate from its head; choose a causal "
            "language model whose get_decoder() returns its backbone"
        )
    return backbone


def lm_head_of(model: nn.Module) -> nn.Module:
    """Return the module that maps hidden states [..., H] to the logits [..., V] of this model.

    For most models it is the output projection. If the configuration scales or caps the logits, the
    returned module does so as well, so that a loss on hidden states equals the model's own loss.
    """
    base: Any = base_model_of(model)
    head: nn.Module = base.get_output_embeddings()
    config = base.config.get_text_config()
    scale = _logit_scale(config)
    cap = next((cap for name in LOGIT_CAPS if (cap := getattr(config, name, None))), None)
    return head if scale == 1.0 and cap is None else ShapedHead(head, scale, cap)


def give_states_for_head(model: nn.Module) -> None:
    """Make the backbone return its hidden states in the dtype of the head's weights, by a hook.

    In mixed precision, layer norms and residuals in fp32 give fp32 states. A head with 16-bit
    weights that is called outside autocast would fail with them.

    Raises:
        TypeError, AttributeError: The model has no backbone apart from its head.
    """
    base: Any = base_model_of(model)
    head = base.get_output_embeddings()

    def converted(module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (in_weight_dtype(output[0], head), *output[1:])
        output.last_hidden_state = in_weight_dtype(output.last_hidden_state, head)
        return output

    backbone_of(model).register_forward_hook(converted)


class ShapedHead(nn.Module):
    """A projection whose logits are scaled, then softly capped: `cap · tanh(logits / cap)`."""

    def __init__(self, projection: nn.Module, scale: float, cap: float | None) -> None:
        super().__init__()
        self.projection = projection
        self.scale = scale
        self.cap = cap

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., H] to logits [..., V]."""
        project: Callable[[Tensor], Tensor] = self.projection
        logits = project(hidden) * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


def _logit_scale(config: Any) -> float:
    """Return the factor on the logits, 1 if none is configured.

    Some configurations hold its inverse.
    """
    for name in LOGIT_FACTORS:
        factor = getattr(config, name, None)
        if factor is not None:
            return float(factor)
    scaling = getattr(config, "logits_scaling", None)
    if scaling is None:
        return 1.0
    return float(scaling) if config.model_type == "hyperclovax" else 1.0 / float(scaling)
