"""Counts the bytes of tensors that are alive, as a device's allocator would have to hold them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageCounter(TorchDispatchMode):
    """Inside it every storage counts from the operation that made it until nobody holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._now = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        gc.collect()
        known = [found for found in gc.get_objects() if isinstance(found, torch.Tensor)]
        storages = [tensor.untyped_storage() for tensor in known]
        # Held, so that nothing new is made at the address of something old.
        self._before = {storage._cdata: storage for storage in storages}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at what comes out."""
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive or key in self._before:
            return

        def gone(_: Any) -> None:
            self._now -= size
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, gone)
        self._now += size
        self.peak_bytes = max(self.peak_bytes, self._now)
