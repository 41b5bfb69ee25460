"""One Hugging Face trainer instance under control, from `watch()` to the end of `train()`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from shlex import quote
from typing import Any

from ...config.schema import RunConfig
from ...errors import FttuiError
from ...protocol.commands import SaveCheckpoint
from ...protocol.states import RunState
from ..batch_tape import BatchTape
from ..checkpoint_plan import CheckpointPlan, no_checkpoints
from ..refusals import Unwatchable
from ..script_run import ScriptRun, abandon, plan_for, run_end_after, say
from ..shield import Shield
from ..undo import Undo
from ..watch_options import WatchOptions
from .arguments import run_name, source_text, watched_config
from .callback import WatchCallback
from .capabilities import (
    Capabilities,
    capabilities_of,
    forget_generated,
    loop_can_be_left,
    why_not_back,
)
from .closed_loop import ClosedLoop
from .loop import HfLoop
from .session import HfSession, Watched, begin_session

_LOOP = "_inner_training_loop"


@dataclass(frozen=True)
class Preparation:
    """What is known about a trainer before it trains."""

    capabilities: Capabilities
    plan: CheckpointPlan
    config: RunConfig

    @classmethod
    def of(cls, trainer: Any, options: WatchOptions) -> Preparation:
        """Return what is known about a trainer before it trains.

        Raises:
            Unwatchable: nothing of the trainer can be watched.
        """
        capabilities = capabilities_of(trainer)
        plan = _plan(trainer, options, capabilities)
        name = options.name or run_name(trainer)
        config = watched_config(trainer, name, plan, options.keep)
        return cls(capabilities, plan, options.with_trackers(config))


class HfWatch:
    """The watch over one trainer; each `train()` is a run of its own."""

    def __init__(self, trainer: Any, options: WatchOptions, *, at_once: bool) -> None:
        self._trainer = trainer
        self._options = options
        self._prepared = Preparation.of(trainer, options) if at_once else None
        self._script_run = self._open(self._prepared) if self._prepared else None
        self._undo = Undo()
        self._busy = False
        """Whether a watched `train()` is under way."""
        self._removed = False
        self._train: Callable[..., Any] = self._undo.replace(trainer, "train", self.train)
        self._loop: Callable[..., Any] = self._undo.replace(trainer, _LOOP, self.inner_loop)

    def _open(self, prepared: Preparation) -> ScriptRun | None:
        """Open the run on rank 0 and say how to attach to it; return None on every other rank."""
        trainer, make = self._trainer, self._options.make_event_log
        if trainer.args.process_index != 0:
            return None
        script_run = ScriptRun(prepared.config, source_text(trainer), type(trainer).__name__, make)
        limits = [why for why in (why_not_back(trainer),) if why]
        tail = "".join(f" · no rollback: {why}" for why in limits)
        say(
            f"run {script_run.run.id} · attach: fttui attach "
            f"{quote(str(script_run.run.path))}{tail}"
        )
        return script_run

    def remove(self) -> None:
        """Restore the trainer's own methods, and end a run that was opened but not begun."""
        self._undo.all()
        self._removed = True
        if self._script_run is not None:
            error = "the script called unwatch before the training began"
            self._script_run.end(RunState.STOPPED, error=error)

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train as the trainer does, as a run of its own."""
        return self._watched(lambda: self._train(*arguments, **named))

    def inner_loop(self, *arguments: Any, **named: Any) -> Any:
        """Run the loop of the trainer, as a run of its own if `train` was replaced since.

        A constructor may replace `train` after `Trainer` has been made, as those of Unsloth do.
        """
        return self._watched(lambda: self._loop(*arguments, **named))

    def _watched(self, train: Callable[[], Any]) -> Any:
        watched = None if self._busy or self._removed else self._begin()
        if watched is None:
            return train()
        self._busy = True
        try:
            with watched:
                return train()
        finally:
            self._busy = False
            watched.close()

    def _begin(self) -> WatchedTraining | None:
        """Return the context of a watched `train()`; None if this one cannot be watched.

        Several ranks agree when the session begins: a rank 0 without a run folder ends the
        watching of all.
        """
        try:
            prepared = self._prepared or Preparation.of(self._trainer, self._options)
            script_run, self._script_run = self._script_run, None
            alone = self._trainer.args.world_size == 1
            try:
                script_run = script_run or self._open(prepared)
            except Exception as error:
                if alone:
                    raise
                say(f"the run cannot be recorded: {type(error).__name__}: {error}")
            return WatchedTraining(self._trainer, script_run, prepared, self._options)
        except Exception as error:  # noqa: BLE001 -- no error of ours may end the user's training
            _say_unwatched(error)
            return None


class WatchedTraining:
    """One `train()` of a watched trainer: a context that records how it ends."""

    def __init__(
        self,
        trainer: Any,
        script_run: ScriptRun | None,
        prepared: Preparation,
        options: WatchOptions,
    ) -> None:
        config, capabilities = prepared.config, prepared.capabilities
        self._trainer = trainer
        self._script_run = script_run
        self._undo = Undo()
        self._session: HfSession | None = None
        self._shield = Shield(self._abandon)
        event_log = script_run.event_log if script_run else options.make_event_log(None, None)
        tape = BatchTape(
            config.train.accumulation,
            limit_bytes=options.tape_mib * 2**20,
            keeps=capabilities.exact,
            log=event_log.log,
            data_left_out=partial(forget_generated, trainer),
        )
        self._watched = Watched(
            trainer,
            config,
            capabilities,
            prepared.plan,
            script_run,
            event_log,
            tape,
            self._undo,
            self._shield,
        )
        kind = HfLoop if loop_can_be_left(type(trainer)) else ClosedLoop
        self._loop = kind(
            trainer,
            tape,
            self._shield,
            drops=capabilities.exact,
            clip=config.train.clip,
        )
        self._callback = WatchCallback(self._begin, self._loop, self._shield)

    def __enter__(self) -> None:
        loop, trainer = self._loop, self._trainer
        for owner, seams in (
            (trainer, loop.seams),
            (trainer.accelerator, loop.accelerator_seams),
        ):
            for name, seam in seams.items():
                loop.original[name] = self._undo.replace(owner, name, seam)
        handler = self._trainer.callback_handler
        handler.callbacks.insert(0, self._callback)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._shield.call(self._conclude, None)
        elif self._script_run is not None:
            if self._session is not None:
                with suppress(Exception):  # the device may have failed with the script
                    self._session.step_loop.conclude()
            state, text = run_end_after(error)
            self._script_run.end(state, error=text)

    def close(self) -> None:
        """Restore the trainer's own methods and remove the callback of fttui."""
        self._undo.all()
        callbacks = self._trainer.callback_handler.callbacks
        if self._callback in callbacks:
            callbacks.remove(self._callback)

    def _begin(self) -> None:
        """Build the session; called when optimizer and schedule have been made.

        Raises:
            Unwatchable: rank 0 could not open a run folder.
        """
        self._session = begin_session(self._watched)
        self._loop.begin(self._session.step_loop, self._session)

    def _conclude(self) -> None:
        if self._session is None:
            if self._script_run is not None:
                self._script_run.end(RunState.STOPPED, error="the trainer did not enter its loop")
            return
        outcome = self._session.conclude()
        if self._script_run is not None:
            self._script_run.end(
                outcome.state,
                error=outcome.unsaved,
                checkpoint=outcome.checkpoint,
                reason=outcome.reason,
                usage=outcome.usage,
            )

    def _abandon(self, error: Exception) -> None:
        """Stop watching after an error of our own; the script continues training."""
        if self._session is not None:
            self._session.restore_lr()
        abandon(self._script_run, error)


def _plan(trainer: Any, options: WatchOptions, capabilities: Capabilities) -> CheckpointPlan:
    reason = capabilities.refused.get(SaveCheckpoint)
    if reason is not None:
        return no_checkpoints(reason)
    return plan_for(trainer.model, options.keep, options.checkpoint_every)


def watch_trainer(trainer: Any, options: WatchOptions, *, at_once: bool = True) -> None:
    """Watch a trainer; one that cannot be watched trains as before, and a line says why.

    A trainer that is watched already keeps its watch.

    Args:
        trainer: the trainer of the script.
        options: what the caller has chosen.
        at_once: whether the run is opened now; otherwise when the trainer trains.
    """
    if _watch_over(trainer) is not None:
        return
    try:
        HfWatch(trainer, options, at_once=at_once)
    except Exception as error:  # noqa: BLE001 -- no error of ours may end the user's script
        _say_unwatched(error)


def _watch_over(trainer: Any) -> HfWatch | None:
    """Return the watch over a trainer, found by the method it replaces; None without one.

    Nothing else refers to a watch, so that a trainer that the script drops is freed.
    """
    owner = getattr(vars(trainer).get(_LOOP), "__self__", None)
    return owner if isinstance(owner, HfWatch) else None


def _say_unwatched(error: Exception) -> None:
    kind = "" if isinstance(error, Unwatchable | FttuiError) else f"{type(error).__name__}: "
    say(f"this trainer is not watched: {kind}{error}")


def unwatch_trainer(trainer: Any) -> None:
    """Restore a watched trainer; do nothing for one that is not watched."""
    watch = _watch_over(trainer)
    if watch is not None:
        watch.remove()
