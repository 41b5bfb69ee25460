from __future__ import annotations

import torch
from torch import nn

from fttui.engine.train.cuda_graphs.gradients import StaticGradients


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, dtype=torch.float64))
    made.get_parameter("0.bias").requires_grad_(False)
    return made


def grad(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def ones(static: StaticGradients) -> list[torch.Tensor | None]:
    return [torch.ones_like(parameter) for parameter in static.parameters]


def test_gradients_add_up_in_place() -> None:
    static = StaticGradients(model().parameters())
    static.attach()
    places = [grad(p).data_ptr() for p in static.parameters]
    static.add(ones(static))
    static.attach()
    static.add(ones(static))
    assert all(torch.equal(grad(p), torch.full_like(p, 2.0)) for p in static.parameters)
    assert [grad(p).data_ptr() for p in static.parameters] == places


def test_what_was_set_to_none_counts_as_zero_and_stays_in_place() -> None:
    made = model()
    static = StaticGradients(made.parameters())
    static.attach()
    static.add(ones(static))
    places = [grad(p).data_ptr() for p in static.parameters]
    made.zero_grad(set_to_none=True)
    static.attach()
    assert all(not grad(p).any() for p in static.parameters)
    assert [grad(p).data_ptr() for p in static.parameters] == places


def test_gradients_of_others_are_taken_over() -> None:
    static = StaticGradients(model().parameters())
    static.attach()
    static.add(ones(static))
    first, second, *_ = static.parameters
    first.grad, second.grad = torch.full_like(first, 5.0), None
    static.attach()
    assert torch.equal(grad(first), torch.full_like(first, 5.0))
    assert not grad(second).any()


def test_a_parameter_without_a_part_in_it_keeps_what_it_has() -> None:
    static = StaticGradients(model().parameters())
    static.attach()
    static.add(ones(static))
    static.add([None, *ones(static)[1:]])
    assert torch.equal(grad(static.parameters[0]), torch.ones_like(static.parameters[0]))


def test_frozen_parameters_have_no_gradient() -> None:
    made = model()
    static = StaticGradients(made.parameters())
    static.attach()
    assert made.get_parameter("0.bias").grad is None
    assert len(static.parameters) == 3


def test_released_gradients_start_from_zero() -> None:
    static = StaticGradients(model().parameters())
    static.attach()
    static.add(ones(static))
    static.release()
    assert all(p.grad is None for p in static.parameters)
    static.attach()
    assert all(not grad(p).any() for p in static.parameters)


def test_alone_there_is_nobody_to_share_with_or_to_average_over() -> None:
    static = StaticGradients(model().parameters())
    static.attach()
    static.add(ones(static))
    static.share_weights()
    static.average_over_ranks()
    assert all(torch.equal(grad(p), torch.ones_like(p)) for p in static.parameters)
