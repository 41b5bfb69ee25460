from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.followers.trackers.deliveries import Delivery, RunFacts, Timeline
from fttui.engine.followers.trackers.story import Story
from tests.support.journaled import records

tensorboardx = pytest.importorskip("tensorboardX")

RUN = RunFacts(id="x-1", key="ab" * 8, created=100.0, config={"train": {"lr": 0.1}})
FIRST = Timeline(number=1)


def deliveries(timeline: int) -> list[Delivery]:
    story = Story()
    told = [story.add(record) for record in records()]
    return [item for item in told if item and item.timeline == timeline]


def sink(folder: Path) -> Any:
    from fttui.engine.followers.trackers.sinks.tensorboard import TensorBoard

    return TensorBoard(folder)


def event_file(folder: Path, timeline: int = 1) -> Path:
    (file,) = (folder / f"timeline-{timeline}").iterdir()
    return file


def events(file: Path) -> Iterator[Any]:
    """The events in a file, whose checksums are checked."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    data, at = file.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        payload = data[at + 12 : at + 12 + length]
        sums = struct.unpack_from("<I", data, at + 8) + struct.unpack_from(
            "<I", data, at + 12 + length
        )
        assert sums == (masked_crc32c(data[at : at + 8]), masked_crc32c(payload))
        yield Event.FromString(payload)
        at += 16 + length


def scalars(file: Path, tag: str) -> list[tuple[int, float]]:
    return [
        (event.step, value.simple_value)
        for event in events(file)
        for value in event.summary.value
        if value.tag == tag
    ]


def texts(file: Path, tag: str) -> list[str]:
    return [
        value.tensor.string_val[0].decode()
        for event in events(file)
        for value in event.summary.value
        if value.tag == f"{tag}/text_summary"
    ]


def test_curves_configuration_notes_and_samples_are_in_the_file(tmp_path: Path) -> None:
    board = sink(tmp_path)
    assert board.open(RUN, FIRST, 1, {}) == 0
    board.write(deliveries(1))
    board.close("")
    file = event_file(tmp_path)
    loss = scalars(file, "train/loss")
    assert [step for step, _ in loss] == [1, 2, 3, 4, 5, 6]
    assert loss[0][1] == 2.0
    assert math.isnan(loss[-1][1])
    assert texts(file, "configuration") == ["    train:\n      lr: 0.1"]
    assert texts(file, "notes/checkpoint") == ["step-4 (1.0 MiB)"]
    assert texts(file, "samples") == ["**hi**\n\n    there"]
    assert next(events(file)).file_version == "brain.Event:2"


@pytest.mark.parametrize("behind", [b"", b"half of a frame"], ids=["whole", "torn"])
def test_what_was_not_noted_is_cut_off_and_written_again(tmp_path: Path, behind: bytes) -> None:
    items = deliveries(1)
    board = sink(tmp_path)
    board.open(RUN, FIRST, 1, {})
    noted = board.write(items[:4])
    board.write(items[4:])  # the process dies before it can note it
    with open(event_file(tmp_path), "ab") as file:
        file.write(behind)
    again = sink(tmp_path)
    assert again.open(RUN, FIRST, 1, noted) is None
    again.write(items[4:])
    assert [step for step, _ in scalars(event_file(tmp_path), "train/loss")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("size", [None, 10])
def test_a_file_that_was_removed_or_truncated_is_written_anew(
    tmp_path: Path, size: int | None
) -> None:
    board = sink(tmp_path)
    board.open(RUN, FIRST, 1, {})
    noted = board.write(deliveries(1))
    file = event_file(tmp_path)
    if size is None:
        file.unlink()
    else:
        os.truncate(file, size)
    assert sink(tmp_path).open(RUN, FIRST, 1, noted) == 0, "it holds nothing any more"


def test_a_link_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    board = sink(tmp_path)
    board.open(RUN, FIRST, 1, {})
    file = event_file(tmp_path)
    file.unlink()
    outside = tmp_path / "outside"
    outside.write_text("mine")
    file.symlink_to(outside)
    with pytest.raises(OSError, match="link"):
        board.open(RUN, FIRST, 1, {})
    assert outside.read_text() == "mine"


def test_a_second_timeline_says_where_it_comes_from(tmp_path: Path) -> None:
    board = sink(tmp_path)
    second = Timeline(number=2, parent=1, start_step=4, reason="rolled back from step 6 to 4")
    board.open(RUN, second, 1, {})
    board.write(deliveries(2))
    file = event_file(tmp_path, 2)
    assert texts(file, "notes") == ["timeline 2, from 1: rolled back from step 6 to 4"]
    assert [step for step, _ in scalars(file, "train/loss")] == [5, 6, 7, 8]
