from __future__ import annotations

import io

import msgspec

from fttui.engine.data.channel import Channel
from fttui.engine.protocol.data.messages import AnyDataMessage, DataLine, DataSummary


def test_text_that_is_not_unicode_is_written_as_escapes() -> None:
    out = io.StringIO()
    channel = Channel(out)
    channel.send(DataLine(text="d\udc80.jsonl: é"))
    channel.send(DataSummary(source="d", records=1, first=[("text", "\ud800")]))
    decoder = msgspec.json.Decoder(AnyDataMessage)
    line, summary = map(decoder.decode, out.getvalue().splitlines())
    assert line == DataLine(text="d\\udc80.jsonl: é")
    assert isinstance(summary, DataSummary)
    assert summary.first == [("text", "\\ud800")]


def test_progress_is_written_a_few_times_a_second() -> None:
    out = io.StringIO()
    channel = Channel(out)
    for done in range(1000):
        channel.progress("reading", done, 1000)
    assert 1 <= len(out.getvalue().splitlines()) < 100
