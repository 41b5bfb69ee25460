"""A training script as users write it, for one kind of trainer; the launcher decides on its ranks.

    python -m tests.bench.launched_script KIND FOLDER [--steps N] [--pause-s S] [--cpu]

Rank 0 prints the steps that were done and a digest of the trained weights. `launched.py` starts it
with and without fttui.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TEXTS, WORDS, LENGTH = 600, 24, 64
_RATE = 1e-3
_DEEPSPEED = {
    "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}


def arguments(folder: Path, options: argparse.Namespace, **changed: Any) -> dict[str, Any]:
    """The arguments that every trainer takes."""
    given = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": options.steps,
        "learning_rate": _RATE,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 7,
        "bf16": not options.cpu,
        "use_cpu": options.cpu,
    }
    return given | changed


def texts() -> list[str]:
    """Texts of drawn words, the same on every rank."""
    from random import Random

    draw = Random(3)
    return [" ".join(f"w{draw.randrange(60)}" for _ in range(WORDS)) for _ in range(TEXTS)]


def plain(folder: Path, options: argparse.Namespace, **changed: Any) -> Any:
    """A stock `Trainer` of all weights."""
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    model = AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="eager")
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(4, 64, (TEXTS, LENGTH), generator=generator)
    rows = [{"input_ids": row, "labels": row} for row in ids]
    args = TrainingArguments(**arguments(folder, options, **changed))
    return Trainer(model=model, args=args, train_dataset=rows)


def deepspeed(folder: Path, options: argparse.Namespace, stage: int) -> Any:
    """A stock `Trainer` on the engine of DeepSpeed."""
    config = {**_DEEPSPEED, "zero_optimization": {"stage": stage}}
    return plain(folder, options, deepspeed=config)


def fsdp(folder: Path, options: argparse.Namespace) -> Any:
    """A stock `Trainer` that shards by FSDP."""
    return plain(folder, options, fsdp="full_shard auto_wrap")


def sft(folder: Path, options: argparse.Namespace) -> Any:
    """An SFT trainer of TRL with a LoRA adapter."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    given = arguments(folder, options, max_length=LENGTH)
    given["model_init_kwargs"] = {"attn_implementation": "eager"}
    return SFTTrainer(
        model=str(folder / "model"),
        args=SFTConfig(**given),
        train_dataset=Dataset.from_dict({"text": texts()}),
        peft_config=LoraConfig(r=4, lora_dropout=0.1, target_modules="all-linear"),
    )


def dpo(folder: Path, options: argparse.Namespace) -> Any:
    """A DPO trainer of TRL with a LoRA adapter."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import DPOConfig, DPOTrainer

    lines = texts()
    rows = {"prompt": lines, "chosen": lines[::-1], "rejected": lines[1:] + lines[:1]}
    given = arguments(folder, options)
    given["model_init_kwargs"] = {"attn_implementation": "eager"}
    return DPOTrainer(
        model=str(folder / "model"),
        args=DPOConfig(**given),
        train_dataset=Dataset.from_dict(rows),
        peft_config=LoraConfig(r=4, lora_dropout=0.1, target_modules="all-linear"),
    )


def unsloth(folder: Path, options: argparse.Namespace) -> Any:
    """An SFT trainer of TRL on a model of Unsloth, as in its notebooks."""
    from unsloth import FastLanguageModel  # isort: skip  # before trl, which it patches
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = FastLanguageModel.from_pretrained(
        str(folder / "model"), max_seq_length=LENGTH, load_in_4bit=True, dtype=torch.bfloat16
    )
    model = FastLanguageModel.get_peft_model(
        model, r=8, lora_alpha=16, lora_dropout=0, use_gradient_checkpointing="unsloth"
    )
    return SFTTrainer(
        model=model,
        processing_class=tokenizer,
        args=SFTConfig(**arguments(folder, options, max_length=LENGTH, dataset_text_field="text")),
        train_dataset=Dataset.from_dict({"text": texts()}),
    )


KINDS: dict[str, Callable[[Path, argparse.Namespace], Any]] = {
    "plain": plain,
    "sft": sft,
    "dpo": dpo,
    "zero1": lambda folder, options: deepspeed(folder, options, 1),
    "zero2": lambda folder, options: deepspeed(folder, options, 2),
    "zero3": lambda folder, options: deepspeed(folder, options, 3),
    "fsdp": fsdp,
    "unsloth": unsloth,
}


def digest(trainer: Any) -> str:
    """Return a digest of the weights of this rank that are trained."""
    found = hashlib.sha256()
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            found.update(own.detach().float().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause-s", type=float, default=0.0, help="wait after each step")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True, warn_only=True)
    trainer = KINDS[options.kind](options.folder, options)
    from transformers import TrainerCallback

    class Waits(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
        def on_step_end(self, *_: Any, **__: Any) -> None:
            time.sleep(options.pause_s)

    trainer.add_callback(Waits())
    trainer.train()
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"DONE {trainer.state.global_step} {digest(trainer)}", flush=True)


if __name__ == "__main__":
    main()
