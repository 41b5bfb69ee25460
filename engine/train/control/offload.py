"""Lending the GPU out while a run is paused: everything on it goes to host memory and returns.

Only the bytes behind the tensors move: each storage is emptied where it stands and filled again.
So it does not matter who else holds or views a tensor (DDP, an autograd graph, a library's cache):
the memory is free in any case, nothing has to be put together again, and no bit changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn

from ..checkpoint.ema import AdapterEma
from ..distributed.agreement import Agreement, attempt


class MemoryTaken(Exception):
    """Somebody else has the memory; everything stays released."""


class MemoryRelease:
    """Releases the memory of all ranks' devices and takes it back, on all of them or on none."""

    def __init__(
        self, offload: DeviceOffload, agreement: Agreement, log: Callable[[str, str], None]
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
            raise MemoryTaken(
                f"the GPU's memory cannot be taken back: {'; '.join(errors)}; "
                "end what else uses it, then try again"
            )
        self._lent = False


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
        """Emptied storages with the bytes they had."""

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
            if fast := getattr(self._trainer, "fast", None):
                fast.release()
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
        """Each once, however many tensors share it."""
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
    """What bitsandbytes keeps beside a quantized weight, its own quantized scales included."""
    for value in vars(quant_state).values() if quant_state is not None else ():
        if isinstance(value, Tensor):
            yield value
        elif type(value) is type(quant_state):
            yield from _tensors_in(value)


def _paged(tensor: Tensor) -> bool:
    """Managed memory: the driver moves it by itself."""
    return bool(getattr(tensor, "is_paged", False))
