from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.config.load import dump_config
from fttui.engine.config.schema import DataSource, NewToken, RunConfig, TrainConfig
from fttui.engine.data import validate
from fttui.engine.data.validate import CHECKED_OF_STREAM, check_data, check_without_tokens
from fttui.engine.errors import ConfigError, DataError, ModelError
from fttui.engine.protocol.data.messages import (
    AnyDataMessage,
    DataLine,
    DataRefused,
    ReadingProgress,
    RowLengths,
    ShownRecords,
)
from tests.support.architectures import tiny_model
from tests.support.tiny import tiny_llama
from tests.support.tokenizer import tiny_tokenizer

GOOD = '{"prompt": "a", "completion": "b"}\n'


def configured(file: Path, text: str, **data: Any) -> RunConfig:
    file.write_text(text)
    plain = {"model": {"id": "a/b"}, "train": {"steps": 1, "accumulate": 1}}
    return msgspec.convert({**plain, "data": {"train": str(file), **data}}, RunConfig)


def ignore(label: str, done: float, total: float) -> None:
    pass


def checked(config: RunConfig, show: int = 0, *, tokens: bool = False) -> list[AnyDataMessage]:
    return list(check_data(config, tiny_tokenizer(), ignore, show, tokens=tokens))


def lines(messages: list[AnyDataMessage]) -> list[str]:
    return [one.text for one in messages if isinstance(one, DataLine)]


def test_sources_lengths_and_findings_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    rows = "".join(GOOD.replace('"a"', f'"{letter}"') for letter in "xyz")
    config = configured(file, rows, eval=str(tmp_path / "e.jsonl"))
    (tmp_path / "e.jsonl").write_text(GOOD)
    assert lines(checked(config)) == [
        f"{file}: 3 records (prompt + completion)",
        f"{tmp_path / 'e.jsonl'}: 1 record (prompt + completion), for evaluation",
        "train records: 3",
        "eval records: 1",
        "tokens per record: 3 on average, 3 at most",
        "findings: none; every record is used as it is stored",
    ]


def of_letters(file: Path, letters: str, train: TrainConfig, **data: Any) -> RunConfig:
    rows = "".join(json.dumps({"prompt": "a", "completion": one}) + "\n" for one in letters)
    return msgspec.structs.replace(configured(file, rows, **data), train=train)


@pytest.mark.parametrize(
    ("train", "data", "refused"),
    [
        (TrainConfig(epochs=1, batch=4, accumulate=2), {}, "8 records .* only 7 to train on"),
        (TrainConfig(steps=2, batch=4, devices=2, accumulate=1), {}, "2 devices.* only 7"),
        (TrainConfig(epochs=1, batch=1, accumulate=2), {"packing": True}, "2 packed rows .*only 1"),
    ],
)
def test_records_that_fill_no_step_are_refused(
    tmp_path: Path, train: TrainConfig, data: dict[str, Any], refused: str
) -> None:
    config = of_letters(tmp_path / "d.jsonl", "pqrstuvw", train, **data)
    with pytest.raises(ConfigError, match=refused):
        checked(config)


def test_the_steps_of_epochs_are_shown_once_the_records_are_counted(tmp_path: Path) -> None:
    train = TrainConfig(epochs=3, batch=2, accumulate=1)
    config = of_letters(tmp_path / "d.jsonl", "pqrstuvw", train)
    assert "steps: 9, each of 2 records" in lines(checked(config))


@pytest.mark.parametrize("streaming", [False, True])
def test_columns_that_are_not_read_are_named(tmp_path: Path, streaming: bool) -> None:
    row = '{"prompt": "a", "completion": "b", "topic": "t", "url": "u"}\n'
    rows = row + row.replace('"a"', '"c"')
    config = configured(tmp_path / "d.jsonl", rows, streaming=streaming, eval_fraction=0)
    [found] = [line for line in lines(checked(config)) if line.startswith("finding:")]
    assert found.startswith("finding: 2 of 4 columns (50 %) not read")
    assert found.endswith("d.jsonl:1, topic, url")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (3 * GOOD + '{"prompt": "a"}\n', r"d\.jsonl:4, no column completion; found prompt"),
        (2 * GOOD + '{"prompt": "a", "compl', r"d\.jsonl:3, not valid JSON at column \d+.*cut off"),
        (GOOD + '{"prompt": null, "completion": "b"}', r"d\.jsonl:2, column 'prompt': got null"),
        ('{"words": "a"}\n', r"d\.jsonl: the columns words match no known format"),
        ('{"anchor": "a", "positive": "b"}\n', r"have the format pairs, but task sft needs"),
        ("", r"d\.jsonl: no records"),
    ],
)
def test_the_first_record_that_cannot_be_used_is_named(
    tmp_path: Path, text: str, told: str
) -> None:
    config = configured(tmp_path / "d.jsonl", text, eval_fraction=0)
    with pytest.raises(DataError, match=told):
        checked(config)
    with pytest.raises(DataError, match=told):
        list(check_without_tokens(config, ignore, ModelError("offline")))


def test_a_large_share_is_refused_after_the_lines_and_shown_once_it_is_accepted(
    tmp_path: Path,
) -> None:
    text = "".join(json.dumps({"text": n * "x"}) + "\n" for n in (4, 90, 90))
    config = configured(tmp_path / "d.jsonl", text, max_length=32, eval_fraction=0)
    messages: list[AnyDataMessage] = []
    with pytest.raises(DataError, match=r"2 of 3 records .67 %. truncated.*d\.jsonl:2") as refused:
        messages.extend(check_data(config, tiny_tokenizer(), ignore, tokens=False))
    assert "data.accept: [cut]" in str(refused.value)
    accepting = msgspec.structs.replace(
        config, data=msgspec.structs.replace(config.data, accept=["cut"])
    )
    assert any(
        line.startswith("finding: 2 of 3 records (67 %) truncated") and line.endswith("(accepted)")
        for line in lines(checked(accepting))
    )


def test_all_rows_decide_the_format_of_the_records_shown(tmp_path: Path) -> None:
    odd = '{"text": "a"}\n'
    config = configured(tmp_path / "d.jsonl", odd + GOOD * 4, accept=["other-form", "duplicates"])
    found = checked(config, show=1)
    [shown] = [one for one in found if isinstance(one, ShownRecords)]
    assert [one.place.rpartition(":")[2] for one in shown.records] == ["2"]
    assert any("other-form" not in one and "1 of 5 records" in one for one in lines(found))


def test_records_are_shown_as_they_are_learned(tmp_path: Path) -> None:
    config = configured(tmp_path / "d.jsonl", 3 * GOOD)
    shown = [one for one in checked(config, show=2, tokens=True) if isinstance(one, ShownRecords)]
    [first, second] = shown[0].records
    assert (first.place, second.place) == (f"{tmp_path}/d.jsonl:1", f"{tmp_path}/d.jsonl:2")
    spans = [(one.text, one.learned) for one in first.texts[0].spans]
    assert spans == [("a", False), ("b<|im_end|>", True)]
    assert [token.text for token in first.texts[0].token_list] == ["a", "b", "<|im_end|>"]


def test_of_a_stream_the_first_records_are_checked(tmp_path: Path) -> None:
    text = CHECKED_OF_STREAM * GOOD + "broken"
    config = configured(tmp_path / "d.jsonl", text, streaming=True, eval_fraction=0)
    found = checked(config, show=1)
    assert "the first 2,000 records of each source are checked" in "\n".join(lines(found))
    [shown] = [one for one in found if isinstance(one, ShownRecords)]
    assert len(shown.records) == 1
    with pytest.raises(DataError, match="not valid JSON"):
        checked(configured(tmp_path / "d.jsonl", GOOD + "broken", streaming=True, eval_fraction=0))


def run_process(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[AnyDataMessage]]:
    monkeypatch.setattr("sys.stdin", io.StringIO(dump_config(config)))
    monkeypatch.setattr(validate, "without_torch", lambda config: None)
    code = validate.main(["--show=1"])
    decoder = msgspec.json.Decoder(AnyDataMessage)
    return code, [decoder.decode(line) for line in capsys.readouterr().out.splitlines()]


def test_the_process_answers_in_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path / "d.jsonl", 3 * GOOD)
    model = msgspec.structs.replace(config.model, id=str(tiny_llama(tmp_path)))
    code, messages = run_process(msgspec.structs.replace(config, model=model), monkeypatch, capsys)
    assert code == 0
    assert {type(one) for one in messages} == {ReadingProgress, DataLine, ShownRecords, RowLengths}
    (lengths,) = [one.lengths for one in messages if isinstance(one, RowLengths)]
    assert len(lengths) == 2, "one record is held out"


def test_the_process_refuses_an_invalid_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path / "d.jsonl", GOOD)
    invalid = msgspec.structs.replace(config, task="unknown")
    code, [message] = run_process(invalid, monkeypatch, capsys)
    assert code == ConfigError.exit_code
    assert isinstance(message, DataRefused)


def test_without_the_tokenizer_records_are_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replaced = msgspec.structs.replace
    config = configured(tmp_path / "d.jsonl", 3 * GOOD)
    config = replaced(config, model=replaced(config.model, id="nobody/has-this-model"))
    code, messages = run_process(config, monkeypatch, capsys)
    assert code == 0
    assert lines(messages)[0].endswith("d.jsonl: 3 records (prompt + completion)")
    assert "tokens: not checked" in lines(messages)[-1]


UNREADABLE = 9 * '{"text": "a"}\n' + '{"text": "a"\n'
"""Nine records, all alike, and a row that cannot be read."""


@pytest.mark.parametrize("streaming", [False, True])
def test_shares_are_those_of_all_records_with_or_without_the_tokenizer(
    tmp_path: Path, streaming: bool
) -> None:
    given = {"eval_fraction": 0, "streaming": streaming}
    config = configured(tmp_path / "d.jsonl", UNREADABLE, **given)
    told = r"1 of 10 records \(10 %\) left out"
    with pytest.raises(DataError, match=told):
        checked(config)
    with pytest.raises(DataError, match=told):
        list(check_without_tokens(config, ignore, ModelError("offline")))
    accepting = configured(tmp_path / "d.jsonl", UNREADABLE, accept=["all"], **given)
    expected = [line for line in lines(checked(accepting)) if line.startswith("finding")]
    found = lines(list(check_without_tokens(accepting, ignore, ModelError("offline"))))
    assert [line for line in found if line.startswith("finding")] == expected
    assert len(expected) == (1 if streaming else 2)


def test_records_that_are_dropped_are_a_share_of_those_read(tmp_path: Path) -> None:
    config = configured(tmp_path / "d.jsonl", 8 * GOOD, dedup="exact", eval_fraction=0)
    assert any("7 of 8 records (88 %) dropped" in line for line in lines(checked(config)))
    found = check_without_tokens(config, ignore, ModelError("offline"))
    assert any("7 of 8 records (88 %) dropped" in line for line in lines(list(found)))
    config = configured(tmp_path / "d.jsonl", 8 * GOOD, dedup="exact", eval_fraction=0.25)
    with pytest.raises(DataError, match="none is left"):
        checked(config)


def test_a_template_that_does_not_exist_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path / "d.jsonl", GOOD, template="no-such-template")
    model = msgspec.structs.replace(config.model, id=str(tiny_llama(tmp_path)))
    code, messages = run_process(msgspec.structs.replace(config, model=model), monkeypatch, capsys)
    assert code == ConfigError.exit_code
    assert isinstance(messages[-1], DataRefused)
    assert "no-such-template" in messages[-1].text


def test_data_on_a_hub_out_of_reach_are_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path / "d.jsonl", GOOD)
    data = msgspec.structs.replace(config.data, train="owner/name")
    code, messages = run_process(msgspec.structs.replace(config, data=data), monkeypatch, capsys)
    assert code == 0
    assert "data: not checked: owner/name" in lines(messages)[-1]


def test_a_refusal_has_the_exit_code_of_data_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path / "d.jsonl", "broken")
    model = msgspec.structs.replace(config.model, id=str(tiny_llama(tmp_path)))
    code, messages = run_process(msgspec.structs.replace(config, model=model), monkeypatch, capsys)
    assert code == DataError.exit_code
    assert isinstance(messages[-1], DataRefused)
    assert "not valid JSON" in messages[-1].text


def test_tokens_that_the_model_has_no_row_for_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_llama(tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": 20}))
    config = configured(tmp_path / "d.jsonl", 3 * GOOD)
    model = msgspec.structs.replace(config.model, id=str(folder))
    code, messages = run_process(msgspec.structs.replace(config, model=model), monkeypatch, capsys)
    assert code == DataError.exit_code, lines(messages)
    assert isinstance(messages[-1], DataRefused)
    assert "the embedding of the model has 20 rows" in messages[-1].text


@pytest.mark.parametrize("key", ["special_tokens", "add_tokens"])
def test_tokens_that_are_added_have_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    folder = tiny_llama(tmp_path)
    config = configured(tmp_path / "d.jsonl", 3 * GOOD)
    added = [NewToken(token="a")] if key == "add_tokens" else []
    model = msgspec.structs.replace(config.model, id=str(folder), add_tokens=added)
    special = ["a"] if key == "special_tokens" else []
    data = msgspec.structs.replace(config.data, special_tokens=special)
    config = msgspec.structs.replace(config, model=model, data=data)
    code, messages = run_process(config, monkeypatch, capsys)
    assert code == 0, lines(messages)


def test_weight_files_that_are_cut_off_are_refused_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_llama(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    config = configured(tmp_path / "d.jsonl", 3 * GOOD)
    model = msgspec.structs.replace(config.model, id=str(folder))
    code, messages = run_process(msgspec.structs.replace(config, model=model), monkeypatch, capsys)
    assert code == ModelError.exit_code, lines(messages)
    assert isinstance(messages[-1], DataRefused)
    assert "not downloaded or written to its end" in messages[-1].text


def test_a_folder_without_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path / "d.jsonl", 3 * GOOD)
    model = msgspec.structs.replace(config.model, id=str(tmp_path / "nowhere"))
    code, messages = run_process(msgspec.structs.replace(config, model=model), monkeypatch, capsys)
    assert code == ModelError.exit_code, lines(messages)
    assert isinstance(messages[-1], DataRefused)
    assert "no such folder" in messages[-1].text


def test_the_mix_of_an_epoch_is_shown(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(GOOD.replace('"a"', '"q"'))
    config = configured(tmp_path / "a.jsonl", GOOD + GOOD.replace('"a"', '"c"'), eval_fraction=0)
    sources = [{"path": str(tmp_path / name), "weight": 1} for name in ("a.jsonl", "b.jsonl")]
    data = msgspec.structs.replace(config.data, train=msgspec.convert(sources, list[DataSource]))
    shown = lines(checked(msgspec.structs.replace(config, data=data)))
    mix = "a.jsonl 67% (2 of its 2 examples), b.jsonl 33% (1 of its 1 examples)"
    assert f"mix per epoch: {mix}" in shown


@pytest.mark.parametrize(("family", "unplanned"), [("mixtral", False), ("dots1", True)])
def test_the_weights_of_a_mixture_are_shown_with_what_loading_takes(
    tmp_path: Path, family: str, unplanned: bool
) -> None:
    folder = tiny_model(family, tmp_path)

    def of(model: Path) -> RunConfig:
        raw = {"model": {"id": str(model)}, "data": {"train": "d"}, "train": {"steps": 1}}
        return msgspec.convert(raw, RunConfig)

    (line,) = validate._expert_memory(of(folder), str(folder))
    assert "GiB while they are loaded" in line
    assert ("not predicted" in line) == unplanned
    dense = tiny_llama(tmp_path)
    assert not list(validate._expert_memory(of(dense), str(dense)))
