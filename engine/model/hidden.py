"""The last hidden state of the backbone, without the logits and without the layers below."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class HiddenStates:
    """Keeps the last hidden state [B, T, H] of each forward until it is taken.

    `output_hidden_states` would keep every layer's, and a fused loss returns none; a hook on the
    backbone sees the one tensor the losses need. Works through DDP and PEFT wrappers and with
    activation checkpointing, since the backbone itself is never recomputed.

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
        """Start keeping; a second call changes nothing."""
        if self._handle is None:
            self._handle = self._backbone.register_forward_hook(self._keep)
        return self

    def detach(self) -> None:
        """Stop keeping and forget what is held."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._states = None

    def take(self) -> Tensor:
        """Return the last forward's hidden state [B, T, H], still in its graph, and forget it.

        Raises:
            RuntimeError: No forward ran since the last `take`.
        """
        states, self._states = self._states, None
        if states is None:
            raise RuntimeError("no forward through the backbone since the last take()")
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
    """Return the stack of layers below the language-model head, final norm included."""
    base: Any = base_model_of(model)
    backbone = base.get_decoder()
    if not isinstance(backbone, nn.Module) or backbone is base:
        raise TypeError(f"{type(base).__name__} has no backbone apart from its head")
    return backbone


def lm_head_of(model: nn.Module) -> nn.Module:
    """Return the map from hidden states [..., H] to logits [..., V] this model trains with.

    Most models project and are done. Where the configuration scales or caps the logits after the
    projection, the returned module does so too, so that a loss computed from hidden states is
    the model's own.
    """
    base: Any = base_model_of(model)
    head: nn.Module = base.get_output_embeddings()
    config = base.config.get_text_config()
    scale = _logit_scale(config)
    cap = getattr(config, "final_logit_softcapping", None)
    return head if scale == 1.0 and cap is None else ShapedHead(head, scale, cap)


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
    """The factor on the logits, which some families name and some name the inverse of."""
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        factor = getattr(config, name, None)
        if factor is not None:
            return float(factor)
    scaling = getattr(config, "logits_scaling", None)
    if scaling is None:
        return 1.0
    return float(scaling) if config.model_type == "hyperclovax" else 1.0 / float(scaling)
