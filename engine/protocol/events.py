"""What happened in a run: events, journaled by the engine and published by the hub.

Every event travels inside a `Record`, which carries its sequence number, wall time, step and
timeline. NaN and infinities survive (MessagePack). A field added later must have a default.
"""

from __future__ import annotations

import msgspec

from .commands import AnyCommand, CommandSpec, recorded_command, spec_of
from .settings import RunSettings
from .states import RunState


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    """Base of all events; `k` on the wire is the class name."""


class RunStarted(Event, frozen=True, kw_only=True, tag="RunStarted"):
    """The engine came up on a run: told at once, and again when everything is loaded and known.

    The first has no `devices`; both carry the same incarnation (process start).
    """

    name: str
    incarnation: int
    """Counts engine starts on this run directory, from 1."""
    pid: int
    host: str
    world_size: int
    task: str
    model: str
    total_steps: int
    micro_batch_size: int
    accumulation: int
    devices: list[str] = []
    """One line per rank, such as `cpu` or `cuda:0 NVIDIA RTX 3060 6.0 GiB`."""
    versions: dict[str, str] = {}
    resumed_from: str | None = None
    """Checkpoint name this incarnation continued from."""
    start_step: int = 0
    trainable_params: int = 0
    total_params: int = 0
    facts: dict[str, str] = {}
    """Further facts worth showing once, such as rows dropped or pairs built."""
    planned_bytes: dict[str, int] = {}
    """Memory that a rank is expected to need, by term, such as `activations`; empty if unknown."""


class StateChanged(Event, frozen=True, kw_only=True, tag="StateChanged"):
    """The run moved to another state."""

    state: RunState
    detail: str = ""


class ProgressMade(Event, frozen=True, kw_only=True, tag="ProgressMade"):
    """A long operation outside the step loop advanced (loading, converting, evaluating, saving)."""

    label: str
    done: float
    total: float


class StepFinished(Event, frozen=True, kw_only=True, tag="StepFinished"):
    """One optimizer step is over. The step number is the record's."""

    loss: float
    """Raw training loss of this step: NaN and infinities included."""
    parts: dict[str, float] = {}
    """Loss parts before weighting, such as `ce` and `contrastive`."""
    grad_norm: float | None = None
    """Global gradient norm before clipping."""
    clip: float | None = None
    """Max grad norm in force; None when clipping is off."""
    clipped: bool = False
    skipped: bool = False
    """The guard refused this update: weights and optimizer are unchanged."""
    lr: float = 0.0
    """Effective learning rate used by this update = schedule × scale."""
    lr_schedule: float = 0.0
    lr_scale: float = 1.0
    epoch: float = 0.0
    tokens: int = 0
    """Non-padding tokens in this step over all ranks."""
    samples: int = 0
    step_s: float = 0.0
    data_s: float = 0.0
    compute_s: float = 0.0
    """Forward and backward."""
    optimizer_s: float = 0.0
    tokens_per_s: float = 0.0
    samples_per_s: float = 0.0
    mem_allocated_bytes: int | None = None
    """Peak allocated device memory in this step; None without an accelerator."""
    mem_reserved_bytes: int | None = None
    mem_total_bytes: int | None = None
    """Device memory, or host memory where training runs on the CPU."""
    rss_bytes: int | None = None
    gpu_util: float | None = None
    """Percent."""
    gpu_temp_c: float | None = None
    gpu_power_w: float | None = None
    pcie_bytes_per_s: float | None = None
    """To and from the device together."""
    skew_s: float = 0.0
    """Slowest minus fastest rank in this step."""
    rank_s: list[float] = []
    """With several ranks: each one's own time, before it waits for the others."""
    rank_mem_bytes: list[int] = []
    """With several ranks and accelerators: each one's peak memory in the step before, allocated or,
    in fast mode, reserved."""
    rank_util: list[float] = []
    """With several ranks whose accelerators tell: percent, and so on."""
    rank_temp_c: list[float] = []
    rank_power_w: list[float] = []
    extra: dict[str, float] = {}
    """Further metrics of the task, such as `pos_cos`, `neg_cos`, `top1`."""


class EvalFinished(Event, frozen=True, kw_only=True, tag="EvalFinished"):
    """An evaluation is over."""

    metrics: dict[str, float]
    """Always has `loss`."""
    seconds: float = 0.0


class CheckpointSaved(Event, frozen=True, kw_only=True, tag="CheckpointSaved"):
    """A checkpoint is complete and verified readable."""

    name: str
    size_bytes: int
    seconds: float
    pinned: bool = False
    note: str = ""
    good: bool = True
    """No watch signal in its window, finite, evaluation not worse: a fit rollback target."""
    loss: float | None = None


class CheckpointRemoved(Event, frozen=True, kw_only=True, tag="CheckpointRemoved"):
    """Retention removed a checkpoint."""

    name: str


class RolledBack(Event, frozen=True, kw_only=True, tag="RolledBack"):
    """The run went back to a checkpoint; what follows is on a new timeline."""

    checkpoint: str
    from_step: int
    to_step: int
    old_timeline: int
    new_timeline: int
    skipped_batches: int = 0
    seconds: float = 0.0


class CommandAccepted(Event, frozen=True, kw_only=True, tag="CommandAccepted"):
    """The engine took a command from the control journal."""

    id: str
    command: str
    """The command as a person would type it, such as `lr scale 0.5`."""
    issuer: str
    reason: str = ""


class CommandApplied(Event, frozen=True, kw_only=True, tag="CommandApplied"):
    """A command took effect on all ranks at the record's step."""

    id: str
    command: str
    old: str = ""
    new: str = ""
    issuer: str = ""
    reason: str = ""
    seconds: float = 0.0
    """Seconds from the hub's acceptance to the effect."""
    applied: AnyCommand | None = None
    """The command; None in journals of older versions, and for a kind that this version lacks."""
    settings: RunSettings | None = None
    """The settings after the command; None in journals of older versions."""
    previous: RunSettings | None = None
    """The settings before the command; None in journals of older versions."""

    @property
    def typed(self) -> AnyCommand | None:
        """The command, parsed from its text where `applied` is missing; None if it is unknown."""
        return self.applied or recorded_command(self.command)

    @property
    def spec(self) -> CommandSpec | None:
        """The command's row of the table; None if the command is unknown."""
        command = self.typed
        return None if command is None else spec_of(command)


class CommandFailed(Event, frozen=True, kw_only=True, tag="CommandFailed"):
    """An accepted command had no effect."""

    id: str
    command: str
    reason: str
    issuer: str = ""


class AnomalyRaised(Event, frozen=True, kw_only=True, tag="AnomalyRaised"):
    """The detector or the guard saw something wrong; the report is in `reports/<report>.json`."""

    id: str
    kind: str
    """spike, divergence, grad_explosion, nonfinite, …"""
    severity: str
    """info, watch or alarm."""
    headline: str
    """One line: what, how much, against what."""
    value: float | None = None
    baseline: float | None = None
    z: float | None = None
    ratio: float | None = None
    report: str = ""
    actions: list[str] = []
    """Recommended commands as a person would type them, best first."""
    checkpoint: str | None = None
    """Nearest good checkpoint before it."""


class AnomalyResolved(Event, frozen=True, kw_only=True, tag="AnomalyResolved"):
    """An earlier anomaly got its verdict."""

    id: str
    verdict: str
    """recovered, not recovered, or rolled back."""


class ProbationEnded(Event, frozen=True, kw_only=True, tag="ProbationEnded"):
    """The steps after a recovery are over: did it help?"""

    anomaly: str
    """Id of the anomaly recovered from."""
    checkpoint: str
    """Where the recovery went back to."""
    passed: bool
    reason: str = ""
    steps: int = 0
    """How many it lasted."""


class AutopilotDecided(Event, frozen=True, kw_only=True, tag="AutopilotDecided"):
    """The autopilot looked at an anomaly."""

    anomaly: str
    decision: str
    """act, propose or wait."""
    command: str = ""
    """What it does or proposes, as a person would type it."""
    reason: str = ""
    budget_left: int = 0


class ModuleFlow(msgspec.Struct, frozen=True, kw_only=True):
    """One module's share of an update."""

    module: str
    """Such as `layers.3.q_proj`: its adapter matrices taken together."""
    grad_norm: float
    """Before clipping."""
    update_norm: float
    """Of the change of the weights; 0 when the update was refused."""
    weight_norm: float


class GradientsMeasured(Event, frozen=True, kw_only=True, tag="GradientsMeasured"):
    """Gradient flow through the trained modules in one update."""

    modules: list[ModuleFlow]
    """In the order of the model."""
    dead: list[str] = []
    """Modules that no gradient reaches."""
    exploding: list[str] = []
    """Modules far above the others, or not finite."""
    reason: str = ""
    """asked, or the anomaly it was measured for."""


class ProfilePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the step; seconds per step."""

    name: str
    """data, forward, backward, judge, update or other."""
    host_s: float
    device_s: float | None = None
    """Of kernels that this part started; None without a device of its own."""


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel of the device, or on a CPU an operation without those inside it."""

    name: str
    kind: str
    """What it is for, such as `matrix products`."""
    seconds: float
    """Per step."""
    count: float
    """Per step."""


class StepsProfiled(Event, frozen=True, kw_only=True, tag="StepsProfiled"):
    """Where the time of some steps went on rank 0."""

    steps: int
    step_s: float
    parts: list[ProfilePart]
    kinds: dict[str, float] = {}
    """Busy seconds per step by what the kernels are for; they may overlap."""
    kernels: list[KernelTime] = []
    """The longest ones."""
    idle: float | None = None
    """Share of the step in which the device had nothing to do; None without one."""
    launches: float = 0.0
    """Kernels per step."""
    flops: float = 0.0
    """Useful ones per step: recomputed activations do not count."""
    peak_flops_per_s: float | None = None
    """What a large matrix product reaches on this device, measured."""
    advice: list[str] = []
    trace: str = ""
    """File name in the run's `profiles` folder, for the usual trace viewers."""

    @property
    def mfu(self) -> float | None:
        """Useful arithmetic as a share of what the device could do in that time."""
        if not self.peak_flops_per_s or not self.step_s:
            return None
        return self.flops / self.step_s / self.peak_flops_per_s


class LrRangeTested(Event, frozen=True, kw_only=True, tag="LrRangeTested"):
    """A sweep of the learning rate has ended."""

    rates: list[float]
    losses: list[float]
    """Of the step at each rate."""
    smoothed: list[float]
    diverged: bool
    """It ended there, not at the highest rate."""
    steepest: float | None = None
    """The rate at which the smoothed loss fell fastest."""
    below_lowest: float | None = None
    """A tenth of the rate with the lowest smoothed loss."""


class NoteAdded(Event, frozen=True, kw_only=True, tag="NoteAdded"):
    """A person marked this step."""

    text: str
    issuer: str = ""


class LogEmitted(Event, frozen=True, kw_only=True, tag="LogEmitted"):
    """A line for the log pane."""

    level: str
    """debug, info, warning or error."""
    text: str
    rank: int = 0


class SampleGenerated(Event, frozen=True, kw_only=True, tag="SampleGenerated"):
    """Text generated from the current adapter."""

    prompt: str
    text: str


class RunEnded(Event, frozen=True, kw_only=True, tag="RunEnded"):
    """The engine left the run; nothing follows in this incarnation."""

    state: RunState
    """FINISHED, STOPPED or FAILED."""
    exit_code: int
    error: str = ""
    """What failed, in one paragraph; the traceback is in the engine log."""
    checkpoint: str | None = None
    """Checkpoint to resume from."""


AnyEvent = (
    RunStarted
    | StateChanged
    | ProgressMade
    | StepFinished
    | EvalFinished
    | CheckpointSaved
    | CheckpointRemoved
    | RolledBack
    | CommandAccepted
    | CommandApplied
    | CommandFailed
    | AnomalyRaised
    | AnomalyResolved
    | ProbationEnded
    | AutopilotDecided
    | GradientsMeasured
    | StepsProfiled
    | LrRangeTested
    | NoteAdded
    | LogEmitted
    | SampleGenerated
    | RunEnded
)


class Record(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One journal entry: an event with its place in the run."""

    seq: int
    """Strictly rising by 1 over the whole life of the run, across timelines and incarnations."""
    time: float
    """Unix seconds."""
    step: int
    """Optimizer steps finished when the event happened."""
    timeline: int
    """Counts up at every rollback, from 1."""
    event: AnyEvent
