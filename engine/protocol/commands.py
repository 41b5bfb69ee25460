"""What a person can ask of a run: structs, and the ONE table that parses, explains, gates them.

`fttui ctl`, the app's keys, its palette, its help and the docs all read `COMMANDS`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from .command_args import CommandError, count, number, one, text_of
from .states import RunState


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    """Base of all commands; `k` on the wire is the class name."""


class ScaleLr(Command, frozen=True, kw_only=True, tag="ScaleLr"):
    """Multiply the schedule by `factor` from the next update on (absolute, not cumulative)."""

    factor: float


class SetLr(Command, frozen=True, kw_only=True, tag="SetLr"):
    """Choose the scale such that the effective learning rate of the next update is `value`."""

    value: float


class ResetLr(Command, frozen=True, kw_only=True, tag="ResetLr"):
    """Back to the plain schedule."""


class SetClip(Command, frozen=True, kw_only=True, tag="SetClip"):
    """Set the max grad norm: a fixed value, a percentile of recent norms, or off (both None)."""

    value: float | None = None
    percentile: float | None = None


class Pause(Command, frozen=True, kw_only=True, tag="Pause"):
    """Hold before the next micro-batch."""

    release: bool = False
    """Also move everything off the GPU until training goes on."""


class Resume(Command, frozen=True, kw_only=True, tag="Resume"):
    """Go on after a pause or a halt."""


class RunSteps(Command, frozen=True, kw_only=True, tag="RunSteps"):
    """Train `steps` more steps, then pause."""

    steps: int


class SaveCheckpoint(Command, frozen=True, kw_only=True, tag="SaveCheckpoint"):
    """Write a complete checkpoint now."""

    pin: bool = False
    note: str = ""


class Rollback(Command, frozen=True, kw_only=True, tag="Rollback"):
    """Return to a checkpoint, exactly, and go on from there on a new timeline."""

    checkpoint: str
    """A checkpoint's name, its step number, or `last`."""
    lr_scale: float | None = None
    """New absolute LR scale; None keeps the one in force now."""
    clip: float | None = None
    """New max grad norm; None keeps the one in force now."""
    skip: int = 0
    """Optimizer-step batches to drop after going back."""


class Recover(Command, frozen=True, kw_only=True, tag="Recover"):
    """Go back to before an anomaly, past its data, with half the LR and a tighter clip."""

    anomaly: str = ""
    """Id of the anomaly; empty is the newest instability."""


class MeasureGradients(Command, frozen=True, kw_only=True, tag="MeasureGradients"):
    """Measure gradient and update norms by module in the next update."""


class ProfileSteps(Command, frozen=True, kw_only=True, tag="ProfileSteps"):
    """See where the time of the next `steps` steps goes."""

    steps: int = 2


class Evaluate(Command, frozen=True, kw_only=True, tag="Evaluate"):
    """Evaluate now."""


class GenerateSample(Command, frozen=True, kw_only=True, tag="GenerateSample"):
    """Generate text from the current adapter."""

    prompt: str


class SkipBatches(Command, frozen=True, kw_only=True, tag="SkipBatches"):
    """Drop the data of the next `steps` optimizer steps."""

    steps: int


class AddNote(Command, frozen=True, kw_only=True, tag="AddNote"):
    """Mark this step on the curves and in the journal."""

    text: str


class SetPolicy(Command, frozen=True, kw_only=True, tag="SetPolicy"):
    """What is done without a person: by the guard on a non-finite number, by the autopilot."""

    nonfinite: str | None = None
    """skip, halt or rollback; None leaves it."""
    autopilot: str | None = None
    """off, propose or act; None leaves it."""


class Stop(Command, frozen=True, kw_only=True, tag="Stop"):
    """Finish the step, save unless told otherwise, end."""

    save: bool = True


AnyCommand = (
    ScaleLr
    | SetLr
    | ResetLr
    | SetClip
    | Pause
    | Resume
    | RunSteps
    | SaveCheckpoint
    | Rollback
    | Recover
    | MeasureGradients
    | ProfileSteps
    | Evaluate
    | GenerateSample
    | SkipBatches
    | AddNote
    | SetPolicy
    | Stop
)


@dataclass(frozen=True)
class CommandSpec:
    """One row of the table: how a command is typed, what it does, where it is legal."""

    verb: str
    """The words that select it, such as `lr scale`."""
    usage: str
    """The whole form, such as `lr scale FACTOR`."""
    help: str
    kind: type[Command]
    legal: frozenset[RunState]
    parse: Callable[[list[str]], AnyCommand]
    destructive: bool = False
    """Throws work away or ends the run: ask before sending."""


_LIVE = frozenset(
    {
        RunState.RUNNING,
        RunState.PAUSED,
        RunState.EVALUATING,
        RunState.SAVING,
        RunState.ROLLING_BACK,
    }
)
_ANY = frozenset({*_LIVE, RunState.STARTING, RunState.HALTED, RunState.STOPPING})


def _none(kind: Callable[[], AnyCommand]) -> Callable[[list[str]], AnyCommand]:
    def parse(args: list[str]) -> AnyCommand:
        if args:
            raise CommandError(f"takes no argument, got {' '.join(args)!r}")
        return kind()

    return parse


def _parse_clip(args: list[str]) -> SetClip:
    if args == ["off"]:
        return SetClip()
    percentile = args[1] if len(args) == 2 and args[0] == "auto" else None
    if percentile is None and len(args) == 1 and args[0].startswith("p") and args[0] != "p":
        percentile = args[0][1:]
    if percentile is not None:
        value = number(percentile.removeprefix("p"), "the percentile")
        if value > 100:
            raise CommandError(f"the percentile must be ≤ 100, got {percentile}")
        return SetClip(percentile=value)
    return SetClip(value=number(one(args, "VALUE, pNN or off"), "clip"))


def _parse_checkpoint(args: list[str]) -> SaveCheckpoint:
    pin = bool(args) and args[0] == "pin"
    return SaveCheckpoint(pin=pin, note=" ".join(args[1:] if pin else args))


def _parse_rollback(args: list[str]) -> Rollback:
    if not args:
        raise CommandError("needs a checkpoint: its name, its step, or `last`")
    options: dict[str, str] = {}
    for item in args[1:]:
        key, _, value = item.partition("=")
        if key not in {"lr", "clip", "skip"} or not value:
            raise CommandError(f"unknown option {item!r}; expected lr=F, clip=V or skip=N")
        options[key] = value
    return Rollback(
        checkpoint=args[0],
        lr_scale=number(options["lr"], "lr") if "lr" in options else None,
        clip=number(options["clip"], "clip") if "clip" in options else None,
        skip=count(options["skip"], "skip") if "skip" in options else 0,
    )


def _parse_policy(args: list[str]) -> SetPolicy:
    match args:
        case ["nonfinite", "skip" | "halt" | "rollback" as choice]:
            return SetPolicy(nonfinite=choice)
        case ["autopilot", "off" | "propose" | "act" as choice]:
            return SetPolicy(autopilot=choice)
        case _:
            raise CommandError(
                "expected nonfinite skip|halt|rollback, or autopilot off|propose|act"
            )


def _parse_recover(args: list[str]) -> Recover:
    return Recover(anomaly=one(args, "one anomaly's ID")) if args else Recover()


def _parse_profile(args: list[str]) -> ProfileSteps:
    if not args:
        return ProfileSteps()
    steps = count(one(args, "N"), "N")
    if steps > _MOST_PROFILED:
        raise CommandError(f"N must be ≤ {_MOST_PROFILED}: every kernel is recorded; got {steps}")
    return ProfileSteps(steps=steps)


def _parse_pause(args: list[str]) -> Pause:
    if args not in ([], ["release"]):
        raise CommandError(f"expected nothing or release, got {' '.join(args)!r}")
    return Pause(release=bool(args))


def _parse_stop(args: list[str]) -> Stop:
    if args not in ([], ["no-save"]):
        raise CommandError(f"expected nothing or no-save, got {' '.join(args)!r}")
    return Stop(save=not args)


_MOST_PROFILED = 20
_HALTED = RunState.HALTED
COMMANDS: tuple[CommandSpec, ...] = (
    CommandSpec(
        "lr scale",
        "lr scale FACTOR",
        "multiply the LR schedule by FACTOR",
        ScaleLr,
        _LIVE,
        lambda a: ScaleLr(factor=number(one(a, "FACTOR"), "the factor")),
    ),
    CommandSpec(
        "lr set",
        "lr set VALUE",
        "make the effective LR VALUE now, keep the schedule's shape",
        SetLr,
        _LIVE,
        lambda a: SetLr(value=number(one(a, "VALUE"), "the learning rate")),
    ),
    CommandSpec(
        "lr reset", "lr reset", "back to the plain schedule", ResetLr, _LIVE, _none(ResetLr)
    ),
    CommandSpec(
        "clip",
        "clip VALUE | pNN | off",
        "max grad norm: a value, a percentile of recent norms, off",
        SetClip,
        _LIVE,
        _parse_clip,
    ),
    CommandSpec(
        "pause",
        "pause [release]",
        "hold before the next micro-batch; release frees the GPU's memory too",
        Pause,
        _LIVE,
        _parse_pause,
    ),
    CommandSpec(
        "resume",
        "resume",
        "go on after a pause or a halt",
        Resume,
        _LIVE | {_HALTED},
        _none(Resume),
    ),
    CommandSpec(
        "run",
        "run N",
        "train N more steps, then pause",
        RunSteps,
        _LIVE,
        lambda a: RunSteps(steps=count(one(a, "N"), "N")),
    ),
    CommandSpec(
        "checkpoint",
        "checkpoint [pin] [NOTE]",
        "write a complete checkpoint; pinned ones stay",
        SaveCheckpoint,
        _LIVE,
        _parse_checkpoint,
    ),
    CommandSpec(
        "rollback",
        "rollback CHECKPOINT|STEP|last [lr=F] [clip=V] [skip=N]",
        "return exactly to a checkpoint and go on from there",
        Rollback,
        _LIVE | {_HALTED},
        _parse_rollback,
        destructive=True,
    ),
    CommandSpec(
        "recover",
        "recover [ID]",
        "go back to before an anomaly, past its data, with half the LR and a tighter clip",
        Recover,
        _LIVE | {_HALTED},
        _parse_recover,
        destructive=True,
    ),
    CommandSpec(
        "gradients",
        "gradients",
        "measure gradient and update norms by module in the next update",
        MeasureGradients,
        _LIVE,
        _none(MeasureGradients),
    ),
    CommandSpec(
        "profile",
        "profile [N]",
        "see where the time of the next N steps goes: data, forward, backward, update, waiting",
        ProfileSteps,
        _LIVE,
        _parse_profile,
    ),
    CommandSpec("eval", "eval", "evaluate now", Evaluate, _LIVE, _none(Evaluate)),
    CommandSpec(
        "sample",
        "sample PROMPT",
        "generate text from the current adapter",
        GenerateSample,
        _LIVE,
        lambda a: GenerateSample(prompt=text_of(a, "a PROMPT")),
    ),
    CommandSpec(
        "skip",
        "skip N",
        "drop the data of the next N steps",
        SkipBatches,
        _LIVE,
        lambda a: SkipBatches(steps=count(one(a, "N"), "N")),
    ),
    CommandSpec(
        "note",
        "note TEXT",
        "mark this step on the curves",
        AddNote,
        _ANY,
        lambda a: AddNote(text=text_of(a, "a TEXT")),
    ),
    CommandSpec(
        "policy",
        "policy nonfinite skip|halt|rollback | autopilot off|propose|act",
        "what is done on a non-finite number, and what the autopilot may do about an anomaly",
        SetPolicy,
        _ANY,
        _parse_policy,
    ),
    CommandSpec(
        "stop",
        "stop [no-save]",
        "finish the step, save, end the run",
        Stop,
        _ANY,
        _parse_stop,
        destructive=True,
    ),
)

SPEC_OF: dict[type[Command], CommandSpec] = {spec.kind: spec for spec in COMMANDS}


def parse_command(text: str | list[str]) -> AnyCommand:
    """Turn what a person typed into a command.

    Raises:
        CommandError: with the expected form.
    """
    try:
        words = shlex.split(text) if isinstance(text, str) else list(text)
    except ValueError as error:
        raise CommandError(f"cannot read {text!r}: {error}; quote it or escape the quote") from None
    for spec in sorted(COMMANDS, key=lambda s: -len(s.verb.split())):
        head = spec.verb.split()
        if words[: len(head)] == head:
            try:
                return spec.parse(words[len(head) :])
            except CommandError as error:
                raise CommandError(f"{spec.verb}: {error} (usage: {spec.usage})") from None
    known = ", ".join(spec.verb for spec in COMMANDS)
    raise CommandError(f"unknown command {' '.join(words)!r}; expected one of: {known}")


def describe_command(command: AnyCommand) -> str:
    """The command as a person would type it; `parse_command` reads it back."""
    spec = SPEC_OF[type(command)]
    return " ".join(word for word in (spec.verb, *_arguments(command)) if word)


_FLAGS: dict[AnyCommand, str] = {Pause(release=True): "release", Stop(save=False): "no-save"}


def _arguments(command: AnyCommand) -> list[str]:
    match command:
        case SetClip(value=None, percentile=percentile):
            return ["off" if percentile is None else f"p{_word(percentile)}"]
        case SaveCheckpoint(pin=pin, note=note):
            return ["pin" if pin else "", note]
        case Rollback(checkpoint=name, lr_scale=lr, clip=clip, skip=skip):
            options = {"lr": lr, "clip": clip, "skip": skip or None}
            return [
                name,
                *(f"{key}={_word(value)}" for key, value in options.items() if value is not None),
            ]
        case SetPolicy(nonfinite=what, autopilot=mode):
            return ["nonfinite", what] if what else ["autopilot", mode or ""]
        case Pause() | Stop():
            return [_FLAGS.get(command, "")]
        case _:
            values = (getattr(command, field) for field in command.__struct_fields__)
            return [_word(value) for value in values if value is not None]


def _word(value: str | float) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def why_illegal(command: AnyCommand, state: RunState) -> str | None:
    """The reason a command makes no sense in a state, or None when it is legal."""
    spec = SPEC_OF[type(command)]
    if state in spec.legal:
        return None
    if state.ended:
        return f"the run is {state.value}; resume it with: fttui run --resume RUN"
    wanted = " or ".join(
        sorted({"running", "paused"} | ({"halted"} if _HALTED in spec.legal else set()))
    )
    return f"{spec.verb} works while {wanted}; the run is {state.value}"
