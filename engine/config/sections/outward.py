"""The sections about viewers, agents, trackers and messages to people."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .base import Count, CountOrZero, NonNegative, Section

Tracker = Literal["wandb", "tensorboard", "mlflow", "trackio", "swanlab"]
"""The trackers that a run can be delivered to."""
TRACKER_PACKAGES: dict[str, tuple[str, ...]] = {
    "wandb": ("wandb",),
    "tensorboard": ("tensorboardX",),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "trackio": ("trackio",),
    "swanlab": ("swanlab",),
}
"""Tracker → packages, one of which it needs."""
AlertKind = Literal["finished", "failed", "halted", "alarm", "recovery", "stalled", "disk"]
"""The events about which messages can be sent to people."""

_TIMES = r"^([01]?[0-9]|2[0-3]):[0-5][0-9]-([01]?[0-9]|2[0-3]):[0-5][0-9]$"


class HubConfig(Section, frozen=True, kw_only=True):
    """The process that serves viewers of the run."""

    idle_s: NonNegative = 600.0
    """Seconds that this process keeps running after the training process has ended and no viewer is
    attached."""


class AgentsConfig(Section, frozen=True, kw_only=True):
    """What agents (programs that act by themselves) may do through `fttui mcp`, all together.

    `fttui mcp` is started with a mode; an agent may do what both the mode and this section allow.
    """

    allow: Literal["read", "propose", "act"] = "act"
    """The most that an agent may do. read: look only; propose: also propose commands, which a
    person confirms; act: also send commands within the limits below. Whatever this says, only a
    person can confirm a proposal, resume a halted or paused run, change a policy, or stop without a
    checkpoint."""
    lr_low: Annotated[float, Meta(gt=0, le=1)] = 0.25
    """act: smallest factor on the learning rate, in total since a person or the autopilot last set
    it."""
    lr_high: Annotated[float, Meta(ge=1, le=100)] = 2.0
    """act: largest factor on the learning rate, in total since a person or the autopilot last set
    it."""
    rollbacks: CountOrZero = 3
    """act: rollbacks and recoveries in the whole run."""
    per_hour: Count = 20
    """Commands and proposals in an hour."""
    proposal_minutes: Annotated[float, Meta(gt=0, le=10_080)] = 30.0
    """Minutes after which a proposal that nobody confirmed expires."""


class TrackingConfig(Section, frozen=True, kw_only=True):
    """Where the trackers of `trackers` put the run.

    Addresses, keys and passwords stay in the environment of the trackers: the server of mlflow is
    `$MLFLOW_TRACKING_URI`.
    """

    project: str = "fttui"
    """Project of wandb, trackio and swanlab; experiment of mlflow."""
    entity: str | None = None
    """wandb: team or user; swanlab: workspace; null is the default of the login."""
    folder: str | None = None
    """tensorboard: folder in which the run gets a folder of its own; null is the folder
    `tensorboard` in the run folder."""


class AlertsConfig(Section, frozen=True, kw_only=True):
    """Messages to people through apprise.

    Their addresses are in `$FTTUI_NOTIFY_URLS` or in `~/.config/fttui/notify-urls`, never in the
    run folder; without addresses nothing is sent.
    """

    mute: list[AlertKind] = []
    """What is not worth a message. finished: the run has ended as planned or on request; failed:
    with an error, without its last state, or its process is gone; halted: the guard has halted it;
    alarm: an alarm, and the verdict that it has not recovered; recovery: decisions of the autopilot
    and how recoveries went; stalled: no step for long; disk: its disk is nearly full."""
    stalled_factor: Annotated[float, Meta(ge=2, le=10_000)] = 20.0
    """stalled: no step for this many times the median seconds of a step, and for at least 2
    minutes, while the run trains."""
    disk_gib: NonNegative = 5.0
    """disk: free space in GiB below which the disk of the run folder is nearly full."""
    quiet: Annotated[str, Meta(pattern=_TIMES, examples=["22:00-07:00"])] | None = None
    """Local time in which only `failed`, `halted` and `disk` are sent at once, such as
    `22:00-07:00`; what else happens is sent as one message when it ends. null: none."""
    most_per_hour: Count = 20
    """Most messages per hour; the next message after it says how many were left out."""
