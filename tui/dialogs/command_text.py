"""Texts about a command before it is sent: its name, its effect, and what a report recommends."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from fttui.engine.protocol.commands import (
    AnyCommand,
    AverageCheckpoints,
    Evaluate,
    FindCulprits,
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
    slip,
    spec_of,
)
from fttui.engine.protocol.events import RunStarted
from fttui.engine.protocol.settings import LearningRate
from fttui.engine.protocol.states import RunState

from ..text import format as fmt
from ..text.control_characters import one_line
from ..view_model.app_state import AppState
from ..view_model.incidents.alarm import Anomaly
from ..view_model.incidents.incident import Incident
from ..view_model.run_view import RunView
from .command_cost import consequence, meant

_LONGEST = 240
"""Most characters of a text of a program in a dialog: three or four lines of 80 columns."""


def name_of(command: AnyCommand) -> str:
    """Return the name of a command for the titles and buttons of dialogs, such as `roll back`."""
    if command == Stop(save=False):
        return "stop without a checkpoint"
    return spec_of(command).name


def shortened(text: str) -> str:
    """Return a text that a program wrote on one line; of a long one the beginning and the length.

    A dialog does not scroll, so that its answers would lie below the screen.
    """
    line = one_line(text)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}… ({len(line):,} characters)"


def gives_up(command: AnyCommand) -> bool:
    """Whether a command discards work or ends the run."""
    return spec_of(command).destructive


def slip_of(run: RunView, command: AnyCommand) -> str | None:
    """Return why a command looks like a typing error in this run, or None if it does not."""
    schedule = run.last.rate.schedule if run.last else None
    return slip(command, LearningRate(schedule, run.lr_scale))


def recommended(incident: Incident | None) -> AnyCommand | None:
    """Return the command to follow in an incident, the most severe that its alarms recommend first.

    None without an incident or a recommendation, or if this version does not know the command.
    """
    return None if incident is None else incident.command


def in_words(state: AppState, command: AnyCommand) -> list[str]:
    """Describe what a command will do in the current state, one sentence per line; may be empty."""
    match command:
        case Recover():
            return _recovery(state, command)
        case Rollback():
            found = meant(state, command)
            return consequence(state, command, found) if found else []
        case Stop():
            return stopping(state, save=command.save)
        case _:
            return list(_harmless(state, command))


def _harmless(state: AppState, command: AnyCommand) -> Iterator[str]:
    """Describe a command that discards no work; nothing for one that needs no description."""
    run = state.run
    begins = f"from step {run.step + 1:,}; this can be undone"
    match command:
        case ScaleLr() | SetLr() | ResetLr():
            yield f"Learning rate {_rates(run, command)}, {begins}."
        case SetClip(value=value, percentile=None):
            old, new = ("off" if v is None else fmt.number(v) for v in (run.clip, value))
            yield f"Gradient clip (max norm) {old} → {new}, {begins}."
        case Evaluate():
            took = run.evaluation.seconds if run.evaluation else None
            span = f" The last evaluation took {fmt.duration(took)}." if took else ""
            held = state.state.held
            then = f"the run stays {state.state.value}" if held else "then training continues"
            yield f"Evaluates on the held-out data now; {then}.{span}"
        case AverageCheckpoints(last=last, checkpoints=names):
            which = ", ".join(names) or f"the last {last} checkpoints"
            yield f"Evaluates the mean of {which} and, unless already done, the current weights."
            yield "A better mean becomes a checkpoint; training continues with its own weights."
        case ProfileSteps(steps=steps):
            them = f"the next {fmt.plural(steps, 'step')}"
            yield f"Measures where the time of {them} goes; training is not affected."
            yield "The system screen shows the result."
        case FindCulprits():
            yield (
                "Repeats the steps since the checkpoint before the anomaly, and then its step with "
                "some samples replaced. If these are not the cause, it searches up to 8 earlier "
                "steps in the same way. Training waits, and its state is restored."
            )
        case SaveCheckpoint(pin=pin):
            kept = ", which is never removed" if pin else ""
            yield f"Writes a checkpoint at step {run.step:,}{kept}."
        case Pause():
            yield "Pauses before the next micro-batch, until you resume."


def _rates(run: RunView, command: ScaleLr | SetLr | ResetLr) -> str:
    schedule = run.last.lr_schedule if run.last else 0.0
    if isinstance(command, SetLr):
        new = command.value
    else:
        new = schedule * (command.factor if isinstance(command, ScaleLr) else 1.0)
    return f"{fmt.learning_rate(schedule * run.lr_scale)} → {fmt.learning_rate(new)}"


def _recovery(state: AppState, command: Recover) -> list[str]:
    """Describe what `recover` will do.

    The numbers are those of the rollback that the anomaly's report recommends as an alternative
    with the same effect; without one, there are none. The engine plans again when it carries
    `recover` out, so settings and alarms that came after the report can change them.
    """
    anomaly = _recovered(state.run, command)
    ways = [way.typed for way in anomaly.event.ways] if anomaly else []
    planned = next((way for way in ways if isinstance(way, Rollback)), None)
    name = planned.checkpoint if planned else anomaly.event.checkpoint if anomaly else None
    found = next((c for c in state.run.checkpoints if c.name == name), None)
    if found is None:
        return ["Back to the newest good checkpoint before the first alert.", *_RECOVERY_IN_WORDS]
    if planned is None:
        rows = consequence(state, Rollback(checkpoint=found.name), found)[:2]
        return [*rows, *_RECOVERY_IN_WORDS]
    return [*consequence(state, planned, found), _PROBATION]


_PROBATION = "The next steps are a probation: an alarm during them means that the recovery failed."
_RECOVERY_IN_WORDS = (
    "With a lower learning rate and a tighter clip; the bad data is skipped.",
    _PROBATION,
)


def _recovered(run: RunView, command: Recover) -> Anomaly | None:
    """Return the anomaly that a `recover` command is for, or None if the app knows none.

    Without an id it is the newest anomaly whose report recommends a rollback.
    """
    for anomaly in reversed(run.anomalies):
        ways = [way.typed for way in anomaly.event.ways]
        planned = any(isinstance(way, Rollback) for way in ways)
        if command.anomaly == anomaly.event.id or command in ways:
            return anomaly
        if not command.anomaly and planned:
            return anomaly
    return None


def _stopping_a_script(started: RunStarted, first: str) -> list[str]:
    if reason := started.refused.get("checkpoint"):
        return ["Ends the training; the rest of the script runs.", f"Nothing is saved: {reason}"]
    return [
        f"{first} a checkpoint and ends the training; the rest of the script runs.",
        "Only this process of the script can use it; to continue, start the script again.",
    ]


def stopping(state: AppState, *, save: bool = True) -> list[str]:
    """Describe what stopping the run does in the current state, one sentence per line.

    `save` is whether the stop writes a checkpoint.
    """
    run = state.run
    if state.state is RunState.STOPPING:
        return ["The run is already stopping. Stop now, without finishing the step or saving it?"]
    if state.state is RunState.STARTING:
        return ["Training has not started yet. End the run?"]
    if run.step == 0:
        return ["No step is finished yet, so there is nothing to save. End the run?"]
    newest = run.checkpoints[-1] if run.checkpoints else None
    since = fmt.plural(run.step - newest.step if newest else run.step, "step")
    held = state.state.held
    if not save:
        where = f"at step {run.step:,}" if held else f"after step {run.step + 1:,}"
        return [f"Ends the run {where} and loses the last {since} of work."]
    first = "Writes" if held else f"Finishes step {run.step + 1:,}, writes"
    if run.started is not None and run.started.script:
        return _stopping_a_script(run.started, first)
    return [
        f"{first} a checkpoint and ends the run.",
        f"Resume it later with: fttui run --resume {quote(state.run_id)}",
        f"A stop without a checkpoint loses the last {since} of work.",
    ]
