"""A race on several devices: the variants of a round train side by side, each from one state."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from fttui.engine.errors import FttuiError, TrainingFailed
from fttui.engine.protocol.commands import AddNote, Pause
from fttui.engine.protocol.races.variant_step import MOST_STEPS, variant_steps

from ...view_model.race.race_state import RaceState, VariantState
from .conduct import Race, Telling, Track, VariantTrainer

_ENDS_IN_S = 60.0


class Lane(Protocol):
    """A device on which variants train one after another."""

    @property
    def device(self) -> str:
        """The device in words."""

    @property
    def place(self) -> str:
        """The name of the folder that gets the checkpoints of its variants."""

    def track(self) -> Track:
        """Return the engine, which is started if none is live.

        Raises:
            FttuiError: it cannot be started.
            OSError: no process can be started.
        """

    def fetch(self, place: str, checkpoint: str) -> str:
        """Make a checkpoint of another folder available here; return its name.

        Raises:
            FttuiError: it cannot be copied.
        """

    def end(self, *, for_good: bool = False) -> None:
        """End the engine at once, perhaps so that no other one may start."""


class SideRace:
    """Trains the remaining variants of a race, as many at a time as there are devices."""

    def __init__(self, state: RaceState, lanes: Sequence[Lane], telling: Telling) -> None:
        """Keep the parts.

        Args:
            state: the race, whose base is written.
            lanes: the devices.
            telling: what is called meanwhile, from several threads; its `turn` is a lock.
        """
        self._state = state
        self._lanes = list(lanes)
        self._tell = telling
        self._waiting: list[int] = []
        self._leaving = threading.Event()
        self._left_out: dict[str, str] = {}
        self._errors: list[Exception] = []

    def run(self) -> None:
        """Train the rounds that are left; end all engines afterwards, also after an interruption.

        A variant whose engine is lost or whose loss is not finite is out of the race.

        Raises:
            TrainingFailed: the engine could be started on none of the devices.
            OSError: the state of the race cannot be stored.
        """
        for one in self._state.variants:  # a race that was killed has left it
            one.at = None
        try:
            for number, part in enumerate(self._state.rounds):
                self._waiting = self._state.waiting(number)
                self._train_round(self._state.base_step + part.steps)
                with self._tell.turn:
                    self._state.close_round(number)
                    self._tell.save()
        finally:
            self._leave()

    def _train_round(self, target: int) -> None:
        while self._waiting:
            if not self._lanes:
                whys = "; ".join(f"{device}: {why}" for device, why in self._left_out.items())
                raise TrainingFailed(f"no device could train a variant ({whys})")
            at_once = sorted(self._lanes, key=self._own_waiting, reverse=True)
            threads = [
                threading.Thread(
                    target=self._work, args=[lane, target], name=lane.device, daemon=True
                )
                for lane in at_once[: len(self._waiting)]
            ]
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    thread.join()
            except KeyboardInterrupt:
                self._leave()
                for thread in threads:
                    thread.join(_ENDS_IN_S)
                raise
            if self._errors:
                raise self._errors[0]

    def _own_waiting(self, lane: Lane) -> int:
        """Return the number of waiting variants whose checkpoints a device has."""
        return sum(self._state.variants[n].place == lane.place for n in self._waiting)

    def _leave(self) -> None:
        self._leaving.set()
        for lane in list(self._lanes):
            lane.end(for_good=True)

    def _work(self, lane: Lane, target: int) -> None:
        """Train waiting variants on one device; keep an error for the thread of the caller."""
        try:
            self._train_waiting(lane, target)
        except Exception as error:  # noqa: BLE001  # raised there
            self._errors.append(error)
            self._leaving.set()

    def _train_waiting(self, lane: Lane, target: int) -> None:
        while (index := self._take(lane)) is not None:
            variant = self._state.variants[index]
            try:
                track = lane.track()
            except (FttuiError, OSError) as error:
                lane.end()
                self._leave_out(lane, index, str(error).splitlines()[0])
                return
            self._train(lane, track, index, variant, target)

    def _take(self, lane: Lane) -> int | None:
        """Return the next variant for a device, rather one whose checkpoint it has."""
        with self._tell.turn:
            if self._leaving.is_set() or not self._waiting:
                return None
            variants = self._state.variants
            own = [n for n in self._waiting if variants[n].place in (lane.place, "")]
            index = (own or self._waiting)[0]
            self._waiting.remove(index)
            variants[index].device = lane.device
            return index

    def _leave_out(self, lane: Lane, index: int, why: str) -> None:
        with self._tell.turn:
            self._waiting.insert(0, index)
            if not self._leaving.is_set():
                self._lanes.remove(lane)
                self._left_out[lane.device] = why
                self._tell.left_out(lane.device, why)

    def _train(
        self, lane: Lane, track: Track, index: int, variant: VariantState, target: int
    ) -> None:
        with self._tell.turn:
            variant.at = max(variant.step, self._state.base_step)
            self._tell.save()
        lost = ""
        try:
            start = self._state.base
            if variant.checkpoint:
                start = lane.fetch(variant.place, variant.checkpoint)
            trainer = VariantTrainer(self._state, track, self._tell, lane.place)
            trainer.train(index, variant, target, start)
        except (FttuiError, OSError) as error:
            lost = str(error).splitlines()[0]
            lane.end()
        with self._tell.turn:
            variant.at = None
            if self._leaving.is_set() and lost:
                return
            variant.failed = variant.failed or lost
            self._tell.save()
            self._tell.finished(index)


class DevicesRace(Race):
    """A race whose variants train on several devices while the run itself waits at their start."""

    def __init__(
        self,
        state: RaceState,
        track: Track,
        telling: Telling,
        lanes: Sequence[Lane],
        *,
        releases: bool,
    ) -> None:
        """Keep the parts.

        Args:
            state: the race.
            track: the run.
            telling: what is called meanwhile, from several threads; its `turn` is a lock.
            lanes: the devices.
            releases: whether the run frees the memory of its GPU while it waits.
        """
        super().__init__(state, track, telling)
        self._sides = SideRace(state, lanes, telling)
        self._releases = releases

    def run(self) -> None:
        """Train the rounds that are left on the devices.

        Raises:
            TrainingFailed: the engine could be started on none of the devices.
            CommandRejected: the run cannot free its memory.
        """
        if self._releases:
            self._track.send(Pause(release=True), "variants train on several devices")
        self._sides.run()

    def go_on(self, kept: int | None) -> None:
        """Continue with a variant, whose steps the run trains again, or with none.

        The curves of the others are journaled before.

        Args:
            kept: the index of the variant; None to go back.

        Raises:
            TrainingFailed: the run could not train it to its end.
            CommandRejected: a checkpoint cannot be restored or written.
            RunLeft: the run ended, or its engine was lost.
        """
        if self._releases:
            self._track.send(Pause(), "the race continues in the run")
        for index, variant in enumerate(self._state.variants):
            if index != kept and variant.losses and not variant.recorded:
                self._record_curve(index, variant)
        if kept is not None and self._state.variants[kept].place:
            repeat_in_run(self._state, kept, self._track, self._tell)
        super().go_on(kept)

    def _record_curve(self, index: int, variant: VariantState) -> None:
        """Journal what a variant trained on its device, on a timeline of its own.

        The timeline begins with a rollback to the start of the race, as that of a variant that the
        run trains itself.

        Raises:
            CommandRejected: the start of the race cannot be restored.
            RunLeft: the run ended, or its engine was lost.
        """
        state = self._state
        label = state.plan[index].label
        reason = f"race, variant {index + 1} of {len(state.variants)}: {label}"
        back = self._trainer.roll_back(state.base, reason)
        text = f"{reason}, trained on {variant.device}"
        steps = variant_steps(label, variant.losses, variant.evaluations)
        for start in range(0, len(steps), MOST_STEPS):
            part = steps[start : start + MOST_STEPS]
            self._track.send(AddNote(text="" if start else text, steps=part), "")
        variant.timelines.append(back.timeline)
        variant.recorded = True
        self._tell.save()


def repeat_in_run(state: RaceState, kept: int, track: Track, telling: Telling) -> None:
    """Train the steps of a variant again in the run itself, which continues with it.

    The largest difference to its losses on the side device is noted in the state; it is 0 on
    devices of one kind.

    Raises:
        TrainingFailed: the run could not train it to its end.
        CommandRejected: a checkpoint of the race cannot be restored or written.
        RunLeft: the run ended, or its engine was lost.
    """
    variant, again = state.variants[kept], VariantState(step=state.base_step)
    state.running = kept
    telling.save()
    VariantTrainer(state, track, telling).train(kept, again, variant.step, state.base)
    if again.failed:
        raise TrainingFailed(
            f"variant {kept + 1} was trained on {variant.device}, but not again in the run: "
            f"{again.failed}"
        )
    state.repeated_gap = largest_gap(variant, again)
    variant.timelines, variant.settings = again.timelines, again.settings
    variant.checkpoint, variant.place = again.checkpoint, ""
    state.running = None
    telling.save()


def largest_gap(variant: VariantState, again: VariantState) -> float:
    """Return the largest difference between losses of two trainings of the same steps.

    The compared metric counts, too; it is infinite if one of them lacks a step.
    """
    if variant.losses.keys() != again.losses.keys():
        return float("inf")
    gaps = [abs(loss - again.losses[step]) for step, loss in variant.losses.items()]
    if variant.score is not None and again.score is not None:
        gaps.append(abs(variant.score - again.score))
    return max(gaps, default=0.0)
