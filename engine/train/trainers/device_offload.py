"""Device offload: moves all tensors of a paused run to host memory and back.

Only the bytes of the tensors move: each storage is resized to zero in place and filled again later.
The memory is therefore freed even if other objects (DDP, an autograd graph, the cache of a library)
hold or view a tensor, no object has to be rebuilt, and no bit changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn

from ..checkpoint.ema import WeightsEma
from ..checkpoint.optimizer_state import live_tensors


class DeviceOffload:
    """Moves the memory of a model, its optimizer and its average off the device and back."""

    def __init__(
        self, model: nn.Module, trainer: Any, device: torch.device, ema: WeightsEma | None = None
    ) -> None:
        self._model = model
        self._trainer = trainer
        self._device = device
        self._ema = ema
        self._emptied: list[tuple[UntypedStorage, Tensor]] = []
        """Emptied storages, each with the copy of its bytes on the host."""

    def release(self) -> int:
        """Move everything to the host; return how many bytes of GPU memory that freed.

        On a CPU nothing is done, and the number is 0.
        """
        if self._device.type != "cuda":
            return 0
        before = torch.cuda.memory_reserved(self._device)
        self.empty()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return int(before - torch.cuda.memory_reserved(self._device))

    def empty(self) -> int:
        """Move the bytes of every storage to the host and return their number.

        Captured CUDA graphs are freed and gradients dropped. A second call moves nothing.
        """
        if not self._emptied:
            self._trainer.forward.release()
            if self._trainer.sharded is not None:
                self._trainer.sharded.reshard()
            self._model.zero_grad(set_to_none=True)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # streamed weights may still be arriving
            for storage in self._storages():
                self._emptied.append((storage, _bytes_of(storage).to("cpu", copy=True)))
                storage.resize_(0)
        return sum(host.numel() for _, host in self._emptied)

    def reclaim(self) -> None:
        """Move everything back to the device.

        Raises:
            torch.OutOfMemoryError: another process uses the memory; all storages are empty again.
        """
        try:
            for storage, host in self._emptied:
                storage.resize_(host.numel())
                _bytes_of(storage).copy_(host)
        except torch.OutOfMemoryError:
            for storage, _ in self._emptied:
                storage.resize_(0)
            torch.cuda.empty_cache()
            raise
        self._emptied.clear()

    def _storages(self) -> list[UntypedStorage]:
        """Return each storage on the device that model, optimizer, average or trainer use, once.

        Storages that are empty or cannot be resized are left out.
        """
        own = [t for t in self._tensors() if t.device.type == self._device.type]
        found = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in own}
        return [s for s in found.values() if s.nbytes() and s.resizable()]

    def _tensors(self) -> Iterator[Tensor]:
        sharded, parameters = self._trainer.sharded, self._model.parameters()
        yield from sharded.ends.parts if sharded is not None else ()
        for parameter in parameters:
            yield parameter.to_local() if hasattr(parameter, "to_local") else parameter
            yield from _tensors_in(getattr(parameter, "quant_state", None))
        yield from self._model.buffers()
        yield from (v for v in live_tensors(self._trainer.optimizer) if not _paged(v))
        yield from self._trainer.kept_tensors
        if self._ema is not None:
            yield from self._ema.average.values()


def _bytes_of(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _tensors_in(quant_state: Any) -> Iterator[Tensor]:
    """Yield the tensors that bitsandbytes keeps for a quantized weight, such as its scales."""
    for value in vars(quant_state).values() if quant_state is not None else ():
        if isinstance(value, Tensor):
            yield value
        elif type(value) is type(quant_state):
            yield from _tensors_in(value)


def _paged(tensor: Tensor) -> bool:
    """Return whether a tensor is in managed memory, which the driver moves by itself."""
    return bool(getattr(tensor, "is_paged", False))
