"""Tokenized data are kept by content: an equal run loads them, any difference makes them anew."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.config.schema import RunConfig
from fttui.engine.data.cache import token_cache as caching
from fttui.engine.data.cache.cache_key import cache_key, code_files
from fttui.engine.data.cache.token_cache import TokenCache
from fttui.engine.data.dataset import ExampleSets, load_examples
from fttui.engine.data.tokenized import TokenizedData
from fttui.engine.run.identity.hash_cache import HashCache
from tests.support.tokenizer import CHATML, tiny_tokenizer

TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
PAIR = {"anchor": "a", "positive": "b", "negatives": ["c", "d"], "label": 1}
SIDES = {"prompt": "p", "chosen": "good", "rejected": "bad"}
RATED = {"prompt": "p", "completion": "c", "label": True}
FROM_CACHE = {"tokenized data": "from cache"}


def configured(
    folder: Path, rows: list[dict[str, Any]], task: str = "sft", **data: Any
) -> RunConfig:
    file = folder / "d.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = {"model": {"id": "m"}, "task": task, "train": {"steps": 1, "batch": 2}}
    if task == "contrastive":
        plain["contrastive"] = {"kind": "infonce", "hard_negatives": 2}
    given = {"train": str(file), "eval_fraction": 0.2, "accept": ["all"], **data}
    return msgspec.convert({**plain, "data": given}, RunConfig)


def loaded(config: RunConfig, folder: Path, tokenizer: Any = None) -> ExampleSets:
    found = tokenizer or tiny_tokenizer()
    cache = TokenCache(folder / "cache")
    return load_examples(config, found, lambda label, done, total: None, cache=cache)


@pytest.mark.parametrize(
    ("task", "row", "options"),
    [
        ("sft", {"messages": TURNS}, {}),
        ("sft", {"text": 40 * "long "}, {"max_length": 32}),
        ("sft", {"text": "short"}, {"packing": True, "max_length": 64}),
        ("contrastive", PAIR, {}),
        ("dpo", SIDES, {}),
        ("kto", RATED, {}),
        ("kto", SIDES, {}),
    ],
)
def test_what_is_loaded_equals_what_was_made(
    tmp_path: Path, task: str, row: dict[str, Any], options: dict[str, Any]
) -> None:
    other = row | {"label": False} if row.get("label") is True else row
    config = configured(tmp_path, 5 * [row, other], task, **options)
    made, kept = loaded(config, tmp_path), loaded(config, tmp_path)
    assert "tokenized data" not in made.facts
    assert kept.facts == made.facts | FROM_CACHE
    assert (kept.train, kept.eval, kept.mix) == (made.train, made.eval, made.mix)
    assert list(kept.findings) == list(made.findings)
    assert kept.findings.total("records") == made.findings.total("records")
    assert (kept.sources, kept.sample) == (made.sources, made.sample)


def changed_file(folder: Path) -> None:
    file = folder / "d.jsonl"
    file.write_text(file.read_text().replace("some", "same"))


def changed_tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["some"])
    return tokenizer


ROWS = [{"text": f"some {n}"} for n in range(10)]


@pytest.mark.parametrize(
    ("change", "options", "tokenizer", "hit"),
    [
        (lambda folder: None, {}, tiny_tokenizer, True),
        (lambda folder: None, {"accept": ["cut"]}, tiny_tokenizer, True),
        (lambda folder: os.utime(folder / "d.jsonl", (1, 1)), {}, tiny_tokenizer, True),
        (changed_file, {}, tiny_tokenizer, False),
        (lambda folder: None, {"max_length": 99}, tiny_tokenizer, False),
        (lambda folder: None, {"eval_fraction": 0.3}, tiny_tokenizer, False),
        (lambda folder: None, {}, changed_tokenizer, False),
        (lambda folder: None, {}, lambda: tiny_tokenizer(CHATML + " "), False),
    ],
)
def test_any_difference_makes_the_data_anew(
    tmp_path: Path,
    change: Callable[[Path], None],
    options: dict[str, Any],
    tokenizer: Callable[[], Any],
    hit: bool,
) -> None:
    loaded(configured(tmp_path, ROWS), tmp_path)
    config = configured(tmp_path, ROWS, **options)
    change(tmp_path)
    found = loaded(config, tmp_path, tokenizer())
    assert (FROM_CACHE.items() <= found.facts.items()) is hit


def entry(folder: Path) -> Path:
    [found] = (folder / "cache").iterdir()
    return found


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: b"\0" * len(data),
        lambda data: data + data,
    ],
)
def test_a_damaged_entry_is_made_anew(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    config = configured(tmp_path, ROWS)
    made = loaded(config, tmp_path)
    path = entry(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    again = loaded(config, tmp_path)
    assert again.facts == made.facts
    assert again.train == made.train
    assert loaded(config, tmp_path).facts == made.facts | FROM_CACHE


def test_an_entry_under_another_name_is_not_used(tmp_path: Path) -> None:
    config = configured(tmp_path, ROWS)
    loaded(config, tmp_path)
    path = entry(tmp_path)
    path.rename(path.with_stem("0" * 64))
    assert TokenCache(tmp_path / "cache").load("0" * 64) is None


def test_the_oldest_entries_are_removed(tmp_path: Path) -> None:
    made = TokenizedData([], [], loaded(configured(tmp_path, ROWS), tmp_path).findings, [], [])
    folder = tmp_path / "small"
    probe = TokenCache(folder)
    probe.store("a", made)
    size = (folder / "a.tokens").stat().st_size
    small = TokenCache(folder, 2 * size + size // 2)
    for age, key in enumerate("ab"):
        small.store(key, made)
        os.utime(folder / f"{key}.tokens", (age + 1, age + 1))
    small.load("a")
    small.store("d", made)
    assert {path.stem for path in folder.iterdir()} == {"a", "d"}
    TokenCache(folder, size - 1).store("e", made)
    assert {path.stem for path in folder.iterdir()} == {"a", "d"}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert loaded(configured(tmp_path, ROWS), tmp_path).train


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path, ROWS)
    keys = iter(["before", "after"])
    monkeypatch.setattr(caching, "cache_key", lambda *given: next(keys))
    loaded(config, tmp_path)
    assert not (tmp_path / "cache").exists()


def test_a_template_with_the_date_is_good_for_a_day(tmp_path: Path) -> None:
    config, hashes = configured(tmp_path, ROWS), HashCache(tmp_path / "hashes")
    days = date(2026, 1, 1), date(2026, 1, 2)
    dated = tiny_tokenizer("{{ strftime_now('%d') }}" + CHATML)
    first, second = (cache_key(config, dated, hashes, day) for day in days)
    assert first != second
    plain = {cache_key(config, tiny_tokenizer(), hashes, day) for day in days}
    assert len(plain) == 1


def test_what_has_no_content_hash_has_no_key(tmp_path: Path) -> None:
    config, hashes = configured(tmp_path, ROWS), HashCache(tmp_path / "hashes")
    assert cache_key(config, tiny_tokenizer(), hashes)

    class Own(type(tiny_tokenizer())):  # type: ignore[misc]  # a tokenizer with code of its own
        pass

    own = tiny_tokenizer()
    own.__class__ = Own
    assert cache_key(config, own, hashes) is None
    hub = msgspec.structs.replace(config.data, train="owner/name")
    assert cache_key(msgspec.structs.replace(config, data=hub), tiny_tokenizer(), hashes) is None


def test_the_key_depends_on_the_code_of_every_module_that_reads_or_tokenizes() -> None:
    prefix = caching.__name__.removesuffix(".cache.token_cache")
    loaded_modules = [module for name, module in sys.modules.items() if name.startswith(prefix)]
    files = {Path(module.__file__ or "").resolve() for module in loaded_modules}
    assert len(files) > 20
    assert files <= {file.resolve() for file in code_files()}
