"""What each rank of the gather test does."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fttui.engine.losses.contrastive import Reverse, info_nce
from fttui.engine.losses.gather import gather_rows, gather_sizes
from fttui.engine.train.distributed.place import RankPlace

HASHES = torch.tensor([1, 2, 3, 1, 5])


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4)).double()


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    both = torch.randn(2, 5, 5, generator=generator, dtype=torch.float64)
    return both[0], both[1]


def same(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return rows.unsqueeze(1) == columns


def gradient_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def distributed_gradient(rows: slice) -> torch.Tensor:
    """Local anchors against everyone's candidates; DDP averages, so the sum is times world."""
    model = DistributedDataParallel(network())
    anchors, positives = (side[rows] for side in pairs())
    encoded = model(torch.cat((anchors, positives)))
    own_anchors, own_positives = encoded.chunk(2)
    sizes = gather_sizes(len(anchors))
    candidates, offset = gather_rows(own_positives, sizes)
    all_anchors, _ = gather_rows(own_anchors, sizes)
    hashes, _ = gather_rows(HASHES[rows], sizes)
    assert torch.equal(hashes, HASHES)
    index = torch.arange(len(anchors)) + offset
    mask = same(hashes[index], hashes)
    reverse = Reverse(all_anchors, index, mask)
    result = info_nce(own_anchors, candidates, index, mask, 0.1, reverse)
    (result.loss_sum * dist.get_world_size() / sum(sizes)).backward()
    return gradient_of(model)


def single_gradient() -> torch.Tensor:
    model = network()
    anchors, positives = pairs()
    index = torch.arange(5)
    mask = same(HASHES, HASHES)
    result = info_nce(model(anchors), model(positives), index, mask, 0.1, symmetric=True)
    (result.loss_sum / 5).backward()
    return gradient_of(model)


def save_gradient(place: RankPlace, folder: Path) -> None:
    gradient = distributed_gradient(slice(0, 3) if place.rank == 0 else slice(3, 5))
    torch.save(gradient, folder / f"gradient-{place.rank}.pt")
