"""When commands take effect, without a model and without torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from fttui.engine.protocol.commands import (
    AnyCommand,
    FindCulprits,
    Quarantine,
    Rollback,
    Stop,
    describe_command,
    parse_command,
)
from fttui.engine.protocol.events import (
    AnyEvent,
    CommandAccepted,
    CommandApplied,
    CommandFailed,
    LogEmitted,
    StateChanged,
)
from fttui.engine.protocol.settings import Leash, RunSettings
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlEntry
from fttui.engine.train.control.command_queue import NewCommands
from fttui.engine.train.control.command_scheduler import CommandScheduler, Impossible
from fttui.engine.train.control.control_state import ControlState
from fttui.engine.train.control.memory_release import MemoryTaken
from fttui.engine.train.event_log import EventLog


class Desk:
    """A scheduler with everything around it written down."""

    def __init__(
        self, *, norms: float | None = None, cannot: Mapping[type, str] = MappingProxyType({})
    ) -> None:
        self.events: list[AnyEvent] = []
        self.happened: list[str] = []
        self.coming: deque[NewCommands] = deque()
        self.stored: list[RunSettings] = []
        self.due = self.repeating = False
        self.refuses: set[type] = set()
        self.taken = False
        self.ticks = self.held_looks = 0
        self.on_tick: deque[list[str]] = deque()
        self._seq = 0
        self.log = EventLog(None)
        self.log.listen(self.events.append)
        self.control = ControlState(
            RunSettings(),
            self.log.position,
            norm_percentile=lambda percent: norms,
            store=self.stored.append,
            clock=lambda: 7.0,
        )
        self.scheduler = CommandScheduler(
            self,
            self.log,
            self.control,
            self,
            self,
            refuses=cannot,
            clock=lambda: 12.0,
            sleep=self._tick,
        )

    def send(self, *texts: str, stop: bool = False) -> None:
        """Commands for the next look."""
        self.coming.append(NewCommands([self.entry(text) for text in texts], stop))

    def entry(self, text: str) -> ControlEntry:
        """A command as the hub journals it."""
        self._seq += 1
        command: AnyCommand = parse_command(text)
        return ControlEntry(
            seq=self._seq, time=10.0, id=f"c{self._seq}", command=command, issuer="me"
        )

    def _tick(self, seconds: float) -> None:
        self.happened.append("tick")
        self.ticks += 1
        if self.on_tick:
            self.send(*self.on_tick.popleft())

    def ask(self) -> None:
        self.happened.append("ask")

    def look(self) -> NewCommands:
        return self.coming.popleft() if self.coming else NewCommands([], False)

    def conclude(self) -> None:
        self.happened.append("conclude")

    def while_held(self) -> None:
        self.held_looks += 1

    def release(self) -> None:
        self.happened.append("release")

    def reclaim(self) -> None:
        if self.taken:
            raise MemoryTaken("the GPU's memory cannot be taken back")
        self.happened.append("reclaim")

    def perform(self, command: AnyCommand, issuer: str) -> tuple[str, str]:
        if type(command) in self.refuses:
            raise Impossible("not now")
        self.happened.append(f"{type(command).__name__} by {issuer}")
        return "old", "new"

    def plan(self) -> None:
        """Nothing is planned."""

    def scheduled(self) -> None:
        self.happened.append("scheduled")

    def prepare(self) -> None: ...

    def mark(self) -> None:
        self.happened.append("mark")

    def rewind(self) -> None:
        self.happened.append("rewind")

    def boundary(self) -> bool:
        """Whether a step may begin."""
        return self.scheduler.at_boundary(self)

    def found(self, kind: type) -> list[Any]:
        """Events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


def test_a_setting_is_applied_at_once_with_old_and_new_value() -> None:
    desk = Desk()
    desk.send("lr scale 0.5")
    assert desk.boundary()
    (applied,) = desk.found(CommandApplied)
    assert (applied.command, applied.old, applied.new, applied.seconds) == (
        "lr scale 0.5", "×1", "×0.5", 2.0,
    )  # fmt: skip
    assert desk.control.settings.lr_scale == 0.5
    assert [settings.lr_scale for settings in desk.stored] == [0.5]
    assert len(desk.found(CommandAccepted)) == 1


def test_a_setting_behind_a_one_shot_command_waits_for_it() -> None:
    desk = Desk()
    desk.control.begin_step()
    desk.send("checkpoint", "lr scale 0.5")
    desk.scheduler.before_update()
    assert desk.control.settings.lr_scale == 1.0
    assert not desk.scheduler.after_step(desk)
    assert desk.boundary()
    assert [done.command for done in desk.found(CommandApplied)] == ["checkpoint", "lr scale 0.5"]


def test_the_step_before_is_concluded_before_a_command_is_accepted() -> None:
    desk = Desk()
    desk.send("note hello")
    desk.scheduler.before_update()
    assert desk.happened[0] == "conclude"
    desk.happened.clear()
    desk.scheduler.before_update()
    assert "conclude" not in desk.happened


@pytest.mark.parametrize(
    ("due", "queued", "concludes"),
    [(False, False, False), (True, False, True), (False, True, True)],
)
def test_a_boundary_concludes_the_step_before_only_if_something_is_due(
    due: bool, queued: bool, concludes: bool
) -> None:
    desk = Desk()
    desk.due = due
    if queued:
        desk.control.demand(Stop())
    desk.boundary()
    assert ("conclude" in desk.happened) is concludes


@pytest.mark.parametrize("text", ["pause", "rollback last", "recover"])
def test_an_urgent_command_drops_the_step_and_it_is_taken_back(text: str) -> None:
    desk = Desk()
    desk.control.begin_step()
    desk.send(text)
    assert desk.scheduler.interrupted()
    assert desk.happened[-1] != "ask", "a dropped step asks no more"
    assert desk.scheduler.after_step(desk)
    assert desk.happened[-1] == "rewind"
    assert not desk.control.dropped


@pytest.mark.parametrize("text", ["checkpoint", "eval", "note x", "stop", "lr scale 2", "run 3"])
def test_any_other_command_lets_the_step_end(text: str) -> None:
    desk = Desk()
    desk.control.begin_step()
    desk.send(text)
    assert not desk.scheduler.interrupted()
    assert not desk.scheduler.after_step(desk)
    assert "rewind" not in desk.happened


def test_a_stop_signal_drops_the_step_and_ends_the_run_with_a_save() -> None:
    desk = Desk()
    desk.control.begin_step()
    desk.send(stop=True)
    assert desk.scheduler.interrupted()
    desk.scheduler.after_step(desk)
    assert not desk.boundary()
    assert "Stop by signal" in desk.happened


def test_a_signal_whose_save_fails_still_ends_the_run() -> None:
    desk = Desk()
    desk.refuses = {Stop}
    desk.send(stop=True)
    assert not desk.boundary()
    (line,) = desk.found(LogEmitted)
    assert line.text == "stopping without a checkpoint: not now"


def test_nothing_follows_a_stop() -> None:
    desk = Desk()
    desk.send("stop", "checkpoint")
    assert not desk.boundary()
    assert [done.command for done in desk.found(CommandApplied)] == ["stop"]
    assert "scheduled" not in desk.happened
    desk.scheduler.refuse_rest("the run was stopped")
    (refused,) = desk.found(CommandFailed)
    assert (refused.command, refused.reason) == ("checkpoint", "the run was stopped")


def test_a_one_shot_command_that_is_impossible_fails_and_the_next_one_runs() -> None:
    desk = Desk()
    desk.refuses = {Rollback}
    desk.send("rollback last", "checkpoint")
    assert desk.boundary()
    (failed,) = desk.found(CommandFailed)
    assert (failed.command, failed.reason) == ("rollback last", "not now")
    assert [done.command for done in desk.found(CommandApplied)] == ["checkpoint"]


def test_a_setting_that_cannot_be_applied_changes_nothing() -> None:
    desk = Desk(norms=None)
    desk.send("clip p90")
    assert desk.boundary()
    assert "no gradient norm is known yet" in desk.found(CommandFailed)[0].reason
    assert desk.stored == []


def test_a_percentile_of_the_norms_is_the_clip_in_force() -> None:
    desk = Desk(norms=0.25)
    desk.send("clip p90")
    desk.boundary()
    assert desk.control.clip == 0.25


@pytest.mark.parametrize("text", ["lr scale 0.5", "sample x"])
def test_a_command_that_the_trainer_does_not_obey_is_refused(text: str) -> None:
    desk = Desk(cannot={type(parse_command(text)): "no GPU"})
    desk.send(text)
    assert desk.boundary()
    (failed,) = desk.found(CommandFailed)
    assert failed.reason == "not possible in this run: no GPU"
    assert desk.control.settings == RunSettings()


def test_a_pause_holds_and_other_commands_work_meanwhile() -> None:
    desk = Desk()
    desk.on_tick.extend([["eval"], ["resume"]])
    desk.send("pause")
    assert desk.boundary()
    states = [event.state for event in desk.found(StateChanged)]
    assert states == [RunState.RUNNING, RunState.PAUSED, RunState.RUNNING]
    assert "Evaluate by me" in desk.happened
    assert desk.happened.count("tick") == 2
    assert "release" not in desk.happened
    assert desk.held_looks == desk.ticks > 0


def test_a_released_pause_gives_memory_away_and_takes_it_back_for_a_command() -> None:
    desk = Desk()
    desk.on_tick.extend([[], ["eval"], ["resume"]])
    desk.send("pause release")
    assert desk.boundary()
    before = desk.happened[: desk.happened.index("Evaluate by me")]
    assert before[-1] == "reclaim"
    assert before.count("reclaim") == 1, "an idle tick leaves the memory to others"
    assert desk.happened.count("release") == 3


def test_a_plain_pause_after_a_released_one_takes_the_memory_back() -> None:
    desk = Desk()
    desk.on_tick.extend([["pause"], [], ["resume"]])
    desk.send("pause release")
    assert desk.boundary()
    assert desk.happened.count("release") == 1
    assert desk.happened.count("reclaim") == 3


def test_memory_that_is_taken_refuses_the_command_and_keeps_the_pause() -> None:
    desk = Desk()
    desk.taken = True
    desk.on_tick.extend([["eval", "resume"], ["stop"], []])
    desk.send("pause release")
    desk.on_tick.append([])

    def give_back(event: AnyEvent) -> None:
        if isinstance(event, CommandFailed) and event.command == "stop":
            desk.taken = False
            desk.on_tick.append(["resume"])

    desk.log.listen(give_back)
    assert desk.boundary()
    failed = [event.command for event in desk.found(CommandFailed)]
    assert failed == ["eval", "resume", "stop"]
    assert desk.control.settings.release is False


def test_a_signal_while_the_memory_is_taken_ends_the_run() -> None:
    desk = Desk()
    desk.taken = True
    desk.send("pause release")
    desk.coming.append(NewCommands([], True))
    assert not desk.boundary()
    assert desk.control.settings.paused


@pytest.mark.parametrize("text", ["resume", "run 2"])
def test_a_halt_lasts_until_training_is_resumed(text: str) -> None:
    desk = Desk()
    desk.control.halt("loss nan")
    desk.on_tick.extend([["note x"], [text]])
    assert desk.boundary()
    assert desk.control.halted is None
    halted = desk.found(StateChanged)[1]
    assert (halted.state, halted.detail) == (RunState.HALTED, "loss nan")


def test_run_n_pauses_after_n_steps() -> None:
    desk = Desk()
    desk.send("run 2")
    assert desk.boundary()
    desk.log.position.move_to(1, 0.0)
    assert desk.boundary()
    assert not desk.control.settings.paused
    desk.log.position.move_to(2, 0.0)
    desk.on_tick.append(["resume"])
    assert desk.boundary()
    assert RunState.PAUSED in [event.state for event in desk.found(StateChanged)]


def test_during_an_evaluation_only_a_stop_ends_it_and_settings_wait() -> None:
    desk = Desk()
    desk.send("lr scale 0.5")
    assert not desk.scheduler.ends_evaluation()
    assert desk.happened[-1] == "ask", "the next look reads what arrives during the next batch"
    assert desk.control.settings.lr_scale == 1.0
    desk.send("stop")
    assert desk.scheduler.ends_evaluation()
    assert desk.happened[-1] != "ask"
    desk.scheduler.perform_due(desk)
    assert [done.command for done in desk.found(CommandApplied)] == ["lr scale 0.5", "stop"]


def test_a_complete_run_trains_no_step() -> None:
    desk = Desk()
    desk.control.mark_complete()
    assert not desk.boundary()
    assert desk.happened == []


def test_a_command_of_the_engine_is_journaled_with_its_issuer_and_reason() -> None:
    desk = Desk()
    desk.log.position.move_to(9, 0.0)
    desk.control.demand(Rollback(checkpoint="step-3"), "autopilot", "a spike")
    assert desk.boundary()
    (applied,) = desk.found(CommandApplied)
    assert (applied.id, applied.issuer, applied.reason) == ("autopilot-9", "autopilot", "a spike")
    assert applied.seconds == 5.0


def test_between_micro_batches_it_asks_for_what_the_next_look_reads() -> None:
    desk = Desk()
    assert not desk.scheduler.interrupted()
    assert desk.happened == ["ask"]
    desk.send("checkpoint")
    desk.scheduler.before_update()
    assert desk.happened.count("ask") == 2
    desk.control.begin_step()
    desk.send(stop=True)
    assert desk.scheduler.interrupted()
    assert desk.happened.count("ask") == 2, "a dropped step has no next micro-batch"


def test_a_step_is_dropped_only_while_one_is_in_progress() -> None:
    control = Desk().control
    control.drop_step()
    assert not control.end_step()
    control.begin_step()
    control.drop_step()
    assert control.dropped
    assert control.end_step()
    assert not control.end_step()


def test_equal_settings_are_not_stored_again() -> None:
    desk = Desk()
    desk.control.change(msgspec.structs.replace(RunSettings()))
    assert desk.stored == []


def test_a_quarantine_waits_for_the_end_of_the_step_whose_data_are_chosen() -> None:
    desk = Desk()

    def settings() -> tuple[list[str], float]:
        return list(desk.control.settings.quarantine), desk.control.settings.lr_scale

    desk.send("quarantine a")
    assert desk.boundary()
    assert settings() == (["a"], 1.0)
    desk.control.begin_step()
    desk.send("quarantine b", "lr scale 0.5")
    assert not desk.scheduler.interrupted()
    assert settings() == (["a"], 1.0)
    assert not desk.scheduler.after_step(desk)
    assert desk.boundary()
    assert settings() == (["a", "b"], 0.5)
    assert [e.new for e in desk.found(CommandApplied)][:2] == ["1 in quarantine", "2 in quarantine"]


def test_samples_that_cannot_be_kept_out_are_refused_with_the_reason() -> None:
    desk = Desk(cannot={Quarantine: "the script chooses its samples"})
    desk.send("quarantine a")
    assert desk.boundary()
    (refused,) = desk.found(CommandFailed)
    assert refused.reason == "not possible in this run: the script chooses its samples"
    assert desk.control.settings.quarantine == ()


def test_while_earlier_steps_are_repeated_other_commands_and_scheduled_work_wait() -> None:
    class Repeating(Desk):
        def perform(self, command: AnyCommand, issuer: str) -> tuple[str, str]:
            self.repeating = isinstance(command, FindCulprits)
            return super().perform(command, issuer)

    desk = Repeating()
    desk.send("culprit", "checkpoint", "stop", stop=True)
    assert desk.boundary()
    assert [one for one in desk.happened if " by " in one] == ["FindCulprits by me"]
    assert "scheduled" not in desk.happened
    desk.send()
    assert desk.scheduler.ends_replay()
    desk.repeating = False
    assert not desk.boundary()
    assert [one for one in desk.happened if " by " in one][1:] == [
        "SaveCheckpoint by me",
        "Stop by me",
    ]


@pytest.mark.parametrize(
    ("text", "ends"),
    [("eval", False), ("lr scale 0.5", False), ("pause", True), ("rollback last", True),
     ("stop", True)],
)  # fmt: skip
def test_a_replay_ends_for_what_would_drop_a_step_and_for_a_stop(text: str, ends: bool) -> None:
    desk = Desk()
    desk.repeating = True
    desk.send(text)
    assert desk.scheduler.ends_replay() is ends
    assert desk.control.settings == RunSettings()
    assert [describe_command(entry.command) for entry in desk.control.due] == [text]


def test_a_paused_run_repeats_steps_and_is_paused_again() -> None:
    class Repeating(Desk):
        def perform(self, command: AnyCommand, issuer: str) -> tuple[str, str]:
            self.repeating = isinstance(command, FindCulprits)
            return super().perform(command, issuer)

    desk = Repeating()
    desk.send("pause")
    desk.on_tick.append(["culprit"])
    assert desk.boundary()
    assert desk.log.state is RunState.PAUSED
    desk.repeating = False
    desk.on_tick.append(["resume"])
    assert desk.boundary()
    assert [e.state for e in desk.found(StateChanged)] == [
        RunState.RUNNING, RunState.PAUSED, RunState.RUNNING,
    ]  # fmt: skip


def test_the_learning_rate_of_an_agent_is_limited_where_it_is_known() -> None:
    desk = Desk()
    desk.log.position.lr_schedule = 1e-4
    leash = Leash(lr_low=0.25, lr_high=2.0)
    for text in ("lr set 2e-4", "lr scale 2.1", "lr set 2e-5", "lr reset"):
        entry = msgspec.structs.replace(desk.entry(text), leash=leash)
        desk.coming.append(NewCommands([entry], False))
        desk.scheduler.before_update()
    assert [done.command for done in desk.found(CommandApplied)] == ["lr set 0.0002", "lr reset"]
    assert all("agents may set" in failed.reason for failed in desk.found(CommandFailed))


def test_a_proposal_is_journaled_and_changes_nothing() -> None:
    desk = Desk()
    entry = desk.entry("propose rollback last")
    entry = msgspec.structs.replace(entry, proposal="p1", expires_at=99.0)
    desk.coming.append(NewCommands([entry, desk.entry("lr scale 0.5")], False))
    assert desk.boundary()
    made, other = desk.found(CommandAccepted)
    assert (made.command, made.proposal, made.expires_at) == ("propose rollback last", "p1", 99.0)
    assert (other.proposal, other.expires_at) == ("", None)
    assert "Rollback by me" not in desk.happened
    assert [done.new for done in desk.found(CommandApplied)] == ["p1", "×0.5"]
