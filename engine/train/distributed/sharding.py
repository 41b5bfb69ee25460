"""Sharded model: every rank holds a part of each weight, its gradient and its optimizer state.

torch's FSDP2 gathers the weights of a layer for its forward and backward pass, and averages the
gradients of the ranks into their parts. Optimizer, moving average and checkpoints work on the
parts as plain tensors, which share their memory with FSDP's own.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard

from ...errors import ModelError
from ...model.hidden import backbone_of, base_model_of
from ..patches import keep_quant_states, store_as_floats
from .split_ends import HostShares, SplitEnds

_PLACEMENTS = (Shard(0),)
"""Weights are split by their first dimension."""
_CLIP_EPSILON = 1e-6
"""Added to the norm in the factor of clipping, as in `torch.nn.utils.clip_grad_norm_`."""


class ShardedModel:
    """A model whose parameters are split over ranks, in place.

    All ranks share one copy, or the ranks of each node share one. Then copies are on different
    nodes, and only their gradients are averaged.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        trained: Mapping[str, Tensor],
        ranks: int | None = None,
    ) -> None:
        """Split a model; all ranks call this together.

        Args:
            model: the model that is trained, on any device.
            device: the device of this rank, to which the parts go.
            trained: the trained weights by the names under which they are saved.
            ranks: how many neighbouring ranks share a copy of the model; None for all.

        Raises:
            ModelError: a weight cannot be split.
        """
        self._model: Any = model
        whole = _mesh(device.type, ranks or dist.get_world_size())
        self._mesh: DeviceMesh = whole["parts"]
        names = _names_of(model, trained)
        self._shapes = {saved: trained[saved].shape for saved in names}
        streams = getattr(base_model_of(model), "streams", None)
        if streams is None:
            keep_quant_states(model, device)
            store_as_floats(model)
        else:
            streams.share(HostShares(self._mesh.get_group()))
        self.ends = SplitEnds(model, device, self._mesh.get_group())
        """Embedding and output head, if they are frozen and do not stream."""
        ignored = self.ends.parameters if streams is None else _packed(model)
        _shard(model, whole, ignored)
        parameters = dict(model.named_parameters())
        self._sharded: dict[str, Any] = {s: parameters[name] for s, name in names.items()}
        self.weights = {name: _part(parameter) for name, parameter in self._sharded.items()}
        """This rank's parts of the trained weights, by the names under which they are saved."""
        self._parts = {id(self._sharded[name]): part for name, part in self.weights.items()}
        self._names = {id(part): name for name, part in self.weights.items()}

    @property
    def ranks(self) -> int:
        """The number of ranks that hold the parts of a copy of the model."""
        return int(self._mesh.size())

    @property
    def trained(self) -> list[nn.Parameter]:
        """FSDP's trained parameters and the parts, which have gradients of their own."""
        return [*self._sharded.values(), *self.weights.values()]

    def part_of(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return this rank's part of a trained parameter of the model."""
        return self._parts[id(parameter)]

    def shape_of(self, name: str) -> torch.Size:
        """Return the shape of a whole trained weight, given its saved name."""
        return self._shapes[name]

    def reshard(self) -> None:
        """Let the next pass gather all weights again, because the parts have changed."""
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def clip(self, limit: float) -> Tensor:
        """Give the parts their gradients and clip them by the norm over all ranks.

        Returns the norm before clipping, [], the same on every rank.

        Args:
            limit: largest norm; infinite if clipping is off.
        """
        self._expose_gradients()
        gradients = [part.grad for part in self.weights.values() if part.grad is not None]
        norm = self._norm(gradients)
        if gradients and math.isfinite(limit):
            factor = (limit / (norm + _CLIP_EPSILON)).clamp(max=1.0)
            torch._foreach_mul_(gradients, factor)
        return norm

    def _expose_gradients(self) -> None:
        for name, part in self.weights.items():
            gradient = self._sharded[name].grad
            part.grad = None if gradient is None else gradient.to_local()

    def _norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norm of all gradients of all ranks, [].

        Every rank adds the same values in the same order, so that no two ranks differ in a bit.
        """
        own = torch.zeros((), device=self._mesh.device_type)
        norms = [n.float() for n in torch._foreach_norm(list(gradients))] if gradients else []
        if norms:
            own = torch.linalg.vector_norm(torch.stack(norms)).reshape(())
        every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(every, own)
        # Copies have the same gradients; the first one is taken by all.
        norm: Tensor = torch.linalg.vector_norm(torch.stack(every[: self.ranks]))
        return norm

    def name_of(self, part: Tensor) -> str:
        """Return the saved name of a part."""
        return self._names[id(part)]

    def whole(self, name: str, value: Tensor) -> Tensor | None:
        """Gather a value that is split like a weight; a collective.

        Returns the whole value on the host on rank 0, and None on the other ranks.

        Args:
            name: saved name of the weight.
            value: this rank's part of the weight, its average, or its optimizer state.
        """
        shape = self._shapes[name]
        split = DTensor.from_local(
            value.detach(),
            self._mesh,
            _PLACEMENTS,
            run_check=False,
            shape=shape,
            stride=_strides(shape),
        )
        gathered = split.full_tensor()
        return gathered.to("cpu", copy=True) if dist.get_rank() == 0 else None

    def part(self, whole: Tensor) -> Tensor:
        """Return a copy of this rank's part of a whole value."""
        size = math.ceil(len(whole) / self.ranks)
        first = self._mesh.get_local_rank() * size
        return whole[first : first + size].clone()

    def totals(self, sums: Sequence[int]) -> list[int]:
        """Return the sums, over the ranks of a copy, of integers that each has; a collective."""
        total = torch.tensor(list(sums), dtype=torch.int64, device=self._mesh.device_type)
        dist.all_reduce(total, group=self._mesh.get_group())
        return [int(value) for value in total.tolist()]


def _mesh(device: str, ranks: int) -> DeviceMesh:
    """Return the mesh of all ranks, of which each row of so many neighbours shares a copy."""
    copies = dist.get_world_size() // ranks
    if copies == 1:
        return init_device_mesh(device, (ranks,), mesh_dim_names=("parts",))
    return init_device_mesh(device, (copies, ranks), mesh_dim_names=("copies", "parts"))


def _names_of(model: nn.Module, trained: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the full names of trained weights in the model, by the names they are saved under.

    Raises:
        ModelError: a weight that is saved is not a parameter of the model.
    """
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    missing = [saved for saved, tensor in trained.items() if id(tensor) not in known]
    if missing:
        raise ModelError(
            f"train.strategy: fsdp cannot split {missing[0]}, which is not a weight of the model "
            "itself; set train.strategy: ddp"
        )
    return {saved: known[id(tensor)] for saved, tensor in trained.items()}


def _packed(model: nn.Module) -> set[nn.Parameter]:
    """Return the weights of integers, all of which stream in streamed mode."""
    return {parameter for parameter in model.parameters() if not parameter.is_floating_point()}


def require_divisible(model: nn.Module, ignored: Container[nn.Parameter] = ()) -> None:
    """Refuse weights of integers, which torch's FSDP cannot split, unless it ignores them.

    Raises:
        ModelError: the model has such a weight.
    """
    integers = ((n, p) for n, p in model.named_parameters() if not p.is_floating_point())
    whole = next((name for name, parameter in integers if parameter not in ignored), None)
    if whole is not None:
        raise ModelError(
            f"train.strategy: fsdp cannot split the weight {whole}, which has integers; set "
            "train.strategy: ddp or model.quantize: none"
        )


def _shard(model: nn.Module, mesh: DeviceMesh, ignored: set[nn.Parameter]) -> None:
    """Split a model in place: its decoder layers each, and all others but `ignored` together.

    Raises:
        ModelError: a weight cannot be split.
    """
    require_divisible(model, ignored)
    try:
        for layer in _layers(model):
            fully_shard(layer, mesh=mesh, ignored_params=ignored)
        fully_shard(model, mesh=mesh, ignored_params=ignored)
    except (ValueError, NotImplementedError, AssertionError) as error:
        raise ModelError(
            f"train.strategy: fsdp cannot split this model: {error}; set train.strategy: ddp"
        ) from error
    if hasattr(model, "generate"):
        register_fsdp_forward_method(model, "generate")


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the decoder layers, each of which is gathered by itself."""
    stacks = [one for one in backbone_of(model).modules() if isinstance(one, nn.ModuleList)]
    yield from max(stacks, key=len, default=())


def _part(parameter: Any) -> nn.Parameter:
    """Return this rank's part of a parameter as a plain one in the same memory."""
    return nn.Parameter(parameter.detach().to_local(), requires_grad=True)


def _strides(shape: torch.Size) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(shape[dimension + 1 :]) for dimension in range(len(shape)))
