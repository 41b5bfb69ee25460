"""Write and read the sample of the training data in a run folder, `data_sample.json`."""

from __future__ import annotations

import msgspec

from ..protocol.data.sample import DataSample, SampleRecord
from .folder.open_folder import read_plain
from .run_dir import RunDirectory

MOST_BYTES = 512 * 1024
"""Largest size of the file; records beyond it are left out."""


def write_sample(run: RunDirectory, records: list[SampleRecord]) -> None:
    """Write the sample of a run, without the last records if they exceed `MOST_BYTES`.

    Raises:
        OSError: The file cannot be written.
    """
    kept = list(records)
    data = msgspec.json.encode(DataSample(records=kept))
    while len(data) > MOST_BYTES and kept:
        kept = kept[: len(kept) * MOST_BYTES // len(data)]
        data = msgspec.json.encode(DataSample(records=kept))
    run.write(run.data_sample, data)


def read_sample(run: RunDirectory) -> list[SampleRecord]:
    """Return the sample of a run; an empty list if it has none that can be read."""
    try:
        data = read_plain(run.data_sample, 2 * MOST_BYTES)
        return msgspec.json.decode(data, type=DataSample).records
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return []
