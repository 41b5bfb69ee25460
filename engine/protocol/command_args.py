"""Parse the arguments of a command as a person types them, and list the names that exist.

The parsers raise CommandError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher

from .command_kinds import (
    AnyCommand,
    AverageCheckpoints,
    FindCulprits,
    KeepPrompt,
    ProfileSteps,
    Quarantine,
    Recover,
    Rollback,
    SaveCheckpoint,
    SetClip,
    SetDropout,
    SetMix,
    SetPolicy,
    SetSchedule,
    SetWeightDecay,
)
from .settings import SCHEDULE_SHAPES


class CommandError(ValueError):
    """The text of a command cannot be parsed; the message names the expected form."""


_LARGEST_NUMBER = 1e6
_LARGEST_COUNT = 10_000_000
"""Larger values are typing errors, and some would overflow where they are used."""
MOST_PROFILED = 20
"""Largest number of steps that one command profiles."""


def number(
    text: str,
    what: str,
    *,
    low: float = 0.0,
    strict: bool = True,
    high: float = _LARGEST_NUMBER,
) -> float:
    """Parse a number above `low` (or equal to it, when not `strict`) and up to `high`.

    Raises:
        CommandError: with `what` and the bound that is missed.
    """
    try:
        value = float(text)
    except ValueError:
        raise CommandError(f"{what} must be a number, got {text!r}") from None
    if value > high:
        raise CommandError(f"{what} must be ≤ {high:g}, got {text}")
    if not math.isfinite(value) or value < low or (strict and value == low):
        raise CommandError(f"{what} must be {'>' if strict else '≥'} {low:g}, got {text}")
    return value


def count(text: str, what: str) -> int:
    """Parse a whole number from 1 to 10,000,000.

    Raises:
        CommandError: with `what` and the bound that is missed.
    """
    digits = text.lstrip("0")
    if not (text.isascii() and text.isdigit() and digits):
        raise CommandError(f"{what} must be a whole number ≥ 1, got {text!r}")
    # The length first: Python converts no text of thousands of digits.
    if len(digits) > 12 or int(digits) > _LARGEST_COUNT:
        raise CommandError(f"{what} must be ≤ {_LARGEST_COUNT:,}, got {text}")
    return int(digits)


def one(args: list[str], what: str) -> str:
    """Return the only argument of a command; raises CommandError unless there is exactly one."""
    if len(args) != 1:
        got = repr(" ".join(args)) if args else "nothing"
        raise CommandError(f"needs {what}, got {got}")
    return args[0]


def text_of(args: list[str], what: str) -> str:
    """Return all arguments of a command as one text; raises CommandError if it is blank."""
    if not "".join(args).strip():
        raise CommandError(f"needs {what}")
    return " ".join(args)


_ALL, _NEAR = 8, 4
"""Up to `_ALL` names are all listed; of more, the `_NEAR` most similar ones."""
_NUMBER = re.compile(r"[0-9]{1,15}")


def existing(wanted: str, names: Sequence[str], kind: str) -> str:
    """Return a list of existing names for an error about a name that does not exist.

    It reads `existing anomalies: …`, or with many names `nearest of 90 anomalies: …` and the most
    similar ones in their order. Names with numbers are compared by these.

    Args:
        wanted: the name that does not exist.
        names: the names that exist.
        kind: what they are, in the plural.
    """
    if len(names) <= _ALL:
        return f"existing {kind}: {', '.join(names) or 'none yet'}"
    near = sorted(range(len(names)), key=lambda at: _distance(wanted, names[at]))[:_NEAR]
    shown = ", ".join(names[at] for at in sorted(near))
    return f"nearest of {len(names):,} {kind}: {shown}"


def _distance(wanted: str, name: str) -> tuple[int, float]:
    mine, its = _NUMBER.search(wanted), _NUMBER.search(name)
    apart = abs(int(mine[0]) - int(its[0])) if mine and its else 0
    return apart, -SequenceMatcher(None, wanted[:100], name).ratio()


def bare(kind: Callable[[], AnyCommand]) -> Callable[[list[str]], AnyCommand]:
    """Return a parser of a command without arguments."""

    def parse(args: list[str]) -> AnyCommand:
        if args:
            raise CommandError(f"takes no argument, got {' '.join(args)!r}")
        return kind()

    return parse


def parse_clip(args: list[str]) -> SetClip:
    """Parse VALUE, pNN or off."""
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


def parse_checkpoint(args: list[str]) -> SaveCheckpoint:
    """Parse [pin] [NOTE]."""
    pin = bool(args) and args[0] == "pin"
    return SaveCheckpoint(pin=pin, note=" ".join(args[1:] if pin else args))


def parse_rollback(args: list[str]) -> Rollback:
    """Parse a checkpoint and its options lr=F, clip=V and skip=N."""
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


def parse_policy(args: list[str]) -> SetPolicy:
    """Parse what a policy is about and its new value."""
    match args:
        case ["nonfinite", "skip" | "halt" | "rollback" as choice]:
            return SetPolicy(nonfinite=choice)
        case ["autopilot", "off" | "propose" | "act" as choice]:
            return SetPolicy(autopilot=choice)
        case _:
            raise CommandError(
                "expected nonfinite skip|halt|rollback, or autopilot off|propose|act"
            )


def parse_recover(args: list[str]) -> Recover:
    """Parse the id of an anomaly or nothing."""
    return Recover(anomaly=one(args, "one anomaly's ID")) if args else Recover()


def parse_culprit(args: list[str]) -> FindCulprits:
    """Parse the id of an anomaly or nothing."""
    return FindCulprits(anomaly=one(args, "one anomaly's ID")) if args else FindCulprits()


def parse_average(args: list[str]) -> AverageCheckpoints:
    """Parse a number of checkpoints, or the names of several.

    Raises:
        CommandError: it is neither, or fewer than two checkpoints are meant.
    """
    if len(args) == 1 and args[0].isascii() and args[0].isdigit():
        last = count(args[0], "N")
        if last < 2:
            raise CommandError("needs two checkpoints or more; a single one has no mean")
        return AverageCheckpoints(last=last)
    if len(set(args)) < len(args):
        raise CommandError("names a checkpoint twice; name each of them once, and at least two")
    if len(args) < 2:
        raise CommandError("needs a number N, or the names of two checkpoints or more")
    return AverageCheckpoints(checkpoints=tuple(args))


def parse_profile(args: list[str]) -> ProfileSteps:
    """Parse a number of steps or nothing."""
    if not args:
        return ProfileSteps()
    steps = count(one(args, "N"), "N")
    if steps > MOST_PROFILED:
        raise CommandError(f"N must be ≤ {MOST_PROFILED}: every kernel is recorded; got {steps}")
    return ProfileSteps(steps=steps)


def flagged(
    word: str, plain: AnyCommand, with_word: AnyCommand
) -> Callable[[list[str]], AnyCommand]:
    """Return a parser of a command that takes one word or nothing."""

    def parse(args: list[str]) -> AnyCommand:
        if args not in ([], [word]):
            raise CommandError(f"expected nothing or {word}, got {' '.join(args)!r}")
        return with_word if args else plain

    return parse


RESET = "reset"
"""The word after a setting that returns to the configuration."""


def parse_weight_decay(args: list[str]) -> SetWeightDecay:
    """Parse a weight decay of 0 or more, or `reset`."""
    text = one(args, f"VALUE, or {RESET}")
    if text == RESET:
        return SetWeightDecay()
    return SetWeightDecay(value=number(text, "the weight decay", strict=False))


def parse_dropout(args: list[str]) -> SetDropout:
    """Parse a rate from 0 to below 1, or `reset`."""
    text = one(args, f"RATE, or {RESET}")
    if text == RESET:
        return SetDropout()
    rate = number(text, "the dropout", strict=False)
    if rate >= 1:
        raise CommandError(f"the dropout must be < 1, got {text}")
    return SetDropout(rate=rate)


def parse_schedule(args: list[str]) -> SetSchedule:
    """Parse a shape with from=STEP and at=RATE, or `reset`."""
    if args == [RESET]:
        return SetSchedule(shape="")
    form = f"expected {', '.join(SCHEDULE_SHAPES)} or {RESET}"
    if not args or args[0] not in SCHEDULE_SHAPES:
        raise CommandError(f"{form}, got {' '.join(args) or 'nothing'!r}")
    options: dict[str, str] = {}
    for item in args[1:]:
        key, _, value = item.partition("=")
        if key not in ("from", "at") or not value or key in options:
            raise CommandError(f"unknown option {item!r}; expected from=STEP or at=RATE, once each")
        options[key] = value
    start = options.get("from")
    return SetSchedule(
        shape=args[0],
        start=None if start is None else 0 if start == "0" else count(start, "from"),
        lr=number(options["at"], "at") if "at" in options else None,
    )


DROP = "drop"
"""The word after `keep` with which a prompt is no longer kept."""


def parse_keep(args: list[str]) -> KeepPrompt:
    """Parse a prompt, or `drop` with a prompt or without; `--` ends the words of the command."""
    if args[:1] == [DROP]:
        return KeepPrompt(prompt=" ".join(args[1:]), drop=True)
    return KeepPrompt(prompt=text_of(args[1:] if args[:1] == ["--"] else args, "a PROMPT"))


def keep_words(command: KeepPrompt) -> list[str]:
    """Return the words after `keep`; `parse_keep` reads them back."""
    if command.drop:
        return [DROP, *([command.prompt] if command.prompt else [])]
    unclear = command.prompt.split()[:1] in ([DROP], ["--"])
    return [*["--"] * unclear, command.prompt]


WordedSetting = (
    SetMix | SetSchedule | SetWeightDecay | SetDropout | KeepPrompt | Quarantine | SetPolicy
)
"""Settings whose words are not only the values of their fields."""


def setting_words(command: WordedSetting) -> list[str]:
    """Return the words after the verb of a command; the parsers read them back."""
    match command:
        case SetPolicy(nonfinite=what, autopilot=mode):
            parts = {"nonfinite": what, "autopilot": mode}
            chosen = [(name, value) for name, value in parts.items() if value is not None]
            return [word for pair in chosen for word in pair]
        case Quarantine(ids=ids, lift=lift):
            odd = not lift and ids[:1] in ((LIFT,), ("--",))
            return [*[LIFT] * lift, *["--"] * odd, *ids]
        case KeepPrompt():
            return keep_words(command)
        case SetMix(weights=weights):
            return mix_words(weights)
        case SetSchedule():
            return schedule_words(command)
        case SetWeightDecay(value=value) | SetDropout(rate=value):
            return [RESET if value is None else f"{value:.12g}"]


def schedule_words(command: SetSchedule) -> list[str]:
    """Return the words after `schedule`; `parse_schedule` reads them back."""
    if not command.shape:
        return [RESET]
    start = [] if command.start is None else [f"from={command.start}"]
    rate = [] if command.lr is None else [f"at={command.lr!r}"]
    return [command.shape, *start, *rate]


def parse_mix(args: list[str]) -> SetMix:
    """Parse NAME=WEIGHT of every source, or `reset`."""
    if args == [RESET]:
        return SetMix(weights={})
    weights: dict[str, float] = {}
    for item in args:
        name, sign, value = item.rpartition("=")
        if not (sign and name and value):
            raise CommandError(f"expected NAME=WEIGHT of every source, or {RESET}, got {item!r}")
        if name in weights:
            raise CommandError(f"{name} is given twice; give each source one weight")
        weights[name] = number(value, f"the weight of {name}", strict=False)
    if not any(weights.values()):
        nothing = "all weights are 0; raise one of them"
        raise CommandError(nothing if weights else "needs NAME=WEIGHT of every source")
    return SetMix(weights=weights)


def mix_words(weights: Mapping[str, float]) -> list[str]:
    """Return the words after `mix` for some weights; `parse_mix` reads them back."""
    return [f"{name}={weight:.12g}" for name, weight in weights.items()] or [RESET]


LIFT = "lift"
"""The word that begins the arguments of a `quarantine` that lets samples in again."""


def parse_quarantine(args: list[str]) -> Quarantine:
    """Parse ids of samples, or `lift` with ids or without."""
    if args[:1] == [LIFT]:
        return Quarantine(ids=tuple(dict.fromkeys(args[1:])), lift=True)
    ids = tuple(dict.fromkeys(args[1:] if args[:1] == ["--"] else args))
    if not all(ids) or not ids:
        raise CommandError("needs the ID of a sample, as an anomaly's report shows it")
    return Quarantine(ids=ids)
