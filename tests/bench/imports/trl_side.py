"""What TRL's trainers learn from records: `python trl_side.py CASES RESULTS`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

_SFT_KEYS = ("max_length", "completion_only_loss", "assistant_only_loss", "dataset_text_field")


def learned(case: dict[str, Any], folder: str) -> list[list[Any]]:
    """Return for each source what each of its records becomes."""
    given = dict(case["given"])
    if given.get("max_seq_length"):
        given.setdefault("max_length", given["max_seq_length"])
    source = given["model_name_or_path"]
    tokenizer = AutoTokenizer.from_pretrained(source)
    if given.get("chat_template"):
        tokenizer.chat_template = given["chat_template"]
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    model.save_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source)  # a reference is loaded from there too
    return [
        [_one(case, given, model, tokenizer, row, folder) for row in rows]
        for rows in case["sources"]
    ]


def _one(
    case: dict[str, Any], given: dict[str, Any], model: Any, tokenizer: Any, row: Any, folder: str
) -> Any:
    data = Dataset.from_list([row])
    keys: dict[str, Any] = {"output_dir": folder, "report_to": "none", "use_cpu": True}
    if case["task"] == "dpo":
        keys |= {"max_length": given.get("max_length", 1024)}
        trainer: Any = DPOTrainer(
            model=model, args=DPOConfig(**keys), train_dataset=data, processing_class=tokenizer
        )
        batch = trainer.data_collator([trainer.train_dataset[0]])
        mask, ids = batch["completion_mask"].tolist(), batch["input_ids"].tolist()
        real = batch["attention_mask"].tolist()
        return {
            name: _masked(ids[place], mask[place], real[place])
            for place, name in enumerate(("chosen", "rejected"))
        }
    keys |= {key: given[key] for key in _SFT_KEYS if given.get(key) is not None}
    trainer = SFTTrainer(
        model=model, args=SFTConfig(**keys), train_dataset=data, processing_class=tokenizer
    )
    if not len(trainer.train_dataset):
        return None
    batch = trainer.data_collator([trainer.train_dataset[0]])
    return [[batch["input_ids"][0].tolist(), batch["labels"][0].tolist()]]


def _masked(ids: list[int], mask: list[int], real: list[int]) -> list[list[int]]:
    kept = [place for place, one in enumerate(real) if one]
    return [[ids[place] for place in kept], [ids[p] if mask[p] else -100 for p in kept]]


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    results: dict[str, Any] = {}
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                results[case["name"]] = {"learned": learned(case, folder)}
            except Exception as error:  # noqa: BLE001  # what the tool itself refuses is a result
                results[case["name"]] = {"error": f"{type(error).__name__}: {error}"[:300]}
    Path(sys.argv[2]).write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    main()
