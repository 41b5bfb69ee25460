"""Lending the GPU out while a run is paused: everything on it goes to host memory and returns.

Only the storage behind each tensor moves; the tensors themselves stay the objects that the model,
the optimizer and DDP hold, so nothing has to be put together again and no bit changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .agree import Agreement, attempt


class Taken(Exception):
    """Somebody else has the memory; everything stays released."""


class Lending:
    """Releases the memory of all ranks' devices and takes it back, on all of them or on none."""

    def __init__(
        self, offload: Offload, agreement: Agreement, log: Callable[[str, str], None]
    ) -> None:
        self._offload = offload
        self._agreement = agreement
        self._log = log
        self._lent = False

    def release(self) -> None:
        """Lend the memory out, unless that is done already."""
        if self._lent:
            return
        self._lent = True
        freed = self._offload.release()
        text = f"{freed / 2**30:.2f} GiB of GPU memory released until training goes on"
        self._log("info", text if freed else "there is no GPU memory to release")

    def reclaim(self) -> None:
        """Take the memory back, if it is lent.

        Raises:
            Taken: a rank could not have it back.
        """
        if not self._lent:
            return
        if errors := self._agreement.errors(attempt(self._offload.reclaim)):
            self._offload.release()
            raise Taken(
                f"the GPU's memory cannot be taken back: {'; '.join(errors)}; "
                "end what else uses it, then try again"
            )
        self._lent = False


class Offload:
    """Moves the tensors of a model and its optimizer off the device and back."""

    def __init__(self, model: nn.Module, trainer: Any, device: torch.device) -> None:
        self._model = model
        self._trainer = trainer
        self._device = device
        self._moved: list[Tensor] = []

    def release(self) -> int:
        """Free device memory; returns how many bytes others can have now."""
        if self._device.type != "cuda" or self._moved:
            return 0
        before = torch.cuda.memory_reserved(self._device)
        self._model.zero_grad(set_to_none=True)
        for tensor in self._tensors():
            tensor.data = tensor.data.to("cpu")
            self._moved.append(tensor)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return int(before - torch.cuda.memory_reserved(self._device))

    def reclaim(self) -> None:
        """Put everything back.

        Raises:
            torch.OutOfMemoryError: somebody else has the memory; what had returned is away again.
        """
        moved = list(self._moved)
        try:
            for tensor in moved:
                tensor.data = tensor.data.to(self._device)
        except torch.OutOfMemoryError:
            for tensor in moved:
                tensor.data = tensor.data.to("cpu")
            torch.cuda.empty_cache()
            raise
        self._moved.clear()

    def _tensors(self) -> Iterator[Tensor]:
        seen: set[int] = set()
        for tensor in self._all():
            if id(tensor) not in seen and tensor.device.type == "cuda":
                seen.add(id(tensor))
                yield tensor

    def _all(self) -> Iterator[Tensor]:
        for parameter in self._model.parameters():
            yield parameter
            yield from _tensors_in(getattr(parameter, "quant_state", None))
        yield from self._model.buffers()
        for state in self._trainer.optimizer.state.values():
            yield from (v for v in state.values() if isinstance(v, Tensor) and not _paged(v))


def _tensors_in(quant_state: Any) -> Iterator[Tensor]:
    """What bitsandbytes keeps beside a quantized weight, its own quantized scales included."""
    for value in vars(quant_state).values() if quant_state is not None else ():
        if isinstance(value, Tensor):
            yield value
        elif type(value) is type(quant_state):
            yield from _tensors_in(value)


def _paged(tensor: Tensor) -> bool:
    """Managed memory: the driver moves it by itself."""
    return bool(getattr(tensor, "is_paged", False))
