"""The action table: key, label, help and commands of every action, and when it is possible.

Key bindings, footer, help screen and palette are generated from it; `HANDLERS` in
`screens.handlers.action_handlers` maps an action's id to the function that performs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from shlex import quote
from typing import Literal

from textual.binding import Binding

from fttui.engine.protocol.commands import (
    COMMANDS,
    AnyCommand,
    CommandSpec,
    Propose,
    SaveCheckpoint,
    spec_of,
)

from .dialogs.command_text import name_of, recommended
from .view_model.app_state import AppState
from .view_model.connection_port import Link

Asks = Literal["no", "inline", "confirm"]
"""What an action asks for first: nothing, one line of text, or a confirmation."""
Scope = Literal["run", "plots", "list", "runs", "ranks"]
"""Where a key applies: everywhere, on plots, on tables, on the table of runs or of ranks."""


@dataclass(frozen=True)
class Action:
    """One action of the table."""

    id: str
    """`noun.verb`; stable, because users bind their own keys to it."""
    keys: str
    """Comma-separated Textual key names; the first one is shown to the user."""
    label: str
    """One or two words for the footer and the palette."""
    help: str
    """One phrase for the help screen and the palette."""
    group: str
    """Heading in the help screen and the palette."""
    verbs: tuple[str, ...] = ()
    """Verbs of the commands in `COMMANDS` that it can send; `spec_now` returns the one that decides
    whether the action is possible in the run's state."""
    asks: Asks = "no"
    scope: Scope = "run"
    footer: int = 0
    """Rank in the footer, 1 first; 0 leaves the action out."""

    @property
    def key(self) -> str:
        """The first key as it is shown to the user."""
        return shown_key(self.keys.split(",")[0])

    @property
    def commands(self) -> bool:
        """Whether the action has commands in `verbs` that it sends to the run."""
        return bool(self.verbs)


_SYMBOLS = {
    "question_mark": "?", "slash": "/", "left_square_bracket": "[", "right_square_bracket": "]",
    "semicolon": ";", "colon": ":", "asterisk": "*",
    "left": "←", "right": "→", "up": "↑", "down": "↓", "escape": "esc",
}  # fmt: skip


def shown_key(key: str) -> str:
    """Return the sign or name that users know for a Textual key name, such as `/` for `slash`."""
    return _SYMBOLS.get(key, key)


def textual_key(key: str) -> str:
    """Return the Textual name of a key as users write it, such as `slash` for `/`."""
    return next((name for name, sign in _SYMBOLS.items() if sign == key), key)


RUN, CHANGE, LOOK, GO, APP = "Run", "Change", "Look", "Go to", "App"

ACTIONS: tuple[Action, ...] = (
    Action(
        "run.pause", "space", "pause", "pause before the next micro-batch, or resume",
        RUN, ("pause", "resume"), footer=1,
    ),
    Action(
        "run.steps", "N", "run N", "train N more steps, then pause",
        RUN, ("run",), "inline",
    ),
    Action(
        "run.rollback", "r", "rollback",
        "roll back to a checkpoint, on a new timeline",
        RUN, ("rollback",), "confirm", footer=5,
    ),
    Action(
        "run.race", "E", "race",
        "race settings from here, or from the chosen checkpoint; or show the race",
        RUN, ("rollback",), "confirm",
    ),
    Action(
        "anomaly.recover", "R", "follow advice",
        "send the command that the report of the current incident recommends first",
        RUN, ("recover", "rollback"), "confirm",
    ),
    Action(
        "anomaly.culprit", "F", "find culprits",
        "find the samples that cause the newest anomaly, by repeating its step",
        RUN, ("culprit",), "confirm",
    ),
    Action(
        "run.gradients", "G", "gradients", "measure gradient norms by module in the next step",
        RUN, ("gradients",),
    ),
    Action(
        "run.profile", "T", "profile", "measure where the time of the next steps goes",
        RUN, ("profile",),
    ),
    Action(
        "checkpoint.save", "s", "checkpoint", "write a checkpoint now",
        RUN, ("checkpoint",), footer=4,
    ),
    Action(
        "checkpoint.pin", "S", "pinned checkpoint",
        "write a checkpoint that is never removed, with a note",
        RUN, ("checkpoint",), "inline",
    ),
    Action(
        "checkpoint.average", "V", "soup",
        "average checkpoints, evaluate the mean, and keep it if it is better",
        RUN, ("soup",), "inline",
    ),
    Action(
        "run.evaluate", "e", "eval", "evaluate on the held-out data now",
        RUN, ("eval",), footer=7,
    ),
    Action(
        "run.bench", "b", "benchmarks",
        "measure benchmarks on a checkpoint, in a process beside the training",
        RUN, asks="inline",
    ),
    Action(
        "run.sample", "g", "sample", "generate text with the current weights",
        RUN, ("sample",), "inline",
    ),
    Action(
        "run.chat", "i", "chat", "ask the base and the current weights, side by side",
        RUN, ("chat", "keep"), "inline",
    ),
    Action(
        "run.stop", "x", "stop", "finish the step, write a checkpoint, end the run",
        RUN, ("stop",), "confirm", footer=6,
    ),
    Action(
        "lr.change", "l", "lr", "change the learning rate: x0.5, =1e-4 or reset",
        CHANGE, ("lr scale", "lr set", "lr reset"), "inline", footer=2,
    ),
    Action(
        "clip.change", "c", "clip", "change the gradient clip: a norm, p90 of recent norms, or off",
        CHANGE, ("clip",), "inline", footer=3,
    ),
    Action(
        "change.undo", "u", "undo",
        "undo the last change of a setting",
        CHANGE,
        (
            "lr scale", "clip", "policy", "quarantine", "mix",
            "weight_decay", "dropout", "schedule",
        ),
    ),
    Action(
        "data.skip", "k", "skip", "skip the data of the next N steps",
        CHANGE, ("skip",), "inline", scope="plots",
    ),
    Action(
        "data.quarantine", "Q", "quarantine",
        "exclude samples from training permanently, or readmit them",
        CHANGE, ("quarantine",), "inline",
    ),
    Action(
        "data.mix", "w", "mix", "change the weights by which the data sources are mixed",
        CHANGE, ("mix",), "inline",
    ),
    Action(
        "recipe.change", "o", "recipe",
        "change weight decay, dropout or LR schedule",
        CHANGE, ("weight_decay", "dropout", "schedule"), "inline",
    ),
    Action(
        "note.add", "n", "note", "add a note at this step, on the curves and in the journal",
        CHANGE, ("note",), "inline",
    ),
    Action(
        "policy.change", "P", "policy", "set what happens on a non-finite value, or on an anomaly",
        CHANGE, ("policy",), "inline",
    ),
    Action(
        "proposal.confirm", "a", "confirm", "confirm the oldest open proposal, such as an agent's",
        CHANGE, ("confirm",),
    ),
    Action(
        "proposal.decline", "d", "decline", "decline the oldest open proposal",
        CHANGE, ("decline",),
    ),
    Action(
        "proposal.make", "A", "propose", "propose a command for another person to confirm",
        CHANGE, ("propose",), "inline",
    ),
    Action(
        "control.toggle", "t", "control", "take control of the run, or release it",
        CHANGE, asks="confirm",
    ),
    Action("go.runs", "0", "runs", "all runs, on this machine and on known remote hosts", GO),
    Action("go.dashboard", "1", "dashboard", "curves, incidents and interventions", GO),
    Action("go.metrics", "2", "metrics", "a small plot of every metric", GO),
    Action("go.anomalies", "3", "incidents", "incidents and their reports", GO),
    Action("go.checkpoints", "4", "checkpoints",
           "checkpoints, to compare with now or roll back to", GO),
    Action("go.interventions", "5", "interventions",
           "who changed what, when, and with what effect", GO),
    Action("go.system", "6", "system", "memory against the plan, GPUs, ranks, connection", GO),
    Action("go.samples", "7", "samples", "generated samples", GO),
    Action("go.chat", "I", "chat", "answers of base and current weights, side by side", GO),
    Action("go.log", "8", "log", "the log of the run", GO),
    Action("go.config", "9", "config",
           "every key of the configuration and where its value comes from", GO),
    Action("go.data", "D", "data",
           "findings about the data, and records as the model sees them", GO),
    Action("go.ranks", "W", "ranks",
           "every rank by node: slow ones, time, throughput, memory", GO),
    Action("go.gradients", "M", "gradient flow",
           "gradient norms by layer and kind of module, from the newest measurement", GO),
    Action("go.compare", "asterisk,f8", "compare",
           "curves and configurations of the compared runs", GO),
    Action("runs.mark", "v", "mark",
           "mark the run under the cursor; in a comparison: in colour, hidden, in grey", GO,
           scope="runs"),
    Action("runs.compare", "C", "compare", "compare this run with the marked runs", GO,
           scope="runs"),
    Action("view.follow", "f", "follow", "follow the newest step, without a cursor", LOOK,
           scope="plots"),
    Action("view.log", "y", "log Y", "linear or logarithmic Y axis", LOOK, scope="plots"),
    Action("view.undone", "B", "undone steps",
           "show or hide the steps that rollbacks abandoned", LOOK, scope="plots"),
    Action("view.smooth", "m", "smoothing",
           "next smoothing of the loss curve, or raw values only", LOOK, scope="plots"),
    Action("view.part", "p", "loss part", "total loss, or one of its parts", LOOK, scope="plots"),
    Action("view.zoom-in", "z", "zoom in", "zoom in: half as many steps", LOOK, scope="plots"),
    Action("view.zoom-out", "Z", "zoom out", "zoom out: twice as many steps", LOOK, scope="plots"),
    Action("view.axis", "X", "X axis", "steps, wall time, tokens or epochs on the X axis", LOOK,
           scope="plots"),
    Action("view.pan-left", "H,shift+left", "earlier",
           "move the window back by half its width", LOOK, scope="plots"),
    Action("view.pan-right", "L,shift+right", "later",
           "move the window forward by half its width, or follow", LOOK, scope="plots"),
    Action("view.left", "left,h", "cursor left", "move the cursor left on all plots", LOOK,
           scope="plots"),
    Action("view.right", "right", "cursor right", "move the cursor right on all plots", LOOK,
           scope="plots"),
    Action("view.up", "up,K", "previous plot", "focus the previous plot", LOOK, scope="plots"),
    Action("view.down", "down,j", "next plot", "focus the next plot", LOOK, scope="plots"),
    Action("view.maximise", "enter", "maximise", "maximise the focused plot, or show all", LOOK,
           scope="plots"),
    Action("view.previous-event", "left_square_bracket,f6", "previous event",
           "move the cursor to the previous event, such as a checkpoint", LOOK, scope="plots"),
    Action("view.next-event", "right_square_bracket,f7", "next event",
           "move the cursor to the next event", LOOK, scope="plots"),
    Action("list.down", "j", "down", "move down one row", LOOK, scope="list"),
    Action("list.up", "k", "up", "move up one row", LOOK, scope="list"),
    Action("list.open", "enter", "open", "open the item under the cursor", LOOK,
           scope="list"),
    Action("list.filter", "slash,f3", "filter",
           "filter the rows of a table, or the plots by name", LOOK),
    Action("ranks.order", "O", "order",
           "order the ranks by time, number, memory or throughput", LOOK, scope="ranks"),
    Action("app.count", "semicolon,f5", "count",
           "repeat the next key: ; 1 2 → moves the cursor 12 columns", APP),
    Action("app.command", "colon,f4", "command",
           "type a command of fttui ctl, or a step for the cursor", APP),
    Action("app.copy", "Y", "copy",
           "copy the report, the row or the state of the run to the clipboard", APP),
    Action("app.copy-command", "ctrl+y", "copy command",
           "copy the last command as fttui ctl takes it", APP),
    Action("app.screenshot", "f12", "screenshot",
           "save the screen as SVG, and as PNG where a converter is installed", APP),
    Action("app.help", "question_mark,f1", "help", "show all keys", APP, footer=20),
    Action("app.commands", "ctrl+p,f2", "palette",
           "find an action by name in the command palette", APP, footer=21),
    Action("app.theme", "ctrl+t", "theme",
           "choose another theme; the app remembers it", APP),
    Action("app.back", "escape", "back", "close what is open, or go to the dashboard", APP),
    Action("app.detach", "q", "detach", "leave the app; training continues", APP, footer=22),
)  # fmt: skip

ACTION_OF: dict[str, Action] = {action.id: action for action in ACTIONS}
_SPECS = {spec.verb: spec for spec in COMMANDS}


def key_of(action_id: str, state: AppState) -> str:
    """Return the shown key of an action, the user's own if there is one."""
    return state.keys.get(action_id) or ACTION_OF[action_id].key


def key_for(command: AnyCommand, state: AppState) -> str | None:
    """Return the shown key of the action that sends a command of this kind now; None if none."""
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
    """Return a text with every `{action.id}` replaced by the key of that action."""
    return re.sub(r"\{([a-z.-]+)\}", lambda found: key_of(found[1], state), text)


def rebound(keys: Mapping[str, str]) -> tuple[Action, ...]:
    """Return the action table with the user's own keys in place of the default ones.

    Args:
        keys: action id to keys, separated by commas.
    """
    return tuple(replace(a, keys=keys.get(a.id, a.keys)) for a in ACTIONS)


def key_faults(keys: Mapping[str, str]) -> list[str]:
    """Return a text for each error in the user's own keys: unknown action, key assigned twice.

    Args:
        keys: action id to keys, separated by commas.
    """
    faults = [
        f"there is no action {id_!r}{_most_similar(id_)}" for id_ in keys if id_ not in ACTION_OF
    ]
    for scope in ("plots", "list", "runs", "ranks"):
        taken: dict[str, str] = {}
        for action in rebound(keys):
            table = scope in ("runs", "ranks")
            if action.scope not in ("run", scope, "list" if table else scope):
                continue
            for key in action.keys.split(","):
                other = taken.setdefault(key, action.id)
                if other != action.id:
                    faults.append(f"{shown_key(key)} is assigned to {other} and {action.id}")
    return list(dict.fromkeys(faults))


def _most_similar(action_id: str) -> str:
    found = get_close_matches(action_id, ACTION_OF, 1)
    return f"; did you mean {found[0]!r}?" if found else "; tui/actions.py lists all actions"


def bindings(*scopes: Scope) -> list[Binding | tuple[str, str] | tuple[str, str, str]]:
    """Return the key bindings of all actions in these scopes."""
    return [
        Binding(a.keys, f"app.act('{a.id}')", a.label, id=a.id, tooltip=a.help)
        for a in ACTIONS
        if a.scope in scopes
    ]


def label_of(action: Action, state: AppState) -> str:
    """Return the label of an action in the current state of the run."""
    if action.id == "run.pause" and state.state.held:
        return "resume"
    if action.id == "anomaly.recover" and (command := recommended(state.run.current_incident)):
        return name_of(command)
    return action.label


def spec_now(action: Action, state: AppState) -> CommandSpec | None:
    """Return the specification of the command that the action sends now; None if it sends none."""
    if action.id == "run.pause" and state.state.held:
        return _SPECS["resume"]
    if action.id == "anomaly.recover" and (command := recommended(state.run.current_incident)):
        return spec_of(command)
    return _SPECS[action.verbs[0]] if action.verbs else None


_BEYOND_THE_RUN = frozenset(
    {"go.runs", "go.compare", "runs.mark", "runs.compare", "run.bench", "app.screenshot"}
)
"""Actions that read other runs and hosts, or write a file."""


def why_not(action: Action, state: AppState) -> str | None:
    """Return why an action is not possible now, or None if it is."""
    if state.confined and action.id in _BEYOND_THE_RUN:
        return "not possible in a browser"
    if action.id == "control.toggle":
        return _why_unreachable(state)
    spec = spec_now(action, state)
    if spec is None:
        return None
    return refusal(spec, state) or _why_pointless(action, state)


def refusal(spec: CommandSpec, state: AppState) -> str | None:
    """Return why this viewer cannot send a command of this kind now, or None if it can."""
    reason = (
        _why_unreachable(state) or _why_impossible(spec, state) or spec.why_illegal(state.state)
    )
    elsewhere = state.controller and not state.controls and spec.command is not Propose
    if reason is None and elsewhere:
        return (
            f"{state.controller} has control; take it over with {key_of('control.toggle', state)}"
        )
    return reason


def refusal_of(command: AnyCommand | None, state: AppState) -> str | None:
    """Return why this viewer cannot send a command now; None if it can."""
    if command is None:
        return "this version does not support it"
    return refusal(spec_of(command), state)


def _why_impossible(spec: CommandSpec, state: AppState) -> str | None:
    """Return why the trainer cannot carry out a command.

    None if it can, and before the run has reported its start.
    """
    started = state.run.started
    reason = started.refused.get(spec.verb) if started else None
    return None if reason is None else f"not possible in this run: {reason}"


def _why_unreachable(state: AppState) -> str | None:
    if state.state.ended and state.run.started is not None and state.run.started.script:
        return f"the run is {state.state.value}; start its script again for a new run"
    if state.state.ended:
        resume = f"fttui run --resume {quote(state.run_id)}"
        return f"the run is {state.state.value}; resume it with: {resume}"
    if state.read_only:
        return "this viewer is read-only"
    if state.link.link is Link.CONNECTING:
        return "not connected to the run yet"
    if state.link.link is Link.LOST:
        return "connection to the run lost; reconnecting"
    return None


def _why_pointless(action: Action, state: AppState) -> str | None:
    match action.id:
        case "change.undo" if state.run.interventions.last_undoable() is None:
            return "no change of a setting to undo"
        case "run.rollback" if not state.run.checkpoints:
            return keyed("no checkpoint yet; {checkpoint.save} writes one", state)
        case "proposal.confirm" | "proposal.decline" if not state.run.proposals:
            return "no open proposal"
        case "data.mix" if state.run.started is not None and not state.run.started.sources:
            return "the training data have a single source"
        case "anomaly.recover":
            return _why_no_recovery(state)
        case _:
            return None


def _why_no_recovery(state: AppState) -> str | None:
    incident = state.run.current_incident
    if incident is None:
        return "no open incident"
    return None if incident.advice else "no report of the incident recommends a command"
