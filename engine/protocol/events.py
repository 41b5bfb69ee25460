"""The events of a run, which the training process journals and the hub publishes, and `Record`.

A `Record` is one journal entry: an event with its sequence number, wall time, step and timeline.
MessagePack keeps NaN and infinities. A field added to an event later must have a default.
"""

from __future__ import annotations

import msgspec

from .benchmarks.result import BenchmarkFinished
from .chat.events import AnyChatEvent
from .commands import AnyCommand, CommandSpec, recorded_command, spec_of
from .event_parts import CulpritSearch, KernelTime, ModuleFlow, ProfilePart, RecommendedCommand
from .event_parts import DataFinding as DataFinding
from .races.variant_step import VariantStep
from .settings import LearningRate, RunSettings
from .states import RunState
from .usage.amounts import Budget, Price, Usage


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    """Base of the events of this module; the tag `k` on the wire is the class name."""


class RunStarted(Event, frozen=True, kw_only=True, tag="RunStarted"):
    """A training process has started; recorded at once, and with every field when all is loaded."""

    name: str
    incarnation: int
    """Number of this start of a training process in the run folder, from 1."""
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
    rank_hosts: list[str] = []
    """Number and host of the node of each rank, such as `1 gpu-04`; empty with one node."""
    versions: dict[str, str] = {}
    resumed_from: str | None = None
    """Name of the checkpoint this process resumed from; None for a new run."""
    start_step: int = 0
    trainable_params: int = 0
    total_params: int = 0
    facts: dict[str, str] = {}
    """Further facts, name to text, such as the number of rows dropped or pairs built."""
    planned_bytes: dict[str, int] = {}
    """Memory a rank is expected to need, by term such as `activations`; empty if unknown."""
    findings: list[DataFinding] = []
    """What was dropped, cut, masked, ignored or guessed when the data were read."""
    refused: dict[str, str] = {}
    """Commands that the trainer of this run cannot carry out, verb to reason."""
    script: str = ""
    """Command line of the script whose trainer is watched; empty for a run of the engine."""
    quarantine: list[str] = []
    """Ids of the samples that are kept out of training at this start."""
    sources: list[str] = []
    """Names of the sources of the training data, if there are several."""
    mix: dict[str, float] = {}
    """Weights of the sources by a command; empty for those of the configuration."""
    weight_decay: float | None = None
    dropout: float | None = None
    """Weight decay, as above, and dropout by a command; None for that of the configuration."""
    price: Price | None = None
    """Prices of energy and time; None if the configuration names none."""
    budget: Budget | None = None
    """The most that the run may use; None without a limit."""


class StateChanged(Event, frozen=True, kw_only=True, tag="StateChanged"):
    """The run has entered another state."""

    state: RunState
    detail: str = ""


class ProgressMade(Event, frozen=True, kw_only=True, tag="ProgressMade"):
    """A long operation outside the step loop has advanced, such as loading or evaluating."""

    label: str
    done: float
    total: float


class StepFinished(Event, frozen=True, kw_only=True, tag="StepFinished"):
    """An optimizer step is finished; its number is the step of the record."""

    loss: float | None
    """Raw training loss of this step; it can be NaN or infinite. None if a script reports none."""
    parts: dict[str, float] = {}
    """Parts of the loss before weighting, such as `ce` and `contrastive`."""
    grad_norm: float | None = None
    """Global gradient norm before clipping."""
    clip: float | None = None
    """Max gradient norm in force; None when clipping is off."""
    clipped: bool = False
    skipped: bool = False
    """Whether there was no update: the guard refused it, or the step was `without_targets`."""
    lr: float = 0.0
    """Learning rate of this update: `lr_schedule` × `lr_scale`."""
    lr_schedule: float = 0.0
    lr_scale: float = 1.0
    epoch: float = 0.0
    tokens: int = 0
    """Tokens of this step over all ranks, padding excluded."""
    samples: int = 0
    step_s: float = 0.0
    data_s: float = 0.0
    compute_s: float = 0.0
    """Seconds of the forward and backward passes."""
    optimizer_s: float = 0.0
    tokens_per_s: float = 0.0
    samples_per_s: float = 0.0
    mem_allocated_bytes: int | None = None
    """Peak of the allocated device memory in this step; None without an accelerator."""
    mem_reserved_bytes: int | None = None
    mem_total_bytes: int | None = None
    """Memory of the device, or of the host when training runs on the CPU."""
    rss_bytes: int | None = None
    gpu_util: float | None = None
    """Utilization of the GPU in percent."""
    gpu_temp_c: float | None = None
    gpu_power_w: float | None = None
    pcie_bytes_per_s: float | None = None
    """PCIe traffic of the device, both directions together."""
    skew_s: float = 0.0
    """Time of the slowest rank minus time of the fastest one."""
    rank_s: list[float] = []
    """Seconds of each rank before it waits for the others; in one of N/16 steps of many ranks N.
    Empty for a single rank, as are the lists by rank that follow."""
    rank_tokens: list[int] = []
    rank_mem_bytes: list[int] = []
    """Peak memory of each rank in the step before: allocated, or reserved in fast mode."""
    rank_util: list[float] = []
    """Utilization of each rank's accelerator in percent; empty where it cannot be read."""
    rank_temp_c: list[float] = []
    rank_power_w: list[float] = []
    extra: dict[str, float] = {}
    """Further metrics of the task, such as `pos_cos`, `neg_cos` and `top1`."""
    usage: Usage | None = None
    """What the run has used so far, over all of its starts; None in journals of older versions."""
    without_targets: bool = False
    """Whether the step had no target, or only records and tokens of weight 0."""

    @property
    def loss_or_nan(self) -> float:
        """The loss; NaN if the script has reported none."""
        return float("nan") if self.loss is None else self.loss

    @property
    def rate(self) -> LearningRate:
        """The rate of the schedule, computed from `lr` in older journals, and its factor."""
        scaled = self.lr / self.lr_scale if self.lr_scale else 0.0
        return LearningRate(self.lr_schedule or scaled, self.lr_scale)


class EvalFinished(Event, frozen=True, kw_only=True, tag="EvalFinished"):
    """An evaluation is finished."""

    metrics: dict[str, float]
    """Metrics by name; `loss` is always among them."""
    seconds: float = 0.0


class CheckpointSaved(Event, frozen=True, kw_only=True, tag="CheckpointSaved"):
    """A checkpoint is complete and was read back."""

    name: str
    size_bytes: int
    seconds: float
    pinned: bool = False
    note: str = ""
    good: bool = True
    """Whether it is a good rollback target: finite losses, no recent warning, good evaluation."""
    loss: float | None = None
    mean_of: list[str] = []  # names of the checkpoints whose mean it is; empty for a trained state


class CheckpointRemoved(Event, frozen=True, kw_only=True, tag="CheckpointRemoved"):
    """Retention has removed a checkpoint."""

    name: str


class RolledBack(Event, frozen=True, kw_only=True, tag="RolledBack"):
    """The run has returned to a checkpoint; the records that follow are on a new timeline."""

    checkpoint: str
    from_step: int
    to_step: int
    old_timeline: int
    new_timeline: int
    skipped_batches: int = 0
    seconds: float = 0.0


class CommandAccepted(Event, frozen=True, kw_only=True, tag="CommandAccepted"):
    """The training process has read a command from the control journal."""

    id: str
    command: str
    """The command as a person would type it, such as `lr scale 0.5`."""
    issuer: str
    reason: str = ""
    proposal: str = ""
    """Name of the proposal that it makes, confirms or declines; empty for any other command."""
    expires_at: float | None = None
    """Unix seconds at which the proposal that it makes expires; None for any other command."""


class CommandApplied(Event, frozen=True, kw_only=True, tag="CommandApplied"):
    """A command has taken effect on all ranks at the step of the record."""

    id: str
    command: str
    """The command as a person would type it."""
    old: str = ""
    """The changed value before, in words."""
    new: str = ""
    """The changed value after, in words."""
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
        """The command's entry in `COMMANDS`; None if the command is unknown."""
        command = self.typed
        return None if command is None else spec_of(command)


class CommandFailed(Event, frozen=True, kw_only=True, tag="CommandFailed"):
    """An accepted command has failed and changed nothing."""

    id: str
    command: str
    reason: str
    issuer: str = ""


class AnomalyRaised(Event, frozen=True, kw_only=True, tag="AnomalyRaised"):
    """The detector or the guard has raised an alert; its report is `reports/<report>.json`."""

    id: str
    kind: str
    """What the detector or the guard has found, such as spike, divergence or nonfinite."""
    severity: str
    """info, watch or alarm."""
    headline: str
    """One line that names the metric, its value and its baseline."""
    value: float | None = None
    baseline: float | None = None
    z: float | None = None
    ratio: float | None = None
    report: str = ""
    actions: list[str] = []
    """Recommended commands as a person would type them, the best one first."""
    checkpoint: str | None = None
    """The newest good checkpoint before the anomaly; None without one."""
    incident: str = ""
    """Id of the first alert of the same cause, its own if it is the first; empty for a hint."""
    recommended: list[RecommendedCommand] = []
    """The recommended commands as data, the best one first; empty in journals of older versions."""
    explained_by: str = ""
    """The one odd record that explains the alert, such as `train.jsonl:812`; empty without one."""
    repeats: str = ""
    """Kind of the alarms of which it is one more peak, if they recur; empty for other alerts."""
    peaks: int = 0
    every_steps: float = 0.0
    """Mean number of steps between such peaks, of which the run has had `peaks`; else both 0."""

    @property
    def ways(self) -> list[RecommendedCommand]:
        """The recommended commands; in journals of older versions they are only texts."""
        return self.recommended or [RecommendedCommand(text=text) for text in self.actions]


class AnomalyResolved(Event, frozen=True, kw_only=True, tag="AnomalyResolved"):
    """An earlier anomaly has its verdict."""

    id: str
    verdict: str
    """recovered, not recovered, rolled back, or undecided if the run ended too soon after it."""


class ProbationEnded(Event, frozen=True, kw_only=True, tag="ProbationEnded"):
    """The probation after a recovery has ended and shows whether the recovery helped."""

    anomaly: str
    """Id of the anomaly that the run recovered from."""
    checkpoint: str
    """The checkpoint that the recovery returned to."""
    passed: bool
    reason: str = ""
    steps: int = 0
    """Length of the probation in steps."""


class AutopilotDecided(Event, frozen=True, kw_only=True, tag="AutopilotDecided"):
    """The autopilot has decided what to do about an anomaly."""

    anomaly: str
    decision: str
    """act, propose or wait."""
    command: str = ""
    """The command it sends or proposes, as a person would type it."""
    reason: str = ""
    budget_left: int = 0


class GradientsMeasured(Event, frozen=True, kw_only=True, tag="GradientsMeasured"):
    """The gradient flow through the trained modules was measured in one update."""

    modules: list[ModuleFlow]
    """The trained modules in the order of the model."""
    dead: list[str] = []
    """Names of modules that no gradient reaches."""
    exploding: list[str] = []
    """Names of modules whose norm is far above the others' or not finite."""
    reason: str = ""
    """`asked`, or the id of the anomaly it was measured for."""


class StepsProfiled(Event, frozen=True, kw_only=True, tag="StepsProfiled"):
    """The time of some steps on rank 0 was profiled."""

    steps: int
    step_s: float
    parts: list[ProfilePart]
    kinds: dict[str, float] = {}
    """Busy seconds per step by purpose of the kernels, which may overlap."""
    kernels: list[KernelTime] = []
    """The kernels with the most time."""
    idle: float | None = None
    """Share of the step in which the device was idle; None without an accelerator."""
    launches: float = 0.0
    """Kernel launches per step."""
    flops: float = 0.0
    """Floating-point operations per step, without the recomputation of activations."""
    peak_flops_per_s: float | None = None
    """Measured rate of a large matrix product on this device; None if it is not known."""
    advice: list[str] = []
    trace: str = ""
    """Name of the trace file in the run's `profiles` folder."""

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization: the share of the peak rate that was used; None if unknown."""
        if not self.peak_flops_per_s or not self.step_s:
            return None
        return self.flops / self.step_s / self.peak_flops_per_s


class LrRangeTested(Event, frozen=True, kw_only=True, tag="LrRangeTested"):
    """A learning rate range test has ended."""

    rates: list[float]
    losses: list[float]
    """Loss of the step at each rate."""
    smoothed: list[float]
    diverged: bool
    """Whether the loss diverged, which ended the sweep before the highest rate."""
    steepest: float | None = None
    """The rate at which the smoothed loss fell fastest; None if it never fell."""
    below_lowest: float | None = None
    """A tenth of the rate with the lowest smoothed loss; None if it is not known."""


class CulpritsFound(Event, frozen=True, kw_only=True, tag="CulpritsFound"):
    """A search for the samples behind an anomaly has ended; the run's own state is as before."""

    anomaly: str
    """Public id of the anomaly."""
    anomaly_step: int
    search: CulpritSearch


class NoteAdded(Event, frozen=True, kw_only=True, tag="NoteAdded"):
    """A person has marked this step."""

    text: str
    issuer: str = ""


class LogEmitted(Event, frozen=True, kw_only=True, tag="LogEmitted"):
    """The training process has logged a line."""

    level: str
    """debug, info, warning or error."""
    text: str
    rank: int = 0


class SampleGenerated(Event, frozen=True, kw_only=True, tag="SampleGenerated"):
    """A text was generated with the current weights."""

    prompt: str
    text: str


class RunEnded(Event, frozen=True, kw_only=True, tag="RunEnded"):
    """The training process has ended the run; it is the last record of that process."""

    state: RunState
    """Final state: FINISHED, STOPPED, UNSAVED or FAILED."""
    exit_code: int
    error: str = ""
    """The error in one paragraph; empty without one. The traceback is in the engine log."""
    checkpoint: str | None = None
    """Name of the checkpoint to resume from; None without one."""
    reason: str = ""
    """Why the run was stopped, such as a budget that is used up; empty if nobody gave a reason."""
    usage: Usage | None = None
    """What the run has used in total; None if its process could not measure it at its end."""


class UsageMeasured(Event, frozen=True, kw_only=True, tag="UsageMeasured"):
    """The usage of the run was measured between steps, for example in a pause."""

    usage: Usage


class ForgettingBaseMeasured(Event, frozen=True, kw_only=True, tag="ForgettingBaseMeasured"):
    """The next-token loss of the base model on general texts was measured, once for the run."""

    loss: float
    texts: int
    tokens: int
    digest: str
    """Hash of the tokens, by which equal texts are recognized after a resume."""


class DataFindingsChanged(Event, frozen=True, kw_only=True, tag="DataFindingsChanged"):
    """The findings about streamed data, as rank 0 counts what it reads, replace earlier ones."""

    findings: list[DataFinding]


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
    | CulpritsFound
    | NoteAdded
    | LogEmitted
    | SampleGenerated
    | RunEnded
    | DataFindingsChanged
    | UsageMeasured
    | ForgettingBaseMeasured
    | AnyChatEvent
    | BenchmarkFinished
    | VariantStep
)


class Record(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A journal entry: an event with its sequence number, time, step and timeline."""

    seq: int
    """Sequence number; rises by 1 over the whole run, across timelines and incarnations."""
    time: float
    """Wall time in Unix seconds."""
    step: int
    """Optimizer steps finished when the event happened."""
    timeline: int
    """Number of the timeline, from 1; each rollback begins a new one."""
    event: AnyEvent
