"""Local stand-ins for the models and the data that configurations of other tools name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from fttui.engine.run.identity.model_content import configured_template

LENGTH = 256
"""Tokens per sequence; one token is one byte, so that the long records are cut."""

_MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "[INST] {{ message['content'] }} [/INST]{% elif message['role'] == 'assistant' %}"
    " {{ message['content'] }}{{ eos_token }}{% else %}{{ message['content'] }}\n\n{% endif %}"
    "{% endfor %}"
)
_FAMILIES: dict[str, tuple[str, str, str]] = {
    "llama3": ("<|begin_of_text|>", "<|eot_id|>", "llama3"),
    "qwen3": ("", "<|im_end|>", "qwen3"),
    "qwen2_5": ("", "<|im_end|>", "qwen2_5"),
    "mistral": ("<s>", "</s>", _MISTRAL),
    "gemma": ("<bos>", "<eos>", "gemma"),
    "gemma3": ("<bos>", "<eos>", "gemma3"),
    "phi3": ("<s>", "<|end|>", "phi3"),
    "deepseekv3": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "deepseekv3"),
}
"""Beginning, end and chat template, by name in TRL's collection or as text, of a model family."""
_MARK_NAMES = (
    "<|im_start|> <|im_end|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|begin_of_text|> "
    "<|end_of_text|> <start_of_turn> <end_of_turn> <bos> <eos> <s> </s> <unk> <|user|> "
    "<|assistant|> <|system|> <|end|> <|endoftext|> [INST] [/INST] <think> </think> <pad> "
    "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜>"
)
_MARKS = tuple(_MARK_NAMES.split())
_WORDS = (
    ("gemma-3", "gemma3"), ("gemma-4", "gemma3"), ("gemma3", "gemma3"), ("gemma", "gemma"),
    ("qwen3", "qwen3"), ("qwen", "qwen2_5"), ("deepseek", "deepseekv3"), ("phi", "phi3"),
    ("llama-2", "mistral"), ("codellama", "mistral"), ("open_llama", "mistral"),
    ("tinyllama", "mistral"), ("llama", "llama3"), ("mi", "mistral"),
)  # fmt: skip
"""A part of the id of a model, and its family; other models are like Qwen 2.5."""


def family_of(model: str) -> str:
    """Return the family of a model by its id."""
    return next((family for word, family in _WORDS if word in model.lower()), "qwen2_5")


@cache
def model_folder(family: str, root: Path) -> Path:
    """Write a folder with the byte tokenizer and the configuration of a tiny model of a family."""
    start, end, template = _FAMILIES[family]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({one: index for index, one in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in _MARKS])
    if start:
        known = [(start, backend.token_to_id(start))]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A $B", special_tokens=known
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=end, pad_token="<pad>", bos_token=start or None
    )
    tokenizer.chat_template = configured_template(template)
    folder = root / family
    tokenizer.save_pretrained(folder)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8,
              "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
              "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


_LONG = "many words " * 40
_CHATS = (
    (("user", "Hello."), ("assistant", "Hello, how are you?")),
    (("system", "Be short."), ("user", "Name a colour."), ("assistant", "Blue.")),
    (("user", "One?"), ("assistant", "Two."), ("user", "Three?"), ("assistant", "Four.")),
    (("user", " spaces and lines \n"), ("assistant", "  kept\nor not \n")),
    (("user", "Größe, 大きさ, 🎈?"), ("assistant", "Fünf ≈ 5.")),
    (("user", "Write much."), ("assistant", _LONG)),
    (("user", _LONG), ("assistant", "Too long to read.")),
)
_TASKS = (
    ("Add the numbers.", "1, 2", "3"),
    ("Name a colour.", "", "Blue."),
    (" Repeat. ", " a \n", "  a\n"),
    ("Größe?", "大きさ 🎈", "≈ 5"),
    ("Write much.", "", _LONG),
    (_LONG, "", "Too long to read."),
)
_TEXTS = ("A text.", "Another one,\nwith two lines.\n", " Größe 大きさ 🎈", _LONG)


def chats(column: str, role: str, content: str, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return conversations with these names of columns, keys and roles."""
    return [
        {column: [{role: names.get(who, who), content: text} for who, text in chat]}
        for chat in _CHATS
    ]


def instructions(instruction: str, given: str, output: str, system: str) -> list[dict[str, Any]]:
    """Return tasks with an input and an answer, with these names of columns."""
    return [
        {instruction: what, given: data, output: answer, system: "Be short."}
        for what, data, answer in _TASKS
    ]


def texts(column: str) -> list[dict[str, Any]]:
    """Return plain texts."""
    return [{column: text} for text in _TEXTS]


def preferences(columns: tuple[str, str, str], *, turns: bool) -> Iterator[dict[str, Any]]:
    """Yield questions with a better and a worse answer, as texts or as lists of turns."""
    question, good, bad = columns
    for what, data, answer in _TASKS[:4]:
        asked: Any = f"{what} {data}"
        chosen: Any = answer
        rejected: Any = "I do not know."
        if turns:
            asked = [{"role": "user", "content": asked}]
            chosen = [{"role": "assistant", "content": chosen}]
            rejected = [{"role": "assistant", "content": rejected}]
        yield {question: asked, good: chosen, bad: rejected}
