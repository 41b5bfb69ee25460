"""What the class of a trainer keeps in attributes is as it was, or refused."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Trainer

from fttui.engine.watch.huggingface import own_attributes
from fttui.engine.watch.huggingface.own_attributes import OwnAttributes, names_in_methods


class Averaging:
    """A trainer of a script, which counts, averages and draws in its methods."""

    def __init__(self) -> None:
        self.count = 0
        self.average = torch.zeros(3)
        self.seen: dict[str, Any] = defaultdict(list)
        self.last = deque([1, 2], maxlen=2)
        self.groups = [{"ids": torch.zeros(2)}, {"ids": torch.ones(2)}]
        self.names = {"a"}
        self.torch_draws = torch.Generator().manual_seed(3)
        self.python_draws = random.Random(3)
        self.numpy_draws = np.random.default_rng(3)
        self.only_built = [1]
        self.train_dataset = [1]

    @property
    def drawn(self) -> list[float]:
        """A number of each generator."""
        torch_draw = torch.rand(1, generator=self.torch_draws)
        return [float(torch_draw), self.python_draws.random(), float(self.numpy_draws.random())]

    def train_a_step(self) -> None:
        """Change all that the methods use."""
        self.count += 1
        self.average += 1.0
        self.seen["loss"].append(self.count)
        self.seen["more"] = [[self.count]]
        self.last.append(self.count)
        self.groups[0]["ids"] += 7
        self.groups[1] = {"ids": torch.full((2,), 9.0)}
        self.names.add("b")
        self.made_late = {"x": 1}
        assert self.drawn
        assert self.train_dataset


def shown(trainer: Averaging) -> str:
    values = {name: value for name, value in vars(trainer).items() if "draws" not in name}
    return repr(values)


@pytest.fixture
def trainer() -> Averaging:
    return Averaging()


def test_every_attribute_is_as_it_was_each_time(trainer: Averaging) -> None:
    own = OwnAttributes(trainer)
    before, groups = shown(trainer), trainer.groups
    kept = own.capture()
    ahead = []
    for _ in range(2):
        trainer.train_a_step()
        assert shown(trainer) != before
        own.restore(kept)
        assert shown(trainer) == before
        ahead.append(trainer.drawn)
        trainer.train_a_step()
        own.restore(kept)
    assert ahead[0] == ahead[1]
    assert trainer.groups is groups  # what else refers to it sees the same
    assert own.why_lost(kept) == ""


def test_what_only_the_constructor_uses_is_left_alone() -> None:
    names = names_in_methods(Averaging)
    assert {"count", "torch_draws", "made_late"} <= names
    assert "only_built" not in names


def test_methods_of_transformers_itself_are_not_searched() -> None:
    class Counts(Trainer):  # type: ignore[misc]  # transformers is untyped
        def training_step(self, *given: Any) -> Any:
            self.steps_of_mine += 1
            return super().training_step(*given)

    names = names_in_methods(Counts)
    assert "steps_of_mine" in names
    assert "is_in_train" not in names


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: torch.zeros(9), lambda data: data.add_(1)),
        (lambda: list(range(9)), lambda data: data.append(1)),
    ],
)
def test_large_data_that_was_changed_in_place_is_named(
    make: Callable[[], Any],
    change: Callable[[Any], Any],
    trainer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_attributes, "_COPIED_ELEMENTS", 8)
    monkeypatch.setattr(own_attributes, "_COPIED_ENTRIES", 8)
    trainer.average = make()
    own = OwnAttributes(trainer)
    kept, data = own.capture(), trainer.average
    assert own.why_lost(kept) == ""
    trainer.average = None  # replaced, not changed
    own.restore(kept)
    assert trainer.average is data
    change(data)
    assert own.why_lost(kept) == (
        "trainer.average is too large to be copied and has been changed in place since"
    )
