"""A process that decodes every n-th part of a long journal for a viewer.

`python -m fttui.tui.connection.history.worker JOURNAL END PART WIDTH FIRST COUNT` writes pickled
`HistoryPart`s to its standard output, each after its length, and after each part of PART bytes a
length of 0.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import BinaryIO

from .parts import read_part

LENGTH_BYTES = 8


def write_parts(
    out: BinaryIO, journal: Path, end: int, part_bytes: int, width: int, first: int, count: int
) -> None:
    """Write the parts `first`, `first + count` and so on of a journal up to the offset `end`."""
    for begin in range(first * part_bytes, end, count * part_bytes):
        for part in read_part(journal, begin, min(end, begin + part_bytes), width):
            data = pickle.dumps(part, protocol=5)
            out.write(len(data).to_bytes(LENGTH_BYTES, "little"))
            out.write(data)
        out.write(bytes(LENGTH_BYTES))
        out.flush()


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    end, part_bytes, width, first, count = map(int, numbers)
    write_parts(sys.stdout.buffer, Path(name), end, part_bytes, width, first, count)
