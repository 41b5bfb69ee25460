"""Settings store: keeps the settings in force on disk, so that a restart continues with them.

The configured values of that time are stored with them: a value that has since been changed in the
configuration overrides the stored setting.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import msgspec

from ...config.schema import RunConfig
from ...protocol.codec import UNDECODABLE
from ...protocol.settings import RunSettings, configured_or, mix_text, schedule_text
from ...run.folder.open_folder import read_plain
from ...run.run_dir import SMALL_FILE_BYTES, RunDirectory

log = logging.getLogger(__name__)


class ConfiguredSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The configured values of the settings that can be changed while training."""

    lr: float
    clip: float | None
    nonfinite: str
    autopilot: str = "propose"
    quarantine: tuple[str, ...] = ()
    mix: tuple[tuple[float, dict[str, float]], ...] = ()
    """Beginning and weights of the phases."""
    weight_decay: float = 0.0
    dropout: float = 0.0
    schedule: str = ""
    """The configured schedule and its rate; empty in files of older versions."""

    @classmethod
    def of(cls, config: RunConfig) -> ConfiguredSettings:
        """Return the settings that the configuration asks for."""
        train = config.train
        return cls(
            lr=train.lr,
            clip=train.clip or None,
            nonfinite=config.guard.nonfinite,
            autopilot=config.policy.autopilot,
            quarantine=config.data.kept_out,
            mix=tuple((one.at, one.weights) for one in config.data.mix),
            weight_decay=train.weight_decay,
            dropout=config.adapter.dropout,
            schedule=f"{train.schedule} {train.lr:g}",
        )


class StoredSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `desired.json`."""

    desired: RunSettings
    configured: ConfiguredSettings


@dataclass(frozen=True)
class InitialSettings:
    """The settings to start with, and those that the configuration has overridden."""

    desired: RunSettings
    overridden: list[str] = field(default_factory=list)
    """Changes that the configuration overrides, worded for the log."""


def load_desired(
    run: RunDirectory, config: RunConfig, *, restarted: bool = False, paused: bool = False
) -> InitialSettings:
    """Return the settings to start with, paused if the start asks for it (see `_initial`)."""
    initial = _initial(run, config, restarted=restarted)
    if not paused:
        return initial
    return replace(initial, desired=msgspec.structs.replace(initial.desired, paused=True))


def _initial(run: RunDirectory, config: RunConfig, *, restarted: bool) -> InitialSettings:
    """Return the initial settings: the stored ones, unless the configuration has changed since.

    They are the configured ones if none are stored or the file is damaged, which the log then says.
    A pause is kept only by a restart after a crash, because a process that is started by hand is
    meant to train.

    Args:
        run: the run.
        config: its configuration.
        restarted: whether this is a restart after a crash.
    """
    now = ConfiguredSettings.of(config)
    fresh = RunSettings(
        clip=now.clip,
        nonfinite=now.nonfinite,
        autopilot=now.autopilot,
        quarantine=now.quarantine,
    )
    try:
        data = read_plain(run.path / "desired.json", SMALL_FILE_BYTES)
        stored = msgspec.json.decode(data, type=StoredSettings)
    except FileNotFoundError:
        return InitialSettings(fresh)
    except UNDECODABLE as error:
        log.warning("desired.json is damaged (%s); the configured settings are used", error)
        return InitialSettings(fresh)
    desired = stored.desired
    if not restarted:
        desired = msgspec.structs.replace(desired, paused=False, release=False, pause_at_step=None)
    return _override(desired, stored.configured, now)


def _override(
    desired: RunSettings, before: ConfiguredSettings, now: ConfiguredSettings
) -> InitialSettings:
    changes: dict[str, object] = {}
    overridden = []
    if now.lr != before.lr and desired.lr_scale != 1.0:
        overridden.append(f"lr ×1 (×{desired.lr_scale:g} was set before train.lr changed)")
        changes |= {"lr_scale": 1.0, "lr_scale_before_agents": None}
    if now.clip != before.clip:
        if desired.clip != before.clip or desired.clip_percentile is not None:
            overridden.append(f"clip {now.clip or 'off'} (train.clip changed)")
        changes |= {"clip": now.clip, "clip_percentile": None}
    for name, key in (("nonfinite", "guard.nonfinite"), ("autopilot", "policy.autopilot")):
        old, new = getattr(before, name), getattr(now, name)
        if new != old:
            if getattr(desired, name) != old:
                overridden.append(f"{name} {new} ({key} changed)")
            changes[name] = new
    if now.quarantine != before.quarantine:
        kept = [i for i in desired.quarantine if i not in before.quarantine]
        changes["quarantine"] = tuple(dict.fromkeys((*kept, *now.quarantine)))
    if now.mix != before.mix and desired.mix:
        before_it = f"{mix_text(desired.mix)} was set before data.mix changed"
        overridden.append(f"mix as configured ({before_it})")
        changes["mix"] = {}
    for name, (text, key) in _replaced(desired, before, now).items():
        overridden.append(f"{name} as configured ({text} was set before {key} changed)")
        changes[name] = None
    return InitialSettings(msgspec.structs.replace(desired, **changes), overridden)


def _replaced(
    desired: RunSettings, before: ConfiguredSettings, now: ConfiguredSettings
) -> dict[str, tuple[str, str]]:
    """Return value and key of each setting in place of a configured one that has changed since."""
    texts = {
        "weight_decay": (configured_or(desired.weight_decay), "train.weight_decay"),
        "dropout": (configured_or(desired.dropout), "adapter.dropout"),
        "schedule": (schedule_text(desired.schedule), "train.schedule or train.lr"),
    }
    return {
        name: text
        for name, text in texts.items()
        if getattr(now, name) != getattr(before, name) and getattr(desired, name) is not None
    }


def store_desired(run: RunDirectory, desired: RunSettings, config: RunConfig) -> None:
    """Store the settings for the next process, with the configured values of now.

    Raises:
        OSError: the file cannot be written.
    """
    stored = StoredSettings(desired=desired, configured=ConfiguredSettings.of(config))
    run.write(run.path / "desired.json", msgspec.json.encode(stored))
