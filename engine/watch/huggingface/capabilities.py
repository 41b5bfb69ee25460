"""The commands that a watched trainer cannot carry out, each with the reason.

The class and the arguments of the trainer decide it before the first step, so that nothing is
offered that would be silently wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature, unwrap
from typing import Any

from ...protocol.commands import (
    AverageCheckpoints,
    Chat,
    Command,
    Evaluate,
    FindCulprits,
    GenerateSample,
    MeasureGradients,
    ProfileSteps,
    Quarantine,
    Recover,
    ResetLr,
    Rollback,
    SaveCheckpoint,
    ScaleLr,
    SetClip,
    SetLr,
    SetMix,
    SetPolicy,
    SkipBatches,
)
from ..refusals import (
    DATA_OF_SCRIPT,
    MIX_OF_SCRIPT,
    OF_RECIPE,
    OWN_CHECKPOINTS,
    Unwatchable,
    refused_verbs,
)
from .own_attributes import names_in_methods
from .trainer import tokenizer_of

_GOING_BACK: tuple[type[Command], ...] = (Rollback, Recover)
_REPLAYING: tuple[type[Command], ...] = (*_GOING_BACK, SkipBatches)
_OF_SHARDS: tuple[type[Command], ...] = (
    Chat,
    SaveCheckpoint,
    MeasureGradients,
    SetClip,
    ScaleLr,
    SetLr,
    ResetLr,
)
"""Commands that need whole weights, gradients or the optimizer of the script."""
_GENERATING = ("GRPO", "RLOO", "OnlineDPO", "PPO", "Distillation", "GKD", "XPO", "NashMD")
"""Parts of the names of trainers that generate data while they train."""
_GENERATES = ("_generate_and_score_completions", "_generate_completions")
"""Methods by which trainers of other names do."""
_BUFFER = "_buffered_inputs"
"""The attribute in which trainers of TRL hold generated data until it is used up."""
_RESTORED = ("trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer")
"""Modules whose trainers generate from restored weights and generators what they did before."""
_ELSEWHERE = (
    ("use_vllm", "vLLM generates with random numbers of its own, which are not restored"),
    (
        "use_transformers_continuous_batching",
        "continuous batching generates in an order of its own, which is not restored",
    ),
    ("environment_factories", "the state of the script's environments is not restored"),
)
"""Attributes by which a trainer generates outside of its own state, with the reason."""
_DEEPSPEED = "DeepSpeed clips and steps inside its engine and shards the optimizer state"
_UNGUARDED = (
    "DeepSpeed updates the weights within the backward pass, so that an update that is not finite "
    "raises an alarm but cannot be refused"
)
_FSDP = "FSDP shards weights and optimizer state over the ranks"
_AGAIN = "auto_find_batch_size starts the loop again with another batch size"
_SYNCED = "sync_ref_model changes the reference model, which is not restored"


@dataclass(frozen=True)
class Capabilities:
    """What a trainer can do."""

    refused: Mapping[type[Command], str] = field(default_factory=dict)
    """Commands that it cannot obey, with the reason."""
    exact: bool = True
    """Whether it can return to a checkpoint, and a step may be dropped between micro-batches."""


def capabilities_of(trainer: Any) -> Capabilities:
    """Return what a Hugging Face trainer can do.

    Raises:
        Unwatchable: nothing of the trainer can be watched.
    """
    _require_watchable(trainer)
    refused: dict[type[Command], str] = {
        ProfileSteps: "a watched script cannot be profiled",
        Quarantine: DATA_OF_SCRIPT,
        SetMix: MIX_OF_SCRIPT,
        **OF_RECIPE,
        FindCulprits: DATA_OF_SCRIPT,
        AverageCheckpoints: OWN_CHECKPOINTS,
    }
    backwards = why_not_back(trainer)
    if backwards:
        refused |= dict.fromkeys(_REPLAYING, backwards)
    if sharded := _sharded(trainer):
        refused |= dict.fromkeys(_OF_SHARDS, sharded)
    if trainer.is_deepspeed_enabled:
        refused[SetPolicy] = _UNGUARDED
    if trainer.eval_dataset is None:
        refused[Evaluate] = "the trainer has no eval_dataset"
    if reason := _why_no_sample(trainer):
        refused |= {GenerateSample: reason, Chat: refused.get(Chat, reason)}
    return Capabilities(refused, exact=not backwards)


def _require_watchable(trainer: Any) -> None:
    reason = why_not_watched(type(trainer))
    if not reason and trainer.args.auto_find_batch_size:
        reason = _AGAIN
    if reason:
        raise Unwatchable(reason)


def argument_limits() -> Iterator[tuple[str, str]]:
    """Yield the trainer arguments that limit any class, with what each makes impossible."""
    sharded = f"no {', '.join(refused_verbs(dict.fromkeys((*_REPLAYING, *_OF_SHARDS), '')))}"
    backwards = f"no {', '.join(refused_verbs(dict.fromkeys(_REPLAYING, '')))}"
    yield "auto_find_batch_size", f"not watched: {_AGAIN}"
    yield "deepspeed", f"{sharded}: {_DEEPSPEED}; no policy: {_UNGUARDED}"
    yield "fsdp", f"{sharded}: {_FSDP}"
    yield "n_gpu > 1", f"{backwards}: DataParallel trains on several GPUs in one process"
    yield "sync_ref_model", f"{backwards}: {_SYNCED}"
    for name, why in _ELSEWHERE:
        yield name, f"{backwards}: {why}"


def why_not_watched(kind: type[Any]) -> str:
    """Return why no trainer of a class can be watched; empty if it can."""
    bases = [one for one in kind.__mro__ if one.__module__ == "transformers.trainer"]
    if not bases:
        return (
            f"{kind.__module__}.{kind.__name__} is not a transformers.Trainer; for a loop of your "
            "own, use: fttui.watch(model=…, optimizer=…)"
        )
    if not _loop_is_known(kind):
        return (
            f"the training loop of transformers {_transformers()} is not known; expected 4.46 or "
            "newer"
        )
    if _has_own_loop(kind, bases[0]):
        return f"{kind.__name__} has a training loop of its own"
    return ""


def _has_own_loop(kind: type[Any], base: type[Any]) -> bool:
    """Whether a class trains by other code than the loop of `Trainer`.

    A `train` that calls `super()` is taken for one that calls that loop; such a method is known by
    the variable `__class__` that it holds.
    """
    own = getattr(kind, "_inner_training_loop", None)
    if own is not None and own is not getattr(base, "_inner_training_loop", None):
        return True
    code = getattr(unwrap(kind.train), "__code__", None)
    if code is None or kind.train is base.train:
        return False
    return code.co_name == "train" and "__class__" not in code.co_freevars


def loop_can_be_left(kind: type[Any]) -> bool:
    """Whether an epoch of a trainer's loop is a method of its own, which can be entered again."""
    return hasattr(kind, "_run_epoch")


def _loop_is_known(kind: type[Any]) -> bool:
    """Whether the loop takes its batches by `get_batch_samples` and reports an update before it."""
    from transformers import TrainerCallback

    take = getattr(kind, "get_batch_samples", None)
    if take is None or not hasattr(TrainerCallback, "on_pre_optimizer_step"):
        return False
    parameters = signature(take).parameters.values()  # old releases of TRL have another one
    anything = any(one.kind is Parameter.VAR_POSITIONAL for one in parameters)
    return anything or any(one.name == "epoch_iterator" for one in parameters)


def _transformers() -> str:
    from transformers import __version__

    return str(__version__)


def why_class_not_back(kind: type[Any]) -> str:
    """Return why no trainer of a class can return to an earlier step; empty if it can."""
    if not loop_can_be_left(kind):
        return (
            f"the training loop of transformers {_transformers()} does not expose its "
            "position, so fttui cannot roll it back; expected 5.6 or newer"
        )
    if _generates(kind) and not _is_restored(kind):
        return f"{kind.__name__} generates its data while it trains, which fttui does not restore"
    return ""


def _is_restored(kind: type[Any]) -> bool:
    """Whether a class generates and holds its data by the methods of a trainer in `_RESTORED`."""
    return getattr(kind, "_prepare_inputs", kind).__module__ in _RESTORED


def forget_generated(trainer: Any) -> None:
    """Let a trainer generate from its next batch, because data was left out."""
    if getattr(trainer, _BUFFER, None) is not None:
        setattr(trainer, _BUFFER, None)


def _generates(kind: type[Any]) -> bool:
    """Whether a class generates its data, by its name, that of a base class, or its methods.

    Unsloth generates trainers from those of TRL, under names such as `UnslothGRPOTrainer`.
    """
    names = [one.__name__ for one in kind.__mro__]
    named = any(sign in name for name in names for sign in _GENERATING)
    by_method = any(hasattr(kind, method) for method in _GENERATES)
    return named or by_method or _BUFFER in names_in_methods(kind)


def why_not_back(trainer: Any) -> str:
    """Return why the trainer cannot return to an earlier step exactly; empty if it can."""
    if sharded := _sharded(trainer):
        return sharded
    if trainer.args.n_gpu > 1:
        return (
            f"fttui cannot roll back under DataParallel ({trainer.args.n_gpu} GPUs in one "
            "process); start one process per GPU with torchrun"
        )
    if by_class := why_class_not_back(type(trainer)):
        return by_class
    if getattr(trainer.args, "sync_ref_model", False):
        return _SYNCED
    return next((why for name, why in _ELSEWHERE if getattr(trainer, name, None)), "")


def _sharded(trainer: Any) -> str:
    if trainer.is_deepspeed_enabled:
        return _DEEPSPEED
    if trainer.is_fsdp_enabled:
        return _FSDP
    return ""


def _why_no_sample(trainer: Any) -> str:
    if tokenizer_of(trainer) is None:
        return "the trainer has no tokenizer (processing_class)"
    model = trainer.model
    can = getattr(model, "can_generate", None)
    base = getattr(model, "get_base_model", None)
    can = getattr(base(), "can_generate", None) if base is not None else can
    return "" if can is not None and can() else f"{type(model).__name__} generates no text"
