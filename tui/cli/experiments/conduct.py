"""Run a race: train one variant after another from one checkpoint, round by round."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from fttui.engine.errors import CommandRejected
from fttui.engine.protocol.commands import (
    AddNote,
    AnyCommand,
    Evaluate,
    Pause,
    Resume,
    Rollback,
    RunSteps,
    SaveCheckpoint,
    SetPolicy,
    Stop,
)
from fttui.engine.protocol.settings import RunSettings

from ...view_model.race.race_state import LOSS, RaceState, VariantState, score_of
from ...view_model.race.rounds import Round
from ...view_model.race.variants import commands_of
from .run_driver import Applied, Progress, TrainedSteps


class Track(Protocol):
    """The run on which a race takes place."""

    evaluation: dict[str, float]
    """The metrics of the newest evaluation."""

    def send(self, command: AnyCommand, reason: str) -> Applied:
        """Send a command and return its effect.

        Raises:
            CommandRejected: it had no effect; the text says why.
        """

    def until_held(self, target: int, progress: Progress) -> TrainedSteps:
        """Follow training until it is paused at a step, or is halted or rolled back before it."""


@dataclass(frozen=True)
class Telling:
    """Functions that are called during a race."""

    save: Callable[[], None]
    """Called after each change of the state, to store it."""
    progress: Callable[[int, TrainedSteps, int], None]
    """Called after each step, with the index of the variant, what it trained, and its last step."""
    finished: Callable[[int], None]
    """Called after a variant has trained a round, with its index."""
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Entered while the state changes, if several threads share it."""
    left_out: Callable[[str, str], None] = lambda device, why: None
    """Called with a device on which no engine could start, and the reason."""


class VariantTrainer:
    """Trains variants of a race on one engine."""

    def __init__(self, state: RaceState, track: Track, telling: Telling, place: str = "") -> None:
        """Keep the parts.

        Args:
            state: the race.
            track: the engine.
            telling: what is called meanwhile.
            place: folder of the side run whose engine it is; empty for that of the run itself.
        """
        self._state = state
        self._track = track
        self._tell = telling
        self._place = place

    def train(self, index: int, variant: VariantState, target: int, start: str) -> None:
        """Train a variant from a checkpoint to a step, measure it there, and write a checkpoint.

        Args:
            index: its index.
            variant: receives what it trained.
            target: the step.
            start: the checkpoint.

        Raises:
            CommandRejected: a checkpoint of the race cannot be restored or written.
            RunLeft: the run ended, or its engine was lost.
        """
        state = self._state
        reason = f"race, variant {index + 1} of {len(state.variants)}: {state.plan[index].label}"
        back = self.roll_back(start, reason)
        if not self._place:
            variant.timelines.append(back.timeline)
            self._tell.save()  # with the timeline, a reader knows which steps are of this variant
        if self._apply_settings(index, variant, back.settings, reason):
            self._track.send(AddNote(text=reason), "")
            self._train_to(index, variant, target, reason)

    def _apply_settings(
        self, index: int, variant: VariantState, now: RunSettings, reason: str
    ) -> bool:
        """Put the settings of a variant in force; return False if they cannot be applied.

        `now` are the settings in force.
        """
        if variant.settings is not None:
            self.restore(variant.settings, now, reason)
            return True
        try:
            for command in self._state.plan[index].commands(self._state.before):
                variant.settings = self._track.send(command, reason).settings
        except CommandRejected as refused:
            variant.failed = str(refused)
        return not variant.failed

    def roll_back(self, checkpoint: str, reason: str) -> Applied:
        """Return to a checkpoint and stay paused there, also after the guard has halted the run."""
        done = self._track.send(Rollback(checkpoint=checkpoint), reason)
        if done.settings.paused:
            return done
        self._track.send(Pause(), reason)
        return self._track.send(Rollback(checkpoint=checkpoint), reason)

    def restore(self, settings: RunSettings, now: RunSettings, reason: str) -> None:
        """Put earlier settings in force again, as far as a race can vary them.

        `now` are the settings in force.
        """
        for command in commands_of(settings, now):
            self._track.send(command, reason)

    def _train_to(self, index: int, variant: VariantState, target: int, reason: str) -> None:
        state, track = self._state, self._track
        track.send(RunSteps(steps=target - variant.step), reason)
        done = track.until_held(target, lambda found: self._tell.progress(index, found, target))
        failed = done.halted or done.rolled_back
        metrics, saved = done.metrics.get(target, {}), ""
        if not failed:
            if state.by != LOSS and not metrics:
                track.send(Evaluate(), reason)
                metrics = track.evaluation
            saved = track.send(SaveCheckpoint(pin=True, note=reason), reason).new
        with self._tell.turn:
            variant.losses |= done.losses
            variant.not_finite += done.not_finite
            variant.remarks += done.by_others
            variant.evaluations |= done.metrics | ({target: dict(metrics)} if metrics else {})
            variant.step = done.step
            variant.failed = failed
            if not failed:
                variant.score = score_of(state.by, variant.losses, metrics)
                variant.checkpoint, variant.place = saved, self._place
                variant.rounds += 1


class Race:
    """Trains the remaining variants of a race, and lets the run continue afterwards."""

    def __init__(self, state: RaceState, track: Track, telling: Telling) -> None:
        self._state = state
        self._track = track
        self._tell = telling
        self._trainer = VariantTrainer(state, track, telling)

    def prepare(self, checkpoint: str | None) -> None:
        """Pause the run and write the checkpoint that all variants start from.

        Args:
            checkpoint: the checkpoint from which to start; None for the present state.

        Raises:
            CommandRejected: the checkpoint cannot be restored or written; the run is as before.
        """
        state, send = self._state, self._track.send
        state.before = send(Pause(), "a race begins").settings
        if checkpoint is not None:
            self._trainer.roll_back(checkpoint, "a race begins here")
        words = " ".join(state.words)
        base = send(SaveCheckpoint(pin=True, note=f"start of the race {words}"), "a race begins")
        state.base, state.base_step = base.new, base.step
        state.variants = [VariantState(step=base.step) for _ in state.plan]
        if state.before.autopilot == "act":
            send(SetPolicy(autopilot="off"), "the autopilot must not act during a race")
        self._tell.save()

    def run(self) -> None:
        """Train the rounds that are left.

        Raises:
            CommandRejected: a checkpoint of the race cannot be restored or written.
            RunLeft: the run ended, or its engine was lost.
        """
        for number, part in enumerate(self._state.rounds):
            for index in self._state.waiting(number):
                self._train(index, part)
            self._state.close_round(number)
            self._tell.save()

    def _train(self, index: int, part: Round) -> None:
        state, variant = self._state, self._state.variants[index]
        state.running = index
        self._tell.save()
        start = variant.checkpoint or state.base
        self._trainer.train(index, variant, state.base_step + part.steps, start)
        state.running = None
        self._tell.save()
        self._tell.finished(index)

    def hold(self) -> None:
        """Pause the run at its current step, because the race was interrupted."""
        self._track.send(Pause(), "a race was interrupted")

    def go_on(self, kept: int | None) -> None:
        """Continue with a variant, or with the state and the settings before the race.

        Args:
            kept: the index of the variant; None to go back.

        Raises:
            CommandRejected: its checkpoint cannot be restored.
            RunLeft: the run ended, or its engine was lost.
        """
        state, send = self._state, self._track.send
        variant = None if kept is None else state.variants[kept]
        what = "the race is over" if kept is None else f"the race went to {state.plan[kept].label}"
        here = send(AddNote(text=what), "")
        if variant is None:
            back = self._trainer.roll_back(state.base, what)
            self._trainer.restore(state.before, back.settings, what)
        elif here.timeline != variant.timelines[-1] or here.step != variant.step:
            back = self._trainer.roll_back(variant.checkpoint, what)
            self._trainer.restore(variant.settings or state.before, back.settings, what)
        if state.before.autopilot == "act":
            send(SetPolicy(autopilot="act"), what)
        state.kept, state.running, state.ended = kept, None, True
        self._tell.save()
        if state.then != "pause":
            send(Resume() if state.then == "go" else Stop(), what)
