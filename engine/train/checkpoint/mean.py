"""The mean of several checkpoints, put in place of the live weights for a while.

The live state is kept on the host meanwhile and restored afterwards to the last bit, so that
training continues as if nothing had happened.

Source: Wortsman et al. 2022, Model soups (arXiv:2203.05482); Izmailov et al. 2018, Averaging
weights leads to wider optima (arXiv:1803.05407).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ...errors import CheckpointError
from ...run.records.ancestors import names_leading_here
from ...run.records.record_feed import read_whole
from ...run.run_dir import RunDirectory
from ..distributed.agreement import Agreement, attempt
from .checkpointer import Checkpointer

if TYPE_CHECKING:
    from torch import Tensor

    from .training_state import StagedState


class HeldState(Protocol):
    """A state that can be kept in memory, replaced, and restored."""

    def hold(self) -> Any:
        """Return a copy of the whole live state on the host."""

    def apply(self, staged: Any) -> Any:
        """Replace the live state."""

    def put_back(self, held: Any) -> None:
        """Restore what `hold` has returned."""


@dataclass(frozen=True)
class CheckpointMean:
    """Puts the mean of checkpoints in place of the live weights."""

    run: RunDirectory
    state: HeldState
    checkpointer: Checkpointer
    agreement: Agreement

    def chosen(self, last: int, wanted: Sequence[str]) -> list[str]:
        """Return the names of the checkpoints to average, oldest first, as rank 0 finds them.

        All ranks call this together.

        Args:
            last: number of the newest checkpoints that led to the present weights.
            wanted: names or steps instead.

        Raises:
            CheckpointError: there are not so many, or one does not exist.
        """
        return self._agreed(lambda: self._named(wanted) if wanted else self._leading(last))

    def one(self, wanted: str) -> str:
        """Return the name of one checkpoint, as rank 0 finds it; all ranks call this together.

        Raises:
            CheckpointError: it does not exist.
        """
        return self._agreed(lambda: [self.checkpointer.ledger.find(wanted).name])[0]

    def _agreed(self, find: Callable[[], list[str]]) -> list[str]:
        """Return what rank 0 finds on every rank; with any error of rank 0, fail on every rank.

        Raises:
            CheckpointError: rank 0 has failed.
        """
        found: list[str] = []
        error = None
        if self.agreement.rank == 0:
            error = attempt(lambda: found.extend(find()))
        if errors := self.agreement.errors(error):
            raise CheckpointError(errors[0])
        return msgspec.json.decode(self.agreement.share(msgspec.json.encode(found)), type=list[str])

    def _named(self, wanted: Sequence[str]) -> list[str]:
        names = list(dict.fromkeys(self.checkpointer.ledger.find(one).name for one in wanted))
        if len(names) < 2:
            raise CheckpointError(f"{' and '.join(wanted)}: only one checkpoint; name two or more")
        return names

    def _leading(self, last: int) -> list[str]:
        kept = {manifest.name for manifest in self.checkpointer.ledger.all()}
        found = [n for n in names_leading_here(read_whole(self.run)[0]) if n in kept]
        if len(found) < last:
            names = ", ".join(found) or "none"
            raise CheckpointError(
                f"{len(found)} checkpoints that led to the current weights exist ({names}); "
                "average fewer, name others, or train with a larger checkpoint.keep"
            )
        return found[-last:]

    @contextmanager
    def in_place(self, names: Sequence[str]) -> Iterator[None]:
        """Return a context in which the live weights are the mean; all ranks enter it together.

        With a moving average of the weights, the averages are averaged too, or it begins again with
        the mean if a checkpoint has none. Optimizer, schedule and random generators stay those of
        the run.

        Args:
            names: the checkpoints; of a single one the mean is the checkpoint itself.

        Raises:
            CheckpointError: one of them is missing, damaged or does not fit; nothing was changed.
        """
        weights, averages = self._means(names)
        held = self.state.hold()
        try:
            self.state.apply(replace(held, weights=weights, average=averages))
            yield
        finally:
            self.state.put_back(held)

    def _means(self, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """Return the mean weights, and the mean of the averages if every checkpoint has one."""
        weights, averages = _Mean(), _Mean()
        for name in names:
            staged: StagedState = self.checkpointer.staged(name)
            weights.add(staged.weights)
            averages.add(staged.average)
        found = weights.mean(len(names))
        assert found is not None, "every checkpoint has weights"
        return found, averages.mean(len(names))


class _Mean:
    """Sums values in double precision; one checkpoint after another, so that one is in memory."""

    def __init__(self) -> None:
        self._total: dict[str, Tensor] = {}
        self._dtypes: dict[str, Any] = {}
        self._count = 0

    def add(self, values: Mapping[str, Tensor] | None) -> None:
        if values is None:
            return
        self._count += 1
        for name, value in values.items():
            self._dtypes[name] = value.dtype
            known = self._total.get(name)
            self._total[name] = value.double() if known is None else known.add_(value.double())

    def mean(self, count: int) -> dict[str, Tensor] | None:
        """Return the means; None if not all `count` checkpoints had values."""
        if self._count < count:
            return None
        return {n: (one / count).to(self._dtypes[n]) for n, one in self._total.items()}
