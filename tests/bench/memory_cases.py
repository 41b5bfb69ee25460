"""The rows of `tests.bench.memory`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

LEAN = {"train.memory": "lean", "train.optimizer": "paged_adamw_8bit"}
BF16 = {"train.adapter_precision": "bf16"}
FP32 = {"train.adapter_precision": "fp32"}
ON = {"train.activation_checkpointing": "true"}
WHOLE = {"train.activation_checkpointing": "false"}
SOME = ON | {"train.whole_layers": "10"}
DROP = {"adapter.dropout": "0.05"}
FAST = BF16 | {"train.fast": "on"}
AUTO = {"train.fast": "auto"}
AHEAD_OF_STEP = {"contrastive.cross_accumulation": "on"}
ALONE = {"contrastive.cross_accumulation": "off"}


@dataclass(frozen=True)
class Case:
    """One row."""

    name: str
    shape: str
    length: int
    batch: int = 1
    sets: dict[str, str] = field(default_factory=dict)
    cap_gib: float = 0
    """Most memory of the process, its context included; 0 is no limit."""
    accumulate: int = 2
    task: str = "sft"
    alone: bool = False
    """Its time counts, or what the driver takes beside the allocator."""
    loaded: bool = False
    """From disk through the real loader."""
    varied: bool = False
    """Texts of several lengths, the longest last."""
    segments: bool = True
    """The allocator's segments may grow, as the engine has it."""
    pooled: bool = False
    """Graphs are rehearsed in the memory that they will have."""
    layers: int | None = None
    """Decoder layers, if fewer than those of the published model."""

    def title(self) -> str:
        """Name, shape, length, batch and what is set."""
        short = [f"{k.rpartition('.')[2]}={v}" for k, v in self.sets.items()]
        flags = [name for name in ("varied", "loaded", "pooled") if getattr(self, name)]
        flags += [] if self.segments else ["fixed segments"]
        shape = f"{self.shape} ({self.layers} layers)" if self.layers else self.shape
        words = [f"{self.name}:", shape, self.task, f"T{self.length}", f"B{self.batch}"]
        return " ".join([*words, *short, *flags])


ADAMW = BF16 | ON | {"train.optimizer": "adamw"}
CASES: tuple[Case, ...] = (
    Case("lean-2048", "8b", 2048, 1, LEAN | ON, cap_gib=6, accumulate=4, alone=True),
    Case("lean-2048-graphs", "8b", 2048, 1, LEAN | ON | {"train.fast": "on"}, cap_gib=6,
         accumulate=4, alone=True),
    Case("lean-1024", "8b", 1024, 1, LEAN | ON, cap_gib=6, accumulate=4, alone=True),
    Case("plain-2048", "8b", 2048, 1, ADAMW, accumulate=4, alone=True),
    Case("plain-1024", "8b", 1024, 1, ADAMW, accumulate=4, alone=True),
    Case("fast-1b-2048-whole", "1b", 2048, 1, FAST | WHOLE, alone=True),
    Case("fast-1b-2048", "1b", 2048, 1, FAST | ON, alone=True),
    Case("fast-8b-1024", "8b", 1024, 1, FAST | ON | DROP, alone=True),
    Case("fast-8b-1024-whole", "8b", 1024, 1, FAST | WHOLE, alone=True),
    Case("fast-1b-lengths", "1b", 2048, 1, FAST | WHOLE, alone=True, varied=True),
    Case("fast-1b-pooled", "1b", 2048, 1, FAST | WHOLE, alone=True, varied=True, pooled=True),
    Case("fast-1b-tight", "1b", 1536, 1, FAST | WHOLE, alone=True, varied=True, cap_gib=6),
    Case("fast-1b-fixed", "1b", 2048, 1, FAST | WHOLE, alone=True, varied=True, segments=False),
    Case("trial-1b", "1b", 2048, 1, FP32 | WHOLE | DROP, alone=True),
    Case("load-lean", "1b", 512, 1, LEAN | ON, loaded=True, alone=True),
    Case("load-plain", "1b", 512, 1, BF16 | ON, loaded=True, alone=True),
    Case("fast-0.1b-1024", "0.1b", 1024, 4, FAST | WHOLE | DROP),
    Case("fast-1b-512", "1b", 512, 1, FAST | ON | DROP),
    Case("fast-1b-512-whole", "1b", 512, 1, FAST | WHOLE | DROP),
    Case("fast-3b-1024-whole", "3b", 1024, 1, FAST | WHOLE | FP32),
    Case("fast-pairs", "1b", 512, 2, FAST | ON | ALONE, task="contrastive"),
    Case("fast-pairs-whole", "1b", 512, 2, FAST | WHOLE | ALONE, task="contrastive"),
    Case("fast-pairs-ahead", "1b", 512, 2, FAST | WHOLE | AHEAD_OF_STEP, task="contrastive",
         accumulate=4),
    Case("3b-1024", "3b", 1024, 1, BF16 | ON),
    Case("3b-2048", "3b", 2048, 2, FP32 | ON | DROP),
    Case("1b-lean", "1b", 2048, 1, LEAN | ON),
    Case("pairs", "1b", 512, 2, BF16 | ON | ALONE, task="contrastive"),
    Case("pairs-whole", "1b", 512, 2, BF16 | WHOLE | ALONE | DROP, task="contrastive"),
    Case("pairs-ahead", "1b", 512, 2, BF16 | ON | AHEAD_OF_STEP, task="contrastive", accumulate=8),
    Case("pairs-ahead-whole", "1b", 512, 2, BF16 | WHOLE | AHEAD_OF_STEP, task="contrastive",
         accumulate=4),
    Case("pairs-lean", "1b", 512, 2, LEAN | ON, task="contrastive"),
    Case("dpo", "1b", 1024, 1, BF16 | ON, task="dpo"),
    Case("dpo-whole", "1b", 512, 2, BF16 | WHOLE | DROP, task="dpo"),
    Case("dpo-lean", "1b", 1024, 1, LEAN | ON, task="dpo"),
    Case("kto", "1b", 1024, 2, FP32 | ON, task="kto"),
    Case("dpo-512", "1b", 512, 1, BF16 | ON | DROP, task="dpo", accumulate=4, alone=True),
    Case("dpo-512-graphs", "1b", 512, 1, FAST | ON | DROP, task="dpo", accumulate=4, alone=True),
    Case("dpo-512-graphs-whole", "1b", 512, 1, FAST | WHOLE | DROP, task="dpo", accumulate=4,
         alone=True),
    Case("fast-dpo", "1b", 1024, 1, FAST | ON, task="dpo"),
    Case("fast-dpo-whole", "1b", 512, 2, FAST | WHOLE | DROP, task="dpo"),
    Case("fast-kto", "1b", 1024, 2, FAST | ON, task="kto"),
    Case("some-8b", "8b", 1024, 1, BF16 | SOME, accumulate=2),
    Case("fast-some-8b", "8b", 1024, 1, FAST | SOME | DROP),
    Case("simctg", "1b", 1024, 1, BF16 | ON | {"contrastive.kind": "simctg"}),
    Case("fast-simctg", "1b", 1024, 1, FAST | ON | {"contrastive.kind": "simctg"}),
    Case("0.1b-1024", "0.1b", 1024, 4, FP32 | ON | DROP),
    Case("0.1b-2048", "0.1b", 2048, 1, BF16 | WHOLE),
    Case("0.5b-1024", "0.5b", 1024, 2, BF16 | ON),
    Case("0.5b-512", "0.5b", 512, 4, FP32 | WHOLE | DROP),
    Case("1b-512", "1b", 512, 1, BF16 | ON | DROP),
    Case("1b-2048", "1b", 2048, 1, FP32 | ON),
    Case("1b-1024-whole", "1b", 1024, 2, BF16 | WHOLE),
    Case("lean-4096", "8b", 4096, 1, LEAN | ON | {"train.activations": "host"}, cap_gib=6,
         accumulate=4, alone=True),
)  # fmt: skip
"""By worth: what does not fit into the time is left out at the end."""

MODES = {
    "off": BF16 | ON,
    "fast-whole": BF16 | AUTO | WHOLE | DROP,
    "off-whole": BF16 | WHOLE | DROP,
    "fast": BF16 | AUTO | ON,
}
"""Settings of the rows of a family; fast mode is used where the model supports it."""
FAMILY_LAYERS: dict[str, int | None] = {
    "llama-3.2-1b": None,
    "qwen2-0.5b": None,
    "qwen2.5-1.5b": None,
    "qwen3-1.7b": None,
    "gemma-2-2b": 12,
    "gemma-3-1b": None,
    "phi-3-mini": 12,
    "phi-4": 4,
    "phi-4-mini": 12,
    "mistral-7b": 6,
    "olmo-2-1b": None,
    "granite-3.3-2b": 20,
    "smollm3-3b": 16,
    "olmoe-1b-7b": 4,
    "qwen1.5-moe-a2.7b": 2,
    "qwen3-30b-a3b": 2,
    "mixtral-8x7b": 1,
    "gemma-3-4b": 8,
    "qwen2.5-vl-3b": 12,
}
"""Families, with fewer layers than published if that would take long to write and load."""
_EXPERTS = ("olmoe-1b-7b", "qwen1.5-moe-a2.7b", "qwen3-30b-a3b", "mixtral-8x7b")
_FULL = {"adapter": "none", "model.quantize": "none"}


def _families() -> Iterator[Case]:
    """Yield a row for each family and mode; mixtures of experts have no CUDA graphs."""
    for mode, sets in MODES.items():
        for name, layers in FAMILY_LAYERS.items():
            if name not in _EXPERTS or not mode.startswith("fast"):
                yield Case(f"family-{mode}", name, 1024, 1, sets, loaded=True, layers=layers)


def _full() -> Iterator[Case]:
    """Yield rows that train the model itself or its last layers."""
    for mode, sets in {"": ON, "-whole": WHOLE, "-last": ON | {"train.layers": "4"}}.items():
        for name in ("llama-3.2-1b", "qwen2.5-1.5b"):
            yield Case(f"full{mode}", name, 1024, 1, _FULL | sets, loaded=True)
    yield Case("full-bf16", "llama-3.2-1b", 1024, 1, _FULL | ON | BF16, loaded=True)


CASES += (*_families(), *_full())
