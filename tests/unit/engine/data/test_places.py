"""What is found in tokenized examples names the file and line of the record, not its id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.config.model_limits import UNLIMITED, ModelLimits
from fttui.engine.config.schema import RunConfig
from fttui.engine.data.cache.token_cache import TokenCache
from fttui.engine.data.dataset import load_examples
from fttui.engine.data.screening.trainable import require_usable
from fttui.engine.data.streams import stream_batches
from fttui.engine.data.tokens.examples import TextExample
from fttui.engine.errors import DataError
from tests.support.tokenizer import tiny_tokenizer

SHORT, LONG = "b", 40 * "b"


def configured(folder: Path, rows: list[dict[str, Any]], task: str, **data: Any) -> RunConfig:
    """Write the rows, all with the same id, behind a line that cannot be read."""
    lines = ["{broken", *(json.dumps({"id": "same", **row}) for row in rows)]
    (folder / "d.jsonl").write_text("\n".join(lines) + "\n")
    plain: dict[str, Any] = {"model": {"id": "m"}, "task": task, "train": {"steps": 1, "batch": 2}}
    if task == "contrastive":
        plain["contrastive"] = {"kind": "infonce"}
    given = {"train": str(folder / "d.jsonl"), "eval_fraction": 0, "accept": ["all"]}
    return msgspec.convert({**plain, "data": {**given, **data}}, RunConfig)


def places(config: RunConfig, folder: Path, limits: ModelLimits = UNLIMITED) -> dict[str, str]:
    """Load the data and return the first place by reason."""
    cache = TokenCache(folder / "cache")
    sets = load_examples(
        config, tiny_tokenizer(), lambda label, done, total: None, cache=cache, limits=limits
    )
    return {one.reason.name: one.place for one in sets.findings}


def completed(texts: list[str]) -> list[dict[str, Any]]:
    return [{"prompt": f"{n}", "completion": text} for n, text in enumerate(texts)]


def compared(texts: list[str]) -> list[dict[str, Any]]:
    return [{"prompt": f"{n}", "chosen": text, "rejected": "c"} for n, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        ("sft", completed([SHORT, SHORT, LONG, LONG])),
        ("dpo", compared([SHORT, SHORT, LONG, LONG])),
        ("kto", compared([SHORT, SHORT, LONG, LONG])),
    ],
)
def test_a_finding_in_examples_names_file_and_line_also_from_the_cache(
    tmp_path: Path, task: str, rows: list[dict[str, Any]]
) -> None:
    config = configured(tmp_path, rows, task)
    limits = ModelLimits(positions=20)
    found = places(config, tmp_path, limits)
    assert found["beyond-positions"] == f"{tmp_path}/d.jsonl:4"
    assert places(config, tmp_path, limits) == found


def test_an_anchor_without_negatives_and_equal_targets_are_named_by_line(tmp_path: Path) -> None:
    # The second pair excludes both positives of the data: its own, and its anchor.
    pairs = [{"anchor": "x", "positive": "p"}, {"anchor": "q", "positive": "p"}]
    config = configured(tmp_path, [*pairs, {"anchor": "p", "positive": "q"}], "contrastive")
    assert places(config, tmp_path)["no-candidate"] == f"{tmp_path}/d.jsonl:3"
    config = configured(tmp_path, completed(4 * [SHORT]), "sft")
    assert places(config, tmp_path)["same-targets"] == f"{tmp_path}/d.jsonl:2"


@pytest.mark.parametrize(
    ("task", "rows", "limits"),
    [
        ("sft", completed([SHORT, LONG]), ModelLimits(positions=20, fixed=True)),
        ("dpo", compared([SHORT, LONG]), ModelLimits(positions=20, fixed=True)),
        ("contrastive", 2 * [{"anchor": "a", "positive": "b", "label": 1}], UNLIMITED),
        ("contrastive", [{"anchor": "a", "positive": "b", "score": n} for n in (1, 9)], UNLIMITED),
    ],
)
def test_a_refusal_names_file_and_line(
    tmp_path: Path, task: str, rows: list[dict[str, Any]], limits: ModelLimits
) -> None:
    config = configured(tmp_path, rows, task)
    with pytest.raises(DataError, match=r"first: \S+/d\.jsonl:[23]") as refused:
        places(config, tmp_path, limits)
    assert "same" not in str(refused.value).replace("have the same label", "")


def test_a_token_beyond_the_embedding_is_named_by_line(tmp_path: Path) -> None:
    config = configured(tmp_path, completed([SHORT]), "sft")
    example = TextExample("same", [1, 99], [1, 99], place="d.jsonl:7")
    with pytest.raises(DataError, match=r"ids up to 99 \(first: d\.jsonl:7\)"):
        require_usable(config, [example], ModelLimits(vocab_rows=9))


def test_streamed_data_are_refused_with_file_and_line(tmp_path: Path) -> None:
    rows = [{"anchor": "a", "positive": "b", "score": n} for n in (1, 9)]
    config = configured(tmp_path, rows, "contrastive", streaming=True)
    batches = stream_batches(config, tiny_tokenizer(), 0, 1)
    with pytest.raises(DataError, match=r"first: \S+/d\.jsonl:[23]"):
        batches.take(0)
