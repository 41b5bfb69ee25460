"""Exact state of a foreign trainer: everything that its training changes, in this process.

Weights and optimizer are written as files, with checksums, as those of the engine. What only the
trainer understands (its counters, its metrics, the state of its schedule and of its callbacks) is
kept in memory, because a watched script is rolled back in the process that wrote the checkpoint and
resumed by its own means.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from ..train.checkpoint.counters import Counters
from ..train.checkpoint.optimizer_state import (
    bare,
    bit_sums,
    capture_optimizer,
    misfit,
    restore_optimizer,
    state_scalars,
    state_tensors,
)
from ..train.checkpoint.rng import (
    RngState,
    capture_rng,
    restore_rng,
    rng_from_tensors,
    rng_to_tensors,
)
from ..train.checkpoint.training_state import (
    COUNTERS,
    OPTIMIZER,
    Boundary,
    CheckpointReader,
    read_counters,
    read_tensors,
    read_weights,
    rng_file,
    save_weights,
)
from ..train.position import Position
from .batch_tape import BatchTape

WEIGHTS = "trained.safetensors"


class TrainerMemory(Protocol):
    """What a trainer keeps besides weights, optimizer and schedule."""

    def capture(self) -> Any:
        """Return a copy of what the trainer keeps."""

    def restore(self, kept: Any, step: int) -> None:
        """Restore a copy that `capture` returned, and set the number of finished steps.

        The copy itself stays unchanged.
        """

    def why_lost(self, kept: Any) -> str:
        """Return why a copy cannot be restored exactly; empty if it can."""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a script that training changes."""

    model: nn.Module
    optimizer: Any
    schedules: list[Any]
    """Learning rate schedules; each has `state_dict` and `load_state_dict`."""
    scaler: Any = None
    """The loss scaler of fp16 training; None in other precisions."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a checkpoint that stays in memory."""

    position: int
    schedules: list[Any]
    lrs: list[Any]
    """Learning rate of every parameter group."""
    memory: Any


class ForeignState:
    """Implements `ExactState` for a trainer that fttui has not built."""

    def __init__(
        self, parts: Parts, memory: TrainerMemory, tape: BatchTape, position: Position
    ) -> None:
        self._parts = parts
        self._memory = memory
        self._tape = tape
        self._position = position
        self._weights = trained_weights(parts)
        self._buffers = changing_buffers(parts.model)
        self._kept: dict[str, Kept] = {}
        """By name of the checkpoint."""
        self._before: Any = None
        """The trainer's memory at the last boundary."""

    @property
    def trained(self) -> int:
        """Number of trained parameters."""
        return sum(weight.numel() for weight in self._weights.values())

    @property
    def size_bytes(self) -> int:
        """The expected bytes of a checkpoint: weights, and two optimizer values of 4 bytes each."""
        weights = sum(weight.nbytes for weight in self._weights.values())
        return weights + 2 * sum(4 * weight.numel() for weight in self._weights.values())

    def mark(self, position: int) -> Boundary:
        """Return the boundary before a step, and keep what `return_to` needs to undo the step."""
        self._before = self._memory.capture()
        generators = capture_rng()
        self._tape.begin_step(generators)
        return Boundary(
            step=self._position.step,
            position=position,
            scheduler={"all": [schedule.state_dict() for schedule in self._parts.schedules]},
            rng=generators,
        )

    def return_to(self, boundary: Boundary) -> None:
        """Return to the boundary of the last `mark`, before a step whose update was not made.

        The gradients of that step are removed.
        """
        self._load_schedules(boundary.scheduler["all"])
        self._memory.restore(self._before, boundary.step)
        self._parts.model.zero_grad(set_to_none=True)
        restore_rng(boundary.rng)

    def gathered(self) -> AbstractContextManager[None]:
        """Return a context that does nothing, because rank 0 has what `save_shared` writes."""
        return nullcontext()

    def save_shared(self, folder: Path, counters: Counters) -> None:
        """Write what is equal on all ranks: weights, optimizer, buffers, loss scaler, counters."""
        save_weights(self._weights, folder / WEIGHTS)
        torch.save(self._machinery(), folder / OPTIMIZER)
        (folder / COUNTERS).write_bytes(msgspec.msgpack.encode(counters))

    def save_own(self, folder: Path, rank: int) -> None:
        """Write the random generators of this rank, and keep what only its trainer knows.

        What is kept for checkpoints that were removed is freed, with the batches they needed.
        """
        torch.save(rng_to_tensors(capture_rng()), folder / rng_file(rank))
        parts = self._parts
        self._kept[folder.name] = Kept(
            position=self._tape.position,
            schedules=copy.deepcopy([schedule.state_dict() for schedule in parts.schedules]),
            lrs=[_plain(group["lr"]) for group in bare(parts.optimizer).param_groups],
            memory=self._memory.capture(),
        )
        self._forget_removed(folder.parent)

    def _forget_removed(self, folder: Path) -> None:
        """Forget checkpoints that retention has removed, and the batches that only they need."""
        self._kept = {name: kept for name, kept in self._kept.items() if (folder / name).exists()}
        self._tape.forget_before(min(kept.position for kept in self._kept.values()))

    def _machinery(self) -> dict[str, Any]:
        scaler = self._parts.scaler
        return {
            "optimizer": capture_optimizer(self._parts.optimizer),
            "buffers": {name: buffer.detach() for name, buffer in self._buffers.items()},
            "scaler": scaler.state_dict() if scaler is not None else None,
        }

    def stage(self, folder: Path, rank: int) -> Any:
        """Read and check a checkpoint without changing the live state.

        Raises:
            CheckpointError: this process has not written it, its batches are no longer held, a file
                cannot be read, or the optimizer in it is not that of the script.
        """
        kept = self._kept.get(folder.name)
        if kept is None:
            raise CheckpointError(
                f"checkpoint {folder.name} was written by an earlier process of this script; "
                "choose one of this process, or resume the script by its own means"
            )
        if kept.position < self._tape.oldest:
            raise CheckpointError(
                f"checkpoint {folder.name}: the batches since then are no longer held; choose a "
                "later one, or raise the host memory for batches with fttui.watch(…, tape_mib=N)"
            )
        if lost := self._memory.why_lost(kept.memory):
            raise CheckpointError(f"checkpoint {folder.name}: {lost}; choose a later one")
        read = CheckpointReader(folder)
        staged = (
            read(WEIGHTS, read_weights),
            read(OPTIMIZER, read_tensors),
            read(rng_file(rank), lambda file: rng_from_tensors(read_tensors(file))),
            read(COUNTERS, lambda _: read_counters(folder)),
            kept,
        )
        problem = misfit(self._parts.optimizer, staged[1]["optimizer"])
        if problem:
            raise CheckpointError(f"checkpoint {folder.name}: {OPTIMIZER} holds {problem}")
        return staged

    def apply(self, staged: Any) -> Counters:
        """Put a staged checkpoint in place, and return its counters.

        Raises:
            RuntimeError: it failed half-way, so weights and optimizer may not belong together.
        """
        try:
            return self._apply(staged)
        except Exception as error:
            text = "the rollback failed half-way, so weights and optimizer may not belong together"
            raise RuntimeError(f"{text}: {type(error).__name__}: {error}") from error

    @torch.no_grad()
    def _apply(self, staged: Any) -> Counters:
        weights, machinery, rng, counters, kept = staged
        for name, weight in self._weights.items():
            weight.copy_(weights[name])
        for name, buffer in self._buffers.items():
            buffer.copy_(machinery["buffers"][name])
        restore_optimizer(self._parts.optimizer, machinery["optimizer"])
        self._load_schedules(kept.schedules)
        for group, lr in zip(bare(self._parts.optimizer).param_groups, kept.lrs, strict=True):
            set_group_lr(group, lr)
        if self._parts.scaler is not None and machinery["scaler"]:
            self._parts.scaler.load_state_dict(machinery["scaler"])
        self._finish(counters, kept, rng)
        restored: Counters = counters
        return restored

    def _finish(self, counters: Counters, kept: Kept, rng: RngState) -> None:
        self._memory.restore(kept.memory, counters.step)
        self._parts.model.zero_grad(set_to_none=True)
        restore_rng(rng)

    def _load_schedules(self, saved: list[Any]) -> None:
        for schedule, state in zip(self._parts.schedules, saved, strict=True):
            schedule.load_state_dict(copy.deepcopy(state))

    def fingerprint(self, counters: Counters) -> bytes:
        """Return a checksum of the live state, which is equal on all ranks if their states are."""
        machinery = self._machinery()
        plain = (
            bit_sums([*self._weights.values(), *state_tensors(machinery["optimizer"])]),
            state_scalars(machinery["optimizer"]),
            machinery["scaler"],
            self._position.step,
            msgspec.msgpack.encode(counters),
        )
        return hashlib.blake2b(repr(plain).encode(), digest_size=16).digest()


def trained_weights(parts: Parts) -> dict[str, Tensor]:
    """Return the parameters that the optimizer changes, by their names in the model.

    Parameters that are not part of the model, such as those of a loss, have a number in their name.
    """
    names = {id(parameter): name for name, parameter in parts.model.named_parameters()}
    groups = bare(parts.optimizer).param_groups
    every = [parameter for group in groups for parameter in group["params"]]
    return {
        names.get(id(parameter), f"optimizer.{number}"): parameter
        for number, parameter in enumerate(every)
        if parameter.requires_grad
    }


def changing_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a forward pass may change, by name.

    Boolean ones are masks, which never change; those on the meta device have no values.
    """
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if buffer.dtype is not torch.bool and buffer.device.type != "meta"
    }


def set_group_lr(group: dict[str, Any], lr: Any) -> None:
    """Set the learning rate of a parameter group, in place if it is a tensor."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


def _plain(lr: Any) -> Any:
    return float(lr) if isinstance(lr, Tensor) else lr


def group_lrs(optimizer: Any) -> Iterator[float]:
    """Yield the learning rate of every group that has one."""
    for group in bare(optimizer).param_groups:
        if group["lr"] is not None:
            yield float(group["lr"])
