"""Weights that are moved along their gradients, and come back to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fttui.engine.config.sections.train import SamConfig
from fttui.engine.train.loop.passes.sharpness import moved_uphill


def weights(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for shape in ((5, 3), (7,)):
        weight = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
        weight.grad = torch.randn(shape, generator=generator).to(dtype)
        found.append(weight)
    return found


def test_the_change_has_the_norm_rho_and_the_direction_of_the_gradient() -> None:
    found = weights()
    before = [weight.detach().clone() for weight in found]
    with moved_uphill(found, SamConfig(rho=0.5)):
        change = torch.cat([(w - b).flatten() for w, b in zip(found, before, strict=True)])
    gradient = torch.cat([w.grad.flatten() for w in found if w.grad is not None])
    torch.testing.assert_close(change.detach(), 0.5 * gradient / gradient.norm())


def test_asam_does_not_depend_on_the_scale_of_the_weights() -> None:
    """Scaling weights by 10 scales their gradients by 1/10, and then their change by 10."""
    relative = []
    for scale in (1, 10):
        found = weights()
        with torch.no_grad():
            for weight in found:
                weight.mul_(scale)
                assert weight.grad is not None
                weight.grad /= scale
        before = [weight.detach().clone() for weight in found]
        with moved_uphill(found, SamConfig(rho=0.5, adaptive=True)):
            relative += [(w - b).detach() / b for w, b in zip(found, before, strict=True)]
    torch.testing.assert_close(relative[:2], relative[2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_come_back_to_the_last_bit_also_after_an_error(dtype: torch.dtype) -> None:
    found = weights(dtype)
    before = [weight.detach().clone() for weight in found]
    moved = []

    def fails() -> None:
        with moved_uphill(found, SamConfig(rho=1e3)):
            moved.append(found[0].detach().clone())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert not torch.equal(moved[0], before[0])
    assert all(torch.equal(w, b) for w, b in zip(found, before, strict=True))


def test_a_gradient_that_is_not_finite_is_passed_on() -> None:
    found = weights()
    assert found[0].grad is not None
    found[0].grad[0, 0] = torch.inf
    with moved_uphill(found, SamConfig()):
        assert found[0].isnan().any()
    assert not found[0].isnan().any()


def test_weights_without_a_gradient_stay() -> None:
    with moved_uphill([], SamConfig()):
        pass
