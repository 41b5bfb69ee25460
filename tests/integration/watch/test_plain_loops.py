"""Plain PyTorch loops under watch: exact rollbacks, commands, and what the loop keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from fttui.engine.protocol.events import (
    AnomalyRaised,
    CommandFailed,
    LogEmitted,
    RolledBack,
    RunEnded,
    RunStarted,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlWriter
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.controlled_session import SessionOutcome
from fttui.engine.train.loop.step_loop import StepLoop
from fttui.engine.watch import script_run
from fttui.engine.watch.plain.loop import watch_loop
from fttui.engine.watch.watch_options import WatchOptions
from fttui.tui.view_model.step_batch import Steps, decode_batch
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


def play(
    folder: Path,
    monkeypatch: Patch,
    script: Script | None = None,
    scaler: Callable[[], Any] = lambda: None,
    opened: Callable[[Any], None] = lambda run: None,
) -> tuple[Loop, Played]:
    monkeypatch.setenv("FTTUI_RUNS", str(folder / "runs"))
    monkeypatch.setattr(script_run, "launch_hub", lambda run: None)
    writers: list[ControlWriter] = []

    def scripted(run: RunDirectory | None, writer: Any) -> ScriptedEventLog:
        assert run is not None
        writers.append(ControlWriter(run))
        return ScriptedEventLog(writer, writers[0], script or Script(), 1)

    loop = Loop.make()
    options = WatchOptions(accumulate=ACCUMULATE, steps=12, make_event_log=scripted)
    run = watch_loop(loop.model, loop.optimizer, loop.scheduler, options, scaler=scaler())
    assert run is not None
    opened(run)
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
    assert steps[0][1].loss_or_nan > 0.1
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


def accumulating(self: Loop, batches: Callable[[Any], Any], log: Callable[..., None]) -> None:
    """The loop of accelerate's own examples: it steps as `accumulate` says, and at each end."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    model, optimizer, loader, scheduler = accelerator.prepare(
        self.model, self.optimizer, self.loader, self.scheduler
    )
    for _ in range(EPOCHS):
        for x, y in batches(loader):
            with accelerator.accumulate(model):
                loss = (model(x) - y).square().mean()
                accelerator.backward(loss)
                log(loss=loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def seven_batches() -> Loop:
    """A pass that accumulation does not divide."""
    loop = made()
    loop.loader = DataLoader(Subset(loop.loader.dataset, range(28)), batch_size=4, shuffle=True)
    return loop


made = Loop.make


@pytest.mark.parametrize(
    "commands",
    [
        {3: ["checkpoint"], 4: ["rollback 3"]},
        {3: ["checkpoint"], 6: ["rollback 3"]},
        {10: ["rollback 0"]},
    ],
    ids=["at the end of a pass", "into the pass before", "to the start"],
)
def test_the_accumulation_of_accelerate_is_repeated_exactly(
    commands: dict[int, list[str]], tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Loop, "make", seven_batches)
    monkeypatch.setattr(Loop, "train", accumulating)
    wanted = alone()
    loop, played = play(tmp_path, monkeypatch, Script(commands))
    assert played.events(CommandFailed) == []
    assert len(played.events(RolledBack)) == 1
    assert played.at(StepFinished)[-1][0] == 12
    assert torch.equal(loop.weights, wanted.weights)


def silent(self: Loop, batches: Callable[[Any], Any], log: Callable[..., None]) -> None:
    """A loop that reports no loss."""
    self.train_as_before(batches, lambda **figures: None)  # type: ignore[attr-defined]


def test_a_loop_that_reports_no_loss_has_a_gap_and_no_loss_of_0(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Loop, "train_as_before", Loop.train, raising=False)
    monkeypatch.setattr(Loop, "train", silent)
    loop, played = play(tmp_path, monkeypatch)
    steps = [step for _, step in played.at(StepFinished)]
    assert [step.loss for step in steps] == [None] * 12
    assert all(step.grad_norm for step in steps)
    assert torch.equal(loop.weights, alone().weights)
    assert played.events(AnomalyRaised) == []
    told = [event.text for event in played.events(LogEmitted) if "run.log(loss=loss)" in event.text]
    assert len(told) == 1
    payloads = [payload for _, payload in FrameReader(played.run.journal).read()]
    columns = [part.columns for part in decode_batch(payloads).parts if isinstance(part, Steps)]
    assert columns
    assert all("loss" not in one and "grad_norm" in one for one in columns)


class WithLabels(nn.Sequential):
    """A model that returns its loss, as those of transformers do."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        out = super().forward(x)
        return out if y is None else {"loss": (out - y).square().mean(), "logits": out}


def test_the_loss_that_a_model_returns_stands_in_for_one_that_is_not_reported(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    def returning() -> Loop:
        loop = made()
        loop.model = WithLabels(*loop.model)  # type: ignore[misc]  # the model is one, too
        return loop

    def train(self: Loop, batches: Callable[[Any], Any], log: Callable[..., None]) -> None:
        seen = 0
        for _ in range(EPOCHS):
            for x, y in batches(self.loader):
                loss = self.model(x, y)["loss"]
                (loss / ACCUMULATE).backward()
                seen += 1
                if seen % ACCUMULATE == 0:
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()

    _, reported = play(tmp_path / "reported", monkeypatch)
    monkeypatch.setattr(Loop, "make", returning)
    monkeypatch.setattr(Loop, "train", train)
    _, played = play(tmp_path / "returned", monkeypatch)
    found, wanted = ([e.loss for _, e in one.at(StepFinished)] for one in (played, reported))
    assert found == wanted
    told = [event for event in played.events(LogEmitted) if "the model returns" in event.text]
    assert [event.level for event in told] == ["info"]


def with_loss_scaler(monkeypatch: Patch, **settings: Any) -> list[torch.amp.GradScaler]:
    """Let every loop that is made scale its loss; the scalers, the newest last."""
    scalers: list[torch.amp.GradScaler] = []

    def scaling() -> Loop:
        scalers.append(torch.amp.GradScaler("cpu", **settings))
        return made()

    def train(self: Loop, batches: Callable[[Any], Any], log: Callable[..., None]) -> None:
        scaler = scalers[-1]
        for _ in range(EPOCHS):
            for x, y in batches(self.loader):
                loss = (self.model(x) - y).square().mean()
                scaler.scale(loss).backward()
                log(loss=loss, scale=scaler.get_scale())
                scaler.step(self.optimizer)
                scaler.update()
                self.scheduler.step()
                self.optimizer.zero_grad()

    monkeypatch.setattr(Loop, "make", scaling)
    monkeypatch.setattr(Loop, "train", train)
    return scalers


def test_a_loss_scaler_goes_back_with_the_rest(tmp_path: Path, monkeypatch: Patch) -> None:
    scalers = with_loss_scaler(monkeypatch, init_scale=2.0, growth_interval=3)
    wanted = alone()
    script = Script({4: ["checkpoint"], 7: ["rollback 4"]})
    loop, played = play(tmp_path, monkeypatch, script, scaler=lambda: scalers[-1])
    steps = played.at(StepFinished)
    scale = {number: step.extra["scale"] for number, step in steps}
    assert [scale[number] for number in (1, 4, 7, 10)] == [2.0, 4.0, 8.0, 16.0]
    assert torch.equal(loop.weights, wanted.weights)


def test_overflows_of_a_loss_scaler_are_no_incident(tmp_path: Path, monkeypatch: Patch) -> None:
    """The batch of a refused update is one of the step whose update comes next."""
    scalers = with_loss_scaler(monkeypatch, init_scale=2.0**127, backoff_factor=2.0**-2)
    wanted = alone()
    loop, played = play(tmp_path, monkeypatch, scaler=lambda: scalers[-1])
    updates = int(max(value["step"] for value in loop.optimizer.state.values()))
    assert [number for number, _ in played.at(StepFinished)] == list(range(1, updates + 1))
    assert updates < EPOCHS * len(loop.loader)  # there were overflows
    assert played.events(AnomalyRaised) == []
    states = {event.state for event in played.events(StateChanged)}
    assert not states & {RunState.HALTED, RunState.ROLLING_BACK}
    assert torch.equal(loop.weights, wanted.weights)
    assert scalers[-1].get_scale() == scalers[0].get_scale()


def test_a_loop_that_takes_batches_ahead_does_not_go_back(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    def ahead(self: Loop, batches: Callable[[Any], Any], log: Callable[..., None]) -> None:
        for _ in range(EPOCHS):
            served = iter(batches(self.loader))
            following = next(served, None)
            while following is not None:
                x, y = following
                loss = (self.model(x) - y).square().mean()
                following = next(served, None)
                loss.backward()
                log(loss=loss)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()

    monkeypatch.setattr(Loop, "train", ahead)
    wanted = alone()
    loop, played = play(tmp_path, monkeypatch, Script({4: ["rollback 0", "lr scale 1"]}))
    (failed,) = played.events(CommandFailed)
    assert "take each batch right before its forward pass" in failed.reason
    assert set(played.events(RunStarted)[-1].refused) >= {"rollback", "recover", "skip"}
    assert any("no rollback, recover or skip" in e.text for e in played.events(LogEmitted))
    assert torch.equal(loop.weights, wanted.weights)


class Updates:
    """Counts the updates of an optimizer, as the step of a run does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.step = 0
        optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.step += 1


def test_a_schedule_by_the_steps_of_the_run_goes_back_with_it(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    runs: list[Any] = []

    def by_hand(self: Loop, batches: Callable[[Any], Any], log: Callable[..., None]) -> None:
        run = runs[-1]
        for _ in range(EPOCHS):
            for x, y in batches(self.loader):
                for group in self.optimizer.param_groups:
                    group["lr"] = 0.05 / (1 + run.step)
                loss = (self.model(x) - y).square().mean()
                loss.backward()
                log(loss=loss)
                self.optimizer.step()
                self.optimizer.zero_grad()

    unwatched = Loop.make()
    runs.append(Updates(unwatched.optimizer))
    by_hand(unwatched, iter, lambda **figures: None)
    monkeypatch.setattr(Loop, "train", by_hand)
    script = Script({3: ["checkpoint"], 7: ["rollback 3"]})
    loop, played = play(tmp_path, monkeypatch, script, opened=runs.append)
    assert played.events(CommandFailed) == []
    assert runs[0].step == runs[1].step == 24
    assert torch.equal(loop.weights, unwatched.weights)


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (KeyboardInterrupt(), RunState.STOPPED, "interrupted from the keyboard"),
        (SystemExit(0), RunState.STOPPED, "the script has ended itself"),
        (SystemExit(3), RunState.FAILED, "SystemExit: 3 (raised in the script)"),
        (ValueError("mine"), RunState.FAILED, "ValueError: mine (raised in the script)"),
    ],
)
def test_the_end_of_the_script_is_that_of_its_run(
    error: BaseException, state: RunState, text: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    def train(self: Loop, batches: Callable[[Any], Any], log: Callable[..., None]) -> None:
        for _ in batches(self.loader):
            raise error

    monkeypatch.setattr(Loop, "train", train)
    with pytest.raises(type(error)):
        play(tmp_path, monkeypatch)
    (path,) = (tmp_path / "runs").iterdir()
    (ended,) = [r.event for r in read_records(RunDirectory(path)) if isinstance(r.event, RunEnded)]
    assert (ended.state, ended.error) == (state, text)


def test_batches_without_a_length_count_no_epochs(tmp_path: Path, monkeypatch: Patch) -> None:
    whole = Loop.train
    monkeypatch.setattr(
        Loop,
        "train",
        lambda self, batches, log: whole(self, lambda loader: batches(b for b in loader), log),
    )
    _, played = play(tmp_path, monkeypatch)
    assert [step.epoch for _, step in played.at(StepFinished)] == [0.0] * 4 + [1.0] * 4 + [2.0] * 4


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
