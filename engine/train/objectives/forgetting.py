"""Forgetting meter: the loss on general texts now, and its rise above that of the base model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import msgspec
import torch

from ...config.schema import ForgettingConfig, RunConfig
from ...data.batches.batch_source import Batch
from ...data.general_texts import read_texts
from ...errors import ConfigError, DataError
from ...losses.cross_entropy import IGNORED
from ...protocol.events import ForgettingBaseMeasured
from ..distributed.agreement import Agreement
from .evaluator import Evaluator, HeldOut
from .reference import BaseReference

Interrupted = Callable[[], bool]
_LEAST_TOKENS = 2
"""A text of fewer tokens has nothing to predict."""


class TokenizedTexts(NamedTuple):
    """The texts as token ids, and what became of them."""

    ids: list[list[int]]
    truncated: int
    digest: str
    """Hash of the token ids, by which equal texts are recognized after a resume."""

    @property
    def fact(self) -> str:
        """The texts in words, such as `196 texts, 11,204 tokens`."""
        tokens = sum(map(len, self.ids))
        cut = f", {self.truncated} truncated" if self.truncated else ""
        return f"{len(self.ids)} texts, {tokens:,} tokens{cut}"


def tokenized(config: ForgettingConfig, tokenizer: Any) -> TokenizedTexts:
    """Return the texts of a configuration as token ids.

    Raises:
        DataError: the file cannot be read, or no text has two tokens.
    """
    assert config.texts is not None, "called only with texts"
    whole = [list(tokenizer(text)["input_ids"]) for text in read_texts(config.texts, config.limit)]
    known = [ids for ids in whole if len(ids) >= _LEAST_TOKENS]
    if not known:
        raise DataError(f"forgetting.texts: no text of {config.texts} has two tokens or more")
    ids = sorted((one[: config.max_length] for one in known), key=len)
    truncated = sum(len(one) > config.max_length for one in known)
    digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]
    return TokenizedTexts(ids, truncated, digest)


def padded(texts: Sequence[Sequence[int]]) -> Batch:
    """Return a batch of texts, [B, T], in which every token but padding is a target."""
    longest = max(map(len, texts))
    shape = len(texts), longest
    batch = {
        "input_ids": torch.zeros(shape, dtype=torch.int64),
        "attention_mask": torch.zeros(shape, dtype=torch.int64),
        "labels": torch.full(shape, IGNORED, dtype=torch.int64),
    }
    for row, ids in enumerate(texts):
        values = torch.tensor(ids)
        batch["input_ids"][row, : len(ids)] = batch["labels"][row, : len(ids)] = values
        batch["attention_mask"][row, : len(ids)] = 1
    return batch


class ForgettingMeter:
    """Measures the loss on general texts with the present weights, and once with the base model."""

    def __init__(
        self,
        evaluator: Evaluator,
        texts: TokenizedTexts,
        base: Callable[[], AbstractContextManager[None]] | None,
        known: ForgettingBaseMeasured | None,
        record: Callable[[ForgettingBaseMeasured], None],
    ) -> None:
        """Measure nothing yet.

        Args:
            evaluator: computes the loss.
            texts: the texts.
            base: context in which the model is the base model; None if only the model before its
                first step is.
            known: what an earlier process of the run has measured of the base model.
            record: journals the loss of the base model.
        """
        self._evaluator = evaluator
        self._texts = texts
        self._base = base
        self._known = known if known is not None and known.digest == texts.digest else None
        self._record = record
        self._held_out = HeldOut(texts.ids, padded, "general texts")
        self.fact = texts.fact
        """The texts in words."""

    def begin(self, step: int) -> None:
        """Measure the model before its first step, if it is the base only then; a collective.

        Raises:
            ConfigError: steps are done already, and no process before them has measured it.
        """
        if self._base is not None or self._known is not None:
            return
        if step > 0:
            raise ConfigError(
                "forgetting.texts: without an adapter, or with one that replaces a part of the "
                "base weights, the base can be measured only before step 1, and this run did not "
                "measure it with these texts; set forgetting.texts: null, or start a new run"
            )
        self._keep(self._loss(lambda: False))

    def measure(self, eval_loss: float, interrupted: Interrupted) -> dict[str, float]:
        """Return the metrics of the present weights, beside the loss of an evaluation.

        Raises:
            EvaluationInterrupted: the run is to stop.
        """
        if self._known is None:
            assert self._base is not None, "begin() comes first"
            with self._base():
                self._keep(self._loss(interrupted))
        assert self._known is not None
        loss = self._loss(interrupted)
        rise = loss - self._known.loss
        return {
            "forgetting.loss": loss,
            "forgetting.rise": rise,
            "forgetting.balance": eval_loss + rise,
        }

    def _loss(self, interrupted: Interrupted) -> float:
        return self._evaluator.next_token_loss(self._held_out, interrupted)

    def _keep(self, loss: float) -> None:
        ids, digest = self._texts.ids, self._texts.digest
        tokens = sum(map(len, ids))
        self._known = ForgettingBaseMeasured(
            loss=loss, texts=len(ids), tokens=tokens, digest=digest
        )
        self._record(self._known)


def forgetting_of(
    config: RunConfig,
    evaluator: Evaluator,
    model: Any,
    tokenizer: Any,
    agreement: Agreement,
    known: ForgettingBaseMeasured | None,
    record: Callable[[ForgettingBaseMeasured], None],
) -> ForgettingMeter | None:
    """Return the forgetting meter of a run, None if it has none; all ranks call this together.

    Args:
        config: configuration of the run.
        evaluator: computes losses.
        model: the model with its adapter.
        tokenizer: tokenizer of the model.
        agreement: agreement of the ranks.
        known: what an earlier process has measured of the base; only that of rank 0 counts.
        record: journals the loss of the base model.

    Raises:
        DataError: the texts cannot be read.
    """
    if config.forgetting.texts is None:
        return None
    shared = agreement.share(msgspec.msgpack.encode(known))
    before = msgspec.msgpack.decode(shared, type=ForgettingBaseMeasured | None)
    at_start = config.adapter.kind == "none" or config.adapter.starts_beside_base
    base = None if at_start else BaseReference(model)
    return ForgettingMeter(evaluator, tokenized(config.forgetting, tokenizer), base, before, record)
