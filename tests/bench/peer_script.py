"""Trainings with a peer, as its users write them; prints a row of figures as JSON for each.

    python peer_script.py PEER CASES-AS-JSON FOLDER

`peers.py` starts it with the interpreter and the packages of the peer, so it imports nothing of
fttui. PEER is `trl`, `liger` (TRL with the kernels of Liger) or `unsloth`; with a `+` at its end no
layer is recomputed.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

RANK, ALPHA = 16, 32
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main(peer: str, cases: list[dict[str, Any]], folder: Path) -> None:
    """Train each case and print its row; a case that fails does not end the others."""
    for case in cases:
        try:
            row = row_of(peer, case, folder)
        except Exception as error:  # noqa: BLE001  # whatever a peer raises is its result
            row = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"}
        print("ROW " + json.dumps(row), flush=True)
        torch._dynamo.reset()  # a case does not inherit the compiled shapes of another
        gc.collect()
        torch.cuda.empty_cache()


def row_of(peer: str, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train a case and return its figures."""
    recomputes, name = not peer.endswith("+"), peer.removesuffix("+")
    given = unsloth(case, folder, recomputes) if name == "unsloth" else stock(case, folder)
    trainer = trainer_of(case, folder, given, recomputes=recomputes, liger=name == "liger")
    clock = clock_of(trainer)
    torch.cuda.reset_peak_memory_stats()
    trainer.train()
    took = [after - before for before, after in pairwise(clock.ends)][case["warm"] :]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "step_s": statistics.median(took),
        "slowest_s": max(took),
        "reserved": torch.cuda.max_memory_reserved(),
        "losses": [float(loss) for loss in losses[:3]],
        "version": version(name if name == "unsloth" else "trl"),
    }


def unsloth(case: dict[str, Any], folder: Path, recomputes: bool) -> dict[str, Any]:
    """Return model and tokenizer of Unsloth, with its adapter."""
    from unsloth import FastLanguageModel

    model, tokenizer = FastLanguageModel.from_pretrained(
        str(folder / case["shape"]),
        max_seq_length=case["length"],
        load_in_4bit=True,
        dtype=torch.bfloat16,
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=RANK,
        lora_alpha=ALPHA,
        lora_dropout=0,
        target_modules=LINEARS,
        use_gradient_checkpointing="unsloth" if recomputes else False,
    )
    return {"model": model, "processing_class": tokenizer}


def stock(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a model quantized by bitsandbytes, and the adapter to train."""
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    path = folder / case["shape"]
    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.bfloat16, device_map={"": 0}, quantization_config=nf4
    )
    adapter = LoraConfig(
        r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=LINEARS, task_type="CAUSAL_LM"
    )
    tokenizer = AutoTokenizer.from_pretrained(path)
    return {"model": model, "processing_class": tokenizer, "peft_config": adapter}


def trainer_of(
    case: dict[str, Any], folder: Path, given: dict[str, Any], *, recomputes: bool, liger: bool
) -> Any:
    """Build the trainer of TRL for the task of the case."""
    import trl
    from datasets import load_dataset

    preference = case["task"] == "dpo"
    kind = trl.DPOTrainer if preference else trl.SFTTrainer
    settings = trl.DPOConfig if preference else trl.SFTConfig
    own = {"use_liger_kernel": True} if liger else {}
    if case["task"] == "packed":
        own["packing"] = True
    args = settings(
        output_dir=str(folder / "out"),
        max_length=case["length"],
        per_device_train_batch_size=case["batch"],
        gradient_accumulation_steps=case["accumulate"],
        max_steps=case["steps"],
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        bf16=True,
        gradient_checkpointing=recomputes,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **own,
    )
    rows = load_dataset("json", data_files=case["data"], split="train")
    return kind(args=args, train_dataset=rows, **given)


def clock_of(trainer: Any) -> Any:
    """Let a callback note when each step has ended on the device."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            self.ends.append(time.perf_counter())

    clock = Clock()
    trainer.add_callback(clock)
    return clock


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))
