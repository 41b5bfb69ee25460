"""The action table: every action with its key, label, help and commands.

Key bindings, footer, help screen and palette are generated from it; `HANDLERS` in
`screens.handlers.action_handlers` maps an action's id to the function that performs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from textual.binding import Binding

from fttui.engine.protocol.commands import (
    COMMANDS,
    AnyCommand,
    CommandSpec,
    SaveCheckpoint,
    spec_of,
)
from fttui.engine.protocol.states import RunState

from .dialogs.command_text import name_of, recommended
from .view_model.app_state import AppState
from .view_model.connection_port import Link

Asks = Literal["no", "inline", "confirm"]
Scope = Literal["run", "plots", "list", "runs"]
"""Where a key means this: everywhere, on plots, on lists, on the list of runs."""


@dataclass(frozen=True)
class Action:
    """One row: what a key does and when it may."""

    id: str
    """`noun.verb`; stable, because users bind keys to it."""
    keys: str
    """Comma-separated, as Textual names them; the first one is shown."""
    label: str
    """One or two words for the footer."""
    help: str
    """One sentence for the help screen and the palette."""
    group: str
    verbs: tuple[str, ...] = ()
    """Verbs of `COMMANDS` it can send; the first one decides in which states it is legal."""
    asks: Asks = "no"
    scope: Scope = "run"
    footer: int = 0
    """Rank in the footer, 1 first; 0 is not shown there."""
    needs_control: bool = True
    """Changes the run (ignored for actions without verbs)."""

    @property
    def key(self) -> str:
        """The key as it is printed."""
        return shown_key(self.keys.split(",")[0])

    @property
    def commands(self) -> bool:
        """It asks something of the run rather than of the view."""
        return bool(self.verbs)


_SYMBOLS = {
    "question_mark": "?", "slash": "/", "left_square_bracket": "[", "right_square_bracket": "]",
    "semicolon": ";", "colon": ":", "asterisk": "*",
    "left": "←", "right": "→", "up": "↑", "down": "↓", "escape": "esc",
}  # fmt: skip


def shown_key(key: str) -> str:
    """A Textual key name as it is printed on keyboards."""
    return _SYMBOLS.get(key, key)


def textual_key(key: str) -> str:
    """A key as it is printed, as Textual names it."""
    return next((name for name, sign in _SYMBOLS.items() if sign == key), key)


RUN, CHANGE, LOOK, GO, APP = "Run", "Change", "Look", "Go to", "App"

ACTIONS: tuple[Action, ...] = (
    Action(
        "run.pause", "space", "pause", "pause training before the next micro-batch, or resume it",
        RUN, ("pause", "resume"), footer=1,
    ),
    Action(
        "run.steps", "N", "run N", "train N more steps, then pause",
        RUN, ("run",), "inline",
    ),
    Action(
        "run.rollback", "r", "rollback", "go back to a checkpoint, exactly; on a new timeline",
        RUN, ("rollback",), "confirm", footer=5,
    ),
    Action(
        "anomaly.recover", "R", "advice", "do what the current anomaly's report recommends first",
        RUN, ("recover", "rollback"), "confirm",
    ),
    Action(
        "run.gradients", "G", "gradients", "measure gradient flow by module in the next step",
        RUN, ("gradients",),
    ),
    Action(
        "run.profile", "T", "profile", "see where the time of the next steps goes",
        RUN, ("profile",),
    ),
    Action(
        "checkpoint.save", "s", "save", "write a complete checkpoint now",
        RUN, ("checkpoint",), footer=4,
    ),
    Action(
        "checkpoint.pin", "S", "save pinned", "write a checkpoint that stays for good, with a note",
        RUN, ("checkpoint",), "inline",
    ),
    Action(
        "run.evaluate", "e", "eval", "evaluate now",
        RUN, ("eval",), footer=7,
    ),
    Action(
        "run.sample", "g", "sample", "generate text from the current adapter",
        RUN, ("sample",), "inline",
    ),
    Action(
        "run.stop", "x", "stop", "finish the step, save a checkpoint, end the run",
        RUN, ("stop",), "confirm", footer=6,
    ),
    Action(
        "lr.change", "l", "lr", "change the learning rate: ×0.5, =1e-4 or reset",
        CHANGE, ("lr scale", "lr set", "lr reset"), "inline", footer=2,
    ),
    Action(
        "clip.change", "c", "clip", "change the max grad norm: a value, p90 of recent ones, off",
        CHANGE, ("clip",), "inline", footer=3,
    ),
    Action(
        "change.undo", "u", "undo", "take the last change of learning rate, clip or policy back",
        CHANGE, ("lr scale", "clip", "policy"),
    ),
    Action(
        "data.skip", "k", "skip", "drop the data of the next N steps",
        CHANGE, ("skip",), "inline", scope="plots",
    ),
    Action(
        "note.add", "n", "note", "mark this step on the curves and in the journal",
        CHANGE, ("note",), "inline",
    ),
    Action(
        "policy.change", "P", "policy", "what the guard does on a NaN: skip, halt or rollback",
        CHANGE, ("policy",), "inline",
    ),
    Action(
        "control.toggle", "t", "control", "take control of the run, or give it up",
        CHANGE, asks="confirm",
    ),
    Action("go.runs", "0", "runs", "all runs, here and on machines attached to before", GO),
    Action("go.dashboard", "1", "dashboard", "curves, anomalies and interventions at a glance", GO),
    Action("go.metrics", "2", "metrics", "every metric as a small plot", GO),
    Action("go.anomalies", "3", "anomalies", "anomalies and their reports", GO),
    Action("go.checkpoints", "4", "checkpoints", "checkpoints to return to", GO),
    Action("go.interventions", "5", "interventions", "who changed what, when, and its effect", GO),
    Action("go.system", "6", "system", "memory against the plan, GPUs, slow ranks", GO),
    Action("go.samples", "7", "samples", "texts the adapter wrote", GO),
    Action("go.log", "8", "log", "the run's log", GO),
    Action("go.config", "9", "config", "every setting, and where it comes from", GO),
    Action("go.compare", "asterisk", "compare", "this run and marked ones over each other", GO),
    Action("runs.mark", "v", "mark", "mark a run of the list for comparing", GO, scope="runs"),
    Action("runs.compare", "C", "compare", "compare this run with the marked ones", GO,
           scope="runs"),
    Action("view.follow", "f", "follow", "keep the newest step in view, drop the cursor", LOOK,
           scope="plots"),
    Action("view.log", "y", "log Y", "logarithmic or linear Y axis", LOOK, scope="plots"),
    Action("view.smooth", "m", "smoothing", "next smoothing of the loss, or raw only", LOOK,
           scope="plots"),
    Action("view.part", "p", "loss part", "total loss or one of its parts", LOOK, scope="plots"),
    Action("view.zoom-in", "z", "zoom in", "half as many steps", LOOK, scope="plots"),
    Action("view.zoom-out", "Z", "zoom out", "twice as many steps", LOOK, scope="plots"),
    Action("view.axis", "X", "X axis", "steps, wall time, tokens or epochs along X", LOOK,
           scope="plots"),
    Action("view.pan-left", "H,shift+left", "earlier", "half a window back in time", LOOK,
           scope="plots"),
    Action("view.pan-right", "L,shift+right", "later", "half a window on; at the end it follows",
           LOOK, scope="plots"),
    Action("view.left", "left,h", "cursor left", "move the cursor over all plots", LOOK,
           scope="plots"),
    Action("view.right", "right", "cursor right", "move the cursor over all plots", LOOK,
           scope="plots"),
    Action("view.up", "up,K", "previous plot", "focus the plot before", LOOK, scope="plots"),
    Action("view.down", "down,j", "next plot", "focus the plot after", LOOK, scope="plots"),
    Action("view.maximise", "enter", "maximise", "the focused plot alone, or all again", LOOK,
           scope="plots"),
    Action("view.previous-event", "left_square_bracket", "event before",
           "cursor to the event before: checkpoint, anomaly, rollback, note", LOOK, scope="plots"),
    Action("view.next-event", "right_square_bracket", "event after",
           "cursor to the next event", LOOK, scope="plots"),
    Action("list.down", "j", "down", "a line down, as the arrow", LOOK, scope="list"),
    Action("list.up", "k", "up", "a line up, as the arrow", LOOK, scope="list"),
    Action("list.filter", "slash", "filter", "only lines, or plots, with these words", LOOK),
    Action("app.count", "semicolon", "count", "a number for the next key: 1 2 → moves twelve",
           APP),
    Action("app.command", "colon", "type", "type a command as for fttui ctl, or a step to go to",
           APP),
    Action("app.help", "question_mark", "help", "all keys and what they do", APP, footer=20),
    Action("app.commands", "ctrl+p", "commands", "find a command by name", APP, footer=21),
    Action("app.back", "escape", "back", "close, or back to the dashboard", APP),
    Action("app.detach", "q", "detach", "leave; training goes on", APP, footer=22),
)  # fmt: skip

ACTION_OF: dict[str, Action] = {action.id: action for action in ACTIONS}
_SPECS = {spec.verb: spec for spec in COMMANDS}


def key_of(action_id: str, state: AppState) -> str:
    """The key of an action as it is printed, the person's own if they have one."""
    return state.keys.get(action_id) or ACTION_OF[action_id].key


def key_for(command: AnyCommand, state: AppState) -> str | None:
    """Return the printed key of the action that sends such a command now; None if none does."""
    spec = spec_of(command)
    for action in ACTIONS:
        if spec.verb in action.verbs and action.id not in _SENDS_WHAT_FITS:
            if action.id == "run.pause" and spec_now(action, state) is not spec:
                return None
            kept = isinstance(command, SaveCheckpoint) and command.pin
            return key_of("checkpoint.pin" if kept else action.id, state)
    return None


_SENDS_WHAT_FITS = frozenset({"anomaly.recover", "change.undo"})
"""Actions whose command depends on the newest anomaly or change."""


def keyed(text: str, state: AppState) -> str:
    """A hint with `{action.id}` replaced by the key."""
    return re.sub(r"\{([a-z.-]+)\}", lambda found: key_of(found[1], state), text)


def rebound(keys: Mapping[str, str]) -> tuple[Action, ...]:
    """The table with a person's own keys: action id → comma-separated keys."""
    return tuple(replace(a, keys=keys.get(a.id, a.keys)) for a in ACTIONS)


def key_faults(keys: Mapping[str, str]) -> list[str]:
    """What is wrong with a person's own keys, in words."""
    faults = [f"no action is called {id_!r}" for id_ in keys if id_ not in ACTION_OF]
    for scope in ("plots", "list", "runs"):
        taken: dict[str, str] = {}
        for action in rebound(keys):
            if action.scope not in ("run", scope, "list" if scope == "runs" else scope):
                continue
            for key in action.keys.split(","):
                other = taken.setdefault(key, action.id)
                if other != action.id:
                    faults.append(f"{shown_key(key)} would be both {other} and {action.id}")
    return list(dict.fromkeys(faults))


def bindings(*scopes: Scope) -> list[Binding | tuple[str, str] | tuple[str, str, str]]:
    """Key bindings of all actions in these scopes."""
    return [
        Binding(a.keys, f"app.act('{a.id}')", a.label, id=a.id, tooltip=a.help)
        for a in ACTIONS
        if a.scope in scopes
    ]


def label_of(action: Action, state: AppState) -> str:
    """The footer's word for it, true for the present state."""
    if action.id == "run.pause" and state.state in {RunState.PAUSED, RunState.HALTED}:
        return "resume"
    if action.id == "anomaly.recover" and (command := recommended(state.run.current_anomaly)):
        return name_of(command)
    return action.label


def spec_now(action: Action, state: AppState) -> CommandSpec | None:
    """The kind of command the action would send in the present state."""
    if action.id == "run.pause" and state.state in {RunState.PAUSED, RunState.HALTED}:
        return _SPECS["resume"]
    if action.id == "anomaly.recover" and (command := recommended(state.run.current_anomaly)):
        return spec_of(command)
    return _SPECS[action.verbs[0]] if action.verbs else None


def why_not(action: Action, state: AppState) -> str | None:
    """Why an action cannot be done now, or None when it can."""
    if action.id == "control.toggle":
        return _why_unreachable(state)
    spec = spec_now(action, state)
    if spec is None:
        return None
    return refusal(spec, state) or _why_pointless(action, state)


def refusal(spec: CommandSpec, state: AppState) -> str | None:
    """Why the run would not take such a command from here now; None when it would."""
    reason = _why_unreachable(state) or spec.why_illegal(state.state)
    if reason is None and state.controller and not state.controls:
        return f"{state.controller} has control; {key_of('control.toggle', state)} takes it over"
    return reason


def _why_unreachable(state: AppState) -> str | None:
    if state.state.ended:
        return f"the run is {state.state.value}; go on with: fttui run --resume {state.run_id}"
    if state.read_only:
        return "this view is read-only"
    if state.link.link is Link.CONNECTING:
        return "not connected to the run yet"
    if state.link.link is Link.LOST:
        return "the link to the run is lost; reconnecting"
    return None


def _why_pointless(action: Action, state: AppState) -> str | None:
    match action.id:
        case "change.undo" if state.run.interventions.last_undoable() is None:
            return "no change of learning rate, clip or policy to undo"
        case "run.rollback" if not state.run.checkpoints:
            return keyed("no checkpoint yet; {checkpoint.save} writes one", state)
        case "anomaly.recover":
            anomaly = state.run.current_anomaly
            if anomaly is None:
                return "no open anomaly"
            return None if anomaly.event.actions else "its report recommends nothing"
        case _:
            return None
