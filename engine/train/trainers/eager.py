"""Eager forward strategies: run a micro-batch through the model's own code and autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from peft import PeftModel
from torch import Tensor, nn

from ...losses.cross_entropy import selected_cross_entropy
from ...losses.preference import LogProbs
from ...losses.weights import TOKENS, token_weights
from ...model.adapter.switch import adapter_off
from ...model.hidden import HiddenStates
from ..forward import States, TrainingStep, Want, Way
from ..objectives.evaluation_mode import states_of
from ..objectives.preference import without_gradients


class EagerForward:
    """The part of the eager strategy that all tasks share; the rest is left to the trainer."""

    uses_graphs = False

    def __init__(self, model: PeftModel, fact: str) -> None:
        self._model = model
        self.fact = fact

    def without_gradients(self) -> AbstractContextManager[None]:
        """Return a context for passes without dropout and without gradients."""
        return without_gradients(self._model)

    def reference(self) -> AbstractContextManager[None]:
        """Return a context for passes without the adapter."""
        return adapter_off(self._model)

    def evaluating(self, model: Any) -> AbstractContextManager[States]:
        """Return a context in which the function runs the model's own code."""
        return states_of(model)

    def training_step(self, trainer: Any, plain: TrainingStep) -> TrainingStep:
        """Return the trainer's own training step."""
        return plain

    def prepare(self, accelerator: Any) -> None:
        """Do nothing: the accelerator wraps the model in DDP if there are several ranks."""

    def average_gradients(self) -> None:
        """Do nothing: DDP averages the gradients during the backward pass."""

    def make_ahead(self, lengths: Sequence[int], may_go_on: Callable[[], bool]) -> tuple[int, int]:
        """Make nothing: there are no graphs."""
        return 0, 0

    def make_room(self, *, outside: bool = True) -> None:
        """Do nothing: no memory is kept between steps."""

    def release(self) -> None:
        """Do nothing: no memory is kept between steps."""


class EagerTextForward(EagerForward):
    """The forward strategy of next-token training, with TRL's fused loss or the engine's own."""

    def __init__(
        self,
        model: PeftModel,
        fact: str,
        *,
        hidden: HiddenStates | None,
        own_head: nn.Module | None,
        label_smoothing: float,
        focal: float = 0.0,
        head_kept: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__(model, fact)
        self._hidden = hidden
        self._own_head = own_head
        self._head_kept = head_kept
        self._label_smoothing, self._focal = label_smoothing, focal

    def __call__(
        self, model: Any, inputs: dict[str, Any], *wants: Want, way: Way = "trained"
    ) -> dict[Want, Tensor]:
        """Return the summed cross-entropy `ce` if it is wanted, and other results of the pass.

        That is `hidden` if hidden states are captured, and `balance` if it is wanted.
        """
        if self._own_head is None:
            outputs = model(**{**inputs, "use_cache": False}, fused_lm_head=True)
            found: dict[Want, Tensor] = {"ce": -outputs.log_probs.sum()}
            if self._hidden is not None:
                found["hidden"] = self._hidden.take()
            return found
        assert self._hidden is not None, "HiddenStates is attached whenever the own head is used"
        own = ("labels", TOKENS)
        rest = {name: value for name, value in inputs.items() if name not in own}
        if "balance" in wants:
            rest["output_router_logits"] = True
        with self._head_kept():
            outputs = model(**rest, use_cache=False, logits_to_keep=1)
            hidden = self._hidden.take()
            if "ce" not in wants:
                return {"hidden": hidden}
            ce_sum, _ = selected_cross_entropy(
                hidden,
                inputs["labels"],
                self._own_head,
                smoothing=self._label_smoothing,
                focal=self._focal,
                weights=token_weights(inputs),
            )
        states: dict[Want, Tensor] = {"ce": ce_sum, "hidden": hidden}
        return states | {"balance": outputs.aux_loss} if "balance" in wants else states


class EagerPairForward(EagerForward):
    """The forward strategy of contrastive training: the last hidden states of all texts."""

    def __init__(self, model: PeftModel, fact: str, *, hidden: HiddenStates) -> None:
        super().__init__(model, fact)
        self._hidden = hidden

    def __call__(
        self, model: Any, inputs: dict[str, Any], *wants: Want, way: Way = "trained"
    ) -> dict[Want, Tensor]:
        """Return the last hidden states [2B + N, T, H] of a single pass as `hidden`."""
        model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            logits_to_keep=1,
        )
        return {"hidden": self._hidden.take()}


class EagerPreferenceForward(EagerForward):
    """The forward strategy of preference training: log-probabilities of whole completions."""

    def __init__(
        self,
        model: PeftModel,
        fact: str,
        *,
        log_probs: Callable[..., tuple[LogProbs, Tensor | None]],
    ) -> None:
        super().__init__(model, fact)
        self._log_probs = log_probs

    def __call__(
        self, model: Any, inputs: dict[str, Any], *wants: Want, way: Way = "trained"
    ) -> dict[Want, Tensor]:
        """Return the log-probabilities of the completions, [rows], as `log_probs`.

        If wanted, those of the prompts, [rows], are returned as `context_log_probs`, and the load
        balancing loss of experts, [], as `balance`.
        """
        context = inputs["context"] if "context_log_probs" in wants else None
        found, balance = self._log_probs(model, inputs, context, balanced="balance" in wants)
        states: dict[Want, Tensor] = {"log_probs": found.total}
        if found.context is not None:
            states["context_log_probs"] = found.context
        return states if balance is None else states | {"balance": balance}
