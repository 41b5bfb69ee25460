"""Gradient flow: gradient, update and weight norms of every trained module in one update."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ...core.anomaly.progress import DEAD_SHARE
from ...protocol.event_parts import ModuleFlow
from ...protocol.events import GradientsMeasured

_WRAPPERS = re.compile(r"^(base_model\.|model\.)+|\.(default|weight)(?=\.|$)|\.lora_\w+(?=\.|$)")
_BLOCKS = re.compile(r"\.(self_attn|attn|attention|mlp)(?=\.)")
EXPLODING = 10.0
"""Multiple of the median module's gradient norm from which a module counts as exploding; the norms
of a healthy model differ by less."""


class GradientFlow:
    """Measures one update: gradients in `before`, changes of the weights in `after`.

    It costs nothing while no update is measured.
    """

    def __init__(self, model: nn.Module) -> None:
        self._groups: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self._groups.setdefault(module_name(name), []).append(parameter)
        self._reason = ""
        self._grads: list[float] = []
        self._old: list[Tensor] = []

    @property
    def measuring(self) -> bool:
        """Whether `before` was called and `after` was not."""
        return bool(self._reason)

    def before(self, reason: str, *, scale: float = 1.0) -> None:
        """Measure the gradient norms and copy the weights.

        Args:
            reason: why the update is measured.
            scale: the factor that clipping multiplied the gradients with.
        """
        self._reason = reason
        missing = torch.zeros(())
        grads = [missing if p.grad is None else p.grad.detach() for p in self._parameters()]
        self._grads = [norm / scale for norm in self._by_module(grads)]
        self._old = [p.detach().clone() for p in self._parameters()]

    def after(self) -> GradientsMeasured:
        """Return, after the update, the norms of every module and which are dead or exploding.

        The measurement that `before` began ends.
        """
        now = [p.detach() for p in self._parameters()]
        updates = self._by_module([new - old for new, old in zip(now, self._old, strict=True)])
        rows = zip(self._groups, self._grads, updates, self._by_module(now), strict=True)
        modules = [
            ModuleFlow(module=name, grad_norm=grad, update_norm=update, weight_norm=weight)
            for name, grad, update, weight in rows
        ]
        reason, self._reason, self._old = self._reason, "", []
        dead, exploding = judge(modules)
        return GradientsMeasured(modules=modules, dead=dead, exploding=exploding, reason=reason)

    def _parameters(self) -> Iterable[nn.Parameter]:
        return (parameter for group in self._groups.values() for parameter in group)

    def _by_module(self, tensors: list[Tensor]) -> list[float]:
        """Return the norm of every module, from one tensor per parameter.

        One kernel computes all norms and one copy brings them to the host.
        """
        norms = torch.stack([n.float().cpu() for n in torch._foreach_norm(tensors)]).tolist()
        found, start = [], 0
        for group in self._groups.values():
            found.append(math.hypot(*norms[start : start + len(group)]))
            start += len(group)
        return found


def module_name(parameter: str) -> str:
    """Return the module that a parameter belongs to, such as `layers.3.q_proj` of a LoRA matrix."""
    return _BLOCKS.sub("", _WRAPPERS.sub("", _WRAPPERS.sub("", parameter)))


def judge(modules: list[ModuleFlow]) -> tuple[list[str], list[str]]:
    """Return the names of the dead modules and of the exploding ones.

    The gradient norm of a dead module is far below the median of the modules, that of an exploding
    one far above it or not finite.
    """
    finite = [m.grad_norm for m in modules if math.isfinite(m.grad_norm)]
    usual = statistics.median(finite) if finite else 0.0
    dead = [m.module for m in modules if m.grad_norm <= DEAD_SHARE * usual]
    exploding = [
        m.module
        for m in modules
        if not math.isfinite(m.grad_norm) or (usual > 0 and m.grad_norm > EXPLODING * usual)
    ]
    return dead, exploding
