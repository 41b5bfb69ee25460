"""TensorBoard: one folder of events per timeline.

The event file is appended to by offset, and the ledger notes its size. What is behind that size was
written by a process that died before it could note it, so it is cut off and written again. The
format of events and of their frames is that of tensorboardX, which needs no TensorFlow.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ....run.folder.open_folder import OpenFolder, write_all
from ..deliveries import Delivery, Note, Points, RunFacts, Sample, Timeline

_VERSION = "brain.Event:2"


class TensorBoard:
    """Event files in `FOLDER/timeline-1`, `FOLDER/timeline-2` and so on."""

    def __init__(self, folder: Path) -> None:
        """Load the library and open the folder, which must exist.

        Raises:
            ImportError: tensorboardX is not installed.
            OSError: the folder cannot be opened.
        """
        import tensorboardX.summary
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        self._summary: Any = tensorboardX.summary
        self._event: Any = Event
        self._checksum = masked_crc32c
        self._folder = OpenFolder(folder)
        self._file: int | None = None

    def open(
        self, run: RunFacts, timeline: Timeline, attempt: int, noted: dict[str, int | str]
    ) -> int | None:
        """Open the event file of a timeline and cut off what was not noted."""
        name = f"timeline-{timeline.number}"
        self._folder.make_folder(name)
        file = f"{name}/events.out.tfevents.{int(run.created)}.fttui-{run.key}"
        self._file = self._folder.open_file(file, os.O_RDWR | os.O_CREAT, 0o644)
        size, found = int(noted.get("bytes", 0)), os.fstat(self._file).st_size
        if size and found >= size:
            os.ftruncate(self._file, size)
            os.lseek(self._file, size, os.SEEK_SET)
            return None
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        write_all(self._file, b"".join(map(self._framed, self._first(run, timeline))))
        return 0

    def _first(self, run: RunFacts, timeline: Timeline) -> Iterator[Any]:
        yield self._event(wall_time=run.created, file_version=_VERSION)
        config = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
        yield self._text(run.created, timeline.start_step, "configuration", _indented(config))
        if timeline.reason:
            text = f"timeline {timeline.number}, from {timeline.parent}: {timeline.reason}"
            yield self._text(run.created, timeline.start_step, "notes", text)

    def write(self, deliveries: Sequence[Delivery]) -> dict[str, int | str]:
        """Append events and sync the file."""
        assert self._file is not None, "no timeline is open"
        write_all(self._file, b"".join(map(self._framed, map(self._of, deliveries))))
        os.fsync(self._file)
        return {"bytes": os.lseek(self._file, 0, os.SEEK_CUR)}

    def _of(self, item: Delivery) -> Any:
        match item:
            case Points():
                event = self._event(wall_time=item.time, step=item.step)
                for name, value in item.metrics.items():
                    event.summary.value.add(tag=name, simple_value=value)
                return event
            case Note():
                return self._text(item.time, item.step, f"notes/{item.kind}", item.text)
            case Sample():
                text = f"**{item.prompt}**\n\n{_indented(item.text)}"
                return self._text(item.time, item.step, "samples", text)

    def _text(self, time: float, step: int, tag: str, text: str) -> Any:
        event = self._event(wall_time=time, step=step)
        event.summary.CopyFrom(self._summary.text(tag, text))
        return event

    def _framed(self, event: Any) -> bytes:
        data = event.SerializeToString()
        head = struct.pack("<Q", len(data))
        return b"".join(
            (
                head,
                struct.pack("<I", self._checksum(head)),
                data,
                struct.pack("<I", self._checksum(data)),
            )
        )

    def close(self, outcome: str) -> None:
        """Close the event file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _indented(text: str) -> str:
    """Return a text as a block of code in Markdown, which keeps its lines."""
    return "\n".join(f"    {line}" for line in text.splitlines())
