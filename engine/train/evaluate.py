"""Evaluation and sample generation between steps; leaves every random generator as it was."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..config.schema import RunConfig
from ..data.dataset import Example
from ..losses.cross_entropy import selected_cross_entropy
from ..model.hidden import HiddenStates, lm_head_of
from .agree import Agreement
from .objective import PairLoss, pair_loss
from .rng import capture_rng, restore_rng
from .source import Batch


@dataclass(frozen=True)
class EvalResult:
    """One evaluation."""

    metrics: dict[str, float]
    seconds: float


class Evaluator:
    """Evaluates the present adapter on held-out examples, each rank on its share."""

    def __init__(
        self,
        config: RunConfig,
        trainer: Any,
        tokenizer: Any,
        examples: Sequence[Example],
        collate: Callable[[Sequence[Example]], Batch],
        *,
        agreement: Agreement,
        progress: Callable[[str, float, float], None],
        weights: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._config = config
        self._trainer = trainer
        self._tokenizer = tokenizer
        self._examples = sorted(examples, key=lambda example: example.length)
        self._collate = collate
        self._agreement = agreement
        self._progress = progress
        self._weights = weights
        """Puts the weights to evaluate into the model for a while."""

    def __len__(self) -> int:
        """Held-out examples."""
        return len(self._examples)

    def evaluate(self) -> EvalResult:
        """Loss and the task's metrics over all held-out examples."""
        started = time.monotonic()
        with self._quietly(), HiddenStates(self._trainer.model) as hidden:
            run = self._pairs if self._config.task == "contrastive" else self._text
            metrics = run(hidden)
        return EvalResult(metrics, time.monotonic() - started)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        rng = capture_rng()
        model = self._trainer.model
        was_training = model.training
        model.eval()
        try:
            with self._weights(), torch.no_grad(), self._trainer.compute_loss_context_manager():
                yield
        finally:
            model.train(was_training)
            restore_rng(rng)

    def _batches(self) -> Iterator[Batch]:
        size = self._config.eval.batch or self._config.train.batch
        own = self._examples[self._agreement.rank :: self._agreement.world_size]
        total = math.ceil(len(own) / size)
        for number in range(total):
            batch = self._collate(own[number * size : (number + 1) * size])
            batch.pop("ids", None)
            yield self._trainer._prepare_inputs(batch)
            self._progress("evaluating", number + 1, total)

    def _forward(self, hidden: HiddenStates, batch: Batch) -> Tensor:
        self._trainer.model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], logits_to_keep=1
        )
        return hidden.take()

    def _text(self, hidden: HiddenStates) -> dict[str, float]:
        head = lm_head_of(self._trainer.model)
        ce_sum = tokens = 0.0
        for batch in self._batches():
            loss, count = selected_cross_entropy(
                self._forward(hidden, batch), batch["labels"], head
            )
            ce_sum, tokens = ce_sum + float(loss), tokens + float(count)
        ce_sum, tokens = self._sums([ce_sum, tokens])
        loss_mean = ce_sum / max(tokens, 1.0)
        return {"loss": loss_mean, "perplexity": math.exp(min(loss_mean, 700.0))}

    def _pairs(self, hidden: HiddenStates) -> dict[str, float]:
        head = lm_head_of(self._trainer.model)
        config = self._config.contrastive
        found: list[PairLoss] = [
            pair_loss(config, self._forward(hidden, batch), batch, head)
            for batch in self._batches()
        ]
        hits, anchors = self._recall(found)
        sums = self._sums(
            [
                sum(float(f.ce_sum) for f in found),
                sum(float(f.tokens) for f in found),
                sum(float(f.contrastive.loss_sum) for f in found),
                sum(float(f.contrastive.count) for f in found),
                hits,
                anchors,
            ]
        )
        ce, contrastive = sums[0] / max(sums[1], 1.0), sums[2] / max(sums[3], 1.0)
        return {
            "loss": config.ce_weight * ce + config.weight * contrastive,
            "ce": ce,
            "contrastive": contrastive,
            "recall_at_1": sums[4] / max(sums[5], 1.0),
        }

    def _recall(self, found: list[PairLoss]) -> tuple[float, float]:
        """How many anchors of this rank find their own positive first among all of its share."""
        if not found:
            return 0.0, 0.0
        anchors = torch.nn.functional.normalize(torch.cat([f.anchors for f in found]), dim=-1)
        positives = torch.nn.functional.normalize(torch.cat([f.positives for f in found]), dim=-1)
        best = (anchors @ positives.T).argmax(dim=1)
        own = torch.arange(len(anchors), device=best.device)
        return float((best == own).sum()), float(len(anchors))

    def _sums(self, values: list[float]) -> list[float]:
        rows = self._agreement.rows(values)
        return [sum(column) for column in zip(*rows, strict=True)]

    def sample(self, prompt: str) -> str:
        """Greedy text from the present adapter."""
        with self._quietly():
            inputs = self._encode(prompt).to(self._trainer.args.device)
            output = self._trainer.model.generate(
                **inputs,
                max_new_tokens=self._config.eval.sample_tokens,
                do_sample=False,
                use_cache=True,
                pad_token_id=self._tokenizer.pad_token_id,
            )
        new = output[0, inputs["input_ids"].shape[1] :]
        return str(self._tokenizer.decode(new, skip_special_tokens=True))

    def _encode(self, prompt: str) -> Any:
        if not self._tokenizer.chat_template:
            return self._tokenizer(prompt, return_tensors="pt")
        return self._tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
