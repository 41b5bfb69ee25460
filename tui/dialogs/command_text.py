"""A command before it is sent: what it is called, and what it will do, in numbers."""

from __future__ import annotations

from collections.abc import Iterator

from fttui.engine.protocol.commands import (
    AnyCommand,
    Evaluate,
    Pause,
    ProfileSteps,
    Recover,
    ResetLr,
    Rollback,
    SaveCheckpoint,
    ScaleLr,
    SetClip,
    SetLr,
    Stop,
    recorded_command,
    spec_of,
)
from fttui.engine.protocol.states import RunState

from ..text import format as fmt
from ..view_model.app_state import AppState
from ..view_model.run_view import Anomaly, RunView
from .command_cost import consequence

_HELD = frozenset({RunState.PAUSED, RunState.HALTED})


def name_of(command: AnyCommand) -> str:
    """What a title and a button call it."""
    if command == Stop(save=False):
        return "stop, discard"
    return spec_of(command).name


def gives_up(command: AnyCommand) -> bool:
    """It throws work away or ends the run."""
    return spec_of(command).destructive


def recommended(anomaly: Anomaly | None) -> AnyCommand | None:
    """Return the command an anomaly's report recommends first; None if it is unknown here."""
    if anomaly is None or not anomaly.event.actions:
        return None
    return recorded_command(anomaly.event.actions[0])


def in_words(state: AppState, command: AnyCommand) -> list[str]:
    """What a command will do in the present state."""
    match command:
        case Recover():
            return _recovery(state, command)
        case Rollback(checkpoint=wanted):
            known = state.run.checkpoints
            found = [c for c in known if wanted in ("last", c.name, str(c.step))]
            return consequence(state, command, found[-1]) if found else []
        case Stop():
            return stopping(state, save=command.save)
        case _:
            return list(_in_passing(state, command))


def _in_passing(state: AppState, command: AnyCommand) -> Iterator[str]:
    """Of commands that give nothing up."""
    run = state.run
    begins = f"from step {run.step + 1:,} on; it can be undone"
    match command:
        case ScaleLr() | SetLr() | ResetLr():
            yield f"Learning rate {_rates(run, command)}, {begins}."
        case SetClip(value=value, percentile=None):
            old, new = ("off" if v is None else fmt.number(v) for v in (run.clip, value))
            yield f"Max grad norm {old} → {new}, {begins}."
        case Evaluate():
            took = run.evaluation.seconds if run.evaluation else None
            span = f"; the last one took {fmt.duration(took)}" if took else ""
            then = "the run stays held" if state.state in _HELD else "then training goes on"
            yield f"Measures the held-out loss now, {then}{span}."
        case ProfileSteps(steps=steps):
            them = f"the next {fmt.plural(steps, 'step')}"
            yield f"Records where the time of {them} goes; nothing that is trained changes."
            yield "The result is on the system screen."
        case SaveCheckpoint(pin=pin):
            kept = ", which is never removed to make room" if pin else ""
            yield f"Writes a complete checkpoint of step {run.step:,}{kept}."
        case Pause():
            yield "Holds before the next micro-batch, until it is resumed."


def _rates(run: RunView, command: ScaleLr | SetLr | ResetLr) -> str:
    schedule = run.last.lr_schedule if run.last else 0.0
    if isinstance(command, SetLr):
        new = command.value
    else:
        new = schedule * (command.factor if isinstance(command, ScaleLr) else 1.0)
    return f"{fmt.learning_rate(schedule * run.lr_scale)} → {fmt.learning_rate(new)}"


def _recovery(state: AppState, command: Recover) -> list[str]:
    """Describe `recover` by the rollback its report recommends by hand; both are the same plan.

    The engine plans anew when it carries `recover` out, so settings and alarms that came after the
    report can change the numbers.
    """
    anomaly = _recovered(state.run, command)
    ways = [recorded_command(text) for text in anomaly.event.actions] if anomaly else []
    planned = next((way for way in ways if isinstance(way, Rollback)), None)
    name = planned.checkpoint if planned else anomaly.event.checkpoint if anomaly else None
    found = next((c for c in state.run.checkpoints if c.name == name), None)
    if found is None:
        return ["Back to the newest good checkpoint before the first warning.", *_RECOVERY_IN_WORDS]
    if planned is None:
        rows = consequence(state, Rollback(checkpoint=found.name), found)[:2]
        return [*rows, *_RECOVERY_IN_WORDS]
    return [*consequence(state, planned, found), _PROBATION]


_PROBATION = "Then some steps of probation: an alarm in them means that it did not help."
_RECOVERY_IN_WORDS = ("Lower learning rate, tighter clip, the bad data is skipped.", _PROBATION)


def _recovered(run: RunView, command: Recover) -> Anomaly | None:
    """Return the anomaly that `recover` means, as far as the app knows: the newest by default."""
    for anomaly in reversed(run.anomalies):
        ways = [recorded_command(text) for text in anomaly.event.actions]
        planned = any(isinstance(way, Rollback) for way in ways)
        if command.anomaly == anomaly.event.id or command in ways:
            return anomaly
        if not command.anomaly and planned:
            return anomaly
    return None


def stopping(state: AppState, *, save: bool = True) -> list[str]:
    """What ending the run means now."""
    run = state.run
    if state.state is RunState.STOPPING:
        return ["The run is already stopping; stop now, without finishing the step or saving?"]
    if state.state is RunState.STARTING:
        return ["The run has not begun to train; end it?"]
    if run.step == 0:
        return ["No step has been finished, so there is nothing to save; end the run?"]
    newest = run.checkpoints[-1] if run.checkpoints else None
    since = fmt.plural(run.step - newest.step if newest else run.step, "step")
    held = state.state in _HELD
    if not save:
        where = f"at step {run.step:,}" if held else f"after step {run.step + 1:,}"
        return [f"End the run {where}; {since} of work are lost."]
    first = "Write" if held else f"Finish step {run.step + 1:,}, write"
    return [
        f"{first} a checkpoint, end the run.",
        f"Go on later with: fttui run --resume {state.run_id}",
        f"Without saving, you lose {since} of work.",
    ]
