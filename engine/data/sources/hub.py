"""Rows of datasets on the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from ...config.checks import HUB_FILE
from ...errors import DataError, SourceUnreachable
from .rows import Row, one_line, row_of, unpadded

_FILE = re.compile(rf"{re.escape(HUB_FILE)}([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)")


def hub_rows(source: str, split: str, start: int = 0, *, streaming: bool = False) -> Iterator[Row]:
    """Yield the rows of a hub dataset, or of one file in it, from number `start` on.

    Raises:
        SourceUnreachable: The hub cannot be reached.
        DataError: The dataset, its split or its configuration cannot be loaded, or a row of a
            streamed one cannot be read.
    """
    import datasets  # deferred: only these sources need it

    name, subset, options = arguments_of(source, split)
    try:
        dataset = datasets.load_dataset(name, subset, split=split, streaming=streaming, **options)
        dataset = dataset.skip(start) if start else dataset
    except Exception as error:  # noqa: BLE001  # the library raises many exception types
        raise _hub_failure(source, split, error) from None
    for number, record in enumerate(_records(dataset, source, split), start=start + 1):
        yield row_of(unpadded(record), f"{source}[{split}] row {number}")


def arguments_of(source: str, split: str = "train") -> tuple[str, str | None, dict[str, Any]]:
    """Return id, configuration and further arguments of `load_dataset` for a source.

    A file in a dataset has no splits of its own: whatever split is asked for consists of it.

    Raises:
        DataError: The name of a file has another form than `hf://datasets/ORG/NAME/FILE`.
    """
    found = _file_of(source)
    if found is None:
        name, _, subset = source.partition(":")
        return name, subset or None, {}
    name, revision, file = found.groups()
    options = {"revision": revision} if revision else {}
    return name, None, {"data_files": {re.split(r"[\[+]", split)[0]: file}, **options}


def _file_of(source: str) -> re.Match[str] | None:
    if not source.startswith(HUB_FILE):
        return None
    found = _FILE.fullmatch(source)
    if found is None:
        raise DataError(
            f"{source}: expected {HUB_FILE}ORG/NAME/FILE, the name of a file in a Hub dataset"
        )
    return found


def _records(
    dataset: Iterable[dict[str, Any]], source: str, split: str
) -> Iterator[dict[str, Any]]:
    """Yield the records of a dataset; a streamed one downloads them meanwhile.

    Raises:
        SourceUnreachable: The hub cannot be reached any more.
        DataError: A record cannot be read.
    """
    records = iter(dataset)
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001  # the library raises many exception types
            raise _hub_failure(source, split, error) from None
        yield record


def _hub_failure(source: str, split: str, error: Exception) -> DataError:
    what = f"{source} (split {split}): {type(error).__name__}: {one_line(error)}"
    hint = "check the id, the network and `hf auth login`, or give a file"
    if isinstance(error, ConnectionError) or "offline" in str(error).lower():
        return SourceUnreachable(
            f"{what}; the Hugging Face Hub cannot be reached; set data.train to a file, or connect "
            "and try again"
        )
    if "split" in str(error).lower():
        hint = "set data.train_split and data.eval_split to existing splits"
    elif "config" in str(error).lower():
        hint = f"choose one of its configurations, such as {source}:main"
    return DataError(f"{what}; {hint}")
