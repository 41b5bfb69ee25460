"""Optimizer state: copied to plain values and restored into the live optimizer in place.

The loaders of torch and bitsandbytes replace the live tensors by new ones: during a rollback both
exist, paged buffers become plain device memory, and state is cast to the dtype of its weight. Here
the live tensors are kept and the saved values are copied into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

OptimizerState = dict[str, Any]
"""Keys `kind`, `groups` (settings of each) and `state` (of each weight in group order, or None)."""

_CONFIGURED = frozenset(
    {"params", "lr", "lr_ratio", "initial_lr", "weight_decay", "spared", "weights_id", "fused"}
)
"""Group options that follow the configuration and the schedule instead of the checkpoint."""


_PROJECTOR = "projector"
"""Key of the state value of GaLore and APOLLO that is an object with tensors."""


@dataclass(frozen=True)
class _Weight:
    """A trained weight and its place in the optimizer."""

    tensor: Tensor
    group: dict[str, Any]
    group_index: int
    index: int


def bare(optimizer: Any) -> Any:
    """Return the optimizer inside accelerate's wrapper, or the optimizer itself without one."""
    return getattr(optimizer, "optimizer", optimizer)


def kind_of(optimizer: Any) -> str:
    """Return package, class and number of bits of an optimizer, such as `torch AdamW`.

    It is the same for a paged optimizer and one that is not paged.
    """
    own = bare(optimizer)
    package = type(own).__module__.partition(".")[0]
    bits = getattr(getattr(own, "args", None), "optim_bits", None)
    return f"{package} {type(own).__name__}{f' {bits}-bit' if bits else ''}"


def capture_optimizer(optimizer: Any) -> OptimizerState:
    """Return the state of an optimizer; its tensors share memory with the live ones.

    Waits until the device has done its work, because the state may be in paged memory.
    """
    own = bare(optimizer)
    wait_for_device()
    return {
        "kind": kind_of(own),
        "groups": [
            {name: value for name, value in group.items() if name != "params"}
            for group in own.param_groups
        ],
        "state": [_capture(own.state.get(weight.tensor)) for weight in _weights(own)],
    }


def live_tensors(optimizer: Any) -> Iterator[Tensor]:
    """Yield every live tensor of an optimizer's state; paged ones keep bitsandbytes' mark."""
    for state in bare(optimizer).state.values():
        inner = vars(state[_PROJECTOR]).values() if _PROJECTOR in state else ()
        yield from (v for v in (*state.values(), *inner) if isinstance(v, Tensor))


def restart_optimizer(optimizer: Any, fresh: OptimizerState) -> None:
    """Drop all state of an optimizer, and restore the options of its groups.

    Args:
        optimizer: the optimizer.
        fresh: what `capture_optimizer` returned before its first step.
    """
    own = bare(optimizer)
    own.state.clear()
    for group, stored in zip(own.param_groups, fresh["groups"], strict=True):
        _restore_group(group, stored)


def _capture(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the state of a weight with detached tensors; None if it has no state yet.

    Detached tensors lack the mark by which bitsandbytes knows paged memory. The values of a
    projector are listed like the others, by names such as `projector.ortho_matrix`.
    """
    if not state:
        return None
    found = {k: v for k, v in state.items() if k != _PROJECTOR}
    for name, value in vars(state[_PROJECTOR]).items() if _PROJECTOR in state else ():
        found[f"{_PROJECTOR}.{name}"] = value
    return {k: v.detach() if isinstance(v, Tensor) else v for k, v in found.items()}


def misfit(optimizer: Any, saved: OptimizerState) -> str | None:
    """Return why a saved state does not fit this optimizer; None if it does."""
    own = bare(optimizer)
    if saved["kind"] != kind_of(own):
        return (
            f"the state of {saved['kind']}, this run has {kind_of(own)}; resume with the "
            "train.optimizer it was made with"
        )
    lengths = [len(group["params"]) for group in own.param_groups]
    if len(saved["groups"]) != len(lengths) or len(saved["state"]) != sum(lengths):
        return (
            f"the state of {len(saved['state'])} weights in {len(saved['groups'])} groups, this "
            f"run trains {sum(lengths)} in {len(lengths)}; resume with the sections adapter and "
            "train it was made with"
        )
    for group, stored in zip(own.param_groups, saved["groups"], strict=True):
        if group.get("weights_id") != stored.get("weights_id"):
            return (
                "a state with other groups of weights; resume with the train.lr_ratios it was made "
                "with"
            )
    return None


@torch.no_grad()
def restore_optimizer(optimizer: Any, saved: OptimizerState) -> None:
    """Copy a state into the live tensors of an optimizer that it fits (see `misfit`).

    Weights without a saved state lose theirs.
    """
    own = bare(optimizer)
    wait_for_device()
    for group, stored in zip(own.param_groups, saved["groups"], strict=True):
        _restore_group(group, stored)
    for weight, stored in zip(_weights(own), saved["state"], strict=True):
        if stored is None:
            _forget(own, weight)
        else:
            _restore(own, weight, stored)


def _restore_group(group: dict[str, Any], stored: dict[str, Any]) -> None:
    """Restore the options of a group, which for some optimizers include the number of steps.

    Those in `_CONFIGURED` keep their present values.
    """
    for name in group.keys() - stored.keys() - _CONFIGURED:
        del group[name]
    group.update({k: v for k, v in stored.items() if k not in _CONFIGURED})


def _restore(own: Any, weight: _Weight, stored: dict[str, Any]) -> None:
    state = own.state[weight.tensor]
    if not state and _makes_buffers(own):
        own.init_state(weight.group, weight.tensor, weight.group_index, weight.index)
    stored = _restore_projector(weight, state, stored)
    for name in state.keys() - stored.keys():
        if name != _PROJECTOR:
            del state[name]
    for name, value in stored.items():
        _put(state, name, value, _home(weight, name))


def _put(values: dict[str, Any], name: str, value: Any, home: torch.device) -> None:
    """Set a value; a tensor is copied into the live one if that has its shape and dtype."""
    live = values.get(name)
    if not isinstance(value, Tensor):
        values[name] = value
    elif isinstance(live, Tensor) and (live.shape, live.dtype) == (value.shape, value.dtype):
        live.copy_(value)
    else:
        values[name] = value.to(home, copy=True)


def _restore_projector(
    weight: _Weight, state: dict[str, Any], stored: dict[str, Any]
) -> dict[str, Any]:
    """Restore the projector of a weight, if it has one, and return the other values."""
    mark = f"{_PROJECTOR}."
    values = {k.removeprefix(mark): v for k, v in stored.items() if k.startswith(mark)}
    if not values:
        state.pop(_PROJECTOR, None)
        return stored
    if _PROJECTOR not in state:
        from pytorch_optimizer.optimizer.utils.galore import GaLoreProjector

        state[_PROJECTOR] = GaLoreProjector()
    live = vars(state[_PROJECTOR])
    for name, value in values.items():
        _put(live, name, value, weight.tensor.device)
    return {k: v for k, v in stored.items() if not k.startswith(mark)}


def _home(weight: _Weight, name: str) -> torch.device:
    """Return the device for a state value, which is that of its weight.

    Step counters are on the CPU unless the optimizer is fused or capturable.
    """
    on_device = weight.group.get("fused") or weight.group.get("capturable")
    return torch.device("cpu") if name == "step" and not on_device else weight.tensor.device


def _forget(own: Any, weight: _Weight) -> None:
    """Reset the state of a weight; paged buffers cannot be freed, so they are zeroed."""
    state = own.state.get(weight.tensor)
    if not state or not _makes_buffers(own):
        own.state.pop(weight.tensor, None)
        return
    for name, value in state.items():
        if not isinstance(value, Tensor):
            state[name] = 0
        elif not name.startswith("qmap"):
            value.zero_()


def _makes_buffers(own: Any) -> bool:
    """Return whether this is a bitsandbytes optimizer, which allocates its own (paged) buffers."""
    return hasattr(own, "get_state_buffer")


def _weights(own: Any) -> Iterator[_Weight]:
    for group_index, group in enumerate(own.param_groups):
        for index, tensor in enumerate(group["params"]):
            yield _Weight(tensor, group, group_index, index)


def wait_for_device() -> None:
    """Wait for all kernels, because the host reads and writes paged memory that they use."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def state_tensors(saved: OptimizerState) -> Iterator[Tensor]:
    """Yield every tensor of a state, in a fixed order."""
    for stored in saved["state"]:
        yield from (value for value in (stored or {}).values() if isinstance(value, Tensor))


def state_scalars(saved: OptimizerState) -> list[Any]:
    """Return the (name, value) pairs of a state whose value is not a tensor, in a fixed order."""
    values = ((stored or {}).items() for stored in saved["state"])
    return [item for items in values for item in items if not isinstance(item[1], Tensor)]


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_sums(tensors: Iterable[Tensor]) -> list[int]:
    """Return the sum of the bit patterns of each tensor, which changes if one bit changes.

    The sums are ordered by device, and by tensor within a device.
    """
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        bits = tensor.detach().reshape(-1).view(_BITS[tensor.element_size()])
        by_device.setdefault(tensor.device, []).append(bits.sum(dtype=torch.int64))
    return [total for sums in by_device.values() for total in torch.stack(sums).tolist()]
