"""Batch tape: the micro-batches of a foreign data loader, held so that they can be served again.

No sampler, stream, packing or worker has to be understood for an exact rollback: the live iterator
stays where it is, and the micro-batches since the oldest checkpoint are served from here, with the
random generators set as they were after each fetch. So a collator that draws random numbers
repeats nothing and skips nothing.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from ..data.batches.batch_source import Batch, SeenExamples
from ..data.batches.mixing import MixChanges
from ..data.tokens.examples import IGNORED, Example, TextExample
from ..train.checkpoint.rng import RngState, capture_rng, restore_rng
from .held_tensor import DeviceCopies, HeldTensor

RNG_BYTES = 32_768
"""Memory of one state of the random generators of Python, NumPy and torch."""
DEFAULT_LIMIT_BYTES = 512 * 2**20
"""Host memory that the tape may use; 16 sequences of 2,048 tokens need 0.8 MB per step."""


@dataclass(slots=True)
class TapedBatch:
    """One micro-batch in host memory."""

    held: Any
    """The batch, with tensors replaced by `HeldTensor`."""
    epoch: int
    number: int
    """Position of the micro-batch in the run."""
    tokens: int | HeldTensor
    """Tokens without padding; counted on the device if the batch is there."""
    samples: int
    size_bytes: int
    fresh: Any = None
    """The batch as the loader made it, until it is served for the first time."""
    rng: RngState | None = None
    """Random generators after it was fetched; None if that changed none of them."""

    def serve(self) -> Any:
        """Return the batch, on the devices on which the loader put it.

        The first time it is the batch of the loader itself, later a copy.
        """
        fresh, self.fresh = self.fresh, None
        return _mapped(self.held, _served) if fresh is None else fresh

    def lacks_targets(self) -> bool:
        """Whether the batch has token labels, and all of them are ignored."""
        found = [held.tensor for name, held in _tensors(self.held) if name == "labels"]
        labels = [one for one in found if one.dim() > 1 and not one.is_floating_point()]
        return bool(labels) and not any(bool((one != IGNORED).any()) for one in labels)

    @property
    def counts(self) -> dict[str, Any]:
        """Tokens, rows and the check for targets, by the names under which the step counts them."""
        tokens = self.tokens
        known = tokens.tensor if isinstance(tokens, HeldTensor) else tokens
        checks = {"lacks_targets": self.lacks_targets}
        return {"token_count": known, "document_count": self.samples, **checks}


def _served(_: str, value: Any) -> Any:
    """Return a copy of a held tensor on its own device; anything else as it is."""
    return value.back() if isinstance(value, HeldTensor) else value


def _mapped(value: Any, leaf: Callable[[str, Any], Any], name: str = "") -> Any:
    """Return a copy of nested mappings and sequences with every leaf replaced.

    Args:
        value: what is copied.
        leaf: returns the replacement of a value, given the key of the mapping that it is in.
        name: the key of the mapping that `value` is in.
    """
    if isinstance(value, Tensor | HeldTensor):
        return leaf(name, value)
    if type(value) is dict:  # most batches; the others may be slower
        return {key: _mapped(item, leaf, str(key)) for key, item in value.items()}
    if isinstance(value, Mapping):
        copied: Any = copy.copy(value)
        for key in list(value):
            copied[key] = _mapped(value[key], leaf, str(key))
        return copied
    if isinstance(value, list | tuple):
        items = [_mapped(item, leaf, name) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return leaf(name, value)


def _copied(batch: Any) -> tuple[Any, list[tuple[str, HeldTensor]]]:
    """Return a batch with copies of its tensors, and these with the keys that they are under."""
    found: list[tuple[str, HeldTensor]] = []

    def keep(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        held = HeldTensor.of(value)
        found.append((name, held))
        return held

    return _mapped(batch, keep), found


def _tensors(value: Any) -> list[tuple[str, HeldTensor]]:
    """Return every tensor of a held batch with the key of the mapping that it is in."""
    found: list[tuple[str, HeldTensor]] = []

    def note(name: str, value: Any) -> Any:
        if isinstance(value, HeldTensor):
            found.append((name, value))
        return value

    _mapped(value, note)
    return found


def _count(named: list[tuple[str, HeldTensor]]) -> tuple[int | HeldTensor, int]:
    """Return the tokens of a batch, by its attention masks or else its token ids, and its rows.

    Tokens that a device counts are a `HeldTensor`, so that the host need not wait for them.
    """
    masks = [held.tensor for name, held in named if name.endswith("attention_mask")]
    ids = [held.tensor for name, held in named if name.endswith("input_ids")]
    shaped = next((one.tensor for _, one in named if one.tensor.dim()), None)
    counted = ids[0] if ids and ids[0].dim() else shaped
    rows = 1 if counted is None else max(1, counted.shape[0])
    counts = [torch.count_nonzero(mask) for mask in masks]
    if any(count.is_cuda for count in counts):
        device = counts[0].device
        return HeldTensor(sum(count.to(device) for count in counts[1:]) + counts[0], device), rows
    return sum(map(int, counts)) or sum(one.numel() for one in ids), rows


@dataclass(frozen=True)
class EpochPlace:
    """Where an epoch of the trainer lies in the run."""

    start: int
    """Position of its first micro-batch."""
    size: int
    """Micro-batches in it, by the count of the trainer; 0 if that is not known."""


class BatchTape:
    """The micro-batches of this rank: new ones from the live iterator, earlier ones from memory."""

    def __init__(
        self,
        accumulate: int,
        *,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        keeps: bool = True,
        log: Callable[[str, str], None],
        data_left_out: Callable[[], None] = lambda: None,
    ) -> None:
        self.position = 0
        self.serving = 0
        """The epoch of the trainer whose micro-batches are served."""
        self.size_bytes = 0
        """Host memory in use."""
        self.skipped = False
        """Whether data was left out."""
        self._accumulate = accumulate
        self._limit_bytes = limit_bytes
        self._keeps = keeps
        """Whether micro-batches are held after the step after theirs."""
        self._log = log
        self._data_left_out = data_left_out
        """Called when data was left out, before the next micro-batch is served."""
        self._first = 0
        """Position of the oldest micro-batch that is held."""
        self._taped: deque[TapedBatch] = deque()
        self._live: Iterator[Any] | None = None
        self._live_epoch = -1
        self._new_epoch = False
        self._places: dict[int, EpochPlace] = {}
        self._current: list[TapedBatch] = []
        self._previous: list[TapedBatch] = []
        self._copies = DeviceCopies()
        self._boundary: RngState | None = None
        """Random generators at the boundary; None once the step has its first micro-batch."""
        self._told = False

    @property
    def oldest(self) -> int:
        """The earliest position to which the tape can return."""
        return self._first

    @property
    def limit_text(self) -> str:
        """Which micro-batches the tape keeps, such as `those of the step in progress`."""
        if not self._keeps:
            return "those of the step in progress"
        limit = f"{self._limit_bytes / 2**20:.4g} MiB"
        return f"those since the oldest checkpoint, at most {limit} of host memory"

    @property
    def _end(self) -> int:
        return self._first + len(self._taped)

    def open(self, epoch: int, live: Iterator[Any], size: int, offset: int = 0) -> None:
        """Continue with the iterator of an epoch, unless the epoch was opened before.

        Args:
            epoch: number of the epoch.
            live: iterator over its micro-batches.
            size: micro-batches in the epoch; 0 if that is not known.
            offset: micro-batches of the epoch that an earlier process consumed.
        """
        if live is self._live or epoch <= self._live_epoch:
            return
        self._live, self._live_epoch, self._new_epoch = live, epoch, True
        self._places[epoch] = EpochPlace(self._end - offset, size)
        self.serving = epoch

    @property
    def live(self) -> Iterator[Any]:
        """The live iterator; an empty one before the first epoch."""
        return self._live if self._live is not None else iter(())

    def begin_step(self, generators: RngState) -> None:
        """Take note of the random generators at the boundary before a step."""
        self._boundary = generators

    def load(self, count: int) -> None:
        """Take the micro-batches from the live iterator that the next `fetch` will need.

        None are taken while an earlier epoch is served, and fewer at the end of the iterator.
        Errors of the loader pass through.
        """
        boundary, self._boundary = self._boundary, None
        if self._copies.due:
            self._copies.move()
        missing = self.position + count - self._end
        if missing <= 0 or self.serving != self._live_epoch or self._live is None:
            return
        before = boundary or capture_rng()
        new = 0
        for _ in range(missing):
            try:
                batch = self._next(self._live)
            except StopIteration:
                break
            self._append(batch)
            new += 1
        after = capture_rng()
        if new and (self._new_epoch or not _equal(before, after)):
            last = self._taped[-1]
            last.rng = after
            last.size_bytes += RNG_BYTES
            self.size_bytes += RNG_BYTES
        self._new_epoch = self._new_epoch and not new

    @staticmethod
    def _next(live: Iterator[Any]) -> Any:
        """Return the next batch of the script's loader.

        It is a function of its own, so that a measurement of fttui's cost can leave its time out.
        """
        return next(live)

    def recapture_rng(self) -> None:
        """Keep the present random generators with the newest batch, not those after its fetch."""
        self._taped[-1].rng = capture_rng()

    def _append(self, batch: Any) -> None:
        held, named = _copied(batch)
        tokens, samples = _count(named)
        size = sum([one.tensor.nbytes for _, one in named])
        taped = TapedBatch(held, self._live_epoch, self._end, tokens, samples, size, fresh=batch)
        self._taped.append(taped)
        counted = [tokens] if isinstance(tokens, HeldTensor) else []
        self._copies.add([*(one for _, one in named), *counted])
        self.size_bytes += size

    def fetch(self, micro_batches: int) -> list[Batch]:
        """Return the next micro-batches with their counts; fewer at the end of the epoch.

        One that is served again also sets the random generators as they were after it was first
        fetched.
        """
        found: list[tuple[TapedBatch, Any]] = []
        while len(found) < micro_batches and self.position < self._end:
            taped = self._at(self.position)
            if taped.epoch != self.serving:
                break
            again = taped.fresh is None
            batch = taped.serve()
            if again and taped.rng is not None:
                restore_rng(taped.rng)
            found.append((taped, batch))
            self.position += 1
        self._previous, self._current = self._current, [taped for taped, _ in found]
        self._shrink()
        return [{"batch": batch, **taped.counts} for taped, batch in found]

    def _at(self, position: int) -> TapedBatch:
        return self._taped[position - self._first]

    def prepare(self, micro_batches: int) -> None:
        """Do nothing: the loader itself prefetches."""

    def rewind_to(self, position: int) -> None:
        """Go back to the boundary of a step that was dropped, before the micro-batch `position`."""
        self.position = position
        self._current = self._previous
        self.serving = self.epoch_at(position)

    mix_changes: MixChanges = ()
    """None: a script mixes its data by itself."""

    def return_to(self, position: int, changes: MixChanges = ()) -> None:
        """Go to the position of a checkpoint; there are no changes of a mix."""
        self.position = position
        self._current, self._previous = [], []
        self.serving = self.epoch_at(position)

    def skip(self, micro_batches: int) -> None:
        """Leave out the data of whole steps, at most to the end of the epoch that is being read.

        A warning is logged if fewer were left. A remainder below a whole step is not left out.
        """
        steps, start = micro_batches // self._accumulate, self.position
        for done in range(steps):
            if not self._skip_step():
                text = f"only {done} of {steps} steps of data were left in epoch {self.serving}"
                self._log("warning", f"{text}; those were skipped")
                break
        if self.position != start:
            self.skipped = True
            self._data_left_out()
            self.serving = self.epoch_at(self.position)

    def _skip_step(self) -> bool:
        """Leave out the micro-batches of one step; False if the epoch has none left."""
        self.serving = self.epoch_at(self.position)
        self.load(self._accumulate)
        skipped = 0
        while skipped < self._accumulate and self.position < self._end:
            if self._at(self.position).epoch != self.serving:
                break
            self._at(self.position).fresh = None
            self.position += 1
            skipped += 1
        return skipped > 0

    def epoch_at(self, position: int) -> int:
        """Return the epoch of the micro-batch at a position that the tape holds or reads next.

        For any other position it is the newest epoch that was opened, 0 before the first.
        """
        if self._first <= position < self._end:
            return self._at(position).epoch
        return max(0, self._live_epoch)

    def consumed(self, epoch: int) -> int:
        """Return how many micro-batches of an epoch lie before the present position.

        0 for an epoch that was not opened.
        """
        place = self._places.get(epoch)
        return 0 if place is None else self.position - place.start

    @property
    def epoch(self) -> float:
        """Passes over the data so far, as a fraction; whole ones if the epoch's size is unknown."""
        place = self._places.get(self.serving)
        if place is None or not place.size:
            return float(self.serving)
        return self.serving + self.consumed(self.serving) / place.size

    def forget_before(self, position: int) -> None:
        """Free the micro-batches before a position, to which no checkpoint returns any more.

        Those of one step before the present position stay, because that step may be dropped.
        """
        while self._taped and self._first < min(position, self.position - self._accumulate):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self.size_bytes -= self._taped.popleft().size_bytes
        self._first += 1

    def _shrink(self) -> None:
        """Free micro-batches that need not be kept, and the oldest if the tape exceeds its limit.

        A warning is logged when the limit is exceeded for the first time.
        """
        if not self._keeps:
            self.forget_before(self.position - self._accumulate)
        while self.size_bytes > self._limit_bytes and self._first < self.position - len(
            self._current
        ):
            self._drop_oldest()
            if not self._told:
                self._told = True
                limit = f"{self._limit_bytes / 2**20:.4g} MiB"
                self._log(
                    "warning",
                    f"the batches kept for rollbacks need more than {limit} of host memory; the "
                    "oldest are removed, so that a rollback to the oldest checkpoints is not "
                    "possible; to keep more, use fttui.watch(…, tape_mib=N)",
                )

    @property
    def seen(self) -> SeenExamples:
        """The rows of the current and of the previous step."""
        return SeenExamples(TapedRows(self._current), TapedRows(self._previous))


class TapedRows(Sequence[Example]):
    """The rows of some micro-batches as examples; each is made when it is looked at."""

    def __init__(self, taped: Sequence[TapedBatch]) -> None:
        self._taped = taped

    def __len__(self) -> int:
        return sum(taped.samples for taped in self._taped)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        row = range(len(self))[index]
        for taped in self._taped:
            if row < taped.samples:
                return _example(taped, row)
            row -= taped.samples
        raise IndexError(index)


def _example(taped: TapedBatch, row: int) -> TextExample:
    found = (held.tensor for name, held in _tensors(taped.held) if name.endswith("input_ids"))
    ids = next(found, None)
    known = ids is not None and ids.dim() == 2 and row < len(ids)
    tokens = ids[row].tolist() if ids is not None and known else []
    return TextExample(f"epoch {taped.epoch}, batch {taped.number}, row {row}", tokens, tokens)


def _equal(one: RngState, other: RngState) -> bool:
    """Whether the generators of the host are in the same state.

    A state that has not changed since the last capture is usually the same object.
    """
    return (
        (one["cpu"] is other["cpu"] or torch.equal(one["cpu"], other["cpu"]))
        and (one["python"] is other["python"] or one["python"] == other["python"])
        and (one["numpy"] is other["numpy"] or _equal_numpy(one["numpy"], other["numpy"]))
    )


def _equal_numpy(one: RngState, other: RngState) -> bool:
    """Whether two states of NumPy's generator, of whatever kind, are equal."""
    return bool(_plain(one) == _plain(other))


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state
