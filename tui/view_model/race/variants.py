"""The variants of a race: every combination of the settings that a person names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.command_args import (
    CommandError,
    number,
    parse_clip,
    parse_dropout,
    parse_mix,
    parse_schedule,
    parse_weight_decay,
)
from fttui.engine.protocol.command_kinds import (
    ScaleLr,
    SetClip,
    SetDropout,
    SetLr,
    SetMix,
    SetSchedule,
    SettingCommand,
    SetWeightDecay,
    undo_schedule,
)
from fttui.engine.protocol.commands import describe_command
from fttui.engine.protocol.settings import RunSettings

NOW = "now"
"""The value of a setting that stands for the one in force when the race begins."""
MOST_VARIANTS = 64
"""Largest number of variants; more are likely a typing error."""
_FORM = "lr=1e-4,2e-4 clip=0.5,1"


@dataclass(frozen=True)
class Choice:
    """One value of one setting."""

    setting: str
    """Its name, such as `lr` or `clip`."""
    value: str
    """The value as it was typed."""

    def command(self, now: RunSettings) -> SettingCommand:
        """Return the command that makes this choice; `now` are the settings before the race.

        Raises:
            CommandError: the value is not valid.
        """
        return _SETTINGS[self.setting](self.value, now)


@dataclass(frozen=True)
class Variant:
    """A combination of settings that takes part in a race."""

    choices: tuple[Choice, ...]

    @property
    def label(self) -> str:
        """The variant in words, such as `lr 2e-4, clip 0.5`."""
        return ", ".join(f"{choice.setting} {choice.value}" for choice in self.choices)

    def commands(self, now: RunSettings) -> tuple[SettingCommand, ...]:
        """Return the commands that put it in force; `now` are the settings before the race."""
        return tuple(choice.command(now) for choice in self.choices)


def _lr(value: str, now: RunSettings) -> SettingCommand:
    if value == NOW:
        return ScaleLr(factor=now.lr_scale)
    if value[:1] in ("x", "×"):
        return ScaleLr(factor=number(value[1:], "the factor"))
    return SetLr(value=number(value, "the learning rate"))


def _clip(value: str, now: RunSettings) -> SettingCommand:
    if value != NOW:
        return parse_clip([value])
    percentile = now.clip_percentile
    return SetClip(value=now.clip if percentile is None else None, percentile=percentile)


def _weight_decay(value: str, now: RunSettings) -> SettingCommand:
    return SetWeightDecay(value=now.weight_decay) if value == NOW else parse_weight_decay([value])


def _dropout(value: str, now: RunSettings) -> SettingCommand:
    return SetDropout(rate=now.dropout) if value == NOW else parse_dropout([value])


def _schedule(value: str, now: RunSettings) -> SettingCommand:
    if value != NOW:
        return parse_schedule([value])
    return undo_schedule(SetSchedule(shape=""), now)


def _mix(value: str, now: RunSettings) -> SettingCommand:
    """Parse weights such as `code:2/math:1`."""
    if value == NOW:
        return SetMix(weights=now.mix)
    weights = [part.rpartition(":") for part in value.split("/")]
    if not all(colon for _, colon, _ in weights):
        return parse_mix([value])
    return parse_mix([f"{name}={weight}" for name, _, weight in weights])


_SETTINGS: dict[str, Callable[[str, RunSettings], SettingCommand]] = {
    "lr": _lr,
    "clip": _clip,
    "weight_decay": _weight_decay,
    "dropout": _dropout,
    "schedule": _schedule,
    "mix": _mix,
}
"""The settings that can be changed while a run trains and that a race can vary."""


def commands_of(settings: RunSettings, now: RunSettings) -> list[SettingCommand]:
    """Return the commands that put settings in force again, as far as a race can vary them.

    Learning rate and clip are always set, the others where they differ from those in force, `now`.
    """
    wanted = {name: make(NOW, settings) for name, make in _SETTINGS.items()}
    present = {name: make(NOW, now) for name, make in _SETTINGS.items()}
    always = ("lr", "clip")
    return [one for name, one in wanted.items() if name in always or one != present[name]]


def parse_variants(words: Sequence[str]) -> tuple[Variant, ...]:
    """Return every combination of the settings in words such as `lr=1e-4,2e-4` and `clip=0.5,1`.

    The first setting varies slowest.

    Raises:
        ConfigError: a word is not valid, a value is there twice, or the variants are too few or
            too many.
    """
    axes: dict[str, list[Choice]] = {}
    for word in words:
        setting, choices = _axis(word)
        if setting in axes:
            raise ConfigError(f"{setting} is given twice; give its values together: {_FORM}")
        axes[setting] = choices
    variants = tuple(Variant(choices) for choices in product(*axes.values()))
    if not axes or len(variants) < 2:
        got = variants[0].label if axes else "no setting"
        raise ConfigError(f"a race needs two variants or more, got {got}; for example: {_FORM}")
    if len(variants) > MOST_VARIANTS:
        raise ConfigError(
            f"{len(variants)} variants, expected at most {MOST_VARIANTS}; give fewer values"
        )
    return variants


def _axis(word: str) -> tuple[str, list[Choice]]:
    """Return the setting that a word names and its values, which differ from each other."""
    setting, equals, values = word.partition("=")
    if not equals or setting not in _SETTINGS:
        raise ConfigError(
            f"got {word!r}, expected a setting that can change while a run trains "
            f"({', '.join(_SETTINGS)}) and its values, such as: {_FORM}"
        )
    choices = [Choice(setting, value.strip()) for value in values.split(",")]
    seen: dict[str, str] = {}
    for choice in choices:
        try:
            same = describe_command(choice.command(RunSettings()))
        except CommandError as error:
            raise ConfigError(f"{word}: {error}") from None
        same = NOW if choice.value == NOW else same
        if same in seen:
            raise ConfigError(f"{word}: {choice.value} is the same as {seen[same]}; remove one")
        seen[same] = choice.value
    return setting, choices
