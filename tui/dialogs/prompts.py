"""Parsers of the prompts: typed text becomes a command and a preview, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fttui.engine.protocol.command_args import CommandError, existing
from fttui.engine.protocol.command_kinds import LARGEST_RATE
from fttui.engine.protocol.commands import (
    AnyCommand,
    AverageCheckpoints,
    Chat,
    FindCulprits,
    Quarantine,
    Recover,
    ResetLr,
    Rollback,
    ScaleLr,
    SetClip,
    SetLr,
    SetMix,
    SetSchedule,
    describe_command,
    parse_command,
)
from fttui.engine.protocol.settings import why_not_mixed, why_without_effect

from ..text.format import factor, learning_rate, number, plural
from ..view_model.app_state import AppState
from ..view_model.run_view import RunView
from .completion import anomaly_ids, checkpoint_names

LR_FORMS = "x0.5 · x2 · =1e-4 · reset"
CLIP_FORMS = "0.5 · p90 · off"
RECENT_NORMS = 200


@dataclass(frozen=True)
class ParsedInput:
    """The result of parsing a prompt's text."""

    command: AnyCommand | None = None
    preview: str = ""
    error: str = ""
    needs: str = ""
    """What is missing: shown below the input, and as an error when enter is pressed."""
    goto: int | None = None
    """A step for the cursor, instead of a command."""
    text: str | None = None
    """The typed text, for prompts whose result is text."""
    relative: bool = False
    """Whether the command is relative to the current value, so another change invalidates it."""


def read_lr(text: str, run: RunView) -> ParsedInput:
    """Parse a change of the learning rate; a factor multiplies the current LR scale."""
    text = text.strip().lower()
    schedule = run.last.lr_schedule if run.last else None
    if not text:
        return ParsedInput(preview=_lr_preview(schedule, run.lr_scale, "now"))
    if text == "reset":
        return ParsedInput(ResetLr(), _lr_preview(schedule, 1.0, "then"))
    if text[0] in "×*x":
        return _read_factor(text, schedule, run.lr_scale)
    return _read_value(text, schedule)


def _read_factor(text: str, schedule: float | None, scale: float) -> ParsedInput:
    value = _positive(text[1:])
    if value is None:
        return ParsedInput(error=f"expected a factor > 0, such as x0.5; got {text!r}")
    scale *= value
    return ParsedInput(ScaleLr(factor=scale), _lr_preview(schedule, scale, "then"), relative=True)


def _read_value(text: str, schedule: float | None) -> ParsedInput:
    value = _positive(text.removeprefix("="))
    if value is None:
        return ParsedInput(error=f"expected {LR_FORMS}; got {text!r}")
    if value >= LARGEST_RATE and not text.startswith("="):
        hint = f"for a factor, type x{value:g}; for a learning rate of {value:g}, type ={value:g}"
        return ParsedInput(error=hint)
    scale = value / schedule if schedule else math.nan
    return ParsedInput(SetLr(value=value), _lr_preview(schedule, scale, "then"))


def _positive(text: str) -> float | None:
    try:
        value = float(text.strip())
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _lr_preview(schedule: float | None, scale: float, when: str) -> str:
    if schedule is None or not math.isfinite(scale):
        return "schedule × scale = learning rate (no step yet)"
    effective = learning_rate(schedule * scale)
    return f"{when}: {learning_rate(schedule)} schedule × {factor(scale)} scale = {effective}"


def read_clip(text: str, run: RunView) -> ParsedInput:
    """Parse a change of the gradient clip: a norm, a percentile of recent norms, or off."""
    text = text.strip().lower()
    now = "off" if run.clip is None else number(run.clip)
    if not text:
        return ParsedInput(preview=f"now: {now} · {_norm_range(run)}")
    asked = _verb("clip", text)
    if isinstance(asked.command, SetClip) and asked.command.percentile is not None:
        value = percentile(_norms(run), asked.command.percentile)
        about = "" if value is None else f" ≈ {number(value)} (last {RECENT_NORMS} steps)"
        return ParsedInput(asked.command, f"{now} → {text}{about}")
    return ParsedInput(asked.command, f"{now} → {text} · {_norm_range(run)}", asked.error)


def read_count(verb: str, text: str, run: RunView) -> ParsedInput:
    """Parse the number of steps of the command `run N` or `skip N`, whose verb is `verb`."""
    asked = _verb(verb, text.strip())
    if not text.strip():
        return ParsedInput(needs="type a number of steps, such as 12, or cancel with esc")
    if asked.error:
        return ParsedInput(error=asked.error)
    steps = int(text)
    if verb == "skip":
        return ParsedInput(asked.command, f"skips the data of the next {plural(steps, 'step')}")
    first, last = run.step + 1, run.step + steps
    which = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
    return ParsedInput(asked.command, f"trains {which}, then pauses")


def read_text(verb: str, text: str, preview: str) -> ParsedInput:
    """Parse the free text of a command, such as a note.

    `verb` is the verb of the command, and `preview` says what it will do.
    """
    words = [*verb.split(), text.strip()]
    if not text.strip():
        return ParsedInput(needs="type a text, or cancel with esc")
    try:
        return ParsedInput(parse_command(words), preview)
    except CommandError as error:
        return ParsedInput(error=str(error))


def read_average(text: str, state: AppState) -> ParsedInput:
    """Parse the number, or the names, of the checkpoints to average."""
    if not text.strip():
        return ParsedInput(needs="type a number such as 3, or names, or cancel with esc")
    asked = _verb("soup", text)
    if asked.command is None:
        return asked
    if unknown := _unknown(asked.command, state):
        return ParsedInput(error=unknown)
    return ParsedInput(asked.command, "evaluates the mean; training continues unchanged")


def read_quarantine(text: str) -> ParsedInput:
    """Parse the ids of samples to keep out of training, or to let in again after `lift`."""
    if not text.strip():
        return ParsedInput(needs="type the ID of a sample, or lift, or cancel with esc")
    try:
        command = parse_command(f"quarantine {text}")
    except CommandError as error:
        return ParsedInput(error=str(error).split(" (usage")[0])
    return ParsedInput(command, " ".join(quarantining(command)))


def quarantining(command: AnyCommand) -> list[str]:
    """Describe what a change of the quarantine does, one sentence per line.

    There are no lines for any other command.
    """
    if not isinstance(command, Quarantine):
        return []
    count = f"{len(command.ids):,} " if len(command.ids) != 1 else ""
    them = f"{count}samples" if count else "the sample"
    if command.lift:
        return [f"Readmits {them if command.ids else 'all samples in quarantine'} to training."]
    return [
        f"Excludes {them} from training from the next step on, also after a rollback.",
        "Other samples take their places; the order of the rest does not change.",
    ]


RECIPE_FORMS = "weight_decay 0.01 · dropout 0.1 · schedule cosine · dropout reset"
_OF_RECIPE = ("weight_decay", "dropout", "schedule")


def read_recipe(text: str, run: RunView) -> ParsedInput:
    """Parse a change of weight decay, dropout or schedule."""
    verb = text.split(maxsplit=1)[0] if text.strip() else ""
    if not any(one.startswith(verb) for one in _OF_RECIPE) or not verb:
        wanted = f"type {RECIPE_FORMS}"
        return ParsedInput(needs=wanted) if not verb else ParsedInput(error=wanted)
    if verb not in _OF_RECIPE or verb == text.strip():
        return ParsedInput(needs=f"type {RECIPE_FORMS}")
    try:
        command = parse_command(text)
    except CommandError as error:
        return ParsedInput(error=str(error).split(" (usage")[0])
    if reason := _without_effect(command, run):
        return ParsedInput(error=reason)
    return ParsedInput(command, f"{text.strip()} from step {run.step + 1:,} on; this can be undone")


def _without_effect(command: AnyCommand, run: RunView) -> str:
    if not isinstance(command, SetSchedule) or run.started is None:
        return ""
    return why_without_effect(command.start, run.started.total_steps)


def read_mix(text: str, run: RunView) -> ParsedInput:
    """Parse new weights of the sources, or `reset` for the configured ones."""
    names = run.started.sources if run.started else []
    if not text.strip():
        form = " ".join(f"{name}=1" for name in names) or "NAME=WEIGHT of every source"
        return ParsedInput(needs=f"type {form}, or reset, or cancel with esc")
    try:
        command = parse_command(f"mix {text}")
    except CommandError as error:
        return ParsedInput(error=str(error).split(" (usage")[0])
    weights = command.weights if isinstance(command, SetMix) else {}
    if weights and names and (reason := why_not_mixed(weights, names)):
        return ParsedInput(error=reason)
    return ParsedInput(command, " ".join(mixing(weights)))


def mixing(weights: Mapping[str, float]) -> list[str]:
    """Describe what other weights of the sources do, one sentence per line."""
    if not weights:
        return ["Mixes the sources by the configured weights from the next step on."]
    total = sum(weights.values())
    shares = ", ".join(f"{name} {weight / total:.0%}" for name, weight in weights.items())
    return [
        f"From the next step on: {shares}, also after a rollback.",
        "Each source continues at its current position.",
    ]


def read_command(text: str, state: AppState) -> ParsedInput:
    """Parse a command as `fttui ctl` takes it, or the number of a step, at most the newest one.

    A checkpoint or an anomaly that the run does not have is an error.
    """
    text = text.strip()
    if not text:
        return ParsedInput(needs="type a command or a step, or cancel with esc")
    typed = text.replace(",", "")
    if typed.isascii() and typed.isdigit():
        digits, newest = typed.lstrip("0") or "0", state.run.step
        # The length first: Python converts no text of thousands of digits.
        step = newest if len(digits) > len(str(newest)) else min(int(digits), newest)
        return ParsedInput(goto=step, preview=f"moves the cursor to step {step:,}")
    try:
        command = parse_command(text)
    except (CommandError, ValueError) as error:
        return ParsedInput(error=str(error))
    if wrong := _unknown(command, state) or _without_effect(command, state.run):
        return ParsedInput(error=wrong)
    return ParsedInput(command, f"sends: {describe_command(command)}")


def _unknown(command: AnyCommand, state: AppState) -> str:
    """Return an error if the run lacks the checkpoint or anomaly that a command names.

    It lists the existing ones, of many the most similar. Empty if the run has it, or the command
    names none.
    """
    match command:
        case Rollback(checkpoint=wanted):
            names, what, many = checkpoint_names(state), "checkpoint", "checkpoints"
            steps = {str(c.step) for c in state.run.checkpoints} | ({"last"} if names else set())
        case AverageCheckpoints(checkpoints=several) if several:
            found = (_unknown(Rollback(checkpoint=one), state) for one in several)
            return next((error for error in found if error), "")
        case Chat(checkpoint=str(wanted)) if wanted:
            return _unknown(Rollback(checkpoint=wanted), state)
        case Recover(anomaly=str(wanted)) | FindCulprits(anomaly=str(wanted)) if wanted:
            names, what, many, steps = anomaly_ids(state), "anomaly", "anomalies", set[str]()
        case _:
            return ""
    if wanted in names or wanted in steps:
        return ""
    return f"no {what} {wanted!r}; {existing(wanted, names, many)}"


def _verb(verb: str, text: str) -> ParsedInput:
    try:
        return ParsedInput(parse_command([*verb.split(), *text.split()]))
    except CommandError as error:
        return ParsedInput(error=str(error).split(" (usage")[0])


def _norms(run: RunView) -> list[float]:
    series = run.branch.curves.get("grad_norm")
    return [v for v in series.tail(RECENT_NORMS) if math.isfinite(v)] if series else []


def _norm_range(run: RunView) -> str:
    norms = _norms(run)
    if not norms:
        return "no gradient norms yet"
    shown = (percentile(norms, p) for p in (50, 90, 99))
    median, high, top = (number(v) for v in shown)
    return f"recent norms: median {median}, p90 {high}, p99 {top}"


def percentile(values: list[float], p: float) -> float | None:
    """Return the nearest-rank percentile `p` (0 to 100); None for an empty list."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(p / 100 * len(ordered)) - 1))]
