"""Tiny trainers of the real libraries, built as a user's script would, and watched ones played.

Every builder makes the same trainer again: same weights, same data, same seeds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlWriter
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.controlled_session import SessionOutcome
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.journal_writer import JournalWriter
from fttui.engine.watch import script_run
from fttui.engine.watch.huggingface.watch import unwatch_trainer, watch_trainer
from fttui.engine.watch.watch_options import WatchOptions

from .played import Played, Script, ScriptedEventLog, read_records

ROWS = 22
WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ["<pad>", "<eos>", "<unk>", "<bos>"]
WIDTH = 12


def word_tokenizer() -> Any:
    """A tokenizer with one token per word."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>", "bos_token": "<bos>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def gpt2_config(**changed: Any) -> GPT2Config:
    """A model of two small layers with dropout."""
    size = {"vocab_size": 64, "n_positions": 48, "n_embd": 32, "n_layer": 2, "n_head": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 3}
    return GPT2Config(**size, **ids, **changed)


def language_model() -> Any:
    torch.manual_seed(1)
    return GPT2LMHeadModel(gpt2_config())


def with_adapter(model: Any) -> Any:
    """The model with a LoRA adapter that has dropout."""
    torch.manual_seed(2)
    config = LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1, task_type="CAUSAL_LM")
    return get_peft_model(model, config)


def texts(words: int, rows: int = ROWS) -> Iterator[str]:
    draw = random.Random(words)
    for _ in range(rows):
        yield " ".join(draw.choice(WORDS) for _ in range(words + draw.randrange(4)))


def common(folder: Path, **changed: Any) -> dict[str, Any]:
    """Arguments that every trainer takes: 18 steps in three epochs whose last step is short."""
    given: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 3,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 7,
    }
    return given | changed


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Rows of random tokens."""

    def __init__(self, count: int = ROWS) -> None:
        self._ids = torch.randint(4, 64, (count, WIDTH), generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self._ids[index]}


class Stream(torch.utils.data.IterableDataset[dict[str, Tensor]]):
    """The same rows without a length."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        rows = Rows()
        yield from (rows[index] for index in range(len(rows)))


def drawing_collator(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Collate with masks that are drawn anew each time, from the generator of torch."""
    ids = torch.stack([row["input_ids"] for row in rows])
    labels = ids.clone()
    labels[torch.rand(labels.shape) < 0.15] = -100
    return {"input_ids": ids, "labels": labels}


def plain(folder: Path, data: Any = None, **changed: Any) -> Any:
    """A stock `Trainer` with dropout and a drawing collator."""
    args = TrainingArguments(**common(folder, remove_unused_columns=False, **changed))
    return Trainer(
        model=language_model(),
        args=args,
        train_dataset=Rows() if data is None else data,
        eval_dataset=Rows(6),
        data_collator=drawing_collator,
    )


def streaming(folder: Path) -> Any:
    return plain(folder, Stream(), num_train_epochs=1, max_steps=14)


def workers(folder: Path) -> Any:
    return plain(folder, dataloader_num_workers=1)


def evaluating(folder: Path) -> Any:
    """A trainer that evaluates, saves, keeps its best model and might stop early."""
    often = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = plain(folder, load_best_model_at_end=True, **often)
    trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=20))
    return trainer


def plateau(folder: Path) -> Any:
    """A trainer whose rate falls at every evaluation, because none is good enough."""
    steps = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}
    never = {"patience": 0, "threshold": 10.0, "threshold_mode": "abs", "factor": 0.7}
    kind = "reduce_lr_on_plateau"
    return plain(folder, lr_scheduler_type=kind, lr_scheduler_kwargs=never, **steps)


def sft(folder: Path, **changed: Any) -> Any:
    """TRL's supervised trainer."""
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(**common(folder, max_length=16, bf16=False, **changed))
    data = Dataset.from_list([{"text": text} for text in texts(8)])
    return SFTTrainer(
        model=language_model(),
        args=args,
        train_dataset=data,
        eval_dataset=data.select(range(6)),
        processing_class=word_tokenizer(),
    )


def sft_packed(folder: Path) -> Any:
    return sft(folder, packing=True, num_train_epochs=5, eval_packing=False)


def dpo(folder: Path) -> Any:
    """TRL's trainer of preferences, with an adapter."""
    from trl import DPOConfig, DPOTrainer

    rows = zip(texts(3), texts(4), texts(5), strict=True)
    data = Dataset.from_list([{"prompt": f"{a} ", "chosen": b, "rejected": c} for a, b, c in rows])
    return DPOTrainer(
        model=with_adapter(language_model()),
        args=DPOConfig(**common(folder, max_length=24, bf16=False)),
        train_dataset=data,
        processing_class=word_tokenizer(),
    )


def kto(folder: Path) -> Any:
    """TRL's trainer of rated completions."""
    from trl import KTOConfig, KTOTrainer

    rows = enumerate(zip(texts(3), texts(4), strict=True))
    data = Dataset.from_list(
        [{"prompt": f"{a} ", "completion": b, "label": bool(n % 3)} for n, (a, b) in rows]
    )
    return KTOTrainer(
        model=with_adapter(language_model()),
        args=KTOConfig(**common(folder, max_length=24, bf16=False)),
        train_dataset=data,
        processing_class=word_tokenizer(),
    )


def reward(folder: Path) -> Any:
    """TRL's trainer of reward models."""
    from trl import RewardConfig, RewardTrainer

    torch.manual_seed(1)
    model = GPT2ForSequenceClassification(gpt2_config(num_labels=1))
    data = Dataset.from_list(
        [{"chosen": a, "rejected": b} for a, b in zip(texts(4), texts(5), strict=True)]
    )
    return RewardTrainer(
        model=model,
        args=RewardConfig(**common(folder, max_length=24, bf16=False)),
        train_dataset=data,
        processing_class=word_tokenizer(),
    )


def distinct_words(completions: list[str], **columns: Any) -> list[float]:
    """A reward of the script: how many different words a completion has."""
    return [float(len(set(one.split()))) for one in completions]


def of_generations(folder: Path, kind: str, **changed: Any) -> Any:
    """A trainer of TRL that generates its data; what it generates at once serves two steps."""
    import trl

    once = {"num_generations": 2, "steps_per_generation": 4, "max_completion_length": 5}
    given = common(folder, max_steps=14, beta=0.1, bf16=False, **once) | changed
    saved = str(folder / "model")  # the reference model is loaded from there
    language_model().save_pretrained(saved)
    return getattr(trl, f"{kind}Trainer")(
        model=AutoModelForCausalLM.from_pretrained(saved),
        args=getattr(trl, f"{kind}Config")(**given),
        train_dataset=Dataset.from_list([{"prompt": text} for text in texts(3)]),
        processing_class=word_tokenizer(),
        reward_funcs=distinct_words,
    )


def grpo(folder: Path, **changed: Any) -> Any:
    return of_generations(folder, "GRPO", **changed)


def rloo(folder: Path) -> Any:
    return of_generations(folder, "RLOO")


def embedder(folder: Path, *, cached: bool = False) -> Any:
    """The trainer of sentence-transformers, with in-batch negatives."""
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import (
        CachedMultipleNegativesRankingLoss,
        MultipleNegativesRankingLoss,
    )
    from transformers import BertModel

    model = SentenceTransformer(_bert(folder / "bert", BertModel), device="cpu")
    loss: Any = MultipleNegativesRankingLoss(model)
    if cached:
        loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)
    batch = {"per_device_train_batch_size": 4, "num_train_epochs": 5} if cached else {}
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(**common(folder, **batch)),
        train_dataset=_pairs(),
        loss=loss,
    )


def embedder_cached(folder: Path) -> Any:
    return embedder(folder, cached=True)


def cross_encoder(folder: Path) -> Any:
    """The trainer of sentence-transformers for models that score a pair of texts together."""
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from transformers import BertForSequenceClassification

    base = _bert(folder / "cross", BertForSequenceClassification, num_labels=1)
    rows = enumerate(zip(texts(4), texts(5), strict=True))
    return CrossEncoderTrainer(
        model=CrossEncoder(base, device="cpu"),
        args=CrossEncoderTrainingArguments(**common(folder)),
        train_dataset=Dataset.from_list(
            [{"text": a, "other": b, "label": float(n % 2)} for n, (a, b) in rows]
        ),
    )


def sparse_encoder(folder: Path) -> Any:
    """The trainer of sentence-transformers for sparse vectors, with the usual SPLADE loss.

    A callback of the trainer raises the weights of the regularizers over the first steps.
    """
    from sentence_transformers.sparse_encoder import (
        SparseEncoder,
        SparseEncoderTrainer,
        SparseEncoderTrainingArguments,
    )
    from sentence_transformers.sparse_encoder.losses import (
        SparseMultipleNegativesRankingLoss,
        SpladeLoss,
    )
    from transformers import BertForMaskedLM

    model = SparseEncoder(_bert(folder / "sparse", BertForMaskedLM), device="cpu")
    loss = SpladeLoss(
        model,
        SparseMultipleNegativesRankingLoss(model),
        document_regularizer_weight=0.03,
        query_regularizer_weight=0.05,
    )
    return SparseEncoderTrainer(
        model=model,
        args=SparseEncoderTrainingArguments(**common(folder)),
        train_dataset=_pairs(),
        loss=loss,
    )


def multi_vector_encoder(folder: Path) -> Any:
    """The trainer of sentence-transformers for a vector per token, as ColBERT has them."""
    from sentence_transformers import (
        MultiVectorEncoder,
        MultiVectorEncoderTrainer,
        MultiVectorEncoderTrainingArguments,
    )
    from sentence_transformers.multi_vector_encoder.losses import (
        MultiVectorMultipleNegativesRankingLoss,
    )
    from transformers import BertModel

    model = MultiVectorEncoder(_bert(folder / "vectors", BertModel), device="cpu")
    return MultiVectorEncoderTrainer(
        model=model,
        args=MultiVectorEncoderTrainingArguments(**common(folder)),
        train_dataset=_pairs(),
        loss=MultiVectorMultipleNegativesRankingLoss(model),
    )


def _bert(folder: Path, kind: Any, **changed: Any) -> str:
    """Save a small BERT of a class with its tokenizer, and return the folder."""
    from transformers import BertConfig

    torch.manual_seed(1)
    size = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**size, intermediate_size=32, max_position_embeddings=32, **changed)
    kind(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return str(folder)


def _pairs() -> Dataset:
    rows = zip(texts(4), texts(5), strict=True)
    return Dataset.from_list([{"anchor": a, "positive": b} for a, b in rows])


BUILDERS: dict[str, Callable[[Path], Any]] = {
    "Trainer": plain,
    "Trainer streaming": streaming,
    "Trainer workers": workers,
    "Trainer evaluating": evaluating,
    "Trainer plateau": plateau,
    "SFT": sft,
    "SFT packed": sft_packed,
    "DPO": dpo,
    "KTO": kto,
    "reward": reward,
    "MNRL": embedder,
    "CachedMNRL": embedder_cached,
    "CrossEncoder": cross_encoder,
    "SparseEncoder": sparse_encoder,
    "MultiVectorEncoder": multi_vector_encoder,
}


@dataclass
class Trained:
    """What a training has left behind."""

    trainer: Any
    weights: Tensor
    logged: list[dict[str, float]]
    """What the trainer logged at each step, as its own history has it."""
    played: Played | None = None
    """The run, if it was watched."""
    said: list[str] = field(default_factory=list)


class _Logged(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Collects what a user's callback gets to see."""

    def __init__(self) -> None:
        self.entries: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = {k: v for k, v in kwargs["logs"].items() if not k.endswith(TIMINGS)}
        self.entries.append({"step": state.global_step, **logs})


TIMINGS = ("runtime", "per_second")


def build(make: Callable[[Path], Any], folder: Path) -> tuple[Any, _Logged]:
    """The trainer with every seed set, and the callback that collects what it logs."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    trainer, logged = make(folder), _Logged()
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(logged)
    return trainer, logged


def train_alone(make: Callable[[Path], Any], folder: Path, resume: str | None = None) -> Trained:
    """Train without fttui."""
    trainer, logged = build(make, folder)
    trainer.train(resume_from_checkpoint=resume)
    return Trained(trainer, weights_of(trainer), logged.entries)


def weights_of(trainer: Any) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])


def play_watched(
    make: Callable[[Path], Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Script | None = None,
    resume: str | None = None,
    **options: Any,
) -> Trained:
    """Train under watch, with commands at chosen steps."""
    monkeypatch.setenv("FTTUI_RUNS", str(folder / "runs"))
    monkeypatch.setattr(script_run, "launch_hub", lambda run: None)
    writers: list[ControlWriter] = []

    def scripted(run: RunDirectory | None, writer: JournalWriter | None) -> ScriptedEventLog:
        control = ControlWriter(run) if run else None
        writers.extend([control] if control else [])
        return ScriptedEventLog(writer, control, script or Script(), 1)

    trainer, logged = build(make, folder)
    watch_trainer(trainer, WatchOptions(make_event_log=scripted, **options))
    try:
        trainer.train(resume_from_checkpoint=resume)
    finally:
        unwatch_trainer(trainer)
        for writer in writers:
            writer.close()
    (path,) = (folder / "runs").iterdir()
    run = RunDirectory(path)
    played = Played(run, SessionOutcome(RunState.FINISHED, None), read_records(run))
    return Trained(trainer, weights_of(trainer), logged.entries, played)


def both_ways(place: RankPlace, folder: Path) -> None:
    """Train on a rank without fttui, then watched with rollbacks, and keep what came of it."""
    os.environ["FTTUI_RUNS"] = str(folder / "runs")
    setattr(script_run, "launch_hub", lambda run: None)  # noqa: B010 -- it is imported there
    script = Script({3: ["checkpoint"], 6: ["rollback last"], 9: ["rollback 0"]})

    def scripted(run: RunDirectory | None, writer: JournalWriter | None) -> ScriptedEventLog:
        return ScriptedEventLog(writer, ControlWriter(run) if run else None, script, 1)

    found = []
    for watched in (False, True):
        trainer, logged = build(in_four_epochs, folder / f"{watched}-{place.rank}")
        if watched:
            watch_trainer(trainer, WatchOptions(make_event_log=scripted))
        trainer.train()
        last = {entry["step"]: entry for entry in logged.entries}
        found.append((weights_of(trainer), last))
    torch.save(found, folder / f"rank-{place.rank}.pt")


def in_four_epochs(folder: Path) -> Any:
    return plain(folder, num_train_epochs=4, ddp_backend="gloo")
