"""The handler of every action: it asks for what it needs, then sends a command or changes the view.

`HANDLERS` maps the ids of the action table to functions of the app.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fttui.engine.protocol.commands import (
    AnyCommand,
    Confirm,
    Decline,
    Evaluate,
    FindCulprits,
    MeasureGradients,
    Pause,
    ProfileSteps,
    Propose,
    Resume,
    SaveCheckpoint,
    Stop,
    TrainingCommand,
    describe_command,
    spec_of,
)

from ...actions import ACTION_OF, keyed, refusal, refusal_of, why_not
from ...app_base import AppBase
from ...dialogs import prompts
from ...dialogs.command_text import (
    gives_up,
    in_words,
    name_of,
    shortened,
    slip_of,
    stopping,
)
from ...dialogs.completion import completions
from ...dialogs.incident_text import headline
from ...dialogs.prompts import ParsedInput
from ...dialogs.race_prompt import VERB, is_race, read_race
from ...view_model.incidents.cause import REASON
from ...view_model.incidents.incident import Advice, Incident
from ...view_model.interventions import UNDO, OpenProposal
from ...widgets.proposal_line import is_cut, origin
from ..modals.confirm import ConfirmScreen, confirm, send_typed
from ..modals.help import HelpScreen
from ..modals.prompt import PromptScreen
from ..modals.rollback import ask_rollback
from .background import change_control
from .bench import ask_bench
from .chat import ask_chat
from .races import ask_race, begin_race
from .sharing import SHARING_HANDLERS
from .view_handlers import VIEW_HANDLERS, Handler

MOST_DIGITS = 6
POLICY_FORMS = "skip · halt · rollback, or: autopilot off · propose · act"


def perform(app: AppBase, action_id: str) -> None:
    """Perform an action, or show why it is not possible now.

    While a count is typed, after the key of `app.count`, a digit key appends to the count instead.
    """
    action = ACTION_OF[action_id]
    if app.counting and action.key.isdigit():
        app.count = f"{app.count}{action.key}"[:MOST_DIGITS]
        app.redraw()
        return
    reason = why_not(action, app.state)
    if reason is not None:
        app.tell(reason, title=action.label)
        return
    HANDLERS[action.id](app)
    if action.id != "app.count":
        app.take_count()
        app.redraw()


def _pause(app: AppBase) -> None:
    app.send(Resume() if app.state.state.held else Pause())


def _prompt(title: str, forms: str, read: Callable[[AppBase, str], ParsedInput]) -> Handler:
    def ask(app: AppBase) -> None:
        def answer(found: ParsedInput | None) -> None:
            if found is not None and found.command is not None:
                send_typed(app, found.command, guarded=found.relative)

        start = app.count
        prompt = PromptScreen(title, forms, lambda text: _warned(app, read(app, text)), start)
        app.push_screen(prompt, answer)

    return ask


def _warned(app: AppBase, found: ParsedInput) -> ParsedInput:
    """Return a prompt's input, with a warning in place of the preview for a likely typing error.

    Such a command is confirmed before it is sent.
    """
    slip = slip_of(app.state.run, found.command) if found.command is not None else None
    return found if slip is None else replace(found, preview=f"asks for confirmation: {slip}")


def _type(app: AppBase) -> None:
    """Ask for a command as `fttui ctl` takes it, or for a step to move the cursor to."""

    def answer(found: ParsedInput | None) -> None:
        if found is not None and found.goto is not None:
            app.look(app.state.plot.at(found.goto, app.state.run.step))
        elif found is not None and found.text is not None:
            begin_race(app, found.text)
        elif found is not None and found.command is not None:
            send_command(app, found.command)

    prompt = PromptScreen(
        "command, or step for the cursor",
        "lr scale 0.5 · clip p90 · note TEXT · 1200   tab completes",
        lambda text: _warned(app, _typed(app, text)),
        app.count,
        complete=lambda text: completions(text, app.state),
    )
    app.push_screen(prompt, answer)


def _typed(app: AppBase, text: str) -> ParsedInput:
    """Parse what `fttui ctl` takes, the number of a step, or `race` with the words of a race."""
    if not is_race(text):
        return prompts.read_command(text, app.state)
    reason = why_not(ACTION_OF["run.race"], app.state)
    return ParsedInput(error=reason) if reason else read_race(text.partition(VERB)[2], app.state)


def send_command(app: AppBase, command: AnyCommand) -> None:
    """Send a typed command, after a confirmation if it is destructive, or say why it is refused."""
    reason = refusal(spec_of(command), app.state)
    if reason is not None:
        app.tell(reason, title="not possible now")
        return
    if gives_up(command):
        slip = slip_of(app.state.run, command)
        confirm(app, command, [*in_words(app.state, command), *([f"Note: {slip}."] * bool(slip))])
    else:
        send_typed(app, command)


def _count(app: AppBase) -> None:
    app.counting, app.count = True, ""
    app.redraw()


def _recover(app: AppBase) -> None:
    """Send the command that the current incident's report recommends first, once confirmed.

    It need not be `recover`.
    """
    incident = app.state.run.current_incident
    if incident is not None and incident.advice:
        follow(app, incident, incident.advice[0])


def follow(app: AppBase, incident: Incident, advice: Advice) -> None:
    """Send a command that a report of an incident recommends, after a confirmation."""
    command = advice.way.typed
    if command is None:
        text = advice.way.text
        app.tell(f"the report recommends {text!r}, which this version does not support")
        return
    reason = refusal(spec_of(command), app.state)
    if reason is not None:
        app.tell(reason, title=name_of(command))
        return
    others = [other.way.text for other in incident.advice if other != advice]
    rows = [f"incident: {headline(app.state.run, incident)}", *in_words(app.state, command)]
    rows += [f"alternatives in the report: {', '.join(others)}"] if others else []
    confirm(app, command, rows, reason=f"{REASON}{advice.alarm.event.id}")


def _find_culprits(app: AppBase) -> None:
    """Ask before earlier steps are repeated, which takes a while, then search for culprits."""
    confirm(app, FindCulprits(), in_words(app.state, FindCulprits()))


def _stop(app: AppBase) -> None:
    def answer(key: str | None) -> None:
        if key:
            app.send(Stop(save=key == "y"))

    ways = [("y", name_of(Stop())), ("d", name_of(Stop(save=False)))]
    rows = stopping(app.state)
    app.push_screen(ConfirmScreen("stop the run", rows, ways, alarm=True), answer)


def _undo(app: AppBase) -> None:
    item = app.state.run.interventions.last_undoable()
    if item is not None and item.undo is not None:
        app.send(item.undo, reason=f"{UNDO}{item.id}", guarded=True)


def _confirm_proposal(app: AppBase) -> None:
    """Confirm the proposal shown.

    Ask before, if it discards work, looks like a typing error, or has no room on the screen.
    """
    found = _proposal(app)
    if found is None:
        return
    confirming, meant = Confirm(proposal=found.name), found.command
    reason = refusal_of(meant, app.state)
    if meant is None or reason is not None:
        app.tell(reason or "", title=found.text)
        return
    slip = slip_of(app.state.run, meant)
    if gives_up(meant) or slip or is_cut(app.state, found, app.size.width):
        rows = [shortened(found.text), *in_words(app.state, meant)]
        rows += [f"Proposed by {shortened(origin(found))}", *([f"Note: {slip}."] if slip else [])]
        confirm(app, confirming, rows)
    else:
        app.send(confirming)


def _decline_proposal(app: AppBase) -> None:
    found = _proposal(app)
    if found is not None:
        app.send(Decline(proposal=found.name))


def _proposal(app: AppBase) -> OpenProposal | None:
    """Return the proposal that the screen shows; None, with a notice, if it has expired."""
    found = app.state.open_proposals(app.clock())
    if not found:
        app.tell("the proposal has expired", title="proposal")
    return found[0] if found else None


def _proposed(app: AppBase, text: str) -> ParsedInput:
    found = prompts.read_command(text, app.state)
    if found.goto is not None:
        return ParsedInput(needs="type a command, or cancel with esc")
    if found.command is None:
        return found
    if not isinstance(found.command, TrainingCommand):
        return ParsedInput(error="this cannot be proposed")
    preview = f"proposes: {describe_command(found.command)}"
    return replace(found, command=Propose(command=found.command), preview=preview)


def _control(app: AppBase) -> None:
    state = app.state
    if state.controls:
        change_control(app, take=False)
        return
    if state.controller is None:
        change_control(app, take=True)
        return

    def answer(key: str | None) -> None:
        if key == "y":
            change_control(app, take=True)

    rows = [
        f"{state.controller} has control of the run.",
        "If you take it, your commands are accepted and theirs are rejected; they see who took it.",
    ]
    app.push_screen(ConfirmScreen("take control", rows, [("y", "take control")]), answer)


def _help(app: AppBase) -> None:
    app.push_screen(HelpScreen(app.state, app.actions))


def _go(mode: str) -> Handler:
    return lambda app: app.go(mode)


def _note(app: AppBase, text: str) -> ParsedInput:
    preview = f"adds a note at step {app.state.run.step:,}, on the curves and in the journal"
    return prompts.read_text("note", text, preview)


def _pin(app: AppBase, text: str) -> ParsedInput:
    return ParsedInput(
        SaveCheckpoint(pin=True, note=text.strip()),
        f"writes a checkpoint at about step {app.state.run.step:,} that is never removed",
    )


def _sample(app: AppBase, text: str) -> ParsedInput:
    shown = keyed("the text appears on the samples screen ({go.samples})", app.state)
    return prompts.read_text("sample", text, shown)


def _policy(app: AppBase, text: str) -> ParsedInput:
    words = text.strip()
    if not words:
        return ParsedInput(preview="what happens on a NaN or infinite loss or gradient")
    if words.startswith("autopilot"):
        mode = words.removeprefix("autopilot").strip()
        return prompts.read_text("policy autopilot", mode, f"autopilot on an anomaly: {mode}")
    return prompts.read_text(
        "policy nonfinite", words, f"on a non-finite loss or gradient: {words}"
    )


HANDLERS: dict[str, Handler] = {
    "run.pause": _pause,
    "run.steps": _prompt(
        "train N more steps, then pause", "100",
        lambda app, t: prompts.read_count("run", t, app.state.run),
    ),
    "run.rollback": ask_rollback,
    "run.race": ask_race,
    "anomaly.recover": _recover,
    "anomaly.culprit": _find_culprits,
    "checkpoint.save": lambda app: app.send(SaveCheckpoint()),
    "checkpoint.pin": _prompt("pinned checkpoint", "best so far, or nothing", _pin),
    "checkpoint.average": _prompt(
        "average checkpoints and evaluate the mean", "3, the last ones · or names or steps",
        lambda app, t: prompts.read_average(t, app.state),
    ),
    "run.evaluate": lambda app: app.send(Evaluate()),
    "run.bench": ask_bench,
    "run.gradients": lambda app: app.send(MeasureGradients()),
    "run.profile": lambda app: app.send(ProfileSteps()),
    "run.sample": _prompt("generate with the current weights", "Once upon a time", _sample),
    "run.chat": ask_chat,
    "run.stop": _stop,
    "lr.change": _prompt(
        "learning rate", prompts.LR_FORMS, lambda app, t: prompts.read_lr(t, app.state.run)
    ),
    "clip.change": _prompt(
        "gradient clip (max norm)",
        prompts.CLIP_FORMS,
        lambda app, t: prompts.read_clip(t, app.state.run),
    ),
    "change.undo": _undo,
    "data.skip": _prompt(
        "skip the data of the next N steps", "12",
        lambda app, t: prompts.read_count("skip", t, app.state.run),
    ),
    "data.quarantine": _prompt(
        "keep samples out of training", "ids as in the report of an anomaly, or: lift IDS",
        lambda app, t: prompts.read_quarantine(t),
    ),
    "data.mix": _prompt(
        "weights of the sources", "NAME=WEIGHT of every source, or: reset",
        lambda app, t: prompts.read_mix(t, app.state.run),
    ),
    "recipe.change": _prompt(
        "weight decay, dropout or schedule", prompts.RECIPE_FORMS,
        lambda app, t: prompts.read_recipe(t, app.state.run),
    ),
    "note.add": _prompt("note", "new data from here on", _note),
    "policy.change": _prompt("policy", POLICY_FORMS, _policy),
    "proposal.confirm": _confirm_proposal,
    "proposal.decline": _decline_proposal,
    "proposal.make": _prompt("propose a command", "lr scale 0.5 · clip p90", _proposed),
    "control.toggle": _control,
    "go.dashboard": _go("dashboard"),
    "go.metrics": _go("metrics"),
    "go.anomalies": _go("anomalies"),
    "go.checkpoints": _go("checkpoints"),
    "go.interventions": _go("interventions"),
    "go.samples": _go("samples"),
    "go.chat": _go("chat"),
    "go.log": _go("log"),
    "go.config": _go("config"),
    "go.runs": _go("runs"),
    "go.system": _go("system"),
    "go.ranks": _go("ranks"),
    "go.gradients": _go("gradients"),
    "go.data": _go("data"),
    "go.compare": _go("compare"),
    "app.count": _count,
    "app.command": _type,
    "app.help": _help,
    "app.commands": lambda app: app.action_command_palette(),
    "app.back": lambda app: app.back(),
    "app.detach": lambda app: app.exit(0),
    **SHARING_HANDLERS,
    **VIEW_HANDLERS,
}  # fmt: skip
"""A handler for every id of the action table; a test compares the two."""
