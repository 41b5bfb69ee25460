"""A loader that accelerate has prepared, also while earlier batches are served again.

`Accelerator.accumulate` and the optimizer that it has prepared ask the loader whether the present
batch is the last one of the pass. The loader answers for the batch that it has made, which after a
rollback is not the one that is served. So each batch is kept with the answer that belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Marked(NamedTuple):
    """A batch, and what its loader reports about it."""

    batch: Any
    end_of_dataloader: bool
    """Whether it is the last one of the pass."""
    remainder: int
    """Rows of the last batch that accelerate has not added; -1 if unknown."""


class PreparedLoader:
    """Answers accelerate's queries about the batch served; does nothing for other loaders."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader: Any = loader
        self._accelerate = getattr(loader, "gradient_state", None)
        self.end_of_dataloader = False
        self.remainder = -1

    def marked(self) -> Iterator[Marked]:
        """Yield each batch with what the loader reports: if it is the last, and the remainder."""
        for batch in self._loader:
            ends = bool(getattr(self._loader, "end_of_dataloader", False))
            yield Marked(batch, ends, int(getattr(self._loader, "remainder", -1)))

    def serve(self, marked: Marked) -> Any:
        """Answer for a batch from now on, and return it."""
        self.close()
        if self._accelerate is not None:
            self.end_of_dataloader, self.remainder = marked[1:]
            self._accelerate._add_dataloader(self)
        return marked.batch

    def close(self) -> None:
        """Leave the answers to the loader itself."""
        if self._accelerate is not None:
            self._accelerate._remove_dataloader(self)
