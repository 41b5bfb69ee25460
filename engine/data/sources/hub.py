"""Rows of datasets on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...errors import DataError, SourceUnreachable
from .rows import Row, one_line, row_of, unpadded


def hub_rows(source: str, split: str, start: int = 0, *, streaming: bool = False) -> Iterator[Row]:
    """Yield the rows of a hub dataset from number `start` on.

    Raises:
        SourceUnreachable: The hub cannot be reached.
        DataError: The dataset, its split or its configuration cannot be loaded, or a row of a
            streamed one cannot be read.
    """
    import datasets  # deferred: only these sources need it

    name, _, subset = source.partition(":")
    try:
        dataset = datasets.load_dataset(name, subset or None, split=split, streaming=streaming)
        dataset = dataset.skip(start) if start else dataset
    except Exception as error:  # noqa: BLE001  # the library raises many exception types
        raise _hub_failure(source, split, error) from None
    for number, record in enumerate(_records(dataset, source, split), start=start + 1):
        yield row_of(unpadded(record), f"{source}[{split}] row {number}")


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
