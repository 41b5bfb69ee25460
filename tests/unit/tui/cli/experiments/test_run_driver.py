"""What a race reads from the journal of a run while it trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.errors import CommandRejected
from fttui.engine.protocol.commands import AnyCommand, Evaluate, Pause, RunSteps, ScaleLr
from fttui.engine.protocol.events import (
    AnyEvent,
    CommandApplied,
    EvalFinished,
    RolledBack,
    RunEnded,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.tui.cli.experiments import run_driver
from fttui.tui.cli.experiments.run_driver import RunDriver, RunLeft, TrainedSteps
from fttui.tui.connection.command_outcome import CommandOutcome
from tests.support.engine_double import EngineDouble, make_run

PAUSED = StateChanged(state=RunState.PAUSED)
RUNNING = StateChanged(state=RunState.RUNNING)


@pytest.fixture
def engine(tmp_path: Path) -> EngineDouble:
    double = EngineDouble(make_run(tmp_path))
    double.start()
    return double


def step(engine: EngineDouble, loss: float = 2.0) -> None:
    engine.step += 1
    engine.emit(StepFinished(loss=loss))


def until_held(engine: EngineDouble, target: int, *events: AnyEvent) -> TrainedSteps:
    driver = RunDriver(engine.run)
    step(engine)
    engine.emit(*events)
    return driver.until_held(target, lambda _: None)


def test_losses_and_evaluations_are_read_until_the_pause_at_the_target(
    engine: EngineDouble,
) -> None:
    driver = RunDriver(engine.run)
    for loss in (2.5, float("nan"), 2.25):
        step(engine, loss)
    engine.emit(EvalFinished(metrics={"loss": 1.5}), PAUSED, EvalFinished(metrics={"loss": 9.0}))
    seen: list[int] = []
    found = driver.until_held(3, lambda so_far: seen.append(so_far.step))
    assert found.losses == {1: 2.5, 3: 2.25}
    assert (found.not_finite, found.metrics, found.step) == (1, {3: {"loss": 1.5}}, 3)
    assert seen == [1, 2, 3]


def test_a_halt_and_a_rollback_by_the_guard_end_the_stretch(engine: EngineDouble) -> None:
    halted = StateChanged(state=RunState.HALTED, detail="the loss is nan")
    assert until_held(engine, 9, halted).halted == "halted after step 1: the loss is nan"
    back = RolledBack(checkpoint="step-000000", from_step=2, to_step=0, old_timeline=1,
                      new_timeline=2)  # fmt: skip
    assert until_held(engine, 9, back).rolled_back == "rolled back to step-000000 at step 2"


def test_a_setting_that_somebody_else_changes_is_told(engine: EngineDouble) -> None:
    by_hand = CommandApplied(
        id="x", command="lr scale 0.5", issuer="ada", applied=ScaleLr(factor=1)
    )
    note = CommandApplied(id="y", command="note hello", issuer="ada")
    assert until_held(engine, 1, by_hand, note, PAUSED).by_others == ["lr scale 0.5 by ada"]


def test_the_end_of_the_run_is_an_error_with_its_reason(engine: EngineDouble) -> None:
    ended = RunEnded(state=RunState.FAILED, exit_code=11, error="out of memory")
    with pytest.raises(RunLeft, match=r"ended \(failed\): out of memory"):
        until_held(engine, 9, ended)


def test_an_engine_that_is_gone_is_noticed(engine: EngineDouble) -> None:
    engine.run.engine.unlink()
    with pytest.raises(RunLeft, match="was lost"):
        until_held(engine, 9)


class Hub:
    """Answers commands as the hub and the engine do, in the journal of the double."""

    def __init__(self, engine: EngineDouble, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.sent: list[AnyCommand] = []
        monkeypatch.setattr(run_driver, "send_command", self.send)

    def send(self, _session: object, command: AnyCommand, **_how: object) -> CommandOutcome:
        self.sent.append(command)
        ident = f"c{len(self.sent)}"
        if command == ScaleLr(factor=7):
            return CommandOutcome(id=ident, command="", status="rejected", reason="not seven")
        if isinstance(command, Evaluate):
            self.engine.emit(EvalFinished(metrics={"loss": 1.25}))
        self.engine.emit(CommandApplied(id=ident, command="", applied=command, new="done"))
        if isinstance(command, RunSteps):
            for _ in range(command.steps):
                step(self.engine)
            self.engine.emit(PAUSED)
        return CommandOutcome(id=ident, command="", status="applied")


def test_a_pause_by_somebody_is_waited_out_and_the_target_is_kept(
    engine: EngineDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(engine, monkeypatch)
    found = until_held(engine, 5, PAUSED, RUNNING)
    assert hub.sent == [Pause(), RunSteps(steps=4)]
    assert found.step == 5


def test_an_evaluation_on_command_and_a_refusal_are_read(
    engine: EngineDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hub(engine, monkeypatch)
    driver = RunDriver(engine.run)
    assert driver.send(Evaluate(), "why").new == "done"
    assert driver.evaluation == {"loss": 1.25}
    with pytest.raises(CommandRejected, match="lr scale 7: not seven"):
        driver.send(ScaleLr(factor=7), "why")
