"""What axolotl learns from records: `python axolotl_side.py CASES RESULTS`, in its environment."""

from __future__ import annotations

import json
import sys
from typing import Any

from axolotl.loaders.tokenizer import load_tokenizer
from axolotl.utils.data.rl import _load_split  # noqa: F401  # fails early if it has moved
from axolotl.utils.data.utils import handle_long_seq_in_dataset
from axolotl.utils.data.wrappers import get_dataset_wrapper
from axolotl.utils.dict import DictDefault
from datasets import Dataset


def learned(case: dict[str, Any]) -> list[list[Any]]:
    """Return for each source what each of its records becomes; None for one that is left out."""
    cfg = DictDefault(case["given"])
    cfg.tokenizer_config = cfg.base_model
    cfg.is_preprocess = True
    tokenizer = load_tokenizer(cfg)
    found = []
    for number, rows in enumerate(case["sources"]):
        own = cfg.datasets[number]
        found.append([_one(cfg, own, number, tokenizer, row) for row in rows])
    return found


def _one(cfg: Any, own: Any, number: int, tokenizer: Any, row: dict[str, Any]) -> Any:
    if cfg.rl:
        return _preference(cfg, number, tokenizer, row)
    kind = own.type
    base, style = None, None
    if isinstance(kind, str):
        base, _, style = kind.partition(":")
    data, _ = get_dataset_wrapper(
        dataset_config=own, tokenizer=tokenizer, cfg=cfg, dataset_base_type=base,
        dataset=Dataset.from_list([row]), dataset_prompt_style=style or None,
    )  # fmt: skip
    data = handle_long_seq_in_dataset(data, cfg.sequence_len, cfg)
    rows = [one for one in data if any(label != -100 for label in one["labels"])]
    return [[one["input_ids"], one["labels"]] for one in rows] or None


def _preference(cfg: Any, number: int, tokenizer: Any, row: dict[str, Any]) -> Any:
    """Return the texts of a preference; TRL adds the end of the sequence and makes tokens."""
    from axolotl.prompt_strategies.dpo import load as load_dpo
    from axolotl.prompt_strategies.kto import load as load_kto

    load = load_kto if cfg.rl == "kto" else load_dpo
    transform = load(cfg.datasets[number].type, cfg, dataset_idx=number)
    transform = transform[0] if isinstance(transform, tuple) else transform
    try:
        made = transform(dict(row), tokenizer=tokenizer)
    except TypeError:
        made = transform(dict(row))
    answers = ("completion",) if cfg.rl == "kto" else ("chosen", "rejected")
    return {name: [made["prompt"], made[name]] for name in answers}


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        cases = json.load(file)
    results: dict[str, Any] = {}
    for case in cases:
        try:
            results[case["name"]] = {"learned": learned(case)}
        except Exception as error:  # noqa: BLE001  # what the tool itself refuses is a result
            results[case["name"]] = {"error": f"{type(error).__name__}: {error}"[:300]}
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
