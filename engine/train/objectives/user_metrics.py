"""Metrics that the user's own Python functions compute from completions of held-out records.

An error in such a function is a warning, and its metric is missing from that evaluation.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ...config.checks.user_metrics import named_function
from ...config.model_limits import ModelLimits
from ...data.dataset import Example
from ...data.tokens.examples import PreferenceExample, RatedExample, TextExample
from ...errors import FttuiError, TrainingFailed
from ...losses.cross_entropy import IGNORED
from ..checkpoint.rng import capture_rng, restore_rng
from ..distributed.agreement import Agreement, attempt

MetricFunction = Callable[..., Any]
Generate = Callable[[list[list[int]]], list[list[int]]]
Log = Callable[[str, str], None]
RAISED = (Exception, SystemExit)
"""What the user's code may raise without ending the run; a script may call `sys.exit`."""


@dataclass(frozen=True)
class PromptedRecord:
    """A held-out record whose last answer is to be generated."""

    prompt_ids: list[int]
    """The tokens before the answer."""
    answer_ids: list[int]
    """The tokens of the answer in the record."""


def prompted(example: Example) -> PromptedRecord | None:
    """Return the record of an example; None without a prompt, or without a good answer."""
    match example:
        case TextExample():
            text = example
        case PreferenceExample(chosen=chosen):
            text = chosen
        case RatedExample(text=rated, desirable=True):
            text = rated
        case _:
            return None
    targets = [n for n, label in enumerate(text.labels) if n and label != IGNORED]
    if not targets:
        return None
    start = end = targets[-1]
    while start > 1 and text.labels[start - 1] != IGNORED:
        start -= 1
    prompt = text.input_ids[:start]
    # A text that is learned from its first token on has no prompt.
    return PromptedRecord(prompt, text.input_ids[start : end + 1]) if start > 1 else None


def answerable(
    records: Sequence[PromptedRecord], tokens: int, limits: ModelLimits, log: Log
) -> list[PromptedRecord]:
    """Return the records whose answer fits after the prompt in a model with fixed positions.

    Such a model cannot run beyond them; on a GPU the attempt would end the process. The others are
    counted in a warning.

    Args:
        records: the records.
        tokens: largest number of tokens of an answer.
        limits: the limits of the model.
        log: receives a level and a text.
    """
    if not limits.fixed or limits.positions is None:
        return list(records)
    kept = [one for one in records if len(one.prompt_ids) + tokens <= limits.positions]
    if left_out := len(records) - len(kept):
        log(
            "warning",
            f"eval.metrics: {left_out} of {len(records)} held-out records are left out, because "
            f"prompt and eval.metric_tokens: {tokens} are longer than the {limits.positions:,} "
            "positions of the model; lower eval.metric_tokens",
        )
    return kept


class UserMetrics:
    """Generates completions for held-out records and passes them to the user's functions."""

    def __init__(
        self,
        functions: Mapping[str, MetricFunction],
        records: Sequence[PromptedRecord],
        tokenizer: Any,
        agreement: Agreement,
        log: Log,
        *,
        sharded: bool = False,
    ) -> None:
        """Keep the parts.

        Args:
            functions: the functions by the names of their metrics, the same on every rank.
            records: the records, the same on every rank.
            tokenizer: decodes prompts, completions and answers.
            agreement: the ranks, each of which takes its share of the records.
            log: receives a level and a text.
            sharded: whether the model is split over the ranks.
        """
        self._sharded = sharded
        self._functions = functions
        self._records = records
        self._tokenizer = tokenizer
        self._agreement = agreement
        self._log = log
        self._at_once: int | None = None
        """Prompts at once that fit in the memory; None as long as all that were tried did."""
        self._told: set[str] = set()
        """Warnings about completions that were logged; each of them is logged once."""

    def measure(
        self, generate: Generate, batch: int, pause: Callable[[], None]
    ) -> dict[str, float]:
        """Return the metrics that could be computed; every rank enters this together.

        Args:
            generate: returns the tokens generated after each of some prompts.
            batch: prompts at once.
            pause: called before each batch, on all ranks together; it may end the evaluation.
        """
        ranks = self._agreement.world_size
        own = self._records[self._agreement.rank :: ranks]
        completions: list[list[int]] = []
        error = None
        for start in range(0, math.ceil(len(self._records) / ranks), batch):
            pause()
            prompts = [one.prompt_ids for one in own[start : start + batch]]
            more = partial(self._extend, completions, generate, prompts)
            if self._sharded:
                self._require(more)
            else:
                error = error or attempt(more)
        if errors := self._agreement.errors(error):
            names = ", ".join(self._functions)
            self._tell(f"no completions for the metrics {names}: {'; '.join(errors)}")
            return {}
        found = {name: self._mean(name, self._said(own, completions)) for name in self._functions}
        return {name: value for name, value in found.items() if value is not None}

    def _require(self, generate: Callable[[], None]) -> None:
        """Generate with a model that is split over the ranks, where no rank can continue alone.

        The others wait for the parts of a rank that failed, so it ends, which they notice at once.

        Raises:
            TrainingFailed: it failed; the text names the rank and what to do.
        """
        if failed := attempt(generate):
            raise TrainingFailed(
                f"rank {self._agreement.rank} could not generate completions for "
                f"{', '.join(self._functions)}: {failed}; with train.strategy: fsdp the other "
                "ranks cannot continue without it. Lower eval.metric_tokens, or leave out "
                "eval.metrics"
            )

    def _extend(
        self, completions: list[list[int]], generate: Generate, prompts: list[list[int]]
    ) -> None:
        """Add the completions of prompts; with a split model, every rank generates."""
        if prompts:
            completions += self._generated(generate, prompts)
        elif self._sharded:
            generate([self._records[0].prompt_ids])

    def _generated(self, generate: Generate, prompts: list[list[int]]) -> list[list[int]]:
        """Return the completions of prompts, generated in halves as long as they do not fit.

        Raises:
            FttuiError: a single one does not fit in the memory.
            torch.OutOfMemoryError: they do not fit, and the model is split over the ranks.
        """
        size = min(self._at_once or len(prompts), len(prompts))
        parts = [prompts[n : n + size] for n in range(0, len(prompts), size)]
        if len(parts) > 1:
            return [one for part in parts for one in self._generated(generate, part)]
        try:
            return generate(prompts)
        except torch.OutOfMemoryError:
            if self._sharded:
                raise
        torch.cuda.empty_cache()  # the error has kept the tensors alive until here
        if size == 1:
            raise FttuiError(
                "a completion does not fit in the memory of the device, so these metrics are "
                "missing; lower eval.metric_tokens"
            )
        self._at_once = size // 2
        self._tell(
            f"eval.metrics: {size} prompts at once do not fit in the memory of the device; it "
            f"continues with {self._at_once}: set eval.batch: {self._at_once}"
        )
        return self._generated(generate, prompts)

    def _tell(self, text: str) -> None:
        """Log a warning, unless the same one was logged before."""
        if text not in self._told:
            self._told.add(text)
            self._log("warning", text)

    def _said(
        self, own: Sequence[PromptedRecord], completions: list[list[int]]
    ) -> dict[str, list[str]]:
        return {
            "prompts": self._texts([one.prompt_ids for one in own]),
            "completions": self._texts(completions),
            "references": self._texts([one.answer_ids for one in own]),
        }

    def _texts(self, tokens: list[list[int]]) -> list[str]:
        return [str(self._tokenizer.decode(ids, skip_special_tokens=True)) for ids in tokens]

    def _mean(self, name: str, texts: dict[str, list[str]]) -> float | None:
        """Return the mean of a metric over the records of all ranks; None if it is missing."""
        error, scores = None, list[float]()
        try:
            if texts["prompts"]:
                scores = scores_of(self._functions[name](**texts), len(texts["prompts"]))
        except RAISED as raised:
            error = f"{type(raised).__name__}: {raised}"
        if errors := self._agreement.errors(error):
            self._log("warning", f"metric {name} is missing: {'; '.join(errors)}")
            return None
        counted = [score for score in scores if math.isfinite(score)]
        rows = self._agreement.rows([sum(counted), len(counted), len(scores) - len(counted)])
        total, count, left_out = (sum(column) for column in zip(*rows, strict=True))
        if left_out:
            text = f"{left_out:.0f} of {left_out + count:.0f} scores are left out: not finite"
            self._log("warning", f"metric {name}: {text}")
        return total / count if count else None


def scores_of(returned: Any, expected: int) -> list[float]:
    """Return what a function returned as numbers; None becomes NaN.

    Raises:
        TypeError: it is not a list of numbers.
        ValueError: it has another length than the completions.
    """
    try:
        scores = [math.nan if one is None else float(one) for one in returned]
    except (TypeError, ValueError):
        kind = type(returned).__name__
        raise TypeError(f"got {kind}, expected a list with a number per completion") from None
    if len(scores) != expected:
        raise ValueError(f"got {len(scores)} scores, expected {expected}, one per completion")
    return scores


def load_functions(entries: Sequence[str], log: Log) -> dict[str, MetricFunction]:
    """Return the user's functions by their names; one that cannot be loaded fails when called.

    A file with several functions is executed once. Random generators are as before.
    """
    found, modules, rng = {}, dict[str, ModuleType](), capture_rng()
    try:
        for entry in entries:
            file, name = named_function(entry)
            found[name] = _loaded(file, name, modules, log)
    finally:
        restore_rng(rng)
    return found


def _loaded(file: str, name: str, modules: dict[str, ModuleType], log: Log) -> MetricFunction:
    try:
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
        if file not in modules:
            modules[file] = _executed(file)
        function: MetricFunction = getattr(modules[file], name)
    except RAISED as error:
        text = f"{file} cannot be loaded: {type(error).__name__}: {error}"
        log("warning", f"metric {name} will be missing: {text}")

        def missing(*_: Any, **__: Any) -> Any:
            raise RuntimeError(text)

        return missing
    log("info", f"metric {name} is computed by {file} (sha256 {digest})")
    return function


def _executed(file: str) -> ModuleType:
    """Execute a file as a module; it is known by its name, as dataclasses and pickling need."""
    known_as = f"fttui_metric_{hashlib.sha256(file.encode()).hexdigest()[:12]}"
    spec = util.spec_from_file_location(known_as, file)
    assert spec is not None, "a file that ends with .py has a loader"
    assert spec.loader is not None
    module = sys.modules[known_as] = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(known_as, None)
        raise
    return module


def generated(model: Any, prompts: list[list[int]], tokens: int, **options: Any) -> list[list[int]]:
    """Return the tokens generated after each prompt by greedy decoding.

    Args:
        model: the model.
        prompts: the tokens of the prompts.
        tokens: largest number of tokens after a prompt.
        options: further arguments of `generate`, `pad_token_id` among them.
    """
    pad, longest = options["pad_token_id"] or 0, max(map(len, prompts))
    device = next(iter(model.parameters())).device
    before = [longest - len(one) for one in prompts]
    rows = zip(before, prompts, strict=True)
    ids = torch.tensor([[pad] * room + one for room, one in rows], device=device)
    mask = torch.ones_like(ids)
    for row, room in enumerate(before):
        mask[row, :room] = 0
    settings = {"max_new_tokens": tokens, "do_sample": False, "use_cache": True, **options}
    output = model.generate(input_ids=ids, attention_mask=mask, **settings)
    return [list(row) for row in output[:, longest:].tolist()]
