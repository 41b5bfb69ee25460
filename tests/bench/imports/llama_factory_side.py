"""What LLaMA-Factory learns from records: `python llama_factory_side.py CASES RESULTS`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from llamafactory.data import get_template_and_fix_tokenizer
from llamafactory.data.loader import _get_merged_dataset, _get_preprocessed_dataset
from llamafactory.hparams import DataArguments, ModelArguments
from transformers import AutoTokenizer, Seq2SeqTrainingArguments

_DATA_KEYS = ("template", "cutoff_len", "mask_history", "train_on_prompt", "enable_thinking",
              "default_system", "tool_format")  # fmt: skip


def learned(case: dict[str, Any], folder: Path) -> list[list[Any]]:
    """Return for each source what each of its records becomes; None for one that is left out."""
    given = case["given"]
    stage = {"dpo": "rm"}.get(given.get("stage", "sft"), given.get("stage", "sft"))
    tokenizer = AutoTokenizer.from_pretrained(given["model_name_or_path"])
    model = ModelArguments(model_name_or_path=given["model_name_or_path"])
    training = Seq2SeqTrainingArguments(output_dir=str(folder), report_to="none", use_cpu=True)
    found = []
    for name, rows in zip(case["datasets"], case["sources"], strict=True):
        results = []
        for row in rows:
            (folder / "one.json").write_text(json.dumps([row]))
            entry = {**case["table"][name], "file_name": "one.json"}
            (folder / "dataset_info.json").write_text(json.dumps({"one": entry}))
            keys = {key: given[key] for key in _DATA_KEYS if given.get(key) is not None}
            data = DataArguments(
                dataset="one", dataset_dir=str(folder), overwrite_cache=True, **keys
            )
            template = get_template_and_fix_tokenizer(tokenizer, data)
            merged = _get_merged_dataset(["one"], model, data, training, stage)
            made = _get_preprocessed_dataset(
                merged, data, training, stage, template, tokenizer, None, is_eval=False
            )
            results.append(_plain(made))
        found.append(results)
    return found


def _plain(made: Any) -> Any:
    rows = list(made)
    if not rows:
        return None
    row = rows[0]
    if "chosen_input_ids" in row:
        return {
            name: [row[f"{name}_input_ids"], row[f"{name}_labels"]]
            for name in ("chosen", "rejected")
        }
    if "kto_tags" in row:
        return {"completion": [row["input_ids"], row["labels"]]}
    return [[one["input_ids"], one.get("labels") or one["input_ids"]] for one in rows]


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    results: dict[str, Any] = {}
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                results[case["name"]] = {"learned": learned(case, Path(folder))}
            except Exception as error:  # noqa: BLE001  # what the tool itself refuses is a result
                results[case["name"]] = {"error": f"{type(error).__name__}: {error}"[:300]}
    Path(sys.argv[2]).write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    main()
