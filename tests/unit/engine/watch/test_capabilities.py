"""Trainers that can be watched in part only, each refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Trainer

from fttui.engine.watch.huggingface.capabilities import capabilities_of, forget_generated
from fttui.engine.watch.refusals import Unwatchable, refused_verbs

ALWAYS = {
    *("profile", "quarantine", "culprit", "mix", "soup"),
    *("weight_decay", "dropout", "schedule", "keep"),
}
BACKWARDS = {"rollback", "recover", "skip"}
SHARDED = {"chat", "checkpoint", "gradients", "clip", "lr scale", "lr set", "lr reset"}
_AS_USUAL: dict[str, Any] = {
    "is_deepspeed_enabled": False,
    "is_fsdp_enabled": False,
    "eval_dataset": [1],
    "processing_class": SimpleNamespace(decode=None, pad_token_id=0),
    "model": SimpleNamespace(can_generate=lambda: True),
}


class Buffering(Trainer):  # type: ignore[misc]  # transformers is untyped
    """A trainer of a name that says nothing, which uses what it holds for several steps."""

    _buffered_inputs: Any

    def _prepare_inputs(self, inputs: Any) -> Any:
        self._buffered_inputs = self._buffered_inputs or inputs
        return self._buffered_inputs


class Inherits(Trainer):  # type: ignore[misc]  # transformers is untyped
    """Generates as the trainer of TRL that it stands for, which is restored."""

    def _generate_and_score_completions(self) -> None:
        """Generate what is trained."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs

    _prepare_inputs.__module__ = "trl.trainer.grpo_trainer"


def trainer(kind: type[Any] = Trainer, arguments: Any = (), **changed: Any) -> Any:
    """A trainer that has nothing but what decides on its commands."""
    made = object.__new__(kind)
    given = {"auto_find_batch_size": False, "n_gpu": 1} | dict(arguments)
    vars(made).update(_AS_USUAL | changed, args=SimpleNamespace(**given))
    return made


def test_a_stock_trainer_can_do_all_but_what_its_script_decides() -> None:
    found = capabilities_of(trainer())
    assert set(refused_verbs(found.refused)) == ALWAYS
    assert found.exact
    bare = capabilities_of(trainer(eval_dataset=None, processing_class=None))
    assert set(refused_verbs(bare.refused)) == ALWAYS | {"eval", "sample", "chat"}


@pytest.mark.parametrize(
    ("made", "missing", "reason"),
    [
        (trainer(is_deepspeed_enabled=True), BACKWARDS | SHARDED | {"policy"}, "DeepSpeed "),
        (trainer(is_fsdp_enabled=True), BACKWARDS | SHARDED, "FSDP shards weights"),
        (trainer(arguments={"n_gpu": 2}), BACKWARDS, "DataParallel (2 GPUs in one process)"),
        (trainer(arguments={"sync_ref_model": True}), BACKWARDS, "sync_ref_model changes"),
        (trainer(Buffering), BACKWARDS, "Buffering generates its data while it trains"),
        (trainer(Inherits), set(), ""),
        (trainer(Inherits, use_vllm=True), BACKWARDS, "vLLM generates with random numbers"),
        (
            trainer(Inherits, use_transformers_continuous_batching=True),
            BACKWARDS,
            "continuous batching generates in an order of its own",
        ),
        (
            trainer(Inherits, environment_factories={None: object}),
            BACKWARDS,
            "the state of the script's environments",
        ),
    ],
)
def test_a_limited_trainer_refuses_by_name(made: Any, missing: set[str], reason: str) -> None:
    found = capabilities_of(made)
    verbs = refused_verbs(found.refused)
    assert set(verbs) == ALWAYS | missing
    assert all(reason in verbs[verb] for verb in missing)
    assert found.exact == (not missing)


def test_a_loop_that_starts_again_is_not_watched() -> None:
    with pytest.raises(Unwatchable, match="auto_find_batch_size starts the loop again"):
        capabilities_of(trainer(arguments={"auto_find_batch_size": True}))


def test_data_that_was_left_out_is_not_trained_from_what_was_generated() -> None:
    made = trainer(Buffering, _buffered_inputs=[1, 2])
    forget_generated(made)
    assert made._buffered_inputs is None
    forget_generated(trainer())
