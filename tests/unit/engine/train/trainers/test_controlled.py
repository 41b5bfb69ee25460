"""The engine's trainer passes on what control asks of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from fttui.engine.protocol.commands import SetDropout
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.train.control.controlled_trainer import EvalResult
from fttui.engine.train.position import Position
from fttui.engine.train.trainers.controlled import EngineTrainer


class Examples:
    """In place of the evaluator."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def evaluate(self, interrupted: Any) -> EvalResult:
        return EvalResult({"loss": 1.0}, 2.0)

    def sample(self, prompt: str) -> str:
        return prompt.upper()


def engine_trainer(examples: int, happened: list[str]) -> tuple[EngineTrainer, Any]:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    optimizer.param_groups[0]["lr_ratio"] = 2.0
    optimizer.param_groups[0]["spared"] = False
    trainer: Any = SimpleNamespace(
        position=Position(),
        optimizer=optimizer,
        sharded=None,
        generates=True,
        model=torch.nn.Linear(1, 1),
        recipe=SimpleNamespace(weight_decay=0.1),
    )
    offload: Any = SimpleNamespace(release=lambda: 7, reclaim=lambda: happened.append("reclaim"))
    data, state, evaluator = (
        cast("Any", "data"),
        cast("Any", "state"),
        cast("Any", Examples(examples)),
    )
    return EngineTrainer(trainer, data, state, evaluator, offload), trainer


def test_it_passes_on_what_control_asks() -> None:
    happened: list[str] = []
    engine, trainer = engine_trainer(1, happened)
    assert engine.position is trainer.position
    assert set(engine.refuses) == {SetDropout}
    assert (str(engine.data), str(engine.state)) == ("data", "state")
    assert engine.evaluate(lambda: False).metrics == {"loss": 1.0}
    assert engine.sample("hello") == "HELLO"
    assert engine.release_memory() == 7
    assert happened == []
    engine.reclaim_memory()
    assert happened == ["reclaim"]


def test_a_rate_is_set_in_every_group_as_a_multiple() -> None:
    engine, trainer = engine_trainer(1, [])
    engine.set_lr(0.25)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.5


def test_it_can_evaluate_only_with_held_out_examples() -> None:
    assert engine_trainer(1, [])[0].can_evaluate
    assert not engine_trainer(0, [])[0].can_evaluate


def test_a_weight_decay_holds_until_the_configured_one_is_back() -> None:
    engine, trainer = engine_trainer(1, [])
    decays = []
    for value in (0.5, 0.5, None):
        engine.prepare(RunSettings(weight_decay=value))
        decays.append(trainer.optimizer.param_groups[0]["weight_decay"])
    assert decays == [0.5, 0.5, 0.1]
    assert "belongs to an adapter" in engine.refuses[SetDropout]
