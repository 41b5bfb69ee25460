"""Writes the files and tokenizer settings with which sentence-transformers embeds like the engine.

They define the pooling, the instruction of queries and the final EOS token. Notes for the model
card say where sentence-transformers still differs.
"""

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
    """Write `modules.json` and its modules, in a form all sentence-transformers versions read."""
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
    prompts = {"query": contrastive.instruction, "document": contrastive.passage_instruction}
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
    """Make the tokenizer cut texts to `max_length` tokens that end with EOS, as in training.

    A slow tokenizer gets the length only; `embedding_notes` asks users to append EOS themselves.
    """
    tokenizer.model_max_length = max_length
    if _ends_with_eos(tokenizer) or not tokenizer.is_fast:
        return
    eos, backend = tokenizer.eos_token, tokenizer.backend_tokenizer
    ending = TemplateProcessing(
        single=f"$A {eos}",
        pair=f"$A $B:1 {eos}:1",
        special_tokens=[(eos, tokenizer.eos_token_id)],
    )
    before = backend.post_processor
    backend.post_processor = ending if before is None else ProcessorSequence([before, ending])


def _ends_with_eos(tokenizer: Any) -> bool:
    return bool(tokenizer("a")["input_ids"][-1] == tokenizer.eos_token_id)


def embedding_notes(tokenizer: Any, config: RunConfig) -> list[str]:
    """Return notes for the model card on how embeddings would differ from those in training."""
    contrastive = config.contrastive
    notes = []
    if lengths := ", ".join(map(str, sorted(contrastive.dimensions))):
        notes.append(
            f"Vectors were also trained to be cut to their first {lengths} numbers: "
            f'`SentenceTransformer("FOLDER", truncate_dim={min(contrastive.dimensions)})`; compare '
            "them by cosine."
        )
    if not (tokenizer.is_fast or _ends_with_eos(tokenizer)):
        notes.append(
            f"In training every text ended with {tokenizer.eos_token}. The tokenizer is a slow one "
            "that does not append it by itself, so append it to the texts to embed."
        )
    given = [one for one in (contrastive.instruction, contrastive.passage_instruction) if one]
    if not (given and contrastive.exclude_prompt and tokenizer.is_fast):
        return notes
    merges = any(_merges_with_text(tokenizer, instruction) for instruction in given)
    if merges and contrastive.pooling != "last":
        notes.append(
            "The end of the instruction and the first word after it are one token. "
            "That token was pooled in training but sentence-transformers excludes it, so "
            "embeddings of texts with it differ slightly from those of the run."
        )
    if contrastive.pooling == "weighted_mean":
        notes.append(
            "The weights of the pooling started with 1 after the instruction in training; "
            "sentence-transformers counts the tokens of the instruction too, so embeddings of "
            "texts with it differ slightly from those of the run."
        )
    return notes


def _merges_with_text(tokenizer: Any, instruction: str) -> bool:
    """Return whether the end of an instruction and the first word after it can be one token."""
    alone = len(tokenizer(instruction, add_special_tokens=False)["input_ids"])
    joined = tokenizer(f"{instruction}a", add_special_tokens=False, return_offsets_mapping=True)[
        "offset_mapping"
    ]
    return bool(alone != sum(end <= len(instruction) for _, end in joined))


def _write(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
