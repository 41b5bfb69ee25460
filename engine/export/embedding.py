"""What sentence-transformers needs to embed as the engine does: pooling, instruction, final EOS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers.processors import Sequence as ProcessorSequence
from tokenizers.processors import TemplateProcessing

from ..config.schema import RunConfig

_MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
_POOLING = {"mean": "mean_tokens", "last": "lasttoken", "weighted_mean": "weightedmean_tokens"}


def write_embedding_files(folder: Path, config: RunConfig, hidden_size: int) -> None:
    """Write `modules.json` and what it names; every release of sentence-transformers reads them."""
    contrastive = config.contrastive
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, (path, kind) in enumerate(_MODULES)
    ]
    pooling = {
        "word_embedding_dimension": hidden_size,
        "pooling_mode_cls_token": False,
        "pooling_mode_max_tokens": False,
        **{f"pooling_mode_{kind}": False for kind in _POOLING.values()},
        f"pooling_mode_{_POOLING[contrastive.pooling]}": True,
        "include_prompt": not contrastive.exclude_prompt,
    }
    prompts = {"query": contrastive.instruction, "document": ""}
    _write(folder / "modules.json", modules)
    _write(folder / "1_Pooling" / "config.json", pooling)
    (folder / "2_Normalize").mkdir()
    _write(
        folder / "sentence_bert_config.json",
        {"max_seq_length": config.data.max_length, "do_lower_case": False},
    )
    _write(
        folder / "config_sentence_transformers.json",
        {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )


def end_with_eos(tokenizer: Any, max_length: int) -> None:
    """Let the tokenizer close every text with EOS, after cutting, as texts were trained on."""
    tokenizer.model_max_length = max_length
    if tokenizer("a")["input_ids"][-1] == tokenizer.eos_token_id:
        return
    eos, backend = tokenizer.eos_token, tokenizer.backend_tokenizer
    ending = TemplateProcessing(
        single=f"$A {eos}",
        pair=f"$A $B:1 {eos}:1",
        special_tokens=[(eos, tokenizer.eos_token_id)],
    )
    before = backend.post_processor
    backend.post_processor = ending if before is None else ProcessorSequence([before, ending])


def embedding_notes(tokenizer: Any, config: RunConfig) -> list[str]:
    """Where sentence-transformers pools other tokens than the engine did."""
    contrastive = config.contrastive
    if not (contrastive.instruction and contrastive.exclude_prompt):
        return []
    notes = []
    alone = len(tokenizer(contrastive.instruction, add_special_tokens=False)["input_ids"])
    joined = tokenizer(
        f"{contrastive.instruction}a", add_special_tokens=False, return_offsets_mapping=True
    )["offset_mapping"]
    inside = sum(end <= len(contrastive.instruction) for _, end in joined)
    if alone != inside and contrastive.pooling != "last":
        notes.append(
            "The end of the instruction becomes one token with the word behind it. That token was "
            "pooled in training; sentence-transformers leaves it out, so embeddings of queries "
            "differ a little from those of the run."
        )
    if contrastive.pooling == "weighted_mean":
        notes.append(
            "Weights of the pooling began with 1 behind the instruction in training; "
            "sentence-transformers counts the instruction's tokens too, so embeddings of queries "
            "differ a little from those of the run."
        )
    return notes


def _write(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
