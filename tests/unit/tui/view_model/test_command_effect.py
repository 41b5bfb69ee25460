"""Where a command took effect, as the app, `ctl` and the lines of a run say it: all the same."""

from __future__ import annotations

import asyncio

import pytest

from fttui.engine.protocol.commands import COMMANDS, Pause, SetClip, describe_command, parse_command
from fttui.engine.protocol.events import AnyEvent, CommandApplied, Record, RunEnded, StateChanged
from fttui.engine.protocol.requests import Beat
from fttui.engine.protocol.states import RunState
from fttui.tui.cli.control import sentence
from fttui.tui.cli.headless import HeadlessLog
from fttui.tui.connection.command_outcome import CommandOutcome, _CommandWait
from fttui.tui.view_model.command_effect import effect
from fttui.tui.view_model.connection_port import BeatArrived
from fttui.tui.view_model.interventions import Phase
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import FakeSession, Script

BOUNDARY = 3
"""Finished steps when the command is taken up."""
EXAMPLES = {
    "lr scale": ("lr scale 0.5", "applied from 4"),
    "lr set": ("lr set 0.001", "applied from 4"),
    "lr reset": ("lr reset", "applied from 4"),
    "clip": ("clip 0.5", "applied from 4"),
    "pause": ("pause", "paused before 4"),
    "resume": ("resume", "applied from 4"),
    "run": ("run 5", "applied from 4"),
    "checkpoint": ("checkpoint", "done at 3"),
    "rollback": ("rollback last", "done at 3"),
    "recover": ("recover", "done at 3"),
    "culprit": ("culprit", "done at 3"),
    "gradients": ("gradients", "applied from 4"),
    "profile": ("profile 2", "applied from 4"),
    "eval": ("eval", "done at 3"),
    "soup": ("soup 3", "done at 3"),
    "sample": ("sample hi", "done at 3"),
    "keep": ("keep hi", "applied from 4"),
    "chat": ("chat hi", "done at 3"),
    "skip": ("skip 4", "applied from 4"),
    "quarantine": ("quarantine train:17", "applied from 4"),
    "mix": ("mix a=2 b=1", "applied from 4"),
    "weight_decay": ("weight_decay 0.01", "applied from 4"),
    "dropout": ("dropout 0.1", "applied from 4"),
    "schedule": ("schedule cosine", "applied from 4"),
    "note": ("note hi", "done at 3"),
    "policy": ("policy autopilot off", "applied from 4"),
    "stop": ("stop", "done at 3"),
    "propose": ("propose lr scale 0.5", "done at 3"),
    "confirm": ("confirm p1a2b3", "done at 3"),
    "decline": ("decline p1a2b3", "done at 3"),
}


def test_every_command_has_its_place_said_here() -> None:
    assert set(EXAMPLES) == {spec.verb for spec in COMMANDS}


def _applied(text: str, old: str = "running", new: str = "paused") -> CommandApplied:
    return CommandApplied(id="c1", command=text, old=old, new=new, issuer="ann")


def _script() -> Script:
    return Script().start().run().train(BOUNDARY)


def _lines(script: Script) -> list[str]:
    told = HeadlessLog()
    return [line for at, r in enumerate(script.records) for line in told.lines(r, 10.0 * at)]


def _view(script: Script) -> RunView:
    return apply_many(RunView(), script.records)


@pytest.mark.parametrize("verb", EXAMPLES)
def test_the_app_ctl_and_the_lines_say_the_same(verb: str) -> None:
    text, said = EXAMPLES[verb]
    text = describe_command(parse_command(text))
    script = _script().add(_applied(text))
    if verb == "pause":
        script.add(StateChanged(state=RunState.PAUSED))
    assert _view(script).interventions.items[-1].outcome().startswith(said)
    words, step = said.rsplit(" ", 1)
    done = CommandOutcome(id="c1", command=text, status="applied", step=BOUNDARY, old="a", new="b")
    assert sentence(parse_command(text), done).startswith(f"{words} step {step}: {text}")
    assert any(f"{words.split()[1]} step {step}" in line for line in _lines(script)[-2:])


@pytest.mark.parametrize("finished", [0, 1])
def test_a_pause_is_where_the_step_under_way_left_it(finished: int) -> None:
    """It is dropped between micro-batches, and ends where there is none left."""
    script = _script().add(_applied("pause"))
    item = _view(script).interventions.items[-1]
    assert (item.phase, item.outcome()) == (Phase.APPLYING, "pausing")
    script.train(finished).add(StateChanged(state=RunState.PAUSED), after_s=2.0)
    item = _view(script).interventions.items[-1]
    assert item.outcome() == f"paused before {BOUNDARY + finished + 1}"
    assert f"state paused before step {BOUNDARY + finished + 1}" in _lines(script)
    assert not any("done at" in line for line in _lines(script))


def test_a_pause_of_what_is_held_has_its_effect_at_once() -> None:
    script = _script().add(StateChanged(state=RunState.PAUSED))
    script.add(_applied("pause release", "paused", "paused, GPU memory released"))
    assert _view(script).interventions.items[-1].outcome() == "paused before 4"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (CommandApplied(id="c2", command="resume"), "resume came before training had paused"),
        (
            RunEnded(state=RunState.FINISHED, exit_code=0),
            "the run ended before training had paused",
        ),
    ],
)
def test_a_pause_that_never_came_is_told_as_such(event: AnyEvent, why: str) -> None:
    script = _script().add(_applied("pause")).train(1).add(event)
    item = _view(script).interventions.find("c1")
    assert item is not None
    assert (item.phase, item.outcome()) == (Phase.FAILED, f"failed: {why}")


class _StepUnderWay(FakeSession):
    """Takes a pause up while a step has no micro-batch left."""

    def __init__(self, *later: AnyEvent, old: str = "running") -> None:
        super().__init__(_script())
        self.later, self.old = later, old

    def submit(self, *_: object, **__: object) -> str:
        asyncio.get_running_loop().call_soon(self._work)
        return "c1"

    def _work(self) -> None:
        self.script.add(_applied("pause", self.old))
        self.push()
        self.script.train(1)
        for event in self.later:
            self.script.add(event, after_s=1.0)
        self.push()


def _asked(session: FakeSession, timeout_s: float = 20.0) -> CommandOutcome:
    return asyncio.run(_CommandWait(session, Pause(), "", take=False).run(timeout_s))


def test_ctl_waits_for_the_boundary_that_holds() -> None:
    outcome = _asked(_StepUnderWay(StateChanged(state=RunState.PAUSED)))
    assert (outcome.status, outcome.step) == ("applied", BOUNDARY + 1)
    assert sentence(Pause(), outcome) == f"paused before step {BOUNDARY + 2}: pause"
    assert outcome.seconds > 0
    at_once = _asked(_StepUnderWay(old="paused"))
    assert (at_once.status, at_once.step) == ("applied", BOUNDARY)


class _Halted(_StepUnderWay):
    """Is halted already, so that no event says that a pause holds training."""

    def _work(self) -> None:
        beat = Beat(time=0.0, last_seq=1, engine_alive=True, state=RunState.HALTED)
        self.deliver(BeatArrived(beat))
        super()._work()


def test_ctl_does_not_wait_for_a_run_that_is_halted_already() -> None:
    outcome = _asked(_Halted())
    assert (outcome.status, outcome.step) == ("applied", BOUNDARY)


def test_ctl_says_when_somebody_else_goes_on_first() -> None:
    outcome = _asked(_StepUnderWay(CommandApplied(id="c2", command="run 5")))
    assert (outcome.status, outcome.reason) == ("failed", "run 5 came before training had paused")


def test_numbers_are_grouped() -> None:
    assert effect(SetClip(value=1), 1240) == "applied from 1,241"


def test_records_alone_decide() -> None:
    """The same journal, read record by record or at once, gives the same picture."""
    script = _script().add(_applied("pause")).train(1).add(StateChanged(state=RunState.PAUSED))
    one_by_one = RunView()
    for record in script.records:
        assert isinstance(record, Record)
        one_by_one = apply_many(one_by_one, [record])
    assert one_by_one.interventions == _view(script).interventions
