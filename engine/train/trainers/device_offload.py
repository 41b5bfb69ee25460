"""Device offload: moves all tensors of a paused run to host memory and back.

Only the bytes behind the tensors move: each storage is resized to zero in place and filled again
later. So it does not matter who else holds or views a tensor (DDP, an autograd graph, the cache of
a library): the memory is free in any case, no object has to be rebuilt, and no bit changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn

from ..checkpoint.ema import AdapterEma


class DeviceOffload:
    """Moves the memory of a model, its optimizer and its average off the device and back."""

    def __init__(
        self, model: nn.Module, trainer: Any, device: torch.device, ema: AdapterEma | None = None
    ) -> None:
        self._model = model
        self._trainer = trainer
        self._device = device
        self._ema = ema
        self._away: list[tuple[UntypedStorage, Tensor]] = []
        """Emptied storages, each with its bytes."""

    def release(self) -> int:
        """Free device memory; returns how many bytes others can have now."""
        if self._device.type != "cuda":
            return 0
        before = torch.cuda.memory_reserved(self._device)
        self.empty()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return int(before - torch.cuda.memory_reserved(self._device))

    def empty(self) -> int:
        """Move every storage's bytes to the host; returns how many they are."""
        if not self._away:
            self._trainer.forward.release()
            self._model.zero_grad(set_to_none=True)
            for storage in self._storages():
                self._away.append((storage, _bytes_of(storage).to("cpu", copy=True)))
                storage.resize_(0)
        return sum(host.numel() for _, host in self._away)

    def reclaim(self) -> None:
        """Put everything back.

        Raises:
            torch.OutOfMemoryError: somebody else has the memory; what had returned is away again.
        """
        try:
            for storage, host in self._away:
                storage.resize_(host.numel())
                _bytes_of(storage).copy_(host)
        except torch.OutOfMemoryError:
            for storage, _ in self._away:
                storage.resize_(0)
            torch.cuda.empty_cache()
            raise
        self._away.clear()

    def _storages(self) -> list[UntypedStorage]:
        """Return every storage once, however many tensors share it."""
        own = [t for t in self._tensors() if t.device.type == self._device.type]
        found = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in own}
        return [s for s in found.values() if s.nbytes() and s.resizable()]

    def _tensors(self) -> Iterator[Tensor]:
        for parameter in self._model.parameters():
            yield parameter
            yield from _tensors_in(getattr(parameter, "quant_state", None))
        yield from self._model.buffers()
        for state in self._trainer.optimizer.state.values():
            yield from (v for v in state.values() if isinstance(v, Tensor) and not _paged(v))
        if self._ema is not None:
            yield from self._ema.average.values()


def _bytes_of(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _tensors_in(quant_state: Any) -> Iterator[Tensor]:
    """Return the tensors that bitsandbytes keeps beside a quantized weight, with its scales."""
    for value in vars(quant_state).values() if quant_state is not None else ():
        if isinstance(value, Tensor):
            yield value
        elif type(value) is type(quant_state):
            yield from _tensors_in(value)


def _paged(tensor: Tensor) -> bool:
    """Managed memory: the driver moves it by itself."""
    return bool(getattr(tensor, "is_paged", False))
