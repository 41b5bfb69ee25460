"""The section `train`: optimizer, rates, batch size, memory and speed."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .base import (
    MOST,
    Count,
    CountOrZero,
    Dropout,
    Momentum,
    NonNegative,
    Positive,
    Section,
    Seed,
    Share,
)

Metric = Annotated[str, Meta(pattern="^[^\\W\\d]\\w*(\\.[\\w-]+)*$")]
"""Name of a metric of evaluations, which may be a function in `eval.metrics`, or of a benchmark,
such as `bench.hellaswag.acc`."""


DEFAULT_ACCUMULATION = 8
"""Micro-batches per optimizer step unless the configuration says something else."""


class EarlyStopConfig(Section, frozen=True, kw_only=True):
    """When a run ends because a metric no longer improves."""

    metric: Metric = "loss"
    """Metric to watch, measured at each evaluation: loss, perplexity, ce, contrastive, recall_at_1,
    recall_at_5, mrr, ndcg_at_10, triplet_accuracy, spearman, reward_accuracy or reward_margin, as
    the task has them; forgetting.loss, forgetting.rise or forgetting.balance; or a function in
    `eval.metrics`."""
    patience: Count = 3
    """Evaluations without an improvement before the run ends."""
    min_delta: NonNegative = 0.0
    """The metric must be better than its best so far by more than this to count as improved."""


class LrRatios(Section, frozen=True, kw_only=True):
    """Learning rates of parameter groups, as multiples of the scheduled learning rate."""

    lora_b: Positive = 1.0
    """For the B matrices of LoRA; LoRA+ usually uses 16."""
    embeddings: Positive = 1.0
    """For the modules in `adapter.modules_to_save` and the rows of new tokens; 0.1 is usual."""
    temperature: Positive = 1.0
    """For the temperature of the contrastive loss; used only if the temperature is learned."""
    layer_decay: Share = 1.0
    """Factor from each decoder layer to the one below it, such as 0.9; the last layer has the
    learning rate itself, the embedding that of a layer below the first. 1 is off."""
    patterns: dict[str, Positive] = {}
    """For trained weights whose full names match a regular expression, such as
    `{".*layers.(0|1)[.].*": 0.1}`; the first one that matches counts, beside the ratios above."""


class ProjectionConfig(Section, frozen=True, kw_only=True):
    """How galore and apollo project the gradients of matrices."""

    rank: Count = 128
    """Rank of the projected gradients."""
    every: Count = 200
    """Steps between two choices of the projection."""
    scale: Positive = 0.25
    """Factor on projected updates; apollo usually has 1."""


BaseOptimizer = Literal[
    "adamw",
    "adamw_8bit",
    "paged_adamw_8bit",
    "adafactor",
    "lion",
    "lion_8bit",
    "paged_lion_8bit",
    "lamb",
    "sgd",
    "muon",
    "lookahead",
    "ranger",
    "lars",
    "adan",
    "ademamix",
    "adopt",
    "stable_adamw",
]
"""The optimizers that make an update from one gradient; `sam` can use each of them."""


class SamConfig(Section, frozen=True, kw_only=True):
    """Sharpness-aware minimization: the gradient is taken where the loss near the weights is high.

    Each step passes twice over its micro-batches: at the weights, and at the weights moved by `rho`
    along that gradient. The second gradient makes the update.
    """

    rho: Positive = 0.05
    """How far the weights are moved: the norm of the change over all trained weights."""
    adaptive: bool = False
    """Move each weight in proportion to its square, so that `rho` does not depend on the scale of
    the weights (ASAM); `rho` is then about ten times as large."""
    base: BaseOptimizer = "adamw"
    """The optimizer that makes the update."""


class SophiaConfig(Section, frozen=True, kw_only=True):
    """Sophia-G: updates divided by an estimate of the curvature of the next-token loss."""

    rho: Positive = 0.04
    """Weight of the curvature: smaller values bound more elements of an update by the learning
    rate."""
    every: Count = 10
    """Steps between two estimates, each of which passes once more over the micro-batches."""


class TrainConfig(Section, frozen=True, kw_only=True):
    """Optimizer, learning rate, batch size, memory and speed."""

    steps: Count | None = None
    """Optimizer steps of the run; give this or `epochs`."""
    epochs: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Passes over the training data; give this or `steps`."""
    batch: Count | Literal["auto"] = 1
    """Sequences (or pairs) per rank and micro-batch. auto: as many as the memory allows, chosen
    when a run is started and kept when it is resumed or repeated; needs `sequences_per_update`."""
    accumulate: Count | None = None
    """Micro-batches per optimizer step; null: 8, or what `sequences_per_update` requires."""
    sequences_per_update: Count | None = None
    """Sequences (or pairs) per optimizer step on all ranks together, instead of `accumulate`; a
    multiple of `batch` × ranks. Those at the end of an epoch that fill no step are left out."""
    layers: Count | str | None = None
    """With `adapter: none`, the weights to train. null: all; a number: those of this many last
    decoder layers; a text: those whose full names match this regular expression, such as
    `.*layers.(2[0-9]).*`."""
    lr: Positive = 2e-4
    """Peak learning rate."""
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
        "exponential",
        "step",
    ] = "cosine"
    """Learning rate schedule after warm-up. polynomial: decay with `schedule_power`; wsd: constant,
    then decay over the last `schedule_decay` of the steps; one_cycle: rise from lr / 25 during
    warm-up (0.3 is usual), then decay; exponential: the same factor in every step, down to
    `lr_floor`; step: times `schedule_gamma` at each of `schedule_milestones`."""
    lr_floor: Dropout = 0.0
    """Final learning rate as a share of `lr` (linear, cosine, cosine_restarts, polynomial, wsd,
    one_cycle, exponential)."""
    schedule_cycles: Count = 2
    """Number of cycles of cosine_restarts."""
    schedule_power: Positive = 2.0
    """Power of polynomial; 1 is a line."""
    schedule_decay: Share = 0.2
    """Share of the steps over which wsd decays at the end."""
    schedule_milestones: list[Share] = msgspec.field(default_factory=lambda: [0.5, 0.75])
    """Shares of the steps after warm-up at which step lowers the learning rate."""
    schedule_gamma: Share = 0.1
    """Factor on the learning rate at each milestone of step."""
    warmup: Annotated[float, Meta(ge=0, le=MOST)] = 0.03
    """Warm-up: below 1 a share of all steps, from 1 on a number of steps. The rate rises from 0 in
    step 1, as in transformers; only one_cycle starts above 0."""
    optimizer: Literal[BaseOptimizer, "galore", "apollo", "sam", "sophia"] = "adamw"
    """Optimizer. muon: Muon for the matrices of layers, AdamW for the rest; lookahead: AdamW with
    slow weights; galore, apollo: AdamW on projected gradients, for adapter: none; sam: the one in
    `sam.base`, with the gradient of a second pass; sophia: curvature of the next-token loss, for
    task sft. lamb, ranger, lars, adan, ademamix, adopt, stable_adamw, galore and apollo need the
    package pytorch-optimizer."""
    weight_decay: NonNegative = 0.0
    """Weight decay of the optimizer. The command `weight_decay` changes it while the run trains."""
    betas: tuple[Momentum, Momentum] | None = None
    """Decay of the averages of the gradient and of its square, such as `[0.9, 0.95]`, for
    optimizers with two such averages; null: as usual for the optimizer."""
    epsilon: Positive | None = None
    """What optimizers like AdamW add to the divisor of an update; null: as usual for the
    optimizer."""
    momentum: Momentum | None = None
    """Momentum of sgd, lars and muon; null: none for sgd, otherwise as usual for the optimizer."""
    projection: ProjectionConfig = ProjectionConfig()
    sam: SamConfig = SamConfig()
    sophia: SophiaConfig = SophiaConfig()
    clip: NonNegative = 1.0
    """Largest gradient norm; larger gradients are scaled down to it; 0 is off. The command `clip`
    changes it while the run trains."""
    clip_value: NonNegative = 0.0
    """Largest element of a gradient, before it is clipped by its norm; 0 is off."""
    clip_adaptive: NonNegative = 0.0
    """Largest norm of a gradient as a share of the norm of its weights, row by row, before it is
    clipped by its norm (AGC), such as 0.01; 0 is off."""
    label_smoothing: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of each next-token target that is spread over the vocabulary; not used in
    evaluations."""
    focal: NonNegative = 0.0
    """Exponent γ of the focal loss: the next-token loss of a token is multiplied by (1 − p)^γ, so
    that tokens that are known already count less; 2 is usual, 0 is off; not used in
    evaluations."""
    router_aux_loss: NonNegative | None = None
    """Mixtures of experts, except in task contrastive: weight of the load balancing loss; null: as
    in the model's configuration."""
    neftune: NonNegative = 0.0
    """Noise on the input embeddings during training (NEFTune's alpha), such as 5; 0 is off."""
    activation_checkpointing: bool | Literal["auto"] = "auto"
    """Recompute a layer's activations in the backward pass instead of keeping them; auto: only for
    as many layers as the GPU's free memory requires, and for all layers on a CPU."""
    whole_layers: CountOrZero = 0
    """With activation_checkpointing: true, number of last layers that keep their activations:
    faster, but each needs more memory; activation_checkpointing: auto sets it."""
    memory: Literal["auto", "plain", "lean", "streamed"] = "auto"
    """lean: input embedding in host memory, output head in NF4, for models that do not fit
    otherwise (needs quantize: nf4); streamed: lean, with the weights of all layers in host memory
    and copied to the GPU layer by layer in every pass; auto: lean or, if that does not fit either,
    streamed, if the memory estimate of `fttui run` requires it."""
    activations: Literal["auto", "device", "host"] = "auto"
    """Where activation checkpoints are kept until the backward pass; auto: in host memory if the
    memory estimate of `fttui run` requires it."""
    seed: Seed = 0
    """Seed of data order, of the initial weights of adapters, and of dropout."""
    devices: Count = 1
    """Number of processes of a node, one per device; torchrun starts them when there are
    several."""
    nodes: Count = 1
    """Number of machines that train together; `fttui run` is started on each of them."""
    strategy: Literal["ddp", "fsdp", "hybrid"] = "ddp"
    """How several processes share the work. ddp: each has the whole model; fsdp: each has a part of
    every weight, gradient and optimizer state, and gathers a layer when it needs it (for task sft
    with quantize: none, nf4 or fp4); hybrid: fsdp among the processes of a node, ddp between nodes,
    so that only gradients go over the network."""
    restarts: CountOrZero = 0
    """How often the processes are restarted from the last checkpoint after a crash."""
    collective_timeout_s: Positive = 600.0
    """Seconds that a rank waits for the gradients of another one before the run fails."""
    adapter_precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of the trained weights; auto: bf16 on a GPU with nf4 or fp4 and bf16 compute,
    otherwise fp32."""
    deterministic: bool = False
    """Use deterministic kernels: slower, but repeated and resumed runs are bit-exact on a GPU
    too."""
    fast: Literal["auto", "on", "off", "static"] = "auto"
    """Run micro-batches as CUDA graphs on padded lengths: many times faster where the GPU waits for
    the host. auto: where possible and if it fits; on: refuse to run where impossible; static: the
    same shapes without graphs, on any device, for comparison."""
    ema: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Decay of an exponential moving average of the trained weights, such as 0.99; 0 is off. The
    average is used for evaluations, samples and exports; checkpoints hold it too."""
    early_stop: EarlyStopConfig | None = None
    """Write a checkpoint and end the run when a metric stops improving; null trains all steps."""

    @property
    def base_optimizer(self) -> str:
        """The optimizer that makes the updates; for sam it is `sam.base`."""
        return self.sam.base if self.optimizer == "sam" else self.optimizer

    @property
    def ranks(self) -> int:
        """The number of processes on all nodes."""
        return self.nodes * self.devices

    @property
    def micro_batch_size(self) -> int:
        """Sequences (or pairs) per rank and micro-batch; 1 while `auto` is undecided."""
        return 1 if self.batch == "auto" else self.batch

    @property
    def accumulation(self) -> int:
        """Micro-batches per optimizer step and rank."""
        if self.sequences_per_update is None:
            return self.accumulate or DEFAULT_ACCUMULATION
        return max(1, self.sequences_per_update // (self.micro_batch_size * self.ranks))

    @property
    def shards(self) -> bool:
        """Whether each process holds a part of the model only."""
        return self.strategy != "ddp"

    @property
    def sharing_ranks(self) -> int:
        """The number of processes that hold the parts of one copy of the model; 1 with ddp."""
        return {"ddp": 1, "fsdp": self.ranks, "hybrid": self.devices}[self.strategy]

    @property
    def lean(self) -> bool:
        """Whether embedding and head have the forms of lean mode, which streamed mode has too."""
        return self.memory in ("lean", "streamed")

    @property
    def streams(self) -> bool:
        """Whether the weights of layers are in host memory and copied to the device to compute."""
        return self.memory == "streamed"

    @property
    def recomputes(self) -> bool:
        """Whether layers are recomputed in the backward pass; true while `auto` is undecided."""
        return self.activation_checkpointing is not False
