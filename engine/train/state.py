"""The exact training state: what it takes for a run to go on as if it had never gone further.

The base model is not part of it: it never changes. The state of a step is taken at the boundary
before its first micro-batch.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file

from ..core.control import Desired
from ..errors import CheckpointError
from .rng import RngState, capture_rng, restore_rng, rng_from_tensors, rng_to_tensors

ADAPTER = "adapter_model.safetensors"
OPTIMIZER = "optimizer.pt"
COUNTERS = "state.msgpack"


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The plain part of the state."""

    step: int
    """Optimizer steps finished."""
    position: int
    """Micro-batches of each rank consumed."""
    desired: Desired
    watch: dict[str, Any] = {}
    """Detector, guard and meters."""


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """What a step in progress has already changed and would have to give back."""

    step: int
    position: int
    scheduler: dict[str, Any]
    rng: RngState


def rng_file(rank: int) -> str:
    """The file with one rank's generators."""
    return f"rng-{rank}.pt"


class TrainingState:
    """Moves the live objects of a run to a folder and back, in place."""

    def __init__(self, trainer: Any, model: PeftModel) -> None:
        self._trainer = trainer
        self._model = model

    def mark(self, position: int) -> Boundary:
        """Remember the boundary before a step."""
        return Boundary(
            step=self._trainer.state.global_step,
            position=position,
            scheduler=dict(self._trainer.lr_scheduler.state_dict()),
            rng=capture_rng(),
        )

    def return_to(self, boundary: Boundary) -> None:
        """Undo a step that was started but not applied: same generators, schedule and counter."""
        self._trainer.state.global_step = boundary.step
        self._trainer.lr_scheduler.load_state_dict(boundary.scheduler)
        restore_rng(boundary.rng)

    def save_shared(self, folder: Path, counters: Counters) -> None:
        """Rank 0's part: adapter, optimizer, schedule, scaler, counters."""
        adapter = {
            name: tensor.detach().to("cpu").contiguous() for name, tensor in self._adapter().items()
        }
        save_file(adapter, folder / ADAPTER, metadata={"format": "pt"})
        self._model.peft_config["default"].save_pretrained(str(folder))
        torch.save(self._machinery(), folder / OPTIMIZER)
        (folder / COUNTERS).write_bytes(msgspec.msgpack.encode(counters))

    def save_own(self, folder: Path, rank: int) -> None:
        """This rank's part: its random generators."""
        torch.save(rng_to_tensors(capture_rng()), folder / rng_file(rank))

    def _adapter(self) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = get_peft_model_state_dict(
            self._model, save_embedding_layers=False
        )
        return state

    def _machinery(self) -> dict[str, Any]:
        scaler = self._trainer.accelerator.scaler
        return {
            "optimizer": self._trainer.optimizer.state_dict(),
            "scheduler": self._trainer.lr_scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
        }

    def load(self, folder: Path, rank: int) -> Counters:
        """Put everything back in place; nothing is touched unless every file reads.

        Raises:
            CheckpointError: naming the file that does not fit.
        """
        try:
            adapter = load_file(folder / ADAPTER)
            machinery = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
            rng = torch.load(folder / rng_file(rank), map_location="cpu", weights_only=True)
            counters = read_counters(folder)
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"checkpoint {folder.name} cannot be read: {error}") from None
        self._check_fit(folder, adapter)
        set_peft_model_state_dict(self._model, adapter)
        self._trainer.optimizer.load_state_dict(machinery["optimizer"])
        restore_schedule(self._trainer.lr_scheduler, machinery["scheduler"])
        if self._trainer.accelerator.scaler is not None and machinery["scaler"]:
            self._trainer.accelerator.scaler.load_state_dict(machinery["scaler"])
        self._trainer.state.global_step = counters.step
        self._model.zero_grad(set_to_none=True)
        restore_rng(rng_from_tensors(rng))
        return counters

    def _check_fit(self, folder: Path, adapter: dict[str, torch.Tensor]) -> None:
        own = self._adapter()
        if missing := sorted(own.keys() ^ adapter.keys()):
            raise CheckpointError(
                f"checkpoint {folder.name} holds another set of adapter weights than this run "
                f"trains, such as {missing[0]}; resume with the adapter settings it was made with"
            )
        for name, tensor in adapter.items():
            if tensor.shape != own[name].shape:
                raise CheckpointError(
                    f"checkpoint {folder.name}: {name} is {list(tensor.shape)}, this run has "
                    f"{list(own[name].shape)}; resume with the adapter settings it was made with"
                )


def restore_schedule(schedule: Any, saved: dict[str, Any]) -> None:
    """Go back to a step of the schedule as it is configured now.

    Only the position comes from the checkpoint: a learning rate changed in the configuration of a
    resumed run counts, and an unchanged one gives the same values again.
    """
    base_lrs = list(schedule.base_lrs)
    schedule.load_state_dict({**saved, "base_lrs": base_lrs})
    factors = [factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
    schedule._last_lr = [lr * factor for lr, factor in zip(base_lrs, factors, strict=True)]


def read_counters(folder: Path) -> Counters:
    """The plain part of a checkpoint's state."""
    return msgspec.msgpack.decode((folder / COUNTERS).read_bytes(), type=Counters)


def free_bytes(folder: Path) -> int:
    """Free disk space where a folder is."""
    return shutil.disk_usage(folder).free
