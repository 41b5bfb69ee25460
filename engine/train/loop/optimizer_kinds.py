"""The optimizers that transformers does not make, each built by one function of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer

from ...config.schema import TrainConfig
from ...config.sections.optimizers import base_key
from ...errors import ConfigError
from ..patches import share_optimizer

Groups = list[dict[str, Any]]
Build = Callable[[Groups, TrainConfig, dict[str, Any]], Optimizer]
"""Builds an optimizer from its parameter groups, the recipe, and the settings that were given."""

LOOKAHEAD_STEPS, LOOKAHEAD_SHARE = 5, 0.5
"""Steps between two synchronizations, and how far the slow weights then go towards the fast ones.

Source: Zhang et al. 2019, "Lookahead Optimizer: k steps forward, 1 step back".
"""


def build_own(name: str, groups: Groups, recipe: TrainConfig) -> Optimizer:
    """Return an optimizer of `OWN` over parameter groups.

    Raises:
        ConfigError: It is in a package that is not installed.
    """
    return OWN[name](groups, recipe, moments(recipe))


def moments(recipe: TrainConfig) -> dict[str, Any]:
    """Return betas, epsilon and momentum as arguments of an optimizer; None is left out."""
    given = {"betas": recipe.betas, "eps": recipe.epsilon, "momentum": recipe.momentum}
    return {name: value for name, value in given.items() if value is not None}


def _of_package(kind: str, *, projected: bool = False, **settings: Any) -> Build:
    """Return the builder of an optimizer of pytorch-optimizer.

    `settings` are arguments that differ from the package's defaults; `projected` adds those of
    `train.projection` to the groups.
    """

    def build(groups: Groups, recipe: TrainConfig, given: dict[str, Any]) -> Optimizer:
        try:
            package = import_module("pytorch_optimizer")
        except ModuleNotFoundError as error:
            if error.name != "pytorch_optimizer":
                raise
            raise ConfigError(
                f"{base_key(recipe)}: {recipe.base_optimizer} is in the package pytorch-optimizer, "
                "which is not installed; pip install 'fttui[optimizers]', or choose adamw"
            ) from None
        if projected:
            groups = [{**group, **_projection(recipe)} for group in groups]
        made: Optimizer = getattr(package, kind)(groups, lr=recipe.lr, **settings, **given)
        return made

    return build


def _projection(recipe: TrainConfig) -> dict[str, Any]:
    found = recipe.projection
    return {
        "rank": found.rank,
        "update_proj_gap": found.every,
        "scale": found.scale,
        "projection_type": "std",
    }


def _muon(groups: Groups, recipe: TrainConfig, given: dict[str, Any]) -> Optimizer:
    return MuonWithAdamW(groups, recipe.lr, **given)


def _lookahead(groups: Groups, recipe: TrainConfig, given: dict[str, Any]) -> Optimizer:
    return LookaheadAdamW(groups, lr=recipe.lr, **given)


def _sophia(groups: Groups, recipe: TrainConfig, given: dict[str, Any]) -> Optimizer:
    return SophiaG(groups, recipe.lr, rho=recipe.sophia.rho, **given)


def _sgd(groups: Groups, recipe: TrainConfig, given: dict[str, Any]) -> Optimizer:
    return torch.optim.SGD(groups, lr=recipe.lr, **given)


OWN: dict[str, Build] = {
    "sgd": _sgd,
    "muon": _muon,
    "lookahead": _lookahead,
    "sophia": _sophia,
    # The LAMB of bitsandbytes has a trust ratio of zero for a zero matrix, which LoRA's B is at the
    # start, so that B would never change. Clipping is left to `train.clip`.
    "lamb": _of_package("Lamb", max_grad_norm=0.0),
    "ranger": _of_package("Ranger"),
    "lars": _of_package("LARS"),
    "adan": _of_package("Adan", weight_decouple=True),
    "ademamix": _of_package("AdEMAMix", weight_decouple=True),
    "adopt": _of_package("ADOPT", weight_decouple=True),
    "stable_adamw": _of_package("StableAdamW"),
    "galore": _of_package("GaLore", projected=True),
    "apollo": _of_package("APOLLO", projected=True, scale_type="channel"),
}
"""Builders by the name of the optimizer in the configuration."""


class SophiaG(Optimizer):
    """Momentum divided by an estimate of the curvature, each element bounded by the learning rate.

    The update is `lr · clip(m / max(rho · h, eps), 1)`, with the averages m of gradients and h of
    estimates. An estimate enters h with the update of its step, or never if that is refused.
    Source: Liu et al. 2023, "Sophia: A Scalable Stochastic Second-order Optimizer for Language
    Model Pre-training".
    """

    def __init__(
        self,
        groups: Groups,
        lr: float,
        *,
        rho: float = 0.04,
        betas: tuple[float, float] = (0.965, 0.99),
        eps: float = 1e-15,
    ) -> None:
        self._estimate: dict[Tensor, Tensor] = {}
        self._items: Any = 1
        super().__init__(groups, {"lr": lr, "rho": rho, "betas": betas, "eps": eps})

    def take_estimate(self, estimate: dict[Tensor, Tensor], items: Any) -> None:
        """Keep the gradient of a mean loss over `items` drawn targets for the next update."""
        self._estimate, self._items = estimate, items

    def drop_estimate(self) -> None:
        """Forget an estimate that no update has used."""
        self._estimate = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the weights that have a gradient."""
        if closure is not None:
            raise TypeError("a closure is not supported; compute the gradients before the step")
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)
        self.drop_estimate()

    def _update(self, weight: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[weight], group["betas"]
        if not state:
            state["exp_avg"] = torch.zeros_like(weight)
            state["curvature"] = torch.zeros_like(weight)
        estimate = self._estimate.get(weight)
        if estimate is not None:
            state["curvature"].lerp_((estimate**2 * self._items).to(weight.dtype), 1 - beta2)
        mean = state["exp_avg"].lerp_(weight.grad, 1 - beta1)
        divisor = (state["curvature"] * group["rho"]).clamp_(min=group["eps"])
        weight.mul_(1 - group["lr"] * group.get("weight_decay", 0.0))
        weight.sub_((mean / divisor).clamp_(-1, 1), alpha=group["lr"])


class LookaheadAdamW(AdamW):
    """AdamW whose weights return halfway to slow weights every `LOOKAHEAD_STEPS` steps."""

    def step(self, closure: Any = None) -> Any:
        """Update the fast weights, and every `LOOKAHEAD_STEPS` steps the slow ones."""
        fresh = [(p, p.detach().clone()) for p in self._moved() if not self.state.get(p)]
        loss = super().step(closure)
        for weight, slow in fresh:
            self.state[weight]["slow_weight"] = slow
        with torch.no_grad():
            for weight in self._moved():
                state = self.state[weight]
                if int(state["step"]) % LOOKAHEAD_STEPS == 0:
                    slow = state["slow_weight"]
                    weight.copy_(slow.lerp_(weight, LOOKAHEAD_SHARE))
        return loss

    def _moved(self) -> Iterable[Tensor]:
        for group in self.param_groups:
            yield from (p for p in group["params"] if p.grad is not None)


class MuonWithAdamW(Optimizer):
    """Muon for the matrices of layers and AdamW for all other weights, as one optimizer.

    The rates of Muon are matched to those of AdamW, so that one learning rate fits both.
    Source: Liu et al. 2025, "Muon is Scalable for LLM Training".
    """

    def __init__(
        self,
        groups: Groups,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        momentum: float = 0.95,
    ) -> None:
        self._make: dict[bool, Callable[[Groups], Optimizer]] = {
            True: lambda own: Muon(
                own, lr, weight_decay=0.0, momentum=momentum, adjust_lr_fn="match_rms_adamw"
            ),
            False: lambda own: AdamW(own, lr, betas, eps, weight_decay=0.0),
        }
        self._parts: dict[bool, Optimizer] = {}
        super().__init__(groups, {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add weights to one of the two optimizers; those without the key `matrices` get AdamW."""
        part = bool(param_group.setdefault("matrices", False))
        if part in self._parts:
            self._parts[part].add_param_group(param_group)
        else:
            self._parts[part] = self._make[part]([param_group])
        super().add_param_group(param_group)

    def step(self, closure: Any = None) -> Any:
        """Update the weights of both optimizers, with the groups and the state of this one."""
        if closure is not None:
            raise TypeError("a closure is not supported; compute the gradients before the step")
        for part, optimizer in self._parts.items():
            own = [group for group in self.param_groups if group["matrices"] is part]
            share_optimizer(optimizer, own, self.state)
            optimizer.step()
