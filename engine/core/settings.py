"""Desired control state: what the person asked of the run, as absolute values.

Settings (LR scale, clip, pause, policy) are one frozen value that survives checkpoints, rollbacks
and restarts. One-shot commands (checkpoint, rollback, …) do not live here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ..protocol.commands import (
    AnyCommand,
    Pause,
    ResetLr,
    Resume,
    RunSteps,
    ScaleLr,
    SetClip,
    SetLr,
    SetPolicy,
)


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the next update has to honour."""

    lr_scale: float = 1.0
    clip: float | None = None
    """Max grad norm; None is off."""
    clip_percentile: float | None = None
    """When set, the clip follows this percentile of recent norms; `clip` is where it began."""
    paused: bool = False
    release: bool = False
    """While paused, the GPU is for others."""
    pause_at_step: int | None = None
    nonfinite: str = "skip"
    """Policy of the guard: skip, halt or rollback."""
    autopilot: str = "propose"
    """off, propose or act."""


@dataclass(frozen=True)
class SettingsContext:
    """What a setting may depend on at the moment it is applied."""

    step: int
    schedule_lr: float
    """The schedule's learning rate for the next update, before scaling."""
    norm_percentile: Callable[[float], float | None]
    """Percentile of recent gradient norms; None when there are none yet."""


@dataclass(frozen=True)
class SettingsChange:
    """The state after a setting, with what a person reads in the journal."""

    desired: RunSettings
    old: str
    new: str


class Inapplicable(ValueError):
    """An accepted setting that cannot be applied here; nothing was changed."""


SETTINGS = (ScaleLr, SetLr, ResetLr, SetClip, Pause, Resume, RunSteps, SetPolicy)


def is_setting(command: AnyCommand) -> bool:
    """The command changes the desired state and nothing else."""
    return isinstance(command, SETTINGS)


def apply_setting(
    desired: RunSettings, command: AnyCommand, context: SettingsContext
) -> SettingsChange:
    """The state after one setting.

    Raises:
        Inapplicable: with the reason.
    """
    match command:
        case ScaleLr() | SetLr() | ResetLr():
            return _change_lr(desired, command, context)
        case SetClip():
            return _change_clip(desired, command, context)
        case SetPolicy(nonfinite=str(policy)):
            new = msgspec.structs.replace(desired, nonfinite=policy)
            return SettingsChange(new, f"nonfinite {desired.nonfinite}", f"nonfinite {policy}")
        case SetPolicy(autopilot=str(mode)):
            new = msgspec.structs.replace(desired, autopilot=mode)
            return SettingsChange(new, f"autopilot {desired.autopilot}", f"autopilot {mode}")
        case _:
            return _change_pause(desired, command, context)


def _change_lr(
    desired: RunSettings, command: AnyCommand, context: SettingsContext
) -> SettingsChange:
    match command:
        case ScaleLr(factor=factor):
            scale = factor
        case SetLr(value=value):
            if context.schedule_lr <= 0:
                raise Inapplicable(
                    f"the schedule is 0 at step {context.step}: no scale makes it {value:g}; "
                    "set it after the first warm-up step"
                )
            scale = value / context.schedule_lr
        case _:
            scale = 1.0
    new = msgspec.structs.replace(desired, lr_scale=scale)
    if isinstance(command, SetLr):
        old = context.schedule_lr * desired.lr_scale
        return SettingsChange(new, f"{old:.3g}", f"{command.value:.3g}")
    return SettingsChange(new, f"×{desired.lr_scale:.4g}", f"×{scale:.4g}")


def _change_clip(
    desired: RunSettings, command: SetClip, context: SettingsContext
) -> SettingsChange:
    clip = command.value
    if command.percentile is not None:
        clip = context.norm_percentile(command.percentile)
        if clip is None:
            raise Inapplicable("no gradient norms seen yet to take a percentile of")
    new = msgspec.structs.replace(desired, clip=clip, clip_percentile=command.percentile)
    return SettingsChange(new, _describe_clip(desired), _describe_clip(new))


def _describe_clip(desired: RunSettings) -> str:
    if desired.clip is None:
        return "off"
    tail = f" (p{desired.clip_percentile:g})" if desired.clip_percentile is not None else ""
    return f"{desired.clip:.4g}{tail}"


def _change_pause(
    desired: RunSettings, command: AnyCommand, context: SettingsContext
) -> SettingsChange:
    match command:
        case Pause(release=release):
            new = msgspec.structs.replace(desired, paused=True, release=release, pause_at_step=None)
        case RunSteps(steps=steps):
            at = context.step + steps
            new = msgspec.structs.replace(desired, paused=False, release=False, pause_at_step=at)
        case _:
            new = msgspec.structs.replace(desired, paused=False, release=False, pause_at_step=None)
    return SettingsChange(new, _describe_pause(desired), _describe_pause(new))


def _describe_pause(desired: RunSettings) -> str:
    if desired.paused:
        return "paused, GPU memory released" if desired.release else "paused"
    until = desired.pause_at_step
    return "running" if until is None else f"running until step {until}"


def pause_if_due(desired: RunSettings, step: int) -> RunSettings:
    """Turn a due `run N` into a pause."""
    if desired.pause_at_step is None or step < desired.pause_at_step:
        return desired
    return msgspec.structs.replace(desired, paused=True, pause_at_step=None)


def clip_now(desired: RunSettings, percentile: Callable[[float], float | None]) -> float | None:
    """Max grad norm of the next update; a percentile follows recent gradient norms."""
    if desired.clip_percentile is None:
        return desired.clip
    return percentile(desired.clip_percentile) or desired.clip
