"""Every optimizer a run can have, and whether its state comes back to the last bit."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fttui.engine.config.schema import TrainConfig
from fttui.engine.config.sections.optimizers import OPTIMIZERS
from fttui.engine.train.checkpoint.optimizer_state import (
    capture_optimizer,
    misfit,
    restore_optimizer,
    state_scalars,
    state_tensors,
)
from fttui.engine.train.checkpoint.rng import (
    capture_rng,
    restore_rng,
    rng_from_tensors,
    rng_to_tensors,
)
from fttui.engine.train.loop.optimizer_kinds import OWN, SophiaG, build_own

Make = Callable[[list[Tensor]], Any]
SHAPES = ((512, 256), (96, 64), (7,))
"""Large enough to be paged, large enough for 8 bits, and too small for either."""
SLOW_SHAPES = ((40, 24), (7,))
"""For optimizers that multiply or decompose matrices, which takes long on a CPU."""


def makers() -> dict[str, Make]:
    """As the trainer makes them for `train.optimizer`, and some that only scripts have."""
    from bitsandbytes import optim
    from transformers.optimization import Adafactor

    return {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
        "adamw_8bit": lambda p: optim.AdamW(p, lr=1e-2, weight_decay=0.1, optim_bits=8),
        "paged_adamw_8bit": lambda p: optim.AdamW(p, lr=1e-2, optim_bits=8, is_paged=True),
        "lion": lambda p: optim.Lion(p, lr=1e-3, weight_decay=0.1),
        "lion_8bit": lambda p: optim.Lion(p, lr=1e-3, weight_decay=0.1, optim_bits=8),
        "paged_lion_8bit": lambda p: optim.Lion(p, lr=1e-3, optim_bits=8, is_paged=True),
        "adafactor": lambda p: Adafactor(p, lr=1e-2, scale_parameter=False, relative_step=False),
        "adafactor, own lr": Adafactor,
        "sgd, momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
        "sam": lambda p: torch.optim.AdamW(p, lr=1e-2),  # the weights it keeps are no state
        **{name: _own(name) for name in OWN},
    }


def _own(name: str) -> Make:
    """Make an optimizer of `loop.optimizer_kinds` over matrices and other weights."""

    def make(weights: list[Tensor]) -> Any:
        recipe = TrainConfig(optimizer=name, lr=1e-3)  # type: ignore[arg-type]  # a name of the table
        groups = [
            {
                "params": [weight for weight in weights if (weight.ndim == 2) is matrices],
                "matrices": matrices,
                "weight_decay": 0.1 * matrices,
            }
            for matrices in (True, False)
        ]
        return build_own(name, groups, recipe)

    if OPTIMIZERS[name].matrices_only or OPTIMIZERS[name].projects:
        setattr(make, "shapes", SLOW_SHAPES)  # noqa: B010 -- a function has no such attribute
    return make


class Trained:
    """A few weights of different size, and an optimizer that has them."""

    def __init__(self, make: Make, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)  # apollo draws its projections
        self.weights = [
            torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
            for shape in getattr(make, "shapes", SHAPES)
        ]
        self.optimizer = make(self.weights)

    def train(self, *steps: int) -> Trained:
        """Update with gradients that depend on the step alone."""
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            for weight in self.weights:
                weight.grad = torch.randn(weight.shape, generator=generator).to(weight)
            if isinstance(self.optimizer, SophiaG) and step % 2 == 0:
                self.optimizer.take_estimate({w: w.grad / 8 for w in self.weights}, 40)  # type: ignore[misc, operator]
            self.optimizer.step()
        return self

    def save(self) -> bytes:
        """Weights and optimizer as a checkpoint holds them."""
        buffer = io.BytesIO()
        weights = [weight.detach() for weight in self.weights]
        found = {"weights": weights, "optimizer": capture_optimizer(self.optimizer)}
        torch.save({**found, "rng": rng_to_tensors(capture_rng())}, buffer)
        return buffer.getvalue()

    def load(self, saved: bytes) -> Trained:
        """Go back to it, in place."""
        found = torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
        assert misfit(self.optimizer, found["optimizer"]) is None
        with torch.no_grad():
            for weight, value in zip(self.weights, found["weights"], strict=True):
                weight.copy_(value)
        restore_optimizer(self.optimizer, found["optimizer"])
        restore_rng(rng_from_tensors(found["rng"]))
        return self

    def bits(self) -> list[Any]:
        """Everything, to the last bit."""
        state = capture_optimizer(self.optimizer)
        tensors = [*self.weights, *state_tensors(state)]
        raw = [t.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors]
        return [*raw, state_scalars(state), state["groups"]]

    def addresses(self) -> set[int]:
        """Where the optimizer's tensors of a weight's size are."""
        held = state_tensors(capture_optimizer(self.optimizer))
        return {tensor.data_ptr() for tensor in held if tensor.numel() > 1}


def goes_back(make: Make, to: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> bool:
    """Train past step `to`, go back in the same process, and end as if nothing had happened."""
    straight = Trained(make, device, dtype).train(*range(8)).bits()
    one = Trained(make, device, dtype).train(*range(to))
    saved = one.save()
    return one.train(90, 91, 92).load(saved).train(*range(to, 8)).bits() == straight


def goes_on(make: Make, at: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> bool:
    """Save at a step, load into a new optimizer, and end as if nothing had happened."""
    straight = Trained(make, device, dtype).train(*range(8)).bits()
    saved = Trained(make, device, dtype).train(*range(at)).save()
    return Trained(make, device, dtype).load(saved).train(*range(at, 8)).bits() == straight
