"""Builds the trainer of a task from the configuration, and checks the number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from peft import PeftModel
from transformers import PrinterCallback, TrainingArguments

from ...config.schema import RunConfig
from ...config.tasks import PREFERENCE_TASKS
from ...core.schedules import Factor
from ...errors import ConfigError
from ..checkpoint.training_state import trained_weights
from ..patches import on_one_device
from ..position import Position

if TYPE_CHECKING:
    from .pairs import PairTrainer
    from .preference import PreferenceTrainer
    from .reward import RewardTrainer
    from .text import TextTrainer

AnyTrainer: TypeAlias = "TextTrainer | PairTrainer | PreferenceTrainer | RewardTrainer"
_OWN_LOSSES = {
    **dict.fromkeys(PREFERENCE_TASKS, ("preference", "PreferenceTrainer")),
    "contrastive": ("pairs", "PairTrainer"),
    "reward": ("reward", "RewardTrainer"),
}
"""Module and name of the trainers of the tasks whose loss is not TRL's next-token loss."""
_NEXT_TOKEN = ("text", "text_trainer")


def builder_of(task: str) -> Callable[..., AnyTrainer]:
    """Import what builds the trainer of a task; the others and their libraries are not loaded."""
    module, name = _OWN_LOSSES.get(task, _NEXT_TOKEN)
    found: Callable[..., AnyTrainer] = getattr(import_module(f"{__package__}.{module}"), name)
    return found


def build_trainer(
    config: RunConfig,
    model: PeftModel,
    tokenizer: Any,
    arguments: dict[str, Any],
    position: Position,
    log: Callable[[str, str], None],
    lr_factor: Factor | None = None,
    *,
    weighted: bool = False,
) -> AnyTrainer:
    """Build the trainer of the configured task.

    Args:
        config: configuration of the run.
        model: the model with its adapter.
        tokenizer: tokenizer of the model.
        arguments: keyword arguments of the Hugging Face and TRL trainers.
        position: position of training, which the trainer updates.
        log: writes a line (level, text) to the log of the run.
        lr_factor: replaces the configured schedule; None keeps it.
        weighted: whether records or tokens have weights.

    Raises:
        ConfigError: `train.devices` or `train.fast` cannot be met.
        ModelError: the model cannot be split over the ranks.
    """
    trainer: AnyTrainer
    common = {
        "recipe": config.train,
        "position": position,
        "lr_factor": lr_factor,
        "model": model,
        "weighted": weighted,
    }
    builder = builder_of(config.task)
    if config.task in _OWN_LOSSES:
        args = on_one_device(TrainingArguments(**arguments))
        trainer = builder(config, args=args, **common)
    else:
        trainer = builder(config, tokenizer, arguments, common)
    require_ranks(trainer.accelerator.num_processes, config.train.ranks)
    trainer.choose_forward(config, int(tokenizer.pad_token_id), log)
    if config.train.shards:
        trainer.shard(trained_weights(model))
    trainer.remove_callback(PrinterCallback)
    return trainer


def require_ranks(got: int, asked: int) -> None:
    """Refuse to train on another number of ranks than `train.devices` on `train.nodes`.

    Raises:
        ConfigError: the numbers differ.
    """
    if got != asked:
        raise ConfigError(
            f"train.devices and train.nodes ask for {asked} rank{'s' * (asked != 1)}, but {got} "
            "started; start with `fttui run`, or let torchrun start as many processes, or change "
            "these keys"
        )
