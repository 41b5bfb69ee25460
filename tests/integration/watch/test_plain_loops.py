"""Plain PyTorch loops under watch: exact rollbacks, commands, and what the loop keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fttui.engine.protocol.events import (
    CommandFailed,
    LogEmitted,
    RolledBack,
    RunEnded,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlWriter
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.controlled_session import SessionOutcome
from fttui.engine.train.loop.step_loop import StepLoop
from fttui.engine.watch import script_run
from fttui.engine.watch.plain.loop import watch_loop
from fttui.engine.watch.watch_options import WatchOptions
from tests.support.training import Played, Script, ScriptedEventLog, read_records

EPOCHS, ACCUMULATE = 3, 2
Patch = pytest.MonkeyPatch


@dataclass
class Loop:
    """The objects of a user's loop: dropout, shuffling, a clip of its own, a schedule."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    loader: DataLoader[Any]

    @classmethod
    def make(cls) -> Loop:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        x = torch.randn(32, 4)
        data = TensorDataset(x, x.sum(1, keepdim=True))
        return cls(model, optimizer, scheduler, DataLoader(data, batch_size=4, shuffle=True))

    def train(self, batches: Callable[[Any], Any], log: Callable[..., None]) -> None:
        seen = 0
        for _ in range(EPOCHS):
            for x, y in batches(self.loader):
                loss = (self.model(x) - y).square().mean()
                (loss / ACCUMULATE).backward()
                log(loss=loss, spread=float(y.std()))
                seen += 1
                if seen % ACCUMULATE == 0:
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()

    @property
    def weights(self) -> Tensor:
        return torch.cat([value.flatten().float() for value in self.model.state_dict().values()])


def alone() -> Loop:
    loop = Loop.make()
    loop.train(iter, lambda **figures: None)
    return loop


def play(folder: Path, monkeypatch: Patch, script: Script | None = None) -> tuple[Loop, Played]:
    monkeypatch.setenv("FTTUI_RUNS", str(folder / "runs"))
    monkeypatch.setattr(script_run, "launch_hub", lambda run: None)
    writers: list[ControlWriter] = []

    def scripted(run: RunDirectory | None, writer: Any) -> ScriptedEventLog:
        assert run is not None
        writers.append(ControlWriter(run))
        return ScriptedEventLog(writer, writers[0], script or Script(), 1)

    loop = Loop.make()
    options = WatchOptions(accumulate=ACCUMULATE, steps=12, make_event_log=scripted)
    run = watch_loop(loop.model, loop.optimizer, loop.scheduler, options)
    assert run is not None
    with run:
        loop.train(run.batches, run.log)
    writers[0].close()
    (path,) = (folder / "runs").iterdir()
    directory = RunDirectory(path)
    outcome = SessionOutcome(RunState.FINISHED, None)
    return loop, Played(directory, outcome, read_records(directory))


def test_a_watched_loop_without_commands_is_the_same_loop(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    loop, played = play(tmp_path, monkeypatch)
    assert torch.equal(loop.weights, alone().weights)
    steps = played.at(StepFinished)
    assert [number for number, _ in steps] == list(range(1, 13))
    assert [step.samples for _, step in steps] == [8] * 12
    assert steps[3][1].epoch == 1.0
    assert "spread" in steps[0][1].extra
    assert steps[0][1].loss > 0.1
    (ended,) = played.events(RunEnded)
    assert ended.state is RunState.FINISHED


def test_a_rolled_back_loop_ends_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    script = Script({3: ["checkpoint"], 6: ["rollback 3"], 10: ["rollback 0"]})
    loop, played = play(tmp_path, monkeypatch, script)
    assert played.events(CommandFailed) == []
    back = played.events(RolledBack)
    assert [(one.from_step, one.to_step) for one in back] == [(6, 3), (10, 0)]
    assert torch.equal(loop.weights, alone().weights)


def test_objects_of_accelerate_are_rolled_back_alike(tmp_path: Path, monkeypatch: Patch) -> None:
    from accelerate import Accelerator

    plain = Loop.make

    def prepared() -> Loop:
        loop = plain()
        made = (loop.model, loop.optimizer, loop.scheduler, loop.loader)
        return Loop(*Accelerator(cpu=True, step_scheduler_with_optimizer=False).prepare(*made))

    monkeypatch.setattr(Loop, "make", prepared)
    script = Script({3: ["checkpoint"], 6: ["rollback 3", "lr scale 1"], 10: ["rollback 0"]})
    loop, played = play(tmp_path, monkeypatch, script)
    assert played.events(CommandFailed) == []
    assert len(played.events(RolledBack)) == 2
    assert torch.equal(loop.weights, alone().weights)


def test_rate_and_clip_count_from_the_next_update(tmp_path: Path, monkeypatch: Patch) -> None:
    loop, played = play(tmp_path, monkeypatch, Script({2: ["lr scale 0.5", "clip 0.01"]}))
    steps = played.events(StepFinished)
    assert [step.lr_scale for step in steps] == [1.0] * 2 + [0.5] * 10
    assert [step.clip for step in steps] == [None] * 2 + [0.01] * 10
    assert loop.scheduler.get_last_lr() == alone().scheduler.get_last_lr()
    assert not torch.equal(loop.weights, alone().weights)


def test_a_stop_ends_the_batches(tmp_path: Path, monkeypatch: Patch) -> None:
    _, played = play(tmp_path, monkeypatch, Script({4: ["stop"]}))
    assert [number for number, _ in played.at(StepFinished)] == [1, 2, 3, 4]
    (ended,) = played.events(RunEnded)
    assert ended.state is RunState.STOPPED


def test_an_update_that_is_not_finite_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    whole = Loop.train

    def poisoned(self: Loop, batches: Callable[[Any], Any], log: Callable[..., None]) -> None:
        handle = self.model.register_forward_hook(
            lambda module, args, output: (
                output * float("nan") if self.scheduler.last_epoch == 5 else output
            )
        )
        whole(self, batches, log)
        handle.remove()

    monkeypatch.setattr(Loop, "train", poisoned)
    loop, played = play(tmp_path, monkeypatch)
    assert [step.skipped for step in played.events(StepFinished)].index(True) == 5
    assert torch.isfinite(loop.weights).all()


def test_a_command_that_a_loop_cannot_obey_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    _, played = play(tmp_path, monkeypatch, Script({2: ["eval"]}))
    (failed,) = played.events(CommandFailed)
    assert failed.reason == "not possible in this run: the loop evaluates by itself"


@pytest.mark.parametrize("method", ["begin_step", "fetch", "check_update", "end_step"])
def test_an_error_of_fttui_never_ends_the_loop(
    method: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    whole, calls = getattr(StepLoop, method), []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(method)
        if len(calls) == 4:
            raise KeyError("a mistake of fttui")
        return whole(*args, **kwargs)

    monkeypatch.setattr(StepLoop, method, broken)
    loop, played = play(tmp_path, monkeypatch)
    assert torch.equal(loop.weights, alone().weights)
    (ended,) = played.events(RunEnded)
    assert "a mistake of fttui" in ended.error


def test_a_loop_that_logs_no_loss_is_told_so(tmp_path: Path, monkeypatch: Patch) -> None:
    whole = Loop.train
    monkeypatch.setattr(
        Loop, "train", lambda self, batches, log: whole(self, batches, lambda **figures: None)
    )
    loop, played = play(tmp_path, monkeypatch)
    assert any("call run.log(loss=loss)" in e.text for e in played.events(LogEmitted))
    assert torch.equal(loop.weights, alone().weights)
