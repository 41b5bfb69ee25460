"""Metrics that functions of the user measure on the embedding model of a run.

An error in such a function is a warning, and its metric is missing from that evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ...distributed.agreement import Agreement
from ..user_metrics import RAISED, Log, MetricFunction
from .embedder import Embedder


class EmbeddingMetrics:
    """Passes the embedding model to the user's functions, each of which returns a number."""

    def __init__(
        self,
        functions: Mapping[str, MetricFunction],
        agreement: Agreement,
        log: Log,
        *,
        sharded: bool = False,
    ) -> None:
        """Keep the parts.

        Args:
            functions: the functions by the names of their metrics, the same on every rank.
            agreement: the ranks, of which the first one measures.
            log: receives a level and a text.
            sharded: whether the model is split, so that all ranks have to run it together.
        """
        self._functions = functions
        self._agreement = agreement
        self._log = log
        self._measures = sharded or agreement.rank == 0

    def measure(self, model: Embedder, pause: Callable[[], None]) -> dict[str, float]:
        """Return the metrics that could be measured; every rank enters this together.

        Args:
            model: embeds texts with the weights to evaluate.
            pause: called before each function, on all ranks together; it may end the evaluation.
        """
        found = {}
        for name, function in self._functions.items():
            pause()
            value = self._value(name, function, model)
            if value is not None:
                found[name] = value
        return found

    def _value(self, name: str, function: MetricFunction, model: Embedder) -> float | None:
        error, value = None, math.nan
        try:
            if self._measures:
                value = _number(function(model))
        except RAISED as raised:
            error = f"{type(raised).__name__}: {raised}"
        if errors := self._agreement.errors(error):
            self._log("warning", f"metric {name} is missing: {'; '.join(errors)}")
            return None
        [[first], *_] = self._agreement.rows([value])
        if not math.isfinite(first):
            self._log("warning", f"metric {name} is missing: it is {first}")
            return None
        return float(first)


def _number(returned: Any) -> float:
    """Return what a function returned as a number.

    Raises:
        TypeError: it is none, such as the figures of an evaluator.
    """
    try:
        return float(returned)
    except (TypeError, ValueError):
        hint = ""
        if isinstance(returned, Mapping):
            hint = "; choose one, as in evaluator(model)[evaluator.primary_metric]"
        kind = type(returned).__name__
        raise TypeError(f"got {kind}, expected a number{hint}") from None
