"""The commands of a run as they are sent and journaled, one struct each, and their two kinds."""

from __future__ import annotations

import hashlib
import math

import msgspec

from .benchmarks.result import BenchmarkResult
from .races.variant_step import VariantStep
from .settings import LearningRate, RunSettings

MOST_RAISED = 3.0
"""Factor above which a raised learning rate is taken for a typing error until it is confirmed."""
LARGEST_RATE = 0.1
"""Rate from which the same holds while the present rate is not known."""


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    """Base of all commands; the tag `k` on the wire is the class name."""


class ScaleLr(Command, frozen=True, kw_only=True, tag="ScaleLr"):
    """Scale the learning rate schedule by `factor` from the next update on.

    The factor replaces the one before; factors do not multiply.
    """

    factor: float


class SetLr(Command, frozen=True, kw_only=True, tag="SetLr"):
    """Scale the schedule so that the learning rate of the next update is `value`."""

    value: float


class ResetLr(Command, frozen=True, kw_only=True, tag="ResetLr"):
    """Return to the unscaled learning rate schedule."""


class SetClip(Command, frozen=True, kw_only=True, tag="SetClip"):
    """Set the max gradient norm: a value, a percentile of recent norms, or off (both None)."""

    value: float | None = None
    percentile: float | None = None


class Pause(Command, frozen=True, kw_only=True, tag="Pause"):
    """Pause before the next micro-batch."""

    release: bool = False
    """Whether to free the GPU's memory until training resumes."""


class Resume(Command, frozen=True, kw_only=True, tag="Resume"):
    """Resume training after a pause or a halt."""


class RunSteps(Command, frozen=True, kw_only=True, tag="RunSteps"):
    """Train `steps` more optimizer steps, then pause."""

    steps: int


class SaveCheckpoint(Command, frozen=True, kw_only=True, tag="SaveCheckpoint"):
    """Write a complete checkpoint now."""

    pin: bool = False
    """Whether retention never removes it."""
    note: str = ""


class Rollback(Command, frozen=True, kw_only=True, tag="Rollback"):
    """Restore a checkpoint exactly and continue from it on a new timeline."""

    checkpoint: str
    """The checkpoint's name, its step number, or `last`."""
    lr_scale: float | None = None
    """Learning rate scale after the rollback, absolute; None keeps the present one."""
    clip: float | None = None
    """Max gradient norm after the rollback; None keeps the present one."""
    skip: int = 0
    """Number of optimizer steps after the checkpoint whose data is skipped."""


class Recover(Command, frozen=True, kw_only=True, tag="Recover"):
    """Roll back to before an anomaly, skip its data, halve the learning rate, tighten the clip."""

    anomaly: str = ""
    """Id of the anomaly; empty for the newest instability."""


class FindCulprits(Command, frozen=True, kw_only=True, tag="FindCulprits"):
    """Find the samples behind an anomaly by repeating its step with some of them replaced."""

    anomaly: str = ""
    """Id of the anomaly; empty for the newest alarm."""


class MeasureGradients(Command, frozen=True, kw_only=True, tag="MeasureGradients"):
    """Measure gradient and update norms by module in the next update."""


class ProfileSteps(Command, frozen=True, kw_only=True, tag="ProfileSteps"):
    """Profile the next `steps` steps."""

    steps: int = 2


class Evaluate(Command, frozen=True, kw_only=True, tag="Evaluate"):
    """Evaluate now."""


class AverageCheckpoints(Command, frozen=True, kw_only=True, tag="AverageCheckpoints"):
    """Evaluate the mean of the weights of checkpoints, and keep it as one if it is better."""

    last: int = 0
    """Number of the newest checkpoints that led to the present weights; 0 with `checkpoints`."""
    checkpoints: tuple[str, ...] = ()
    """The checkpoints, by name or step; empty with `last`."""


class GenerateSample(Command, frozen=True, kw_only=True, tag="GenerateSample"):
    """Generate text with the current weights."""

    prompt: str


DEFAULT_TOKENS = 256
"""Tokens of an answer in a chat, unless the command says otherwise."""


class ChatTurn(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier turn of a chat: its prompt and the answers to it."""

    prompt: str
    base: str = ""
    """The answer of the base; empty if it gave none."""
    now: str = ""
    """The answer of the model as it was then."""


class Chat(Command, frozen=True, kw_only=True, tag="Chat"):
    """Answer a prompt by the base, with the adapter off, and by the current weights."""

    prompt: str
    system: str = ""
    """The system prompt; empty for none."""
    temperature: float = 0.0
    """Temperature of the sampling; 0 for greedy decoding."""
    tokens: int = DEFAULT_TOKENS
    """Largest number of tokens of an answer."""
    seed: int = 0
    """Seed of the sampling, the same for all who answer."""
    conversation: str = ""
    """Name under which viewers put prompts and answers together; empty for a prompt on its own."""
    turns: tuple[ChatTurn, ...] = ()
    """The earlier turns; each answerer reads its own answers in them."""
    checkpoint: str = ""
    """Name or step of the checkpoint whose weights answer in place of the current ones."""


class SkipBatches(Command, frozen=True, kw_only=True, tag="SkipBatches"):
    """Skip the data of the next `steps` optimizer steps."""

    steps: int


class AddNote(Command, frozen=True, kw_only=True, tag="AddNote"):
    """Mark this step on the curves and in the journal."""

    text: str
    result: BenchmarkResult | None = None
    """The result of a benchmark that the note reports; a process that measures it sends it."""
    steps: tuple[VariantStep, ...] = ()
    """What a variant of a race has trained beside the run; the process of the race sends it."""


class SetPolicy(Command, frozen=True, kw_only=True, tag="SetPolicy"):
    """Set what the guard does on a non-finite number, or the autopilot about an anomaly."""

    nonfinite: str | None = None
    """skip, halt or rollback; None keeps the present one."""
    autopilot: str | None = None
    """off, propose or act; None keeps the present one."""


class Quarantine(Command, frozen=True, kw_only=True, tag="Quarantine"):
    """Keep samples out of training from the next step on, or let them in again."""

    ids: tuple[str, ...]
    """Ids of the samples; empty, with `lift`, for all that are kept out."""
    lift: bool = False
    """Whether the samples are let in again."""


class SetMix(Command, frozen=True, kw_only=True, tag="SetMix"):
    """Mix the sources of the data by other weights from the next step on."""

    weights: dict[str, float]
    """Weight of each source by its name; empty returns to those of the configuration."""


class SetWeightDecay(Command, frozen=True, kw_only=True, tag="SetWeightDecay"):
    """Set the weight decay of the optimizer from the next step on."""

    value: float | None = None
    """The weight decay; None returns to that of the configuration."""


class SetDropout(Command, frozen=True, kw_only=True, tag="SetDropout"):
    """Set the rate of the dropout before the adapter from the next step on."""

    rate: float | None = None
    """The rate; None returns to that of the configuration."""


class SetSchedule(Command, frozen=True, kw_only=True, tag="SetSchedule"):
    """Give the rest of the learning rate schedule another shape from the next step on."""

    shape: str
    """constant, linear or cosine; empty returns to the configured schedule."""
    start: int | None = None
    """Number of finished steps from which on it counts; None for those at the command."""
    lr: float | None = None
    """The rate at the start, before the factor on the schedule; None for the present one."""


class KeepPrompt(Command, frozen=True, kw_only=True, tag="KeepPrompt"):
    """Continue a prompt at each evaluation from now on, or no longer."""

    prompt: str = ""
    """The prompt; empty, with `drop`, for all that were kept."""
    drop: bool = False
    """Whether it is no longer continued."""


class Stop(Command, frozen=True, kw_only=True, tag="Stop"):
    """Finish the step, write a checkpoint unless `save` is false, and end the run."""

    save: bool = True


SettingCommand = (
    ScaleLr | SetLr | ResetLr | SetClip | Pause | Resume | RunSteps | SetPolicy | Quarantine
    | SetMix | SetWeightDecay | SetDropout | SetSchedule
    | KeepPrompt
)  # fmt: skip
"""Commands of the kind `setting`."""

TrainingAction = (
    SaveCheckpoint | Rollback | Recover | MeasureGradients | ProfileSteps | Evaluate
    | AverageCheckpoints | GenerateSample | Chat | SkipBatches | AddNote | FindCulprits | Stop
)  # fmt: skip
"""Commands that a trainer carries out once."""

TrainingCommand = SettingCommand | TrainingAction
"""Commands that act on the training, and so can be proposed."""


class Propose(Command, frozen=True, kw_only=True, tag="Propose"):
    """Propose a command, which has no effect until a person confirms it."""

    command: TrainingCommand


class Confirm(Command, frozen=True, kw_only=True, tag="Confirm"):
    """Send the command of an open proposal.

    The hub journals that command in place of this one, so that no engine ever receives this one.
    """

    proposal: str
    """Name of the proposal, as `proposal_name` makes it."""


class Decline(Command, frozen=True, kw_only=True, tag="Decline"):
    """Close an open proposal without effect."""

    proposal: str
    """Name of the proposal, as `proposal_name` makes it."""


OneShotCommand = TrainingAction | Propose | Confirm | Decline
"""Commands of the kind `one_shot`."""

AnyCommand = SettingCommand | OneShotCommand


def proposal_name(command_id: str) -> str:
    """Return the short name of a proposal, made from the id of the command that proposed it."""
    return f"p{hashlib.sha256(command_id.encode()).hexdigest()[:5]}"


def lr_slip(command: AnyCommand, now: LearningRate) -> str | None:
    """Return why the learning rate in a command looks like a typing error.

    None if it is at most `MOST_RAISED` times the present one, `now`, or the command sets none.
    """
    match command:
        case ScaleLr(factor=scale) | Rollback(lr_scale=float(scale)):
            schedule, factor = now.schedule, now.raised_to_scale(scale)
            wanted = f"{schedule * scale:.3g}" if schedule else f"×{scale:g} of the schedule"
            present = f"{schedule * now.scale:.3g}" if schedule else f"×{now.scale:g}"
        case SetLr(value=value):
            known = now.raised_to(value)
            if known is None:
                return _large_rate(value)
            wanted, present = f"{value:g}", f"{(now.schedule or 0.0) * now.scale:.3g}"
            factor = known
        case _:
            return None
    if factor <= MOST_RAISED:
        return None
    times = f"{factor:,.0f}" if factor >= 100 else f"{factor:.3g}"
    above = f"×{times} the present {present}" if math.isfinite(factor) else f"now it is {present}"
    return f"the learning rate would be {wanted}, {above}"


def _large_rate(value: float) -> str | None:
    if value < LARGEST_RATE:
        return None
    return f"{value:g} is large for a learning rate, and there is no step yet to compare it with"


def undo_lr(_: AnyCommand, previous: RunSettings) -> ScaleLr:
    """Return the command that restores the scale of the learning rate before a command."""
    return ScaleLr(factor=previous.lr_scale)


def undo_clip(_: AnyCommand, previous: RunSettings) -> SetClip:
    """Return the command that restores the clip before a command."""
    percentile = previous.clip_percentile
    return SetClip(value=previous.clip if percentile is None else None, percentile=percentile)


def undo_policy(command: AnyCommand, previous: RunSettings) -> SetPolicy:
    """Return the command that restores the policy that a command has changed."""
    if isinstance(command, SetPolicy) and command.nonfinite is not None:
        return SetPolicy(nonfinite=previous.nonfinite)
    return SetPolicy(autopilot=previous.autopilot)


def undo_quarantine(command: AnyCommand, previous: RunSettings) -> Quarantine:
    """Return the command that changes back only those samples that the command has changed."""
    ids = command.ids if isinstance(command, Quarantine) else ()
    if isinstance(command, Quarantine) and command.lift:
        kept_out = previous.quarantine
        return Quarantine(ids=tuple(i for i in ids if i in kept_out) if ids else kept_out)
    return Quarantine(ids=tuple(i for i in ids if i not in previous.quarantine), lift=True)


def undo_mix(_: AnyCommand, previous: RunSettings) -> SetMix:
    """Return the command that restores the weights of the sources before a command."""
    return SetMix(weights=previous.mix)


def undo_weight_decay(_: AnyCommand, previous: RunSettings) -> SetWeightDecay:
    """Return the command that restores the weight decay before a command."""
    return SetWeightDecay(value=previous.weight_decay)


def undo_dropout(_: AnyCommand, previous: RunSettings) -> SetDropout:
    """Return the command that restores the dropout before a command."""
    return SetDropout(rate=previous.dropout)


def undo_schedule(_: AnyCommand, previous: RunSettings) -> SetSchedule:
    """Return the command that restores the learning rate schedule before a command."""
    before = previous.schedule
    if before is None:
        return SetSchedule(shape="")
    return SetSchedule(shape=before.shape, start=before.start, lr=before.lr)
