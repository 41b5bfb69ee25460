"""A relative change made before a recovery is refused after it, whoever started the recovery.

The hub's own server and journals on disk; only ZeroMQ is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fttui.engine.hub.server import Hub
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import parse_command
from fttui.engine.protocol.events import AnyEvent, CommandApplied
from fttui.engine.protocol.requests import Accepted, AnyHubMessage, Rejected, SubmitCommand
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest
from fttui.engine.run.control_log import ControlWriter
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import EngineDouble, make_run
from tests.support.loopback import Loopback

BY_ITSELF = {
    "guard": ("guard-7", "rollback step-000004-t1 lr=0.5 clip=0.3 skip=2"),
    "autopilot": ("autopilot-7", "recover spike-7"),
}


class Stage:
    """A hub, an engine double that journals what it is told to, and a viewer."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.engine = EngineDouble(run)
        self.engine.start()
        self.asked = 0
        self.start_hub()

    def start_hub(self) -> None:
        self.sockets = Loopback()
        self.control = ControlWriter(self.run)
        self.hub = Hub(self.run, self.control, self.sockets, idle_s=600.0)
        self.hub.turn()

    def restart_hub(self) -> None:
        self.control.close()
        self.start_hub()

    def generation(self) -> int:
        """What a viewer has read in the newest heartbeat."""
        assert self.sockets.beat is not None
        return self.sockets.beat.generation

    def submit(self, text: str, if_generation: int | None = None) -> AnyHubMessage:
        self.asked += 1
        message = SubmitCommand(
            ref=1,
            id=f"c{self.asked}",
            command=parse_command(text),
            viewer="ann",
            issuer="ann",
            if_generation=if_generation,
        )
        self.sockets.answers.clear()
        self.sockets.waiting.append([b"ann", encode(message)])
        self.hub.turn()
        (answer,) = self.sockets.answers[b"ann"]
        return answer

    def journal(self, event: AnyEvent) -> None:
        self.engine.emit(event)

    def close(self) -> None:
        self.control.close()
        self.engine.journal.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(make_run(tmp_path))
    yield made
    made.close()


def add_checkpoint(run: RunDirectory) -> None:
    """Give the run a complete checkpoint, without files, to roll back to."""
    store = CheckpointStore(run)
    store.make_folder("step-000004")
    store.commit(
        Manifest(
            name="step-000004", step=4, timeline=1, time=0.0, world_size=1, incarnation=1, files={}
        )
    )


def applied(id_: str, command: str, issuer: str) -> CommandApplied:
    return CommandApplied(id=id_, command=command, issuer=issuer)


def assert_refused(answer: AnyHubMessage) -> None:
    assert isinstance(answer, Rejected), answer
    assert "the settings have changed since" in answer.reason


@pytest.mark.parametrize("way", ["recover", "rollback last lr=0.5"])
def test_a_relative_change_made_before_a_recovery_by_hand_is_refused(
    stage: Stage, way: str
) -> None:
    add_checkpoint(stage.run)
    before = stage.generation()
    assert isinstance(stage.submit(way), Accepted)
    assert_refused(stage.submit("lr scale 0.25", before))
    on_the_way = stage.generation()
    stage.engine.obey()
    assert_refused(stage.submit("lr scale 0.25", on_the_way))
    assert isinstance(stage.submit("lr scale 0.25", stage.generation()), Accepted)


@pytest.mark.parametrize("issuer", BY_ITSELF)
def test_a_relative_change_made_before_a_recovery_that_nobody_asked_for_is_refused(
    stage: Stage, issuer: str
) -> None:
    before = stage.generation()
    stage.journal(applied(*BY_ITSELF[issuer], issuer))
    assert_refused(stage.submit("lr scale 0.25", before))
    assert isinstance(stage.submit("lr scale 0.25", stage.generation()), Accepted)


@pytest.mark.parametrize("issuer", BY_ITSELF)
def test_the_generation_outlives_the_hub(stage: Stage, issuer: str) -> None:
    before = stage.generation()
    stage.submit("recover")
    stage.engine.obey()
    stage.journal(applied(*BY_ITSELF[issuer], issuer))
    stage.hub.turn()
    after = stage.generation()
    stage.restart_hub()
    assert stage.generation() == after > before
    assert_refused(stage.submit("lr scale 0.25", before))
    assert isinstance(stage.submit("lr scale 0.25", after), Accepted)


def test_a_new_generation_is_told_at_once(stage: Stage) -> None:
    """Not with the heartbeat of the next second: until then every relative change is refused."""
    before = stage.generation()
    stage.journal(applied(*BY_ITSELF["guard"], "guard"))
    stage.hub.turn()
    assert stage.generation() > before


@pytest.mark.parametrize("text", ["pause", "checkpoint", "skip 3", "note seen"])
def test_what_leaves_the_settings_alone_refuses_nothing(stage: Stage, text: str) -> None:
    before = stage.generation()
    stage.submit(text)
    stage.engine.obey()
    stage.submit("resume")
    stage.engine.obey()
    assert isinstance(stage.submit("lr scale 0.25", before), Accepted)


def test_a_setting_counts_once(stage: Stage) -> None:
    """Its value was known when it was accepted, so its effect is no news to a viewer."""
    stage.submit("lr scale 0.5")
    accepted = stage.generation()
    stage.engine.obey()
    stage.hub.turn()
    assert stage.generation() == accepted


def test_a_change_of_a_later_version_counts(stage: Stage) -> None:
    """Nobody here knows what it does, so a relative change is refused rather than misapplied."""
    before = stage.generation()
    stage.journal(applied("x", "warmup again", "ann"))
    assert_refused(stage.submit("lr scale 0.25", before))
