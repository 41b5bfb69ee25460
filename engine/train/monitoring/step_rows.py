"""The rows of an alert's step and of the step before, of all ranks: samples and single losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from ...core.reports.anomaly_report import Module, TrainingSample
from ...core.reports.row_losses import CURRENT, PREVIOUS, Row
from ...data.batches.batch_source import SeenExamples
from ...data.tokens.examples import Example, PackedExample, PairExample
from ..distributed.agreement import Agreement

_SAMPLES_PER_BATCH = 8
_PREVIEW_TOKENS = 40


class RowLoss(NamedTuple):
    """The loss of one row, and its weight in the mean over a step."""

    loss: float
    weight: float = 1.0


RowLosses = Callable[[Sequence[Example]], Sequence[RowLoss]]
"""Computes the losses of rows one by one, with the present weights, without a trace on the run.

Each rank may call it alone. It raises `NoRowLosses` if no part of the loss belongs to one row.
"""


class NoRowLosses(ValueError):
    """The losses of single rows cannot be computed; the message says why."""


class StepRows(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks know about the rows of an alert's step and of the step before."""

    samples: list[TrainingSample] = []
    rows: list[Row] = []
    """Rows with their losses; empty if these were not computed."""
    modules: list[Module] = []
    missing: str = ""
    """Why the losses of rows are not known; empty if they are or if nobody asked for them."""


_gathered = msgspec.msgpack.Decoder(StepRows)


class RowReader:
    """Describes the rows of a step on this rank and gathers those of all ranks."""

    def __init__(
        self, agreement: Agreement, tokenizer: Any, losses: RowLosses | None = None
    ) -> None:
        """Take what is needed to describe rows.

        Args:
            agreement: gathers from all ranks.
            tokenizer: decodes rows.
            losses: computes losses of rows; None if the trainer cannot.
        """
        self._agreement = agreement
        self._tokenizer = tokenizer
        self._losses = losses

    @property
    def can_compute(self) -> bool:
        """Whether losses of rows can be computed."""
        return self._losses is not None

    def read(self, seen: SeenExamples, modules: list[Module], *, losses: bool) -> StepRows:
        """Return the rows of all ranks, and the modules of the first rank that has any.

        If a rank cannot compute its losses, there are no rows, and `missing` says why. All ranks
        call this together.

        Args:
            seen: the examples that this rank trained on.
            modules: norms of modules on this rank.
            losses: whether to compute the losses of rows.
        """
        own = self._own(seen, losses=losses)
        own = msgspec.structs.replace(own, modules=modules)
        every = [_gathered.decode(one) for one in self._agreement.gather(_encoded(own))]
        missing = next((one.missing for one in every if one.missing), "")
        return StepRows(
            samples=[sample for one in every for sample in one.samples],
            rows=[] if missing else [row for one in every for row in one.rows],
            modules=next((one.modules for one in every if one.modules), []),
            missing=missing,
        )

    def _own(self, seen: SeenExamples, *, losses: bool) -> StepRows:
        batches = {CURRENT: records(seen.current), PREVIOUS: records(seen.previous)}
        found: dict[str, Sequence[RowLoss]] = {}
        missing = ""
        if losses:
            try:
                found = self._computed(batches)
            except Exception as error:  # noqa: BLE001 -- a report without losses beats none
                missing = (
                    str(error)
                    if isinstance(error, NoRowLosses)
                    else f"computing them failed: {error}"
                )
        return StepRows(
            samples=[
                sample
                for batch, examples in batches.items()
                for sample in self._samples(batch, examples, found.get(batch))
            ],
            rows=[
                row
                for batch, lost in found.items()
                for row in self._rows(batch, batches[batch], lost)
            ],
            missing=missing,
        )

    def _computed(self, batches: dict[str, list[Example]]) -> dict[str, Sequence[RowLoss]]:
        if self._losses is None:
            raise NoRowLosses("the loss is computed by code that fttui does not own")
        return {batch: self._losses(examples) for batch, examples in batches.items() if examples}

    def _rows(
        self, batch: str, examples: Sequence[Example], losses: Sequence[RowLoss]
    ) -> list[Row]:
        return [
            Row(
                rank=self._agreement.rank,
                batch=batch,
                id=example.id,
                place=example.place,
                loss=one.loss,
                weight=one.weight,
            )
            for example, one in zip(examples, losses, strict=True)
        ]

    def _samples(
        self, batch: str, examples: Sequence[Example], losses: Sequence[RowLoss] | None
    ) -> list[TrainingSample]:
        """Return up to `_SAMPLES_PER_BATCH` samples of a batch on this rank.

        They are those with the highest losses, or the first ones if losses are not known (None).
        """
        known: list[float | None] = [None] * len(examples)
        if losses is not None:
            known = [one.loss for one in losses]
        ranked = sorted(range(len(examples)), key=lambda index: -_size(known[index]))
        return [
            self._sample(batch, examples[index], known[index])
            for index in ranked[:_SAMPLES_PER_BATCH]
        ]

    def _sample(self, batch: str, example: Example, loss: float | None) -> TrainingSample:
        return TrainingSample(
            rank=self._agreement.rank,
            batch=batch,
            id=example.id,
            tokens=example.length,
            preview=self._preview(example),
            place=example.place,
            loss=loss,
        )

    def _preview(self, example: Example) -> str:
        if isinstance(example, PairExample):
            return f"{self._decode(example.anchor)} → {self._decode(example.positive)}"
        return self._decode(example.input_ids)

    def _decode(self, ids: list[int]) -> str:
        text = str(self._tokenizer.decode(ids[:_PREVIEW_TOKENS], skip_special_tokens=True))
        return " ".join(text.split()) + (" …" if len(ids) > _PREVIEW_TOKENS else "")


def records(examples: Sequence[Example]) -> list[Example]:
    """Return the records of examples: the documents of packed rows, and all others as they are."""
    found: list[Example] = []
    for example in examples:
        found += example.documents if isinstance(example, PackedExample) else [example]
    return found


def _size(loss: float | None) -> float:
    """Return a loss by which rows are ordered: 0 for None, infinity if it is not finite."""
    if loss is None:
        return 0.0
    return loss if math.isfinite(loss) else math.inf


def _encoded(rows: StepRows) -> bytes:
    return msgspec.msgpack.encode(rows)
