"""Parts of events: findings, recommended commands, norms of modules, profiles, culprits."""

from __future__ import annotations

import msgspec

from .commands import AnyCommand, recorded_command


class RecommendedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that an anomaly's report recommends, and what it will do."""

    text: str
    """The command as a person would type it."""
    why: str = ""
    """What it will do, in whole sentences; empty in journals of older versions."""
    command: AnyCommand | None = None
    """The command; None in journals of older versions, and for a kind that this version lacks."""

    @property
    def typed(self) -> AnyCommand | None:
        """The command, parsed from its text where `command` is missing; None if it is unknown."""
        return self.command or recorded_command(self.text)


class ModuleFlow(msgspec.Struct, frozen=True, kw_only=True):
    """The norms of one module in an update."""

    module: str
    """Name of the module, such as `layers.3.q_proj`; its adapter matrices count together."""
    grad_norm: float
    """Gradient norm before clipping."""
    update_norm: float
    """Norm of the change of the weights; 0 when the guard refused the update."""
    weight_norm: float


class ProfilePart(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one part of a step, in seconds per step."""

    name: str
    """data, forward, backward, judge (the check of the update), update or other."""
    host_s: float
    device_s: float | None = None
    """Device time of the kernels that this part started; None without an accelerator."""


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a device kernel or, on a CPU, of an operation without those inside it."""

    name: str
    kind: str
    """Purpose of the kernel, such as `matrix products`."""
    seconds: float
    """Seconds per step."""
    count: float
    """Launches per step."""


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that raises the loss or the gradient norm of a step."""

    id: str
    place: str = ""
    """Where its record is stored, such as `train.jsonl:7`; empty if built in memory."""
    rank: int = 0
    """The rank that trained on it."""
    tokens: int = 0
    text: str = ""
    """The beginning of its text."""
    pieces: list[str] = []
    """Its first tokens as text."""
    loss: float
    """Loss of the step with the sample, without the culprits found before it."""
    loss_without: float
    """The same with the sample replaced."""
    grad_norm: float
    grad_norm_without: float
    loss_share: float | None = None
    """Share in what the samples of the step add to its loss; None if that is not finite."""
    grad_norm_share: float | None = None


class CulpritSearch(msgspec.Struct, frozen=True, kw_only=True):
    """How a search for culprits went, and what it has found."""

    verdict: str
    """found, spread, together, unfinished, interrupted or not repeated."""
    reason: str = ""
    """Why it ended early; empty if it did not."""
    checkpoint: str = ""
    """The checkpoint from which the steps before were trained again."""
    steps: int = 0
    """How often steps before that of the anomaly were trained again, on the way or in tests."""
    tests: int = 0
    """How often the step of the anomaly was repeated with some samples replaced."""
    samples: int = 0
    """Number of samples of the step that was searched last."""
    loss: float | None = None
    """Loss of the step as it was; None if it was not repeated."""
    grad_norm: float | None = None
    loss_replaced: float | None = None
    """Loss with all samples replaced; None if that was not tested."""
    grad_norm_replaced: float | None = None
    culprits: list[Culprit] = []
    """The samples that raise the figures, the one with the largest share first."""
    group: list[str] = []
    """Ids of the smallest group known to raise the figures beside the culprits, if one is left."""
    difference: float = 0.0
    """Largest relative difference of a repeated step from the run; 0 if all were exact."""
    in_batch_negatives: bool = False
    """Whether a replaced sample was also a negative of others, which changes their loss too."""
    seconds: float = 0.0
    cause_step: int = 0
    """The step whose samples these are, that of the anomaly or one before; 0 in old journals."""
    earlier: int = 0
    """Number of steps before that of the anomaly whose samples were searched too."""
    why_not_quarantined: str = ""
    """Why the culprits cannot be kept out by a command; empty if they can."""


class DataFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One reason for which data is dropped, cut, masked, ignored or guessed, and how often."""

    reason: str
    """Name of the reason, as in `data.accept`."""
    text: str
    """The finding in words, such as `truncated to data.max_length`."""
    unit: str
    """The counted unit, such as `records`."""
    count: int
    total: int
    """Number of units that were looked at."""
    place: str = ""
    """Where the reason applied first, such as `train.jsonl:7`."""
    detail: str = ""
    """What was found there, such as the name of a column."""
    remedy: str = ""
    """The step that avoids the finding."""

    @property
    def amount(self) -> str:
        """The number of units, out of how many, such as `3 of 45 records (6.7 %)`."""
        percent = 100 * self.count / max(1, self.total)
        if self.count < self.total and percent >= 99.5:
            share = "over 99"  # all but a few are not all
        else:
            share = f"{percent:.0f}" if percent >= 10 else f"{percent:.2g}"
        return f"{self.count:,} of {self.total:,} {self.unit} ({share} %)"

    @property
    def where(self) -> str:
        """The first place and its detail, such as `first: train.jsonl:7`; empty if unknown."""
        parts = [part for part in (self.place, self.detail) if part]
        return f"first: {', '.join(parts)}" if parts else ""

    @property
    def line(self) -> str:
        """The finding as one line of text."""
        return f"{self.amount} {self.text}" + (f"; {self.where}" if self.where else "")
