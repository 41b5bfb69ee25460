from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from fttui.engine.protocol.data.messages import AnyDataMessage, DataLine, DataSummary, Lengths
from fttui.engine.protocol.event_parts import DataFinding
from fttui.tui.cli.data_check import process as data_process
from fttui.tui.cli.main import main
from tests.unit.tui.text.test_control_characters import HOSTILE, unsafe

CUT = DataFinding(
    reason="cut", text="truncated", unit="records", count=3, total=20, place="d.jsonl:7",
    remedy="raise data.max_length",
)  # fmt: skip
SUMMARY = DataSummary(
    source="d.jsonl",
    records=1200,
    format="prompt_completion",
    task="sft",
    used=["prompt", "completion"],
    unused=["topic"],
    characters=Lengths(least=1, median=30, p95=400, most=5000),
    tokens=Lengths(least=1, median=10, p95=90, most=1024),
    duplicates=4,
    empty=2,
    findings=[CUT],
    first=[("prompt", "p"), ("completion", 301 * "c")],
    section='task: sft\ndata:\n  train: "d.jsonl"\n',
)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch):
    """Sets the messages that the data process sends."""

    def _answer(*messages: AnyDataMessage) -> None:
        def sent(module: str, arguments: list[str], given: str) -> Iterator[AnyDataMessage]:
            assert (module, arguments[0]) == ("summary", "d.jsonl")
            yield from messages

        monkeypatch.setattr(data_process, "data_messages", sent)

    return _answer


def test_a_summary_is_printed_with_a_section_to_paste(answer, capsys) -> None:
    answer(SUMMARY)
    assert main(["data", "d.jsonl"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "d.jsonl: 1,200 records",
        "format: prompt + completion (task sft)",
        "columns used: prompt, completion",
        "columns not used: topic",
        "characters per record: 1 to 5,000, median 30, 95 % up to 400",
        "tokens per record: 1 to 1,024, median 10, 95 % up to 90",
        "duplicates: 4; records with an empty text: 2",
        "finding: 3 of 20 records (15 %) truncated; first: d.jsonl:7; raise data.max_length",
        "first record:",
        "  [prompt] p",
        f"  [completion] {300 * 'c'} … 1 more characters",
        "",
        "to train on it, put this into a configuration:",
        "",
        "task: sft",
        "data:",
        '  train: "d.jsonl"',
    ]


def test_json_has_every_field(answer, capsys) -> None:
    answer(DataLine(text="tokens: not counted"), SUMMARY)
    assert main(["data", "d.jsonl", "--format", "json"]) == 0
    printed = capsys.readouterr()
    plain = json.loads(printed.out)
    assert msgspec.convert({**plain, "k": "summary"}, DataSummary) == SUMMARY
    assert printed.err == "tokens: not counted\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_columns_without_a_format_are_shown_and_refused(answer, capsys, form: str) -> None:
    plain = DataSummary(source="d.jsonl", records=2, unused=["words"], problem="no format")
    answer(replace(plain, findings=[CUT]))
    assert main(["data", "d.jsonl", "--format", form]) == 9
    printed = capsys.readouterr()
    assert "words" in printed.out
    assert CUT.text in printed.out
    assert printed.err == "fttui: no format\n"


def test_hostile_columns_texts_and_findings_are_shown_as_escapes(answer, capsys) -> None:
    found = replace(CUT, text=HOSTILE, place=HOSTILE)
    hostile = replace(
        SUMMARY,
        used=[HOSTILE],
        unused=[HOSTILE],
        first=[(HOSTILE, HOSTILE)],
        findings=[found],
        problem=HOSTILE,
    )
    answer(DataLine(text=HOSTILE), hostile)
    for options in ([], ["--format", "json"]):
        assert main(["data", "d.jsonl", *options]) == 9
        shown = capsys.readouterr()
        assert not unsafe(shown.out + shown.err)
        assert "]52;" in shown.out
        assert "]52;" in shown.err


def test_many_columns_and_long_names_are_shortened_in_text(answer, capsys) -> None:
    names = [f"{n} {500 * 'x'}" for n in range(300)]
    answer(replace(SUMMARY, records=1, used=names, unused=names))
    assert main(["data", "d.jsonl"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "d.jsonl: 1 record"
    assert shown[2].endswith("… and 280 more")
    assert max(map(len, shown)) < 1000
