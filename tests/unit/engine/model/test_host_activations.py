"""Checkpoints on the host change where bytes wait, and not one bit of the result."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fttui.engine.model.host_activations import HostActivations, _Lane, _Parked

CPU = torch.device("cpu")


def stack() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5)) for _ in range(3)]


def passed(layers: list[nn.Module], through: Any, rows: Tensor) -> Tensor:
    states = rows.clone().requires_grad_()
    for layer in layers:
        states = through(layer, states)
    return states


def gradients(layers: list[nn.Module]) -> list[Tensor]:
    found = [p.grad.clone() for layer in layers for p in layer.parameters() if p.grad is not None]
    for layer in layers:
        layer.zero_grad()
    return found


def test_gradients_are_the_same_bits_also_with_two_graphs_at_once() -> None:
    layers, on_host = stack(), HostActivations()
    rows = torch.randn(2, 5, 8)
    both = []
    for through in (partial(checkpoint, use_reentrant=False), on_host):
        torch.manual_seed(1)
        outputs = []
        for part in rows:
            on_host.begin()
            outputs.append(passed(layers, through, part))
        (outputs[0].sum() * 2 + outputs[1].square().sum()).backward()
        both.append(gradients(layers))
    assert len(both[0]) == 6
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))


def test_the_next_layers_input_is_on_its_way_and_all_are_let_go(monkeypatch) -> None:
    order: list[tuple[str, int]] = []
    numbers: dict[int, int] = {}
    take, prefetch, init = _Parked.take, _Parked.prefetch, _Parked.__init__

    def made(self: Any, *args: Any) -> None:
        init(self, *args)
        numbers[id(self)] = len(numbers)

    def fetched(self: Any) -> None:
        if self._arriving is None:
            order.append(("fetch", numbers[id(self)]))
        prefetch(self)

    def taken(self: Any) -> Tensor:
        order.append(("take", numbers[id(self)]))
        return take(self)

    monkeypatch.setattr(_Parked, "__init__", made)
    monkeypatch.setattr(_Parked, "prefetch", fetched)
    monkeypatch.setattr(_Parked, "take", taken)
    on_host = HostActivations()
    passed(stack(), on_host, torch.randn(5, 8)).sum().backward()
    assert order == [
        ("take", 2), ("fetch", 2), ("fetch", 1),
        ("take", 1), ("fetch", 0),
        ("take", 0),
    ]  # fmt: skip
    assert on_host._newest is not None
    assert on_host._newest() is None


def test_without_a_gradient_nothing_is_kept() -> None:
    on_host = HostActivations()
    with torch.no_grad():
        passed(stack(), on_host, torch.randn(5, 8))
    assert on_host._newest is None


def test_each_tensor_comes_back_to_its_own_device(monkeypatch) -> None:
    """PyTorch's checkpoints keep an empty tensor of the CPU before the input of the layer."""
    monkeypatch.setattr(_Lane, "to_host", lambda _, tensor: torch.empty(tensor.shape))
    monkeypatch.setattr(_Lane, "to_device", lambda self, host: host.to(self._device))
    on_host = HostActivations()
    parked = [on_host._park(torch.empty(3, device=device)) for device in ("cpu", "meta", "cpu")]
    assert [on_host._fetch(one).device.type for one in parked] == ["cpu", "meta", "cpu"]
