"""Command executor: carries out one-shot commands and scheduled evaluations and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from ...config.schema import RunConfig
from ...config.step_plan import is_due
from ...core.model_selection import is_better
from ...core.recovery import NoWayBack
from ...core.replay.planned_commands import PlannedCommands
from ...core.retention import awaiting_benchmarks, to_remove
from ...core.settings import Inapplicable, after_rollback, leashed
from ...errors import CheckpointError
from ...protocol.commands import (
    AddNote,
    AverageCheckpoints,
    Chat,
    Evaluate,
    FindCulprits,
    GenerateSample,
    MeasureGradients,
    ProfileSteps,
    Recover,
    Rollback,
    SaveCheckpoint,
    SkipBatches,
    Stop,
    TrainingAction,
)
from ...protocol.events import (
    CheckpointRemoved,
    CheckpointSaved,
    EvalFinished,
    RolledBack,
    SampleGenerated,
)
from ...protocol.settings import RunSettings
from ...protocol.states import RunState
from ...run.checkpoint_store import Manifest
from ..checkpoint.checkpointer import Checkpointer, Saved
from ..checkpoint.counters import Counters
from ..event_log import EventLog
from ..monitoring.monitor import TrainingMonitor
from .command_scheduler import Impossible
from .control_state import ControlState
from .controlled_trainer import ControlledTrainer, EvalResult, EvaluationInterrupted
from .step_replay import OnRequest, weights_of

if TYPE_CHECKING:
    from ..checkpoint.training_state import Boundary


class CommandExecutor:
    """Carries out one-shot commands and scheduled work at a boundary, on every rank."""

    def __init__(
        self,
        config: RunConfig,
        *,
        event_log: EventLog,
        control: ControlState,
        trainer: ControlledTrainer,
        checkpointer: Checkpointer,
        monitor: TrainingMonitor,
        on_request: OnRequest,
        ends_evaluation: Callable[[], bool],
    ) -> None:
        self._config = config
        self._event_log = event_log
        self._control = control
        self._trainer = trainer
        self._checkpointer = checkpointer
        self._data = trainer.data
        self._monitor = monitor
        self._profiler, self._replay, self._mean = on_request
        self._planned = PlannedCommands((one.step, one.command) for one in config.interventions)
        self._ends_evaluation = ends_evaluation
        """Returns whether the evaluation must end; called between batches by all ranks together."""
        self._boundary: Boundary | None = None
        self._evaluated_at = -1
        self.unsaved = ""
        """Why the last state of the run could not be saved; empty unless saving it failed."""
        self._owed_at = -1
        """Step of the scheduled evaluation that was interrupted; -1 if there is none."""
        self._saved_at = -1
        """Step of the newest checkpoint of this process, or of the one that was restored."""
        self._saved: Manifest | None = None

    def mark(self) -> None:
        """Store the state from which the next step starts, for `rewind`."""
        self._boundary = self._trainer.state.mark(self._data.position)

    def prepare(self) -> None:
        """Put the settings in force that the next step is trained with from its first batch on."""
        self._trainer.prepare(self._control.settings)

    def rewind(self) -> None:
        """Undo a step that was started but not applied: return to the last `mark`."""
        assert self._boundary is not None, "a step starts with mark()"
        self._trainer.state.return_to(self._boundary)
        self._data.rewind_to(self._boundary.position)

    @property
    def repeating(self) -> bool:
        """Whether a command has begun to repeat earlier steps."""
        return self._replay.running

    @property
    def due(self) -> bool:
        """Whether work is due at this step, except for work due only at the start of the run."""
        step = self._event_log.step
        return is_due(self._config.eval.every, step) or is_due(self._config.checkpoint.every, step)

    def plan(self) -> None:
        """Queue the commands that the configuration plans for this step."""
        for number, command in enumerate(self._planned.due(self._event_log.step)):
            reason = f"planned for step {self._event_log.step}"
            self._control.demand(command, "configuration", reason, number)

    def scheduled(self) -> None:
        """Run the evaluation and write the checkpoint that are due, also one of a new best metric.

        One that cannot be written is only logged.
        Early stopping may then end the run. Nothing is done after an evaluation that a stop
        interrupts.
        """
        step, config = self._event_log.step, self._config
        evaluate = is_due(config.eval.every, step, at_start=config.eval.at_start)
        if evaluate and not self._evaluate_scheduled():
            return
        save = is_due(config.checkpoint.every, step, at_start=config.checkpoint.at_start)
        if (save or self._monitor.is_best()) and self._saved_at != step:
            self._save_scheduled()
        if reason := self._monitor.reason_to_stop():
            self._control.demand(Stop(), "early stop", reason)

    def perform(self, command: TrainingAction, issuer: str) -> tuple[str, str]:
        """Carry out a command; return the old and the new value for the journal.

        Raises:
            Impossible: the command cannot be carried out; nothing was changed.
        """
        match command:
            case SaveCheckpoint(pin=pin, note=note):
                outcome = "", self._save(pinned=pin, note=note).name
            case Rollback():
                outcome = self._roll_back(command)
            case Recover(anomaly=anomaly):
                outcome = self._roll_back(self._recovery_rollback(anomaly))
            case MeasureGradients() | ProfileSteps() | FindCulprits() | AverageCheckpoints():
                outcome = self._measure(command)
            case Evaluate():
                outcome = "", self._evaluate_on_command()
            case GenerateSample() | Chat():
                outcome = "", self._generate(command)
            case SkipBatches(steps=steps):
                outcome = self._skip(steps)
            case AddNote():
                outcome = "", self._monitor.noted(command, issuer)
            case Stop(save=save):
                outcome = self._stop(save=save)
            case _:
                assert_never(command)
        return outcome

    def finish(self) -> bool:
        """Evaluate, if there are held-out examples, and write a checkpoint after the last step.

        Return True, or False without a checkpoint if a stop interrupts the evaluation. If saving
        fails, `unsaved` says why.
        """
        self.mark()
        if left := self._planned.left:
            text = f"{len(left)} planned commands were not applied, first that of step {left[0]}"
            self._event_log.log("warning", f"{text}: the run has no step after it")
        if self._trainer.can_evaluate and not self._evaluate_scheduled():
            return False
        try:
            self._save()
        except Impossible as error:
            self._event_log.log("error", str(error))
            self.unsaved = str(error)
        return True

    @property
    def owes_evaluation(self) -> bool:
        """Whether a stop interrupted this step's evaluation, which then runs after a resume."""
        return self._owed_at == self._event_log.step

    @property
    def newest(self) -> str | None:
        """The name of the newest complete checkpoint; None without one."""
        known = [one for one in self._checkpointer.ledger.all() if not one.mean_of]
        return known[-1].name if known else None

    def resume_from(self, wanted: str) -> Manifest:
        """Restore a checkpoint before the first step of a new process, and return its manifest.

        Raises:
            CheckpointError: the checkpoint is not usable; nothing was changed.
            TrainingFailed: the ranks have restored different states.
        """
        manifest, counters = self._checkpointer.restore(wanted)
        self._adopt(manifest, counters)
        if self._planned:
            # Otherwise settings of a later planned command would apply too early.
            paused = self._control.settings.paused
            self._control.change(msgspec.structs.replace(counters.desired, paused=paused))
        return manifest

    def _save_scheduled(self) -> Manifest | None:
        """Write a scheduled checkpoint; log the error and return None if that fails."""
        try:
            return self._save()
        except Impossible as error:
            self._event_log.log("error", str(error))
            return None

    def _save(self, *, pinned: bool = False, note: str = "") -> Manifest:
        if self._saved and self._matches_state(self._saved) and not pinned and not note:
            return self._saved
        before = self._event_log.state
        self._event_log.enter(RunState.SAVING)
        # After a power cut no checkpoint is newer than the journal, whose steps would be missing.
        self._event_log.sync()
        try:
            saved = self._checkpointer.save(
                self._counters(),
                {"pinned": pinned, "note": note, **self._monitor.checkpoint_facts()},
                self._event_log.timeline,
            )
        except CheckpointError as error:
            raise Impossible(str(error)) from None
        finally:
            self._event_log.enter(before)
        self._saved, self._saved_at = saved.manifest, saved.manifest.step
        self._record_saved(saved)
        self._retain()
        return saved.manifest

    def _matches_state(self, manifest: Manifest) -> bool:
        here = (self._event_log.step, self._event_log.timeline)
        settings = msgspec.to_builtins(self._control.settings)
        same = (manifest.step, manifest.timeline) == here and manifest.control == settings
        return same and self._checkpointer.is_complete(manifest.name)

    def _counters(self) -> Counters:
        return Counters(
            step=self._event_log.step,
            position=self._data.position,
            mix=self._data.mix_changes,
            desired=self._control.settings,
            watch=self._monitor.state(),
            owes_evaluation=self.owes_evaluation,
        )

    def _record_saved(self, saved: Saved) -> None:
        manifest = saved.manifest
        self._event_log.record(
            CheckpointSaved(
                name=manifest.name,
                size_bytes=manifest.size_bytes,
                seconds=saved.seconds,
                pinned=manifest.pinned,
                note=manifest.note,
                good=manifest.good,
                loss=manifest.loss,
                mean_of=manifest.mean_of,
            )
        )

    def _retain(self) -> None:
        if not self._checkpointer.leads:
            return
        ledger = self._checkpointer.ledger
        keep, by = self._config.checkpoint.keep, self._config.checkpoint.best
        trained = [one for one in ledger.all() if not one.mean_of]
        waiting = awaiting_benchmarks(trained, self._config.eval.benchmarks.interval)
        for name in to_remove(trained, keep=keep, by=by, in_use=waiting):
            if ledger.remove(name):
                self._event_log.record(CheckpointRemoved(name=name))

    def _roll_back(self, command: Rollback) -> tuple[str, str]:
        settings = self._settings_after(command)
        from_step, old_timeline = self._event_log.step, self._event_log.timeline
        before = self._event_log.state
        self._event_log.enter(RunState.ROLLING_BACK)
        try:
            manifest, counters, seconds = self._timed_restore(command.checkpoint)
        except Impossible:
            self._event_log.enter(before)
            raise
        self._adopt(manifest, counters)
        self._data.skip(command.skip * self._config.train.accumulation)
        self._event_log.open_timeline()
        self._control.change(settings)
        self._control.lift_halt()
        self._event_log.record(
            RolledBack(
                checkpoint=manifest.name,
                from_step=from_step,
                to_step=manifest.step,
                old_timeline=old_timeline,
                new_timeline=self._event_log.timeline,
                skipped_batches=command.skip,
                seconds=seconds,
            )
        )
        self._monitor.rolled_back(manifest.step)
        self.mark()
        return f"{from_step}", f"{manifest.step}, timeline {self._event_log.timeline}"

    def _settings_after(self, command: Rollback) -> RunSettings:
        before = self._control.settings
        try:
            return leashed(before, after_rollback(before, command), self._control.leash)
        except Inapplicable as reason:
            raise Impossible(str(reason)) from None

    def _recovery_rollback(self, anomaly: str) -> Rollback:
        try:
            return self._monitor.recovery(anomaly, self._control.settings)
        except NoWayBack as reason:
            raise Impossible(str(reason)) from None

    def _timed_restore(self, wanted: str) -> tuple[Manifest, Counters, float]:
        started = time.monotonic()
        try:
            manifest, counters = self._checkpointer.restore(wanted)
        except CheckpointError as error:
            raise Impossible(str(error)) from None
        return manifest, counters, time.monotonic() - started

    def _adopt(self, manifest: Manifest, counters: Counters) -> None:
        self._planned.restored(manifest.step)
        self._data.return_to(counters.position, counters.mix)
        self._monitor.restore(counters.watch)
        self._saved = None
        self._saved_at = manifest.step
        owes = counters.owes_evaluation
        self._evaluated_at, self._owed_at = (-1, manifest.step) if owes else (manifest.step, -1)

    def _evaluate_on_command(self) -> str:
        try:
            return self._evaluate(again=True)
        except EvaluationInterrupted as error:
            raise Impossible(str(error)) from None

    def _evaluate_scheduled(self) -> bool:
        """Run a scheduled evaluation; return False if a stop interrupts it."""
        try:
            self._evaluate()
        except EvaluationInterrupted as error:
            self._owed_at = self._event_log.step
            self._event_log.log("info", f"{error}; it is repeated when the run resumes")
            return False
        return True

    def _evaluate(self, *, again: bool = False) -> str:
        step = self._event_log.step
        if self._evaluated_at == step and not again:
            return ""
        if not self._trainer.can_evaluate:
            raise Impossible("there are no evaluation records; set data.eval or data.eval_fraction")
        result = self._in_state(RunState.EVALUATING, self._run_evaluation)
        self._evaluated_at, self._owed_at = step, -1
        self._event_log.record(EvalFinished(metrics=result.metrics, seconds=result.seconds))
        self._monitor.evaluated(result.metrics)
        for prompt in dict.fromkeys((*self._config.eval.samples, *self._control.settings.samples)):
            if self._ends_evaluation():
                break
            try:
                self._sample(prompt)
            except Impossible as reason:
                self._event_log.log("warning", f"no sample for the prompt {prompt!r}: {reason}")
        return f"loss {result.metrics['loss']:.4g}"

    def _average(self, command: AverageCheckpoints) -> tuple[str, str]:
        """Evaluate the mean of checkpoints, and keep it as a checkpoint if it is better.

        The run's own weights are restored afterwards. The evaluation of the mean is not a point of
        the run's curves, and counts neither for early stopping nor for the detector.
        """
        mean, metric = self._mean, self._config.checkpoint.best or "loss"
        if mean is None:
            raise Impossible("the checkpoints of this run cannot be averaged")
        self._event_log.sync()  # the checkpoints that led here are read from the journal
        try:
            names = mean.chosen(command.last, command.checkpoints)
            if not self._monitor.metrics_here:
                self._evaluate(again=True)
            before = self._monitor.metrics_here
            metric = metric if metric in before else "loss"
            with mean.in_place(names):
                after = self._in_state(RunState.EVALUATING, self._run_evaluation).metrics
                if metric not in after:
                    raise Impossible(f"{metric} of the mean could not be measured; see the log")
                better = is_better(metric, after[metric], before[metric])
                kept = self._save_mean(names, after) if better else None
        except (CheckpointError, EvaluationInterrupted) as error:
            raise Impossible(str(error)) from None
        finally:
            self.mark()
        fate = f"kept as {kept}" if kept else "not better, so not kept"
        of = f"the mean of {', '.join(names)}"
        return f"{metric} {before[metric]:.5g}", f"{after[metric]:.5g}, {fate}; {of}"

    def _save_mean(self, names: list[str], metrics: dict[str, float]) -> str:
        note = f"mean of {', '.join(names)}"
        judged = {"metrics": metrics, "eval_loss": metrics["loss"], "mean_of": names}
        # Training never reached the mean, so no recovery returns to it automatically.
        kept = {"pinned": True, "note": note, "good": False}
        facts = {**self._monitor.checkpoint_facts(), **judged, **kept}
        timeline = self._event_log.timeline
        saved: Saved = self._in_state(
            RunState.SAVING, lambda: self._checkpointer.save(self._counters(), facts, timeline)
        )
        self._record_saved(saved)
        return saved.manifest.name

    def _run_evaluation(self) -> EvalResult:
        return self._trainer.evaluate(self._ends_evaluation)

    def _sample(self, prompt: str) -> str:
        text: str = self._in_state(RunState.EVALUATING, lambda: self._trainer.sample(prompt))
        self._event_log.record(SampleGenerated(prompt=prompt, text=text))
        return text

    def _generate(self, command: GenerateSample | Chat) -> str:
        """Return the text that was generated, or how long the answers of a chat are."""
        if isinstance(command, GenerateSample):
            return self._sample(command.prompt)
        record, interrupted = self._event_log.record, self._ends_evaluation
        with weights_of(command, self._trainer, self._mean, self.mark) as chat:
            ask = partial(self._trainer.chat, chat, record, interrupted)
            return str(self._in_state(RunState.EVALUATING, ask))

    def _in_state(self, state: RunState, action: Callable[[], Any]) -> Any:
        before = self._event_log.state
        self._event_log.enter(state)
        try:
            return action()
        finally:
            self._event_log.enter(before)

    def _measure(
        self, command: MeasureGradients | ProfileSteps | FindCulprits | AverageCheckpoints
    ) -> tuple[str, str]:
        if isinstance(command, AverageCheckpoints):
            return self._average(command)
        if isinstance(command, FindCulprits):
            return self._replay.begin(command.anomaly)
        if isinstance(command, MeasureGradients):
            self._monitor.ask_gradients()
            return "", "with the next update"
        self._profiler.ask(command.steps)
        return "", f"the next {command.steps} steps" if command.steps > 1 else "the next step"

    def _skip(self, steps: int) -> tuple[str, str]:
        old = self._data.epoch
        self._data.skip(steps * self._config.train.accumulation)
        self._saved = None  # a checkpoint of this step has the position before
        self.mark()
        return f"epoch {old:.3f}", f"epoch {self._data.epoch:.3f}"

    def _stop(self, *, save: bool) -> tuple[str, str]:
        if (nothing := self._nothing_to_save(save=save)) is not None:
            if self._control.leash is not None:
                raise Impossible(
                    f"an agent can stop a run only with a checkpoint; it would be {nothing}"
                )
            return "running", nothing
        try:
            manifest = self._save()
        except Impossible as error:
            if self._control.leash is not None:
                raise
            # A run that cannot save has to be able to end; its last state says so.
            self.unsaved = str(error)
            self._event_log.log("error", f"stopping without a checkpoint: {error}")
            return "running", f"stopped at step {self._event_log.step}, not saved: {error}"
        return "running", f"stopped at step {manifest.step}, saved {manifest.name}"

    def _nothing_to_save(self, *, save: bool) -> str | None:
        """Return how a stop ends the run if it saves nothing; None if it saves a checkpoint."""
        if not save:
            return f"stopped at step {self._event_log.step}, nothing saved"
        if reason := self._trainer.refuses.get(SaveCheckpoint):
            return f"stopped at step {self._event_log.step}, nothing saved: {reason}"
        # After a rollback to step 0 a resume must not go on from an abandoned checkpoint.
        if self._event_log.step == 0 and self._event_log.timeline == 1:
            return "stopped before the first step, so there was nothing to save"
        return None
