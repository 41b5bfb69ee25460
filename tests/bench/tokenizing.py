"""Conversations per second of our tokenization, against plain rendering and tokenizing.

    python -m tests.bench.tokenizing [--records N] [--profile]

The plain way calls `apply_chat_template` for each conversation and the tokenizer for each chunk. It
finds no targets. Both run in turn on the same conversations; the best of three rounds counts. The
tokenizer is a byte-level BPE that is trained here on sources of Python's standard library.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import sysconfig
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import MessagesRecord
from fttui.engine.data.tokens.tokenize import CHUNK, TokenizeOptions, tokenize_records
from tests.support.tokenizer import CHATML

VOCABULARY = 8_000
SOURCES = 60
"""Files of the standard library that the tokenizer is trained on."""
WORDS = (10, 60)
"""Words of a message, at least and at most."""
ROUNDS = 3
MESSAGES = (1, 2, 8)
TEMPLATES = ("chatml", "llama3", "qwen3", "qwen3_training", "gptoss")
"""Names in TRL's collection, besides the plain ChatML of the tests."""
MARKS = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
         "<|begin_of_text|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|start|>",
         "<|message|>", "<|channel|>", "<|end|>", "<|return|>")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1024)
    parser.add_argument("--profile", action="store_true", help="where the time goes, per template")
    options = parser.parse_args()
    texts = list(_sources())
    tokenizer = _trained(texts)
    words = " ".join(texts).split()
    print(f"{'template':16} messages  ours /s  plain /s  ratio")
    for name in TEMPLATES:
        tokenizer.chat_template = _template(name)
        for count in MESSAGES:
            records = list(_records(options.records, count, words))
            _row(name, count, records, tokenizer)
        if options.profile:
            _profile(lambda: _ours(records, tokenizer))  # noqa: B023 -- called at once


def _row(name: str, count: int, records: list[MessagesRecord], tokenizer: Any) -> None:
    ways: tuple[Callable[[list[MessagesRecord], Any], int], ...] = (_ours, _plain)
    best = [float("inf"), float("inf")]
    tokens = [0, 0]
    for _ in range(ROUNDS):
        for number, way in enumerate(ways):
            started = time.perf_counter()
            tokens[number] = way(records, tokenizer)
            best[number] = min(best[number], time.perf_counter() - started)
    assert tokens[0] == tokens[1], "both ways give the same tokens"
    ours, plain = (len(records) / seconds for seconds in best)
    print(f"{name:16} {count:8} {ours:8,.0f} {plain:9,.0f} {best[0] / best[1]:6.2f}")


def _ours(records: list[MessagesRecord], tokenizer: Any) -> int:
    options = TokenizeOptions(max_length=100_000)
    made = tokenize_records(records, tokenizer, options, Findings(), lambda done, total: None)
    assert len(made) == len(records)
    return sum(example.length for example in made)


def _plain(records: list[MessagesRecord], tokenizer: Any) -> int:
    count = 0
    for start in range(0, len(records), CHUNK):
        chunk = records[start : start + CHUNK]
        texts = [tokenizer.apply_chat_template(list(one.messages), tokenize=False) for one in chunk]
        encoded = tokenizer(texts, add_special_tokens=False)
        count += sum(map(len, encoded["input_ids"]))
    return count


def _records(count: int, messages: int, words: list[str]) -> Iterator[MessagesRecord]:
    rng = random.Random(messages)
    roles = ("user", "assistant") if messages > 1 else ("assistant",)
    for number in range(count):
        turns = []
        for turn in range(messages):
            start = rng.randrange(len(words) - WORDS[1])
            text = " ".join(words[start : start + rng.randint(*WORDS)])
            turns.append({"role": roles[turn % len(roles)], "content": text})
        yield MessagesRecord(str(number), tuple(turns), place=f"bench.jsonl:{number + 1}")


def _sources() -> Iterator[str]:
    folder = Path(sysconfig.get_path("stdlib"))
    for file in sorted(folder.glob("*.py"))[:SOURCES]:
        yield file.read_text(encoding="utf-8")


def _trained(texts: list[str]) -> Any:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|begin_of_text|>", eos_token="<|im_end|>"
    )


def _template(name: str) -> str:
    if name == "chatml":
        return CHATML
    spec = find_spec("trl")
    (folder,) = (spec.submodule_search_locations or []) if spec else []
    return (Path(folder) / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def _profile(call: Callable[[], Any]) -> None:
    profile = cProfile.Profile()
    profile.runcall(call)
    pstats.Stats(profile).sort_stats("cumulative").print_stats(28)


if __name__ == "__main__":
    main()
