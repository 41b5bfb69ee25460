"""Evaluator: evaluates and generates samples between steps; random generators are restored."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...config.model_limits import ModelLimits
from ...config.schema import RunConfig
from ...config.tasks import PREFERENCE_TASKS
from ...data.batches.batch_source import Batch
from ...data.dataset import Example
from ...losses.cross_entropy import IGNORED, selected_cross_entropy
from ...losses.masks import Texts
from ...losses.weights import drop_weights
from ...model.hidden import lm_head_of
from ...protocol.commands import Chat
from ..control.command_scheduler import Impossible
from ..control.controlled_trainer import EvalResult, EvaluationInterrupted
from ..distributed.agreement import Agreement
from ..event_log import EventLog
from ..forward import States
from .chat import MODEL, ChatModel, ChatResponder, chat_notes, why_no_base
from .contrastive import PairTexts, across_ranks, join
from .embedding.embedder import Embedder
from .embedding.metrics import EmbeddingMetrics
from .evaluation_batch import EvaluationBatch
from .evaluation_mode import evaluation_mode, states_of
from .preference import evaluate_preferences
from .reward import evaluate_rewards
from .user_metrics import UserMetrics, answerable, generated, load_functions, prompted


class HeldOut(NamedTuple):
    """Examples that are evaluated, the shortest first."""

    examples: Sequence[Any]
    collate: Callable[[Sequence[Any]], Batch]
    label: str
    """What is done with them, for the progress."""


class Evaluator:
    """Evaluates the weights, or their average, on held-out examples, each rank on its share."""

    def __init__(
        self,
        config: RunConfig,
        trainer: Any,
        tokenizer: Any,
        examples: Sequence[Example],
        collate: Callable[[Sequence[Example]], Batch],
        *,
        agreement: Agreement,
        event_log: EventLog,
        weights: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._config = config
        self._trainer = trainer
        self._tokenizer = tokenizer
        self._given = examples
        ordered = sorted(examples, key=lambda example: example.length)
        self._held_out = HeldOut(ordered, collate, "evaluating")
        self._agreement = agreement
        self._progress = event_log.progress
        self._weights = weights
        """Context in which the model holds the weights to evaluate."""
        self._batch = EvaluationBatch(
            config.eval.batch or config.train.micro_batch_size,
            alone=agreement.world_size == 1,
            free_graphs=lambda: trainer.forward.release(),
            log=event_log.log,
        )

        self._measured: UserMetrics | None = None
        self._embedding: EmbeddingMetrics | None = None
        """What computes the metrics of the user's functions; one of both at most."""
        if config.eval.metrics and config.task == "contrastive":
            functions = load_functions(config.eval.metrics, event_log.log)
            sharded = config.train.shards
            self._embedding = EmbeddingMetrics(functions, agreement, event_log.log, sharded=sharded)
        elif config.eval.metrics:
            self._measured = self._with_functions(event_log)

    def _with_functions(self, event_log: EventLog) -> UserMetrics:
        """Return what computes the metrics of the user's functions from the first records."""
        records = [one for one in map(prompted, self._given) if one is not None]
        wanted = self._config.eval.metric_records
        tokens = self._config.eval.metric_tokens
        if not records:
            event_log.log("warning", "eval.metrics: no held-out record has a prompt and an answer")
        return UserMetrics(
            load_functions(self._config.eval.metrics, event_log.log),
            answerable(records, tokens, self._limits, event_log.log)[:wanted],
            self._tokenizer,
            self._agreement,
            event_log.log,
            sharded=self._config.train.shards,
        )

    def __len__(self) -> int:
        """Return the number of held-out examples."""
        return len(self._held_out.examples)

    def evaluate(self, interrupted: Callable[[], bool]) -> EvalResult:
        """Return the loss and the metrics of the task over all held-out examples.

        If the device runs out of memory, a single rank evaluates fewer examples at once.

        Args:
            interrupted: called before each batch by all ranks together; True ends the evaluation.

        Raises:
            EvaluationInterrupted: the run is to stop; nothing was changed.
        """
        started = time.monotonic()
        metrics = self._batch.retry(
            lambda size: self._metrics(self._batches(self._held_out, size, interrupted))
        )
        metrics |= self._user_metrics(interrupted)
        return EvalResult(metrics, time.monotonic() - started)

    def _user_metrics(self, interrupted: Callable[[], bool]) -> dict[str, float]:
        """Return the metrics of the user's functions; empty without any.

        Raises:
            EvaluationInterrupted: the run is to stop.
        """
        if self._measured is None and self._embedding is None:
            return {}

        def pause() -> None:
            if interrupted():
                raise EvaluationInterrupted("evaluation interrupted within eval.metrics")

        if self._embedding is not None:
            with self._evaluation_mode(), states_of(self._trainer.model) as states:
                return self._embedding.measure(self._embedder(states), pause)
        assert self._measured is not None, "one of both is there"
        with self._evaluation_mode():
            return self._measured.measure(self._complete, self._batch.size, pause)

    def _embedder(self, states: States) -> Embedder:
        def states_of_ids(ids: Tensor, mask: Tensor) -> Tensor:
            return states({"input_ids": ids, "attention_mask": mask})

        config = self._config
        longest, device = config.data.max_length, self._trainer.args.device
        return Embedder(config.contrastive, self._tokenizer, longest, states_of_ids, device)

    def _complete(self, prompts: list[list[int]]) -> list[list[int]]:
        return generated(
            self._trainer.model,
            prompts,
            self._config.eval.metric_tokens,
            pad_token_id=self._tokenizer.pad_token_id,
            synced_gpus=self._config.train.shards,
        )

    def _metrics(self, batches: Iterator[Batch]) -> dict[str, float]:
        trainer, task = self._trainer, self._config.task
        if task in PREFERENCE_TASKS:
            with self._evaluation_mode():
                return evaluate_preferences(trainer.objective, batches, self._sums)
        with (
            evaluation_mode(trainer, self._weights, outside=False),
            trainer.forward.evaluating(trainer.model) as states,
        ):
            if task == "reward":
                passed = ((states(batch), batch) for batch in batches)
                return evaluate_rewards(trainer.objective, passed, self._sums)
            if task == "contrastive":
                return self._pairs(states, batches)
            return self._text(states, batches)

    def next_token_loss(self, data: HeldOut, interrupted: Callable[[], bool]) -> float:
        """Return the mean next-token loss over the targets of other examples; a collective.

        It runs outside of CUDA graphs, because the adapter may be off.

        Raises:
            EvaluationInterrupted: the run is to stop; nothing was changed.
        """
        return self._batch.retry(lambda size: self._mean(self._batches(data, size, interrupted)))

    def _mean(self, batches: Iterator[Batch]) -> float:
        with self._evaluation_mode(), states_of(self._trainer.model) as states:
            return self._text(states, batches)["loss"]

    def _evaluation_mode(self) -> AbstractContextManager[None]:
        return evaluation_mode(self._trainer, self._weights)

    def _batches(
        self, data: HeldOut, size: int, interrupted: Callable[[], bool]
    ) -> Iterator[Batch]:
        """Yield this rank's batches, in as many rounds as rank 0, which has the most, needs.

        Args:
            data: the examples.
            size: examples per batch.
            interrupted: asked before each batch.

        Raises:
            EvaluationInterrupted: the run is to stop.
        """
        ranks = self._agreement.world_size
        own = data.examples[self._agreement.rank :: ranks]
        total = math.ceil(math.ceil(len(data.examples) / ranks) / size)
        for number in range(total):
            if interrupted():
                raise EvaluationInterrupted(
                    f"evaluation interrupted after {number} of {total} batches"
                )
            examples = own[number * size : (number + 1) * size]
            if examples or self._config.train.shards:
                batch = data.collate(examples) if examples else _without_labels(data)
                batch.pop("ids", None)
                drop_weights(batch)
                yield self._trainer._prepare_inputs(batch)
            self._progress(data.label, number + 1, total)

    def _text(self, states: States, batches: Iterator[Batch]) -> dict[str, float]:
        head = lm_head_of(self._trainer.model)
        ce_sum = tokens = 0.0
        for batch in batches:
            with self._trainer.head_kept():
                loss, count = selected_cross_entropy(states(batch), batch["labels"], head)
            ce_sum, tokens = ce_sum + float(loss), tokens + float(count)
        ce_sum, tokens = self._sums([ce_sum, tokens])
        loss_mean = ce_sum / max(tokens, 1.0)
        return {"loss": loss_mean, "perplexity": math.exp(min(loss_mean, 700.0))}

    def _pairs(self, states: States, batches: Iterator[Batch]) -> dict[str, float]:
        """Return the metrics of all held-out anchors over all held-out texts; a collective."""
        head = lm_head_of(self._trainer.model)
        config, objective = self._config.contrastive, self._trainer.objective
        parts = [self._no_texts()]
        ce_sum = tokens = 0.0
        for batch in batches:
            found = states(batch)
            parts.append(objective.pool(found, batch))
            if config.ce_weight > 0:
                loss, count = selected_cross_entropy(found, batch["labels"], head)
                ce_sum, tokens = ce_sum + float(loss), tokens + float(count)
        everyone, own = across_ranks(join(parts))
        result = objective.compare(everyone, own)
        held_out = objective.held_out(everyone, own)
        names = list(held_out)
        sums = self._sums(
            [ce_sum, tokens, float(result.loss_sum), float(len(own)), *held_out.values()]
        )
        anchors = max(sums[3], 1.0)
        ce, contrastive = sums[0] / max(sums[1], 1.0), sums[2] / anchors
        measures = dict(zip(names, sums[4:], strict=True))
        triplets = measures.pop("triplets", 0.0)
        right = measures.pop("right_triplets", 0.0)
        return {
            "loss": config.ce_weight * ce + config.weight * contrastive,
            **({"ce": ce} if config.ce_weight > 0 else {}),
            "contrastive": contrastive,
            **{name: total / anchors for name, total in measures.items()},
            **({"triplet_accuracy": right / triplets} if triplets else {}),
        }

    def _no_texts(self) -> PairTexts:
        """Return empty texts for a rank without examples, so that all ranks gather equal shapes."""
        model = self._trainer.model
        device = self._trainer.args.device
        size = model.config.get_text_config().hidden_size
        none = torch.zeros(0, dtype=torch.int64, device=device)
        scores = torch.zeros(0, device=device) if self._trainer.objective.scored else None
        texts = Texts(none, none, none, none)
        return PairTexts(torch.zeros(0, size, device=device), texts, 0, scores)

    def _sums(self, values: list[float]) -> list[float]:
        rows = self._agreement.rows(values)
        return [sum(column) for column in zip(*rows, strict=True)]

    def sample(self, prompt: str) -> str:
        """Generate text greedily with the weights, or with their average if the run keeps one.

        Raises:
            Impossible: the prompt cannot be continued, or its continuation does not fit in the
                memory of the device; nothing was changed.
            torch.OutOfMemoryError: it does not fit, and the model is split over the ranks, which
                cannot continue without this one.
        """
        inputs = self._answering.encode(Chat(prompt=prompt), MODEL)
        length = inputs["input_ids"].shape[1]
        self._require_room(length)
        new, error = None, None
        try:
            new = self._batch.generate(lambda: self._continuation(inputs, length))
        except torch.OutOfMemoryError:
            if self._config.train.shards:
                raise
            error = self._out_of_memory(length)
        if errors := self._agreement.errors(error):
            torch.cuda.empty_cache()
            raise Impossible("; ".join(errors))
        return str(self._tokenizer.decode(new, skip_special_tokens=True))

    def _continuation(self, inputs: Any, length: int) -> list[int]:
        """Return the tokens that the model adds to a prompt of `length` tokens."""
        with self._evaluation_mode():
            output = self._trainer.model.generate(
                **inputs.to(self._trainer.args.device),
                max_new_tokens=self._config.eval.sample_tokens,
                do_sample=False,
                synced_gpus=self._config.train.shards,
                use_cache=True,
                pad_token_id=self._tokenizer.pad_token_id,
            )
        return list(output[0, length:].tolist())

    def _out_of_memory(self, prompt_tokens: int) -> str:
        wanted = self._config.eval.sample_tokens
        return (
            f"{self._trainer.args.device} is out of memory with a prompt of {prompt_tokens:,} "
            f"tokens and eval.sample_tokens: {wanted}; shorten the prompt, or lower "
            "eval.sample_tokens"
        )

    def _require_room(self, prompt_tokens: int) -> None:
        """Refuse a prompt whose continuation would leave the positions of a model with fixed ones.

        Raises:
            Impossible: it would.
        """
        limits, tokens = self._limits, self._config.eval.sample_tokens
        if limits.fixed and limits.positions and prompt_tokens + tokens > limits.positions:
            raise Impossible(
                f"the prompt has {prompt_tokens:,} tokens, which with eval.sample_tokens: {tokens} "
                f"are more than the {limits.positions:,} positions of the model; shorten the "
                "prompt, or lower eval.sample_tokens"
            )

    @property
    def _limits(self) -> ModelLimits:
        return ModelLimits.of(self._trainer.model.config.get_text_config().to_dict())

    @property
    def responder(self) -> ChatResponder:
        """What answers chats by the base, and by the weights or their average."""
        return ChatResponder(self._answering, self._agreement)

    @property
    def _answering(self) -> ChatModel:
        return ChatModel(
            model=self._trainer.model,
            tokenizer=self._tokenizer,
            device=self._trainer.args.device,
            running=self._evaluation_mode,
            no_base=why_no_base(self._config),
            sharded=self._config.train.shards,
            notes=chat_notes(self._config),
        )


def _without_labels(data: HeldOut) -> Batch:
    """Return a batch that counts nothing; the ranks of a sharded model run all passes."""
    batch = data.collate(data.examples[:1])
    batch["labels"] = torch.full_like(batch["labels"], IGNORED)
    return batch
