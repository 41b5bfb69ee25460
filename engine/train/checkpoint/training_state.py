"""Exact training state: captures and restores everything that training changes.

Weights that are not trained never change and are not part of the state. The state of a step is
captured at the boundary before its first micro-batch.

A restore has two phases, so that a damaged file on one rank changes nothing on any rank:

    staged = state.stage(folder, rank)   # reads and checks every file; changes nothing
    ...                                  # all ranks agree that none of them failed
    counters = state.apply(staged)       # reads no files, so that no file can make it fail
    ...                                  # all ranks compare state.fingerprint(counters)
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec
import safetensors.torch
import torch
from torch import Tensor

from ...errors import CheckpointError
from ...protocol.settings import RunSettings
from ..patches import set_last_lr
from ..position import Position
from .counters import Counters
from .ema import WeightsEma
from .optimizer_state import (
    bare,
    bit_sums,
    capture_optimizer,
    misfit,
    restore_optimizer,
    state_scalars,
    state_tensors,
)
from .rng import RngState, capture_rng, restore_rng, rng_from_tensors, rng_to_tensors

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER = "adapter_model.safetensors"
OWN = "trained_weights.safetensors"
EMA = "ema_model.safetensors"
INITIAL = "initial_model.safetensors"
OPTIMIZER = "optimizer.pt"
COUNTERS = "state.msgpack"

_TENSORS = ("optimizer", "others")
"""Parts of the machinery that hold tensors."""

T = TypeVar("T")


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """The state at the start of a step, to which a dropped step returns."""

    step: int
    position: int
    scheduler: dict[str, Any]
    rng: RngState


@dataclass(frozen=True)
class StagedState:
    """A checkpoint that has been read to the host and checked, ready to be applied."""

    weights: dict[str, Tensor]
    machinery: dict[str, Any]
    """The content of `OPTIMIZER`: optimizer, schedule, loss scaler, other parameters."""
    rng: RngState
    counters: Counters
    average: dict[str, Tensor] | None
    """The average of the trained weights; None if the checkpoint or this run has none."""
    bit_sums: list[int] | None = None
    """Of a sharded model, the sums of the bits of each whole value; None if nothing is split."""


class Shared(NamedTuple):
    """What ranks share of a state."""

    weights: dict[str, Tensor]
    average: dict[str, Tensor] | None
    """The average of the trained weights; None if the run keeps none."""
    machinery: dict[str, Any]
    """The content of `OPTIMIZER`."""


def rng_file(rank: int) -> str:
    """Return the name of the file with the random generators of a rank."""
    return f"rng-{rank}.pt"


class StatefulTrainer(Protocol):
    """The parts of a trainer that change while it trains, besides the weights of its model."""

    optimizer: Any
    lr_scheduler: Any

    @property
    def position(self) -> Position:
        """The number of finished optimizer steps and the learning rate of the schedule."""

    @property
    def scaler(self) -> Any:
        """The loss scaler of fp16 training; None in other precisions."""

    @property
    def own_parameters(self) -> Mapping[str, Tensor]:
        """Trained parameters outside of the model, such as a learned temperature, by name."""

    def return_to_step(self, step: int) -> None:
        """Set the number of finished steps; called after the schedule has been restored."""


class TrainingState:
    """Writes the live state of a run to a folder and restores it from there in place."""

    def __init__(
        self,
        trainer: StatefulTrainer,
        model: PeftModel,
        ema: WeightsEma | None = None,
        initial: Mapping[str, Tensor] | None = None,
        *,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Take what the state consists of.

        Args:
            trainer: the trainer, whose optimizer may be made later.
            model: the model that is trained.
            ema: the moving average of the trained weights; None if the run keeps none.
            initial: the adapter before training, if the base weights depend on it.
            weights: the live trained weights by name; None takes those of the model.
        """
        self._trainer = trainer
        self._model = model
        self._ema = ema
        self._initial = dict(initial or {})
        """The adapter before training, if the base weights depend on it."""
        self._file = ADAPTER if _has_adapter(model) else OWN
        self._weights = trained_weights(model) if weights is None else dict(weights)
        self._others = trainer.own_parameters

    def mark(self, position: int) -> Boundary:
        """Return the state from which the next step starts, so that the step can be undone."""
        return Boundary(
            step=self._trainer.position.step,
            position=position,
            scheduler=dict(self._trainer.lr_scheduler.state_dict()),
            rng=capture_rng(),
        )

    def return_to(self, boundary: Boundary) -> None:
        """Undo a step that was not applied: restore random generators, schedule and counter."""
        self._trainer.lr_scheduler.load_state_dict(boundary.scheduler)
        self._trainer.return_to_step(boundary.step)
        restore_rng(boundary.rng)

    @property
    def why_not_repeated(self) -> str:
        """Why no step can be repeated and undone; empty if it can."""
        return (
            "the loss scale of fp16 training changes with every repeated step; train in bf16"
            if self._trainer.scaler is not None
            else ""
        )

    def hold(self) -> StagedState:
        """Return a copy of the whole live state on the host, for `put_back`."""
        machinery = self._machinery()
        optimizer = machinery["optimizer"]
        held = {
            **copy.deepcopy({k: v for k, v in machinery.items() if k not in _TENSORS}),
            "optimizer": {
                **copy.deepcopy({k: v for k, v in optimizer.items() if k != "state"}),
                "state": [one and _on_host(one) for one in optimizer["state"]],
            },
            "others": _on_host(machinery["others"]),
        }
        step = self._trainer.position.step
        return StagedState(
            weights=_on_host(self._weights),
            machinery=held,
            rng=capture_rng(),
            counters=Counters(step=step, position=0, desired=RunSettings()),
            average=_on_host(self._ema.average) if self._ema else None,
        )

    def put_back(self, held: StagedState) -> None:
        """Restore what `hold` has returned, with the learning rates of that moment."""
        self.apply(held)
        groups = bare(self._trainer.optimizer).param_groups
        for group, saved in zip(groups, held.machinery["optimizer"]["groups"], strict=True):
            group["lr"] = saved["lr"]

    def gathered(self) -> AbstractContextManager[None]:
        """Return an empty context: rank 0 always has what the ranks share."""
        return nullcontext()

    def _shared(self) -> Shared:
        average = self._ema.average if self._ema is not None else None
        return Shared(self._weights, average, self._machinery())

    def _shape(self, name: str) -> torch.Size:
        """Return the shape of a trained weight as it is saved."""
        return self._weights[name].shape

    def save_shared(self, folder: Path, counters: Counters) -> None:
        """Write what ranks share: weights, their average, optimizer, schedule, scaler, counters.

        Raises:
            CheckpointError: a weight is not finite.
        """
        shared = self._shared()
        save_weights(shared.weights, folder / self._file)
        if shared.average is not None:
            save_weights(shared.average, folder / EMA)
        if self._initial:
            save_weights(self._initial, folder / INITIAL)
        if _has_adapter(self._model):
            self._model.peft_config["default"].save_pretrained(str(folder))
        torch.save(shared.machinery, folder / OPTIMIZER)
        (folder / COUNTERS).write_bytes(msgspec.msgpack.encode(counters))

    def save_own(self, folder: Path, rank: int) -> None:
        """Write what belongs to this rank: the state of its random generators."""
        torch.save(rng_to_tensors(capture_rng()), folder / rng_file(rank))

    def _machinery(self) -> dict[str, Any]:
        scaler = self._trainer.scaler
        return {
            "optimizer": capture_optimizer(self._trainer.optimizer),
            "others": {name: tensor.detach() for name, tensor in self._others.items()},
            "scheduler": self._trainer.lr_scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
            "averaged": self._ema.updates if self._ema else 0,
        }

    def stage(self, folder: Path, rank: int) -> StagedState:
        """Read and check a checkpoint without changing the live state.

        Raises:
            CheckpointError: a file cannot be read or does not fit; the text names it.
        """
        read = CheckpointReader(folder)
        staged = StagedState(
            weights=read(self._file, read_weights),
            machinery=read(OPTIMIZER, _machinery),
            rng=read(rng_file(rank), lambda file: rng_from_tensors(read_tensors(file))),
            counters=read(COUNTERS, lambda _: read_counters(folder)),
            average=read(EMA, read_weights) if self._ema and (folder / EMA).exists() else None,
        )
        self._check_weights(folder, self._file, staged.weights)
        if staged.average:
            self._check_weights(folder, EMA, staged.average)
        if self._initial:
            self._check_initial(folder, read(INITIAL, read_weights))
        self._check_machinery(folder, staged.machinery)
        return staged

    def _check_initial(self, folder: Path, found: dict[str, Tensor]) -> None:
        """Compare the initial adapter, which changed the base weights, with that of a checkpoint.

        Raises:
            CheckpointError: they differ, so the base weights do, too.
        """
        own = self._initial
        if own.keys() != found.keys() or any(not torch.equal(own[n], found[n]) for n in own):
            raise CheckpointError(
                f"checkpoint {folder.name}: adapter.init gives other weights here than at the "
                "start of the run, so the base model differs; resume on the machine that started "
                "it, or export the checkpoint and start a new run from it"
            )

    def _check_machinery(self, folder: Path, found: dict[str, Any]) -> None:
        missing = self._others.keys() - found["others"].keys()
        problem = (
            f"no {min(missing)}, which this run trains; resume with the loss it was made with"
            if missing
            else misfit(self._trainer.optimizer, found["optimizer"])
        )
        if problem:
            raise CheckpointError(f"checkpoint {folder.name}: {OPTIMIZER} holds {problem}")

    def apply(self, staged: StagedState) -> Counters:
        """Apply a staged checkpoint and return its counters for the other parts of the session.

        Gradients are cleared. An average that the checkpoint lacks restarts from its weights.
        """
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(staged.weights[name])
            for name, tensor in self._others.items():
                tensor.copy_(staged.machinery["others"][name])
        restore_optimizer(self._trainer.optimizer, staged.machinery["optimizer"])
        restore_schedule(self._trainer.lr_scheduler, staged.machinery["scheduler"])
        if self._trainer.scaler is not None and staged.machinery["scaler"]:
            self._trainer.scaler.load_state_dict(staged.machinery["scaler"])
        if self._ema is not None:
            _restore_average(self._ema, staged)
        self._trainer.return_to_step(staged.counters.step)
        self._model.zero_grad(set_to_none=True)
        restore_rng(staged.rng)
        return staged.counters

    def fingerprint(self, counters: Counters) -> bytes:
        """Return a checksum of the live state, equal on all ranks if their states are equal.

        Random generators are left out, because each rank has its own.
        """
        machinery = self._machinery()
        average = list(self._ema.average.values()) if self._ema else []
        live = [*self._weights.values(), *self._others.values(), *average]
        live += state_tensors(machinery["optimizer"])
        plain = (
            self._bit_sums(live),
            state_scalars(machinery["optimizer"]),
            machinery["optimizer"]["groups"],
            self._trainer.lr_scheduler.last_epoch,
            machinery["scaler"],
            machinery["averaged"],
            self._trainer.position.step,
            msgspec.msgpack.encode(counters),
        )
        return hashlib.blake2b(repr(plain).encode(), digest_size=16).digest()

    def _bit_sums(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the sums of the bits of live values, equal on all ranks if their states are."""
        return bit_sums(tensors)

    def _check_weights(self, folder: Path, file: str, found: dict[str, Tensor]) -> None:
        if missing := sorted(self._weights.keys() ^ found.keys()):
            raise CheckpointError(
                f"checkpoint {folder.name}: {file} holds a different set of weights than this "
                f"run trains, such as {missing[0]}; resume with the sections adapter and train "
                "it was made with"
            )
        for name, tensor in found.items():
            if tensor.shape != self._shape(name):
                raise CheckpointError(
                    f"checkpoint {folder.name}: {file}: {name} is {list(tensor.shape)}, this run "
                    f"has {list(self._shape(name))}; resume with the section adapter it was "
                    "made with"
                )


def _on_host(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of tensors on the host, and other values as they are."""
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in values.items()
    }


def _has_adapter(model: Any) -> bool:
    from peft import PeftModel  # deferred: a watched script may not have it

    return isinstance(model, PeftModel)


def trained_weights(model: PeftModel) -> dict[str, Tensor]:
    """Return the live trained weights by the names under which they are saved.

    Those of an adapter have the names that PEFT gives them, those of the model itself their own.
    """
    if not _has_adapter(model):
        return {name: p for name, p in model.named_parameters() if p.requires_grad}
    trained = {p.data_ptr(): p for p in model.parameters() if p.requires_grad}
    from peft import get_peft_model_state_dict  # deferred: a watched script may not have it

    saved = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: trained.get(tensor.data_ptr(), tensor) for name, tensor in saved.items()}


def save_weights(weights: dict[str, Tensor], file: Path) -> None:
    """Write weights as safetensors.

    Raises:
        CheckpointError: a weight is not finite.
    """
    host: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in weights.items():
        plain = tensor.detach().to("cpu").contiguous()
        if not torch.isfinite(plain).all():
            raise CheckpointError(
                f"{name} is not finite, so {file.name} is not written; "
                "roll back to an earlier checkpoint"
            )
        # The format cannot store tied weights, so each of them is written separately.
        host[name] = plain.clone() if plain.data_ptr() in seen else plain
        seen.add(plain.data_ptr())
    safetensors.torch.save_file(host, file, metadata={"format": "pt"})


def read_weights(file: Path) -> dict[str, Tensor]:
    """Read weights into memory, because a mapped file could change after it was staged."""
    weights: dict[str, Tensor] = safetensors.torch.load(file.read_bytes())
    return weights


def read_tensors(file: Path) -> dict[str, Any]:
    """Read a file of tensors and plain values into host memory."""
    loaded: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return loaded


def _machinery(file: Path) -> dict[str, Any]:
    loaded = read_tensors(file)
    if missing := sorted(
        {"optimizer", "others", "scheduler", "scaler", "averaged"} - loaded.keys()
    ):
        raise ValueError(f"it has no {missing[0]!r}; another version of fttui wrote it")
    return loaded


@dataclass(frozen=True)
class CheckpointReader:
    """Reads files of one checkpoint and names the file in every error."""

    folder: Path

    def __call__(self, name: str, read: Callable[[Path], T]) -> T:
        """Read one file.

        Raises:
            CheckpointError: the file is missing or cannot be read.
        """
        try:
            return read(self.folder / name)
        except FileNotFoundError:
            raise CheckpointError(
                f"checkpoint {self.folder.name}: {name} is missing; choose another one"
            ) from None
        except Exception as error:  # noqa: BLE001 -- damaged bytes make readers raise anything
            raise CheckpointError(
                f"checkpoint {self.folder.name}: {name} cannot be read "
                f"({type(error).__name__}: {error}); choose another one"
            ) from None


def _restore_average(ema: WeightsEma, staged: StagedState) -> None:
    """Restore the average; without one in the checkpoint it restarts from the weights."""
    if staged.average is None:
        ema.restart()
    else:
        ema.restore(staged.average, staged.machinery["averaged"])


def restore_schedule(schedule: Any, saved: dict[str, Any]) -> None:
    """Move a schedule to its saved step, with the learning rates of the current configuration.

    Only the position comes from the checkpoint: a learning rate that was changed in the
    configuration of a resumed run takes effect, and an unchanged one gives the same values again.
    """
    base_lrs = list(schedule.base_lrs)
    schedule.load_state_dict({**saved, "base_lrs": base_lrs})
    factors = [factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
    set_last_lr(schedule, [lr * factor for lr, factor in zip(base_lrs, factors, strict=True)])


def read_counters(folder: Path) -> Counters:
    """Read the counters in a checkpoint's folder; errors of reading and decoding pass through."""
    return msgspec.msgpack.decode((folder / COUNTERS).read_bytes(), type=Counters)
