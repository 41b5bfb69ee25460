"""CPU time to load tokenized data with and without the cache: `python -m tests.bench.data_cache`.

The time of all threads counts, so that other work on the machine changes the figures little.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import msgspec

from fttui.engine.config.schema import RunConfig
from fttui.engine.data.cache.token_cache import TokenCache
from fttui.engine.data.dataset import load_examples
from tests.support.tokenizer import tiny_tokenizer

RECORDS = 20_000


def write(file: Path) -> None:
    """Conversations of two turns and about 600 tokens each."""
    with file.open("w") as out:
        for number in range(RECORDS):
            turns = [
                {"role": "user", "content": f"question {number} " + 20 * "word "},
                {"role": "assistant", "content": f"answer {number} " + 40 * "other word "},
            ]
            out.write(json.dumps({"messages": turns}) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "d.jsonl")
        plain = {"model": {"id": "m"}, "train": {"steps": 1}}
        data = {"train": str(folder / "d.jsonl")}
        config = msgspec.convert({**plain, "data": data}, RunConfig)
        tokenizer, seconds = tiny_tokenizer(), []
        for _ in range(2):
            started = time.process_time()
            cache = TokenCache(folder / "cache")
            sets = load_examples(config, tokenizer, lambda label, done, total: None, cache=cache)
            seconds.append(time.process_time() - started)
        size = sum(file.stat().st_size for file in (folder / "cache").iterdir())
        tokens = sum(example.length for example in sets.train)
        print(
            f"{len(sets.train):,} records, {tokens:,} tokens, {size / 2**20:.0f} MiB in the cache"
        )
        print(f"CPU time: tokenized {seconds[0]:.1f} s, from cache {seconds[1]:.2f} s")
        print(f"ratio {seconds[0] / seconds[1]:.1f}")


if __name__ == "__main__":
    main()
