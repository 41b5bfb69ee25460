"""Checks of how a run trains: length, schedule, rates, trained modules, memory, fast mode."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...protocol.command_args import CommandError
from ...protocol.command_kinds import (
    Quarantine,
    ResetLr,
    ScaleLr,
    SetClip,
    SetDropout,
    SetLr,
    SetMix,
    SetPolicy,
    SetSchedule,
    SetWeightDecay,
    SkipBatches,
)
from ...protocol.commands import parse_command
from ...protocol.settings import why_without_effect
from ..fast_mode import refusal, why_not_fast
from ..memory.streaming import why_not_streamed
from ..schema import RunConfig
from ..sections.optimizers import kind_of
from ..tasks import COMPARING_TASKS
from .problem import Problem

PLANNABLE = (
    ScaleLr, SetLr, ResetLr, SetClip, SetMix, SkipBatches, Quarantine, SetPolicy,
    SetWeightDecay, SetDropout, SetSchedule,
)  # fmt: skip
"""Commands that can be planned: they change the training, and need no checkpoint."""
WITHOUT_FLOOR = ("constant", "inverse_sqrt", "step")
"""Schedules for which `train.lr_floor` has no meaning."""
SCHEDULE_KEYS = {
    "schedule_power": "polynomial",
    "schedule_decay": "wsd",
    "schedule_milestones": "step",
    "schedule_gamma": "step",
}
"""Keys that only one schedule uses, with that schedule. `schedule_cycles` is left out, because
earlier versions accepted it with any schedule."""

NEXT_TOKEN_KEYS = {"label_smoothing": "smooths the targets", "focal": "weighs the tokens"}
"""Keys of the next-token loss, each with what it does; 0 is off."""


def _check_length(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if train.steps is None and train.epochs is None:
        yield Problem("train.steps", "neither steps nor epochs is given; give one of the two")
    if train.steps is not None and train.epochs is not None:
        yield Problem(
            "train.steps",
            f"both steps ({train.steps}) and epochs ({train.epochs:g}) are given; keep one: "
            "--set train.epochs=null keeps the steps, --set train.steps=null keeps the epochs",
        )


def _check_intervals(config: RunConfig) -> Iterator[Problem]:
    if not config.data.streaming:
        return
    for section in ("eval", "checkpoint"):
        per_epoch = getattr(config, section).per_epoch
        if per_epoch is not None:
            yield Problem(
                f"{section}.per_epoch",
                f"got {per_epoch:g}, but the length of an epoch is unknown with data.streaming; "
                f"set {section}.every",
            )


def _check_moments(config: RunConfig) -> Iterator[Problem]:
    train, kind = config.train, kind_of(config.train)
    settings = {
        "train.betas": (train.betas, kind.betas),
        "train.epsilon": (train.epsilon, kind.epsilon),
        "train.momentum": (train.momentum, kind.momentum),
    }
    for key, (value, having) in settings.items():
        if value is not None and not having:
            yield Problem(
                key,
                f"got {value}, which the optimizer {train.base_optimizer} does not have; remove it",
            )


def _check_start(config: RunConfig) -> Iterator[Problem]:
    if config.adapter.merge_first and config.adapter.start is None:
        yield Problem(
            "adapter.merge_first",
            "got true, but adapter.start names no adapter to merge; set adapter.start, or remove "
            "this line",
        )


def _check_targets(config: RunConfig) -> Iterator[Problem]:
    targets = config.adapter.targets
    if targets == []:
        yield Problem(
            "adapter.targets",
            "the list is empty, so nothing would be trained; name modules, or set all-linear",
        )
    if isinstance(targets, str) and targets != "all-linear" and targets.isidentifier():
        yield Problem(
            "adapter.targets",
            f"got {targets!r}, expected 'all-linear', a list such as [{targets}], or a regular "
            "expression for full names",
        )
    patterns = [("targets", targets)] if isinstance(targets, str) else []
    patterns += [("rank_pattern", one) for one in config.adapter.rank_pattern]
    patterns += [("alpha_pattern", one) for one in config.adapter.alpha_pattern]
    for key, pattern in patterns:
        yield from _compiled(f"adapter.{key}", pattern)


def _check_init(config: RunConfig) -> Iterator[Problem]:
    adapter, quantize = config.adapter, config.model.quantize
    init = adapter.init
    if init == "default":
        return
    if adapter.continues:
        yield Problem(
            "adapter.init",
            f"got {init}, but adapter.start is continued, which has its own weights; remove the "
            "line, or set adapter.merge_first: true",
        )
    if init in ("pissa", "olora") and quantize != "none":
        yield Problem(
            "adapter.init",
            f"got {init}, which changes the base weights and needs them unquantized; set "
            "model.quantize: none, or adapter.init: loftq",
        )
    if init == "loftq" and quantize != "nf4":
        yield Problem(
            "adapter.init",
            "got loftq, which reduces the error of NF4; set model.quantize: nf4, or another "
            "adapter.init",
        )
    if init == "loftq" and adapter.merge_first:
        yield Problem(
            "adapter.init",
            "got loftq, which compares NF4 weights with those in the model's files, but "
            "adapter.merge_first changes them; set another value, or export the run of that "
            "adapter with --merged, and set model.id to the folder",
        )
    if adapter.dora and adapter.starts_beside_base:
        yield Problem(
            "adapter.init",
            f"got {init}, which is not exact together with adapter.dora; set one of the two only",
        )
    if init == "eva" and config.data.streaming:
        yield Problem(
            "adapter.init",
            "got eva, which needs the training data before the first step, but data.streaming is "
            "true; set another value, or data.streaming: false",
        )


def _check_whole_model(config: RunConfig) -> Iterator[Problem]:
    adapter, train = config.adapter, config.train
    if adapter.kind == "lora":
        if train.layers is not None:
            yield Problem(
                "train.layers",
                f"got {train.layers}, which chooses among the weights of the model, but an adapter "
                "is trained; set adapter: none, or choose modules with adapter.targets",
            )
        return
    cures = {
        ("model.quantize", config.model.quantize, "none"): "quantized weights cannot be trained",
        ("train.memory", train.memory, "plain"): (
            f"{train.memory} keeps weights in forms without gradients"
        ),
        ("adapter.init", adapter.init, "default"): "there is no adapter to initialize",
        ("train.lr_ratios.lora_b", train.lr_ratios.lora_b, 1.0): "there is no adapter",
        ("train.lr_ratios.embeddings", train.lr_ratios.embeddings, 1.0): "there is no adapter",
    }
    for (key, got, needed), reason in cures.items():
        if got not in (needed, "auto"):
            yield Problem(key, f"got {got}, but adapter: none is set and {reason}; set {needed}")
    if adapter.start is not None and not adapter.merge_first:
        yield Problem(
            "adapter.start",
            "names an adapter to continue, but adapter: none is set; set adapter.merge_first: true "
            "with kind: none, which trains the merged model, or remove one of the two",
        )
    if adapter.modules_to_save:
        yield Problem(
            "adapter.modules_to_save",
            "names modules to train beside an adapter, but adapter: none is set; remove it, or use "
            "train.layers",
        )
    if config.added_tokens and train.layers is not None:
        yield Problem(
            config.keys_of_added_tokens[0],
            "adds rows to the embedding, which train.layers may leave untrained; remove one of the "
            "two",
        )
    if isinstance(train.layers, str):
        yield from _compiled("train.layers", train.layers)


def _compiled(key: str, pattern: str) -> Iterator[Problem]:
    try:
        re.compile(pattern)
    except re.error as error:
        yield Problem(key, f"got {pattern!r}, which is not a regular expression: {error}")


def _check_schedule(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if train.lr_floor and train.schedule in WITHOUT_FLOOR:
        yield Problem(
            "train.lr_floor",
            f"got {train.lr_floor:g}, but the schedule {train.schedule} does not use it; set "
            "train.schedule: cosine (or linear, cosine_restarts, polynomial, wsd, one_cycle, "
            "exponential), or train.lr_floor: 0",
        )
    if train.schedule == "exponential" and not train.lr_floor:
        yield Problem(
            "train.lr_floor",
            "got 0, which an exponential decay never reaches; set train.lr_floor, such as 0.01",
        )
    defaults = type(train)()
    for key, schedule in SCHEDULE_KEYS.items():
        value = getattr(train, key)
        if value != getattr(defaults, key) and train.schedule != schedule:
            yield Problem(
                f"train.{key}",
                f"got {value}, but the schedule {train.schedule} does not use it; set "
                f"train.schedule: {schedule}, or remove it",
            )


def _check_projection(config: RunConfig) -> Iterator[Problem]:
    train, kind = config.train, kind_of(config.train)
    if not kind.projects:
        if train.projection != type(train.projection)():
            yield Problem(
                "train.projection",
                f"is set, but train.optimizer: {train.optimizer} projects no gradients; set "
                "train.optimizer: galore, or remove it",
            )
        return
    if config.adapter.kind != "none":
        yield Problem(
            "train.optimizer",
            f"got {train.optimizer}, which saves memory by projecting gradients to a low rank, but "
            "the matrices of an adapter have a low rank already; set adapter: none, or "
            "train.optimizer: adamw",
        )
    if train.ranks > 1:
        key = "devices" if train.devices > 1 else "nodes"
        yield Problem(
            "train.optimizer",
            f"got {train.optimizer}, whose projections each rank would choose for itself, so that "
            f"their weights would drift apart; set train.{key}: 1, or train.optimizer: adamw",
        )


def _check_second_pass(config: RunConfig) -> Iterator[Problem]:
    train, usual = config.train, type(config.train)()
    for name in ("sam", "sophia"):
        if train.optimizer != name and getattr(train, name) != getattr(usual, name):
            yield Problem(
                f"train.{name}",
                f"is set, but train.optimizer is {train.optimizer}; set train.optimizer: {name}, "
                "or remove it",
            )
    if train.optimizer == "sophia" and config.task != "sft":
        yield Problem(
            "train.optimizer",
            f"got sophia, which estimates the curvature of the next-token loss, but task "
            f"{config.task} has another loss; set train.optimizer: adamw",
        )


def _check_ratios(config: RunConfig) -> Iterator[Problem]:
    for pattern in config.train.lr_ratios.patterns:
        yield from _compiled("train.lr_ratios.patterns", pattern)
    ratio = config.train.lr_ratios.temperature
    if ratio != 1 and not config.contrastive.learn_temperature:
        yield Problem(
            "train.lr_ratios.temperature",
            f"got {ratio:g}, but the temperature is not trained; set contrastive.learn_temperature:"
            " true, or remove the ratio",
        )


def _check_whole_modules(config: RunConfig) -> Iterator[Problem]:
    names, ratio = config.adapter.modules_to_save, config.train.lr_ratios.embeddings
    if ratio != 1 and not names and not config.added_tokens:
        yield Problem(
            "train.lr_ratios.embeddings",
            f"got {ratio:g}, but no module is fully trained; set adapter.modules_to_save, such as "
            "[embed_tokens], or data.special_tokens, or remove the ratio",
        )
    if names and config.train.lean:
        yield Problem(
            "adapter.modules_to_save",
            f"got {', '.join(names)}, but train.memory: {config.train.memory} keeps "
            "embedding and head in forms that cannot be trained; set train.memory: plain, or an "
            "empty list",
        )


def _check_next_token_loss(config: RunConfig) -> Iterator[Problem]:
    for key, what in NEXT_TOKEN_KEYS.items():
        value = getattr(config.train, key)
        if value and config.task in COMPARING_TASKS:
            yield Problem(
                f"train.{key}",
                f"got {value:g}, which {what} of next-token training and is not used by task "
                f"{config.task}; set train.{key}: 0",
            )
        if value and config.contrastive.ce_weight == 0:
            yield Problem(
                f"train.{key}",
                f"got {value:g}, which {what} of the next-token loss, but contrastive.ce_weight is "
                f"0; raise it, or set train.{key}: 0",
            )


def _check_smoothing(config: RunConfig) -> Iterator[Problem]:
    smoothing, focal = config.train.label_smoothing, config.train.focal
    if smoothing and config.train.lean:
        yield Problem(
            "train.label_smoothing",
            f"got {smoothing:g}, which needs the whole output head, but train.memory: "
            f"{config.train.memory} keeps it in slices; set train.memory: plain, or "
            "train.label_smoothing: 0",
        )
    if smoothing and focal:
        yield Problem(
            "train.focal",
            f"got {focal:g} beside train.label_smoothing: {smoothing:g}, but the focal loss is "
            "defined for targets that are not smoothed; set one of them to 0",
        )


def _check_balance(config: RunConfig) -> Iterator[Problem]:
    weight = config.train.router_aux_loss
    if weight and config.task == "contrastive":
        yield Problem(
            "train.router_aux_loss",
            f"got {weight:g}, but task contrastive has no load balancing loss; remove it",
        )


def _check_rollback(config: RunConfig) -> Iterator[Problem]:
    checkpoint = config.checkpoint
    if config.guard.nonfinite == "rollback" and not (checkpoint.recurs or checkpoint.at_start):
        yield Problem(
            "guard.nonfinite",
            "got rollback, which needs a checkpoint to return to; set checkpoint.every or "
            "checkpoint.at_start: true",
        )


def _check_memory(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if train.lean and config.model.quantize != "nf4":
        yield Problem(
            "train.memory",
            f"got {train.memory}, which keeps the head in NF4, but model.quantize is "
            f"{config.model.quantize}; set model.quantize: nf4, or train.memory: auto",
        )
    if train.streams and (reason := why_not_streamed(config)) is not None:
        yield Problem("train.memory", f"got streamed, but {reason}; set lean")
    if train.whole_layers and train.activation_checkpointing is not True:
        kept = "keeps the activations of all layers"
        reason = "sets this number itself" if train.recomputes else kept
        yield Problem(
            "train.whole_layers",
            f"got {train.whole_layers}, but train.activation_checkpointing: "
            f"{str(train.activation_checkpointing).lower()} {reason}; set "
            "train.activation_checkpointing: true, or remove train.whole_layers",
        )
    if train.activations == "host" and not train.recomputes:
        yield Problem(
            "train.activations",
            "got host, which keeps activation checkpoints in host memory, but there are none; set "
            "train.activation_checkpointing: true",
        )


def _check_fast(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem if `train.fast: on` is set with a key that rules out CUDA graphs anywhere."""
    if config.train.fast == "on" and (reason := why_not_fast(config, "cuda")) is not None:
        yield Problem("train.fast", refusal(reason))


def _check_interventions(config: RunConfig) -> Iterator[Problem]:
    for number, planned in enumerate(config.interventions):
        key = f"interventions[{number}]"
        try:
            command = parse_command(planned.command)
        except CommandError as error:
            yield Problem(key, f"got {planned.command!r}: {error}")
            continue
        if not isinstance(command, PLANNABLE) or getattr(command, "autopilot", None) is not None:
            yield Problem(
                key,
                f"got {planned.command!r}, which cannot be planned; expected one of: lr scale, "
                "lr set, lr reset, clip, mix, skip, quarantine, policy nonfinite, weight_decay, "
                "dropout, schedule",
            )
        if config.train.steps is not None and planned.step >= config.train.steps:
            yield Problem(
                key,
                f"got step {planned.step}, but the run ends after step {config.train.steps}, so "
                f"{planned.command!r} would have no effect; remove it, or raise train.steps",
            )
        elif isinstance(command, SetSchedule):
            reason = why_without_effect(command.start, config.train.steps or 0)
            yield from [Problem(key, reason)] if reason else []


TRAINING = (
    _check_length,
    _check_intervals,
    _check_moments,
    _check_projection,
    _check_second_pass,
    _check_targets,
    _check_start,
    _check_init,
    _check_whole_model,
    _check_schedule,
    _check_ratios,
    _check_whole_modules,
    _check_next_token_loss,
    _check_smoothing,
    _check_balance,
    _check_rollback,
    _check_memory,
    _check_fast,
    _check_interventions,
)
"""Checks of how a run trains."""
