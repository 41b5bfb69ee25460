"""A stock Hugging Face trainer as a `ControlledTrainer`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ...protocol.commands import Chat, Command
from ...protocol.events import AnyEvent
from ...train.checkpoint.rng import capture_rng, restore_rng
from ...train.control.command_scheduler import Impossible
from ...train.control.controlled_trainer import EvalResult, EvaluationInterrupted
from ...train.distributed.agreement import Agreement
from ...train.objectives.chat import ChatModel, ChatResponder
from ...train.position import Position
from ..batch_tape import BatchTape
from ..foreign_state import ForeignState
from ..foreign_trainer import ForeignTrainer

SAMPLE_TOKENS = 48
_TIMING = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


class HfControlledTrainer(ForeignTrainer):
    """Implements `ControlledTrainer` for a trainer that the user's script has built."""

    def __init__(
        self,
        trainer: Any,
        position: Position,
        state: ForeignState,
        data: BatchTape,
        refuses: Mapping[type[Command], str],
        agreement: Agreement,
    ) -> None:
        super().__init__(trainer.optimizer, position, state, data, refuses)
        self._agreement = agreement
        self._trainer = trainer
        self.evaluating = False
        """Whether an evaluation of fttui is under way, whose figures the executor records."""

    @property
    def can_evaluate(self) -> bool:
        """Whether the script gave the trainer an evaluation data set."""
        return self._trainer.eval_dataset is not None

    def evaluate(self, interrupted: Callable[[], bool]) -> EvalResult:
        """Evaluate as the trainer itself does, without a trace in its state.

        It is not interrupted: `interrupted` is not asked.

        Raises:
            EvaluationInterrupted: the evaluation of the script failed or gave no loss.
        """
        started = time.monotonic()
        self.evaluating = True
        try:
            with self._unchanged():
                found = plain_metrics(self._trainer.evaluate())
        except Exception as error:
            raise EvaluationInterrupted(_in_script("evaluation", error)) from error
        finally:
            self.evaluating = False
        if "loss" not in found:
            raise EvaluationInterrupted(f"the evaluation gave no loss, only {', '.join(found)}")
        return EvalResult(found, time.monotonic() - started)

    def tokens_seen(self) -> int:
        """Return this rank's share of the tokens that the trainer says it has trained on."""
        trainer = self._trainer
        seen = getattr(trainer.state, "num_input_tokens_seen", 0)
        return int(seen) // max(1, int(trainer.args.world_size))

    @property
    def steps_per_generation(self) -> int:
        """Number of optimizer steps that train on what is generated at once."""
        args = self._trainer.args
        batches = getattr(args, "steps_per_generation", None) or 1
        again = getattr(args, "num_iterations", None) or 1
        return math.ceil(int(batches) * int(again) / max(1, int(args.gradient_accumulation_steps)))

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restore random generators, training mode, flags and log history afterwards.

        Callbacks that have a state are not called meanwhile.
        """
        trainer, generators = self._trainer, capture_rng()
        handler, training = trainer.callback_handler, trainer.model.training
        callbacks, history = handler.callbacks, len(trainer.state.log_history)
        handler.callbacks = [one for one in callbacks if not hasattr(one, "state")]
        flags = dict(vars(trainer.control))
        try:
            yield
        finally:
            handler.callbacks = callbacks
            vars(trainer.control).update(flags)
            del trainer.state.log_history[history:]
            trainer.model.train(training)
            restore_rng(generators)

    def sample(self, prompt: str) -> str:
        """Generate text from the current weights by greedy decoding.

        Raises:
            Impossible: the model of the script fails to generate.
        """
        try:
            with self._unchanged():
                return self._generate(prompt)
        except Exception as error:
            raise Impossible(_in_script("generation", error)) from error

    def chat(
        self, chat: Chat, record: Callable[[AnyEvent], None], interrupted: Callable[[], bool]
    ) -> str:
        """Answer a prompt by the base and by the current weights of the script's model.

        Args:
            chat: the prompt and how to answer it.
            record: called with the events of the chat, on rank 0.
            interrupted: asked by all ranks together; True ends the chat.

        Returns:
            How many tokens each answer has, in words.

        Raises:
            Impossible: the prompt cannot be answered; nothing was changed.
        """
        trainer = self._trainer
        model = trainer.accelerator.unwrap_model(trainer.model)
        answering = ChatModel(
            model=model,
            tokenizer=tokenizer_of(trainer),
            device=trainer.args.device,
            running=self._generating,
            no_base=why_no_base(model),
        )
        return ChatResponder(answering, self._agreement).answer(chat, record, interrupted)

    @contextmanager
    def _generating(self) -> Iterator[None]:
        with self._unchanged():
            self._trainer.model.eval()
            yield

    @torch.no_grad()
    def _generate(self, prompt: str) -> str:
        trainer, tokenizer = self._trainer, tokenizer_of(self._trainer)
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        inputs = _encoded(tokenizer, prompt).to(trainer.args.device)
        length = inputs["input_ids"].shape[1]
        most = getattr(model.config, "max_position_embeddings", None) or length + SAMPLE_TOKENS
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=max(1, min(SAMPLE_TOKENS, most - length)),
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
        return str(tokenizer.decode(output[0, length:], skip_special_tokens=True))


_CHANGES_BASE = ("pissa", "olora", "corda", "lora_ga", "loftq")
"""Beginnings of the initializations of PEFT that change the base weights."""


def why_no_base(model: Any) -> str:
    """Return why a model without its adapter is not the base; empty if it is."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, Mapping) or not hasattr(model, "disable_adapter"):
        return "the model has no adapter of PEFT, so that no base is in memory"
    found = (str(getattr(one, "init_lora_weights", "")) for one in configs.values())
    changed = next((one for one in found if one.startswith(_CHANGES_BASE)), "")
    return changed and f"init_lora_weights: {changed} has changed the base weights"


def _in_script(what: str, error: Exception) -> str:
    return f"the {what} of the script failed: {type(error).__name__}: {error}"


def tokenizer_of(trainer: Any) -> Any:
    """Return the tokenizer of a trainer, or that in its processor; None if it has none."""
    found = getattr(trainer, "processing_class", None)
    found = getattr(found, "tokenizer", found)
    return found if hasattr(found, "decode") and hasattr(found, "pad_token_id") else None


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of an evaluation by their names without `eval_`.

    Timings, the epoch and values that are not numbers are left out.
    """
    named = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    return {
        name: float(value)
        for name, value in named.items()
        if isinstance(value, int | float) and name != "epoch" and not name.endswith(_TIMING)
    }


def _encoded(tokenizer: Any, prompt: str) -> Any:
    if not getattr(tokenizer, "chat_template", None):
        return tokenizer(prompt, return_tensors="pt")
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
