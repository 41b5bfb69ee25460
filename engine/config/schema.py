"""The schema of the run configuration: one frozen struct per section, with documented fields.

The YAML file has the same shape. The loader refuses unknown keys and runs the cross-field checks of
`checks`. Section and field docstrings become docs/configuration.md and configs/schema.json.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from .sections.base import MOST as MOST
from .sections.base import (
    Count,
    CountOrZero,
    Fraction,
    Positive,
)
from .sections.base import Section as Section
from .sections.benchmarks import BenchmarksConfig as BenchmarksConfig
from .sections.budget import BudgetConfig as BudgetConfig
from .sections.budget import PriceConfig as PriceConfig
from .sections.contrastive import ContrastiveConfig as ContrastiveConfig
from .sections.file_endings import without_ending
from .sections.forgetting import ForgettingConfig as ForgettingConfig
from .sections.mix import MixPhase as MixPhase
from .sections.model import AdapterConfig as AdapterConfig
from .sections.model import ModelConfig as ModelConfig
from .sections.model import NewToken as NewToken
from .sections.outward import AgentsConfig as AgentsConfig
from .sections.outward import AlertsConfig as AlertsConfig
from .sections.outward import HubConfig as HubConfig
from .sections.outward import Tracker as Tracker
from .sections.outward import TrackingConfig as TrackingConfig
from .sections.preference import PreferenceConfig as PreferenceConfig
from .sections.preference import RewardConfig as RewardConfig
from .sections.train import EarlyStopConfig as EarlyStopConfig
from .sections.train import LrRatios as LrRatios
from .sections.train import Metric as Metric
from .sections.train import TrainConfig as TrainConfig
from .tasks import PREFERENCE_TASKS

STDLIB_PAIRS = "stdlib:pairs"
"""The data source that is built from the Python standard library."""
TextUnit = Literal["line", "paragraph", "file"]
"""The part of a plain text file that becomes a record."""


LabelMeaning = Literal["auto", "class", "score", "match", "answer"]
Label = bool | int | float | str


Column = str | list[str] | None
"""A column, a text with columns, texts of which the first filled one is used, or none."""


class DataSource(Section, frozen=True, kw_only=True):
    """One source of a training mix; a text stands for a source with this `path`."""

    text_key: ClassVar[str] = "path"

    path: str
    """A file, a folder or a Hub dataset id, as in `data.train`."""
    name: str | None = None
    """Name of this source in `data.mix` and in the command `mix`; null: the last part of the path
    without its ending, such as `code` for `data/code.jsonl`."""
    weight: Positive | None = None
    """Share of this source among the training records, relative to the other weights. Set it for
    all sources or for none; without weights every record is used once per epoch."""
    split: str | None = None
    """Split of a folder or Hub dataset; null: as `data.train_split`."""
    columns: dict[str, Column] | None = None
    """Columns of this source by field; null: as `data.columns`."""
    roles: dict[str, str] | None = None
    """Roles of this source by their names; null: as `data.roles`."""
    system: str | None = None
    """System message for this source; null: as `data.system`; an empty text adds none."""
    label: LabelMeaning | None = None
    """Meaning of this source's column `label`; null: as `data.label`."""
    yes_labels: list[Label] | None = None
    """Labels of this source that count as positive; null: as `data.yes_labels`."""

    @property
    def called(self) -> str:
        """The name of this source, given or made of its path."""
        return self.name or without_ending(self.path.rstrip("/").rpartition("/")[2])


class DataConfig(Section, frozen=True, kw_only=True):
    """The training and evaluation records, their format and length."""

    train: str | list[DataSource]
    """A JSON, CSV, Parquet or text file, a pattern of files such as `data/*.jsonl`, a folder, a Hub
    dataset id or a file in one (`hf://datasets/ORG/NAME/FILE`), or `stdlib:pairs` (pairs built on
    this machine from the Python standard library); a list of these, or of `{path, weight}`, mixes
    sources, each with `columns`, `roles`, `system`, `label` and `yes_labels` of its own if needed.
    A relative path is looked up in the current folder, then in the folder of the configuration."""
    mix: list[MixPhase] = []
    """Weights of the sources by phases of the run, in place of those in `train`, such as
    `[{at: 0, weights: {code: 1, math: 1}}, {at: 0.5, weights: {code: 1, math: 3}}]`."""
    eval: str | None = None
    """Evaluation data, named as in `train`; null holds out `eval_fraction` of the training data."""
    train_split: str = "train"
    """Split of a folder or Hub dataset to train on."""
    eval_split: str = "validation"
    """Split of the `eval` folder or Hub dataset."""
    eval_fraction: Fraction = 0.02
    """Share of the training data held out when `eval` is null."""
    format: Literal[
        "auto", "messages", "prompt_completion", "text", "tokens", "pairs", "preference", "rated"
    ] = "auto"
    """Format of the records; auto: recognized by their columns."""
    text: TextUnit = "line"
    """What becomes a record of a plain text file: every line, every paragraph (paragraphs are
    separated by blank lines), or the file as a whole."""
    columns: dict[str, Column] = {}
    """Columns of the data by field, such as `{prompt: query, completion: reply}`, or a text such as
    `{prompt: "{instruction} {input}"}`. `answers.text.0` is a value inside the column `answers`;
    `{NAME: null}` says that a column is not to be used; of a list of texts the first one is used
    whose columns are all filled. With format: messages, prompt and completion are turns."""
    roles: dict[str, str] = {}
    """Roles of conversations by their names in the data, such as `{narrator: user}`. `{NAME: NAME}`
    keeps a role that the chat template has; `*` stands for all other roles."""
    system: str | None = None
    """System message of conversations that have none; null adds none."""
    label: LabelMeaning = "auto"
    """Meaning of a column `label`. class: pairs with equal labels are not negatives of each other;
    score: the similarity of two texts; match: whether two texts match, so that those that do not
    are negatives or left out; answer: the answer to a text (task sft)."""
    positives: Literal["all", "first"] = "all"
    """all: each of several positives of an anchor makes a pair; first: only the first one does."""
    yes_labels: list[Label] | None = None
    """Labels that count as positive, such as `[0]` or `[4, 5]`: the texts match (label: match), or
    the completion is good (task kto). All other labels are negative. null: true, 1 and words such
    as `yes`, `good` or `match` are positive; false, 0 and words such as `no`, `bad` or `no match`
    are negative; a label that is neither is refused."""
    max_length: Annotated[int, Meta(ge=8, le=MOST)] = 1024
    """Tokens per sequence; longer sequences are truncated, and their number is reported."""
    train_limit: Count | None = None
    """Use only this many records from the beginning of each source; null uses all."""
    eval_limit: Count | None = 256
    """Evaluate on at most this many records, evenly spaced; null uses all."""
    completion_only: bool = True
    """Take the loss only on completion (assistant) tokens, where the format marks them."""
    template: str | None = None
    """Chat template of conversations: a file (a relative path is looked up as in `train`), a name
    in TRL's collection such as `qwen3`, or the Jinja text itself; null is the template of the
    model's tokenizer. It is exported with the model."""
    special_tokens: list[str] = []
    """Special tokens to add to the tokenizer, such as `["<|im_start|>", "<|im_end|>"]` for a chat
    template that writes them. New tokens get rows in the embedding and the output head, which
    are trained and saved with the adapter."""
    train_on: str = "all"
    """Turns of conversations to learn: `all` assistant turns, only the `last` one, or the turns of
    another role by its name."""
    reasoning: Literal["keep", "drop"] = "keep"
    """keep: the reasoning of assistant turns is learned, as far as the chat template writes it;
    drop: it is left out."""
    streaming: bool = False
    """Read the training data during training instead of loading all of it; needs train.steps, and
    data.eval or data.eval_fraction: 0."""
    shuffle_buffer: Count = 1000
    """streaming: number of records that are kept in memory and shuffled."""
    accept: list[str] = []
    """Findings about the data that are accepted although their share exceeds the limit, by the
    names that `fttui check` prints, such as `cut`; `all` accepts every finding."""
    dedup: Literal["off", "exact", "near"] = "off"
    """Drop training records that repeat another one or are evaluation data; near: also those that
    share most of their words (needs the package datasketch). Duplicates are counted in any case,
    except in streamed data."""
    quarantine: str | list[str] = []
    """Ids of training samples to keep out, beside those of the command `quarantine`: a list, or a
    file with one id per line, such as the `quarantine.txt` of an export."""
    packing: bool = False
    """Pack several records into each row of max_length instead of padding (task sft). Attention
    does not cross records."""

    @property
    def kept_out(self) -> tuple[str, ...]:
        """Ids of the samples to keep out, each once.

        Loading a configuration puts the ids of a file in place of its name; before, it is the name.
        """
        named = [self.quarantine] if isinstance(self.quarantine, str) else self.quarantine
        return tuple(dict.fromkeys(named))

    @property
    def sources(self) -> list[DataSource]:
        """The training sources as a list, also when only one is given."""
        return [DataSource(path=self.train)] if isinstance(self.train, str) else self.train

    @property
    def source_names(self) -> list[str]:
        """The names of the training sources, in their order."""
        return [one.called for one in self.sources]

    def of_source(self, source: DataSource) -> DataConfig:
        """Return the section with the settings of one source in place of the common ones."""
        names = ("columns", "roles", "system", "label", "yes_labels")
        own = {name: getattr(source, name) for name in names}
        given = {name: value for name, value in own.items() if value is not None}
        return msgspec.structs.replace(self, **given)


class EvalConfig(Section, frozen=True, kw_only=True):
    """Evaluation during training."""

    every: CountOrZero = 0
    """Steps between evaluations; 0: only on request and at the end."""
    per_epoch: Positive | None = None
    """Evaluations per epoch, such as 4, instead of `every`; null: as `every` says."""
    at_start: bool = False
    """Evaluate before the first step."""
    batch: Count | None = None
    """Sequences (or pairs) per micro-batch; null is train.batch."""
    samples: list[str] = []
    """Prompts to generate from at every evaluation."""
    sample_tokens: Count = 48
    """Tokens generated per prompt."""
    metrics: list[str] = []
    """Metrics that Python functions of yours compute, as FILE.py:FUNCTION, from completions of
    held-out records or, in task contrastive, with the model, which embeds texts for evaluators of
    sentence-transformers; the file is executed when the run starts."""
    metric_records: Count = 64
    """Held-out records, the first ones, whose completions are generated for `metrics`."""
    metric_tokens: Count = 128
    """Tokens generated per completion for `metrics`, at most."""
    benchmarks: BenchmarksConfig = BenchmarksConfig()

    @property
    def recurs(self) -> bool:
        """Whether evaluations are scheduled during training."""
        return bool(self.every or self.per_epoch)


class CheckpointConfig(Section, frozen=True, kw_only=True):
    """When checkpoints are written and how many are kept."""

    every: CountOrZero = 50
    """Steps between checkpoints; 0: only on request and at the end."""
    per_epoch: Positive | None = None
    """Checkpoints per epoch, such as 2, instead of `every`; null: as `every` says."""
    keep: Count = 3
    """Number of newest checkpoints kept; pinned checkpoints and rollback targets in use are kept as
    well."""
    best: Metric | None = None
    """Also write a checkpoint at each evaluation that is the best so far by this metric, any that
    `train.early_stop.metric` may be, and keep it; null keeps the checkpoint with the lowest
    evaluation loss among those written anyway."""
    at_start: bool = True
    """Write a checkpoint before the first step, so that a rollback is always possible."""

    @property
    def recurs(self) -> bool:
        """Whether checkpoints are scheduled during training."""
        return bool(self.every or self.per_epoch)


class GuardConfig(Section, frozen=True, kw_only=True):
    """Reaction to non-finite values, and sensitivity of the anomaly detector."""

    nonfinite: Literal["skip", "halt", "rollback"] = "skip"
    """Reaction to a NaN or infinite loss or gradient: skip the update, halt the run, or roll back
    to a checkpoint."""
    nonfinite_budget: Count = 5
    """Updates that may be skipped within 100 steps; one more halts the run."""
    false_alarms_per_10k_steps: Annotated[float, Meta(gt=0, le=1000)] = 5.0
    """False alarms of instability that noise with exponential tails may raise in 10,000 steps."""
    sensitivity: Annotated[float, Meta(ge=0.25, le=4)] = 1.0
    """Sensitivity of the anomaly detector; twice as much allows ten times as many false alarms."""


class PolicyConfig(Section, frozen=True, kw_only=True):
    """Limits of what the autopilot may do about an anomaly."""

    autopilot: Literal["off", "propose", "act"] = "propose"
    """propose: write the proposed recovery to the journal; act: carry it out."""
    budget: CountOrZero = 3
    """Recoveries by the autopilot per run."""
    cooldown: CountOrZero = 50
    """Steps between two recoveries by the autopilot."""
    probation: Count = 50
    """Steps after a recovery until its success is decided."""


class PlannedCommand(Section, frozen=True, kw_only=True):
    """A command that the engine applies by itself at a step."""

    step: CountOrZero
    """Number of finished steps when it is applied; it counts from the next step on."""
    command: str
    """The command as a person would type it: lr, clip, mix, skip, quarantine or policy
    nonfinite."""


VERSION = 1
"""Version of the configuration. It rises when a key changes its meaning or goes."""


class RunConfig(Section, frozen=True, kw_only=True):
    """Model, data, task and name of the run."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    name: str = "run"
    """Name of the run; the run folder is named after it and the start time."""
    task: Literal["sft", "contrastive", "dpo", "kto", "reward"] = "sft"
    """sft: next-token loss (optionally with simctg); contrastive: pairs with the joint loss; dpo:
    chosen and rejected completions; kto: completions rated good or bad; reward: a model that scores
    answers, from chosen and rejected ones."""
    adapter: AdapterConfig = AdapterConfig()
    contrastive: ContrastiveConfig = ContrastiveConfig()
    preference: PreferenceConfig = PreferenceConfig()
    reward: RewardConfig = RewardConfig()
    eval: EvalConfig = EvalConfig()
    forgetting: ForgettingConfig = ForgettingConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guard: GuardConfig = GuardConfig()
    policy: PolicyConfig = PolicyConfig()
    price: PriceConfig = PriceConfig()
    budget: BudgetConfig = BudgetConfig()
    hub: HubConfig = HubConfig()
    trackers: list[Tracker] = []
    """Trackers that the run is delivered to while it trains, by processes beside it."""
    tracking: TrackingConfig = TrackingConfig()
    alerts: AlertsConfig = AlertsConfig()
    agents: AgentsConfig = AgentsConfig()
    interventions: list[PlannedCommand] = []
    """Commands at certain steps, as `fttui recipe` writes them to repeat a run."""
    version: Count = 1
    """Version of the configuration that this file is written for; a version newer than that of the
    installed fttui is refused, and a file without the key is read as version 1."""

    @property
    def has_reference(self) -> bool:
        """Whether the loss compares the model with a reference, which is the model at the start."""
        if self.task not in PREFERENCE_TASKS:
            return False
        return self.task == "kto" or self.preference.traits.reference

    @property
    def learns_next_token(self) -> bool:
        """Whether the next-token loss of all texts is the loss or a part of it."""
        if self.task == "contrastive":
            return self.contrastive.ce_weight > 0
        return self.task == "sft"

    @property
    def copies_reference(self) -> bool:
        """Whether the reference is a copy of the trained weights, which needs memory."""
        return self.has_reference and self.adapter.needs_copy_as_reference

    @property
    def added_tokens(self) -> list[str]:
        """The tokens of `data.special_tokens` and `model.add_tokens`, in this order."""
        return [*self.data.special_tokens, *(one.token for one in self.model.add_tokens)]

    @property
    def keys_of_added_tokens(self) -> list[str]:
        """The keys that add tokens, in the order of `added_tokens`."""
        given = {
            "data.special_tokens": self.data.special_tokens,
            "model.add_tokens": self.model.add_tokens,
        }
        return [key for key, tokens in given.items() if tokens]
