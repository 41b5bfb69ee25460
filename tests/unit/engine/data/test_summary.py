"""What `fttui data` finds in a source."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.config.load import dump_config, load_config
from fttui.engine.data import summary as summarizing
from fttui.engine.data.summary import summarize
from fttui.engine.errors import ConfigError, DataError
from fttui.engine.protocol.data.messages import AnyDataMessage, DataRefused, DataSummary, Lengths
from tests.support.tiny import tiny_llama
from tests.support.tokenizer import tiny_tokenizer

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "there"}]


def summarized(folder: Path, rows: list[dict[str, Any]], tokenizer: Any = None) -> DataSummary:
    file = folder / "d.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config, tasks = summarizing._config("", str(file), "")
    found = summarize(config, tasks, str(file), "train", tokenizer, lambda label, done, total: None)
    return msgspec.structs.replace(found, source="d")


def test_shape_lengths_duplicates_and_empty_records_are_found(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "completion": n * "c", "topic": "x"} for n in (1, 2, 2, 3, 0)]
    found = summarized(tmp_path, rows)
    assert (found.format, found.task, found.records) == ("prompt_completion", "sft", 5)
    assert (found.used, found.unused) == (["prompt", "completion"], ["topic"])
    assert found.characters == Lengths(least=1, median=3, p95=4, most=4)
    assert (found.duplicates, found.empty) == (1, 1)
    assert found.first == [("prompt", "p"), ("completion", "c")]
    assert found.section == f'task: sft\ndata:\n  train: "{tmp_path}/d.jsonl"\n'
    assert (found.tokens, found.sample, found.problem) == (None, [], "")


def test_the_section_names_the_split_that_was_read(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"text": "t"}\n')
    config, tasks = summarizing._config("", str(tmp_path), "")
    found = summarize(config, tasks, str(tmp_path), "test", None, lambda label, done, total: None)
    file = tmp_path / "c.yaml"
    file.write_text(f"model: {{id: a/b}}\ntrain: {{steps: 1}}\n{found.section}")
    assert load_config(file).config.data.train_split == "test"


@pytest.mark.parametrize(("score", "kind"), [({}, "infonce"), ({"score": 0.5}, "cosent")])
def test_the_section_for_pairs_has_the_loss_that_reads_them(
    tmp_path: Path, score: dict[str, float], kind: str
) -> None:
    rows = [{"anchor": f"a{n}", "positive": f"b{n}", **score} for n in range(3)]
    section = summarized(tmp_path, rows).section
    config = tmp_path / "c.yaml"
    config.write_text(f"model: {{id: a/b}}\ntrain: {{steps: 1}}\n{section}")
    assert load_config(config).config.contrastive.kind == kind


@pytest.mark.parametrize(
    ("row", "task", "form", "first"),
    [
        ({"messages": CHAT}, "sft", "messages", [("user", "Hi"), ("assistant", "there")]),
        ({"text": "t"}, "sft", "text", [("text", "t")]),
        (
            {"prompt": "p", "completion": "c", "label": True},
            "kto",
            "rated",
            [("text prompt", "p"), ("text completion", "c")],
        ),
        (
            {"query": "q", "document": "d", "neg": ["n"]},
            "contrastive",
            "pairs",
            [("anchor", "q"), ("positive", "d"), ("negatives", "n")],
        ),
        (
            {"prompt": "p", "chosen": "a", "rejected": "b"},
            "dpo",
            "preference",
            [
                ("chosen prompt", "p"), ("chosen completion", "a"),
                ("rejected prompt", "p"), ("rejected completion", "b"),
            ],
        ),
    ],
)  # fmt: skip
def test_the_task_follows_from_the_format(
    tmp_path: Path, row: dict[str, Any], task: str, form: str, first: list[tuple[str, str]]
) -> None:
    found = summarized(tmp_path, [row])
    assert (found.task, found.format, found.first) == (task, form, first)


def test_with_a_tokenizer_tokens_and_findings_are_known(tmp_path: Path) -> None:
    rows = [{"text": "short"}, {"text": 2000 * "x"}]
    found = summarized(tmp_path, rows, tiny_tokenizer())
    assert found.tokens == Lengths(least=6, median=1024, p95=1024, most=1024)
    assert [(one.reason, one.count, one.total) for one in found.findings] == [("cut", 1, 2)]
    assert found.sample[0].texts[0].learned == 5


@pytest.mark.parametrize("tokenizer", [None, tiny_tokenizer()])
@pytest.mark.parametrize("row", [{"text": "a"}, {"words": "a"}])
def test_rows_that_cannot_be_read_are_a_share_of_all_rows(
    tmp_path: Path, row: dict[str, Any], tokenizer: Any
) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text("{broken\n" + 4 * f"{json.dumps(row)}\n")
    config, tasks = summarizing._config("", str(file), "")
    found = summarize(config, tasks, str(file), "train", tokenizer, lambda label, done, total: None)
    [broken] = [one for one in found.findings if one.reason == "broken-rows"]
    assert (broken.count, broken.total) == (1, 5)


def test_labels_that_are_nan_are_counted(tmp_path: Path) -> None:
    rows = [{"anchor": f"a{n}", "positive": f"p{n}", "label": label} for n, label in
            enumerate([1, float("nan"), 2, float("nan")])]  # fmt: skip
    [found] = [one for one in summarized(tmp_path, rows).findings if one.reason == "nan-label"]
    assert (found.count, found.total) == (2, 4)
    assert found.place.endswith("d.jsonl:2")


def test_columns_without_a_format_are_a_problem_with_their_names(tmp_path: Path) -> None:
    found = summarized(tmp_path, [{"words": "a", "more": 1}])
    assert (found.format, found.unused) == ("", ["words", "more"])
    assert "match no known format" in found.problem


@pytest.mark.parametrize(
    ("columns", "mapping"),
    [
        (["id", "Question", "Answer"], '{instruction: "Question", output: "Answer"}'),
        (
            ["Instruction", "Input", "OUTPUT"],
            '{instruction: "Instruction", input: "Input", output: "OUTPUT"}',
        ),
        (["Text"], '{text: "Text"}'),
        (["Frage", "Antwort"], "{instruction: COLUMN, output: COLUMN}"),
    ],
)
def test_columns_in_capitals_are_refused_with_the_mapping_that_reads_them(
    tmp_path: Path, columns: list[str], mapping: str
) -> None:
    rows = [{name: f"{name} {n}" for name in columns} for n in range(3)]
    assert f"data.columns: {mapping}" in summarized(tmp_path, rows).problem


def process(
    arguments: list[str],
    given: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> tuple[int, list[AnyDataMessage]]:
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    monkeypatch.setattr(summarizing, "without_torch", lambda model: None)
    code = summarizing.main(arguments)
    decoder = msgspec.json.Decoder(AnyDataMessage)
    return code, [decoder.decode(line) for line in capsys.readouterr().out.splitlines()]


def test_the_process_uses_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text('{"prompt": "p", "chosen": "a", "rejected": "b"}\n')
    config, _ = summarizing._config("", "elsewhere.jsonl", str(tiny_llama(tmp_path)))
    given = dump_config(msgspec.structs.replace(config, task="kto"))
    code, messages = process([str(file)], given, monkeypatch, capsys)
    assert code == 0
    assert isinstance(messages[-1], DataSummary)
    assert messages[-1].task == "kto"
    assert messages[-1].tokens is not None
    assert [text.name for text in messages[-1].sample[0].texts] == ["desirable", "undesirable"]


def test_a_source_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, messages = process([str(tmp_path / "no.jsonl")], "", monkeypatch, capsys)
    assert code == DataError.exit_code
    assert isinstance(messages[-1], DataRefused)
    assert "no such file" in messages[-1].text


def test_an_invalid_configuration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, [message] = process([str(tmp_path / "d.jsonl")], "task: unknown", monkeypatch, capsys)
    assert code == ConfigError.exit_code
    assert isinstance(message, DataRefused)


def test_a_missing_chat_template_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text('{"text": "a"}\n')
    config, _ = summarizing._config("", str(file), str(tiny_llama(tmp_path)))
    data = msgspec.structs.replace(config.data, template="no.jinja")
    given = dump_config(msgspec.structs.replace(config, data=data))
    code, messages = process([str(file)], given, monkeypatch, capsys)
    assert code == ConfigError.exit_code
    assert isinstance(messages[-1], DataRefused)
